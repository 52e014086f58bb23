"""Pages of --page: the facts of the terminal, sound HTML for any name, never written over other files."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console as RichConsole

import eaglectl
from eaglectl import ConvertOptions, DiffOptions, UpgradeOptions
from eaglectl.cli import run
from eaglectl.comparison.comparison import KeyPair, NamePair, Remark, Spelling
from eaglectl.drafter.drafter import Note
from eaglectl.engines.engine import Verdict
from eaglectl.formats.commands import command
from eaglectl.judge.judge import Report, Suppressed, unopened_report
from eaglectl.judge.judgement import Unchecked
from eaglectl.judge.policy import Suppression
from eaglectl.judge.rule import Finding, Match, Rule
from eaglectl.report.differences import comparison_outline
from eaglectl.report.terminal.console import Console
from eaglectl.report.terminal.report import GLYPHS, print_outline
from eaglectl.results import FailedSource
from eaglectl.run.gate import Gate, GateRow
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import PromptResult, measure, ratio
from eaglectl.run.probe import DriftCondition
from eaglectl.run.prompts import PromptChoice
from eaglectl.run.report import DrafterComparison, SetRatio, SmokeReport
from eaglectl.run.sensitivity import Variant
from eaglectl.text import printable
from eaglectl.verdicts import GateEnding, ServedAs
from tests.cases import CASES, Case, file_digests
from tests.conftest import FIXTURES
from tests.drafters import write_safetensors
from tests.pages import pictures, read_page, terminal_output

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


def screen(paint: Callable[[Console], None]) -> set[str]:
    """The words on a terminal that is wide enough for every line."""
    stream = io.StringIO()
    rich = RichConsole(file=stream, width=5000, no_color=True, highlight=False, emoji=False, markup=False)
    paint(Console(rich))
    words = {word for word in stream.getvalue().replace("`", "").split() if word != "=="}
    return {word for word in words if not set(word) <= set(GLYPHS.values())}  # drawn on the page


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


ENDINGS = {
    "pass": GateEnding.KEPT,
    "fail": GateEnding.LOST,
    "could-not-look": GateEnding.TOO_FEW_PROMPTS,
}


def smoke_report(text: str = "x", verdict: str = "fail") -> SmokeReport:
    """A run with everything beside it: sets, a second drafter, both probes."""
    results = tuple(PromptResult(f"{text}{n % 2}", 10 + n, (8, 5 + n % 3, 2), (1, 2, 3)) for n in range(6))
    other = tuple(replace(result, accepted=(6, 3, 1)) for result in results)
    run_ = EngineRun(
        text,
        text,
        "cpu",
        "float32",
        text,
        results,
        ((1, 2, 3),) * 6,
        2.0,
        1.0,
        {"class": text, "runner": text},
    )
    measured = measure(results)
    names = dict.fromkeys(result.set for result in results)
    sets = {name: measure([result for result in results if result.set == name]) for name in names}
    reading = Variant(text, text, measure(other), ratio(other, results))
    drift = DriftCondition(text, measured, (1.0, 1.1, 1.2), (0.0, 0.1, 0.2), (0.3, 0.4, 0.5))
    failures = (text,) if verdict == "fail" else ()
    why = "" if verdict == "pass" else text
    return SmokeReport(
        text,
        run_,
        measured,
        sets,
        True,
        failures,
        (text,),
        3,
        64,
        0,
        "a" * 64,
        0.0,
        DrafterComparison(
            text,
            measure(other),
            ratio(results, other),
            ratio(results, other),
            (SetRatio(text, 6, ratio(results, other), ratio(results, other), ENDINGS[verdict], why),),
            0.97,
        ),
        (reading,),
        (drift,),
        gaps=(text,) if verdict == "could-not-look" else (),
        choice=PromptChoice((), text, "b" * 64, 99, 6),
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
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_no_text_breaks_out_of_its_place(kind: str, text: str) -> None:
    page = read_page(eaglectl.render_page(MADE[kind](text), has_tensors=True))
    plain = read_page(eaglectl.render_page(MADE[kind]("harmless"), has_tensors=True))
    drawn = {"code"} if "`" in text else set()  # a rule's `code` is set as code
    assert [tag for tag in page.tags if tag not in drawn] == [tag for tag in plain.tags if tag not in drawn]
    assert printable(text).replace("`", "") in page.text.replace("`", "")
    assert page.text.isprintable() and page.title.isprintable()


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_every_word_of_the_screens_is_on_the_pages(case: Case) -> None:
    answers = case.answered()
    looked = eaglectl.inspect(str(case.folder), answers=answers)
    shown = screen(terminal_output(looked, has_tensors=True))
    assert shown <= read_page(eaglectl.render_page(looked, has_tensors=True)).words
    judged = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(answers=answers, target=TARGET, engines=["vllm>=0.30"])
    )
    shown = screen(terminal_output(judged))
    assert shown <= read_page(eaglectl.render_page(judged)).words
    compared = eaglectl.diff(str(case.folder), NATIVE, DiffOptions(answers=answers, target=TARGET))
    shown = screen(lambda console: print_outline(console, comparison_outline(compared, is_whole=True)))
    assert shown <= read_page(eaglectl.render_page(compared)).words


def test_every_word_of_a_run_is_on_its_page() -> None:
    for report in (smoke_report(), smoke_report(verdict="pass"), smoke_report(verdict="could-not-look")):
        page = read_page(eaglectl.render_page(report))
        shown = screen(terminal_output(report))
        assert shown - {"x:"} <= page.words  # the name, in a line with what follows
        assert page.title.startswith(f"{report.verdict}: x - eaglectl {eaglectl.__version__} smoke")


def test_every_word_of_a_full_report_is_on_its_page_and_of_several() -> None:
    several = [report("first"), report("second"), unopened_report("third", "no such file")]
    assert screen(terminal_output(*several)) <= read_page(eaglectl.render_page(*several)).words


def test_every_word_of_a_conversion_its_gate_and_how_to_train_it_is_on_its_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start = eaglectl.upgrade(str(FIXTURES / "tiny/eagle3"), out, UpgradeOptions(is_start=True))
    shown = screen(terminal_output(start))
    assert {"Train", "speculators", "control:"} <= shown
    terminal_alone = {"aux", "layers:", "wrote", f"{out}:"}
    assert shown - terminal_alone <= read_page(eaglectl.render_page(start)).words
    results = [PromptResult("x", 10 + n, (8, 5 + n % 3, 2), (1,)) for n in range(6)]
    row = GateRow(3, measure(results), measure(results), ratio(results, results), ratio(results, results))
    measured = replace(start, gate=Gate((row,), 6, 0.97, "", "cpu", "float32"))
    shown = screen(terminal_output(measured))
    assert {"Gate", "kept:", "hundred"} <= shown and "Train" not in shown
    assert shown - terminal_alone <= read_page(eaglectl.render_page(measured)).words


def test_every_word_of_a_verification_is_on_its_page(tmp_path: Path) -> None:
    eaglectl.convert(NATIVE, tmp_path / "out", ConvertOptions(target=TARGET))
    (tmp_path / "out/LICENSE").write_text("")
    verification = eaglectl.verify(str(tmp_path / "out"))
    shown = screen(terminal_output(verification))
    assert {"differs", "unlisted", "LICENSE", "SHA-256:"} <= shown
    assert shown - {f"{tmp_path}/out:"} <= read_page(eaglectl.render_page(verification)).words


def test_several_inspections_share_a_page_with_what_failed() -> None:
    results = [
        ("a", eaglectl.inspect(NATIVE)),
        ("b", FailedSource("b", "unreadable", 3, "b: no such folder")),
    ]
    page = read_page(eaglectl.render_page(*(result for _, result in results), names=["a", "b"]))
    shown = screen(terminal_output(*(result for _, result in results), names=["a", "b"]))
    assert shown - {"inspected:"} <= page.words
    assert page.links == ["#checkpoint-0", "#checkpoint-1"]


def test_acceptance_by_position_is_drawn_with_its_intervals() -> None:
    report = smoke_report()
    drawn, first = pictures(eaglectl.render_page(report))[: report.k], report.measured.per_position[0]
    assert [picture.findtext("title") for picture in drawn] == [
        f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]" for share in report.measured.per_position
    ]
    bar = drawn[0].find("rect[@class='share']")
    assert bar is not None and bar.get("width") == f"{100 * first.value:.4g}%"
    interval, *_ = drawn[0].findall("line[@class='interval']")
    assert (interval.get("x1"), interval.get("x2")) == tuple(
        f"{100 * x:.4g}%" for x in (first.low, first.high)
    )


def test_a_finding_leads_to_what_its_rule_is_about() -> None:
    page = eaglectl.render_page(report())
    assert '<a href="#egl201">EGL201 rule-201</a>' in page and "eaglectl rules EGL201" in page
    assert "what is <code>so</code>" in page


@pytest.mark.parametrize(
    ("url", "is_linked"),
    [
        ("https://docs.example/rules", True),
        ('https://x/" onclick="alert(1)"><script>', True),
        ("javascript:alert(1)//", False),
        ("docs/rules.md", False),
    ],
)
def test_only_an_address_on_the_web_is_linked(
    url: str, is_linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_DOCS_URL", url)
    links = read_page(eaglectl.render_page(report())).links
    assert (f"{url}#egl201-rule-201" in links) is is_linked


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


@pytest.mark.parametrize("name", ["validate", "validate several", "diff", "same"])
def test_the_title_has_the_verdict_of_the_document(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*CALLS[name], "--json", "--page", str(tmp_path / "page.html")])
    document = json.loads(capsys.readouterr().out)
    page = read_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.title.startswith(document["verdict"])
    assert page.title.endswith(f" - eaglectl {document['version']} {CALLS[name][0]}")


def test_the_page_of_inspect_says_of_each_engine_what_the_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*CALLS["inspect"], "--json", "--page", str(tmp_path / "page.html")])
    document, page = json.loads(capsys.readouterr().out), (tmp_path / "page.html").read_text(encoding="utf-8")
    words = {True: ("good", "yes"), False: ("bad", "no"), None: ("doubt", "unknown")}
    for reading in document["aux_readings"]:
        row = page[page.index(f'<th scope="row">{reading["engine"]}</th>') :].split("</tr>")[0]
        tone, word = words[reading["as_trained"]]
        if reading["engine"] == "SGLang":  # which runs something else in it otherwise than trained
            tone, word = "doubt", "yes, but 0.5.23 is unknown"
        elif reading["as_trained"] and reading["engine"] in (
            "TensorRT-LLM",
            "tokenspeed",
        ):  # without a verdict
            tone, word = "doubt", "yes, but what was trained is open"
        assert row.endswith(f'<td><span class="mark {tone}">{word}</span></td>')
    assert page.count('<th scope="row">') >= len(document["aux_readings"]) > 3


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


def test_a_page_and_an_empty_file_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, made = tmp_path / "page.html", tmp_path / "made"
    made.touch()
    for file in (page, page, made):
        assert run(["inspect", NATIVE, "--page", str(file)]) == 0
    page.write_text("<!doctype html><p>of another tool")
    assert run(["inspect", NATIVE, "--page", str(page)]) == 0
    assert page.read_bytes() == made.read_bytes()


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
            assert name in read_page(page.read_text(encoding="utf-8")).text
    assert page.exists()


def test_a_command_to_copy_holds_an_odd_name_as_one_word() -> None:
    shown = inspection("a b; $(x)")
    shown = replace(
        shown,
        verdicts=tuple(replace(verdict, outcome=eaglectl.ServedAs.DIFFERS) for verdict in shown.verdicts),
    )
    assert "eaglectl convert 'a b; $(x)'" in read_page(eaglectl.render_page(shown)).text


def test_a_run_on_the_reference_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pair = [str(FIXTURES / "tiny/eagle3"), "--target", str(FIXTURES / "tiny/target"), "--engine", "reference"]
    page, prompts = tmp_path / "page.html", tmp_path / "prompts.txt"
    prompts.write_text("one and two\n17 + 4 =\n")
    more = ["--device", "cpu", "--max-tokens", "6", "--prompts", str(prompts), "--json", "--page", str(page)]
    code = run(["smoke", *pair, *more])
    document, read = json.loads(capsys.readouterr().out), read_page(page.read_text(encoding="utf-8"))
    assert (code, document["verdict"]) == (3, "could-not-look")
    assert read.title.startswith("could-not-look")
    assert f"{document['acceptance_length']:.3f}" in read.words
    assert len(pictures(page.read_text(encoding="utf-8"))) == 3
