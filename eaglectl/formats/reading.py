"""From a checkpoint to the canonical drafter: names, dimensions, flags, aux layers, and every doubt on the way."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import StoredTensor
from eaglectl.drafter.drafter import Drafter, Norms, Note, Target
from eaglectl.drafter.tensors import LAYER, NORM, Absorbed, Dimensions, Segment, Tensor, expected_shape, is_quantised_part
from eaglectl.errors import Refused, Usage
from eaglectl.formats.aux_ids import read_aux_layers
from eaglectl.formats.catalogue import detect
from eaglectl.formats.families import refuse_other_families
from eaglectl.formats.format import Answers, Family, Format, Sighting
from eaglectl.formats.keys import CLASS_DEFAULTS, MISSING, Keys
from eaglectl.formats.rope import read_rope
from eaglectl.formats.shapes import read_dimensions
from eaglectl.formats.spelling import Names, read_names, split_fused

# what --source-semantics may say, and the values it takes
SEMANTICS: Mapping[str, tuple[str, ...]] = {
    "norm_output": ("true", "false"),
    "norm_before_residual": ("true", "false"),
    "specforge": ("pre-879", "post-879"),
    "rope": ("10000", "stored"),
    "d2t": ("offset", "absolute"),
}

# keys that say how the file was written, or that the tensors say better
HOUSEKEEPING = (
    "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "num_nextn_predict_layers",
    "attn_implementation", "_attn_implementation",
)  # fmt: skip


def read_drafter(checkpoint: Checkpoint, answers: Answers, target: Target) -> Drafter:
    """The canonical drafter of `checkpoint`. Raises Refused where it is none, or contradicts itself beyond repair."""
    label = checkpoint.source.label
    _check_answers(answers)
    refuse_other_families(label, checkpoint.config, checkpoint.tensors)
    sighting = Sighting(checkpoint.config, tuple(checkpoint.tensors), checkpoint.metadata)
    format, evidence = detect(sighting)
    keys = Keys(format.flatten(checkpoint.config) if format.flatten else checkpoint.config)
    target = _known_target(keys, format, target)
    names = read_names(checkpoint.tensors)
    for canonical, one, other in names.clashes:
        raise Refused(f"{one} and {other} are both {canonical}; keep one")
    dims = read_dimensions(names, keys, target)
    tensors = _tensors(names, dims)
    _check_layers(names)
    quantisation = _quantisation(checkpoint, keys)
    _check_shapes(tensors, dims, is_quantised=quantisation is not None)
    norms = _norms(keys, format, sighting, answers, tensors, dims)
    aux = read_aux_layers(keys, format, dims.aux, target, answers)
    rope = read_rope(keys, is_mla=dims.attention == "MLA")
    settings = _settings(keys, tensors, family_of(tensors, dims))
    keys.notes.extend(format.doubts(sighting, answers))
    tensors = _head(keys, tensors, dims)
    _note_names(keys, names, tensors, dims)
    keys.taken.update((*HOUSEKEEPING, *format.retires, "num_hidden_layers"))
    retired = {key: "names the producer" for key in format.retires if key in checkpoint.config}
    retired |= {key: "written anew" for key in HOUSEKEEPING if key in checkpoint.config}
    return Drafter(
        producer=format.name, evidence=evidence, kind="peagle" if format.name == "peagle" or "mask_hidden" in tensors else "eagle3", dims=dims, norms=norms, aux=aux,
        rope=rope, target=target, tensors=tensors, settings=settings, carried=keys.rest(), retired=retired, strays=names.strays,
        unknown=names.unknown, quantisation=quantisation, notes=tuple(dict.fromkeys(keys.notes)),
        dtypes=tuple(sorted({tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")})),
    )  # fmt: skip


def read_target(config: Mapping[str, Any], name: str | None) -> Target:
    """What a target's config.json says of it (the language model's part, for multimodal ones)."""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config

    def number(key: str) -> int | None:
        value = inner.get(key, config.get(key))
        return value if type(value) is int else None

    kind = inner.get("model_type") or config.get("model_type")
    return Target(name, kind if isinstance(kind, str) else None, number("num_hidden_layers"), number("hidden_size"), number("vocab_size"))


def family_of(tensors: Mapping[str, Tensor], dims: Dimensions) -> Family:
    """The engine class that a drafter needs: MLA, q/k norms (Qwen3), or plain Llama."""
    if dims.attention == "MLA":
        return "mla"
    return "qwen3" if any(name.endswith("q_norm.weight") for name in tensors) else "llama"


def _check_answers(answers: Answers) -> None:
    for key, value in answers.semantics.items():
        if value not in SEMANTICS.get(key, ()):
            known = "; ".join(f"{name}={'|'.join(values)}" for name, values in SEMANTICS.items())
            raise Usage(f"--source-semantics {key}={value} is not known; these are: {known}")


def _known_target(keys: Keys, format: Format, target: Target) -> Target:
    """The target as given, completed by what the drafter's own config says of it."""
    verifier = keys.at("speculators_config.verifier.name_or_path")
    name = target.name or (verifier if isinstance(verifier, str) else None)
    stated = keys.take("target_model_type")
    model_type = target.model_type or (stated if isinstance(stated, str) else None)
    depth = target.depth
    if format.name == "automodel" and depth is None:
        keys.taken.add("num_hidden_layers")
        measured = keys.at("num_hidden_layers")
        depth = measured if type(measured) is int and measured > 4 else None  # NeMo copies the target's depth
    if stated is not MISSING:
        keys.taken.discard("target_model_type")
    return Target(name, model_type, depth, target.hidden, target.vocab)


def _tensors(names: Names, dims: Dimensions) -> dict[str, Tensor]:
    """Canonical tensors with their bytes' places; fused ones split by rows, absorbed halves paired."""
    found = {name: Tensor(name, t.dtype, t.shape, (Segment(t.name, 0, t.nbytes),)) for name, t in names.plain.items()}
    for name, stored in names.fused.items():
        for part in _split(name, stored, dims):
            if part.name in found:
                raise Refused(f"{stored.name} holds {part.name}, which the file also has on its own; keep one")
            found[part.name] = part
    layers = {name.rpartition(".")[0] for name in names.absorbed}
    for prefix in sorted(layers):
        pair = names.absorbed.get(f"{prefix}.w_kc"), names.absorbed.get(f"{prefix}.w_vc")
        if pair[0] is None or pair[1] is None:
            raise Refused(f"{prefix} has one of w_kc and w_vc; kv_b_proj needs both")
        name = f"{prefix}.kv_b_proj.weight"
        heads, value = dims.heads, dims.v_head_dim
        for half, shape in ((pair[0], (heads, dims.qk_nope_head_dim, dims.kv_lora_rank)), (pair[1], (heads, dims.kv_lora_rank, value))):
            if half.shape != shape:
                raise Refused(f"{half.name} is {list(half.shape)}; {heads} heads of this drafter need {list(shape)}")
        shape = expected_shape(name, dims)
        assert shape is not None
        found[name] = Tensor(name, pair[0].dtype, shape, Absorbed(pair[0].name, pair[1].name))
    return found


def _split(name: str, stored: StoredTensor, dims: Dimensions) -> Iterator[Tensor]:
    parts = split_fused(name)
    assert parts is not None
    row = 0
    for part in parts[0]:
        shape = expected_shape(part, dims)
        assert shape is not None
        rows = shape[0]
        yield Tensor(part, stored.dtype, (rows, *stored.shape[1:]), (Segment(stored.name, row * stored.row_bytes, (row + rows) * stored.row_bytes),))
        row += rows
    if stored.shape[0] != row:
        raise Refused(f"{stored.name} has {stored.shape[0]} rows; {' + '.join(p.split('.')[-2] for p in parts[0])} of this drafter are {row}")


def _check_layers(names: Names) -> None:
    indices = sorted({int(m[1]) for name in (*names.plain, *names.fused, *names.absorbed) if (m := LAYER.fullmatch(name))})
    if indices != list(range(len(indices))):
        raise Refused(f"the file has layers {indices}; they must count from 0 without gaps")
    norms = sorted(int(m[1]) for name in names.plain if (m := NORM.fullmatch(name)))
    if norms != list(range(len(norms))):
        raise Refused(f"the file has fc_norm {norms}; they must count from 0 without gaps")


def _check_shapes(tensors: Mapping[str, Tensor], dims: Dimensions, *, is_quantised: bool) -> None:
    for name, tensor in tensors.items():
        shape = expected_shape(name, dims)
        is_packed = is_quantised and tensor.dtype in ("U8", "I8", "I32", "F4") and name.endswith(".weight")
        if shape is None or shape == tensor.shape or is_packed:
            continue
        raise Refused(f"{tensor.stored[0]} is {list(tensor.shape)}; this drafter's other shapes and config.json need {list(shape)}; one of them is wrong")


def _norms(keys: Keys, format: Format, sighting: Sighting, answers: Answers, tensors: Mapping[str, Tensor], dims: Dimensions) -> Norms:
    fc_norm = _flag_and_tensor(keys, "fc_norm", f"{dims.aux} fc_norm.N.weight", sum(1 for n in tensors if NORM.fullmatch(n)), dims.aux)
    before_fc = _flag_and_tensor(keys, "norm_before_fc", "input_norm.weight", int("input_norm.weight" in tensors), 1)
    if fc_norm and before_fc:
        keys.say("warning", "norms", "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm")
    stated = keys.take_bool("norm_output")
    answer = answers.semantics.get("norm_output")
    norm_output: bool | None
    if answer is not None:
        norm_output = answer == "true"
    elif format.norm_output:
        norm_output = format.norm_output(sighting, stated, answers)
    elif stated is None and fc_norm:
        norm_output = None
        keys.say("question", "norm_output", "fc_norm is trained in and config has no norm_output; pass --source-semantics norm_output=true or false")
    else:
        norm_output = bool(stated)
    return Norms(fc_norm, before_fc, norm_output, _residual(keys, format, answers))


def _residual(keys: Keys, format: Format, answers: Answers) -> bool:
    residual = keys.take_bool("norm_before_residual")
    if answer := answers.semantics.get("norm_before_residual"):
        return answer == "true"
    if residual is None and format.residual_default:
        keys.say("note", "norm_before_residual", f"config has no norm_before_residual; in {format.title}'s files that means true")
    return format.residual_default if residual is None else residual


def _flag_and_tensor(keys: Keys, flag: str, tensor: str, found: int, needed: int) -> bool:
    stated = keys.take_bool(flag)
    if found and found != needed:
        raise Refused(f"the file has {found} of {needed} {flag} tensors; engines would fill the others with ones")
    if stated and not found:
        raise Refused(f"config says {flag}: true and the file has no {tensor}; engines would use ones in silence: restore the tensor from the trainer")
    if found and stated is False:
        keys.say("problem", flag, f"config says {flag}: false and the file has {tensor}; one of them is wrong")
    elif found and stated is None:
        keys.say("note", flag, f"config has no {flag}; the file's tensors say true")
    return bool(found)


def _settings(keys: Keys, tensors: Mapping[str, Tensor], family: Family) -> dict[str, Any]:
    defaults = CLASS_DEFAULTS[family]
    eps = keys.take_float("rms_norm_eps")
    positions = keys.take_int("max_position_embeddings")
    act = keys.take("hidden_act")
    given: Mapping[str, Any] = {"rms_norm_eps": eps, "max_position_embeddings": positions, "hidden_act": None if act is MISSING else act}
    settings = {}
    for key, value in given.items():
        settings[key] = defaults[key] if value is None else value
        if value is None and key != "hidden_act":
            keys.say("note", key, f"config has no {key}; its class then means {defaults[key]}, and it is written so")
    for key, part in (("attention_bias", ".self_attn."), ("mlp_bias", ".mlp.")):
        stated, has = keys.take_bool(key), any(part in name and name.endswith(".bias") for name in tensors)
        settings[key] = has
        if stated and not has:
            keys.say("warning", key, f"config says {key}: true and the file has no such bias; vLLM would add uninitialised memory: false is written")
        elif has and not stated:
            keys.say("warning", key, f"the file has biases and config does not say {key}: true; vLLM drops them in silence: true is written")
    return settings


def _quantisation(checkpoint: Checkpoint, keys: Keys) -> Mapping[str, Any] | None:
    stated = keys.take_mapping("quantization_config") or checkpoint.sidecars.get("hf_quant_config.json")
    has_parts = any(is_quantised_part(name) for name in checkpoint.tensors)
    if has_parts and stated is None:
        keys.say("warning", "quantization_config", "the file has quantisation scales and no quantization_config; engines would read the weights as they are")
        return {}
    if stated is not None and not has_parts:
        keys.say("warning", "quantization_config", "config has a quantization_config and the file has no quantised weight; it may be the target's")
        keys.taken.discard("quantization_config")
        return None
    return stated


def _head(keys: Keys, tensors: dict[str, Tensor], dims: Dimensions) -> dict[str, Tensor]:
    is_tied = keys.take_bool("tie_word_embeddings")
    if "lm_head.weight" in tensors:
        if is_tied:
            keys.say("warning", "tie_word_embeddings", "config says true and the file has its own lm_head; SGLang would use the embedding instead: false is written")
        return tensors
    if dims.draft_vocab != dims.vocab:
        raise Refused(f"lm_head.weight is missing and the draft vocabulary has {dims.draft_vocab} of {dims.vocab} tokens; engines would truncate the target's head: restore it from the trainer")
    embedding = tensors.get("embed_tokens.weight")
    if is_tied and embedding:
        keys.say("note", "tie_word_embeddings", "the head is tied to the drafter's own embedding, which no engine does; lm_head is written as a copy of it")
        return {**tensors, "lm_head.weight": Tensor("lm_head.weight", embedding.dtype, embedding.shape, embedding.origin)}
    keys.say("note", "lm_head", "no lm_head: engines use the target's")
    return tensors


def _note_names(keys: Keys, names: Names, tensors: Mapping[str, Tensor], dims: Dimensions) -> None:
    needed = _required(dims)
    for name in sorted(needed - set(tensors)):
        if not any(other.startswith(name.removesuffix("weight")) for other in tensors):
            keys.notes.append(Note("problem", name, f"{name} is missing; engines fill it with ones or uninitialised memory in silence: restore it from the trainer"))
    if dims.hidden != dims.target_hidden and "embed_tokens.weight" not in tensors:
        keys.say("problem", "embed_tokens", f"the target is {dims.target_hidden} wide and the drafter {dims.hidden}, so it must bring its own embed_tokens; restore it from the trainer")
    for name in names.unknown:
        keys.say("problem", name, f"{name} has no place in an EAGLE-3 drafter; pass --drop {name} if it may be left behind")


def _required(dims: Dimensions) -> set[str]:
    norms = ("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.o_proj")
    mla = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
    parts = mla if dims.attention == "MLA" else ("q_proj", "k_proj", "v_proj")
    layer = {*norms, *(f"self_attn.{part}" for part in parts)}
    names = {f"layers.{i}.{part}.weight" for i in range(dims.layers) for part in layer}
    return names | {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight"}
