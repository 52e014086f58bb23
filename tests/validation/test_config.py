"""Rules on config.json, by itself and against the tensors: every bad case is a good drafter, a patch, and
its findings.
"""

import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy
from tests.builders import (
    ABSENT,
    DRAFT,
    HIDDEN,
    KV_HEADS,
    MLP,
    VOCAB,
    drafter_config,
    drafter_folder,
    floats,
    read_safetensors,
    write_safetensors,
)
from tests.cases import CASES, Case
from tests.validation.patches import Patch, check

TOKEN = "hf_" + "a" * 34
LAYER_KEYS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
)
TAKEN_BASE = {
    "answer": {"option": "--source-semantics", "value": "rope=20000"},
    "by": "given",
    "about": "rope_theta",
    "fact": {"theta": 20000.0, "scaling": None},
}
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


def left_out(folder: Path, name: str) -> None:
    """Take a tensor out of a drafter's file."""
    tensors = read_safetensors(folder / "model.safetensors")
    del tensors[name]
    write_safetensors(folder / "model.safetensors", tensors)


BAD = (
    Patch("no architecture", ("EGL101",), config={"architectures": ABSENT}, says="names no architecture"),
    Patch("an empty list of architectures", ("EGL101",), config={"architectures": []}),
    Patch(
        "a trainer's own class",
        ("EGL101",),
        config={"architectures": ["EagleLlamaModel"]},
        says="architectures is EagleLlamaModel; no engine",
    ),
    Patch(
        "a base that eaglectl.json records otherwise",
        ("EGL123",),
        files={"eaglectl.json": json.dumps({"settled": [TAKEN_BASE]}).encode()},
        given={"select": ["EGL123"]},
        says='eaglectl.json records {"theta": 20000.0, "scaling": null}',
    ),
    Patch("a target's class", ("EGL101",), config={"architectures": ["Gemma3ForCausalLM"]}),
    Patch(
        "q/k norms in the plain class",
        ("EGL101",),
        tensors=QUERY_NORMS,
        says="plain attention, and the tensors are of q/k norms",
    ),
    Patch(
        "the q/k norms' class without them",
        ("EGL101",),
        config={"architectures": ["Eagle3Qwen3ForCausalLM"]},
        says="of plain attention",
    ),
    Patch(
        "the MLA class without MLA",
        ("EGL101",),
        config={"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
        given={"select": ["EGL1", "EGL2"]},
    ),
    Patch(
        "vLLM's own spelling",
        ("EGL119",),
        config={"architectures": ["Eagle3LlamaForCausalLM"]},
        says="known to vLLM alone; LlamaForCausalLMEagle3",
    ),
    Patch(
        "TensorRT-LLM's own class",
        ("EGL119",),
        config={"architectures": ["LlamaForCausalLMEagle3Deep"]},
        given={"select": ["EGL1"]},
        says="known to TensorRT-LLM alone",
    ),
    Patch(
        "a Medusa head",
        ("EGL103",),
        config={"medusa_num_heads": 4},
        says="a Medusa head (config.json has medusa_num_heads)",
    ),
    Patch(
        "an EAGLE-1 head",
        ("EGL103",),
        tensors={"layers.0.hidden_norm.weight": None, "fc.weight": floats("f", HIDDEN, 2 * HIDDEN)},
    ),
    Patch("a null switch", ("EGL104",), config={"use_cache": None}, says="use_cache is null"),
    Patch("a null width of the target", ("EGL104",), config={"target_hidden_size": None}),
    Patch("a null number of layers", ("EGL104",), config={"num_hidden_layers": None}),
    Patch(
        "the target's number of layers",
        ("EGL105",),
        config={"num_hidden_layers": 32},
        says="num_hidden_layers: 32, and the tensors say 1",
    ),
    Patch(
        "no number of layers",
        ("EGL105",),
        config={"num_hidden_layers": ABSENT},
        says="its class then means 32",
    ),
    Patch(
        "another head_dim", ("EGL106",), config={"head_dim": 16}, says="as of 2 heads of 16 or 4 heads of 8"
    ),
    Patch(
        "no head_dim where it does not follow",
        ("EGL106",),
        config={"head_dim": ABSENT},
        says="hidden_size/num_attention_heads = 4",
    ),
    Patch(
        "a tied head beside its own",
        ("EGL107",),
        config={"tie_word_embeddings": True},
        says="SGLang would use the embedding",
    ),
    Patch(
        "a head tied to the drafter's embedding",
        ("EGL107",),
        config={"tie_word_embeddings": True, "draft_vocab_size": VOCAB},
        tensors={"lm_head.weight": None, "d2t": None},
        says="trained with its embedding as head",
    ),
    Patch(
        "a bias stated and not there",
        ("EGL108",),
        config={"attention_bias": True},
        says="attention_bias: true and the file has no such bias",
    ),
    Patch(
        "biases not stated",
        ("EGL108",),
        tensors={
            f"layers.0.mlp.{part}_proj.bias": floats(part, size)
            for part, size in (("gate", MLP), ("up", MLP), ("down", HIDDEN))
        },
        says="does not say mlp_bias: true",
    ),
    Patch("a bias on fc", ("EGL108",), tensors={"fc.bias": floats("b", HIDDEN)}, says="fc.bias has no place"),
    Patch(
        "a path of the trainer",
        ("EGL109",),
        config={"_name_or_path": "/mnt/user/outputs/epoch_9"},
        says="_name_or_path is '/mnt/user/outputs/epoch_9'",
    ),
    Patch(
        "a target that is a path",
        ("EGL109",),
        also=lambda folder: speculators(
            folder, speculators_config={"verifier": {"name_or_path": "/model/from_s3"}}
        ),
        says="speculators_config.verifier.name_or_path",
    ),
    Patch(
        "a path in a list",
        ("EGL109",),
        config={"trained_on": ["org/data", "C:\\data\\chats"]},
        says="trained_on[1]",
    ),
    Patch(
        "norm_before_residual unstated",
        ("EGL110",),
        config={"norm_before_residual": ABSENT},
        says="read as false here",
    ),
    Patch(
        "two dtypes",
        ("EGL111",),
        config={"dtype": "float16", "torch_dtype": "bfloat16"},
        given={"ignore": ["EGL211"]},
        says="torch_dtype is bfloat16 and dtype is float16",
    ),
    Patch(
        "a switch that says both",
        ("EGL111",),
        config={"eagle_config": {"norm_output": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}},
        says="norm_output: False and eagle_config.norm_output: True",
    ),
    Patch(
        "levels of a speculators config that differ",
        ("EGL111",),
        also=lambda folder: speculators(folder, rms_norm_eps=1e-5),
        says="rms_norm_eps is 1e-05 at the top and 1e-06 in transformer_layer_config",
    ),
    Patch(
        "a text for a number",
        ("EGL112",),
        config={"rms_norm_eps": "1e-6"},
        says="rms_norm_eps is '1e-6'; a number was expected",
    ),
    Patch("a number for a switch", ("EGL112",), config={"norm_output": 1}, says="true or false was expected"),
    Patch("layers as a text", ("EGL112",), config={"eagle_aux_hidden_state_layer_ids": "2,4,5"}),
    Patch("a list for an object", ("EGL112",), config={"eagle_config": []}),
    Patch("another activation", ("EGL113",), config={"hidden_act": "gelu"}, says="hidden_act is 'gelu'"),
    Patch(
        "another width",
        ("EGL114",),
        config={"hidden_size": 32},
        says="hidden_size: 32, and the tensors say 16",
    ),
    Patch("another MLP", ("EGL114",), config={"intermediate_size": 32}),
    Patch(
        "another number of key heads",
        ("EGL114",),
        config={"num_key_value_heads": 4},
        says=f"rows for {KV_HEADS}",
    ),
    Patch(
        "another draft vocabulary", ("EGL114",), config={"draft_vocab_size": 32}, says="draft_vocab_size: 32"
    ),
    Patch(
        "no draft vocabulary",
        ("EGL114",),
        config={"draft_vocab_size": ABSENT},
        says=f"a head of {VOCAB} rows, and it has {DRAFT}",
    ),
    Patch(
        "no width",
        ("EGL114",),
        config={"hidden_size": ABSENT},
        says="its class then means 4096, and the tensors have 16",
    ),
    Patch(
        "no number of heads",
        ("EGL114",),
        config={"num_attention_heads": ABSENT},
        says="config.json has no num_attention_heads",
    ),
    Patch(
        "a target's width unstated",
        ("EGL114",),
        config={"target_hidden_size": ABSENT, "fc_norm": True, "norm_output": True},
        tensors={
            "fc.weight": floats("f", HIDDEN, 72),
            **{f"fc_norm.{i}.weight": floats(str(i), 24) for i in range(3)},
        },
        says="aux states 16 wide, and fc takes 24",
    ),
    Patch(
        "a token of the Hub",
        ("EGL115",),
        config={"notes": f"made with {TOKEN}"},
        says="config.json holds a Hugging Face token (line 1)",
    ),
    Patch(
        "a parallel drafter without its token",
        ("EGL116",),
        tensors={"mask_hidden": floats("m", 1, 1, HIDDEN)},
        given={"ignore": ["EGL4"]},
        says="names no mask token",
    ),
    Patch(
        "a parallel drafter without its mask",
        ("EGL116",),
        also=lambda folder: left_out(folder, "mask_hidden"),
        fixture="speculators/peagle",
        given={"ignore": ["EGL608"]},
        says="without mask_hidden",
    ),
    Patch(
        "no final norm in training",
        ("EGL117",),
        config={
            "architectures": ["LlamaForCausalLMEagle3"],
            **dict.fromkeys(("norm_before_fc", "norm_before_residual", "num_aux_hidden_states"), ABSENT),
        },
        also=lambda folder: as_specforge(folder),
        given={"select": ["EGL117", "EGL5"], "answers": Answers(semantics={"specforge": "pre-879"})},
        says="no final norm at all",
    ),
    Patch("no model_type", ("EGL118",), config={"model_type": ABSENT}, says="config has no model_type"),
    Patch(
        "a speculators config with a model_type",
        ("EGL118",),
        also=lambda folder: speculators(folder, model_type="speculator_model"),
        says="model_type: 'speculator_model' at its top",
    ),
    Patch(
        "a model_type that no drafter has",
        ("EGL118",),
        config={"model_type": "eagle"},
        says="model_type is 'eagle', which no drafter's class reads",
    ),
    Patch(
        "a layer of another type",
        ("EGL118",),
        also=lambda folder: speculators(
            folder,
            transformer_layer_config={
                **{key: drafter_config()[key] for key in LAYER_KEYS},
                "model_type": "mistral",
            },
        ),
        given={"select": ["EGL1"]},
        says="'mistral'",
    ),
    Patch(
        "a speculators config that lacks what vLLM knows it by",
        ("EGL118",),
        also=lambda folder: speculators(folder, speculators_config=None),
        given={"select": ["EGL1"]},
        says="without speculators_config",
    ),
    Patch(
        "a layer of Qwen3 without its norms",
        ("EGL118",),
        also=lambda folder: speculators(
            folder,
            transformer_layer_config={
                **{key: drafter_config()[key] for key in LAYER_KEYS},
                "model_type": "qwen3",
            },
        ),
        given={"select": ["EGL1"]},
        says="and the file has no q_norm",
    ),
    Patch(
        "a speculators config that does not say so",
        ("EGL118",),
        also=lambda folder: speculators(folder, speculators_model_type=None),
        given={"select": ["EGL1"]},
        says="no speculators_model_type",
    ),
    Patch(
        "architectures as a text",
        ("EGL101",),
        config={"architectures": "LlamaForCausalLMEagle3"},
        says="a list of names is needed",
    ),
    Patch(
        "an unknown dtype",
        ("EGL112",),
        config={"torch_dtype": "float99"},
        given={"ignore": ["EGL211"]},
        says="torch_dtype is 'float99'",
    ),
    Patch(
        "layer ids under a key that nothing reads",
        ("EGL122",),
        config={"eagle_aux_layers": [2, 4, 6]},
        says="eagle_aux_layers: [2, 4, 6]",
    ),
    Patch(
        "a norm switch that nothing reads",
        ("EGL122",),
        config={"norm_after_fc": True},
        says="may be a norm switch; pass --source-semantics harmless=norm_after_fc",
    ),
    Patch(
        "a rope setting that nothing reads",
        ("EGL122",),
        config={"rope_ratio": 500},
        says="may be a rope setting",
    ),
    Patch(
        "a vocabulary map that nothing reads",
        ("EGL122",),
        config={"draft_to_target": [0, 4]},
        says="may be a vocabulary map",
    ),
    Patch(
        "a class that the policy does not allow",
        ("EGL120",),
        given={"policy": Policy(allowed={"architectures": ("Eagle3Qwen3*",)})},
        says="LlamaForCausalLMEagle3 is not among Eagle3Qwen3*",
    ),
)


def as_specforge(folder: Path) -> None:
    """Names and t2d as SpecForge writes them."""
    from tests.builders import mask, read_safetensors, write_safetensors

    path = folder / "model.safetensors"
    tensors = {name.replace("layers.0.", "midlayer."): one for name, one in read_safetensors(path).items()}
    write_safetensors(path, {**tensors, "t2d": mask()})


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_a_bad_config_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_speculators_config_is_good(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    speculators(folder)
    assert not [
        one
        for one in eaglectl.validate(
            str(folder), eaglectl.ValidateOptions(ignore=["EGL4"], has_engines=False)
        ).findings
        if one.severity != "note"
    ]


def test_an_allowed_class_is_allowed(tmp_path: Path) -> None:
    policy = Policy(allowed={"architectures": ("LlamaForCausalLM*",)})
    assert not eaglectl.validate(
        str(drafter_folder(tmp_path)), eaglectl.ValidateOptions(policy=policy)
    ).findings


# what reading a producer's files must find, and no more: the classes and counts that no engine serves as they
# are
FOUND = {
    "deepspec/qwen3": {"EGL101"},
    "speco/peagle": {"EGL101", "EGL118"},
    "specforge/peagle": {"EGL101"},
    "angelslim/gqa": {"EGL107"},
    "angelslim/cosyvoice": {"EGL101", "EGL105", "EGL107"},
    "automodel/gqa": {"EGL101", "EGL105"},
    "automodel/eagle3.1": {"EGL101", "EGL105"},
    "automodel/mla": {"EGL101", "EGL105", "EGL117"},
    "modelopt/hf-mla": {"EGL114"},
    "sglang/aux-norm": {"EGL506"},
}


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_a_producers_file_has_no_other_fault(case: Case) -> None:
    families = ["EGL1", "EGL2", "EGL5", "EGL8"]
    # the fixtures' numbers are noise, which the rules on values may say
    values = [f"EGL{number}" for number in (205, 206, 207, 208)]
    report = eaglectl.validate(
        str(case.folder),
        eaglectl.ValidateOptions(answers=case.answered(), select=families, headers_only=True),
    )
    found = {one.rule.id for one in report.findings if one.severity != "note"} - set(values)
    assert found == FOUND.get(case.path, set())
