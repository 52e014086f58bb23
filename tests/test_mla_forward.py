"""The reference computes the same before and after each map of attention, within the stated error."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.conversion.arithmetic import evaluate  # noqa: E402
from eaglectl.conversion.rewriting import with_mla_factors, with_query_lora  # noqa: E402
from eaglectl.drafter.drafter import Drafter  # noqa: E402
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint  # noqa: E402
from eaglectl.files.opening import open_source  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.formats.reader import read_drafter  # noqa: E402
from eaglectl.operations.converting import ConvertOptions  # noqa: E402
from eaglectl.reference.model import DraftModel  # noqa: E402
from eaglectl.target import open_target  # noqa: E402
from tests.mla import (  # noqa: E402
    HIDDEN,
    Heads,
    absorbed,
    by_halves,
    fused,
    heads,
    mla_config,
    mla_folder,
    mla_tensors,
    nemo_folder,
    write,
)

torch.set_num_threads(1)
EXACT = 1e-12
TOKENS, STEPS = 7, 3
some = settings(max_examples=15, deadline=None)


def opened(folder: Path, answers: Answers | None = None) -> tuple[Checkpoint, Drafter]:
    checkpoint = read_checkpoint(open_source(str(folder)))
    return checkpoint, read_drafter(checkpoint, answers or Answers(), open_target(None))


def model(checkpoint: Checkpoint, drafter: Drafter) -> DraftModel:
    """The reference in float64, of what the tensors are before anything is rounded."""
    weights = {
        name: torch.from_numpy(evaluate(t, checkpoint).copy())
        for name, t in drafter.tensors.items()
        if name not in ("d2t", "t2d")
    }
    return DraftModel(
        weights, drafter.dims, drafter.norms, drafter.rope, float(drafter.settings["rms_norm_eps"])
    )


def logits(draft: DraftModel, *, embedding: float = 1.0, aux: Any = None) -> Any:
    """Logits of a prompt and of drafted steps on its cache, [steps, tokens, draft_vocab]."""
    dice = torch.Generator().manual_seed(3)
    dims = draft.dims
    table = draft.weights.get("embed_tokens.weight")
    if table is None:
        table = torch.randn(dims.vocab, dims.hidden, generator=dice, dtype=torch.float64) * embedding
    states = (
        torch.randn(1, TOKENS, dims.target_hidden * 3, generator=dice, dtype=torch.float64)
        if aux is None
        else aux
    )
    state, caches, found = draft.combine_hidden_states(states), draft.new_caches(), []
    for step in range(STEPS):
        embeddings = table[torch.randint(0, dims.vocab, (1, TOKENS), generator=dice)]
        slots = torch.arange(TOKENS)
        now = slots[None, :, None] >= slots[None, None]
        earlier = [slots[None, :, None] >= slots[None, None] for _ in range(step)]
        state = draft.forward(embeddings, state, (slots + step)[None], caches, torch.cat([*earlier, now], -1))
        found.append(draft.logits(state, draft.weights["lm_head.weight"]))
        state = draft.feedback(state)
    return torch.stack(found)


def error(one: Any, other: Any) -> float:
    """The largest difference over the largest logit, printed."""
    found = float((one - other).abs().max() / one.abs().max())
    print(f"relative error {found:.2e}")
    return found


def planned(folder: Path, answers: Answers | None = None, **options: Any) -> Drafter:
    wanted = ConvertOptions(**options, answers=answers or Answers(), dry_run=True)
    return eaglectl.convert(str(folder), options=wanted).plan.drafter


@some
@given(heads, st.integers(0, 3))
def test_fused_and_absorbed_spellings_are_the_same_function(sizes: Heads, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = opened(mla_folder(Path(folder) / "plain", sizes, seed))
        other = write(
            Path(folder) / "fused", mla_config(sizes), absorbed(fused(mla_tensors(sizes, seed)), sizes)
        )
        assert torch.equal(logits(model(*plain)), logits(model(*opened(other))))


def test_the_absorbed_halves_score_and_mix_as_kv_b_proj_does() -> None:
    """SGLang's attention: w_kc takes the query into the latent, w_vc what was mixed of the latent out of
    it.
    """
    sizes, dice = Heads(heads=3), torch.Generator().manual_seed(0)
    plain = mla_tensors(sizes)
    halves = absorbed(plain, sizes)

    def tensor(stored: Any) -> Any:
        return torch.frombuffer(bytearray(stored[2]), dtype=torch.float32).reshape(stored[1]).double()

    at = "layers.0.self_attn."
    whole = tensor(plain[f"{at}kv_b_proj.weight"]).unflatten(0, (sizes.heads, sizes.nope + sizes.value))
    w_kc, w_vc = tensor(halves[f"{at}w_kc"]), tensor(halves[f"{at}w_vc"])
    query, latent = (
        torch.randn(5, *shape, generator=dice, dtype=torch.float64)
        for shape in ((sizes.heads, sizes.nope), (sizes.rank,))
    )
    keys, values = (
        torch.einsum("tr,hnr->thn", latent, part) for part in whole.split((sizes.nope, sizes.value), 1)
    )
    scores = torch.einsum("qhn,khn->hqk", query, keys)
    inside = torch.einsum("qhn,hnr->qhr", query, w_kc)
    assert error(scores, torch.einsum("qhr,kr->hqk", inside, latent)) < EXACT
    share = scores.softmax(-1)
    mixed = torch.einsum("hqk,khv->qhv", share, values)
    outside = torch.einsum("qhr,hrv->qhv", torch.einsum("hqk,kr->qhr", share, latent), w_vc)
    assert error(mixed, outside) < EXACT


@some
@given(heads, st.integers(0, 3))
def test_interleaving_is_exact(sizes: Heads, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = write(
            Path(folder) / "d",
            mla_config(sizes, rope_interleave=False),
            by_halves(mla_tensors(sizes, seed), sizes),
        )
        checkpoint, drafter = opened(source)
        before = logits(model(checkpoint, drafter))
        after = logits(model(checkpoint, planned(source, rope_style="interleaved")))
        naive = logits(model(checkpoint, planned(source, Answers(semantics={"rope_interleave": "true"}))))
    assert error(before, after) < EXACT
    assert sizes.rope == 2 or error(before, naive) > 1e-6


@some
@given(
    heads, st.integers(0, 3), st.booleans(), st.sampled_from([{}, {"mscale": 0.7}, {"mscale_all_dim": None}])
)
def test_the_missing_scale_folded_in_is_exact(
    sizes: Heads, seed: int, has_query: bool, changed: dict[str, Any]
) -> None:
    from tests.mla import YARN

    sizes = sizes if has_query else Heads(query_rank=0)
    scaling = {key: value for key, value in {**YARN, **changed}.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, drafter = opened(nemo_folder(Path(folder) / "d", sizes, seed, rope_scaling=scaling))
        assert not drafter.rope.has_mla_factors
        after = with_mla_factors(drafter).drafter
        assert error(logits(model(checkpoint, drafter)), logits(model(checkpoint, after))) < EXACT


def test_without_the_fold_the_function_is_another(tmp_path: Path) -> None:
    from msgspec.structs import replace

    checkpoint, drafter = opened(nemo_folder(tmp_path / "d"))
    served = replace(drafter, rope=replace(drafter.rope, has_mla_factors=True))
    assert error(logits(model(checkpoint, drafter)), logits(model(checkpoint, served))) > 1e-3


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_folded_scale_is_rounded_once(dtype: str, tmp_path: Path) -> None:
    """Written out, the fold costs no more than the cast of the unfolded weights does."""
    source = nemo_folder(tmp_path / "d")
    checkpoint, drafter = opened(source)
    eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(dtype=dtype, answers=Answers(assume=True)))
    written = opened(tmp_path / "out")
    found = error(logits(model(checkpoint, drafter)), logits(model(*written)))
    assert found < {"BF16": 3e-2, "F16": 4e-3, "F32": 1e-6}[dtype]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("embedding", "limit"), [(1.0, 1e-6), (0.05, 1e-6), (0.01, 1e-5), (0.001, 5e-4)])
def test_a_query_in_two_is_within_the_bound_that_is_told(
    embedding: float, limit: float, layers: int, tmp_path: Path
) -> None:
    sizes = Heads(query_rank=0, layers=layers)
    tensors = mla_tensors(sizes, embedding=embedding)
    checkpoint, drafter = opened(write(tmp_path / "d", mla_config(sizes), tensors))
    made = with_query_lora(checkpoint, drafter, "F32")
    before, after = model(checkpoint, drafter), model(checkpoint, made.drafter)
    assert error(logits(before), logits(after)) < limit
    # the query itself: the embedding's part of the bound, and the state's, whose RMS is above 0.5 here
    dice = torch.Generator().manual_seed(1)
    state = torch.randn(40, HIDDEN, generator=dice, dtype=torch.float64)
    inner = torch.cat(
        (
            before._norm(before.weights["embed_tokens.weight"], "layers.0.input_layernorm"),
            before._norm(state, "layers.0.hidden_norm"),
        ),
        -1,
    )
    one = inner @ before.weights["layers.0.self_attn.q_proj.weight"].T
    latent = after._norm(
        inner @ after.weights["layers.0.self_attn.q_a_proj.weight"].T, "layers.0.self_attn.q_a_layernorm"
    )
    other = latent @ after.weights["layers.0.self_attn.q_b_proj.weight"].T
    off = float(((one - other).norm(dim=1) / one.norm(dim=1)).max())
    told = float(made.notes[0].text.split("at most ")[1].split()[0])
    smallest = float(state.pow(2).mean(1).sqrt().min())
    print(f"queries off by {off:.2e}, told {told:.1e}")
    assert off <= 1.05 * told + 1e-6 / (2 * smallest**2) + 2e-7


def test_the_bound_holds_for_an_embedding_of_zeros(tmp_path: Path) -> None:
    sizes = Heads(query_rank=0)
    tensors = mla_tensors(sizes)
    _, shape, data = tensors["embed_tokens.weight"]
    tensors["embed_tokens.weight"] = ("F32", shape, bytes(len(data)))
    checkpoint, drafter = opened(write(tmp_path / "d", mla_config(sizes), tensors))
    made = with_query_lora(checkpoint, drafter, "F32")
    assert "at most 4.9e-04" in made.notes[0].text
    assert error(logits(model(checkpoint, drafter)), logits(model(checkpoint, made.drafter))) < 4.9e-4


def test_a_query_in_two_in_bfloat16_is_off_as_bfloat16_is(tmp_path: Path) -> None:
    sizes = Heads(query_rank=0)
    source = write(tmp_path / "d", mla_config(sizes), mla_tensors(sizes, embedding=0.05))
    checkpoint, drafter = opened(source)
    eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(dtype="BF16", has_query_lora=True))
    written = opened(tmp_path / "out")
    assert error(logits(model(checkpoint, drafter)), logits(model(*written))) < 3e-2


class TestLayersNamedTwice:
    def merged(self, folder: Path, ids: list[int], has_norm: bool) -> tuple[Any, Any]:
        sizes = Heads()
        config = mla_config(sizes, fc_norm=has_norm, eagle_aux_hidden_state_layer_ids=ids)
        tensors = mla_tensors(sizes)
        if has_norm:
            import random

            from tests.mla import numbers

            tensors |= {
                f"fc_norm.{i}.weight": numbers(random.Random(i), HIDDEN, size=0.3, near=1.0) for i in range(3)
            }
        source = write(folder / "d", config, tensors)
        checkpoint, drafter = opened(source)
        dice = torch.Generator().manual_seed(5)
        states = {
            boundary: torch.randn(1, TOKENS, HIDDEN, generator=dice, dtype=torch.float64)
            for boundary in set(ids)
        }
        before = logits(model(checkpoint, drafter), aux=torch.cat([states[i] for i in ids], -1))
        plan = eaglectl.convert(str(source), folder / "out").plan
        assert plan.config["eagle_aux_hidden_state_layer_ids"] == sorted(states)
        assert plan.config["num_aux_hidden_states"] == plan.drafter.dims.aux == len(states)
        after = logits(
            model(checkpoint, plan.drafter), aux=torch.cat([states[i] for i in sorted(states)], -1)
        )
        again = eaglectl.inspect(str(folder / "out")).drafter
        assert again.aux.boundaries == tuple(sorted(states)) and not again.notes_at("problem")
        return before, after

    @pytest.mark.parametrize("has_norm", [False, True])
    @pytest.mark.parametrize("ids", [[2, 2, 4], [4, 2, 4], [3, 3, 3], [5, 2, 4]])
    def test_their_blocks_are_added_exactly(self, ids: list[int], has_norm: bool, tmp_path: Path) -> None:
        before, after = self.merged(tmp_path, ids, has_norm)
        assert error(before, after) < EXACT
