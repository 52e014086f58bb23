"""What calibration needs of a target: its embedding and its hidden states, of an engine or from disk.

Hidden states that a trainer has on disk are one file a sequence. Two records are read (RECORDS below), from
safetensors files and from those of torch.save, gzipped or not. No record names the layers that its states are
of: the caller states them.
"""

import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eaglectl.drafter.tensors import EMBEDDINGS, Dimensions, matrix
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import MIB, is_folder, open_regular
from eaglectl.files.pickles import read_tensors
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.reference.model import HasEmbedding, without_gradients
from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder, pad_left
from eaglectl.reference.target import TargetModel, package_versions
from eaglectl.text import listed

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


# bytes of one gzipped file: 100,000 tokens of 5 layers of 8,192 in 16 bits; and bytes of one that is packed:
# hidden states shrink by a third
MAX_UNPACKED, MAX_RATIO = 8 << 30, 50
FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_embedding(target: Checkpoint, vocab: int, hidden: int) -> torch.Tensor:
    """The input embedding [rows, hidden] of a target that is not loaded here, found by its name.

    Targets may pad it to more rows than `vocab`. Raises UnreadableError where no tensor has that name and
    shape.
    """
    name = matrix(target.tensors, EMBEDDINGS)
    shape = (0, 0) if name is None else target.tensors[name].shape
    if name is None or shape[0] < vocab or shape[1] != hidden:
        stored = "none of plain numbers" if name is None else f"{name} {list(shape)}"
        raise UnreadableError(
            f"the drafter shares the target's embedding, [{vocab} rows or more, {hidden}], and"
            f" {target.source.place} has {stored}; calibrate with --run-in transformers"
        )
    data = bytearray(target.read(name))
    return torch.frombuffer(data, dtype=FLOATS[target.tensors[name].dtype]).view(shape)


def load_states(path: Path, tokens: Sequence[int], layers: int, width: int) -> torch.Tensor:
    """Hidden states of one sequence, written by vLLM's connector: [time, layers, width].

    Raises UnreadableError where the file cannot be read, or is not of these tokens.
    """
    try:
        tensors = load_tensors(path)
        states, ids = tensors["hidden_states"], tensors["token_ids"].tolist()
    except (KeyError, UnreadableError) as error:
        raise UnreadableError(
            f"vLLM's hidden states {path.name} cannot be read: {error}; if {path.parent} is full, set TMPDIR"
            " to a larger place"
        ) from None
    if ids != list(tokens) or states.shape != (len(tokens), layers, width):
        raise UnreadableError(
            f"vLLM wrote hidden states {list(states.shape)} of {len(ids)} tokens; [{len(tokens)}, {layers},"
            f" {width}] of the tokens that it was given were expected"
        )
    return states


def load_tensors(path: Path) -> Mapping[str, torch.Tensor]:
    """The tensors by name of a safetensors file, or of one of torch.save, gzipped or not.

    Pickles are read opcode by opcode and never unpickled. Raises UnreadableError.
    """
    try:
        if path.suffix == ".safetensors":
            open_regular(path).close()
            return load_file(path)
        with _unpacked(path) as unpacked:
            file = unpacked.resolve()
            return read_tensors(FolderSource(file.parent), file.name)
    except (EOFError, SafetensorError) as error:
        reason: object = f"it is truncated, or of another kind ({error})"
    except (OSError, zlib.error, EaglectlError) as error:
        reason = getattr(error, "strerror", None) or error
    raise UnreadableError(f"{path} cannot be read: {reason}")


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The file, or where it is gzipped a temporary one with its content, which is counted by pieces."""
    if path.suffix != ".gz":
        yield path
        return
    with scratch_folder() as folder, open_regular(path) as raw:
        left = min(MAX_UNPACKED, MAX_RATIO * path.stat().st_size + MIB)
        file = folder / path.stem
        with gzip.open(raw, "rb") as packed, file.open("wb") as unpacked:
            while piece := packed.read(MIB):
                left -= unpacked.write(piece)
                if left < 0:
                    raise UnreadableError("it unpacks to more than any states take")
        yield file


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
