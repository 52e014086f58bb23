"""The canonical tensors of a drafter: names, shapes as products of named dimensions, draft vocabulary."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress, count, islice, pairwise
from math import prod
from operator import add, eq, gt, lt, sub
from struct import calcsize, pack, unpack
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import OpenFactError, RefusedError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import sha256
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


# what a quantiser puts in the place of a weight
PACKED = ("weight_packed", "qweight")
# scales of the KV cache and of activations, not of weights
NOT_OF_WEIGHTS = (
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
    "input_scale",
    "input_global_scale",
    "pre_quant_scale",
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
    one by one; without sources, `make` then takes the first row and the one after the last. `reads` are
    stored tensors that `make` reads itself.
    """

    how: str
    sources: tuple["Tensor", ...]
    make: Callable[..., Any]
    by_rows: bool = False
    reads: tuple[str, ...] = ()


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
            case Computed(sources=sources, reads=reads):
                return tuple(dict.fromkeys([*reads, *(name for source in sources for name in source.stored)]))
            case segments:
                return tuple(dict.fromkeys(segment.stored for segment in segments))

    def with_rows(self, rows: Sequence[int]) -> "Tensor":
        """Return the tensor of these rows of the first axis, in this order; no value changes."""
        shape, picked = (len(rows), *self.shape[1:]), list(rows)
        if not isinstance(self.origin, tuple):
            return replace(
                self, shape=shape, origin=Computed("rows moved", (self,), lambda values: values[picked])
            )
        return replace(
            self,
            shape=shape,
            origin=_join_rows(
                self.origin,
                sum(segment.stop - segment.start for segment in self.origin) // self.shape[0],
                rows,
            ),
        )

    def with_blocks(self, order: Sequence[int]) -> "Tensor":
        """Return the tensor with its columns, as len(order) equal blocks, in this order; no value changes.

        A vector has one row.
        """
        rows, count = prod(self.shape[:-1]), len(order)
        if not isinstance(self.origin, tuple):

            def in_blocks(values: Any) -> Any:
                blocks = values.reshape(*values.shape[:-1], count, -1)
                return blocks[..., list(order), :].reshape(values.shape)

            return replace(self, origin=Computed("columns moved", (self,), in_blocks))
        return replace(
            replace(self, shape=(rows * count,)).with_rows(
                [row * count + block for row in range(rows) for block in order]
            ),
            shape=self.shape,
        )


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the rows of all tensors as one tensor, with the first one's name; no value changes.

    Several tensors are of stored bytes, one dtype, and one shape but for their rows.
    """
    if len(tensors) == 1:
        return tensors[0]
    segments = [
        segment for tensor in tensors if isinstance(tensor.origin, tuple) for segment in tensor.origin
    ]
    rows = sum(tensor.shape[0] for tensor in tensors)
    return replace(tensors[0], shape=(rows, *tensors[0].shape[1:]), origin=tuple(segments))


def cut(origin: tuple[Segment, ...], start: int, stop: int) -> tuple[Segment, ...]:
    """Return bytes [start, stop) of the concatenated segments, as segments."""
    pieces, position = [], 0
    for segment in origin:
        first = segment.start + max(start - position, 0)
        last = min(segment.stop, segment.start + stop - position)
        if first < last:
            pieces.append(Segment(segment.stored, first, last))
        position += segment.stop - segment.start
    return tuple(pieces)


def _join_rows(origin: tuple[Segment, ...], size: int, rows: Sequence[int]) -> tuple[Segment, ...]:
    # the segments of these rows, in this order; neighbours in a file become one segment
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
    """Every size that shapes are made of; MLA sizes are 0 for other attention, and vice versa.

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
        """Return the values of the names in shape expressions, for a tensor of `layer`."""
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
    """Return the shape of a canonical tensor in dimension names ("hidden aux*target_hidden"), else None."""
    if layer := LAYER.fullmatch(name):
        return LAYER_SHAPES.get(layer[2])
    return MODEL_SHAPES.get("fc_norm.N.weight" if NORM.fullmatch(name) else name)


def expected_shape(name: str, dims: Dimensions) -> tuple[int, ...] | None:
    """Return the shape of a canonical tensor under `dims`; None if its name fixes none."""
    expression, layer = shape_expression(name), LAYER.fullmatch(name)
    if expression is None:
        return None
    values = dims.named(int(layer[1]) if layer else None)
    return tuple(prod(values[factor] for factor in axis.split("*")) for axis in expression.split())


def is_quantised_part(name: str) -> bool:
    """Whether a name is a quantiser's companion of a weight: scales or packed values of any shape."""
    return QUANTISED.search(name) is not None


def packed_names(module: str) -> frozenset[str]:
    """Return the names that a module's packed weight may have."""
    return frozenset(f"{module}.{part}" for part in PACKED)


def packed_bits(config: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the method of a quantisation config, and the bits of a packed number; None for several sizes."""
    table = config.get("quantization_config")
    table = table if isinstance(table, Mapping) else {}
    groups = table.get("config_groups")
    groups = groups.values() if isinstance(groups, Mapping) else ()
    weights = [group.get("weights") for group in groups if isinstance(group, Mapping)]
    sizes = [weight.get("num_bits") for weight in weights if isinstance(weight, Mapping)]
    counts = {count for count in (*sizes, table.get("bits"), table.get("w_bit")) if count in (2, 4, 8)}
    return str(table.get("quant_method")), counts.pop() if len(counts) == 1 else None


def unpacked_shape(stored: StoredTensor, part: str, method: str, bits: int | None) -> tuple[int, ...] | None:
    """Return the shape [out, in] of the matrix in a packed weight; None if it is not known.

    compressed-tensors packs `in` of [out, in], GPTQ `in` and AWQ `out` of [in, out]; NVFP4 has two numbers a
    byte.
    """
    if len(stored.shape) != 2:
        return None
    first, last = stored.shape
    if stored.dtype in ("U8", "F4"):
        return first, 2 * last
    if stored.dtype != "I32" or bits is None:
        return None
    shapes = {
        ("weight_packed", "compressed-tensors"): (first, last * 32 // bits),
        ("qweight", "gptq"): (last, first * 32 // bits),
        ("qweight", "awq"): (last * 32 // bits, first),
    }
    return shapes.get((part, method))


def quantised_modules(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the modules whose weights a quantiser changed, by canonical name."""
    return _quantised_modules(tuple(tensors))


@lru_cache(maxsize=64)
def _quantised_modules(names: tuple[str, ...]) -> frozenset[str]:
    # cached: each engine release needs it
    parts = (name.rpartition(".") for name in names if is_quantised_part(name))
    return frozenset(module for module, _, part in parts if part not in NOT_OF_WEIGHTS)


def joined_name(module: str) -> str:
    """Return the name of the matrix that engines join a module into, or its own."""
    return re.sub(r"\b(gate|up)_proj$", "gate_up_proj", re.sub(r"\b[qkv]_proj$", "qkv_proj", module))


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
# as --fix-reading names a 16-bit dtype -> as safetensors does
HALF_DTYPES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16"}
# rows that stand for a whole matrix where it is compared or identified
SAMPLED_ROWS = 64


def matrix(tensors: Mapping[str, StoredTensor], endings: Sequence[str]) -> str | None:
    """Return the first unquantised matrix whose name has one of `endings`; vision towers have none."""
    for ending in endings:
        names = sorted((name for name in tensors if name == ending or name.endswith(f".{ending}")), key=len)
        for name in names:
            if tensors[name].dtype in PLAIN and len(tensors[name].shape) == 2:
                return name
    return None


def evenly_spaced(count: int, most: int = SAMPLED_ROWS) -> list[int]:
    """Return up to `most` row numbers, evenly from the first to the last."""
    most = min(count, most)
    return sorted({(count - 1) * i // max(most - 1, 1) for i in range(most)})


def embedding_digest(target: Checkpoint) -> str | None:
    """Return the SHA-256 of sampled rows of a target's embedding; None without an unquantised one."""
    if (name := matrix(target.tensors, EMBEDDINGS)) is None:
        return None
    size, digest = target.tensors[name].row_bytes, sha256()
    for row in evenly_spaced(target.tensors[name].shape[0]):
        digest.update(target.read(name, row * size, (row + 1) * size))
    return digest.hexdigest()


# d2t is kept as offsets: draft token i proposes target token i + d2t[i] (vLLM llama_eagle3.py:385, SGLang,
# SafeAILab). It is read without numpy, which takes longer to load than to save.

Ids = tuple[int, ...]
# codes of struct
_INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "U8": "B", "I8": "b", "BOOL": "B"}
_OTHERS = {"U64": "Q", "U32": "I", "U16": "H", "F64": "d", "F32": "f", "F16": "e"}
# of these, those whose whole values nothing rounded
_WHOLE = ("U64", "U32", "U16", "F64", "F32")
# stands for NaN and numbers too large for int64: far outside of every vocabulary
_LIMIT = 2**62
# readings that compute one table from the other (--fix-reading)
FROM_T2D, FROM_D2T = "d2t=from-t2d", "t2d=from-d2t"
BOTH_WHOLE = (
    "d2t and t2d are both intact and name different tokens, and lm_head was trained with one of them; pass"
    f" --fix-reading {FROM_T2D} or --fix-reading {FROM_D2T}; `diagnose` measures which"
)
ABSOLUTE = "d2t holds absolute ids"
BOTH_FIT = (
    "d2t may hold offsets or absolute ids: both fit and there is no t2d; pass --source-semantics d2t=offset"
    " or d2t=absolute"
)


class DraftVocabulary(Struct, frozen=True):
    """Target token of each draft token, [draft_vocab], and the evidence.

    `form` states what d2t holds, or how the map was made; `is_confirmed`: t2d agrees.
    """

    targets: Ids
    form: str
    is_confirmed: bool = False

    @property
    def how(self) -> str:
        """The evidence for it, in words."""
        return f"{self.form}{', as t2d confirms' * self.is_confirmed}"

    @property
    def offsets(self) -> Ids:
        """d2t as engines read it: the target less the draft token's own number."""
        return tuple(map(sub, self.targets, count()))

    def mask(self, vocab: int) -> bytes:
        """Return t2d: [vocab] bool, true for target tokens that have a draft token."""
        return bytes(map(set(self.targets).__contains__, range(vocab)))


def as_int64(numbers: Ids) -> bytes:
    """Return whole numbers as engines and safetensors store d2t: little-endian, 8 bytes each."""
    return pack(f"<{len(numbers)}q", *numbers)


def offsets_record(offsets: Ids) -> dict[str, str]:
    """Return the entry of eaglectl.json on a d2t that eaglectl wrote; `recorded_meaning` reads it."""
    return {"meaning": "offset", "sha256": sha256(as_int64(offsets)).hexdigest()}


def recorded_meaning(record: Mapping[str, Any], d2t: Ids | None) -> str | None:
    """Return the meaning of d2t ("offset") in eaglectl.json; None if it has no entry on this d2t."""
    is_known = d2t is not None and "d2t" in record and record["d2t"] == offsets_record(d2t)
    return "offset" if is_known else None


class Fault(Struct, frozen=True):
    """A fault of d2t or t2d: the name of the rule that reports it, and a message."""

    topic: str
    text: str
    tensor: str = "d2t"


def numbers(name: str, dtype: str, raw: bytes) -> Ids:
    """Return the whole numbers in raw little-endian data of an integer or boolean tensor.

    Floats are accepted if none was rounded: a t2d of 0 and 1, or a d2t of 32 or 64 bits with whole values
    within int64, as unsigned ones must be. Raises RefusedError for others.
    """
    values = _floats(dtype, raw) if dtype in (*_OTHERS, "BF16") else ()
    is_whole = dtype in _WHOLE and all(value % 1 == 0 and abs(value) <= _LIMIT for value in values)
    if values and (set(values) <= {0.0, 1.0} if name == "t2d" else is_whole):
        return tuple(map(int, values))
    check(
        (
            dtype not in _INTEGERS,
            f"{name} is {dtype}; whole numbers were expected (engines read int64)",
            "d2t-dtype",
            f"tensor:{name}",
        ),
        error=RefusedError,
    )
    return _unpacked(_INTEGERS[dtype], raw)


@lru_cache(maxsize=4)  # the checkpoints of one training have the same tables
def as_engines_read(name: str, dtype: str, raw: bytes) -> Ids:
    """Return the int64 numbers that engines make of little-endian data: fractions are cut off.

    Raises RefusedError.
    """
    if dtype not in (*_OTHERS, "BF16"):
        return numbers(name, dtype, raw)
    values = (-_LIMIT if value != value else value for value in _floats(dtype, raw))
    return tuple(int(min(max(value, -_LIMIT), _LIMIT)) for value in values)


def _floats(dtype: str, raw: bytes) -> tuple[float, ...]:
    if dtype != "BF16":
        return _unpacked(_OTHERS[dtype], raw)
    words = _unpacked("H", raw)
    return _unpacked("f", pack(f"<{len(words)}I", *(word << 16 for word in words)))


def _unpacked(code: str, raw: bytes) -> tuple[Any, ...]:
    return tuple(raw) if code == "B" else unpack(f"<{len(raw) // calcsize(f'<{code}')}{code}", raw)


def _marked(t2d: Ids | None) -> Ids | None:
    return None if t2d is None else tuple(compress(count(), t2d))


def identity(size: int) -> DraftVocabulary:
    """Return the map of a full vocabulary."""
    return DraftVocabulary(tuple(range(size)), "full vocabulary")


def from_tokens(tokens: Sequence[int], draft_vocab: int, vocab: int) -> DraftVocabulary:
    """Return the map of a trainer's list of target tokens, one for each lm_head row. Raises RefusedError."""
    targets = tuple(tokens)
    check(
        (
            len(targets) != draft_vocab or not _is_valid(targets, vocab),
            f"the trainer's token list has {len(targets)} entries; {draft_vocab} different tokens below"
            f" {vocab} were expected",
        ),
        error=RefusedError,
    )
    return DraftVocabulary(targets, "from the trainer's token list")


def read_vocabulary(
    d2t: Ids | None, t2d: Ids | None, draft_vocab: int, vocab: int, answer: str | None = None
) -> DraftVocabulary:
    """Return the draft vocabulary given by d2t [draft_vocab], t2d [vocab], or both.

    Raises RefusedError if they are out of range, repeat a token or contradict each other; OpenFactError if
    d2t may be offsets or absolute ids and `answer` ("offset", "absolute") does not say.
    """
    marked_tokens = _marked(t2d)
    if marked_tokens is not None and len(marked_tokens) != draft_vocab:
        raise RefusedError(
            _count_mismatch(len(marked_tokens), draft_vocab), "draft-vocabulary-size", "tensor:t2d"
        )
    if d2t is None:
        if marked_tokens is None:
            raise RefusedError(
                f"d2t is missing and the draft vocabulary has {draft_vocab} of {vocab} tokens; engines would"
                f" propose the first {draft_vocab}: restore it from the trainer",
                "d2t-missing",
            )
        return DraftVocabulary(marked_tokens, "from t2d")
    readings = _fitting_readings(d2t, marked_tokens, vocab)
    fits = {kind: targets for kind, targets in readings.items() if answer in (None, kind)}
    if not fits:
        text = f"d2t does not fit --source-semantics d2t={answer}; leave the option out"
        if not readings:
            states = " and ".join(fault.text for fault in _misfits(offset_targets(d2t), marked_tokens, vocab))
            text = (
                f"d2t, read as offsets, {states}, and does not fit as absolute ids either; restore it from"
                " the trainer"
            )
        raise RefusedError(text, "d2t-range", "tensor:d2t")
    if len(fits) > 1 and any(d2t):
        raise OpenFactError(BOTH_FIT, options=("--source-semantics",))
    kind, targets = next(iter(fits.items()))
    form = "d2t holds offsets" if kind == "offset" else ABSOLUTE
    return DraftVocabulary(targets, form, is_confirmed=marked_tokens is not None)


def offset_targets(d2t: Ids) -> Ids:
    """Return the target token of each draft token as engines compute it from d2t: i + d2t[i]."""
    return tuple(map(add, count(), d2t))


@lru_cache(maxsize=2)
def faults(d2t: Ids | None, t2d: Ids | None, draft_vocab: int, vocab: int) -> tuple[Fault, ...]:
    """Return the faults of d2t [draft_vocab], read as offsets as engines do, and of t2d [vocab]."""
    marked_tokens, problems = _marked(t2d), list[Fault]()
    if marked_tokens is not None and len(marked_tokens) != draft_vocab:
        problems.append(
            Fault("draft-vocabulary-size", _count_mismatch(len(marked_tokens), draft_vocab), "t2d")
        )
        marked_tokens = None
    if d2t is None:
        return tuple(problems)
    readings = _fitting_readings(d2t, marked_tokens, vocab)
    targets = readings.get("offset") or offset_targets(d2t)
    if draft_vocab < vocab and not any(d2t) and ("offset" not in readings or marked_tokens is None):
        text = f"d2t is zeros: only the first {draft_vocab} of {vocab} tokens can be proposed"
        problems.append(
            Fault("d2t-identity", text + ("" if marked_tokens is None else ", and t2d marks others"))
        )
    elif "offset" in readings:
        falls = islice(compress(count(), map(gt, targets, targets[1:])), 1)
        words = "d2t's targets do not ascend: draft token {} is {}, the next is {}"
        problems += [Fault("d2t-order", words.format(i, targets[i], targets[i + 1])) for i in falls]
    elif "absolute" in readings:
        text = (
            f"d2t holds token ids ({d2t[0]} to {d2t[-1]}); engines add the draft token's own number to each,"
            f" and reach {max(targets)}"
        )
        problems.append(Fault("d2t-absolute", text))
    else:
        for fault in _misfits(targets, marked_tokens, vocab):
            text = f"d2t, read as offsets, {fault.text}; it does not fit as token ids either"
            problems.append(Fault(fault.topic, text))
    return tuple(problems)


def table_repairs(d2t: Ids | None, t2d: Ids, draft_vocab: int, vocab: int) -> tuple[str, ...]:
    """Return the readings that repair one of two contradicting tables from the other.

    If both tables are intact, nothing in the file shows which is right, and both readings are returned. `d2t`
    is None if its numbers are lost.
    """
    marked_tokens = _marked(t2d)
    is_marked = marked_tokens is not None and len(t2d) == vocab and len(marked_tokens) == draft_vocab
    if d2t is None or len(d2t) != draft_vocab:
        return (FROM_T2D,) if is_marked else ()
    if is_marked and _fitting_readings(d2t, marked_tokens, vocab):
        return ()
    # zeros are no map of a reduced vocabulary unless t2d marks the first tokens
    is_mapped = any(d2t) and _is_valid(offset_targets(d2t), vocab)
    return ((FROM_T2D,) if is_marked else ()) + ((FROM_D2T,) if is_mapped else ())


def moved_back(
    numbers: Ids, late: int, *, are_offsets: bool, marked_tokens: Ids | None, vocab: int
) -> tuple[int | None, ...] | None:
    """Return the target token of each row of a table whose `numbers` stand `late` rows too late.

    The numbers are offsets or token ids; `marked_tokens` are the tokens that t2d marks, None without t2d. If
    `late` is positive, the first `late` numbers are strange (they belong to no row) and the numbers of the
    last rows are lost; if it is negative, the other end. A lost row's token is None unless t2d, the other
    rows' order or the strange numbers determine it. Returns None if these numbers are no table.
    """
    size, lost = len(numbers), abs(late)
    rolled = tuple(numbers[(row + late) % size] + row * are_offsets for row in range(size))
    kept_rows = rolled[: size - late] if late > 0 else rolled[lost:]
    if (
        not kept_rows
        or not _is_valid(kept_rows, vocab)
        or not set(kept_rows) <= set(marked_tokens or kept_rows)
    ):
        return None
    # the strange numbers are the lost ones, rolled round, or a filling: zeros, -1, or the next number
    # repeated; with t2d, they are the lost ones if the rolled table has exactly its tokens
    strange_numbers, next_number = (
        (numbers[:late], numbers[late]) if late > 0 else (numbers[late:], numbers[late - 1])
    )
    is_no_filling = (
        {0, -1, next_number}.isdisjoint(strange_numbers)
        if marked_tokens is None
        else set(rolled) == set(marked_tokens)
    )
    is_in_order = is_ascending(rolled) or not is_ascending(kept_rows)
    if is_no_filling and is_in_order and _is_valid(rolled, vocab):
        return rolled
    ends = _lost_tokens(kept_rows, late, marked_tokens, vocab)
    return (*kept_rows, *ends) if late > 0 else (*ends, *kept_rows)


def _lost_tokens(kept_rows: Ids, late: int, marked_tokens: Ids | None, vocab: int) -> Sequence[int | None]:
    """Return the tokens of the rows after `kept_rows` (before, if `late` is negative); None if unknown."""
    low, high = (kept_rows[-1], vocab) if late > 0 else (-1, kept_rows[0])
    free, is_sorted = (
        set(range(vocab) if marked_tokens is None else marked_tokens) - set(kept_rows),
        is_ascending(kept_rows),
    )
    fitting = sorted(token for token in free if not is_sorted or low < token < high)
    is_determined = len(fitting) == abs(late) and (is_sorted or len(fitting) == 1)
    return fitting if is_determined else [None] * abs(late)


def is_rolled(numbers: Ids, late: int, marked_tokens: Ids | None, vocab: int) -> bool:
    """Whether offsets or ids of tokens in order were rolled so many rows on."""
    rolled = (*numbers[late:], *numbers[:late])
    return any(
        is_ascending(table) and _is_valid(table, vocab) and set(table) == set(marked_tokens or table)
        for table in (offset_targets(rolled), rolled)
    )


def is_ascending(numbers: Sequence[Any]) -> bool:
    """Whether each number is larger than the one before."""
    return all(map(lt, numbers, numbers[1:]))


def is_of_two_meanings(d2t: Ids, t2d: Ids | None, vocab: int) -> bool:
    """Whether d2t fits as offsets and as absolute ids, with no t2d to tell."""
    return t2d is None and any(d2t) and len(_fitting_readings(d2t, None, vocab)) > 1


def _fitting_readings(d2t: Ids, marked_tokens: Ids | None, vocab: int) -> dict[str, Ids]:
    # the meanings of d2t that give a valid draft vocabulary, equal to t2d's if there is one
    return {
        kind: targets
        for kind, targets in (("offset", offset_targets(d2t)), ("absolute", d2t))
        if _is_valid(targets, vocab)
        and (marked_tokens is None or tuple(sorted(targets)) == marked_tokens)
        and (
            marked_tokens is not None
            or kind == "offset"
            or all(first < second for first, second in pairwise(targets))
        )
    }


def _count_mismatch(marked: int, draft_vocab: int) -> str:
    return (
        f"t2d marks {marked} target tokens and the draft vocabulary has {draft_vocab}; restore both from the"
        " trainer"
    )


def _misfits(targets: Ids, marked_tokens: Ids | None, vocab: int) -> list[Fault]:
    """Return why `targets` are no draft vocabulary; each text follows "d2t, read as offsets,"."""
    inside = [target for target in targets if 0 <= target < vocab]
    problems = []
    if outside := len(targets) - len(inside):
        span = f"reaches from {min(targets)} to {max(targets)} in a vocabulary of {vocab}"
        problems.append(Fault("d2t-range", f"{span} ({outside} tokens are outside)"))
    if repeated := len(inside) - len(set(inside)):
        problems.append(
            Fault("d2t-unique", f"repeats a target token ({repeated} of {len(targets)} are another's too)")
        )
    if not problems and marked_tokens is not None and (others := len(set(targets).difference(marked_tokens))):
        problems.append(Fault("d2t-t2d", f"does not give the tokens that t2d marks ({others} are others)"))
    return problems


def row_copies(rows: list[tuple[bytes, bytes]]) -> bool:
    """Whether every pair of lm_head rows is one row twice, and no pair is zeros.

    This is the fault of TorchSpec's pruning (tools/convert_to_hf.py).
    """
    return bool(rows) and all(row == other and any(row) for row, other in rows)


def repeated_offsets(offsets: Ids, most: int) -> list[int]:
    """Return up to `most` places i, spread over the table, where d2t[i] == d2t[i+1]."""
    places = list(compress(count(), map(eq, offsets, offsets[1:])))
    return places[:: max(1, len(places) // most)][:most]


def _is_valid(targets: Ids, vocab: int) -> bool:
    return bool(targets) and min(targets) >= 0 and max(targets) < vocab and len(set(targets)) == len(targets)
