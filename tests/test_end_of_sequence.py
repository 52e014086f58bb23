"""Where answers end: at the target's own end of sequence, unless --ignore-eos."""

import json
import shutil
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.target_files import read_end_tokens, until_end
from eaglectl.run.report import SmokeReport
from tests.tiny import TARGET, TINY


@pytest.mark.parametrize(
    ("generation", "tokens"),
    [
        ('{"eos_token_id": 7}', {7}),
        ('{"eos_token_id": [7, 9]}', {7, 9}),
        ('{"eos_token_id": null}', set()),
        ("{}", set()),
        ('{"eos_token_id": [true, "7", 9]}', {9}),
        (None, {3}),
    ],
)
def test_the_generation_config_ends_answers_and_else_the_config(
    generation: str | None, tokens: set[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 3}}')
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(generation)
    assert read_end_tokens(tmp_path) == tokens


def test_a_generation_config_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(UnreadableError, match=r"generation_config\.json is not a JSON object"):
        read_end_tokens(tmp_path)


def test_an_answer_is_kept_up_to_its_end() -> None:
    assert until_end([5, 6, 7, 8, 7], frozenset({7, 8})) == [5, 6, 7]
    assert until_end([5, 6], frozenset({7})) == [5, 6]
    assert until_end([7], frozenset({7})) == [7]


def smoke(target: Path, prompts: Path, *, ignore_eos: bool) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        run_in="reference", device="cpu", prompts=prompts, max_tokens=12, ignore_eos=ignore_eos
    )
    return eaglectl.smoke(str(TINY / "eagle3"), str(target), options)


def test_an_answer_ends_with_and_without_the_drafter_unless_that_is_ignored(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    prompts, target = tmp_path / "prompts.jsonl", tmp_path / "target"
    prompts.write_text("".join((TINY / "gate.jsonl").read_text().splitlines(keepends=True)[:3]))
    shutil.copytree(TARGET, target)
    whole = smoke(target, prompts, ignore_eos=True)
    answers = [result.tokens for result in whole.run.results]
    assert [len(answer) for answer in answers] == [12, 12, 12]
    end = answers[0][5]
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    ended = smoke(target, prompts, ignore_eos=False)
    expected = [until_end(answer, frozenset({end})) for answer in answers]
    assert [list(result.tokens) for result in ended.run.results] == expected
    assert len(expected[0]) <= 6 and ended.is_lossless
    assert ended.measured.drafts < whole.measured.drafts
    again = smoke(target, prompts, ignore_eos=True)
    assert [result.tokens for result in again.run.results] == answers and again.ignores_eos
