"""The parent's side of smoke in SGLang, with a stand-in of the package `sglang` in the child: every way it
ends. tests/engine/sglang runs the real one.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.cli import run
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.run.installed import ask, run_installed
from eaglectl.run.job import EngineJob
from eaglectl.run.process import SGLANG, InstalledEngine
from eaglectl.run.prompts import Prompt
from eaglectl.run.sglang.scheduler import describe, load_over_nan
from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/smoke.schema.json").read_text())
)
EAGLE3 = TINY / "eagle3"
PROMPTS = (Prompt("x", token_ids=(5, 6, 7)), Prompt("y", token_ids=(8,)))
RESOLVED = {
    "class": "LlamaForCausalLMEagle3",
    "fc_norm": False,
    "norm_output": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "aux_layers": [2, 4, 5],
    "draft_tokens": [0, 1, 2],
    "unfilled": ["model.layers.1.input_layernorm.weight"],
}

# rounds that accepted 0, 1, 2 and 3 draft tokens are counted in the histogram
STAND_IN = """
import json, os, sys, time

HOW = os.environ.get("STAND_IN", "")
print("what SGLang prints is no answer")


class Engine:
    if HOW != "is of a time before":
        run_scheduler_process_func = None

    def __init__(self, **given):
        if "quantisation" in given:
            raise TypeError("Unexpected keyword argument 'quantisation'")
        self.is_plain = "speculative_algorithm" not in given
        if HOW == "hangs":
            time.sleep(600)
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
        with open(os.environ["STAND_IN_GIVEN"], "a") as file:
            print(json.dumps(given), file=file)
        if HOW != "says nothing of itself":
            report = {"device": "cpu", "dtype": "float32"}
            if not self.is_plain:
                report["resolved"] = json.loads(os.environ["STAND_IN_RESOLVED"])
            with open(os.environ["EAGLECTL_SCHEDULER_REPORT"], "w") as file:
                json.dump(report, file)

    def generate(self, input_ids, sampling_params):
        info = {} if self.is_plain else {"spec_verify_ct": 6}
        if info and HOW != "does not count":
            info["spec_correct_drafts_histogram"] = [3, 0, 2, 1]
        with open(os.environ["STAND_IN_ASKED"], "a") as file:
            print(json.dumps(sampling_params), file=file)
        most, drafts = sampling_params["max_new_tokens"], not self.is_plain
        stop = [] if sampling_params["ignore_eos"] else sampling_params["stop_token_ids"]
        tokens = [input_ids[-1] + place for place in range(most + drafts)]
        end = next((place for place, token in enumerate(tokens[:most]) if token in stop), None)
        if end is not None and not (HOW == "goes past the end" and drafts):
            other = HOW == "leaves out another end" and drafts
            info["finish_reason"] = {"type": "stop", "matched": tokens[end] + other}
            tokens = tokens[: end + (not HOW.startswith("leaves out"))]
        return {"output_ids": tokens, "meta_info": info}

    def shutdown(self):
        pass
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `sglang` for this process and its children; the file where it keeps what Engine was given."""
    package = tmp_path / "site" / "sglang"
    (package / "srt" / "entrypoints").mkdir(parents=True)
    (package / "srt" / "speculative").mkdir()
    (package / "srt" / "speculative" / "eagle_worker.py").write_text(
        'def load():\n    raise ValueError("head_dim is 7")'
    )
    (package / "__init__.py").write_text('__version__ = "0.5.23"')
    (package / "srt" / "entrypoints" / "engine.py").write_text(STAND_IN)
    (package / "srt" / "server_args.py").write_text(
        'class ServerArgs:\n    __struct_fields__ = ("quantization", "dtype")'
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for name, value in {
        "PYTHONPATH": f"{tmp_path / 'site'}:{FIXTURES.parent}",
        "STAND_IN_GIVEN": str(tmp_path / "given.jsonl"),
        "STAND_IN_ASKED": str(tmp_path / "asked.jsonl"),
        "STAND_IN_RESOLVED": json.dumps(RESOLVED),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "given.jsonl"


@pytest.fixture
def ending(tmp_path: Path) -> Path:
    """A target, of which the stand-in reads nothing, that ends sequences at token 9."""
    folder = tmp_path / "target"
    folder.mkdir()
    shutil.copy(TARGET / "config.json", folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 9}')
    return folder


def job(target: Path = TARGET, **settings: Any) -> EngineJob:
    drafter = eaglectl.inspect(str(EAGLE3), target=str(TARGET), answers=Answers()).drafter
    given: dict[str, Any] = {"max_tokens": 4, "device": "cpu", "draft_tokens": (0, 1, 2), **settings}
    return EngineJob(EAGLE3, drafter, target, PROMPTS, **given)


def test_rounds_are_counted_by_position_and_tokens_compared(stand_in: Path) -> None:
    found = run_installed(SGLANG, job(tensor_parallel_size=2, engine_arguments={"quantization": "fp8"}))
    assert [(result.drafts, result.accepted) for result in found.results] == [(6, (3, 3, 1))] * 2
    assert found.plain == ((7, 8, 9, 10), (8, 9, 10, 11))
    assert found.equal_outputs == 2
    assert found.arguments == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert found.resolved == {key: value for key, value in RESOLVED.items() if key != "draft_tokens"}
    assert found.differences == ()
    plain, drafted = map(json.loads, stand_in.read_text().splitlines())
    assert (plain["tp_size"], plain["quantization"], plain["device"]) == (2, "fp8", "cpu")
    assert {key: drafted[key] for key in drafted.keys() - plain.keys()} == {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(EAGLE3.resolve()),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }


@pytest.mark.parametrize(
    ("how", "equal"),
    [("", 2), ("leaves out the end", 2), ("goes past the end", 2), ("leaves out another end", 0)],
)
def test_answers_are_compared_through_their_end(
    how: str, equal: int, ending: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    found = run_installed(SGLANG, job(ending))
    assert found.plain == ((7, 8, 9), (8, 9))
    assert found.equal_outputs == equal
    assert [result.tokens[:-1] for result in found.results] == [(7, 8), (8,)]


@pytest.mark.parametrize("ignores_eos", [False, True])
def test_it_is_asked_to_stop_at_the_end_of_the_sequence_unless_that_is_ignored(
    ignores_eos: bool, ending: Path, stand_in: Path
) -> None:
    found = run_installed(SGLANG, job(ending, ignores_eos=ignores_eos))
    asked = [json.loads(line) for line in stand_in.with_name("asked.jsonl").read_text().splitlines()]
    stop = {"ignore_eos": ignores_eos, "stop_token_ids": [] if ignores_eos else [9]}
    assert asked == [{"temperature": 0.0, "max_new_tokens": 4, **stop}] * 6  # two warm-ups among them
    assert [len(plain) for plain in found.plain] == ([4, 4] if ignores_eos else [3, 2])
    assert found.equal_outputs == 2


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"norm_output": True}, "norm_output: SGLang uses True, the checkpoint means False"),
        ({"aux_layers": [1, 3, 4]}, r"aux_layers: SGLang uses \[1, 3, 4\], the checkpoint means \[2, 4, 5\]"),
        ({"draft_tokens": [0, 2, 3]}, "d2t: SGLang takes 2 of 3 .* first is 1: it uses token 2, .* means 1"),
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


def test_settings_that_were_not_seen_are_not_said_to_agree(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN", "says nothing of itself")
    # of 6 drafts each, which are enough for a verdict
    (tmp_path / "p.jsonl").write_text('{"prompt_token_ids": [5, 6]}\n' * 9)
    call = ["smoke", str(EAGLE3), "--target", str(TARGET), "--engine", "sglang", "--device", "cpu"]
    assert run([*call, "--prompts", str(tmp_path / "p.jsonl"), "--max-tokens", "4"]) == 0
    assert "what sglang resolved could not be seen" in capsys.readouterr().out


def test_arguments_of_the_engine_are_on_the_screen_and_in_the_document(
    stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt_token_ids": [5, 6]}\n')
    call = ["smoke", str(EAGLE3), "--target", str(TARGET), "--engine", "sglang", "--device", "cpu"]
    call += ["--prompts", str(tmp_path / "p.jsonl"), "--max-tokens", "4", "--tensor-parallel-size", "2"]
    call += ["--engine-arg", "quantization=fp8"]
    assert run([*call, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    SCHEMA.validate(document)
    assert document["engine"]["name"] == "sglang"
    assert document["engine"]["arguments"] == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert document["failures"] == [
        "not as the checkpoint means: d2t: SGLang uses 3 draft tokens, the checkpoint has 320"
    ]
    assert "draft_tokens" not in document["engine"]["resolved"]
    assert run(["-v", *call]) == 1
    screen = capsys.readouterr().out
    assert 'given tensor_parallel_size=2, quantization="fp8"' in " ".join(screen.split())
    assert "sglang used LlamaForCausalLMEagle3, aux layers [2, 4, 5]; parameters that nothing fills" in screen


def without_drafter() -> None:
    ask(SGLANG, job(), "plain", [[5]])


def with_drafter() -> None:
    ask(SGLANG, job(), "generate", [[5]])


@pytest.mark.parametrize(
    ("how", "act", "kind", "message"),
    [
        ("dies", with_drafter, UnreadableError, "SGLang ended with code 9 .*Segmentation fault"),
        ("refuses the target", without_drafter, UnreadableError, "SGLang 0.5.23 does not run the target"),
        (
            "refuses the drafter",
            with_drafter,
            RefusedError,
            "not run this drafter: ValueError: head_dim is 7",
        ),
        ("fails in its scheduler", with_drafter, RefusedError, "drafter: IndexError: of the scheduler"),
        ("does not count", with_drafter, UnreadableError, "0.5.23: .*by position; install sglang 0.5.13"),
        ("is of a time before", without_drafter, UnreadableError, "0.5.23: .*install sglang 0.5.13"),
    ],
)
def test_a_child_that_cannot_go_on_ends_in_one_sentence(
    how: str,
    act: Callable[[], None],
    kind: type[Exception],
    message: str,
    stand_in: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    with pytest.raises(kind, match=message) as caught:
        act()
    assert "\n" not in str(caught.value)


def test_a_child_that_hangs_is_stopped(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hangs")
    with pytest.raises(UnreadableError, match="within --timeout 2 s and was stopped"):
        ask(SGLANG, job(timeout=2.0), "generate", [[5]])


def test_an_unknown_argument_is_usage_with_the_nearest_name(stand_in: Path) -> None:
    with pytest.raises(UsageError, match=r"SGLang 0\.5\.23 says TypeError: .*nearest names are quantization"):
        ask(SGLANG, job(engine_arguments={"quantisation": "fp8"}), "plain", [[5]])


def test_without_sglang_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstalledEngine, "is_installed", lambda engine: False)
    assert run(["smoke", str(EAGLE3), "--target", str(TARGET), "--engine", "sglang"]) == 3
    assert "SGLang is not installed in this environment; install it (sglang)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_UNIFORM_EXPERTS"])
def test_simulated_acceptance_is_refused(name: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(RefusedError, match="made up, not measured"):
        run_installed(SGLANG, job())


def drafter_model() -> Any:
    """A module with the names that SGLang's drafter class has."""
    torch = pytest.importorskip("torch")

    class Drafter(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Module()
            self.model.fc = torch.nn.Linear(6, 2, bias=False)
            self.model.norm = torch.nn.RMSNorm(2)
            self.model.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
            self.lm_head = torch.nn.Linear(2, 4, bias=False)
            self.config = SimpleNamespace(vocab_size=4, draft_vocab_size=None)

    return Drafter()


def test_what_the_files_leave_out_is_named_and_gets_its_value_back() -> None:
    model = drafter_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def load() -> None:
        for name, parameter in model.named_parameters():
            if name not in ("model.norm.weight", "lm_head.weight", "model.fc.weight"):
                parameter.data.fill_(1.0)
        model.model.fc.weight.data[:, :4] = 2.0

    holes = load_over_nan(model, load)
    assert sorted(holes) == ["lm_head.weight", "model.fc.weight", "model.norm.weight"]
    assert model.model.norm.weight.equal(before["model.norm.weight"])
    assert model.model.fc.weight[:, 4:].equal(before["model.fc.weight"][:, 4:])
    assert model.model.fc.weight[:, :4].eq(2.0).all()


def test_what_the_target_replaces_is_not_unfilled() -> None:
    torch = pytest.importorskip("torch")
    model = drafter_model()
    holes = load_over_nan(model, lambda: None)
    model.lm_head.weight = torch.nn.Parameter(torch.ones(4, 2))
    target = torch.nn.Module()
    target.layers_to_capture = [2, 4, 5]
    runner = SimpleNamespace(device="cpu", dtype=torch.float32, model=target)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))
    report = describe(scheduler, {"model": model, "unfilled": holes})
    unfilled = ["model.fc.weight", "model.layers.0.bias", "model.layers.0.weight", "model.norm.weight"]
    assert (report["device"], report["dtype"]) == ("cpu", "float32")
    assert report["resolved"] == {
        "class": "Drafter",
        "layers": 1,
        "fc_norm": False,
        "norm_output": False,
        "norm_before_fc": False,
        "norm_before_residual": None,  # this file has the word
        "fc": [2, 6],
        "d2t": False,
        "own_lm_head": True,
        "aux_layers": [2, 4, 5],
        "draft_tokens": [0, 1, 2, 3],
        "unfilled": unfilled,
    }


def test_a_scheduler_without_a_drafter_says_what_it_runs_on() -> None:
    runner = SimpleNamespace(device="cuda:0", dtype="torch.bfloat16", model=None)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))
    assert describe(scheduler, {}) == {"device": "cuda:0", "dtype": "bfloat16"}
