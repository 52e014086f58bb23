"""Every producer fixture is read as what it is."""

import pytest

import eaglectl
from eaglectl import Inspection
from eaglectl.cli import run
from eaglectl.errors import UsageError
from eaglectl.formats.catalogue import FORMATS
from eaglectl.operations.converting import ConvertOptions
from tests.cases import CASES, REFUSED, Case
from tests.conftest import FIXTURES

# the sidecar's d2t is in a pickle beside the weights, which only convert reads
READABLE = [case for case in CASES if case.path != "automodel/sidecar"]


def inspected(case: Case) -> Inspection:
    return eaglectl.inspect(str(case.folder), answers=case.answered())


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_a_fixture_is_recognised_as_its_producers(case: Case) -> None:
    drafter = inspected(case).drafter
    seen = (
        drafter.producer,
        drafter.version,
        drafter.dims.attention,
        drafter.dims.layers,
        drafter.dims.aux,
        drafter.dims.draft_vocab,
    )
    assert seen == (case.producer, case.version, case.attention, case.layers, case.aux, case.draft_vocab)


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_the_trained_aux_layers_are_what_the_readme_says(case: Case) -> None:
    aux = inspected(case).drafter.aux
    assert aux.boundaries == case.boundaries
    assert aux.is_default or aux.boundaries is not None


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_nothing_in_a_good_fixture_is_unknown(case: Case) -> None:
    drafter = inspected(case).drafter
    assert drafter.unknown == ()
    assert (
        tuple(note.topic for note in drafter.notes_at("problem")) == case.mends
        and drafter.notes_at("question") == ()
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.is_pickled], ids=lambda case: case.path)
def test_a_pickled_fixture_is_recognised_once_it_is_converted(case: Case) -> None:
    pytest.importorskip("torch")
    options = ConvertOptions(dry_run=True, answers=case.answered())
    drafter = eaglectl.convert(str(case.folder), options=options).plan.drafter
    assert (drafter.producer, drafter.version, drafter.dims.draft_vocab) == (
        case.producer,
        case.version,
        case.draft_vocab,
    )


@pytest.mark.parametrize(("path", "word"), REFUSED.items())
def test_a_fixture_that_cannot_be_served_is_refused(
    path: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    semantics = ["--source-semantics", "specforge=pre-879"] if path.startswith("specforge") else []
    assert run(["convert", str(FIXTURES / "producers" / path), "--dry-run", *semantics]) == 1
    assert word in capsys.readouterr().err


def test_every_producer_has_a_fixture() -> None:
    # every file of llama.cpp's layout is one of vLLM's, and is read as such
    assert {format.name for format in FORMATS} - {case.producer for case in CASES} == {"llama.cpp"}


def test_every_fixture_folder_is_in_the_table() -> None:
    folders = {
        f"{path.parent.parent.name}/{path.parent.name}"
        for path in (FIXTURES / "producers").glob("*/*/config.json")
    }
    assert folders == {case.path for case in CASES} | set(REFUSED)


@pytest.mark.parametrize(
    "path",
    ["torchspec/mla", "speco/peagle", "specforge/eagle3.1", "sglang/mla-absorbed", "specforge/gqa-ids"],
)
def test_what_the_file_cannot_say_is_asked_and_not_guessed(path: str) -> None:
    with pytest.raises(UsageError, match="pass --"):
        eaglectl.convert(str(FIXTURES / "producers" / path), options=ConvertOptions(dry_run=True))


def test_specforge_before_879_is_eagle_3_with_aux_norms() -> None:
    from eaglectl.formats.format import Answers

    answers = Answers(semantics={"specforge": "pre-879"})
    done = eaglectl.convert(
        str(FIXTURES / "producers/specforge/eagle3.1"), options=ConvertOptions(answers=answers, dry_run=True)
    )
    assert (done.plan.drafter.version, done.plan.config["norm_output"], done.plan.config["fc_norm"]) == (
        "3",
        False,
        True,
    )
