"""A smaller draft vocabulary: the rows that move, the map that is written, notes, and faulty count files."""

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.conversion.request import Pruning
from eaglectl.conversion.vocabulary import most_counted
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
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
    mask,
    offsets,
    read_safetensors,
    refusal,
)
from tests.cases import digests, true_answers
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
    path.write_text(
        counts
        if isinstance(counts, str)
        else json.dumps({str(token): count for token, count in counts.items()})
    )
    return path


def pruned(source: Path, counts: Path, size: int, out: Path, **settings: Any) -> Any:
    settings.setdefault("answers", true_answers(source))
    return eaglectl.convert(
        str(source),
        out,
        ConvertOptions(pruning=Pruning(size, counts), **settings),
    )


def target(folder: Path, generation: Mapping[str, Any] | None = None, **config: Any) -> str:
    """A target's config with its special tokens."""
    folder.mkdir()
    inner = {"num_hidden_layers": 8, "model_type": "llama", "hidden_size": HIDDEN, "vocab_size": VOCAB}
    (folder / "config.json").write_text(json.dumps({**inner, **config}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return str(folder)


def head_rows(stored: Stored) -> list[bytes]:
    return [stored[2][start : start + 2 * HIDDEN] for start in range(0, len(stored[2]), 2 * HIDDEN)]


def tokens_of(tensors: Mapping[str, Stored]) -> list[int]:
    dtype, (size,), raw = tensors["d2t"]
    assert dtype == "I64"
    return [draft + offset for draft, offset in enumerate(struct.unpack(f"<{size}q", raw))]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(any), st.integers(1, VOCAB - 1))
def test_every_row_goes_with_its_token(counts: list[int], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = pruned(full(folder), counted(folder, json.dumps(counts)), size, folder / "out").plan
        before, after = head_rows(FULL[HEAD]), read_safetensors(folder / "out" / "model.safetensors")
    tokens = tokens_of(after)
    assert tokens == sorted(set(tokens)) and len(tokens) == size == plan.config["draft_vocab_size"]
    assert head_rows(after[HEAD]) == [before[token] for token in tokens]
    left = sorted(counts[token] for token in range(VOCAB) if token not in tokens)
    assert not left or left[-1] <= min(counts[token] for token in tokens)
    assert "t2d" not in after and not any(step.action == "computed" for step in plan.steps)


@settings(max_examples=20, deadline=None)
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


def test_nothing_but_the_head_and_its_map_changes(tmp_path: Path) -> None:
    source = full(tmp_path)
    done = pruned(source, counted(tmp_path, FALLING), 20, tmp_path / "out")
    before, after = digests(source), digests(tmp_path / "out")
    assert {name for name in after if after[name] != before.get(name)} == {HEAD, "d2t"}
    assert set(before) <= set(after)
    keys = {change.key for change in done.plan.changes}
    assert keys == {"draft_vocab_size"}


@pytest.mark.parametrize(("counts", "action"), [({5: 2, 9: 2, 3: 1}, "selected"), (FALLING, "split")])
def test_the_plan_says_what_becomes_of_the_head(counts: dict[int, int], action: str, tmp_path: Path) -> None:
    steps = pruned(full(tmp_path), counted(tmp_path, counts), 3, tmp_path / "out", dry_run=True).plan.steps
    found = {step.name: step for step in steps}
    assert found[HEAD].action == action and found[HEAD].shape == (3, HIDDEN)
    assert found["d2t"].how == "the 3 most counted tokens of counts.json"


def test_the_share_that_stays_is_told_and_kept(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    counts = counted(tmp_path, {0: 900, 1: 50, 2: 30, 5: 10, 3: 10})  # 3 has no row
    done = pruned(source, counts, 2, tmp_path / "out", target=target(tmp_path / "t", eos_token_id=0))
    assert [note.text for note in done.plan.notes if note.about == "draft_vocab_size"] == [
        "2 of 24 tokens stay; they are 95.00% of the 1,000 counted in counts.json, 99.00% before"
    ]
    record = json.loads((tmp_path / "out" / "eaglectl.json").read_text())["pruning"]
    assert (record["share"], record["share_before"], record["of"], record["tokens_counted"]) == (
        0.95,
        0.99,
        24,
        1000,
    )
    assert len(record["sha256"]) == 64 and record["always_kept"] == [0]
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FIXTURES.parent / "schemas/provenance.schema.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "out" / "eaglectl.json").read_text()), schema)


def warnings(source: Path, counts: Path, size: int, **settings: Any) -> list[str]:
    plan = pruned(source, counts, size, source.parent / "unused", dry_run=True, **settings).plan
    return [note.text for note in plan.notes if note.about == "draft_vocab_size" and note.level == "warning"]


def test_a_small_share_is_a_warning(tmp_path: Path) -> None:
    known = target(tmp_path / "t", eos_token_id=0)
    (text,) = warnings(full(tmp_path), counted(tmp_path, FALLING), 20, target=known)
    assert "20 of 64 tokens stay; they are 31.96% of" in text and "give a larger --draft-vocab" in text


def test_tokens_that_were_never_counted_are_said(tmp_path: Path) -> None:
    known = target(tmp_path / "t", eos_token_id=63)
    (text,) = warnings(full(tmp_path), counted(tmp_path, {7: 5, 9: 1}), 5, target=known)
    assert text.startswith("2 of the 5 were never counted")


class TestSpecialTokens:
    def tokens(self, folder: Path, size: int, known: str) -> list[int]:
        pruned(full(folder), counted(folder, FALLING), size, folder / "out", target=known)
        return tokens_of(read_safetensors(folder / "out" / "model.safetensors"))

    def test_those_of_both_configs_stay(self, tmp_path: Path) -> None:
        known = target(
            tmp_path / "t", {"eos_token_id": [60, 62], "bos_token_id": None}, bos_token_id=61, eos_token_id=62
        )
        assert self.tokens(tmp_path, 6, known) == [0, 1, 2, 60, 61, 62]

    def test_those_of_a_text_config_stay(self, tmp_path: Path) -> None:
        inner = {"text_config": {"eos_token_id": 59, "num_hidden_layers": 8}}
        assert self.tokens(tmp_path, 3, target(tmp_path / "t", **inner)) == [0, 1, 59]

    def test_a_config_file_is_enough(self, tmp_path: Path) -> None:
        known = target(tmp_path / "t", {"eos_token_id": 60})
        assert self.tokens(tmp_path, 2, f"{known}/config.json") == [0, 60]

    def test_without_a_target_it_is_said(self, tmp_path: Path) -> None:
        counts = counted(tmp_path, {0: 100, 1: 2})
        assert ["not known" in text for text in warnings(full(tmp_path), counts, 2)] == [True]

    def test_a_target_that_names_none_is_said(self, tmp_path: Path) -> None:
        counts = counted(tmp_path, {0: 100, 1: 2})
        (text,) = warnings(full(tmp_path), counts, 2, target=target(tmp_path / "t", {}))
        assert "name no bos_token_id" in text

    def test_one_that_the_drafter_never_had_is_said(self, tmp_path: Path) -> None:
        counts = counted(tmp_path, {0: 100, 1: 2})
        (text,) = warnings(drafter_folder(tmp_path), counts, 2, target=target(tmp_path / "t", eos_token_id=3))
        assert "[3] have no row" in text

    def test_there_must_be_room_for_them(self, tmp_path: Path) -> None:
        known = target(tmp_path / "t", eos_token_id=[60, 61, 62])
        with pytest.raises(UsageError, match="give at least 3"):
            self.tokens(tmp_path, 2, known)

    def test_a_generation_config_that_is_no_json_is_said(self, tmp_path: Path) -> None:
        known = target(tmp_path / "t")
        (tmp_path / "t" / "generation_config.json").write_text("{")
        with pytest.raises(UnreadableError, match=r"generation_config\.json"):
            self.tokens(tmp_path, 2, known)


def test_of_equals_the_lower_id_stays() -> None:
    assert most_counted({1: 5, 2: 5, 3: 5, 4: 9}, range(6), 3) == [1, 2, 4]
    assert most_counted({}, range(6), 3, kept=[5]) == [0, 1, 5]


@pytest.mark.parametrize(
    "text",
    [
        '{"7": 3, "9": 2, "0": 0}',
        '\ufeff{"7": 3, "9": 2}',
        json.dumps([0] * 7 + [3, 0, 2]),
        "7 3\n9 2\n\n",
        "7\t3\r\n9, 2\r\n",
        " 7;3\n09 2",
    ],
)
def test_counts_come_in_three_forms(text: str, tmp_path: Path) -> None:
    pruned(full(tmp_path), counted(tmp_path, text), 2, tmp_path / "out")
    assert tokens_of(read_safetensors(tmp_path / "out" / "model.safetensors")) == [7, 9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "counts nothing"),
        (" \n\n", "counts nothing"),
        ("{}", "counts nothing"),
        ("[]", "counts nothing"),
        ('{"3": 0}', "counts nothing"),
        (
            '{"64": 1}',
            "key 1: token 64 is outside of this drafter's vocabulary of 64; these are counts of another one",
        ),
        (json.dumps([1] * 65), "entry 64: token 64 is outside"),
        ("3 1\n100000 2", "line 2: token 100000 is outside"),
        ('{"3": -1}', "a count of -1; counts begin at 0"),
        ("[1, -2]", "entry 1: a count of -2"),
        ("3 -1", "line 1: a count of -1"),
        ('{"3": 1, "3": 2}', "token 3 is counted twice"),
        ('{"3": 1, "03": 2}', "token 3 is counted twice"),
        ("3 1\n4 1\n3 1", "line 3: token 3 is counted twice"),
        ('{"the": 1}', "key 1: no token id; counts go by id, not by text"),
        ('{"-1": 1}', "key 1: no token id"),
        ('{"\u0663": 1}', "no token id"),
        ('{"3": 1.5}', "key 1: no count"),
        ('{"3": true}', "key 1: no count"),
        ('{"3": null}', "key 1: no count"),
        ('{"counts": {"3": 1}}', "key 1: no token id"),
        ("[[3, 1]]", "entry 0: no count"),
        ("[NaN]", "no count"),
        ('{"3": 1', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", 'line 1: 1 words; "id count" was expected'),
        ("3 1 2", "was expected"),
        ("the 12", "line 1: no token id"),
        ("3 many", "line 1: no count"),
        (f"3 {'9' * 5000}", "no count"),
        (f"[{'9' * 5000}]", "is not JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_counts_wrongly_is_said_where(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as problem:
        pruned(full(tmp_path), counted(tmp_path, text), 4, tmp_path / "out")
    assert words in str(problem.value) and "--token-counts" in str(problem.value)
    assert len(str(problem.value)) < 500 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    ["hunter2", "hunter2 1", "1 hunter2", '{"hunter2": 1}', '{"1": "hunter2"}', '["hunter2"]'],
)
def test_no_message_has_a_word_of_the_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as problem:
        pruned(full(tmp_path), counted(tmp_path, text), 4, tmp_path / "out")
    assert "hunter2" not in str(problem.value)


@settings(max_examples=60, deadline=None)
@example(b"0,1")
@given(st.binary(max_size=60) | st.text('{}[]":,0123456789-. \n', max_size=40).map(str.encode))
def test_any_file_is_read_or_answered(raw: bytes) -> None:
    from eaglectl.conversion.vocabulary import read_counts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts"
        path.write_bytes(raw)
        try:
            found = read_counts(path, 50)
        except EaglectlError as problem:
            assert str(problem).isprintable()
        else:
            assert found.total > 0 and all(
                0 <= token < 50 and count >= 0 for token, count in found.by_token.items()
            )


@pytest.mark.parametrize("content", [None, b"\xff\xfe1 2"], ids=["absent", "not text"])
def test_a_file_that_cannot_be_read_is_said(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match="--token-counts"):
        pruned(full(tmp_path), path, 4, tmp_path / "out")


@pytest.mark.parametrize(
    ("size", "words"), [(64, "a number below 64"), (65, "no rows to add"), (0, "below 64"), (-3, "below 64")]
)
def test_there_are_no_rows_to_add(size: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        pruned(full(tmp_path), counted(tmp_path, FALLING), size, tmp_path / "out")


def test_a_drafter_without_a_head_is_refused(tmp_path: Path) -> None:
    source = full(tmp_path, **{HEAD: None})
    counts = counted(tmp_path, FALLING)
    message = refusal(
        1, "convert", source, "-o", tmp_path / "out", "--draft-vocab", "9", "--token-counts", counts
    )
    assert "no lm_head of its own" in message


def test_a_head_tied_to_its_embedding_is_pruned_and_the_embedding_stays(tmp_path: Path) -> None:
    source = drafter_folder(
        tmp_path, config={"draft_vocab_size": VOCAB, "tie_word_embeddings": True}, tensors=FULL | {HEAD: None}
    )
    pruned(source, counted(tmp_path, FALLING), 9, tmp_path / "out")
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert head_rows(found[HEAD]) == head_rows(found["embed_tokens.weight"])[:9]
    assert found["embed_tokens.weight"][1] == (VOCAB, HIDDEN)


def test_a_quantised_head_is_refused(tmp_path: Path) -> None:
    packed = {
        HEAD: ("F8_E4M3", (VOCAB, HIDDEN), bytes(VOCAB * HIDDEN)),
        "lm_head.weight_scale": floats("s", 1, dtype="F32"),
    }
    config = {"draft_vocab_size": VOCAB, "quantization_config": {"quant_method": "fp8"}}
    source = drafter_folder(tmp_path, config=config, tensors=FULL | packed)
    counts = counted(tmp_path, FALLING)
    message = refusal(
        1, "convert", source, "-o", tmp_path / "out", "--draft-vocab", "9", "--token-counts", counts
    )
    assert "lm_head.weight is quantised" in message


def test_other_weights_may_be_quantised(tmp_path: Path) -> None:
    source = FIXTURES / "producers/modelopt/hf-fp8"
    done = pruned(source, counted(tmp_path, dict.fromkeys(range(256), 1)), 9, tmp_path / "out")
    assert done.plan.drafter.dims.draft_vocab == 9


@pytest.mark.parametrize("options", [["--draft-vocab", "9"], ["--token-counts", "counts.json"]])
def test_the_two_options_go_together(options: list[str], tmp_path: Path) -> None:
    assert "go together" in refusal(2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", *options)


@pytest.mark.parametrize(
    ("layout", "has_mask"),
    [("specforge", True), ("angelslim", True), ("sglang", False), ("torchspec", False)],
)
def test_every_layout_gets_its_map(layout: str, has_mask: bool, tmp_path: Path) -> None:
    arguments = [
        "--draft-vocab",
        "9",
        "--token-counts",
        counted(tmp_path, FALLING),
        "--for",
        layout,
        "--target",
        target(tmp_path / "t", eos_token_id=4),
    ]
    done = call("convert", full(tmp_path), "-o", tmp_path / "out", *arguments, "--json")
    assert done.code == 0, done
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert tokens_of(found) == list(range(9)) and ("t2d" in found) == has_mask
    assert json.loads((tmp_path / "out" / "config.json").read_text())["draft_vocab_size"] == 9


def test_the_output_is_a_drafter_that_validates_and_is_served_as_trained(tmp_path: Path) -> None:
    pruned(
        full(tmp_path), counted(tmp_path, {token: token % 7 for token in range(VOCAB)}), 20, tmp_path / "out"
    )
    found = eaglectl.inspect(str(tmp_path / "out"), engines=["vllm"])
    assert found.requested[0].outcome == "as trained" and found.drafter.dims.draft_vocab == 20
    assert not [
        one for one in eaglectl.validate(str(tmp_path / "out")).findings if one.rule.id.startswith("EGL3")
    ]


def test_pruning_joins_with_a_cast(tmp_path: Path) -> None:
    pruned(full(tmp_path), counted(tmp_path, {3: 2, 9: 1}), 2, tmp_path / "out", dtype="F32")
    dtype, shape, raw = read_safetensors(tmp_path / "out" / "model.safetensors")[HEAD]
    source = head_rows(FULL[HEAD])
    wide = b"".join(
        bytes(2) + source[token][place : place + 2] for token in (3, 9) for place in range(0, 2 * HIDDEN, 2)
    )
    assert (dtype, shape, raw) == ("F32", (2, HIDDEN), wide)


def test_the_logits_of_the_tokens_that_stay_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.test_mla_forward import EXACT, error, logits, model, opened

    source = full(tmp_path)
    plan = pruned(
        source, counted(tmp_path, {token: token for token in range(VOCAB)}), 20, tmp_path / "out"
    ).plan
    checkpoint, drafter = opened(source)
    before, after = logits(model(checkpoint, drafter)), logits(model(checkpoint, plan.drafter))
    assert error(before[..., VOCAB - 20 :], after) < EXACT
    assert error(after, logits(model(*opened(tmp_path / "out")))) == 0


def test_the_counts_are_never_replaced(tmp_path: Path) -> None:
    old = drafter_folder(tmp_path, "old")
    (old / "counts.json").write_text("[5, 4, 3]")
    made = call(
        "convert",
        drafter_folder(tmp_path),
        "--draft-vocab",
        "8",
        "--token-counts",
        old / "counts.json",
        "-o",
        old,
        "--force",
    )
    assert made.code == 2 and "lie in one another" in made.err
    assert (old / "counts.json").read_text() == "[5, 4, 3]"
