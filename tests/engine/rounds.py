"""What the reference engine drafts, round by round, to hold an engine against."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from eaglectl.drafter.drafter import Drafter
from eaglectl.reference.model import load_drafter
from eaglectl.reference.speculation import (
    DecodingSettings,
    DraftSession,
    GeneratedSequence,
    SpeculativeDecoder,
)
from eaglectl.reference.target_model import load_target

K = 3
NEW_TOKENS = int(os.environ.get("ENGINE_NEW_TOKENS", "24"))
LENGTHS = (1, 6, 31, 40)  # vLLM's blocks hold 32 tokens

# of one prompt: every round's drafted tokens, and the logits each of them was taken from, over the target's
# vocabulary
Rounds = list[tuple[list[int], list[torch.Tensor]]]


def prompts() -> list[list[int]]:
    """The token ids that every drafter drafts behind."""
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (length,), generator=dice).tolist() for length in LENGTHS]


def in_reference(
    target: Path,
    folder: Path,
    drafter: Drafter,
    prompts: list[list[int]],
    vocab: int = 256,
    tokens: int = NEW_TOKENS,
) -> tuple[list[Rounds], list[GeneratedSequence]]:
    """The reference in float64, its drafting recorded; `vocab` is the target's number of tokens."""
    boundaries = drafter.aux.boundaries
    assert boundaries is not None
    loaded = load_target(target, boundaries, dtype="float64", device="cpu")
    model = load_drafter(folder, drafter, dtype="float64", device="cpu")
    logits: list[torch.Tensor] = []
    rounds: Rounds = []
    compute, propose = model.logits, DraftSession.draft

    def recorded_compute(state: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        found = compute(state, head)
        table = model.draft_id_to_target_id
        targets = torch.arange(len(head)) if table is None else table
        logits.append(torch.full((vocab,), float("-inf"), dtype=found.dtype).scatter(0, targets, found[0, 0]))
        return found

    def recorded_propose(self: DraftSession, verified: Any) -> torch.Tensor:
        logits.clear()
        found = propose(self, verified)
        rounds.append((found[0].tolist(), list(logits)))
        return found

    model.logits = recorded_compute  # type: ignore[method-assign]
    every, generated = [], []
    with mock.patch.object(DraftSession, "draft", recorded_propose):
        for ids in prompts:
            rounds.clear()
            generated += SpeculativeDecoder(loaded, model, DecodingSettings(K, tokens)).run([ids])
            every.append(list(rounds))
    return every, generated
