"""`ready --engine llama.cpp`: the commands of its last line, run in a real llama-server, which counts."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglectl
from eaglectl.commands.ready.report import last_line
from eaglectl.results import Readiness
from tests.builders import call
from tests.conftest import FIXTURES
from tests.engine import trained
from tests.engine.llamacpp.engine import FRESH_PAGES, SERVER
from tests.engine.llamacpp.test_server_llamacpp import PATIENCE, SETTINGS
from tests.engine.servers import running
from tests.tiny import PROMPTS, TARGET, TINY


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def stored(root: Path) -> Path:
    """The trained drafter as NeMo Automodel writes it, which no engine reads."""
    folder = root / "automodel"
    eaglectl.convert(TINY / "eagle3", folder, layout="automodel", target=str(TARGET))
    (folder / "eaglectl.json").unlink()
    return folder


@pytest.fixture(scope="module")
def result(root: Path, stored: Path) -> Readiness:
    """What `ready` says before anything is started."""
    prompts = root / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[: trained.COUNT]))
    return eaglectl.ready(
        stored,
        TARGET,
        root / "out",
        engines=("llama.cpp",),
        prompts=str(prompts),
        max_tokens=trained.TOKENS,
        device="cpu",
    )


@pytest.fixture(scope="module")
def measured(root: Path, result: Readiness) -> dict[str, object]:
    """The document of the call that the last line ends in, with a server that its command starts."""
    (state,) = result.engines
    _, server = state.command.split(" && ")
    converter = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.engine"]
    for files in ((root / "out", root / "out.gguf", TARGET), (TARGET, root / "target.gguf")):
        subprocess.run([*converter, *files], check=True, capture_output=True, cwd=FIXTURES.parent)
    words = [{"TARGET.gguf": str(root / "target.gguf")}.get(word, word) for word in shlex.split(server)]
    assert words[0] == "llama-server"
    with running([str(SERVER), *words[1:], *SETTINGS], root / "server.log", PATIENCE, FRESH_PAGES) as url:
        again = [
            {"http://127.0.0.1:8080": url}.get(word, word) for word in shlex.split(state.measure_command)
        ]
        done = call(*again[1:], "--json")
    assert done.code == 0, done.err
    return dict(done.document)


def test_before_it_is_started_the_reference_stands_in_and_the_result_says_what_measures_it(
    result: Readiness, root: Path
) -> None:
    line = last_line(result)
    assert " (6 prompts, k=3)" in line and "; start it with: python convert_hf_to_gguf.py " in line
    (state,) = result.engines
    assert state.measure_command.startswith(f"eaglectl ready {root}/out --run-in http://")


def test_the_server_counts_the_rounds_of_the_reference(
    measured: dict[str, object], result: Readiness
) -> None:
    """But an answer's last round, of which it counts what the answer still takes, or nothing."""
    (state,) = result.engines
    (served,) = measured["engines"]  # type: ignore[misc]
    own, reference = served["stored"]["acceptance"], state.converted
    assert reference is not None
    assert 0 <= reference.measured.drafts - own["drafts"] <= trained.COUNT
    assert own["acceptance_length"] == pytest.approx(reference.measured.length.value, abs=0.15)
    assert str(measured["line"]).startswith(
        f"ready  served {own['acceptance_length']:.2f} tokens per target step"
    )
