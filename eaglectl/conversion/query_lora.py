"""An MLA drafter's q_proj as q_a_proj, a norm and q_b_proj, which engines can load."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.arithmetic import Array, decode, encode, evaluate
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.tensor_steps import FLOATS
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor, is_quantised_part
from eaglectl.errors import RefusedError

# how much larger than the embedding's half the state's half is made: the norm of both hardly depends on the
# embedding then
STATE_SHARE = 32.0
EMBEDDING_ROWS = 4096


def with_query_lora(checkpoint: Checkpoint, drafter: Drafter, dtype: str | None = None) -> TransformedDrafter:
    """The drafter with its q_proj as q_a_proj, a norm and q_b_proj; nearly exact.

    `dtype` is the one that is written.

    A layer's input is normed and then weighted; q_a_proj undoes the weights, so that the norm between the two
    always divides by the same size, but for eps. The state's half is made STATE_SHARE larger: an embedding,
    which may be small enough for eps to matter, then hardly counts.
    """
    dims = drafter.dims
    rank, tensors = 2 * dims.hidden, dict(drafter.tensors)
    for layer, query in enumerate(query_projections(drafter)):
        tensors.pop(query.name)
        if query.dtype not in FLOATS:
            raise RefusedError(
                f"{query.name} is {query.dtype}; --mla-query-lora needs its numbers: convert the unquantised"
                " drafter"
            )
        names = ("input_layernorm", "hidden_norm") if layer == 0 else ("input_layernorm",)
        norms = tuple(drafter.tensors[f"layers.{layer}.{name}.weight"] for name in names)
        _check_invertible(checkpoint, norms)
        eps = float(drafter.settings["rms_norm_eps"])
        for tensor in _factors(layer, query, norms, _QueryLora(dtype or query.dtype, rank, eps)):
            tensors[tensor.name] = tensor
    result = replace(drafter, tensors=tensors, dims=replace(dims, q_lora_rank=rank))
    return TransformedDrafter(result, (_error_bound(checkpoint, drafter),))


def query_projections(drafter: Drafter) -> list[Tensor]:
    """Each layer's last projection of the query. Raises RefusedError where one is quantised."""
    name = "q_b_proj" if drafter.dims.q_lora_rank else "q_proj"
    return [
        unquantised_weight(drafter, f"layers.{layer}.self_attn.{name}")
        for layer in range(drafter.dims.layers)
    ]


def unquantised_weight(drafter: Drafter, module: str) -> Tensor:
    """The weight of a module.

    Raises RefusedError where a quantiser has put tensors beside it or in its place.
    """
    if any(name.rpartition(".")[0] == module and is_quantised_part(name) for name in drafter.tensors):
        raise RefusedError(
            f"{module} is quantised, and its rows cannot be moved or computed with: convert the unquantised"
            " drafter, then quantise it"
        )
    return drafter.tensors[f"{module}.weight"]


class _QueryLora:
    """The arithmetic of the factors, for one written dtype, rank and eps; arrays are float64."""

    def __init__(self, dtype: str, rank: int, eps: float) -> None:
        self.dtype, self.rank, self.eps = dtype, rank, eps

    def first(self, *norms: Array) -> Array:
        """q_a_proj [rank, input]: the norms' weights undone, on the diagonal."""
        diagonal = self._diagonal(norms)
        return np.concatenate((np.diag(diagonal), np.zeros((self.rank - len(diagonal), len(diagonal)))))

    def norm(self) -> Array:
        """q_a_layernorm [rank]."""
        return np.ones(self.rank)

    def second(self, query: Array, *norms: Array) -> Array:
        """q_b_proj [heads*query_dim, rank]: q_proj over the diagonal of q_a_proj."""
        diagonal = self._diagonal(norms)
        sizes = np.concatenate(norms) * diagonal
        size = np.sqrt((sizes**2).sum() / self.rank + self.eps)
        padding = np.zeros((len(query), self.rank - len(diagonal)))
        return np.concatenate((query / diagonal * size, padding), axis=1)

    def _diagonal(self, norms: Sequence[Array]) -> Array:
        """One over the weights, rounded to the written dtype; the last of `norms` is the state's."""
        inverses = [1.0 / norm for norm in norms[:-1]]
        values = np.concatenate([*inverses, STATE_SHARE / norms[-1]])
        return decode(encode(values, self.dtype, "q_a_proj.weight"), self.dtype, "q_a_proj.weight")


def _factors(layer: int, query: Tensor, norms: tuple[Tensor, ...], lora: _QueryLora) -> Iterator[Tensor]:
    module, rank = f"layers.{layer}.self_attn.", lora.rank
    undone = Computed("the norms before it undone, on the diagonal", norms, lora.first)
    yield Tensor(module + "q_a_proj.weight", query.dtype, (rank, query.shape[1]), undone)
    yield Tensor(module + "q_a_layernorm.weight", norms[0].dtype, (rank,), Computed("ones", (), lora.norm))
    rest = Computed("q_proj over the diagonal of q_a_proj", (query, *norms), lora.second)
    yield Tensor(module + "q_b_proj.weight", query.dtype, (query.shape[0], rank), rest)


def _check_invertible(checkpoint: Checkpoint, norms: Sequence[Tensor]) -> None:
    for norm in norms:
        weight = evaluate(norm, checkpoint)
        if not bool(np.isfinite(weight).all()) or not bool(weight.all()):
            raise RefusedError(
                f"{norm.name} has channels of zero or of no finite size, which q_a_proj cannot undo;"
                " --mla-query-lora does not work for this drafter"
            )


def _error_bound(checkpoint: Checkpoint, drafter: Drafter) -> Note:
    """The largest relative error of a query, by the sizes of the embeddings and of the fed-back state."""
    dims, eps = drafter.dims, float(drafter.settings["rms_norm_eps"])
    smallest, where = 0.0, "for any embedding"
    table = drafter.tensors.get("embed_tokens.weight")
    if table and table.dtype in FLOATS:
        smallest = min(_row_sizes(checkpoint, table))
        where = f"for all its embeddings (the smallest has RMS {smallest:.3g})"
    share = smallest**2 / (smallest**2 + eps)
    whole = STATE_SHARE**2 + 1 + 2 * eps
    error = (whole / (whole - 1 + share)) ** 0.5 - 1
    query = dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim)
    size = dims.layers * 2 * dims.hidden * (2 * dims.hidden + query)
    text = (
        f"q_proj is written as q_a_proj and q_b_proj of rank {2 * dims.hidden} ({size:,} numbers): queries"
        f" are off by at most {error:.1e} {where}, by {eps:g}/2r^2 for a fed-back state of RMS r, and by"
        " rounding"
    )
    return Note("note", "q_a_proj", text)


def _row_sizes(checkpoint: Checkpoint, table: Tensor) -> Iterator[float]:
    """The RMS of every row, read a block of rows at a time."""
    for start in range(0, table.shape[0], EMBEDDING_ROWS):
        rows = range(start, min(start + EMBEDDING_ROWS, table.shape[0]))
        yield from np.sqrt((evaluate(table.with_rows(rows), checkpoint) ** 2).mean(1)).tolist()
