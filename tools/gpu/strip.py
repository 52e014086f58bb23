"""Keep the GPU code of one architecture in a shared library: `python -m tools.gpu.strip IN OUT --arch 90`.

A fat binary begins with its magic, u16 version, u16 size of this header, u64 size of what follows. Entries
follow, one for each architecture: u16 kind (1 PTX, 2 machine code), u16 flags, u32 size of its header, u64
size of its payload; at byte 28 of the header stands the architecture, 90 for compute capability 9.0. What
the driver of a device would not take has its payload overwritten with zeros, so that no offset moves and
the file compresses. A fat binary that does not read so to its end is left as it is.
"""

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<4sHHQ")
ENTRY = struct.Struct("<HHIQ12xI")
PTX, MACHINE_CODE = 1, 2


class Entry(NamedTuple):
    """Code for one architecture; its payload is the bytes from `start` to `end`."""

    kind: int
    arch: int
    start: int
    end: int


def containers(data: bytes | bytearray) -> Iterator[list[Entry]]:
    """The entries of each fat binary of a file that can be read whole."""
    place = data.find(MAGIC)
    while place != -1:
        entries, end = _entries(data, place)
        if entries:
            yield entries
        place = data.find(MAGIC, end if entries else place + 1)


def _entries(data: bytes | bytearray, place: int) -> tuple[list[Entry], int]:
    """The entries of the fat binary at `place`, none where it is odd, and where it ends."""
    if place + CONTAINER.size > len(data):
        return [], place
    _, _, header, size = CONTAINER.unpack_from(data, place)
    place, end = place + header, place + header + size
    if header < CONTAINER.size or end > len(data):
        return [], place
    entries = []
    while place < end:
        if place + ENTRY.size > end:
            return [], place
        kind, _, header, size, arch = ENTRY.unpack_from(data, place)
        start = place + header
        place = start + size
        if header < ENTRY.size or place > end or kind not in (PTX, MACHINE_CODE):
            return [], place
        entries.append(Entry(kind, arch, start, place))
    return entries, end


def taken(entries: list[Entry], arch: int) -> list[Entry]:
    """The entries that the driver of a device of `arch` takes of one fat binary.

    Machine code of the newest architecture of the device's major version that is not newer than it; where
    there is none, the newest PTX that is not newer, which the driver compiles.
    """
    code = [entry for entry in entries if entry.kind == MACHINE_CODE and entry.arch // 10 == arch // 10]
    for usable in (code, [entry for entry in entries if entry.kind == PTX]):
        older = [entry for entry in usable if entry.arch <= arch]
        if older:
            newest = max(entry.arch for entry in older)
            return [entry for entry in older if entry.arch == newest]
    return []


def strip(data: bytearray, arch: int) -> int:
    """Overwrite with zeros, in place, what a device of `arch` does not take; the number of such bytes."""
    zeroed = 0
    for entries in list(containers(data)):
        kept = taken(entries, arch)
        for entry in entries:
            if entry not in kept:
                data[entry.start : entry.end] = bytes(entry.end - entry.start)
                zeroed += entry.end - entry.start
    return zeroed


def main() -> None:
    """Strip one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", type=int, default=90, help="90 is compute capability 9.0 (H100, H200)")
    words = parser.parse_args()
    data = bytearray(words.library.read_bytes())
    zeroed = strip(data, words.arch)
    words.out.write_bytes(data)
    print(f"{words.out}: {zeroed / 1e6:.1f} of {len(data) / 1e6:.1f} MB are zeros now")


if __name__ == "__main__":
    main()
