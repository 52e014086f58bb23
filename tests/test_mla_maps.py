"""Attention in other forms: what moves and what is computed, byte by byte, and what is refused and why."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.conversion.readings import rotary_moves, with_moves
from eaglectl.drafter.tensors import Segment, Tensor
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import call, drafter_folder, read_safetensors, refusal, write_safetensors
from tests.cases import digests
from tests.conftest import FIXTURES
from tests.mla import (
    AT,
    YARN,
    Heads,
    absorbed,
    by_halves,
    fused,
    heads,
    mla_config,
    mla_folder,
    mla_tensors,
    nemo_folder,
    rows,
    values,
    write,
)

slow = settings(max_examples=12, deadline=None)


def converted(source: Path, out: Path, answers: Answers | None = None, **options: Any) -> Any:
    answers = answers or Answers(assume=True)
    return eaglectl.convert(str(source), out, ConvertOptions(**options, answers=answers)).plan


def told(plan: Any, about: str) -> str:
    (text,) = [note.text for note in plan.notes if note.about == about]
    return str(text)


def steps(plan: Any) -> dict[str, Any]:
    return {step.name: step for step in plan.steps}


@slow
@given(heads, st.sampled_from(["fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa"]))
def test_the_names_of_runtimes_become_the_names_on_disk(sizes: Heads, name: str) -> None:
    plain = mla_tensors(sizes)
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder) / "d", mla_config(sizes), absorbed(fused(plain, name), sizes))
        plan = converted(source, Path(folder) / "out")
        assert read_safetensors(Path(folder) / "out" / "model.safetensors") == plain
    assert not any(step.action == "computed" for step in plan.steps)


@slow
@given(heads)
def test_rows_paired_by_halves_are_interleaved(sizes: Heads) -> None:
    plain = mla_tensors(sizes)
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder) / "d", mla_config(sizes, rope_interleave=False), by_halves(plain, sizes))
        plan = converted(source, Path(folder) / "out", rope_style="interleaved")
        assert read_safetensors(Path(folder) / "out" / "model.safetensors") == plain
        report = eaglectl.validate(str(Path(folder) / "out"), eaglectl.ValidateOptions(select=["EGL605"]))
    assert plan.config["rope_interleave"] is True and not report.findings
    assert {step.action for step in plan.steps} <= {"kept", "reordered"}


@slow
@given(heads)
def test_pairing_there_and_back_is_the_same_drafter(sizes: Heads) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drafter = eaglectl.inspect(str(mla_folder(Path(folder) / "d", sizes))).drafter
        halves = with_moves(drafter, rotary_moves(drafter, "interleaved"))
        back = with_moves(halves, rotary_moves(drafter, "halves"))
    sizes_of = {name: len(one.origin) for name, one in drafter.tensors.items()}
    assert back.rope == drafter.rope
    for name, tensor in back.tensors.items():
        assert _bytes(tensor) == _bytes(drafter.tensors[name]) and sizes_of[name] == 1


def _bytes(tensor: Tensor) -> list[tuple[str, int]]:
    assert isinstance(tensor.origin, tuple)
    return [(part.stored, place) for part in tensor.origin for place in range(part.start, part.stop)]


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_rows_are_the_bytes_of_their_segments(picked: list[int], lengths: list[int]) -> None:
    origin = tuple(Segment(f"t{i}", 6, 6 + 3 * length) for i, length in enumerate(lengths))
    count = sum(lengths)
    whole = Tensor("x", "U8", (count, 3), origin)
    every = _bytes(whole)
    places = [row % count for row in picked]
    assert _bytes(whole.with_rows(places)) == [
        byte for row in places for byte in every[3 * row : 3 * row + 3]
    ]
    assert whole.with_rows(range(count)).origin == origin


def test_the_fixtures_runtime_names_come_back_from_sglang_too(tmp_path: Path) -> None:
    source = FIXTURES / "producers/sglang/mla-absorbed"
    plan = converted(source, tmp_path / "out", Answers(aux_convention="output"), layout="sglang")
    names = {step.name for step in plan.steps}
    assert not any("w_kc" in name or "fused" in name for name in names)
    assert digests(tmp_path / "out") == digests(FIXTURES / "producers/vllm/mla")


class TestPairing:
    def test_halves_are_refused_until_it_is_said_what_to_do(self, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d", rope_interleave=False)
        message = refusal(1, "convert", source, "-o", tmp_path / "out")
        assert "--rope-style interleaved" in message and "--source-semantics rope_interleave=true" in message

    def test_a_key_that_is_wrong_moves_nothing_and_is_put_right(self, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d", rope_interleave=False)
        plan = converted(source, tmp_path / "out", Answers(semantics={"rope_interleave": "true"}))
        assert digests(tmp_path / "out") == digests(source) and plan.config["rope_interleave"] is True

    def test_halves_that_no_key_tells_are_said(self, tmp_path: Path) -> None:
        sizes = Heads()
        source = write(tmp_path / "d", mla_config(sizes), by_halves(mla_tensors(sizes), sizes))
        arguments = ["convert", source, "-o", tmp_path / "out", "--source-semantics", "rope_interleave=false"]
        assert "--rope-style interleaved" in refusal(1, *arguments)
        assert call(*arguments, "--rope-style", "interleaved").code == 0
        assert read_safetensors(tmp_path / "out" / "model.safetensors") == mla_tensors(sizes)

    def test_interleaved_stays_as_it_is(self, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d")
        plan = converted(source, tmp_path / "out", rope_style="interleaved")
        assert digests(tmp_path / "out") == digests(source) and "rope_interleave" not in plan.config

    @pytest.mark.parametrize(
        ("style", "code", "words"),
        [("neox", 1, "no engine and no layout reads"), ("gptj", 2, "neox or interleaved")],
    )
    def test_what_no_engine_rotates_is_refused(
        self, style: str, code: int, words: str, tmp_path: Path
    ) -> None:
        assert words in refusal(
            code, "convert", mla_folder(tmp_path / "d"), "-o", tmp_path / "out", "--rope-style", style
        )

    @pytest.mark.parametrize("module", ["q_b_proj", "kv_a_proj_with_mqa"])
    def test_rows_of_packed_weights_are_not_moved(self, module: str, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d", rope_interleave=False)
        tensors = read_safetensors(source / "model.safetensors")
        (name,) = (name for name in tensors if name.endswith(f"{module}.weight"))
        _, (rows, _), _ = tensors.pop(name)
        tensors[f"{name}_packed"] = "I32", [rows, 1], bytes(4 * rows)
        tensors[f"{name}_scale"] = "BF16", [rows, 1], bytes(2 * rows)
        write_safetensors(source / "model.safetensors", tensors)
        arguments = ("convert", source, "-o", tmp_path / "out", "--rope-style", "interleaved")
        assert f"{module} is quantised, and its rows cannot be moved" in refusal(1, *arguments)
        assert call("validate", source, "--json").code == 1

    def test_it_means_nothing_without_mla(self, tmp_path: Path) -> None:
        source = drafter_folder(tmp_path)
        assert "this one is GQA" in refusal(
            2, "convert", source, "-o", tmp_path / "out", "--rope-style", "interleaved"
        )

    @pytest.mark.parametrize("value", ["false", 0, [False]])
    def test_a_key_of_another_kind_is_refused(self, value: object, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d", rope_interleave=value)
        assert "rope_interleave is" in refusal(1, "convert", source, "-o", tmp_path / "out")


class TestMissingScale:
    SQUARED = (0.1 * math.log(64) + 1) ** 2

    def test_queries_are_divided_and_nothing_else_changes(self, tmp_path: Path) -> None:
        source = nemo_folder(tmp_path / "d")
        plan = converted(source, tmp_path / "out")
        before = {
            name.removeprefix("model."): one
            for name, one in read_safetensors(source / "model.safetensors").items()
        }
        after = read_safetensors(tmp_path / "out" / "model.safetensors")
        name = f"{AT}q_b_proj.weight"
        assert values(after[name]) == pytest.approx(
            [value / self.SQUARED for value in values(before[name])], rel=1e-7
        )
        assert {key: one for key, one in after.items() if key != name} == {
            key: one for key, one in before.items() if key != name
        }
        assert steps(plan)[name].action == "computed" and "2.00474, YaRN's mscale squared" in str(
            steps(plan)[name].how
        )
        assert "engines multiply by it" in told(plan, "q_b_proj")

    def test_the_provenance_names_the_step(self, tmp_path: Path) -> None:
        converted(nemo_folder(tmp_path / "d"), tmp_path / "out")
        record = json.loads((tmp_path / "out" / "eaglectl.json").read_text())
        (step,) = [one for one in record["tensors"] if one["action"] == "computed"]
        assert step == {
            "name": f"{AT}q_b_proj.weight",
            "action": "computed",
            "from": [f"model.{AT}q_b_proj.weight"],
            "how": "divided by 2.00474, YaRN's mscale squared",
        }

    def test_a_scale_on_cos_and_sin_is_divided_out_of_the_rotated_rows_alone(self, tmp_path: Path) -> None:
        sizes = Heads()
        scaling = {key: value for key, value in YARN.items() if key not in ("mscale", "mscale_all_dim")}
        source = nemo_folder(tmp_path / "d", sizes, rope_scaling=scaling)
        converted(source, tmp_path / "out")
        name, step = f"{AT}q_b_proj.weight", sizes.nope + sizes.rope
        before = read_safetensors(source / "model.safetensors")[f"model.{name}"]
        after = read_safetensors(tmp_path / "out" / "model.safetensors")[name]
        for place, (one, other) in enumerate(zip(rows(before), rows(after), strict=True)):
            factor = 1.0 if place % step < sizes.nope else self.SQUARED
            expected = [value / factor for value in values(("F32", (1, 1), one))]
            assert values(("F32", (1, 1), other)) == pytest.approx(expected, rel=1e-7)

    def test_the_output_is_not_divided_again(self, tmp_path: Path) -> None:
        converted(nemo_folder(tmp_path / "d"), tmp_path / "one")
        converted(tmp_path / "one", tmp_path / "two")
        assert digests(tmp_path / "two") == digests(tmp_path / "one")

    @pytest.mark.parametrize(
        "scaling", [None, {**YARN, "factor": 1.0}, {"rope_type": "linear", "factor": 4.0}]
    )
    def test_without_yarn_nothing_is_missing(self, scaling: dict[str, Any] | None, tmp_path: Path) -> None:
        plan = converted(nemo_folder(tmp_path / "d", rope_scaling=scaling), tmp_path / "out")
        assert not [step for step in plan.steps if step.action == "computed"]

    def test_other_trainers_have_it(self, tmp_path: Path) -> None:
        plan = converted(mla_folder(tmp_path / "d"), tmp_path / "out")
        assert {step.action for step in plan.steps} == {"kept"}

    def test_validate_says_it_of_the_source_and_not_of_the_output(self, tmp_path: Path) -> None:
        source = nemo_folder(tmp_path / "d")
        converted(source, tmp_path / "out")
        found = [
            eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL117"])).findings
            for folder in (source, tmp_path / "out")
        ]
        assert [len(one) for one in found] == [1, 0]

    def test_it_joins_with_other_steps_and_all_are_named(self, tmp_path: Path) -> None:
        source = nemo_folder(tmp_path / "d", Heads(query_rank=0), rope_interleave=False)
        plan = converted(source, tmp_path / "out", rope_style="interleaved", has_query_lora=True)
        how = steps(plan)[f"{AT}q_b_proj.weight"].how
        assert how == "divided by 2.00474, YaRN's mscale squared; q_proj over the diagonal of q_a_proj"


class TestQueryLora:
    BARE = Heads(query_rank=0)

    def test_without_the_option_it_says_what_to_pass(self, tmp_path: Path) -> None:
        message = refusal(1, "convert", mla_folder(tmp_path / "d", self.BARE), "-o", tmp_path / "out")
        assert "q_lora_rank: null" in message and "--mla-query-lora" in message

    def test_it_is_inspected_and_validated_as_what_it_is(self, tmp_path: Path) -> None:
        source = str(mla_folder(tmp_path / "d", self.BARE))
        assert eaglectl.inspect(source).drafter.dims.q_lora_rank == 0
        assert "q rank none" in call("inspect", source).out
        missing = [one for one in eaglectl.validate(source).findings if one.severity == "error"]
        assert [(one.rule.name, one.match.where) for one in missing] == [
            ("missing-tensor", f"tensor:{AT}q_a_proj.weight")
        ]

    @pytest.mark.parametrize("layers", [1, 2])
    def test_q_proj_becomes_two_and_the_config_says_the_rank(self, layers: int, tmp_path: Path) -> None:
        sizes = Heads(query_rank=0, layers=layers)
        plan = converted(mla_folder(tmp_path / "d", sizes), tmp_path / "out", has_query_lora=True)
        assert plan.config["q_lora_rank"] == 16 and plan.drafter.dims.q_lora_rank == 16
        after = eaglectl.inspect(str(tmp_path / "out")).drafter
        assert after.dims.q_lora_rank == 16 and after.notes_at("problem") == ()
        shapes = {
            name: tensor.shape
            for name, tensor in after.tensors.items()
            if ".q_" in name and name.startswith(AT)
        }
        assert shapes == {
            f"{AT}q_a_proj.weight": (16, 16),
            f"{AT}q_a_layernorm.weight": (16,),
            f"{AT}q_b_proj.weight": (16, 16),
        }

    def test_the_note_bounds_the_error(self, tmp_path: Path) -> None:
        text = told(
            converted(mla_folder(tmp_path / "d", self.BARE), tmp_path / "one", has_query_lora=True),
            "q_a_proj",
        )
        assert "512 numbers" in text and "at most 4.9e-04 for any embedding" in text

    def test_a_stated_rank_that_the_tensors_do_not_have_is_said(self, tmp_path: Path) -> None:
        source = mla_folder(tmp_path / "d", self.BARE, q_lora_rank=1536)
        assert "config says q_lora_rank: 1536" in refusal(1, "convert", source, "-o", tmp_path / "out")

    @pytest.mark.parametrize(
        ("tensors", "words"),
        [
            ({"layers.0.hidden_norm.weight": ("F32", (8,), bytes(32))}, "channels of zero"),
            ({f"{AT}q_proj.weight": ("I64", (16, 16), bytes(16 * 16 * 8))}, "needs its numbers"),
        ],
        ids=["a norm of zeros", "no floats"],
    )
    def test_what_it_cannot_undo_is_refused(
        self, tensors: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        source = write(tmp_path / "d", mla_config(self.BARE), mla_tensors(self.BARE) | tensors)
        assert words in refusal(1, "convert", source, "-o", tmp_path / "out", "--mla-query-lora")

    def test_it_is_refused_where_there_is_nothing_to_do(self, tmp_path: Path) -> None:
        arguments = ("-o", tmp_path / "out", "--mla-query-lora")
        assert "already" in refusal(2, "convert", mla_folder(tmp_path / "d"), *arguments)
        assert "this one is GQA" in refusal(2, "convert", drafter_folder(tmp_path, "gqa"), *arguments)
