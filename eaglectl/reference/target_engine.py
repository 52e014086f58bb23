"""What calibration needs of an engine that runs the target; transformers as that engine."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.torch import save_file

from eaglectl.reference.loading import load_tensors
from eaglectl.reference.model import HasEmbedding, without_gradients
from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder, pad_left
from eaglectl.reference.target import TargetModel, package_versions

# times the size of a batch of states that must be free for it: engines write their own to the same disk
ROOM = 4


class AuxStates(Struct, frozen=True):
    """One batch, padded on the left: tokens, positions and `valid` (not padding), all [batch, time].

    `aux` is [batch, time, aux*target_hidden].
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor
    aux: torch.Tensor


class StateSource(HasEmbedding, Protocol):
    """What gives a target's aux hidden states: an engine, or files."""

    @property
    def engine(self) -> Mapping[str, str]:
        """Name, versions, device and dtype."""
        ...

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Aux hidden states of all tokens of these sequences."""
        ...


class TargetEngine(StateSource, Protocol):
    """An engine that generates with the target and returns its aux hidden states."""

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        ...


class TransformersEngine:
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
        """The target's input embedding [vocab, hidden], for drafters that share it."""
        return self.target.embedding

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        decoder = SpeculativeDecoder(self.target, None, DecodingSettings(1, tokens))
        return [list(sequence.tokens) for sequence in decoder.run(batch)]

    @without_gradients
    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Aux hidden states of all tokens of these sequences, from one forward pass."""
        tokens, positions, valid = pad_left(batch, self.target.embedding.device)
        states = self.target.states(tokens, positions, valid)
        aux = torch.cat([states[boundary] for boundary in self.target.boundaries], -1)
        return AuxStates(tokens, positions, valid, aux)


class KeptStates:
    """A source whose states of each batch are kept in files of `folder`, for the next pass over them."""

    def __init__(self, source: StateSource, folder: Path) -> None:
        self.source, self.folder, self.engine = source, folder, source.engine
        self.files: dict[tuple[tuple[int, ...], ...], tuple[Path, torch.device]] = {}

    @property
    def embedding(self) -> torch.Tensor:
        """The source's; a target without a readable one is refused only where a drafter needs it."""
        return self.source.embedding

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Aux hidden states of all tokens of these sequences; run again where the disk had little room."""
        key = tuple(map(tuple, batch))
        if key in self.files:
            file, device = self.files[key]
            return AuxStates(**{name: tensor.to(device) for name, tensor in load_tensors(file).items()})
        states, file = self.source.states(batch), self.folder / f"states-{len(self.files)}.safetensors"
        tensors = structs.asdict(states)
        with suppress(OSError, SafetensorError):
            free = shutil.disk_usage(self.folder).free
            if free >= ROOM * sum(tensor.nbytes for tensor in tensors.values()):
                save_file(tensors, file)
                self.files[key] = file, states.aux.device
        return states


def join_states(batch: Sequence[Sequence[int]], aux: Sequence[torch.Tensor]) -> AuxStates:
    """The states of a batch from those of each sequence, [time, aux*target_hidden]; zeros at padding."""
    tokens, positions, valid = pad_left(batch, aux[0].device)
    together = aux[0].new_zeros(*tokens.shape, aux[0].shape[-1])
    for row, states in enumerate(aux):
        together[row, -len(states) :] = states
    return AuxStates(tokens, positions, valid, together)
