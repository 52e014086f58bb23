"""Whether a running server drafts as the files of a drafter do, as an older one does, or cannot be told."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.run.measurement import PromptResult
from eaglectl.run.report import ServerMatch, match_server
from tests.builders import call
from tests.diagnoses import LAYERS
from tests.servers import INFO, MODELS, SGLANG, server
from tests.tiny import FAULTS, PROMPTS, TARGET, TINY, in_vllms_layout

TEXT = "an answer of more than sixteen characters"


def result(*rounds: int, text: str = TEXT) -> PromptResult:
    """The result of rounds that accepted so many of three draft tokens."""
    accepted = tuple(sum(count > place for count in rounds) for place in range(3))
    return PromptResult("a", len(rounds), accepted, (0,), rounds, text)


RIGHT = [result(*(place % 4 for place in range(start, start + 9))) for start in range(12)]
WORSE = [result(0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, start % 2) for start in range(12)]
# as good as the right one, and counted otherwise on each prompt
SHIFTED = [replace(each, accepted=(each.accepted[0] + 1, *each.accepted[1:])) for each in RIGHT]


def match(
    served: Sequence[PromptResult], *files: Sequence[PromptResult], texts: Sequence[str] | None = None
) -> ServerMatch:
    named = [(name, results) for name, results in zip(("new", "old"), files, strict=False)]
    return match_server(served, named, texts or [TEXT] * len(served))


def without(last: int) -> list[PromptResult]:
    """The right one's rounds without so many of the last."""
    return [result(*each.rounds[:-last]) for each in RIGHT]


def shifted(count: int) -> list[PromptResult]:
    """So many of 20 prompts otherwise."""
    return [*SHIFTED[:count], *RIGHT[count:], *RIGHT[:8]]


DEAD = [result(0, 0, 0, 0, 0)] * 12
# what a server drafts, what the new files and the older ones do, the ending, the nearest, and words
MATCHES: dict[str, tuple[Any, Any, str, str, str]] = {
    "the same": (RIGHT, [RIGHT], "yes", "new", ""),
    "worse": (RIGHT, [WORSE], "no", "", "stale, partly loaded"),
    "as good": (RIGHT, [SHIFTED], "no", "", "load new there again"),
    "the older one": (WORSE, [RIGHT, WORSE], "no", "old", "no, it drafts as old"),
    "not the older one": (RIGHT, [RIGHT, WORSE], "yes", "new", ""),
    "nearer to the new one": (shifted(0), [shifted(0), shifted(5)], "yes", "new", ""),
    "nearer to the older one": (shifted(0), [shifted(5), shifted(0)], "no", "old", ""),
    "near to both": (shifted(0), [shifted(1), shifted(1)], "could not tell", "", ""),
    "the last round left out, as llama-server does": (without(1), [RIGHT], "yes", "new", ""),
    "two rounds left out": (without(2), [RIGHT], "no", "", ""),
    "few prompts": (RIGHT[:3], [RIGHT[:3]], "could not tell", "", ""),
    "dead, as others are": (DEAD, [DEAD], "could not tell", "", ""),
}


@pytest.mark.parametrize(("served", "files", "ending", "nearest", "words"), MATCHES.values(), ids=MATCHES)
def test_a_server_is_told_by_its_rounds(
    served: Any, files: Any, ending: str, nearest: str, words: str
) -> None:
    found = match(served, *files)
    assert (found.ending, found.nearest) == (ending, nearest) and words in found.words


def test_a_mixed_picture_needs_more_prompts_and_says_how_many() -> None:
    found = match(RIGHT, RIGHT[:7] + SHIFTED[7:])
    assert found.ending == "could not tell"
    assert found.files[0].needed is not None and found.files[0].needed > 12
    assert "could not tell with 12 prompts" in found.words
    assert f"about {found.files[0].needed} would" in found.words


def test_answers_that_rounding_changed_are_left_out_and_the_length_decides() -> None:
    other = ["another target's answer altogether"] * 12
    assert match(RIGHT, WORSE, texts=other).ending == "could not tell"
    texts = [f"{TEXT} that goes on"] * 12
    assert match(RIGHT, WORSE, texts=texts).ending == "no"
    assert match(RIGHT, RIGHT, texts=texts).ending == "could not tell"


def pages(drafter: Path, prompts: Path) -> dict[str, Any]:
    """A server of SGLang's kind that drafts as `drafter` does."""
    from eaglectl.reference.target import load_tokenizer

    options = eaglectl.SmokeOptions(run_in="reference", prompts=str(prompts), max_tokens=24, lossless=False)
    results = eaglectl.smoke(str(drafter), str(TARGET), options).run.results
    tokenizer = load_tokenizer(TARGET)

    def answer(requests: int) -> Any:
        made = results[requests - 1]
        counts = Counter(made.rounds)
        histogram = [counts[accepted] for accepted in range(4)]
        return {
            "usage": {"completion_tokens": len(made.tokens)},
            "choices": [{"text": tokenizer.decode(made.tokens, skip_special_tokens=True)}],
            "sglext": {"spec_tokens_details": {"spec_correct_drafts_histogram": histogram}},
        }

    return {"/v1/models": MODELS, "/server_info": INFO, "/v1/completions": answer}


def pruned(folder: Path) -> Path:
    """The tiny drafter without half of its tokens."""
    (folder / "counts.txt").write_text("".join(f"{token} {1000 - token}\n" for token in range(400)))
    options = ("--draft-vocab", 150, "--token-counts", folder / "counts.txt", "--target", TARGET)
    assert call("convert", TINY / "eagle3", *options, "-o", folder / "older").code == 0
    return folder / "older"


@pytest.mark.slow
def test_smoke_names_the_drafter_that_a_server_has(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    older, prompts = pruned(tmp_path), tmp_path / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:8]))
    given = ("--target", TARGET, "--prompts", prompts, "--max-tokens", 24, "--json")
    for served, code, nearest in ((TINY / "eagle3", 0, "eagle3"), (older, 1, "older")):
        with server(pages(served, prompts), []) as url:
            done = call("smoke", TINY / "eagle3", "--engine", url, "--against", older, *given)
        assert done.code == code, done.err
        found = done.document
        assert (found["match"]["nearest"], found["match"]["alike"]) == (nearest, 8)
        assert any("does not draft as these files" in text for text in found["failures"]) == bool(code)


@pytest.mark.slow
@pytest.mark.parametrize("is_other", [False, True])
def test_ready_is_not_said_of_a_server_that_drafts_otherwise(is_other: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    drafter = in_vllms_layout(tmp_path)["eagle3"]
    fault = next(fault for fault in FAULTS if fault.name == LAYERS)
    served = fault.apply(drafter, tmp_path / "other layers") if is_other else drafter
    with server(pages(served, PROMPTS), []) as url:
        given = ("--target", TARGET, "--prompts", PROMPTS, "--max-tokens", 24, "--json")
        done = call("ready", drafter, "--run-in", url, *given)
    assert done.code == int(is_other), done.err
    assert ("does not draft as these files do" in done.document["reason"]) == is_other


def test_a_target_without_weights_is_a_note_unless_it_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    bare, prompts = tmp_path / "bare", tmp_path / "prompts.txt"
    bare.mkdir()
    (bare / "config.json").write_text((TARGET / "config.json").read_text())
    prompts.write_text("one\ntwo\n")
    given = ("--target", bare, "--prompts", prompts, "--json")
    with server(SGLANG, []) as url:
        found = call("smoke", TINY / "eagle3", "--engine", url, *given).document
        refused = call("smoke", TINY / "eagle3", "--engine", url, *given, "--compare-files")
    assert any("was not looked at: the target's weights are not here" in note for note in found["notes"])
    assert refused.code == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "reference", "--compare-files"), "is of a running server"),
        (("--engine", "http://127.0.0.1:1", "--against", "x", "--no-compare-files"), "leave one out"),
        (("--engine", "http://127.0.0.1:1", "--against", "x", "--temperature", "1"), "greedy answers"),
        (("--engine", "http://127.0.0.1:1", "--against", "x", "--max-regression", "1"), "which it has"),
        (("--engine", "http://127.0.0.1:1", "-k", "5"), "as it was started with; leave it out"),
    ],
)
def test_options_that_compare_nothing_are_refused(options: tuple[str, ...], words: str) -> None:
    done = call("smoke", TINY / "eagle3", "--target", TARGET, *options)
    assert done.code == 2 and words in " ".join(done.err.split())
