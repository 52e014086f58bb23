"""Speculative decoding: k draft tokens a round, verified by one forward pass of the target; in batches.

Each sequence of a batch has its own positions. Rejected tokens stay in the target's KV cache and are masked,
so the sequences of a batch need not accept the same number of tokens. Draft tokens are the drafter's most
likely ones; with a temperature they are accepted by rejection sampling against the target's distribution p
(with a one-hot proposal: accept token d with probability p(d), else sample from p without d).
"""

from collections.abc import Callable, Sequence

import torch
from msgspec import Struct

from eaglectl.files.target_files import until_end
from eaglectl.reference.model import DraftModel, causal_mask, without_gradients
from eaglectl.reference.target import TargetModel

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
        """How many drafts had each position accepted."""
        return tuple(sum(length > position for length in self.rounds) for position in range(self.k))


class DraftInput(Struct):
    """What the target verified last, as the drafter's next input.

    `states` [batch, time, aux*target_hidden] are aux hidden states, `tokens` the tokens after them, with
    their `positions`; `valid` is true for tokens that were accepted, not padding. The last three are [batch,
    time].
    """

    states: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor

    def at(self, rows: torch.Tensor) -> "DraftInput":
        """Those of these sequences of the batch."""
        return DraftInput(self.states[rows], self.tokens[rows], self.positions[rows], self.valid[rows])


# called after each round: how many prompts of the batch its tokens so far amount to
OnRound = Callable[[float], None]
# called after each draft step: depth, fed-back state [batch, 1, hidden], valid cache slots [batch, slots]
OnDraftStep = Callable[[int, torch.Tensor, torch.Tensor], None]


class _RoundCounts:
    """New tokens and accepted drafts of each sequence; `rows` are those of the batch that are not done."""

    def __init__(self, size: int, settings: DecodingSettings) -> None:
        self.settings = settings
        self.rows = list(range(size))
        self.tokens: list[list[int]] = [[] for _ in range(size)]
        self.rounds: list[list[int]] = [[] for _ in range(size)]

    def is_done(self, row: int) -> bool:
        tokens = self.tokens[row]
        return len(tokens) >= self.settings.max_tokens or not self.settings.stop.isdisjoint(tokens)

    @property
    def prompts_done(self) -> float:
        """The new tokens in prompts: a sequence that is done is one, another the share that it has."""
        most = self.settings.max_tokens
        unfinished = set(self.rows)
        return sum(len(row) / most if place in unfinished else 1 for place, row in enumerate(self.tokens))

    def add_round(self, new: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Add the tokens of a round to each sequence; `accepted` are those of its draft, nothing without."""
        for row, tokens in zip(self.rows, new, strict=True):
            self.tokens[row] += tokens
        for row, length in zip(self.rows if accepted else (), accepted, strict=True):
            self.rounds[row].append(length)

    def drop_done(self) -> list[int]:
        """Leave out the sequences that are done; the places of the others in the batch."""
        kept = [place for place, row in enumerate(self.rows) if not self.is_done(row)]
        self.rows = [self.rows[place] for place in kept]
        return kept

    def sequences(self) -> list[GeneratedSequence]:
        settings = self.settings
        return [
            GeneratedSequence(
                tuple(until_end(tokens[: settings.max_tokens], settings.stop)), tuple(rounds), settings.k
            )
            for tokens, rounds in zip(self.tokens, self.rounds, strict=True)
        ]


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

    @without_gradients
    def run(
        self, prompts: Sequence[Sequence[int]], on_round: OnRound | None = None
    ) -> list[GeneratedSequence]:
        """Generate after each prompt of a batch; prompts are token ids, none empty."""
        counts, session = _RoundCounts(len(prompts), self.settings), None
        if self.drafter is not None:
            session = DraftSession(self.drafter, self.target, self.settings.k, self.on_draft_step)
        following, verified = self._prefill(prompts)
        valid, lengths = verified.valid, verified.positions[:, -1] + 1
        counts.add_round([[token] for token in following.tolist()], ())
        while kept := counts.drop_done():
            if on_round:
                on_round(counts.prompts_done)
            if len(kept) < len(following):
                rows = torch.tensor(kept, device=following.device)
                following, lengths, valid, verified = (
                    values.at(rows) if isinstance(values, DraftInput) else values[rows]
                    for values in (following, lengths, valid, verified)
                )
                self.target.keep_sequences(rows)
                if session is not None:
                    session.keep_sequences(rows)
            if (slots := filled_slots(valid)) is not None:
                valid = valid.gather(1, slots)
                self.target.keep_slots(slots)
            drafted = following[:, None][:, :0] if session is None else session.draft(verified)
            steps = torch.arange(drafted.shape[1] + 1, device=following.device)[None]
            tokens, positions = torch.cat((following[:, None], drafted), 1), lengths[:, None] + steps
            logits, aux = self.target.forward(
                tokens, positions, torch.cat((valid, torch.ones_like(tokens).bool()), 1)
            )
            accepted, following = self._verify(logits, drafted)
            new = torch.cat((drafted, following[:, None]), 1).scatter(
                1, accepted[:, None], following[:, None]
            )
            is_accepted = steps <= accepted[:, None]
            lengths_new = accepted.tolist()
            tokens_new = [row[: length + 1] for row, length in zip(new.tolist(), lengths_new, strict=True)]
            counts.add_round(tokens_new, () if session is None else lengths_new)
            valid, lengths = torch.cat((valid, is_accepted), 1), lengths + accepted + 1
            verified = DraftInput(aux, new, positions, is_accepted)
        return counts.sequences()

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, DraftInput]:
        """The target's first token after each prompt [batch], and what the drafter begins with."""
        tokens, positions, valid = pad_left(prompts, self.target.embedding.device)
        self.target.reset()
        parts, width = [], max(1, PREFILL // len(prompts))
        for start in range(0, tokens.shape[1], width):
            part = slice(start, start + width)
            logits, aux = self.target.forward(
                tokens[:, part], positions[:, part], valid[:, : part.stop], last=1
            )
            parts.append(aux)
        following = self._sample(logits[:, -1])
        shifted = torch.cat((tokens[:, 1:], following[:, None]), 1)
        return following, DraftInput(torch.cat(parts, 1), shifted, positions, valid)

    def _verify(self, logits: torch.Tensor, drafted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of draft tokens accepted, and the target's own token after them; both [batch].

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
        index = accepted[:, None, None].expand(-1, 1, probabilities.shape[-1])
        last = probabilities.gather(1, index)[:, 0]
        # where a token was rejected, the next one is sampled from p without it
        rejected = torch.cat((drafted, drafted.new_zeros(len(drafted), 1)), 1).gather(1, accepted[:, None])
        last = last.scatter(1, rejected, torch.where(accepted[:, None] < k, 0.0, last.gather(1, rejected)))
        return accepted, torch.multinomial(last.cpu(), 1, generator=self.random)[:, 0].to(drafted.device)

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each sequence [batch], from logits [batch, vocab]."""
        if self.settings.temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(logits.float() / self.settings.temperature, -1).cpu()
        return torch.multinomial(probabilities, 1, generator=self.random)[:, 0].to(logits.device)


class DraftSession:
    """The drafter's side of a batch: its KV caches, and which of their slots hold tokens of the sequence."""

    def __init__(
        self, drafter: DraftModel, target: TargetModel, k: int, on_draft_step: OnDraftStep | None = None
    ) -> None:
        self.drafter, self.target, self.k, self.on_draft_step = drafter, target, k, on_draft_step
        self.head = drafter.weights.get("lm_head.weight", target.head)
        self.caches = drafter.new_caches()
        self.valid: torch.Tensor | None = None

    def keep_sequences(self, rows: torch.Tensor) -> None:
        """Leave the caches these sequences of the batch alone."""
        self.valid = None if self.valid is None else self.valid[rows]
        for cache in self.caches:
            cache.keep_sequences(rows)

    def draft(self, verified: DraftInput) -> torch.Tensor:
        """Add the verified tokens to the caches, then draft k tokens: target token ids [batch, k]."""
        valid = verified.valid
        if self.valid is not None:
            valid = torch.cat((self.valid, valid), 1)
        aux = self.drafter.combine_hidden_states(verified.states)
        count = torch.arange(1, verified.valid.shape[1] + 1, device=valid.device)
        last = (verified.valid.long() * count).argmax(1, keepdim=True)
        state = self._forward(verified.tokens, aux, verified.positions, valid, last)
        self.valid = valid
        position = verified.positions.gather(1, last)
        tokens = [self._token(state)]
        self._report_step(0, state, valid)
        for depth in range(1, self.k):
            position = position + 1
            valid = torch.cat((valid, torch.ones_like(position).bool()), 1)
            state = self._forward(tokens[-1], self.drafter.feedback(state), position, valid)
            tokens.append(self._token(state))
            self._report_step(depth, state, valid)
        # slots of draft tokens were made from fed-back states; those of the verified tokens replace them
        for cache in self.caches:
            cache.crop(self.valid.shape[1])
        return torch.cat(tokens, 1)

    def _forward(
        self,
        tokens: torch.Tensor,
        state: torch.Tensor,
        positions: torch.Tensor,
        valid: torch.Tensor,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        total = valid.shape[1]
        queries = torch.arange(total - tokens.shape[1], total, device=valid.device)[:, None]
        embeddings = self.drafter.embeddings(tokens, self.target)
        mask = causal_mask(valid, queries)
        return self.drafter.forward(embeddings, state, positions, self.caches, mask, kept)

    def _report_step(self, depth: int, state: torch.Tensor, valid: torch.Tensor) -> None:
        if self.on_draft_step:
            self.on_draft_step(depth, self.drafter.feedback(state), valid)

    def _token(self, state: torch.Tensor) -> torch.Tensor:
        return self.drafter.tokens(state, self.head.to(state.device, state.dtype))


def filled_slots(valid: torch.Tensor) -> torch.Tensor | None:
    """The slots [batch, filled] of a KV cache to keep, those of each sequence last and in their order.

    `valid` [batch, slots] is true where a slot holds a token of the sequence. None where few would be freed.
    """
    filled = int(valid.sum(1).max())
    if filled > WASTE * valid.shape[1]:
        return None
    return valid.long().argsort(dim=1, stable=True)[:, valid.shape[1] - filled :]


def pad_left(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, positions, and `valid` (not padding), each [batch, longest]."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in prompts], device=device)
    pads = torch.tensor([longest - len(ids) for ids in prompts], device=device)
    slots = torch.arange(longest, device=device)[None]
    return tokens, (slots - pads[:, None]).clamp(min=0), slots >= pads[:, None]
