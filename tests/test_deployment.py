"""Sizes of tensor and pipeline parallelism and a target's own code: in the start command, and judged."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api import options as records
from eaglectl.cli import run
from eaglectl.formats.commands import DEPLOYMENT, command
from eaglectl.options import options_of
from eaglectl.target.choice import TargetChoice
from tests.builders import call as called
from tests.conftest import FIXTURES
from tests.tiny import TARGET as TINY_TARGET
from tests.tiny import TINY

EXPORT = str(FIXTURES / "producers/specforge/gqa-ids")
NATIVE = str(FIXTURES / "producers/vllm/native")
TARGET = str(FIXTURES / "target")  # 4 heads on 2


def target_with(folder: Path, **changed: Any) -> str:
    """A target whose config.json has these keys too."""
    config = json.loads((FIXTURES / "target/config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    return str(folder)


def commands(**options: Any) -> dict[str, str]:
    return dict(eaglectl.inspect(NATIVE, **options).commands)


def test_the_start_command_has_the_sizes() -> None:
    lines = commands(target=TARGET, tensor_parallel_size=2, pipeline_parallel_size=1)
    sizes = " --tensor-parallel-size 2 --pipeline-parallel-size 1 "
    assert lines["vllm"].startswith(f"vllm serve {TARGET}{sizes}--speculative-config ")
    assert f" --model-path {TARGET}{sizes}--speculative-algorithm EAGLE3 " in lines["sglang"]
    assert "parallel" not in lines["llama.cpp"] + "".join(commands(target=TARGET).values())


@pytest.mark.parametrize("call", [["ready"], ["convert", "-o", "out"], ["inspect", "-v"]])
def test_each_command_takes_them(
    call: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *more = call
    source = NATIVE if verb == "inspect" else EXPORT
    assert run([verb, source, "--target", TARGET, "--tensor-parallel-size", "2", *more]) == 0
    assert f"vllm serve {TARGET} --tensor-parallel-size 2 --speculative" in capsys.readouterr().out


SIZES = ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "1"]
TRUST = ["--trust-remote-code"]
PRINTED = re.compile(
    r"(?:`|next: +|^  [a-z.]* +|^  |: )((?:eaglectl|vllm|python -m sglang\.\S+) [^`\n]+)", re.MULTILINE
)


def is_in(words: list[str], line: list[str]) -> bool:
    return any(line[start : start + len(words)] == words for start in range(len(line)))


def printed(*arguments: str) -> list[list[str]]:
    """The words of each command of eaglectl, vLLM and SGLang that a call prints."""
    outcome = called(*arguments)
    return [shlex.split(line) for line in PRINTED.findall(outcome.out + outcome.err)]


@pytest.mark.parametrize(
    ("call", "given", "verbs"),
    [
        (["inspect", "-v"], SIZES, ["convert", "sglang"]),
        (["validate"], SIZES, ["convert"]),
        (["ready"], SIZES + TRUST, ["convert", "vllm"]),
        (["convert", "-o", "out", "--force"], SIZES + TRUST, ["vllm"]),
        # a question for the target's weights: the same call again
        (["convert", "--to", "3.1", "-o", "out"], SIZES + TRUST, ["convert"]),
    ],
    ids=" ".join,
)
def test_the_next_commands_have_what_was_given(
    call: list[str],
    given: list[str],
    verbs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *more = call
    lines = printed(verb, EXPORT, "--target", TARGET, *given, *more)
    names = {"vllm": "vllm", "python": "sglang"}
    assert {names.get(line[0], line[1]) for line in lines} == {*verbs}
    for line in lines:
        assert is_in(SIZES, line), line
        assert [word for word in line if word in TRUST] == [word for word in given if word in TRUST], line
    plain = printed(verb, EXPORT, "--target", TARGET, *more)
    assert plain
    assert not any(DEPLOYMENT.keys() & set(line) for line in plain)


def test_a_run_hands_its_trust_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    given = ["--target", str(TINY_TARGET), "--device", "cpu", "--max-tokens", "2", "--run-in", "reference"]
    (line,) = printed("smoke", str(TINY / "eagle3"), *given, "--min-acceptance-length", "9", *TRUST)
    assert line[1] == "diagnose"
    assert is_in(TRUST, line)


def test_each_command_is_given_only_what_it_takes() -> None:
    target = TargetChoice("t", "t", tensor_parallel=2, pipeline_parallel=3, trusts_code=True)
    taken = {
        verb: {flag for field in options_of(record).values() for flag in field.flags}
        for verb, record in {
            "inspect": records.InspectOptions,
            "validate": records.ValidateOptions,
            "ready": records.ReadyOptions,
            "smoke": records.SmokeOptions,
            "diagnose": records.DiagnoseOptions,
            "calibrate": records.CalibrateOptions,
            "convert": records.ConvertOptions,
            "diff": records.DiffOptions,
        }.items()
    }
    for verb, flags in taken.items():
        line = shlex.split(command(verb, "a", "--run-in", "vllm", target=target))
        assert {word for word in line if word in DEPLOYMENT} == DEPLOYMENT.keys() & flags, verb
    # the reference runs on one device, and a server is started already
    for runner in ("reference", "http://127.0.0.1:8000"):
        assert not is_in(SIZES[:2], shlex.split(command("smoke", "a", "--run-in", runner, target=target)))


@pytest.mark.parametrize("size", [3, 8])
def test_a_size_that_cannot_be_is_an_error_and_nothing_starts(size: int) -> None:
    report = eaglectl.validate(NATIVE, target=TARGET, tensor_parallel_size=size, headers_only=True)
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    assert finding.rule.id == "EGL716"
    assert "heads" in finding.match.message and f"cannot be split over {size} GPUs" in finding.match.message
    assert finding.match.message.endswith("--tensor-parallel-size 1 or 2 or 4")
    found = eaglectl.inspect(NATIVE, target=TARGET, tensor_parallel_size=size, engines=["vllm"])
    assert [verdict.outcome for verdict in found.requested] == ["fails"]
    assert "vllm" not in found.commands


def test_a_size_that_can_be_has_no_finding() -> None:
    report = eaglectl.validate(NATIVE, target=TARGET, tensor_parallel_size=2, headers_only=True)
    assert not [finding for finding in report.findings if finding.rule.id in ("EGL707", "EGL716")]


@pytest.mark.parametrize(
    ("changed", "is_needed"),
    [
        (
            {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}},
            True,
        ),
        ({"model_type": "kimi_k2"}, False),
        ({"auto_map": {"AutoConfig": "configuration_llama.LlamaConfig"}}, False),  # transformers has it
    ],
)
def test_a_model_type_of_its_own_code_needs_the_option(
    changed: dict[str, Any], is_needed: bool, tmp_path: Path
) -> None:
    found = eaglectl.inspect(NATIVE, target=target_with(tmp_path, **changed))
    lines = [found.commands[name] for name in ("vllm", "sglang") if name in found.commands]
    assert [line for line in lines if "--trust-remote-code" in line] == lines * is_needed
    assert any(finding.rule.id == "EGL717" for finding in found.findings) == is_needed


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_a_size_that_is_no_number_of_gpus_is_a_wrong_call(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", NATIVE, "--target", TARGET, f"--tensor-parallel-size={text}"]) == 2
    assert "--tensor-parallel-size" in capsys.readouterr().err


LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {**json.loads((FIXTURES / "target/config.json").read_text()), "model_type": "llama"},
}
OTHERS = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}


@pytest.mark.parametrize(
    ("source", "changed", "engine", "outcome"),
    [
        (NATIVE, {}, "vllm==0.29.0", "fails"),
        (NATIVE, {}, "vllm==0.30.0", "as trained"),
        (NATIVE, OTHERS, "vllm==0.33.0", "fails"),
        # a subclass of Qwen2 that says no, and wrappers, which are as their language model
        (NATIVE, {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}, "vllm==0.32.0", "fails"),
        (NATIVE, LLAVA, "vllm==0.32.0", "as trained"),
        (NATIVE, {**LLAVA, "text_config": {**LLAVA["text_config"], **OTHERS}}, "vllm==0.32.0", "fails"),
        (NATIVE, {}, "sglang==0.5.14", "fails"),
        (NATIVE, {}, "sglang", "fails"),
        (NATIVE, {"model_type": "unheard_of", "architectures": ["Foo"]}, "vllm", "unknown"),
    ],
)
def test_stages_of_a_pipeline_run_where_the_targets_class_hands_its_states_on(
    source: str, changed: dict[str, Any], engine: str, outcome: str, tmp_path: Path
) -> None:
    target = target_with(tmp_path, **changed)
    (verdict,) = eaglectl.inspect(source, target=target, pipeline_parallel_size=2, engines=[engine]).requested
    assert verdict.outcome == outcome, verdict.reasons
    (alone,) = eaglectl.inspect(source, target=target, engines=[engine]).requested
    assert alone.outcome == ("unknown" if outcome == "unknown" else "as trained"), alone.reasons


def test_a_parallel_drafter_runs_in_no_stages() -> None:
    source = str(FIXTURES / "producers/speculators/peagle-llama")
    options: dict[str, Any] = {"target": TARGET, "engines": ["vllm==0.32.0"], "assume": True}
    (alone,) = eaglectl.inspect(source, **options).requested
    (verdict,) = eaglectl.inspect(source, pipeline_parallel_size=2, **options).requested
    assert "EGL1093" in verdict.rules and "EGL1093" not in alone.rules


def test_what_to_do_instead_of_stages_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    stages = ["--engine", "vllm==0.29.0", "--pipeline-parallel-size", "2"]
    assert run(["validate", NATIVE, "--target", TARGET, *stages]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "fc gets fewer than it takes" in text
    assert "split the target with --tensor-parallel-size" in text
