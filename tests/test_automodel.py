"""NeMo Automodel: its own forward, the drafters of a run, and what older runs keep beside the weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.operations.converting import ConvertOptions
from tests.cases import stored_tensors, true_answers
from tests.conftest import FIXTURES

PRODUCER = FIXTURES / "producers/automodel"
torch = pytest.importorskip("torch")
PROBED = ("gqa", "eagle3.1", "mla")


def in_float32(case: str, folder: Path) -> Path:
    """The case as convert writes it, without the rounding of a computed tensor to bfloat16."""
    eaglectl.convert(
        str(PRODUCER / case), folder, ConvertOptions(dtype="F32", answers=true_answers(PRODUCER / case))
    )
    return folder


def largest_error(case: str, folder: Path, drafter: Drafter) -> float:
    """Of the reference's logits against those of Automodel's own forward: a prompt, then two draft steps."""
    from safetensors.torch import load_file

    from eaglectl.reference.model import load_drafter

    stored = load_file(PRODUCER / "probe.safetensors").items()
    probe = {name.removeprefix(f"{case}."): value for name, value in stored if name.startswith(f"{case}.")}
    model = load_drafter(folder, drafter, dtype="float32", device="cpu")
    table, head = model.weights["embed_tokens.weight"], model.weights["lm_head.weight"]
    positions, slots = probe["positions"], torch.arange(probe["tokens"].shape[1])
    mask = slots[None, :, None] >= slots[None, None]
    caches, state = model.new_caches(), model.combine_hidden_states(probe["states"])
    state = model.forward(table[probe["tokens"]], state, positions, caches, mask)
    pairs = [(model.logits(state, head), probe["logits"])]
    state = model.feedback(state[:, -1:])
    for step in range(2):
        seen = torch.ones(1, 1, len(slots) + step + 1, dtype=torch.bool)
        token, position = probe[f"step{step}.token"], positions[:, -1:] + step + 1
        state = model.forward(table[token], state, position, caches, seen)
        pairs.append((model.logits(state, head), probe[f"step{step}.logits"]))
        state = model.feedback(state)
    return max(float((own - theirs).abs().max() / theirs.abs().max()) for own, theirs in pairs)


@pytest.mark.parametrize("case", PROBED)
def test_what_is_converted_computes_what_automodels_own_forward_does(case: str, tmp_path: Path) -> None:
    folder = in_float32(case, tmp_path / "out")
    assert largest_error(case, folder, eaglectl.inspect(str(folder)).drafter) < 1e-5


WRONG: dict[str, Any] = {
    "gqa with the state after the norm": (
        "gqa",
        lambda it: replace(it, norms=replace(it.norms, norm_output=True)),
    ),
    "gqa with another rope base": ("gqa", lambda it: replace(it, rope=replace(it.rope, theta=10000.0))),
    "eagle3.1 with the state before the norm": (
        "eagle3.1",
        lambda it: replace(it, norms=replace(it.norms, norm_output=False)),
    ),
    "eagle3.1 without the norms before fc": (
        "eagle3.1",
        lambda it: replace(it, norms=replace(it.norms, fc_norm=False)),
    ),
    "mla without YaRN": ("mla", lambda it: replace(it, rope=replace(it.rope, scaling=None))),
}


@pytest.mark.parametrize(("case", "change"), WRONG.values(), ids=WRONG.keys())
def test_the_probe_tells_other_maths(case: str, change: Any, tmp_path: Path) -> None:
    folder = in_float32(case, tmp_path / "out")
    assert largest_error(case, folder, change(eaglectl.inspect(str(folder)).drafter)) > 1e-3


def test_the_recipe_trains_without_the_factor_that_convert_divides_out(tmp_path: Path) -> None:
    """The weights as stored, with the factor as engines apply it, are another drafter."""
    from safetensors.torch import load_file, save_file

    folder = in_float32("mla", tmp_path / "out")
    drafter, (path,) = eaglectl.inspect(str(folder)).drafter, folder.glob("*.safetensors")
    tensors, name = load_file(path), "layers.0.self_attn.q_b_proj.weight"
    dtype, shape, data = stored_tensors(PRODUCER / "mla")[f"model.{name}"]
    assert dtype == "BF16"
    tensors[name] = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(shape).float()
    save_file(tensors, path)
    assert largest_error("mla", folder, drafter) > 1e-3


def test_the_drafters_of_a_run_keep_the_path_of_the_target_and_no_layers() -> None:
    for case in (*PROBED, "sidecar"):
        config = json.loads((PRODUCER / case / "config.json").read_text())
        assert (config["_name_or_path"], config["num_hidden_layers"]) == ("target", 8)
        assert [key for key in config if "layer_ids" in key or key == "attn_implementation"] == []


def test_the_ids_of_both_pickles_are_those_of_d2t() -> None:
    """The recipe that wrote no d2t, and the one that does, chose the same tokens from the same chats."""
    _, (count,), data = stored_tensors(PRODUCER / "gqa")["d2t"]
    d2t = torch.frombuffer(bytearray(data), dtype=torch.int64)
    assert (count, int((d2t.diff() < 0).sum()), int(d2t.min())) == (96, 4, -56)
    ids = torch.load(PRODUCER / "sidecar/speculative_token_map.pt", weights_only=True)
    meta = torch.load(PRODUCER / "sidecar/eagle_meta.pt", weights_only=True)
    assert torch.equal(ids - torch.arange(96), d2t)
    assert torch.equal(meta["selected_token_ids"], ids)
    assert (meta["global_step"], meta["epoch"]) == (9, 3)
