"""Input that is larger than memory, files or keys allow, and what may not be written into a model."""

import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import eaglectl
from eaglectl.cli import run
from eaglectl.errors import UnreadableError
from eaglectl.files.files import read_small_file
from eaglectl.operations import validating
from tests.builders import call, drafter_folder
from tests.tiny import TARGET, TINY

ROOM = 200 << 20
CHILD = """
import sys
from eaglectl.errors import EaglectlError
from eaglectl.run.prompts import choose_prompts
try:
    choice = choose_prompts(sys.argv[1], int(sys.argv[2]) or None, 5)
    print(choice.total, [prompt.place.rpartition(" ")[2] for prompt in choice.prompts])
except EaglectlError as error:
    print(error)
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))


@pytest.mark.parametrize(
    ("sample", "words"),
    [(3, "6000 ['"), (0, "more than 33,554,432 characters to run; take fewer with --sample")],
)
def test_a_large_file_of_prompts_takes_no_more_memory_than_what_is_run(
    sample: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(("a prompt of " + "words " * 2_000 + "\n") * 6_000)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, path, str(sample)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert words in done.stdout, done.stderr[-500:]


@pytest.mark.parametrize("most", [6, 7, 8])
def test_a_conversion_without_files_to_open_leaves_nothing(most: int, tmp_path: Path) -> None:
    """The numbers are those with which it has begun to write."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    command = [sys.executable, "-m", "eaglectl", "convert", TINY / "eagle3", "-o", "out", "--target", TARGET]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=few_files, cwd=tmp_path
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (3, []), done.stderr
    assert "Too many open files" in done.stderr


def test_memory_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(validating, "validate", exhausted)
    assert run(["validate", str(TINY / "eagle3")]) == 3
    streams = capsys.readouterr()
    assert "Traceback" not in streams.err and "not enough memory for this input" in streams.out


def test_small_files_are_read_without_asking_for_the_most(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1" * 700)
    tracemalloc.start()
    assert len(read_small_file(tmp_path / "small", 256 << 20)) == 700
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()


def test_a_config_of_many_keys_is_refused_at_once(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={f"key_{number}": number for number in range(10_000)})
    with pytest.raises(UnreadableError, match=r"config.json has 100\d\d keys; at most 10000 are read"):
        eaglectl.inspect(folder)


@pytest.mark.parametrize("option", ["--page", "--output"])
def test_no_report_is_written_into_a_model(option: str, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    before = sorted(folder.iterdir())
    for place in ("report.html", "below/report.html"):
        (folder / "below").mkdir(exist_ok=True)
        file = folder / place
        done = call("validate", folder, option, file if option == "--page" else f"json={file}")
        assert done.code == 2 and "a model's folder, which a report is not written into" in done.err
    (folder / "below").rmdir()
    assert sorted(folder.iterdir()) == before
