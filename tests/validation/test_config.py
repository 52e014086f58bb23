"""Rules on config.json, by itself and against the tensors: bad cases, each with exactly its findings."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import (
    ABSENT,
    DRAFT,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    MLP,
    VOCAB,
    drafter_config,
    drafter_folder,
    floats,
    mask,
    read_safetensors,
    write_safetensors,
)
from tests.validation.judging import PRODUCERS
from tests.validation.patches import Patch, add, exact, only, store, without

TOKEN = "hf_" + "a" * 34
LAYER_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
    "hidden_act", "attention_bias", "mlp_bias", "rope_theta",
)  # fmt: skip
VERIFIER = {"verifier": {"name_or_path": "/model/from_s3"}}
BASE = {"theta": 20000.0, "scaling": None}
ANSWERED = {"answer": {"option": "--source-semantics", "value": "rope=20000"}, "by": "given"}
TAKEN_BASE = {**ANSWERED, "about": "rope_theta", "fact": BASE}
RECORD = {"eaglectl.json": json.dumps({"settled": [TAKEN_BASE]}).encode()}
BARE = {
    **dict.fromkeys(("norm_before_fc", "norm_before_residual", "num_aux_hidden_states"), ABSENT),
    "architectures": ["LlamaForCausalLMEagle3"],
}
OLD = {"select": ["EGL117", "EGL5"], "answers": Answers(semantics={"specforge": "pre-879"})}
QWEN3 = {"policy": Policy(allow=AllowTable(architectures=("Eagle3Qwen3*",)))}
TIED = {"tie_word_embeddings": True, "draft_vocab_size": VOCAB}
BOTH = {"eagle_config": {"norm_output": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
NO_WIDTH = {"target_hidden_size": ABSENT, "fc_norm": True, "norm_output": True}
NO_HEAD = {"lm_head.weight": None, "d2t": None}
MASK = {"mask_hidden": floats("m", 1, 1, 3 * HIDDEN)}
WIDER = {f"fc_norm.{i}.weight": floats(str(i), 24) for i in range(3)}
WIDER["fc.weight"] = floats("f", HIDDEN, 72)
MLP_BIASES = {f"layers.0.mlp.{part}_proj.bias": floats(part, MLP) for part in ("gate", "up")}
MLP_BIASES["layers.0.mlp.down_proj.bias"] = floats("down", HIDDEN)
QUERY_NORMS = {f"layers.0.self_attn.{part}_norm.weight": floats(part, 8) for part in "qk"}


def speculators(folder: Path, **changes: object) -> None:
    """Rewrite the config as speculators spells it; `changes` are for the top."""
    flat = drafter_config()
    layer = {key: flat.pop(key) for key in LAYER_KEYS}
    for key in ("eagle_config", "num_aux_hidden_states", "rope_scaling"):
        flat.pop(key)
    top = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
    }
    verifier = {"speculators_config": {"verifier": {"name_or_path": "org/target"}}}
    (folder / "config.json").write_text(json.dumps({**flat, **top, **verifier, **changes}))


def without_mask(folder: Path) -> None:
    tensors = read_safetensors(folder / "model.safetensors")
    del tensors["mask_hidden"]
    write_safetensors(folder / "model.safetensors", tensors)


def as_specforge(folder: Path) -> None:
    """Names and t2d as SpecForge writes them."""
    path = folder / "model.safetensors"
    tensors = {name.replace("layers.0.", "midlayer."): one for name, one in read_safetensors(path).items()}
    write_safetensors(path, {**tensors, "t2d": mask()})


LAYER = "transformer_layer_config"


def spoken(why: str, finds: str, says: str, **changes: object) -> Patch:
    """A config as speculators spells it, with these changes at its top, under the rules on configs."""
    rewrite = partial(speculators, **changes)
    return Patch(why, finds, says=says, also=rewrite, given=only("EGL1"))


def layer_of(model_type: str) -> dict[str, Any]:
    """The layer's config with this model_type."""
    layer = {key: drafter_config()[key] for key in LAYER_KEYS}
    return {"transformer_layer_config": {**layer, "model_type": model_type}}


def of_class(name: str) -> dict[str, Any]:
    return {"architectures": [name]}


def inside(fixture: str, finds: str, **keys: Any) -> Patch:
    """A producer's drafter with these keys in its config, at any depth."""
    config = json.loads((PRODUCERS / fixture / "config.json").read_text())
    for key, value in keys.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    given = {"headers_only": True, **without("EGL4")}
    return Patch(f"{fixture} with {keys}", finds, config, fixture=fixture, given=given)


BAD = (
    Patch("no architecture", "EGL101", {"architectures": ABSENT}, "names no architecture"),
    Patch("an empty list of architectures", "EGL101", {"architectures": []}),
    Patch("trainer's class", "EGL101", of_class("EagleLlamaModel"), "EagleLlamaModel; no engine"),
    add("another base in the record", "EGL123", RECORD, f"records {json.dumps(BASE)}", given=only("EGL123")),
    Patch("a target's class", "EGL101", of_class("Gemma3ForCausalLM")),
    store("q/k norms in the plain class", "EGL101", QUERY_NORMS, "the tensors have q/k norms"),
    Patch("class of q/k norms", "EGL101", of_class("Eagle3Qwen3ForCausalLM"), "plain attention"),
    Patch("MLA class", "EGL101", of_class("Eagle3DeepseekV2ForCausalLM"), given=only("EGL1", "EGL2")),
    Patch(
        "vLLM's own spelling",
        "EGL119",
        of_class("Eagle3LlamaForCausalLM"),
        "only vLLM knows Eagle3LlamaForCausalLM",
    ),
    Patch(
        "TensorRT-LLM's",
        "EGL119",
        of_class("LlamaForCausalLMEagle3Deep"),
        "only TensorRT-LLM knows",
        given=only("EGL1"),
    ),
    Patch("a VWN drafter", "EGL103", {"vwn_m": 4}, "json has vwn_m"),
    store("EAGLE-1 head", "EGL103", {"layers.0.hidden_norm.weight": None, "fc.weight": floats("f", 16, 32)}),
    Patch("a null switch", "EGL104", {"use_cache": None}, "use_cache is null"),
    Patch("a null width of the target", "EGL104", {"target_hidden_size": None}),
    Patch("a null number of layers", "EGL104", {"num_hidden_layers": None}),
    Patch("the target's number of layers", "EGL105", {"num_hidden_layers": 32}, "and the tensors say 1"),
    Patch("no number of layers", "EGL105", {"num_hidden_layers": ABSENT}, "the class's default is 32"),
    Patch("another head_dim", "EGL106", {"head_dim": 16}, "head_dim 16 = 64, and q_proj has 32 rows"),
    Patch("no head_dim to derive", "EGL106", {"head_dim": ABSENT}, "hidden_size/num_attention_heads = 4"),
    Patch("a tied head beside its own", "EGL107", {"tie_word_embeddings": True}, "would use the embedding"),
    Patch("a head tied to the embedding", "EGL107", TIED, "its embedding as lm_head", tensors=NO_HEAD),
    Patch("a bias stated and not there", "EGL108", {"attention_bias": True}, "the file has no such bias"),
    store("biases not stated", "EGL108", MLP_BIASES, "does not say mlp_bias: true"),
    store("a bias on fc", "EGL108", {"fc.bias": floats("b", HIDDEN)}, "no engine has fc.bias"),
    Patch("path of trainer", "EGL109", {"_name_or_path": "/mnt/user/outputs/epoch_9"}, "_name_or_path is"),
    spoken("a target's path", "EGL109", "speculators_config.verifier.name", speculators_config=VERIFIER),
    Patch("a path in a list", "EGL109", {"trained_on": ["org/data", "C:\\data\\chats"]}, "trained_on[1]"),
    Patch(
        "norm_before_residual unstated",
        "EGL110",
        {"norm_before_residual": ABSENT},
        "eaglectl reads it as false",
    ),
    Patch(
        "two dtypes", "EGL111", {"dtype": "float16"}, "bfloat16 and dtype is float16", given=without("EGL211")
    ),
    Patch("a switch that says both", "EGL111", BOTH, "norm_output: False and eagle_config.norm_output: True"),
    spoken(
        "levels of other dtypes", "", "", **{LAYER: {**layer_of("llama")[LAYER], "torch_dtype": "float16"}}
    ),
    spoken("levels that differ", "EGL111", "rms_norm_eps is 1e-05 at the top and 1e-06", rms_norm_eps=1e-5),
    Patch("a text for a number", "EGL112", {"rms_norm_eps": "1e-6"}, "is '1e-6'; a number was expected"),
    Patch("a number for a switch", "EGL112", {"norm_output": 1}, "true or false was expected"),
    Patch("layers as a text", "EGL112", {"eagle_aux_hidden_state_layer_ids": "2,4,5"}),
    Patch("a list for an object", "EGL112", {"eagle_config": []}),
    Patch("another activation", "EGL113", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    Patch("another width", "EGL114", {"hidden_size": 32}, "hidden_size: 32, and the tensors say 16"),
    Patch("another MLP", "EGL114", {"intermediate_size": 32}),
    Patch("another number of key heads", "EGL114", {"num_key_value_heads": 4}, f"rows for {KV_HEADS}"),
    Patch("another draft vocabulary", "EGL114", {"draft_vocab_size": 32}, "draft_vocab_size: 32"),
    Patch(
        "no draft vocabulary",
        "EGL114",
        {"draft_vocab_size": ABSENT},
        f"{VOCAB} rows, and the file's has {DRAFT}",
    ),
    Patch("no width", "EGL114", {"hidden_size": ABSENT}, "default is 4096, and the tensors have 16"),
    Patch("no number of heads", "EGL114", {"num_attention_heads": ABSENT}, "no num_attention_heads"),
    Patch("a target's width unstated", "EGL114", NO_WIDTH, "width 16, and its width is 24", tensors=WIDER),
    Patch("a token of the Hub", "EGL115", {"notes": f"made with {TOKEN}"}, "holds a Hugging Face token"),
    store("no mask token", "EGL116", MASK, "names no mask token", given=without("EGL4")),
    Patch(
        "a parallel drafter without its mask",
        "EGL116",
        says="has no mask_hidden",
        also=without_mask,
        fixture="speculators/peagle",
        given=without("EGL608"),
    ),
    Patch("no final norm in training", "EGL117", BARE, "no final norm at all", also=as_specforge, given=OLD),
    Patch("no model_type", "EGL118", {"model_type": ABSENT}, "config has no model_type"),
    spoken(
        "model_type at the top",
        "EGL118",
        "'speculator_model' at the top level",
        model_type="speculator_model",
    ),
    Patch("a model_type that no drafter has", "EGL118", {"model_type": "eagle"}, "model_type is 'eagle"),
    spoken("a layer of another type", "EGL118", "'mistral'", **layer_of("mistral")),
    spoken("without what vLLM knows it by", "EGL118", "has no speculators_config", speculators_config=None),
    spoken("Qwen3 without norms", "EGL118", "the file has no q_norm", **layer_of("qwen3")),
    spoken("it does not say so", "EGL118", "no speculators_model_type", speculators_model_type=None),
    Patch("architectures as text", "EGL101", {"architectures": "LlamaForCausalLMEagle3"}, "a list of names"),
    Patch("an unknown dtype", "EGL112", {"torch_dtype": "float99"}, "'float99'", given=without("EGL211")),
    Patch("ids under unread key", "EGL122", {"eagle_aux_layers": [2, 4, 6]}, "eagle_aux_layers: [2, 4, 6]"),
    Patch("a norm switch that nothing reads", "EGL122", {"norm_after_fc": True}, "harmless=norm_after_fc"),
    Patch("a rope setting that nothing reads", "EGL122", {"rope_ratio": 500}, "may be a rope setting"),
    Patch("vocabulary map that nothing reads", "EGL122", {"draft_to_target": [0, 4]}, "may be a vocabulary"),
    Patch("a class not allowed", "EGL120", given=QWEN3, says="LMEagle3 is not among Eagle3Qwen3*"),
    # one defect, which several rules could see
    store("an embedding cut short", "EGL114", {"embed_tokens.weight": floats("e", 48, HIDDEN)}),
    store("shorter than the draft vocabulary", "EGL114", {"embed_tokens.weight": floats("e", 20, HIDDEN)}),
    Patch("vocab_size too small", "EGL302", {"vocab_size": 48}, tensors={"embed_tokens.weight": None}),
    Patch("a type that is a list", "EGL112", {"torch_dtype": ["bfloat16"]}),
    Patch("a type that is none", "EGL112", {"torch_dtype": "bf16"}),
    Patch("a null that reading needs", "EGL104", {"num_attention_heads": None}),
    inside("modelopt/hf", "EGL112", eagle_config={"use_aux_hidden_state": [1]}),
    inside("torchspec/mla", "EGL112", eagle_config={"use_aux_hidden_state": "yes"}),
    inside("torchspec/mla", "EGL104", num_attention_heads=None),
    inside("speculators/eagle3.1", "EGL112", transformer_layer_config=[1]),
    inside("speculators/eagle3.1", "EGL104", transformer_layer_config={"num_attention_heads": None}),
)


test_a_bad_config_gives_exactly_its_findings = exact(BAD)


def test_a_speculators_config_is_good(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    speculators(folder)
    report = eaglectl.validate(folder, ignore=["EGL4"], has_engines=False)
    assert {finding.severity for finding in report.findings} <= {"note"}


def test_a_bias_key_that_engines_do_not_read_for_the_class_is_no_finding(tmp_path: Path) -> None:
    shutil.copytree(PRODUCERS / "vllm/mla", mla := tmp_path / "mla")
    norms = {f"layers.0.self_attn.{part}_norm.weight": floats(part, HEAD_DIM) for part in "qk"}
    names = {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    qwen3 = drafter_folder(tmp_path, config=names, tensors=norms)
    for folder, key in ((mla, "attention_bias"), (qwen3, "mlp_bias")):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: True}))
        report = eaglectl.validate(folder, select=["EGL108"], has_engines=False)
        assert not report.findings, key
