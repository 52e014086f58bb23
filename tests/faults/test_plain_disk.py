"""File systems that do less: overlay renames no folder of a lower layer, and exFAT has no links.

exFAT has no rename that replaces nothing either, no owners, and capital letters count as small ones. It is
mounted by FUSE, as root (apt-get install exfat-fuse exfatprogs); the tests are skipped where that is
refused.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglectl.errors import UsageError
from eaglectl.files.writer import check_apart
from tests.builders import call, contents
from tests.disks import mounted, run_or_skip
from tests.faults.processes import is_checkpoint, is_statistics, names
from tests.tiny import PROMPTS, TARGET, TINY

RUN = ("--target", TARGET, "--device", "cpu", "--prompts", PROMPTS, "--sample", "2", "--answer-tokens", "4")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An exFAT file system of 64 MiB."""
    image, place = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run_or_skip(["mkfs.exfat", str(image)])
    device = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True)
    if device.returncode:
        pytest.skip(f"losetup is refused here ({device.stderr.strip()})")
    try:
        with mounted(place, "-t", "exfat-fuse", device.stdout.strip()):
            yield place
    finally:
        subprocess.run(["losetup", "-d", device.stdout.strip()], check=True)


@pytest.mark.slow
def test_what_is_written_there_is_whole_and_alone(disk: Path) -> None:
    for force in ((), ("--force",)):
        for words in (("convert", "-o", disk / "out"), ("calibrate", *RUN, "-o", disk / "states")):
            made = call(words[0], TINY / "eagle3", *words[1:], *force)
            assert made.code == 0, made
    assert call("convert", disk / "out", "--link", "-o", disk / "linked").code == 0
    assert call("validate", disk / "out", "--page", disk / "page.html").code == 0
    short = ("--sample", "1", "--max-tokens", "2", "--target", TARGET)
    assert call("ready", disk / "out", *short).code in (0, 3)
    assert names(disk) == ["linked", "out", "page.html", "states"]
    is_checkpoint(disk / "linked")
    is_statistics(disk / "states")


@pytest.mark.slow
def test_a_folder_of_a_lower_layer_cannot_be_replaced(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("lower", "upper", "work")}
    for place in places.values():
        place.mkdir()
    assert call("convert", TINY / "eagle3", "-o", places["lower"] / "out").code == 0
    layers = "lowerdir={lower},upperdir={upper},workdir={work}".format(**places)
    with mounted(tmp_path / "all", "-t", "overlay", "overlay", "-o", layers) as place:
        before = contents(place)
        done = call("convert", TINY / "eagle3", "-o", place / "out", "--force")
        assert done.code == 3 and "lower layer of an overlay" in done.err
        assert contents(place) == before and names(place) == ["out"]
        for force in ((), ("--force",)):
            assert call("convert", place / "out", "--link", "-o", place / "new", *force).code == 0
        assert names(place) == ["new", "out"]
        is_checkpoint(place / "new")


@pytest.mark.slow
@pytest.mark.parametrize("out", ["OUT", "Out/sub", "OUT.gguf/../oUT"])
def test_an_output_is_not_its_input_in_capital_letters(disk: Path, out: str) -> None:
    assert call("convert", TINY / "eagle3", "-o", disk / "out").code == 0
    before = contents(disk)
    (disk / "OUT.gguf").mkdir()
    done = call("convert", disk / "out", "-o", disk / out, "--force")
    assert done.code == 2 and "overlap, and eaglectl never overwrites its input" in done.err
    (disk / "OUT.gguf").rmdir()
    assert contents(disk) == before


@pytest.mark.parametrize("out", ["Drafter", "Drafter/sub"])
def test_an_output_in_the_letters_of_its_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "drafter").mkdir()
    check_apart(tmp_path / out, tmp_path / "drafter")
    real = Path.stat  # as of a file system that takes both names for one folder

    def stat(path: Path, **options: bool) -> os.stat_result:
        return real(Path(str(path).replace("Drafter", "drafter")), **options)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(UsageError, match="overlap, and eaglectl never overwrites its input"):
        check_apart(tmp_path / out, tmp_path / "drafter")
