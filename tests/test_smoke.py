"""`smoke` on the reference engine: reports keep their schema, probes run, wrong input is a sentence."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.errors import UnreadableError  # noqa: E402
from eaglectl.run import installed  # noqa: E402
from eaglectl.run.process import InstalledEngine  # noqa: E402
from eaglectl.target.files import read_end_tokens, until_end  # noqa: E402
from tests.builders import Outcome, call, changed, floats, read_safetensors, refusal, write_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.tiny import TARGET, TINY, in_specforges_layout, short_prompts  # noqa: E402

SCHEMA, LOAD_SCHEMA = (
    jsonschema.Draft202012Validator(json.loads((FIXTURES.parent / f"schemas/{name}.schema.json").read_text()))
    for name in ("smoke", "load")
)


def otherwise(drafter: Path, folder: Path, **keys: object) -> Path:
    """The drafter with other keys in its config."""
    source = shutil.copytree(drafter, folder / "source")
    (source / "config.json").write_text(json.dumps(changed(source, **keys)))
    return source


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text(
        '{"prompt": "def f(x):", "set": "code"}\n{"prompt": "once upon a time", "set": "prose"}\nplain text\n'
    )
    return path


def smoke(prompts: Path, *more: str, drafter: Path = TINY / "eagle3.1") -> Outcome:
    run = ("--target", TARGET, "--prompts", prompts, "--max-tokens", "6", "--run-in", "reference")
    return call("smoke", drafter, *run, "--device", "cpu", "--json", *more)


def test_a_dead_drafter_fails_and_its_report_keeps_the_schema(prompts: Path, tmp_path: Path) -> None:
    done = smoke(prompts, drafter=otherwise(TINY / "eagle3.1", tmp_path, rms_norm_eps=1e6))
    report = done.document
    SCHEMA.validate(report)
    assert (done.code, report["verdict"], report["lossless"], report["prompts"]) == (1, "fail", True, 3)
    assert set(report["sets"]) == {"code", "prose", "prompts"}
    assert any("dead drafter" in failure for failure in report["failures"])


# the orders in which rows of fused matrices are tried
FUSED = {
    "q/k/v": [
        "per-group",
        "part-by-part",
        "kqv",
        "kvq",
        "vqk",
        "vkq",
        "cut-as-kqv",
        "cut-as-vqk",
        "cut-as-vkq",
    ],
    "k/v": ["per-group"],
    "gate/up": [
        "per-group",
        "part-by-part",
        "2-shards",
        "4-shards",
        "8-shards",
        "cut-as-4-shards",
        "cut-as-8-shards",
    ],
}


def test_the_sensitivity_probe_tries_every_doubtful_setting(prompts: Path) -> None:
    report = smoke(prompts, "--probe", "sensitivity").document
    SCHEMA.validate(report)
    names = [one["name"] for one in report["probes"]["sensitivity"]]
    blocks = [f"fc blocks {order}" for order in ("0,2,1", "1,0,2", "1,2,0", "2,0,1", "2,1,0")]
    states = [f"aux states {block.removeprefix('fc blocks ')}, with their norms" for block in blocks]
    assert names == [
        *("aux boundaries -1", "aux boundaries +1", "norm_output false", "norm_before_residual true"),
        *("rope base 10000", "d2t as absolute ids", "rotary rows interleaved", "rotary rows halves-twice"),
        *("gate_proj and up_proj exchanged", *blocks, *states, "k_proj and v_proj exchanged"),
        *(f"rows of fused {parts} {order}" for parts, orders in FUSED.items() for order in orders),
        *("hidden_norm and input_layernorm exchanged", "embedding and state exchanged"),
        *(f"query heads {order}" for order in ("1,2,3,0", "2,3,0,1", "3,0,1,2", "0,2,1,3")),
        *("heads of 16", "heads of 64", "norm weights less-one", "norm weights plus-one"),
    ]


def test_windows_show_acceptance_by_context_length(prompts: Path) -> None:
    report = smoke(prompts, "--window", "4,1000", drafter=TINY / "eagle3").document
    SCHEMA.validate(report)
    narrow, wide = report["windows"]
    assert (narrow["window"], wide["window"]) == (4, 1000)
    # a window that no context reaches changes nothing
    assert wide["ratio"]["value"] == 1 and wide["acceptance_length"] == report["acceptance_length"]
    assert all(part["length"] == part["without"] for part in wide["parts"])
    assert [part["start"] for part in wide["parts"]] == [0] and narrow["parts"][-1]["start"] > 0
    assert sum(part["drafts"] for part in wide["parts"]) == report["drafts"]
    (how,) = (note for note in report["notes"] if "--speculative-draft-window-size" in note)
    assert '"layer_types": ["sliding_attention"]' in how
    (numbers,) = re.findall(r"window of (\d+): SGLang takes --speculative-draft-window-size (\d+),", how)
    assert int(numbers[1]) == int(numbers[0]) - 1  # which does not count the token itself


@pytest.mark.parametrize(
    ("config", "answers", "words"),
    [
        ({}, ["specforge=post-879"], "leaves no question open; leave it out"),
        (
            {"rope_parameters": {"rope_theta": 1e4}},
            [],
            "leaves 2 open: norm_output, rope_theta; answer all but",
        ),
        (
            {"embedding_multiplier": 2},
            ["specforge=post-879"],
            "no two answers to try for embedding_multiplier",
        ),
    ],
    ids=["none", "two", "free"],
)
def test_one_question_is_tried(
    config: dict[str, Any], answers: list[str], words: str, tmp_path: Path
) -> None:
    drafter = in_specforges_layout(tmp_path / "q")
    stored = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(stored | config))
    given = [word for answer in answers for word in ("--source-semantics", answer)]
    line = refusal(2, "smoke", drafter, "--target", TARGET, "--run-in", "vllm", "--try-both", *given)
    assert words in line


def test_answers_are_tried_in_an_engine(prompts: Path) -> None:
    line = refusal(2, "smoke", TINY / "eagle3", "--target", TARGET, "--run-in", "reference", "--try-both")
    assert "--run-in vllm" in line and "convert tries the answers in the reference" in line


def test_a_window_is_a_number_of_tokens(prompts: Path) -> None:
    assert "--window" in refusal(2, "smoke", TINY / "eagle3", "--target", TARGET, "--window", "0")


def quantised(folder: Path) -> Path:
    """The tiny drafter with the matrices of its layer in FP8, a scale for each row."""
    source = shutil.copytree(TINY / "eagle3", folder / "fp8")
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].float().abs().amax(1, keepdim=True) / 448
        tensors[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    method = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head", "fc"]}
    (source / "config.json").write_text(json.dumps(changed(source, quantization_config=method)))
    return source


def test_a_quantised_drafter_is_compared_with_its_original(prompts: Path, tmp_path: Path) -> None:
    source = quantised(tmp_path)
    report = smoke(prompts, "--against", str(TINY / "eagle3"), drafter=source).document
    SCHEMA.validate(report)
    assert report["against"]["ratio"]["value"] == pytest.approx(1, abs=0.1)
    notes = " ".join(report["notes"])
    assert "bytes of" in notes and "% saved" in notes and "run as quantised by" in notes


def test_a_quantisation_that_is_not_multiplied_out_is_named(prompts: Path, tmp_path: Path) -> None:
    source = quantised(tmp_path)
    tensors = load_file(source / "model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[f"{name}_g_idx"] = torch.zeros(1)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    done = smoke(prompts, drafter=source)
    assert done.code == 1 and "self_attn.q_proj.weight_g_idx: the reference runs" in done.err


def test_the_drift_probe_measures_four_conditions_to_depth_7(prompts: Path) -> None:
    report = smoke(prompts, "--probe", "drift").document
    SCHEMA.validate(report)
    drift = report["probes"]["drift"]
    names = [one["name"] for one in drift]
    assert names == ["as given", "another template", "foreign system prompt", "long context"]
    assert all(len(one["state_growth"]) == 7 and one["state_growth"][0] == 1.0 for one in drift)
    shares = [share for one in drift for share in (*one["attention_on_first"], *one["attention_on_own"])]
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--run-in", "llamacpp"), 2, "--run-in llamacpp"),
        (("--device", "tpu"), 2, "--device tpu"),
        (("--probe", "luck"), 2, "--probe luck"),
        (("--max-tokens", "0"), 2, "at least 1"),
        (("--max-tokens", "600"), 2, "context"),
        (("--run-in", "http://127.0.0.1:9"), 3, "cannot be reached"),
        (("--prompts", "nowhere.jsonl"), 3, "nowhere.jsonl"),
        pytest.param(
            *(("--device", "cuda"), 3, "no GPU"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_wrong_input_is_a_sentence(more: tuple[str, ...], code: int, word: str, prompts: Path) -> None:
    done = smoke(prompts, *more)
    assert done.code == code and word in done.document["message"] and done.err.count("\n") == 1


SECOND = FIXTURES / "second"
ON_SECOND = ("--target", SECOND / "target", "--prompts", SECOND / "prompts.jsonl", "--device", "cpu")


@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_an_activation_that_the_reference_does_not_run_is_refused_by_its_name(
    command: str, tmp_path: Path
) -> None:
    engine = ("--run-in", "reference") if command == "smoke" else ("-o", tmp_path / "statistics")
    message = refusal(
        1, command, otherwise(SECOND / "eagle3", tmp_path, hidden_act="gelu"), *ON_SECOND, *engine
    )
    assert "supports only SiLU, but hidden_act is 'gelu'" in message
    assert "--force-unserved" not in message


def test_a_parallel_drafter_is_not_run_one_token_after_another(tmp_path: Path) -> None:
    source = otherwise(SECOND / "eagle3", tmp_path, mask_token_id=0, ptd_token_id=0)
    tensors = read_safetensors(source / "model.safetensors")
    tensors["mask_hidden"] = floats("mask_hidden", 1, 1, 288)
    write_safetensors(source / "model.safetensors", tensors)
    message = refusal(1, "smoke", source, *ON_SECOND, "--run-in", "reference")
    assert "this drafter drafts in parallel (mask_hidden); use --run-in vllm" in message


# what the child process answers to "load" with vLLM 0.32.0
LOADED = {
    "version": "0.32.0",
    "resolved": {
        **{"class": "Eagle3LlamaForCausalLM", "layers": 1, "fc": [32, 96]},
        **{"own_embed_tokens": True, "own_lm_head": True, "fc_norm": True, "norm_output": True},
        **{"norm_before_fc": False, "norm_before_residual": False},
    },
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("unfilled", "shared", "words"),
    [([], [], "none"), ([HEAD], [], HEAD), ([], [HEAD], HEAD)],
    ids=["filled", "not filled", "the target's head, which does not fit"],
)
def test_load_only_lists_what_neither_the_file_nor_a_target_that_fits_fills(
    unfilled: list[str], shared: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {**LOADED, "unfilled": unfilled, "shared": [EMBEDDING, *shared]}
    monkeypatch.setattr(InstalledEngine, "require", lambda engine, alternative: None)
    monkeypatch.setattr(installed, "ask", lambda engine, job, mode, texts: answer)
    given = ("smoke", FIXTURES / "producers/vllm/native", "--target", FIXTURES / "target", "--load-only")
    done = call(*given, "--json")
    LOAD_SCHEMA.validate(done.document)
    holes = {"unfilled": [*unfilled, *shared], "shared": [EMBEDDING]}
    assert done.document == {"schema": "eaglectl/load/1", **LOADED, **holes}
    assert done.code == bool(unfilled or shared)
    assert f"does not fill: {words}" in call(*given).out


@pytest.mark.parametrize(
    ("generation", "tokens"),
    [
        ('{"eos_token_id": 7}', {7}),
        ('{"eos_token_id": [7, 9]}', {7, 9}),
        ('{"eos_token_id": null}', set()),
        ("{}", set()),
        ('{"eos_token_id": [true, "7", 9]}', {9}),
        (None, {3}),
    ],
)
def test_the_generation_config_ends_answers_and_else_the_config(
    generation: str | None, tokens: set[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 3}}')
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(generation)
    assert read_end_tokens(tmp_path) == tokens


def test_a_generation_config_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(UnreadableError, match=r"generation_config\.json is not a JSON object"):
        read_end_tokens(tmp_path)


def test_an_answer_ends_with_and_without_the_drafter_unless_that_is_ignored(tmp_path: Path) -> None:
    prompts, target = short_prompts(tmp_path, 3), shutil.copytree(TARGET, tmp_path / "target")
    config = target / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": list(range(320))}))
    given = eaglectl.SmokeOptions(run_in="reference", device="cpu", prompts=prompts, max_tokens=12)
    whole = eaglectl.smoke(TINY / "eagle3", target, replace(given, ignore_eos=True))
    answers = [result.tokens for result in whole.run.results]
    assert [len(answer) for answer in answers] == [12, 12, 12] and whole.ignores_eos
    end = answers[0][5]
    config.write_text(json.dumps({"eos_token_id": [end]}))
    ended = eaglectl.smoke(TINY / "eagle3", target, given)
    expected = [until_end(answer, frozenset({end})) for answer in answers]
    assert [list(result.tokens) for result in ended.run.results] == expected
    assert len(expected[0]) <= 6 and ended.is_lossless
    assert ended.measured.drafts < whole.measured.drafts
