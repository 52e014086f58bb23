"""Files that an option names: regular ones of a bounded size, or one sentence. A pipe would block."""

import os
from pathlib import Path

import pytest

from eaglectl.cli import run
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files import files
from eaglectl.files.files import decoded, open_regular, read_small_file
from tests.hostile.side_files import KINDS, no_more_than
from tests.tiny import TARGET, TINY

DRAFTER = str(TINY / "eagle3")


SMOKE = ["smoke", DRAFTER, "--target", str(TARGET)]
UPGRADE = ["convert", DRAFTER, "-o", "OUT", "--to", "3.1", "--target", str(TARGET)]
# an option's command, and its exit code
OPTIONS: dict[str, tuple[list[str], int]] = {
    "--prompts of smoke": ([*SMOKE, "--prompts", "FILE"], 3),
    "--prompts of calibrate": (
        ["calibrate", DRAFTER, "--target", str(TARGET), "-o", "OUT", "--prompts", "FILE"],
        3,
    ),
    "--prompts of convert": ([*UPGRADE, "--prompts", "FILE"], 3),
    "--calibration": ([*UPGRADE, "--calibration", "FOLDER"], 3),
    "--token-counts": (["convert", DRAFTER, "-o", "OUT", "--draft-vocab", "8", "--token-counts", "FILE"], 3),
    "--policy": (["validate", DRAFTER, "--policy", "FILE"], 2),
    "--policy of upload": (["upload", DRAFTER, "a/b", "--dry-run", "--policy", "FILE"], 2),
    "--smoke": (["upload", DRAFTER, "a/b", "--dry-run", "--smoke", "FILE"], 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_no_file_is_one_sentence(
    option: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments, expected = OPTIONS[option]
    folder = tmp_path / "folder"
    folder.mkdir()
    # a name that each option takes for one of its own
    file = folder / ("statistics.json" if option == "--calibration" else "file.json")
    KINDS[kind](file)
    places = {"FILE": file, "FOLDER": folder, "OUT": tmp_path / "out"}
    with no_more_than(60):
        code = run([str(places.get(argument, argument)) for argument in arguments])
    error = capsys.readouterr().err.splitlines()
    assert code == expected, error
    assert len(error) == 1 and error[0].startswith("eaglectl: ")
    assert str(file) in error[0]


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder"])
def test_the_kind_is_named(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / "file")
    with no_more_than(60), pytest.raises(UnreadableError, match=str(tmp_path / "file")) as raised:
        read_small_file(tmp_path / "file", 10, "--prompts")
    # a socket cannot even be opened
    assert f"is a {kind}" in str(raised.value) or kind == "socket"


def test_a_file_over_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_small_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UnreadableError, match="more than 4 bytes"):
        read_small_file(tmp_path / "file", 4)
    with pytest.raises(UsageError, match=r"--policy .*more than 4 bytes"):
        read_small_file(tmp_path / "file", 4, "--policy", UsageError)


def test_a_sparse_file_of_terabytes_is_refused_at_once(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with no_more_than(60), pytest.raises(UnreadableError, match="more than 1000 bytes"):
        read_small_file(tmp_path / "file", 1000)


def test_a_file_that_is_exchanged_after_a_look_at_it_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("a prompt", encoding="utf-8")
    really = os.open

    def exchange(*arguments: object, **named: object) -> int:
        path.unlink()
        os.mkfifo(path)
        return really(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(files.os, "open", exchange)
    with no_more_than(60), pytest.raises(UnreadableError, match="is a pipe"):
        open_regular(path)


def test_a_byte_order_mark_is_no_text_and_other_encodings_are_named(tmp_path: Path) -> None:
    assert decoded(tmp_path / "file", b"\xef\xbb\xbfa") == "a"
    with pytest.raises(UnreadableError, match="byte 0 is not UTF-8"):
        decoded(tmp_path / "file", "a".encode("utf-16"))


def test_a_name_that_no_file_can_have_is_usage() -> None:
    assert run([*SMOKE, "--prompts", "a\0b"]) == 2
    with pytest.raises(UnreadableError, match="null byte"):
        read_small_file(Path("a\0b"), 10)
