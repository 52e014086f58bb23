"""eaglectl from Python: paths, results as sources, short texts of results, and errors in Python's words."""

import html
import inspect
import pydoc
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UsageError
from eaglectl.options import CALLER, Options, fields, options_of
from tests.builders import call, refusal
from tests.conftest import FIXTURES

TINY, TARGET = FIXTURES / "tiny/eagle3", FIXTURES / "tiny/target"
ASKS = FIXTURES / "producers/specforge/eagle3.1"


@pytest.fixture(autouse=True)
def from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CALLER, "is_command_line", False)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> eaglectl.Conversion:
    return eaglectl.convert(TINY, tmp_path_factory.mktemp("python") / "out")


NATIVE = FIXTURES / "producers/vllm/native"
RESULTS: dict[str, Any] = {
    "inspect": lambda: eaglectl.inspect(TINY),
    "validate": lambda: eaglectl.validate(TINY),
    "convert": lambda: eaglectl.convert(TINY, dry_run=True),
    "diff": lambda: eaglectl.diff(TINY, TINY, headers_only=True),
    "ready": lambda: eaglectl.ready(TINY),
    "diagnose": lambda: eaglectl.diagnose(NATIVE, NATIVE),
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request: pytest.FixtureRequest) -> Any:
    return RESULTS[request.param]()


def test_a_result_is_its_first_line_and_in_a_notebook_its_page_apart_from_its_own_style(result: Any) -> None:
    first = repr(result).removeprefix(f"<{type(result).__name__}: ").removesuffix(">")
    # whole, where the text is folded
    assert first.startswith(str(result).splitlines()[0]) and first in " ".join(str(result).split())
    frame = result._repr_html_() or ""
    assert frame.startswith(f"<strong>{html.escape(first)}</strong><iframe srcdoc=")
    assert "<style" not in frame and "&lt;style" in frame


def test_a_finding_is_one_line() -> None:
    (finding, *_) = eaglectl.validate(FIXTURES / "producers/specforge/gqa-ids").findings
    assert repr(finding).startswith("<Finding: warning EGL405 aux-convention: ids in eagle_config [1, 3, 5]")


def test_a_result_without_a_document_is_refused() -> None:
    with pytest.raises(TypeError, match="got Inspection, Report"):
        eaglectl.render_json(eaglectl.validate(TINY), eaglectl.inspect(TINY))
    with pytest.raises(TypeError, match="got nothing"):
        eaglectl.render_json()


def test_results_are_sources(converted: eaglectl.Conversion) -> None:
    assert eaglectl.validate(converted).path == str(converted.out)
    assert eaglectl.diff(eaglectl.inspect(TINY), converted).verdict == "equal"
    assert eaglectl.inspect(eaglectl.validate(converted)).checkpoint.source.place == str(converted.out)


def test_a_policy_and_a_target_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "eaglectl.toml").write_text("")
    policy = eaglectl.read_policy(tmp_path / "eaglectl.toml")
    assert policy.origin == str(tmp_path / "eaglectl.toml")
    assert eaglectl.open_target(TARGET).depth == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: eaglectl.convert(TINY, out), "pass another out, or force to replace it"),
        (lambda out: eaglectl.convert(ASKS, out / "new"), "pass semantics specforge=pre-879"),
        (lambda _: eaglectl.smoke(TINY, TARGET, run_in="reference", timeout=-1), "timeout -1: more than 0"),
        (lambda _: eaglectl.smoke(TINY, "nowhere", run_in="reference"), "target nowhere: smoke runs"),
        (lambda _: eaglectl.upgrade(TINY, fc_norm="off", is_norm_output=False), "is_norm_output=False leave"),
        (lambda _: eaglectl.convert(TINY, size=100), "pass size and counts together"),
        (lambda _: eaglectl.load_only(TINY, TARGET, timeout=0), "timeout 0: more than 0"),
        (lambda _: eaglectl.validate(eaglectl.convert(TINY, dry_run=True)), "convert wrote nothing"),
    ],
)
def test_an_error_names_what_python_writes(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(eaglectl.EaglectlError) as caught:
        call(tmp_path)
    assert message in str(caught.value)


NUMBERS = [
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"max_tokens": 0},
    {"k": 0},
    {"timeout": 0.0},
]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("function", [eaglectl.smoke, eaglectl.diagnose, eaglectl.ready])
def test_a_number_with_which_nothing_runs_is_a_wrong_call(function: Any, numbers: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(numbers))):
        # a target without weights: nothing is run
        function(FIXTURES / "producers/vllm/native", FIXTURES / "target", **numbers)


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (eaglectl.inspect, (None,), "inspect() takes a path or a name as source, not None"),
        (eaglectl.validate, (b"drafter",), "as source, not b'drafter'"),
        (eaglectl.diff, (TINY, 5), "diff() takes a path or a name as b, not 5"),
        (eaglectl.convert, (TINY, True), "as out, not True"),
        (eaglectl.ready, (TINY, 0.5), "as target, not 0.5"),
    ],
)
def test_what_is_no_path_is_a_wrong_type(function: Any, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        function(*arguments)


def test_the_command_line_keeps_its_flags(tmp_path: Path) -> None:
    assert "pass another -o, or --force to replace it" in call("convert", TINY, "-o", tmp_path).err
    with pytest.raises(eaglectl.UsageError, match="another out, or"):  # and Python its words after it
        eaglectl.convert(TINY, tmp_path)


def test_a_result_prints_what_its_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("eaglectl.terminal.FIXED_WIDTH", 160)
    for words, result in (
        (("inspect", TINY), eaglectl.inspect(TINY)),
        (("diff", TINY, TINY), eaglectl.diff(TINY, TINY)),
        (("validate", TINY), eaglectl.validate(TINY)),
        (("inspect", TINY, ASKS), eaglectl.inspect([TINY, ASKS])),
        (("validate", TINY, ASKS), eaglectl.validate([TINY, ASKS])),
    ):
        texts = call(*words).out, str(result)
        printed, shown = (re.sub(f"{TINY.parent}/|{ASKS.parent}/| in .*", "", text) for text in texts)
        assert shown.splitlines() == printed.splitlines(), words
        if not isinstance(result, tuple):
            assert result.to_dict() == call(*words, "--json").document, words


@pytest.mark.parametrize("sources", [[TINY, "nowhere"], (str(TINY), "nowhere")])
def test_several_sources_have_a_result_each(sources: Any) -> None:
    inspected, missing = eaglectl.inspect(sources)
    assert isinstance(inspected, eaglectl.Inspection) and isinstance(missing, eaglectl.FailedSource)
    assert (missing.kind, missing.exit_code) == ("unreadable", 3)
    assert eaglectl.inspect([]) == () and str(eaglectl.validate([])) == "()"
    reports = eaglectl.validate(sources, headers_only=True)
    assert [report.verdict for report in reports] == ["pass", "could-not-look"]
    assert (reports._repr_html_() or "").startswith("<strong>")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("version", "kept"), [(3.1, "3.1"), (3, "3"), ("3.1", "3.1"), (3.0, "3")])
def test_an_eagle_version_may_be_a_number(version: Any, kept: str) -> None:
    assert eaglectl.ConvertOptions(version=version).version == kept
    for other in (True, 4, 3.11, (3, 1)):
        with pytest.raises(UsageError, match=r"3 or 3.1 was expected"):
            eaglectl.ConvertOptions(version=other)  # type: ignore[arg-type]


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
    assert len(frames) == 1 and "options.py" in frames[0] and "During handling" not in "".join(lines)


def test_a_fault_of_ours_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglectl.api.inspect.read_checkpoint", None)
    with pytest.raises(TypeError) as raised:
        eaglectl.inspect(TINY)
    assert "inspect_files" in "".join(traceback.format_exception(raised.value))


def test_help_of_the_package_is_a_screen_of_its_functions_and_their_places() -> None:
    lines = pydoc.plain(pydoc.render_doc(eaglectl)).splitlines()
    end = next(place for place, line in enumerate(lines) if line == "PACKAGE CONTENTS")
    assert end <= 24 and len(lines) <= 60 and all(len(line) <= 110 for line in lines)
    functions = {name for name in dir(eaglectl) if inspect.isfunction(getattr(eaglectl, name))}
    helpers = {"check_options", "open_target", "read_policy"}
    shown = "\n".join(lines[:end])
    left = {name for name in functions if f"{name}(" not in shown}
    assert left == {*helpers, "render_json", "render_page", "render_text"}


# options, each declared once: records check values, Python takes keywords


@pytest.mark.parametrize(
    ("record", "given", "option", "message"),
    [
        ("ConvertOptions", {"dry_run": "yes"}, "dry_run", "ConvertOptions(dry_run='yes'): True or False was"),
        ("ConvertOptions", {"dtype": "int8"}, "dtype", "bfloat16, float16 or float32 was expected"),
        ("ConvertOptions", {"max_shard_size": "big"}, "max_shard_size", "a size like 500MB or 2GB was"),
        ("ConvertOptions", {"version": "4"}, "version", "3 or 3.1 was expected"),
        ("Answers", {"aux_convention": "input"}, "aux_convention", "boundary or output was expected"),
        ("Answers", {"aux_layers": "2,x"}, "aux_layers", "layers from 0 with commas"),
        ("ValidateOptions", {"engines": "vllm"}, "engines", "a list of texts was expected"),
        ("SmokeOptions", {"k": 3.5}, "k", "a whole number was expected"),
        ("DiagnoseOptions", {"k": "3"}, "k", "a whole number was expected"),
        ("SmokeOptions", {"probe": "all"}, "probe", "sensitivity or drift was expected"),
    ],
)
def test_a_value_that_is_none_is_refused_when_the_record_is_made(
    record: str, given: dict[str, Any], option: str, message: str
) -> None:
    with pytest.raises(eaglectl.UsageError) as raised:
        getattr(eaglectl, record)(**given)
    assert message in str(raised.value) and raised.value.option == option


def test_a_function_takes_its_options_as_keywords_and_paths_as_they_are(tmp_path: Path) -> None:
    done = eaglectl.convert(TINY, tmp_path / "out", layout="torchspec", link=True, force=True)
    assert eaglectl.validate(done.out, headers_only=True).verdict in ("pass", "fail")
    assert done.plan.layout == "torchspec"


def test_what_is_no_record_and_a_record_beside_keywords_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"inspect\(\) takes InspectOptions as options, not str; pass .* by name"
    ):
        eaglectl.inspect(TINY, "my-target")  # type: ignore[arg-type]
    with pytest.raises(eaglectl.UsageError, match="dry_run cannot be passed beside options"):
        eaglectl.convert(TINY, options=eaglectl.ConvertOptions(), dry_run=True)


def test_a_destination_beside_its_own_options_names_the_record() -> None:
    with pytest.raises(eaglectl.UsageError, match="tag cannot be passed beside destination; put all"):
        eaglectl.upload(TINY, "org/drafter", tag="v1")
    assert "has_engines=False: Check the rules only" in eaglectl.validate.__doc__


def test_help_describes_each_option() -> None:
    for option in options_of(eaglectl.DiffOptions).values():
        assert f"{option.name}: {option.option.help}" in eaglectl.diff.__doc__


RECORDS = [
    record
    for record in (getattr(eaglectl, name) for name in dir(eaglectl))
    if isinstance(record, type) and issubclass(record, Options)
]
# what other modules put there, of any kind
INTERNAL = {"head", "rotation"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_option_takes_a_value_of_another_kind(record: type[Options]) -> None:
    required = [one.name for one in fields(record) if one.is_required]
    for one in fields(record):
        for wrong in (object(), 3.5j, [object()], {3.5: object()}):
            if one.name in INTERNAL:
                continue
            with pytest.raises(eaglectl.UsageError) as refused:
                record(**dict.fromkeys(required, "org/name") | {one.name: wrong})
            assert refused.value.option == one.name, one.name
            assert str(refused.value).startswith(f"{record.__name__}({one.name}="), one.name


@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_what_runs_may_still_be_spelled_as_an_engine_and_is_not_named_twice(command: str) -> None:
    done = call(command, TINY, *["-o", "x"] * (command == "calibrate"), "--engine=tgi", "--target", TARGET)
    assert done.code == 2 and "--run-in tgi: " in done.err
    assert "eaglectl: --engine was renamed to --run-in\n" in done.err
    for words in (("--run-in=reference", "--engine", "vllm"), ("--engine=vllm", "--run-in", "vllm")):
        assert "contradict each other; leave --engine out" in refusal(2, command, TINY, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diagnose", "--engine", "http://u:p@h:x"), "--engine http://***@h:x: "),
        (("ready", "--engine", "http://u:p@h:x"), "--engine http://***@h:x: "),
        (
            ("ready", "--run-in", "tgi"),
            "--run-in tgi: vllm, sglang, reference or a server's URL was expected",
        ),
        (("ready", "--run-in", "sglang"), "--run-in sglang: no release is installed here"),
        (("ready", "--run-in", "sglang", "--engine", "vllm"), "and --engine is another"),
    ],
)
def test_nothing_else_runs_than_was_said_and_a_server_is_no_engine(
    words: tuple[str, ...], message: str
) -> None:
    done = call(words[0], TINY, "--target", TARGET, *words[1:])
    assert done.code in (2, 3) and message in done.err
