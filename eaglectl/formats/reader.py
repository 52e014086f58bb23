"""Read a checkpoint as the canonical drafter, and a target's config as what is known of it.

What a file leaves open is settled by formats/settling.py.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Drafter, Note, Target, question
from eaglectl.drafter.tensors import Dimensions, Tensor
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, history
from eaglectl.files.layout import QUANTISATION, RECORD, VOCABULARY_PICKLES
from eaglectl.files.text_part import nested_parts, text_part
from eaglectl.formats.aux_layers import ids_places, read_aux_layers
from eaglectl.formats.beside import notes_beside
from eaglectl.formats.catalogue import detect, known_answers, tensor_names
from eaglectl.formats.config_keys import (
    OBJECTS,
    TARGET_DEPTH,
    Keys,
    at,
    looks_like_layer_ids,
    mask_token,
    number_notes,
    unread_questions,
)
from eaglectl.formats.dimensions import MLA_SIZE_KEYS, SIZE_KEYS, read_dimensions
from eaglectl.formats.format import SCALINGS, Answers, CheckpointSummary, Format, ModelClass, RopeAnswer
from eaglectl.formats.names import Names, module_prefix, note_names, read_head, read_names, read_tensors
from eaglectl.formats.norms import TENSOR_FLAGS, norms_by_record, read_norms
from eaglectl.formats.other_drafters import refuse_other_families
from eaglectl.formats.quantisation import read_quantisation
from eaglectl.formats.rope import partial_rotary, read_rope, rope_keys, target_rope
from eaglectl.formats.settings import read_settings
from eaglectl.formats.settling import producer_doubts, recorded_doubts, settled_drafter
from eaglectl.formats.vocabulary import vocabulary_notes, with_tokens
from eaglectl.text import listed

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
    "adapter": ("merged",),
    "mask_token_id": (),  # a number
    "rms_norm_eps": ("1e-06", "1e-05"),
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
    *("n_predict", "medusa_num_heads", "medusa_num_layers", "hydra_num_heads", "hydra_num_layers"),
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
    """Read the canonical drafter of `checkpoint`, with the answers to what its files leave open.

    Raises RefusedError if it is no drafter, or contradicts itself.
    """
    check_answers(answers)
    refuse_other_families(checkpoint.source.place, checkpoint.config, checkpoint.tensors)
    check(
        (
            (count := len(checkpoint.tensors)) > MAX_TENSORS,
            f"{checkpoint.source.place} has {count} tensors; no drafter has more than {MAX_TENSORS}",
            "not-a-drafter",
        ),
        error=partial(RefusedError, source=checkpoint.source.place),
    )
    summary = CheckpointSummary(
        checkpoint.config,
        tuple(checkpoint.tensors),
        checkpoint.metadata,
        checkpoint.sidecars.get(QUANTISATION, {}),
    )
    format, evidence = detect(summary)
    _check_objects(checkpoint.config)
    keys = Keys(format.flat(checkpoint.config), checkpoint.config)
    _check_objects(keys.config)
    parts = nested_parts(checkpoint.config)
    is_other = "num_attention_heads" in checkpoint.config
    about = "is another model's, and is not kept" if is_other else "has the drafter's keys, and is read"
    keys.note(parts, "note", "config", f"{listed(parts)} in config.json {about}")
    prefix = module_prefix(checkpoint.tensors) or (format.layout.prefix if format.layout else "")
    names = read_names(checkpoint.tensors, tensor_names(), prefix)
    dims = read_dimensions(keys, names, target)
    target = with_tokens(_read_target(keys, format, target, dims.aux), dims)
    weights = read_quantisation(keys, checkpoint)
    stored = _Stored(
        checkpoint,
        summary,
        format,
        evidence,
        keys,
        names,
        dims,
        target,
        weights,
        read_tensors(keys, names, dims, is_quantised=weights is not None),
    )
    return settled_drafter(partial(_read, stored), answers, checkpoint)


# read with given answers; every reader adds its notes to `keys`, and what no reader took is asked about
def _read(stored: _Stored, answers: Answers) -> Drafter:
    format, summary, names, dims = stored.format, stored.summary, stored.names, stored.dims
    keys, tensors, target = replace(stored.keys, notes=list(stored.keys.notes)), stored.tensors, stored.target
    record, sidecar = stored.checkpoint.record, stored.checkpoint.sidecars.get(RECORD, {})
    answers = replace(answers, semantics={**format.settles(summary), **answers.semantics})
    norms = read_norms(keys, format, summary, answers, tensors, dims)
    taken = _taken(stored, answers)
    unread = keys.unread(taken, format)
    ids = {place: value for place, value in unread.items() if looks_like_layer_ids(place, value)}
    aux = read_aux_layers(keys, format, dims.aux, target, answers, ids)
    rope = read_rope(
        keys, answers, target, is_mla=dims.attention == "MLA", has_mla_factors=format.has_mla_factors
    )
    settings = read_settings(keys, format, answers, tensors, rope)
    keys.notes.extend([*number_notes(keys.config), *producer_doubts(format, summary, answers)])
    # other producers' doubts show in a config whose producer's nesting is undone
    keys.notes.extend(recorded_doubts(sidecar, replace(summary, config=keys.config), answers))
    keys.notes.extend(partial_rotary(keys.config, answers))
    norms = norms_by_record(keys, norms, format.name, record.get("hidden_twice"))
    _note_target(keys, dims, target)
    keys.notes.extend(_notes_of_files(stored, target, answers))
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


def _notes_of_files(stored: _Stored, target: Target, answers: Answers) -> Iterator[Note]:
    # on the vocabularies, and on what lies beside the weights
    yield from vocabulary_notes(stored.checkpoint, stored.dims, stored.tensors, target)
    yield from notes_beside(stored.checkpoint, stored.tensors, answers)


def _taken(stored: _Stored, answers: Answers) -> tuple[str, ...]:
    # the config keys that a reader took, or that mean nothing for this drafter: all others are asked about
    format, quantisation = stored.format, stored.quantisation
    return (
        *READ,
        *(MLA_SIZE_KEYS if stored.dims.attention == "MLA" else ()),
        *ids_places(format),
        *rope_keys(stored.keys, answers),
        *format.retires,
        *(() if quantisation else ("quantization_config",)),
    )


def _check_objects(config: Mapping[str, Any]) -> None:
    for key in OBJECTS:
        check(
            (
                not isinstance(value := config.get(key), Mapping | None),
                f"config.json: {key} is {value!r}; an object was expected",
                "value-types",
                f"config.json:{key}",
            ),
            error=RefusedError,
        )


def read_target(config: Mapping[str, Any], name: str | None) -> Target:
    """Read a target from its config.json (from the text model's part of a multimodal one)."""
    inner = text_part(config)

    def number(*keys: str) -> int | None:
        value = next(
            (place[key] for key in keys for place in (inner, config) if place.get(key) is not None), None
        )
        return value if type(value) is int and value > 0 else None

    outer, classes = config.get("model_type"), config.get("architectures")
    kind = inner.get("model_type") or outer
    quantised = _quantised_changes(config, inner)
    return Target(
        name,
        kind if isinstance(kind, str) else None,
        number("num_hidden_layers", "num_layers"),  # LongCat states num_layers
        number("hidden_size"),
        number("vocab_size"),
        rope=target_rope(inner),
        architectures=tuple(
            filter(
                lambda architecture: isinstance(architecture, str),
                classes if isinstance(classes, list) else (),
            )
        ),
        outer_type=outer if isinstance(outer, str) and outer != kind else None,
        changes=quantised,
        is_quantised=bool(quantised),
        has_own_code=bool(config.get("auto_map")),
    )


def model_class_of(tensors: Mapping[str, Tensor], dims: Dimensions) -> ModelClass:
    """Return the engine class that a drafter needs: MLA, q/k norms (Qwen3), or plain Llama."""
    if dims.attention == "MLA":
        return "mla"
    return "qwen3" if any(name.endswith("q_norm.weight") for name in tensors) else "llama"


def known_semantics() -> Mapping[str, tuple[str, ...]]:
    """Return the keys of --source-semantics with their values; no values for an open set."""
    return {**SEMANTICS, **known_answers()}


def check_answers(answers: Answers) -> None:
    """Raise UsageError where an answer is to no question that is ever asked."""
    semantics = known_semantics()
    for key, value in answers.semantics.items():
        if value in semantics.get(key, ()) or _is_free_answer(key, value, answers):
            continue
        listed = "; ".join(f"{name}={'|'.join(values) or FREE[name]}" for name, values in semantics.items())
        raise UsageError(
            f"--source-semantics {key}={value} is not known; these are: {listed}",
            options=("--source-semantics",),
        )


def _is_free_answer(key: str, value: str, answers: Answers) -> bool:
    # whether an answer that is no listed value has an allowed form
    if key == "rope":
        try:
            base = RopeAnswer.of(answers).base
        except ValueError:
            return False
        return base is not None and len(base) < MAX_DIGITS
    is_number = value.isascii() and value.isdecimal() and len(value) < MAX_DIGITS
    return (key == "mask_token_id" and is_number) or (key == "harmless" and bool(value))


def _note_target(keys: Keys, dims: Dimensions, target: Target) -> None:
    # where the target is known from, and whether its width and vocabulary fit the drafter
    keys.note(target.origin, "note", "target", target.origin)
    for change in target.changes:
        keys.note(True, "note", "target", change, "changed-target")
    keys.note(
        target.hidden not in (None, dims.target_hidden),
        "problem",
        "target",
        f"the target has width {target.hidden} and this drafter's aux states {dims.target_hidden}; the"
        " drafter belongs to another target",
        "target-mismatch",
    )


def _read_mask_token(keys: Keys, tensors: Mapping[str, Tensor], answers: Answers) -> Mapping[str, int]:
    # the user's mask token for a parallel drafter; a question if nobody states it
    if "mask_hidden" not in tensors or mask_token(keys.config) is not None:
        return {}
    if answer := answers.semantics.get("mask_token_id"):
        return {"mask_token_id": int(answer)}
    keys.notes.append(
        question(
            "mask_token_id",
            "a parallel drafter (mask_hidden) whose config names no mask token, without which vLLM does not"
            " start",
            "mask-token",
            [Choice("--source-semantics", "mask_token_id=N", "as it was trained", is_free=True)],
        )
    )
    return {}


def _read_depth(keys: Keys, aux: int, target_depth: int | None) -> int | None:
    """Return the target's number of layers by the config; None if it states none, or several."""
    places = [place for key in TARGET_DEPTH for place in (key, f"eagle_config.{key}")]
    # a key of that name may count the aux layers, or the drafter's own layers, at most four
    depths = {
        place: value
        for place in places
        if type(value := at(keys.config, place)) is int and value > max(aux, 4)
    }
    place, depth = next(iter(depths.items()), ("", None))
    about = place.rpartition(".")[2]
    if len(set(depths.values())) > 1:
        listed = ", ".join(f"{place}: {value}" for place, value in depths.items())
        keys.note(
            True,
            "warning",
            about,
            f"config states the target's depth as {listed}; none is used: pass --target",
            "target-depth",
        )
        return None
    keys.note(
        depth is not None and target_depth is not None and depth != target_depth,
        "warning",
        about,
        f"config states {depth} layers of the target ({about}), and the target has {target_depth}; check that"
        " the drafter belongs to this target",
        "target-depth",
    )
    return depth


def _read_target(keys: Keys, format: Format, target: Target, aux: int) -> Target:
    # the target, with what the drafter's config states of it where it is unknown
    verifier = at(keys.config, format.target_key)
    named = verifier if isinstance(verifier, str) else None
    is_path = named is not None and named.startswith((".", "/", "~"))
    name = target.name or (target.repo or named if is_path else named or target.repo)
    model_type, copied = keys.config.get("target_model_type"), keys.config.get("num_hidden_layers")
    stated_depth = _read_depth(keys, aux, target.depth)  # which leaves notes in any case
    depth = target.depth or stated_depth
    # a drafter has no more than four layers
    if format.copies_target and depth is None and type(copied) is int and copied > 4:
        depth = copied
    return replace(
        target,
        name=name,
        model_type=(target.model_type or (model_type if isinstance(model_type, str) else None)),
        depth=depth,
    )


def _quantised_changes(*places: Mapping[str, Any]) -> tuple[str, ...]:
    # a remark on a quantised target: its states may differ from those that the drafter was trained on
    quantisation = next((value for place in places if (value := place.get("quantization_config"))), None)
    if not isinstance(quantisation, Mapping):
        return ()
    parts = (quantisation.get(key) for key in ("quant_method", "quant_algo", "format"))
    words = " ".join(part for part in parts if isinstance(part, str))
    return (
        f"the target is quantised ({words or 'unknown method'}): a drafter of the unquantised model works"
        " with it unchanged, unless the method rotates the residual stream, which removes nearly all"
        " acceptance (vllm-ascend 7038); measure with this target",
    )
