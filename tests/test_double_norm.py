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
from tests.open_facts import INNER, OUTER, OpenFact, _numbers, _stored, uneven
from tests.pairs import SECOND, write_prompts

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


# ------------------------------------------------------------------- what one norm changes, measured

TWO_NORMS = OpenFact("two norms", SECOND, "modelopt", (), change=uneven)
APPROXIMATE = "approximately as trained"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained drafter of two norms, `one` of its conversion, and that of few prompts."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("trained")
    TWO_NORMS.write(folder / "two")
    for name, count in (("one", 24), ("few", 3)):
        prompts = write_prompts(folder / f"{name}.jsonl", TWO_NORMS.texts()[:count])
        given = ("--target", SECOND.target, "--prompts", prompts, "--device", "cpu")
        done = call("convert", folder / "two", "-o", folder / name, *given)
        assert done.code == 0, done.err
    return folder


def outcomes(folder: Path, target: object = TARGET) -> set[str]:
    engines = ["vllm==0.33.0", "sglang==0.5.23"]
    return {row.outcome for row in eaglectl.inspect(folder, target=target, engines=engines).requested}


@pytest.mark.slow  # fast: those of a record, below
def test_it_is_measured_and_is_an_outcome_of_its_own(trained: Path) -> None:
    record = json.loads((trained / "one/eaglectl.json").read_text())
    joined, (doubt,) = record["norms_joined"], record["doubts"]
    (low, high), (least, most) = joined["measured"]["size_changes"], joined["size_differs"]
    assert least < low < 0 < high < most  # within what the weights alone show
    assert doubt["deviation"] == max(-low, high)
    assert f"changes by {low:+.1%} to {high:+.1%}" in doubt["text"]
    before, after = joined["measured"]["acceptance_length"].values()
    assert f"length {before:.2f} with both norms and {after:.2f} with one" in doubt["text"]
    # that of a run of the source, whose drafts may go past an answer's end; 1.2 if it is read as normed once
    options = {"run_in": "reference", "prompts": trained / "one.jsonl", "k": 7, "device": "cpu"}
    run = eaglectl.smoke(trained / "two", SECOND.target, **options, lossless=False)
    assert before == pytest.approx(run.measured.length.value, rel=0.1)
    assert outcomes(trained / "one", SECOND.target) == {APPROXIMATE}


@pytest.mark.slow
def test_ready_measures_the_output_and_does_not_pass_it(trained: Path) -> None:
    options = {"prompts": trained / "one.jsonl", "device": "cpu", "run_in": ("reference",)}
    result = eaglectl.ready(trained / "two", SECOND.target, **options)
    files = [state.converted for state in result.engines if state.converted is not None]
    assert {row.outcome for row in files} == {APPROXIMATE} and result.verdict == "could-not-look"
    lengths = {row.report.measured.length.value for row in files if row.report is not None}
    assert len(lengths) == 1 and lengths.pop() > 3
    assert f"next:  eaglectl convert {trained / 'two'}" in str(result)


@pytest.mark.slow
def test_few_prompts_show_too_little_and_it_stays_unknown(trained: Path) -> None:
    (doubt,) = json.loads((trained / "few/eaglectl.json").read_text())["doubts"]
    assert "acceptance is not shown to be kept" in doubt["text"] and "deviation" not in doubt
    assert outcomes(trained / "few", SECOND.target) == {"unknown"}


def recorded(folder: Path, deviation: object) -> Path:
    """A conversion whose record has a measured change."""
    _, record = converted(HF, folder)
    record["doubts"][0]["deviation"] = deviation
    (folder / "eaglectl.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(("allowed", "code"), [(None, 3), (0.01, 3), (0.18, 0), (0.5, 0)])
def test_a_policy_decides_if_it_passes(allowed: float | None, code: int, tmp_path: Path) -> None:
    folder, policy = recorded(tmp_path / "one", 0.18), tmp_path / "eaglectl.toml"
    policy.write_text("" if allowed is None else f"approximate = {allowed}\n")
    for more in ((), ("--ignore", "EGL507")):
        options = ("--target", TARGET, "--engine", "vllm==0.33.0", "--policy", policy, *more)
        done = call("validate", folder, *options)
        assert (done.code, "runs it approximately as trained" in done.out) == (code, True)


def test_a_policy_lets_nothing_pass_that_was_not_measured(tmp_path: Path) -> None:
    converted(HF, tmp_path / "out")
    (tmp_path / "eaglectl.toml").write_text("approximate = 1.0\n")
    options = ("--target", TARGET, "--policy", tmp_path / "eaglectl.toml")
    assert call("validate", tmp_path / "out", *options).code == 3


@pytest.mark.parametrize("value", ["-0.1", "1.5", "'much'"])
def test_a_change_is_a_part_from_0_to_1(value: str, tmp_path: Path) -> None:
    (tmp_path / "eaglectl.toml").write_text(f"approximate = {value}\n")
    assert "approximate" in refusal(2, "validate", HF, "--policy", tmp_path / "eaglectl.toml")


@pytest.mark.parametrize("value", ["0.01", True, 1, [0.01], None])
def test_a_recorded_change_that_is_no_fraction_is_none(value: object, tmp_path: Path) -> None:
    assert outcomes(recorded(tmp_path / "one", value)) == {"unknown"}


def test_another_doubt_beside_it_leaves_it_unknown(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "one", 0.01)
    assert outcomes(folder) == {APPROXIMATE}
    record = json.loads((folder / "eaglectl.json").read_text())
    record["doubts"].append({"producer": "modelopt", "topic": "rope", "text": "another", "open": True})
    (folder / "eaglectl.json").write_text(json.dumps(record))
    assert outcomes(folder) == {"unknown"}


@pytest.mark.slow
def test_without_the_targets_weights_it_is_not_measured(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    shutil.copy(SECOND.target / "config.json", target)
    assert call("convert", trained / "two", "-o", tmp_path / "out", "--target", target).code == 0
    assert "measured" not in json.loads((tmp_path / "out/eaglectl.json").read_text())["norms_joined"]
    assert outcomes(tmp_path / "out", target) == {"unknown"}


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
    # what `convert` measures on the target's states
    sizes = two.inner_norm(state).square().mean(-1).sqrt() / record["norms_joined"]["scale"]
    assert torch.allclose(sizes, mean.squeeze(1), rtol=0.01)
    assert torch.allclose(factors, mean.expand_as(factors), rtol=0.01)  # bfloat16
    assert (1 / mean).min() >= 1 + low - 0.01
    assert (1 / mean).max() <= 1 + high + 0.01
