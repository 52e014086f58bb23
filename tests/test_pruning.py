"""A smaller draft vocabulary: the rows that move, the map that is written, notes, and faulty count files."""

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.conversion.plan import Pruning
from eaglectl.errors import UnreadableError, UsageError
from tests.builders import (
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
    Stored,
    call,
    drafter_folder,
    floats,
    mask,
    offsets,
    read_safetensors,
    refusal,
    target_of,
)
from tests.cases import true_answers
from tests.conftest import FIXTURES

HEAD = "lm_head.weight"
FULL: dict[str, Any] = {HEAD: floats(HEAD, VOCAB, HIDDEN), "d2t": None}
# falling with the id, so that the tokens kept are the first ones
FALLING = {token: 1000 - token for token in range(VOCAB)}


def full(parent: Path, **tensors: Any) -> Path:
    """A drafter with a head of all target tokens."""
    return drafter_folder(parent, "full", config={"draft_vocab_size": VOCAB}, tensors=FULL | tensors)


def counted(folder: Path, counts: Mapping[int, int] | str) -> Path:
    path = folder / "counts.json"
    path.write_text(counts if isinstance(counts, str) else json.dumps(counts))
    return path


def pruned(source: Path, counts: Path, size: int, out: Path, **settings: Any) -> Any:
    settings.setdefault("answers", true_answers(source))
    return eaglectl.convert(str(source), out, ConvertOptions(pruning=Pruning(size, counts), **settings))


def head_rows(stored: Stored) -> list[bytes]:
    return [stored[2][start : start + 2 * HIDDEN] for start in range(0, len(stored[2]), 2 * HIDDEN)]


def tokens_of(tensors: Mapping[str, Stored]) -> list[int]:
    dtype, (size,), raw = tensors["d2t"]
    assert dtype == "I64"
    return [draft + offset for draft, offset in enumerate(struct.unpack(f"<{size}q", raw))]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(any), st.integers(1, DRAFT - 1))
def test_a_reduced_vocabulary_is_reduced_further_by_target_tokens(counts: list[int], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = drafter_folder(folder, tensors={"t2d": mask()})
        pruned(source, counted(folder, json.dumps(counts)), size, folder / "out")
        before = head_rows(read_safetensors(source / "model.safetensors")[HEAD])
        after = read_safetensors(folder / "out" / "model.safetensors")
    tokens = tokens_of(after)
    assert set(tokens) <= set(TARGETS)
    assert head_rows(after[HEAD]) == [before[TARGETS.index(token)] for token in tokens]
    assert after["t2d"] == mask(tokens)


def test_rows_in_another_order_are_sorted_by_target_token(tmp_path: Path) -> None:
    order = tuple(reversed(TARGETS))
    source = drafter_folder(tmp_path, tensors={"d2t": offsets(order), "t2d": mask(order)})
    pruned(source, counted(tmp_path, dict.fromkeys(order, 3)), 10, tmp_path / "out")
    before, after = (read_safetensors(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert tokens_of(after) == list(TARGETS[:10])
    assert head_rows(after[HEAD]) == [head_rows(before[HEAD])[order.index(token)] for token in TARGETS[:10]]


def test_the_share_that_stays_is_told_and_kept(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    counts = counted(tmp_path, {0: 900, 1: 50, 2: 30, 5: 10, 3: 10})  # 3 has no row
    done = pruned(source, counts, 2, tmp_path / "out", target=str(target_of(tmp_path / "t", eos_token_id=0)))
    assert [note.text for note in done.plan.notes if note.about == "draft_vocab_size"] == [
        "2 of 24 tokens stay; they are 95.00% of the 1,000 counted in counts.json, 99.00% before"
    ]
    whole = json.loads((tmp_path / "out" / "eaglectl.json").read_text())
    record = whole["pruning"]
    names = ("share", "share_before", "of", "tokens_counted", "always_kept")
    assert [record[name] for name in names] == [0.95, 0.99, 24, 1000, [0]] and len(record["sha256"]) == 64
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FIXTURES.parent / "schemas/provenance.schema.json").read_text())
    jsonschema.validate(whole, schema)


@pytest.mark.parametrize(
    ("counts", "size", "special", "words"),
    [
        (FALLING, 20, 0, "20 of 64 tokens stay; they are 31.96% of the "),
        (FALLING, 20, 0, "every other token ends a draft; pass a larger --draft-vocab"),
        ({7: 5, 9: 1}, 5, 63, "2 of the 5 tokens were never counted"),
        ({7: 5, 9: 1}, 2, [7, 64], "special tokens [64] have no row in this drafter"),
        ({7: 5, 9: 1}, 2, None, "have no bos_token_id and no eos_token_id"),
    ],
)
def test_what_may_be_wrong_with_the_tokens_that_stay_is_a_warning(
    counts: dict[int, int], size: int, special: Any, words: str, tmp_path: Path
) -> None:
    known = str(target_of(tmp_path / "t", eos_token_id=special))
    settings: dict[str, Any] = {"target": known, "dry_run": True}
    plan = pruned(full(tmp_path), counted(tmp_path, counts), size, tmp_path / "out", **settings).plan
    (note,) = (note for note in plan.notes if note.about == "draft_vocab_size" and note.level == "warning")
    assert words in note.text


def test_special_tokens_of_both_configs_stay_and_there_must_be_room_for_them(tmp_path: Path) -> None:
    source, known = full(tmp_path), target_of(tmp_path / "t", bos_token_id=61, eos_token_id=62)
    counts, out = counted(tmp_path, FALLING), tmp_path / "out"
    for size, text, kind, words in (
        (2, '{"eos_token_id": [60, 61, 62]}', UsageError, "pass at least 3"),
        (2, "{", UnreadableError, r"generation_config\.json"),
    ):
        (known / "generation_config.json").write_text(text)
        with pytest.raises(kind, match=words):
            pruned(source, counts, size, out, target=str(known))
    (known / "generation_config.json").write_text('{"eos_token_id": [60, 62], "bos_token_id": null}')
    pruned(source, counts, 6, out, target=str(known))
    assert tokens_of(read_safetensors(out / "model.safetensors")) == [0, 1, 2, 60, 61, 62]


def test_counts_come_in_three_forms(tmp_path: Path) -> None:
    source = full(tmp_path)
    for number, text in enumerate(
        (
            '{"7": 3, "9": 2, "0": 0}',
            '\ufeff{"7": 3, "9": 2}',
            json.dumps([0] * 7 + [3, 0, 2]),
            "7 3\n9 2\n\n",
            "7\t3\r\n9, 2\r\n",
            " 7;3\n09 2",
        )
    ):
        pruned(source, counted(tmp_path, text), 2, tmp_path / f"out{number}")
        assert tokens_of(read_safetensors(tmp_path / f"out{number}/model.safetensors")) == [7, 9], text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \n\n", "has no count above 0"),
        ("[]", "has no count above 0"),
        ('{"3": 0}', "has no count above 0"),
        ('{"64": 1}', "key 1: token 64 is outside of this drafter's vocabulary of 64; use counts of"),
        ("3 1\n100000 2", "line 2: token 100000 is outside"),
        ('{"3": -1}', "a count of -1; 0 or more was expected"),
        ('{"3": 1, "3": 2}', "token 3 is listed twice"),
        ("3 1\n4 1\n3 1", "line 3: token 3 is listed twice"),
        ('{"hunter2": 1}', "key 1: not a token id; count tokens by id, not by text"),
        ('{"\u0663": 1}', "not a token id"),
        ('{"3": 1.5}', "key 1: not a count"),
        ('{"3": true}', "key 1: not a count"),
        ('{"1": "hunter2"}', "key 1: not a count"),
        ('["hunter2"]', "entry 0: not a count"),
        ('{"3": 1', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("hunter2", 'line 1: 1 words; "id count" was expected'),
        ("3 1 2", "was expected"),
        ("hunter2 12", "line 1: not a token id"),
        ("3 hunter2", "line 1: not a count"),
        (f"3 {'9' * 5000}", "not a count"),
        (f"[{'9' * 5000}]", "is not JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_counts_wrongly_is_said_where_and_without_a_word_of_it(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as problem:
        pruned(full(tmp_path), counted(tmp_path, text), 4, tmp_path / "out")
    message = str(problem.value)
    assert words in message and "--token-counts" in message and "hunter2" not in message
    assert len(message) < 500 and not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_read_is_said_and_there_are_no_rows_to_add(tmp_path: Path) -> None:
    source, path = full(tmp_path), tmp_path / "counts"
    for content in (None, b"\xff\xfe1 2"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UnreadableError, match="--token-counts"):
            pruned(source, path, 4, tmp_path / "out")
    for size, words in ((64, "a number below 64"), (65, "rows cannot be added"), (-3, "below 64")):
        with pytest.raises(UsageError, match=words):
            pruned(source, counted(tmp_path, FALLING), size, tmp_path / "out")


def test_a_head_tied_to_its_embedding_is_pruned_and_the_embedding_stays(tmp_path: Path) -> None:
    source = drafter_folder(
        tmp_path, config={"draft_vocab_size": VOCAB, "tie_word_embeddings": True}, tensors=FULL | {HEAD: None}
    )
    pruned(source, counted(tmp_path, FALLING), 9, tmp_path / "out")
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert head_rows(found[HEAD]) == head_rows(found["embed_tokens.weight"])[:9]
    assert found["embed_tokens.weight"][1] == (VOCAB, HIDDEN)


def test_a_head_without_rows_to_move_and_half_of_the_two_options_are_refused(tmp_path: Path) -> None:
    packed = {
        HEAD: ("F8_E4M3", (VOCAB, HIDDEN), bytes(VOCAB * HIDDEN)),
        "lm_head.weight_scale": floats("s", 1, dtype="F32"),
    }
    whole = {"draft_vocab_size": VOCAB}
    bare = drafter_folder(tmp_path, "bare", config=whole, tensors=FULL | {HEAD: None})
    table = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["fc", "*layers*"]}
    fp8 = whole | {"quantization_config": table}  # of a method whose head vLLM builds quantised
    quantised = drafter_folder(tmp_path, "fp8", config=fp8, tensors=FULL | packed)
    out, size, counts = ("-o", tmp_path / "out"), ("--draft-vocab", "9"), counted(tmp_path, FALLING)
    given = (*out, *size, "--token-counts", counts)
    assert "uses the target's lm_head" in refusal(1, "convert", bare, *given)
    assert "lm_head.weight is quantised" in refusal(1, "convert", quantised, *given)
    for half in (size, ("--token-counts", "counts.json")):
        assert "pass --draft-vocab and --token-counts together" in refusal(
            2, "convert", drafter_folder(tmp_path, half[0]), *out, *half
        )


@pytest.mark.parametrize("layout", ["specforge", "angelslim", "sglang", "torchspec"])
def test_every_layout_gets_its_map(layout: str, tmp_path: Path) -> None:
    given = ("--draft-vocab", "9", "--token-counts", counted(tmp_path, FALLING), "--for", layout)
    target = target_of(tmp_path / "t", eos_token_id=4)
    done = call("convert", full(tmp_path), "-o", tmp_path / "out", *given, "--target", target, "--json")
    assert done.code == 0, done
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert tokens_of(found) == list(range(9)) and ("t2d" in found) == (layout in ("specforge", "angelslim"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["draft_vocab_size"] == 9


def test_the_output_is_a_drafter_that_validates_and_is_served_as_trained(tmp_path: Path) -> None:
    out, counts = tmp_path / "out", counted(tmp_path, {token: token % 7 for token in range(VOCAB)})
    pruned(full(tmp_path), counts, 20, out)
    found = eaglectl.inspect(str(out), engines=["vllm"])
    assert found.requested[0].outcome == "as trained" and found.drafter.dims.draft_vocab == 20
    assert not eaglectl.validate(out, select=["EGL3"]).findings


def test_the_counts_are_never_replaced(tmp_path: Path) -> None:
    old = drafter_folder(tmp_path, "old")
    (old / "counts.json").write_text("[5, 4, 3]")
    given = ("--draft-vocab", "8", "--token-counts", old / "counts.json")
    made = call("convert", drafter_folder(tmp_path), *given, "-o", old, "--force")
    assert made.code == 2 and "overlap, and eaglectl never overwrites its input" in made.err
    assert (old / "counts.json").read_text() == "[5, 4, 3]"
