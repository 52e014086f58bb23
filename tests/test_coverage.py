"""What a draft vocabulary holds of a target's answers or other texts, and the acceptance that it allows."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eaglectl.run.coverage import Coverage, TokenText, measure_coverage, pruned_from, script_of
from tests.builders import DRAFT, HIDDEN, TARGETS, VOCAB, call, drafter_folder, floats, target_of
from tests.tiny import PROMPTS, TARGET, TINY

EVEN = frozenset(range(0, 100, 2))


def coverage_of(tokens: Sequence[Sequence[int]], *more: TokenText) -> Coverage:
    """Of texts of one set and others, with a vocabulary of the even tokens and drafts of three."""
    found = measure_coverage([*(TokenText("a", each, "Latin") for each in tokens), *more], EVEN, 3)
    assert found is not None
    return found


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
    found = coverage_of([answer])
    assert (found.tokens, found.covered, found.most_length) == (len(answer) - 1, covered, most)


def test_sets_or_else_scripts_are_told_apart_and_low_ones_named() -> None:
    found = coverage_of([(0, 2, 4, 6, 8)] * 9, TokenText("hindi", (0, 2, 3, 5, 7), ""))
    assert found.share > 0.8 and found.holds_down
    assert {name: part.share for name, part in found.sets.items()} == {"a": 1.0, "hindi": 0.25}
    assert found.words.endswith('("hindi" 25.0%)')
    others = TokenText("a", (0, 3, 5), "Devanagari"), TokenText("a", (0, 2), "")
    found = coverage_of([(0, 2, 4, 6)] * 9, *others)
    assert found.sets == {} and set(found.scripts) == {"Latin", "Devanagari"}
    assert list(found.low_parts) == ["Devanagari"]


@pytest.mark.parametrize(
    ("record", "wider", "words"),
    [
        ({"pruning": {"of": 320}, "source": {"name": "org/big"}}, ("org/big", 320), "prune org/big (320"),
        ({"previous": {"pruning": {"of": 320}, "source": {"name": "big"}}}, ("big", 320), "prune big (320"),
        ({"pruning": {"of": "many"}, "source": {"name": "big"}}, None, "train with"),
        ({}, None, "train with"),
    ],
)
def test_a_drafter_that_its_record_says_was_pruned_needs_no_training(
    record: Any, wider: Any, words: str
) -> None:
    assert pruned_from(record) == wider
    assert Coverage(10, 1, 1.1, wider=wider).advice.startswith(words)


def test_a_head_of_the_targets_rows_gets_others_by_a_printed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = floats("the target's head", VOCAB, HIDDEN)
    size = len(head[2]) // VOCAB
    rows = b"".join(head[2][token * size : (token + 1) * size] for token in TARGETS)
    drafter = drafter_folder(tmp_path, tensors={"lm_head.weight": ("BF16", (DRAFT, HIDDEN), rows)})
    target = target_of(tmp_path / "target", {"lm_head.weight": head})
    lacking = sorted(set(range(VOCAB)) - set(TARGETS))
    (tmp_path / "counts.txt").write_text("".join(f"{token} 9\n" for token in lacking))
    given = ("--target", target, "--token-counts", tmp_path / "counts.txt", "--json")
    monkeypatch.chdir(tmp_path)
    found = call("inspect", drafter, *given).document["coverage"]
    assert found["share"] == 0
    (command,) = found["next"]
    assert "--materialize-lm-head" in command and command in call("inspect", drafter, *given[:-1]).out
    assert call(*shlex.split(command)[1:], "-o", "out").code == 0
    assert call("inspect", "out", *given).document["coverage"]["share"] > 0.5


def small(folder: Path) -> Path:
    """The tiny drafter, pruned to the tokens that its answers have the least."""
    counts = folder / "counts.json"
    counts.write_text(json.dumps({str(token): 1000 - token for token in range(1, 400)}))
    options = ("--draft-vocab", 100, "--token-counts", counts, "--target", TARGET, "-o", folder / "small")
    assert call("convert", TINY / "eagle3", *options).code == 0
    return folder / "small"


@pytest.mark.slow
def test_smoke_states_the_coverage_and_counts_for_a_pruning_that_raises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "eagle3").symlink_to(TINY / "eagle3")
    drafter, prompts = small(tmp_path), tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"def {name}(self):", "set": name} for name in ("read", "write", "open", "close")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = ("--target", TARGET, "--run-in", "reference", "--prompts", prompts, "--max-tokens", 16, "--json")
    found = call("smoke", drafter, *given).document
    coverage = found["coverage"]
    assert coverage["share"] == coverage["covered"] / coverage["tokens"] < 0.8
    assert set(coverage["sets"]) == {"read", "write", "open", "close"} and coverage["scripts"] == {}
    assert found["acceptance_length"] <= coverage["most_length"]
    note = next(note for note in found["notes"] if "draft vocabulary" in note)
    assert "prune eagle3 (320 tokens) again" in note
    monkeypatch.chdir(tmp_path)
    for command in note.split("`")[1::2]:
        assert call(*shlex.split(command)[1:]).code in (0, 3)
    after = call("smoke", "eagle3-eagle3", *given).document["coverage"]
    assert after["share"] > coverage["share"] + 0.1


def covered(*given: object) -> Any:
    return call("inspect", *given, "--json").document["coverage"]


def test_inspect_covers_texts_by_set_where_no_target_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out, given = tmp_path / "out.txt", (small(tmp_path), "--target", TARGET)
    coverage = covered(*given, "--prompts", PROMPTS)
    assert 0.5 < coverage["share"] < 0.8 and set(coverage["sets"]) == {"maths", "conversion", "drafter"}
    text = call("inspect", *given, "--prompts", PROMPTS, "--write-token-counts", out).out
    assert "of the texts' tokens, so a length of" in text
    counted = covered(*given, "--token-counts", out)
    assert (counted["tokens"], counted["covered"]) == (coverage["tokens"], coverage["covered"])
    again = call("inspect", *given, "--prompts", PROMPTS, "--write-token-counts", out)
    assert again.code == 2 and "exists already" in again.err


def test_a_whole_vocabulary_holds_every_token(tmp_path: Path) -> None:
    (tmp_path / "counts.txt").write_text(f"3 5\n{VOCAB - 1} 2\n")
    tensors = {"lm_head.weight": floats("lm_head.weight", VOCAB, HIDDEN), "d2t": None}
    drafter = drafter_folder(tmp_path, config={"draft_vocab_size": VOCAB}, tensors=tensors)
    coverage = covered(drafter, "--token-counts", tmp_path / "counts.txt")
    assert (coverage["tokens"], coverage["covered"], coverage["most_length"]) == (7, 7, 4.0)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--prompts", "p.txt", "--token-counts", "c.txt"), 2, "pass --prompts or --token-counts, not both"),
        (("--write-token-counts", "new.txt"), 2, "counts the tokens of --prompts; pass --prompts too"),
        (("--token-counts", "c.txt"), 2, "outside of this drafter's vocabulary"),
        (("--prompts", "missing.txt"), 3, "missing.txt"),
        (("--prompts", "p.txt"), 2, "have one token each"),
        (("--prompts", "p.txt", "--target", "bare"), 3, "has no tokenizer"),
    ],
)
def test_what_cannot_be_covered_is_refused(
    options: tuple[str, ...], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("a\n")
    (tmp_path / "c.txt").write_text("99999 1\n")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text((TARGET / "config.json").read_text())
    target = () if "--target" in options else ("--target", TARGET)
    done = call("inspect", TINY / "eagle3", *options, *target)
    assert done.code == code and words in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("a list of numbers", "Latin"),
        ("\u0938\u0902\u0916\u094d\u092f\u093e ok", "Devanagari"),
        ("\u0447\u0438\u0441\u043b\u043e", "Cyrillic"),
        ("\u6570\u5b57\u3002", "Cjk"),
        ("12 + 3 = 15", ""),
        ("\ufffd\ufffd", ""),
    ],
)
def test_the_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert script_of(text) == script
