"""smoke in vLLM, with a stand-in of the package: what vLLM is given, and whose fault an error is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.progress import Progress
from eaglectl.run.vllm.child import memory_share
from tests.builders import call, target_of
from tests.conftest import FIXTURES
from tests.processes import marked
from tests.stand_in import put_on_path
from tests.tiny import TARGET, TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")

EAGLE3 = TINY / "eagle3"
GIB = 1 << 30


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in of vLLM on the path, and the file where it keeps what its LLM was given."""
    return put_on_path(monkeypatch, tmp_path)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt_token_ids": [5 + n, 6, 7]}) + "\n" for n in range(8)))
    return path


def smoke(prompts: Path, *options: Any) -> Any:
    run = ("--target", TARGET, "--prompts", prompts, "--max-tokens", 33, "--engine", "vllm")
    return call("smoke", EAGLE3, *run, *options)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_smoke_measures_in_either_runner_and_reports_phases(
    runner: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNNER", runner)
    steps: list[Progress] = []
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=str(prompts), max_tokens=33)
    found = eaglectl.smoke(EAGLE3, TARGET, options, on_progress=steps.append)
    resolved = found.run.resolved
    assert (resolved["aux_layers"], resolved["runner"]) == ([2, 4, 5], f"{runner} (GPUModelRunner)")
    # counters go on from prompt to prompt, and from the one that warms up
    assert (found.verdict, found.measured.drafts, found.is_lossless) == ("pass", 8 * 8, True)
    stages = dict.fromkeys(step.stage for step in steps if step.stage.startswith("vLLM"))
    runs = ("prompts without the drafter", "prompts with the drafter")
    assert [*stages] == [f"vLLM: {phase}" for phase in ("importing", "loading", "warming up", *runs)]
    assert steps[-1] == Progress("vLLM: prompts with the drafter", 8, 8, "prompts")


def test_a_setting_that_vllm_reads_otherwise_fails(
    stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "norms its output")
    done = smoke(prompts, "--json")
    difference = "norm_output: vLLM uses True, the checkpoint means False"
    assert (done.code, done.document["lossless"]) == (1, True)
    assert done.document["engine"]["differences"] == [difference]
    assert done.document["failures"] == [f"not as the checkpoint means: {difference}"]


# whose fault it is: what goes wrong with the drafter or in the target's own run, or a real engine's words
# (after "says: "); the exit code; and words of the sentence
FAULTS = {
    "has no memory": (3, "for lack of memory.*--engine-arg gpu_memory_utilization="),
    "runs out of memory in the drafter": (3, "for lack of memory"),
    "lacks a package": (3, "install the package a_package_that_nobody_has"),
    "refuses attention_backend": (70, "an error of eaglectl with vLLM 0.32.0.*attention_backend"),
    "refuses quantization": (2, "--engine-arg quantization: vLLM 0.32.0 says"),
    "does not know enforce_eager": (70, "an error of eaglectl with vLLM 0.32.0.*enforce_eager"),
    "does not know quantization": (2, "--engine-arg quantization"),
    "returns nothing": (70, r"an error of eaglectl .*IndexError"),
    "does not count": (3, "does not count drafts.*install vllm 0.22.0 or newer"),
    "meets a strange tensor": (
        1,
        r"not run this drafter: ValueError: There is no such module \(tensor midlayer.mlp.up_proj.weight,"
        r" llama_eagle3.py, load_weight\)",
    ),
    "meets a strange size": (1, "not run this drafter: ValueError: head_size 7"),
    "does not multiply": (
        1,
        r"not run this drafter: RuntimeError: mat1 .*\(tensor fc, llama_eagle3.py, combine_hidden_states\)",
    ),
    "fails in a drafting worker": (1, r"not run this drafter: .*\(KeyError: 'fc_norm'\)"),
    "fails in a worker": (3, r"head_dim=7 is not there"),
    "dies later": (3, r"ended with code 9 and no answer \(phase: warming up\)"),
    "plain says: no such architecture": (3, "does not run the target"),
    "says: CUDA error: invalid device ordinal": (3, "CUDA error: invalid device ordinal"),
    "says: InterpreterError: mask has unsupported dtype": (3, "InterpreterError"),
    "says: Cannot find any model weights with `/models/drafter[1]`": (3, "rename the folder"),
    "says: Cannot find any model weights with `/models/*/drafter`": (3, "rename the folder"),
    "says: World size (4) is larger than the number of available GPUs (1)": (3, "World size"),
    "says: No valid attention backend found for cuda with head_size 12": (3, "No valid attention backend"),
    "says: Free memory on device (3.1/139.8 GiB) on startup is less than desired GPU memory utilization": (
        3,
        "Free memory on device",
    ),
    "says: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested": (
        1,
        "Model does not support EAGLE3 interface",
    ),
    "says: something that nobody has seen before": (3, "something that nobody has seen before"),
}


@pytest.mark.fast(8)
@pytest.mark.parametrize(("how", "code", "words"), [(how, *rest) for how, rest in FAULTS.items()])
def test_an_error_has_an_owner(
    how: str, code: int, words: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, said = how.removeprefix("plain ").partition(": ")
    only = "plain" if how.startswith("plain ") else "drafted"
    for name, value in {"": kind, "_ONLY": only, "_WORDS": said}.items():
        monkeypatch.setenv(f"STAND_IN{name}", value)
    done = smoke(prompts, "--engine-arg", 'quantization="fp8"')
    sentence = done.err.splitlines()[-1]
    assert done.code == code, done.err
    assert re.search(words, sentence), sentence
    assert "Traceback" not in done.err


@pytest.fixture
def metadata(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a release, by which `ready` takes the stand-in for installed."""
    information = stand_in.parent / "site/vllm-0.32.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    monkeypatch.syspath_prepend(str(information.parent))


def readied(prompts: Path, *options: str) -> Any:
    return call("ready", EAGLE3, "--target", TARGET, "--prompts", prompts, "--engine", "vllm", *options)


@pytest.mark.usefixtures("metadata")
def test_a_fault_with_the_drafter_alone_is_not_laid_to_a_target_that_was_not_run(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "says")
    monkeypatch.setenv("STAND_IN_WORDS", "TypeError: _sample() got an unexpected keyword")
    printed = " ".join(readied(prompts).out.split())
    assert "was not run without the drafter, and failed with the drafter outside of its code for" in printed
    assert "does not run the target" not in printed


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_ready_names_the_runner_that_measured_at_its_figure(
    runner: str, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNNER", runner)
    (engine,) = readied(prompts, "--json").document["engines"]
    assert engine["stored"]["acceptance"]["runner"].startswith(f"{runner} (")
    assert f"] ({runner} runner)" in readied(prompts, "-v").out


@pytest.mark.slow
def test_an_mla_pair_takes_the_cpus_backend_on_cpus_alone(
    stand_in: Path, tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "deepseek_v3", "kv_lora_rank": 16, "vocab_size": 256, "hidden_size": 32}
    target = target_of(tmp_path / "target", **config)
    source = FIXTURES / "producers/vllm/mla"
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=str(prompts), max_tokens=33)
    backends = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("STAND_IN_DEVICE", device)
        eaglectl.smoke(source, target, options)
        given = json.loads(stand_in.read_text())
        backends[device] = given["speculative_config"].get("attention_backend"), given.get("attention_config")
    assert backends == {"cpu": ("CPU_MLA", {"backend": "CPU_MLA"}), "cuda": (None, None)}


@pytest.mark.parametrize(("fixture", "is_parallel"), [("peagle", True), ("plain", None)])
def test_a_parallel_drafter_drafts_all_tokens_in_one_step(
    fixture: str, is_parallel: bool | None, stand_in: Path, prompts: Path, tmp_path: Path
) -> None:
    target = target_of(tmp_path / "target", vocab_size=256, hidden_size=32)
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=prompts, lossless=False, k=2, max_tokens=33)
    found = eaglectl.smoke(FIXTURES / "producers/speculators" / fixture, target, options)
    given = json.loads(stand_in.read_text())["speculative_config"]
    assert (given.get("parallel_drafting"), given["num_speculative_tokens"]) == (is_parallel, 2)
    gap = found.run.logits and found.run.logits.gap
    assert is_parallel is None or gap == "it drafts several tokens in one step"


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("built", "wanted", "words"),
    [("cpu", "cuda", "this build of vLLM is for CPUs"), ("cuda", "cpu", "this build of vLLM is for GPUs")],
)
def test_a_build_for_another_device_could_not_look(
    built: str, wanted: str, words: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_DEVICE", built)
    done = smoke(prompts, "--device", wanted)
    assert done.code == 3 and words in done.err, done.err


def test_a_run_takes_the_share_that_it_needs_and_no_more_than_is_free() -> None:
    assert memory_share(8 * GIB, 139 * GIB, 140 * GIB) == pytest.approx(8 / 140, abs=1e-4)
    assert memory_share(8 * GIB, 4 * GIB, 140 * GIB) == pytest.approx(0.92 * 4 / 140, abs=1e-4)


@pytest.mark.fast(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_process_has_ended_before_the_message(
    number: signal.Signals, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "leaves a worker")
    monkeypatch.setenv("EAGLECTL_TEST", str(stand_in))
    command = ["smoke", EAGLE3, "--target", TARGET, "--prompts", prompts, "--run-in", "vllm"]
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from eaglectl.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, command)], stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        # eaglectl, its two children, and at least one worker in a session of its own
        while len(marked(f"EAGLECTL_TEST={stand_in}")) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, number)
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        left = [pid for pid in marked(f"EAGLECTL_TEST={stand_in}") if pid != process.pid]
        said += process.stderr.read().decode()
        process.wait(60)
    assert "nothing was left behind" in said and process.returncode == 128 + number
    assert left == []
