"""Rules on the target: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import ABSENT, DRAFT, HIDDEN, VOCAB, call, drafter_config, drafter_folder, floats
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
ROWS = ["EGL704", "EGL705", "EGL710", "EGL711"]
FAMILY = {"select": ["EGL7"], "ignore": ROWS}
FULL: dict[str, Any] = {"lm_head.weight": floats("l", VOCAB, HIDDEN), "d2t": None}


def tokenizers(ours: Any, theirs: Any) -> Callable[[Path], None]:
    """Tokenizers beside the drafter and beside the target (None: none)."""

    def write(folder: Path) -> None:
        for place, value in ((folder, ours), (folder.parent / "target", theirs)):
            if value is not None:
                (place / "tokenizer.json").write_text(value if isinstance(value, str) else json.dumps(value))

    return write


def with_adapter(folder: Path) -> None:
    (folder.parent / "target/adapter_config.json").write_text("{}")


def bpe(*tokens: str, **added: int) -> dict[str, Any]:
    entries = [{"id": number, "content": text} for text, number in added.items()]
    return {
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}},
        "added_tokens": entries,
    }


UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}}

BAD = (
    Patch(
        "a wider target",
        ("EGL701",),
        target_config={**TARGET, "hidden_size": 2 * HIDDEN},
        says="the target is 32 wide",
    ),
    Patch(
        "a wider target, and a config without its width",
        ("EGL701",),
        {"target_hidden_size": ABSENT},
        target_config={**TARGET, "hidden_size": 2 * HIDDEN},
        says="the target is 32 wide and this drafter's aux states are 16",
    ),
    Patch(
        "a full vocabulary that the target has not",
        ("EGL702",),
        {"draft_vocab_size": VOCAB},
        FULL,
        target_config={**TARGET, "vocab_size": 60},
        says="the target has 60 tokens",
    ),
    Patch(
        "another tokenizer",
        ("EGL703",),
        also=tokenizers(bpe("a", "b", end=2), bpe("b", "a", end=2)),
        target_config=TARGET,
        says="2 tokens have other numbers",
    ),
    Patch(
        "another added token",
        ("EGL703",),
        also=tokenizers(bpe("a", end=2), bpe("a", end=3)),
        target_config=TARGET,
        says="'end' is 2 here and 3 there",
    ),
    Patch(
        "another Unigram tokenizer",
        ("EGL703",),
        also=tokenizers(UNIGRAM, bpe("b", "a")),
        target_config=TARGET,
    ),
    Patch(
        "a Unigram tokenizer in another order",
        ("EGL703",),
        also=tokenizers(UNIGRAM, {"model": {"type": "Unigram", "vocab": [["b", -1.0], ["a", -2.0]]}}),
        target_config=TARGET,
        says="2 tokens have other numbers",
    ),
    Patch(
        "the drafter as its own target", ("EGL706",), target_config=drafter_config(), says="draft_vocab_size"
    ),
    Patch(
        "another drafter as the target",
        ("EGL706",),
        target_config={**TARGET, "architectures": ["LlamaForCausalLMEagle3"]},
        says="LlamaForCausalLMEagle3",
    ),
    Patch(
        "a target of more parts",
        ("EGL707",),
        target_config={**TARGET, "num_attention_heads": 32, "num_key_value_heads": 8},
        says="over 8 GPUs, and the drafter's 4 heads cannot",
    ),
    Patch(
        "a larger target vocabulary",
        ("EGL708",),
        target_config={**TARGET, "vocab_size": 80},
        says="the target has 80 tokens and this drafter was made for 64",
    ),
    Patch(
        "a vocab_size that is the draft's",
        ("EGL302", "EGL708"),
        {"vocab_size": DRAFT},
        {"embed_tokens.weight": None},
        target_config=TARGET,
    ),
    Patch(
        "a target of another depth",
        ("EGL709",),
        {"target_layer_count": 12},
        target_config=TARGET,
        says="the target has 12 layers (target_layer_count), and the target has 8",
    ),
    Patch(
        "two depths of one target",
        ("EGL709",),
        {"target_layer_count": 8, "num_target_layers": 12},
        given=FAMILY,
        says="target_layer_count: 8, num_target_layers: 12; none is believed",
    ),
    Patch(
        "a quantised target",
        ("EGL712",),
        target_config={
            **TARGET,
            "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4"},
        },
        given=FAMILY,
        says="is quantised (compressed-tensors nvfp4)",
    ),
    Patch(
        "a quantised part of a target",
        ("EGL712",),
        target_config={"text_config": {**TARGET, "quantization_config": {"quant_method": "fp8"}}},
        given=FAMILY,
        says="is quantised (fp8)",
    ),
    Patch(
        "a target with a LoRA adapter",
        ("EGL712",),
        target_config=TARGET,
        also=with_adapter,
        given=FAMILY,
        says="sglang 34337",
    ),
)
GOOD = (
    Patch(
        "no target",
        (),
        given=FAMILY,
        blind=("EGL701", "EGL702", "EGL706", "EGL707", "EGL708", "EGL712", "EGL713"),
    ),
    Patch(
        "a target that may be split as the drafter",
        (),
        target_config={**TARGET, "num_attention_heads": 4, "num_key_value_heads": 1},
    ),
    Patch(
        "one tokenizer in two spellings",
        (),
        also=tokenizers(bpe("a", "b"), json.dumps(bpe("a", "b"), indent=1)),
        target_config=TARGET,
    ),
    Patch("no tokenizer beside the drafter", (), also=tokenizers(None, bpe("a")), target_config=TARGET),
    Patch(
        "no tokenizer beside the target",
        (),
        given=FAMILY,
        also=tokenizers(bpe("a"), None),
        target_config=TARGET,
        blind=("EGL703", "EGL707"),
    ),
    Patch(
        "a tokenizer that is none",
        (),
        given=FAMILY,
        also=tokenizers("{", bpe("a")),
        target_config=TARGET,
        blind=("EGL703", "EGL707"),
    ),
    Patch(
        "a tokenizer without tokens",
        (),
        given=FAMILY,
        also=tokenizers({"model": 1}, bpe("a")),
        target_config=TARGET,
        blind=("EGL703", "EGL707"),
    ),
)


@pytest.mark.parametrize("patch", (*BAD, *GOOD), ids=lambda patch: patch.why)
def test_a_target_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_the_drafters_own_folder_is_no_target(tmp_path: Path) -> None:
    folder = str(drafter_folder(tmp_path))
    report = eaglectl.validate(
        folder,
        eaglectl.ValidateOptions(target=folder, select=["EGL4", "EGL6", "EGL7"], ignore=ROWS),
    )
    assert [one.rule.id for one in report.findings] == ["EGL706"]


def test_a_target_of_another_width_is_one_finding_and_no_crash() -> None:
    done = call("validate", FIXTURES / "producers/vllm/native", "--target", FIXTURES / "tiny/target")
    assert done.code == 1
    assert "EGL701 target-mismatch" in done.out and "the target is 128 wide" in done.out
