"""`smoke --show`: which tokens of an answer the drafter gave."""

from typing import Any

import pytest

from eaglectl import SmokeOptions, smoke
from eaglectl.errors import UsageError
from eaglectl.report.acceptance import _shown
from eaglectl.report.terminal import as_plain_text, print_section
from eaglectl.run.measurement import PromptResult
from eaglectl.run.showing import AnswerToken, ShownAnswer, _texts, positions_of


def test_each_draft_gives_its_accepted_tokens_and_one_of_the_targets() -> None:
    result = PromptResult("p", 3, (2, 1, 1), (9,) * 8, (0, 3, 1))
    assert list(positions_of(result)) == [None, None, 0, 1, 2, None, 0, None]


def test_a_draft_that_passes_the_limit_is_shown_up_to_it() -> None:
    result = PromptResult("p", 1, (1, 1, 1), (9, 9, 9), (3,))
    assert list(positions_of(result)) == [None, 0, 1]


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    assert list(_texts(Bytes(), list("aé!".encode()))) == ["a", "", "é", "!"]


def test_accepted_tokens_stand_in_brackets_where_there_is_no_colour() -> None:
    tokens = (
        AnswerToken("It ", None),
        AnswerToken("is\n", 0),
        AnswerToken("so", 1),
        AnswerToken(".\x1b", None),
    )
    text = as_plain_text(
        lambda console: print_section(console, _shown(ShownAnswer("Is it?", tokens, (1, 1))))
    )
    assert "2 of 4 tokens are accepted draft tokens: 1 at position 0, 1 at position 1" in text
    assert "  It [is\n  so].\\x1b" in text


def test_an_engine_that_counts_all_drafts_together_shows_nothing() -> None:
    with pytest.raises(UsageError, match="--run-in reference"):
        smoke("drafter", "target", SmokeOptions(run_in="vllm", show=True))
