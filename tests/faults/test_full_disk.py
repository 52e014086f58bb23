"""A disk that is full, and places that are read-only: exit 3 in a line, and the old output whole.

A file system of one megabyte needs root (tmpfs); where that is refused, a limit on the size of a file stands
for it: the write fails half-way with EFBIG.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import HIDDEN, call, contents, converted_folder, drafter_folder, floats
from tests.disks import mounted
from tests.faults.processes import COMMAND, start
from tests.tiny import TINY

LIMIT = 1 << 20
# SIGXFSZ is ignored by Python, so that the write fails with EFBIG
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n{COMMAND}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A drafter of two megabytes."""
    embedding = floats("embedding", 65536, HIDDEN)
    return drafter_folder(
        tmp_path / "inputs", config={"vocab_size": 65536}, tensors={"embed_tokens.weight": embedding}
    )


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


@pytest.mark.parametrize("layout", ["vllm", "torchspec"])
@pytest.mark.parametrize("force", [(), ("--force",)])
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


def test_convert_onto_a_full_file_system(source: Path, small_disk: Path) -> None:
    code, error = run(COMMAND, "convert", source, "-o", small_disk / "out")
    assert (code, error.count("\n")) == (3, 1)
    assert "no space left for" in error
    assert list(small_disk.iterdir()) == []


def test_a_report_onto_a_full_file_system(source: Path, small_disk: Path) -> None:
    old = small_disk / "report.json"
    old.write_text('{"schema": "eaglectl/validate/1"}')
    (small_disk / "filler").write_bytes(bytes(LIMIT - 4096))
    code, error = run(COMMAND, "validate", source, "--output", f"json={old}")
    assert (code, error.count("\n")) == (3, 1)
    assert "No space left on device" in error
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "report.json"]
    assert old.read_text() == '{"schema": "eaglectl/validate/1"}'


RUN = "--target TINY/target --device cpu --prompts TINY/prompts.jsonl"
WRITERS = {
    "diff --page": "diff SOURCE TINY/eagle3 --page DISK/page.html",
    "calibrate --states": "calibrate TINY/eagle3 --target TINY/target --device cpu --states TINY/states"
    " --states-layers 2,4,5 -o DISK/out",
    "ready": f"ready AUTOMODEL {RUN} --sample 8 --max-tokens 16 -o DISK/out",
    "convert --to 3.1": f"convert TINY/eagle3 --to 3.1 {RUN} --no-gate -o DISK/out",
}
MODELS = ("calibrate --states", "ready", "convert --to 3.1")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in MODELS else []) for name in WRITERS]
)
def test_every_other_writer_onto_a_full_file_system(
    tmp_path: Path, source: Path, small_disk: Path, name: str
) -> None:
    target = ("--target", TINY / "target")
    made = call("convert", TINY / "eagle3", "--for", "automodel", *target, "-o", tmp_path / "automodel")
    assert made.code == 0, made.err
    (tmp_path / "elsewhere").mkdir()
    (small_disk / "filler").write_bytes(bytes(LIMIT - 4096))
    places = {
        "TINY": TINY,
        "SOURCE": source,
        "AUTOMODEL": tmp_path / "automodel",
        "DISK": small_disk,
        "ELSEWHERE": tmp_path / "elsewhere",
    }
    words = [
        str(places[first] / rest if rest else places[first]) if first in places else word
        for word in WRITERS[name].split()
        for first, _, rest in [word.partition("/")]
    ]
    before = contents(tmp_path)
    code, error = run(COMMAND, *words)
    assert code == 3 and "no space left" in error.splitlines()[-1].lower(), error
    assert contents(tmp_path) == before


@pytest.mark.parametrize("option", ["json", "page"])
def test_a_report_where_no_file_can_be_written(tmp_path: Path, option: str) -> None:
    source, file = drafter_folder(tmp_path / "inputs"), tmp_path / "report"
    old = "<!DOCTYPE html> old" if option == "page" else '{"schema": "eaglectl/validate/1"}'
    file.write_text(old)
    code = LIMITED.replace(str(LIMIT), "100")
    words = ("--page", file) if option == "page" else ("--output", f"{option}={file}")
    status, error = run(code, "validate", source, *words)
    assert (status, error.count("\n")) == (3, 1)
    assert "File too large" in error
    assert file.read_text() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "report"]


@pytest.mark.parametrize("place", ["/proc/out", "/sys/out", "/dev/null/out"])
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
