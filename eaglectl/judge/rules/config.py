"""Rules on the files of a checkpoint and on config.json.

Which files exist, which must not, and whether they can be read; the config's class, its values by themselves,
against the tensors and against a JSON Schema. jsonschema is imported only where a value does not fit.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

import eaglectl
from eaglectl.engines.data import load
from eaglectl.engines.vllm import SPECULATORS_KEYS, class_of
from eaglectl.errors import UnreadableError
from eaglectl.files.header import HEADER, JSON, LFS_POINTER, POINTER, SHARDS, UNSAFE, WEIGHTS, parse_json
from eaglectl.files.layout import (
    ADAPTER_CONFIG,
    INDEX,
    NOT_WEIGHTS,
    PICKLES,
    SINGLE,
    are_shards,
    is_adapter,
    is_openvino_weights,
)
from eaglectl.formats.beside import is_adapter_of_drafter
from eaglectl.formats.catalogue import detect, flattened
from eaglectl.formats.config_keys import Keys, is_within
from eaglectl.formats.format import CheckpointSummary, ModelClass
from eaglectl.formats.reader import model_class_of
from eaglectl.judge.judgement import Subject, key_place
from eaglectl.judge.rule import CannotLook, Match, make_rule, note_rule, rule
from eaglectl.judge.rules.weights import DTYPE
from eaglectl.text import listed

PICKLE_SUFFIXES = (*PICKLES, ".pkl", ".pickle", ".ckpt", ".distcp", ".metadata")
CODE = (".py", ".pyc", ".so", ".sh", ".dll", ".dylib", ".exe")
# the files that belong in a drafter's folder; a policy's list of files adds to it
KNOWN = (
    "config.json", "*.safetensors", "model.safetensors.index.json", "generation_config.json",
    "hf_quant_config.json", "eaglectl.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt",
    "tiktoken.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json",
    "README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "CHANGELOG*", "SHA256SUMS",
    "*.sig", "*.intoto.json*", "*.cdx.json",
    "*.png", "*.jpg", "*.svg",
    ".gitattributes", ".gitignore",
)  # fmt: skip
# names that Windows reserves
DEVICES = r"(?i)(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?"
PLAIN = re.compile(r"[A-Za-z0-9._+@=-][A-Za-z0-9._+@= -]*")


KEEP_ADAPTER = (
    "keep the adapter for its model, and convert the drafter (see EGL010): its output has no adapter."
)
MERGE_ADAPTER = "merge the adapter into the drafter by PEFT's merge_and_unload(), and move it elsewhere."


@rule("EGL001", "one-weight-source", "error")
def one_weight_source(subject: Subject) -> Iterator[Match]:
    """The folder holds its weights exactly once: one safetensors file, or the shards of one index.

    Engines choose differently among several: vLLM loads every .safetensors file that no index excludes,
    others only model.safetensors, so engines serve different weights.

    Fix: keep the file, or the index and its shards, that were exported last, and remove the others.
    """
    if subject.ended_on(WEIGHTS):  # there are no tensors to read, or several files without an index
        weights = [name for name in subject.names if name.endswith(".safetensors")]
        if weights and not are_shards(weights):
            yield _read_error(subject)  # it has no fix of its own, so that the rule's holds
        else:
            yield replace(
                _read_error(subject),
                fix="put the weight files beside config.json (download or export them again), or pass their"
                " folder.",
            )
        return
    if subject.source.only is not None:  # the user named one weight file, not the folder
        return
    files = subject.checkpoint.weight_files
    if INDEX not in subject.names:
        for name in _strays(subject):
            yield Match(
                f"{name} is beside {files[0]}, and no {INDEX} selects one of them; vLLM loads both",
                name,
                fix=_adapter_fix(subject) if is_adapter(name, subject.names) else "",
            )
    elif SINGLE in files and (others := set(_weight_map(subject).values()) - {SINGLE}):
        names = ", ".join(sorted(map(str, others))[:3])
        yield Match(f"{SINGLE} is beside {INDEX}, which names other files ({names})", INDEX)


def _adapter_fix(subject: Subject) -> str:
    with suppress(CannotLook):
        if is_adapter_of_drafter(subject.checkpoint, subject.drafter.tensors):
            return MERGE_ADAPTER
    return KEEP_ADAPTER


@rule("EGL002", "unsafe-file", "error", "convert")
def unsafe_file(subject: Subject) -> Iterator[Match]:
    """No file of the checkpoint is a pickle, is code, or is a link that leaves the folder.

    Loading a pickle runs the code in it; the Hub scans for pickles and marks the repository, and engines that
    read only safetensors find no weights. Weights need no code beside them, and a link that leaves the folder
    is broken for everyone else.

    Fix: run `eaglectl convert SOURCE` and publish its output; remove pickles and code, replace links with
    files.
    """
    for name in subject.names:
        if _is_pickle(subject, name):
            yield Match(f"{name} is a pickle", name)
        elif name.endswith(CODE):
            yield Match(f"{name} is code; a checkpoint is data", name)
        else:
            try:
                subject.source.path(name)
            except UnreadableError as error:
                yield Match(str(error), name, fix="put the file itself there.")
    if subject.ended_on(UNSAFE) and _read_error(subject).where not in subject.names:
        yield _read_error(subject)


@rule("EGL004", "shard-index", "error", "anew")
def shard_index(subject: Subject) -> Iterator[Match]:
    """The index names exactly the tensors of its shards, each in the file that holds it.

    Engines load what the index names; a tensor that it omits keeps uninitialised memory, and no engine
    reports it.

    Fix: export the checkpoint again, or convert one whose shards are complete.
    """
    yield from _reported(subject, SHARDS)
    if not {INDEX, SINGLE} <= set(subject.names):
        return
    # of an index beside model.safetensors, which reading ignores and engines do not
    try:
        parse_json(INDEX, subject.source.read(INDEX))
    except UnreadableError as error:
        yield from () if error.topic == POINTER else (Match(str(error), INDEX),)
        return
    weight_map = _weight_map(subject)
    different = set(weight_map) ^ set(subject.checkpoint.tensors)
    if not weight_map:
        yield Match(f'{INDEX} needs a "weight_map" object from tensor to file', INDEX)
    elif different and set(map(str, weight_map.values())) == {SINGLE}:
        yield Match(f"{INDEX} and {SINGLE} differ in {', '.join(sorted(different)[:3])}", INDEX)


@rule("EGL005", "unknown-file", "warning")
def unknown_file(subject: Subject) -> Iterator[Match]:
    """Every file is of a kind that belongs in a drafter's folder.

    Other files of a training folder (logs, optimizer states, data) would be published with it.

    Fix: remove the file, or allow its name by `files` in the policy.
    """
    adapter = ("adapter_*",) if ADAPTER_CONFIG in subject.names else ()  # which EGL010 reports
    allowed = (*KNOWN, *adapter, *subject.policy.allowed.get("files", ()))
    for name in subject.names:
        is_reported = _is_pickle(subject, name) or name.endswith(CODE)  # by EGL002
        if not is_reported and not any(fnmatchcase(name, pattern) for pattern in allowed):
            yield Match(f"{name} does not belong in a drafter's folder", name)
    for name in _strays(subject) if INDEX in subject.names and subject.read_error is None else ():
        yield Match(f"{name} holds weights that {INDEX} does not name", name)


@rule("EGL006", "portable-names", "warning")
def portable_names(subject: Subject) -> Iterator[Match]:
    """File names mean the same on every system.

    Names that differ only in case overwrite each other on macOS and Windows, accented letters have two
    encodings in Unicode, and some names cannot exist on Windows.

    Fix: rename the file to plain letters, digits, dots and dashes.
    """
    earlier: dict[str, str] = {}
    for name in subject.names:
        base = name.rpartition("/")[2]
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in earlier:
            yield Match(
                f"{name!a} and {earlier[folded]!a} are one file on systems that ignore case or accents", name
            )
        elif not PLAIN.fullmatch(base) or re.fullmatch(DEVICES, base) or base.endswith((".", " ")):
            yield Match(f"{name!a} is not a valid file name on every system", name)
        earlier.setdefault(folded, name)


@rule("EGL007", "lfs-pointer", "error")
def lfs_pointer(subject: Subject) -> Iterator[Match]:
    """No file is a Git LFS pointer in place of its content.

    A clone without Git LFS, or an upload of such a clone, holds a few lines of text where the weights
    should be; engines then report a corrupt file.

    Fix: run `git lfs install` and `git lfs pull` in the repository, or download the files with `hf download`.
    """
    for name in subject.names:
        size = _size(subject, name)
        if size is not None and size < 1024 and subject.source.read(name).startswith(LFS_POINTER):
            yield Match(
                f"{name} is a Git LFS pointer of {size} bytes; run `git lfs pull` in its repository",
                name,
            )


@rule("EGL008", "readable-json", "error")
def readable_json(subject: Subject) -> Iterator[Match]:
    """config.json exists and is one JSON object without duplicate keys; so are the other JSON files that
    are read.

    Loaders disagree about which value of a duplicate key counts, and NaN or a comment stops only the strict
    ones.

    Fix: correct the file at the place that the message names.
    """
    if subject.ended_on(JSON):
        yield _read_error(subject)
    else:
        _ = subject.config  # raises CannotLook if reading ended before config.json was parsed
    for name in ("generation_config.json", "tokenizer_config.json"):
        size = _size(subject, name)
        # EGL007 reports pointers
        if size is not None and subject.source.read(name, 0, min(len(LFS_POINTER), size)) != LFS_POINTER:
            try:
                parse_json(name, subject.source.read(name))
            except UnreadableError as error:
                yield Match(str(error), name)


@rule("EGL009", "distributed-checkpoint", "error", "convert")
def distributed_checkpoint(subject: Subject) -> Iterator[Match]:
    """The weights are in files that engines load, not in a torch distributed checkpoint.

    A trainer that shards by rank writes `.distcp` files and a pickled table of them; no engine reads those
    as a drafter's weights.

    Fix: run `eaglectl convert SOURCE`, which writes them as safetensors.
    """
    files = subject.checkpoint.weight_files if subject.read_error is None else ()
    if name := next((name for name in files if name.endswith(".distcp")), ""):
        yield Match(f"{name} is a shard of a distributed checkpoint, which no engine loads", name)


def _is_pickle(subject: Subject, name: str) -> bool:
    is_pickle = name.endswith(PICKLE_SUFFIXES) or re.match(NOT_WEIGHTS, name) is not None
    return is_pickle and not is_openvino_weights(name, subject.names)


def _size(subject: Subject, name: str) -> int | None:
    try:  # None where it does not exist, or where EGL002 reports it
        return subject.source.size(name) if name in subject.names else None
    except UnreadableError:
        return None


def _read_error(subject: Subject) -> Match:
    assert subject.read_error is not None
    return Match(str(subject.read_error), subject.read_error.where)


def _reported(subject: Subject, topic: str) -> Iterator[Match]:
    if subject.ended_on(topic):
        yield _read_error(subject)
    elif not subject.checkpoint.tensors:
        raise CannotLook("there are no tensors")


def _strays(subject: Subject) -> list[str]:
    counted = {*subject.checkpoint.weight_files, *_weight_map(subject).values()}
    return [name for name in subject.names if name.endswith(".safetensors") and name not in counted]


def _weight_map(subject: Subject) -> Mapping[str, Any]:
    try:  # empty where the index is missing or unreadable, which EGL004 reports
        index = parse_json(INDEX, subject.source.read(INDEX)) if INDEX in subject.names else {}
    except UnreadableError:
        return {}
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return weight_map if isinstance(weight_map, dict) else {}


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
# model types whose config classes give the keys that a drafter leaves out the values that drafter classes
# take them for (run in vLLM 0.32.0 and SGLang 0.5.23); those of MLA have other heads than GQA's
TYPES = (
    "llama", "llama4_text", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text",
    "qwen3", "qwen3_moe", "qwen3_vl_text", "granite", "olmo2", "seed_oss", "ernie4_5", "minimax",
    "minimax_m2", "phi3", "smollm3", "hunyuan_v1_dense", "gemma", "starcoder2",
)  # fmt: skip
MLA_TYPES = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa",
)  # fmt: skip
LAYER, LAYER_TYPES = "transformer_layer_config", ("llama", "qwen3")
# keys that a speculators config has at both levels, with different meanings
OF_TWO_LEVELS = (
    "architectures",
    "model_type",
    "transformers_version",
    "auto_map",
    "tie_word_embeddings",
    "_name_or_path",
    # the target's is taken (config/speculative.py of vLLM 0.32.0:1301)
    "dtype",
    "torch_dtype",
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


@rule("EGL101", "drafter-architecture", "error", "convert")
def architecture(subject: Subject) -> Iterator[Match]:
    """The config names a class that engines serve as a drafter and that fits all of this drafter's tensors.

    Engines look the class up by name. Without one, or with a trainer's own, they stop at load; a class for
    another kind of attention stops too, or skips tensors silently.

    Fix: run `eaglectl convert SOURCE`, or write LlamaForCausalLMEagle3, Eagle3Qwen3ForCausalLM (q/k norms) or
    Eagle3DeepseekV2ForCausalLM (MLA).
    """
    if (names := _architectures(subject)) is None:
        return
    value, served = subject.config.get("architectures"), _served(names)
    place = key_place(subject.config, "architectures")
    if isinstance(value, str):
        yield Match(f"architectures is the text {value!r}; it must be a list of names", place)
    elif not served:
        text = f"architectures is {listed(names)}" if names else "config names no architecture"
        yield Match(f"{text}; no engine serves a drafter of that name", place)
    elif (built := class_of(served[0])) != (stored := _stored_class(subject)):
        yield Match(f"{served[0]} is a class for {KIND[built]}, but the tensors have {KIND[stored]}", place)


@rule("EGL104", "null-fields", "error")
def null_fields(subject: Subject) -> Iterator[Match]:
    """No key that requires a typed value is null.

    transformers 5 checks the types of these fields and stops; vLLM multiplies by target_hidden_size and
    stops where it is null. An absent key means its default.

    Fix: write the value, or remove the key.
    """
    layer = subject.config.get("transformer_layer_config")
    is_nested = isinstance(layer, Mapping) or subject.config.get("speculators_model_type") is not None
    config = layer if isinstance(layer, Mapping) else subject.config
    prefix = "transformer_layer_config." if is_nested else ""
    typed = (*TYPED, *TYPED_BY_TYPE.get(str(config.get("model_type")), ()), "target_hidden_size")
    nulls = [key for key in typed[: -1 if is_nested else None] if key in config and config[key] is None]
    words = "is null; write a value or remove the key"
    yield from (Match(f"{key} {words}", f"config.json:{prefix}{key}") for key in nulls)
    if not nulls and subject.ended_on("null-fields"):
        yield from subject.reported("null-fields")


@rule("EGL111", "spellings-agree", "error", "convert")
def spellings_agree(subject: Subject) -> Iterator[Match]:
    """Values that the config states twice agree.

    Older and newer readers, and different engines, read one value under different names (torch_dtype and
    dtype, the top level and eagle_config or transformer_layer_config): where these differ, they serve
    different drafters.

    Fix: keep the value that was trained, and remove or correct the other. If the tensors show which is right,
    `eaglectl convert SOURCE` does this.
    """
    config, inner = subject.config, subject.config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    dtypes = [config[key] for key in ("torch_dtype", "dtype") if config.get(key) is not None]
    if len({str(dtype).removeprefix("torch.") for dtype in dtypes}) > 1:
        yield Match("torch_dtype is {} and dtype is {}".format(*dtypes), "config.json:torch_dtype")
    for key in sorted(set(config) & set(layer) - set(OF_TWO_LEVELS) - set(SPECULATORS_KEYS)):
        if config[key] is not None and layer[key] is not None and config[key] != layer[key]:
            text = f"{key} is {config[key]!r} at the top and {layer[key]!r} in transformer_layer_config"
            yield Match(text, f"config.json:{key}")
    for note in subject.drafter.notes if subject.read_error is None else ():
        if note.topic == "spellings-agree" and note.is_open:
            raise CannotLook(note.text)  # a conversion assumed it: this file states one value only
    yield from subject.reported("spellings-agree", is_fault=True)


@rule("EGL112", "value-types", "error")
def value_types(subject: Subject) -> Iterator[Match]:
    """Every value that describes the drafter has the right type: a number, a switch, a list of layers, an
    object.

    Engines accept a string in place of a number until they compute with it, and stop during a load or a
    request.

    Fix: correct the value.
    """
    for key in ("torch_dtype", "dtype"):
        dtype = flattened(subject.config).get(key)
        if dtype is not None and not re.fullmatch(DTYPE, str(dtype)):
            yield Match(f"{key} is {dtype!r}; it must be a torch dtype", key_place(subject.config, key))
    if subject.read_error is None or subject.ended_on("value-types"):
        yield from subject.reported("value-types")


@rule("EGL113", "hidden-act", "error")
def hidden_act(subject: Subject) -> Iterator[Match]:
    """hidden_act is silu.

    The drafter classes of vLLM and SGLang support no other activation, and stop.

    Fix: correct the key if the drafter was trained with silu; no engine serves another activation.
    """
    activation = flattened(subject.config).get("hidden_act")
    if isinstance(activation, str) and activation != "silu":
        yield Match(
            f"hidden_act is {activation!r}; engines build drafters with silu only",
            key_place(subject.config, "hidden_act"),
        )


@rule("EGL118", "model-type", "error", "convert")
def model_type(subject: Subject) -> Iterator[Match]:
    """The config states its model_type; a speculators config states it only in transformer_layer_config.

    transformers selects the config's class by model_type, and stops without it or at a name that it does
    not know. The classes of some targets give absent keys other values than the trainer did: GLM's rotate
    half of each head, and gpt-oss's have YaRN and a window. vLLM recognises a speculators config only where
    model_type is absent from the top level and speculators_config is present. It builds the class of the
    layer's model_type, and Llama's where there is none.

    Fix: run `eaglectl convert SOURCE`, or write model_type: llama, qwen3 or deepseek_v2; in a speculators
    config write llama or qwen3 only inside transformer_layer_config, and copy speculators_config from the
    trainer's config.
    """
    config, layer, name = subject.config, subject.config.get(LAYER), subject.config.get("model_type")
    is_speculators = config.get("speculators_model_type") is not None
    if layer is not None and not isinstance(layer, Mapping):
        raise CannotLook("transformer_layer_config is no object")
    if layer is not None and not is_speculators:
        yield Match(
            f"config has {LAYER}, as speculators writes it, but no speculators_model_type",
            f"config.json:{LAYER}",
        )
    elif is_speculators and name is not None:
        yield Match(
            f"the speculators config has model_type: {name!r} at the top level", "config.json:model_type"
        )
    elif is_speculators and config.get("speculators_config") is None:
        yield Match("the speculators config has no speculators_config, by which vLLM recognises it")
    elif layer is not None:
        yield from _layer_model_type(subject, layer)
    elif name not in (*TYPES, *(MLA_TYPES if _stored_class(subject) == "mla" else ())):
        yield Match(_unknown(name), key_place(config, "model_type"))


def _unknown(model_type: object) -> str:
    if model_type is None:
        return "config has no model_type"
    return f"model_type is {model_type!r}, with whose config class no drafter is known to run as trained"


def _layer_model_type(subject: Subject, layer: Mapping[str, Any]) -> Iterator[Match]:
    name, place = layer.get("model_type"), f"config.json:{LAYER}"
    has_qk_norm = any(name.endswith("q_norm.weight") for name in subject.checkpoint.tensors)
    is_llama = layer and "model_type" not in layer and not has_qk_norm
    if name not in LAYER_TYPES and not is_llama:
        yield Match(_unknown(name), place)
    elif not is_llama and (name == "qwen3") != has_qk_norm:
        yield Match(
            f"{LAYER}'s model_type is {name!r}, but the file has {'a' if has_qk_norm else 'no'} q_norm"
            "; Qwen3's attention has one, Llama's has none",
            place,
        )


@rule("EGL119", "portable-architecture", "note", "convert")
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
        yield Match(
            f"only {'TensorRT-LLM' if DEEP in names else 'vLLM'} knows {names[0]}; other engines also know"
            f" {best}",
            key_place(subject.config, "architectures"),
        )


@rule("EGL120", "allowed-architecture", "error")
def allowed_architecture(subject: Subject) -> Iterator[Match]:
    """The architecture is one that the policy allows.

    Without `architectures` in the policy's [allow], this rule reports nothing.

    Fix: convert to a layout of an allowed class, or add the class to the policy.
    """
    names = subject.config.get("architectures") if "architectures" in subject.policy.allowed else []
    for name in names if isinstance(names, list) else [names]:
        if words := subject.policy.refusal("architectures", str(name)):
            yield Match(f"{name} {words}", key_place(subject.config, "architectures"))


def _served(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name == DEEP or name in load("vllm")["architectures"])


def _architectures(subject: Subject) -> tuple[str, ...] | None:
    # those that engines look up; None if vLLM's speculators reader chooses the class
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
    memory, and extra layers are dropped or stop the load. The key is often copied from the target.

    Fix: write the number of layers that the weights have.
    """
    yield from subject.reported("layer-count")
    if "num_hidden_layers" not in subject.flat:
        yield Match(
            "config has no num_hidden_layers; the class's default is 32, and the weights have"
            f" {subject.drafter.dims.layers}",
            "config.json",
        )


@rule("EGL107", "tied-head", "warning", "convert")
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
                " the drafter was trained with its embedding as lm_head"
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
        yield Match("no engine has fc.bias; engines silently drop it", "tensor:fc.bias")


@rule("EGL110", "residual-unstated", "note", "convert")
def residual_unstated(subject: Subject) -> Iterator[Match]:
    """norm_before_residual is stated.

    An absent key means true to vLLM's speculators reader, and false to the speculators library and every
    other reader.

    Fix: run `eaglectl convert SOURCE`, which states it.
    """
    if not Keys(subject.flat).statements("norm_before_residual"):
        value = str(subject.drafter.norms.norm_before_residual).lower()
        yield Match(f"config has no norm_before_residual; eaglectl reads it as {value}", "config.json")


@rule("EGL114", "config-dimensions", "error")
def dimensions(subject: Subject) -> Iterator[Match]:
    """The sizes in the config are the sizes of the tensors.

    Engines allocate by the config and stop where a tensor does not fit; where it fits into a larger one,
    the rest stays uninitialised.

    Fix: write the sizes of the tensors; if these are wrong, restore the tensors from the trainer.
    """
    has_layer = LAYER in subject.config
    if has_layer and subject.config.get("speculators_model_type") is None:
        raise CannotLook("config stores its sizes as speculators does, but has no speculators_model_type")
    yield from subject.reported("config-dimensions")
    if subject.read_error is not None:
        return
    yield from _class_defaults(subject)
    # sizes that the config leaves to engines, which derive others
    flat, dims = subject.flat, subject.drafter.dims
    if flat.get("draft_vocab_size") is None and dims.draft_vocab != dims.vocab:
        yield Match(
            (
                f"config has no draft_vocab_size; engines then build lm_head with {dims.vocab} rows,"
                f" and the file's has {dims.draft_vocab}"
            ),
            "config.json",
        )
    key = "target_hidden_size"
    is_null = key in subject.config and not has_layer  # EGL104 reports it
    if flat.get(key) is None and not is_null and dims.target_hidden != dims.hidden:
        yield Match(
            f"config has no {key}; engines then build fc for aux states of width {dims.hidden},"
            f" and its width is {dims.target_hidden}",
            "config.json",
        )


def _class_defaults(subject: Subject) -> Iterator[Match]:
    # keys that config.json lacks or has as null, where the class's default is not the drafter's size
    flat, dims, rank = subject.flat, subject.drafter.dims, "q_lora_rank"
    for key, default in DEFAULTS[_stored_class(subject)].items():
        size = getattr(dims, DIMENSIONS.get(key, key))
        is_reported = key == rank and not size  # by EGL201, on its tensors
        if key not in flat and size != default and not is_reported:
            yield Match(
                f"config has no {key}; the class's default is {default}, and the tensors have {size}",
                "config.json",
            )
    if rank in flat and flat[rank] is None and dims.q_lora_rank and dims.attention == "MLA":
        yield Match(
            f"{rank} is null, so engines build q_proj, but the tensors have rank {dims.q_lora_rank}",
            key_place(subject.config, rank),
        )


@rule("EGL116", "mask-token", "error", "settle")
def mask_token(subject: Subject) -> Iterator[Match]:
    """A parallel drafter has mask_hidden in its weights, and its config names the mask token.

    vLLM does not start a parallel drafter that lacks either.

    Fix: restore mask_hidden from the trainer; state the token with `eaglectl convert SOURCE` and
    --source-semantics mask_token_id= with its id.
    """
    yield from subject.reported("mask-token", is_fault=True)
    if subject.drafter.kind == "peagle" and "mask_hidden" not in subject.drafter.tensors:
        yield Match("the parallel drafter has no mask_hidden", "tensor:mask_hidden")


@rule("EGL121", "config-schema", "warning")
def config_schema(subject: Subject) -> Iterator[Match]:
    """Every value in config.json has the type that the producer writes for its key.

    Other releases of loaders, and transformers since 5, check types that today's engine ignores, and stop.

    Fix: correct the value; an editor that is given schemas/config-<producer>.schema.json marks it.
    """
    if subject.ended_on("not-a-drafter"):
        raise CannotLook(str(subject.read_error))
    # detection recognises the format of a checkpoint that could not be read, too
    stored = subject.checkpoint
    format, _ = detect(CheckpointSummary(stored.config, tuple(stored.tensors), stored.metadata))
    schema = _schema(format.schema_name)
    if _fits(schema, subject.config):
        return
    # keys whose values the reader reported before
    if subject.read_error is None:
        reported = {note.about for note in subject.drafter.notes if note.topic == "value-types"}
    else:
        reported = {subject.read_error.where.removeprefix("config.json:").rpartition(".")[2]}
    for where, message in violations(schema, subject.config):
        if where.partition("[")[0].rpartition(".")[2] not in (*CHECKED_ELSEWHERE, *reported):
            yield Match(f"{where} does not fit: {message}", f"config.json:{where}")


def violations(
    schema: Mapping[str, Any], config: Mapping[str, Any], *, is_strict: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the places in a config that do not fit its schema, as "key.key[0]", and what was expected.

    Unless `is_strict`, absent keys are left to the rules that need them, and nulls to EGL104.
    """
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(config):
        if is_strict or (error.validator != "required" and error.instance is not None):
            yield error.json_path.removeprefix("$."), error.message[:300]


def schema_file(name: str) -> Path:
    """Return the path of a schema: in the installed package, or beside it in a checkout."""
    package = Path(eaglectl.__file__).parent
    places = (package / "schemas" / name, package.parent / "schemas" / name)
    return next((place for place in places if place.is_file()), places[0])


@cache
def _schema(name: str) -> Mapping[str, Any]:
    file = schema_file(f"config-{name}.schema.json")
    try:
        return cast(Mapping[str, Any], json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise CannotLook(f"{file}: {error.strerror}; reinstall eaglectl") from None


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    # only for the keywords in eaglectl's schemas: importing jsonschema takes longer than all rules
    types = schema.get("type", tuple(JSON_TYPES))
    is_of_type = any(JSON_TYPES[name](value) for name in ([types] if isinstance(types, str) else types))
    if value is None:
        return True
    if not is_of_type or ("enum" in schema and value not in schema["enum"]):
        return False
    if isinstance(value, list):
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(_fits(items, item) for item in value)
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        return all(_fits(properties[key], value[key]) for key in value.keys() & properties.keys())
    return type(value) not in (int, float) or is_within(schema, value)


# what reading reports on the topic of a rule's name, and rules of one call
RULES = (
    make_rule(
        "EGL003",
        "safetensors-header",
        "error",
        lambda subject: _reported(subject, HEADER),
        """Every weight file has a valid header whose tensors follow each other without gaps and end where the
    file ends.

    An interrupted download or copy, a full disk or an attacker produces such a file.

    Fix: download or export the file again, and compare its size and SHA-256 with the source's.
    """,
    ),
    note_rule(
        "EGL103",
        "not-a-drafter",
        "error",
        """The checkpoint is an EAGLE-3 or EAGLE-3.1 drafter.

    A target, an adapter, or the head of another method (EAGLE-1, Medusa, MTP, DFlash) does not run in an
    EAGLE-3 class, or runs as a drafter whose drafts are never accepted.

    Fix: pass the folder of the drafter.
    """,
    ),
    note_rule(
        "EGL010",
        "adapter",
        "error",
        """No LoRA adapter lies beside the drafter, or it is stated that the target is merged with it.

    ModelOpt trains a LoRA of the target together with the drafter (eagle_base_lora) and exports it to the
    drafter's folder. The drafter then reads other states from the plain target than in training. vLLM and
    SGLang serve no drafter with an adapter, and open the adapter's file with the weights.

    Fix: merge the adapter into the target, serve the drafter with the merged target, and run
    `eaglectl convert SOURCE --target TARGET --source-semantics adapter=merged`.
    """,
        "settle",
        is_fault=True,
    ),
    note_rule(
        "EGL011",
        "unfinished-save",
        "error",
        """The trainer finished writing the checkpoint.

    verl-SpeCo writes metadata.json last, and loads no checkpoint whose "complete" is not true there: its
    weights may be cut, or those of two steps.

    Fix: pass the folder of a finished save.
    """,
    ),
    note_rule(
        "EGL106",
        "head-dim",
        "error",
        """head_dim (by default hidden_size/num_attention_heads) is the head size of the weights.

    Engines size the attention by it, and stop at the first attention weight that does not fit.

    Fix: set head_dim to the head size of the weights.
    """,
    ),
    note_rule(
        "EGL117",
        "training-unservable",
        "error",
        """The drafter was trained with computations that engines support.

    Some trainers compute what no engine computes; such a head loads, and its drafts are worse than in
    training.

    Fix: run `eaglectl convert SOURCE`, which repairs what arithmetic can repair; train the drafter again if
    it is refused.
    """,
        "convert",
    ),
    note_rule(
        "EGL122",
        "unread-key",
        "warning",
        """No ignored config key looks as if it changes what the drafter computes.

    Trainers name layer ids, norms, rope settings and vocabulary maps each in their own way. Engines ignore
    unknown keys: if one means what its name suggests, the drafter runs differently than it was trained.

    Fix: state the layers with `--aux-layers`, or pass `--source-semantics harmless=KEY` if the key changes
    nothing.
    """,
        is_fault=True,
    ),
    note_rule(
        "EGL123",
        "record-edited",
        "warning",
        """eaglectl.json and config.json agree on the facts that the source left open.

    A conversion records how it settled the facts that its source left open. If the config was edited later,
    the record no longer supports it, and nothing else does.

    Fix: run `eaglectl convert SOURCE` with the option that gives the correct answer.
    """,
        "settle",
        is_fault=True,
    ),
)
