"""The trained pair in llama.cpp: its drafts, and a llama-server as `ready --engine llama.cpp` starts it."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import eaglectl
from eaglectl.commands.ready.run import last_line
from eaglectl.errors import UnreadableError
from eaglectl.results import Readiness
from eaglectl.run.results import SmokeReport
from tests.builders import call
from tests.conftest import FIXTURES
from tests.engine import trained
from tests.engine.llamacpp.engine import FRESH_PAGES, PATIENCE, SERVER, SETTINGS, draft
from tests.engine.rounds import in_reference
from tests.engine.servers import running
from tests.tiny import PROMPTS, TARGET

TOKENS = trained.TOKENS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The trained drafter as NeMo Automodel writes it, which no engine reads, and prompts."""
    root = tmp_path_factory.mktemp("tiny")
    eaglectl.convert(trained.DRAFTER, root / "automodel", layout="automodel", target=str(TARGET))
    (root / "automodel/eaglectl.json").unlink()
    lines = PROMPTS.read_text().splitlines(keepends=True)[: trained.COUNT]
    (root / "prompts.jsonl").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def result(root: Path) -> Readiness:
    """What `ready` says before anything is started."""
    prompts = {"prompts": str(root / "prompts.jsonl"), "max_tokens": TOKENS, "device": "cpu"}
    return eaglectl.ready(root / "automodel", TARGET, root / "out", engines=("llama.cpp",), **prompts)


@pytest.fixture(scope="module")
def command(root: Path, result: Readiness) -> Sequence[str]:
    """The server's command by `ready`, of GGUF files by llama.cpp's converter."""
    (state,) = result.engines
    _, server = state.command.split(" && ")
    converter = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.engine"]
    for files in ((root / "out", root / "out.gguf", TARGET), (TARGET, root / "target.gguf")):
        subprocess.run([*converter, *files], check=True, capture_output=True, cwd=FIXTURES.parent)
    words = [{"TARGET.gguf": str(root / "target.gguf")}.get(word, word) for word in shlex.split(server)]
    assert words[0] == "llama-server" and "--metrics" in words
    return [str(SERVER), *words[1:]]


def served(command: Sequence[str], root: Path) -> AbstractContextManager[str]:
    return running([*command, *SETTINGS], root / "server.log", PATIENCE, FRESH_PAGES)


def smoke(root: Path, engine: str) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        run_in=engine, prompts=root / "prompts.jsonl", max_tokens=TOKENS, timeout=60.0
    )
    return eaglectl.smoke(str(root / "out"), str(TARGET), options)


@pytest.mark.usefixtures("command")
def test_drafts_and_answers_are_those_of_the_reference(root: Path) -> None:
    found = draft(root / "target.gguf", root / "out.gguf", trained.prompts(), trained.K, TOKENS)
    drafter = eaglectl.inspect(str(root / "out"), target=str(TARGET)).drafter
    every, meant = in_reference(TARGET, root / "out", drafter, trained.prompts(), drafter.dims.vocab, TOKENS)
    assert found.drafts == [[tokens for tokens, _ in prompt] for prompt in every]
    assert [answer[:TOKENS] for answer in found.tokens] == [list(answer.tokens)[:TOKENS] for answer in meant]


def test_before_it_is_started_the_reference_stands_in(result: Readiness) -> None:
    line = last_line(result)
    assert " (6 prompts, k=3)" in line and "; start it with: python convert_hf_to_gguf.py " in line


def test_the_server_counts_the_rounds_of_the_reference_but_an_answers_last(
    command: Sequence[str], root: Path, result: Readiness
) -> None:
    """Of the last round it counts what the answer still takes, and no round where that is no draft token."""
    words = ("--prompts", root / "prompts.jsonl", "--max-tokens", TOKENS, "--target", TARGET)
    with served(command, root) as url:
        found = smoke(root, url)
        done = call("ready", root / "out", "--run-in", url, *words, "--json")
    assert str(found.run.version).startswith("llama.cpp b")
    reference = smoke(root, "reference")
    assert len(found.run.results) == trained.COUNT
    for ours, meant in zip(found.run.results, reference.run.results, strict=True):
        assert meant.drafts - ours.drafts in (0, 1)
        assert 0 <= sum(meant.accepted) - sum(ours.accepted) <= trained.K
        # a token of the prompt's end, of each round, and what was accepted: the whole answer
        assert 1 + ours.drafts + sum(ours.accepted) in (TOKENS - 1, TOKENS)
    assert done.code == 0, done.err
    own = done.document["engines"][0]["stored"]["acceptance"]
    assert own["drafts"] == found.measured.drafts
    assert own["acceptance_length"] == pytest.approx(found.measured.length.value)
    served_length = f"pass: ready: served {own['acceptance_length']:.2f} tokens per target step"
    assert done.document["line"].startswith(served_length)


def test_a_server_that_does_not_count_or_draft_could_not_be_looked_at(
    command: Sequence[str], root: Path
) -> None:
    silent = [word for word in command if word != "--metrics"]
    with served(silent, root) as url, pytest.raises(UnreadableError, match="without /metrics"):
        smoke(root, url)
    alone = [str(SERVER), "--model", str(root / "target.gguf"), "--metrics"]
    with served(alone, root) as url, pytest.raises(UnreadableError, match="drafted no tokens"):
        smoke(root, url)
