"""The sensitivity probe's first pass: it accepts what draft-and-verify accepts, on one run of the target."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.conversion.readings import moves, readings  # noqa: E402
from eaglectl.drafter.drafter import Drafter  # noqa: E402
from eaglectl.reference.model import DraftModel, load_drafter  # noqa: E402
from eaglectl.reference.speculation import DecodingSettings, ForcedDrafter, SpeculativeDecoder, run_target  # noqa: E402
from eaglectl.reference.target_model import load_target  # noqa: E402
from eaglectl.run.job import moved_weights  # noqa: E402
from eaglectl.run.measurement import PromptResult  # noqa: E402
from eaglectl.run.probes import FirstPass, in_rounds  # noqa: E402
from tests.mla import mla_folder  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

PROMPTS = [[0, *range(40, 60)], [0, *range(100, 131)], [0, 7, 8]]
TOKENS = 14


def converted(source: Path, out: Path, *fixes: tuple[str, str]) -> tuple[Drafter, DraftModel]:
    """The drafter in vLLM's layout, repaired."""
    given = ConvertOptions(fixes=fixes, target=str(TARGET) if source.is_relative_to(TINY) else None)
    drafter = eaglectl.convert(str(source), out, given).plan.drafter
    return drafter, load_drafter(out, drafter, dtype="float32", device="cpu")


@pytest.mark.fast(2)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("name", "fix"), [("eagle3", ()), ("eagle3.1", (("fc-order", "0,2,1"),))])
def test_rounds_of_the_first_pass_are_those_of_draft_and_verify(
    name: str, fix: tuple[tuple[str, str], ...], k: int, tmp_path: Path
) -> None:
    drafter, model = converted(TINY / name, tmp_path / "out", *fix)
    boundaries = drafter.aux.boundaries or ()
    target = load_target(TARGET, boundaries, dtype="float32", device="cpu")
    settings = DecodingSettings(k, TOKENS + k - 1)
    answers = [sequence.tokens for sequence in SpeculativeDecoder(target, None, settings).run(PROMPTS)]
    batch = run_target(target, PROMPTS, answers, k)
    found = ForcedDrafter(model, target, boundaries, k).matches(batch).numpy()
    decoded = SpeculativeDecoder(target, model, DecodingSettings(k, TOKENS)).run(PROMPTS)
    rows = [row[is_start] for row, is_start in zip(found, batch.is_start.numpy(), strict=True)]
    results = in_rounds(rows, k, [PromptResult("set", 0, (), tuple(answer)) for answer in answers]).results
    assert [(result.drafts, result.accepted) for result in results] == [
        (sequence.drafts, sequence.accepted) for sequence in decoded
    ]


@pytest.mark.parametrize(
    "name", ["eagle3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("eagle3.1", "mla"))]
)
def test_a_repair_writes_what_the_probe_ran(name: str, tmp_path: Path) -> None:
    """For every reading that is tried."""
    source = mla_folder(tmp_path / "drafter") if name == "mla" else TINY / name
    drafter, stated = converted(source, tmp_path / "stated")
    tried = list(readings(drafter))
    assert len(tried) >= 10
    for number, reading in enumerate(tried):
        asked = moves(drafter, reading.key, reading.value)
        probed = moved_weights(stated.weights, asked)
        other, repaired = converted(source, tmp_path / str(number), (reading.key, reading.value))
        assert repaired.weights.keys() == probed.keys()
        # a sum is rounded to the written dtype
        rounding = 2**-7 if any(move.added for move in asked) else 0.0
        for key, weight in probed.items():
            assert torch.allclose(weight, repaired.weights[key], rtol=0, atol=rounding), (reading.text, key)
        changed = [key for key, weight in probed.items() if not torch.equal(weight, stated.weights[key])]
        assert set(changed) <= {move.name for move in asked}
        assert changed or other.dims != drafter.dims


def test_what_is_drafted_after_a_prompt_falls_among_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot of a prompt's last token has the answer's second token drafted, and is of the answer."""
    drafter, model = converted(TINY / "eagle3", tmp_path / "out")
    boundaries = drafter.aux.boundaries or ()
    stage: Any = SimpleNamespace(
        job=SimpleNamespace(k=3, max_tokens=6, drafter=drafter),
        target=load_target(TARGET, boundaries, dtype="float32", device="cpu"),
        texts=[[0, 40, 41, 42, 43], [0, 50, 51]],
    )
    results = [PromptResult("set", 1, (0, 0, 0), (7, 8, 9, 10)) for _ in stage.texts]
    parts: list[list[int]] = []
    monkeypatch.setattr(
        "eaglectl.run.probes.find_fall", lambda places, _: parts.append(sorted(places.tolist()))
    )
    FirstPass(stage, boundaries, results).find_fall(model, boundaries)
    # without position 0, whose token both have; the last token of all has nothing after it
    assert parts == [[1, 1, 2, 3], [2, 3, 4, 4, 5, 5, 6, 7]]
