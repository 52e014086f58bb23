"""How drafts are sampled at a temperature above 0: what vLLM is asked for, and what reports say of it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.report import make_report
from eaglectl.run.vllm import child
from tests import servers
from tests.builders import drafter_folder

REQUEST = {"drafter": "d", "k": 3, "is_mla": False, "is_mla_target": False}
# the values in vllm/config/speculative.py: before 0.21.0 there are none, and that release has its own name
RELEASES = [
    (None, None),
    (Literal["greedy", "gumbel"], "gumbel"),
    (Literal["greedy", "probabilistic"], "probabilistic"),
]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts modules of vLLM in place with these contents."""

    def place(**contents: Any) -> None:
        for name in ("vllm", "vllm.config", "vllm.config.speculative", "vllm.v1", "vllm.v1.sample"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sampler = ModuleType("vllm.v1.sample.rejection_sampler")
        monkeypatch.setitem(sys.modules, sampler.__name__, sampler)
        platforms: Any = ModuleType("vllm.platforms")
        platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)
        monkeypatch.setitem(sys.modules, platforms.__name__, platforms)
        speculative: Any = sys.modules["vllm.config.speculative"]
        sys.modules["vllm.config"].speculative = speculative  # type: ignore[attr-defined]
        vars(speculative).update({key: value for key, value in contents.items() if key[0].isupper()})
        vars(sampler).update({key: value for key, value in contents.items() if key[0].islower()})

    return place


@pytest.mark.parametrize(("values", "method"), RELEASES)
def test_drafts_are_sampled_where_the_release_can(
    values: Any, method: str | None, vllm: Callable[..., None]
) -> None:
    vllm(**({} if values is None else {"DraftSampleMethod": values}))
    config = child.speculative_config({**REQUEST, "temperature": 0.7})
    assert config.get("draft_sample_method") == method


def test_at_temperature_0_nothing_is_asked_for(vllm: Callable[..., None]) -> None:
    vllm(DraftSampleMethod=Literal["greedy", "probabilistic"])
    assert "draft_sample_method" not in child.speculative_config({**REQUEST, "temperature": 0.0})


def test_a_build_that_loses_the_temperature_is_seen(vllm: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")
    vllm(expand_batch_to_tokens=lambda given, ends, count: given.repeat(count))
    assert child.keeps_temperature(None)
    vllm(expand_batch_to_tokens=lambda given, ends, count: torch.full((count,), 0.25))  # of an earlier call
    assert not child.keeps_temperature(None)


def notes(tmp_path: Path, temperature: float, **resolved: Any) -> list[str]:
    from eaglectl.drafter.drafter import Target
    from eaglectl.files.checkpoint import read_checkpoint
    from eaglectl.files.source import FolderSource
    from eaglectl.formats.format import Answers
    from eaglectl.formats.reader import read_drafter

    folder = drafter_folder(tmp_path)
    drafter = read_drafter(read_checkpoint(FolderSource(folder)), Answers(), Target())
    job = EngineJob(folder, drafter, folder, (), temperature=temperature)
    results = (PromptResult("", 20, (9, 5, 2), (1,) * 20),)
    run = EngineRun("vllm", "0.32.0", "cpu", "float32", "", results, (), 1.0, 0.0, resolved)
    return [note for note in make_report("d", job, run, None, None).notes if "draft_sample_method" in note]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            "probabilistic",
            "drafts were sampled by draft_sample_method probabilistic; vLLM does so where it is",
        ),
        ("gumbel", "sampled by draft_sample_method gumbel"),
        ("greedy", "drafts were greedy at this temperature"),
        ("not known", "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_report_says_how_drafts_were_sampled(method: str, words: str, tmp_path: Path) -> None:
    (note,) = notes(tmp_path, 0.7, draft_sample_method=method)
    assert words in note


def test_at_temperature_0_no_report_says_it(tmp_path: Path) -> None:
    assert notes(tmp_path, 0.0, draft_sample_method="greedy") == []


def test_an_engine_that_has_no_such_setting_is_not_said_to_draft_greedily(tmp_path: Path) -> None:
    assert notes(tmp_path, 0.7) == []


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
