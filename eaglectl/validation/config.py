"""Rules on config.json by itself: the class it names, the kinds of its values, and spellings that agree."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.engines.view import SPECULATORS_KEYS
from eaglectl.engines.vllm import data
from eaglectl.formats.format import Family
from eaglectl.formats.reading import family_of
from eaglectl.formats.speculators import flatten
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject, key_place
from eaglectl.validation.weights import DTYPE

# served by TensorRT-LLM alone (formats.md, 6)
DEEP = "LlamaForCausalLMEagle3Deep"
# the name that most engines know, by the kind of attention; q/k norms are vLLM's alone
BEST: Mapping[Family, str] = {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}
KIND: Mapping[Family, str] = {"llama": "plain attention", "qwen3": "q/k norms", "mla": "MLA attention"}
# fields of transformers 5.23's LlamaConfig, Qwen3Config and DeepseekV2Config that may not be null
TYPED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
    "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings", "attention_bias",
    "is_encoder_decoder", "chunk_size_feed_forward",
)  # fmt: skip
TYPED_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "llama": ("mlp_bias",),
    "qwen3": ("head_dim", "use_sliding_window", "max_window_layers"),
    "deepseek_v2": ("mlp_bias", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
}
# keys that the speculators format has at both levels, with meanings of their own
# the types whose config classes have what a drafter class reads; speculators knows the two of its layers
TYPES = (
    "llama", "llama4_text", "mistral", "qwen2", "qwen2_moe", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "minimax",
    "minimax_m2", "mixtral", "granite", "olmo2", "exaone4", "apertus", "ernie4_5", "seed_oss",
)  # fmt: skip
LAYER_TYPES = ("llama", "qwen3")
OF_TWO_LEVELS = (
    "architectures",
    "model_type",
    "transformers_version",
    "auto_map",
    "tie_word_embeddings",
    "_name_or_path",
)


@rule("EGL101", "drafter-architecture", "error")
def architecture(subject: Subject) -> Iterator[Hit]:
    """The config names a class that an engine serves as a drafter, and that has a place for all of this drafter's tensors.

    Engines look the class up by its name. Without one, or with a trainer's own, they stop at load; a class for another
    kind of attention stops too, or skips tensors in silence.

    Fix: run `eaglectl convert`, or write LlamaForCausalLMEagle3, Eagle3Qwen3ForCausalLM (q/k norms) or
    Eagle3DeepseekV2ForCausalLM (MLA).
    """
    names = _architectures(subject)
    if names is None:
        return
    stated = subject.config.get("architectures")
    place = key_place(subject.config, "architectures")
    served = _served(names)
    if isinstance(stated, str):
        yield Hit(f"architectures is the text {stated!r}; a list of names is needed", place)
        return
    if not served:
        found = f"architectures is {', '.join(names)}" if names else "config names no architecture"
        yield Hit(f"{found}; no engine serves a drafter of that name", place)
        return
    built = _family(served[0])
    has = family_of(subject.drafter.tensors, subject.drafter.dims)
    if built != has:
        yield Hit(f"{served[0]} is a class for {KIND[built]}, and the tensors are of {KIND[has]}", place)


@rule("EGL103", "not-a-drafter", "error")
def not_a_drafter(subject: Subject) -> Iterator[Hit]:
    """The checkpoint is an EAGLE-3 or EAGLE-3.1 drafter.

    A target, an adapter, or the head of another method (EAGLE-1, Medusa, MTP, DFlash) is not served by an EAGLE-3 class, or
    is served as a drafter that is never right.

    Fix: give the folder of the drafter.
    """
    yield from subject.said("not-a-drafter")


@rule("EGL104", "null-fields", "error")
def null_fields(subject: Subject) -> Iterator[Hit]:
    """No key that the config's class gives a type is null.

    transformers 5 checks the types of these fields and stops; vLLM multiplies with target_hidden_size and stops where it is
    null. An absent key means its default.

    Fix: write the value, or remove the key.
    """
    inner = subject.config.get("transformer_layer_config")
    is_nested = isinstance(inner, Mapping) or subject.config.get("speculators_model_type") is not None
    config = inner if isinstance(inner, Mapping) else subject.config
    keys = (
        *TYPED,
        *TYPED_BY_TYPE.get(str(config.get("model_type")), ()),
        *(() if is_nested else ("target_hidden_size",)),
    )
    nulls = [key for key in keys if key in config and config[key] is None]
    for key in nulls:
        at = f"transformer_layer_config.{key}" if is_nested else key
        yield Hit(f"{key} is null; a value of its type is needed, or no such key", f"config.json:{at}")
    if not nulls and subject.stop is not None and subject.stop.topic == "null-fields":
        yield from subject.said("null-fields")


@rule("EGL111", "spellings-agree", "error")
def spellings_agree(subject: Subject) -> Iterator[Hit]:
    """What the config says twice, it says the same way.

    Older and newer readers, and different engines, look for one value under different names (torch_dtype and dtype, the top
    level and eagle_config or transformer_layer_config): where these differ, each serves another drafter.

    Fix: keep the value that was trained, and remove or correct the other.
    """
    config = subject.config
    inner = config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    one, other = config.get("torch_dtype"), config.get("dtype")
    if one is not None and other is not None and _dtype(one) != _dtype(other):
        yield Hit(f"torch_dtype is {one} and dtype is {other}", "config.json:torch_dtype")
    for key in sorted(set(config) & set(layer) - set(OF_TWO_LEVELS) - set(SPECULATORS_KEYS)):
        if config[key] is not None and layer[key] is not None and config[key] != layer[key]:
            text = f"{key} is {config[key]!r} at the top and {layer[key]!r} in transformer_layer_config"
            yield Hit(text, f"config.json:{key}")
    yield from subject.said("spellings-agree")


@rule("EGL112", "value-types", "error")
def value_types(subject: Subject) -> Iterator[Hit]:
    """Every value that describes the drafter is of its kind: a number, a switch, a list of layers, an object.

    Engines take a text where a number belongs as far as it goes, and stop in the middle of a load or a request.

    Fix: correct the value.
    """
    for key in ("torch_dtype", "dtype"):
        stated = flatten(subject.config).get(key)
        if stated is not None and not DTYPE.fullmatch(str(stated)):
            yield Hit(f"{key} is {stated!r}; a type of torch was expected", key_place(subject.config, key))
    if subject.stop is None or subject.stop.topic == "value-types":
        yield from subject.said("value-types")


@rule("EGL113", "hidden-act", "error")
def hidden_act(subject: Subject) -> Iterator[Hit]:
    """hidden_act is silu.

    The drafter classes of vLLM and SGLang have no other activation, and stop.

    Fix: correct the key if the drafter was trained with silu; no engine serves another.
    """
    stated = flatten(subject.config).get("hidden_act")
    if isinstance(stated, str) and stated != "silu":
        yield Hit(
            f"hidden_act is {stated!r}; engines build drafters with silu alone", key_place(subject.config, "hidden_act")
        )


@rule("EGL117", "training-unservable", "error")
def training_unservable(subject: Subject) -> Iterator[Hit]:
    """The drafter was trained with maths that engines have.

    Some trainers compute what no engine computes; such a head loads, and drafts worse than it was trained to.

    Fix: run `eaglectl convert`, which repairs what arithmetic can repair and refuses the rest; that must be trained again.
    """
    yield from subject.said("training-unservable")


@rule("EGL118", "model-type", "error")
def model_type(subject: Subject) -> Iterator[Hit]:
    """The config names its model_type, and a speculators config names none at its top.

    transformers picks the config's class by it, and stops without one. vLLM reads a speculators config as such only where
    model_type is absent from the top and speculators_config is there, and builds the class that the layer's model_type names; a layer
    without one is a Llama's to it.

    Fix: write model_type: llama, qwen3 or deepseek_v2; in a speculators config llama or qwen3, inside
    transformer_layer_config alone, and copy speculators_config from the trainer's config.
    """
    config = subject.config
    known: tuple[str, ...]
    stated, layer = config.get("model_type"), config.get("transformer_layer_config")
    is_speculators = config.get("speculators_model_type") is not None
    if layer is not None and not isinstance(layer, Mapping):
        raise CannotLook("transformer_layer_config is no object")
    if is_speculators and isinstance(layer, Mapping):
        known, found, at = LAYER_TYPES, layer.get("model_type"), "config.json:transformer_layer_config"
    else:
        known, found, at = TYPES, stated, key_place(config, "model_type")
    if is_speculators and stated is not None:
        yield Hit(f"a speculators config with model_type: {stated!r} at its top", "config.json:model_type")
    elif is_speculators and stated is None and config.get("speculators_config") is None:
        yield Hit("a speculators config without speculators_config, by which vLLM knows one")
    elif is_speculators and layer and "model_type" not in layer and not _has_qk_norm(subject):
        return
    elif is_speculators and layer and found in LAYER_TYPES and (found == "qwen3") != _has_qk_norm(subject):
        text = f"transformer_layer_config's model_type is {found!r}, and the file has {'no ' if found == 'qwen3' else ''}q_norm"
        yield Hit(f"{text}; Qwen3's attention has one, Llama's has none", at)
    elif layer is not None and not is_speculators:
        text = "config has transformer_layer_config, as speculators writes it, and no speculators_model_type"
        yield Hit(text, "config.json:transformer_layer_config")
    elif found not in known:
        text = (
            "config has no model_type" if found is None else f"model_type is {found!r}, which no drafter's class reads"
        )
        yield Hit(text, at)


def _has_qk_norm(subject: Subject) -> bool:
    return any(name.endswith("q_norm.weight") for name in subject.checkpoint.tensors)


@rule("EGL119", "portable-architecture", "note")
def portable_architecture(subject: Subject) -> Iterator[Hit]:
    """The architecture is the name that most engines know.

    SGLang, TensorRT-LLM, tokenspeed and ATOM know LlamaForCausalLMEagle3 (for MLA, Eagle3DeepseekV2ForCausalLM); vLLM knows
    these and some more, and adds Eagle3 to a plain name. LlamaForCausalLMEagle3Deep is TensorRT-LLM's alone.

    Fix: run `eaglectl convert`, or write that name.
    """
    names = _architectures(subject)
    family = family_of(subject.drafter.tensors, subject.drafter.dims)
    best, served = BEST.get(family), _served(names or ())
    if names and best and best not in names and served and _family(served[0]) == family:
        engine = "TensorRT-LLM" if DEEP in names else "vLLM"
        text = f"{names[0]} is known to {engine} alone; {best} to other engines too"
        yield Hit(text, key_place(subject.config, "architectures"))


@rule("EGL120", "allowed-architecture", "error")
def allowed_architecture(subject: Subject) -> Iterator[Hit]:
    """The architecture is one that the policy allows.

    A team that serves some classes only says so in its policy, by `architectures`.

    Fix: convert to a layout of an allowed class, or add the class to the policy.
    """
    allowed = subject.policy.allowed.get("architectures")
    if allowed is None:
        return
    names = subject.config.get("architectures")
    for name in names if isinstance(names, list) else [names]:
        if not any(fnmatchcase(str(name), pattern) for pattern in allowed):
            yield Hit(f"{name} is not among {', '.join(allowed)}", key_place(subject.config, "architectures"))


def _served(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name == DEEP or name in data()["architectures"])


def _family(name: str) -> Family:
    """The kind of attention that a class is for."""
    return "mla" if "Deepseek" in name else "qwen3" if "Qwen3For" in name else "llama"


def _architectures(subject: Subject) -> tuple[str, ...] | None:
    """The names that engines look up; None where vLLM's speculators reader finds the class itself."""
    if {"speculators_model_type", "transformer_layer_config"} & set(subject.config):
        return None
    if subject.stop is not None and subject.stop.topic == "not-a-drafter":
        raise CannotLook("it is no drafter")
    names = subject.config.get("architectures")
    return tuple(str(name) for name in names) if isinstance(names, list) else () if names is None else (str(names),)


def _dtype(value: object) -> str:
    return str(value).removeprefix("torch.")
