"""Hidden states of a target that a trainer has on disk, one file a sequence, in the place of a run.

Two records are read (RECORDS below), from safetensors files and from those of torch.save, gzipped or
not. No record names the layers that its states are of: the caller states them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from eaglectl.drafter.tensors import Dimensions
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.files import is_folder, open_regular
from eaglectl.reference.loading import load_tensors
from eaglectl.reference.target_engine import AuxStates, join_states
from eaglectl.text import listed

SUFFIXES = (".safetensors", ".ckpt", ".ckpt.gz", ".pt")
# what SpecForge 0.2.0 writes beside its states (scripts/prepare_hidden_states.py,
# _generate_shared_vocab_mapping): d2t and t2d
VOCABULARY = "vocab_mapping/vocab_mapping.pt"


class Record(NamedTuple):
    """The keys of a record: token ids [time], and states [time, layers, width] or [time, layers*width].

    Where those that are not joined have one layer more than was stated, it is the target's last and left out.
    """

    tokens: str
    states: str
    is_joined: bool


RECORDS = (
    Record("token_ids", "hidden_states", is_joined=False),
    Record("input_ids", "aux_hidden_state", is_joined=True),
)


class StoredStates:
    """States on disk as a `StateSource`; each file is read again for each pass, none is kept in memory.

    The files hold the boundaries `stored`, in this order; `wanted` are the drafter's.
    """

    def __init__(
        self,
        folder: Path,
        stored: Sequence[int],
        wanted: Sequence[int],
        dims: Dimensions,
        device: str,
        load_embedding: Callable[[], torch.Tensor],
    ) -> None:
        """Read and check every file. Raises UsageError, UnreadableError or RefusedError."""
        if missing := sorted(set(wanted) - set(stored)):
            raise RefusedError(
                f"--states-layers {','.join(map(str, stored))}: the drafter takes boundaries"
                f" {list(wanted)}, and the files have none of {missing}; give states that were captured"
                " for this drafter"
            )
        self.layers, self.dims, self.device = len(stored), dims, device
        self.columns = [stored.index(boundary) for boundary in wanted]
        self._load_embedding = load_embedding
        self.files: dict[tuple[int, ...], Path] = {}
        records = set()
        for path in state_files(folder):
            record, tokens, _ = self._read(path)
            records.add(record)
            if len(records) > 1:
                raise RefusedError(
                    f"--states {folder}: {path.name} is a record of {record.tokens} and {record.states}, and"
                    " files before it are of another kind; give the folder of one trainer's run"
                )
            self.files[tuple(tokens)] = path
        self.engine: Mapping[str, str] = {
            "name": "states",
            "record": f"{record.tokens}, {record.states}",
            "files": str(len(self.files)),
            "device": device,
            "dtype": "float32",
        }

    @cached_property
    def embedding(self) -> torch.Tensor:
        """The target's input embedding [vocab, hidden] from its files, for drafters that share it."""
        return self._load_embedding()

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Aux hidden states of these sequences, in float32."""
        aux = []
        for tokens in batch:
            path = self.files[tuple(tokens)]
            _, stored, states = self._read(path)
            if stored != list(tokens):
                raise UnreadableError(
                    f"{path} changed while it was read; calibrate when nothing writes to it"
                )
            aux.append(states[:, self.columns].flatten(1).to(self.device))
        return join_states(batch, aux)

    def _read(self, path: Path) -> tuple[Record, list[int], torch.Tensor]:
        """The kind of a file, its token ids, and its finite states [time, layers, width] in float32."""
        tensors = load_tensors(path)
        is_tensor = {name for name, value in tensors.items() if isinstance(value, torch.Tensor)}
        record = next((record for record in RECORDS if {record.tokens, record.states} <= is_tensor), None)
        if record is None:
            keys = listed(sorted(map(str, tensors)), most=6)
            needed = " or ".join(f"{record.tokens} and {record.states}" for record in RECORDS)
            raise RefusedError(
                f"{path} has {keys or 'nothing'}, and {needed} were expected: no hidden states"
            )
        tokens, states = tensors[record.tokens], tensors[record.states]
        if tokens.dtype not in (torch.int64, torch.int32) or tokens.numel() == 0:
            raise RefusedError(
                f"{path}: {record.tokens} are {tokens.dtype} {list(tokens.shape)}, and no token ids"
            )
        if states.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise RefusedError(
                f"{path}: {record.states} are {states.dtype}; bfloat16, float16 or float32 was expected"
                " (states in 8 bits are scaled, and their scales are not read here)"
            )
        if tokens.min() < 0 or tokens.max() >= self.dims.vocab:
            raise RefusedError(f"{path}: token ids outside of the target's vocabulary of {self.dims.vocab}")
        states = self._by_layer(path, record, states, tokens.numel()).float()
        if not bool(states.isfinite().all()):
            raise RefusedError(f"{path}: {record.states} have NaN or infinite values; leave the file out")
        return record, tokens.flatten().tolist(), states

    def _by_layer(self, path: Path, record: Record, states: torch.Tensor, time: int) -> torch.Tensor:
        """States [time, layers, width], without the target's last layer."""
        count, width, shape = self.layers, self.dims.target_hidden, list(states.shape)
        if record.is_joined and shape in ([time, count * width], [1, time, count * width]):
            return states.reshape(time, count, width)
        if not record.is_joined and shape in ([time, count, width], [time, count + 1, width]):
            return states[:, :count]
        needed = (
            f"[{time}, {count * width}]"
            if record.is_joined
            else f"[{time}, {count}, {width}] (and one layer more, the target's last)"
        )
        raise RefusedError(
            f"{path}: {record.states} are {shape}, and {needed} was expected: {time} tokens,"
            f" {count} layers (--states-layers), {width} channels of the target"
        )


def state_files(folder: Path) -> list[Path]:
    """The files of states in a folder and those below it, by name, without a trainer's vocabulary mapping.

    Raises UnreadableError where there is no such folder, or where a part of it cannot be read: what has the
    name of states and is no regular file, and a link to a folder elsewhere. UsageError where it has none.
    """
    if not is_folder(folder):
        raise UnreadableError(f"--states {folder}: no such folder")
    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_refuse_folder):
        for path in (Path(place, name) for name in folders):
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise UnreadableError(
                    f"--states {path} is a link to a folder, which is not followed; give {path.resolve()}"
                )
        files += [Path(place, name) for name in names if name.endswith(SUFFIXES)]
    files = sorted(path for path in files if not path.match(VOCABULARY))
    for path in files:
        open_regular(path, "--states").close()
    if not files:
        raise UsageError(f"--states {folder}: no {', '.join(SUFFIXES)} in it; give a trainer's hidden states")
    return files


def _refuse_folder(error: OSError) -> None:
    raise UnreadableError(f"--states {error.filename}: {error.strerror}") from None
