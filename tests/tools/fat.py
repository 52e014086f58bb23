"""Files of machine code for several GPUs."""

import struct

from tools.gpu.strip import MACHINE_CODE


def entry(kind: int, arch: int, payload: bytes, header: int = 64) -> bytes:
    head = struct.pack("<HHIQ12xI", kind, 0x101, header, len(payload), arch)
    return head.ljust(header, b"\1") + payload


def fat(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


OTHERS = [entry(MACHINE_CODE, 80, b"eighty!!"), entry(MACHINE_CODE, 120, b"newer!!!", header=112)]


OURS = entry(MACHINE_CODE, 90, b"ours  90")
