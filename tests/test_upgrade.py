"""EAGLE-3 to 3.1: exact steps are exact in float64, others change little, forbidden ones are refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.api.upgrade import UpgradeOptions  # noqa: E402
from eaglectl.conversion.plan import UpgradeRecipe  # noqa: E402
from eaglectl.conversion.rewriting import evaluate  # noqa: E402
from eaglectl.conversion.upgrade import (  # noqa: E402
    Matrices,
    Statistics,
    downgrade,
    drafter_digest,
    read_statistics,
    target_digest,
    upgrade,
    write_statistics,
)
from eaglectl.drafter.drafter import Drafter, Target  # noqa: E402
from eaglectl.drafter.tensors import Computed, Tensor  # noqa: E402
from eaglectl.errors import RefusedError, UnreadableError, UsageError  # noqa: E402
from eaglectl.files.checkpoint import read_checkpoint  # noqa: E402
from eaglectl.files.source import FolderSource  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.formats.reader import read_drafter  # noqa: E402
from eaglectl.reference.model import DraftModel  # noqa: E402
from tests.builders import HIDDEN, VOCAB, call, drafter_folder, floats, target_of  # noqa: E402
from tests.cases import CASES, digests, true_answers  # noqa: E402

KINDS = ("vllm/native", "modelopt/hf-two-layers", "vllm/mla", "speculators/qwen3")
TINY_EPS, STEPS, TIME = 1e-30, 5, 6
FC_NORMS = [f"fc_norm.{index}.weight" for index in range(3)]
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


def seeded(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def aux_states(drafter: Drafter, sizes: Any) -> Any:
    """Random aux states whose RMS by token and layer is `sizes` [time, aux]."""
    states = seeded(5, TIME, drafter.dims.aux, drafter.dims.target_hidden)
    states = states / states.pow(2).mean(-1, keepdim=True).sqrt() * sizes[..., None]
    return states.flatten(1)[None]


def chain(drafter: Drafter, aux: Any) -> list[Any]:
    """Logits of STEPS drafted tokens after the last state, fed with embeddings that do not depend on them."""
    weights = {name: torch.from_numpy(evaluate(tensor, NOWHERE)) for name, tensor in drafter.tensors.items()}
    one = DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, TINY_EPS)
    embeddings = seeded(7, 1, TIME + STEPS, drafter.dims.hidden)
    caches, found, state, start = one.new_caches(), [], one.combine_hidden_states(aux), 0
    for stop in range(TIME, TIME + STEPS):
        mask = torch.ones(1, stop, stop).tril().bool()[:, start:]
        stream = one.forward(embeddings[:, start:stop], state, torch.arange(start, stop)[None], caches, mask)
        found.append(one.logits(stream[:, -1:], weights["lm_head.weight"]))
        state, start = one.feedback(stream[:, -1:]), stop
    return found


def errors(drafter: Drafter, meant: Drafter, aux: Any) -> list[float]:
    """How far the logits of each step are from those that are meant."""
    pairs = zip(chain(drafter, aux), chain(meant, aux), strict=True)
    return [float((one - other).norm() / other.norm()) for one, other in pairs]


def with_values(drafter: Drafter, name: str, values: Any) -> Drafter:
    tensor = Tensor(name, "F64", values.shape, Computed("", (), kept(values)))
    return replace(drafter, tensors={**drafter.tensors, name: tensor})


def statistics(
    drafter: Drafter | None = None, rms: tuple[float, ...] = (0.5, 1.0, 4.0), **more: Any
) -> Statistics:
    scales = (*rms, *rms)[: 3 if drafter is None else drafter.dims.aux]
    spread: tuple[float, ...] = (0.1,) * len(scales)
    plain = Statistics({}, (), (2, 4, 5), 1e-6, 10**6, scales, spread, 2.0, {}, is_direction=False)
    return replace(plain, **more)


@pytest.mark.parametrize("path", KINDS)
def test_scales_are_exact_where_the_states_have_one_size_each(path: str) -> None:
    drafter = made(path)
    known = statistics(drafter)
    aux = aux_states(drafter, torch.tensor(known.rms).expand(TIME, -1))
    changed = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", False, known)).drafter
    assert max(errors(changed, drafter, aux)) < 1e-12
    naive = upgrade(NOWHERE, drafter, UpgradeRecipe("ones", False, None, is_start=True)).drafter
    assert max(errors(naive, drafter, aux)) > 0.05


@pytest.mark.parametrize("path", KINDS)
def test_norm_output_is_exact_without_data_where_the_residual_is_normed(path: str) -> None:
    drafter = made(path, is_residual_normed=True)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    changed = upgrade(NOWHERE, drafter, UpgradeRecipe("off", True, None)).drafter
    assert changed.norms.norm_output
    assert max(errors(changed, drafter, aux)) < 1e-12
    flag = replace(drafter, norms=replace(drafter.norms, norm_output=True))
    assert max(errors(flag, drafter, aux)) > 1e-2


def test_a_trained_norm_output_stays_as_it_is() -> None:
    plain = made("vllm/native")
    drafter = replace(plain, norms=replace(plain.norms, norm_output=True))
    aux = aux_states(drafter, torch.tensor((0.5, 1.0, 4.0)).double().expand(TIME, -1))
    done = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", True, statistics(drafter)))
    assert done.record["upgrade"]["norm_output"] == "as trained"
    assert done.drafter.version == "3.1"
    changed = {name for name, t in done.drafter.tensors.items() if t is not drafter.tensors.get(name)}
    assert changed == {*FC_NORMS}
    assert max(errors(done.drafter, drafter, aux)) < 1e-7


def test_without_a_head_the_residual_is_scaled_and_the_first_token_stays() -> None:
    drafter = made("vllm/native")
    head = evaluate(drafter.tensors["lm_head.weight"], NOWHERE)
    others = {name: tensor for name, tensor in drafter.tensors.items() if name != "lm_head.weight"}
    bare = replace(drafter, tensors=others)
    changed = upgrade(NOWHERE, bare, UpgradeRecipe("off", True, statistics(drafter)))
    assert changed.record["upgrade"]["norm_output"] == "residual scaled"
    whole = with_values(changed.drafter, "lm_head.weight", head)
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    assert errors(whole, drafter, aux)[0] < 1e-12
    normed = replace(bare, norms=replace(bare.norms, norm_before_residual=True))
    with pytest.raises(RefusedError, match="no own lm_head"):
        upgrade(NOWHERE, normed, UpgradeRecipe("off", True, None))


@pytest.mark.parametrize("is_residual_normed", [False, True])
def test_a_refit_does_not_see_a_layers_scale_that_fc_undoes(is_residual_normed: bool) -> None:
    drafter = made("vllm/native", is_residual_normed=is_residual_normed)
    width, count = drafter.dims.target_hidden, drafter.dims.aux
    random = np.random.default_rng(1)
    normed = random.standard_normal((40 * width * count, width * count))
    cross = random.standard_normal((drafter.dims.hidden, width * count)) @ normed.T @ normed
    matrices = Matrices(normed.T @ normed, cross)
    scales = np.array([0.1, 1.0, 10.0])
    plain = evaluate(drafter.tensors["fc.weight"], NOWHERE)
    other = with_values(drafter, "fc.weight", plain / np.repeat(scales, width))
    rms = (0.5, 1.0, 4.0)
    found = [
        upgrade(
            NOWHERE, one, UpgradeRecipe("refit", False, statistics(one, sizes, matrices=matrices))
        ).drafter
        for one, sizes in ((drafter, rms), (other, tuple(scales * rms)))
    ]
    first, second = (evaluate(one.tensors["fc.weight"], NOWHERE) for one in found)
    assert not np.allclose(first, plain, rtol=0.01)
    assert second * np.repeat(scales, width) == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize(("share", "is_warned"), [(1.0, False), (0.0, True)])
def test_a_refit_that_leaves_much_unexplained_is_warned_of(share: float, is_warned: bool) -> None:
    drafter = made("vllm/native")
    fc = evaluate(drafter.tensors["fc.weight"], NOWHERE)
    normed = np.random.default_rng(1).standard_normal((4000, fc.shape[1]))
    output = normed @ fc.T
    sizes = np.linalg.norm(output, axis=1, keepdims=True)
    normed, output = normed / sizes, output / sizes
    matrices = Matrices(normed.T @ normed, share * output.T @ normed)
    known = statistics(drafter, (1.0, 1.0, 1.0), matrices=matrices, tokens=4000)
    done = upgrade(NOWHERE, drafter, UpgradeRecipe("refit", False, known))
    assert (done.record["upgrade"]["refit"]["relative_residual"] > 0.2) == is_warned
    assert any("of fc's output unexplained" in note.text for note in done.notes) == is_warned


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, []),
        ({"rms": (0.5, 1e-3, 4.0)}, ["boundaries [4] are so small that rms_norm_eps 1e-06 changes"]),
        ({"spread": (0.1, 0.9, 0.1)}, ["sd of log-ratios 0.90"]),
        ({"sigmas": {"code": 2.2, "prose": 1.8}}, []),
        ({"sigmas": {"code": 2.2, "prose": 1.6, "maths": 2.4}}, ["(maths 2.4, prose 1.6; all 2)"]),
    ],
)
def test_states_that_no_two_switches_fit_are_warned_of(more: dict[str, Any], words: list[str]) -> None:
    for is_residual_normed in (False, True):  # then the size of what is fed back does not matter
        drafter = made("vllm/native", is_residual_normed=is_residual_normed)
        done = upgrade(NOWHERE, drafter, UpgradeRecipe("calibrated", True, statistics(drafter, **more)))
        texts = [note.text for note in done.notes if note.level == "warning"]
        expected = [] if is_residual_normed and "sigmas" in more else words
        assert len(texts) == len(expected) and all(map(str.__contains__, texts, expected))


@pytest.mark.parametrize(
    ("change", "spread", "words"),
    [
        ({}, 0.0, ""),
        ({}, 0.3, "which is not uniform"),
        ({"fc_norm": True}, 0.0, "fc_norm divides every state"),
        ({"norm_before_fc": True}, 0.0, "norm_before_fc divides"),
        ({"norm_before_residual": False}, 0.0, "the residual keeps it"),
    ],
)
def test_back_to_eagle_3_only_where_nothing_changes(
    change: dict[str, bool], spread: float, words: str
) -> None:
    drafter = made("vllm/native", is_residual_normed=True)
    values = 0.7 + spread * np.random.default_rng(1).standard_normal(drafter.dims.hidden)
    drafter = with_values(drafter, "norm.weight", values)
    drafter = replace(drafter, norms=replace(drafter.norms, norm_output=True, **change))
    if words:
        with pytest.raises(RefusedError, match=f"{words}.*leave --to out"):
            downgrade(NOWHERE, drafter)
        return
    aux = aux_states(drafter, torch.ones(TIME, drafter.dims.aux))
    assert max(errors(downgrade(NOWHERE, drafter).drafter, drafter, aux)) < 1e-12


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
    stated = ("--to", "3.1", "--calibration", stats, "--no-gate")
    done = call("convert", "-v", folder, *stated, "-o", tmp_path / "out")
    (line,) = (line for line in done.out.splitlines() if re.search(r"\d k?B\b", line) and "layout" in line)
    assert line.endswith("B") and done.code == 0  # no time is stated beside the bytes
    steps = call("convert", folder, *stated, "--dry-run", "--json").document["plan"]["tensors"]
    before, after = digests(folder), digests(tmp_path / "out")
    computed = {step["name"] for step in steps if step["action"] == "computed"}
    assert computed - {"fc.weight", "norm.weight", "lm_head.weight"} == {*FC_NORMS} < computed
    assert {name for name, digest in after.items() if before.get(name) != digest} == computed
    assert before.keys() <= after.keys()
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
    assert {step.name for step in done.plan.steps if step.action == "computed"} == {*FC_NORMS}
    before, after = digests(source), digests(tmp_path / "out")
    assert before.items() <= after.items() and done.plan.drafter.quantisation
    for kind, words, options in (
        (RefusedError, "another drafter", asked(tmp_path / "stats")),
        (RefusedError, "another drafter", asked(tmp_path / "stats", fc_norm="calibrated")),
        (UsageError, "--run-in vllm --against", asked(tmp_path / "stats", has_gate=True, **scales)),
        (RefusedError, "is quantised; convert the unquantised drafter", asked(None)),
    ):
        with pytest.raises(kind, match=words):
            eaglectl.upgrade(str(source), tmp_path / "other", options, answered)
    assert not (tmp_path / "other").exists()


def spoil(stats: Path, **changes: Any) -> None:
    file = stats / "statistics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_too_few_tokens_set_the_scales_alone_and_say_so(known: tuple[Path, Path], tmp_path: Path) -> None:
    folder, stats = known
    spoil(stats, tokens=100)
    done = eaglectl.upgrade(str(folder), tmp_path / "out", asked(stats))
    assert any("too few to refit" in note.text for note in done.plan.notes if note.level == "warning")
    assert digests(folder)["fc.weight"] == digests(tmp_path / "out")["fc.weight"]


def test_a_trainers_start_is_marked(known: tuple[Path, Path], tmp_path: Path) -> None:
    done = eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(None, is_start=True))
    assert any(note.about == "init_only" for note in done.plan.notes)
    assert json.loads((tmp_path / "out/eaglectl.json").read_text())["upgrade"]["needs_finetune"] is True
    assert "> **Not trained: do not serve it.**" in (tmp_path / "out/README.md").read_text()
    eaglectl.convert(
        str(tmp_path / "out"),
        tmp_path / "other",
        ConvertOptions(layout="speculators", target_name="example/target"),
    )
    assert any(hit.rule.id == "EGL906" for hit in eaglectl.validate(str(tmp_path / "other")).findings)


IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("words", "config", "tensors"),
    [
        ("a second norm", {"norm_before_fc": True}, {"input_norm.weight": floats("i", 48)}),
        ("mask_hidden", {"mask_token_id": 1}, {"mask_hidden": floats("m", 1, 1, 48)}),
        ("ascending", {IDS: [5, 4, 2], "eagle_config": None}, {}),
        ("another drafter", {}, {"fc.weight": floats("another", 16, 48)}),
        ("norm_before_residual", {"norm_before_residual": True}, {}),
        ("rms_norm_eps", {"rms_norm_eps": 1e-3}, {}),
    ],
)
def test_what_cannot_become_3_1_and_another_drafter_than_was_calibrated_stop(
    words: str, config: dict[str, Any], tensors: dict[str, Any], known: tuple[Path, Path], tmp_path: Path
) -> None:
    other = drafter_folder(tmp_path, "other", config=config, tensors=tensors)
    is_other_kind = words in ("a second norm", "mask_hidden")
    given = asked(None, is_start=True) if is_other_kind else asked(known[1])
    with pytest.raises(RefusedError, match=words):
        eaglectl.upgrade(str(other), tmp_path / "out", given)


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
    given = ("--target", target, "--prompts", tmp_path / "texts/statistics.json", *force)
    made = call("calibrate", folder, *given, "-o", tmp_path / place)
    assert made.code == 2 and "pass another -o" in made.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["statistics", "prompts"])
def test_an_upgrade_never_replaces_what_it_reads(kind: str, known: tuple[Path, Path], tmp_path: Path) -> None:
    folder, stats = known
    out, file, given = stats, stats / "statistics.json", {}
    if kind == "prompts":
        file = (out := drafter_folder(tmp_path, "out")) / "prompts.txt"
        file.write_text("def f\n")
        given = {"prompts": file, "has_gate": True}
    with pytest.raises(UsageError, match="overlap, and eaglectl never overwrites its input"):
        eaglectl.upgrade(str(folder), out, asked(stats, **given), conversion=ConvertOptions(force=True))
    assert file.is_file()


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("pass --init-only with it", {"fc_norm": "ones"}),
        ("refit, calibrated", {"fc_norm": "soft"}),
        ("device='tpu'", {"device": "tpu"}),
        ("--tolerance nan", {"tolerance": float("nan"), "has_gate": True}),
        ("--tolerance 0", {"tolerance": 0.0, "has_gate": True}),
        ("--tolerance inf", {"tolerance": float("inf"), "has_gate": True}),
        ("leave nothing", {"fc_norm": "off", "is_norm_output": False}),
        ("--tolerance is for the gate", {"tolerance": 0.5}),
        ("leave --prompts out", {"prompts": Path("prompts.jsonl")}),
        ("with --init-only", {"tolerance": 0.5, "has_gate": True, "is_start": True}),
    ],
)
def test_an_upgrade_passes_no_option_over_in_silence(
    words: str, more: dict[str, Any], known: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        eaglectl.upgrade(str(known[0]), tmp_path / "out", asked(known[1], **more))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "spoilt",
    [
        {"rms": [0.5, 1.0]},
        {"rms": [None, 1.0, 4.0]},
        {"rms": [-0.5, 1.0, 4.0]},
        {"log_ratio_sd": []},
        {"log_ratio_sd": ["a", 0.1, 0.1]},
        {"sigma": 0},
        {"sigma": "2"},
        {"sigma_by_set": {"a": "b"}},
        {"tokens": 0},
        {"boundaries": "245"},
        {"matrices": {"sha256": "0" * 64}},
        {"schema": "other"},
    ],
    ids=str,
)
def test_statistics_that_were_spoilt_are_unreadable(
    spoilt: dict[str, Any], known: tuple[Path, Path], tmp_path: Path
) -> None:
    spoil(known[1], **spoilt)
    given = ("--calibration", known[1], "--no-gate", "-o", tmp_path / "out")
    made = call("convert", known[0], "--to", "3.1", *given)
    assert made.code == 3 and "-o calibration`" in made.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [None, 0, 20, -8])
def test_matrices_that_are_gone_or_cut_and_statistics_that_are_none_are_unreadable(
    size: int | None, known: tuple[Path, Path]
) -> None:
    path = known[1] / "statistics.safetensors"
    raw = path.read_bytes()
    path.unlink()
    if size is not None:
        path.write_bytes(raw[:size])
    with pytest.raises(UnreadableError, match=r"statistics\.safetensors"):
        read_statistics(known[1])
    for text in ("{", "[]", '{"schema": "eaglectl/statistics/1"}'):
        (known[1] / "statistics.json").write_text(text)
        with pytest.raises(UnreadableError, match="not a folder that calibrate wrote"):
            read_statistics(known[1])


def test_a_drafter_that_is_3_1_already_only_moves_and_is_not_calibrated(tmp_path: Path) -> None:
    tensors = {name: floats(name, HIDDEN) for name in FC_NORMS}
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": True}, tensors=tensors)
    done = eaglectl.upgrade(str(folder), tmp_path / "out")
    assert all(step.action != "computed" for step in done.plan.steps)
    start = call("convert", folder, "--to", "3.1", "--init-only", "-o", tmp_path / "start")
    assert "is EAGLE-3.1 already" in " ".join(start.out.split())
    assert start.code == 0 and "Train it with" not in start.out and "untrained" not in start.out
    (tmp_path / "one.txt").write_text("def f")
    given = ("--target", target_of(tmp_path / "target"), "--prompts", tmp_path / "one.txt")
    made = call("calibrate", folder, *given, "-o", tmp_path / "stats")
    assert made.code == 1 and "fc_norm already" in made.err


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ((), "eaglectl convert my-drafter --to 3.1 --target PATH"),
        (
            ("--for", "sglang", "--engine", "sglang", "--no-gate", "-o", "my out", "--aux-layers", "2,4,5"),
            "eaglectl convert my-drafter --to 3.1 --for sglang -o 'my out' --engine sglang"
            " --no-gate --target PATH --aux-layers 2,4,5",
        ),
        (("--target", "cfg"), "eaglectl convert my-drafter --to 3.1 --target PATH"),
    ],
)
def test_a_call_without_the_targets_weights_ends_in_the_one_to_make(
    given: tuple[str, ...], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter_folder(tmp_path, "my-drafter")
    target_of(tmp_path / "cfg")
    monkeypatch.chdir(tmp_path)
    done = call("convert", "my-drafter", "--to", "3.1", *given)
    assert done.code == 2 and done.err.endswith(f": {command}\n") and len(done.err) <= 6 * 80
    assert "needs the target's weights" in done.err and "--init-only" in done.err
    assert ("cfg has none here" if given[:1] == ("--target",) else "files name no target)") in done.err
    with pytest.raises(UsageError, match="or --calibration with the folder"):
        eaglectl.convert("my-drafter", "out", version="3.1")


def test_absorption_takes_a_head_that_comes_from_the_target(tmp_path: Path) -> None:
    bare = {"lm_head.weight": None, "d2t": None}
    source = drafter_folder(tmp_path, config={"draft_vocab_size": VOCAB}, tensors=bare)
    whole = target_of(tmp_path / "target", {"lm_head.weight": floats("head", VOCAB, HIDDEN)})
    recipe = UpgradeRecipe("off", True, statistics())
    options = ConvertOptions(version="3.1", recipe=recipe, has_target_head=True, target=str(whole))
    done = eaglectl.convert(str(source), tmp_path / "out", options)
    assert done.plan.record["upgrade"]["norm_output"] == "absorbed"
    step = next(step for step in done.plan.steps if step.name == "lm_head.weight")
    assert step.how == "the target's lm_head.weight; columns times norm.weight / sigma"


def test_other_weights_or_another_config_are_another_target(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    (tmp_path / "model.safetensors").write_bytes(bytes(200_000))
    (tmp_path / "README.md").write_text("about")
    digest = target_digest(FolderSource(tmp_path))
    places = {"config.json": [3], "model.safetensors": [3, 199_990], "README.md": [3]}
    for path, place in [(tmp_path / name, place) for name in places for place in places[name]]:
        data = bytearray(before := path.read_bytes())
        data[place] ^= 1
        path.write_bytes(bytes(data))
        assert (target_digest(FolderSource(tmp_path)) != digest) == (path.name != "README.md")
        path.write_bytes(before)
