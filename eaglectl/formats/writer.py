"""From the canonical drafter to a layout's names and config."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eaglectl.drafter.drafter import FULL, Drafter, Feature
from eaglectl.drafter.tensors import LAYER, Tensor, joined_name, quantised_modules
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.config_keys import EXCLUDE_KEYS, mask_token
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Format, Layout, ModelClass
from eaglectl.formats.names import canonical_name

TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def written_name(canonical: str, layout: Layout) -> str:
    """Return a canonical tensor's name in `layout`."""
    name = canonical
    if layer := LAYER.fullmatch(canonical):
        index, rest = int(layer[1]), layer[2]
        if index > 0 and rest == "input_layernorm.weight":
            rest = f"{layout.later_norm}.weight"
        name = f"{layout.layer.format(index)}.{rest}"
    return name if name.startswith(layout.unprefixed) else layout.prefix + name


def write_config(
    drafter: Drafter,
    format: Format,
    model_class: ModelClass,
    ids: Mapping[str, Sequence[int]],
    dtypes: Sequence[str],
) -> dict[str, Any]:
    """Build config.json of `drafter` in the layout of `format`; `ids` are layer ids by place.

    `dtypes` are those of the norms' weights; the first that transformers has a name for is stated.
    """
    layout = format.layout
    assert layout is not None
    decoder = {"model_type": layout.model_types[model_class], **_decoder(drafter)}
    carried = _carried(drafter, format)
    # the later wins: the layout's constants, what the source's config carries, what this drafter needs
    eagle_config = {
        **layout.extra.get("eagle_config", {}),
        **carried.pop("eagle_config", {}),
        **_eagle_config(drafter, format, ids),
    }
    rest = {**_vocabulary(drafter, layout, dtypes), **_flags(drafter, layout)}
    if layout.has_aux_count:
        rest["num_aux_hidden_states"] = drafter.dims.aux
    if TOP_IDS in ids:
        rest[TOP_IDS] = list(ids[TOP_IDS])
    arranged = layout.nest(drafter, decoder, rest, carried) if layout.nest else {**decoder, **rest}
    config = {"architectures": [layout.architectures[model_class]], **layout.extra, **arranged}
    config.pop("eagle_config", None)
    if eagle_config:
        config["eagle_config"] = eagle_config
    for place in ids:
        if place not in (TOP_IDS, NESTED_IDS):
            put(config, place, list(ids[place]))
    config |= {key: value for key, value in carried.items() if key not in config}
    if isinstance(config.get("quantization_config"), Mapping):
        config["quantization_config"] = named_for_engines(drafter)
    if Feature.PARALLEL in drafter.features() and not layout.nest:
        config.setdefault("pard_token", mask_token(config))  # the key that every release of vLLM reads
    return config


def named_for_engines(drafter: Drafter) -> Mapping[str, Any]:
    """Return the drafter's quantisation config with its modules listed by names that engines have too.

    vLLM compares the whole name of fc, and of the modules of ModelOpt's mixed precision. For GPTQ and AWQ,
    engines read parts of their own names, which have no number of the file's layers; SGLang reads GPTQ's
    expressions alone.
    """
    table = drafter.quantisation or {}
    inner = table.get("quantization")
    if isinstance(inner, Mapping) and "quantized_layers" in inner:
        return {**table, "quantization": _with_vllms_names(inner, drafter)}
    if "quantized_layers" in table:
        return _with_vllms_names(table, drafter)
    if table.get("quant_method") in ("gptq", "awq"):
        return _with_parts_of_names(table, drafter.tensors)
    lists = [names for key in EXCLUDE_KEYS if isinstance(names := table.get(key), list)]
    return excluding(table, ("fc",)) if any("fc" in names for names in lists) else table


def _with_parts_of_names(table: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    # a config of GPTQ or AWQ with the lists that the tensors show
    quantised = {_joined_end(module) for module in quantised_modules(tensors)}
    matrices = {name.rpartition(".")[0] for name, tensor in tensors.items() if len(tensor.shape) == 2}
    plain = sorted({_joined_end(module) for module in matrices} - quantised - {"embed_tokens"})
    names, dynamic = table.get("modules_to_not_convert"), table.get("dynamic")
    if table["quant_method"] == "awq":
        present = names if isinstance(names, list) else []
        missing = [name for name in plain if name not in present]
        return {**table, "modules_to_not_convert": [*present, *missing]}
    left_out: dict[str, Any] = {f"-:.*{end}$": {} for end in plain}
    left_out |= dynamic if isinstance(dynamic, dict) else {}
    return {**table, "modules_in_block_to_quantize": sorted(quantised), "dynamic": left_out}


def _with_vllms_names(table: Mapping[str, Any], drafter: Drafter) -> Mapping[str, Any]:
    # the modules of mixed precision, also numbered after the target's layers; without its depth, as they are
    depth, layers = drafter.target.depth, table["quantized_layers"]
    if depth is None or not isinstance(layers, Mapping):
        return table
    named, quantised = dict(layers), quantised_modules(drafter.tensors)
    for name, method in layers.items():
        module = canonical_name(name)
        if module in quantised and (layer := LAYER.fullmatch(module)):
            named[f"model.layers.{depth + int(layer[1])}.{layer[2]}"] = method
        elif module == "fc":
            named["model.fc"] = method
    return {**table, "quantized_layers": named}


def _joined_end(module: str) -> str:
    return joined_name(module).rpartition(".")[2]


def excluding(quantisation: Mapping[str, Any], modules: Iterable[str]) -> Mapping[str, Any]:
    """Return a quantisation config that also excludes modules outside of the layers, by all their names.

    Engines call them fc or model.fc, and compare whole names (compressed-tensors, FP8) or patterns.
    """
    inner, has_groups = quantisation.get("quantization"), "config_groups" in quantisation
    if isinstance(inner, Mapping) and not has_groups:  # ModelOpt's hf_quant_config.json
        return {**quantisation, "quantization": excluding({"exclude_modules": [], **inner}, modules)}
    has_other_key = quantisation.get("quant_method") in ("fp8", "awq", "gptq")
    usual = "modules_to_not_convert" if has_other_key else "ignore"
    lists = {key: names for key in EXCLUDE_KEYS if isinstance(names := quantisation.get(key), list)}
    key, present = next(iter(lists.items()), (usual, []))
    names = (name for module in modules for name in (module, f"model.{module}"))
    return {**quantisation, key: [*present, *(name for name in names if name not in present)]}


def put(config: dict[str, Any], place: str, value: Any) -> None:
    """Set the value at "key" or "object.key"; objects on the way are copied, or made where there is none."""
    *parents, key = place.split(".")
    for parent in parents:
        config[parent] = dict(config.get(parent) or {})
        config = config[parent]
    config[key] = value


def _vocabulary(drafter: Drafter, layout: Layout, dtypes: Sequence[str]) -> dict[str, Any]:
    # the keys on vocabulary and width, and the dtype of the first weights that has a name in torch
    is_null = layout.has_null_size and not drafter.has_head
    keys: dict[str, Any] = {
        "draft_vocab_size": None if is_null else drafter.dims.draft_vocab,
        "target_hidden_size": drafter.dims.target_hidden,
        "tie_word_embeddings": False,
    }
    if dtype := next((TORCH_DTYPES[dtype] for dtype in dtypes if dtype in TORCH_DTYPES), None):
        keys["torch_dtype"] = dtype
    return keys


def _decoder(drafter: Drafter) -> dict[str, Any]:
    # the keys of the decoder layer, as transformers' config classes name them
    dims, rope = drafter.dims, drafter.rope
    config: dict[str, Any] = {
        "hidden_size": dims.hidden,
        "intermediate_size": dims.intermediate,
        "num_hidden_layers": dims.layers,
        "vocab_size": dims.vocab,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
    }
    if dims.attention == "MLA":
        # no head_dim: transformers maps that key onto another in DeepseekV2Config
        config |= {
            key: getattr(dims, key)
            for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        }
    else:
        config["head_dim"] = dims.head_dim
    if rope.rotated_part != 1:
        config["partial_rotary_factor"] = rope.rotated_part  # SGLang reads it nowhere else
    features = drafter.features()
    biases = {
        "attention_bias": bool({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & features),
        "mlp_bias": Feature.MLP_BIAS in features,
    }
    settings = {key: value for key, value in drafter.settings.items() if value is not None}
    return config | {**settings, **biases, "rope_theta": rope.theta, "rope_scaling": rope.scaling}


def _carried(drafter: Drafter, format: Format) -> dict[str, Any]:
    """Return the keys that are written as the source has them, in what depends on the network corrected."""
    carried = dict(drafter.carried)
    if "rope_interleave" in carried and drafter.dims.attention == "MLA":
        carried["rope_interleave"] = drafter.rope.is_interleaved
    if isinstance(kinds := carried.get("layer_types"), list):  # transformers 5 wants one for each layer
        carried["layer_types"] = [*kinds, *[FULL] * drafter.dims.layers][: drafter.dims.layers]
    if "original_max_position_embeddings" in (drafter.rope.scaling or {}):
        carried.pop("original_max_position_embeddings", None)  # transformers 5 takes it before the scaling's
    copying = [other.name for other in FORMATS if other.copies_target]
    if drafter.producer in copying and format.name not in copying and drafter.target.depth:
        carried.setdefault("target_num_hidden_layers", drafter.target.depth)
    return carried


def _flags(drafter: Drafter, layout: Layout) -> dict[str, Any]:
    """Return the switches that are on, or all; beside fc_norm, norm_output is always stated."""
    norms = drafter.norms
    flags = {
        "norm_before_residual": norms.norm_before_residual,
        "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output,
        "norm_before_fc": norms.norm_before_fc,
    }
    if layout.states_flags:
        return flags
    return {key: value for key, value in flags.items() if value or (key == "norm_output" and norms.fc_norm)}


def _eagle_config(drafter: Drafter, format: Format, ids: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    if NESTED_IDS in ids:
        nested[NESTED_IDS.partition(".")[2]] = list(ids[NESTED_IDS])
    if any(place.key == NESTED_IDS for place in format.written_ids):
        nested["use_aux_hidden_state"] = True
    if drafter.norms.norm_before_fc and not (format.layout and format.layout.nest):
        nested["norm_before_fc"] = True  # TensorRT-LLM reads it nowhere else
    return nested
