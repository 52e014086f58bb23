"""Wrong declarations are found: a fixture that is converted for its own producer comes out as it was.

The names of its tensors, the keys of its config and their values are compared, and the layers with the truth.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.formats.catalogue import by_name
from tests.builders import read_safetensors
from tests.cases import CASES, Case
from tests.conftest import FIXTURES

TARGET = str(FIXTURES / "target")
MARK = "modal_type"  # by which AngelSlim's files are known again; its text drafters have none
# what every layout writes, whichever spelling or absence of it a trainer has
SPELT_OTHERWISE = {
    *("rope_theta", "rope_scaling", "rope_parameters", "torch_dtype", "dtype", "transformers_version"),
    *("target_hidden_size", "attention_bias", "mlp_bias", "head_dim", "tie_word_embeddings", "_name_or_path"),
    *("max_position_embeddings", "num_hidden_layers", "draft_vocab_size", "num_nextn_predict_layers"),
}


def read(folder: Path) -> tuple[dict[str, Any], set[str]]:
    """The config without nulls, which readers take as absent, and the names of the tensors."""
    config = json.loads((folder / "config.json").read_text())
    names = {name for file in folder.glob("*.safetensors") for name in read_safetensors(file)}
    return {key: value for key, value in config.items() if value is not None}, names


# of each producer that is written, a fixture that its own code wrote so
@pytest.mark.fast(7)
@pytest.mark.parametrize("case", [case for case in CASES if case.is_own], ids=lambda case: case.path)
def test_a_fixture_converted_for_its_own_producer_comes_out_as_it_was(case: Case, tmp_path: Path) -> None:
    drafter = eaglectl.inspect(str(case.folder), target=TARGET, answers=case.answered()).drafter
    format = by_name(drafter.producer)
    given: dict[str, Any] = {"layout": format.name, "answers": case.answered(), "target_name": "org/target"}
    options = ConvertOptions(target=TARGET, force_unserved=True, **given)
    eaglectl.convert(str(case.folder), tmp_path / "own", options)
    (before, stored), (after, written) = read(case.folder), read(tmp_path / "own")
    lost = {*SPELT_OTHERWISE, *format.retires}
    added = {*SPELT_OTHERWISE, MARK, *(place.key.partition(".")[0] for place in format.ids)}
    assert (after.keys() - before.keys() - added, before.keys() - after.keys() - lost) == (set(), set())
    kept = before.keys() & after.keys() - lost - {"eagle_config"}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert stored == written


def test_no_module_outside_of_them_imports_a_producer() -> None:
    others = [
        path for path in (FIXTURES.parent / "eaglectl").rglob("*.py") if path.parent.name != "producers"
    ]
    assert [path for path in others if "formats.producers." in path.read_text()] == []
