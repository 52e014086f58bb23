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
        tensors[INNER] = _stored(np.full(tensors[INNER][1], inner))
    write_safetensors(folder / "model.safetensors", tensors, metadata or {})
    return folder


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


def converted(source: Path, out: Path, *options: str) -> tuple[dict[str, Stored], dict[str, Any]]:
    outcome = call("convert", source, "-o", out, "--target", TARGET, "--no-measure", *options)
    assert outcome.code == 0, outcome.err
    return read_safetensors(out / "model.safetensors"), json.loads((out / "eaglectl.json").read_text())


def test_both_norms_are_written_as_one_and_an_even_one_leaves_no_doubt(tmp_path: Path) -> None:
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
    after, record = converted(written(tmp_path / "source", inner=0.75), tmp_path / "even")
    assert after[OUTER] == before[OUTER] and record["doubts"] == []
    (seen,) = eaglectl.inspect(str(tmp_path / "even"), target=TARGET, engines=["vllm==0.33.0"]).requested
    assert seen.outcome == "as trained"


def test_modelopts_own_layout_keeps_both_and_the_probe_tries_a_doubted_norm_the_other_way(
    tmp_path: Path,
) -> None:
    after, record = converted(HF, tmp_path / "out", "--for", "modelopt")
    assert after == read_safetensors(HF / "model.safetensors")
    found = drafter(tmp_path / "out")
    assert (record["hidden_twice"], found.norms.hidden_twice) == (True, True)
    assert [note.topic for note in found.doubts] == ["double-norm"]
    tried = next(other for other in candidates(found, 8, None) if other.name.startswith("state normed"))
    assert (tried.name, tried.option) == ("state normed once", "--source-semantics hidden_norm=once")
    assert tried.drafter.norms.hidden_twice is False


def test_a_file_that_others_wrote_again_is_asked_about_and_an_answer_settles_it(tmp_path: Path) -> None:
    source = written(tmp_path / "source", metadata=PT)
    question = refusal(2, "convert", source, "-o", tmp_path / "out", "--target", TARGET, "--no-measure")
    assert f"{POST} (by 0.41.0 or later: normed twice) or modelopt=pre-689" in question
    assert not (tmp_path / "out").exists()
    before = read_safetensors(source / "model.safetensors")
    for answer in ("pre-689", "post-689"):
        out = tmp_path / answer
        after, record = converted(source, out, "--source-semantics", f"modelopt={answer}")
        assert (after[OUTER] != before[OUTER]) is (answer == "post-689")
        (entry,) = record["settled"]
        settled = ("hidden_norm", f"modelopt={answer}", "given")
        assert (entry["about"], entry["answer"]["value"], entry["by"]) == settled
        assert not drafter(out).notes_at("question")


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
