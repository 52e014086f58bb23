"""Peak memory and time at the width of an 8B target, of random weights, beside transformers' plain forward.

On a CPU the same code runs at a width of 256. Figures are printed after the tests.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

LARGE = {
    "width": 4096,
    "inner": 14336,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 128_256,
    "draft": 32_000,
}
SMALL = {"width": 256, "inner": 512, "layers": 4, "heads": 4, "kv_heads": 2, "vocab": 4096, "draft": 1024}
HEAD, K, BATCH, LENGTH, NEW = 128, 3, 8, 512, 32


def make_target(sizes: dict[str, int], device: str, dtype: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        head_dim=HEAD,
        vocab_size=sizes["vocab"],
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def make_drafter(sizes: dict[str, int], device: str, dtype: Any) -> Any:
    import torch

    from eaglectl.drafter.drafter import Norms, Rope
    from eaglectl.drafter.tensors import Dimensions
    from eaglectl.reference.model import DraftModel

    width, inner, heads = sizes["width"], sizes["inner"], sizes["heads"] * HEAD
    key_value, layer = sizes["kv_heads"] * HEAD, "layers.0."
    shapes = {
        "fc": (width, 3 * width),
        "lm_head": (sizes["draft"], width),
        f"{layer}mlp.down_proj": (width, inner),
        f"{layer}mlp.gate_proj": (inner, width),
        f"{layer}mlp.up_proj": (inner, width),
        f"{layer}self_attn.k_proj": (key_value, 2 * width),
        f"{layer}self_attn.o_proj": (width, heads),
        f"{layer}self_attn.q_proj": (heads, 2 * width),
        f"{layer}self_attn.v_proj": (key_value, 2 * width),
    }
    weights = {
        f"{name}.weight": torch.randn(shape, device=device, dtype=dtype) * 0.02
        for name, shape in shapes.items()
    }
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"{layer}{name}.weight"] = torch.ones(width, device=device, dtype=dtype)
    weights["norm.weight"] = torch.ones(width, device=device, dtype=dtype)
    weights["d2t"] = torch.zeros(sizes["draft"], device=device, dtype=torch.int64)
    dims = Dimensions(
        hidden=width,
        target_hidden=width,
        aux=3,
        vocab=sizes["vocab"],
        draft_vocab=sizes["draft"],
        intermediate=inner,
        layers=1,
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        head_dim=HEAD,
    )
    norms = Norms(fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False)
    return DraftModel(weights, dims, norms, Rope(500_000.0, None, False), 1e-5)


def timed(device: str, run: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and the peak of the GPU's memory in GiB (0 on a CPU)."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter() - start, torch.cuda.max_memory_allocated() / 2**30
    return time.perf_counter() - start, 0.0


@pytest.mark.slow
def test_the_reference_at_an_8b_targets_width(device: str, figures: Callable[..., None]) -> None:
    import torch

    from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder
    from eaglectl.reference.target import TargetModel

    is_gpu = device == "cuda"
    sizes, dtype = (LARGE, torch.bfloat16) if is_gpu else (SMALL, torch.float32)
    layers = sizes["layers"]
    model = make_target(sizes, device, dtype)
    drafter = make_drafter(sizes, device, dtype)
    drafter.weights["embed_tokens.weight"] = model.get_input_embeddings().weight
    texts = torch.randint(1, 4000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    settings = DecodingSettings(k=K, max_tokens=NEW)
    target = TargetModel(model, (2, layers // 2, layers - 3) if layers > 4 else (1, 2, 3))
    prompts = texts.tolist()

    def plain() -> None:
        with torch.no_grad():
            model(input_ids=texts, use_cache=False, logits_to_keep=1)

    def states() -> None:
        positions = torch.arange(LENGTH, device=device).expand(BATCH, -1)
        with torch.no_grad():
            target.states(texts, positions, torch.ones_like(texts).bool())

    def generate() -> None:
        model.generate(
            texts,
            attention_mask=torch.ones_like(texts),
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            pad_token_id=0,
        )

    answers: list[Any] = []

    def decode() -> None:
        answers.extend(SpeculativeDecoder(target, drafter, settings).run(prompts))

    runs: dict[str, Callable[[], object]] = {
        "plain forward": plain,
        "forward with aux states": states,
        "transformers generate": generate,
        "decode without drafter": lambda: SpeculativeDecoder(target, None, settings).run(prompts),
        "draft and verify": lambda: answers.extend(
            SpeculativeDecoder(target, drafter, settings).run(prompts)
        ),
    }
    measured = {}
    for name, run in runs.items():
        timed(device, run)  # kernels are chosen and caches made
        measured[name] = timed(device, run)
    rows = {name: f"{seconds:.3f} s, {peak:.2f} GiB" for name, (seconds, peak) in measured.items()}
    figures(width=sizes["width"], layers=layers, batch=BATCH, length=LENGTH, new=NEW, k=K, **rows)
    assert all(len(answer.tokens) == NEW for answer in answers) and len(answers) == 2 * BATCH
    assert measured["forward with aux states"][0] < 3 * measured["plain forward"][0] + 0.1
    if is_gpu:
        # what the states of three boundaries add: a part of one layer's working memory
        assert measured["forward with aux states"][1] < 1.2 * measured["plain forward"][1]
