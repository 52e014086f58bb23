"""eaglectl's GGUF files: those of llama.cpp's own converter but for what nothing reads, and drafted with."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.engine import trained
from tests.engine.llamacpp.gguf_child import DRAFTED, write_ours

# of each, why eaglectl's file has another value or none
TOKENIZER = {
    # a drafter's tokenizer is not read; the converter copies the target's
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
}
DESCRIPTION = {
    # for people: made of names of folders, of the model card, and of the number of parameters
    "general.name",
    "general.size_label",
    "general.tags",
    "GGUF.kv_count",
}
# what the folder already has otherwise than the case, so that its file has it too
OTHERWISE = {
    # ids in ascending order, and fc's columns with them
    "llama.cpp/ids 5, 2, 4": ({"fc.weight"}, {"eagle3.target_layers"}),
    # a map of every token to itself is left out
    "llama.cpp/full vocabulary, identity d2t": ({"d2t"}, {"GGUF.tensor_count"}),
    "llama-shared/identity d2t and t2d": ({"d2t"}, {"GGUF.tensor_count"}),
}
# drafted as meant by luck or by what the case leaves out; eaglectl does not carry what it cannot vouch for
REFUSED = {
    "llama.cpp/ids 2, 4, 4": "a number of aux layers other than 3",
    "llama.cpp/hidden_act gelu": "runs SiLU, and hidden_act is gelu",
    "llama3/rope_scaling without a type": "rope_scaling's factor has no place",
    "llama3/layers.0.input_layernorm.weight as U8": "is U8, which is not carried",
    "llama-shared/layers.0.input_layernorm.weight as I64": "is I64, which is not carried",
}
Answer = dict[str, Any]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    root = tmp_path_factory.mktemp("gguf")
    refused = write_ours(root)
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.gguf_child", str(root)]
    done = subprocess.run(command, cwd=FIXTURES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {**json.loads((root / "answer.json").read_text()), "refused": refused}


def test_the_pair_has_the_same_tensors_and_keys(answer: Answer) -> None:
    assert answer["pair"]["tensors"] == []
    assert set(answer["pair"]["keys"]) == TOKENIZER | DESCRIPTION


def test_the_pair_is_drafted_with_as_by_the_reference(answer: Answer) -> None:
    assert answer["pair"]["accepted"] == trained.recorded()["llama.cpp==0.3.36"]


def test_cases_have_the_same_tensors_and_keys(answer: Answer) -> None:
    found = {
        name: (set(case["tensors"]), set(case["keys"]) - TOKENIZER - DESCRIPTION)
        for name, case in answer["cases"].items()
    }
    assert len(found) > 60
    assert {name: others for name, others in found.items() if any(others)} == OTHERWISE


@pytest.mark.parametrize("name", DRAFTED)
def test_a_case_is_drafted_as_with_the_converters_file(name: str, answer: Answer) -> None:
    assert answer["cases"][name]["is_drafted_equally"]


def test_nothing_else_that_is_drafted_as_meant_is_refused(answer: Answer) -> None:
    assert answer["refused"].keys() == REFUSED.keys()
    assert all(REFUSED[name] in message for name, message in answer["refused"].items())
