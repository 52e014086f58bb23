"""The canonical tensors of a drafter: their names, and their shapes as products of named dimensions."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import StoredTensor

LAYER = re.compile(r"layers\.(0|[1-9][0-9]*)\.(.+)")
NORM = re.compile(r"fc_norm\.(0|[1-9][0-9]*)\.weight")

# "input" is 2*hidden in layer 0 (embedding beside the fed-back state) and hidden after it
MODEL_SHAPES: Mapping[str, str] = {
    "embed_tokens.weight": "vocab hidden",
    "fc.weight":           "hidden aux*target_hidden",
    "fc.bias":             "hidden",
    "input_norm.weight":   "aux*target_hidden",
    "fc_norm.N.weight":    "target_hidden",
    "norm.weight":         "hidden",
    "lm_head.weight":      "draft_vocab hidden",
    "d2t":                 "draft_vocab",
    "t2d":                 "vocab",
}  # fmt: skip

LAYER_SHAPES: Mapping[str, str] = {
    "input_layernorm.weight":              "hidden",
    "hidden_norm.weight":                  "hidden",
    "self_attn.q_proj.weight":             "heads*head_dim input",
    "self_attn.q_proj.bias":               "heads*head_dim",
    "self_attn.k_proj.weight":             "kv_heads*head_dim input",
    "self_attn.k_proj.bias":               "kv_heads*head_dim",
    "self_attn.v_proj.weight":             "kv_heads*head_dim input",
    "self_attn.v_proj.bias":               "kv_heads*head_dim",
    "self_attn.q_norm.weight":             "head_dim",
    "self_attn.k_norm.weight":             "head_dim",
    "self_attn.o_proj.weight":             "hidden heads*value_dim",
    "self_attn.o_proj.bias":               "hidden",
    "self_attn.q_a_proj.weight":           "q_lora_rank input",
    "self_attn.q_a_layernorm.weight":      "q_lora_rank",
    "self_attn.q_b_proj.weight":           "heads*query_dim q_lora_rank",
    "self_attn.kv_a_proj_with_mqa.weight": "latent_dim input",
    "self_attn.kv_a_layernorm.weight":     "kv_lora_rank",
    "self_attn.kv_b_proj.weight":          "heads*key_value_dim kv_lora_rank",
    "post_attention_layernorm.weight":     "hidden",
    "mlp.gate_proj.weight":                "intermediate hidden",
    "mlp.gate_proj.bias":                  "intermediate",
    "mlp.up_proj.weight":                  "intermediate hidden",
    "mlp.up_proj.bias":                    "intermediate",
    "mlp.down_proj.weight":                "hidden intermediate",
    "mlp.down_proj.bias":                  "hidden",
}  # fmt: skip

# the parameters that quantisers put beside (or in place of) a weight; passed through, never read
QUANTISED = re.compile(
    r"\.(weight_scale(_inv|_2)?|input_scale|weight_packed|weight_shape|weight_zero_point|weight_g_idx|weight_global_scale"
    r"|input_global_scale|qweight|qzeros|scales|g_idx|[kvq]_scale|output_scale|pre_quant_scale)$"
)


class Segment(Struct, frozen=True):
    """Bytes [start, stop) of one stored tensor's data."""

    stored: str
    start: int
    stop: int


class Absorbed(Struct, frozen=True):
    """`kv_b_proj` kept as SGLang's runtime halves: w_kc [heads, nope, rank] and w_vc [heads, rank, value]."""

    w_kc: str
    w_vc: str


class Computed(Struct, frozen=True):
    """A tensor made by arithmetic: `make` computes it from float64 sources, `how` names the step.

    `by_rows`: each row of the result comes from the same row of every source, so blocks of rows can be made
    one by one; without sources, `make` then takes the first row and the one after the last.
    """

    how: str
    sources: tuple["Tensor", ...]
    make: Callable[..., Any]
    by_rows: bool = False


class Tensor(Struct, frozen=True):
    """A canonical tensor and the origin of its bytes: segments in order, an absorbed pair, or arithmetic."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    origin: tuple[Segment, ...] | Absorbed | Computed

    @property
    def stored(self) -> tuple[str, ...]:
        """Names in the file that this tensor is made of."""
        match self.origin:
            case Absorbed(w_kc, w_vc):
                return (w_kc, w_vc)
            case Computed(sources=sources):
                return tuple(dict.fromkeys(name for source in sources for name in source.stored))
            case segments:
                return tuple(dict.fromkeys(segment.stored for segment in segments))

    def with_rows(self, rows: Sequence[int]) -> "Tensor":
        """The tensor of these rows of the first axis, in this order; no value changes."""
        shape, picked = (len(rows), *self.shape[1:]), list(rows)
        if not isinstance(self.origin, tuple):
            moved = Computed("rows moved", (self,), lambda values: values[picked])
            return replace(self, shape=shape, origin=moved)
        size = sum(segment.stop - segment.start for segment in self.origin) // self.shape[0]
        return replace(self, shape=shape, origin=_joined(self.origin, size, rows))

    def with_blocks(self, order: Sequence[int]) -> "Tensor":
        """The tensor with its columns, taken as len(order) equal blocks, in this order; no value changes.

        A vector has one row.
        """
        rows, count = prod(self.shape[:-1]), len(order)
        if not isinstance(self.origin, tuple):

            def in_blocks(values: Any) -> Any:
                blocks = values.reshape(*values.shape[:-1], count, -1)
                return blocks[..., list(order), :].reshape(values.shape)

            return replace(self, origin=Computed("columns moved", (self,), in_blocks))
        as_blocks = replace(self, shape=(rows * count,))
        moved = as_blocks.with_rows([row * count + block for row in range(rows) for block in order])
        return replace(moved, shape=self.shape)


def cut(origin: tuple[Segment, ...], start: int, stop: int) -> tuple[Segment, ...]:
    """Bytes [start, stop) of the segments one after the other."""
    found, place = [], 0
    for segment in origin:
        first = segment.start + max(start - place, 0)
        last = min(segment.stop, segment.start + stop - place)
        if first < last:
            found.append(Segment(segment.stored, first, last))
        place += segment.stop - segment.start
    return tuple(found)


def _joined(origin: tuple[Segment, ...], size: int, rows: Sequence[int]) -> tuple[Segment, ...]:
    """The segments of `rows`, each `size` bytes long, within `origin`; neighbours are merged."""
    places = [
        Segment(segment.stored, start, start + size)
        for segment in origin
        for start in range(segment.start, segment.stop, size)
    ]
    joined: list[Segment] = []
    for place in (places[row] for row in rows):
        if joined and (joined[-1].stored, joined[-1].stop) == (place.stored, place.start):
            joined[-1] = replace(joined[-1], stop=place.stop)
        else:
            joined.append(place)
    return tuple(joined)


class Dimensions(Struct, frozen=True):
    """Every number that shapes are made of; the MLA ones are 0 for other attention, and the other way round.

    An MLA drafter whose query has no LoRA (q_proj in place of q_a_proj and q_b_proj) has a q_lora_rank of 0.
    """

    hidden: int
    target_hidden: int
    aux: int
    vocab: int
    draft_vocab: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @property
    def attention(self) -> Literal["MLA", "MHA", "GQA", "MQA"]:
        """The kind of attention, by its head counts."""
        if self.kv_lora_rank:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    def named(self, layer: int | None) -> Mapping[str, int]:
        """The names that shape expressions use, for a tensor of `layer`."""
        mla, query = bool(self.kv_lora_rank), self.qk_nope_head_dim + self.qk_rope_head_dim
        return {
            "hidden": self.hidden,
            "target_hidden": self.target_hidden,
            "aux": self.aux,
            "vocab": self.vocab,
            "draft_vocab": self.draft_vocab,
            "intermediate": self.intermediate,
            "input": 2 * self.hidden if layer == 0 else self.hidden,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": query if mla else self.head_dim,
            "value_dim": self.v_head_dim if mla else self.head_dim,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank,
            "query_dim": query,
            "latent_dim": self.kv_lora_rank + self.qk_rope_head_dim,
            "key_value_dim": self.qk_nope_head_dim + self.v_head_dim,
        }


def shape_expression(name: str) -> str | None:
    """The shape of a canonical tensor as dimension names ("hidden aux*target_hidden"), else None."""
    if layer := LAYER.fullmatch(name):
        return LAYER_SHAPES.get(layer[2])
    return MODEL_SHAPES.get("fc_norm.N.weight" if NORM.fullmatch(name) else name)


def expected_shape(name: str, dims: Dimensions) -> tuple[int, ...] | None:
    """The shape that `dims` give a canonical tensor; None where its name fixes none."""
    expression, layer = shape_expression(name), LAYER.fullmatch(name)
    if expression is None:
        return None
    values = dims.named(int(layer[1]) if layer else None)
    return tuple(prod(values[factor] for factor in axis.split("*")) for axis in expression.split())


def is_quantised_part(name: str) -> bool:
    """Whether a name is a quantiser's companion of a weight: scales or packed values of any shape."""
    return QUANTISED.search(name) is not None


def is_norm(name: str) -> bool:
    """Whether a canonical name is the weight of an RMS norm."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    return name.endswith(".weight") and (part.endswith("norm") or NORM.fullmatch(name) is not None)


def is_known(name: str) -> bool:
    """Whether a canonical name has a home in a drafter."""
    return shape_expression(name) is not None or name == "mask_hidden" or is_quantised_part(name)


# the two matrices of a target that a drafter may share, by the names that models give them
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
HEADS = ("lm_head.weight", "output.weight")
PLAIN = ("F64", "F32", "F16", "BF16")
SAMPLED_ROWS = 64


def matrix(tensors: Mapping[str, StoredTensor], endings: Sequence[str]) -> str | None:
    """The first matrix of plain numbers whose name has one of `endings`; vision towers have none of these."""
    for ending in endings:
        names = sorted((name for name in tensors if name == ending or name.endswith(f".{ending}")), key=len)
        for name in names:
            if tensors[name].dtype in PLAIN and len(tensors[name].shape) == 2:
                return name
    return None


def spread_over(count: int, most: int = SAMPLED_ROWS) -> list[int]:
    """Up to `most` row numbers, evenly from the first to the last."""
    most = min(count, most)
    return sorted({(count - 1) * i // max(most - 1, 1) for i in range(most)})


def embedding_digest(target: Checkpoint) -> str | None:
    """SHA-256 of sampled rows of a target's embedding; None where it has none of plain numbers."""
    if (name := matrix(target.tensors, EMBEDDINGS)) is None:
        return None
    size, digest = target.tensors[name].row_bytes, hashlib.sha256()
    for row in spread_over(target.tensors[name].shape[0]):
        digest.update(target.read(name, row * size, (row + 1) * size))
    return digest.hexdigest()
