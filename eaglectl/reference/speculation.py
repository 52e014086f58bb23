"""Draft and verify: k drafted tokens a round, checked by one pass of the target; batched, at any mix of prompt lengths.

Every sequence keeps its own place. Rejected slots stay in the target's cache and are masked, so sequences of a batch need
not agree on how much was accepted. Drafted tokens are the drafter's most likely ones; with a temperature they are accepted
by rejection sampling against the target (a one-hot proposal: accept d with p(d), else sample from p without d).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eaglectl.reference.model import DraftModel
from eaglectl.reference.target import TargetModel


@dataclass(frozen=True, slots=True)
class Settings:
    """How to generate: k drafted tokens, new tokens at most, temperature 0 for greedy, tokens that end a sequence."""

    k: int = 3
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Generated:
    """One prompt's outcome: new tokens, rounds, and how many rounds accepted the token at each draft position."""

    tokens: tuple[int, ...]
    drafts: int
    accepted: tuple[int, ...]


@dataclass(slots=True)
class Rows:
    """What the drafter is fed next: states [batch, time, width], the tokens after them, their positions, which are real."""

    states: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor


# sees (depth, fed-back state [batch, 1, hidden], real slots [batch, slots]) of every drafted step
Watcher = Callable[[int, torch.Tensor, torch.Tensor], None]


class _Tally:
    """The tokens and counts of a batch; a sequence that is done is counted no further."""

    def __init__(self, size: int, settings: Settings) -> None:
        self.settings = settings
        self.tokens: list[list[int]] = [[] for _ in range(size)]
        self.drafts = [0] * size
        self.accepted = [[0] * settings.k for _ in range(size)]

    def is_done(self, row: int) -> bool:
        tokens = self.tokens[row]
        return len(tokens) >= self.settings.max_tokens or not self.settings.stop.isdisjoint(tokens)

    def all_done(self) -> bool:
        return all(self.is_done(row) for row in range(len(self.tokens)))

    def add(self, new: list[list[int]]) -> int:
        """Add plain tokens; return how many were."""
        added = 0
        for row, tokens in enumerate(new):
            if not self.is_done(row):
                self.tokens[row] += tokens
                added += len(tokens)
        return added

    def count(self, accepted: list[int]) -> None:
        for row, length in enumerate(accepted):
            if not self.is_done(row):
                self.drafts[row] += 1
                for position in range(length):
                    self.accepted[row][position] += 1

    def generated(self) -> list[Generated]:
        found = []
        for tokens, drafts, accepted in zip(self.tokens, self.drafts, self.accepted, strict=True):
            kept = tokens[: self.settings.max_tokens]
            end = next((i + 1 for i, token in enumerate(kept) if token in self.settings.stop), len(kept))
            found.append(Generated(tuple(kept[:end]), drafts, tuple(accepted)))
        return found


class Speculation:
    """A target and, unless only plain decoding is wanted, its drafter; ready to generate."""

    def __init__(
        self, target: TargetModel, drafter: DraftModel | None, settings: Settings, watcher: Watcher | None = None
    ) -> None:
        self.target, self.drafter, self.settings, self.watcher = target, drafter, settings, watcher
        self.random = torch.Generator().manual_seed(settings.seed)

    def run(self, prompts: Sequence[Sequence[int]], told: Callable[[int], None] | None = None) -> list[Generated]:
        """Generate for a batch of tokenised prompts, none empty; `told` gets the number of new tokens of each round."""
        with torch.no_grad():
            return self._run(prompts, told)

    def _run(self, prompts: Sequence[Sequence[int]], told: Callable[[int], None] | None) -> list[Generated]:
        tally = _Tally(len(prompts), self.settings)
        tokens, positions, known = padded(prompts, self.target.embedding.device)
        self.target.start()
        logits, aux = self.target.forward(tokens, positions, known)
        following = self._choose(logits[:, -1])
        lengths = positions[:, -1] + 1
        rows = Rows(aux, torch.cat((tokens[:, 1:], following[:, None]), 1), positions, known)
        session = None if self.drafter is None else Drafting(self.drafter, self.target, self.settings.k, self.watcher)
        self._tell(told, tally.add([[token] for token in following.tolist()]))
        while not tally.all_done():
            drafted = tokens[:, :0] if session is None else session.draft(rows)
            width = drafted.shape[1] + 1
            steps = torch.arange(width, device=tokens.device)[None]
            tokens, positions = torch.cat((following[:, None], drafted), 1), lengths[:, None] + steps
            logits, aux = self.target.forward(tokens, positions, torch.cat((known, torch.ones_like(tokens).bool()), 1))
            accepted, following = self._verify(logits, drafted)
            if session is not None:
                tally.count(accepted.tolist())
            new = torch.cat((drafted, following[:, None]), 1).scatter(1, accepted[:, None], following[:, None])
            fresh = steps <= accepted[:, None]
            self._tell(told, tally.add([row[: n + 1] for row, n in zip(new.tolist(), accepted.tolist(), strict=True)]))
            known, lengths = torch.cat((known, fresh), 1), lengths + accepted + 1
            rows = Rows(aux, new, positions, fresh)
        return tally.generated()

    def _verify(self, logits: torch.Tensor, drafted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many drafted tokens [batch, k] stand, and the target's own token after them, from logits [batch, k+1, vocab]."""
        k = drafted.shape[1]
        if self.settings.temperature == 0:
            choices = logits.argmax(-1)
            stands = (choices[:, :k] == drafted).long().cumprod(1)
            accepted = stands.sum(1)
            return accepted, choices.gather(1, accepted[:, None])[:, 0]
        shares = torch.softmax(logits.float() / self.settings.temperature, -1)
        chance = shares[:, :k].gather(2, drafted[..., None])[..., 0]
        dice = torch.rand(chance.shape, generator=self.random).to(chance.device)
        accepted = (dice < chance).long().cumprod(1).sum(1)
        last = shares.gather(1, accepted[:, None, None].expand(-1, 1, shares.shape[-1]))[:, 0]
        refused = torch.cat((drafted, drafted.new_zeros(len(drafted), 1)), 1).gather(1, accepted[:, None])
        last = last.scatter(1, refused, torch.where(accepted[:, None] < k, 0.0, last.gather(1, refused)))
        return accepted, torch.multinomial(last.cpu(), 1, generator=self.random)[:, 0].to(drafted.device)

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        if self.settings.temperature == 0:
            return logits.argmax(-1)
        shares = torch.softmax(logits.float() / self.settings.temperature, -1).cpu()
        return torch.multinomial(shares, 1, generator=self.random)[:, 0].to(logits.device)

    @staticmethod
    def _tell(told: Callable[[int], None] | None, count: int) -> None:
        if told:
            told(count)


class Drafting:
    """The drafter's side of a batch: its caches, and which of their slots are real; `watcher` sees every drafted step."""

    def __init__(self, drafter: DraftModel, target: TargetModel, k: int, watcher: Watcher | None = None) -> None:
        self.drafter, self.k, self.watcher = drafter, k, watcher
        self.embedding = drafter.weights.get("embed_tokens.weight", target.embedding)
        self.head = drafter.weights.get("lm_head.weight", target.head)
        self.caches = drafter.cache()
        self.known: torch.Tensor | None = None

    def draft(self, rows: Rows) -> torch.Tensor:
        """Take in what the target has verified, then draft k tokens: [batch, k] target token ids."""
        known = rows.valid if self.known is None else torch.cat((self.known, rows.valid), 1)
        state = self._forward(rows.tokens, self.drafter.fuse(rows.states), rows.positions, known)
        self.known = known
        last = (rows.valid.long() * torch.arange(1, rows.valid.shape[1] + 1, device=known.device)).argmax(1)
        batch = torch.arange(len(last), device=known.device)
        state, position = state[batch, last][:, None], rows.positions[batch, last][:, None]
        tokens = [self._token(state)]
        self._show(0, state, known)
        for depth in range(1, self.k):
            position = position + 1
            known = torch.cat((known, torch.ones_like(position).bool()), 1)
            state = self._forward(tokens[-1], self.drafter.feedback(state), position, known)
            tokens.append(self._token(state))
            self._show(depth, state, known)
        for cache in self.caches:
            cache.crop(
                self.known.shape[1]
            )  # drafted rows were made from fed-back states; the verified ones replace them
        return torch.cat(tokens, 1)

    def _forward(
        self, tokens: torch.Tensor, state: torch.Tensor, positions: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        total, time = known.shape[1], tokens.shape[1]
        places = torch.arange(total, device=known.device)
        queries = places[total - time :, None]
        # a padding row looks at itself, so that no row looks at nothing
        mask = (known[:, None] & (places <= queries)) | (places == queries)
        embeddings = self.embedding[tokens.to(self.embedding.device)].to(state.device, state.dtype)
        return self.drafter.forward(embeddings, state, positions, self.caches, mask)

    def _show(self, depth: int, state: torch.Tensor, known: torch.Tensor) -> None:
        if self.watcher:
            self.watcher(depth, self.drafter.feedback(state), known)

    def _token(self, state: torch.Tensor) -> torch.Tensor:
        choice = self.drafter.logits(state, self.head.to(state.device, state.dtype)).argmax(-1)
        targets = self.drafter.targets
        return choice if targets is None else targets[choice]


def padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, positions and real slots [batch, longest], padded on the left."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    pads = torch.tensor([longest - len(p) for p in prompts], device=device)
    places = torch.arange(longest, device=device)[None]
    return tokens, (places - pads[:, None]).clamp(min=0), places >= pads[:, None]
