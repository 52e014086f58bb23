"""`convert --to 3.1` and `calibrate` with nothing else: prompts as needed, looks that hold together."""

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.api import smoke as smoking  # noqa: E402
from eaglectl.api import upgrade as upgrading  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.api.upgrade import GatePrompts, UpgradeOptions, split_prompts  # noqa: E402
from eaglectl.conversion import upgrade as conversion_upgrade  # noqa: E402
from eaglectl.conversion.upgrade import (  # noqa: E402
    GateResults,
    PromptMatches,
    read_statistics,
    refit_tokens,
    write_statistics,
)
from eaglectl.errors import UnreadableError, UsageError  # noqa: E402
from eaglectl.run.gate import gate_rows  # noqa: E402
from eaglectl.run.measurement import LEVEL, PromptResult, look_level, ratio  # noqa: E402
from eaglectl.run.prompts import Prompt, built_in_prompts, prompt_digest, read_prompts  # noqa: E402
from tests.builders import call  # noqa: E402
from tests.tiny import TARGET, TINY, short_prompts  # noqa: E402

EAGLE3 = str(TINY / "eagle3")
TO_31 = ("convert", EAGLE3, "--to", "3.1", "--target", TARGET)
INPUTS = 3 * 128  # of fc of the tiny pair, whose refit takes four tokens for each


def test_the_levels_of_all_looks_sum_up_to_that_of_one() -> None:
    levels = [look_level(look) for look in range(1, 10_000)]
    assert levels == sorted(levels, reverse=True)
    assert LEVEL * 0.999 < sum(levels) < LEVEL


def pair_at(tolerance: float, prompts: int, random: np.random.Generator) -> list[list[PromptResult]]:
    """Two drafters whose ratio of acceptance lengths is `tolerance`, on prompts that differ in difficulty."""
    before, drafts = random.beta(6, 4, prompts), random.integers(15, 30, prompts)
    sides = []
    for rate in (tolerance * (1 + 3 * before) / 3 - 1 / 3, before):
        accepted = random.binomial(3 * drafts, rate)
        pairs = zip(drafts.tolist(), accepted.tolist(), strict=True)
        sides.append([PromptResult("drawn", count, (taken, 0, 0), ()) for count, taken in pairs])
    return sides


@pytest.mark.parametrize("times", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_looks_pass_a_drafter_that_is_just_as_bad_as_the_tolerance_no_more_often_than_one_would(
    times: int,
) -> None:
    random, tolerance, passed, missed, naive = np.random.default_rng(7), 0.97, 0, 0, 0
    for _ in range(times):
        after, before = pair_at(tolerance, 256, random)
        looks = [(look, 16 << look) for look in range(1, 5)]
        bounds = [ratio(after[:end], before[:end], look_level(look)) for look, end in looks]
        passed += any(bound.low >= tolerance for bound in bounds)
        missed += any(not bound.low <= tolerance <= bound.high for bound in bounds)
        plain = [ratio(after[:end], before[:end]) for _, end in looks]
        naive += any(not bound.low <= tolerance <= bound.high for bound in plain)
    error = 3 * (LEVEL / times) ** 0.5  # of three standard deviations
    assert passed / times <= LEVEL / 2 + error / 2 and missed / times <= LEVEL + error
    assert naive > missed and (times < 1000 or naive / times > 1.5 * LEVEL)


def numbered(count: int, first: int = 0) -> tuple[Prompt, ...]:
    return tuple(Prompt(str(number)) for number in range(first, first + count))


def results(count: int) -> GateResults:
    return GateResults("", 2, tuple(PromptMatches(f"m{n}", (), (), ()) for n in range(count)))


@pytest.mark.parametrize(
    ("prompts", "looks"),
    [
        (GatePrompts(numbered(8)), ()),
        (GatePrompts((), numbered(168)), (32, 64, 128)),
        (GatePrompts((), numbered(86)), (32, 86)),
        (GatePrompts((), numbered(40)), (40,)),
        (GatePrompts(numbered(40), numbered(100, 40)), (40, 80, 128)),
        (GatePrompts(numbered(200), numbered(100, 200)), (200,)),
        (GatePrompts((), numbered(116), results(128)), (116,)),
        (GatePrompts((), numbered(300), results(128)), (128,)),
        (GatePrompts(numbered(100), (), results(40)), (100,)),
    ],
)
def test_looks_double_and_are_fixed_before_anything_is_measured(
    prompts: GatePrompts, looks: tuple[int, ...]
) -> None:
    assert prompts.looks == looks


def test_built_in_prompts_are_distinct_and_the_first_ones_are_of_all_sets() -> None:
    prompts = built_in_prompts()
    assert len({prompt_digest(prompt) for prompt in prompts}) == len(prompts) == 258
    sets = {prompt.set for prompt in prompts}
    for share in split_prompts(prompts):
        assert {prompt.set for prompt in share[:32]} == sets


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Prompt, ...]:
    """Built-in prompts that are few and short, and looks at few of them."""
    prompts = read_prompts(short_prompts(tmp_path, 20, "gate.jsonl"))
    monkeypatch.setattr(upgrading, "built_in_prompts", lambda *_: prompts)
    monkeypatch.setattr(upgrading, "FIRST_LOOK", 3)
    monkeypatch.setattr(upgrading, "MOST_OF_GATE", 6)
    monkeypatch.setattr(conversion_upgrade, "TOKENS_PER_INPUT", 1)
    monkeypatch.chdir(tmp_path)
    return prompts


# the sibling of those below that are slow
def test_a_pair_and_nothing_else_is_written_with_a_forecast(few: tuple[Prompt, ...]) -> None:
    done = call(*TO_31, "--tolerance", "0.8")
    assert done.code == 0 and done.out.startswith("done: wrote eagle3-eagle3.1"), done.err
    assert "tokens that a refit needs; then the gate on 3 others, and on more" in done.err
    record = json.loads(Path("eagle3-eagle3.1/eaglectl.json").read_text())
    assert record["upgrade"]["fc_norm"] == "refit" and record["upgrade"]["calibration"]["tokens"] >= INPUTS
    assert record["gate"]["is_passed"] and record["gate"]["prompts"] <= 6
    assert not list(Path().glob("*-calibration*"))


@pytest.mark.slow
def test_a_spent_budget_keeps_what_was_measured_and_its_command_goes_on(few: tuple[Prompt, ...]) -> None:
    first = call(*TO_31, "--tolerance", "0.999", "--device", "cpu", "-o", "my out")
    assert first.code == 3 and "could not look: nothing was written: too few prompts" in first.out, first.err
    assert "the measurements are in my out-calibration" in first.out
    assert not Path("my out").exists()
    kept = read_statistics(Path("my out-calibration"))
    assert kept.gate is not None and kept.gate.looks == 2 and len(kept.gate.prompts) == 6
    schema = json.loads((TINY.parents[1] / "schemas/statistics.schema.json").read_text())
    jsonschema.validate(json.loads(Path("my out-calibration/statistics.json").read_text()), schema)
    measured = {row.prompt for row in kept.gate.prompts}
    assert not measured & {*kept.prompts}
    again = call(*printed(first.out))
    assert again.code == 3 and "my out-calibration-2" in again.out, again.err
    assert "calibrating" not in again.err
    more = read_statistics(Path("my out-calibration-2"))
    assert more.gate is not None and more.gate.looks == 3 and more.prompts == kept.prompts
    assert more.gate.prompts[:6] == kept.gate.prompts and len(more.gate.prompts) == 12
    rows = [row.prompt for row in more.gate.prompts]
    assert len({*rows, *more.prompts}) == len(rows) + len(more.prompts)
    assert read_statistics(Path("my out-calibration")).gate == kept.gate
    spent = again
    while "--prompts spec-bench" not in spent.out:  # where all built-in ones are measured
        spent = call(*printed(spent.out))
        assert spent.code == 3, spent.err
    other = call(
        *TO_31, "--calibration", "my out-calibration", "--fc-norm", "calibrated", "--tolerance", "0.5"
    )
    assert other.code == 0 and "gate" in other.out.lower()  # another conversion begins anew


def printed(text: str) -> list[str]:
    """The words of the command that is to run next."""
    return shlex.split(text.partition("\nnext:  eaglectl ")[2].splitlines()[0])


@pytest.mark.slow
def test_a_pair_that_loses_ends_with_1_and_leaves_nothing(few: tuple[Prompt, ...]) -> None:
    lost = call(*TO_31, "--tolerance", "1.5", "-o", "out")
    assert lost.code == 1 and "acceptance is lost" in lost.out, lost.err
    assert not list(Path().glob("out*"))


@pytest.mark.slow
def test_given_prompts_are_topped_up_only_where_that_is_asked(
    few: tuple[Prompt, ...], tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text("".join((TINY / "calibration.jsonl").read_text().splitlines(keepends=True)[:3]))
    given = (*TO_31, "--prompts", own, "--tolerance", "0.8", "-o", "out")
    refused = call(*given)
    assert refused.code == 2 and "at least 7 different ones are needed" in refused.err
    assert "--top-up" in refused.err and not Path("out").exists()
    done = call(*given, "--top-up")
    assert done.code == 0, done.err
    record = json.loads(Path("out/eaglectl.json").read_text())
    assert record["upgrade"]["calibration"]["tokens"] >= INPUTS
    alone = call(*TO_31, "--top-up")
    assert alone.code == 2 and "--top-up adds built-in prompts to those of --prompts" in alone.err


@pytest.mark.slow
def test_calibrate_takes_prompts_until_a_refit_has_its_tokens_and_then_longer_answers(
    few: tuple[Prompt, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = eaglectl.calibrate(EAGLE3, str(TARGET), device="cpu")
    assert INPUTS <= many.tokens < 2 * INPUTS and len(many.prompts) > 2
    monkeypatch.setattr(upgrading, "built_in_prompts", lambda *_: few[:3])
    longer = eaglectl.calibrate(EAGLE3, str(TARGET), answer_tokens=8, device="cpu")
    assert len(longer.prompts) == 2 and longer.tokens >= INPUTS


def test_what_was_kept_is_read_strictly(tmp_path: Path, few: tuple[Prompt, ...]) -> None:
    made = eaglectl.calibrate(EAGLE3, str(TARGET), device="cpu", prompts=short_prompts(tmp_path, 4))
    rows = (PromptMatches("a", (1, 2, 3), (0, 1), (1, 1)), PromptMatches("b", (4,), (3,), (2,)))
    for change, words in (
        ({"before": (-1, 0)}, "gate.prompts"),
        ({"before": (0,)}, "differ in number"),
        ({"before": (1000, 0)}, "gate.prompts"),
    ):
        folder = tmp_path / f"stats{len(list(tmp_path.iterdir()))}"
        bad = replace(rows[0], **change)
        gate = GateResults("", 1, (bad, rows[1]))
        write_statistics(replace(made, gate=gate), folder, force=False)
        with pytest.raises(UnreadableError, match=words):
            read_statistics(folder)


def test_the_rows_of_a_gate_are_those_of_its_matches() -> None:
    rows = [PromptMatches(str(n), tuple(range(12)), (3, 0, 1, 0), (1, 7, 0, 0)) for n in range(4)]
    three, seven = gate_rows(rows, LEVEL)
    assert (three.k, seven.k) == (3, 7)
    assert three.before.length.value == 4 and three.ratio.value == pytest.approx((1 + 4 / 4) / (1 + 4 / 4))
    assert seven.ratio.value == pytest.approx((1 + 8 / 4) / (1 + 4 / 4))


@pytest.mark.slow
def test_the_tiny_pair_is_written_by_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*TO_31)
    assert done.code == 0 and "kept: every lower bound is at least 0.97" in done.out, done.out + done.err
    record = json.loads(Path("eagle3-eagle3.1/eaglectl.json").read_text())
    assert record["upgrade"]["fc_norm"] == "refit" and record["gate"]["confidence"] >= 0.975


@pytest.mark.slow
def test_options_of_looks_make_no_difference_to_prompts_that_were_given(tmp_path: Path) -> None:
    some = short_prompts(tmp_path, 24, "gate.jsonl")
    options: dict[str, Any] = {"prompts": some, "tolerance": 0.8, "device": "cpu", "max_tokens": 16}
    done = eaglectl.upgrade(
        EAGLE3, tmp_path / "out", UpgradeOptions(**options), conversion=ConvertOptions(target=str(TARGET))
    )
    assert done.gate is not None and (done.gate.looks, done.gate.level, done.gate.prompts) == (1, LEVEL, 8)


def test_top_up_without_prompts_is_refused() -> None:
    with pytest.raises(UsageError, match="--top-up adds"):
        eaglectl.calibrate(EAGLE3, str(TARGET), tops_up=True)
    assert refit_tokens(eaglectl.inspect(EAGLE3, target=str(TARGET)).drafter) == 4 * INPUTS


@pytest.mark.slow
def test_smoke_of_the_upgraded_pair_against_its_source_passes_by_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "upgraded"
    known: dict[str, Any] = {"prompts": TINY / "calibration.jsonl", "has_gate": False, "device": "cpu"}
    eaglectl.upgrade(EAGLE3, out, UpgradeOptions(**known), conversion=ConvertOptions(target=str(TARGET)))
    more = ("--target", TARGET, "--against", EAGLE3, "--run-in", "reference", "--device", "cpu")
    done = call("smoke", out, *more, "--json")
    assert done.code == 0 and list(done.document["against"]["sets"]) == ["built-in prompts"], done.out
    lost = call("smoke", out, *more, "--max-regression", "1.4")
    assert lost.code == 1, lost.out
    monkeypatch.setattr(smoking, "LOOKS", (24, 26, 27))
    bar = str(done.document["against"]["ratio"]["value"])
    tie = call("smoke", out, *more, "--max-regression", bar, "--json")
    assert tie.code == 3 and tie.document["against"]["looks"] == 3, tie.out
    assert tie.document["against"]["sets"]["built-in prompts"]["prompts"] == 27
