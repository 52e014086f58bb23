"""Fat binaries of one architecture: what a driver takes is untouched, nothing moves, odd files stay."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.fat import OTHERS, OURS, entry, fat
from tools.gpu.strip import MACHINE_CODE, PTX, containers, strip

BEFORE, AFTER = b"\x7fELF the host's code" + bytes(13), b"more of the host's code"


def stripped(data: bytes, arch: int = 90) -> bytes:
    changed = bytearray(data)
    strip(changed, arch)
    return bytes(changed)


def test_the_payloads_of_other_architectures_are_zeros_and_the_kept_one_is_untouched() -> None:
    data = BEFORE + fat(OTHERS[0], OURS, OTHERS[1]) + AFTER
    assert stripped(data) == data.replace(b"eighty!!", bytes(8)).replace(b"newer!!!", bytes(8))


def test_every_fat_binary_of_a_file_is_stripped() -> None:
    data = BEFORE + fat(OTHERS[0], OURS) + AFTER + fat(OURS, OTHERS[1]) + AFTER
    assert stripped(data) == data.replace(b"eighty!!", bytes(8)).replace(b"newer!!!", bytes(8))


def test_the_number_of_zeroed_bytes_is_returned() -> None:
    assert strip(bytearray(fat(*OTHERS, OURS)), 90) == 16


def test_both_variants_of_one_architecture_are_kept() -> None:
    data = fat(OURS, entry(MACHINE_CODE, 90, b"with 90a"))
    assert stripped(data) == data


def test_ptx_is_dropped_where_there_is_machine_code() -> None:
    data = fat(entry(PTX, 90, b"ptx of 90"), OURS)
    assert stripped(data) == data.replace(b"ptx of 90", bytes(9))


def test_the_newest_ptx_that_is_not_newer_is_kept_where_there_is_no_machine_code() -> None:
    data = fat(OTHERS[0], *(entry(PTX, arch, b"ptx of %03d" % arch) for arch in (75, 80, 100)))
    kept = data.replace(b"eighty!!", bytes(8))
    assert stripped(data) == kept.replace(b"ptx of 075", bytes(10)).replace(b"ptx of 100", bytes(10))


def test_older_machine_code_of_the_same_major_version_is_kept() -> None:
    data = fat(OTHERS[0], entry(PTX, 80, b"portable"))
    assert stripped(data, 86) == data.replace(b"portable", bytes(8))


def test_what_no_device_of_the_architecture_takes_is_zeros() -> None:
    assert stripped(fat(OTHERS[1])) == fat(entry(MACHINE_CODE, 120, bytes(8), header=112))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(BEFORE, id="no fat binary"),
        pytest.param(fat(*OTHERS)[:10], id="ends in the header"),
        pytest.param(fat(*OTHERS)[:-1], id="ends in a payload"),
        pytest.param(fat(OTHERS[0], b"ten bytes."), id="ends in an entry's header"),
        pytest.param(fat(OTHERS[0], entry(7, 80, b"unknown kind")), id="a kind that is not known"),
        pytest.param(fat(OTHERS[0], entry(MACHINE_CODE, 80, b"x" * 8)[:-4]), id="an entry past the end"),
        pytest.param(
            fat(OTHERS[0], struct.pack("<HHIQ12xI", 2, 0, 0, 0, 80) + b"12345678"), id="a header of no bytes"
        ),
        pytest.param(fat(OTHERS[0], struct.pack("<HHIQ12xI", 2, 0, 64, 2**63, 80)), id="a size past all"),
        pytest.param(struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 32) + OTHERS[0], id="a header of its own magic"),
    ],
)
def test_an_odd_fat_binary_is_left_as_it_is(data: bytes) -> None:
    assert stripped(data) == data


def test_an_odd_fat_binary_does_not_hide_the_next() -> None:
    odd, good = fat(entry(7, 80, b"unknown kind")), fat(OURS, OTHERS[1])
    assert stripped(odd + good) == odd + good.replace(b"newer!!!", bytes(8))


def test_a_magic_among_other_bytes_is_no_fat_binary() -> None:
    data = struct.pack("<I", 0xBA55ED50) * 9
    assert list(containers(data)) == [] and stripped(data) == data


def test_the_command_writes_a_file_of_the_same_size(tmp_path: Path) -> None:
    (tmp_path / "in.so").write_bytes(fat(*OTHERS, OURS))
    words = [
        sys.executable,
        "-m",
        "tools.gpu.strip",
        tmp_path / "in.so",
        tmp_path / "out.so",
        "--arch",
        "120",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (tmp_path / "out.so").read_bytes() == stripped(fat(*OTHERS, OURS), 120)
    assert done.stdout.endswith("0.0 of 0.0 MB are zeros now\n")
