"""Tiny targets of random weights, one for each architecture, made by transformers out of a config."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.engine.agreement import bases

DEPTH = 8
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23, 84, 62, 64]
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": DEPTH,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256,
    "max_position_embeddings": 512, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1, "initializer_range": 0.2, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "depth": 2,
    "num_heads": 2, "embed_dim": 64, "out_hidden_size": 64, "image_size": 56, "patch_size": 14,
}  # fmt: skip
# SGLang's CPU path has DeepSeek's YaRN rope alone
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 256,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
# vLLM's MLA kernels want these two ranks
MLA = bases.MLA | {"head_dim": 64, "rope_parameters": YARN}
RANKS = ("q_lora_rank", "qk_nope_head_dim", "v_head_dim")
GATED_DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
ONE_ATTENTION = ["mamba", "mamba", "attention", "mamba"] * (DEPTH // 4)
M_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}

# architecture: its model type in transformers
TEXT = {
    "AfmoeForCausalLM": "afmoe", "ApertusForCausalLM": "apertus", "ArceeForCausalLM": "arcee",
    "BloomForCausalLM": "bloom", "Cohere2ForCausalLM": "cohere2", "Cohere2MoeForCausalLM": "cohere2_moe",
    "CohereForCausalLM": "cohere", "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV32ForCausalLM": "deepseek_v32", "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV4ForCausalLM": "deepseek_v4", "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe", "Exaone4ForCausalLM": "exaone4",
    "ExaoneMoeForCausalLM": "exaone_moe", "FalconForCausalLM": "falcon", "FalconH1ForCausalLM": "falcon_h1",
    "FlexOlmoForCausalLM": "flex_olmo", "GPT2LMHeadModel": "gpt2", "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3_text", "Gemma4ForCausalLM": "gemma4_text",
    "GemmaForCausalLM": "gemma", "Glm4ForCausalLM": "glm4", "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite", "GlmForCausalLM": "glm", "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss", "GraniteForCausalLM": "granite", "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid", "GraniteMoeSharedForCausalLM": "granitemoeshared",
    "GraniteSWAForCausalLM": "granite_swa", "HYV3ForCausalLM": "hy_v3",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense", "HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe",
    "InklingForCausalLM": "inkling_text", "Jais2ForCausalLM": "jais2", "JambaForCausalLM": "jamba",
    "KimiLinearForCausalLM": "kimi_linear", "LagunaForCausalLM": "laguna", "Lfm2ForCausalLM": "lfm2",
    "Llama4ForCausalLM": "llama4_text", "LlamaForCausalLM": "llama",
    "LongcatFlashForCausalLM": "longcat_flash", "MambaForCausalLM": "mamba", "MellumForCausalLM": "mellum",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash", "MiniCPM3ForCausalLM": "minicpm3",
    "MiniMaxM2ForCausalLM": "minimax_m2", "Ministral3ForCausalLM": "ministral3",
    "MistralForCausalLM": "mistral", "MixtralForCausalLM": "mixtral", "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h", "OPTForCausalLM": "opt", "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3", "OlmoForCausalLM": "olmo", "OlmoHybridForCausalLM": "olmo_hybrid",
    "OlmoeForCausalLM": "olmoe", "Phi3ForCausalLM": "phi3", "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe", "Qwen2ForCausalLM": "qwen2", "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe", "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5_text", "Qwen3_5MoeForCausalLM": "qwen3_5_moe_text",
    "SeedOssForCausalLM": "seed_oss", "SmolLM3ForCausalLM": "smollm3", "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2", "VaultGemmaForCausalLM": "vaultgemma",
}  # fmt: skip
# a decoder beside a vision tower
WRAPPERS = {
    "Cohere2VisionForConditionalGeneration": "cohere2_vision", "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4", "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe", "Glm5NextForConditionalGeneration": "glm5_next",
    "HunYuanVLForConditionalGeneration": "hunyuan_vl", "Idefics3ForConditionalGeneration": "idefics3",
    "InternVLForConditionalGeneration": "internvl", "KimiK25ForConditionalGeneration": "kimi_k25",
    "Llama4ForConditionalGeneration": "llama4", "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava_next",
    "LlavaOnevisionForConditionalGeneration": "llava_onevision",
    "MiniCPMV4_6ForConditionalGeneration": "minicpmv4_6",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
    "Mistral3ForConditionalGeneration": "mistral3", "MuseGlimmerForConditionalGeneration": "muse_glimmer",
    "Qwen2VLForConditionalGeneration": "qwen2_vl", "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl", "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_5", "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp", "Step3p7ForConditionalGeneration": "step3p7",
}  # fmt: skip
# transformers has no class of these: only the engine's class is asked
WITHOUT_MODEL = (
    "BailingMoeForCausalLM", "DeepseekV41ForCausalLM", "KimiK3ForConditionalGeneration", "MiMoForCausalLM",
    "MiniCPMForCausalLM", "MiniCPMV", "MiniMaxM3SparseForCausalLM", "Phi4MMForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration",
    "Step3p5ForCausalLM",
)  # fmt: skip

ALL = [*TEXT, *WRAPPERS, *WITHOUT_MODEL]
GEMMA4: dict[str, Any] = {
    "vocab_size_per_layer_input": 256, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    "num_experts": None, "global_head_dim": 32,
}  # fmt: skip
INDEXED = MLA | {"index_head_dim": 128, "index_n_heads": 2}
GATED_DELTA_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")
# what a model type needs besides the sizes
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(GATED_DELTA_TYPES, GATED_DELTA),
    **{key: {"rope_parameters": M_ROPE} for key in ("qwen2_vl", "qwen2_5_vl", "glm4v")},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA | {"topk_method": "noaux_tc", "first_k_dense_replace": DEPTH},
    "deepseek_v32": INDEXED,
    "gemma4": GEMMA4 | {"pad_token_id": 0},
    "gemma4_text": GEMMA4,
    "glm4_moe_lite": MLA,
    "glm4v_moe": {"rope_parameters": M_ROPE | {"mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}},
    "glm_moe_dsa": INDEXED,
    "gpt2": {"n_embd": 64, "n_layer": DEPTH, "n_head": 2, "n_positions": 512},
    "granitemoehybrid": {
        "layer_types": ONE_ATTENTION,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_expand": 2,
    },
    "kimi_k25": MLA | {"topk_method": "noaux_tc"},
    "llama4": {"num_experts_per_tok": 1},
    "llama4_text": {"num_experts_per_tok": 1},
    "longcat_flash": MLA
    | {"num_layers": DEPTH, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "minicpm3": {key: MLA[key] for key in RANKS} | {"kv_lora_rank": 32, "qk_rope_head_dim": 32},
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"] * (DEPTH // 4),
        "rescale_prenorm_residual": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 1,
    },
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "step3p7": {"pad_token_id": 0, "sliding_window": 64},
}
# keys of published configs that transformers does not write
PUBLISHED: dict[str, dict[str, Any]] = {
    **{name: {"moe_layer_freq": 1} for name in ("deepseek_v3", "deepseek_v32", "kimi_k25")},
    "deepseek_v2": {"moe_layer_freq": 1, "scoring_func": "softmax"},
    "exaone_moe": {"is_moe_layer": [False] + [True] * (DEPTH - 1)},
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "route_scale": 1.0, "n_group": 1, "topk_group": 1},
    "minimax_m2": {"rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True},
    "glm4_moe_lite": {"first_k_dense_replace": 1, "moe_layer_freq": 1},
    "qwen3_vl_moe": {"norm_topk_prob": True},
    **{key: {"full_attention_interval": 4} for key in (*GATED_DELTA_TYPES, "minicpmv4_6")},
}


def model_type(architecture: str) -> str | None:
    """Its model type in transformers."""
    return TEXT.get(architecture) or WRAPPERS.get(architecture)


def is_mla(architecture: str) -> bool:
    """Whether the target attends with MLA."""
    kind = model_type(architecture)
    return kind is not None and CHANGES.get(kind, {}).get("kv_lora_rank") == MLA["kv_lora_rank"]


def dtype(architecture: str) -> str:
    """What an engine computes it in; vLLM's gated delta networks run in bfloat16 alone on a CPU."""
    kind = model_type(architecture)
    return "bfloat16" if "full_attention_interval" in PUBLISHED.get(str(kind), {}) else "float32"


def config(architecture: str) -> Any:
    """A small config of this architecture, as transformers has it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = TEXT.get(architecture) or WRAPPERS[architecture]
    cls = CONFIG_MAPPING[kind]
    if architecture in TEXT:
        return cls(**_sizes(cls, SIZES) | CHANGES.get(kind, {}))
    base, parts = cls(), dict[str, Any]()
    for name in cls.sub_configs:
        if (part := getattr(base, name, None)) is None:
            continue
        is_text = name in ("text_config", "thinker_config")
        sizes = _sizes(type(part), SIZES if is_text else VISION)
        parts[name] = {"model_type": part.model_type} | sizes | (CHANGES.get(kind, {}) if is_text else {})
    return cls(**parts, tie_word_embeddings=False)


def _sizes(cls: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    keys = {*cls().to_dict(), *getattr(cls, "__annotations__", {}), *cls.attribute_map}
    return {key: value for key, value in sizes.items() if key in keys}


class States(NamedTuple):
    """What transformers computes for PROMPT: boundaries 0 to n, and what enters the head; (tokens, width).

    `near` is the largest relative difference of an engine that computes the same in its dtype, `far` the
    smallest one of another boundary.
    """

    boundaries: list[Tensor]
    final: Tensor
    near: float
    far: float


def write(architecture: str, folder: Path) -> States:
    """Save the target, and return its states."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    made = config(architecture)
    torch.manual_seed(0)
    auto = AutoModelForCausalLM if architecture in TEXT else AutoModelForImageTextToText
    kind = dtype(architecture)
    model = auto.from_config(made, dtype=torch.float32).eval().to(getattr(torch, kind)).float()
    states = _states(model, *((1e-3, 1e-2) if kind == "float32" else (8e-2, 1.5e-1)))
    model.save_pretrained(folder)
    _publish(architecture, folder / "config.json")
    return states


def _publish(architecture: str, file: Path) -> None:
    """Write the engine's name of the architecture, and what published configs say besides."""
    keys = json.loads(file.read_text())
    keys.get("text_config", keys).update(PUBLISHED.get(str(model_type(architecture)), {}))
    file.write_text(json.dumps(keys | {"architectures": [architecture]}))


def _states(model: Any, near: float, far: float) -> States:
    layers = next(
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == DEPTH
    )
    held: list[Tensor] = []
    final: list[Tensor] = []

    def before(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        held.append(_flat(arguments[0] if arguments else named["hidden_states"]))

    def after(_: Any, __: Any, output: Any) -> None:
        held.append(_flat(output[0] if isinstance(output, tuple) else output))

    hooks = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    head = model.get_output_embeddings()
    hooks.append(head.register_forward_pre_hook(lambda _, arguments: final.append(_flat(arguments[0]))))
    with torch.no_grad():
        model(input_ids=torch.tensor([PROMPT]))
    for hook in hooks:
        hook.remove()
    return States(held, final[0], near, far)


def _flat(states: Tensor) -> Tensor:
    """The states of the one prompt, one row a token; the model may change them in place later."""
    return states[0].reshape(len(PROMPT), -1).float().clone()


def is_same_output(states: Tensor, known: States) -> bool:
    """Whether what enters an engine's head has transformers' directions, row by row; engines scale later."""
    rows, others = (
        torch.nn.functional.normalize(one.detach().float().reshape(len(PROMPT), -1), dim=1)
        for one in (states, known.final)
    )
    return rows.shape == others.shape and float((rows - others).norm()) < known.near * len(PROMPT) ** 0.5


def nearest(state: Tensor, known: States) -> int | str:
    """The boundary that a captured state is, or what it is nearest to."""
    rows = state.detach().float().reshape(len(PROMPT), -1)
    if rows.shape != known.boundaries[0].shape:
        return f"width {rows.shape[1]}, that of the layers is {known.boundaries[0].shape[1]}"
    differences = [float((rows - one).norm() / one.norm()) for one in known.boundaries]
    best, second = sorted(differences)[:2]
    place = differences.index(best)
    if best < known.near and second > known.far:
        return place
    return f"no boundary: {best:.0e} from {place}, {second:.0e} from the next"
