"""The sensitivity probe on trained drafters: benchmarks/README.md's tables hold, printed commands mend."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.judge.rule import Finding  # noqa: E402
from eaglectl.run.probes import LEAST_GAIN  # noqa: E402
from eaglectl.run.results import SmokeReport  # noqa: E402
from tests.builders import call, read_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.diagnoses import prompts_file  # noqa: E402
from tests.pairs import MLA, SECOND, TABLE, TINY, Trained  # noqa: E402
from tests.stored_otherwise import Misread, faults_of  # noqa: E402

FAST = "gate and up"  # the fault that is run by the fast tests, of the MLA drafter
NONE = Misread("none", "")
CASES = [(trained, fault) for trained in TABLE for fault in (NONE, *faults_of(trained.key))]
NEAR = 0.05  # of lengths on another machine


@dataclass(frozen=True)
class Row:
    """A row: acceptance length, what was named (KEY=VALUE), told, or seen by a rule, and its ratio."""

    length: float
    named: str
    ratio: str

    @property
    def is_told(self) -> bool:
        """Whether these prompts are too few for the fault to be named, which the report says."""
        return self.named.startswith("told: about ")

    @property
    def rule(self) -> str | None:
        """The rule of `validate` that reports what costs too little to be named."""
        return self.named.partition(" of `validate")[0] if "validate" in self.named else None


def table_rows() -> Iterator[tuple[tuple[str, str], Row]]:
    """(drafter, fault) and row, of the tables of benchmarks/README.md."""
    keys, drafter = {trained.key for trained in TABLE}, ""
    for line in (FIXTURES.parent / "benchmarks/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in keys and cells[1] == "length":
            drafter = cells[0]
        elif drafter and not line.startswith("|"):
            drafter = ""
        elif drafter and not cells[0].startswith("---"):
            yield (drafter, cells[0]), Row(float(cells[1]), cells[2].strip("`"), cells[3])


ROWS = dict(table_rows())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Trained], Path]:
    """The folder of a drafter in vLLM's layout."""
    root = tmp_path_factory.mktemp("good")

    def converted(trained: Trained) -> Path:
        out = root / trained.key
        return out if out.is_dir() else trained.converted(out)

    return converted


def probe(drafter: Path, prompts: Path, trained: Trained = TINY, **given: Any) -> SmokeReport:
    settings = {"max_tokens": trained.tokens, "probe": "sensitivity", **given}
    options = eaglectl.SmokeOptions(run_in="reference", device="cpu", prompts=prompts, **settings)
    return eaglectl.smoke(str(drafter), str(trained.target), options)


def validated(folder: Path, trained: Trained) -> tuple[Finding, ...]:
    options = eaglectl.ValidateOptions(target=str(trained.target), has_engines=False)
    return eaglectl.validate(str(folder), options).findings


def test_the_tables_have_every_fault_and_no_other() -> None:
    assert set(ROWS) == {(trained.key, fault.name) for trained, fault in CASES}


def test_every_fault_is_named_or_seen_and_nothing_of_a_healthy_drafter_is() -> None:
    for trained, fault in CASES:
        row = ROWS[trained.key, fault.name]
        if fault is NONE:
            assert row.named == "nothing"
        elif row.rule is not None:
            assert float(row.ratio) < LEAST_GAIN
        else:
            assert row.is_told or row.named == fault.option.split()[-1]


@pytest.mark.parametrize(
    ("trained", "fault"),
    [
        pytest.param(
            trained,
            fault,
            id=f"{trained.key}: {fault.name}",
            marks=[] if fault.name == FAST and trained is MLA else [pytest.mark.slow],
        )
        for trained, fault in CASES
    ],
)
def test_the_table_holds_and_the_printed_command_mends(
    trained: Trained, fault: Misread, good: Callable[[Trained], Path], tmp_path: Path
) -> None:
    row, right = ROWS[trained.key, fault.name], good(trained)
    prompts = prompts_file(tmp_path, count=trained.prompts, trained=trained)
    report = probe(fault.apply(right, tmp_path / "broken"), prompts, trained)
    assert report.measured.length.value == pytest.approx(row.length, rel=NEAR)
    if fault is NONE:
        assert report.verdict == "pass", report.failures
        name, start = ("gate", 80) if trained is TINY else ("prompts", 48)
        assert not probe(
            right, prompts_file(tmp_path, name, start, trained.prompts, trained), trained
        ).failures
        return
    if row.rule is not None:
        assert not report.failures
        rules = {finding.rule.id for finding in validated(tmp_path / "broken", trained)}
        assert rules - {finding.rule.id for finding in validated(right, trained)} == {row.rule}
        return
    if row.is_told and not report.failures:
        (variant,) = (variant for variant in report.variants if variant.option == fault.option)
        assert variant.outcome == "too few prompts"
        (note,) = (note for note in report.notes if note.startswith(variant.name))
        assert f"use about {variant.prompts_needed}" in note
        return
    assert report.verdict == "fail"
    (failure,) = (text for text in report.failures if "drafts better read with" in text)
    program, *command = shlex.split(failure.rpartition("measure again: ")[2].strip("`"))
    assert program == "eaglectl" and fault.option in shlex.join(command)
    done = call(*command, "-o", str(tmp_path / "mended"))
    assert done.code == 0, done.err
    mended = tmp_path / "mended/model.safetensors"
    assert read_safetensors(mended) == read_safetensors(right / "model.safetensors")


def test_a_gain_that_few_prompts_cannot_show_says_how_many_would(
    good: Callable[[Trained], Path], tmp_path: Path
) -> None:
    (fault,) = (fault for fault in faults_of(TINY.key) if fault.name == FAST)
    broken = fault.apply(good(TINY), tmp_path / "broken")
    report = probe(broken, prompts_file(tmp_path, count=3), max_tokens=6)
    (variant,) = (variant for variant in report.variants if variant.option == fault.option)
    assert (variant.outcome, report.failures) == ("too few prompts", ())
    assert variant.prompts_needed is not None and variant.prompts_needed >= 8
    assert any(f"use about {variant.prompts_needed}" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "words"),
    [
        (64, "the drafter's max_position_embeddings; the probe leaves them out"),
        (256, "as with a drafter that was"),
    ],
)
def test_a_healthy_drafter_past_its_64_positions_is_not_failed(
    positions: int, words: str, good: Callable[[Trained], Path], tmp_path: Path
) -> None:
    """Whether its config states how long the texts were that it was trained on, or the target's length."""
    stated = Misread("stated", "", config={"max_position_embeddings": positions})
    folder = stated.apply(good(SECOND), tmp_path / "drafter")
    prompts = prompts_file(tmp_path, count=SECOND.prompts, trained=SECOND)
    report = probe(folder, prompts, SECOND, max_tokens=128)
    short = probe(folder, prompts, SECOND, probe=None)
    assert report.measured.length.value < 0.9 * short.measured.length.value
    assert not report.failures
    assert not [variant for variant in report.variants if variant.is_better]
    assert any(words in note for note in report.notes), report.notes
