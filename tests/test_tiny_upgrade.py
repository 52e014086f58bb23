"""The upgrade of a trained pair: flags alone lose much, the default keeps acceptance, faults are refused."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.api.upgrade import UpgradeOptions  # noqa: E402
from eaglectl.conversion.plan import UpgradeRecipe  # noqa: E402
from eaglectl.conversion.upgrade import read_statistics  # noqa: E402
from eaglectl.errors import EaglectlError, RefusedError, UsageError  # noqa: E402
from eaglectl.progress import Progress  # noqa: E402
from eaglectl.run.gate import Gate, GateRow, run_gate  # noqa: E402
from eaglectl.run.job import EngineJob  # noqa: E402
from eaglectl.run.measurement import Estimate, Measurement  # noqa: E402
from eaglectl.run.prompts import read_prompts  # noqa: E402
from tests.builders import Outcome, Stored, call  # noqa: E402
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


def asked(root: Path, **more: Any) -> UpgradeOptions:
    known = {"statistics": root / "stats", "prompts": TINY / "gate.jsonl", "device": "cpu", "max_tokens": 48}
    return UpgradeOptions(**{**known, **more})


def upgraded(root: Path, out: Path, **more: Any) -> Any:
    return eaglectl.upgrade(EAGLE3, out, asked(root, **more), conversion=ConvertOptions(**ARGUMENTS))


def calibrated(prompts: Path, tokens: str, out: Path, *more: str) -> Outcome:
    given = ("--target", TARGET, "--prompts", prompts, "--answer-tokens", tokens, "--device", "cpu")
    return call("calibrate", EAGLE3, *given, "-o", out, *more)


def schema(name: str) -> Any:
    return json.loads((TINY.parents[1] / f"schemas/{name}.schema.json").read_text())


def test_the_documents_of_calibrate_keep_their_schemas_and_it_says_once_how_long_it_takes(
    tmp_path: Path,
) -> None:
    few, steps = short_prompts(tmp_path, 17, "gate.jsonl"), list[Progress]()
    made = calibrated(few, "2", tmp_path / "stats", "--json")
    assert made.code == 0, made.err
    jsonschema.validate(made.document, schema("calibrate"))
    stored = json.loads((tmp_path / "stats/statistics.json").read_text())
    jsonschema.validate(stored, schema("statistics"))
    assert len(stored["prompts"]) == 17
    assert made.document["sigma"] == read_statistics(tmp_path / "stats").sigma
    options = eaglectl.CalibrateOptions(prompts=few, answer_tokens=2, device="cpu")
    eaglectl.calibrate(EAGLE3, str(TARGET), options=options, on_progress=steps.append)
    (told,) = (step for step in steps if step.seconds is not None)
    assert told.seconds > 0 and (told.done, told.total) == (16, 51)  # type: ignore[operator]


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


def test_flags_alone_lose_more_than_a_tenth(tmp_path: Path) -> None:
    recipe = UpgradeRecipe("ones", True, None, is_start=True)
    options = ConvertOptions(version="3.1", recipe=recipe, **ARGUMENTS)
    chosen, steps, jobs = read_prompts(short_prompts(tmp_path, 8, "gate.jsonl")), list[Progress](), []
    for out, given in ((tmp_path / "before", ConvertOptions(**ARGUMENTS)), (tmp_path / "after", options)):
        drafter = eaglectl.convert(EAGLE3, out, given).plan.drafter
        jobs.append(EngineJob(out, drafter, TARGET, chosen, max_tokens=48, device="cpu"))
    gate = run_gate(jobs[0], jobs[1], 0.97, steps.append)
    assert all(row.ratio.high < 0.9 for row in gate.rows)
    assert steps[:2] == [Progress("loading the target"), Progress("measuring", 0, 16, "prompts")]
    done = [step.done for step in steps[2:]]
    assert done == sorted(done) and done[-1] == 16


@pytest.mark.parametrize("prompts", [8, pytest.param(120, marks=pytest.mark.slow)])
def test_the_default_keeps_acceptance(prompts: int, root: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"prompts": short_prompts(tmp_path, 8, "gate.jsonl"), "tolerance": 0.9}
    if prompts == 120:
        options = eaglectl.CalibrateOptions(prompts=TINY / "calibration.jsonl", device="cpu")
        eaglectl.calibrate(EAGLE3, str(TARGET), tmp_path / "stats", options)
        given = {"statistics": tmp_path / "stats"}
    gate = upgraded(root, tmp_path / "out", **given).gate
    assert gate is not None and gate.prompts == prompts
    assert gate.is_passed and all(row.ratio.value >= 0.97 for row in gate.rows), gate.rows
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())["gate"]
    assert record["is_passed"] and [row["k"] for row in record["rows"]] == [3, 7]


def test_a_gate_that_is_missed_writes_nothing_and_shows_its_table(root: Path, tmp_path: Path) -> None:
    few = short_prompts(tmp_path, 8, "gate.jsonl")
    done = upgraded(root, tmp_path / "out", prompts=few, tolerance=1.5)
    assert done.gate is not None and not done.gate.is_passed and len(done.gate.rows) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("count", "times"), [(1, 1), (6, 1), (6, 4)])
def test_a_gate_on_hardly_any_prompts_is_not_held(count: int, times: int, root: Path, tmp_path: Path) -> None:
    lines = [*dict.fromkeys((TINY / "gate.jsonl").read_text().splitlines())][:count]
    (tmp_path / "few.jsonl").write_text("\n".join(lines * times))  # repeated ones are one
    with pytest.raises(UsageError, match="at least 7 different ones are needed"):
        upgraded(root, tmp_path / "out", statistics=None, prompts=tmp_path / "few.jsonl")
    (tmp_path / "two.jsonl").write_text("\n".join(lines[:2]))
    for prompts, words in (
        (tmp_path / "two.jsonl", "the gate needs at least 3"),
        (root / "calibration.jsonl", "all prompts were used for calibration"),
    ):
        with pytest.raises(UsageError, match=words):
            upgraded(root, tmp_path / "out", prompts=prompts)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # tests/test_printed_commands.py runs what calibrate prints, with prompts of its own
def test_built_in_prompts_serve_both_commands_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a target").symlink_to(TARGET)
    monkeypatch.chdir(tmp_path)
    given = ("--answer-tokens", "8", "--device", "cpu")
    first = call("calibrate", EAGLE3, "--target", "a target", "-o", "some stats", *given)
    command = shlex.split(first.out.splitlines()[-1].partition(" eaglectl ")[2])
    second = call(*command, "--device", "cpu", "--tolerance", "0.1", "-o", "out")
    assert (first.code, second.code) == (0, 0), second.err
    assert "on 32 prompts outside of calibration" in second.out


@pytest.mark.parametrize(("tokens", "words"), [("1", "more --answer-tokens"), ("511", "fewer new tokens")])
def test_prompts_too_short_or_too_long_to_calibrate_on_are_told(
    tokens: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("a\nb\n")
    made = calibrated(tmp_path / "short.txt", tokens, tmp_path / "stats")
    assert made.code == 2 and words in made.err
    assert not (tmp_path / "stats").exists()


def turned(stored: Stored) -> Stored:
    """A bfloat16 tensor with the other sign."""
    dtype, shape, data = stored
    values = -torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
    return dtype, shape, values.view(torch.int16).numpy().tobytes()


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (Fault("the wrong layers", "", config=ids(3, 5, 7)), "of boundaries"),
        (Fault("a NaN", "", tensors={"fc.weight": not_a_number}), "not finite"),
        (
            Fault("an acceptance near 1", "", tensors={"lm_head.weight": turned}),
            "almost no draft token is accepted",
        ),
    ],
    ids=["the wrong layers", "a NaN", "an acceptance near 1"],
)
def test_a_drafter_that_is_broken_is_refused(fault: Fault, word: str, root: Path, tmp_path: Path) -> None:
    broken = fault.apply(root / "good", tmp_path / "broken")
    few = short_prompts(tmp_path, 12, "gate.jsonl")
    known = root / "stats" if fault.config else None
    options = asked(root, statistics=known, prompts=few, max_tokens=16)
    with pytest.raises(EaglectlError, match=word):
        eaglectl.upgrade(str(broken), tmp_path / "out", options, conversion=ConvertOptions(**ARGUMENTS))
    assert not (tmp_path / "out").exists()


def test_statistics_of_another_target_are_refused(root: Path, tmp_path: Path) -> None:
    other = shutil.copytree(TARGET, tmp_path / "target")
    with (other / "model.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\0\0")
    with pytest.raises(RefusedError, match="another target"):
        eaglectl.upgrade(EAGLE3, tmp_path / "out", asked(root), conversion=ConvertOptions(target=str(other)))
    assert read_statistics(root / "stats").tokens > 4 * 3 * 128
