"""How drafts are sampled at a temperature above 0: what vLLM is asked for, and what reports say of it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

import eaglectl
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.process import OldReleaseError
from eaglectl.run.results import make_report
from eaglectl.run.vllm import child
from tests import servers
from tests.builders import drafter_folder

REQUEST = {"drafter": "d", "k": 3, "is_mla": False, "is_mla_target": False}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts modules of vLLM in place with these contents."""

    def place(**contents: Any) -> None:
        for name in ("vllm", "vllm.config", "vllm.config.speculative"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        platforms: Any = ModuleType("vllm.platforms")
        platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)
        monkeypatch.setitem(sys.modules, platforms.__name__, platforms)
        speculative: Any = sys.modules["vllm.config.speculative"]
        sys.modules["vllm.config"].speculative = speculative  # type: ignore[attr-defined]
        for module in (sys.modules["vllm"], speculative):
            vars(module).update(contents)

    return place


@pytest.mark.parametrize(
    ("values", "temperature", "method"),
    # the values in vllm/config/speculative.py: none before 0.21.0, which has its own name
    [
        (None, 0.7, None),
        (Literal["greedy", "gumbel"], 0.7, "gumbel"),
        (Literal["greedy", "probabilistic"], 0.7, "probabilistic"),
        (Literal["greedy", "probabilistic"], 0.0, None),
    ],
)
def test_drafts_are_sampled_above_0_where_the_release_can(
    values: Any, temperature: float, method: str | None, vllm: Callable[..., None]
) -> None:
    vllm(**({} if values is None else {"DraftSampleMethod": values}))
    config = child.speculative_config({**REQUEST, "temperature": temperature})
    assert config.get("draft_sample_method") == method


def test_a_build_for_cpus_which_loses_the_temperature_is_not_started(vllm: Callable[..., None]) -> None:
    vllm(LLM=dict)
    assert child.start_engine({"device": "cpu", "temperature": 0.0}, {}) == {"disable_log_stats": False}
    with pytest.raises(OldReleaseError, match="CPU build loses the temperature where it judges drafts"):
        child.start_engine({"device": "cpu", "temperature": 0.7}, {})


@pytest.mark.parametrize(
    ("temperature", "method", "words"),
    [
        (
            0.7,
            "probabilistic",
            "drafts were sampled by draft_sample_method probabilistic; vLLM does so only with",
        ),
        (0.7, "gumbel", "sampled by draft_sample_method gumbel"),
        (0.7, "greedy", "drafts were greedy at this temperature"),
        (0.7, "not known", "VLLM_SERVER_DEV_MODE=1"),
        (0.7, None, ""),
        (0.0, "greedy", ""),
    ],
)
def test_a_report_says_how_drafts_were_sampled_above_0(
    temperature: float, method: str | None, words: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path)
    drafter, resolved = eaglectl.inspect(folder).drafter, {"draft_sample_method": method} if method else {}
    job = EngineJob(folder, drafter, folder, (), temperature=temperature)
    results = (PromptResult("", 20, (9, 5, 2), (1,) * 20),)
    run = EngineRun("vllm", "0.32.0", "cpu", "float32", "", results, (), 1.0, 0.0, resolved)
    notes = [note for note in make_report("d", job, run, None, None).notes if "draft_sample_method" in note]
    assert len(notes) == bool(words) and all(words in note for note in notes)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model": "m"}, "greedy"),
        ({"draft_sample_method": "probabilistic"}, "probabilistic"),
        ({}, "not known"),
    ],
)
def test_a_server_states_it_in_development_mode(config: dict[str, Any], method: str, tmp_path: Path) -> None:
    pages = {
        "/v1/models": servers.MODELS,
        "/metrics": lambda sent: servers.METRICS.format(
            tokens=20 * sent, drafts=10 * sent, first=6 * sent, second=4 * sent
        ),
        "/server_info?config_format=json": {"vllm_config": {"speculative_config": config}},
        "/v1/completions": servers.ANSWER,
    }
    assert servers.smoke(tmp_path, pages).run.resolved["draft_sample_method"] == method
