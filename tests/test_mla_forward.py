"""The reference computes the same before and after each map of attention, within the stated error."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.conversion.rewriting import evaluate, with_mla_factors, with_query_lora  # noqa: E402
from eaglectl.drafter.drafter import Drafter  # noqa: E402
from eaglectl.files.checkpoint import Checkpoint, open_source, read_checkpoint  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.formats.reader import read_drafter  # noqa: E402
from eaglectl.reference.model import DraftModel  # noqa: E402
from eaglectl.target.choice import open_target  # noqa: E402
from tests import mla  # noqa: E402
from tests.mla import HIDDEN, Heads, heads, mla_config, mla_tensors, write  # noqa: E402

torch.set_num_threads(1)
EXACT = 1e-12
TOKENS, STEPS = 7, 3
some = settings(max_examples=6, deadline=None)


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


def logits(draft: DraftModel, *, aux: Any = None) -> Any:
    """Logits of a prompt and of drafted steps on its cache, [steps, tokens, draft_vocab]."""
    dice = torch.Generator().manual_seed(3)
    dims, table = draft.dims, draft.weights["embed_tokens.weight"]
    states = torch.randn(1, TOKENS, dims.target_hidden * 3, generator=dice, dtype=torch.float64)
    state = draft.combine_hidden_states(states if aux is None else aux)
    caches, found = draft.new_caches(), []
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
    """The largest difference over the largest logit."""
    return float((one - other).abs().max() / one.abs().max())


def planned(folder: Path, answers: Answers | None = None, **options: Any) -> Drafter:
    wanted = ConvertOptions(**options, answers=answers or Answers(), dry_run=True)
    return eaglectl.convert(str(folder), options=wanted).plan.drafter


@some
@given(heads, st.integers(0, 3))
def test_interleaving_is_exact(sizes: Heads, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = write(
            Path(folder) / "d",
            mla_config(sizes, rope_interleave=False),
            mla.by_halves(mla_tensors(sizes, seed), sizes),
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
    sizes = sizes if has_query else Heads(query_rank=0)
    scaling = {key: value for key, value in {**mla.YARN, **changed}.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, drafter = opened(mla.nemo_folder(Path(folder) / "d", sizes, seed, rope_scaling=scaling))
        assert not drafter.rope.has_mla_factors
        after = with_mla_factors(drafter).drafter
        assert error(logits(model(checkpoint, drafter)), logits(model(checkpoint, after))) < EXACT


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("size", "limit"), [(1.0, 1e-6), (0.05, 1e-6), (0.01, 1e-5), (0.001, 5e-4)])
def test_a_query_in_two_is_within_the_bound_that_is_told(
    size: float, limit: float, layers: int, tmp_path: Path
) -> None:
    sizes = Heads(query_rank=0, layers=layers)
    tensors = mla_tensors(sizes, embedding=size)
    checkpoint, drafter = opened(write(tmp_path / "d", mla_config(sizes), tensors))
    made = with_query_lora(checkpoint, drafter, "F32")
    before, after = model(checkpoint, drafter), model(checkpoint, made.drafter)
    assert error(logits(before), logits(after)) < limit
    # the query itself: the embedding's part of the bound, and the state's, whose RMS is above 0.5 here
    dice = torch.Generator().manual_seed(1)
    state = torch.randn(40, HIDDEN, generator=dice, dtype=torch.float64)
    embedding = before._norm(before.weights["embed_tokens.weight"], "layers.0.input_layernorm")
    inner = torch.cat((embedding, before._norm(state, "layers.0.hidden_norm")), -1)
    one = inner @ before.weights[f"{mla.AT}q_proj.weight"].T
    latent = after._norm(inner @ after.weights[f"{mla.AT}q_a_proj.weight"].T, f"{mla.AT}q_a_layernorm")
    other = latent @ after.weights[f"{mla.AT}q_b_proj.weight"].T
    off = float(((one - other).norm(dim=1) / one.norm(dim=1)).max())
    told = float(made.notes[0].text.split("at most ")[1].split()[0])
    smallest = float(state.pow(2).mean(1).sqrt().min())
    assert off <= 1.05 * told + 1e-6 / (2 * smallest**2) + 2e-7


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("ids", [[2, 2, 4], [4, 2, 4], [3, 3, 3], [5, 2, 4]])
def test_blocks_of_layers_named_twice_are_added_exactly(
    ids: list[int], has_norm: bool, tmp_path: Path
) -> None:
    config = mla_config(Heads(), fc_norm=has_norm, eagle_aux_hidden_state_layer_ids=ids)
    tensors, layers, dice = mla_tensors(Heads()), sorted(set(ids)), random.Random(0)
    for block in range(3 * has_norm):
        tensors[f"fc_norm.{block}.weight"] = mla.numbers(dice, HIDDEN, size=0.3, near=1.0)
    source = write(tmp_path / "d", config, tensors)
    checkpoint, drafter = opened(source)
    noise = torch.Generator().manual_seed(5)
    states = {b: torch.randn(1, TOKENS, HIDDEN, generator=noise, dtype=torch.float64) for b in layers}
    before = logits(model(checkpoint, drafter), aux=torch.cat([states[boundary] for boundary in ids], -1))
    plan = eaglectl.convert(str(source), tmp_path / "out").plan
    assert plan.config["eagle_aux_hidden_state_layer_ids"] == layers
    assert plan.config["num_aux_hidden_states"] == plan.drafter.dims.aux == len(layers)
    merged = torch.cat([states[boundary] for boundary in layers], -1)
    assert error(before, logits(model(checkpoint, plan.drafter), aux=merged)) < EXACT
    again = eaglectl.inspect(str(tmp_path / "out")).drafter
    assert again.aux.boundaries == tuple(layers) and not again.notes_at("problem")
