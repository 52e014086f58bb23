"""Read a checkpoint as the canonical drafter, and a target's config as what is known of it."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Drafter, Target, question
from eaglectl.drafter.tensors import Dimensions, Tensor
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint, history
from eaglectl.files.layout import QUANTISATION, RECORD, VOCABULARY_PICKLES
from eaglectl.files.target_files import text_part
from eaglectl.formats.aux_ids import aux_layers_by_record, ids_places, read_aux_layers
from eaglectl.formats.catalogue import detect, known_answers, tensor_names
from eaglectl.formats.config_keys import (
    OBJECTS,
    TARGET_DEPTH,
    Keys,
    are_ids,
    at,
    mask_token,
    number_notes,
    unread_questions,
)
from eaglectl.formats.format import SCALINGS, Answers, CheckpointSummary, Format, ModelClass, RopeAnswer
from eaglectl.formats.names import Names, note_names, read_head, read_names, read_tensors
from eaglectl.formats.other_drafters import refuse_other_families
from eaglectl.formats.settling import producer_doubts, recorded_doubts, settled_drafter
from eaglectl.formats.sizes import MLA_SIZE_KEYS, SIZE_KEYS, read_dimensions
from eaglectl.formats.switches import (
    TENSOR_FLAGS,
    norms_by_record,
    read_norms,
    read_quantisation,
    read_rope,
    read_settings,
    rope_keys,
    target_rope,
)

# --source-semantics that any drafter may need, with their values; producers declare their own
# (Format.answers)
SEMANTICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TENSOR_FLAGS, ("false",)),
    "norm_output": ("true", "false"),
    "norm_before_residual": ("true", "false"),
    "hidden_norm": ("once", "twice"),
    "rope": ("10000", "stored", "target", *SCALINGS, "10000,plain", "target,plain"),  # or another base
    "rope_interleave": ("true", "false"),
    "d2t": ("offset", "absolute"),
    "mask_token_id": (),  # a number
    "harmless": (),  # config keys
}

# of a drafter; those with quantised layers have some hundred
MAX_TENSORS = 4_096
# a longer number is no answer
MAX_DIGITS = 19
FREE = {"mask_token_id": "N", "harmless": "KEY,KEY"}

# keys that are read of every drafter, and those about how the file was written, or what the tensors decide
READ = (
    *SIZE_KEYS,
    *("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"),
    *("rms_norm_eps", "max_position_embeddings", "hidden_act", "attention_bias", "mlp_bias"),
    "tie_word_embeddings",
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "num_nextn_predict_layers",
    "attn_implementation",
    "_attn_implementation",
)


class _Stored(Struct, frozen=True):
    """What the files say, whatever is answered; the notes on it are those of `keys`."""

    checkpoint: Checkpoint
    summary: CheckpointSummary
    format: Format
    evidence: str
    keys: Keys
    names: Names
    dims: Dimensions
    target: Target
    quantisation: Mapping[str, Any] | None
    tensors: Mapping[str, Tensor]


def read_drafter(checkpoint: Checkpoint, answers: Answers, target: Target) -> Drafter:
    """The canonical drafter of `checkpoint`, with all that settles what its files leave open (settling.py).

    Raises RefusedError where it is none, or contradicts itself.
    """
    check_answers(answers)
    refuse_other_families(checkpoint.source.place, checkpoint.config, checkpoint.tensors)
    if (count := len(checkpoint.tensors)) > MAX_TENSORS:
        raise RefusedError(
            f"{checkpoint.source.place} has {count} tensors; no drafter has more than {MAX_TENSORS}",
            "not-a-drafter",
        )
    quantisation = checkpoint.sidecars.get(QUANTISATION, {})
    summary = CheckpointSummary(
        checkpoint.config, tuple(checkpoint.tensors), checkpoint.metadata, quantisation
    )
    format, evidence = detect(summary)
    _check_objects(checkpoint.config)
    keys = Keys(format.flat(checkpoint.config), checkpoint.config)
    _check_objects(keys.config)
    prefix = format.layout.prefix if format.layout else ""
    names = read_names(checkpoint.tensors, tensor_names(), prefix)
    dims = read_dimensions(keys, names, target)
    target = _read_target(keys, format, target, dims.aux)
    weights = read_quantisation(keys, checkpoint)
    tensors = read_tensors(keys, names, dims, is_quantised=weights is not None)
    stored = _Stored(checkpoint, summary, format, evidence, keys, names, dims, target, weights, tensors)
    return settled_drafter(partial(_read, stored), answers, checkpoint)


def _read(stored: _Stored, answers: Answers) -> Drafter:
    format, summary, names, dims = stored.format, stored.summary, stored.names, stored.dims
    keys, tensors, target = replace(stored.keys, notes=list(stored.keys.notes)), stored.tensors, stored.target
    record, stated = stored.checkpoint.record, stored.checkpoint.sidecars.get(RECORD, {})
    answers = replace(answers, semantics={**format.settles(summary), **answers.semantics})
    norms = read_norms(keys, format, summary, answers, tensors, dims)
    norms, settled = norms_by_record(norms, format, record)
    taken = _taken(stored)
    unread = keys.unread(taken, format)
    ids = {place: value for place, value in unread.items() if are_ids(place, value)}
    aux = read_aux_layers(keys, format, dims.aux, target, answers, ids)
    aux = aux_layers_by_record(keys, aux, record.get("boundaries"), target)
    is_mla = dims.attention == "MLA"
    rope = read_rope(keys, answers, target, is_mla=is_mla, has_mla_factors=format.has_mla_factors)
    settings = read_settings(keys, tensors, model_class_of(tensors, dims))
    # other producers' doubts show in a config whose producer's nesting is undone
    recorded = recorded_doubts(stated, replace(summary, config=keys.config), answers)
    keys.notes.extend([*number_notes(keys.config), *producer_doubts(format, summary, answers), *recorded])
    keys.settle(settled)
    _note_target(keys, dims, target)
    tensors = read_head(keys, tensors, dims, names.unknown)
    has_token_list = bool(set(VOCABULARY_PICKLES) & set(stored.checkpoint.source.names()))
    note_names(keys, names, tensors, dims, has_token_list=has_token_list)
    mask = _read_mask_token(keys, tensors, answers)
    # the answers stand in the place of what is answered: the next reader would have to ask again
    answered = {*answers.semantics.get("harmless", "").split(","), *(ids if answers.aux_layers else ())}
    left = {place: value for place, value in unread.items() if place not in answered}
    keys.notes.extend(unread_questions(left, format))
    rotations = (entry.get("target_rotation") for entry in history(record))
    dtypes = {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    return Drafter(
        producer=format.name,
        evidence=stored.evidence,
        kind="peagle" if format.is_parallel or "mask_hidden" in tensors else "eagle3",
        dims=dims,
        norms=norms,
        aux=aux,
        rope=rope,
        target=target,
        tensors=tensors,
        settings=settings,
        carried={**keys.rest((*taken, *answered.intersection(unread))), **mask},
        strays=names.strays,
        unknown=names.unknown,
        quantisation=stored.quantisation,
        notes=tuple(dict.fromkeys(keys.notes)),
        dtypes=tuple(sorted(dtypes)),
        rotation=next((rotation for rotation in rotations if isinstance(rotation, Mapping)), None),
    )


def _taken(stored: _Stored) -> tuple[str, ...]:
    format, quantisation = stored.format, stored.quantisation
    return (
        *READ,
        *(MLA_SIZE_KEYS if stored.dims.attention == "MLA" else ()),
        *ids_places(format),
        *rope_keys(stored.keys),
        *format.retires,
        *(() if quantisation else ("quantization_config",)),
    )


def _check_objects(config: Mapping[str, Any]) -> None:
    for key in OBJECTS:
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise RefusedError(
                f"config.json: {key} is {value!r}; an object was expected",
                "value-types",
                f"config.json:{key}",
            )


def read_target(config: Mapping[str, Any], name: str | None) -> Target:
    """What a target's config.json says of it (the language model's part, for multimodal ones)."""
    inner = text_part(config)

    def number(*keys: str) -> int | None:
        values = (place[key] for key in keys for place in (inner, config) if place.get(key) is not None)
        value = next(values, None)
        return value if type(value) is int and value > 0 else None

    outer = config.get("model_type")
    kind = inner.get("model_type") or outer
    classes = config.get("architectures")
    quantised = tuple(quantised_changes(config, inner))
    return Target(
        name,
        kind if isinstance(kind, str) else None,
        number("num_hidden_layers", "num_layers"),  # LongCat states num_layers
        number("hidden_size"),
        number("vocab_size"),
        rope=target_rope(inner),
        architectures=tuple(
            filter(lambda each: isinstance(each, str), classes if isinstance(classes, list) else ())
        ),
        outer_type=outer if isinstance(outer, str) and outer != kind else None,
        changes=quantised,
        is_quantised=bool(quantised),
    )


def model_class_of(tensors: Mapping[str, Tensor], dims: Dimensions) -> ModelClass:
    """The engine class that a drafter needs: MLA, q/k norms (Qwen3), or plain Llama."""
    if dims.attention == "MLA":
        return "mla"
    return "qwen3" if any(name.endswith("q_norm.weight") for name in tensors) else "llama"


def known_semantics() -> Mapping[str, tuple[str, ...]]:
    """The keys of --source-semantics with their values; none where they are no closed set."""
    return {**SEMANTICS, **known_answers()}


def check_answers(answers: Answers) -> None:
    """Raise UsageError where an answer is to no question that is ever asked."""
    known = known_semantics()
    for key, value in answers.semantics.items():
        if value in known.get(key, ()) or _is_free_answer(key, value, answers):
            continue
        listed = "; ".join(f"{name}={'|'.join(values) or FREE[name]}" for name, values in known.items())
        raise UsageError(f"--source-semantics {key}={value} is not known; these are: {listed}")


def _is_free_answer(key: str, value: str, answers: Answers) -> bool:
    if key == "rope":
        try:
            base = RopeAnswer.of(answers).base
        except ValueError:
            return False
        return base is not None and len(base) < MAX_DIGITS
    is_number = value.isascii() and value.isdecimal() and len(value) < MAX_DIGITS
    return (key == "mask_token_id" and is_number) or (key == "harmless" and bool(value))


def _note_target(keys: Keys, dims: Dimensions, target: Target) -> None:
    keys.note(target.origin, "note", "target", target.origin)
    for change in target.changes:
        keys.note(True, "note", "target", change, "changed-target")
    text = (
        f"the target is {target.hidden} wide and this drafter's aux states are {dims.target_hidden}; it"
        " belongs to another target"
    )
    keys.note(target.hidden not in (None, dims.target_hidden), "problem", "target", text, "target-mismatch")
    if target.vocab is not None and target.vocab != dims.vocab:
        is_problem = target.vocab < dims.vocab and not dims.draft_vocab < dims.vocab
        text = (
            f"the target has {target.vocab} tokens and this drafter was made for {dims.vocab}; check that it"
            " belongs to this target"
        )
        topic = "target-vocabulary" if is_problem else "target-vocabulary-size"
        keys.note(True, "problem" if is_problem else "warning", "target", text, topic)


def _read_mask_token(keys: Keys, tensors: Mapping[str, Tensor], answers: Answers) -> Mapping[str, int]:
    """The mask token of a parallel drafter, which vLLM will not start without; asked where no key says it."""
    if "mask_hidden" not in tensors or mask_token(keys.config) is not None:
        return {}
    if answer := answers.semantics.get("mask_token_id"):
        return {"mask_token_id": int(answer)}
    why = (
        "a parallel drafter (mask_hidden) whose config names no mask token, without which vLLM does not start"
    )
    choice = Choice("--source-semantics", "mask_token_id=N", "as it was trained", is_free=True)
    keys.notes.append(question("mask_token_id", why, "mask-token", [choice]))
    return {}


def _read_depth(keys: Keys, aux: int, given: int | None) -> int | None:
    """The target's depth as the drafter's config states it; None where keys differ, or none states it."""
    places = [place for key in TARGET_DEPTH for place in (key, f"eagle_config.{key}")]
    # a key of that name may count the layers that are captured instead
    stated = {
        place: value
        for place in places
        if type(value := at(keys.config, place)) is int and value > max(aux, 4)
    }
    place, depth = next(iter(stated.items()), ("", None))
    about = place.rpartition(".")[2]
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{place}: {value}" for place, value in stated.items())
        keys.note(
            True,
            "warning",
            about,
            f"config states the target's depth as {listed}; none is believed, pass --target",
            "target-depth",
        )
        return None
    keys.note(
        None not in (depth, given) and depth != given,
        "warning",
        about,
        f"config says that the target has {depth} layers ({about}), and the target has {given}; check that"
        " the drafter belongs to this target",
        "target-depth",
    )
    return depth


def _read_target(keys: Keys, format: Format, target: Target, aux: int) -> Target:
    verifier = at(keys.config, format.target_key)
    named = verifier if isinstance(verifier, str) else None
    is_path = named is not None and named.startswith((".", "/", "~"))
    name = target.name or (target.repo or named if is_path else named or target.repo)
    stated, copied = keys.config.get("target_model_type"), keys.config.get("num_hidden_layers")
    model_type = target.model_type or (stated if isinstance(stated, str) else None)
    stated_depth = _read_depth(keys, aux, target.depth)
    depth = target.depth or stated_depth
    # a drafter has no more than four layers
    if format.copies_target and depth is None and type(copied) is int and copied > 4:
        depth = copied
    return replace(target, name=name, model_type=model_type, depth=depth)


class Method(Struct, frozen=True):
    """A method of quantisation: what its configs say, and what is known of acceptance with it.

    `marks` is a pattern of quant_method, quant_algo and format; compressed-tensors and ModelOpt are
    containers, which name the method in the latter two. Lengths are tokens for each step of the target.
    """

    name: str
    marks: str
    known: str
    source: str


_SERVED = "a drafter of the unquantised model is served with it as it is (llm-compressor 1843)"
_EDGE = "TensorRT Edge-LLM 0.4.0, performance benchmarks"
_BOTH = "with target and drafter quantised; the unquantised pairs were not run beside them"
_OWN = "fixtures/tiny and fixtures/second, reference, k=3"
_ROUNDED = (
    "weights rounded to 4 bits in groups of 32, without the method's correction, took 2.67 to 2.53 and"
    f" 3.20 to 2.78 ({_OWN})"
)
_NOTHING = "nothing is published of a drafter's acceptance with it"

METHODS = (
    Method(
        "MXFP4",
        r"mxfp4",
        "gpt-oss is released in it, and its drafters are measured so (gpt-oss-20b: 2.56 on mt-bench, k=3); of"
        " a model that was quantised to it afterwards nothing is published",
        "vLLM tests/v1/spec_decode/test_acceptance_length.py",
    ),
    Method(
        "NVFP4",
        r"nvfp4",
        f"{_SERVED}; 5.21 with Llama-3.1-8B-Instruct and 4.26 with Qwen3-8B are published, {_BOTH}",
        _EDGE,
    ),
    Method(
        "AWQ",
        r"awq",
        f"{_SERVED}; {_ROUNDED}; 5.25 with Llama-3.1-8B-Instruct and 4.36 with Qwen3-8B are published,"
        f" {_BOTH}",
        _EDGE,
    ),
    Method("GPTQ", r"gptq|pack-quantized", f"{_SERVED}; no length is published; {_ROUNDED}", ""),
    Method(
        "FP8",
        r"fp8|float-quantized",
        f"{_SERVED}; weights rounded to it kept acceptance, 2.67 to 2.77 and 3.20 to 3.23",
        _OWN,
    ),
    Method("bitsandbytes", r"bitsandbytes|bnb", _NOTHING, ""),
    Method("compressed-tensors, in a format that names no method", r"compressed-tensors", _NOTHING, ""),
)
UNKNOWN = Method("a method that is not listed", "", _NOTHING, "")


def quantised_changes(*places: Mapping[str, Any]) -> Iterator[str]:
    """What the first quantization_config of a target's config, or of parts of it, means to its drafter."""
    stated = next((value for place in places if (value := place.get("quantization_config"))), None)
    if not isinstance(stated, Mapping):
        return
    parts = (stated.get(key) for key in ("quant_method", "quant_algo", "format"))
    words = " ".join(part for part in parts if isinstance(part, str))
    method = next((method for method in METHODS if re.search(method.marks, words.lower())), UNKNOWN)
    source = f" ({method.source})" if method.source else ""
    yield (
        f"the target is quantised ({words or 'of no name'}): {method.known}{source}; a method that rotates"
        " the residual stream first takes nearly all acceptance (vllm-ascend 7038); measure with this target"
    )
