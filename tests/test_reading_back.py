"""What convert writes reads back as the drafter that went in, in every layout, or is refused."""

import importlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

import eaglectl
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import writable
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import HIDDEN, VOCAB, drafter_folder, floats, mask
from tests.cases import CASES, Case, true_answers
from tests.conftest import FIXTURES

TARGET = str(FIXTURES / "target")
PRODUCERS = FIXTURES / "producers"
DOCS = FIXTURES.parent / "docs"
# of each producer, the first fixture that is read without torch
SAMPLE = {case.producer: case.path for case in reversed(CASES) if not case.is_pickled}.values()


@pytest.fixture(scope="module")
def round_trips() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("round_trips")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def shown() -> Mapping[str, Mapping[str, str]]:
    """What round-trips.md shows of each fixture and layout, with the reasons in their places."""
    text = (DOCS / "reference/round-trips.md").read_text()
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.M))
    head, _, *rows = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", text, re.M)
    )
    return {
        path: {layout: reasons.get(cell, cell) for layout, cell in zip(head[1:], cells, strict=True)}
        for path, *cells in rows
    }


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.path in SAMPLE else [pytest.mark.slow]) for case in CASES],
    ids=lambda case: case.path,
)
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


def test_layers_that_marks_would_move_are_refused(tmp_path: Path) -> None:
    source = PRODUCERS / "modelopt/hf-ids"
    words = (
        r"its modelopt marks make the layers \[4, 6, 8\], and \[3, 5, 7\] were trained on; write it"
        " --for vllm"
    )
    with pytest.raises(RefusedError, match=words):
        options = ConvertOptions("lightseekorg", target=TARGET, answers=true_answers(source))
        eaglectl.convert(str(source), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_a_layout_of_mla_heads_takes_no_others(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no class for this drafter's attention; write it --for vllm"):
        eaglectl.convert(str(PRODUCERS / "vllm/native"), tmp_path / "out", ConvertOptions("torchspec-vllm"))


def test_a_layout_of_parallel_drafters_takes_no_others(tmp_path: Path) -> None:
    options = ConvertOptions("peagle", target=TARGET, target_name="org/name")
    with pytest.raises(RefusedError, match="parallel drafters, and this one has no mask_hidden; write it"):
        eaglectl.convert(str(PRODUCERS / "vllm/native"), tmp_path / "out", options)


def test_a_rope_base_that_the_layouts_trainer_ignores_is_refused(tmp_path: Path) -> None:
    words = (
        "TorchSpec's, its files leave open what was trained: TorchSpec's MLA attention trains with rope base"
    )
    with pytest.raises(RefusedError, match=words):
        eaglectl.convert(
            str(PRODUCERS / "vllm/mla"), tmp_path / "out", ConvertOptions("torchspec", target=TARGET)
        )


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("layout", ["automodel", "torchspec", "specforge"])
def test_norm_output_is_stated_beside_fc_norm(layout: str, norm_output: bool, tmp_path: Path) -> None:
    norms = {f"fc_norm.{index}.weight": floats(f"fc_norm.{index}", HIDDEN) for index in range(3)}
    source = drafter_folder(
        tmp_path, config={"fc_norm": True, "norm_output": norm_output}, tensors={**norms, "t2d": mask()}
    )
    out = tmp_path / "out"
    (tmp_path / "target").mkdir()
    target = tmp_path / "target/config.json"
    target.write_text(json.dumps({"num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}))
    eaglectl.convert(str(source), out, ConvertOptions(layout, target=str(target)))
    assert json.loads((out / "config.json").read_text())["norm_output"] is norm_output
    drafter = eaglectl.inspect(str(out), target=str(target)).drafter
    assert drafter.norms.norm_output is norm_output and drafter.notes_at("question") == ()
    assert eaglectl.diff(str(source), str(out), eaglectl.DiffOptions(str(target))).verdict == "equal"


def test_a_record_of_another_layout_answers_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    case = next(case for case in CASES if case.path == "specforge/eagle3.1")
    eaglectl.convert(
        str(case.folder), out, ConvertOptions("specforge", target=TARGET, answers=case.answered())
    )
    assert eaglectl.inspect(str(out)).drafter.version == "3.1"
    record = json.loads((out / "eaglectl.json").read_text())
    (out / "eaglectl.json").write_text(json.dumps({**record, "layout": "vllm"}))
    assert eaglectl.inspect(str(out)).drafter.version == "3 or 3.1"
    (out / "eaglectl.json").write_text(json.dumps({**record, "eagle": "3"}))
    assert eaglectl.inspect(str(out)).drafter.norms.norm_output is False
    answers = Answers(semantics={"specforge": "post-879"})
    assert eaglectl.inspect(str(out), answers=answers).drafter.norms.norm_output is True
