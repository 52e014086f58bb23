"""Options, each declared once: records check values, Python takes keywords, shells are offered values."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.options import Options, fields, options_of
from tests.builders import call, refusal
from tests.conftest import FIXTURES

TINY, TARGET, ROOT = FIXTURES / "tiny/eagle3", FIXTURES / "tiny/target", FIXTURES.parent


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
        ("ValidateOptions", {"jobs": 65}, "jobs", "a whole number from 1 to 64 was expected"),
        ("ValidateOptions", {"jobs": True}, "jobs", "a whole number from 1 to 64 was expected"),
        ("SmokeOptions", {"k": "x"}, "k", "a whole number, or with --speed several like 1,3,5, was"),
        ("SmokeOptions", {"k": 3.5}, "k", "a whole number or several was expected"),
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


def test_a_record_takes_paths_lists_and_texts() -> None:
    options = eaglectl.ConvertOptions(target=Path("t"), engines=["vllm"], max_shard_size="2GB")
    assert (options.target, options.engines, options.max_shard_size) == ("t", ("vllm",), 2 * 10**9)


def test_a_function_takes_its_options_as_keywords_and_paths_as_they_are(tmp_path: Path) -> None:
    done = eaglectl.convert(TINY, tmp_path / "out", layout="torchspec", link=True, force=True)
    assert eaglectl.validate(done.out, headers_only=True).verdict in ("pass", "fail")
    assert done.plan.layout == "torchspec"


def test_a_keyword_that_is_none_names_the_near_one() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'dry_rn'; did you mean 'dry_run'"):
        eaglectl.convert(TINY, dry_rn=True)


def test_a_keyword_that_is_a_flag_names_the_option_that_it_sets() -> None:
    for flag, name in (("engine", "engines"), ("for_", "layout")):
        with pytest.raises(TypeError, match=f"'{flag}'; did you mean '{name}'"):
            eaglectl.convert(TINY, **{flag: "vllm"})


def test_what_is_no_record_in_the_place_of_one_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"inspect\(\) takes InspectOptions as options, not str; give .* by name"
    ):
        eaglectl.inspect(TINY, "my-target")  # type: ignore[arg-type]


def test_the_option_that_is_named_is_one_of_the_record() -> None:
    with pytest.raises(TypeError, match=r"takes ConvertOptions as conversion, .* by name: layout=\.\.\."):
        eaglectl.upgrade(TINY, None, None, eaglectl.UpgradeOptions())  # type: ignore[arg-type]


def test_a_record_and_keywords_beside_each_other_are_refused() -> None:
    with pytest.raises(eaglectl.UsageError, match="options is given beside dry_run"):
        eaglectl.convert(TINY, options=eaglectl.ConvertOptions(), dry_run=True)


def test_an_error_of_a_function_has_the_option_that_it_names() -> None:
    with pytest.raises(eaglectl.UsageError) as raised:
        eaglectl.smoke(TINY, FIXTURES / "tiny/target", timeout=0.0)
    assert raised.value.option == "timeout"


def test_help_describes_each_option() -> None:
    for option in options_of(eaglectl.DiffOptions).values():
        assert f"{option.name}: {option.option.help}" in eaglectl.diff.__doc__


COMPLETED = [
    ("validate x --select EGL20", "EGL201"),
    ("validate x --select missing-t", "missing-tensor"),
    ("validate x --engine vllm==0.3", "vllm==0.32.0"),
    ("validate x --format sar", "sarif"),
    ("validate x --fail-on w", "warning"),
    ("validate x --output sar", "sarif="),
    ("convert x --for sg", "sglang"),
    ("convert x --dtype bf", "bfloat16"),
    ("convert x --source-semantics specforge=pr", "specforge=pre-879"),
    ("convert x --fix-reading rot", "rotary="),
    ("smoke x --probe s", "sensitivity"),
    ("smoke x --target fixtures/tiny/t", "fixtures/tiny/target"),
    ("inspect fixtures/tiny/eag", "fixtures/tiny/eagle3"),
    ("rules EGL20", "EGL201"),
    ("rules missing-", "missing-tensor"),
]


@pytest.mark.parametrize(("line", "offered"), COMPLETED)
def test_a_shell_is_offered_the_values_of_an_option(line: str, offered: str) -> None:
    words = f"eaglectl {line}"  # the shells themselves: tests/first_minutes
    done = subprocess.run(
        [sys.executable, "-m", "eaglectl"],
        env={
            "_EAGLECTL_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "PYTHONPATH": str(ROOT),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert offered in done.stdout and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_that_is_none_is_refused(option: str) -> None:
    done = call(option, "nonsense")
    assert done.code == 2 and f"{option} nonsense: one of bash, zsh, fish" in done.err


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


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("smoke", TINY, "--engine", "tgi"), "--run-in tgi: auto"),
        (("smoke", TINY, "--engine=http://u:p@h:x"), "--run-in"),
        (("calibrate", TINY, "-o", "x", "--engine", "tgi"), "--run-in tgi: transformers or vllm"),
    ],
)
def test_what_runs_may_still_be_spelled_as_an_engine(words: tuple[str, ...], last: str) -> None:
    done = call(*words, "--target", TARGET)
    assert done.code in (2, 3) and last in done.err.splitlines()[-1] and "p@" not in done.err
    assert "eaglectl: --engine is spelled --run-in now\n" in done.err


@pytest.mark.parametrize("command", ["smoke", "calibrate"])
@pytest.mark.parametrize("run_in", [("--run-in", "reference"), ("--run-in=reference",)])
def test_what_runs_is_not_named_twice(command: str, run_in: tuple[str, ...]) -> None:
    for words in ((*run_in, "--engine", "vllm"), ("--engine=vllm", *run_in)):
        assert "contradict each other; leave --engine out" in refusal(2, command, TINY, *words)


@pytest.mark.parametrize("command", ["diagnose", "ready"])
def test_a_server_is_no_engine(command: str) -> None:
    done = call(command, TINY, "--engine", "http://u:p@h:x", "--target", TARGET)
    assert done.code == 2 and "--engine http://***@h:x: " in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--run-in", "tgi"), "--run-in tgi: vllm, sglang, reference or a server's URL was expected"),
        (("--run-in", "sglang"), "--run-in sglang: no release is installed here"),
        (("--run-in", "sglang", "--engine", "vllm"), "and --engine is another"),
    ],
)
def test_ready_runs_nothing_else_than_was_said(words: tuple[str, ...], message: str) -> None:
    done = call("ready", TINY, "--target", TARGET, *words)
    assert done.code in (2, 3) and message in done.err
