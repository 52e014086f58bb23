"""Files of --page: what the terminal shows, sound for any name, never written over other files."""

import shutil
from pathlib import Path

import pytest

import eaglectl
from eaglectl import DiffOptions
from eaglectl.cli import run
from eaglectl.errors import UsageError
from eaglectl.files.output_files import parse_page, write_report
from eaglectl.report.documents import outline
from eaglectl.report.terminal import PAGE_WIDTH, as_text
from eaglectl.text import printable
from tests.cases import CASES, Case, file_digests
from tests.conftest import FIXTURES, sampled
from tests.pages import read_page

READABLE = [case for case in CASES if not case.is_pickled]
NATIVE = str(FIXTURES / "producers/vllm/native")
IDS = str(FIXTURES / "producers/modelopt/hf-ids")
TARGET = str(FIXTURES / "target")


def lines(text: str) -> list[str]:
    """The lines of a text without spaces at their ends."""
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("case", sampled(READABLE, 20), ids=lambda case: case.path)
def test_a_page_is_what_the_terminal_shows(case: Case) -> None:
    answers = case.answered()
    looked = eaglectl.inspect(str(case.folder), answers=answers)
    judged = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(answers=answers, target=TARGET, engines=["vllm>=0.30"])
    )
    compared = eaglectl.diff(str(case.folder), NATIVE, DiffOptions(answers=answers, target=TARGET))
    for result in (looked, judged, compared):
        shown = as_text(outline([result]), PAGE_WIDTH)
        made_by, *page = lines(read_page(eaglectl.render_page(result)))
        assert page == lines(shown) and made_by.startswith(f"eaglectl {eaglectl.__version__} ")


# --- the command line

CALLS = {
    "inspect": ["inspect", IDS, "--target", TARGET],
    "several": ["inspect", IDS, NATIVE, "nowhere"],
    "validate": ["validate", IDS, "--target", TARGET, "--engine", "vllm==0.32.0"],
    "validate several": ["validate", IDS, NATIVE, "nowhere"],
    "diff": ["diff", IDS, NATIVE, "--target", TARGET],
    "same": ["diff", NATIVE, str(FIXTURES / "producers/vllm/fused")],
}


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", CALLS)
def test_a_page_changes_neither_the_output_nor_the_exit_code(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        without = run([*CALLS[name], *more]), capsys.readouterr()
        page = ["--page", str(tmp_path / "page.html")]
        assert (run([*CALLS[name], *more, *page]), capsys.readouterr()) == without
        read_page((tmp_path / "page.html").read_text(encoding="utf-8"))
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of a checkpoint, with a card."""
    folder = shutil.copytree(NATIVE, tmp_path / "checkpoint")
    (folder / "README.md").write_text("# card\n")
    return folder


@pytest.mark.fast(5)
@pytest.mark.parametrize("command", ["inspect", "validate", "diff", "smoke", "diagnose"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_no_file_of_a_checkpoint_is_written_over_nor_by_a_link(
    command: str, name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = file_digests(checkpoint), str(checkpoint / name)
    target = ["--target", TARGET]
    more = {"diff": [NATIVE], "smoke": target, "diagnose": target}.get(command, [])
    assert run([command, str(checkpoint), *more, "--page", file]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err == (
        f"eaglectl: --page {file}: {file} exists, is not a page by eaglectl, and stays; pass another name\n"
    )
    link = checkpoint.parent / "page.html"
    link.symlink_to(file)
    assert run([command, str(checkpoint), *more, "--page", str(link)]) == 2
    assert file_digests(checkpoint) == before and link.is_symlink()


def test_a_file_that_came_while_the_work_went_on_stays(tmp_path: Path) -> None:
    page = parse_page(str(tmp_path / "config.json"))
    page.write_text("{}")
    with pytest.raises(UsageError, match="is not a page"):
        write_report("--page", page, "<!DOCTYPE html>", "page")
    assert page.read_text() == "{}"


def test_an_own_page_and_an_empty_file_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, made = tmp_path / "page.html", tmp_path / "made.html"
    made.touch()
    for path in (file, file, made):
        assert run(["inspect", NATIVE, "--page", str(path)]) == 0
    assert file.read_bytes() == made.read_bytes()
    assert run(["inspect", NATIVE, "--page", str(tmp_path / "image.SVG")]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "<!doctype html><p>of another tool",
        "<!DOCTYPE html>\n<html>\n<title>notes on eaglectl</title>\n",
        f"<!DOCTYPE html>\n<html>\n{'<p>mine' * 100}<title>eaglectl</title>\n",
        "<!-- mine --><!DOCTYPE html>\n<html>\n<title>eaglectl</title>\n",
    ],
)
def test_a_page_of_another_tool_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(text)
    assert run(["inspect", NATIVE, "--page", str(file)]) == 2
    assert file.read_text() == text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_after_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", NATIVE, "--page", "/dev/full"]) == 3
    streams = capsys.readouterr()
    assert "EAGLE-3 drafter" in streams.out
    assert streams.err == "eaglectl: --page was not written: /dev/full: No space left on device\n"


def test_what_cannot_be_looked_at_leaves_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ["--page", str(tmp_path / "page.html")]
    assert run(["inspect", "nowhere/at/all", *page]) == 3
    assert run(["diff", NATIVE, "nowhere/at/all", *page]) == 3
    assert run(["smoke", NATIVE, "--target", TARGET, "--load-only", *page]) == 2
    assert "leave --page out" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["nowhere/page.html", "", "a\x00b"])
def test_a_path_that_cannot_be_written_gets_the_sentence_of_output(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{tmp_path}/{where}"
    assert run(["validate", NATIVE, "--output", f"json={file}"]) == 2
    message = capsys.readouterr().err.replace(f"--output json={printable(file)}", f"--page {printable(file)}")
    for call in CALLS.values():
        assert run([*call, "--page", file]) == 2
        assert capsys.readouterr() == ("", message)
