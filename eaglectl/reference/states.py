"""A target's embedding and hidden states from an engine, for calibration.

At the end, statistics of the states for a conversion to EAGLE-3.1: sizes, and the matrices of the fc refit.
They take two passes over the same sequences: medians first, then the matrices. Only sums are stored, and one
number for each token and layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file

from eaglectl.drafter.tensors import EMBEDDINGS, matrix
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import open_regular
from eaglectl.reference.model import DraftModel, HasEmbedding, causal_mask
from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder, pad_left
from eaglectl.reference.target_model import TargetModel, package_versions

MAX_REMEMBERED = 512 << 20


class AuxStates(Struct, frozen=True):
    """One batch, padded on the left: tokens, positions and `valid` (not padding), all [batch, time].

    `aux` is [batch, time, aux*target_hidden].
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor
    aux: torch.Tensor


class HasStates(HasEmbedding, Protocol):
    """A source of a target's embedding and aux hidden states."""

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Return the aux hidden states of all tokens of these sequences."""
        ...


class TargetEngine(HasStates, Protocol):
    """An engine that generates with the target and returns its aux hidden states."""

    @property
    def engine(self) -> Mapping[str, str]:
        """Name, versions, device and dtype."""
        ...

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        ...


class RememberedStates:
    """The states of an engine's target; the second pass reuses those that the first left on the CPU.

    At most MAX_REMEMBERED bytes are stored: 6,912 tokens of a 135M target are 48 MB.
    """

    def __init__(self, engine: HasStates) -> None:
        self.engine, self.room = engine, MAX_REMEMBERED
        self.remembered: dict[int, AuxStates] = {}

    @property
    def embedding(self) -> torch.Tensor:
        """The target's input embedding [vocab, hidden]."""
        return self.engine.embedding

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Return the aux hidden states of all tokens of these sequences, which outlive this object."""
        if (states := self.remembered.get(id(batch))) is None:
            states = self.engine.states(batch)
            if states.aux.device.type == "cpu" and states.aux.nbytes <= self.room:
                self.room -= states.aux.nbytes
                self.remembered[id(batch)] = states
        return states


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

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        """Return the aux hidden states of all tokens of these sequences, from one forward pass."""
        tokens, positions, valid = pad_left(batch, self.target.embedding.device)
        states = self.target.states(tokens, positions, valid)
        aux = torch.cat([states[boundary] for boundary in self.target.boundaries], -1)
        return AuxStates(tokens, positions, valid, aux)


def join_states(batch: Sequence[Sequence[int]], aux: Sequence[torch.Tensor]) -> AuxStates:
    """Join the states of each sequence, [time, aux*target_hidden], into a batch; zeros at padding."""
    tokens, positions, valid = pad_left(batch, aux[0].device)
    together = aux[0].new_zeros(*tokens.shape, aux[0].shape[-1])
    for row, states in enumerate(aux):
        together[row, -len(states) :] = states
    return AuxStates(tokens, positions, valid, together)


FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_embedding(target: Checkpoint, vocab: int, hidden: int) -> torch.Tensor:
    """Read the input embedding [rows, hidden] of a target that is not loaded, found by its name.

    Targets may pad it to more rows than `vocab`. Raises UnreadableError if no tensor has that name and shape.
    """
    name = matrix(target.tensors, EMBEDDINGS)
    shape = (0, 0) if name is None else target.tensors[name].shape
    if name is None or shape[0] < vocab or shape[1] != hidden:
        stored = "no unquantised one" if name is None else f"{name} {list(shape)}"
        raise UnreadableError(
            f"the drafter shares the target's embedding, [{vocab} rows or more, {hidden}], but"
            f" {target.source.place} has {stored}; calibrate with --run-in transformers",
            options=("--run-in",),
        )
    return torch.frombuffer(bytearray(target.read(name)), dtype=FLOATS[target.tensors[name].dtype]).view(
        shape
    )


def load_states(path: Path, tokens: Sequence[int], layers: int, width: int) -> torch.Tensor:
    """Load hidden states of one sequence, written by vLLM's connector: [time, layers, width].

    Raises UnreadableError if the file cannot be read, or is not of these tokens.
    """
    try:
        open_regular(path).close()
        tensors = load_file(path)
        states, ids = tensors["hidden_states"], tensors["token_ids"].tolist()
    except (KeyError, OSError, SafetensorError, UnreadableError) as error:
        raise UnreadableError(
            f"vLLM's hidden states {path.name} cannot be read: {error}; if {path.parent} is full, set TMPDIR"
            " to a larger place"
        ) from None
    if ids != list(tokens) or states.shape != (len(tokens), layers, width):
        raise UnreadableError(
            f"vLLM wrote hidden states {list(states.shape)} of {len(ids)} tokens; expected [{len(tokens)},"
            f" {layers}, {width}] of the requested tokens"
        )
    return states


CHUNK = 1024  # tokens whose products are summed in one matrix multiplication
COLUMNS = 2048  # columns of gram in one multiplication; blocks below the diagonal are mirrored, not computed
MIN_SET_STATES = 500  # fed-back states below which the median of a set of prompts is left out


class Batch(Struct, frozen=True):
    """Token sequences to run together, and the set of prompts of each."""

    texts: Sequence[Sequence[int]]
    sets: Sequence[str]


class Sizes(Struct, frozen=True):
    """Medians over tokens, without token 0 and padding.

    `rms` [aux] is the median RMS of each aux state, `spread` [aux] the standard deviation of its log-ratio to
    the mean of the layers, `sigma` the median RMS of the first two fed-back states, `sigmas` the same for
    each set of prompts.
    """

    rms: tuple[float, ...]
    spread: tuple[float, ...]
    sigma: float
    sigmas: Mapping[str, float]


class Moments(Struct, frozen=True):
    """Sums over tokens t of q_t n n' and q_t f n' (float64); n: normed aux states, f: fc of the plain ones.

    `gram` is [aux*target_hidden, aux*target_hidden], `cross` [hidden, aux*target_hidden]. The weight q_t =
    1/|f|^2 makes every token count by its relative error.
    """

    gram: torch.Tensor
    cross: torch.Tensor
    tokens: int


def collect_sizes(
    target: HasStates, drafter: DraftModel, batches: Sequence[Batch], on_sequence: Callable[[], None]
) -> Sizes:
    """Collect the medians over all sequences of `batches`; `on_sequence` is called after each sequence."""
    sizes, by_set = [], dict[str, list[torch.Tensor]]()
    for batch in batches:
        states = target.states(batch.texts)
        keep = states.valid & (states.positions > 0)
        sizes.append(_rms(states.aux, drafter.dims.aux, drafter.eps)[keep].cpu())
        rms = _fed_back_rms(target, drafter, states)
        for row, name in enumerate(batch.sets):
            by_set.setdefault(name, []).append(rms[:, row, keep[row, :-2]].flatten().cpu())
            on_sequence()
    all_sizes = torch.cat(sizes).double()
    logs = all_sizes.log()
    fed_back = {name: torch.cat(parts) for name, parts in sorted(by_set.items())}
    return Sizes(
        rms=tuple(all_sizes.median(0).values.tolist()),
        spread=tuple((logs - logs.mean(1, keepdim=True)).std(0).tolist()),
        sigma=float(torch.cat(list(fed_back.values())).median()),
        sigmas={name: float(part.median()) for name, part in fed_back.items() if len(part) >= MIN_SET_STATES},
    )


def collect_moments(
    target: HasStates,
    drafter: DraftModel,
    scales: Sequence[float],
    batches: Sequence[Batch],
    on_sequence: Callable[[], None],
) -> Moments:
    """Collect the matrices of the refit over all tokens, also token 0; `scales` are the medians `Sizes.rms`.

    If only the direction of f matters (norm_before_residual), f is scaled to fit best. `on_sequence` is
    called after each sequence.
    """
    dims, device = drafter.dims, drafter.device
    width = dims.aux * dims.target_hidden
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    cross = torch.zeros(dims.hidden, width, dtype=torch.float64, device=device)
    count = 0
    for batch in batches:
        states = target.states(batch.texts)
        for plain, normed in normed_chunks(states.aux[states.valid].float(), drafter):
            add_moments(gram, cross, plain, normed, drafter, scales)
            count += len(plain)
        for _ in batch.texts:
            on_sequence()
    return Moments(mirror_upper(gram), cross, count)


def normed_chunks(aux: torch.Tensor, drafter: DraftModel) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield chunks of aux states [tokens, aux*target_hidden], plain and with each layer's state normed."""
    for plain in aux.split(CHUNK):
        rms = _rms(plain, drafter.dims.aux, drafter.eps)
        yield plain, (plain.unflatten(-1, (drafter.dims.aux, -1)) / rms[..., None]).flatten(-2)


def add_moments(
    gram: torch.Tensor,
    cross: torch.Tensor,
    plain: torch.Tensor,
    normed: torch.Tensor,
    drafter: DraftModel,
    scales: Sequence[float],
) -> None:
    """Add the products of one chunk to the float64 sums; of `gram`, only the upper triangle, by blocks.

    The products are made in float32, the precision of the states.
    """
    weight = drafter.weights["fc.weight"].float()
    output = plain @ weight.T
    if drafter.norms.norm_before_residual:
        scaled = (normed.unflatten(-1, (len(scales), -1)) * normed.new_tensor(scales)[:, None]).flatten(
            -2
        ) @ weight.T
        output = output * ((output * scaled).sum(-1) / output.pow(2).sum(-1).clamp(min=1e-30))[:, None]
    weight_sqrt = output.pow(2).sum(-1).clamp(min=1e-30).rsqrt()[:, None]
    normed, output = normed * weight_sqrt, output * weight_sqrt
    for start in range(0, normed.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        gram[part, start:] += normed[:, part].T @ normed[:, start:]
        cross[:, part] += output.T @ normed[:, part]


def mirror_upper(gram: torch.Tensor) -> torch.Tensor:
    """Fill the blocks of `gram` below the diagonal from those above, in place."""
    for start in range(COLUMNS, len(gram), COLUMNS):
        part = slice(start, start + COLUMNS)
        gram[part, :start] = gram[:start, part].T
    return gram


def solve_ridge(
    gram: torch.Tensor, cross: torch.Tensor, prior: torch.Tensor, strength: float
) -> tuple[torch.Tensor, float]:
    """Minimise sum q |W n - f|^2 + lam |W - prior|^2 over W; return W, and lam.

    lam is `strength` * mean(diagonal of gram). `gram` is overwritten, and LAPACK gets column-major views: at
    the width of an 8B target each copy saved is 1.2 GB. Raises torch.linalg.LinAlgError if it is singular.
    """
    lam = strength * float(gram.diagonal().mean())
    right = torch.addmm(cross, prior, gram, alpha=-1)
    gram.diagonal().add_(lam)
    factor, solved = gram.mT, right.mT  # column-major; gram is symmetric
    torch.linalg.cholesky(factor, out=factor)
    torch.linalg.solve_triangular(factor, solved, upper=False, out=solved)
    torch.linalg.solve_triangular(factor.mT, solved, upper=True, out=solved)
    return right.add_(prior), lam


def _rms(aux: torch.Tensor, count: int, eps: float) -> torch.Tensor:
    """RMS of each layer's state [..., count], as an RMSNorm with `eps` computes it."""
    return (aux.float().unflatten(-1, (count, -1)).pow(2).mean(-1) + eps).sqrt()


def _fed_back_rms(target: HasStates, drafter: DraftModel, states: AuxStates) -> torch.Tensor:
    """RMS of the stream after the drafter's first two steps, from each token but two: [2, batch, time-2].

    The fed-back state grows with depth, and norm_output gives all steps one size: the median of the first two
    fits best.
    """
    tokens, positions, valid = states.tokens, states.positions, states.valid
    count = tokens.shape[1] - 2
    new_slots = torch.eye(count, dtype=torch.bool, device=valid.device).expand(len(tokens), -1, -1)
    mask = causal_mask(valid[:, :count], torch.arange(count, device=valid.device)[:, None])
    state = drafter.combine_hidden_states(states.aux[:, :count].to(drafter.device, drafter.dtype))
    caches, sizes = drafter.new_caches(), []
    for step in range(2):
        embeddings = drafter.embeddings(tokens[:, step + 1 : step + 1 + count], target)
        stream = drafter.forward(embeddings, state, positions[:, :count] + step, caches, mask)
        sizes.append(stream.float().pow(2).mean(-1).sqrt())
        state, mask = drafter.feedback(stream), torch.cat((mask, new_slots), -1)
    return torch.stack(sizes)
