"""Rules on the draft vocabulary: every bad case is a good drafter, a patch, and exactly the findings it
must give.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eaglectl
from eaglectl.drafter.drafter import Target
from eaglectl.formats.format import Answers
from eaglectl.judge.subject import GivenTarget, Subject
from tests.builders import (
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
    drafter_folder,
    floats,
    integers,
    loaded_after,
    mask,
    offsets,
)
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

TWICE = (*TARGETS[:-1], TARGETS[0])
OUTSIDE = (*TARGETS[:-1], VOCAB)
OTHERS = (*TARGETS[:-1], TARGETS[-1] - 2)
REVERSED = TARGETS[::-1]
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
FIRST = tuple(range(DRAFT))
FAMILY = {"select": ["EGL3"]}
VALUES = ("EGL301", "EGL302", "EGL303", "EGL304", "EGL305", "EGL306", "EGL307", "EGL309")


def tokens_of_turns(folder: Path) -> None:
    """A target beside the drafter whose tokenizer has a token that opens thoughts."""
    target = folder.parent / "target"
    added = {"0": {"content": "<think>"}, "3": {"content": "</think>"}, "4": {"content": "<|reserved|>"}}
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [63, 61]}))


BAD = (
    Patch(
        "t2d marks fewer tokens",
        ("EGL301",),
        tensors={"t2d": mask(TARGETS[1:])},
        says="t2d marks 23 target tokens and the draft vocabulary has 24",
    ),
    Patch(
        "a draft vocabulary larger than the target's",
        ("EGL301",),
        config={"vocab_size": 20},
        tensors={"embed_tokens.weight": None},
        says="24 tokens and the target's 20",
    ),
    Patch(
        "a target past the vocabulary",
        ("EGL302",),
        tensors={"d2t": offsets(OUTSIDE)},
        says="reaches from 0 to 64 in a vocabulary of 64 (1 tokens are outside)",
    ),
    Patch(
        "a target below zero", ("EGL302",), tensors={"d2t": integers(-3, *([0] * 23))}, says="from -3 to 23"
    ),
    Patch(
        "vocab_size is the draft's",
        ("EGL302",),
        config={"vocab_size": DRAFT},
        tensors={"embed_tokens.weight": None},
        says="is vocab_size the draft vocabulary's?",
    ),
    Patch(
        "a target twice", ("EGL303",), tensors={"d2t": offsets(TWICE)}, says="repeats a target token (1 of 24"
    ),
    Patch(
        "targets in another order",
        ("EGL304",),
        tensors={"d2t": offsets(REVERSED)},
        says="draft token 0 is 63, the next is 62",
    ),
    Patch(
        "t2d marks other tokens",
        ("EGL305",),
        tensors={"t2d": mask(OTHERS)},
        says="tokens that t2d marks (1 are others)",
    ),
    Patch(
        "token ids in place of offsets",
        ("EGL306",),
        tensors={"d2t": integers(*TARGETS)},
        says="holds token ids (0 to 63)",
    ),
    Patch("token ids, as t2d tells", ("EGL306",), tensors={"d2t": integers(*TARGETS), "t2d": mask()}),
    Patch(
        "a map that fits both ways",
        (),
        tensors={"d2t": integers(*range(1, DRAFT + 1))},
        given=FAMILY,
        blind=("EGL306", "EGL309"),
    ),
    Patch(
        "a map that the user calls absolute",
        ("EGL306",),
        tensors={"d2t": integers(*range(1, DRAFT + 1))},
        given={"answers": Answers(semantics={"d2t": "absolute"})},
    ),
    Patch(
        "zeros", ("EGL307",), tensors={"d2t": integers(*([0] * DRAFT))}, says="only the first 24 of 64 tokens"
    ),
    Patch(
        "zeros against t2d",
        ("EGL307",),
        tensors={"d2t": integers(*([0] * DRAFT)), "t2d": mask()},
        says="t2d marks others",
    ),
    Patch("zeros that t2d confirms", (), tensors={"d2t": integers(*([0] * DRAFT)), "t2d": mask(FIRST)}),
    Patch(
        "a cast d2t",
        ("EGL308",),
        tensors={"d2t": ("F8_E4M3", (DRAFT,), bytes(DRAFT))},
        given=FAMILY,
        blind=VALUES,
        says="is no type for whole numbers",
    ),
    Patch(
        "a d2t of 32 bits",
        ("EGL311",),
        tensors={"d2t": integers(*(t - i for i, t in enumerate(TARGETS)), dtype="I32")},
        says="d2t is I32",
    ),
    Patch("a d2t of noise", ("EGL303", "EGL311"), tensors={"d2t": floats("d", DRAFT, dtype="F16")}),
    Patch(
        "no token that ends a turn",
        ("EGL309",),
        config={"eos_token_id": [63, 61]},
        says="24 of 64 tokens) is without eos (61)",
    ),
    Patch(
        "no tokens of thoughts",
        ("EGL309",),
        also=tokens_of_turns,
        target_config=TARGET,
        says="is without </think> (3), eos (61)",
    ),
    Patch("no d2t", ("EGL310",), tensors={"d2t": None}, says="d2t"),
    Patch(
        "t2d alone",
        ("EGL310",),
        tensors={"d2t": None, "t2d": mask()},
        says="the weights have no d2t; engines would propose the first 24",
    ),
    Patch(
        "d2t in a file of its own",
        ("EGL310",),
        tensors={"d2t": None},
        files={"vocab_mapping.pt": b"x"},
        given={"ignore": ["EGL0"]},
        says="the weights have no d2t",
    ),
)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_a_bad_vocabulary_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_cast_of_a_real_vocabulary_is_an_error(tmp_path: Path) -> None:
    tensors = {
        "d2t": ("BF16", (DRAFT,), bytes(2 * DRAFT)),
        "embed_tokens.weight": None,
        "t2d": ("BOOL", (300,), bytes(300)),
    }
    folder = drafter_folder(tmp_path, config={"vocab_size": 300}, tensors=tensors)
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL3"]))
    assert [one.rule.id for one in report.findings] == ["EGL308"]
    assert (
        "holds whole numbers to 256 exactly, and the vocabulary has 300" in report.findings[0].match.message
    )


@pytest.mark.parametrize(
    ("dtype", "vocab"),
    [("F32", 1 << 24), ("F16", 1 << 11), ("BF16", 1 << 8), ("I16", 1 << 15), ("U8", 1 << 8), ("I8", 1 << 7)],
)
def test_a_d2t_is_rounded_once_its_dtype_cannot_count_to_the_vocabulary(dtype: str, vocab: int) -> None:
    def is_rounded(size: int) -> bool:
        drafter: Any = SimpleNamespace(
            tensors={"d2t": SimpleNamespace(dtype=dtype)}, dims=SimpleNamespace(vocab=size)
        )
        checkpoint: Any = SimpleNamespace(config={})
        return Subject(checkpoint, GivenTarget(Target()), read=(checkpoint, drafter)).is_d2t_rounded

    assert [is_rounded(vocab), is_rounded(vocab + 1)] == [False, True]


def test_with_headers_only_the_tables_are_read(tmp_path: Path) -> None:
    report = eaglectl.validate(
        str(drafter_folder(tmp_path)), eaglectl.ValidateOptions(select=["EGL3"], headers_only=True)
    )
    assert {entry.rule.id for entry in report.unchecked} == {"EGL309"}  # the target was not given
    assert report.verdict == "pass"
    assert {rule.id for rule in report.passed} >= {*VALUES} - {"EGL309"}


def test_a_full_vocabulary_may_have_the_identity(tmp_path: Path) -> None:
    tensors = {
        "lm_head.weight": floats("l", VOCAB, HIDDEN),
        "d2t": integers(*([0] * VOCAB)),
        "t2d": mask(range(VOCAB)),
    }
    folder = drafter_folder(tmp_path, config={"draft_vocab_size": VOCAB}, tensors=tensors)
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL3"]))
    assert not report.findings and not report.unchecked


@pytest.mark.parametrize("folder", ["vllm/native", "speculators/full-vocab"])
def test_no_table_is_opened_and_numpy_not_loaded_with_headers_only(folder: str) -> None:
    path = str(FIXTURES / "producers" / folder)
    options = "select=['EGL3', 'EGL4', 'EGL6', 'EGL7'], headers_only=True, has_engines=False"
    code = f"import eaglectl; eaglectl.validate({path!r}, eaglectl.ValidateOptions({options}))"
    assert "numpy" not in loaded_after(code)
