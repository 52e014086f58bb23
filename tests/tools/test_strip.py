"""Fat binaries of one architecture: what a driver takes is untouched, nothing moves, odd files stay."""

import struct

import pytest

from tests.tools.fat import OTHERS, OURS, entry, fat
from tools.gpu.strip import MACHINE_CODE, PTX, strip

BEFORE, AFTER = b"\x7fELF the host's code" + bytes(13), b"more of the host's code"


def stripped(data: bytes, arch: int = 90) -> bytes:
    changed = bytearray(data)
    strip(changed, arch)
    return bytes(changed)


def test_the_payloads_of_other_architectures_are_zeros_and_the_kept_one_is_untouched() -> None:
    data = BEFORE + fat(OTHERS[0], OURS, OTHERS[1]) + AFTER
    assert stripped(data) == data.replace(b"eighty!!", bytes(8)).replace(b"newer!!!", bytes(8))


def test_the_newest_ptx_that_is_not_newer_is_kept_where_there_is_no_machine_code() -> None:
    data = fat(OTHERS[0], *(entry(PTX, arch, b"ptx of %03d" % arch) for arch in (75, 80, 100)))
    kept = data.replace(b"eighty!!", bytes(8))
    assert stripped(data) == kept.replace(b"ptx of 075", bytes(10)).replace(b"ptx of 100", bytes(10))


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
