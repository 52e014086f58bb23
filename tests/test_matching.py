"""Whether a running server drafts as the files of a drafter do, as an older one does, or cannot be told."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.run.measurement import PromptResult
from eaglectl.run.server_match import ServerMatch, match_server
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
    "worse": (RIGHT, [WORSE], "no", "", "old, partly loaded"),
    "as good": (RIGHT, [SHIFTED], "no", "", "load new into the server again"),
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


def pages(drafter: Path, prompts: Path, before: str = "") -> dict[str, Any]:
    """A server of SGLang's kind that drafts as `drafter` does, with a text before each answer."""
    from eaglectl.reference.target_model import load_tokenizer

    options = eaglectl.SmokeOptions(run_in="reference", prompts=str(prompts), max_tokens=24, lossless=False)
    results = eaglectl.smoke(str(drafter), str(TARGET), options).run.results
    tokenizer = load_tokenizer(TARGET)

    def answer(requests: int) -> Any:
        made = results[requests - 1]
        counts = Counter(made.rounds)
        histogram = [counts[accepted] for accepted in range(4)]
        return {
            "usage": {"completion_tokens": len(made.tokens)},
            "choices": [{"text": before + tokenizer.decode(made.tokens, skip_special_tokens=True)}],
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


ANOTHER = "the answer of another target: "
# how a server is made, and how every command that runs it ends, with words of its answer
SERVERS: dict[str, tuple[bool, str, int, str]] = {
    "these files": (False, "", 0, ""),
    "other layers": (True, "", 1, "rounds are equal on"),
    "another target": (False, ANOTHER, 3, "answers only 0 of 24 prompts as the target's files do"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ready", "smoke", "diagnose"])
@pytest.mark.parametrize(("is_other", "before", "code", "words"), SERVERS.values(), ids=SERVERS)
def test_a_server_has_one_verdict_in_every_command(
    is_other: bool, before: str, code: int, words: str, command: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    drafter = in_vllms_layout(tmp_path)["eagle3"]
    fault = next(fault for fault in FAULTS if fault.name == LAYERS)
    served = fault.apply(drafter, tmp_path / "other layers") if is_other else drafter
    with server(pages(served, PROMPTS, before), []) as url:
        done = call(command, drafter, "--run-in", url, "--target", TARGET, "--prompts", PROMPTS, *SHORT)
    assert done.code == code, done.out
    assert words in " ".join(done.out.split())


SHORT = ("--max-tokens", 24, "--device", "cpu")


def served_by(tmp_path: Path, before: str, *options: object) -> Any:
    """What `smoke` says of a server of the tiny pair, asked four prompts."""
    pytest.importorskip("torch")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:4]))
    given = ("--target", TARGET, "--prompts", prompts, *SHORT, *options, "--json")
    with server(pages(TINY / "eagle3", prompts, before), []) as url:
        return call("smoke", TINY / "eagle3", "--run-in", url, *given)


def test_a_server_of_another_target_is_not_judged_and_is_still_held_to_thresholds(tmp_path: Path) -> None:
    done = served_by(tmp_path, ANOTHER)
    assert done.code == 3 and "pass the target that it serves" in done.document["gaps"][0]
    assert done.document["match"]["alike"] == 0
    done = served_by(tmp_path, ANOTHER, "--min-acceptance-length", "3.9")
    assert done.code == 1 and "below --min-acceptance-length" in done.document["failures"][0]


@pytest.mark.parametrize(
    ("options", "code", "first"),
    [
        ((), 3, r"could not look: .*, not compared with these files"),
        (("--no-compare-files",), 0, r"pass: .*, not compared with these files"),
        (("--min-acceptance-length", "1.9"), 0, r"pass: .*, not compared with these files"),
        (("--min-acceptance-length", "2.1"), 1, r"fail: .*, not compared with these files"),
        (("--min-position-0", "0.5", "--compare-files"), 3, ""),
    ],
)
def test_a_server_that_no_files_were_run_beside_passes_for_a_threshold_alone(
    options: tuple[str, ...], code: int, first: str, tmp_path: Path
) -> None:
    bare, prompts = tmp_path / "bare", tmp_path / "prompts.txt"
    bare.mkdir()
    (bare / "config.json").write_text((TARGET / "config.json").read_text())
    prompts.write_text("one\n" * 12)
    given = ("--target", bare, "--prompts", prompts)
    with server(SGLANG, []) as url:
        done = call("smoke", TINY / "eagle3", "--run-in", url, *given, *options)
        assert done.code == code, done.out
        assert re.match(first, " ".join(done.out.split()))
        if options:
            return
        assert "was not checked: the target's weights are not on this machine" in " ".join(done.out.split())
        following = re.search(r"^next:  eaglectl (.*)$", done.out, re.MULTILINE)
        assert following and call(*shlex.split(following[1])).code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "reference", "--compare-files"), "needs a running server"),
        (("--engine", "http://127.0.0.1:1", "--against", "x", "--no-compare-files"), "leave one out"),
        (("--engine", "http://127.0.0.1:1", "--against", "x", "--temperature", "1"), "greedy answers"),
        (
            ("--engine", "http://127.0.0.1:1", "--against", "x", "--max-regression", "1"),
            "which drafter it has",
        ),
        (("--engine", "http://127.0.0.1:1", "-k", "5"), "has its own number of draft tokens; leave it out"),
    ],
)
def test_options_that_compare_nothing_are_refused(options: tuple[str, ...], words: str) -> None:
    done = call("smoke", TINY / "eagle3", "--target", TARGET, *options)
    assert done.code == 2 and words in " ".join(done.err.split())
