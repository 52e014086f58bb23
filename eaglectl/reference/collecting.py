"""What a conversion to EAGLE-3.1 has to know of a target's states: their sizes, how they vary, and how fc mixes them.

Two passes over the same sequences: medians first, then the matrices of the refit. Nothing is stored but sums and one
number for each token and layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from eaglectl.reference.model import DraftModel
from eaglectl.reference.passes import Passes, States

CHUNK = 1024  # tokens whose products are summed in one matrix multiplication
COLUMNS = 2048  # of gram that one multiplication makes: what lies below the diagonal is not made twice


LEAST = 500  # fed-back states that a median of one set of prompts is made from


@dataclass(frozen=True, slots=True)
class Batch:
    """Token sequences that are run together, and the set of prompts that each belongs to."""

    texts: Sequence[Sequence[int]]
    sets: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Medians over tokens (token 0 and padding left out): RMS of each aux state, sd of its log-ratio, RMS of the first two fed-back states.

    `sigmas` is the last of these for each set of prompts alone.
    """

    rms: tuple[float, ...]
    spread: tuple[float, ...]
    sigma: float
    sigmas: Mapping[str, float]
    tokens: int


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over tokens t of q_t n n' and q_t f n' (float64, n the normed aux states, f what fc makes of the plain ones).

    `gram` [aux*target_hidden]*2, `cross` [hidden, aux*target_hidden]; q_t = 1/|f|^2, so that every token counts by its relative error.
    """

    gram: torch.Tensor
    cross: torch.Tensor
    tokens: int


def collect_sizes(target: Passes, drafter: DraftModel, batches: Sequence[Batch], told: Callable[[], None]) -> Sizes:
    """The medians over all sequences of `batches`; `told` is called for each of them."""
    found, states, count = [], [], drafter.dims.aux
    sets = sorted({name for batch in batches for name in batch.sets})
    with torch.no_grad():
        for batch in batches:
            seen = target.states(batch.texts)
            keep = seen.known & (seen.positions > 0)
            found.append(_rms(seen.aux, count, drafter.eps)[keep].cpu())
            fed, inner = _fed_back(target, drafter, seen), keep[:, :-2]
            rows = torch.tensor([sets.index(name) for name in batch.sets], device=inner.device)[:, None].expand_as(
                inner
            )
            states.append(torch.stack((fed[:, inner], rows[inner].expand(len(fed), -1).to(fed.dtype))).flatten(1).cpu())
            for _ in batch.texts:
                told()
    sizes, (values, which) = torch.cat(found).double(), torch.cat(states, 1)
    logs = sizes.log()
    parts = {name: values[which == index] for index, name in enumerate(sets)}
    return Sizes(
        tuple(sizes.median(0).values.tolist()), tuple((logs - logs.mean(1, keepdim=True)).std(0).tolist()), float(values.median()),
        {name: float(part.median()) for name, part in parts.items() if len(part) >= LEAST}, len(sizes),
    )  # fmt: skip


def collect_moments(
    target: Passes, drafter: DraftModel, scales: Sequence[float], batches: Sequence[Batch], told: Callable[[], None]
) -> Moments:
    """The matrices of the refit over all real tokens, token 0 in. `scales` are the medians: where only directions matter, f is put to its best multiple."""
    dims = drafter.dims
    width = dims.aux * dims.target_hidden
    gram = cross = None
    count = 0
    with torch.no_grad():
        for batch in batches:
            seen = target.states(batch.texts)
            if gram is None or cross is None:
                gram = seen.aux.new_zeros(width, width, dtype=torch.float64)
                cross = seen.aux.new_zeros(dims.hidden, width, dtype=torch.float64)
            for plain, normed in chunks(seen.aux[seen.known].float(), drafter):
                add_moments(gram, cross, plain, normed, drafter, scales)
                count += len(plain)
            for _ in batch.texts:
                told()
    assert gram is not None and cross is not None
    return Moments(mirrored(gram), cross, count)


def chunks(aux: torch.Tensor, drafter: DraftModel) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Aux states [tokens, aux*target_hidden] and the same with each layer's state normed, a chunk at a time."""
    for plain in aux.split(CHUNK):
        rms = _rms(plain, drafter.dims.aux, drafter.eps)
        yield plain, (plain.unflatten(-1, (drafter.dims.aux, -1)) / rms[..., None]).flatten(-2)


def add_moments(
    gram: torch.Tensor, cross: torch.Tensor, plain: torch.Tensor, normed: torch.Tensor, drafter: DraftModel, scales: Sequence[float]
) -> None:  # fmt: skip
    """Add one chunk's products, made in float32, the states' own precision, to the float64 sums: of `gram`, the upper triangle by blocks."""
    weight = drafter.weights["fc.weight"].float()
    made = plain @ weight.T
    if drafter.norms.norm_before_residual:
        scaled = (normed.unflatten(-1, (len(scales), -1)) * normed.new_tensor(scales)[:, None]).flatten(-2) @ weight.T
        made = made * ((made * scaled).sum(-1) / made.pow(2).sum(-1).clamp(min=1e-30))[:, None]
    share = made.pow(2).sum(-1).clamp(min=1e-30).rsqrt()[:, None]
    normed, made = normed * share, made * share
    for start in range(0, normed.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        gram[part, start:] += normed[:, part].T @ normed[:, start:]
        cross[:, part] += made.T @ normed[:, part]


def mirrored(gram: torch.Tensor) -> torch.Tensor:
    """`gram` whole, in place, from its upper triangle of blocks."""
    for start in range(COLUMNS, len(gram), COLUMNS):
        part = slice(start, start + COLUMNS)
        gram[part, :start] = gram[:start, part].T
    return gram


def solve_ridge(
    gram: torch.Tensor, cross: torch.Tensor, prior: torch.Tensor, strength: float
) -> tuple[torch.Tensor, float]:
    """argmin over W of sum q |W n - f|^2 + lam |W - prior|^2, and lam, which is `strength` times the mean of gram's diagonal; float64.

    `gram` is overwritten, and LAPACK given columns where it wants them: at the width of an 8B target each copy saved is 1.2 GB.
    Raises torch.linalg.LinAlgError where it is singular.
    """
    lam = strength * float(gram.diagonal().mean())
    right = torch.addmm(cross, prior, gram, alpha=-1)
    gram.diagonal().add_(lam)
    factor, solved = gram.mT, right.mT  # by columns; gram is its own transpose
    torch.linalg.cholesky(factor, out=factor)
    torch.linalg.solve_triangular(factor, solved, upper=False, out=solved)
    torch.linalg.solve_triangular(factor.mT, solved, upper=True, out=solved)
    return right.add_(prior), lam


def _rms(aux: torch.Tensor, count: int, eps: float) -> torch.Tensor:
    """RMS of each layer's state [..., count], as an RMSNorm with `eps` takes it."""
    return (aux.float().unflatten(-1, (count, -1)).pow(2).mean(-1) + eps).sqrt()


def _fed_back(target: Passes, drafter: DraftModel, seen: States) -> torch.Tensor:
    """RMS of the stream after the drafter's first two steps, from every token but the last two: [2, batch, time-2].

    What is fed back grows with depth, and norm_output gives all of it one size: the middle of the first two fits best.
    """
    embedding = drafter.weights.get("embed_tokens.weight")
    embedding = target.embedding if embedding is None else embedding
    tokens, positions, known = seen.tokens, seen.positions, seen.known
    dtype, count = drafter.weights["fc.weight"].dtype, tokens.shape[1] - 2
    places = torch.arange(count, device=known.device)
    own = torch.eye(count, dtype=torch.bool, device=known.device).expand(len(tokens), -1, -1)
    mask = (known[:, None, :count] & (places <= places[:, None])) | own
    state, caches, found = drafter.fuse(seen.aux[:, :count].to(drafter.device, dtype)), drafter.cache(), []
    for step in range(2):
        following = embedding[tokens[:, step + 1 : step + 1 + count].to(embedding.device)].to(drafter.device, dtype)
        stream = drafter.forward(following, state, positions[:, :count] + step, caches, mask)
        found.append(stream.float().pow(2).mean(-1).sqrt())
        state, mask = drafter.feedback(stream), torch.cat((mask, own), -1)
    return torch.stack(found)
