"""The reference loop is lossless at any mix of lengths, and counts what it should."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.drafter.drafter import Norms, Rope  # noqa: E402
from eaglectl.drafter.tensors import Dimensions  # noqa: E402
from eaglectl.errors import RefusedError  # noqa: E402
from eaglectl.reference.model import DraftModel, Rotary, _frequencies  # noqa: E402
from eaglectl.reference.quantised import dequantised  # noqa: E402
from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder  # noqa: E402
from eaglectl.reference.target_model import TargetModel  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402

SHAPE = {"hidden_size": 32, "num_hidden_layers": 8, "vocab_size": 256, "intermediate_size": 48}
LENGTHS = [1, 2, 3, 5, 9, 17, 31, 60]


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.LlamaConfig(**SHAPE, **heads, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (LENGTHS[i % len(LENGTHS)],), generator=random).tolist() for i in range(24)]


def drafter(path: str, folder: Path) -> DraftModel:
    plan = eaglectl.convert(str(FIXTURES / "producers" / path), folder / "out").plan
    stored, made = load_file(folder / "out/model.safetensors").items(), plan.drafter
    weights = {name: value.float() if value.is_floating_point() else value for name, value in stored}
    return DraftModel(weights, made.dims, made.norms, made.rope, made.settings["rms_norm_eps"])


def greedy(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = torch.tensor([prompt])
    found = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tuple(found[0, len(prompt) :].tolist())


def run(model: Any, draft: DraftModel | None, prompts: list[list[int]], **settings: Any) -> list[Any]:
    given = DecodingSettings(**({"max_tokens": 20} | settings))
    return SpeculativeDecoder(TargetModel(model, (2, 4, 5)), draft, given).run(prompts)


DRAFTERS = (
    *("speculators/eagle3.1", "speculators/default", "speculators/two-layers"),
    *("speculators/qwen3", "vllm/mla", "vllm/bias"),
)


@pytest.mark.fast(1)
@pytest.mark.parametrize("path", DRAFTERS)
def test_drafting_never_changes_the_output_which_is_transformers_greedy(
    path: str, target: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    expected = [greedy(target, prompt, 20) for prompt in prompts]
    assert [found.tokens for found in run(target, None, prompts)] == expected
    assert [found.tokens for found in run(target, drafter(path, tmp_path), prompts)] == expected


def test_a_boundary_is_the_hidden_state_of_its_number(target: Any) -> None:
    tokens = torch.tensor([[5, 9, 200, 41]])
    watched = TargetModel(target, (0, 3, 8))
    watched.reset()
    with torch.no_grad():
        _, aux = watched.forward(tokens, torch.arange(4)[None], torch.ones(1, 4, dtype=torch.bool))
        states = target(tokens, output_hidden_states=True).hidden_states
    for boundary, part in zip((0, 3), aux.chunk(3, -1), strict=False):
        assert torch.equal(part, states[boundary])
    assert torch.allclose(target.model.norm(aux.chunk(3, -1)[2]), states[8])


def oracle(*, shift: int) -> DraftModel:
    """A drafter that always drafts a constant token, `shift` past the one that the target always says."""
    hidden = 32
    sizes = {"q_proj": (32, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (32, 32)}
    weights = {f"layers.0.self_attn.{name}.weight": torch.zeros(shape) for name, shape in sizes.items()}
    weights |= {f"layers.0.mlp.{name}_proj.weight": torch.zeros(32, 32) for name in ("gate", "up", "down")}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    weights |= {f"layers.0.{name}.weight": torch.ones(hidden) for name in norms}
    weights |= {"fc.weight": torch.eye(hidden).repeat(1, 3), "norm.weight": torch.ones(hidden)}
    weights["lm_head.weight"] = torch.zeros(256, hidden)
    # every draft token is the same target token
    weights["d2t"] = torch.tensor([7 + shift - draft for draft in range(256)])
    dims = Dimensions(hidden, hidden, 3, 256, 256, 32, 1, 1, 1, 32)
    return DraftModel(weights, dims, Norms(False, False, False, False), Rope(10000.0, None, False), 1e-6)


@pytest.fixture(scope="module")
def parrot() -> Any:
    """A target that says token 7 whatever it is asked."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, num_attention_heads=4)).eval()
    with torch.no_grad():
        model.model.norm.weight.zero_()
        head = torch.nn.Linear(32, 256, bias=True)
        head.weight.zero_()
        head.bias.copy_(torch.nn.functional.one_hot(torch.tensor(7), 256).float())
        model.lm_head = head
    return model


@pytest.mark.parametrize(("shift", "k", "length"), [(0, 3, 4.0), (0, 7, 8.0), (1, 3, 1.0), (1, 7, 1.0)])
def test_an_oracle_is_accepted_whole_and_its_opposite_never(
    shift: int, k: int, length: float, parrot: Any
) -> None:
    found = run(parrot, oracle(shift=shift), [[1, 2, 3], [4], [5, 6]], k=k, max_tokens=33)
    drafts, accepted = sum(f.drafts for f in found), sum(sum(f.accepted) for f in found)
    assert 1 + accepted / drafts == length
    assert all(f.tokens == (7,) * 33 for f in found)


def test_a_window_hides_what_is_further_back(tmp_path: Path) -> None:
    """The last slot's state is that of the same model over the last four tokens alone."""
    model, last = drafter("speculators/plain", tmp_path), slice(-4, None)
    embeddings, state = torch.randn(2, 1, 9, model.dims.hidden, generator=torch.Generator().manual_seed(2))
    positions, causal = torch.arange(9)[None], torch.ones(1, 9, 9).tril().bool()
    near = model.forward(
        embeddings[:, last], state[:, last], positions[:, last], model.new_caches(), causal[:, :4, :4]
    )
    whole = model.forward(embeddings, state, positions, model.new_caches(), causal)
    model.windows = (4,)
    caches = model.new_caches()
    model.forward(embeddings[:, :8], state[:, :8], positions[:, :8], caches, causal[:, :8, :8])
    step = model.forward(embeddings[:, 8:], state[:, 8:], positions[:, 8:], caches, causal[:, 8:])
    assert torch.allclose(step[:, -1], near[:, -1], atol=1e-5)
    assert not torch.allclose(step[:, -1], whole[:, -1], atol=1e-3)


@pytest.mark.slow
def test_sampling_follows_the_targets_distribution(target: Any, tmp_path: Path) -> None:
    draft = drafter("speculators/plain", tmp_path)
    tokens = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        first = target(tokens).logits[0, -1].softmax(-1)
        expected = sum(
            first[t] * target(torch.tensor([[3, 1, 4, t]])).logits[0, -1].softmax(-1)
            for t in first.topk(200).indices.tolist()
        )
    counts = torch.zeros(256)
    for seed in range(8):
        for found in run(target, draft, [[3, 1, 4]] * 256, temperature=1.0, seed=seed, max_tokens=2):
            counts[found.tokens[1]] += 1
    assert (counts / counts.sum() - expected / expected.sum()).abs().sum() < 0.35


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTOR = {"factor": 4.0, "attention_factor": 1.3}
MSCALE = {"beta_fast": None, "mscale": 0.7, "mscale_all_dim": 1.0, "partial_rotary_factor": 0.5}


# frequencies 0, 20, 40 and 63 of a head of 128, and the factor on cos and sin, as vLLM's classes have them
@pytest.mark.parametrize(
    ("kind", "original", "more", "expected", "factor"),
    [
        ("linear", None, {"factor": 4.0}, [0.25, 0.00414011, 6.8562e-05, 6.13785e-07], 1.0),
        ("llama3", 8192, LLAMA3, [1.0, 0.0165604, 3.4281e-05, 3.06893e-07], 1.0),
        ("yarn", 4096, {"factor": 32.0}, [1.0, 0.0112128, 8.57026e-06, 7.67231e-08], 1.34657359),
        ("yarn", 4096, {"factor": 40.0, **MSCALE}, [1.0, 0.0111783, 6.8562e-06, 6.13785e-08], 0.919155995),
        ("yarn", 4096, FACTOR, [1.0, 0.0124203, 6.8562e-05, 6.13785e-07], 1.3),
    ],
)
def test_rope_has_the_frequencies_of_engines(
    kind: str, original: int | None, more: dict[str, Any], expected: list[float], factor: float
) -> None:
    scaling = {"rope_type": kind, **more} | (
        {"original_max_position_embeddings": original} if original else {}
    )
    found, own = _frequencies(Rope(5e5, scaling, False), 128)
    assert found[[0, 20, 40, 63]].tolist() == pytest.approx(expected, rel=1e-5)
    assert own == pytest.approx(factor)


def test_a_token_past_the_drafters_own_embedding_is_refused(parrot: Any) -> None:
    model = oracle(shift=0)
    model.weights = {**model.weights, "embed_tokens.weight": torch.zeros(8, 32)}
    assert run(parrot, model, [[1, 2, 3]], k=3, max_tokens=8)[0].tokens == (7,) * 8
    model.weights["embed_tokens.weight"] = torch.zeros(7, 32)
    with pytest.raises(RefusedError, match="token 7 is past the 7 rows of the drafter's embedding"):
        run(parrot, model, [[1, 2, 3]], k=3, max_tokens=8)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_partial_rotary_turns_the_first_part_of_a_head_and_leaves_the_rest(share: float) -> None:
    def rotary(dim: int, **scaling: float) -> Rotary:
        rope = Rope(10000.0, {"rope_type": "default", **scaling}, False, True)
        return Rotary(rope, dim, is_mla=False, device=torch.device("cpu"))

    x, positions, part = torch.randn(1, 2, 3, 32), torch.tensor([[0, 1, 7]]), int(32 * share)
    rotated = rotary(32, partial_rotary_factor=share).rotate(x, positions)
    assert torch.equal(rotated[..., part:], x[..., part:])
    assert torch.equal(rotated[..., :part], rotary(part).rotate(x[..., :part], positions))


# quantised weights


def of(kind: str, *rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).to(getattr(torch, kind))


# parts of a module as stored, and the weight that they mean
QUANTISED_PARTS: dict[str, tuple[dict[str, torch.Tensor], list[list[float]]]] = {
    "FP8 by tensor": (
        {"weight": of("float8_e4m3fn", [1, -2], [4, 0.5]), "weight_scale": torch.tensor(0.5)},
        [[0.5, -1], [2, 0.25]],
    ),
    "FP8 by rows": (
        {"weight": of("float8_e4m3fn", [1, -2], [4, 0.5]), "weight_scale": torch.tensor([2.0, 10.0])},
        [[2, -4], [40, 5]],
    ),
    "FP8 by blocks": (
        {
            "weight": of("float8_e4m3fn", [1, 1, 1], [1, 1, 1], [1, 1, 1]),
            "weight_scale_inv": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        },
        [[1, 1, 2], [1, 1, 2], [3, 3, 4]],
    ),
    "INT8": (
        {
            "weight": of("int8", [-128, 127]),
            "weight_scale": torch.tensor([[0.5]]),
            "input_scale": torch.ones(()),
        },
        [[-64, 63.5]],
    ),
    # numbers from the lowest half byte of a word on: 8 stands for 0
    "INT4, packed": (
        {
            "weight_packed": torch.tensor([[0x1888F870]], dtype=torch.int32),
            "weight_scale": torch.tensor([[1.0, 10.0]]),
            "weight_shape": torch.tensor([1, 8]),
        },
        [[-8, -1, 0, 7, 0, 0, 0, -70]],
    ),
    "NVFP4 of compressed-tensors": (
        {
            "weight_packed": torch.tensor([[0x21, 0xF9]], dtype=torch.uint8),
            "weight_scale": of("float8_e4m3fn", [4]),
            "weight_global_scale": torch.tensor([2.0]),
        },
        [[1, 2, -1, -12]],
    ),
    "NVFP4 of ModelOpt": (
        {
            "weight": torch.tensor([[0x21, 0xF9]], dtype=torch.uint8),
            "weight_scale": of("float8_e4m3fn", [4]),
            "weight_scale_2": torch.tensor(0.5),
        },
        [[1, 2, -1, -12]],
    ),
}


@pytest.mark.parametrize("method", QUANTISED_PARTS)
def test_quantised_weights_are_multiplied_out(method: str) -> None:
    parts, meant = QUANTISED_PARTS[method]
    norm = torch.ones(2)
    stored = {f"fc.{name}": part for name, part in parts.items()} | {"norm.weight": norm, "a.k_scale": norm}
    plain = dequantised(stored)
    assert plain["fc.weight"].tolist() == meant and plain["norm.weight"] is norm
    assert set(plain) == {"fc.weight", "norm.weight"}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_zero_points_of_floating_point_numbers_are_refused(dtype: torch.dtype) -> None:
    stored = {"fc.weight": torch.zeros(1, 16, dtype=dtype), "fc.weight_scale": torch.ones(1, 1)}
    assert set(dequantised(stored)) == {"fc.weight"}
    with pytest.raises(eaglectl.RefusedError, match=r"fc\.weight_zero_point: .*--run-in vllm"):
        dequantised({**stored, "fc.weight_zero_point": torch.zeros(1, 1)})


@pytest.mark.parametrize("part", ["pre_quant_scale", "weight_g_idx"])
def test_other_quantisations_are_refused_by_the_part(part: str) -> None:
    packed = torch.zeros(1, 1, dtype=torch.int32)
    scale = {"fc.weight_scale": torch.ones(1)}
    with pytest.raises(eaglectl.RefusedError, match=rf"fc\.{part}: .*--run-in vllm"):
        dequantised({"fc.weight_packed": packed, **scale, f"fc.{part}": packed})
    with pytest.raises(eaglectl.RefusedError, match=r"fc\.weight_packed"):  # of unknown width
        dequantised({"fc.weight_packed": packed, **scale})
