"""Whatever the drafter: conversion keeps every byte, and refuses what a layout cannot express."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.tensors import LAYER
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.formats.catalogue import FORMATS, tensor_names
from eaglectl.formats.format import Format
from eaglectl.formats.names import canonical_name
from tests.cases import digests
from tests.drafters import DEPTH, Made, drafters

slow = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# what is drawn need not be anything that an engine runs
UNSERVED_TOO = ConvertOptions(force_unserved=True)


@slow
@given(drafters())
def test_a_stated_drafter_is_read_as_it_states(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drafter = eaglectl.inspect(str(made.write(Path(folder) / "d"))).drafter
    config = made.config
    assert drafter.norms.fc_norm == config["fc_norm"] and drafter.norms.norm_output == config["norm_output"]
    assert drafter.norms.norm_before_residual == config["norm_before_residual"]
    assert drafter.aux.boundaries == tuple(config["eagle_aux_hidden_state_layer_ids"])
    assert drafter.dims.layers == config["num_hidden_layers"]
    assert drafter.dims.aux == config["num_aux_hidden_states"]
    attention = {1: "MQA", 2: "GQA", 4: "MHA"}.get(config.get("num_key_value_heads", 0), "MLA")
    assert drafter.dims.attention == attention
    assert not drafter.notes_at("problem") and not drafter.notes_at("question")


def canonical_digests(folder: Path, prefix: str = "") -> dict[str, str]:
    """The digests of a folder's tensors by canonical name, without the identity maps of a full vocabulary."""
    found = {}
    for name, digest in digests(folder).items():
        canonical = canonical_name(name, tensor_names(), prefix)
        layer = LAYER.fullmatch(canonical)
        if layer and layer[1] != "0":
            canonical = canonical.replace("hidden_norm", "input_layernorm")
        assert canonical not in found
        found[canonical] = digest
    return found


# an embedding or ids make it another trainer's, or the trainer's own reader would have to ask
NOT_READ_BACK = re.compile("reads back differently|leave a question open")
# that for parallel drafters takes no other; tests/test_reading_back.py writes some in it
WRITTEN = [format for format in FORMATS if format.layout and not format.is_parallel]


@pytest.mark.fast(2)
@settings(slow, max_examples=12)
@given(st.data())
@pytest.mark.parametrize("format", WRITTEN, ids=lambda format: format.name)
def test_any_layout_keeps_the_tensors(format: Format, data: st.DataObject) -> None:
    assert format.layout
    made = data.draw(drafters(format.layout))
    with tempfile.TemporaryDirectory() as folder:
        source, out, target = (Path(folder) / name for name in ("d", "out", "target"))
        made.write(source)
        target.mkdir()
        (target / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": DEPTH}))
        options = ConvertOptions(
            layout=format.name, target=str(target), target_name="org/target", force_unserved=True
        )
        try:
            eaglectl.convert(str(source), out, options)
        except RefusedError as problem:
            assert NOT_READ_BACK.search(str(problem))
            reject()
        before, after = canonical_digests(source), canonical_digests(out, format.layout.prefix)
    for name in ("d2t", "t2d"):
        if "d2t" not in made.tensors:
            after.pop(name, None)  # the identity, which some layouts state
        elif name not in after:
            before.pop(name)
    assert after == before
    assert ("d2t" in after) == ("d2t" in made.tensors)


@slow
@given(drafters(), st.data())
def test_a_lost_tensor_never_goes_unnoticed(made: Made, data: st.DataObject) -> None:
    optional = {"t2d"}
    if made.config["target_hidden_size"] == made.config["hidden_size"]:
        optional.add("embed_tokens.weight")
    if "d2t" not in made.tensors:
        optional.add("lm_head.weight")  # a full vocabulary may share the target's
    needed = [name for name in made.tensors if name not in optional and not name.endswith("o_proj.bias")]
    gone = data.draw(st.sampled_from(needed))
    tensors = {name: tensor for name, tensor in made.tensors.items() if name != gone}
    if gone == "d2t":
        tensors.pop("t2d")
    with tempfile.TemporaryDirectory() as folder:
        source = Made(made.config, tensors).write(Path(folder) / "d")
        try:
            eaglectl.convert(str(source), Path(folder) / "out", UNSERVED_TOO)
        except EaglectlError:
            assert not (Path(folder) / "out").exists()
        else:
            raise AssertionError(f"{gone} was lost in silence")
