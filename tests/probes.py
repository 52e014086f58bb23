"""A drafter in the reference against what its producer's own forward was recorded to compute."""

from pathlib import Path

import pytest

from eaglectl.drafter.drafter import Drafter


def largest_error(file: Path, folder: Path, drafter: Drafter, case: str = "") -> float:
    """Of the reference's logits against those in a probe, or its case: a prompt, then two draft steps."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from eaglectl.reference.model import load_drafter

    start = f"{case}." if case else ""
    stored = load_file(file).items()
    probe = {name.removeprefix(start): value for name, value in stored if name.startswith(start)}
    model = load_drafter(folder, drafter, dtype="float32", device="cpu")
    table, head = model.weights["embed_tokens.weight"], model.weights["lm_head.weight"]
    slots = torch.arange(probe["tokens"].shape[1])
    positions, mask = probe.get("positions", slots[None]), slots[None, :, None] >= slots[None, None]
    caches, state = model.new_caches(), model.combine_hidden_states(probe["states"])
    state = model.forward(table[probe["tokens"]], state, positions, caches, mask)
    pairs = [(model.logits(state, head), probe["logits"])]
    state = model.feedback(state[:, -1:])
    for step in range(2):
        position = positions[:, -1:] + step + 1
        seen = torch.ones(1, 1, len(slots) + step + 1, dtype=torch.bool)
        state = model.forward(table[probe[f"step{step}.token"]], state, position, caches, seen)
        pairs.append((model.logits(state, head), probe[f"step{step}.logits"]))
        state = model.feedback(state)
    return max(float((own - theirs).abs().max() / theirs.abs().max()) for own, theirs in pairs)
