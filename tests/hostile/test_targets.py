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

import eaglectl
from eaglectl.cli import run
from tests.builders import read_safetensors, write_safetensors
from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY

DRAFTER = str(TINY / "eagle3")
Change = Callable[[Path], object]


def with_config(**changes: Any) -> Change:
    def change(target: Path) -> None:
        path = target / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}), encoding="utf-8")

    return change


def with_file(name: str, text: str) -> Change:
    return lambda target: (target / name).write_text(text, encoding="utf-8")


def without_half_of_the_weights(target: Path) -> None:
    os.truncate(target / "model.safetensors", (target / "model.safetensors").stat().st_size // 2)


def without_one_tensor(target: Path) -> None:
    tensors = read_safetensors(target / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    write_safetensors(target / "model.safetensors", tensors)


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
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the small target with one fault."""
    shutil.copytree(TARGET, tmp_path / "target")
    BROKEN[request.param](tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_a_broken_target_could_not_be_looked_at(
    command: str, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two three four", "chat": true}\n' * 3, encoding="utf-8")
    more = {
        "smoke": ["--run-in", "reference", "--max-tokens", "4"],
        "calibrate": ["-o", str(tmp_path / "out")],
    }
    target = ["--target", str(broken), "--prompts", str(prompts), "--device", "cpu"]
    code = run([command, DRAFTER, *target, *more[command]])
    errors = capsys.readouterr().err.splitlines()
    assert (code, len(errors)) == (3, 1), errors
    assert errors[0].startswith("eaglectl: ")


def test_a_size_without_end_is_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DRAFTER, tmp_path / "drafter")
    record = '{"published": {"files": {"config.json": {"size": 1e999, "sha256": "a"}}}}'
    (tmp_path / "drafter/eaglectl.json").write_text(record, encoding="utf-8")
    for command in ("verify", "inspect", "validate"):
        assert run([command, str(tmp_path / "drafter")]) in (0, 1, 3), capsys.readouterr().err
    assert run(["verify", str(tmp_path / "drafter")]) == 3


@pytest.mark.parametrize("command", ["inspect", "validate", "convert"])
@pytest.mark.parametrize("path", ["sglang/mla-absorbed", "vllm/fused", "vllm/mla-fused"])
def test_a_stacked_tensor_renamed_to_a_bias_is_no_fault_of_ours(
    path: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FIXTURES / "producers" / path
    tensors = read_safetensors(folder / "model.safetensors")
    stacked = [name for name in tensors if "fused" in name or "qkv_proj" in name or "gate_up" in name]
    assert stacked
    for name in stacked:
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        renamed = {
            key.replace(name, name.replace(".weight", ".bias")): value for key, value in tensors.items()
        }
        write_safetensors(copy / "model.safetensors", renamed)
        more = ["-o", str(tmp_path / "out"), "--dry-run"] if command == "convert" else []
        assert run([command, str(copy), *more]) in (1, 2, 3), capsys.readouterr().err


def eaglectl_process(
    *arguments: str, stdout: Any = subprocess.PIPE, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from eaglectl.cli import main; main()", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=120,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's device without room")
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", DRAFTER],
        ["inspect", DRAFTER, "--json"],
        ["inspect", "nowhere", "--json"],
        ["--help"],
        ["rules"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_a_place_without_room_is_one_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = eaglectl_process(*arguments, stdout=full)
    errors = done.stderr.splitlines()
    assert (done.returncode, len(errors)) == (3, 1), done.stderr
    assert errors[0].startswith("eaglectl: ")


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_a_terminal_of_another_encoding_gets_every_report(encoding: str, tmp_path: Path) -> None:
    folder = tmp_path / "Zürich-模型-✓"
    shutil.copytree(DRAFTER, folder)
    for command in ("inspect", "validate"):
        done = eaglectl_process(
            command,
            str(folder),
            PYTHONIOENCODING=encoding,
            PYTHONUTF8="0",
            LC_ALL="C",
            PYTHONCOERCECLOCALE="0",
        )
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr


def _without_encoding(tree: ast.AST) -> list[int]:
    """Lines with a call that opens text in the encoding of the locale."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value.id if isinstance(getattr(node.func, "value", None), ast.Name) else ""  # type: ignore[attr-defined]
        keywords = {keyword.arg for keyword in node.keywords}
        flags = {keyword.arg for keyword in node.keywords if getattr(keyword.value, "value", None) is True}
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        is_text = name in ("read_text", "write_text") or bool(flags & {"text", "universal_newlines"})
        if name in ("open", "fdopen") and (name, owner) != ("open", "os"):
            is_text = not any(isinstance(text, str) and "b" in text for text in texts)
        if is_text and "encoding" not in keywords:
            lines.append(node.lineno)
    return lines


def test_every_text_file_is_utf_8_whatever_the_locale() -> None:
    files = Path(eaglectl.__file__).parent.rglob("*.py")
    lines = {str(path): _without_encoding(ast.parse(path.read_text(encoding="utf-8"))) for path in files}
    assert {path: numbers for path, numbers in lines.items() if numbers} == {}


def test_a_missing_encoding_is_seen() -> None:
    source = (
        "open(p)\np.open('w')\nos.fdopen(d, 'w')\np.read_text()\nrun(a, text=True)\np.open('rb')\nos.open(p)"
    )
    assert _without_encoding(ast.parse(source)) == [1, 2, 3, 4, 5]
