"""Rules on tensors as headers show them: bad cases, each with exactly its findings."""

from pathlib import Path

import pytest

from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import HIDDEN, VOCAB, drafter_tensors, floats, write_safetensors
from tests.validation.judging import second_layer
from tests.validation.patches import Patch, exact, store

SECOND, SGLANG_SECOND = second_layer("input_layernorm"), second_layer("hidden_norm")
THIRD = {name.replace("layers.1.", "layers.2."): stored for name, stored in SECOND.items()}
WITHOUT_NORM = {**SECOND, "layers.1.post_attention_layernorm.weight": None}
WIDER = {"target_hidden_size": 24}
NO_EMBEDDING = {"embed_tokens.weight": None, "fc.weight": floats("f", HIDDEN, 72)}
UP, FUSED = "layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_up_proj.weight"
FLOAT16 = {"policy": Policy(allow=AllowTable(dtypes=("float16",)))}
TWO_LAYERS = {"num_hidden_layers": 2}


def renamed(old: str, new: str) -> dict[str, object]:
    """A patch of tensors that gives one another name."""
    return {old: None, new: drafter_tensors()[old]}


def prefixed(folder: Path) -> None:
    """All names under `model.`, as some trainers save them."""
    tensors = {f"model.{name}": stored for name, stored in drafter_tensors().items()}
    write_safetensors(folder / "model.safetensors", tensors)


OF_SGLANG = {"engines": ["sglang"]}
BAD = (
    store("no final norm", "EGL201", {"norm.weight": None}, "norm.weight is missing; engines"),
    store("no fc", "EGL201", {"fc.weight": None}, "fc.weight is missing"),
    store("no head", "EGL201", {"lm_head.weight": None}, "the draft vocabulary has 24 of 64"),
    Patch("no embedding of another width", "EGL201", WIDER, "needs its own embed_tokens", NO_EMBEDDING),
    Patch("a layer too few", "EGL201 EGL209", TWO_LAYERS, "has layers [0, 2]", THIRD),
    Patch("a second layer without its norm", "EGL201 EGL209", TWO_LAYERS, tensors=WITHOUT_NORM),
    store(
        "a padded head",
        "EGL203",
        {"lm_head.weight": floats("p", 32, HIDDEN)},
        "lm_head.weight is [32, 16]; this drafter's other shapes and config.json need [24, 16]",
    ),
    store("an unknown tensor", "EGL202", {"adapter.weight": floats("a", 4)}, "adapter.weight"),
    store("a misspelt norm", "EGL201 EGL202", renamed("norm.weight", "norms.weight")),
    # vLLM and llama.cpp stop at it, which their facts say, and SGLang skips it
    store("the target's norm", "", {"verifier_norm.weight": floats("v", HIDDEN)}, given=OF_SGLANG),
    store("a transposed matrix", "EGL203", {UP: floats("u", HIDDEN, 24)}, "[16, 24]"),
    store("a head of one axis", "EGL203", {"norm.weight": floats("n", HIDDEN, 1)}),
    store("an empty tensor", "EGL203", {"norm.weight": ("BF16", (0,), b"")}, "never empty"),
    store("fc of a broken width", "EGL203", {"fc.weight": floats("f", HIDDEN, 50)}, "the target's width 16"),
    store("a mask of one state", "EGL203", {"mask_hidden": floats("m", 1, HIDDEN)}, "need [1, 48]"),
    store("a mask of four states", "EGL203", {"mask_hidden": floats("m", 4 * HIDDEN)}, "need [1, 48]"),
    store("no scales", "EGL204", {UP: ("U8", (24, HIDDEN), bytes(384))}, "is U8, without scales"),
    store(
        "8 bits without scales",
        "EGL204 EGL210",
        {UP: ("F8_E4M3", (24, HIDDEN), bytes(range(1, 97)) * 4)},
        "up_proj.weight is F8_E4M3, without scales",
    ),
    Patch("names under model.", "EGL209", also=prefixed, says="for MLA do not load model."),
    Patch("two layers with vLLM's norm", "EGL209", TWO_LAYERS, "have only input_layernorm", tensors=SECOND),
    Patch(
        "two layers with SGLang's norm", "EGL209", TWO_LAYERS, "have only hidden_norm", tensors=SGLANG_SECOND
    ),
    store("another type", "EGL210", {"norm.weight": floats("n", HIDDEN, dtype="F32")}, "norm.weight is F32"),
    Patch("another torch_dtype", "EGL211", {"torch_dtype": "float16"}, "but the weights are BF16"),
    Patch("no type in the config", "EGL211", {"torch_dtype": None}, "has no torch_dtype"),
    store("two names", "EGL212", {"midlayer.hidden_norm.weight": floats("h", HIDDEN)}, "are both layers.0"),
    store("a tensor fused and alone", "EGL212", {FUSED: floats("g", 48, HIDDEN)}, "up_proj.weight holds"),
    Patch("dtypes", "EGL213", given=FLOAT16, says="not among float16"),
    Patch("a shared head", "", {"draft_vocab_size": VOCAB}, tensors={"lm_head.weight": None, "d2t": None}),
)

test_bad_weights_give_exactly_their_findings = exact(BAD)


@pytest.mark.parametrize("name", ["norm.weight", "d2t", "extra.weight"])
def test_a_tensor_that_is_missing_or_has_no_place_is_where_the_finding_points(
    name: str, tmp_path: Path
) -> None:
    tensor = floats("x", 4) if name == "extra.weight" else None
    (finding,) = store("", "", {name: tensor}).report(tmp_path).findings
    assert finding.match.where == f"tensor:{name}"
