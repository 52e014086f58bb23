"""What the reference engine drafts, round by round, to hold an engine against."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.formats.config_keys import mask_token
from eaglectl.reference.model import causal_mask, load_drafter
from eaglectl.reference.speculation import (
    DecodingSettings,
    DraftInput,
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
    if Feature.PARALLEL in drafter.features():
        token = mask_token(json.loads((folder / "config.json").read_text()))
        propose = partial(draft_in_parallel, token=token)

    def recorded_compute(state: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        found = compute(state, head)
        table = model.draft_id_to_target_id
        targets = torch.arange(len(head)) if table is None else table
        whole = torch.full((found.shape[1], vocab), float("-inf"), dtype=found.dtype)
        whole[:, targets] = found[0]
        logits.extend(whole)
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


def draft_in_parallel(self: DraftSession, verified: DraftInput, token: int) -> torch.Tensor:
    """Draft k tokens of one sequence in one pass, [1, k], as P-EAGLE's trainer does.

    After the verified tokens come k-1 mask tokens, with the state that mask_hidden gives (vLLM 0.32.0
    llm_base_proposer.py:629, 1402). Their cache slots do not stay.
    """
    model, masks = self.drafter, self.k - 1
    states, tokens, positions = (values[:, verified.valid[0]] for values in verified[:3])
    mask_state = model.combine_hidden_states(model.weights["mask_hidden"].reshape(1, 1, -1))
    state = torch.cat((model.combine_hidden_states(states), mask_state.expand(1, masks, -1)), 1)
    known, count = 0 if self.valid is None else self.valid.shape[1], tokens.shape[1]
    tokens = torch.cat((tokens, tokens.new_full((1, masks), token)), 1)
    positions = torch.cat((positions, positions[:, -1:] + torch.arange(1, self.k)), 1)
    total = known + count + masks
    mask = causal_mask(torch.ones(1, total).bool(), torch.arange(known, total)[:, None])
    drafted = torch.arange(count - 1, count + masks)[None]
    embeddings = model.embeddings(tokens, self.target)
    stream = model.forward(embeddings, state, positions, self.caches, mask, drafted)
    self.valid = torch.ones(1, known + count).bool()
    for cache in self.caches:
        cache.crop(known + count)
    return model.tokens(stream, self.head)
