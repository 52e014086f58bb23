"""Assemble canonical tensors from stored ones: split fused ones, pair halves, check that all are present."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from eaglectl.checkpoint.header import StoredTensor
from eaglectl.drafter.drafter import Note
from eaglectl.drafter.tensors import NORM, Absorbed, Dimensions, Segment, Tensor, expected_shape
from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import Keys, Reading
from eaglectl.formats.format import Format
from eaglectl.formats.gguf import with_rows_by_halves
from eaglectl.formats.names import Names, split_fused
from eaglectl.text import listed


def read_tensors(
    names: Names, dims: Dimensions, format: Format, *, is_quantised: bool
) -> Reading[Mapping[str, Tensor]]:
    """Canonical tensors with their bytes' places. Raises RefusedError where one cannot be of this drafter."""
    tensors = _assemble(names, dims)
    _check_layers(names)
    problems = tuple(_shape_problems(tensors, dims, is_quantised=is_quantised))
    if format.gguf_names:
        tensors = with_rows_by_halves(tensors, dims.head_dim)
    return Reading(tensors, (), problems)


def _assemble(names: Names, dims: Dimensions) -> dict[str, Tensor]:
    """Canonical tensors with their bytes' places; fused ones split by rows, absorbed halves paired."""
    found = {
        name: Tensor(name, t.dtype, t.shape, (Segment(t.name, 0, t.nbytes),))
        for name, t in names.plain.items()
    }
    for name, stored in names.fused.items():
        for part in _split(name, stored, dims):
            if part.name in found:
                raise RefusedError(
                    f"{stored.name} holds {part.name}, which the file also has on its own; keep one",
                    "tensor-twice",
                    f"tensor:{stored.name}",
                )
            found[part.name] = part
    layers = {name.rpartition(".")[0] for name in names.absorbed}
    for prefix in sorted(layers):
        pair = names.absorbed.get(f"{prefix}.w_kc"), names.absorbed.get(f"{prefix}.w_vc")
        if pair[0] is None or pair[1] is None:
            raise RefusedError(
                f"{prefix} has one of w_kc and w_vc; kv_b_proj needs both",
                "missing-tensor",
                f"tensor:{prefix}.w_kc",
            )
        name = f"{prefix}.kv_b_proj.weight"
        heads, rank = dims.heads, dims.kv_lora_rank
        for half, needed in (
            (pair[0], (heads, dims.qk_nope_head_dim, rank)),
            (pair[1], (heads, rank, dims.v_head_dim)),
        ):
            if half.shape != needed:
                raise RefusedError(
                    f"{half.name} is {list(half.shape)}; {heads} heads of this drafter need {list(needed)}",
                    "tensor-shape",
                    f"tensor:{half.name}",
                )
        shape = expected_shape(name, dims)
        assert shape is not None
        found[name] = Tensor(name, pair[0].dtype, shape, Absorbed(pair[0].name, pair[1].name))
    return found


def _split(name: str, stored: StoredTensor, dims: Dimensions) -> Iterator[Tensor]:
    parts = split_fused(name)
    assert parts is not None
    if not stored.shape:
        raise RefusedError(
            f"{stored.name} is []; rows of {' + '.join(p.split('.')[-2] for p in parts[0])} were expected",
            "tensor-shape",
            f"tensor:{stored.name}",
        )
    row = 0
    for part in parts[0]:
        shape = expected_shape(part, dims)
        if shape is None:
            raise RefusedError(
                f"{stored.name} is {', '.join(p.split('.', 2)[-1] for p in parts[0])}, and the drafter has"
                f" no {part}; take the file as its trainer wrote it",
                "tensor-shape",
                f"tensor:{stored.name}",
            )
        rows = shape[0]
        yield Tensor(
            part,
            stored.dtype,
            (rows, *stored.shape[1:]),
            (Segment(stored.name, row * stored.row_bytes, (row + rows) * stored.row_bytes),),
        )
        row += rows
    if stored.shape[0] != row:
        raise RefusedError(
            f"{stored.name} has {stored.shape[0]} rows; {' + '.join(p.split('.')[-2] for p in parts[0])} of"
            f" this drafter are {row}",
            "tensor-shape",
            f"tensor:{stored.name}",
        )


def _check_layers(names: Names) -> None:
    """Raise RefusedError unless layers and fc_norm count from 0 without gaps."""
    indices = sorted(names.layers)
    if indices != list(range(len(indices))):
        raise RefusedError(
            f"the file has layers {indices}; they must count from 0 without gaps", "missing-tensor"
        )
    norms = sorted(int(m[1]) for name in names.plain if (m := NORM.fullmatch(name)))
    if norms != list(range(len(norms))):
        raise RefusedError(
            f"the file has fc_norm {norms}; they must count from 0 without gaps", "norm-tensor-missing"
        )


def _shape_problems(tensors: Mapping[str, Tensor], dims: Dimensions, *, is_quantised: bool) -> Iterator[Note]:
    """The problem of a d2t beside t2d that is not the product of dimensions that it should be.

    Raises RefusedError for every other tensor that is not.
    """
    for name, tensor in tensors.items():
        shape = expected_shape(name, dims)
        is_packed = is_quantised and tensor.dtype in ("U8", "I8", "I32", "F4") and name.endswith(".weight")
        if shape is None or shape == tensor.shape or is_packed:
            continue
        text = (
            f"{tensor.stored[0]} is {list(tensor.shape)}; this drafter's other shapes and config.json need"
            f" {list(shape)}; one of them is wrong"
        )
        if name != "d2t" or "t2d" not in tensors:  # t2d may give d2t
            raise RefusedError(text, "tensor-shape", f"tensor:{tensor.stored[0]}")
        text = f"{text}; or pass --fix-reading d2t=from-t2d"
        yield Note("problem", "d2t", text, "tensor-shape", names_option=True)


def read_head(
    keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, unknown: Sequence[str]
) -> Reading[Mapping[str, Tensor]]:
    """The tensors with a head, which is the embedding where the drafter ties them.

    Raises RefusedError where a reduced vocabulary has no head.
    """
    key = "tie_word_embeddings"
    is_tied = keys.flag(key)
    if "lm_head.weight" in tensors:
        text = (
            "config says true and the file has its own lm_head; SGLang would use the embedding instead;"
            " convert writes false"
        )
        return Reading(tensors, (key,), (Note("warning", key, text, "tied-head"),) if is_tied else ())
    if dims.draft_vocab != dims.vocab:
        found = f" (is it {listed(unknown)}, misspelt?)" if unknown else ""
        raise RefusedError(
            f"lm_head.weight is missing{found} and the draft vocabulary has {dims.draft_vocab} of"
            f" {dims.vocab} tokens; engines would truncate the target's head: restore it from the trainer",
            "missing-tensor",
            "tensor:lm_head.weight",
        )
    embedding = tensors.get("embed_tokens.weight")
    if not is_tied or not embedding:
        return Reading(tensors, (key,), (Note("note", "lm_head", "no lm_head: engines use the target's"),))
    text = (
        "the head is tied to the drafter's own embedding, which no engine does; lm_head is written as a copy"
        " of it"
    )
    head = replace(embedding, name="lm_head.weight")
    return Reading({**tensors, head.name: head}, (key,), (Note("note", key, text),))


def name_notes(
    names: Names, tensors: Mapping[str, Tensor], dims: Dimensions, *, has_token_list: bool
) -> Iterator[Note]:
    """What is missing and what has no place."""
    needed = _required(dims, tensors)
    for name in sorted(needed - set(tensors)):
        packed = {name.removesuffix("weight") + "weight_packed", name.removesuffix("weight") + "qweight"}
        if not packed & set(tensors):
            yield Note(
                "problem",
                name,
                f"{name} is missing; engines fill it with ones or uninitialised memory in silence: restore it"
                " from the trainer",
                "missing-tensor",
            )
    if dims.hidden != dims.target_hidden and "embed_tokens.weight" not in tensors:
        yield Note(
            "problem",
            "embed_tokens.weight",
            f"the target is {dims.target_hidden} wide and the drafter {dims.hidden}, so it must bring its own"
            " embed_tokens; restore it from the trainer",
            "missing-tensor",
        )
    if dims.draft_vocab != dims.vocab and not {"d2t", "t2d"} & set(tensors) and not has_token_list:
        yield Note(
            "problem",
            "d2t",
            f"d2t is missing and the draft vocabulary has {dims.draft_vocab} of {dims.vocab} tokens; engines"
            f" would propose the first {dims.draft_vocab}: restore it from the trainer",
            "d2t-missing",
        )
    for name in names.unknown:
        yield Note(
            "problem",
            name,
            f"{name} has no place in an EAGLE-3 drafter; pass --drop {name} if it may be left behind",
            "unknown-tensor",
            names_option=True,
        )


LAYER_PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "self_attn.o_proj",
)
MLA_PARTS = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
QUERY_PARTS = ("q_a_proj", "q_a_layernorm", "q_b_proj")
# what is there in all layers once it is there in one; o_proj.bias may be absent beside the others (Qwen2's
# attention)
TOGETHER = (
    ("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    ("mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"),
)


def _required(dims: Dimensions, present: Mapping[str, Tensor]) -> set[str]:
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if dims.attention == "MLA":
        parts = (*(QUERY_PARTS if dims.q_lora_rank else ("q_proj",)), *MLA_PARTS)
    layer = {f"{part}.weight" for part in (*LAYER_PARTS, *(f"self_attn.{part}" for part in parts))}
    for group in TOGETHER:
        if any(name.endswith(group) for name in present):
            layer.update(group)
    names = {f"layers.{index}.{part}" for index in range(dims.layers) for part in layer}
    return names | {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight"}
