"""Engines on the device, by the commands that a user types: each in a process of its own, and its JSON."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.gpu import mla_pair
from tests.gpu.conftest import installed, restated
from tests.gpu.results import COMMAND
from tests.processes import marked
from tests.real.conftest import REAL
from tests.tiny import PROMPTS, TARGET, TINY

ROOT = FIXTURES.parent
EAGLE3 = TINY / "eagle3"
TINY_RUN = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 16, "--max-tokens", 32)
# what an engine may take of the card, so that several run side by side; the cache is given in bytes, as vLLM
# stops where the card's free memory changes while it finds out how much it may take
SHARE_BYTES, CACHE_BYTES = 10 << 30, 1 << 30
TIMEOUT = 200  # seconds of one start of an engine, of which a command has up to three

pytestmark = pytest.mark.slow
Typed = Callable[..., Mapping[str, Any]]


@pytest.fixture
def typed(device: str, record_property: Callable[[str, object], None]) -> Typed:
    """Types a command with the device, records it, and returns its document; it has to end with 0."""

    def run(*words: object) -> Mapping[str, Any]:
        line = [str(word) for word in words]
        record_property(COMMAND, " ".join(["eaglectl", *map(shortened, line)]))
        command = [sys.executable, "-m", "eaglectl", *line, "--device", device, "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = " ".join((ended.stdout or ended.stderr).split())  # one line, for the table
        assert ended.returncode == 0, f"exit {ended.returncode}: {reason[-2000:]}"
        document: Mapping[str, Any] = json.loads(ended.stdout)
        return document

    return run


def shortened(word: str) -> str:
    """A word without what is of this machine."""
    path = Path(word)
    if not path.is_absolute():
        return word
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


@pytest.fixture
def vllm(device: str) -> tuple[str, ...]:
    """The options that take the installed vLLM."""
    installed("vllm")
    return ("--engine", "vllm")


@pytest.fixture
def shared_vllm(vllm: tuple[str, ...], device: str) -> tuple[str, ...]:
    """The same, with a part of the card's memory."""
    if device != "cuda":
        return vllm
    share = (f"gpu_memory_utilization={part_of_card():.3f}", f"kv_cache_memory_bytes={CACHE_BYTES}")
    return (*vllm, *(word for argument in share for word in ("--engine-arg", argument)))


def part_of_card() -> float:
    """SHARE_BYTES of the card's memory."""
    import torch

    return float(min(0.9, SHARE_BYTES / torch.cuda.mem_get_info()[1]))


def check_drafting(
    typed: Typed,
    figures: Callable[..., None],
    drafter: Path,
    run: tuple[object, ...],
    options: tuple[str, ...],
) -> Mapping[str, Any]:
    """Smoke a drafter in the engine: it passes, as long as in the reference; the document."""
    document = typed("smoke", drafter, *run, *options, "--timeout", TIMEOUT)
    low, high = typed("smoke", drafter, *run, "--run-in", "reference")["interval"]
    length = document["acceptance_length"]
    resolved = document["engine"]["resolved"]
    figures(
        length=round(length, 3),
        reference=f"[{low:.3f}, {high:.3f}]",
        lossless=document["lossless"],
        runner=resolved.get("runner"),
        dtype=document["engine"]["dtype"],
    )
    assert document["verdict"] == "pass" and document["engine"]["differences"] == []
    assert low <= length <= high
    return document


def test_smoke_measures_what_the_reference_does(
    typed: Typed, shared_vllm: tuple[str, ...], figures: Callable[..., None]
) -> None:
    document = check_drafting(typed, figures, EAGLE3, TINY_RUN, shared_vllm)
    assert document["engine"]["resolved"]["aux_layers"] == [2, 4, 5]


def test_smoke_load_only_finds_every_parameter_filled(
    typed: Typed, vllm: tuple[str, ...], figures: Callable[..., None]
) -> None:
    document = typed("smoke", EAGLE3, "--target", TARGET, *vllm, "--load-only", "--timeout", TIMEOUT)
    figures(unfilled=len(document["unfilled"]), drafter=document["resolved"]["class"])
    assert document["unfilled"] == []


def test_ready_converts_a_drafter_whose_layers_are_stored_otherwise(
    typed: Typed, shared_vllm: tuple[str, ...], figures: Callable[..., None], tmp_path: Path
) -> None:
    # SGLang's ids where every runner of vLLM takes boundaries
    stored = restated(tmp_path / "stored", eagle_config=None, eagle_aux_hidden_state_layer_ids=[1, 3, 4])
    run = (*TINY_RUN, "--aux-convention", "output", "-o", tmp_path / "out")
    document = typed("ready", stored, *run, *shared_vllm, "--timeout", TIMEOUT)
    (state,) = document["engines"]
    lengths = {part: state[part]["acceptance"]["acceptance_length"] for part in ("stored", "converted")}
    figures(**{part: round(length, 3) for part, length in lengths.items()})
    assert state["stored"]["acceptance"]["engine"] == state["converted"]["acceptance"]["engine"] == "vllm"
    assert (state["stored"]["outcome"], state["converted"]["outcome"]) == ("differs", "as trained")
    assert lengths["converted"] > lengths["stored"]
    assert (tmp_path / "out/model.safetensors").exists()


def test_smoke_runs_an_mla_drafter_of_real_kernel_sizes(
    typed: Typed, shared_vllm: tuple[str, ...], figures: Callable[..., None], tmp_path: Path
) -> None:
    target, drafter, prompts = mla_pair.write_pair(tmp_path)
    run = ("--target", target, "--prompts", prompts, "--max-tokens", 16)
    document = check_drafting(typed, figures, drafter, run, shared_vllm)
    assert document["engine"]["resolved"]["aux_layers"] == list(mla_pair.BOUNDARIES)


def test_calibrate_gives_the_statistics_of_transformers(
    typed: Typed, shared_vllm: tuple[str, ...], figures: Callable[..., None], tmp_path: Path
) -> None:
    read = {}
    for name, options in {"vllm": (*shared_vllm, "--timeout", TIMEOUT), "transformers": ()}.items():
        out = tmp_path / name
        run = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 16, "--answer-tokens", 16)
        typed("calibrate", EAGLE3, *run, *options, "-o", out, "--force")
        read[name] = json.loads((out / "statistics.json").read_bytes())
    figures(**{f"rms in {name}": [round(value, 3) for value in read[name]["rms"]] for name in read})
    assert read["vllm"]["engine"]["name"] == "vllm"
    assert read["vllm"]["rms"] == pytest.approx(read["transformers"]["rms"], rel=0.02)
    assert read["vllm"]["sigma"] == pytest.approx(read["transformers"]["sigma"], rel=0.05)


def test_smoke_of_the_real_pair_measures_what_the_reference_does(
    typed: Typed, shared_vllm: tuple[str, ...], figures: Callable[..., None], real_target: Path
) -> None:
    run = ("--target", real_target, "--prompts", REAL / "test.jsonl", "--sample", 16)
    check_drafting(typed, figures, REAL / "specforge", run, shared_vllm)


def test_smoke_that_is_ended_leaves_no_process_of_the_engine(
    shared_vllm: tuple[str, ...],
    device: str,
    figures: Callable[..., None],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    words = ("smoke", EAGLE3, *TINY_RUN, *shared_vllm, "--device", device)
    record_property(COMMAND, " ".join(["eaglectl", *(shortened(str(word)) for word in words), "& kill"]))
    mark = f"EAGLECTL_TEST={tmp_path}"
    environment = os.environ | dict([mark.split("=")])
    command = [sys.executable, "-m", "eaglectl", *map(str, words)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + TIMEOUT
    while not (loaded := engine_processes(process.pid, mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    process.terminate()
    begin = time.monotonic()
    _, errors = process.communicate(timeout=60)
    left = marked(mark)
    figures(seconds_to_end=round(time.monotonic() - begin, 1), processes=len(loaded), left=len(left))
    assert loaded and process.returncode == 143, errors
    assert left == []


def engine_processes(parent: int, mark: str) -> list[int]:
    """Processes beside `parent` that have torch loaded, and on a GPU its driver's files open."""
    wanted = ("libtorch",) if not Path("/dev/nvidiactl").exists() else ("libtorch", "/dev/nvidia")
    found = []
    for number in marked(mark):
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{number}/maps").read_text()
            if number != parent and all(word in maps for word in wanted):
                found.append(number)
    return found


def test_smoke_speed_measures_at_each_concurrency(
    typed: Typed, vllm: tuple[str, ...], figures: Callable[..., None]
) -> None:
    run = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 16, "--max-tokens", 64)
    check_speed(typed, figures, EAGLE3, *run, *vllm)


def test_smoke_speed_of_the_real_pair(
    typed: Typed, vllm: tuple[str, ...], figures: Callable[..., None], real_target: Path
) -> None:
    run = ("--target", real_target, "--prompts", REAL / "test.jsonl", "--max-tokens", 128)
    check_speed(typed, figures, REAL / "specforge", *run, *vllm)


def check_speed(typed: Typed, figures: Callable[..., None], drafter: Path, *run: object) -> None:
    """Record tokens a second of all requests at each concurrency, with the drafter and without."""
    document = typed("smoke", drafter, *run, "--speed", "1,4,16", "--timeout", TIMEOUT)
    speed = document["speed"]
    rates = {
        f"tokens/s at {row['concurrency']}": " for ".join(
            f"{row[name]['total']['median']:.0f}" for name in ("drafted", "plain")
        )
        for row in speed["rows"]
    }
    figures(length=round(document["acceptance_length"], 3), ratio=speed["text"], **rates)
    assert [row["concurrency"] for row in speed["rows"]] == [1, 4, 16]


def test_smoke_in_sglang_measures_what_the_reference_does(
    typed: Typed, device: str, figures: Callable[..., None]
) -> None:
    installed("sglang")
    if device != "cuda":
        pytest.skip("on a CPU `make test-sglang` runs SGLang")
    options = ("--engine", "sglang", "--engine-arg", f"mem_fraction_static={part_of_card():.3f}")
    check_drafting(typed, figures, EAGLE3, TINY_RUN, options)
