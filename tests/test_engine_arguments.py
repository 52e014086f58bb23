"""--engine-arg: what is passed to an engine, and what would change what is measured."""

from pathlib import Path
from typing import Any

import pytest

from eaglectl.errors import UsageError
from eaglectl.run.installed import check_engine_arguments, parse_engine_arguments
from tests.builders import refusal
from tests.conftest import FIXTURES

PAIR = [str(FIXTURES / "tiny/eagle3"), "--target", str(FIXTURES / "tiny/target")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('quantization="fp8"', {"quantization": "fp8"}),
        ("--kv-cache-dtype=fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}),
        ("gpu_memory_utilization=0.8", {"gpu_memory_utilization": 0.8}),
        ("enforce_eager=false", {"enforce_eager": False}),
        ("max_model_len=null", {"max_model_len": None}),
        ('compilation_config={"level": 0}', {"compilation_config": {"level": 0}}),
        ("load_format=safetensors", {"load_format": "safetensors"}),
    ],
)
def test_values_are_json_or_a_word(text: str, meant: dict[str, Any]) -> None:
    assert parse_engine_arguments([text]) == meant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantization", "KEY=VALUE was expected"),
        ("=fp8", "a name of small letters"),
        ("a b=1", "a name of small letters"),
        ("__class__=1", "a name of small letters"),
        ("enforce_eager=True", "is not JSON; write true"),
        ("swap_space=NaN", "is not JSON"),
        ("swap_space=Infinity", "is not JSON"),
        ("limit={", "is not JSON"),
        ("download_dir=a=b", "is not JSON"),
        ("limit=", "is not JSON"),
        ("block_size=16 block-size=32", "block_size is passed twice"),
    ],
)
def test_what_is_no_key_and_value_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_engine_arguments([text] if text == "a b=1" else text.split())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", "other", "another --target"),
        ("tokenizer", "other", "another --target"),
        ("load_format", "dummy", "the weights would not be those of --target"),
        ("hf_overrides", {"num_hidden_layers": 1}, "change the files"),
        ("json_model_override_args", "{}", "change the files"),
        ("speculative_config", {"method": "ngram"}, "use -k, or another SOURCE"),
        ("speculative_accept_threshold_single", 0.1, "use -k, or another SOURCE"),
        ("spec_model", "x", "use -k, or another SOURCE"),
        ("seed", 1, "--temperature and --seed"),
        ("random_seed", 1, "--temperature and --seed"),
        ("worker_cls", "x.Y", "replaces the engine"),
        ("disable_log_stats", True, "to count and to compare"),
        ("use_ray", True, "to count and to compare"),
        ("hf_token", "hf_x", "in the environment"),
        ("data_parallel_size", 2, "--tensor-parallel-size"),
        ("trust_remote_code", True, "use --trust-remote-code"),
        ("tp_size", 2, "use --tensor-parallel-size"),
        ("device", "cpu", "use --device"),
    ],
)
def test_what_would_fake_or_change_what_is_measured_is_refused(name: str, value: object, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--engine-arg {name}: .*{reason}"):
        check_engine_arguments({name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["smoke", "--run-in", "reference", "--engine-arg", "a=1"], "pass --run-in vllm or --run-in sglang"),
        (["smoke", "--run-in", "reference", "--tensor-parallel-size", "2"], "pass --run-in vllm or"),
        (["smoke", "--run-in", "http://127.0.0.1:1", "--engine-arg", "a=1"], "pass --run-in vllm or"),
        (["smoke", "--run-in", "sglang", "--tensor-parallel-size", "0"], "at least 1"),
        (["smoke", "--run-in", "sglang", "--engine-arg", "model=x"], "--engine-arg model: it changes"),
        (["smoke", "--load-only", "--run-in", "sglang"], "--load-only is for vLLM"),
        (["smoke", "--load-only", "--engine-arg", "block_size=16"], "loads only the drafter"),
        (["smoke", "--load-only", "--tensor-parallel-size", "2"], "loads only the drafter"),
        (["calibrate", "--engine-arg", "a=1"], "pass --run-in vllm"),
        (["calibrate", "--tensor-parallel-size", "2"], "pass --run-in vllm"),
        (["calibrate", "--run-in", "vllm", "--tensor-parallel-size", "0"], "at least 1"),
        (["calibrate", "--run-in", "vllm", "--engine-arg", "max_num_seqs=1"], "states of every token"),
        (["calibrate", "--run-in", "vllm", "--engine-arg", "kv_cache_dtype=fp8"], "states of every token"),
        (["calibrate", "--run-in", "vllm", "--engine-arg", "enable_prefix_caching=true"], "of every token"),
        (["calibrate", "--run-in", "vllm", "--timeout", "0"], "more than 0"),
        (["calibrate", "--run-in", "sglang"], "transformers or vllm was expected"),
    ],
)
def test_options_that_make_no_sense_are_usage(options: list[str], words: str, tmp_path: Path) -> None:
    command, *more = options
    out = ("-o", tmp_path / "out") if command == "calibrate" else ()
    assert words in refusal(2, command, *PAIR, *more, *out)
    assert not (tmp_path / "out").exists()
