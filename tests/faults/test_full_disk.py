"""A disk that is full, and places that are read-only: exit 3 in a line, and the old output whole.

A file system of one megabyte needs root (tmpfs); where that is refused, a limit on the size of a file stands
for it: the write fails half-way with EFBIG.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import contents, converted_folder, drafter_folder
from tests.disks import mounted
from tests.faults.processes import COMMAND, automodel, large_drafter, start
from tests.tiny import PROMPTS, TARGET, TINY

LIMIT = 1 << 20
# SIGXFSZ is ignored by Python, so that the write fails with EFBIG
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n{COMMAND}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return large_drafter(tmp_path / "inputs")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    options = ("-t", "tmpfs", "-o", f"size={LIMIT}", "tmpfs")
    with mounted(tmp_path / "small", *options, instead="RLIMIT_FSIZE stands for it") as place:
        yield place


def run(code: str, *arguments: str | Path) -> tuple[int, str]:
    process = start(code, *arguments)
    _, error = process.communicate(timeout=120)
    return process.returncode, error


@pytest.mark.parametrize(("layout", "force"), [("vllm", ()), ("torchspec", ("--force",))])
def test_convert_where_a_file_gets_too_large(
    tmp_path: Path, source: Path, layout: str, force: tuple[str, ...]
) -> None:
    places = tmp_path / "places"
    places.mkdir()
    out = converted_folder(places, "out") if force else places / "out"
    before = contents(tmp_path)
    code, error = run(LIMITED, "convert", source, "-o", out, "--for", layout, *force)
    assert (code, error.count("\n")) == (3, 1)
    assert "no space left for model.safetensors; nothing was written" in error
    assert contents(tmp_path) == before


RUN = "--target TARGET --device cpu --prompts PROMPTS"
# what fills the disk, the command; every other one runs a model
FULL = LIMIT - 4096
WRITERS: dict[str, tuple[int, str]] = {
    "convert": (0, "convert SOURCE -o DISK/out"),
    "calibrate": (FULL, f"calibrate TINY {RUN} --sample 2 --answer-tokens 4 -o DISK/out"),
    "validate --output": (FULL, "validate SOURCE --output json=DISK/report.json"),
    "ready": (FULL, f"ready AUTOMODEL {RUN} --sample 8 --max-tokens 16 -o DISK/out"),
    "diff --page": (FULL, "diff SOURCE TINY --page DISK/page.html"),
    "convert --to 3.1": (FULL, f"convert TINY --to 3.1 {RUN} --no-gate -o DISK/out"),
}


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_onto_a_full_file_system(
    tmp_path: Path, source: Path, small_disk: Path, name: str
) -> None:
    filled, words = WRITERS[name]
    (small_disk / "filler").write_bytes(bytes(filled))
    (small_disk / "report.json").write_text('{"schema": "eaglectl/validate/1"}')
    places = {"SOURCE": source, "TINY": TINY / "eagle3", "TARGET": TARGET, "PROMPTS": PROMPTS}
    if "AUTOMODEL" in words:
        places["AUTOMODEL"] = automodel(tmp_path)
    before = contents(tmp_path)
    command = [str(places.get(word, word)).replace("DISK", str(small_disk)) for word in words.split()]
    code, error = run(COMMAND, *command)
    assert code == 3 and "no space left" in error.splitlines()[-1].lower(), error
    assert "TARGET" in words or error.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("option", ["json", "page"])
def test_a_report_where_no_file_can_be_written(tmp_path: Path, option: str) -> None:
    source, file = drafter_folder(tmp_path / "inputs"), tmp_path / "report"
    page = "<!DOCTYPE html>\n<head><title>eaglectl</title> old"
    old = page if option == "page" else '{"schema": "eaglectl/validate/1"}'
    file.write_text(old)
    code = LIMITED.replace(str(LIMIT), "100")
    words = ("--page", file) if option == "page" else ("--output", f"{option}={file}")
    status, error = run(code, "validate", source, *words)
    assert (status, error.count("\n")) == (3, 1)
    assert "File too large" in error
    assert file.read_text() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "report"]


@pytest.mark.parametrize(
    "place",
    ["/proc/out", *(pytest.param(out, marks=pytest.mark.slow) for out in ("/sys/out", "/dev/null/out"))],
)
def test_places_that_nobody_may_write_to(source: Path, place: str) -> None:
    code, error = run(COMMAND, "convert", source, "-o", place)
    assert (code, error.count("\n")) == (3, 1)
    assert "cannot write there" in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_with_an_old_output(tmp_path: Path, source: Path) -> None:
    places = tmp_path / "places"
    out = converted_folder(places, "out")
    before = contents(out)
    places.chmod(0o555)
    try:
        code, error = run(COMMAND, "convert", source, "-o", out, "--force")
    finally:
        places.chmod(0o755)
    assert (code, error.count("\n")) == (3, 1)
    assert contents(out) == before
