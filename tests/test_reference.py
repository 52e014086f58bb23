"""The reference loop is lossless at any mix of lengths, and counts what it should."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.drafter.drafter import Rope  # noqa: E402
from eaglectl.errors import RefusedError  # noqa: E402
from eaglectl.reference.model import DraftModel, Rotary, _frequencies  # noqa: E402
from eaglectl.reference.speculation import (  # noqa: E402
    DecodingSettings,
    GeneratedSequence,
    SpeculativeDecoder,
)
from eaglectl.reference.target import TargetModel  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402

LENGTHS = [1, 2, 3, 5, 9, 17, 31, 60]


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = {"hidden_size": 32, "num_hidden_layers": 8, "vocab_size": 256, "intermediate_size": 48}
    config = transformers.LlamaConfig(
        **shape, num_attention_heads=4, num_key_value_heads=2, head_dim=32, initializer_range=0.3
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (LENGTHS[i % len(LENGTHS)],), generator=random).tolist() for i in range(50)]


def drafter(path: str, folder: Path) -> DraftModel:
    plan = eaglectl.convert(str(FIXTURES / "producers" / path), folder / "out").plan
    weights = load_file(folder / "out" / "model.safetensors")
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in weights.items()
    }
    made = plan.drafter
    return DraftModel(weights, made.dims, made.norms, made.rope, made.settings["rms_norm_eps"])


def greedy(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = torch.tensor([prompt])
    found = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tuple(found[0, len(prompt) :].tolist())


def run(
    model: Any,
    draft: DraftModel | None,
    prompts: list[list[int]],
    boundaries: tuple[int, ...] = (2, 4, 5),
    **settings: Any,
) -> list[GeneratedSequence]:
    return SpeculativeDecoder(
        TargetModel(model, boundaries), draft, DecodingSettings(**({"max_tokens": 20} | settings))
    ).run(prompts)


def test_plain_decoding_is_transformers_greedy(target: Any, prompts: list[list[int]]) -> None:
    assert [found.tokens for found in run(target, None, prompts)] == [
        greedy(target, prompt, 20) for prompt in prompts
    ]


@pytest.mark.parametrize(
    "path",
    [
        "speculators/eagle3.1",
        "speculators/default",
        "speculators/two-layers",
        "speculators/qwen3",
        "vllm/mla",
        "vllm/bias",
    ],
)
def test_drafting_never_changes_the_output(
    path: str, target: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    plain = [found.tokens for found in run(target, None, prompts)]
    assert [found.tokens for found in run(target, drafter(path, tmp_path), prompts)] == plain


def test_a_batch_counts_what_its_prompts_count_alone(
    target: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    draft = drafter("speculators/two-layers", tmp_path)
    together = run(target, draft, prompts[:12])
    assert together == [run(target, draft, [prompt])[0] for prompt in prompts[:12]]


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


def test_logits_are_made_where_they_are_asked_for(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, positions = torch.tensor([[5, 9, 200, 41], [7, 8, 9, 10]]), torch.arange(4).repeat(2, 1)
    valid = torch.ones(2, 4, dtype=torch.bool)
    watched = TargetModel(target, (2, 3))
    seen: list[int] = []
    hook = target.lm_head.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[-2]))
    monkeypatch.setattr("eaglectl.reference.target.LOGITS", 3 * len(watched.head))
    with torch.no_grad():
        whole = target(tokens).logits
        watched.reset()
        last, aux = watched.forward(tokens, positions, valid, last=2)
        states, choices = watched.states_and_choices(tokens, positions, valid)
        alone = watched.states(tokens, positions, valid)
    hook.remove()
    assert seen == [4, 2, 1, 3, 3, 2, 1]
    assert torch.equal(last, whole[:, -2:]) and torch.equal(choices, whole.argmax(-1))
    for boundary, part in zip((2, 3), aux.chunk(2, -1), strict=True):
        assert torch.equal(states[boundary], part) and torch.equal(alone[boundary], part)
    assert watched.recorded == {}


def test_long_batches_take_several_passes(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, positions = torch.arange(5, 17).view(3, 4), torch.arange(4).repeat(3, 1)
    valid = torch.ones(3, 4, dtype=torch.bool)
    watched = TargetModel(target, (2,))
    passes: list[int] = []
    hook = target.register_forward_pre_hook(
        lambda _, __, named: passes.append(len(named["input_ids"])), with_kwargs=True
    )
    found = []
    with torch.no_grad():
        for most in (2048, 8):
            monkeypatch.setattr("eaglectl.reference.target.PASS", most)
            states, choices = watched.states_and_choices(tokens, positions, valid)
            found.append((states[2], choices, watched.states(tokens, positions, valid)[2]))
    hook.remove()
    assert passes == [3, 3, 2, 1, 2, 1]
    for whole, parts in zip(*found, strict=True):
        assert parts.shape == whole.shape and torch.allclose(parts, whole, atol=1e-4)


def oracle(*, shift: int) -> DraftModel:
    """A drafter that always drafts a constant token, `shift` past the one that the target always says."""
    from eaglectl.drafter.drafter import Norms
    from eaglectl.drafter.tensors import Dimensions

    hidden = 32
    sizes = {"q_proj": (32, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (32, 32)}
    weights = {f"layers.0.self_attn.{name}.weight": torch.zeros(shape) for name, shape in sizes.items()}
    weights |= {f"layers.0.mlp.{name}_proj.weight": torch.zeros(32, 32) for name in ("gate", "up", "down")}
    weights |= {
        f"layers.0.{name}.weight": torch.ones(hidden)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    weights |= {
        "fc.weight": torch.eye(hidden).repeat(1, 3),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.zeros(256, hidden),
    }
    weights["d2t"] = torch.tensor(
        [7 + shift - i for i in range(256)]
    )  # every draft token is the same target token
    dims = Dimensions(hidden, hidden, 3, 256, 256, 32, 1, 1, 1, 32)
    return DraftModel(weights, dims, Norms(False, False, False, False), Rope(10000.0, None, False), 1e-6)


@pytest.fixture(scope="module")
def parrot() -> Any:
    """A target that says token 7 whatever it is asked."""
    shape = {"hidden_size": 32, "num_hidden_layers": 8, "vocab_size": 256, "intermediate_size": 48}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_attention_heads=4)).eval()
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


def passes(model: Any, run_all: Any) -> list[tuple[int, int]]:
    """Sequences and tokens of each forward pass of a model."""
    seen: list[tuple[int, int]] = []
    embedding = model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
    run_all()
    hook.remove()
    return seen


def test_a_sequence_that_is_done_leaves_the_batch(target: Any, prompts: list[list[int]]) -> None:
    answers = run(target, None, prompts[:6])
    first = answers[0].tokens[2]
    ended: list[GeneratedSequence] = []
    seen = passes(target, lambda: ended.extend(run(target, None, prompts[:6], stop=frozenset({first}))))
    sizes = [size for size, _ in seen]
    assert sizes[0] == 6 and sizes == sorted(sizes, reverse=True)
    # a sequence takes part in a pass for each token but its last
    assert sum(sizes) == sum(len(found.tokens) for found in ended)
    for found, whole in zip(ended, answers, strict=True):
        assert found.tokens == whole.tokens[: len(found.tokens)]


def test_rejected_tokens_are_taken_out_of_the_cache(parrot: Any) -> None:
    watched = TargetModel(parrot, (2, 4, 5))
    SpeculativeDecoder(watched, oracle(shift=1), DecodingSettings(k=7, max_tokens=64)).run([[1, 2, 3], [4]])
    assert 3 + 64 <= watched.cache.get_seq_length() <= 1.5 * (3 + 64) + 8  # 3 + 64 * 8 with all of them


def test_long_prompts_run_in_pieces(
    target: Any, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = drafter("speculators/two-layers", tmp_path)
    whole = run(target, draft, prompts[4:8])
    monkeypatch.setattr("eaglectl.reference.speculation.PREFILL", 32)
    in_pieces: list[GeneratedSequence] = []
    seen = passes(target, lambda: in_pieces.extend(run(target, draft, prompts[4:8])))
    assert in_pieces == whole
    assert seen[:8] == [(4, 8)] * 7 + [(4, 4)]


def test_rounds_tell_which_tokens_of_an_answer_were_drafted(target: Any, tmp_path: Path) -> None:
    (found,) = run(target, drafter("speculators/plain", tmp_path), [[3, 1, 4, 1, 5]], max_tokens=40)
    assert 40 <= 1 + sum(1 + length for length in found.rounds) <= 43
    assert (found.drafts, sum(found.accepted)) == (len(found.rounds), sum(found.rounds))


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


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        {
            "rope_type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_rope_is_transformers_rope(scaling: dict[str, Any]) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        rope_theta=5e5,
        rope_scaling=dict(scaling),
        max_position_embeddings=131072,
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    found, own = _frequencies(Rope(5e5, scaling, False), 128)
    assert torch.allclose(found, expected, rtol=1e-6) and own == pytest.approx(factor)


@pytest.mark.parametrize(("rows", "is_refused"), [(8, False), (7, True)])
def test_a_token_past_the_drafters_own_embedding_is_refused(rows: int, is_refused: bool, parrot: Any) -> None:
    model = oracle(shift=0)
    model.weights = {**model.weights, "embed_tokens.weight": torch.zeros(rows, 32)}
    if is_refused:
        with pytest.raises(RefusedError, match="token 7 is past the 7 rows of the drafter's embedding"):
            run(parrot, model, [[1, 2, 3]], k=3, max_tokens=8)
    else:
        assert run(parrot, model, [[1, 2, 3]], k=3, max_tokens=8)[0].tokens == (7,) * 8


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_partial_rotary_turns_the_first_part_of_a_head_and_leaves_the_rest(share: float) -> None:
    def rotary(dim: int, **scaling: float) -> Rotary:
        rope = Rope(10000.0, {"rope_type": "default", **scaling}, False, True)
        return Rotary(rope, dim, is_mla=False, device=torch.device("cpu"))

    x, positions, part = torch.randn(1, 2, 3, 32), torch.tensor([[0, 1, 7]]), int(32 * share)
    rotated = rotary(32, partial_rotary_factor=share).rotate(x, positions)
    assert torch.equal(rotated[..., part:], x[..., part:])
    assert torch.equal(rotated[..., :part], rotary(part).rotate(x[..., :part], positions))
