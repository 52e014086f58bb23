"""What convert writes reads back as the drafter that went in, in every layout, or is refused."""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import writable
from eaglectl.formats.format import Answers
from tests.builders import HIDDEN, drafter_folder, floats, mask, target_of
from tests.cases import CASES, Case, true_answers
from tests.conftest import FIXTURES

TARGET = str(FIXTURES / "target")
PRODUCERS = FIXTURES / "producers"
DOCS = FIXTURES.parent / "docs"


@pytest.fixture(scope="module")
def round_trips() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("round_trips")


@pytest.fixture(scope="module")
def shown() -> Mapping[str, Mapping[str, str]]:
    """What round-trips.md shows of each fixture and layout, with the reasons in their places."""
    text = (DOCS.parent / "benchmarks/evidence/round-trips.md").read_text()
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.M))
    head, _, *rows = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", text, re.M)
    )
    return {
        path: {layout: reasons.get(cell, cell) for layout, cell in zip(head[1:], cells, strict=True)}
        for path, *cells in rows
    }


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_layout_is_the_same_drafter_or_refused(
    case: Case, round_trips: ModuleType, shown: Mapping[str, Mapping[str, str]]
) -> None:
    if case.is_pickled:
        pytest.importorskip("torch")
    found = round_trips.outcomes(case)
    assert not [outcome for outcome in found.values() if outcome.startswith("WRITTEN")]
    assert shown[case.path] == found, "run `make docs`"


def test_the_page_has_every_fixture_and_layout(shown: Mapping[str, Mapping[str, str]]) -> None:
    assert list(shown) == [case.path for case in CASES]
    assert {tuple(cells) for cells in shown.values()} == {writable()}
    assert all("same" in cells.values() for cells in shown.values())


@pytest.mark.parametrize(
    ("path", "layout", "words"),
    [
        (
            "modelopt/hf-ids",
            "lightseekorg",
            "file it has layers [4, 6, 8], and it was trained on [3, 5, 7]; use",
        ),
        ("vllm/native", "torchspec-vllm", "no class for this drafter's attention; use --for vllm"),
        ("vllm/native", "peagle", "parallel drafters, and this drafter has no mask_hidden; use"),
        (
            "vllm/mla",
            "torchspec",
            "leave a question open: TorchSpec's MLA attention trains with rope base",
        ),
    ],
)
def test_what_would_read_back_as_another_is_refused(
    path: str, layout: str, words: str, tmp_path: Path
) -> None:
    answers = true_answers(PRODUCERS / path)
    options = ConvertOptions(layout, target=TARGET, target_name="org/name", answers=answers)
    with pytest.raises(RefusedError, match=re.escape(words)):
        eaglectl.convert(str(PRODUCERS / path), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


@pytest.mark.fast(3)
@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("layout", ["automodel", "torchspec", "specforge"])
def test_norm_output_is_stated_beside_fc_norm(layout: str, norm_output: bool, tmp_path: Path) -> None:
    norms = {f"fc_norm.{index}.weight": floats(f"fc_norm.{index}", HIDDEN) for index in range(3)}
    config = {"fc_norm": True, "norm_output": norm_output}
    source = drafter_folder(tmp_path, config=config, tensors={**norms, "t2d": mask()})
    out, target = tmp_path / "out", str(target_of(tmp_path / "target"))
    eaglectl.convert(str(source), out, ConvertOptions(layout, target=target))
    assert json.loads((out / "config.json").read_text())["norm_output"] is norm_output
    drafter = eaglectl.inspect(str(out), target=target).drafter
    assert drafter.norms.norm_output is norm_output and drafter.notes_at("question") == ()
    assert eaglectl.diff(str(source), str(out), eaglectl.DiffOptions(target)).verdict == "equal"


def test_a_record_of_another_layout_answers_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = PRODUCERS / "specforge/eagle3.1"
    eaglectl.convert(source, out, layout="specforge", target=TARGET, answers=true_answers(source))
    assert eaglectl.inspect(str(out)).drafter.version == "3.1"
    record = json.loads((out / "eaglectl.json").read_text())
    (out / "eaglectl.json").write_text(json.dumps({**record, "layout": "vllm"}))
    assert eaglectl.inspect(str(out)).drafter.version == "3 or 3.1"
    (out / "eaglectl.json").write_text(json.dumps({**record, "settled": [], "norm_output": False}))
    assert eaglectl.inspect(str(out)).drafter.norms.norm_output is False
    answers = Answers(semantics={"specforge": "post-879"})
    assert eaglectl.inspect(str(out), answers=answers).drafter.norms.norm_output is True
