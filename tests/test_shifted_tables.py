"""Tables shifted by rows: d2t's numbers, or the tokens they give, go back; what fell off is not invented."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from eaglectl.drafter.tensors import is_rolled, moved_back
from eaglectl.run.probes import shifted_table
from tests.builders import Stored, call, read_safetensors, refusal, write_safetensors
from tests.tiny import PROMPTS, TARGET, TINY

VOCAB = 60
tokens_of = st.lists(st.integers(0, VOCAB - 1), min_size=12, max_size=40, unique=True)
steps = st.integers(-4, 4).filter(bool)


def shifted(numbers: Sequence[int], late: int, how: str) -> list[int]:
    """The numbers so many rows later: rolled, or with zeros or the edge's number again in what is free."""
    count, size = abs(late), len(numbers)
    if how == "rolled":
        return [numbers[(row - late) % size] for row in range(size)]
    kept = list(numbers[: size - late] if late > 0 else numbers[-late:])
    filling = [0 if how == "zeros" else kept[0 if late > 0 else -1]] * count
    return filling + kept if late > 0 else kept + filling


@given(
    tokens_of,
    steps,
    st.sampled_from(["rolled", "zeros", "edge"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_what_is_known_of_a_shifted_table_is_exact_and_the_rest_is_left_out(
    tokens: list[int], late: int, how: str, is_sorted: bool, are_offsets: bool, has_marks: bool
) -> None:
    tokens = sorted(tokens) if is_sorted else tokens
    numbers = [token - row * are_offsets for row, token in enumerate(tokens)]
    used = tuple(sorted(tokens)) if has_marks else None
    table = moved_back(
        tuple(shifted(numbers, late, how)), late, are_offsets=are_offsets, marked_tokens=used, vocab=VOCAB
    )
    assert table is not None
    known = [row for row, token in enumerate(table) if token is not None]
    assert [table[row] for row in known] == [tokens[row] for row in known]
    assert len(known) >= len(tokens) - abs(late)
    if has_marks and (is_sorted or how == "rolled"):
        assert len(known) == len(tokens)


@given(tokens_of, steps, st.booleans(), st.booleans())
def test_a_rolled_table_in_order_is_told_by_the_file_alone(
    tokens: list[int], late: int, are_offsets: bool, has_marks: bool
) -> None:
    tokens = sorted(tokens)
    numbers = [token - row * are_offsets for row, token in enumerate(tokens)]
    used = tuple(tokens) if has_marks else None
    rolled = tuple(shifted(numbers, late, "rolled"))
    assume(len(set(numbers[:4] + numbers[-4:])) == 8)
    whole = [step for step in range(-8, 9) if is_rolled(rolled, step, used, VOCAB)]
    # a roll by more rows than the other way round is the same table
    assert {step % len(tokens) for step in whole} == {late % len(tokens)}


def drafter(folder: Path, change: str, *, has_marks: bool = False) -> Path:
    """The tiny drafter with its d2t one row off: of what, which way, and with what in the free row."""
    tensors = read_safetensors(TINY / "eagle3" / "model.safetensors")
    dtype, shape, data = tensors["d2t"]
    offsets = np.frombuffer(data, "<i8")
    of, side, how = change.split()
    numbers = offsets + np.arange(len(offsets)) * (of != "offsets")
    moved = np.array(shifted(numbers.tolist(), 1 if side == "late" else -1, how)) - np.arange(
        len(offsets)
    ) * (of == "tokens")
    tensors["d2t"] = (dtype, shape, moved.astype("<i8").tobytes())
    if not has_marks:
        del tensors["t2d"]
    folder.mkdir()
    (folder / "config.json").write_text((TINY / "eagle3" / "config.json").read_text())
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def stored(folder: Path) -> dict[str, Stored]:
    return read_safetensors(folder / "model.safetensors")


# what is one row off, and the number of rows of the 320 that are known: the last token is 511 of 512, and the
# first is 0 or 1, as the second is 2
CHANGES = {
    "offsets late rolled": 320,
    "offsets late zeros": 320,
    "offsets early zeros": 319,
    "offsets early rolled": 319,
    "ids late rolled": 320,
    "ids early edge": 319,
    "tokens late rolled": 320,
    "tokens late edge": 320,
    "tokens early edge": 319,
}


def reading_of(change: str) -> str:
    of, side, _ = change.split()
    return f"d2t-{'tokens' if of == 'tokens' else 'rows'}=1-{side}"


@pytest.mark.parametrize("change", CHANGES)
def test_the_repair_gives_the_table_back_and_leaves_out_a_row_that_nobody_knows(
    change: str, tmp_path: Path
) -> None:
    broken, lost = drafter(tmp_path / "broken", change), 320 - CHANGES[change]
    given = ("--target", TARGET, "--fix-reading", reading_of(change))
    done = call("convert", broken, "-o", tmp_path / "out", *given)
    assert done.code == 0, done.err
    good, repaired = stored(TINY / "eagle3"), stored(tmp_path / "out")
    offsets = np.frombuffer(good["d2t"][2], "<i8")[lost:] + lost
    assert repaired["d2t"] == ("I64", (320 - lost,), offsets.tobytes())
    dtype, (_, width), data = good["lm_head.weight"]
    assert repaired["lm_head.weight"] == (dtype, (320 - lost, width), data[2 * width * lost :])
    assert json.loads((tmp_path / "out/config.json").read_text())["draft_vocab_size"] == 320 - lost
    assert ("rows of lm_head left out" in " ".join(done.out.split())) == bool(lost)


def test_a_reading_that_gives_no_table_is_refused(tmp_path: Path) -> None:
    broken = drafter(tmp_path / "broken", "offsets late rolled", has_marks=True)
    given = ("convert", broken, "-o", tmp_path / "out", "--target", TARGET, "--fix-reading")
    assert "with that reading d2t is no table" in refusal(1, *given, "d2t-rows=1-early")
    assert "1-late or 1-early" in refusal(2, *given, "d2t-rows=9-late")


def test_validate_names_the_reading_of_a_table_that_is_rolled(tmp_path: Path) -> None:
    broken = drafter(tmp_path / "broken", "ids late rolled")
    done = call("validate", broken, "--target", TARGET)
    assert done.code == 1 and "--fix-reading d2t-rows=1-late" in " ".join(done.out.split())


def diagnosed(tmp_path: Path, change: str, *, has_marks: bool) -> str:
    pytest.importorskip("torch")
    broken = drafter(tmp_path / "broken", change, has_marks=has_marks)
    given = ("--target", TARGET, "--prompts", PROMPTS, "--max-tokens", 20, "--device", "cpu")
    done = call("diagnose", broken, *given)
    assert done.code == 1, done.out
    return " ".join(done.out.replace("\\\n", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "has_marks", "words"),
    [
        ("offsets late rolled", True, "--fix-reading d2t=from-t2d"),
        ("offsets early zeros", False, "--fix-reading d2t-rows=1-early"),
        ("tokens late rolled", False, "--fix-reading d2t-tokens=1-late"),
        ("tokens late rolled", True, "--fix-reading d2t-tokens=1-late"),
        ("ids late rolled", False, "--fix-reading d2t-rows=1-late"),
    ],
)
def test_diagnose_ends_in_the_shift_and_not_in_the_vocabulary(
    change: str, has_marks: bool, words: str, tmp_path: Path
) -> None:
    text = diagnosed(tmp_path, change, has_marks=has_marks)
    assert words in text and "cause in the file" in text and "without the tokens" not in text


@pytest.mark.slow
def test_diagnose_ends_in_a_shift(tmp_path: Path) -> None:
    assert "d2t 1 row late" in diagnosed(tmp_path, "offsets late zeros", has_marks=False)


class Texts:
    """A first pass whose drafter knows the right row of each token that the target chooses."""

    def __init__(self, table: Sequence[int], true: Sequence[int]) -> None:
        self.job = SimpleNamespace(
            draft_tokens=tuple(table),
            marked_tokens=(),
            drafter=SimpleNamespace(tensors={}, dims=SimpleNamespace(vocab=VOCAB)),
        )
        weights = {"d2t": 0, "lm_head.weight": 0}
        self.stage = SimpleNamespace(drafter=SimpleNamespace(weights=weights), boundaries=(1, 2, 3))
        self.table, self.true = np.array(table), np.array(true)

    def first_drafts(self, model: object, boundaries: object) -> list[Any]:
        return [self.table, self.true]


@pytest.mark.parametrize(("late", "of"), [(0, "rows"), (2, "rows"), (-1, "tokens"), (5, "tokens")])
def test_the_shift_that_makes_most_first_tokens_right_is_tried(late: int, of: str) -> None:
    true = [2, 3, 7, 11, 12, 20, 21, 25, 31, 33, 40, 41, 47, 52, 58]
    rows = np.arange(len(true)) * (of == "rows")
    table = (np.array(shifted((true - rows).tolist(), late, "rolled")) + rows).tolist()
    first: Any = Texts(table, true)
    options = [candidate.option for candidate in shifted_table(first)]
    side = f"{abs(late)}-{'late' if late > 0 else 'early'}"
    assert options == ([f"--fix-reading d2t-{of}={side}"] if late else [])


def test_the_order_of_the_others_tells_a_lost_token_only_where_one_fits() -> None:
    assert moved_back((1, 4, 9, 0), -1, are_offsets=False, marked_tokens=None, vocab=20) == (0, 1, 4, 9)
    assert moved_back((2, 4, 9, 0), -1, are_offsets=False, marked_tokens=None, vocab=20) == (None, 2, 4, 9)
    assert moved_back((2, 9, 4, 0), -1, are_offsets=False, marked_tokens=(0, 2, 4, 9), vocab=20) == (
        0,
        2,
        9,
        4,
    )
    assert is_rolled((9, 0, 4), 1, (0, 4, 9), 20) and not is_rolled((9, 0, 4), 1, (0, 4, 8), 20)
