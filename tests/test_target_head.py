"""A drafter without an lm_head gets its target's: the same bytes and function, and 3.1 by absorption."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.conversion.plan import Pruning
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from tests.builders import (
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
    Stored,
    call,
    drafter_folder,
    floats,
    read_safetensors,
    target_of,
)

BARE: dict[str, Any] = {
    "config": {"draft_vocab_size": VOCAB},
    "tensors": {"lm_head.weight": None, "d2t": None},
}
HEAD = floats("the target's head", VOCAB, HIDDEN)


def target(folder: Path, tensors: dict[str, Stored] | None = None, **config: Any) -> str:
    return str(target_of(folder, {"lm_head.weight": HEAD} if tensors is None else tensors, **config))


OWN_HEAD = ConvertOptions(has_target_head=True)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("lm_head.weight", {}),
        ("language_model.lm_head.weight", {}),
        ("model.embed_tokens.weight", {"tie_word_embeddings": True}),
        ("language_model.model.embed_tokens.weight", {"text_config": {"tie_word_embeddings": True}}),
    ],
)
def test_the_targets_head_comes_over_byte_for_byte(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path, **BARE), target(tmp_path / "target", {name: HEAD}, **config)
    done = eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=whole))
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found.pop("lm_head.weight") == HEAD
    assert found == read_safetensors(source / "model.safetensors")
    step = next(step for step in done.plan.steps if step.name == "lm_head.weight")
    assert (step.action, step.how) == ("computed", f"the target's {name}")
    assert not any("engines use the target's" in note.text for note in done.plan.notes)
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False


def rows_of(head: Stored, tokens: Sequence[int]) -> bytes:
    size = len(head[2]) // head[1][0]
    return b"".join(head[2][token * size : (token + 1) * size] for token in tokens)


def frozen(folder: Path, tokens: Sequence[int] = TARGETS) -> Path:
    """A drafter whose lm_head is of these rows of the target's."""
    return drafter_folder(
        folder, tensors={"lm_head.weight": ("BF16", (DRAFT, HIDDEN), rows_of(HEAD, tokens))}
    )


def test_a_head_of_some_rows_of_the_targets_gets_all_of_them(tmp_path: Path) -> None:
    source, whole = frozen(tmp_path), target(tmp_path / "target")
    given = ("convert", source, "--target", whole, "--materialize-lm-head")
    shown = call(*given, "--dry-run", "--json").out
    assert "the target's lm_head.weight" in shown
    done = call(*given, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found["lm_head.weight"] == HEAD and not {"d2t", "t2d"} & set(found)
    assert json.loads((tmp_path / "out/config.json").read_text())["draft_vocab_size"] == VOCAB


@pytest.mark.parametrize("is_bare", [True, False])
def test_or_those_that_were_counted_with_no_training(is_bare: bool, tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, **BARE) if is_bare else frozen(tmp_path)
    new = sorted(set(range(VOCAB)) - set(TARGETS))[:3]
    (tmp_path / "counts.txt").write_text("".join(f"{token} 9\n" for token in new))
    pruning, whole = Pruning(3, tmp_path / "counts.txt"), target(tmp_path / "target")
    eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=whole, pruning=pruning))
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found["lm_head.weight"] == ("BF16", (3, HIDDEN), rows_of(HEAD, new))
    assert struct.unpack("<3q", found["d2t"][2]) == tuple(token - row for row, token in enumerate(new))


@pytest.mark.parametrize("row", [0, DRAFT - 1])
def test_one_row_of_another_token_is_a_head_of_its_own(row: int, tmp_path: Path) -> None:
    tokens = list(TARGETS)
    tokens[row] = next(token for token in range(VOCAB) if token not in TARGETS)
    source, whole = frozen(tmp_path, tokens), target(tmp_path / "target")
    with pytest.raises(UsageError, match="with other rows than the target's"):
        eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=whole))


PACKED = ("U8", (VOCAB, HIDDEN), bytes(VOCAB * HIDDEN))


@pytest.mark.parametrize(
    ("kind", "words", "given", "tensors"),
    [
        (UsageError, "pass --target", BARE, None),
        (UnreadableError, "no tensors", BARE, {}),
        (UsageError, "leave the option out", {}, {"lm_head.weight": HEAD}),
        (RefusedError, "needs", BARE, {"lm_head.weight": floats("another width", VOCAB, 8)}),
        (RefusedError, "needs", BARE, {"lm_head.weight": floats("a padded head", 80, HIDDEN)}),
        (RefusedError, "no unquantised lm_head", BARE, {"model.embed_tokens.weight": HEAD}),  # it is not tied
        (RefusedError, "unquantised", BARE, {"lm_head.weight": PACKED}),
    ],
)
def test_what_has_no_head_to_give_stops(
    kind: type[EaglectlError], words: str, given: Any, tensors: Any, tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path, **given)
    where = None if tensors is None else target(tmp_path / "target", tensors, tie_word_embeddings=False)
    with pytest.raises(kind, match=words):
        eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=where))
    assert not (tmp_path / "out").exists()
