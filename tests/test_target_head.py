"""A drafter without an lm_head gets its target's: the same bytes and function, and 3.1 by absorption."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.request import Pruning
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.operations.converting import ConvertOptions
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
    write_safetensors,
)

BARE: dict[str, Any] = {
    "config": {"draft_vocab_size": VOCAB},
    "tensors": {"lm_head.weight": None, "d2t": None},
}
HEAD = floats("the target's head", VOCAB, HIDDEN)


def target(folder: Path, tensors: dict[str, Stored] | None = None, **config: Any) -> str:
    folder.mkdir()
    whole = {
        "model_type": "llama",
        "num_hidden_layers": 8,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    if tensors is None:
        tensors = {"lm_head.weight": HEAD}
    write_safetensors(folder / "model.safetensors", tensors)
    return str(folder)


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
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False


def test_its_rows_may_be_pruned_at_once(tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path, **BARE), target(tmp_path / "target")
    (tmp_path / "counts.json").write_text(json.dumps({"3": 5, "9": 4, "60": 9}))
    options = ConvertOptions(has_target_head=True, pruning=Pruning(3, tmp_path / "counts.json"))
    eaglectl.convert(str(source), tmp_path / "out", replace(options, target=whole))
    found, width = read_safetensors(tmp_path / "out/model.safetensors"), 2 * HIDDEN
    rows = [HEAD[2][token * width : (token + 1) * width] for token in (3, 9, 60)]
    assert found["lm_head.weight"] == ("BF16", (3, HIDDEN), b"".join(rows))


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
    eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=whole))
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found["lm_head.weight"] == HEAD and not {"d2t", "t2d"} & set(found)
    assert json.loads((tmp_path / "out/config.json").read_text())["draft_vocab_size"] == VOCAB


def test_or_those_that_were_counted_with_no_training(tmp_path: Path) -> None:
    source, whole = frozen(tmp_path), target(tmp_path / "target")
    new = sorted(set(range(VOCAB)) - set(TARGETS))[:3]
    (tmp_path / "counts.txt").write_text("".join(f"{token} 9\n" for token in new))
    options = ConvertOptions(has_target_head=True, pruning=Pruning(3, tmp_path / "counts.txt"))
    eaglectl.convert(str(source), tmp_path / "out", replace(options, target=whole))
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found["lm_head.weight"][2] == rows_of(HEAD, new)
    assert struct.unpack("<3q", found["d2t"][2]) == tuple(token - row for row, token in enumerate(new))


@pytest.mark.parametrize("row", [0, DRAFT - 1])
def test_one_row_of_another_token_is_a_head_of_its_own(row: int, tmp_path: Path) -> None:
    tokens = list(TARGETS)
    tokens[row] = next(token for token in range(VOCAB) if token not in TARGETS)
    source, whole = frozen(tmp_path, tokens), target(tmp_path / "target")
    with pytest.raises(UsageError, match="not of rows of the target's"):
        eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=whole))


REFUSED: dict[str, tuple[type[EaglectlError], str, dict[str, Any], dict[str, Any] | None]] = {
    "no target": (UsageError, "pass --target", BARE, None),
    "a target without weights": (UnreadableError, "no tensors", BARE, {"tensors": {}}),
    "a head of its own": (UsageError, "leave the option out", {}, {}),
    "another width": (
        RefusedError,
        "this drafter needs",
        BARE,
        {"tensors": {"lm_head.weight": floats("h", VOCAB, 8)}},
    ),
    "a padded head": (
        RefusedError,
        "this drafter needs",
        BARE,
        {"tensors": {"lm_head.weight": floats("h", 80, HIDDEN)}},
    ),
    "an untied embedding alone": (
        RefusedError,
        "no lm_head",
        BARE,
        {"tensors": {"model.embed_tokens.weight": HEAD}, "tie_word_embeddings": False},
    ),
    "a packed head": (
        RefusedError,
        "unquantised",
        BARE,
        {"tensors": {"lm_head.weight": ("U8", (VOCAB, HIDDEN), bytes(VOCAB * HIDDEN))}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_head_to_give_stops(name: str, tmp_path: Path) -> None:
    kind, words, given, made = REFUSED[name]
    source = drafter_folder(tmp_path, **given)
    where = None if made is None else target(tmp_path / "target", **made)
    with pytest.raises(kind, match=words):
        eaglectl.convert(str(source), tmp_path / "out", replace(OWN_HEAD, target=where))
    assert not (tmp_path / "out").exists()


def test_the_option_reaches_the_conversion(tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path, **BARE), target(tmp_path / "target")
    done = call("convert", source, "-o", tmp_path / "out", "--target", whole, "--materialize-lm-head")
    assert done.code == 0, done.err
    shown = call("convert", source, "--target", whole, "--materialize-lm-head", "--dry-run", "--json").out
    assert "the target's lm_head.weight" in shown
    assert "engines use the target's" not in shown


def test_absorption_takes_the_head_that_came_over(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from eaglectl.conversion.request import UpgradeRecipe
    from tests.test_upgrade import statistics

    source, whole = drafter_folder(tmp_path, **BARE), target(tmp_path / "target")
    known = statistics(
        eaglectl.convert(str(source), options=ConvertOptions(target=whole, dry_run=True)).plan.drafter
    )
    options = ConvertOptions(version="3.1", recipe=UpgradeRecipe("off", True, known), has_target_head=True)
    done = eaglectl.convert(str(source), tmp_path / "out", replace(options, target=whole))
    assert done.plan.record["upgrade"]["norm_output"] == "absorbed"
    step = next(step for step in done.plan.steps if step.name == "lm_head.weight")
    assert step.how == "the target's lm_head.weight; columns times norm.weight / sigma"
