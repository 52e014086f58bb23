"""Every parser: its seeds are read, and what is kept of fuzzing, with some edits, breaks nothing."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("safetensors")

from eaglectl.errors import EaglectlError, UnreadableError
from tests.fuzz import checks, child
from tests.fuzz.__main__ import outcome
from tests.fuzz.checks import CORPUS, REGRESSIONS, finding, kept_inputs
from tests.fuzz.edits import run_examples
from tests.fuzz.parsers import PARSERS, Parser


@pytest.fixture(autouse=True, scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("fuzz"))
    yield
    tempfile.tempdir = before


@pytest.mark.parametrize("name", PARSERS)
def test_the_first_seed_is_read_and_what_is_kept_breaks_nothing(name: str) -> None:
    parser = PARSERS[name]
    parser.read(next(iter(parser.seeds())))
    inputs = [*parser.seeds(), *kept_inputs(CORPUS, name), *kept_inputs(REGRESSIONS, name), b"", b"\xff" * 9]
    assert [found for data in inputs if (found := finding(parser, data))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_edits_of_what_is_kept_break_nothing(name: str) -> None:
    parser = PARSERS[name]

    found: list[object] = []
    seeds = [*parser.seeds(), *kept_inputs(CORPUS, name)]
    run_examples(lambda data: found.append(finding(parser, data)), seeds, 100)
    assert set(found) == {None}


def test_every_kept_input_belongs_to_a_parser_and_all_are_small() -> None:
    files = [*CORPUS.glob("*"), *REGRESSIONS.glob("*")]
    assert {file.stem for file in files} <= set(PARSERS)
    assert sum(file.stat().st_size for file in files) < 200_000


def refusing(error: type[BaseException]) -> Parser:
    def read(data: bytes) -> None:
        if data == b"bad":
            raise error("text")

    return Parser("a", read, lambda: [b"good"], (KeyError,))


def test_an_answer_is_no_finding_and_a_fault_is_one() -> None:
    assert finding(refusing(UnreadableError), b"bad") is None
    assert finding(refusing(KeyError), b"bad") is None
    for error in (EaglectlError, IndexError, RecursionError, MemoryError, UserWarning):
        found = finding(refusing(error), b"bad")
        assert found is not None and found.place.startswith(error.__name__)


def test_what_takes_too_long_or_died_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (outcome("a", -11, tmp_path).findings, outcome("a", 0, tmp_path).findings) == (1, 0)
    monkeypatch.setattr(checks, "SECONDS", -1.0)
    found = finding(refusing(KeyError), b"good")
    assert found is not None and found.place == "slow"


def test_a_run_by_hypothesis_counts_its_inputs_and_keeps_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "find_spec", lambda name: None)
    monkeypatch.setattr(child, "limit_memory", lambda: None)
    parser = Parser("a", lambda data: [][len(data) > 20], lambda: [b"x" * 30])
    child.run_parser(parser, 0.2, 1, tmp_path)
    ended = outcome("a", 0, tmp_path)
    assert ended.inputs > 10
    [(place, name)] = ended.places.items()
    assert place.startswith("IndexError")
    assert finding(parser, (tmp_path / "findings" / name).read_bytes()) is not None
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["places"] == ended.places
