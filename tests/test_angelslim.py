"""AngelSlim: what its trainer writes for a text target, and its own forward, which uses base 10000."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import eaglectl
from eaglectl.api.converting import ConvertOptions
from eaglectl.drafter.drafter import Drafter
from eaglectl.formats.format import Answers
from tests.conftest import FIXTURES

PRODUCER = FIXTURES / "producers/angelslim"
SOURCE = PRODUCER / "qwen3"


def converted(folder: Path, rope: str) -> tuple[Path, Drafter]:
    """The fixture as vLLM names it, which are the reference's names, with that answer on the rope base."""
    out = folder / rope
    eaglectl.convert(str(SOURCE), out, ConvertOptions(answers=Answers(semantics={"rope": rope})))
    return out, eaglectl.inspect(str(out)).drafter


def largest_error(folder: Path, drafter: Drafter) -> float:
    """Of the reference's logits against those of AngelSlim's own forward: a prompt, then two draft steps."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from eaglectl.reference.loading import load_drafter

    probe = load_file(PRODUCER / "probe.safetensors")
    model = load_drafter(folder, drafter, dtype="float32", device="cpu")
    table, head = model.weights["embed_tokens.weight"], model.weights["lm_head.weight"]
    slots = torch.arange(probe["tokens"].shape[1])
    mask = slots[None, :, None] >= slots[None, None]
    caches, state = model.new_caches(), model.combine_hidden_states(probe["states"])
    state = model.forward(table[probe["tokens"]], state, slots[None], caches, mask)
    pairs = [(model.logits(state, head), probe["logits"])]
    state = model.feedback(state[:, -1:])
    for step in range(2):
        position = torch.tensor([[len(slots) + step]])
        seen = torch.ones(1, 1, len(slots) + step + 1, dtype=torch.bool)
        state = model.forward(table[probe[f"step{step}.token"]], state, position, caches, seen)
        pairs.append((model.logits(state, head), probe[f"step{step}.logits"]))
        state = model.feedback(state)
    return max(float((own - theirs).abs().max() / theirs.abs().max()) for own, theirs in pairs)


def test_converted_with_base_10000_it_computes_what_angelslims_own_forward_does(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "10000")
    assert drafter.rope.theta == 10000.0
    assert largest_error(folder, drafter) < 1e-5


def test_converted_with_the_stored_base_it_computes_something_else(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "stored")
    assert drafter.rope.theta == 1000000.0
    assert largest_error(folder, drafter) > 1e-3


def test_the_probe_tells_the_other_feedback(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "10000")
    assert largest_error(folder, replace(drafter, norms=replace(drafter.norms, norm_output=True))) > 1e-3


def test_a_text_drafter_has_no_key_of_angelslims_own_and_is_recognised_all_the_same() -> None:
    config = json.loads((SOURCE / "config.json").read_text())
    assert not {"modal_type", "target_model_type", "rope_theta"} & set(config)
    assert eaglectl.inspect(str(SOURCE)).drafter.producer == "angelslim"


def test_its_stored_base_is_doubted_beside_its_ids() -> None:
    drafter = eaglectl.inspect(str(PRODUCER / "ids")).drafter
    assert drafter.aux.boundaries == (1, 4, 6)
    assert [note.topic for note in drafter.notes_at("warning")] == ["rope-base-doubt"]
    assert drafter.notes_at("question") == drafter.notes_at("problem") == ()
