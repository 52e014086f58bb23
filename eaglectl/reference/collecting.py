"""Statistics of a target's states for a conversion to EAGLE-3.1: sizes, and the matrices of the fc refit.

Two passes over the same sequences: medians first, then the matrices. Only sums are kept, and one number for
each token and layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from msgspec import Struct

from eaglectl.reference.model import DraftModel, causal_mask, without_gradients
from eaglectl.reference.states import AuxStates, StateSource

CHUNK = 1024  # tokens whose products are summed in one matrix multiplication
COLUMNS = 2048  # columns of gram in one multiplication; blocks below the diagonal are mirrored, not computed
MASSIVE = 10.0  # times the median RMS of a layer's states: a token with such a state is massive
MOST_MASSIVE = 1024  # tokens beyond which massive ones are nothing apart, and their states are not kept
LEAD = 0.5  # of the largest number of a massive state: channels with as much are massive
MIN_SET_STATES = 500  # fed-back states below which the median of a set of prompts is left out


class Batch(Struct, frozen=True):
    """Token sequences that are run together, and the set of prompts that each belongs to."""

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


class Massive:
    """Tokens of which a state is MASSIVE times its layer's median, as the first one of many targets is.

    `channels` are the massive channels of each layer's state, `times` its largest RMS over the layer's median
    (0 where none is massive). `parts` are the rows of these tokens in the moments, normed states [tokens,
    aux*target_hidden] and outputs [tokens, hidden]; none where they are too many.
    """

    def __init__(self, eps: float, scales: Sequence[float]) -> None:
        self.eps, self.scales = eps, scales
        self.tokens = 0
        self.positions: set[int] = set()
        self.channels: list[set[int]] = [set() for _ in scales]
        self.times = [0.0] * len(scales)
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(
        self, plain: torch.Tensor, positions: torch.Tensor, normed: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Add the massive tokens of one chunk."""
        rms = _rms(plain, len(self.scales), self.eps)
        is_massive = rms > MASSIVE * rms.new_tensor(self.scales)
        rows = is_massive.any(1)
        self.tokens += int(rows.sum())
        self.positions.update(positions[rows].tolist())
        states = plain.unflatten(-1, (len(self.scales), -1)).abs()
        for layer in is_massive.any(0).nonzero().flatten().tolist():
            massive = states[is_massive[:, layer], layer]
            leading = massive >= LEAD * massive.amax(-1, keepdim=True)
            self.channels[layer].update(leading.any(0).nonzero().flatten().tolist())
            self.times[layer] = max(self.times[layer], float(rms[:, layer].max()) / self.scales[layer])
        self.parts.append((normed[rows].double().cpu(), output[rows].double().cpu()))
        if self.tokens > MOST_MASSIVE:
            self.parts.clear()

    def rows(self) -> list[torch.Tensor]:
        """The normed states and the outputs of all parts."""
        return [torch.cat(parts) for parts in zip(*self.parts, strict=True)]


class Moments(Struct, frozen=True):
    """Sums over tokens t of q_t n n' and q_t f n' (float64); n: normed aux states, f: fc of the plain ones.

    `gram` is [aux*target_hidden, aux*target_hidden], `cross` [hidden, aux*target_hidden]. The weight q_t =
    1/|f|^2 makes every token count by its relative error.
    """

    gram: torch.Tensor
    cross: torch.Tensor
    tokens: int
    massive: Massive


@without_gradients
def collect_sizes(
    target: StateSource, drafter: DraftModel, batches: Sequence[Batch], on_sequence: Callable[[], None]
) -> Sizes:
    """The medians over all sequences of `batches`; `on_sequence` is called after each sequence."""
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


@without_gradients
def collect_moments(
    target: StateSource,
    drafter: DraftModel,
    scales: Sequence[float],
    batches: Sequence[Batch],
    on_sequence: Callable[[], None],
) -> Moments:
    """The matrices of the refit over all tokens, token 0 included; `scales` are the medians `Sizes.rms`.

    Where only the direction of f matters (norm_before_residual), f is scaled to fit best. `on_sequence` is
    called after each sequence.
    """
    dims, device = drafter.dims, drafter.device
    width = dims.aux * dims.target_hidden
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    cross = torch.zeros(dims.hidden, width, dtype=torch.float64, device=device)
    count, massive = 0, Massive(drafter.eps, scales)
    for batch in batches:
        states = target.states(batch.texts)
        places = states.positions[states.valid].split(CHUNK)
        chunks = normed_chunks(states.aux[states.valid].float(), drafter)
        for (plain, normed), positions in zip(chunks, places, strict=True):
            massive.add(plain, positions, *add_moments(gram, cross, plain, normed, drafter, scales))
            count += len(plain)
        for _ in batch.texts:
            on_sequence()
    return Moments(mirror_upper(gram), cross, count, massive)


def normed_chunks(aux: torch.Tensor, drafter: DraftModel) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks of aux states [tokens, aux*target_hidden], as given and with each layer's state normed."""
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the products of one chunk to the float64 sums; of `gram`, only the upper triangle, by blocks.

    The products are made in float32, the precision of the states. Returns the weighted rows of n and f.
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
    return normed, output


def mirror_upper(gram: torch.Tensor) -> torch.Tensor:
    """Fill the blocks of `gram` below the diagonal from those above, in place."""
    for start in range(COLUMNS, len(gram), COLUMNS):
        part = slice(start, start + COLUMNS)
        gram[part, :start] = gram[:start, part].T
    return gram


def solve_ridge(
    gram: torch.Tensor, cross: torch.Tensor, prior: torch.Tensor, strength: float
) -> tuple[torch.Tensor, float]:
    """argmin over W of sum q |W n - f|^2 + lam |W - prior|^2, and lam = `strength` * mean(diagonal of gram).

    `gram` is overwritten, and LAPACK gets column-major views: at the width of an 8B target each copy saved is
    1.2 GB. Raises torch.linalg.LinAlgError where it is singular.
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


def _fed_back_rms(target: StateSource, drafter: DraftModel, states: AuxStates) -> torch.Tensor:
    """RMS of the stream after the drafter's first two steps, from each token but two: [2, batch, time-2].

    The fed-back state grows with depth, and norm_output gives all steps one size: the median of the first two
    fits best.
    """
    tokens, positions, valid = states.tokens, states.positions, states.valid
    count = tokens.shape[1] - 2
    own = torch.eye(count, dtype=torch.bool, device=valid.device).expand(len(tokens), -1, -1)
    mask = causal_mask(valid[:, :count], torch.arange(count, device=valid.device)[:, None])
    state = drafter.combine_hidden_states(states.aux[:, :count].to(drafter.device, drafter.dtype))
    caches, sizes = drafter.new_caches(), []
    for step in range(2):
        embeddings = drafter.embeddings(tokens[:, step + 1 : step + 1 + count], target)
        stream = drafter.forward(embeddings, state, positions[:, :count] + step, caches, mask)
        sizes.append(stream.float().pow(2).mean(-1).sqrt())
        state, mask = drafter.feedback(stream), torch.cat((mask, own), -1)
    return torch.stack(sizes)
