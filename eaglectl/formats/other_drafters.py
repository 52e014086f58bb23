"""What tells EAGLE-3 drafters from the models that share their file names, which are refused by name."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field

from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.files.checkpoint import read_checkpoint, read_config
from eaglectl.files.header import StoredTensor
from eaglectl.files.layout import CONFIG, INDEX
from eaglectl.files.source import Source
from eaglectl.formats.config_keys import at
from eaglectl.formats.names import canonical_name

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class Family(Struct, frozen=True):
    """Checkpoints that are no EAGLE-3 drafter: what they are, what serves them, and their marks.

    `architectures`, `keys` (of config.json) and `speculators` (speculators_model_type) are whole names;
    `values` are those of keys of an object ("object.key"), which mark it whatever else does; `tensors` are
    patterns of whole tensor names. `keys` mark nothing beside tensors of the pattern `unless`. `source` is
    where the marks were read.
    """

    name: str
    about: str
    source: str
    architectures: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    tensors: str = ""
    speculators: str = ""
    unless: str = ""


# the multi-token-prediction layers of a target: vLLM's architecture, then SGLang's, by the target's name
_MTP: Mapping[str, tuple[str, ...]] = {
    "DeepSeek-V3": ("DeepSeekMTPModel", "DeepseekV3ForCausalLMNextN"),
    "DeepSeek-V3.2": ("DeepseekV32MTPModel",),
    "DeepSeek-V4": ("DeepSeekV4MTPModel", "DeepseekV4ForCausalLMNextN"),
    "Qwen3-Next": ("Qwen3NextMTP", "Qwen3NextForCausalLMMTP"),
    "Qwen3.5": ("Qwen3_5MTP", "Qwen3_5MoeMTP", "Qwen3_5ForCausalLMMTP"),
    "Qwen3 MoE": ("Qwen3MoeForCausalLMMTP",),
    "Qwen4": ("Qwen4ExpMTP", "Qwen4ExpForCausalLMMTP"),
    "GLM-4.5": ("Glm4MoeMTPModel", "Glm4MoeForCausalLMNextN"),
    "GLM-4.7 Flash": ("Glm4MoeLiteMTPModel", "Glm4MoeLiteForCausalLMNextN"),
    "GLM-5": ("Glm5NextMTPModel", "GlmMoeDsaForCausalLMNextN", "Glm5NextForConditionalGenerationNextN"),
    "GLM-OCR": ("GlmOcrMTPModel", "GlmOcrForConditionalGenerationNextN"),
    "MiMo": ("MiMoMTPModel", "MiMoV2MTPModel", "MiMoV2OmniMTPModel", "MiMoMTP", "MiMoV2MTP"),
    "Ernie 4.5": ("ErnieMTPModel", "Ernie4_5_MoeForCausalLMMTP"),
    "LongCat-Flash": ("LongCatFlashMTPModel", "LongcatFlashForCausalLMNextN"),
    "Kimi-K3": ("KimiK3MTPModel",),
    "Step-3.5": ("Step3p5MTP",),
    "Nemotron-H": ("NemotronHMTPModel", "NemotronHForCausalLMMTP"),
    "MiniMax M3": ("MiniMaxM3MTP",),
    "EXAONE": ("ExaoneMoeMTP", "Exaone4_5_MTP", "ExaoneMoEForCausalLMMTP"),
    "Gemma 4": ("Gemma4MTPModel", "Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    "Ling (Bailing)": ("BailingMoeV3MTPModel", "BailingMoeV25MTPModel", "BailingMoeForCausalLMNextN"),
    "Hunyuan": ("HYV3MTPModel", "HYV4MTPModel", "HYV3ForCausalLMNextN", "HYV4ForCausalLMNextN"),
    "openPangu": ("OpenPanguMTPModel",),
    "dots 3": ("Dots3NoteMTPModel", "Dots3NoteForCausalLMNextN"),
    "Inkling": ("InklingMTPModel", "InklingForConditionalGenerationMTP"),
    "GigaChat 3.5": ("GigaChat35ForCausalLMNextN",),
    "IQuest": ("IQuestQ1MTP",),
}
_MTP_ABOUT = (
    "which belongs to its target's own checkpoint; vLLM (method mtp) and SGLang (NEXTN) serve it from there"
)
_BLOCK = "which drafts a block of tokens at once from the target's states"
_DFLASH_SERVED = "vLLM (method dflash) and SGLang (DFLASH) serve it as it is"
_SOURCES = "vLLM 0.32.0 models/registry.py, SGLang 0.5.23 srt/models"
_NO_CLASS = "and no engine has a class for it"

_EAGLE_3 = r"(.*\.)?hidden_norm\.weight"  # its classes read no key of other families but n_predict (EGL2027)

# those whose marks others share too come first
FAMILIES: tuple[Family, ...] = (
    *(
        Family(f"a multi-token-prediction (MTP) head of {target}", _MTP_ABOUT, _SOURCES, names)
        for target, names in _MTP.items()
    ),
    Family(
        "an EDSD drafter",
        "whose one layer takes the state alone, as EDFuse has mixed the embedding into it before; only"
        " SpecForge's pull request 696 runs it, no engine",
        "SpecForge pull request 696, specforge/modeling/draft/edsd.py",
        architectures=("EdsdDraftModel",),
        tensors=r"(edfuse\.(gate|up|down)_proj|embnorm)\.weight",
    ),
    Family(
        "a VWN drafter",
        "an EAGLE-3 variant with a layer widened by maps (virtual width network); only vllm-ascend serves it,"
        " as LlamaForCausalLMVwnEagle3",
        "vllm-ascend 182b75e, vllm_ascend/models/llama_eagle3_vwn.py and models/__init__.py",
        architectures=("LlamaForCausalLMVwnEagle3", "Eagle3VwnLlamaForCausalLM"),
        keys=("vwn_m", "vwn_r"),
        tensors=r"(.*\.)?(pre_vwn_layer\.upward|downward_and_forgot(_after_attn)?|upward_after_(attn|mlp))\.weight",
    ),
    Family(
        "a drafter that msModelSlim quantised",
        "which only vllm-ascend and SGLang on Ascend NPUs load; pass the drafter as it was before",
        "vllm-ascend 182b75e modelslim_config.py, SGLang 0.5.23 quantization/modelslim/schemes",
        tensors=r"(.*\.)?\w+_proj\.(weight_offset|deq_scale|quant_bias)",
    ),
    Family(
        "an EAGLE-1 drafter in Mistral's spelling",
        "whose eagle_linear takes the embedding and the target's last state; vLLM and SGLang serve it",
        "mistral_eagle.py and mistral_large_3_eagle.py of vLLM 0.32.0 and SGLang 0.5.23",
        architectures=(
            "EagleMistralForCausalLM",
            "EagleMistralLarge3ForCausalLM",
            "MistralForCausalLMEagle",
            "MistralLarge3ForCausalLMEagle",
        ),
        tensors=r"eagle_linear\.(weight|qscale_act|qscale_weight)",
    ),
    Family(
        "a Gumiho drafter",
        "which drafts two tokens by an EAGLE layer and the others at once by MLPs; no release of an engine"
        " serves it (vLLM pull request 43544 is open)",
        "vLLM pull request 43544, models/gumiho.py",
        architectures=("GumihoLlamaForCausalLM",),
    ),
    Family(
        "a DSpine drafter",
        f"{_BLOCK}, each position conditioned on the one before; no release of an engine serves it",
        "SpecForge specforge/modeling/draft/dspine.py at 9aafadfc",
        architectures=("DSpineDraftModel",),
        keys=("dspine_config",),
        tensors=r"transfer_(codes|ready)|injection\.(readouts|writes)\.\d+\.weight",
    ),
    Family(
        "an H-Spec drafter",
        f"of Mamba and attention layers, {_BLOCK}; no release of an engine serves it",
        "SpecForge specforge/modeling/draft/hspec.py at 411cc754",
        architectures=("HSpecDraftModel",),
        keys=("hspec_config",),
    ),
    Family(
        "a LiLiCorr drafter",
        f"a DFlash drafter whose candidates a small network corrects; {_DFLASH_SERVED}",
        "vLLM 0.32.0 models/lilicorr.py, SGLang 0.5.23 models/lilicorr.py",
        architectures=("LiLiCorrDraftModel",),
        tensors=r"(model\.)?lilicorr\..*",
    ),
    Family(
        "a DTA drafter (D2SD's variable-prefix drafter)",
        "the second DFlash drafter of a pair, trained to go on from a prefix of the first one's block; no"
        " release of an engine drafts with the pair, and alone it is not used as it was trained",
        "SpecForge pull request 592, configs/qwen3-8b-dta.json; arXiv 2606.04446",
        values={"dflash_config.training_mode": "vp_drafter"},
    ),
    Family(
        "a Domino drafter",
        "a DFlash drafter whose logits a GRU corrects; SGLang (DFLASH) serves it, vLLM 0.32.0 does not",
        "SpecForge a6b6b023 specforge/modeling/draft/domino.py, SGLang 0.5.23 models/dflash.py",
        architectures=("DominoDraftModel",),
        tensors=r"(model\.)?prefix_gru\.weight_(ih|hh)_l0",
        speculators="domino",
    ),
    Family(
        "a DFly drafter",
        "a DFlash drafter with a fusion of states in each layer; no release of an engine serves it (vLLM pull"
        " request 50246 is open)",
        "speculators src/speculators/models/dfly, AngelSpec angelspec/models/draft/dfly.py",
        architectures=("Qwen3DFlyModel", "DFlyDraftModel"),
        speculators="dfly",
    ),
    Family(
        "a DSpark drafter",
        f"{_BLOCK}, each corrected by the one before; vLLM (dspark) and SGLang (DSPARK) serve it",
        _SOURCES,
        architectures=(
            "DSparkDraftModel",
            "DSparkV41DraftModel",
            "Qwen3DSparkModel",
            "Qwen3DSparkForCausalLM",
            "Qwen3OmniDSparkModel",
            "K3DSparkModel",
            "Gemma4DSparkModel",
            "LingDSparkModel",
            "Lfm2DSparkDraftModel",
            "DSparkMiniMaxDraftModel",
            "DeepseekV4ForCausalLMDSpark",
        ),
        keys=("dspark_config",),
        tensors=r"(.*\.)?markov_w[12]\.weight",
        speculators="dspark",
    ),
    Family(
        "a DFlash2 drafter",
        f"a DFlash drafter with local convolutions and a selector of candidates; {_DFLASH_SERVED}",
        "vLLM 0.32.0 models/qwen3_dflash2.py, SGLang 0.5.23 models/dflash.py",
        architectures=("DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel"),
        tensors=r"(model\.)?candidate_selector\..*",
        speculators="dflash2",
    ),
    Family(
        "a DFlash drafter",
        f"{_BLOCK}; {_DFLASH_SERVED}",
        _SOURCES,
        architectures=(
            "DFlashDraftModel",
            "DFlashSpeculator",
            "DFlashLagunaForCausalLM",
            "DFlashMuseGlimmerAssistantModel",
            "MuseGlimmerAssistantModel",
            "Qwen3DFlashDraftModel",
            "DFlashQwen3ForCausalLM",
        ),
        keys=("dflash_config",),
        tensors=r"(.*\.)?(context_proj|mask_token)\b.*",
        speculators="dflash",
        # of P-EAGLE, whose mask token vLLM reads there too (llm_base_proposer.py 0.22.0:322)
        unless=r"(.*\.)?mask_hidden",
    ),
    Family(
        "a multi-token-prediction (MTP) head",
        _MTP_ABOUT,
        "vLLM 0.32.0 models/*_mtp.py",
        tensors=r"(.*\.)?(enorm|hnorm|eh_proj|shared_head)\b.*|(model\.)?mtp\..*|(.*\.)?(mtp_(layers|block|emb_norm"
        r"|hidden_norm|linear_proj)|pre_fc_norm_(hidden|embedding))\b.*",
        speculators="mtp",
    ),
    Family(
        "a ViSpec drafter",
        "an EAGLE-1 drafter for images, whose img_adaptor and img_fc no engine has",
        "NeMo Automodel pull request 3173, eagle/vispec_draft.py",
        architectures=("VispecDraftModel",),
        keys=("vispec_num_query_tokens",),
        tensors=r"(.*\.)?(img_adaptor\..*|img_fc\.(weight|bias))",
    ),
    Family(
        "an MSD drafter",
        "an EAGLE-1 drafter that takes the target's image embeddings as they are; only its trainer runs it",
        "NeMo Automodel eagle/msd.py at 36044ad3",
        architectures=("MultimodalEagleDraftModel",),
    ),
    Family(
        "the state of an EAGLE module in Megatron's names",
        "which NeMo RL and ModelOpt train and no engine loads; export it first: ModelOpt's"
        " export_mcore_gpt_to_hf with export_extra_modules=True, or what the framework hands to its engine",
        "Model-Optimizer modelopt/torch/speculative/plugins/megatron_eagle.py, NeMo RL pull request 3699",
        tensors=r"(.*\.)?(eagle_output_layer|layers\.(\d+\.)?(self_attention\.linear_(qkv|proj)|mlp\.linear_fc[12]))\..*",
    ),
    Family(
        "a training state of ModelOpt, in which the drafter is the target's eagle_module",
        "which no engine loads; export it first, by ModelOpt's export_hf_checkpoint",
        "Model-Optimizer modelopt/torch/speculative/plugins/transformers.py",
        tensors=r"(.*\.)?eagle_module\..*",
    ),
    Family(
        "a Hydra head",
        "a Medusa head in which each position hears those before; no release of an engine serves it",
        "zankner/Hydra hydra/model/hydra_model.py",
        keys=("hydra_num_heads", "hydra_num_layers"),
        tensors=r"(.*\.)?hydra_head\..*",
        unless=_EAGLE_3,
    ),
    Family(
        "a Medusa head",
        "which drafts each position by a head of its own from the target's last state; vLLM (method medusa)"
        " serves it",
        _SOURCES,
        architectures=("MedusaModel",),
        keys=("medusa_num_heads", "medusa_num_layers"),
        tensors=r"(.*\.)?medusa_head\..*|\d+\.\d+\.(linear|weight).*",
        unless=_EAGLE_3,
    ),
    Family(
        "a LoRA adapter",
        "not a whole drafter; merge it into its drafter first",
        "PEFT's names",
        tensors=r".*\.lora_[AB]\..*",
    ),
    Family(
        "a Kimi-K3 draft head",
        "of NoPE MLA with a gate, which no EAGLE-3 class serves",
        "NeMo Automodel draft_deepseek.py",
        tensors=r"(.*\.)?layers\.\d+\.self_attn\.g_proj\..*",
    ),
    Family(
        "a Gemma-4 draft head",
        f"of four norms in a layer, a scaled embedding, softcapped logits and layer_scalar, {_NO_CLASS}",
        "NeMo Automodel",
        architectures=("Gemma4Eagle3Model",),
        tensors=r"(.*\.)?(layers\.\d+|midlayer)\.(layer_scalar|(pre|post)_feedforward_layernorm\.weight)",
    ),
    Family(
        "an EAGLE-3 variant with gated attention",
        f"whose output is multiplied by a gate before o_proj, {_NO_CLASS}",
        "vLLM 0.32.0 models/llama_eagle3.py and qwen3_eagle3.py, SGLang 0.5.23 models/llama_eagle3.py",
        tensors=r"(.*\.)?(layers\.\d+|midlayer)\.self_attn\.gate_proj\.(weight|qweight|weight_packed)",
    ),
    Family(
        "an EAGLE-3 variant whose MLP is a mixture of experts",
        _NO_CLASS,
        "SpecForge configs and pull requests",
        architectures=("Qwen3MoeForCausalLMEagle3", "Qwen3MoEForCausalLMEagle3", "Glm4MoeForCausalLMEagle3"),
        keys=("use_moe",),
        tensors=r"(.*\.)?(layers\.\d+|midlayer)\.mlp\.(experts|shared_experts?)\..*",
    ),
    Family(
        "an EAGLE-3 variant that mixes target layers in bands",
        "by weights that no engine reads",
        "SpecForge",
        keys=("eagle_aux_layer_bands",),
    ),
    Family(
        "an EAGLE-1/2 drafter",
        "whose fc takes the embedding and the target's last state; vLLM (eagle) and SGLang (EAGLE) serve it",
        _SOURCES,
        speculators="eagle",
    ),
    Family(
        "an MLP speculator",
        "which no present engine serves",
        "speculators; vLLM models/registry.py has it commented out",
        architectures=("MLPSpeculatorPreTrainedModel",),
        keys=("n_predict",),
        speculators="mlp",
        unless=_EAGLE_3,
    ),
    Family("an independent draft model", "a model of its own", "speculators", speculators="independent"),
)


_LATER_QUERY = re.compile(r"(layers\.[1-9]\d*)\.self_attn\.(q_proj|q_a_proj|qkv_proj)\.weight")
_QUERY = re.compile(r"layers\.0\.self_attn\.(q_proj|q_a_proj|qkv_proj)\.weight")


def refuse_other_families(label: str, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise RefusedError, naming what `label` is, unless it can be an EAGLE-3 drafter."""
    if family := _other_family(config, tensors):
        raise RefusedError(
            f"{label} is {family}; eaglectl reads EAGLE-3 and EAGLE-3.1 drafters only",
            "not-a-drafter",
            source=label,
        )


def _other_family(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    # the family of a drafter that is no EAGLE-3, with the mark that shows it; None for EAGLE-3
    if family := _speculators_family(config):
        return family
    for marked, mark in _marks(config, tensors):
        return f"{marked.name} ({mark}), {marked.about}"
    shapes = {canonical_name(name): tensor.shape for name, tensor in tensors.items()}
    has_norm = any("hidden_norm" in name.rsplit(".", 2) for name in shapes)
    # an EAGLE-3 layer norms the fed-back state; DFlash norms its context once, before its layers
    has_layer_norm = any(re.fullmatch(r"layers\.\d+\.hidden_norm\.weight", name) for name in shapes)
    if config.get("target_layer_ids") is not None and not has_layer_norm:
        return "a DFlash drafter (config.json has target_layer_ids, and no layer has a hidden_norm)"
    query = next((shape for name, shape in shapes.items() if _QUERY.fullmatch(name)), ())
    if variant := _by_attention(shapes, query):
        return variant
    return None if has_norm else _by_shape(config, shapes, query)


def _by_attention(shapes: Shapes, query: tuple[int, ...]) -> str | None:
    # an EAGLE-3 variant whose attention no class has, by the shapes of its projections
    for name, shape in shapes.items():
        later = _LATER_QUERY.fullmatch(name)
        if later and shape[1:] == query[1:] and f"{later[1]}.hidden_norm.weight" in shapes:
            return (
                "an EAGLE-3 variant in which each layer takes the embedding beside the hidden state"
                f" ({name} is as wide as that of layer 0), and no engine has a class for it"
            )
    output = shapes.get("layers.0.self_attn.o_proj.weight", ())
    if "layers.0.self_attn.k_proj.weight" in shapes and query[:1] == tuple(2 * size for size in output[1:]):
        return (
            "an EAGLE-3 variant with gated attention (layers.0.self_attn.q_proj.weight has two rows for each"
            " column of o_proj, the queries and their gates, as in Qwen3-Next and Qwen3.5), and no engine has"
            " a class for it; train a drafter without attn_output_gate"
        )
    return None


def _speculators_family(config: Mapping[str, Any]) -> str | None:
    kind = config.get("speculators_model_type")
    if not isinstance(kind, str) or kind in ("eagle3", "peagle"):
        return None
    return next(
        (f"{family.name}, {family.about}" for family in FAMILIES if family.speculators == kind),
        f'a speculators "{kind}" model',
    )


def _marks(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[Family, str]]:
    # the marks of other families in a config and tensor names, the surest kind first
    for family in FAMILIES:
        values = family.values.items()
        yield from ((family, f"{place} is {value}") for place, value in values if at(config, place) == value)
    for name in _architectures(config):
        yield from ((family, f"architecture {name}") for family in FAMILIES if name in family.architectures)
    for family in FAMILIES:
        is_other = any(map(re.compile(family.unless or r"(?!)").fullmatch, tensors))
        keys = (key for key in family.keys if not is_other and config.get(key) not in (None, False))
        yield from ((family, f"config.json has {key}") for key in keys)
        names = filter(re.compile(family.tensors or r"(?!)").fullmatch, tensors)
        yield from ((family, f"it has {name}") for name in names)


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return list(map(str, names)) if isinstance(names, list) else []


def _by_shape(config: Mapping[str, Any], shapes: Shapes, query: tuple[int, ...]) -> str | None:
    # the family by the shapes of fc and q_proj, where no name tells
    if (fc := shapes.get("fc.weight")) is not None:
        is_wide = len(fc) == 2 and fc[1] == 2 * fc[0]
        if not is_wide and (len(fc) != 2 or query[1:] != fc[:1]):
            return None
        return (
            f"an EAGLE-1/2 drafter (fc.weight is {list(fc)}, "
            f"{'two inputs wide' if is_wide else 'and its layer takes one state'}, and there is no"
            " hidden_norm); vLLM (method eagle) and SGLang (EAGLE) serve it if they have its class"
        )
    if at(config, "eagle_config.use_aux_hidden_state") is False:
        return (
            "a head on the target's last hidden state (use_aux_hidden_state: false, no fc, no hidden_norm),"
            " which TensorRT-LLM and SGLang serve as stored"
        )
    if len(query) == 2 and query[1] == config.get("hidden_size"):
        return "a full language model (its first layer takes one hidden state, and there is no fc)"
    if not query and not any("self_attn" in name for name in shapes):
        return "not a drafter that eaglectl knows (no attention layer under any known name)"
    return None


# keys that only a drafter's config has, at the top or in an object
_KEYS = ("draft_vocab_size", "speculators_model_type", "eagle_config", "norm_output")
_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids", "use_aux_hidden_state")
# tensors that only a drafter has, under any prefix
_TENSOR = r"(.*\.)?(fc\.weight|d2t|t2d|midlayer\..*|hidden_norm\.weight)"
# the same in a file that is not JSON; a false match only costs time
_RAW = "(?i)" + "|".join((*_KEYS, *_IDS, "eagle", "midlayer", "hidden_norm", r'"[dt]2[dt]"'))


def drafter_mark(config: Mapping[str, Any] | None) -> str:
    """Return the part of a config that marks it as a drafter's; "" if there is none."""
    keys = config or {}
    return next(
        iter(
            (
                *[key for key in _KEYS if keys.get(key) is not None],
                *[f"the architecture {name}" for name in _architectures(keys) if "Eagle" in name],
            )
        ),
        "",
    )


def why_other(source: Source) -> str:
    """Return why a folder is no EAGLE-3 drafter's; "" if it may be one.

    A broken file with a mark of a drafter may be one. Raises UnreadableError if nothing can be read.
    """
    files = source.names()
    if CONFIG not in files and INDEX not in files:
        return ""
    try:
        config = read_config(source, is_target=True)
    except EaglectlError:
        raw = (source.read(name).decode("utf-8", "replace") for name in (CONFIG, INDEX) if name in files)
        about = "no JSON object" if CONFIG in files else "not there"
        return (
            ""
            if any(re.search(_RAW, text) for text in raw)
            else f"{CONFIG} is {about}, and no other file has a mark of a drafter"
        )
    if family := _speculators_family(config):
        return f"it is {family}"
    return "" if _is_marked(config) else _why_no_tensors(source, config)


def _is_marked(config: Mapping[str, Any]) -> bool:
    # at the top and one object below
    parts = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    has_key = any(key in (*_KEYS, *_IDS) or "eagle" in key.lower() for part in parts for key in part)
    return has_key or bool(drafter_mark(config)) or "eagle" in str(config.get("model_type")).lower()


def _why_no_tensors(source: Source, config: Mapping[str, Any]) -> str:
    # why a folder is no drafter's; "" if its tensors could be one's
    kind = next((f" ({name})" for name in _architectures(config)), "")
    try:
        tensors = read_checkpoint(source, headers_only=True).tensors
    except EaglectlError:
        return f"{CONFIG}{kind} has no mark of a drafter; its weights were not read"
    if family := _other_family(config, tensors):
        return f"it is {family}"
    return (
        ""
        if any(re.fullmatch(_TENSOR, name) for name in tensors)
        else f"neither {CONFIG}{kind} nor a tensor has a mark of a drafter"
    )
