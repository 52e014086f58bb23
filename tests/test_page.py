"""Files of --page: what the terminal shows, sound for any name, never written over other files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import eaglectl
from eaglectl import DiffOptions
from eaglectl.cli import run
from eaglectl.comparison.comparison import KeyPair, NamePair, Remark, Spelling
from eaglectl.drafter.drafter import Note
from eaglectl.engines.engine import Verdict
from eaglectl.formats.commands import command
from eaglectl.judge.judgement import Report, Suppressed, Unchecked, unopened_report
from eaglectl.judge.rule import Finding, Match, Rule, Suppression
from eaglectl.report.terminal import PAGE_WIDTH, as_plain_text
from eaglectl.results import FailedSource
from eaglectl.text import printable
from eaglectl.verdicts import ServedAs
from tests.cases import CASES, Case, file_digests
from tests.conftest import FIXTURES
from tests.drafters import write_safetensors
from tests.pages import read_image, read_page, smoke_report, terminal_output

READABLE = [case for case in CASES if not case.is_pickled]
NATIVE = str(FIXTURES / "producers/vllm/native")
IDS = str(FIXTURES / "producers/modelopt/hf-ids")
TARGET = str(FIXTURES / "target")
NASTY = (
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- ",
    "]]>",
    "&lt;b&gt;",
    "&amp",
    "</style><style>@import url(//x)",
    "javascript:alert(1)",
    "a\x00b\x1b[31m\u202e\ud800\n\t",
    "{0} %s $x",
    "`<b>`",
    "--<i>",
    "http://evil/",
    "\u2028",
    "x" * 3000,
)
texts = st.sampled_from(NASTY) | st.text(min_size=1, max_size=40)


def lines(text: str) -> list[str]:
    """The lines of a text without spaces at their ends."""
    return [line.rstrip() for line in text.splitlines()]


def rule(number: int, **more: str) -> Rule:
    texts = {"summary": "what is `so`", "why": "why it is", "fix": "do it"} | more
    return Rule(f"EGL{number}", f"rule-{number}", "error", **texts, check=lambda _: iter(()))


def report(text: str = "x") -> Report:
    """A report with something in every place, `text` wherever it comes from a file or a policy."""
    findings = (
        Finding(rule(201), "error", Match(text, f"tensor:{text}", text, ("vllm==0.32.0",))),
        Finding(rule(110), "warning", Match(text)),
        Finding(rule(110), "note", Match(text, "config.json")),
    )
    by = Suppression("EGL203", text, None, text)
    return Report(
        text,
        text,
        ("vllm==0.32.0",),
        "fail",
        findings,
        (Unchecked(rule(701), text, True),),
        (Suppressed(Finding(rule(203), "error", Match(text)), by),),
        (Suppression("EGL1", text, None, text),),
        (rule(301),),
        text,
        0.5,
        "error",
        "",
        (Verdict("vllm", "0.32.0", ServedAs.DIFFERS, (text,), ()),),
        (text,),
        (Suppression("EGL2", text, None, text),),
    )


def inspection(text: str = "x") -> Any:
    real = eaglectl.inspect(NATIVE, target=TARGET)
    (name, tensor), *_ = real.checkpoint.tensors.items()
    drafter = replace(
        real.drafter,
        notes=(Note("warning", "aux layers", text), Note("question", "x", text)),
        evidence=text,
        target=replace(real.drafter.target, name=text),
    )
    checkpoint = replace(real.checkpoint, tensors={text: tensor, name: tensor})
    commands = dict.fromkeys(real.commands, text)
    convert = command("convert", text)
    return replace(
        real, source=text, drafter=drafter, checkpoint=checkpoint, commands=commands, convert=convert
    )


def comparison(text: str = "x") -> Any:
    real = eaglectl.diff(NATIVE, IDS, DiffOptions(target=TARGET))
    facts = tuple(replace(fact, a=text, b=[text], why=text) for fact in real.facts)
    tensors = tuple(replace(pair, name=text, remark=text) for pair in real.tensors)
    spelling = Spelling(
        (Remark("files", text, text),),
        (NamePair(text, (text,), (text, text)),),
        (KeyPair(text, text, {text: 1}),),
    )
    a = replace(real.a, source=text)
    return replace(real, a=a, facts=facts, tensors=tensors, spelling=spelling, notes=(text,))


MADE: dict[str, Callable[[str], Any]] = {
    "report": report,
    "smoke": smoke_report,
    "inspection": inspection,
    "comparison": comparison,
    "failure": lambda text: FailedSource(text, "unreadable", 3, text),
    "unopened_report": lambda text: unopened_report(text, text),
}


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=25, deadline=None)
@given(text=texts)
def test_no_text_breaks_out_of_its_place(kind: str, text: str) -> None:
    made = MADE[kind](text)
    page = read_page(eaglectl.render_page(made, has_tensors=True))
    image = "".join(read_image(eaglectl.render_page(made, has_tensors=True, is_svg=True)))
    word = "".join(printable(text).split())
    for shown in ("".join(page.split()), "".join(image.split())):
        assert shown.isprintable()
        assert word in shown or len(word) > 30  # a longer one may be folded in a cell


@pytest.mark.parametrize("case", READABLE[::7], ids=lambda case: case.path)
def test_a_page_is_what_the_terminal_shows(case: Case) -> None:
    answers = case.answered()
    looked = eaglectl.inspect(str(case.folder), answers=answers)
    judged = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(answers=answers, target=TARGET, engines=["vllm>=0.30"])
    )
    compared = eaglectl.diff(str(case.folder), NATIVE, DiffOptions(answers=answers, target=TARGET))
    for result in (looked, judged, compared):
        shown = as_plain_text(terminal_output(result, has_tensors=True), PAGE_WIDTH)
        made_by, *page = lines(read_page(eaglectl.render_page(result, has_tensors=True)))
        assert page == lines(shown) and made_by.startswith(f"eaglectl {eaglectl.__version__} ")


@pytest.mark.parametrize("kind", MADE)
def test_an_image_has_every_word_of_the_terminal(kind: str) -> None:
    made = MADE[kind]("x")
    shown = as_plain_text(terminal_output(made), PAGE_WIDTH)
    _, *image = read_image(eaglectl.render_page(made, is_svg=True))
    assert "".join("".join(image).split()) == "".join(shown.split())
    assert max(map(len, image)) <= PAGE_WIDTH


def test_several_inspections_share_a_page_with_what_failed() -> None:
    results = eaglectl.inspect(NATIVE), FailedSource("b", "unreadable", 3, "b: no such folder")
    page = read_page(eaglectl.render_page(*results, names=["a", "b"]))
    assert "== a" in page and "not inspected: b: no such folder" in page and "1 of 2 checkpoints" in page


def test_the_same_values_give_the_same_page() -> None:
    slow = replace(report(), seconds=99.0)
    assert eaglectl.render_page(report()) == eaglectl.render_page(slow)
    assert eaglectl.render_page(eaglectl.inspect(NATIVE)) == eaglectl.render_page(eaglectl.inspect(NATIVE))


@pytest.mark.parametrize(
    "results", [[], ["text"], [report(), smoke_report()], [smoke_report(), smoke_report()], [None]]
)
def test_what_has_no_page_is_named(results: list[Any]) -> None:
    with pytest.raises(TypeError, match="a page shows what inspect or validate returned"):
        eaglectl.render_page(*results)


# --- the command line

CALLS = {
    "inspect": ["inspect", IDS, "--target", TARGET],
    "several": ["inspect", IDS, NATIVE, "nowhere"],
    "validate": ["validate", IDS, "--target", TARGET, "--engine", "vllm==0.32.0"],
    "validate several": ["validate", IDS, NATIVE, "nowhere"],
    "diff": ["diff", IDS, NATIVE, "--target", TARGET],
    "same": ["diff", NATIVE, str(FIXTURES / "producers/vllm/fused")],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_page_changes_neither_the_output_nor_the_exit_code(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        without = run([*CALLS[name], *more]), capsys.readouterr()
        assert (
            run([*CALLS[name], *more, "--page", str(tmp_path / "page.html")]),
            capsys.readouterr(),
        ) == without
        read_page((tmp_path / "page.html").read_text(encoding="utf-8"))
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_quiet_keeps_the_page_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("loud", []), ("quiet", ["-q"])):
        run([*CALLS["validate"], *more, "--page", str(tmp_path / name)])
    assert (tmp_path / "loud").read_bytes() == (tmp_path / "quiet").read_bytes()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of a checkpoint, with a card."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in Path(NATIVE).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "README.md").write_text("# card\n")
    return folder


@pytest.mark.parametrize("command", ["inspect", "validate", "diff", "smoke", "diagnose"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_no_file_of_a_checkpoint_is_written_over(
    command: str, name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = file_digests(checkpoint), str(checkpoint / name)
    target = ["--target", TARGET]
    more = {"diff": [NATIVE], "smoke": target, "diagnose": target}.get(command, [])
    assert run([command, str(checkpoint), *more, "--page", file]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err == (
        f"eaglectl: --page {file}: {file} is there and is no page; it is not written over,"
        " give another name\n"
    )
    assert file_digests(checkpoint) == before


def test_a_link_to_weights_is_not_followed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = checkpoint.parent / "page.html"
    link.symlink_to(checkpoint / "model.safetensors")
    before = file_digests(checkpoint)
    assert run(["inspect", NATIVE, "--page", str(link)]) == 2
    assert file_digests(checkpoint) == before and link.is_symlink()


def test_a_file_that_came_while_the_work_went_on_stays(tmp_path: Path) -> None:
    from eaglectl.errors import UsageError
    from eaglectl.report.output_files import parse_page, write_page

    page = parse_page(str(tmp_path / "config.json"))
    assert page is not None
    page.write_text("{}")
    with pytest.raises(UsageError, match="is no page"):
        write_page(page, "<!DOCTYPE html>")
    assert page.read_text() == "{}"


@pytest.mark.parametrize("name", ["page.html", "image.SVG"])
def test_a_page_and_an_empty_file_are_replaced(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, made = tmp_path / name, tmp_path / f"made.{name}"
    made.touch()
    for path in (file, file, made):
        assert run(["inspect", NATIVE, "--page", str(path)]) == 0
    assert file.read_bytes() == made.read_bytes()
    file.write_text("<!doctype html><p>of another tool")
    assert run(["inspect", NATIVE, "--page", str(file)]) == 0
    assert file.read_bytes() == made.read_bytes()
    read = read_image if name.endswith("SVG") else read_page
    assert read(file.read_text(encoding="utf-8"))


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_after_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", NATIVE, "--page", "/dev/full"]) == 3
    streams = capsys.readouterr()
    assert "EAGLE-3 drafter" in streams.out
    assert streams.err == "eaglectl: --page was not written: /dev/full: No space left on device\n"


def test_a_page_and_an_output_are_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "page.html")
    assert run(["validate", NATIVE, "--output", f"json={file}", "--page", file]) == 2
    assert f"--page {file}: --output writes {file} already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_looked_at_leaves_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ["--page", str(tmp_path / "page.html")]
    assert run(["inspect", "nowhere/at/all", *page]) == 3
    assert run(["diff", NATIVE, "nowhere/at/all", *page]) == 3
    assert run(["smoke", NATIVE, "--target", TARGET, "--load-only", *page]) == 2
    assert "leave --page out" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="such names are not allowed there")
def test_a_hostile_checkpoint_stays_text_on_every_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "<img src=x onerror=alert(1)>\"'& `x` --<b>"
    folder = tmp_path / name
    folder.mkdir()
    config = json.loads((Path(NATIVE) / "config.json").read_text())
    config |= {
        "model_type": "<script>alert(1)</script>",
        "rope_scaling": {"rope_type": "</td><td>"},
        "<b>": name,
    }
    (folder / "config.json").write_text(json.dumps(config))
    from tests.cases import stored_tensors

    tensors = stored_tensors(Path(NATIVE))
    tensors["</table><script>alert(2)</script>"] = tensors["norm.weight"]
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "README.md").write_text(
        "---\nbase_model: <svg/onload=alert(3)>\n---\n<script>alert(4)</script>\n"
    )
    page = tmp_path / "page.html"
    for call in (
        ["inspect", str(folder), "--tensors"],
        ["validate", str(folder)],
        ["diff", str(folder), NATIVE],
        ["inspect", str(folder), NATIVE],
    ):
        page.unlink(missing_ok=True)
        run([*call, "--page", str(page)])
        if page.exists():
            assert name in read_page(page.read_text(encoding="utf-8"))
    assert page.exists()


def test_a_command_to_copy_holds_an_odd_name_as_one_word() -> None:
    shown = inspection("a b; $(x)")
    shown = replace(
        shown,
        verdicts=tuple(replace(verdict, outcome=eaglectl.ServedAs.DIFFERS) for verdict in shown.verdicts),
    )
    assert "eaglectl convert 'a b; $(x)'" in read_page(eaglectl.render_page(shown))


def test_a_run_on_the_reference_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pair = [str(FIXTURES / "tiny/eagle3"), "--target", str(FIXTURES / "tiny/target"), "--run-in", "reference"]
    page, prompts = tmp_path / "page.html", tmp_path / "prompts.txt"
    prompts.write_text("one and two\n17 + 4 =\n")
    more = ["--device", "cpu", "--max-tokens", "6", "--prompts", str(prompts), "--json", "--page", str(page)]
    code = run(["smoke", *pair, *more])
    document, read = json.loads(capsys.readouterr().out), read_page(page.read_text(encoding="utf-8"))
    assert (code, document["verdict"]) == (3, "could-not-look")
    assert read.splitlines()[1].startswith("could-not-look")
    assert f"{document['acceptance_length']:.3f}" in read
