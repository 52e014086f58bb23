"""`smoke` on the reference engine: reports keep their schema, probes run, wrong input is a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.cli import run  # noqa: E402
from eaglectl.errors import UsageError  # noqa: E402
from eaglectl.operations import smoking  # noqa: E402
from eaglectl.progress import Progress  # noqa: E402
from eaglectl.run import installed  # noqa: E402
from eaglectl.run.process import InstalledEngine  # noqa: E402
from eaglectl.run.prompts import batches_by_length, choose_prompts, read_prompts  # noqa: E402
from tests.builders import floats, read_safetensors, refusal, write_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402

DRAFTER = str(FIXTURES / "producers/speculators/eagle3.1")
SCHEMA, LOAD_SCHEMA = (
    jsonschema.Draft202012Validator(json.loads((FIXTURES.parent / f"schemas/{name}.schema.json").read_text()))
    for name in ("smoke", "load")
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of random weights whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("pair") / "target"
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 8,
        "vocab_size": 256,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
    }
    config = transformers.LlamaConfig(
        **shape, num_attention_heads=4, num_key_value_heads=2, head_dim=32, initializer_range=0.3
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text(
        '{"prompt": "def f(x):", "set": "code"}\n{"prompt": "once upon a time", "set": "prose"}\nplain text\n'
    )
    return path


def smoke(
    capsys: pytest.CaptureFixture[str], target: Path, prompts: Path, *more: str, drafter: str = DRAFTER
) -> tuple[int, Any, str]:
    given = [
        "smoke",
        drafter,
        "--target",
        str(target),
        "--prompts",
        str(prompts),
        "--max-tokens",
        "6",
        "--run-in",
        "reference",
        "--device",
        "cpu",
    ]
    code = run([*given, "--json", *more])
    seen = capsys.readouterr()
    return code, json.loads(seen.out), seen.err


def test_a_dead_drafter_fails_and_its_report_keeps_the_schema(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report, _ = smoke(capsys, target, prompts)
    SCHEMA.validate(report)
    assert (code, report["verdict"], report["lossless"], report["prompts"]) == (1, "fail", True, 3)
    assert set(report["sets"]) == {"code", "prose", "prompts"}
    assert any("dead drafter" in failure for failure in report["failures"])


def test_the_sensitivity_probe_tries_every_doubtful_setting(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report, _ = smoke(capsys, target, prompts, "--probe", "sensitivity")
    SCHEMA.validate(report)
    names = [one["name"] for one in report["probes"]["sensitivity"]]
    assert names == [
        "aux boundaries -1",
        "aux boundaries +1",
        "norm_output false",
        "norm_before_residual true",
        "rope base 10000",
        "d2t as absolute ids",
        "rotary rows interleaved",
        "rotary rows halves-twice",
        "gate_proj and up_proj exchanged",
        "fc blocks 0,2,1",
        "fc blocks 1,0,2",
        "fc blocks 1,2,0",
        "fc blocks 2,0,1",
        "fc blocks 2,1,0",
        "aux states 0,2,1, with their norms",
        "aux states 1,0,2, with their norms",
        "aux states 1,2,0, with their norms",
        "aux states 2,0,1, with their norms",
        "aux states 2,1,0, with their norms",
        "k_proj and v_proj exchanged",
        "hidden_norm and input_layernorm exchanged",
        "embedding and state exchanged",
        "query heads 1,2,3,0",
        "query heads 2,3,0,1",
        "query heads 3,0,1,2",
        "query heads 0,2,1,3",
        "heads of 16",
        "heads of 64",
        "norm weights less-one",
        "norm weights plus-one",
    ]


def test_the_drift_probe_measures_four_conditions_to_depth_7(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report, _ = smoke(capsys, target, prompts, "--probe", "drift")
    SCHEMA.validate(report)
    drift = report["probes"]["drift"]
    assert [one["name"] for one in drift] == [
        "as given",
        "another template",
        "foreign system prompt",
        "long context",
    ]
    assert all(len(one["state_growth"]) == 7 and one["state_growth"][0] == 1.0 for one in drift)
    assert all(
        0 <= share <= 1 for one in drift for share in (*one["attention_on_first"], *one["attention_on_own"])
    )


def test_a_drafter_against_itself_has_ratio_one(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report, _ = smoke(capsys, target, prompts, "--against", DRAFTER)
    assert report["against"]["ratio"] == {"value": 1.0, "interval": [1.0, 1.0]}


def test_the_screen_says_the_verdict_first(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "smoke",
        DRAFTER,
        "--target",
        str(target),
        "--prompts",
        str(prompts),
        "--max-tokens",
        "4",
        "--run-in",
        "reference",
    ]
    assert run(given) == 1
    assert capsys.readouterr().out.startswith("fail  acceptance length 1.")


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
    ],
)
def test_wrong_input_is_a_sentence(
    more: tuple[str, ...],
    code: int,
    word: str,
    target: Path,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, document, err = smoke(capsys, target, prompts, *more)
    assert seen == code and word in document["message"] and err.count("\n") == 1


@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_an_activation_that_the_reference_does_not_run_is_refused_by_its_name(
    command: str, tmp_path: Path
) -> None:
    pair, source = FIXTURES / "second", tmp_path / "source"
    shutil.copytree(pair / "eagle3", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    engine = ("--run-in", "reference") if command == "smoke" else ("-o", tmp_path / "statistics")
    given = ("--target", pair / "target", "--prompts", pair / "prompts.jsonl", "--device", "cpu")
    message = refusal(1, command, source, *given, *engine)
    assert "runs SiLU alone, and hidden_act is 'gelu'" in message
    assert "--force-unserved" not in message


def test_a_parallel_drafter_is_not_run_one_token_after_another(tmp_path: Path) -> None:
    pair, source = FIXTURES / "second", tmp_path / "source"
    shutil.copytree(pair / "eagle3", source)
    weights = source / "model.safetensors"
    tensors = read_safetensors(weights)
    write_safetensors(weights, {**tensors, "mask_hidden": floats("mask_hidden", 1, 1, 288)})
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "mask_token_id": 0, "ptd_token_id": 0}))
    given = ("--target", pair / "target", "--prompts", pair / "prompts.jsonl", "--device", "cpu")
    message = refusal(1, "smoke", source, *given, "--run-in", "reference")
    assert "this drafter drafts in parallel (mask_hidden); use --run-in vllm" in message


def test_a_gpu_that_is_not_there_is_never_a_pass(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, document, _ = smoke(capsys, target, prompts, "--device", "cuda")
    assert code == 3 and "no GPU" in document["message"]


def test_the_target_is_no_drafter_of_itself(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = smoke(capsys, target, prompts, drafter=str(target))
    assert code == 1 and "the target itself" in document["message"]


@pytest.mark.parametrize("text", ["{not json", '{"prompt": ""}', '{"text": "x"}'])
def test_a_broken_prompt_names_its_line(
    text: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"good\n{text}\n")
    code, document, _ = smoke(capsys, target, path)
    assert code == 2 and "line 2" in document["message"]


def test_the_built_in_prompts_are_of_several_sets() -> None:
    found = choose_prompts(None).prompts
    assert len(found) >= 20 and len({prompt.set for prompt in found}) >= 5


def test_a_prompt_may_hold_any_character_and_a_file_a_mark_at_its_head(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('\ufeff{"prompt": "one\u2028line\x85still", "chat": true}\r\nplain\x0ctext\r\n'.encode())
    found = [(prompt.text, prompt.is_chat) for prompt in read_prompts(path)]
    assert found == [("one\u2028line\x85still", True), ("plain\x0ctext", False)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'{"prompt": "\ud800"}', "is not JSON"),
        ('{"prompt": "x", "chat": "true"}', r"line 2: Expected `bool`, got `str` - at `\$\.chat`"),
        ('{"prompt": ' + "[" * 100000, "line 2 is not JSON"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named_by_its_line(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(f"first\n{line}\n")
    with pytest.raises(UsageError, match=words):
        read_prompts(tmp_path / "prompts.jsonl")


def test_plain_lines_and_json_lines_may_be_mixed(prompts: Path) -> None:
    assert [prompt.set for prompt in read_prompts(prompts)] == ["code", "prose", "prompts"]


def test_the_python_api_may_be_called_more_than_once(target: Path, prompts: Path) -> None:
    for _ in range(2):
        options = eaglectl.SmokeOptions(run_in="reference", prompts=prompts, max_tokens=2)
        report = eaglectl.smoke(DRAFTER, str(target), options)
        assert report.verdict == "fail"


def test_a_batch_is_bounded_by_its_tokens_and_by_its_texts() -> None:
    lengths = [3000, 10, 500, 900, 5000, 500, *[10] * 16]
    batches = batches_by_length([[0] * length for length in lengths], 100)
    assert [[lengths[index] for index in batch] for batch in batches] == [
        [10] * 16,
        [10, 500, 500, 900],
        [3000],
        [5000],
    ]


def test_progress_counts_the_prompts_of_a_run(target: Path, prompts: Path) -> None:
    progress: list[Progress] = []
    options = eaglectl.SmokeOptions(run_in="reference", prompts=prompts, max_tokens=2)
    eaglectl.smoke(DRAFTER, str(target), options, on_progress=progress.append)
    assert progress[0] == Progress("loading the target")
    steps = [step for step in progress if step.stage == "measuring"]
    assert {(step.total, step.unit) for step in steps} == {(6, "prompts")}
    counts = [step.done for step in steps]
    assert counts == sorted(counts) and {0, 3, 6} <= {*counts} and counts[-1] == 6


def test_an_unknown_probe_is_refused_before_anything_runs(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoking, "_run", lambda job, engine: pytest.fail("it ran"))
    with pytest.raises(UsageError, match=r"probe='luck'\): sensitivity or drift was expected"):
        eaglectl.smoke(DRAFTER, str(target), eaglectl.SmokeOptions(run_in="reference", probe="luck"))


# what the child process answers to "load" with vLLM 0.32.0
LOADED = {
    "version": "0.32.0",
    "unfilled": [],
    "shared": ["model.embed_tokens.weight"],
    "resolved": {
        "class": "Eagle3LlamaForCausalLM",
        "layers": 1,
        "fc_norm": True,
        "norm_output": True,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "fc": [32, 96],
        "own_embed_tokens": True,
        "own_lm_head": True,
    },
}


@pytest.mark.parametrize(
    ("unfilled", "code", "words"),
    [([], 0, "does not fill: none"), (["lm_head.weight"], 1, "does not fill: lm_head.weight")],
)
def test_load_only_lists_what_the_file_does_not_fill(
    unfilled: list[str],
    code: int,
    words: str,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = {**LOADED, "unfilled": unfilled}
    monkeypatch.setattr(InstalledEngine, "require", lambda engine, alternative: None)
    monkeypatch.setattr(installed, "ask", lambda engine, job, mode, texts: answer)
    call = ["smoke", str(FIXTURES / "producers/vllm/native"), "--target", str(target), "--load-only"]
    assert run([*call, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    LOAD_SCHEMA.validate(document)
    assert document == {"schema": "eaglectl/load/1", **answer}
    assert run(call) == code
    assert words in capsys.readouterr().out
