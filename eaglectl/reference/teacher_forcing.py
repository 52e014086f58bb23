"""Drafts at every position of texts that the target wrote, from one forward pass of the target.

While every draft token equals the text's, the drafter sees what it would see if it drafted by itself. So the
leading matches of a draft are the tokens that greedy draft-and-verify accepts there, and the target need not
run again for another drafter.
"""

from collections.abc import Mapping, Sequence

import torch
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.reference.model import Cache, DraftModel, causal_mask, without_gradients
from eaglectl.reference.speculation import pad_left
from eaglectl.reference.target import TargetModel


class ForcedBatch(Struct, frozen=True):
    """Texts of one batch, padded on the left, with what the target computed of them.

    `tokens`, `positions` and `valid` (not padding) are [batch, time], `states` [batch, time, target_hidden]
    by boundary. `choices` [batch, time] is the target's most likely token after each. `starts` [batch,
    starts] are the slots whose state a draft begins with, and `is_start` tells those that are no filling.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor
    states: Mapping[int, torch.Tensor]
    choices: torch.Tensor
    starts: torch.Tensor
    is_start: torch.Tensor

    def drop_starts_from(self, position: int) -> int:
        """Take the starts at this position and later ones out; returns how many those are."""
        is_late = self.is_start & (self.positions.gather(1, self.starts) >= position)
        self.is_start.logical_and_(~is_late)
        return int(is_late.sum())

    def with_starts_below(self, position: int) -> "ForcedBatch":
        """The batch with a start at every slot of a text before this position, in prompt and answer."""
        time = self.tokens.shape[1]
        pads = time - self.valid.sum(1, keepdim=True)
        starts = pads + torch.arange(max(1, min(position, time - 2)), device=pads.device)
        is_start = (starts <= time - 3) & (starts - pads < position)
        return replace(self, starts=starts.clamp(max=time - 3), is_start=is_start)


@without_gradients
def run_target(
    target: TargetModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], k: int
) -> ForcedBatch:
    """One forward pass over prompts and answers; drafts begin where greedy decoding could begin them.

    The first draft of an answer is of its second token. Drafts whose `k` tokens go past the answer are left
    out, unless an answer is too short for any other.
    """
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    tokens, positions, valid = pad_left(texts, target.embedding.device)
    states, choices = target.states_and_choices(tokens, positions, valid)
    time, rows = tokens.shape[1], []
    for answer in answers:
        first = time - len(answer) - 1
        last = max(time - 2 - k, min(first, time - 3))
        rows.append(list(range(first, last + 1)))
    longest = max(1, *map(len, rows))
    starts = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=tokens.device)
    counts = torch.tensor([len(row) for row in rows], device=tokens.device)
    is_start = torch.arange(longest, device=tokens.device)[None] < counts[:, None]
    return ForcedBatch(tokens, positions, valid, states, choices, starts, is_start)


class ForcedDrafter:
    """A drafter that drafts `k` tokens from every start of a batch at once."""

    def __init__(self, drafter: DraftModel, target: TargetModel, boundaries: Sequence[int], k: int) -> None:
        self.drafter, self.target, self.boundaries, self.k = drafter, target, boundaries, k
        head = drafter.weights.get("lm_head.weight", target.head)
        self.head = head.to(drafter.device, drafter.dtype)

    @without_gradients
    def first_matches(self, batch: ForcedBatch, every: int = 1) -> torch.Tensor:
        """Whether the first draft token at each slot is the target's choice, [batch, time - 1].

        With `every` n, at each n-th slot alone.
        """
        slots = torch.arange(0, batch.tokens.shape[1] - 1, every, device=batch.tokens.device)
        kept = None if every == 1 else slots.expand(len(batch.tokens), -1)
        drafted = self.drafter.tokens(self._first_step(batch, kept)[0], self.head)
        return (drafted == batch.choices[:, 1 + slots]) & batch.valid[:, slots]

    def _first_step(self, batch: ForcedBatch, kept: torch.Tensor | None) -> tuple[torch.Tensor, list[Cache]]:
        """The stream at `kept` slots, or at all but the last; and the caches."""
        aux = torch.cat([batch.states[boundary] for boundary in self.boundaries], -1)[:, :-1]
        state = self.drafter.combine_hidden_states(aux.to(self.drafter.device, self.drafter.dtype))
        valid, caches = batch.valid[:, :-1], self.drafter.new_caches()
        mask = causal_mask(valid, torch.arange(valid.shape[1], device=valid.device)[:, None])
        embeddings = self.drafter.embeddings(batch.tokens[:, 1:], self.target)
        return self.drafter.forward(embeddings, state, batch.positions[:, :-1], caches, mask, kept), caches

    @without_gradients
    def matches(self, batch: ForcedBatch) -> torch.Tensor:
        """How many leading tokens of each draft are those of the text, [batch, starts]; 0 for filling."""
        stream, caches = self._first_step(batch, batch.starts)
        starts, last = batch.starts, batch.tokens.shape[1] - 1
        mask = causal_mask(batch.valid[:, :-1], starts[..., None])
        own = torch.eye(starts.shape[1], dtype=torch.bool, device=mask.device).expand(len(stream), -1, -1)
        positions = batch.positions.gather(1, starts)
        alive, count = batch.is_start.clone(), torch.zeros_like(starts)
        for step in range(self.k):
            place = starts + step + 2
            truth = batch.tokens.gather(1, place.clamp(max=last))
            alive &= (self.drafter.tokens(stream, self.head) == truth) & (place <= last)
            count += alive
            if step < self.k - 1:
                mask = torch.cat((mask, own), -1)
                embeddings, state = self.drafter.embeddings(truth, self.target), self.drafter.feedback(stream)
                stream = self.drafter.forward(embeddings, state, positions + step + 1, caches, mask)
        return count
