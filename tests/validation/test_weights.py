"""Rules on tensors as headers show them: every bad case is a good drafter, a patch, and exactly the
findings it must give.
"""

from pathlib import Path
from typing import Any

import pytest

from eaglectl.judge.rule import Policy
from tests.builders import DRAFT, HIDDEN, VOCAB, drafter_tensors, floats, write_safetensors
from tests.validation.patches import Patch, check

LAYER = "layers.0."
SECOND = {
    name.replace(LAYER, "layers.1."): floats(
        f"2{name}",
        *(
            size // 2 if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) and axis else size
            for axis, size in enumerate(shape)
        ),
    )
    for name, (_, shape, _) in drafter_tensors().items()
    if name.startswith(LAYER) and "hidden_norm" not in name
}
TWO_LAYERS = {"num_hidden_layers": 2}


def renamed(old: str, new: str) -> dict[str, object]:
    """A patch of tensors that gives one another name."""
    return {old: None, new: drafter_tensors()[old]}


def prefixed(folder: Path) -> None:
    """All names under `model.`, as some trainers save them."""
    write_safetensors(
        folder / "model.safetensors", {f"model.{name}": one for name, one in drafter_tensors().items()}
    )


BAD = (
    Patch(
        "no final norm",
        ("EGL201",),
        tensors={"norm.weight": None},
        says="norm.weight is missing; engines fill it",
    ),
    Patch("no fc", ("EGL201",), tensors={"fc.weight": None}, says="fc.weight is missing"),
    Patch(
        "no head for a reduced vocabulary",
        ("EGL201",),
        tensors={"lm_head.weight": None},
        says="lm_head.weight is missing and the draft vocabulary has 24 of 64",
    ),
    Patch(
        "no embedding for another width",
        ("EGL201",),
        config={"target_hidden_size": 24},
        tensors={"embed_tokens.weight": None, "fc.weight": floats("f", HIDDEN, 72)},
        says="must bring its own embed_tokens",
    ),
    Patch(
        "a layer too few",
        ("EGL201", "EGL209"),
        tensors={name.replace("layers.1.", "layers.2."): one for name, one in SECOND.items()},
        config=TWO_LAYERS,
        says="has layers [0, 2]",
    ),
    Patch(
        "a second layer without its norm",
        ("EGL201", "EGL209"),
        tensors={**SECOND, "layers.1.post_attention_layernorm.weight": None},
        config=TWO_LAYERS,
    ),
    Patch(
        "an unknown tensor",
        ("EGL202",),
        tensors={"adapter.weight": floats("a", 4)},
        says="adapter.weight has no place",
    ),
    Patch(
        "a misspelt norm is one unknown and one missing",
        ("EGL201", "EGL202"),
        tensors=renamed("norm.weight", "norms.weight"),
    ),
    Patch(
        "the target's norm",
        ("EGL202",),
        tensors={"verifier_norm.weight": floats("v", HIDDEN)},
        says="vLLM stops at it",
    ),
    Patch(
        "a transposed matrix",
        ("EGL203",),
        tensors={"layers.0.mlp.up_proj.weight": floats("u", HIDDEN, 24)},
        says="layers.0.mlp.up_proj.weight is [16, 24]",
    ),
    Patch("a head of one axis", ("EGL203",), tensors={"norm.weight": floats("n", HIDDEN, 1)}),
    Patch("an empty tensor", ("EGL203",), tensors={"norm.weight": ("BF16", (0,), b"")}, says="never empty"),
    Patch(
        "an fc of a broken width",
        ("EGL203",),
        tensors={"fc.weight": floats("f", HIDDEN, 50)},
        says="multiple of the target's width 16",
    ),
    Patch(
        "whole numbers without scales",
        ("EGL204",),
        tensors={"layers.0.mlp.up_proj.weight": ("U8", (24, HIDDEN), bytes(24 * HIDDEN))},
        says="up_proj.weight is U8, without scales",
    ),
    Patch(
        "names under model.", ("EGL209",), also=prefixed, says="and 14 like it are names not loaded by vLLM"
    ),
    Patch(
        "two layers with vLLM's norm",
        ("EGL209",),
        tensors=SECOND,
        config=TWO_LAYERS,
        says="input_layernorm alone",
    ),
    Patch(
        "two layers with SGLang's norm",
        ("EGL209",),
        tensors={
            **SECOND,
            "layers.1.input_layernorm.weight": None,
            "layers.1.hidden_norm.weight": floats("h", HIDDEN),
        },
        config=TWO_LAYERS,
        says="hidden_norm alone",
    ),
    Patch(
        "one tensor of another type",
        ("EGL210",),
        tensors={"norm.weight": floats("n", HIDDEN, dtype="F32")},
        says="13 of BF16, 1 of F32; norm.weight is F32",
    ),
    Patch(
        "a type in the config that the weights have not",
        ("EGL211",),
        config={"torch_dtype": "float16"},
        says="torch_dtype: float16, and the weights are BF16",
    ),
    Patch("no type in the config", ("EGL211",), config={"torch_dtype": None}, says="states no torch_dtype"),
    Patch(
        "a tensor under two names",
        ("EGL212",),
        tensors={"midlayer.hidden_norm.weight": floats("h", HIDDEN)},
        says="are both layers.0.hidden_norm.weight",
    ),
    Patch(
        "a tensor fused and alone",
        ("EGL212",),
        tensors={"layers.0.mlp.gate_up_proj.weight": floats("g", 48, HIDDEN)},
        says="gate_up_proj.weight holds",
    ),
    Patch(
        "a type that the policy does not allow",
        ("EGL213",),
        given={"policy": Policy(allowed={"dtypes": ("float16",)})},
        says="is BF16, which is not among float16",
    ),
)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_bad_weights_give_exactly_their_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_shared_head_of_a_full_vocabulary_is_good(tmp_path: Path) -> None:
    config = {"draft_vocab_size": VOCAB}
    check(Patch("shared head", (), config=config, tensors={"lm_head.weight": None, "d2t": None}), tmp_path)
    assert DRAFT < VOCAB


@pytest.mark.parametrize(
    ("name", "tensor"), [("norm.weight", None), ("d2t", None), ("extra.weight", floats("x", 4))]
)
def test_a_tensor_that_is_missing_or_has_no_place_is_where_the_finding_points(
    name: str, tensor: Any, tmp_path: Path
) -> None:
    (finding,) = Patch("", (), tensors={name: tensor}).report(tmp_path).findings
    assert finding.match.where == f"tensor:{name}"
