"""Peak memory and time at the width of an 8B target, of random weights, beside transformers' plain forward.

On a CPU the same code runs at a width of 256. Figures are printed after the tests.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

LARGE = {
    "width": 4096, "inner": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "vocab": 128_256,
    "draft": 32_000,
}  # fmt: skip
SMALL = {"width": 256, "inner": 512, "layers": 4, "heads": 4, "kv_heads": 2, "vocab": 4096, "draft": 1024}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
HEAD, K, BATCH, LENGTH, NEW = 128, 3, 8, 512, 32


def make_target(sizes: dict[str, int], device: str, dtype: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        head_dim=HEAD,
        vocab_size=sizes["vocab"],
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_drafter(sizes: dict[str, int], device: str, dtype: Any) -> Any:
    import torch

    from eaglectl.drafter.drafter import Norms, Rope
    from eaglectl.drafter.tensors import Dimensions
    from eaglectl.reference.model import DraftModel
    from tests.gpu.mla_pair import random_weights

    width, heads = sizes["width"], {name: sizes[name] for name in ("heads", "kv_heads")}
    dims = Dimensions(
        width, width, 3, sizes["vocab"], sizes["draft"], sizes["inner"], 1, **heads, head_dim=HEAD
    )
    weights = random_weights(dims, ATTENTION, 0.02, device=device, dtype=dtype)
    weights["d2t"] = torch.zeros(sizes["draft"], device=device, dtype=torch.int64)
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
    from eaglectl.reference.target_model import TargetModel

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
        new = {"max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
        model.generate(texts, attention_mask=torch.ones_like(texts), do_sample=False, **new)

    answers: list[Any] = []
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
