"""smoke in vLLM, with a stand-in of the package: what vLLM is given, and whose fault an error is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.progress import Progress
from eaglectl.run.child import error_answer
from eaglectl.run.faults import fault
from eaglectl.run.installed import ENGINE_BYTES, activation_bytes, needed_memory, weight_bytes
from eaglectl.run.process import SGLANG, VLLM
from eaglectl.run.vllm.child import memory_share
from tests.builders import call
from tests.conftest import FIXTURES
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


def marked(mark: str) -> list[int]:
    """The processes that have this text in their environment now."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                processes.append(int(folder.name))
    return processes


def smoke(prompts: Path, *options: Any, is_verbose: bool = False) -> Any:
    run = ("--target", TARGET, "--prompts", prompts, "--max-tokens", 33, "--engine", "vllm")
    return call(*["-v"] * is_verbose, "smoke", EAGLE3, *run, *options)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_smoke_measures_in_either_runner(
    runner: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNNER", runner)
    done = smoke(prompts, is_verbose=True)
    assert done.code == 0, done.err
    assert f"aux layers [2, 4, 5], runner {runner} (GPUModelRunner)" in done.out


def test_a_setting_that_vllm_reads_otherwise_fails(
    stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "norms its output")
    done = smoke(prompts, "--json")
    report = json.loads(done.out)
    difference = "norm_output: vLLM uses True, the checkpoint means False"
    assert (done.code, report["lossless"]) == (1, True)
    assert report["engine"]["differences"] == [difference]
    assert report["failures"] == [f"not as the checkpoint means: {difference}"]


def test_a_runner_that_shows_no_drafter_is_not_seen_and_fails_nothing(
    stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNNER", "V3")
    done = smoke(prompts)
    assert done.code == 0 and "what vllm resolved could not be seen" in done.out


def test_without_lossless_the_target_is_not_run_alone(stand_in: Path, prompts: Path) -> None:
    done = smoke(prompts, "--no-lossless", "--json")
    report = json.loads(done.out)
    assert (done.code, report["lossless"]) == (0, None)
    assert stand_in.exists() and not stand_in.with_suffix(".json.plain").exists()


def test_phases_are_reported(stand_in: Path, prompts: Path) -> None:
    steps: list[Progress] = []
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=str(prompts), max_tokens=33)
    eaglectl.smoke(EAGLE3, TARGET, options, on_progress=steps.append)
    stages = dict.fromkeys(step.stage for step in steps)
    assert [stage for stage in stages if stage.startswith("vLLM")] == [
        "vLLM: importing",
        "vLLM: loading",
        "vLLM: warming up",
        "vLLM: prompts without the drafter",
        "vLLM: prompts with the drafter",
    ]
    assert steps[-1] == Progress("vLLM: prompts with the drafter", 8, 8, "prompts")


# whose fault it is: what goes wrong, the exit code, and words of the sentence
FAULTS = {
    "has no memory": (3, "memory does not suffice.*--engine-arg gpu_memory_utilization="),
    "runs out of memory in the drafter": (3, "memory does not suffice"),
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
    "meets a strange file": (1, r"not run this drafter: .* \(llama_eagle3.py, load_weight\)"),
    "meets a strange size": (1, "not run this drafter: ValueError: head_size 7"),
    "does not multiply": (
        1,
        r"not run this drafter: RuntimeError: mat1 .*\(tensor fc, llama_eagle3.py, combine_hidden_states\)",
    ),
    "fails in a drafting worker": (1, r"not run this drafter: .*\(KeyError: 'fc_norm'\)"),
    "fails in a worker": (3, r"head_dim=7 is not there"),
    "dies later": (3, r"ended with code 9 and no answer \(phase: warming up\)"),
}


@pytest.mark.parametrize(("how", "code", "words"), [(how, *rest) for how, rest in FAULTS.items()])
def test_an_error_has_an_owner(
    how: str, code: int, words: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    monkeypatch.setenv("STAND_IN_ONLY", "drafted")
    done = smoke(prompts, "--engine-arg", 'quantization="fp8"')
    sentence = done.err.splitlines()[-1]
    assert done.code == code, done.err
    assert re.search(words, sentence), sentence
    assert "Traceback" not in done.err


# of a real engine's words: the error, the exit code
WORDS = {
    "CUDA error: invalid device ordinal": 3,
    "InterpreterError: mask has unsupported dtype": 3,
    "World size (4) is larger than the number of available GPUs (1)": 3,
    "No valid attention backend found for cuda with head_size 12": 3,
    "Free memory on device (3.1/139.8 GiB) on startup is less than desired GPU memory utilization": 3,
    "Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested": 1,
    "something that nobody has seen before": 3,
}


@pytest.mark.parametrize(("words", "code"), WORDS.items())
def test_words_of_the_engine_are_laid_to_its_setup_or_to_the_pair(
    words: str, code: int, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"": "says", "_ONLY": "drafted", "_WORDS": words}.items():
        monkeypatch.setenv(f"STAND_IN{name}", value)
    done = smoke(prompts)
    assert done.code == code, done.err
    assert words.partition(" (")[0] in done.err


def test_a_target_that_does_not_run_is_not_the_drafters_fault(
    stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"": "says", "_ONLY": "plain", "_WORDS": "no such architecture"}.items():
        monkeypatch.setenv(f"STAND_IN{name}", value)
    done = smoke(prompts)
    assert (done.code, "does not run the target" in done.err) == (3, True)


def test_the_deepest_frame_tells_ours_from_the_engines() -> None:
    def own() -> None:
        raise AttributeError("no such thing")

    try:
        own()
    except AttributeError as error:
        answer = error_answer(error)
    assert answer["frames"][-1] == ("tests.test_vllm_smoke", "own")
    request = {"mode": "generate", "engine_arguments": {}, "target": "T", "has_plain": True}
    ours = {**answer, "frames": [["eaglectl.run.vllm.child", "resolved_in_worker"]]}
    assert type(fault(VLLM, ours, request)) is EaglectlError
    engines = {**answer, "frames": [["eaglectl.run", "x"], ["vllm.v1.worker.gpu_model_runner", "y"]]}
    assert type(fault(VLLM, engines, request)) is UnreadableError
    drafts = {**answer, "frames": [["vllm.v1.worker.gpu.spec_decode.eagle.speculator", "propose"]]}
    assert type(fault(VLLM, drafts, request)) is RefusedError
    sglang = {**answer, "frames": [["sglang.srt.speculative.eagle_worker", "draft"]]}
    assert type(fault(SGLANG, sglang, request)) is RefusedError
    assert (
        type(fault(SGLANG, {**sglang, "fields": ["x"]}, {**request, "engine_arguments": {"x": 1}}))
        is UsageError
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_runs_state_the_size_of_their_cache(
    device: str, stand_in: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # side by side vLLM would take the other's memory for its own, and find no room
    monkeypatch.setenv("STAND_IN_DEVICE", device)
    assert smoke(prompts).code == 0
    given = [json.loads(Path(f"{stand_in}{end}").read_text()) for end in ("", ".plain")]
    assert [run["kv_cache_memory_bytes"] for run in given] == [256 << 20] * 2
    if device == "cuda":  # nothing of a CPU build reaches a GPU
        assert given[0]["dtype"] == "auto"
        cpu = {"block_size", "attention_config", "compilation_config", "max_num_batched_tokens"}
        assert not cpu & given[0].keys()
        assert given[0]["speculative_config"].keys() == {"method", "model", "num_speculative_tokens"}


def test_an_mla_pair_takes_the_cpus_backend_on_cpus_alone(
    stand_in: Path, tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = {"model_type": "deepseek_v3", "kv_lora_rank": 16, "vocab_size": 256, "hidden_size": 32}
    (target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 8}))
    source = FIXTURES / "producers/vllm/mla"
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=str(prompts), max_tokens=33)
    backends = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("STAND_IN_DEVICE", device)
        eaglectl.smoke(source, target, options)
        given = json.loads(stand_in.read_text())
        backends[device] = given["speculative_config"].get("attention_backend"), given.get("attention_config")
    assert backends == {"cpu": ("CPU_MLA", {"backend": "CPU_MLA"}), "cuda": (None, None)}


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


def test_what_a_run_needs_is_weights_cache_activations_and_the_engine() -> None:
    from eaglectl.run.job import EngineJob

    drafter = eaglectl.inspect(EAGLE3, target=TARGET).drafter
    job = EngineJob(EAGLE3, drafter, TARGET, (), max_tokens=64)
    config = json.loads((TARGET / "config.json").read_text())
    least_cache = 256 << 20
    weights = weight_bytes(TARGET) + weight_bytes(EAGLE3)
    assert weights == sum(path.stat().st_size for f in (TARGET, EAGLE3) for path in f.glob("*.safetensors"))
    parts = weights + least_cache + activation_bytes(config)
    assert needed_memory(job, [[1] * 100]) == parts + ENGINE_BYTES


def test_a_config_without_sizes_needs_the_engines_own_memory() -> None:
    assert activation_bytes({}) == 0
    assert activation_bytes({"hidden_size": "wide", "intermediate_size": True}) == 0


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


def test_load_only_counts_what_the_target_gives_as_filled_where_it_fits() -> None:
    from eaglectl.run.installed import _shared_parameters

    drafter = eaglectl.inspect(EAGLE3, target=TARGET).drafter
    reduced = drafter.dims.draft_vocab != drafter.dims.vocab
    assert _shared_parameters(drafter) == {"model.embed_tokens.weight": True, "lm_head.weight": not reduced}
