"""Rules on config.json: its class, its values by themselves, against the tensors and against a JSON Schema.

jsonschema is imported only where a value does not fit.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.engines.data import load
from eaglectl.engines.vllm import SPECULATORS_KEYS, class_of
from eaglectl.formats.catalogue import detect, flattened
from eaglectl.formats.config_keys import Keys, is_within
from eaglectl.formats.format import CheckpointSummary, ModelClass
from eaglectl.formats.reader import model_class_of
from eaglectl.judge.rule import CannotLook, Match, note_rule, rule
from eaglectl.judge.rules.weights import DTYPE
from eaglectl.judge.subject import Subject, key_place
from eaglectl.text import listed

# served by TensorRT-LLM alone
DEEP = "LlamaForCausalLMEagle3Deep"
# the name that most engines know, by the kind of attention; only vLLM has q/k norms
BEST: Mapping[ModelClass, str] = {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}
KIND: Mapping[ModelClass, str] = {"llama": "plain attention", "qwen3": "q/k norms", "mla": "MLA attention"}
# fields of transformers 5.23's LlamaConfig, Qwen3Config and DeepseekV2Config that may not be null
TYPED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "hidden_act",
    "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings",
    "attention_bias",
    "is_encoder_decoder", "chunk_size_feed_forward",
)  # fmt: skip
TYPED_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "llama": ("mlp_bias",),
    "qwen3": ("head_dim", "use_sliding_window", "max_window_layers"),
    "deepseek_v2": ("mlp_bias", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
}
# model types whose config classes have what drafter classes read; speculators knows the two of LAYER_TYPES
TYPES = (
    "llama", "llama4_text", "mistral", "qwen2", "qwen2_moe", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_next", "qwen3_vl_text",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4", "glm4_moe", "glm4_moe_lite",
    "glm_moe_dsa", "gpt_oss", "minimax",
    "minimax_m2", "mixtral", "granite", "olmo2", "exaone4", "apertus", "ernie4_5", "seed_oss",
)  # fmt: skip
LAYER_TYPES = ("llama", "qwen3")
# keys that a speculators config has at both levels, with different meanings
OF_TWO_LEVELS = (
    "architectures",
    "model_type",
    "transformers_version",
    "auto_map",
    "tie_word_embeddings",
    "_name_or_path",
)
# the value of an absent key in the config class of each kind of attention (transformers 5.19 to 5.23)
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen3": {"hidden_size": 4096, "intermediate_size": 22016, "vocab_size": 151936},
    "mla":   {
        "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000, "num_attention_heads": 32,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}  # fmt: skip
DIMENSIONS = {
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "vocab_size": "vocab",
    "num_attention_heads": "heads",
}
# keys whose type EGL101, EGL118, EGL112 and EGL609 check
CHECKED_ELSEWHERE = ("architectures", "model_type", "torch_dtype", "dtype", "rope_theta")
JSON_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
}


@rule("EGL101", "drafter-architecture", "error")
def architecture(subject: Subject) -> Iterator[Match]:
    """The config names a class that engines serve as a drafter and that fits all of this drafter's tensors.

    Engines look the class up by name. Without one, or with a trainer's own, they stop at load; a class for
    another kind of attention stops too, or skips tensors silently.

    Fix: run `eaglectl convert SOURCE`, or write LlamaForCausalLMEagle3, Eagle3Qwen3ForCausalLM (q/k norms) or
    Eagle3DeepseekV2ForCausalLM (MLA).
    """
    names = _architectures(subject)
    if names is None:
        return
    stated, served = subject.config.get("architectures"), _served(names)
    place = key_place(subject.config, "architectures")
    if isinstance(stated, str):
        yield Match(f"architectures is the text {stated!r}; a list of names is needed", place)
    elif not served:
        text = f"architectures is {listed(names)}" if names else "config names no architecture"
        yield Match(f"{text}; no engine serves a drafter of that name", place)
    elif (built := class_of(served[0])) != (stored := _stored_class(subject)):
        yield Match(f"{served[0]} is a class for {KIND[built]}, and the tensors are of {KIND[stored]}", place)


not_a_drafter = note_rule(
    "EGL103",
    "not-a-drafter",
    "error",
    """The checkpoint is an EAGLE-3 or EAGLE-3.1 drafter.

    A target, an adapter, or the head of another method (EAGLE-1, Medusa, MTP, DFlash) does not run in an
    EAGLE-3 class, or runs as a drafter whose drafts are never accepted.

    Fix: give the folder of the drafter.
    """,
)


@rule("EGL104", "null-fields", "error")
def null_fields(subject: Subject) -> Iterator[Match]:
    """No key that needs a value of a type is null.

    transformers 5 checks the types of these fields and stops; vLLM multiplies by target_hidden_size and
    stops where it is null. An absent key means its default.

    Fix: write the value, or remove the key.
    """
    layer = subject.config.get("transformer_layer_config")
    is_nested = isinstance(layer, Mapping) or subject.config.get("speculators_model_type") is not None
    config = layer if isinstance(layer, Mapping) else subject.config
    prefix = "transformer_layer_config." if is_nested else ""
    typed = (*TYPED, *TYPED_BY_TYPE.get(str(config.get("model_type")), ()), "target_hidden_size")
    keys = typed[:-1] if is_nested else typed
    nulls = [key for key in keys if key in config and config[key] is None]
    for key in nulls:
        text = f"{key} is null; a value of its type is needed, or no such key"
        yield Match(text, f"config.json:{prefix}{key}")
    if not nulls and subject.ended_on("null-fields"):
        yield from subject.reported("null-fields")


record_edited = note_rule(
    "EGL123",
    "record-edited",
    "warning",
    """What eaglectl.json records of an open fact is what config.json says.

    A conversion records how facts were settled that its source left open. Where the config was edited since,
    the record does not vouch for it, and nothing else does.

    Fix: run `eaglectl convert SOURCE` with the option of the answer that is true.
    """,
    is_fault=True,
)


@rule("EGL111", "spellings-agree", "error")
def spellings_agree(subject: Subject) -> Iterator[Match]:
    """Values that the config states twice agree.

    Older and newer readers, and different engines, read one value under different names (torch_dtype and
    dtype, the top level and eagle_config or transformer_layer_config): where these differ, they serve
    different drafters.

    Fix: keep the value that was trained, and remove or correct the other. Where tensors show it,
    `eaglectl convert SOURCE` does.
    """
    config, inner = subject.config, subject.config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    stated = [config[key] for key in ("torch_dtype", "dtype") if config.get(key) is not None]
    if len({str(dtype).removeprefix("torch.") for dtype in stated}) > 1:
        yield Match("torch_dtype is {} and dtype is {}".format(*stated), "config.json:torch_dtype")
    for key in sorted(set(config) & set(layer) - set(OF_TWO_LEVELS) - set(SPECULATORS_KEYS)):
        if config[key] is not None and layer[key] is not None and config[key] != layer[key]:
            text = f"{key} is {config[key]!r} at the top and {layer[key]!r} in transformer_layer_config"
            yield Match(text, f"config.json:{key}")
    for note in subject.drafter.notes if subject.read_error is None else ():
        if note.topic == "spellings-agree" and note.is_open:
            raise CannotLook(note.text)  # a conversion assumed it: this file states one value alone
    yield from subject.reported("spellings-agree", is_fault=True)


unread_key = note_rule(
    "EGL122",
    "unread-key",
    "warning",
    """No key that is not read looks as if it changed what the drafter computes.

    Trainers name layer ids, norms, rope settings and vocabulary maps each in their own way. Engines ignore
    unknown keys: if one means what its name suggests, the drafter runs differently than it was trained.

    Fix: state the layers with `--aux-layers`, or pass `--source-semantics harmless=KEY` if the key changes
    nothing.
    """,
    is_fault=True,
)


@rule("EGL112", "value-types", "error")
def value_types(subject: Subject) -> Iterator[Match]:
    """Every value that describes the drafter has the right type: a number, a switch, a list of layers, an
    object.

    Engines accept a string in place of a number until they compute with it, and stop during a load or a
    request.

    Fix: correct the value.
    """
    for key in ("torch_dtype", "dtype"):
        stated = flattened(subject.config).get(key)
        if stated is not None and not DTYPE.fullmatch(str(stated)):
            yield Match(f"{key} is {stated!r}; a type of torch was expected", key_place(subject.config, key))
    if subject.read_error is None or subject.ended_on("value-types"):
        yield from subject.reported("value-types")


@rule("EGL113", "hidden-act", "error")
def hidden_act(subject: Subject) -> Iterator[Match]:
    """hidden_act is silu.

    The drafter classes of vLLM and SGLang support no other activation, and stop.

    Fix: correct the key if the drafter was trained with silu; no engine serves another activation.
    """
    stated = flattened(subject.config).get("hidden_act")
    if isinstance(stated, str) and stated != "silu":
        yield Match(
            f"hidden_act is {stated!r}; engines build drafters with silu alone",
            key_place(subject.config, "hidden_act"),
        )


training_unservable = note_rule(
    "EGL117",
    "training-unservable",
    "error",
    """The drafter was trained with computations that engines support.

    Some trainers compute what no engine computes; such a head loads, and its drafts are worse than in
    training.

    Fix: run `eaglectl convert SOURCE`, which repairs what arithmetic can repair and refuses the rest; that
    must be trained again.
    """,
)


@rule("EGL118", "model-type", "error")
def model_type(subject: Subject) -> Iterator[Match]:
    """The config states its model_type; a speculators config states it in transformer_layer_config alone.

    transformers selects the config's class by model_type, and stops without it. vLLM recognises a
    speculators config only where model_type is absent from the top level and speculators_config is present.
    It builds the class of the layer's model_type, and Llama's where there is none.

    Fix: write model_type: llama, qwen3 or deepseek_v2; in a speculators config write llama or qwen3 inside
    transformer_layer_config alone, and copy speculators_config from the trainer's config.
    """
    config = subject.config
    layer = config.get("transformer_layer_config")
    if layer is not None and not isinstance(layer, Mapping):
        raise CannotLook("transformer_layer_config is no object")
    if config.get("speculators_model_type") is not None:
        yield from _speculators_model_type(subject, layer)
    elif layer is not None:
        yield Match(
            "config has transformer_layer_config, as speculators writes it, and no speculators_model_type",
            "config.json:transformer_layer_config",
        )
    else:
        yield from _unknown_model_type(config.get("model_type"), TYPES, key_place(config, "model_type"))


def _speculators_model_type(subject: Subject, layer: Mapping[str, Any] | None) -> Iterator[Match]:
    stated, place = subject.config.get("model_type"), "config.json:transformer_layer_config"
    has_qk_norm = any(name.endswith("q_norm.weight") for name in subject.checkpoint.tensors)
    layer_type = (layer or {}).get("model_type")
    if stated is not None:
        yield Match(f"a speculators config with model_type: {stated!r} at its top", "config.json:model_type")
    elif subject.config.get("speculators_config") is None:
        yield Match("a speculators config without speculators_config, by which vLLM knows one")
    elif layer is None:
        yield from _unknown_model_type(None, TYPES, key_place(subject.config, "model_type"))
    elif layer and "model_type" not in layer and not has_qk_norm:
        return
    elif layer_type in LAYER_TYPES and (layer_type == "qwen3") != has_qk_norm:
        norm = "q_norm" if has_qk_norm else "no q_norm"
        yield Match(
            f"transformer_layer_config's model_type is {layer_type!r}, and the file has {norm}"
            "; Qwen3's attention has one, Llama's has none",
            place,
        )
    else:
        yield from _unknown_model_type(layer_type, LAYER_TYPES, place)


def _unknown_model_type(stated: object, known: Collection[str], place: str) -> Iterator[Match]:
    if stated is None:
        yield Match("config has no model_type", place)
    elif stated not in known:
        yield Match(f"model_type is {stated!r}, which no drafter's class reads", place)


@rule("EGL119", "portable-architecture", "note")
def portable_architecture(subject: Subject) -> Iterator[Match]:
    """The architecture has the name that most engines know.

    SGLang, TensorRT-LLM, tokenspeed and ATOM know LlamaForCausalLMEagle3 (for MLA,
    Eagle3DeepseekV2ForCausalLM); vLLM knows these and some more, and adds Eagle3 to a plain name. Only
    TensorRT-LLM knows LlamaForCausalLMEagle3Deep.

    Fix: run `eaglectl convert SOURCE`, or write that name.
    """
    names, model_class = _architectures(subject), _stored_class(subject)
    best, served = BEST.get(model_class), _served(names or ())
    if names and best and best not in names and served and class_of(served[0]) == model_class:
        engine = "TensorRT-LLM" if DEEP in names else "vLLM"
        yield Match(
            f"{names[0]} is known to {engine} alone; {best} to other engines too",
            key_place(subject.config, "architectures"),
        )


@rule("EGL120", "allowed-architecture", "error")
def allowed_architecture(subject: Subject) -> Iterator[Match]:
    """The architecture is one that the policy allows.

    Reports nothing without `architectures` in the policy's [allow].

    Fix: convert to a layout of an allowed class, or add the class to the policy.
    """
    allowed = subject.policy.allowed.get("architectures")
    if allowed is None:
        return
    names = subject.config.get("architectures")
    for name in names if isinstance(names, list) else [names]:
        if not any(fnmatchcase(str(name), pattern) for pattern in allowed):
            text = f"{name} is not among {', '.join(allowed)}"
            yield Match(text, key_place(subject.config, "architectures"))


def _served(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name == DEEP or name in load("vllm")["architectures"])


def _architectures(subject: Subject) -> tuple[str, ...] | None:
    """The names that engines look up; None where vLLM's speculators reader chooses the class."""
    if {"speculators_model_type", "transformer_layer_config"} & set(subject.config):
        return None
    if subject.ended_on("not-a-drafter"):
        raise CannotLook("it is no drafter")
    names = subject.config.get("architectures")
    if names is None:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else (str(names),)


def _stored_class(subject: Subject) -> ModelClass:
    return model_class_of(subject.drafter.tensors, subject.drafter.dims)


@rule("EGL105", "layer-count", "error")
def layer_count(subject: Subject) -> Iterator[Match]:
    """num_hidden_layers is the number of layers in the weights.

    Engines build as many layers as the config states: layers that the weights lack run on uninitialised
    memory, and further ones are dropped or stop the load. The key is often copied from the target.

    Fix: write the number of layers that the weights have.
    """
    yield from subject.reported("layer-count")
    if "num_hidden_layers" not in subject.flat:
        layers = subject.drafter.dims.layers
        yield Match(
            f"config has no num_hidden_layers; its class then means 32, and the weights have {layers}",
            "config.json",
        )


head_dim = note_rule(
    "EGL106",
    "head-dim",
    "error",
    """head_dim, as stated or as hidden_size/num_attention_heads, is the head size of the weights.

    Engines size the attention by it, and stop at the first attention weight that does not fit.

    Fix: write head_dim as the weights have it.
    """,
)


@rule("EGL107", "tied-head", "warning")
def tied_head(subject: Subject) -> Iterator[Match]:
    """tie_word_embeddings is false.

    No engine ties a drafter's head to the drafter's embedding as trainers do: SGLang uses the embedding as
    the head even where the file has a head, and vLLM uses the target's head where the file has none.

    Fix: run `eaglectl convert SOURCE`, which writes the head and false.
    """
    yield from subject.reported("tied-head")
    tensors = subject.drafter.tensors
    head, embedding = tensors.get("lm_head.weight"), tensors.get("embed_tokens.weight")
    if head and embedding and head.stored == embedding.stored:
        yield Match(
            (
                "tie_word_embeddings is true and the file has no lm_head:"
                " the drafter was trained with its embedding as head"
            ),
            key_place(subject.config, "tie_word_embeddings"),
        )


@rule("EGL108", "bias-flag", "error")
def bias_flag(subject: Subject) -> Iterator[Match]:
    """attention_bias and mlp_bias state which biases the weights have.

    vLLM adds uninitialised memory for a stated bias that is missing, and silently drops a bias that is not
    stated; no engine has a bias on fc.

    Fix: correct the switch, or restore the biases from the trainer.
    """
    yield from subject.reported("bias-flag")
    if "fc.bias" in subject.drafter.tensors:
        yield Match("fc.bias has no place in any engine; it is silently dropped", "tensor:fc.bias")


@rule("EGL110", "residual-unstated", "note")
def residual_unstated(subject: Subject) -> Iterator[Match]:
    """norm_before_residual is stated.

    An absent key means true to vLLM's speculators reader, and false to the speculators library and every
    other reader.

    Fix: run `eaglectl convert SOURCE`, which states it.
    """
    if not Keys(subject.flat).statements("norm_before_residual"):
        meant = str(subject.drafter.norms.norm_before_residual).lower()
        yield Match(f"config has no norm_before_residual; it is read as {meant} here", "config.json")


@rule("EGL114", "config-dimensions", "error")
def dimensions(subject: Subject) -> Iterator[Match]:
    """The sizes in the config are the sizes of the tensors.

    Engines allocate by the config and stop where a tensor does not fit; where it fits into a larger one,
    the rest stays uninitialised.

    Fix: write the sizes of the tensors; if these are wrong, restore the tensors from the trainer.
    """
    is_speculators = subject.config.get("speculators_model_type") is not None
    has_layer = "transformer_layer_config" in subject.config
    if has_layer and not is_speculators:
        raise CannotLook(
            "config holds its sizes as speculators does, and does not state that it is of speculators"
        )
    yield from subject.reported("config-dimensions")
    if subject.read_error is not None:
        return
    yield from _class_defaults(subject)
    # sizes that the config leaves to engines, which derive others
    flat, dims = subject.flat, subject.drafter.dims
    if flat.get("draft_vocab_size") is None and dims.draft_vocab != dims.vocab:
        yield Match(
            (
                f"config has no draft_vocab_size; engines then build a head of {dims.vocab} rows,"
                f" and it has {dims.draft_vocab}"
            ),
            "config.json",
        )
    key = "target_hidden_size"
    is_null = key in subject.config and not has_layer  # EGL104 reports it
    if flat.get(key) is None and not is_null and dims.target_hidden != dims.hidden:
        yield Match(
            f"config has no {key}; engines then take "
            f"aux states {dims.hidden} wide, and fc takes {dims.target_hidden}",
            "config.json",
        )


def _class_defaults(subject: Subject) -> Iterator[Match]:
    flat, dims = subject.flat, subject.drafter.dims
    for key, default in DEFAULTS[_stored_class(subject)].items():
        size = getattr(dims, DIMENSIONS.get(key, key))
        if key == "q_lora_rank" and not size:
            continue  # EGL201 reports its tensors
        if key not in flat and size != default:
            text = f"config has no {key}; its class then means {default}, and the tensors have {size}"
            yield Match(text, "config.json")
        elif key == "q_lora_rank" and key in flat and flat[key] is None:
            text = f"q_lora_rank is null, with which engines build q_proj, and the tensors have {size}"
            yield Match(text, key_place(subject.config, key))


@rule("EGL116", "mask-token", "error")
def mask_token(subject: Subject) -> Iterator[Match]:
    """A parallel drafter has mask_hidden in its weights, and its config names the mask token.

    vLLM does not start a parallel drafter that lacks either.

    Fix: restore mask_hidden from the trainer; name the token by `eaglectl convert SOURCE` with
    --source-semantics mask_token_id= and its id.
    """
    yield from subject.reported("mask-token", is_fault=True)
    if subject.drafter.kind == "peagle" and "mask_hidden" not in subject.drafter.tensors:
        yield Match("a parallel drafter without mask_hidden", "tensor:mask_hidden")


@rule("EGL121", "config-schema", "warning")
def config_schema(subject: Subject) -> Iterator[Match]:
    """Every value in config.json has the type that its key has in its producer's files.

    Other releases of loaders, and transformers since 5, check types that today's engine ignores, and stop.

    Fix: correct the value; an editor that is given schemas/config-<producer>.schema.json marks it.
    """
    if subject.ended_on("not-a-drafter"):
        raise CannotLook(str(subject.read_error))
    # the format that detection recognises, also of a checkpoint that could not be read
    stored = subject.checkpoint
    format, _ = detect(CheckpointSummary(stored.config, tuple(stored.tensors), stored.metadata))
    schema = _schema(format.schema_name)
    if _fits(schema, subject.config):
        return
    # keys of values that reading the checkpoint reported already
    reported = (
        {note.about for note in subject.drafter.notes if note.topic == "value-types"}
        if subject.read_error is None
        else {subject.read_error.where.removeprefix("config.json:").rpartition(".")[2]}
    )
    for where, message in violations(schema, subject.config):
        if where.partition("[")[0].rpartition(".")[2] not in (*CHECKED_ELSEWHERE, *reported):
            yield Match(f"{where} does not fit: {message}", f"config.json:{where}")


def violations(
    schema: Mapping[str, Any], config: Mapping[str, Any], *, is_strict: bool = False
) -> Iterator[tuple[str, str]]:
    """The places in a config that do not fit its schema, as "key.key[0]", and what was expected there.

    Unless `is_strict`, absent keys are left to the rules that need them, and nulls to EGL104.
    """
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(config):
        if is_strict or (error.validator != "required" and error.instance is not None):
            yield error.json_path.removeprefix("$."), error.message[:300]


def schema_file(name: str) -> Path:
    """The path of a schema: in the installed package, or beside it in a checkout."""
    package = Path(eaglectl.__file__).parent
    places = (package / "schemas" / name, package.parent / "schemas" / name)
    return next((place for place in places if place.is_file()), places[0])


@cache
def _schema(name: str) -> Mapping[str, Any]:
    file = schema_file(f"config-{name}.schema.json")
    try:
        schema: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotLook(f"{file}: {error.strerror}; reinstall eaglectl") from None
    return schema


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value fits, for the keywords that our schemas use: importing jsonschema takes longer than
    all rules.
    """
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if value is None:
        return True
    if types and not any(JSON_TYPES[name](value) for name in types):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if type(value) in (int, float):
        return is_within(schema, value)
    if isinstance(value, list):
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(_fits(items, item) for item in value)
    if not isinstance(value, Mapping):
        return True
    properties = schema.get("properties", {})
    return all(_fits(properties[key], value[key]) for key in value.keys() & properties.keys())
