"""Rules on the target: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglectl.files.source import FolderSource
from eaglectl.formats.vocabulary import token_count
from tests.builders import (
    ABSENT,
    DRAFT,
    HIDDEN,
    VOCAB,
    call,
    drafter_config,
    drafter_folder,
    floats,
    mask,
    offsets,
    target_of,
)
from tests.cases import stored_tensors
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, aim, exact

TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
ROWS = ["EGL704", "EGL705", "EGL710", "EGL711"]
FAMILY = {"select": ["EGL7"], "ignore": ROWS}
NEED_TARGET = tuple(f"EGL7{number:02}" for number in (1, 2, 6, 7, 8, 9, 12, 13))
UNSEEN, NO_EMBEDDING = ("EGL703", "EGL707"), {"embed_tokens.weight": None}
FULL: dict[str, Any] = {
    "config": {"draft_vocab_size": VOCAB},
    "tensors": {"lm_head.weight": floats("l", VOCAB, HIDDEN), "d2t": None},
}


def tokenizers(ours: Any, theirs: Any) -> Callable[[Path], None]:
    """Tokenizers beside the drafter and beside the target (None: none)."""

    def write(folder: Path) -> None:
        for place, value in ((folder, ours), (folder.parent / "target", theirs)):
            if value is not None:
                (place / "tokenizer.json").write_text(value if isinstance(value, str) else json.dumps(value))

    return write


def quantised(stated: dict[str, Any]) -> dict[str, Any]:
    return {**TARGET, "quantization_config": stated}


def with_adapter(folder: Path) -> None:
    (folder.parent / "target/adapter_config.json").write_text("{}")


def bpe(*tokens: str, **added: int) -> dict[str, Any]:
    entries = [{"id": number, "content": text} for text, number in added.items()]
    vocabulary = {text: number for number, text in enumerate(tokens)}
    return {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": entries}


def unigram(tokens: str) -> dict[str, Any]:
    return {"model": {"type": "Unigram", "vocab": [[token, -1.0 - i] for i, token in enumerate(tokens)]}}


UNIGRAM, REORDERED = unigram("ab"), tokenizers(bpe("a", "b", end=2), bpe("b", "a", end=2))
WIDER, SMALLER = {**TARGET, "hidden_size": 2 * HIDDEN}, {**TARGET, "vocab_size": 60}
FOURTH = {**TARGET, "hidden_size": 3 * HIDDEN // 4}
FOUR_IDS = {
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 6],
    "num_aux_hidden_states": 4,
    "eagle_config": ABSENT,
}
NO_WIDTH = {"target_hidden_size": ABSENT}
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4"}
DEPTH, DEPTHS = {"target_layer_count": 12}, {"target_layer_count": 8, "num_target_layers": 12}

MANY_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
FOUR_HEADS = {**TARGET, "num_attention_heads": 4, "num_key_value_heads": 2}
SPLIT_BY_3 = {"tensor_parallel_size": 3, "ignore": ROWS}
OWN_CODE = {
    **TARGET,
    "model_type": "kimi_k2",
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
}
THREE = {"num_attention_heads": 3, "num_key_value_heads": 3}
THREE_HEADS = {
    **{f"layers.0.self_attn.{part}_proj.weight": floats(part, 24, 2 * HIDDEN) for part in "qkv"},
    "layers.0.self_attn.o_proj.weight": floats("o", HIDDEN, 24),
}
ONE_MORE = tokenizers(None, unigram("a" * (VOCAB + 1)))
FIRST_TOKENS, BY_MASK = {"d2t": offsets(range(3, DRAFT + 3))}, {"d2t": None, "t2d": mask()}
PADDED = {**TARGET, "vocab_size": 128}

BAD = (
    aim("a wider target", "EGL701", WIDER, "the target has width 32"),
    aim("a width unstated", "EGL701", WIDER, "and this drafter's aux states 16", config=NO_WIDTH),
    aim("a width that divides fc", "EGL701", FOURTH, "the target has width 12 and this", config=NO_WIDTH),
    aim("a width of four", "EGL114", FOURTH, "its width is 12", config={**NO_WIDTH, **FOUR_IDS}),
    aim("a full vocabulary that it has not", "EGL702", SMALLER, "the target has 60 tokens", **FULL),
    aim("tokens that it has not", "EGL702", SMALLER, "proposes tokens up to 63"),
    aim("tokens by t2d", "EGL702 EGL310", SMALLER, "up to 63", tensors=BY_MASK, given={"ignore": ROWS}),
    aim("another tokenizer", "EGL703", TARGET, "2 tokens have other ids", also=REORDERED),
    aim("an added token", "EGL703", TARGET, "'end' is 2", also=tokenizers(bpe("a", end=2), bpe("a", end=3))),
    aim("another Unigram tokenizer", "EGL703", TARGET, also=tokenizers(UNIGRAM, bpe("b", "a"))),
    aim("Unigram in another order", "EGL703", TARGET, "2 tokens", also=tokenizers(UNIGRAM, unigram("ba"))),
    aim("the drafter as its own target", "EGL706", drafter_config(), "draft_vocab_size"),
    aim("another drafter", "EGL706", {**TARGET, "architectures": ["LlamaForCausalLMEagle3"]}, "LMEagle3"),
    aim("parts", "EGL707", {**TARGET, "num_attention_heads": 32, "num_key_value_heads": 8}, "over 8 GPUs"),
    aim("sizes that start", "EGL707", {**TARGET, **MANY_HEADS}, "with --tensor-parallel-size 1 or 2 or 4"),
    aim("three heads", "EGL707", {**TARGET, **MANY_HEADS}, "-size 1", config=THREE, tensors=THREE_HEADS),
    aim("a larger target vocabulary", "EGL708", {**TARGET, "vocab_size": 80}, "the target has 80 tokens"),
    aim("an id past its rows", "EGL708", {**TARGET, "vocab_size": 80}, "ids up to 64", also=ONE_MORE),
    aim("another model's vocabulary", "EGL708", {**TARGET, "vocab_size": 128}, tensors=NO_EMBEDDING),
    aim("draft's vocab", "EGL302 EGL708", TARGET, config={"vocab_size": DRAFT}, tensors=NO_EMBEDDING),
    aim("another depth", "EGL709", TARGET, "(target_layer_count), and the target has 8", config=DEPTH),
    Patch("two depths", "EGL709", DEPTHS, "num_target_layers: 12; none is used", given=FAMILY),
    aim("a quantised target", "EGL712", quantised(NVFP4), "(compressed-tensors nvfp4)", given=FAMILY),
    aim("a part", "EGL712", {"text_config": quantised({"quant_method": "fp8"})}, "(fp8)", given=FAMILY),
    aim("a target with a LoRA adapter", "EGL712", TARGET, "sglang 34337", also=with_adapter, given=FAMILY),
    aim("a size that cannot be", "EGL716", FOUR_HEADS, "cannot be split over 3 GPUs", given=SPLIT_BY_3),
    aim("a target's own code", "EGL717", OWN_CODE, "with --trust-remote-code"),
)
GOOD = (
    aim("no token past a smaller target", "", SMALLER, tensors=FIRST_TOKENS),
    aim("rows of padding", "", {**TARGET, "vocab_size": 80}, also=tokenizers(None, unigram("a" * VOCAB))),
    aim("rows of padding, no tokenizer", "", PADDED, config={"vocab_size": 96}, tensors=NO_EMBEDDING),
    Patch("no target", "", given=FAMILY, blind=NEED_TARGET),
    aim("a target split alike", "", {**TARGET, "num_attention_heads": 4, "num_key_value_heads": 1}),
    aim("two spellings", "", TARGET, also=tokenizers(bpe("a", "b"), json.dumps(bpe("a", "b"), indent=1))),
    aim("no tokenizer beside the drafter", "", TARGET, also=tokenizers(None, bpe("a"))),
    aim("none there", "", TARGET, given=FAMILY, also=tokenizers(bpe("a"), None), blind=UNSEEN),
    aim("no tokenizer", "", TARGET, given=FAMILY, also=tokenizers("{", bpe("a")), blind=UNSEEN),
    aim("no tokens", "", TARGET, given=FAMILY, also=tokenizers({"model": 1}, bpe("a")), blind=UNSEEN),
)

test_a_target_gives_exactly_its_findings = exact(BAD + GOOD)


def test_a_target_of_another_width_is_one_finding_and_no_crash() -> None:
    done = call("validate", FIXTURES / "producers/vllm/native", "--target", FIXTURES / "tiny/target")
    assert done.code == 1
    assert "EGL701 target-mismatch" in done.out and "the target has width 128" in done.out


def test_added_tokens_count_where_a_target_has_no_tokenizer_json(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    assert token_count(source, 64) is None
    decoder = {"added_tokens_decoder": {"70": {"content": "<tool>"}, "x": {}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(decoder))
    assert (token_count(source, 64), token_count(source, 71)) == (71, None)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<think>": 80, "<odd>": "81"}))
    assert token_count(source, 64) == 81
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe("a")))
    assert token_count(source, 100) == 81


def test_convert_leaves_out_a_copy_of_the_targets_first_rows(tmp_path: Path) -> None:
    config, target = {**TARGET, "vocab_size": 128}, tmp_path / "target"
    rows = floats("rows", 128, HIDDEN)
    own = (rows[0], (VOCAB, HIDDEN), rows[2][: 2 * VOCAB * HIDDEN])
    weights = {"model.embed_tokens.weight": rows}
    target_of(target, weights, **config)
    (target / "tokenizer.json").write_text(json.dumps(unigram("a" * 70)))
    source = drafter_folder(tmp_path, tensors={"embed_tokens.weight": own})
    judged = call("validate", source, "--target", target, "--engine", "vllm")
    assert judged.code == 1 and "EGL1090" in judged.out
    out = tmp_path / "out"
    done = call("convert", source, "--for", "vllm", "--target", target, "-o", out)
    assert done.code == 0, done.out
    assert "embed_tokens.weight" not in stored_tensors(out)
    assert call("validate", out, "--target", target, "--engine", "vllm").code == 0
    # an embedding with other rows was trained: nothing mends it for vLLM
    other = drafter_folder(tmp_path, "other")
    assert call("convert", other, "--for", "vllm", "--target", target, "-o", tmp_path / "not").code == 1
