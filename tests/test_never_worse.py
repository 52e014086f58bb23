"""No conversion makes a release do worse in silence, and none that is for the engine makes it so at all."""

from itertools import takewhile
from pathlib import Path

import pytest

from eaglectl.engines.registry import ENGINES
from eaglectl.formats.catalogue import writable
from tests.builders import HIDDEN, VLLM, VOCAB, call, drafter_folder, floats, target_of
from tests.cases import CASES, Case
from tests.conftest import FIXTURES

TARGET = FIXTURES / "target"
ORDER = ("fails", "differs", "unknown")
TITLES = {name: engine.title for name, engine in ENGINES.items()}
PAIRS = [(case, layout) for case in CASES for layout in writable()]


def levels(folder: Path, *options: str) -> dict[str, int]:
    """How good each engine's newest release is with a drafter: 3 where it is served, by `inspect`."""
    engines = [f"--engine={name}=={engine.releases[-1]}" for name, engine in ENGINES.items()]
    document = call("inspect", folder, "--target", TARGET, *engines, *options, "--json").document
    outcomes = {verdict["engine"]: verdict["outcome"] for verdict in document["engines"]}
    return {name: (*ORDER, outcome).index(outcome) for name, outcome in outcomes.items()}


@pytest.mark.fast(4)
@pytest.mark.parametrize(("case", "layout"), PAIRS, ids=[f"{case.path}-{layout}" for case, layout in PAIRS])
def test_what_a_release_does_worse_is_in_the_first_line_or_refused(
    case: Case, layout: str, tmp_path: Path
) -> None:
    given = ("--target", TARGET, "--target-name", "org/name", *case.options)
    done = call("convert", case.folder, "--for", layout, *given, "-o", tmp_path / "out")
    if done.code:
        assert not (tmp_path / "out").exists()
        return
    before, after = levels(case.folder, *case.options), levels(tmp_path / "out")
    first = " ".join(takewhile(lambda line: not line.startswith(" "), done.out.splitlines()))
    worse = [name for name in ENGINES if after[name] < before[name]]
    assert [name for name in worse if f"; {TITLES[name]} {ENGINES[name].releases[-1]}: " not in first] == []
    assert layout not in worse


def full_vocabulary(parent: Path) -> Path:
    """A drafter that vLLM serves, and does not beside the d2t that SpecForge's layout has."""
    tensors = {"lm_head.weight": floats("lm_head", VOCAB, HIDDEN), "d2t": None}
    return drafter_folder(parent, config={"draft_vocab_size": VOCAB}, tensors=tensors)


def test_an_engine_that_was_asked_for_is_not_made_to_do_worse(tmp_path: Path) -> None:
    """Older releases serve that output, so that no rule on what serves it refuses it."""
    given = ["convert", full_vocabulary(tmp_path), "--for", "specforge", "-o", tmp_path / "out"]
    given += ["--target", target_of(tmp_path / "target")]
    done = call(*given, "--engine", "vllm>=0.28")
    assert (
        done.code == 1
        and "would run the output worse than the source: fails, and the source: as trained" in done.err
    )
    assert not (tmp_path / "out").exists()
    assert call(*given, "--engine", "vllm>=0.28", "--force-unserved").code == 0


def test_of_an_engine_that_was_not_asked_for_the_first_line_says_it(tmp_path: Path) -> None:
    done = call("convert", full_vocabulary(tmp_path), "--for", "specforge", "-o", tmp_path / "out")
    assert done.code == 0
    assert f"; vLLM {VLLM}: as trained before, now fails" in " ".join(done.out.partition("next:")[0].split())
