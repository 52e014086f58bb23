"""Good drafters and their targets, the same to the byte on every machine."""

import hashlib
import json
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eaglectl.drafter.tensors import Dimensions, expected_shape
from tests.builders import Stored, integers, safetensors_bytes

HIDDEN, MLP, VOCAB, DRAFT, DEPTH, POSITIONS = 32, 48, 256, 96, 8, 512
GQA: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
# vLLM's MLA kernels want kv_lora_rank 512 and 64 rotated dimensions
MLA: dict[str, Any] = {
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 512,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 64, "v_head_dim": 16,
}  # fmt: skip
# tensors of a layer
ATTENTION = {
    "llama": "q_proj k_proj v_proj o_proj",
    "qwen3": "q_proj k_proj v_proj o_proj q_norm k_norm",
    "mla": "q_a_proj q_a_layernorm q_b_proj kv_a_layernorm kv_a_proj_with_mqa kv_b_proj o_proj",
}
BLOCK = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": MLP, "vocab_size": VOCAB,
    "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-06, "hidden_act": "silu",
    "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "first_k_dense_replace": DEPTH,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "rope_interleave": True,
}
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
TARGETS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False, **GQA},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "use_sliding_window": False,
        **GQA,
    },
    "mla": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **MLA, **DEEPSEEK},
}
# variants of the llama target: with a tokenizer of as many tokens, its lm_head packed in 4 bits, and with
# 32 positions that a rope scaling makes 128
WITH_TOKENIZER, PACKED_HEAD, STRETCHED = "llama-tokenizer", "llama-packed-head", "llama-stretched"
ARCHITECTURES = {
    "llama": ("LlamaForCausalLMEagle3", "llama"),
    "qwen3": ("Eagle3Qwen3ForCausalLM", "qwen3"),
    "mla": ("Eagle3DeepseekV2ForCausalLM", "deepseek_v2"),
}
DEFAULT_AUX = (2, 4, 5)
# the target tokens that a reduced vocabulary drafts: scattered, ascending, the first and the last among them
DRAFTED = (*sorted(token * 37 % VOCAB for token in range(DRAFT))[:-1], VOCAB - 1)


@dataclass
class Files:
    """A drafter's folder before it is written; `files` has other files, and may replace the weights'."""

    config: Any
    tensors: dict[str, Stored]
    files: dict[str, bytes | None] = field(default_factory=dict)
    metadata: dict[str, str] | None = field(default_factory=lambda: {"format": "pt"})

    def contents(self) -> dict[str, bytes]:
        """Every file's bytes."""
        files: dict[str, bytes | None] = {
            "config.json": json.dumps(self.config, indent=1).encode(),
            "model.safetensors": safetensors_bytes(self.tensors, self.metadata),
        }
        return {name: data for name, data in (files | self.files).items() if data is not None}

    def write(self, folder: Path) -> Path:
        """Write them all into a new folder."""
        folder.mkdir(parents=True)
        for name, data in self.contents().items():
            (folder / name).write_bytes(data)
        return folder

    def digest(self) -> str:
        """A short digest of all files, so that a record is known to be of these bytes."""
        every = hashlib.sha256()
        for name, data in sorted(self.contents().items()):
            every.update(f"{name} {len(data)} ".encode() + data)
        return every.hexdigest()[:12]


@dataclass(frozen=True)
class Base:
    """A good drafter: its target's kind, and what sets it apart."""

    kind: str
    is_31: bool = False
    is_reduced: bool = True
    is_shared: bool = False
    is_fresh: bool = False
    is_speculators: bool = False
    aux: tuple[int, ...] = DEFAULT_AUX


BASES = {
    "llama3": Base("llama"),
    "llama31": Base("llama", is_31=True, aux=(1, 4, 6)),
    "llama-shared": Base("llama", is_reduced=False, is_shared=True),
    "llama-fresh": Base("llama", is_fresh=True),
    "qwen3": Base("qwen3"),
    "qwen31": Base("qwen3", is_31=True, is_reduced=False),
    "mla3": Base("mla"),
    "mla31": Base("mla", is_31=True, is_reduced=False, aux=(2, 4, 6)),
    "speculators31": Base("llama", is_31=True, is_speculators=True),
    "speculators-qwen3": Base("qwen3", is_speculators=True),
}


def uniform(seed: str, *shape: int, around: float = 0.0) -> Stored:
    """A float32 tensor of numbers spread evenly up to 0.5 beside `around`."""
    raw = hashlib.shake_256(seed.encode()).digest(4 * int(np.prod(shape)))
    noise = np.frombuffer(raw, "<u4").astype(np.float64) / 2**32
    return "F32", shape, (around - 0.5 + noise).astype("<f4").tobytes()


def layer_shapes(kind: str, layer: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors; only a drafter's layer 0 reads two states."""
    attention = MLA if kind == "mla" else GQA
    sizes = {key: value for key, value in attention.items() if not key.startswith("num_")}
    heads = attention["num_attention_heads"]
    dims = Dimensions(HIDDEN, HIDDEN, 3, VOCAB, DRAFT, MLP, 1, heads, kv_heads=2, **sizes)
    names = (*(f"self_attn.{part}" for part in ATTENTION[kind].split()), *BLOCK)
    shapes = {name: expected_shape(f"layers.{layer}.{name}.weight", dims) for name in names}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _filled(seed: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, Stored]:
    """Matrices around 0, norms around 1."""
    return {
        f"{name}.weight": uniform(f"{seed} {name}", *shape, around=float(len(shape) == 1))
        for name, shape in shapes.items()
    }


@cache
def _target(kind: str) -> Files:
    config = {**SIZES, **TARGETS[kind], "num_hidden_layers": DEPTH, "rope_parameters": dict(ROPE)}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
    }
    for layer in range(DEPTH):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(kind, 1).items()}
    return Files(config, _filled(kind, shapes))


def target(kind: str) -> Files:
    """The target of this kind: 8 layers, hidden 32, 256 tokens, random float32 weights, no tokenizer.

    WITH_TOKENIZER is the llama target with one, of as many tokens, STRETCHED the one with a rope scaling.
    """
    files = deepcopy(_target("llama" if kind in (WITH_TOKENIZER, STRETCHED) else kind))
    if kind == STRETCHED:
        scaling = {"rope_type": "linear", "factor": 4.0}
        files.config |= {"max_position_embeddings": 32, "rope_parameters": {**ROPE, **scaling}}
    if kind == WITH_TOKENIZER:
        vocabulary = {str(token): token for token in range(VOCAB)}
        files.files["tokenizer.json"] = json.dumps({"model": {"vocab": vocabulary}}).encode()
    return files


def _norms(base: Base) -> dict[str, bool]:
    return {
        "norm_before_residual": False,
        "fc_norm": base.is_31,
        "norm_output": base.is_31,
        "norm_before_fc": False,
    }


def _config(base: Base) -> dict[str, Any]:
    architecture, model_type = ARCHITECTURES[base.kind]
    aux = list(base.aux)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **SIZES,
        "num_hidden_layers": 1,
        "mlp_bias": False,
        **(MLA if base.kind == "mla" else GQA),
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "draft_vocab_size": DRAFT if base.is_reduced else VOCAB,
        "target_hidden_size": HIDDEN,
        **_norms(base),
        "num_aux_hidden_states": 3,
        "eagle_aux_hidden_state_layer_ids": aux,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [one - 1 for one in aux],
            "use_aux_hidden_state": True,
        },
    }


def _speculators_config(base: Base) -> dict[str, Any]:
    layer = {key: value for key, value in SIZES.items() if key != "torch_dtype"}
    layer |= {
        "model_type": base.kind,
        "num_hidden_layers": 1,
        "mlp_bias": False,
        **GQA,
        "rope_parameters": dict(ROPE),
    }
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
    }
    verifier = {"architectures": TARGETS[base.kind]["architectures"], "name_or_path": "example/tiny-llama"}
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": DRAFT,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": list(base.aux),
        **_norms(base),
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }


@cache
def _drafter(name: str) -> Files:
    base = BASES[name]
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (HIDDEN, 3 * HIDDEN),
        "norm": (HIDDEN,),
        "layers.0.hidden_norm": (HIDDEN,),
    }
    shapes |= {f"layers.0.{part}": shape for part, shape in layer_shapes(base.kind, 0).items()}
    if base.is_31:
        shapes |= {f"fc_norm.{place}": (HIDDEN,) for place in range(3)}
    if not base.is_shared:
        shapes["lm_head"] = (DRAFT if base.is_reduced else VOCAB, HIDDEN)
    tensors = _filled(f"drafter {name}", shapes)
    if base.is_fresh:
        ones = np.ones(HIDDEN, "<f4").tobytes()
        tensors |= {f"{key}.weight": ("F32", shape, ones) for key, shape in shapes.items() if len(shape) == 1}
    if not base.is_shared:
        tensors["embed_tokens.weight"] = _target(base.kind).tensors["model.embed_tokens.weight"]
    if base.is_reduced:
        tensors["d2t"] = integers(*(token - place for place, token in enumerate(DRAFTED)))
    return Files(
        (_speculators_config if base.is_speculators else _config)(base), dict(sorted(tensors.items()))
    )


def drafter(name: str) -> Files:
    """The good drafter of this name."""
    return deepcopy(_drafter(name))


def drafter_for(kind: str, name: str) -> Files:
    """The same with the embedding of another kind of target."""
    files = drafter(name)
    files.tensors["embed_tokens.weight"] = _target(kind).tensors["model.embed_tokens.weight"]
    return files
