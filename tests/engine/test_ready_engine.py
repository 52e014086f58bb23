"""`ready` in the real vLLM: a drafter that the runner of CPUs reads otherwise than the one of GPUs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.commands.ready.report import last_line
from eaglectl.engines.registry import ENGINES, installed_release
from eaglectl.operations.smoking import CPU_SKIPPED
from eaglectl.results import Readiness
from tests.tiny import PROMPTS, TARGET, TINY

SETTINGS: dict[str, Any] = {"prompts": PROMPTS, "sample": 12, "max_tokens": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ready") / "out"


@pytest.fixture(scope="module")
def result(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readiness]:
    """The tiny drafter in TorchSpec's layout: the V1 runner takes its nested ids for boundaries."""
    stored, release = out.parent / "torchspec", installed_release(ENGINES["vllm"])
    eaglectl.convert(str(TINY / "eagle3"), stored, layout="torchspec", target=str(TARGET))
    (stored / "eaglectl.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield eaglectl.ready(stored, TARGET, out, engines=(f"vllm=={release}",), speed=(1, 4), **SETTINGS)


def test_a_cpu_is_not_timed_and_that_is_said(result: Readiness) -> None:
    (state,) = result.engines
    assert state.converted is not None and state.converted.speed is None
    assert (result.speed_gap, result.verdict) == (CPU_SKIPPED, "pass")


def test_the_engine_itself_shows_that_it_reads_the_stored_file_otherwise(result: Readiness) -> None:
    (state,) = result.engines
    assert state.stored is not None and state.stored.run.engine == "vllm"
    assert state.stored_outcome == "differs"
    assert state.stored.run.resolved["aux_layers"] == [1, 3, 4]
    assert any("aux_layers" in reason for reason in state.stored_reasons)


def test_the_conversion_is_read_as_trained_and_drafts_better(result: Readiness) -> None:
    (state,) = result.engines
    assert state.stored is not None and state.converted is not None
    assert (result.verdict, state.converted_outcome) == ("pass", "as trained")
    assert state.converted.run.resolved["aux_layers"] == [2, 4, 5]
    assert state.converted.measured.length.value > state.stored.measured.length.value


def test_the_figures_of_the_last_line_are_those_of_smoke(result: Readiness, out: Path) -> None:
    smoked = eaglectl.smoke(out, TARGET, run_in="vllm", **SETTINGS)
    (state,) = result.engines
    assert state.stored is not None
    line, lengths = last_line(result), [run.measured.length.value for run in (state.stored, smoked)]
    assert line.startswith(
        f"ready  as stored {lengths[0]:.2f}, converted {lengths[1]:.2f} tokens per target step ("
    )
    assert json.dumps(str(out)) in line.partition("start it with: vllm serve ")[2]
