"""What of a target's answers a draft vocabulary holds, and the acceptance that this allows."""

import json
from pathlib import Path

import pytest

from eaglectl.run.coverage import measure_coverage
from tests.builders import call
from tests.tiny import TARGET, TINY

EVEN = frozenset(range(0, 100, 2))


@pytest.mark.parametrize(
    ("answer", "covered", "most"),
    [
        ((9, 2, 4, 6, 8, 10, 12, 14, 16), 8, 1 + 6 / 2),  # two rounds of three, each with the target's next
        ((9, 1, 3, 5), 0, 1.0),
        ((9, 2, 1, 4, 3), 2, 1 + 2 / 2),
        ((1, 2), 1, 2.0),
    ],
)
def test_the_cap_is_of_a_drafter_that_is_right_wherever_it_can_be(
    answer: tuple[int, ...], covered: int, most: float
) -> None:
    found = measure_coverage({"a": [answer]}, EVEN, 3)
    assert found is not None
    assert (found.tokens, found.covered, found.most_length) == (len(answer) - 1, covered, most)


def test_sets_are_told_apart_and_low_ones_named() -> None:
    found = measure_coverage({"english": [(0, 2, 4, 6, 8)] * 9, "hindi": [(0, 2, 3, 5, 7)]}, EVEN, 3)
    assert found is not None and not found.is_low
    assert {name: part.share for name, part in found.sets.items()} == {"english": 1.0, "hindi": 0.25}
    assert '("hindi" 25.0%)' in found.words


@pytest.mark.parametrize("answers", [{}, {"a": []}, {"a": [(5,), ()]}])
def test_answers_without_a_drafted_token_have_no_coverage(answers: dict[str, list[tuple[int, ...]]]) -> None:
    assert measure_coverage(answers, EVEN, 3) is None


def test_smoke_states_the_coverage_of_a_vocabulary_that_was_pruned_on_other_text(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({str(token): 1000 - token for token in range(1, 400)}))
    small = tmp_path / "small"
    options = ("--draft-vocab", 100, "--token-counts", counts, "--target", TARGET, "-o", small)
    assert call("convert", TINY / "eagle3", *options).code == 0
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"def {name}(self):", "set": name} for name in ("read", "write", "open", "close")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = ("--target", TARGET, "--run-in", "reference", "--prompts", prompts, "--max-tokens", 16, "--json")
    done = call("smoke", small, *given)
    assert done.out, done.err
    found = json.loads(done.out)
    coverage = found["coverage"]
    assert coverage["share"] == coverage["covered"] / coverage["tokens"] < 0.8
    assert set(coverage["sets"]) == {"read", "write", "open", "close"}
    assert any("train with a draft vocabulary" in note for note in found["notes"])
    assert found["acceptance_length"] <= coverage["most_length"]
