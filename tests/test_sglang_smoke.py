"""The parent's side of smoke in SGLang, with a stand-in of the package `sglang` in the child: every way it
ends. tests/engine/sglang runs the real one.
"""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.run.installed import ask, run_installed
from eaglectl.run.job import EngineJob
from eaglectl.run.process import SGLANG, InstalledEngine
from eaglectl.run.prompts import Prompt
from eaglectl.run.resolved import load_over_nan
from eaglectl.run.sglang.child import answer
from eaglectl.run.sglang.resolved import describe
from tests.builders import call, refusal
from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY

SCHEMA = json.loads((FIXTURES.parent / "schemas/smoke.schema.json").read_text())
EAGLE3 = TINY / "eagle3"
PROMPTS = (Prompt("x", token_ids=(5, 6, 7)), Prompt("y", token_ids=(8,)))
RESOLVED = {
    "class": "LlamaForCausalLMEagle3",
    **dict.fromkeys(("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"), False),
    "aux_layers": [2, 4, 5],
    "draft_tokens": [0, 1, 2],
    "unfilled": [],
}

# rounds that accepted 0, 1, 2 and 3 draft tokens are counted in the histogram
STAND_IN = """
import json, os, sys

HOW = os.environ.get("STAND_IN", "")
print("what SGLang prints is no answer")


class Engine:
    if HOW != "is of a time before":
        run_scheduler_process_func = None

    def __init__(self, **given):
        if "quantisation" in given:
            raise TypeError("Unexpected keyword argument 'quantisation'")
        self.is_plain = "speculative_algorithm" not in given
        if HOW == "dies":
            print("Segmentation fault", file=sys.stderr, flush=True)
            os._exit(9)
        if HOW == "refuses the target":
            raise ValueError("head_dim is 7")
        if HOW == "refuses the drafter" and not self.is_plain:
            from sglang.srt.speculative import eagle_worker

            eagle_worker.load()
        if HOW == "fails in its scheduler":
            frames = [["sglang.srt.speculative.eagle_worker", "load"]]
            answer = {"version": "0.5.23", "error": "IndexError: of the scheduler", "frames": frames}
            with open(os.environ["EAGLECTL_ANSWER"], "w") as file:
                json.dump(answer, file)
            raise RuntimeError("Initialization failed. Please see the error messages above.")
        report = {"device": "cpu", "dtype": "float32"}
        if not self.is_plain:
            report["resolved"] = json.loads(os.environ["STAND_IN_RESOLVED"])
        with open(os.environ["EAGLECTL_SCHEDULER_REPORT"], "w") as file:
            json.dump(report, file)
        self.keep(given)

    def keep(self, given):
        with open(os.environ["STAND_IN_GIVEN"], "a") as file:
            print(json.dumps(given), file=file)

    def generate(self, input_ids, sampling_params):
        self.keep(sampling_params)
        info = {} if self.is_plain else {"spec_verify_ct": 6}
        if info and HOW != "does not count":
            info["spec_correct_drafts_histogram"] = [3, 0, 2, 1]
        first = input_ids[-1] + (HOW == "answers otherwise" and not self.is_plain)
        tokens = [first + place for place in range(sampling_params["max_new_tokens"])]
        if 9 in tokens and not sampling_params["ignore_eos"]:
            info["finish_reason"] = {"type": "stop", "matched": 9}
            tokens = tokens[: tokens.index(9) + 1]
        return {"output_ids": tokens, "meta_info": info}

    def shutdown(self):
        pass
"""
FILES = {
    "sglang/__init__.py": '__version__ = "0.5.23"',
    "sglang/srt/entrypoints/engine.py": STAND_IN,
    "sglang/srt/speculative/eagle_worker.py": 'def load():\n    raise ValueError("head_dim is 7")',
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `sglang` for this process and its children; the file where it keeps what Engine was given.

    The child asks torch whether there is a GPU, and this takes most of its time.
    """
    torch = {"torch.py": "from types import SimpleNamespace\ncuda = SimpleNamespace(is_available=bool)"}
    for place, files in (("site", FILES), ("child", torch)):
        for name, text in files.items():
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/child:{tmp_path}/site:{FIXTURES.parent}")
    monkeypatch.setenv("STAND_IN_GIVEN", str(tmp_path / "given.jsonl"))
    monkeypatch.setenv("STAND_IN_RESOLVED", json.dumps(RESOLVED))
    return tmp_path / "given.jsonl"


def job(target: Path = TARGET, **settings: Any) -> EngineJob:
    drafter = eaglectl.inspect(str(EAGLE3), target=str(TARGET), answers=Answers()).drafter
    given: dict[str, Any] = {"max_tokens": 4, "device": "cpu", "draft_tokens": (0, 1, 2), **settings}
    return EngineJob(EAGLE3, drafter, target, PROMPTS, **given)


@pytest.mark.parametrize("ignores_eos", [False, True])
def test_rounds_are_counted_by_position_and_tokens_compared_to_the_end_of_sequence_unless_that_is_ignored(
    ignores_eos: bool, stand_in: Path, tmp_path: Path
) -> None:
    (target := tmp_path / "target").mkdir()
    shutil.copy(TARGET / "config.json", target)
    (target / "generation_config.json").write_text('{"eos_token_id": 9}')
    settings = {"tensor_parallel_size": 2, "engine_arguments": {"quantization": "fp8"}}
    found = run_installed(SGLANG, job(target, ignores_eos=ignores_eos, **settings))
    assert [(result.drafts, result.accepted) for result in found.results] == [(6, (3, 3, 1))] * 2
    assert found.plain == (((7, 8, 9, 10), (8, 9, 10, 11)) if ignores_eos else ((7, 8, 9), (8, 9)))
    assert found.equal_outputs == 2
    assert found.arguments == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert found.resolved == {key: value for key, value in RESOLVED.items() if key != "draft_tokens"}
    assert found.differences == ()
    kept = [json.loads(line) for line in stand_in.read_text().splitlines()]
    plain, drafted = sorted((given for given in kept if "model_path" in given), key=len)
    assert (plain["tp_size"], plain["quantization"], plain["device"]) == (2, "fp8", "cpu")
    assert {key: drafted[key] for key in drafted.keys() - plain.keys()} == {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(EAGLE3.resolve()),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    stop = {"ignore_eos": ignores_eos, "stop_token_ids": [] if ignores_eos else [9]}
    asked = [given for given in kept if "temperature" in given]
    assert asked == [{"temperature": 0.0, "max_new_tokens": 4, **stop}] * 6  # two warm-ups among them


@pytest.mark.parametrize(
    ("tokens", "matched", "kept"),
    [
        ([7, 8, 9], 9, [7, 8, 9]),
        ([7, 8], 9, [7, 8, 9]),
        ([7, 8, 9, 10], None, [7, 8, 9]),
        ([7, 8], 11, [7, 8, 11]),
        ([5, 6, 7, 8, 9], None, [5, 6, 7, 8]),
    ],
    ids=["ended", "its end left out", "past its end", "another end left out", "past the longest"],
)
def test_an_answer_is_taken_through_its_end(tokens: list[int], matched: int | None, kept: list[int]) -> None:
    output = {"output_ids": tokens, "meta_info": {"finish_reason": {"type": "stop", "matched": matched}}}
    assert answer(output, {"stop": [9], "max_tokens": 4}) == kept


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"norm_output": True}, "norm_output: SGLang uses True, the checkpoint means False"),
        ({"aux_layers": [1, 3, 4]}, r"aux_layers: SGLang uses \[1, 3, 4\], the checkpoint means \[2, 4, 5\]"),
        ({"draft_tokens": [0, 2, 3]}, "d2t: SGLang maps 2 of 3 draft tokens differently, first 1"),
        ({"draft_tokens": [0, 1]}, "d2t: SGLang uses 2 draft tokens, the checkpoint has 3"),
        ({"unfilled": ["lm_head.weight"]}, "SGLang uses lm_head.weight, which neither"),
    ],
)
def test_what_it_resolved_is_compared_with_what_the_checkpoint_means(
    changes: dict[str, Any], difference: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RESOLVED", json.dumps(RESOLVED | changes))
    (found,) = run_installed(SGLANG, job()).differences
    assert re.match(difference, found), found


def test_arguments_and_outputs_that_differ_are_on_the_screen_and_in_the_document(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "answers otherwise")
    (tmp_path / "p.jsonl").write_text('{"prompt_token_ids": [5, 6]}\n')
    pair = ("smoke", EAGLE3, "--target", TARGET, "--run-in", "sglang", "--device", "cpu")
    given = ("--prompts", tmp_path / "p.jsonl", "--max-tokens", "4", "--engine-arg", "quantization=fp8")
    given += ("--tensor-parallel-size", "2")
    done = call(*pair, *given, "--json")
    assert done.code == 1
    jsonschema.validate(done.document, SCHEMA)
    engine = done.document["engine"]
    assert engine["name"] == "sglang"
    assert engine["arguments"] == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert "draft_tokens" not in engine["resolved"]
    assert done.document["failures"] == [
        "not as the checkpoint means: d2t: SGLang uses 3 draft tokens, the checkpoint has 320",
        "1 of 1 outputs differ from plain decoding; in float32 they must be equal",
    ]
    assert done.document["lossless"] is False
    screen = call("-v", *pair, *given).out
    assert "0 of 1 outputs equal plain decoding" in " ".join(screen.split())
    assert 'given tensor_parallel_size=2, quantization="fp8"' in " ".join(screen.split())
    assert (
        "sglang used LlamaForCausalLMEagle3, aux layers [2, 4, 5]; parameters that no tensor fills" in screen
    )


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("how", "mode", "kind", "message"),
    [
        ("dies", "generate", UnreadableError, "SGLang ended with code 9 .*Segmentation fault"),
        ("refuses the target", "plain", UnreadableError, "SGLang 0.5.23 does not run the target"),
        ("refuses the drafter", "generate", RefusedError, "not run this drafter: ValueError: head_dim is 7"),
        ("fails in its scheduler", "generate", RefusedError, "drafter: IndexError: of the scheduler"),
        ("does not count", "generate", UnreadableError, "0.5.23: .*by position; install sglang 0.5.13"),
        ("is of a time before", "plain", UnreadableError, "0.5.23: .*install sglang 0.5.13"),
        ("quantisation", "plain", UsageError, r"--engine-arg quantisation: SGLang 0\.5\.23 says TypeError: "),
    ],
)
def test_a_child_that_cannot_go_on_ends_in_one_sentence(
    how: str,
    mode: str,
    kind: type[Exception],
    message: str,
    stand_in: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    arguments = {how: "fp8"} if how == "quantisation" else {}
    with pytest.raises(kind, match=message) as caught:
        ask(SGLANG, job(engine_arguments=arguments), mode, [[5]])
    assert "\n" not in str(caught.value)


def test_without_sglang_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledEngine, "is_installed", lambda engine: False)
    message = refusal(3, "smoke", EAGLE3, "--target", TARGET, "--run-in", "sglang")
    assert "SGLang is not installed in this environment; install it (sglang)" in message


@pytest.mark.parametrize("name", ["SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_UNIFORM_EXPERTS"])
def test_simulated_acceptance_is_refused(name: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(RefusedError, match="simulated, not measured"):
        run_installed(SGLANG, job())


def test_what_the_files_leave_out_is_named_and_gets_its_value_back() -> None:
    torch = pytest.importorskip("torch")
    fc, norm, layer = torch.nn.Linear(6, 2, bias=False), torch.nn.RMSNorm(2), torch.nn.Linear(2, 2)
    model = torch.nn.ModuleDict({"fc": fc, "norm": norm, "layer": layer})
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def load() -> None:
        for parameter in layer.parameters():
            parameter.data.fill_(1.0)
        fc.weight.data[:, :4] = 2.0

    assert sorted(load_over_nan(model.named_parameters(), load)) == ["fc.weight", "norm.weight"]
    assert norm.weight.equal(before["norm.weight"])
    assert fc.weight[:, 4:].equal(before["fc.weight"][:, 4:])
    assert fc.weight[:, :4].eq(2.0).all() and layer.weight.eq(1.0).all()


def test_a_scheduler_without_a_drafter_says_what_it_runs_on() -> None:
    runner = SimpleNamespace(device="cuda:0", dtype="torch.bfloat16", model=None)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))
    assert describe(scheduler, {}) == {"device": "cuda:0", "dtype": "bfloat16"}
