"""EAGLE-3 to 3.1: exact steps are exact in float64, others change little, forbidden ones are refused."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

import eaglectl  # noqa: E402
from eaglectl.conversion.arithmetic import decode, evaluate  # noqa: E402
from eaglectl.conversion.request import UpgradeRecipe  # noqa: E402
from eaglectl.conversion.upgrade import (  # noqa: E402
    ALL,
    MASSIVE,
    OTHERS,
    MassiveTokens,
    Matrices,
    Statistics,
    downgrade,
    drafter_digest,
    read_statistics,
    upgrade,
    write_statistics,
)
from eaglectl.drafter.drafter import Drafter, Target  # noqa: E402
from eaglectl.drafter.tensors import Computed, Tensor  # noqa: E402
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError  # noqa: E402
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint  # noqa: E402
from eaglectl.files.source import FolderSource, Source  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.formats.reader import read_drafter  # noqa: E402
from eaglectl.operations import copies  # noqa: E402
from eaglectl.operations.converting import ConvertOptions  # noqa: E402
from eaglectl.operations.upgrading import UpgradeOptions  # noqa: E402
from eaglectl.progress import Progress  # noqa: E402
from eaglectl.reference import collecting  # noqa: E402
from eaglectl.reference.collecting import solve_ridge  # noqa: E402
from eaglectl.reference.model import DraftModel  # noqa: E402
from eaglectl.reference.states import AuxStates, join_states  # noqa: E402
from tests.builders import call, drafter_folder, drafter_tensors, floats, read_safetensors  # noqa: E402
from tests.cases import CASES, digests, true_answers  # noqa: E402

KINDS = ("vllm/native", "modelopt/hf-two-layers", "vllm/mla", "speculators/qwen3")
TINY_EPS, STEPS, TIME = 1e-30, 5, 6
NOWHERE: Any = None  # no checkpoint: every tensor is made here


def kept(values: Any) -> Any:
    return lambda: values


def made(path: str, *, is_residual_normed: bool = False) -> Drafter:
    """A fixture's drafter with weights of normal size, all in float64 (stored as F32 where it matters)."""
    case = next(case for case in CASES if case.path == path)
    drafter = read_drafter(
        read_checkpoint(FolderSource(case.folder)), case.answered(), Target(depth=8, model_type="llama")
    )
    random = torch.Generator().manual_seed(3)
    tensors = {}
    for name, tensor in drafter.tensors.items():
        if name in ("d2t", "t2d"):
            continue
        values = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
        values = 1 + 0.3 * values if len(tensor.shape) == 1 else values * tensor.shape[-1] ** -0.5
        tensors[name] = Tensor(name, "F64", tensor.shape, Computed("made", (), kept(values.numpy())))
    norms = replace(drafter.norms, norm_before_residual=is_residual_normed, norm_output=False)
    return replace(drafter, tensors=tensors, norms=norms, notes=())


def model(drafter: Drafter) -> DraftModel:
    weights = {name: torch.from_numpy(evaluate(tensor, NOWHERE)) for name, tensor in drafter.tensors.items()}
    return DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, TINY_EPS)


def aux_states(drafter: Drafter, sizes: Any) -> Any:
    """Random aux states whose RMS by token and layer is `sizes` [time, aux]."""
    width, count = drafter.dims.target_hidden, drafter.dims.aux
    states = torch.randn(TIME, count, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    states = states / states.pow(2).mean(-1, keepdim=True).sqrt() * sizes[..., None]
    return states.flatten(1)[None]


def chain(drafter: Drafter, aux: Any) -> list[Any]:
    """Logits of STEPS drafted tokens after the last state, fed with embeddings that do not depend on them."""
    one = model(drafter)
    embeddings = torch.randn(
        1, TIME + STEPS, drafter.dims.hidden, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    caches, head = one.new_caches(), one.weights["lm_head.weight"]
    stream = one.forward(
        embeddings[:, :TIME],
        one.combine_hidden_states(aux),
        torch.arange(TIME)[None],
        caches,
        torch.ones(1, TIME, TIME).tril().bool(),
    )
    found = [one.logits(stream[:, -1:], head)]
    for step in range(1, STEPS):
        state, place = one.feedback(stream[:, -1:]), TIME + step - 1
        stream = one.forward(
            embeddings[:, place : place + 1],
            state,
            torch.tensor([[place]]),
            caches,
            torch.ones(1, 1, place + 1).bool(),
        )
        found.append(one.logits(stream, head))
    return found


def error(found: list[Any], meant: list[Any]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(found, meant, strict=True)]


def statistics(
    drafter: Drafter, rms: tuple[float, ...] = (0.5, 1.0, 4.0), sigma: float = 2.0, **more: Any
) -> Statistics:
    scales = (*rms, *rms)[: drafter.dims.aux]
    known: dict[str, Any] = {"tokens": 10**6, "sigmas": {}, "is_direction": False, "matrices": None, **more}
    return Statistics(
        {},
        (),
        (2, 4, 5),
        1e-6,
        known["tokens"],
        scales,
        (0.1,) * len(scales),
        sigma,
        known["sigmas"],
        known["is_direction"],
        known["matrices"],
    )


def scaled(drafter: Drafter, factors: Mapping[str, Any]) -> Drafter:
    """The drafter with some tensors multiplied."""
    tensors = dict(drafter.tensors)
    for name, factor in factors.items():
        tensors[name] = replace(
            tensors[name], origin=Computed("", (), kept(evaluate(tensors[name], NOWHERE) * factor))
        )
    return replace(drafter, tensors=tensors)


def writers(drafter: Drafter) -> list[str]:
    return [
        name
        for name in drafter.tensors
        if name == "fc.weight" or name.endswith(("o_proj.weight", "down_proj.weight"))
    ]


@pytest.mark.parametrize("path", KINDS)
def test_the_residual_may_have_any_scale(path: str) -> None:
    drafter = made(path)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    other = scaled(drafter, dict.fromkeys(writers(drafter), 8.0))
    assert max(error(chain(other, aux), chain(drafter, aux))) < 1e-12


@pytest.mark.parametrize("path", KINDS)
def test_scales_are_exact_where_the_states_have_one_size_each(path: str) -> None:
    drafter = made(path)
    known = statistics(drafter)
    aux = aux_states(drafter, torch.tensor(known.rms).expand(TIME, -1))
    changed = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", False, known)).drafter
    assert max(error(chain(changed, aux), chain(drafter, aux))) < 1e-12
    naive = upgrade(NOWHERE, drafter, UpgradeRecipe("ones", False, None, is_start=True)).drafter
    assert max(error(chain(naive, aux), chain(drafter, aux))) > 0.05


@pytest.mark.parametrize("path", KINDS)
def test_scales_are_exact_for_constant_ratios_where_the_residual_is_normed(path: str) -> None:
    drafter = made(path, is_residual_normed=True)
    known = statistics(drafter)
    sizes = torch.tensor(known.rms) * torch.tensor([1.0, 7.0, 0.2, 3.0, 1.5, 0.6])[:, None]
    aux = aux_states(drafter, sizes)
    changed = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", False, known)).drafter
    assert max(error(chain(changed, aux), chain(drafter, aux))) < 1e-12
    plain = replace(drafter, norms=replace(drafter.norms, norm_before_residual=False))
    changed = upgrade(NOWHERE, plain, UpgradeRecipe("calibrated", False, known)).drafter
    assert max(error(chain(changed, aux), chain(plain, aux))) > 1e-3


@pytest.mark.parametrize("path", KINDS)
def test_norm_output_is_exact_without_data_where_the_residual_is_normed(path: str) -> None:
    drafter = made(path, is_residual_normed=True)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    changed = upgrade(NOWHERE, drafter, UpgradeRecipe("off", True, None)).drafter
    assert changed.norms.norm_output
    assert max(error(chain(changed, aux), chain(drafter, aux))) < 1e-12
    flag = replace(drafter, norms=replace(drafter.norms, norm_output=True))
    assert max(error(chain(flag, aux), chain(drafter, aux))) > 1e-2


@pytest.mark.parametrize("path", KINDS)
def test_norm_output_keeps_the_first_token_and_depends_on_no_inner_scale(path: str) -> None:
    drafter = made(path)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    changed = chain(upgrade(NOWHERE, drafter, UpgradeRecipe("off", True, statistics(drafter))).drafter, aux)
    assert error(changed, chain(drafter, aux))[0] < 1e-12
    other = scaled(drafter, dict.fromkeys(writers(drafter), 8.0))
    again = chain(
        upgrade(NOWHERE, other, UpgradeRecipe("off", True, statistics(drafter, sigma=16.0))).drafter, aux
    )
    assert max(error(again, changed)) < 1e-12


def test_a_trained_norm_output_stays_as_it_is() -> None:
    plain = made("vllm/native")
    drafter = replace(plain, norms=replace(plain.norms, norm_output=True))
    aux = aux_states(drafter, torch.tensor((0.5, 1.0, 4.0)).double().expand(TIME, -1))
    done = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", True, statistics(drafter)))
    assert done.record["upgrade"]["norm_output"] == "as trained"
    assert done.drafter.version == "3.1"
    assert {name for name, t in done.drafter.tensors.items() if t is not drafter.tensors.get(name)} == {
        f"fc_norm.{index}.weight" for index in range(drafter.dims.aux)
    }
    assert max(error(chain(done.drafter, aux), chain(drafter, aux))) < 1e-7


def test_without_a_head_the_residual_is_scaled_and_the_first_token_stays() -> None:
    drafter = made("vllm/native")
    head = evaluate(drafter.tensors["lm_head.weight"], NOWHERE)
    bare = replace(
        drafter, tensors={name: t for name, t in drafter.tensors.items() if name != "lm_head.weight"}
    )
    changed = upgrade(NOWHERE, bare, UpgradeRecipe("off", True, statistics(drafter)))
    assert changed.record["upgrade"]["norm_output"] == "residual scaled"
    back = Tensor("lm_head.weight", "F64", head.shape, Computed("", (), kept(head)))
    whole = replace(changed.drafter, tensors={**changed.drafter.tensors, "lm_head.weight": back})
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    assert error(chain(whole, aux), chain(drafter, aux))[0] < 1e-12
    with pytest.raises(RefusedError, match="no own lm_head"):
        upgrade(
            NOWHERE,
            replace(bare, norms=replace(bare.norms, norm_before_residual=True)),
            UpgradeRecipe("off", True, None),
        )


def test_without_a_head_what_writes_the_residual_is_scaled_by_the_norms_rms_over_sigma() -> None:
    drafter = made("vllm/native")
    bare = replace(drafter, tensors={n: t for n, t in drafter.tensors.items() if n != "lm_head.weight"})
    changed = upgrade(NOWHERE, bare, UpgradeRecipe("off", True, statistics(drafter, sigma=2.0)))
    weight = evaluate(drafter.tensors["norm.weight"], NOWHERE)
    factor = float(np.sqrt((weight**2).mean())) / 2.0
    assert changed.record["upgrade"]["scale"] == pytest.approx(factor)
    meant = scaled(bare, dict.fromkeys(writers(bare), factor))
    for name, tensor in changed.drafter.tensors.items():
        assert evaluate(tensor, NOWHERE) == pytest.approx(evaluate(meant.tensors[name], NOWHERE)), name


def test_the_ridge_keeps_what_the_data_do_not_speak_against() -> None:
    random = torch.Generator().manual_seed(0)
    prior, truth = (torch.randn(4, 6, generator=random, dtype=torch.float64) for _ in range(2))
    states = torch.randn(500, 6, generator=random, dtype=torch.float64)
    gram = states.T @ states
    assert torch.allclose(solve_ridge(gram.clone(), prior @ gram, prior, 1e-3)[0], prior, atol=1e-12)
    assert torch.allclose(solve_ridge(gram.clone(), truth @ gram, prior, 1e-9)[0], truth, atol=1e-6)
    silent = torch.zeros(6, 6, dtype=torch.float64)
    silent[0, 0] = 1.0
    assert torch.allclose(solve_ridge(silent.clone(), truth @ silent, prior, 1e-3)[0][:, 1:], prior[:, 1:])


@pytest.mark.parametrize("columns", [1, 5, 16, 48, 2048])
def test_sums_by_blocks_are_the_sums(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = made("vllm/native")
    one, width = model(drafter), drafter.dims.aux * drafter.dims.target_hidden
    states = aux_states(drafter, torch.rand(TIME, drafter.dims.aux, dtype=torch.float64) + 0.5)[0].float()
    ((plain, normed),) = collecting.normed_chunks(states, one)
    monkeypatch.setattr(collecting, "COLUMNS", columns)
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(drafter.dims.hidden, width, dtype=torch.float64)
    for _ in range(2):
        collecting.add_moments(gram, cross, plain, normed, one, (1.0,) * drafter.dims.aux)
    fused = states.double() @ torch.from_numpy(evaluate(drafter.tensors["fc.weight"], NOWHERE)).T
    share = fused.pow(2).sum(-1)
    sums = (collecting.mirror_upper(gram), cross)
    meant = [2 * (part / share[:, None]).T @ normed.double() for part in (normed.double(), fused)]
    assert (
        max(float((one - other).norm() / other.norm()) for one, other in zip(sums, meant, strict=True)) < 1e-6
    )


class Sinking:
    """States of which those of some positions are 100 times the others', in one channel."""

    engine: Mapping[str, str] = {}
    at = (0, 5)

    def __init__(self, drafter: Drafter) -> None:
        self.dims = drafter.dims
        self.embedding = torch.randn(drafter.dims.vocab, drafter.dims.hidden, generator=torch.manual_seed(0))

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        width = self.dims.target_hidden
        states = torch.randn(len(batch[0]), self.dims.aux, width, generator=torch.manual_seed(len(batch[0])))
        for position in self.at:
            states[position, 1, 3] = 100.0 * width**0.5
        return join_states(batch, [states.flatten(1) for _ in batch])


def collected(target: Sinking, drafter: Drafter) -> tuple[collecting.Sizes, collecting.Moments]:
    batches = [collecting.Batch([list(range(length))], ["set"]) for length in (24, 32, 40)]
    sizes = collecting.collect_sizes(target, model(drafter), batches, int)
    return sizes, collecting.collect_moments(target, model(drafter), sizes.rms, batches, int)


def test_states_a_hundred_times_the_others_leave_the_sizes_as_they_are() -> None:
    drafter = made("vllm/native")
    sizes, _ = collected(Sinking(drafter), drafter)
    assert sizes.rms == pytest.approx((1.0,) * drafter.dims.aux, rel=0.1)


def test_massive_tokens_are_counted_with_their_positions_and_channels() -> None:
    drafter = made("vllm/native")
    _, moments = collected(Sinking(drafter), drafter)
    massive = moments.massive
    channels = tuple(map(tuple, massive.channels))
    assert (massive.tokens, massive.positions, channels) == (6, {0, 5}, ((), (3,), ()))
    assert massive.times == pytest.approx((0, 100, 0), rel=0.1)
    assert MassiveTokens(6, (0, 5), channels).described((2, 4, 5)) == (
        "massive tokens: 6, at positions 0, 5; channels 3 at boundary 4"
    )
    assert (
        MassiveTokens(6, (0, 5), channels, tuple(massive.times))
        .described((2, 4, 5))
        .endswith(f"channels 3 at boundary 4 (up to {massive.times[1]:.3g} times the median RMS)")
    )
    nothing = Sinking(drafter)
    nothing.at = ()
    assert collected(nothing, drafter)[1].massive.tokens == 0


def test_the_residual_is_told_with_massive_tokens_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = made("vllm/native")
    sizes, moments = collected(Sinking(drafter), drafter)
    states = [rows.numpy() for rows in moments.massive.rows()]
    matrices = Matrices(moments.gram.numpy(), moments.cross.numpy(), *states)
    known = statistics(drafter, sizes.rms, tokens=moments.tokens, matrices=matrices)
    monkeypatch.setattr("eaglectl.conversion.upgrade.TOKENS_PER_INPUT", 0)
    refit = upgrade(NOWHERE, drafter, UpgradeRecipe("refit", False, known)).record["upgrade"]["refit"]
    whole, few, others = (refit[name] for name in (ALL, MASSIVE, OTHERS))
    assert whole**2 * 96 == pytest.approx(few**2 * 6 + others**2 * 90)
    assert few > others


@pytest.mark.parametrize("is_residual_normed", [False, True])
def test_a_refit_does_not_see_a_layers_scale_that_fc_undoes(is_residual_normed: bool) -> None:
    drafter = made("vllm/native", is_residual_normed=is_residual_normed)
    width, count = drafter.dims.target_hidden, drafter.dims.aux
    random = np.random.default_rng(1)
    normed = random.standard_normal((40 * width * count, width * count))
    cross = random.standard_normal((drafter.dims.hidden, width * count)) @ normed.T @ normed
    matrices = Matrices(normed.T @ normed, cross)
    scales = np.array([0.1, 1.0, 10.0])
    other = scaled(drafter, {"fc.weight": 1 / np.repeat(scales, width)})
    rms = (0.5, 1.0, 4.0)
    found = [
        upgrade(
            NOWHERE, one, UpgradeRecipe("refit", False, statistics(one, sizes, matrices=matrices))
        ).drafter
        for one, sizes in ((drafter, rms), (other, tuple(scales * rms)))
    ]
    first, second = (evaluate(one.tensors["fc.weight"], NOWHERE) for one in found)
    assert not np.allclose(first, evaluate(drafter.tensors["fc.weight"], NOWHERE), rtol=0.01)
    assert second * np.repeat(scales, width) == pytest.approx(first, rel=1e-6)


def test_sets_of_prompts_that_want_another_sigma_are_told() -> None:
    drafter = made("vllm/native")
    near, far = {"code": 2.2, "prose": 1.8}, {"code": 2.2, "prose": 1.6, "maths": 2.4}
    notes = [
        [
            note.text
            for note in upgrade(NOWHERE, one, UpgradeRecipe("off", True, statistics(one, sigmas=sets))).notes
            if note.level == "warning"
        ]
        for one, sets in (
            (drafter, near),
            (drafter, far),
            (replace(drafter, norms=replace(drafter.norms, norm_before_residual=True)), far),
        )
    ]
    assert notes[0] == notes[2] == []
    assert "(maths 2.4, prose 1.6; all 2)" in notes[1][0]


@pytest.mark.parametrize("is_uniform", [True, False])
def test_back_to_eagle_3_only_where_nothing_changes(is_uniform: bool) -> None:
    drafter = made("vllm/native", is_residual_normed=True)
    drafter = replace(drafter, norms=replace(drafter.norms, norm_output=True))
    if not is_uniform:
        with pytest.raises(RefusedError, match="whose channels differ"):
            downgrade(NOWHERE, drafter)
        return
    even = kept(torch.full((drafter.dims.hidden,), 0.7, dtype=torch.float64).numpy())
    tensors = {
        **drafter.tensors,
        "norm.weight": replace(drafter.tensors["norm.weight"], origin=Computed("", (), even)),
    }
    drafter = replace(drafter, tensors=tensors)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    assert max(error(chain(downgrade(NOWHERE, drafter).drafter, aux), chain(drafter, aux))) < 1e-12


@pytest.mark.parametrize(
    "change", [{"fc_norm": True}, {"norm_before_fc": True}, {"norm_before_residual": False}]
)
def test_back_to_eagle_3_is_refused_with_the_reason(change: dict[str, bool]) -> None:
    drafter = made("vllm/native", is_residual_normed=True)
    with pytest.raises(RefusedError, match="leave --to out"):
        downgrade(NOWHERE, replace(drafter, norms=replace(drafter.norms, norm_output=True, **change)))


# ------------------------------------------------------------------------------------------------ on files


@pytest.fixture
def known(tmp_path: Path) -> tuple[Path, Path]:
    """A drafter and statistics that were made with it."""
    folder = drafter_folder(tmp_path)
    checkpoint = read_checkpoint(FolderSource(folder))
    drafter = read_drafter(checkpoint, Answers(), Target())
    gram = torch.eye(48, dtype=torch.float64).numpy() * 1000
    cross = evaluate(drafter.tensors["fc.weight"], checkpoint) @ gram
    found = statistics(drafter, matrices=Matrices(gram, cross), tokens=1000)
    found = replace(
        found, digests={"drafter": drafter_digest(checkpoint, drafter), "target": "", "prompts": ""}
    )
    write_statistics(found, tmp_path / "stats", force=False)
    return folder, tmp_path / "stats"


def asked(stats: Path | None, **more: Any) -> UpgradeOptions:
    return UpgradeOptions(statistics=stats, **{"has_gate": False, **more})


def test_only_what_the_plan_names_changes_a_byte(known: tuple[Path, Path], tmp_path: Path) -> None:
    folder, stats = known
    done = eaglectl.upgrade(str(folder), tmp_path / "out", asked(stats))
    before, after = digests(folder), digests(tmp_path / "out")
    computed = {step.name for step in done.plan.steps if step.action == "computed"}
    assert computed == {
        *(f"fc_norm.{i}.weight" for i in range(3)),
        "fc.weight",
        "norm.weight",
        "lm_head.weight",
    }
    assert {name: before[name] for name in before if name not in computed} == {
        name: after[name] for name in after if name not in computed
    }
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["fc_norm"], config["norm_output"], config["norm_before_residual"]) == (True, True, False)
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert record["upgrade"]["fc_norm"] == "refit"
    assert record["gate"] is None


def test_a_quantised_drafter_takes_the_scales_alone_from_any_drafter_of_its_layers(tmp_path: Path) -> None:
    source = next(case.folder for case in CASES if case.path == "modelopt/hf-fp8")
    drafter = read_drafter(read_checkpoint(FolderSource(source)), Answers(), Target())
    write_statistics(statistics(drafter), tmp_path / "stats", force=False)
    scales: dict[str, Any] = {"fc_norm": "calibrated", "is_norm_output": False}
    answered = ConvertOptions(answers=true_answers(source))
    done = eaglectl.upgrade(str(source), tmp_path / "out", asked(tmp_path / "stats", **scales), answered)
    assert {step.name for step in done.plan.steps if step.action == "computed"} == {
        f"fc_norm.{i}.weight" for i in range(3)
    }
    before, after = digests(source), digests(tmp_path / "out")
    assert before.items() <= after.items() and done.plan.drafter.quantisation
    for kind, words, options in (
        (RefusedError, "another drafter", asked(tmp_path / "stats")),
        (RefusedError, "another drafter", asked(tmp_path / "stats", fc_norm="calibrated")),
        (UsageError, "--run-in vllm --against", asked(tmp_path / "stats", has_gate=True, **scales)),
        (RefusedError, "is quantised; convert the unquantised one", asked(None)),
    ):
        with pytest.raises(kind, match=words):
            eaglectl.upgrade(str(source), tmp_path / "other", options, answered)
    assert not (tmp_path / "other").exists()


def test_scales_of_layers_that_nobody_knows_are_not_taken(tmp_path: Path) -> None:
    nowhere: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": None}
    folder = drafter_folder(tmp_path, config=nowhere)
    drafter = read_drafter(read_checkpoint(FolderSource(folder)), Answers(), Target())
    assert drafter.aux.boundaries is None
    write_statistics(statistics(drafter), tmp_path / "stats", force=False)
    scales: dict[str, Any] = {"fc_norm": "calibrated", "is_norm_output": False}
    with pytest.raises(UsageError, match="pass --target or --aux-layers"):
        eaglectl.upgrade(str(folder), tmp_path / "out", asked(tmp_path / "stats", **scales))
    eaglectl.upgrade(
        str(folder),
        tmp_path / "out",
        asked(tmp_path / "stats", **scales),
        conversion=ConvertOptions(answers=Answers((2, 4, 5))),
    )
    with pytest.raises(RefusedError, match=r"boundaries \[2, 4, 5\]"):
        eaglectl.upgrade(
            str(folder),
            tmp_path / "no",
            asked(tmp_path / "stats", **scales),
            conversion=ConvertOptions(answers=Answers((1, 4, 5))),
        )


def test_statistics_come_back_as_they_were_written(known: tuple[Path, Path], tmp_path: Path) -> None:
    found = read_statistics(known[1])
    write_statistics(found, tmp_path / "again", force=False)
    again = read_statistics(tmp_path / "again")
    assert found.described() == again.described()
    assert found.matrices is not None and again.matrices is not None
    assert (found.matrices.gram == again.matrices.gram).all() and (
        found.matrices.cross == again.matrices.cross
    ).all()


def test_too_few_tokens_set_the_scales_alone_and_say_so(known: tuple[Path, Path], tmp_path: Path) -> None:
    folder, stats = known
    document = json.loads((stats / "statistics.json").read_text())
    (stats / "statistics.json").write_text(json.dumps(document | {"tokens": 100}))
    done = eaglectl.upgrade(str(folder), tmp_path / "out", asked(stats))
    assert any("too few to refit" in note.text for note in done.plan.notes if note.level == "warning")
    assert digests(folder)["fc.weight"] == digests(tmp_path / "out")["fc.weight"]


def test_a_trainers_start_is_marked(known: tuple[Path, Path], tmp_path: Path) -> None:
    done = eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(None, is_start=True))
    assert any(note.about == "init_only" for note in done.plan.notes)
    assert json.loads((tmp_path / "out/eaglectl.json").read_text())["upgrade"]["needs_finetune"] is True
    assert "> **Not trained, and not to be served.**" in (tmp_path / "out/README.md").read_text()
    eaglectl.convert(
        str(tmp_path / "out"),
        tmp_path / "other",
        ConvertOptions(layout="speculators", target_name="example/target"),
    )
    assert any(hit.rule.id == "EGL906" for hit in eaglectl.validate(str(tmp_path / "other")).findings)


def test_a_card_says_that_nothing_was_compared(known: tuple[Path, Path], tmp_path: Path) -> None:
    eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1]))
    text = (tmp_path / "out/README.md").read_text()
    tokens = json.loads((known[1] / "statistics.json").read_text())["tokens"]
    assert "| acceptance | not compared with that of before (`--no-gate`) |" in text
    assert f"| calibrated on | {tokens:,} tokens" in text and "Not trained" not in text


REFUSED: dict[str, tuple[type[EaglectlError], str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "no data": (UsageError, "pass --target", {}, {}, {"statistics": None}),
    "ones": (UsageError, "--init-only", {}, {}, {"fc_norm": "ones"}),
    "a word that is no mode": (UsageError, "refit, calibrated", {}, {}, {"fc_norm": "soft"}),
    "norm_before_fc": (
        RefusedError,
        "two norms in a row",
        {"norm_before_fc": True},
        {"input_norm.weight": floats("i", 48)},
        {},
    ),
    "a parallel drafter": (
        RefusedError,
        "mask_hidden",
        {"mask_token_id": 1},
        {"mask_hidden": floats("m", 1, 1, 48)},
        {},
    ),
    "ids out of order": (
        RefusedError,
        "ascending",
        {"eagle_aux_hidden_state_layer_ids": [5, 4, 2], "eagle_config": None},
        {},
        {},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_become_3_1_stops(name: str, known: tuple[Path, Path], tmp_path: Path) -> None:
    kind, word, config, tensors, more = REFUSED[name]
    folder = drafter_folder(tmp_path, "other", config=config, tensors=tensors)
    given = {"statistics": known[1], **more}
    with pytest.raises(kind, match=word):
        if given["statistics"] is not None and (config or tensors):
            checkpoint = read_checkpoint(FolderSource(folder))
            drafter = read_drafter(checkpoint, Answers(), Target())
            upgrade(checkpoint, drafter, UpgradeRecipe(statistics=read_statistics(known[1])))
        else:
            eaglectl.upgrade(str(folder), tmp_path / "out", asked(given.pop("statistics"), **given))
    assert not (tmp_path / "out").exists()


def test_statistics_of_another_drafter_are_refused(known: tuple[Path, Path], tmp_path: Path) -> None:
    other = drafter_folder(tmp_path, "other", tensors={"fc.weight": floats("another", 16, 48)})
    with pytest.raises(RefusedError, match="another drafter"):
        eaglectl.upgrade(str(other), tmp_path / "out", asked(known[1]))


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "eaglectl/statistics/1"}', '{"schema": "other"}'])
def test_statistics_that_are_none_are_unreadable(text: str, known: tuple[Path, Path], tmp_path: Path) -> None:
    (known[1] / "statistics.json").write_text(text)
    with pytest.raises(UnreadableError, match="calibrat"):
        eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1]))


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("place", ["drafter", "target", "drafter/inside", "stats", "texts"])
def test_calibrate_never_writes_over_what_it_reads(
    place: str, force: tuple[str, ...], tmp_path: Path
) -> None:
    folder, target = drafter_folder(tmp_path), drafter_folder(tmp_path, "target")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/statistics.json").write_text("def f")
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats/config.json").write_text("{}")  # a checkpoint, which is no folder of statistics
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made = call(
        "calibrate",
        folder,
        "--target",
        target,
        "--prompts",
        tmp_path / "texts/statistics.json",
        "-o",
        tmp_path / place,
        *force,
    )
    assert made.code == 2 and "give another -o" in made.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["statistics", "prompts"])
def test_an_upgrade_never_replaces_what_it_reads(kind: str, known: tuple[Path, Path], tmp_path: Path) -> None:
    folder, stats = known
    out = drafter_folder(tmp_path, "out") if kind == "prompts" else stats
    given: dict[str, Any] = {}
    if kind == "prompts":
        given = {"prompts": out / "prompts.txt", "has_gate": True}
        given["prompts"].write_text("def f\n")
    with pytest.raises(UsageError, match="lie in one another"):
        eaglectl.upgrade(str(folder), out, asked(stats, **given), conversion=ConvertOptions(force=True))
    assert (out / ("prompts.txt" if kind == "prompts" else "statistics.json")).is_file()


SENSELESS: dict[str, tuple[str, dict[str, Any]]] = {
    "a device that is none": ("device='tpu'", {"device": "tpu"}),
    "no number": ("--tolerance nan", {"tolerance": float("nan"), "has_gate": True}),
    "a bar that all pass": ("--tolerance 0", {"tolerance": 0.0, "has_gate": True}),
    "a bar that none can pass": ("--tolerance inf", {"tolerance": float("inf"), "has_gate": True}),
    "nothing to do": ("leave nothing", {"fc_norm": "off", "is_norm_output": False}),
    "a bar without a gate": ("--tolerance is the gate's", {"tolerance": 0.5}),
    "prompts that nothing reads": ("leave --prompts out", {"prompts": Path("prompts.jsonl")}),
    "a bar for a start": ("with --init-only", {"tolerance": 0.5, "has_gate": True, "is_start": True}),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_an_upgrade_passes_no_option_over_in_silence(
    name: str, known: tuple[Path, Path], tmp_path: Path
) -> None:
    words, more = SENSELESS[name]
    with pytest.raises(UsageError, match=words):
        eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1], **more))
    assert not (tmp_path / "out").exists()


def test_a_default_place_that_is_taken_is_told_before_anything_is_read(
    known: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{known[0].name}-eagle3.1").mkdir()
    with pytest.raises(UsageError, match="there already"):
        eaglectl.upgrade(str(known[0]), options=asked(tmp_path / "none"))


def test_what_no_recipe_makes_3_1_is_not_calibrated(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("def f")
    tensors = {f"fc_norm.{i}.weight": floats(f"n{i}", 16) for i in range(3)}
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": True}, tensors=tensors)
    (target := tmp_path / "target").mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 8, "hidden_size": 16, "model_type": "llama"}')
    made = call(
        "calibrate", folder, "--target", target, "--prompts", tmp_path / "one.txt", "-o", tmp_path / "stats"
    )
    assert made.code == 1 and "fc_norm already" in made.err


def test_sizes_are_what_the_written_dtype_holds(tmp_path: Path) -> None:
    tensors = {
        name: floats(name, *shape, dtype="F32")
        for name, (_, shape, _) in drafter_tensors().items()
        if name != "d2t"
    }
    folder = drafter_folder(tmp_path, config={"torch_dtype": "float32"}, tensors=tensors)
    checkpoint = read_checkpoint(FolderSource(folder))
    drafter = read_drafter(checkpoint, Answers(), Target())
    found = statistics(drafter, rms=(0.3, 1.1, 4.7), sigma=2.3)
    found = replace(found, digests={"drafter": drafter_digest(checkpoint, drafter)})
    write_statistics(found, tmp_path / "stats", force=False)
    eaglectl.upgrade(
        str(folder),
        tmp_path / "out",
        asked(tmp_path / "stats", fc_norm="calibrated"),
        conversion=ConvertOptions(dtype="BF16"),
    )
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())["upgrade"]
    written = read_safetensors(tmp_path / "out/model.safetensors")
    for name, size in [
        *((f"fc_norm.{i}.weight", size) for i, size in enumerate(record["scales"])),
        ("norm.weight", record["sigma"]),
    ]:
        assert decode(written[name][2], written[name][0], name).tolist() == [size] * 16


def test_link_is_heard_by_an_upgrade(known: tuple[Path, Path], tmp_path: Path) -> None:
    eaglectl.convert(str(known[0]), tmp_path / "whole", ConvertOptions(max_shard_size=4000))
    source = tmp_path / "whole"
    made = call(
        "convert", source, "--to", "3.1", "--init-only", "--fc-norm", "off", "-o", tmp_path / "out", "--link"
    )
    assert made.code == 0, made.err
    linked = [path for path in (tmp_path / "out").glob("*.safetensors") if path.stat().st_nlink == 2]
    assert linked and len(linked) == len([*source.glob("*.safetensors")])
    assert '"fc_norm": false, "norm_output": true' in made.out


SPOILT: dict[str, dict[str, Any]] = {
    "two sizes for three layers": {"rms": [0.5, 1.0]},
    "no size": {"rms": [None, 1.0, 4.0]},
    "a size below 0": {"rms": [-0.5, 1.0, 4.0]},
    "no spread": {"log_ratio_sd": []},
    "a spread that is no number": {"log_ratio_sd": ["a", 0.1, 0.1]},
    "a sigma of 0": {"sigma": 0},
    "a sigma that is text": {"sigma": "2"},
    "a set that is no number": {"sigma_by_set": {"a": "b"}},
    "no tokens": {"tokens": 0},
    "layers as text": {"boundaries": "245"},
    "the matrices of another run": {"matrices": {"sha256": "0" * 64}},
}


@pytest.mark.parametrize("name", SPOILT)
def test_statistics_that_were_spoilt_are_unreadable(
    name: str, known: tuple[Path, Path], tmp_path: Path
) -> None:
    document = json.loads((known[1] / "statistics.json").read_text())
    (known[1] / "statistics.json").write_text(json.dumps(document | SPOILT[name]))
    made = call(
        "convert", known[0], "--to", "3.1", "--calibration", known[1], "--no-gate", "-o", tmp_path / "out"
    )
    assert made.code == 3 and "-o calibration`" in made.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [None, 0, 20, -8])
def test_matrices_that_are_gone_or_cut_are_unreadable(size: int | None, known: tuple[Path, Path]) -> None:
    path = known[1] / "statistics.safetensors"
    raw = path.read_bytes()
    path.unlink()
    if size is not None:
        path.write_bytes(raw[:size])
    with pytest.raises(UnreadableError, match=r"statistics\.safetensors"):
        read_statistics(known[1])


@pytest.mark.parametrize(("key", "value"), [("norm_before_residual", True), ("rms_norm_eps", 1e-3)])
def test_statistics_of_another_reading_of_the_drafter_are_refused(
    key: str, value: Any, known: tuple[Path, Path], tmp_path: Path
) -> None:
    other = drafter_folder(tmp_path, "other", config={key: value})
    with pytest.raises(RefusedError, match=key):
        eaglectl.upgrade(str(other), tmp_path / "out", asked(known[1]))


def test_an_old_folder_of_statistics_is_replaced_by_force(known: tuple[Path, Path], tmp_path: Path) -> None:
    found = read_statistics(known[1])
    write_statistics(replace(found, tokens=7), known[1], force=True)
    assert read_statistics(known[1]).tokens == 7


def test_a_drafter_that_is_3_1_already_only_moves(tmp_path: Path) -> None:
    tensors = {f"fc_norm.{i}.weight": floats(f"n{i}", 16) for i in range(3)}
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": True}, tensors=tensors)
    done = eaglectl.upgrade(str(folder), tmp_path / "out")
    assert all(step.action != "computed" for step in done.plan.steps)
    start = call("convert", folder, "--to", "3.1", "--init-only", "-o", tmp_path / "start")
    assert "is EAGLE-3.1 already" in " ".join(start.out.split())
    assert start.code == 0 and "Train it with" not in start.out and "untrained" not in start.out


def test_a_plan_with_computed_tensors_is_printed_without_being_written(tmp_path: Path) -> None:
    words = ("convert", drafter_folder(tmp_path), "--to", "3.1", "--init-only", "--dry-run")
    done = call(*words, "-o", tmp_path / "out")
    assert done.code == 0 and "computed" in done.out and not (tmp_path / "out").exists()


def test_options_of_the_upgrade_say_nothing_elsewhere(tmp_path: Path) -> None:
    from tests.builders import refusal

    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", "--fc-norm", "off")
    assert "belong to --to 3.1" in message


def test_a_request_for_3_1_without_anything_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--calibration"):
        eaglectl.convert(str(drafter_folder(tmp_path)), tmp_path / "out", ConvertOptions(version="3.1"))


def test_an_upgrade_reads_the_headers_of_its_source_once(
    known: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str] = []

    def counted(source: Source) -> Checkpoint:
        labels.append(source.label)
        return read_checkpoint(source)

    monkeypatch.setattr(copies, "read_checkpoint", counted)
    eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1]))
    assert labels == [known[0].name]


def test_progress_of_an_upgrade_ends_with_the_bytes_it_writes(
    known: tuple[Path, Path], tmp_path: Path
) -> None:
    reports: list[Progress] = []
    eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1]), on_progress=reports.append)
    assert reports[-1].stage == "writing"
    assert reports[-1].done == reports[-1].total == (tmp_path / "out/model.safetensors").stat().st_size
