"""Rules on config.json by itself: the class that it names, the types of its values, and repeated values."""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.data import load
from eaglectl.engines.vllm import SPECULATORS_KEYS, class_of
from eaglectl.formats.catalogue import flattened
from eaglectl.formats.format import ModelClass
from eaglectl.formats.reader import model_class_of
from eaglectl.text import listed
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.rules.weights import DTYPE
from eaglectl.validation.subject import Subject, key_place

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
    stated = subject.config.get("architectures")
    place = key_place(subject.config, "architectures")
    served = _served(names)
    if isinstance(stated, str):
        yield Match(f"architectures is the text {stated!r}; a list of names is needed", place)
        return
    if not served:
        text = f"architectures is {listed(names)}" if names else "config names no architecture"
        yield Match(f"{text}; no engine serves a drafter of that name", place)
        return
    built = class_of(served[0])
    stored = model_class_of(subject.drafter.tensors, subject.drafter.dims)
    if built != stored:
        yield Match(f"{served[0]} is a class for {KIND[built]}, and the tensors are of {KIND[stored]}", place)


@rule("EGL103", "not-a-drafter", "error")
def not_a_drafter(subject: Subject) -> Iterator[Match]:
    """The checkpoint is an EAGLE-3 or EAGLE-3.1 drafter.

    A target, an adapter, or the head of another method (EAGLE-1, Medusa, MTP, DFlash) does not run in an
    EAGLE-3 class, or runs as a drafter whose drafts are never accepted.

    Fix: give the folder of the drafter.
    """
    yield from subject.reported("not-a-drafter")


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
    nulls = [key for key in _typed_keys(config, is_nested=is_nested) if key in config and config[key] is None]
    for key in nulls:
        path = f"transformer_layer_config.{key}" if is_nested else key
        yield Match(f"{key} is null; a value of its type is needed, or no such key", f"config.json:{path}")
    if not nulls and subject.ended_on("null-fields"):
        yield from subject.reported("null-fields")


def _typed_keys(config: Mapping[str, Any], *, is_nested: bool) -> tuple[str, ...]:
    keys = (*TYPED, *TYPED_BY_TYPE.get(str(config.get("model_type")), ()))
    return keys if is_nested else (*keys, "target_hidden_size")


@rule("EGL123", "record-edited", "warning")
def record_edited(subject: Subject) -> Iterator[Match]:
    """What eaglectl.json records of an open fact is what config.json says.

    A conversion records how facts were settled that its source left open. Where the config was edited since,
    the record does not vouch for it, and nothing else does.

    Fix: run `eaglectl convert SOURCE` with the option of the answer that is true.
    """
    yield from subject.reported("record-edited", is_fault=True)


@rule("EGL111", "spellings-agree", "error")
def spellings_agree(subject: Subject) -> Iterator[Match]:
    """Values that the config states twice agree.

    Older and newer readers, and different engines, read one value under different names (torch_dtype and
    dtype, the top level and eagle_config or transformer_layer_config): where these differ, they serve
    different drafters.

    Fix: keep the value that was trained, and remove or correct the other. Where tensors show it,
    `eaglectl convert SOURCE` does.
    """
    config = subject.config
    inner = config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    older, newer = config.get("torch_dtype"), config.get("dtype")
    if older is not None and newer is not None and _dtype(older) != _dtype(newer):
        yield Match(f"torch_dtype is {older} and dtype is {newer}", "config.json:torch_dtype")
    for key in sorted(set(config) & set(layer) - set(OF_TWO_LEVELS) - set(SPECULATORS_KEYS)):
        if config[key] is not None and layer[key] is not None and config[key] != layer[key]:
            text = f"{key} is {config[key]!r} at the top and {layer[key]!r} in transformer_layer_config"
            yield Match(text, f"config.json:{key}")
    if subject.read_error is None and (assumed := _assumed(subject.drafter, "spellings-agree")):
        raise CannotLook(assumed)
    yield from subject.reported("spellings-agree", is_fault=True)


def _assumed(drafter: Drafter, topic: str) -> str:
    """What a conversion assumed on a topic, of which this file states one value alone; "" without any."""
    texts = (note.text for note in drafter.notes if note.topic == topic and note.is_open)
    return next(texts, "")


@rule("EGL122", "unread-key", "warning")
def unread_key(subject: Subject) -> Iterator[Match]:
    """No key that is not read looks as if it changed what the drafter computes.

    Trainers name layer ids, norms, rope settings and vocabulary maps each in their own way. Engines ignore
    unknown keys: if one means what its name suggests, the drafter runs differently than it was trained.

    Fix: state the layers with `--aux-layers`, or pass `--source-semantics harmless=KEY` if the key changes
    nothing.
    """
    yield from subject.reported("unread-key", is_fault=True)


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


@rule("EGL117", "training-unservable", "error")
def training_unservable(subject: Subject) -> Iterator[Match]:
    """The drafter was trained with computations that engines support.

    Some trainers compute what no engine computes; such a head loads, and its drafts are worse than in
    training.

    Fix: run `eaglectl convert SOURCE`, which repairs what arithmetic can repair and refuses the rest; that
    must be trained again.
    """
    yield from subject.reported("training-unservable")


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
        text = "config has transformer_layer_config, as speculators writes it, and no speculators_model_type"
        yield Match(text, "config.json:transformer_layer_config")
    else:
        yield from _unknown_model_type(config.get("model_type"), TYPES, key_place(config, "model_type"))


def _speculators_model_type(subject: Subject, layer: Mapping[str, Any] | None) -> Iterator[Match]:
    config = subject.config
    stated = config.get("model_type")
    if stated is not None:
        yield Match(f"a speculators config with model_type: {stated!r} at its top", "config.json:model_type")
        return
    if config.get("speculators_config") is None:
        yield Match("a speculators config without speculators_config, by which vLLM knows one")
        return
    if layer is None:
        yield from _unknown_model_type(None, TYPES, key_place(config, "model_type"))
        return
    place = "config.json:transformer_layer_config"
    layer_type, has_qk_norm = layer.get("model_type"), _has_qk_norm(subject)
    if layer and "model_type" not in layer and not has_qk_norm:
        return
    if layer_type in LAYER_TYPES and (layer_type == "qwen3") != has_qk_norm:
        norm = "q_norm" if has_qk_norm else "no q_norm"
        text = f"transformer_layer_config's model_type is {layer_type!r}, and the file has {norm}"
        yield Match(f"{text}; Qwen3's attention has one, Llama's has none", place)
    else:
        yield from _unknown_model_type(layer_type, LAYER_TYPES, place)


def _unknown_model_type(stated: object, known: Collection[str], place: str) -> Iterator[Match]:
    if stated is None:
        yield Match("config has no model_type", place)
    elif stated not in known:
        yield Match(f"model_type is {stated!r}, which no drafter's class reads", place)


def _has_qk_norm(subject: Subject) -> bool:
    return any(name.endswith("q_norm.weight") for name in subject.checkpoint.tensors)


@rule("EGL119", "portable-architecture", "note")
def portable_architecture(subject: Subject) -> Iterator[Match]:
    """The architecture has the name that most engines know.

    SGLang, TensorRT-LLM, tokenspeed and ATOM know LlamaForCausalLMEagle3 (for MLA,
    Eagle3DeepseekV2ForCausalLM); vLLM knows these and some more, and adds Eagle3 to a plain name. Only
    TensorRT-LLM knows LlamaForCausalLMEagle3Deep.

    Fix: run `eaglectl convert SOURCE`, or write that name.
    """
    names = _architectures(subject)
    model_class = model_class_of(subject.drafter.tensors, subject.drafter.dims)
    best, served = BEST.get(model_class), _served(names or ())
    if names and best and best not in names and served and class_of(served[0]) == model_class:
        engine = "TensorRT-LLM" if DEEP in names else "vLLM"
        text = f"{names[0]} is known to {engine} alone; {best} to other engines too"
        yield Match(text, key_place(subject.config, "architectures"))


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
            yield Match(
                f"{name} is not among {', '.join(allowed)}", key_place(subject.config, "architectures")
            )


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


def _dtype(value: object) -> str:
    return str(value).removeprefix("torch.")
