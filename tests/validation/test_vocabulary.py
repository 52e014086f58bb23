"""Rules on the draft vocabulary: bad cases, each with exactly its findings."""

import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import (
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
    drafter_folder,
    floats,
    integers,
    mask,
    offsets,
)
from tests.validation.patches import Patch, aim, exact, store, without

TWICE = (*TARGETS[:-1], TARGETS[0])
OUTSIDE = (*TARGETS[:-1], VOCAB)
OTHERS = (*TARGETS[:-1], TARGETS[-1] - 2)
REVERSED = TARGETS[::-1]
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
OFFSETS = [target - draft for draft, target in enumerate(TARGETS)]
SHIFTED, ZEROS = integers(*range(1, DRAFT + 1)), integers(*[0] * DRAFT)
ABSOLUTE = Answers(semantics={"d2t": "absolute"})
CAST = {"d2t": ("F8_E4M3", (DRAFT,), bytes(DRAFT))}
WORDS = "holds whole numbers up to 256; the vocabulary has 300"
ROUNDED = {
    "d2t": ("BF16", (DRAFT,), bytes(2 * DRAFT)),
    "embed_tokens.weight": None,
    "t2d": ("BOOL", (300,), bytes(300)),
}
IDENTITY = {
    "lm_head.weight": floats("l", VOCAB, HIDDEN),
    "d2t": integers(*[0] * VOCAB),
    "t2d": mask(range(VOCAB)),
}
UNPADDED = {"d2t": ZEROS, "t2d": mask(range(DRAFT), 34)}
NO_EMBEDDING = {"embed_tokens.weight": None}
FAMILY = {"select": ["EGL3"]}
VALUES = ("EGL301", "EGL302", "EGL303", "EGL304", "EGL305", "EGL306", "EGL307", "EGL309", "EGL312")


def tokens_of_turns(folder: Path) -> None:
    """A target beside the drafter whose tokenizer has a token that opens thoughts."""
    target = folder.parent / "target"
    added = {"0": {"content": "<think>"}, "3": {"content": "</think>"}, "4": {"content": "<|reserved|>"}}
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [63, 61]}))


BAD = (
    store("t2d marks fewer tokens", "EGL301", {"t2d": mask(TARGETS[1:])}, "t2d marks 23 target tokens"),
    Patch("a larger draft vocabulary", "EGL301", {"vocab_size": 20}, "the target's only 20", NO_EMBEDDING),
    store("a target past the vocabulary", "EGL302", {"d2t": offsets(OUTSIDE)}, "(1 tokens are outside)"),
    store("a target below zero", "EGL302", {"d2t": integers(-3, *([0] * 23))}, "from -3 to 23"),
    Patch("draft's size", "EGL302", {"vocab_size": DRAFT}, "may be the draft", tensors=NO_EMBEDDING),
    store("a target twice", "EGL303", {"d2t": offsets(TWICE)}, "repeats a target token (1 of"),
    store("targets in another order", "EGL304", {"d2t": offsets(REVERSED)}, "draft token 0 is 63"),
    store("t2d marks other tokens", "EGL305", {"t2d": mask(OTHERS)}, "t2d marks (1 are others)"),
    store("token ids in place of offsets", "EGL306", {"d2t": integers(*TARGETS)}, "token ids (0 to 63)"),
    store("token ids, as t2d tells", "EGL306", {"d2t": integers(*TARGETS), "t2d": mask()}),
    store("ambiguous", "", {"d2t": SHIFTED}, given=FAMILY, blind=("EGL306", "EGL309")),
    store("a map that the user calls absolute", "EGL306", {"d2t": SHIFTED}, given={"answers": ABSOLUTE}),
    store("zeros", "EGL307", {"d2t": ZEROS}, "only the first 24 of 64"),
    store("zeros against t2d", "EGL307", {"d2t": ZEROS, "t2d": mask()}, "t2d marks others"),
    store("the first tokens", "EGL312", {"d2t": ZEROS, "t2d": mask(range(DRAFT))}, "is the first 24 of 64"),
    Patch("padding left out", "", {"vocab_size": 34}, tensors=UNPADDED | NO_EMBEDDING, given=FAMILY),
    store("a cast d2t", "EGL308", CAST, "cannot hold whole numbers exactly", given=FAMILY, blind=VALUES),
    Patch("a cast of a real vocabulary", "EGL308", {"vocab_size": 300}, WORDS, ROUNDED, given=FAMILY),
    store("32 bits", "EGL311", {"d2t": integers(*OFFSETS, dtype="I32")}, "I32"),
    store("a d2t of noise", "EGL303 EGL311", {"d2t": floats("d", DRAFT, dtype="F16")}),
    Patch("no token that ends a turn", "EGL309", {"eos_token_id": [63, 61]}, "lacks eos (61)"),
    aim("no tokens of thoughts", "EGL309", TARGET, "lacks </think> (3), eos (61)", also=tokens_of_turns),
    store("no d2t", "EGL310", {"d2t": None}, "d2t"),
    store("t2d alone", "EGL310", {"d2t": None, "t2d": mask()}, "the weights have no d2t; engines"),
    store("in another file", "EGL310", {"d2t": None}, files={"vocab_mapping.pt": b""}, given=without("EGL0")),
    Patch("the identity", "", {"draft_vocab_size": VOCAB}, tensors=IDENTITY, given=FAMILY, blind=()),
)

test_a_bad_vocabulary_gives_exactly_its_findings = exact(BAD)


def test_with_headers_only_the_tables_are_read(tmp_path: Path) -> None:
    report = eaglectl.validate(drafter_folder(tmp_path), select=["EGL3"], headers_only=True)
    assert {entry.rule.id for entry in report.unchecked} == {"EGL309"}  # the target was not given
    assert report.verdict == "pass"
    assert {rule.id for rule in report.passed} >= {*VALUES} - {"EGL309"}


@pytest.mark.parametrize(("marked", "is_offered"), [(TARGETS, False), (TARGETS[:20], True)])
def test_a_d2t_of_another_size_is_rebuilt_only_from_as_many_marks(
    tmp_path: Path, marked: tuple[int, ...], is_offered: bool
) -> None:
    head = {"lm_head.weight": floats("l", 20, HIDDEN), "t2d": mask(marked)}
    folder = drafter_folder(tmp_path, config={"draft_vocab_size": 20}, tensors=head)
    (finding,) = eaglectl.validate(folder, select=["EGL203"]).findings
    assert ("--fix-reading d2t=from-t2d" in finding.fix) == is_offered
