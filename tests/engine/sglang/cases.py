"""The drafters that SGLang was run with: those of the vLLM records that its classes can take, and its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.builders import ABSENT, integers
from tests.engine.agreement import cases as shared
from tests.engine.agreement.bases import (
    DRAFT,
    DRAFTED,
    HIDDEN,
    MLP,
    VOCAB,
    Files,
    drafter,
    target,
    uniform,
)
from tests.engine.agreement.drawn import drawn
from tests.engine.agreement.edits import Edit, add, both, cast, config, drop, fill, inside, noise, rename
from tests.engine.agreement.listed import LISTED
from tests.engine.agreement.plain import ATTENTION, IDS, KEYS, NESTED, ROWS, second_layer

# on a CPU SGLang builds DeepSeek's YaRN rope only
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A changed drafter, the kind of its target, and whether it is loaded only."""

    base: str
    make: Callable[[], Files]
    edit: Edit
    kind: str = "llama"
    is_loaded_only: bool = False

    def files(self) -> Files:
        files = self.make()
        self.edit(files)
        return files


def unchanged(files: Files) -> None:
    """The good drafter itself."""


def nested(*ids: Any) -> Edit:
    """The ids that SGLang reads."""
    return inside(NESTED, **{IDS: list(ids)})


def biases(**parts: int) -> Edit:
    return both(*(add(f"{ATTENTION}{part}_proj.bias", uniform(part, rows)) for part, rows in parts.items()))


def one_state(value: float | None = None) -> Edit:
    """One aux state, and fc and fc_norm for one; fc of one number where it is given."""
    edits = [
        config(num_aux_hidden_states=1, **{IDS: [4]}),
        nested(3),
        drop("fc_norm.1.weight", "fc_norm.2.weight"),
        noise("fc.weight", HIDDEN, HIDDEN),
    ]
    return both(*edits, *([] if value is None else [fill("fc.weight", value)]))


def four_states() -> Edit:
    return both(noise("fc.weight", HIDDEN, 4 * HIDDEN), noise("fc_norm.3.weight", HIDDEN))


# on llama31: fc_norm, norm_output, boundaries 1, 4, 6, a reduced vocabulary
SGLANG_31: dict[str, Edit] = {
    "nested ids 0, 2, 6": both(config(**{IDS: [1, 3, 7]}), nested(0, 2, 6)),
    "nested ids unsorted": both(config(**{IDS: [6, 1, 4]}), nested(5, 0, 3)),
    "nested ids twice the same": both(config(**{IDS: [1, 4, 4]}), nested(0, 3, 3)),
    "nested ids empty": nested(),
    "nested ids null": inside(NESTED, **{IDS: None}),
    "nested id of the last layer": both(config(**{IDS: [1, 4, 8]}), nested(0, 3, 7)),
    "nested id -1": both(config(**{IDS: [0, 4, 6]}), nested(-1, 3, 5)),
    "nested id past the depth": both(config(**{IDS: [1, 4, 9]}), nested(0, 3, 8)),
    "nested layer_ids": both(config(**{IDS: ABSENT, NESTED: {"layer_ids": [0, 3, 5]}})),
    "eagle_config absent": config(**{NESTED: ABSENT}),
    "eagle_config null": config(**{NESTED: None}),
    "eagle_config absent, ids absent": config(**{NESTED: ABSENT, IDS: ABSENT}),
    "one aux state": one_state(),
    "one aux state, fc of zeros": one_state(0.0),
    "one aux state, not counted": both(one_state(), config(num_aux_hidden_states=ABSENT)),
    "four nested ids": both(
        four_states(), config(num_aux_hidden_states=ABSENT, **{IDS: [1, 2, 4, 6]}), nested(0, 1, 3, 5)
    ),
    "four ids at the top alone": both(
        four_states(), config(num_aux_hidden_states=ABSENT, **{IDS: [1, 2, 4, 6], NESTED: ABSENT})
    ),
    "architecture Eagle3LlamaForCausalLM": config(architectures=["Eagle3LlamaForCausalLM"]),
    "architecture LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "architectures absent": config(architectures=ABSENT),
    "norm_before_residual": config(norm_before_residual=True),
    "q and k norms": both(
        noise(f"{ATTENTION}q_norm.weight", HIDDEN), noise(f"{ATTENTION}k_norm.weight", HIDDEN)
    ),
    "parallel": both(config(mask_token_id=0, ptd_token_id=0), noise("mask_hidden", 1, 3 * HIDDEN)),
    "attention_bias": both(config(attention_bias=True), biases(q=ROWS, k=KEYS, v=KEYS)),
    "attention_bias with o": both(config(attention_bias=True), biases(q=ROWS, k=KEYS, v=KEYS, o=HIDDEN)),
    "biases unstated": biases(q=ROWS, k=KEYS, v=KEYS),
    "bias true, fc.bias": both(config(bias=True), noise("fc.bias", HIDDEN)),
    "fc.bias alone": noise("fc.bias", HIDDEN),
    "mlp_bias": both(
        config(mlp_bias=True),
        noise("layers.0.mlp.gate_proj.bias", MLP),
        noise("layers.0.mlp.up_proj.bias", MLP),
        noise("layers.0.mlp.down_proj.bias", HIDDEN),
    ),
    "draft_vocab_size null, its own lm_head": both(
        config(draft_vocab_size=None), drop("d2t"), noise("lm_head.weight", VOCAB, HIDDEN)
    ),
    "draft_vocab_size null, no lm_head": both(config(draft_vocab_size=None), drop("d2t", "lm_head.weight")),
    "draft_vocab_size too big": config(draft_vocab_size=DRAFT + 64),
    "draft_vocab_size too small": config(draft_vocab_size=DRAFT - 64),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "full vocabulary, identity d2t": both(
        config(draft_vocab_size=VOCAB),
        add("d2t", integers(*[0] * VOCAB)),
        noise("lm_head.weight", VOCAB, HIDDEN),
    ),
    "d2t missing": drop("d2t"),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
    "its own embed_tokens": noise("embed_tokens.weight", VOCAB, HIDDEN),
    "no embed_tokens": drop("embed_tokens.weight"),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "two layers told": config(num_hidden_layers=2),
    "two layers, input_layernorm": both(config(num_hidden_layers=2), second_layer()),
    "two layers, hidden_norm": both(
        config(num_hidden_layers=2),
        second_layer(),
        rename("layers.1.input_layernorm", "layers.1.hidden_norm"),
    ),
    "use_aux_norm": config(fc_norm=ABSENT, use_aux_norm=True),
    "aux_norm names": both(
        rename("fc_norm.0", "aux_norm_low"),
        rename("fc_norm.1", "aux_norm_mid"),
        rename("fc_norm.2", "aux_norm_high"),
    ),
    "norm_before_fc unstated": noise("input_norm.weight", 3 * HIDDEN),
    "norm_before_fc": both(config(norm_before_fc=True), noise("input_norm.weight", 3 * HIDDEN)),
    "norm_before_fc, nested false": both(
        config(norm_before_fc=True),
        inside(NESTED, norm_before_fc=False),
        noise("input_norm.weight", 3 * HIDDEN),
    ),
    "sliding window": config(layer_types=["sliding_attention"], sliding_window=8, use_sliding_window=True),
    "target_hidden_size null": config(target_hidden_size=None),
    "rope_theta alone": config(rope_theta=12345.0, rope_scaling=ABSENT),
    "rope_parameters alone": config(
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters={"rope_type": "default", "rope_theta": 12345.0},
    ),
    "no rope": config(rope_theta=ABSENT, rope_scaling=ABSENT),
    "hidden_act gelu": config(hidden_act="gelu"),
    "head_dim absent": config(head_dim=ABSENT),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "model. before all but the head": both(
        rename("", "model."), rename("model.lm_head", "lm_head"), rename("model.d2t", "d2t")
    ),
    "model. before all": rename("", "model."),
    "midlayer.": rename("layers.0.", "midlayer."),
    "an unknown tensor": noise("verifier_norm.weight", HIDDEN),
    "weights of bfloat16": both(
        cast("", "BF16"), drop("embed_tokens.weight"), config(torch_dtype="bfloat16")
    ),
}
# on a Qwen3 target, with a drafter of SGLang's one class
QWEN_TARGET: dict[str, Edit] = {
    "none": unchanged,
    "nested ids 0, 2, 6": both(config(**{IDS: [1, 3, 7]}), nested(0, 2, 6)),
    "nested id -1": both(config(**{IDS: [0, 4, 6]}), nested(-1, 3, 5)),
    "nested id of the last layer": both(config(**{IDS: [1, 4, 8]}), nested(0, 3, 7)),
    "nested ids unsorted": both(config(**{IDS: [6, 1, 4]}), nested(5, 0, 3)),
    "eagle_config absent": config(**{NESTED: ABSENT}),
    "eagle_config absent, default ids": config(**{NESTED: ABSENT, IDS: [2, 4, 5]}),
    "eagle_config absent, ids absent": config(**{NESTED: ABSENT, IDS: ABSENT}),
    "norm_output absent": config(norm_output=ABSENT),
    "fc_norm absent": config(fc_norm=ABSENT),
    "model_type qwen3": config(model_type="qwen3"),
    "head_dim absent": config(head_dim=ABSENT),
}
LATENT = f"{ATTENTION}kv_b_proj.weight"
MLA: dict[str, Edit] = {
    "midlayer.": rename("layers.0.", "midlayer."),
    "model. before all": rename("", "model."),
    "two layers told": config(num_hidden_layers=2),
    "kv_b_proj of int8": cast(LATENT, "U8"),
    "fc_norm absent": config(fc_norm=ABSENT),
    "use_aux_norm": config(fc_norm=ABSENT, use_aux_norm=True),
    "draft_vocab_size null, its own lm_head": config(draft_vocab_size=None),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "no lm_head": drop("lm_head.weight"),
    "four states": four_states(),
    "fc.bias": noise("fc.bias", HIDDEN),
    "mlp_bias": both(config(mlp_bias=True), noise("layers.0.mlp.down_proj.bias", HIDDEN)),
}


def qwen_drafter() -> Files:
    """llama31's drafter with the embedding of the Qwen3 target."""
    files = drafter("llama31")
    files.tensors["embed_tokens.weight"] = target("qwen3").tensors["model.embed_tokens.weight"]
    return files


def mla_drafter(name: str) -> Files:
    """A good MLA drafter with the rope that SGLang builds on a CPU."""
    files = drafter(name)
    files.config["rope_scaling"] = dict(YARN)
    return files


# of the cases that vLLM was run with, every nth of a base is run with SGLang too
SHARED = {"llama3": 2, "llama31": 1, "llama-shared": 1, "llama-fresh": 1, "speculators31": 4}


def _own() -> dict[str, Case]:
    """Cases that concern SGLang alone."""
    found = {
        f"llama31/sglang: {name}": Case("llama31", partial(drafter, "llama31"), edit)
        for name, edit in SGLANG_31.items()
    }
    found |= {
        f"qwen3-target/{name}": Case("qwen3-target", qwen_drafter, edit, "qwen3")
        for name, edit in QWEN_TARGET.items()
    }
    for base in ("mla3", "mla31"):
        edits = {"none": unchanged} | MLA | LISTED[base] | drawn(base)
        names = [name for name in edits if not name.startswith("rope_")]
        if base == "mla3":  # it has no fc_norm to change
            names = [name for name in names if name not in ("fc_norm absent", "use_aux_norm")]
        found |= {
            f"{base}-yarn/{name}": Case(
                f"{base}-yarn", partial(mla_drafter, base), edits[name], is_loaded_only=True
            )
            for name in names
        }
    return found


def _every() -> dict[str, Case]:
    found = _own()
    for base, step in SHARED.items():
        names = [name for name, case in shared.CASES.items() if case.base == base]
        found |= {name: Case(base, partial(drafter, base), shared.CASES[name].edit) for name in names[::step]}
    return found


CASES = _every()
