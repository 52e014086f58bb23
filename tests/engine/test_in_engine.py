"""The plugin in the real vLLM: what it logs at a start, with each runner, and that it changes nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.judging import targets
from tests.engine.runners import ROOT, RUNNERS
from tests.engine.servers import running_vllm
from tests.engine.starts_log import LINE, unlike
from tests.tiny import TARGET, TINY

Answers = Mapping[str, Mapping[str, Any]]
# after the weights, of a drafter on its trained settings
LOADED = r"INFO eaglectl: vLLM 0\.32\.0 resolved what was trained: layers 2, 4, 5, .*no parameter unfilled"
TRAINED = r"INFO eaglectl: vLLM 0\.32\.0 runs it as trained"
LOADED_OTHERWISE = r"WARNING eaglectl: vLLM 0\.32\.0 has loaded the drafter differently than it was trained: "
# cases of agreement: what is logged, each a pattern of one line
MISREAD: Mapping[str, Sequence[str]] = {
    "llama3/none": [TRAINED, LOADED],
    "llama3/two layers": [TRAINED, LOADED],
    "llama3/rope_scaling yarn": [TRAINED, LOADED],
    "llama3/rope_scaling llama3": [TRAINED, LOADED],
    "llama3/rope_theta 500000.0": [TRAINED, LOADED],
    "llama3/aux ids unsorted": [
        r"WARNING eaglectl: vLLM 0\.32\.0 reads target layers 4, 5, 2; trained on 2, 4, 5",
        "WARNING next:  eaglectl convert ",
        LOADED_OTHERWISE + r"aux_layers: vLLM uses \[2, 4, 5\], the checkpoint means \[5, 2, 4\]",
    ],
    "llama3/norm_output nested": [
        r"WARNING eaglectl: vLLM 0\.32\.0 runs it differently than it was trained",
        r"WARNING vLLM 0\.32\.0: .*norm_output",
        "WARNING next:  eaglectl convert ",
        LOADED_OTHERWISE + "norm_output: vLLM uses False, the checkpoint means True",
    ],
    "llama3/norm_before_residual nested": [
        r"WARNING eaglectl: vLLM 0\.32\.0 runs it differently than it was trained",
        r"WARNING vLLM 0\.32\.0: .*norm_before_residual",
        "WARNING next:  eaglectl convert ",
        LOADED_OTHERWISE + "norm_before_residual: vLLM uses False, the checkpoint means True",
    ],
    "llama3/d2t absolute": [
        r"WARNING eaglectl: vLLM 0\.32\.0 .*",
        r"WARNING vLLM 0\.32\.0: .*d2t",
        "WARNING next:  eaglectl convert ",
        LOADED_OTHERWISE + "d2t: vLLM maps 9. of 96 draft tokens differently",
    ],
    "llama3/without o_proj": [
        r"WARNING eaglectl: vLLM 0\.32\.0 runs it differently than it was trained",
        "WARNING vLLM 0.32.0: layers.0.self_attn.o_proj.weight is missing",
        LOADED_OTHERWISE
        + "vLLM uses model.layers.*o_proj.weight, which neither the file nor the target fills",
    ],
}


def case(name: str, root: Path, **more: Any) -> dict[str, Any]:
    folder = root / "cases" / name
    if not folder.exists():
        CASES[name].files().write(folder)
    return {"target": str(root / "targets" / "llama"), "drafter": str(folder), **more}


def run(root: Path, runner: str, requests: Mapping[str, Any]) -> Answers:
    """What the plugin logs in each of these starts."""
    (root / "requests.json").write_text(json.dumps(requests))
    command = [sys.executable, "-m", "tests.engine.starts", str(root), str(root / "requests.json")]
    environment = {**os.environ, "ENGINE_RUNNER": runner, "PYTHONPATH": str(ROOT)}
    environment.pop("EAGLECTL_IN_ENGINE_SPOKEN", None)
    answers = root / "answers.json"
    subprocess.run([*command, str(answers)], env=environment, check=True, timeout=1200, cwd=ROOT)
    found: Answers = json.loads(answers.read_text())
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts")
    targets(folder / "targets")
    eaglectl.convert(TINY / "eagle3", folder / "torchspec", layout="torchspec", target=str(TARGET))
    return folder


# what a plugin of ours may meet, and must not harm a server by
FAULTS = {
    "an error": "import eaglectl.in_engine.look as look\n"
    "def judge(start): raise TypeError('no judge')\n"
    "look.judge = judge",
    "half an installation": "import sys; sys.modules['eaglectl.in_engine.look'] = None",
    "a renamed function": "from vllm.engine.arg_utils import EngineArgs\n"
    "EngineArgs.make_config = EngineArgs.create_engine_config\n"
    "import vllm.plugins; del EngineArgs.create_engine_config\n"
    "vllm.plugins.load_general_plugins(); EngineArgs.create_engine_config = EngineArgs.make_config",
    "a second plugin": "from vllm.engine.arg_utils import EngineArgs\n"
    "import vllm.plugins; vllm.plugins.load_general_plugins()\n"
    "first = EngineArgs.create_engine_config\n"
    "EngineArgs.create_engine_config = lambda *parts, **named: first(*parts, **named)\n"
    "vllm.plugins.plugins_loaded = False",
    "no home": "import os; os.environ.pop('HOME', None); os.environ['HF_HOME'] = '/proc/none'",
}


@pytest.fixture(scope="module", params=RUNNERS)
def answers(root: Path, request: pytest.FixtureRequest) -> Answers:
    """Every start of one runner; V2, through an interpreter, has fewer."""
    runner = request.param
    names = (
        list(MISREAD)
        if runner == "V1"
        else ["llama3/none", "llama3/norm_output nested", "llama3/d2t absolute"]
    )
    starts = {name: case(name, root) for name in names}
    return run(root, runner, starts | both(root))


def both(root: Path, prompts: int = 4) -> dict[str, Any]:
    """The same start with the plugin and without, and what it answers."""
    tiny = {"target": str(TARGET), "drafter": str(root / "torchspec"), "prompts": prompts}
    return {"torchspec": tiny, "torchspec, off": {**tiny, "environment": {"EAGLECTL_IN_ENGINE": "off"}}}


@pytest.fixture(scope="module")
def beside(root: Path) -> Answers:
    """Starts of V1 with something beside them."""
    pair = both(root, prompts=20)
    tiny = pair["torchspec"]
    faults = {f"fault: {name}": {**tiny, "before": code} for name, code in FAULTS.items()}
    return run(root, "V1", pair | faults | others(root, tiny))


# a framework's update without a tensor, then of the norms, as a CPU build has packed the matrices
UPDATES = """
from safetensors.torch import load_file
runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
path = llm.llm_engine.vllm_config.speculative_config.model
before = {name: value.clone() for name, value in runner.drafter.model.named_parameters()}
runner.drafter.model.load_weights([])
stored = load_file(f"{path}/model.safetensors")
runner.drafter.model.load_weights((name, value) for name, value in stored.items() if "norm" in name)
after = dict(runner.drafter.model.named_parameters())
assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)
"""


def others(root: Path, tiny: Mapping[str, Any]) -> dict[str, Any]:
    def set_to(mode: str, **more: Any) -> dict[str, Any]:
        return {**tiny, "environment": {"EAGLECTL_IN_ENGINE": mode}, **more}

    unknown = "import vllm; vllm.__version__ = '0.99.0'"
    policy = root / "policy.toml"
    policy.write_text('[defaults]\naux-convention = "boundary"\n')
    is_open = "llama3/aux ids nested alone"
    return {
        "no drafter": {**tiny, "drafter": None},
        "a value that is none": set_to("refused"),
        "refuse": set_to("refuse"),
        "refuse, as trained": {**set_to("refuse"), "drafter": str(TINY / "eagle3")},
        "unknown release": {**tiny, "before": unknown},
        "unknown release, as trained": {**tiny, "drafter": str(TINY / "eagle3"), "before": unknown},
        "unknown release, refuse": set_to("refuse", before=unknown),
        "question": case(is_open, root),
        "question, answered": case(is_open, root, environment={"EAGLECTL_POLICY": str(policy)}),
        "a policy that is none": case(
            is_open, root, environment={"EAGLECTL_POLICY": str(root / "none.toml")}
        ),
        "updates": {**tiny, "after": UPDATES},
        "another target": {"target": str(TARGET), "drafter": case("llama3/none", root)["drafter"]},
    }


def test_a_start_says_what_the_engine_does_with_the_drafter(answers: Answers) -> None:
    found = {
        name: unlike(answers[name]["lines"], lines) for name, lines in MISREAD.items() if name in answers
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(found) >= 3


OTHER_LAYERS = [
    r"WARNING eaglectl: vLLM 0\.32\.0 reads target layers 1, 3, 4; trained on 2, 4, 5",
    "WARNING next:  eaglectl convert .*torchspec --target .*target",
    LOADED_OTHERWISE + r"aux_layers: vLLM uses \[1, 3, 4\], the checkpoint means \[2, 4, 5\]",
]


def test_the_runner_that_is_chosen_is_the_one_that_is_judged(answers: Answers) -> None:
    # the V2 runner finds the layers in target_layer_ids
    is_v2 = "llama3/without o_proj" not in answers
    assert unlike(answers["torchspec"]["lines"], [TRAINED, LOADED] if is_v2 else OTHER_LAYERS) == []


def test_the_answers_of_the_engine_are_those_without_the_plugin(answers: Answers) -> None:
    assert other_tokens(answers) == set()


def other_tokens(answers: Answers) -> set[str]:
    """The starts whose engine answered otherwise than without the plugin."""
    plain = answers["torchspec, off"]
    assert plain["lines"] == [] and all(plain["tokens"])
    found = {name: answer["tokens"] for name, answer in answers.items() if answer.get("tokens")}
    return {name for name, tokens in found.items() if tokens != plain["tokens"]}


# what V1 logs of a drafter that it reads otherwise, by what the start has beside it
CANNOT = "WARNING eaglectl could not look at the drafter .*; the engine starts as it does without eaglectl"
UNKNOWN = r"WARNING eaglectl: it is not known whether vLLM 0\.99\.0 runs it as trained: .*not a known release"
OTHERS: Mapping[str, Sequence[str]] = {
    "no drafter": [],
    "fault: an error": [CANNOT, CANNOT],
    "fault: half an installation": [CANNOT, CANNOT],
    "fault: a renamed function": [CANNOT, OTHER_LAYERS[-1]],
    "fault: a second plugin": OTHER_LAYERS,
    "fault: no home": OTHER_LAYERS,
    "a value that is none": [
        "WARNING EAGLECTL_IN_ENGINE=refused: expected warn, refuse, off; taken as warn",
        *OTHER_LAYERS,
    ],
    "refuse": OTHER_LAYERS[:2],
    "updates": [*OTHER_LAYERS, "WARNING eaglectl: an update of the drafter brought no tensor"],
    "refuse, as trained": [TRAINED, LOADED],
    "unknown release": [UNKNOWN, OTHER_LAYERS[-1].replace("32", "99")],
    "unknown release, as trained": [
        UNKNOWN,
        "WARNING eaglectl: vLLM 0.99.0 is not known to eaglectl; what it resolved is what was trained: ",
    ],
    "unknown release, refuse": [UNKNOWN, OTHER_LAYERS[-1].replace("32", "99")],
    "question": [
        r"WARNING eaglectl: it is not known whether vLLM 0\.32\.0 runs it as trained: ids in eagle_config .*"
        "answer it under .defaults. of eaglectl.toml",
        "INFO eaglectl: .*not seen: aux_layers",
    ],
    "question, answered": [TRAINED + ".*answers from .*policy.toml", LOADED.replace("2, 4, 5", "1, 3, 4")],
    "a policy that is none": [
        "WARNING eaglectl: it is not known .*none.toml",
        "WARNING eaglectl: .*none.toml",
    ],
    "another target": [
        r"WARNING eaglectl: vLLM 0\.32\.0 does not start with it",
        r"WARNING vLLM 0\.32\.0: keeps the drafter's own embedding of 256 rows, and the target's tokenizer",
        r"WARNING vLLM 0\.32\.0: the target has width 128 and this drafter's aux states 32",
        "INFO eaglectl: vLLM 0.32.0 resolved these as trained: ",
    ],
}


def lines_of(log: Path) -> list[str]:
    """What eaglectl logged in a process that was started by itself."""
    return [f"{level} {text}" for level, text in LINE.findall(log.read_text()) if level]


def test_a_server_says_so_in_its_own_log_and_serves(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with running_vllm(TARGET, root / "torchspec", log, 300.0) as url:
        assert url
    assert unlike(lines_of(log), OTHER_LAYERS) == []


def test_a_refused_server_ends_with_the_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_IN_ENGINE", "refuse")
    log = tmp_path / "server.log"
    with pytest.raises(pytest.fail.Exception), running_vllm(TARGET, root / "torchspec", log, 300.0):
        pass
    assert unlike(lines_of(log), OTHER_LAYERS[:2]) == []
    assert "RefusedStart: EAGLECTL_IN_ENGINE=refuse ends this start" in log.read_text()


@pytest.mark.minutes
def test_one_of_two_workers_speaks(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a core for each
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    log = tmp_path / "server.log"
    with running_vllm(TARGET, root / "torchspec", log, 400.0, "--tensor-parallel-size", "2"):
        pass
    assert unlike(lines_of(log), OTHER_LAYERS) == []


def test_what_stands_beside_a_start_is_heard_and_harms_nothing(beside: Answers) -> None:
    found = {name: unlike(beside[name]["lines"], lines) for name, lines in OTHERS.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    ended = {name for name, answer in beside.items() if answer["error"]}
    assert ended == {"refuse", "unknown release, refuse"}
    assert all(beside[name]["error"].startswith("RefusedStart: ") for name in ended)
    assert other_tokens(beside) == set()


def test_the_page_shows_what_vllm_logs() -> None:
    block = (ROOT / "docs/in-engine.md").read_text().split("```")[1].removeprefix("text\n")
    lines = block.replace("[look.py] ", "").replace("my-drafter", "torchspec").strip().splitlines()
    assert unlike(lines, OTHER_LAYERS) == []
