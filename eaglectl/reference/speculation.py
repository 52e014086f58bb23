"""Speculative decoding: k draft tokens a round, verified by one forward pass of the target; in batches.

Each sequence of a batch has its own positions. Rejected tokens stay in the target's KV cache and are masked,
so the sequences of a batch need not accept the same number of tokens. Draft tokens are the drafter's most
likely ones; with a temperature they are accepted by rejection sampling against the target's distribution p
(with a one-hot proposal: accept token d with probability p(d), else sample from p without d).

At the end: drafts at every position of texts that the target wrote, from one forward pass of it. While every
draft token equals the text's, the drafter sees what it would see if it drafted by itself. So the leading
matches of a draft are the tokens that greedy draft-and-verify accepts there, and the target need not run
again for another drafter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.reference.model import Cache, DraftModel, causal_mask
from eaglectl.reference.target_model import TargetModel
from eaglectl.target.files import until_end

PREFILL = 1024  # tokens of prompts in one forward pass of the target
WASTE = 0.8  # the share of filled slots of a KV cache below which the others are taken out


class DecodingSettings(Struct, frozen=True):
    """How to decode: `k` draft tokens a round, at most `max_tokens` new tokens; temperature 0 is greedy.

    `stop` holds the tokens that end a sequence.
    """

    k: int = 3
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    stop: frozenset[int] = frozenset()


class GeneratedSequence(Struct, frozen=True):
    """The new tokens of one prompt, and how many of each draft's `k` tokens were accepted, draft by draft.

    The first token is the target's own; each draft then gives its accepted tokens and one of the target's, up
    to the limit or the end of the sequence.
    """

    tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    k: int

    @property
    def drafts(self) -> int:
        """Number of drafts."""
        return len(self.rounds)

    @property
    def accepted(self) -> tuple[int, ...]:
        """The number of drafts whose token at each position was accepted."""
        return tuple(sum(length > position for length in self.rounds) for position in range(self.k))


class DraftInput(NamedTuple):
    """The drafter's next input: the tokens that the target verified last, with their states.

    `states` [batch, time, aux*target_hidden] are aux hidden states, `tokens` the tokens after them, with
    their `positions`; `valid` is true for tokens that were accepted, not padding. The last three are [batch,
    time].
    """

    states: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor


# called after each round: how many prompts of the batch its tokens so far amount to
OnRound = Callable[[float], None]
# called after each draft step: depth, fed-back state [batch, 1, hidden], valid cache slots [batch, slots]
OnDraftStep = Callable[[int, torch.Tensor, torch.Tensor], None]


class SpeculativeDecoder:
    """A target with its drafter; without a drafter (None), plain decoding."""

    def __init__(
        self,
        target: TargetModel,
        drafter: DraftModel | None,
        settings: DecodingSettings,
        on_draft_step: OnDraftStep | None = None,
    ) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.on_draft_step = on_draft_step
        self.random = torch.Generator().manual_seed(settings.seed)

    def run(
        self, prompts: Sequence[Sequence[int]], on_round: OnRound | None = None
    ) -> list[GeneratedSequence]:
        """Generate after each prompt of a batch; prompts are token ids, none empty."""
        most, stop, k = self.settings.max_tokens, self.settings.stop, self.settings.k
        session = self.drafter and DraftSession(self.drafter, self.target, k, self.on_draft_step)
        following, verified = self._prefill(prompts)
        valid, lengths = verified.valid, verified.positions[:, -1] + 1
        texts, rounds = following[:, None].tolist(), [list[int]() for _ in prompts]
        rows = list(range(len(prompts)))  # the prompts whose sequences are in the batch
        while unfinished := self._unfinished(texts, rows, on_round):
            rows = [rows[place] for place in unfinished]
            if len(unfinished) < len(following):
                index = torch.tensor(unfinished, device=following.device)
                following, lengths, valid = following[index], lengths[index], valid[index]
                verified = DraftInput(*(values[index] for values in verified))
                self.target.cache.batch_select_indices(index)
                if session:
                    session.keep_sequences(index)
            if (slots := filled_slots(valid)) is not None:
                valid = valid.gather(1, slots)
                self.target.keep_slots(slots)
            drafted = session.draft(verified) if session else following[:, None][:, :0]
            accepted, following, verified = self._round(following, drafted, lengths, valid)
            valid, lengths = torch.cat((valid, verified.valid), 1), lengths + accepted + 1
            for row, tokens, length in zip(rows, verified.tokens.tolist(), accepted.tolist(), strict=True):
                texts[row] += tokens[: length + 1]
                rounds[row] += [length] if session else []
        return [
            GeneratedSequence(tuple(until_end(tokens[:most], stop)), tuple(counts), k)
            for tokens, counts in zip(texts, rounds, strict=True)
        ]

    def _unfinished(
        self, texts: Sequence[Sequence[int]], rows: Sequence[int], on_round: OnRound | None
    ) -> list[int]:
        # the places of texts that are not complete: neither long enough nor stopped
        most, stop = self.settings.max_tokens, self.settings.stop
        unfinished = [place for place, row in enumerate(rows) if len(texts[row]) < most]
        unfinished = [place for place in unfinished if stop.isdisjoint(texts[rows[place]])]
        if on_round and unfinished:
            on_round(
                len(texts) - len(unfinished) + sum(len(texts[rows[place]]) for place in unfinished) / most
            )
        return unfinished

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, DraftInput]:
        """Return the target's first token after each prompt [batch], and the drafter's first input."""
        tokens, positions, valid = pad_left(prompts, self.target.embedding.device)
        self.target.reset()
        parts, width = [], max(1, PREFILL // len(prompts))
        for start in range(0, tokens.shape[1], width):
            part = slice(start, start + width)
            logits, aux = self.target.forward(
                tokens[:, part], positions[:, part], valid[:, : part.stop], last=1
            )
            parts.append(aux)
        following = self._verify(logits[:, -1:], tokens[:, :0])[1]
        return following, DraftInput(
            torch.cat(parts, 1), torch.cat((tokens[:, 1:], following[:, None]), 1), positions, valid
        )

    def _round(
        self, last: torch.Tensor, drafted: torch.Tensor, lengths: torch.Tensor, valid: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, DraftInput]:
        """Verify `drafted` [batch, k] after `last` [batch].

        Returns the number of accepted tokens [batch], the target's next token [batch], and the verified
        tokens.
        """
        steps = torch.arange(drafted.shape[1] + 1, device=last.device)[None]
        tokens, positions = torch.cat((last[:, None], drafted), 1), lengths[:, None] + steps
        logits, aux = self.target.forward(
            tokens, positions, torch.cat((valid, torch.ones_like(tokens).bool()), 1)
        )
        accepted, following = self._verify(logits, drafted)
        new = torch.cat((drafted, following[:, None]), 1).scatter(1, accepted[:, None], following[:, None])
        return accepted, following, DraftInput(aux, new, positions, steps <= accepted[:, None])

    def _verify(self, logits: torch.Tensor, drafted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number of draft tokens accepted, and the target's token after them; both [batch].

        `logits` is [batch, k+1, vocab], `drafted` [batch, k].
        """
        k = drafted.shape[1]
        if self.settings.temperature == 0:
            choices = logits.argmax(-1)
            accepted = (choices[:, :k] == drafted).long().cumprod(1).sum(1)
            return accepted, choices.gather(1, accepted[:, None])[:, 0]
        probabilities = torch.softmax(logits.float() / self.settings.temperature, -1)
        chance = probabilities[:, :k].gather(2, drafted[..., None])[..., 0]
        draws = torch.rand(chance.shape, generator=self.random).to(chance.device)
        accepted = (draws < chance).long().cumprod(1).sum(1)
        last = probabilities.gather(1, accepted[:, None, None].expand(-1, 1, probabilities.shape[-1]))[:, 0]
        # where a token was rejected, the next one is sampled from p without it
        rejected = torch.cat((drafted, drafted.new_zeros(len(drafted), 1)), 1).gather(1, accepted[:, None])
        last = last.scatter(1, rejected, torch.where(accepted[:, None] < k, 0.0, last.gather(1, rejected)))
        return accepted, torch.multinomial(last.cpu(), 1, generator=self.random)[:, 0].to(drafted.device)


class DraftSession:
    """The drafter's side of a batch: its KV caches, and which of their slots hold tokens of the sequence."""

    def __init__(
        self, drafter: DraftModel, target: TargetModel, k: int, on_draft_step: OnDraftStep | None = None
    ) -> None:
        self.drafter, self.target, self.k, self.on_draft_step = drafter, target, k, on_draft_step
        self.head = drafter.weights.get("lm_head.weight", target.head).to(drafter.device, drafter.dtype)
        self.caches = drafter.new_caches()
        self.valid: torch.Tensor | None = None

    def keep_sequences(self, rows: torch.Tensor) -> None:
        """Keep only these sequences of the batch in the caches."""
        self.valid = None if self.valid is None else self.valid[rows]
        for cache in self.caches:
            cache.keep(rows)

    def draft(self, verified: DraftInput) -> torch.Tensor:
        """Add the verified tokens to the caches, then draft k tokens: target token ids [batch, k]."""
        model, tokens, positions, valid = self.drafter, verified.tokens, verified.positions, verified.valid
        state = model.combine_hidden_states(verified.states)
        count = torch.arange(1, valid.shape[1] + 1, device=valid.device)
        last_slots: torch.Tensor | None = (valid.long() * count).argmax(1, keepdim=True)
        valid = valid if self.valid is None else torch.cat((self.valid, valid), 1)
        self.valid, drafted = valid, list[torch.Tensor]()
        for depth in range(self.k):
            total = valid.shape[1]
            queries = torch.arange(total - tokens.shape[1], total, device=valid.device)[:, None]
            embeddings, mask = model.embeddings(tokens, self.target), causal_mask(valid, queries)
            stream = model.forward(embeddings, state, positions, self.caches, mask, last_slots)
            tokens, state = model.tokens(stream, self.head), model.feedback(stream)
            drafted.append(tokens)
            if self.on_draft_step:
                self.on_draft_step(depth, state, valid)
            positions = (positions if last_slots is None else positions.gather(1, last_slots)) + 1
            valid, last_slots = torch.cat((valid, torch.ones_like(tokens).bool()), 1), None
        # slots of draft tokens were made from fed-back states; those of the verified tokens replace them
        for cache in self.caches:
            cache.crop(self.valid.shape[1])
        return torch.cat(drafted, 1)


def filled_slots(valid: torch.Tensor) -> torch.Tensor | None:
    """Return the slots [batch, filled] of a KV cache to keep: those of each sequence, last and in order.

    `valid` [batch, slots] is true if a slot holds a token of the sequence. Returns None if few would be
    freed.
    """
    filled = int(valid.sum(1).max())
    if filled > WASTE * valid.shape[1]:
        return None
    return valid.long().argsort(dim=1, stable=True)[:, valid.shape[1] - filled :]


def pad_left(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, positions, and `valid` (not padding), each [batch, longest]."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in prompts], device=device)
    pads = torch.tensor([longest - len(ids) for ids in prompts], device=device)
    slots = torch.arange(longest, device=device)[None]
    return tokens, (slots - pads[:, None]).clamp(min=0), slots >= pads[:, None]


class ForcedBatch(Struct, frozen=True):
    """Texts of one batch, padded on the left, with what the target computed of them.

    `tokens`, `positions` and `valid` (not padding) are [batch, time], `states` [batch, time, target_hidden]
    by boundary. `choices` [batch, time] is the target's most likely token after each. `starts` [batch,
    starts] are the slots at which drafts begin; `is_start` is false for filling.
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
        """Return the batch with a start at every slot of a text before this position, prompt and answer."""
        time = self.tokens.shape[1]
        pads = time - self.valid.sum(1, keepdim=True)
        starts = pads + torch.arange(max(1, min(position, time - 2)), device=pads.device)
        is_start = (starts <= time - 3) & (starts - pads < position)
        return replace(self, starts=starts.clamp(max=time - 3), is_start=is_start)


def run_target(
    target: TargetModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], k: int
) -> ForcedBatch:
    """Run one forward pass over prompts and answers; drafts begin where greedy decoding could begin them.

    The first draft of an answer is of its second token. Drafts whose `k` tokens go past the answer are left
    out, unless an answer is too short for any other.
    """
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    tokens, positions, valid = pad_left(texts, target.embedding.device)
    states, choices = target.states_and_choices(tokens, positions, valid)
    time, rows = tokens.shape[1], []
    for answer in answers:
        first = time - len(answer) - 1
        rows.append(list(range(first, max(time - 2 - k, min(first, time - 3)) + 1)))
    longest = max(1, *map(len, rows))
    starts = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=tokens.device)
    is_start = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
    return ForcedBatch(tokens, positions, valid, states, choices, starts, is_start.to(tokens.device))


class ForcedDrafter:
    """A drafter that drafts `k` tokens from every start of a batch at once."""

    def __init__(self, drafter: DraftModel, target: TargetModel, boundaries: Sequence[int], k: int) -> None:
        self.drafter, self.target, self.boundaries, self.k = drafter, target, boundaries, k
        self.head = drafter.weights.get("lm_head.weight", target.head).to(drafter.device, drafter.dtype)

    def first_matches(self, batch: ForcedBatch, every: int = 1) -> torch.Tensor:
        """Return whether the first draft token at each slot is the target's choice, [batch, time - 1].

        With `every` n, at each n-th slot alone.
        """
        drafted, choices, valid = self.first_drafts(batch, every)
        return (drafted == choices) & valid

    def first_drafts(self, batch: ForcedBatch, every: int = 1) -> tuple[torch.Tensor, ...]:
        """Return the first draft token, the target's choice, and `valid`, at each slot [batch, time - 1]."""
        slots = torch.arange(0, batch.tokens.shape[1] - 1, every, device=batch.tokens.device)
        index = None if every == 1 else slots.expand(len(batch.tokens), -1)
        drafted = self.drafter.tokens(self._first_step(batch, index)[0], self.head)
        return drafted, batch.choices[:, 1 + slots], batch.valid[:, slots]

    def sizes_between_norms(self, batch: ForcedBatch) -> list[float]:
        """Return the RMS of each state after input_layernorm, the first of two norms."""
        normed = self.drafter.inner_norm(self._first_states(batch))[batch.valid[:, :-1]]
        return list(normed.float().square().mean(-1).sqrt().tolist())

    def _first_states(self, batch: ForcedBatch) -> torch.Tensor:
        aux = torch.cat([batch.states[boundary] for boundary in self.boundaries], -1)[:, :-1]
        return self.drafter.combine_hidden_states(aux.to(self.drafter.device, self.drafter.dtype))

    def _first_step(self, batch: ForcedBatch, index: torch.Tensor | None) -> tuple[torch.Tensor, list[Cache]]:
        state = self._first_states(batch)
        valid, caches = batch.valid[:, :-1], self.drafter.new_caches()
        mask = causal_mask(valid, torch.arange(valid.shape[1], device=valid.device)[:, None])
        embeddings = self.drafter.embeddings(batch.tokens[:, 1:], self.target)
        return self.drafter.forward(embeddings, state, batch.positions[:, :-1], caches, mask, index), caches

    def matches(self, batch: ForcedBatch) -> torch.Tensor:
        """Count the leading tokens of each draft that match the text, [batch, starts]; 0 for filling."""
        stream, caches = self._first_step(batch, batch.starts)
        starts, last = batch.starts, batch.tokens.shape[1] - 1
        mask = causal_mask(batch.valid[:, :-1], starts[..., None])
        new_slots = torch.eye(starts.shape[1], dtype=torch.bool, device=mask.device).expand(
            len(stream), -1, -1
        )
        positions = batch.positions.gather(1, starts)
        alive, count = batch.is_start.clone(), torch.zeros_like(starts)
        for step in range(self.k):
            place = starts + step + 2
            truth = batch.tokens.gather(1, place.clamp(max=last))
            alive &= (self.drafter.tokens(stream, self.head) == truth) & (place <= last)
            count += alive
            if step < self.k - 1:
                mask = torch.cat((mask, new_slots), -1)
                embeddings, state = self.drafter.embeddings(truth, self.target), self.drafter.feedback(stream)
                stream = self.drafter.forward(embeddings, state, positions + step + 1, caches, mask)
        return count
