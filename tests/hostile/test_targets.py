"""Targets that are broken, records and tensors that are odd, and outputs without room: a sentence each."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import call, is_one_line, read_safetensors, write_safetensors
from tests.conftest import FIXTURES
from tests.modules import modules
from tests.tiny import TARGET, TINY

DRAFTER = TINY / "eagle3"
Change = Callable[[Path], object]


def with_config(**changes: Any) -> Change:
    def change(target: Path) -> None:
        path = target / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))

    return change


def with_file(name: str, text: str) -> Change:
    return lambda target: (target / name).write_text(text)


def without_half_of_the_weights(target: Path) -> None:
    os.truncate(target / "model.safetensors", (target / "model.safetensors").stat().st_size // 2)


def without_one_tensor(target: Path) -> None:
    tensors = read_safetensors(target / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    write_safetensors(target / "model.safetensors", tensors)


def encoder(target: Path) -> None:
    import transformers

    (target / "model.safetensors").unlink()
    sizes = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, is_decoder=True)
    transformers.BertLMHeadModel(config).save_pretrained(target)


DEEP = "[" * 200_000
BROKEN: dict[str, Change] = {
    "cut weights": without_half_of_the_weights,
    "a tensor missing": without_one_tensor,
    "no weights": lambda target: (target / "model.safetensors").unlink(),
    "a width that is text": with_config(hidden_size="x"),
    "no heads": with_config(num_attention_heads=...),
    "0 heads": with_config(num_attention_heads=0),
    "heads that are null": with_config(num_attention_heads=None),
    "negative layers": with_config(num_hidden_layers=-1),
    "a context that is text": with_config(max_position_embeddings="x"),
    "a rope of no kind": with_config(rope_parameters={"rope_type": "nope"}),
    "GPTQ without its library": with_config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantisation that is a number": with_config(quantization_config=7),
    "an unknown model": with_config(model_type="nope"),
    "a model type that is a list": with_config(model_type=["llama"]),
    "padding outside of the vocabulary": with_config(pad_token_id=10**7),
    "a list as config": with_file("config.json", "[]"),
    "a deep config": with_file("config.json", DEEP),
    "a deep generation config": with_file("generation_config.json", DEEP),
    "a deep tokenizer": with_file("tokenizer.json", DEEP),
    "a deep tokenizer config": with_file("tokenizer_config.json", DEEP),
    "a list as tokenizer config": with_file("tokenizer_config.json", "[]"),
    "a template that is cut": with_file("chat_template.jinja", "{% for"),
    "a template that raises": with_file("chat_template.jinja", "{{ raise_exception('no') }}"),
    "a template that divides by 0": with_file("chat_template.jinja", "{{ 1 // 0 }}"),
    "no decoder": encoder,
}


@pytest.mark.fast(7)
@pytest.mark.parametrize("command", ["smoke", "calibrate"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_target_could_not_be_looked_at(fault: str, command: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    target, prompts = tmp_path / "target", tmp_path / "prompts.jsonl"
    shutil.copytree(TARGET, target)
    BROKEN[fault](target)
    prompts.write_text('{"prompt": "one two three four", "chat": true}\n' * 3)
    more = {"smoke": ("--run-in", "reference", "--max-tokens", "4"), "calibrate": ("-o", tmp_path / "out")}
    given = ("--target", target, "--prompts", prompts, "--device", "cpu")
    done = call(command, DRAFTER, *given, *more[command])
    assert done.code == 3 and is_one_line(done), done
    if fault == "no decoder":
        assert "BertLMHeadModel" in done.err and "pass the language model" in done.err


def test_a_size_without_end_is_no_record(tmp_path: Path) -> None:
    shutil.copytree(DRAFTER, tmp_path / "drafter")
    record = '{"published": {"files": {"config.json": {"size": 1e999, "sha256": "a"}}}}'
    (tmp_path / "drafter/eaglectl.json").write_text(record)
    codes = [call(command, tmp_path / "drafter").code for command in ("verify", "inspect", "validate")]
    assert codes[0] == 3 and set(codes) <= {0, 1, 3}


@pytest.mark.parametrize("path", ["sglang/mla-absorbed", "vllm/fused", "vllm/mla-fused"])
def test_a_stacked_tensor_renamed_to_a_bias_is_no_fault_of_ours(path: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "producers" / path, tmp_path / "drafter"))
    tensors = read_safetensors(folder / "model.safetensors")
    stacked = [name for name in tensors if "fused" in name or "qkv_proj" in name or "gate_up" in name]
    assert stacked
    for name in stacked:
        bias = name.replace(".weight", ".bias")
        renamed = {key.replace(name, bias): value for key, value in tensors.items()}
        write_safetensors(folder / "model.safetensors", renamed)
        for words in (("inspect",), ("validate",), ("convert", "--dry-run", "-o", tmp_path / "out")):
            done = call(words[0], folder, *words[1:])
            assert done.code in (1, 2, 3), done


def in_a_process(
    *arguments: str | Path, stdout: Any = subprocess.PIPE, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from eaglectl.cli import main; main()", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        encoding="utf-8",
        errors="replace",
        timeout=120,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's device without room")
@pytest.mark.fast(2)
@pytest.mark.parametrize(
    "words", ["inspect DRAFTER", "--help", "inspect nowhere --json", "rules", "--version"]
)
@pytest.mark.parametrize("unbuffered", ["1", ""])  # as images set it
def test_a_place_without_room_is_one_sentence(words: str, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = in_a_process(
            *words.replace("DRAFTER", str(DRAFTER)).split(), stdout=full, PYTHONUNBUFFERED=unbuffered
        )
    about = "eaglectl: " if "nowhere" in words else "eaglectl: stdout cannot be written to: "
    assert done.returncode == 3 and done.stderr.startswith(about), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("gbk", marks=pytest.mark.slow)])
def test_a_terminal_of_another_encoding_gets_every_report(encoding: str, tmp_path: Path) -> None:
    folder = shutil.copytree(DRAFTER, tmp_path / "Zürich-模型-✓")
    for command in ("inspect", "validate"):
        plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
        done = in_a_process(command, folder, PYTHONIOENCODING=encoding, **plain)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr


OPENERS = ("read_text", "write_text", "open", "fdopen")


def without_encoding(tree: ast.AST) -> list[int]:
    """Lines with a call that opens text in the encoding of the locale."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        keywords = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
        modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        is_binary = name.endswith("open") and any("b" in str(mode) for mode in modes)
        is_file = name in OPENERS and not is_binary and (owner, name) != ("os", "open")
        is_text = (is_file and owner != "formatter") or keywords.get("text") is True
        if (is_text or keywords.get("universal_newlines") is True) and "encoding" not in keywords:
            lines.append(node.lineno)
    return lines


def test_every_text_file_is_utf_8_whatever_the_locale() -> None:
    lines = {name: without_encoding(module) for name, module in modules().items()}
    assert {name: numbers for name, numbers in lines.items() if numbers} == {}
