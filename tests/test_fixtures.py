"""Every producer fixture is read as what it is."""

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.cli import run
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import Answers
from tests.cases import CASES, REFUSED, STATED, Case
from tests.conftest import FIXTURES

# the sidecar's d2t is in a pickle beside the weights, which only convert reads
READABLE = [case for case in CASES if case.path != "automodel/sidecar"]


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_a_fixture_is_read_as_its_producers_readme_says(case: Case) -> None:
    drafter = eaglectl.inspect(str(case.folder), answers=case.answered()).drafter
    dims, aux = drafter.dims, drafter.aux
    seen = (drafter.producer, drafter.version, dims.attention, dims.layers, dims.aux, dims.draft_vocab)
    assert seen == (case.producer, case.version, case.attention, case.layers, case.aux, case.draft_vocab)
    assert aux.boundaries == case.boundaries
    assert aux.is_default or aux.boundaries is not None
    assert drafter.unknown == drafter.notes_at("question") == ()
    assert tuple(note.topic for note in drafter.notes_at("problem")) == case.mends


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.path)
def test_a_fixture_that_cannot_be_served_is_refused(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(case.folder), "--dry-run", *case.options]) == 1
    assert case.refused in capsys.readouterr().err


def test_every_producer_has_a_fixture_and_every_folder_is_in_the_table() -> None:
    # every file of llama.cpp's layout is one of vLLM's, and is read as such
    assert {format.name for format in FORMATS} - {case.producer for case in CASES} == {"llama.cpp"}
    configs = (FIXTURES / "producers").glob("*/*/config.json")
    folders = {f"{path.parent.parent.name}/{path.parent.name}" for path in configs}
    assert folders == {case.path for case in STATED}


def test_specforge_before_879_is_eagle_3_with_aux_norms() -> None:
    answers = Answers(semantics={"specforge": "pre-879"})
    options = ConvertOptions(answers=answers, dry_run=True)
    plan = eaglectl.convert(str(FIXTURES / "producers/specforge/eagle3.1"), options=options).plan
    assert (plan.drafter.version, plan.config["norm_output"], plan.config["fc_norm"]) == ("3", False, True)
