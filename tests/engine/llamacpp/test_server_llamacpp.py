"""smoke on a real llama-server with the trained pair: its counters are those of the reference's rounds."""

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.report import SmokeReport
from tests.conftest import FIXTURES
from tests.engine import trained
from tests.engine.llamacpp.engine import FRESH_PAGES, SERVER
from tests.engine.servers import running
from tests.tiny import PROMPTS, TARGET

PATIENCE = 120.0
SETTINGS = (
    *("--offline", "--no-warmup", "--threads", "1", "--parallel", "1"),
    *("--ctx-size", "512", "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"),
    *("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drafter's folder by eaglectl, and both GGUF files by llama.cpp's converter."""
    root = tmp_path_factory.mktemp("served")
    options = ConvertOptions("llama.cpp", target=str(TARGET))
    eaglectl.convert(str(trained.DRAFTER), root / "drafter", options)
    converter = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.engine"]
    for files in ((root / "drafter", root / "drafter.gguf", TARGET), (TARGET, root / "target.gguf")):
        subprocess.run([*converter, *files], cwd=FIXTURES.parent, check=True)
    return root


def served(pair: Path, *more: str) -> AbstractContextManager[str]:
    """The address of a llama-server with the pair."""
    command = [str(SERVER), "--model", str(pair / "target.gguf"), *SETTINGS, *more]
    return running(command, pair / f"server-{len(more)}.log", PATIENCE, FRESH_PAGES)


def drafting(pair: Path) -> tuple[str, ...]:
    return (
        *("--model-draft", str(pair / "drafter.gguf"), "--spec-type", "draft-eagle3"),
        *("--spec-draft-n-max", str(trained.K)),
    )


def smoke(pair: Path, engine: str) -> SmokeReport:
    prompts = pair / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[: trained.COUNT]))
    options = eaglectl.SmokeOptions(run_in=engine, prompts=prompts, max_tokens=trained.TOKENS, timeout=60.0)
    return eaglectl.smoke(str(pair / "drafter"), str(TARGET), options)


def test_it_counts_the_rounds_of_the_reference_but_an_answers_last(pair: Path) -> None:
    """Of the last round it counts what the answer still takes, and no round where that is no draft token."""
    with served(pair, *drafting(pair), "--metrics") as url:
        found = smoke(pair, url)
    expected = smoke(pair, "reference")
    pairs = list(zip(found.run.results, expected.run.results, strict=True))
    assert len(pairs) == trained.COUNT
    for ours, reference in pairs:
        assert reference.drafts - ours.drafts in (0, 1)
        assert 0 <= sum(reference.accepted) - sum(ours.accepted) <= trained.K
        # a token of the prompt's end, of each round, and what was accepted: the whole answer
        assert 1 + ours.drafts + sum(ours.accepted) in (trained.TOKENS - 1, trained.TOKENS)
    assert json.dumps(found.run.version).startswith('"llama.cpp b')


def test_without_metrics_it_could_not_be_looked_at(pair: Path) -> None:
    with served(pair, *drafting(pair)) as url, pytest.raises(UnreadableError, match="without /metrics"):
        smoke(pair, url)


def test_without_a_drafter_it_drafts_nothing(pair: Path) -> None:
    with served(pair, "--metrics") as url, pytest.raises(UnreadableError, match="drafted nothing"):
        smoke(pair, url)
