"""eaglectl from Python: paths, results as sources, short texts of results, and errors in Python's words."""

import html
import inspect
import json
import os
import pydoc
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.keywords import _name_option, _names_by_flag
from eaglectl.options import CALLER, options_of
from tests.builders import call
from tests.conftest import FIXTURES

TINY, TARGET = FIXTURES / "tiny/eagle3", FIXTURES / "tiny/target"
NATIVE = FIXTURES / "producers/vllm/native"
ASKS = FIXTURES / "producers/specforge/eagle3.1"


@pytest.fixture(autouse=True)
def from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CALLER, "is_command_line", False)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> eaglectl.Conversion:
    return eaglectl.convert(TINY, tmp_path_factory.mktemp("python") / "out")


RESULTS: dict[str, Any] = {
    "inspect": lambda: eaglectl.inspect(TINY),
    "validate": lambda: eaglectl.validate(TINY),
    "convert": lambda: eaglectl.convert(TINY, dry_run=True),
    "diff": lambda: eaglectl.diff(TINY, TINY, headers_only=True),
    "ready": lambda: eaglectl.ready(TINY),
    "diagnose": lambda: eaglectl.diagnose(
        FIXTURES / "producers/vllm/native", FIXTURES / "producers/vllm/native"
    ),
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request: pytest.FixtureRequest) -> Any:
    return RESULTS[request.param]()


def test_the_text_of_a_result_is_a_few_lines(result: Any) -> None:
    lines = repr(result).splitlines()
    assert len(lines) <= 8 and all(len(line) <= 110 for line in lines)
    assert lines[0].startswith(f"{type(result).__name__}(")


def test_a_result_is_the_document_of_its_command(result: Any) -> None:
    document = result.to_dict()
    assert json.loads(result.to_json()) == document
    assert document["schema"].startswith("eaglectl/") and type(document["version"]) is str


def test_the_document_is_what_the_command_prints() -> None:
    assert eaglectl.inspect(TINY).to_dict() == call("inspect", TINY, "--json").document
    assert eaglectl.diff(TINY, TINY).to_dict() == call("diff", TINY, TINY, "--json").document


def test_a_notebook_shows_the_page_of_a_result_apart_from_its_own_style(result: Any) -> None:
    frame = result._repr_html_() or ""
    first = html.escape(str(result).splitlines()[0])
    assert frame.startswith(f"<strong>{first}</strong><iframe srcdoc=")
    assert "<style" not in frame and "&lt;style" in frame


def test_a_text_shows_what_failed_before_what_is_long() -> None:
    text = repr(eaglectl.validate(TINY, fail_on="note"))
    assert "verdict='fail'" in text and "EGL" not in text


def test_a_result_without_a_document_is_refused() -> None:
    with pytest.raises(TypeError, match="it was given Inspection, Report"):
        eaglectl.render_json(eaglectl.validate(TINY), eaglectl.inspect(TINY))
    with pytest.raises(TypeError, match="it was given nothing"):
        eaglectl.render_json()


def test_results_are_sources(converted: eaglectl.Conversion) -> None:
    assert eaglectl.validate(converted).path == str(converted.out)
    assert eaglectl.diff(eaglectl.inspect(TINY), converted).verdict == "equal"
    assert eaglectl.inspect(eaglectl.validate(converted)).checkpoint.source.place == str(converted.out)


def test_a_result_that_wrote_nothing_is_no_source() -> None:
    with pytest.raises(eaglectl.UsageError, match="convert wrote nothing"):
        eaglectl.validate(eaglectl.convert(TINY, dry_run=True))


def test_a_result_is_a_target_and_a_policy_too(tmp_path: Path) -> None:
    (tmp_path / "eaglectl.toml").write_text("")
    policy = eaglectl.read_policy(tmp_path / "eaglectl.toml")
    assert policy.origin == str(tmp_path / "eaglectl.toml")
    assert eaglectl.open_target(TARGET).depth == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: eaglectl.convert(TINY, out), "give another out, or force to replace it"),
        (lambda out: eaglectl.convert(ASKS, out / "new"), "pass semantics specforge=pre-879"),
        (lambda _: eaglectl.smoke(TINY, TARGET, run_in="reference", timeout=-1), "timeout -1: more than 0"),
        (lambda _: eaglectl.smoke(TINY, "nowhere", run_in="reference"), "target nowhere: smoke runs"),
        (lambda _: eaglectl.upgrade(TINY, fc_norm="off", is_norm_output=False), "is_norm_output=False leave"),
        (lambda _: eaglectl.convert(TINY, size=100), "size and counts go together"),
        (lambda _: eaglectl.load_only(TINY, TARGET, timeout=0), "timeout 0: more than 0"),
    ],
)
def test_an_error_names_what_python_writes(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(eaglectl.EaglectlError) as caught:
        call(tmp_path)
    assert message in str(caught.value)


def test_the_command_line_keeps_its_flags(tmp_path: Path) -> None:
    assert "give another -o, or --force to replace it" in call("convert", TINY, "-o", tmp_path).err
    with pytest.raises(eaglectl.UsageError, match="another out, or"):  # and Python its words after it
        eaglectl.convert(TINY, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run `eaglectl convert a --force`", "run `eaglectl convert a --force`"),
        ("leave --link out", "leave link out"),
        ("pass --target TARGET, please", "pass target TARGET, please"),
        ("--target my/a: not there", "target my/a: not there"),
        ("--nonsense stays", "--nonsense stays"),
        ("a --force of another kind", "a force of another kind"),
        ("--no-measure", "measure=None"),
        ("not--force", "not--force"),
    ],
)
def test_flags_become_fields(text: str, expected: str) -> None:
    names: dict[str, str] = {}
    for option in options_of(eaglectl.ConvertOptions).values():
        names |= _names_by_flag(option)
    error = UsageError(text)
    _name_option(error, names, is_outermost=True)
    assert str(error) == expected


def test_importing_a_result_loads_no_other_command() -> None:
    code = "import sys, eaglectl; eaglectl.Inspection; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = {"numpy", "eaglectl.conversion", "eaglectl.run", "eaglectl.report"}
    assert not others & set(done.stdout.split())


def test_statistics_are_the_path_of_their_folder() -> None:
    found = eaglectl.Statistics({}, (), (2, 4, 5), 1e-6, 9, (1.0,), (0.0,), 1.0, {}, False)
    with pytest.raises(UsageError, match="in no folder"):
        os.fspath(found)
    placed = replace(found, out="nowhere")
    assert os.fspath(placed) == "nowhere"
    with pytest.raises(UnreadableError, match="statistics nowhere: not a folder that calibrate wrote"):
        eaglectl.upgrade(TINY, target=TARGET, statistics=placed, dry_run=True)


def test_a_signature_says_what_may_be_left_out() -> None:
    parameters = inspect.signature(eaglectl.convert).parameters
    assert parameters["layout"].annotation == str | None
    assert parameters["dry_run"].annotation is bool


def test_a_result_prints_what_its_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for words, result in (
        (("inspect", TINY), eaglectl.inspect(TINY)),
        (("diff", TINY, TINY), eaglectl.diff(TINY, TINY)),
        (("validate", TINY), eaglectl.validate(TINY)),
        (("inspect", TINY, ASKS), eaglectl.inspect([TINY, ASKS])),
        (("validate", TINY, ASKS), eaglectl.validate([TINY, ASKS])),
    ):
        printed = call(*words).out.replace(f"{TINY.parent}/", "").replace(f"{ASKS.parent}/", "")
        shown = str(result).replace(f"{TINY.parent}/", "").replace(f"{ASKS.parent}/", "")
        assert [line.split(" in ")[0] for line in shown.splitlines()] == [
            line.split(" in ")[0] for line in printed.splitlines()
        ], words


def test_what_the_terminal_does_not_show_prints_its_values() -> None:
    assert (
        str(eaglectl.LoadResult("0.32.0", (), {})) == "LoadResult(version='0.32.0', unfilled=(), resolved={})"
    )


@pytest.mark.parametrize("sources", [[TINY, "nowhere"], (str(TINY), "nowhere")])
def test_several_sources_have_a_result_each(sources: Any) -> None:
    inspected, missing = eaglectl.inspect(sources)
    assert isinstance(inspected, eaglectl.Inspection) and isinstance(missing, eaglectl.FailedSource)
    assert (missing.kind, missing.exit_code) == ("unreadable", 3)
    reports = eaglectl.validate(sources, headers_only=True)
    assert [report.verdict for report in reports] == ["pass", "could-not-look"]
    assert (reports._repr_html_() or "").startswith("<strong>")  # type: ignore[attr-defined]


def test_no_sources_have_no_results() -> None:
    assert eaglectl.inspect([]) == () and str(eaglectl.validate([])) == "()"


@pytest.mark.parametrize(("version", "kept"), [(3.1, "3.1"), (3, "3"), ("3.1", "3.1"), (3.0, "3")])
def test_an_eagle_version_may_be_a_number(version: Any, kept: str) -> None:
    assert eaglectl.ConvertOptions(version=version).version == kept


@pytest.mark.parametrize("version", [True, 4, 3.11, (3, 1)])
def test_another_version_is_refused(version: Any) -> None:
    with pytest.raises(UsageError, match=r"3 or 3.1 was expected"):
        eaglectl.ConvertOptions(version=version)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: eaglectl.inspect("nowhere"),
        lambda: eaglectl.convert(ASKS, dry_run=True),
        lambda: eaglectl.smoke(TINY, TARGET, run_in="nothing"),
        lambda: eaglectl.validate(TINY, engines=["nothing"]),
    ],
)
def test_an_error_of_the_user_has_none_of_our_frames(wrong: Any) -> None:
    with pytest.raises(eaglectl.EaglectlError) as raised:
        wrong()
    lines = "".join(traceback.format_exception(raised.value)).splitlines()
    frames = [line for line in lines if line.startswith("  File") and "/eaglectl/" in line]
    assert len(frames) == 1 and "keywords.py" in frames[0] and "During handling" not in "".join(lines)


def test_a_fault_of_ours_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglectl.operations.inspecting.read_checkpoint", None)
    with pytest.raises(TypeError) as raised:
        eaglectl.inspect(TINY)
    assert "inspect_files" in "".join(traceback.format_exception(raised.value))


def test_help_of_the_package_is_a_screen_of_its_functions_and_their_places() -> None:
    lines = pydoc.plain(pydoc.render_doc(eaglectl)).splitlines()
    end = next(place for place, line in enumerate(lines) if line == "PACKAGE CONTENTS")
    assert end <= 24 and len(lines) <= 60 and all(len(line) <= 110 for line in lines)
    functions = {name for name in dir(eaglectl) if inspect.isfunction(getattr(eaglectl, name))}
    helpers = {"check_options", "open_target", "parse_answers", "read_policy"}
    shown = "\n".join(lines[:end])
    left = {name for name in functions if f"{name}(" not in shown}
    assert left == {*helpers, "render_json", "render_page", "render_text"}
