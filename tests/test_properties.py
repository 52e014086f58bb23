"""Whatever the drafter: conversion keeps every byte, refuses by name what a layout cannot say, and comes back the same."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.conversion.plan import Wish
from eaglectl.errors import EaglectlError, Refused, Usage
from eaglectl.formats.catalogue import WRITABLE
from tests.cases import digests, file_digests, stored_tensors
from tests.drafters import Made, drafters

slow = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(drafters())
def test_a_stated_drafter_is_read_as_it_states(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drafter = eaglectl.inspect(str(made.write(Path(folder) / "d"))).drafter
    config = made.config
    assert drafter.norms.fc_norm == config["fc_norm"] and drafter.norms.norm_output == config["norm_output"]
    assert drafter.norms.norm_before_residual == config["norm_before_residual"]
    assert drafter.aux.boundaries == tuple(config["eagle_aux_hidden_state_layer_ids"])
    assert (drafter.dims.layers, drafter.dims.aux) == (config["num_hidden_layers"], config["num_aux_hidden_states"])
    assert drafter.dims.attention == {1: "MQA", 2: "GQA", 4: "MHA"}.get(config.get("num_key_value_heads", 0), "MLA")
    assert not drafter.told("problem") and not drafter.told("question")


@slow
@given(drafters())
def test_writing_for_vllm_keeps_every_tensor_and_every_statement(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = made.write(Path(folder) / "d"), Path(folder) / "out"
        eaglectl.convert(str(source), out)
        assert digests(out) == digests(source)
        written = json.loads((out / "config.json").read_text())
    assert {key: value for key, value in made.config.items() if written.get(key) != value} == {}


@slow
@given(drafters(), st.sampled_from([name for name in WRITABLE if name != "vllm"]))
def test_any_layout_keeps_the_tensors_or_refuses_with_one_sentence(made: Made, layout: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = made.write(Path(folder) / "d"), Path(folder) / "out"
        before = file_digests(source)
        try:
            eaglectl.convert(str(source), out, wish=Wish(layout=layout), target_name="org/target")
        except (Refused, Usage) as problem:
            assert str(problem) and not out.exists()
        else:
            bytes_of = sorted(data for _, _, data in stored_tensors(source).values())
            kept = sorted(
                data for name, (_, _, data) in stored_tensors(out).items() if name.split(".")[-1] not in ("d2t", "t2d")
            )
            assert [data for data in bytes_of if data in kept] and set(kept) <= set(bytes_of)
        assert file_digests(source) == before


@slow
@given(drafters(), st.data())
def test_a_lost_tensor_never_goes_unnoticed(made: Made, data: st.DataObject) -> None:
    optional = {
        "t2d",
        *(() if made.config["target_hidden_size"] != made.config["hidden_size"] else ("embed_tokens.weight",)),
    }
    if "d2t" not in made.tensors:
        optional.add("lm_head.weight")  # a full vocabulary may share the target's
    gone = data.draw(
        st.sampled_from([name for name in made.tensors if name not in optional and not name.endswith("o_proj.bias")])
    )
    tensors = {name: tensor for name, tensor in made.tensors.items() if name != gone}
    if gone == "d2t":
        tensors.pop("t2d")
    with tempfile.TemporaryDirectory() as folder:
        source = Made(made.config, tensors).write(Path(folder) / "d")
        try:
            eaglectl.convert(str(source), Path(folder) / "out")
        except EaglectlError:
            assert not (Path(folder) / "out").exists()
        else:
            raise AssertionError(f"{gone} was lost in silence")


@slow
@given(drafters(), st.integers(600, 4000))
def test_shards_hold_the_same_tensors(made: Made, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = made.write(Path(folder) / "d")
        try:
            eaglectl.convert(str(source), Path(folder) / "out", max_shard_size=limit)
        except Usage as problem:
            assert "--max-shard-size" in str(problem)
            return
        assert digests(Path(folder) / "out") == digests(source)
        assert all(path.stat().st_size < limit + 8000 for path in (Path(folder) / "out").glob("*.safetensors"))
