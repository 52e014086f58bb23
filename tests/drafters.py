"""Random drafters in vLLM's native layout, written without eaglectl, for property tests."""

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}


@dataclass(frozen=True, repr=False)
class Made:
    """A drafter's config and tensors: name -> (dtype, shape, bytes)."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.tensors)
        return folder


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(table).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors.values()))


@st.composite
def drafters(draw: st.DrawFn) -> Made:
    """GQA, MHA, MQA or MLA; 1-3 layers; 1-5 aux states; any norms; reduced or full vocabulary; biases; q/k norms."""
    is_mla = draw(st.booleans())
    hidden, width, intermediate, vocab = 8, draw(st.sampled_from([8, 12])), 12, 40
    layers, aux = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    draft = sorted(draw(st.sets(st.integers(0, vocab - 1), min_size=5, max_size=20))) if draw(st.booleans()) else None
    heads = 4
    kv = draw(st.sampled_from([1, 2, 4]))
    norm = (
        draw(st.sampled_from(["none", "fc_norm", "norm_before_fc"]))
        if not is_mla
        else draw(st.sampled_from(["none", "fc_norm"]))
    )
    has_bias = draw(st.booleans()) and not is_mla
    has_qk = draw(st.booleans()) and not is_mla
    dtype = draw(st.sampled_from(["BF16", "F16", "F32"]))
    dice = random.Random(draw(st.integers(0, 9)))

    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}

    def add(name: str, *shape: int) -> None:
        count = SIZES[dtype]
        for size in shape:
            count *= size
        tensors[name] = (dtype, shape, dice.randbytes(count))

    add("fc.weight", hidden, aux * width)
    if norm == "fc_norm":
        for index in range(aux):
            add(f"fc_norm.{index}.weight", width)
    if norm == "norm_before_fc":
        add("input_norm.weight", aux * width)
    for index in range(layers):
        layer, size = f"layers.{index}.", 2 * hidden if index == 0 else hidden
        if index == 0:
            add(layer + "hidden_norm.weight", hidden)
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{layer}{name}.weight", hidden)
        if is_mla:
            add(layer + "self_attn.q_a_proj.weight", 6, size)
            add(layer + "self_attn.q_a_layernorm.weight", 6)
            add(layer + "self_attn.q_b_proj.weight", heads * (4 + 2), 6)
            add(layer + "self_attn.kv_a_proj_with_mqa.weight", 10 + 2, size)
            add(layer + "self_attn.kv_a_layernorm.weight", 10)
            add(layer + "self_attn.kv_b_proj.weight", heads * (4 + 3), 10)
            add(layer + "self_attn.o_proj.weight", hidden, heads * 3)
        else:
            for name, rows, columns in (
                ("q", heads * 6, size),
                ("k", kv * 6, size),
                ("v", kv * 6, size),
                ("o", hidden, heads * 6),
            ):
                add(f"{layer}self_attn.{name}_proj.weight", rows, columns)
                if has_bias:
                    add(f"{layer}self_attn.{name}_proj.bias", rows)
            if has_qk:
                add(layer + "self_attn.q_norm.weight", 6)
                add(layer + "self_attn.k_norm.weight", 6)
        for name, rows, columns in (
            ("gate", intermediate, hidden),
            ("up", intermediate, hidden),
            ("down", hidden, intermediate),
        ):
            add(f"{layer}mlp.{name}_proj.weight", rows, columns)
    add("norm.weight", hidden)
    add("lm_head.weight", len(draft) if draft else vocab, hidden)
    if width != hidden:
        add("embed_tokens.weight", vocab, hidden)
    if draft:
        offsets = [token - index for index, token in enumerate(draft)]
        tensors["d2t"] = ("I64", (len(draft),), struct.pack(f"<{len(draft)}q", *offsets))
        tensors["t2d"] = ("BOOL", (vocab,), bytes(token in draft for token in range(vocab)))
    boundaries = sorted(draw(st.sets(st.integers(0, 20), min_size=aux, max_size=aux)))
    config: dict[str, Any] = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM" if is_mla else "Eagle3Qwen3ForCausalLM" if has_qk else "LlamaForCausalLMEagle3"],
        "model_type": "deepseek_v2" if is_mla else "qwen3" if has_qk else "llama",
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "vocab_size": vocab,
        "num_attention_heads": heads, "draft_vocab_size": len(draft) if draft else vocab, "target_hidden_size": width,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 512, "attention_bias": has_bias,
        "norm_before_residual": draw(st.booleans()), "fc_norm": norm == "fc_norm", "norm_before_fc": norm == "norm_before_fc",
        "norm_output": draw(st.booleans()), "num_aux_hidden_states": aux, "eagle_aux_hidden_state_layer_ids": boundaries,
    }  # fmt: skip
    if is_mla:
        config |= {
            "q_lora_rank": 6,
            "kv_lora_rank": 10,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 2,
            "v_head_dim": 3,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        }
    else:
        config |= {"num_key_value_heads": kv, "head_dim": 6}
    return Made(config, tensors)
