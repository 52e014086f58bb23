"""The nine checkpoints on which `speculators convert` loses data and reports success (fixtures/nine)."""

from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import RefusedError
from eaglectl.formats.format import Answers
from tests.builders import target_of
from tests.cases import digests
from tests.conftest import FIXTURES

NINE = FIXTURES / "nine"
IDS = "eagle_aux_hidden_state_layer_ids"
# what convert writes of each, where the others lose a tensor or a key
KEPT: dict[str, dict[str, Any]] = {
    "fc-norm": {"fc_norm": True, "norm_output": True},
    "two-layers": {"num_hidden_layers": 2},
    "nested-ids": {IDS: [1, 5, 8], "eagle_config": {IDS: [0, 4, 7], "use_aux_hidden_state": True}},
    "four-aux": {"num_aux_hidden_states": 4, IDS: [2, 4, 6, 8]},
    "rope-parameters": {"rope_theta": 500000.0, "torch_dtype": "float16"},
}


@pytest.mark.parametrize("name", KEPT)
def test_every_tensor_and_key_is_kept(name: str, tmp_path: Path) -> None:
    target = (
        str(target_of(tmp_path / "target", hidden_size=32, vocab_size=256))
        if "-a" in name or "ids" in name
        else None
    )
    answers = Answers(semantics={"specforge": "post-879"} if name == "fc-norm" else {})
    out = tmp_path / "out"
    done = eaglectl.convert(str(NINE / name), out, ConvertOptions(target=target, answers=answers))
    stored = digests(NINE / name).items()
    assert digests(out) == {tensor.replace("midlayer.", "layers.0."): kept for tensor, kept in stored}
    assert KEPT[name].items() <= dict(done.plan.config).items()


def test_a_misspelt_lm_head_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"lm_head.*misspelt"):
        eaglectl.convert(str(NINE / "misspelt-lm-head"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
