"""The real pair in llama.cpp: both by llama.cpp's own converter, and the target as the wheel has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from tests.engine.llamacpp.engine import PACKAGES, SOURCE, Drafted, draft
from tests.real.conftest import REAL, real_target
from tests.real.counting import FOUR, SHORT, accounted, accounting, texts

__all__ = ["real_target"]

K, PATIENCE = 3, 600.0
# of the acceptance length: Q4_1 weights are the target's own, and llama.cpp rounds states to 8 bits there
OTHER_ARITHMETIC = 0.15


@pytest.fixture(scope="module")
def pair(real_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drafter's folder by eaglectl, and both GGUF files by llama.cpp's converter, unchanged."""
    root = tmp_path_factory.mktemp("real")
    options = ConvertOptions("llama.cpp", target=str(real_target), dtype="F32")
    eaglectl.convert(str(REAL / "specforge"), root / "drafter", options)
    script = [sys.executable, SOURCE / "convert_hf_to_gguf.py", "--outtype", "f32", "--outfile"]
    paths = os.pathsep.join(map(str, (SOURCE / "gguf-py", SOURCE, PACKAGES)))
    environment = os.environ | {"PYTHONPATH": paths}
    drafter = (root / "drafter.gguf", root / "drafter", "--target-model-dir", real_target)
    for words in (drafter, (root / "target.gguf", real_target)):
        subprocess.run([*script, *words], check=True, capture_output=True, env=environment)
    return root


def counted(found: Drafted) -> tuple[list[int], list[list[int]]]:
    """The rounds of all prompts and how many had each position accepted; the answers to their end."""
    counts, answers = [0] * (K + 1), []
    for drafts, tokens in zip(found.drafts, found.tokens, strict=True):
        place = 1
        for drafted in drafts:
            if place >= SHORT or accounting().END in tokens[:place]:
                break
            said = tokens[place : place + len(drafted)]
            right = accounting().agreement(drafted[: len(said)], said)
            counts = [count + (right >= position) for position, count in enumerate(counts)]
            place += right + 1
        answers.append(accounting().until(tokens[: min(place, SHORT)], accounting().END))
    return counts, answers


def test_it_drafts_and_answers_as_the_accounting_does(pair: Path, real_target: Path) -> None:
    given = texts(real_target, FOUR)
    found = draft(pair / "target.gguf", pair / "drafter.gguf", given, K, SHORT, PATIENCE)
    expected = accounted("specforge", real_target, K, FOUR, SHORT)
    assert counted(found) == ([expected.drafts, *expected.accepted], expected.tokens)
    assert found.captured == [2, 15, 27]


def test_the_wheels_own_target_accepts_as_much_within_bounds(pair: Path, real_target: Path) -> None:
    given, wheels = texts(real_target, FOUR), next(real_target.parent.glob("*.Q4_1.gguf"))
    found = draft(wheels, pair / "drafter.gguf", given, K, SHORT, PATIENCE)
    (rounds, *taken), answers = counted(found)
    expected = accounted("specforge", real_target, K, FOUR, SHORT)
    assert 1 + sum(taken) / rounds == pytest.approx(expected.length, rel=OTHER_ARITHMETIC)
    # other arithmetic: an answer may go another way, and none from its first token on
    assert all(ours[0] == theirs[0] for ours, theirs in zip(answers, expected.tokens, strict=True))
