"""Passes of a target over token sequences: what calibration takes from them, and the target through transformers that gives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from eaglectl.reference.speculation import Settings, Speculation, padded
from eaglectl.reference.target import TargetModel, package_versions


@dataclass(frozen=True, slots=True)
class States:
    """One batch, padded on the left: tokens, positions, which are real [batch, time], and aux states [batch, time, aux*target_hidden]."""

    tokens: torch.Tensor
    positions: torch.Tensor
    known: torch.Tensor
    aux: torch.Tensor


class Passes(Protocol):
    """A target that answers and gives its aux states, whatever runs it."""

    @property
    def engine(self) -> Mapping[str, str]:
        """What ran: name, versions, device, dtype."""
        ...

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden], for drafters that share it."""
        ...

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """So many greedy tokens after each sequence, past any end of sequence."""
        ...

    def states(self, batch: Sequence[Sequence[int]]) -> States:
        """One pass over all tokens of these sequences."""
        ...


class TransformersPasses:
    """The target in this process."""

    def __init__(self, target: TargetModel, device: str, dtype: str) -> None:
        self.target = target
        self.engine: Mapping[str, str] = {
            "name": "transformers",
            **package_versions(),
            "device": device,
            "dtype": dtype,
        }

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden], for drafters that share it."""
        return self.target.embedding

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """So many greedy tokens after each sequence, past any end of sequence."""
        return [list(found.tokens) for found in Speculation(self.target, None, Settings(1, tokens)).run(batch)]

    def states(self, batch: Sequence[Sequence[int]]) -> States:
        """One pass over all tokens of these sequences."""
        tokens, positions, known = padded(batch, self.target.embedding.device)
        self.target.start()
        with torch.no_grad():
            _, aux = self.target.forward(tokens, positions, known)
        return States(tokens, positions, known, aux)


def joined(batch: Sequence[Sequence[int]], aux: Sequence[torch.Tensor]) -> States:
    """The states of one pass over `batch` from those of each sequence [time, aux*target_hidden]; padding is zeros."""
    tokens, positions, known = padded(batch, aux[0].device)
    together = aux[0].new_zeros(*tokens.shape, aux[0].shape[-1])
    for row, states in enumerate(aux):
        together[row, -len(states) :] = states
    return States(tokens, positions, known, together)
