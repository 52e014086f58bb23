"""Attention in other forms: what moves and what is computed, byte by byte, and what is refused and why."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.formats.format import Answers
from tests.builders import call, drafter_folder, read_safetensors, refusal, write_safetensors
from tests.cases import digests
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

slow = settings(max_examples=8, deadline=None)


def converted(source: Path, out: Path, answers: Answers | None = None, **options: Any) -> Any:
    answers = answers or Answers(assume=True)
    return eaglectl.convert(str(source), out, ConvertOptions(**options, answers=answers)).plan


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


def test_a_key_that_is_wrong_moves_nothing_and_is_put_right(tmp_path: Path) -> None:
    source = mla_folder(tmp_path / "d", rope_interleave=False)
    plan = converted(source, tmp_path / "out", Answers(semantics={"rope_interleave": "true"}))
    assert digests(tmp_path / "out") == digests(source) and plan.config["rope_interleave"] is True


def test_halves_that_no_key_tells_are_said(tmp_path: Path) -> None:
    sizes = Heads()
    source = write(tmp_path / "d", mla_config(sizes), by_halves(mla_tensors(sizes), sizes))
    arguments = ["convert", source, "-o", tmp_path / "out", "--source-semantics", "rope_interleave=false"]
    assert "--rope-style interleaved" in refusal(1, *arguments)
    assert call(*arguments, "--rope-style", "interleaved").code == 0
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == mla_tensors(sizes)


BARE = Heads(query_rank=0)
ZEROS = {"layers.0.hidden_norm.weight": ("F32", (8,), bytes(32))}
WHOLE = {f"{AT}q_proj.weight": ("I64", (16, 16), bytes(16 * 16 * 8))}
STYLE, LORA = ("--rope-style", "interleaved"), ("--mla-query-lora",)


@pytest.mark.parametrize(
    ("sizes", "config", "tensors", "given", "code", "words"),
    [
        (Heads(), {}, {}, ("--rope-style", "neox"), 1, "none reads rope_interleave"),
        (Heads(), {}, {}, ("--rope-style", "gptj"), 2, "neox or interleaved"),
        (None, {}, {}, STYLE, 2, "this drafter has GQA"),
        (Heads(), {"rope_interleave": "false"}, {}, (), 1, "rope_interleave is"),
        (Heads(), {"rope_interleave": 0}, {}, (), 1, "rope_interleave is"),
        (Heads(), {"rope_interleave": [False]}, {}, (), 1, "rope_interleave is"),
        (BARE, {}, {}, (), 1, "q_lora_rank: null"),
        (BARE, {}, {}, (), 1, "--mla-query-lora"),
        (BARE, {"q_lora_rank": 1536}, {}, (), 1, "config says q_lora_rank: 1536"),
        (BARE, {}, ZEROS, LORA, 1, "has zeros or"),
        (BARE, {}, WHOLE, LORA, 1, "needs unquantised values"),
        (Heads(), {}, {}, LORA, 2, "already"),
        (None, {}, {}, LORA, 2, "this drafter has GQA"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_such_form_is_refused_and_the_option_that_gives_it_is_said(
    sizes: Heads | None,
    config: dict[str, Any],
    tensors: dict[str, Any],
    given: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
) -> None:
    if sizes is None:
        source = drafter_folder(tmp_path)
    else:
        source = write(tmp_path / "d", mla_config(sizes, **config), mla_tensors(sizes) | tensors)
    assert words in refusal(code, "convert", source, "-o", tmp_path / "out", *given)


@pytest.mark.parametrize("module", ["q_b_proj", "kv_a_proj_with_mqa"])
def test_rows_of_packed_weights_are_not_moved(module: str, tmp_path: Path) -> None:
    source = mla_folder(tmp_path / "d", rope_interleave=False)
    tensors = read_safetensors(source / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith(f"{module}.weight"))
    _, (rows, _), _ = tensors.pop(name)
    tensors[f"{name}_packed"] = "I32", (rows, 1), bytes(4 * rows)
    tensors[f"{name}_scale"] = "BF16", (rows, 1), bytes(2 * rows)
    write_safetensors(source / "model.safetensors", tensors)
    words = f"{module} is quantised, and its rows cannot be moved"
    assert words in refusal(1, "convert", source, "-o", tmp_path / "out", *STYLE)
    assert call("validate", source, "--json").code == 1


# of a trainer that leaves YaRN's mscale out, which engines multiply by

SQUARED = (0.1 * math.log(64) + 1) ** 2


def test_queries_are_divided_once_and_nothing_else_changes(tmp_path: Path) -> None:
    source, out = nemo_folder(tmp_path / "d"), tmp_path / "out"
    plan = converted(source, out)
    stored = read_safetensors(source / "model.safetensors")
    before = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    after, name = read_safetensors(out / "model.safetensors"), f"{AT}q_b_proj.weight"
    assert {key for key in before if after[key] != before[key]} == {name} and after.keys() == before.keys()
    expected = [value / SQUARED for value in values(before[name])]
    assert values(after[name]) == pytest.approx(expected, rel=1e-7)
    step = steps(plan)[name]
    assert step.action == "computed" and "2.00474, YaRN's mscale squared" in str(step.how)
    (note,) = (note for note in plan.notes if note.about == "q_b_proj")
    assert "engines multiply by it" in note.text
    converted(out, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(out)


def test_a_scale_on_cos_and_sin_is_divided_out_of_the_rotated_rows_alone(tmp_path: Path) -> None:
    sizes = Heads()
    scaling = {key: value for key, value in YARN.items() if key not in ("mscale", "mscale_all_dim")}
    source = nemo_folder(tmp_path / "d", sizes, rope_scaling=scaling)
    converted(source, tmp_path / "out")
    name, step = f"{AT}q_b_proj.weight", sizes.nope + sizes.rope
    before = read_safetensors(source / "model.safetensors")[f"model.{name}"]
    after = read_safetensors(tmp_path / "out" / "model.safetensors")[name]
    for place, (one, other) in enumerate(zip(rows(before), rows(after), strict=True)):
        factor = 1.0 if place % step < sizes.nope else SQUARED
        expected = [value / factor for value in values(("F32", (1, 1), one))]
        assert values(("F32", (1, 1), other)) == pytest.approx(expected, rel=1e-7)


def test_it_joins_with_other_steps_and_all_are_named(tmp_path: Path) -> None:
    source = nemo_folder(tmp_path / "d", BARE, rope_interleave=False)
    plan = converted(source, tmp_path / "out", rope_style="interleaved", has_query_lora=True)
    how = steps(plan)[f"{AT}q_b_proj.weight"].how
    assert how == "divided by 2.00474, YaRN's mscale squared; q_proj over the diagonal of q_a_proj"


@pytest.mark.parametrize("layers", [1, 2])
def test_q_proj_becomes_two_and_the_config_says_the_rank(layers: int, tmp_path: Path) -> None:
    sizes = Heads(query_rank=0, layers=layers)
    plan = converted(mla_folder(tmp_path / "d", sizes), tmp_path / "out", has_query_lora=True)
    assert plan.config["q_lora_rank"] == 16 and plan.drafter.dims.q_lora_rank == 16
    after = eaglectl.inspect(str(tmp_path / "out")).drafter
    assert after.dims.q_lora_rank == 16 and after.notes_at("problem") == ()
    shapes = {name: tensor.shape for name, tensor in after.tensors.items() if name.startswith(f"{AT}q_")}
    assert shapes == {
        f"{AT}q_a_proj.weight": (16, 16),
        f"{AT}q_a_layernorm.weight": (16,),
        f"{AT}q_b_proj.weight": (16, 16),
    }
