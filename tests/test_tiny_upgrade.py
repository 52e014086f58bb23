"""The upgrade of a trained pair: flags alone lose much, the default keeps acceptance, faults are refused."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.conversion.request import UpgradeRecipe  # noqa: E402
from eaglectl.conversion.upgrade import read_statistics  # noqa: E402
from eaglectl.errors import EaglectlError, RefusedError, UsageError  # noqa: E402
from eaglectl.operations.converting import ConvertOptions  # noqa: E402
from eaglectl.operations.options import MeasureOptions  # noqa: E402
from eaglectl.operations.upgrading import UpgradeOptions  # noqa: E402
from eaglectl.progress import Progress  # noqa: E402
from eaglectl.reference.target import TargetModel  # noqa: E402
from eaglectl.run.job import EngineJob  # noqa: E402
from eaglectl.run.measurement import Estimate, Measurement  # noqa: E402
from eaglectl.run.prompts import read_prompts  # noqa: E402
from eaglectl.run.report import Gate, GateRow, run_gate  # noqa: E402
from tests.builders import Stored, call, read_safetensors  # noqa: E402
from tests.tiny import TARGET, TINY, Fault, ids, not_a_number, short_prompts  # noqa: E402

EAGLE3 = str(TINY / "eagle3")
ARGUMENTS: dict[str, Any] = {"target": str(TARGET)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Statistics of some prompts, and the drafter in vLLM's layout."""
    folder = tmp_path_factory.mktemp("upgrade")
    some = short_prompts(folder, 24, "calibration.jsonl")
    options = eaglectl.CalibrateOptions(prompts=some, device="cpu")
    eaglectl.calibrate(EAGLE3, str(TARGET), folder / "stats", options)
    eaglectl.convert(EAGLE3, folder / "good", ConvertOptions(**ARGUMENTS))
    return folder


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Statistics of all prompts for calibration."""
    folder = tmp_path_factory.mktemp("all") / "stats"
    options = eaglectl.CalibrateOptions(prompts=TINY / "calibration.jsonl", device="cpu")
    eaglectl.calibrate(EAGLE3, str(TARGET), folder, options)
    return folder


def asked(root: Path, **more: Any) -> UpgradeOptions:
    known = {"statistics": root / "stats", "prompts": TINY / "gate.jsonl", "device": "cpu", "max_tokens": 48}
    return UpgradeOptions(**{**known, **more})


def schema(name: str) -> Any:
    return json.loads((TINY.parents[1] / f"schemas/{name}.schema.json").read_text())


def test_the_documents_of_calibrate_keep_their_schemas(tmp_path: Path) -> None:
    few = short_prompts(tmp_path, 6, "gate.jsonl")
    made = call(
        "calibrate",
        EAGLE3,
        "--target",
        TARGET,
        "--prompts",
        few,
        "--answer-tokens",
        "8",
        "--device",
        "cpu",
        "--json",
        "-o",
        tmp_path / "stats",
    )
    assert made.code == 0, made.err
    jsonschema.validate(made.document, schema("calibrate"))
    stored = json.loads((tmp_path / "stats/statistics.json").read_text())
    jsonschema.validate(stored, schema("statistics"))
    assert len(stored["prompts"]) == 6
    assert made.document["sigma"] == read_statistics(tmp_path / "stats").sigma


def test_calibrate_shows_that_it_loads_and_counts_three_passes_over_each_prompt(tmp_path: Path) -> None:
    progress: list[Progress] = []
    options = eaglectl.CalibrateOptions(
        prompts=short_prompts(tmp_path, 3, "gate.jsonl"), answer_tokens=4, device="cpu"
    )
    eaglectl.calibrate(EAGLE3, str(TARGET), options=options, on_progress=progress.append)
    counted = [Progress("calibrating", done, 9, "prompts") for done in (0, 3, 4, 5, 6, 7, 8, 9)]
    loading, told = progress[0], [step for step in progress[1:] if step.unit != "weights"]
    assert (loading, told) == (Progress("loading the target"), counted)


def test_calibrate_and_gate_say_once_how_long_they_take(tmp_path: Path) -> None:
    calibrating: list[Progress] = []
    options = eaglectl.CalibrateOptions(
        prompts=short_prompts(tmp_path, 17, "gate.jsonl"), answer_tokens=2, device="cpu"
    )
    eaglectl.calibrate(EAGLE3, str(TARGET), options=options, on_progress=calibrating.append)
    (told,) = (step for step in calibrating if step.seconds is not None)
    assert told.seconds > 0 and (told.done, told.total) == (16, 51)  # type: ignore[operator]
    measuring: list[Progress] = []
    few = short_prompts(tmp_path, 3, "gate.jsonl")
    jobs = [
        EngineJob(TINY / name, eaglectl.inspect(str(TINY / name), target=str(TARGET)).drafter, TARGET, ())
        for name in ("eagle3.1", "eagle3.1")
    ]
    jobs = [replace(job, prompts=read_prompts(few), max_tokens=2, device="cpu") for job in jobs]
    run_gate(jobs[0], jobs[1], 0.97, measuring.append)
    assert measuring[0] == Progress("loading the target") and measuring[1] == Progress(
        "measuring", 0, 6, "prompts"
    )
    done = [step.done for step in measuring[2:]]
    assert done == sorted(done) and done[-1] == 6


def row(value: float, low: float, high: float, rounds: Estimate | None = None) -> GateRow:
    nothing = Measurement(Estimate(2.0, 1.9, 2.1), (Estimate(0.6, 0.5, 0.7),), 100, 200, 40)
    return GateRow(3, nothing, nothing, Estimate(value, low, high), rounds or Estimate(value, 0.5, 2.0))


@pytest.mark.parametrize(
    ("rows", "ending", "needed"),
    [
        ([row(1.0, 0.98, 1.02)], "kept", 40),
        ([row(1.0, 0.98, 1.02), row(1.0, 0.94, 1.06)], "too few prompts", 158),
        ([row(0.96, 0.93, 0.99)], "too few prompts", 334),
        ([row(0.97, 0.93, 0.99)], "too few prompts", None),
        ([row(0.94, 0.92, 0.96)], "lost", 40),
        ([row(1.0, 0.98, 1.02), row(0.94, 0.92, 0.96)], "lost", 40),
        ([row(1.0, 0.98, 1.02, Estimate(0.9, 0.85, 0.95))], "lost", 40),
        ([row(1.0, 0.98, 1.02, Estimate(0.95, 0.92, 0.98))], "too few prompts", 87),
        ([row(0.94, 0.92, 0.96, Estimate(0.98, 0.94, 1.02))], "too few prompts", 623),
        ([row(1.0, 0.98, 1.02, Estimate(0.98, 0.94, 1.02))], "kept", 40),
    ],
)
def test_a_gate_ends_by_where_its_intervals_lie(rows: list[GateRow], ending: str, needed: int | None) -> None:
    gate = Gate(tuple(rows), 40, 0.97, "", "cpu", "float32")
    assert (gate.ending, gate.prompts_needed) == (ending, needed)


def measured(root: Path, tmp_path: Path, recipe: UpgradeRecipe, prompts: int) -> Gate:
    """The gate's figures for a recipe, whatever they are."""
    done = eaglectl.convert(
        EAGLE3, tmp_path / "after", ConvertOptions(version="3.1", recipe=recipe, **ARGUMENTS)
    )
    before = eaglectl.convert(EAGLE3, tmp_path / "before", ConvertOptions(**ARGUMENTS))
    chosen = read_prompts(short_prompts(tmp_path, prompts, "gate.jsonl"))
    jobs = [
        EngineJob(tmp_path / name, plan.drafter, TARGET, chosen, max_tokens=48, device="cpu")
        for name, plan in (("before", before.plan), ("after", done.plan))
    ]
    return run_gate(jobs[0], jobs[1], 0.97)


@pytest.mark.parametrize("prompts", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_flags_alone_lose_more_than_a_tenth(prompts: int, root: Path, tmp_path: Path) -> None:
    gate = measured(root, tmp_path, UpgradeRecipe("ones", True, None, is_start=True), prompts)
    assert all(row.ratio.high < 0.9 for row in gate.rows)


def test_the_default_keeps_acceptance(root: Path, tmp_path: Path) -> None:
    few = short_prompts(tmp_path, 8, "gate.jsonl")
    done = eaglectl.upgrade(
        EAGLE3,
        tmp_path / "out",
        asked(root, prompts=few, tolerance=0.9),
        conversion=ConvertOptions(**ARGUMENTS),
    )
    assert done.gate is not None
    assert done.gate.is_passed and all(row.ratio.value >= 0.97 for row in done.gate.rows), done.gate.rows
    assert done.to_dict()["gate"]["prompts_forecast"] == done.gate.forecast is not None
    assert (tmp_path / "out/config.json").is_file()


@pytest.mark.slow
def test_the_default_keeps_acceptance_on_120_prompts(root: Path, statistics: Path, tmp_path: Path) -> None:
    done = eaglectl.upgrade(
        EAGLE3, tmp_path / "out", asked(root, statistics=statistics), conversion=ConvertOptions(**ARGUMENTS)
    )
    assert done.gate is not None
    assert done.gate.prompts == 120
    assert done.gate.is_passed, [(row.k, row.ratio) for row in done.gate.rows]
    assert (tmp_path / "out/config.json").is_file()


def test_a_gate_that_is_missed_writes_nothing_and_shows_its_table(root: Path, tmp_path: Path) -> None:
    few = short_prompts(tmp_path, 8, "gate.jsonl")
    done = eaglectl.upgrade(
        EAGLE3,
        tmp_path / "out",
        asked(root, prompts=few, tolerance=1.5),
        conversion=ConvertOptions(**ARGUMENTS),
    )
    assert done.gate is not None and not done.gate.is_passed and len(done.gate.rows) == 2
    assert not (tmp_path / "out").exists()


def test_both_cards_show_what_the_gate_measured(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    few = short_prompts(tmp_path, 6, "gate.jsonl")
    done = eaglectl.upgrade(
        EAGLE3,
        tmp_path / "out",
        asked(root, prompts=few, tolerance=0.5, max_tokens=24),
        conversion=ConvertOptions(**ARGUMENTS),
    )
    assert done.gate is not None and done.gate.is_passed
    first = done.gate.rows[0]
    before, after, ratio = first.before.length.value, first.after.length.value, first.ratio
    row = (
        f"| {first.k} | {before:.3f} | {after:.3f} | {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] |"
    )
    written = (tmp_path / "out/README.md").read_text()
    planned = eaglectl.upload(
        str(tmp_path / "out"),
        "org/drafter",
        eaglectl.UploadOptions(
            dry_run=True, target=str(TARGET), card=eaglectl.CardAnswers("mit", "org/target")
        ),
    ).plan
    card = next(file for file in planned.files if file.name == "README.md")
    published = bytes(card.content).decode()  # type: ignore[arg-type]
    for text in (written, published):
        assert (
            row in text
            and f"same 6 prompts, none of them calibrated on ({done.gate.engine}, cpu, float32)" in text
        )
        assert f"| calibrated on | {read_statistics(root / 'stats').tokens:,} tokens" in text


def test_prompts_that_were_calibrated_on_leave_none_for_the_gate(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="calibrated on"):
        eaglectl.upgrade(
            EAGLE3,
            tmp_path / "out",
            asked(root, prompts=root / "calibration.jsonl"),
            conversion=ConvertOptions(**ARGUMENTS),
        )


@pytest.mark.parametrize("count", [1, 6, 20])
def test_a_gate_on_hardly_any_prompts_is_not_held(count: int, root: Path, tmp_path: Path) -> None:
    lines = [*dict.fromkeys((TINY / "gate.jsonl").read_text().splitlines())][: min(count, 6)]
    (tmp_path / "few.jsonl").write_text(
        "\n".join(lines * 4 if count == 20 else lines)
    )  # repeated ones are one
    with pytest.raises(UsageError, match="7 different ones are the least"):
        eaglectl.upgrade(
            EAGLE3,
            tmp_path / "out",
            asked(root, statistics=None, prompts=tmp_path / "few.jsonl"),
            conversion=ConvertOptions(**ARGUMENTS),
        )
    (tmp_path / "two.jsonl").write_text("\n".join(lines[:2]))
    with pytest.raises(UsageError, match="the gate needs 3"):
        eaglectl.upgrade(
            EAGLE3,
            tmp_path / "out",
            asked(root, prompts=tmp_path / "two.jsonl"),
            conversion=ConvertOptions(**ARGUMENTS),
        )
    assert not (tmp_path / "out").exists()


def test_built_in_prompts_serve_both_commands_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a target").symlink_to(TARGET)
    monkeypatch.chdir(tmp_path)
    first = call(
        "calibrate",
        EAGLE3,
        "--target",
        "a target",
        "-o",
        "some stats",
        "--answer-tokens",
        "8",
        "--device",
        "cpu",
    )
    command = shlex.split(first.out.splitlines()[-1].partition(" eaglectl ")[2])
    second = call(*command, "--device", "cpu", "--tolerance", "0.1", "-o", "out")
    assert (first.code, second.code) == (0, 0), second.err
    assert "8 prompts say little of others" in second.out


@pytest.mark.parametrize(("tokens", "words"), [("1", "more --answer-tokens"), ("511", "fewer new tokens")])
def test_prompts_too_short_or_too_long_to_calibrate_on_are_told(
    tokens: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("a\nb\n")
    made = call(
        "calibrate",
        EAGLE3,
        "--target",
        TARGET,
        "--prompts",
        tmp_path / "short.txt",
        "--answer-tokens",
        tokens,
        "--device",
        "cpu",
        "-o",
        tmp_path / "stats",
    )
    assert made.code == 2 and words in made.err
    assert not (tmp_path / "stats").exists()


def times(factor: float) -> Callable[[Stored], Stored]:
    """A bfloat16 tensor times a power of two, exactly."""

    def change(stored: Stored) -> Stored:
        dtype, shape, data = stored
        values = torch.frombuffer(bytearray(data), dtype=torch.bfloat16) * factor
        return dtype, shape, values.view(torch.int16).numpy().tobytes()

    return change


WRITERS = ("fc.weight", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight")


@pytest.mark.parametrize(
    ("factor", "prompts"),
    [(8.0, 48), (0.125, 48)],
)
@pytest.mark.slow  # beside it, test_layers_of_other_sizes_convert_to_the_same_acceptance is in every run
def test_the_same_drafter_scaled_inside_converts_to_the_same_acceptance(
    factor: float, prompts: int, root: Path, tmp_path: Path
) -> None:
    same = Fault("scaled", "", tensors=dict.fromkeys(WRITERS, times(factor))).apply(
        root / "good", tmp_path / "same"
    )
    some = short_prompts(tmp_path, prompts, "calibration.jsonl")
    gates = []
    for source in (root / "good", same):
        options = asked(root, statistics=None, prompts=some, tolerance=0.01)
        done = eaglectl.upgrade(
            str(source), tmp_path / f"out{len(gates)}", options, conversion=ConvertOptions(**ARGUMENTS)
        )
        assert done.gate is not None
        gates.append(done.gate)
    for one, other in zip(gates[0].rows, gates[1].rows, strict=True):
        assert one.before.length.value == pytest.approx(other.before.length.value, rel=0.02)
        assert one.after.length.value == pytest.approx(other.after.length.value, rel=0.05)


DEAD = Fault("another head", "", tensors={"lm_head.weight": times(-1.0)})
BROKEN = {
    "the wrong layers": (Fault("", "", config=ids(3, 5, 7)), "of boundaries"),
    "a NaN": (Fault("", "", tensors={"fc.weight": not_a_number}), "not finite"),
    "an acceptance near 1": (DEAD, "hardly drafting"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_drafter_that_is_broken_is_refused(name: str, root: Path, tmp_path: Path) -> None:
    fault, word = BROKEN[name]
    broken = fault.apply(root / "good", tmp_path / "broken")
    known = None if name != "the wrong layers" else root / "stats"
    few = short_prompts(tmp_path, 12, "gate.jsonl")
    with pytest.raises(EaglectlError, match=word):
        eaglectl.upgrade(
            str(broken),
            tmp_path / "out",
            asked(root, statistics=known, prompts=few, max_tokens=16),
            conversion=ConvertOptions(**ARGUMENTS),
        )
    assert not (tmp_path / "out").exists()


def test_statistics_of_another_target_are_refused(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "target"
    other.mkdir()
    for path in TARGET.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    with (other / "model.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\0\0")
    with pytest.raises(RefusedError, match="another target"):
        eaglectl.upgrade(EAGLE3, tmp_path / "out", asked(root), conversion=ConvertOptions(target=str(other)))
    assert read_statistics(root / "stats").tokens > 4 * 3 * 128


@pytest.mark.parametrize("prompts", [9, pytest.param(48, marks=pytest.mark.slow)])
def test_layers_of_other_sizes_convert_to_the_same_acceptance(
    prompts: int, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (0.1, 1.0, 10.0)
    factors = torch.tensor(sizes).repeat_interleave(128)

    def undone(stored: Stored) -> Stored:
        dtype, shape, data = stored
        values = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape) / factors
        return dtype, shape, values.numpy().tobytes()

    eaglectl.convert(EAGLE3, tmp_path / "wide", ConvertOptions(dtype="F32", **ARGUMENTS))
    same = Fault("scaled", "", tensors={"fc.weight": undone}).apply(tmp_path / "wide", tmp_path / "same")
    some = short_prompts(tmp_path, prompts, "calibration.jsonl")
    plain = TargetModel._run

    def larger(self: TargetModel, *given: Any, **named: Any) -> Any:
        logits, states, inputs = plain(self, *given, **named)
        scaled = zip(states.items(), sizes, strict=True)
        return logits, {boundary: state * size for (boundary, state), size in scaled}, inputs

    gates = []
    for source, pass_ in ((tmp_path / "wide", plain), (same, larger)):
        monkeypatch.setattr(TargetModel, "_run", pass_)
        options = asked(root, statistics=None, prompts=some, tolerance=0.01)
        done = eaglectl.upgrade(
            str(source), tmp_path / f"out{len(gates)}", options, conversion=ConvertOptions(**ARGUMENTS)
        )
        assert done.gate is not None
        gates.append(done.gate)
    for one, other in zip(gates[0].rows, gates[1].rows, strict=True):
        assert one.before.length.value == pytest.approx(other.before.length.value, rel=0.01)
        assert one.after.length.value == pytest.approx(other.after.length.value, rel=0.02)


def test_a_specforge_flag_of_two_meanings_is_measured(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "specforge"
    source.mkdir()
    config = json.loads((TINY / "eagle3/config.json").read_text()) | {"norm_output": True}
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes((TINY / "eagle3/model.safetensors").read_bytes())
    options = asked(root, statistics=None, prompts=short_prompts(tmp_path, 8, "gate.jsonl"))
    measure = MeasureOptions(options.prompts, device="cpu")
    given = ConvertOptions(**ARGUMENTS, measure=None)
    with pytest.raises(UsageError, match="specforge=post-879"):
        eaglectl.upgrade(str(source), tmp_path / "out", options, conversion=given)
    assert not (tmp_path / "out").exists()
    ungated = replace(options, has_gate=False)
    done = eaglectl.upgrade(
        str(source), tmp_path / "out", ungated, conversion=replace(given, measure=measure)
    )
    assert [str(answer.choice) for answer in done.measured] == ["--source-semantics specforge=pre-879"]


def test_pickled_weights_are_upgraded_as_others_are(root: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((TINY / "eagle3/config.json").read_bytes())
    torch.save(load_file(TINY / "eagle3/model.safetensors"), pickled / "pytorch_model.bin")
    some = short_prompts(tmp_path, 9, "calibration.jsonl")
    for source in (str(pickled), EAGLE3):
        out = tmp_path / Path(source).name
        gate = {"tolerance": 0.1} if source != EAGLE3 else {"has_gate": False}
        options = asked(root, statistics=None, prompts=some, **gate)
        done = eaglectl.upgrade(
            source, out.with_suffix(".out"), options, conversion=ConvertOptions(**ARGUMENTS)
        )
        assert done.pickles == (("pytorch_model.bin",) if source != EAGLE3 else ())
    record = json.loads((tmp_path / "pickled.out/eaglectl.json").read_text())
    assert (record["source"]["name"], list(record["source"]["files"])) == ("pickled", ["pytorch_model.bin"])
    assert record["gate"]["prompts"] == 3
    found = [read_safetensors(tmp_path / f"{name}.out/model.safetensors") for name in ("pickled", "eagle3")]
    assert found[0] == found[1]
    options = eaglectl.CalibrateOptions(prompts=some, device="cpu")
    stats = eaglectl.calibrate(str(pickled), str(TARGET), options=options)
    assert stats.digests["drafter"] == read_statistics(root / "stats").digests["drafter"]
