"""--engine-arg: what is passed to an engine, and what would change what is measured."""

from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.cli import run
from eaglectl.errors import UsageError
from eaglectl.run.engine_arguments import (
    check_engine_arguments,
    parse_engine_arguments,
    unknown_argument,
)
from tests.conftest import FIXTURES

PAIR = [str(FIXTURES / "tiny/eagle3"), "--target", str(FIXTURES / "tiny/target")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("quantization=fp8", {"quantization": "fp8"}),
        ('quantization="fp8"', {"quantization": "fp8"}),
        ("--kv-cache-dtype=fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}),
        ("gpu_memory_utilization=0.8", {"gpu_memory_utilization": 0.8}),
        ("enforce_eager=false", {"enforce_eager": False}),
        ("max_model_len=null", {"max_model_len": None}),
        ('compilation_config={"level": 0}', {"compilation_config": {"level": 0}}),
        ("distributed_executor_backend=ray", {"distributed_executor_backend": "ray"}),
        ("load_format=safetensors", {"load_format": "safetensors"}),
        ("download_dir=a=b", None),
    ],
)
def test_values_are_json_or_a_word(text: str, meant: dict[str, Any] | None) -> None:
    if meant is None:
        with pytest.raises(UsageError, match="is no JSON"):
            parse_engine_arguments([text])
    else:
        assert parse_engine_arguments([text]) == meant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantization", "KEY=VALUE was expected"),
        ("=fp8", "a name of small letters"),
        ("a b=1", "a name of small letters"),
        ("__class__=1", "a name of small letters"),
        ("enforce_eager=True", "is no JSON; write true"),
        ("swap_space=NaN", "is no JSON"),
        ("swap_space=Infinity", "is no JSON"),
        ("limit={", "is no JSON"),
        ("limit=", "is no JSON"),
    ],
)
def test_what_is_no_key_and_value_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_engine_arguments([text])


def test_one_argument_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="block_size is given twice"):
        parse_engine_arguments(["block_size=16", "block-size=32"])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", "other", "another --target"),
        ("model_path", "other", "another --target"),
        ("tokenizer", "other", "another --target"),
        ("revision", "main", "another --target"),
        ("load_format", "dummy", "the weights would not be those of --target"),
        ("hf_overrides", {"num_hidden_layers": 1}, "change the files"),
        ("json_model_override_args", "{}", "change the files"),
        ("speculative_config", {"method": "ngram"}, "use -k, or another SOURCE"),
        ("speculative_num_steps", 5, "use -k, or another SOURCE"),
        ("speculative_accept_threshold_single", 0.1, "use -k, or another SOURCE"),
        ("spec_model", "x", "use -k, or another SOURCE"),
        ("seed", 1, "--temperature and --seed"),
        ("random_seed", 1, "--temperature and --seed"),
        ("override_generation_config", {"temperature": 0}, "--temperature and --seed"),
        ("logits_processors", ["x"], "--temperature and --seed"),
        ("forward_hooks", [], "other code"),
        ("worker_cls", "x.Y", "other code"),
        ("disable_log_stats", True, "to count and to compare"),
        ("hf_token", "hf_x", "in the environment"),
        ("data_parallel_size", 2, "--tensor-parallel-size"),
        ("trust_remote_code", True, "use --trust-remote-code"),
        ("tensor_parallel_size", 2, "use --tensor-parallel-size"),
        ("tp_size", 2, "use --tensor-parallel-size"),
        ("device", "cpu", "use --device"),
    ],
)
def test_what_would_fake_or_change_what_is_measured_is_refused(name: str, value: object, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--engine-arg {name}: .*{reason}"):
        check_engine_arguments({name: value})


@pytest.mark.parametrize("name", ["enable_prefix_caching", "max_num_seqs", "kv_cache_dtype"])
def test_calibration_keeps_what_gives_it_every_state(name: str) -> None:
    check_engine_arguments({name: 1})
    with pytest.raises(UsageError, match="hidden states of every token"):
        check_engine_arguments({name: 1}, is_calibration=True)


def test_an_unknown_argument_ends_in_the_engines_words_and_the_nearest_names() -> None:
    answer = {"error": "TypeError: it is unexpected", "unknown": "quantisation", "version": "1.2.3"}
    assert str(unknown_argument("vLLM", {**answer, "nearest": ["quantization", "x"]})) == (
        "--engine-arg quantisation: vLLM 1.2.3 says TypeError: it is unexpected; the nearest names are"
        " quantization, x"
    )
    assert str(unknown_argument("vLLM", {**answer, "nearest": []})).endswith("it is unexpected")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["smoke", "--run-in", "reference", "--engine-arg", "a=1"], "pass --run-in vllm or --run-in sglang"),
        (["smoke", "--run-in", "reference", "--tensor-parallel-size", "2"], "pass --run-in vllm or"),
        (["smoke", "--run-in", "http://127.0.0.1:1", "--engine-arg", "a=1"], "pass --run-in vllm or"),
        (["smoke", "--engine", "sglang", "--tensor-parallel-size", "0"], "at least 1"),
        (["smoke", "--engine", "sglang", "--engine-arg", "model=x"], "--engine-arg model: it changes"),
        (["smoke", "--load-only", "--engine", "sglang"], "--load-only is vLLM's"),
        (["smoke", "--load-only", "--engine-arg", "block_size=16"], "loads the drafter alone"),
        (["smoke", "--load-only", "--tensor-parallel-size", "2"], "loads the drafter alone"),
        (["calibrate", "-o", "OUT", "--engine-arg", "a=1"], "pass --run-in vllm"),
        (["calibrate", "-o", "OUT", "--engine", "vllm", "--engine-arg", "max_num_seqs=1"], "every token"),
    ],
)
def test_options_that_make_no_sense_are_usage(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *more = [str(tmp_path / "out") if word == "OUT" else word for word in options]
    assert run([command, *PAIR, *more]) == 2
    assert words in capsys.readouterr().err


def test_the_api_refuses_them_too() -> None:
    for name, value in (("load_format", "dummy"), ("async-scheduling", False)):
        options = eaglectl.SmokeOptions(run_in="sglang", engine_arguments={name: value})
        with pytest.raises(UsageError, match=name):
            eaglectl.smoke(PAIR[0], PAIR[2], options)
