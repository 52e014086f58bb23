"""ModelOpt's second norm of the hidden state: what the file says of it, and what is written for engines."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.run.probes import candidates
from tests.builders import Stored, call, read_safetensors, refusal, write_safetensors
from tests.conftest import FIXTURES
from tests.open_facts import INNER, OUTER, _numbers, _stored

PRODUCERS, TARGET = FIXTURES / "producers", str(FIXTURES / "target")
HF, MEGATRON = PRODUCERS / "modelopt/hf-full-vocab", PRODUCERS / "modelopt-megatron/no-d2t"
PT = {"format": "pt"}
POST, PRE = "--source-semantics modelopt=post-689", "--source-semantics modelopt=pre-689"


def written(
    folder: Path,
    *,
    source: Path = HF,
    metadata: Mapping[str, str] | None = None,
    version: str | None = None,
    is_early: bool = False,
    inner: float | None = None,
) -> Path:
    """A fixture with other metadata, a quantisation config of a release, or the keys of before 0.41.0.

    `inner`: all of input_layernorm.
    """
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    if is_early:
        for key in ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers"):
            del config["eagle_config"][key]
    (folder / "config.json").write_text(json.dumps(config))
    if version is not None:
        stated = {"producer": {"name": "modelopt", "version": version}, "quantization": {"quant_algo": None}}
        (folder / "hf_quant_config.json").write_text(json.dumps(stated))
    tensors = read_safetensors(folder / "model.safetensors")
    if inner is not None:
        dtype, shape, _ = tensors[INNER]
        tensors[INNER] = _filled(dtype, shape, inner)
    write_safetensors(folder / "model.safetensors", tensors, metadata or {})
    return folder


def _filled(dtype: str, shape: tuple[int, ...], value: float) -> Stored:
    assert dtype == "BF16"
    return _stored(np.full(shape, value))


def drafter(folder: Path, **answers: str) -> Any:
    return eaglectl.inspect(str(folder), target=TARGET, answers=Answers(semantics=answers)).drafter


@pytest.mark.parametrize(
    ("file", "hidden_twice"),
    [
        pytest.param({}, True, id="layers.N, no metadata: the exporter since 0.43.0"),
        pytest.param({"metadata": PT}, None, id="layers.N, written again by others"),
        pytest.param({"version": "0.47.0", "metadata": PT}, True, id="a release since 0.41"),
        pytest.param({"version": "0.41.0.dev3", "metadata": PT}, True, id="its first release"),
        pytest.param({"version": "0.40.0", "metadata": PT}, False, id="a release before"),
        pytest.param({"version": "0.40.0"}, False, id="a release before, whatever the names say"),
        pytest.param({"version": "new", "metadata": PT}, None, id="no release"),
        pytest.param({"source": MEGATRON, "metadata": PT}, False, id="Megatron's"),
        pytest.param({"source": MEGATRON, "metadata": PT, "version": "0.46.0"}, False, id="Megatron's, late"),
        pytest.param({"source": MEGATRON}, True, id="midlayer, no metadata: 0.41 and 0.42"),
        pytest.param({"source": MEGATRON, "is_early": True}, False, id="midlayer, the keys up to 0.40"),
    ],
)
def test_what_the_file_says_of_the_second_norm(
    file: dict[str, Any], hidden_twice: bool | None, tmp_path: Path
) -> None:
    found = drafter(written(tmp_path / "source", **file), d2t="offset")
    assert found.norms.hidden_twice is hidden_twice
    levels = [note.level for note in found.notes if note.topic == "double-norm"]
    assert levels == {True: ["warning"], None: ["question"], False: []}[hidden_twice]


def test_a_file_that_others_wrote_again_is_asked_about(tmp_path: Path) -> None:
    source = written(tmp_path / "source", metadata=PT)
    question = refusal(2, "convert", source, "-o", tmp_path / "out", "--target", TARGET, "--no-measure")
    assert f"{POST} (by 0.41.0 or later: normed twice) or modelopt=pre-689" in question
    assert not (tmp_path / "out").exists()


def converted(source: Path, out: Path, *options: str) -> tuple[dict[str, Stored], dict[str, Any]]:
    outcome = call("convert", source, "-o", out, "--target", TARGET, "--no-measure", *options)
    assert outcome.code == 0, outcome.err
    return read_safetensors(out / "model.safetensors"), json.loads((out / "eaglectl.json").read_text())


def test_both_norms_are_written_as_one(tmp_path: Path) -> None:
    before = read_safetensors(HF / "model.safetensors")
    after, record = converted(HF, tmp_path / "out")
    inner, outer = _numbers(before[INNER]), _numbers(before[OUTER])
    scale = np.sqrt((inner**2).mean())
    assert after[OUTER] == _stored(outer * inner / scale)
    assert after[INNER] == before[INNER]
    assert record["norms_joined"]["scale"] == pytest.approx(scale)
    low, high = record["norms_joined"]["size_differs"]
    assert (low, high) == pytest.approx((abs(inner).min() / scale - 1, abs(inner).max() / scale - 1))
    assert record["hidden_twice"] is False


def test_the_doubt_about_its_size_is_in_every_place(tmp_path: Path) -> None:
    converted(HF, tmp_path / "out")
    text = "one norm was written for both: the direction is exact"
    assert text in " ".join(call("inspect", tmp_path / "out", "--target", TARGET).out.split())
    assert text in (tmp_path / "out/README.md").read_text()
    options = eaglectl.ValidateOptions(target=TARGET, engines=("vllm==0.33.0",))
    assert eaglectl.validate(str(tmp_path / "out"), options).verdict == "could-not-look"


def test_an_even_norm_leaves_no_doubt(tmp_path: Path) -> None:
    source = written(tmp_path / "source", inner=0.75)
    before = read_safetensors(source / "model.safetensors")
    after, record = converted(source, tmp_path / "out")
    assert after[OUTER] == before[OUTER]
    assert record["doubts"] == []
    (seen,) = eaglectl.inspect(str(tmp_path / "out"), target=TARGET, engines=["vllm==0.33.0"]).requested
    assert seen.outcome == "as trained"


def test_a_norm_of_no_size_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "source", inner=0.0)
    assert "has no finite size" in refusal(
        1, "convert", source, "-o", tmp_path / "out", "--target", TARGET, "--no-measure"
    )


def test_modelopts_own_layout_keeps_both(tmp_path: Path) -> None:
    after, record = converted(HF, tmp_path / "out", "--for", "modelopt")
    assert after == read_safetensors(HF / "model.safetensors")
    found = drafter(tmp_path / "out")
    assert (record["hidden_twice"], found.norms.hidden_twice) == (True, True)
    assert [note.topic for note in found.doubts] == ["double-norm"]


def test_another_trainers_drafter_in_its_layout_is_normed_once(tmp_path: Path) -> None:
    converted(PRODUCERS / "modelopt-megatron/deep", tmp_path / "out", "--for", "modelopt")
    found = drafter(tmp_path / "out")
    assert (found.producer, found.norms.hidden_twice) == ("modelopt", False)
    assert not found.notes_at("question")


@pytest.mark.parametrize(("answer", "is_joined"), [("pre-689", False), ("post-689", True)])
def test_an_answer_settles_it(answer: str, is_joined: bool, tmp_path: Path) -> None:
    source = written(tmp_path / "source", metadata=PT)
    before = read_safetensors(source / "model.safetensors")
    after, record = converted(source, tmp_path / "out", "--source-semantics", f"modelopt={answer}")
    assert (after[OUTER] != before[OUTER]) is is_joined
    (entry,) = record["settled"]
    assert (entry["about"], entry["answer"]["value"], entry["by"]) == (
        "hidden_norm",
        f"modelopt={answer}",
        "given",
    )
    assert not drafter(tmp_path / "out").notes_at("question")


def test_the_probe_tries_a_doubted_norm_the_other_way() -> None:
    found = next(tried for tried in candidates(drafter(HF), 8, None) if tried.name.startswith("state normed"))
    assert (found.name, found.option) == ("state normed once", "--source-semantics hidden_norm=once")
    assert found.drafter.norms.hidden_twice is False


def test_the_probe_leaves_a_norm_that_nothing_doubts() -> None:
    tried = [candidate.name for candidate in candidates(drafter(MEGATRON), 8, None)]
    assert "norm_output true" in tried
    assert not [name for name in tried if name.startswith("state normed")]


def test_an_assumption_is_carried_and_cannot_be_answered_otherwise(tmp_path: Path) -> None:
    source, out = written(tmp_path / "source", metadata=PT), tmp_path / "out"
    _, record = converted(source, out, "--assume-defaults")
    (entry,) = record["settled"]
    assert entry["by"] == "assumed"
    assert "modelopt=post-689 was assumed" in " ".join(call("inspect", out, "--target", TARGET).out.split())
    options = eaglectl.ValidateOptions(target=TARGET, engines=("vllm==0.33.0",))
    assert eaglectl.validate(str(out), options).verdict == "could-not-look"
    again = ("convert", out, "-o", tmp_path / "again", "--target", TARGET, "--no-measure")
    assert f"convert the source again with {PRE}" in refusal(2, *again, *PRE.split())
    assert call(*again, *POST.split()).code == 0
    confirmed = json.loads((tmp_path / "again/eaglectl.json").read_text())["settled"]
    assert {one["by"] for one in confirmed} == {"given"}


def test_one_joined_norm_is_two_but_for_a_factor_of_each_state(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from eaglectl.reference.model import load_drafter

    _, record = converted(HF, tmp_path / "out")
    shutil.copytree(HF, tmp_path / "source")
    models = []
    for folder in (tmp_path / "source", tmp_path / "out"):
        models.append(load_drafter(folder, drafter(folder), dtype="float32", device="cpu"))
    two, one = models
    state = torch.randn(64, two.dims.hidden, generator=torch.Generator().manual_seed(0))
    twice = two._norm(two._norm(state, "layers.0.input_layernorm"), "layers.0.hidden_norm")
    factors = one._norm(state, "layers.0.hidden_norm") / twice
    low, high = record["norms_joined"]["size_differs"]
    mean = factors.mean(1, keepdim=True)
    assert torch.allclose(factors, mean.expand_as(factors), rtol=0.01)  # bfloat16
    assert (1 / mean).min() >= 1 + low - 0.01
    assert (1 / mean).max() <= 1 + high + 0.01
