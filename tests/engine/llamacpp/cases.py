"""The drafters that llama.cpp was run with: its own, and those of the vLLM records that are recorded here."""

from functools import partial

from tests.builders import ABSENT
from tests.engine.agreement.bases import DRAFT, HIDDEN, VOCAB, Files, drafter, drafter_for, uniform
from tests.engine.agreement.cases import CASES as SHARED
from tests.engine.agreement.cases import Case, unchanged
from tests.engine.agreement.edits import Edit, add, both, cast, config, drop, inside, noise, rename
from tests.engine.agreement.plain import (
    ANOTHERS,
    ATTENTION,
    IDENTITY,
    IDS,
    INPUT_NORM,
    KEYS,
    NESTED,
    ROWS,
    WHOLE_HEAD,
    fc_for,
    ids,
    nested_alone,
    nested_in,
    second_layer,
)
from tests.engine.agreement.records import LLAMACPP_RECORDS, read

WHOLE = config(draft_vocab_size=VOCAB)
# on llama3: boundaries 2, 4, 5 of a target of 8 layers, a reduced vocabulary
OWN: dict[str, Edit] = {
    "none": unchanged,
    "ids 1, 4, 6": ids(1, 4, 6),
    "ids 0, 3, 7": ids(0, 3, 7),
    "ids 2, 4, 4": ids(2, 4, 4),
    "ids 2, 4, 8": ids(2, 4, 8),
    "ids nested alone, other layers": nested_alone(**{IDS: [0, 3, 5]}),
    "ids nested disagree": both(config(**{IDS: [2, 4, 5]}), inside(NESTED, **{IDS: [0, 3, 5]})),
    "four states": both(ids(1, 2, 4, 5), config(num_aux_hidden_states=4), fc_for(4)),
    "norm_before_residual": config(norm_before_residual=True),
    "norm_before_fc nested": both(nested_alone(norm_before_fc=True), INPUT_NORM),
    "norm_before_fc both": both(config(norm_before_fc=True, norm_before_residual=True), INPUT_NORM),
    "input_norm, nothing told": both(config(norm_before_fc=ABSENT), INPUT_NORM),
    "norm_output": config(norm_output=True),
    "norm_output and norm_before_fc": both(config(norm_output=True, norm_before_fc=True), INPUT_NORM),
    "fc_norm": both(
        config(fc_norm=True),
        *(add(f"fc_norm.{i}.weight", uniform(f"fn{i}", HIDDEN, around=1.0)) for i in range(3)),
    ),
    "q and k norms": both(noise(f"{ATTENTION}q_norm.weight", 32), noise(f"{ATTENTION}k_norm.weight", 32)),
    "biases of q, k and v": both(
        config(attention_bias=True),
        *(
            noise(f"{ATTENTION}{part}_proj.bias", rows)
            for part, rows in (("q", ROWS), ("k", KEYS), ("v", KEYS))
        ),
    ),
    "a bias of o": both(config(attention_bias=True), noise(f"{ATTENTION}o_proj.bias", HIDDEN)),
    "parallel": both(config(mask_token_id=0, ptd_token_id=0), noise("mask_hidden", 1, 3 * HIDDEN)),
    "two layers": both(config(num_hidden_layers=2), second_layer()),
    "num_hidden_layers 8": config(num_hidden_layers=8),
    "num_hidden_layers absent": config(num_hidden_layers=ABSENT),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "full vocabulary, identity d2t": both(WHOLE, IDENTITY, WHOLE_HEAD),
    "full vocabulary, no d2t": both(WHOLE, drop("d2t"), WHOLE_HEAD),
    "full vocabulary, draft_vocab_size absent": both(
        config(draft_vocab_size=ABSENT), drop("d2t"), WHOLE_HEAD
    ),
    "full vocabulary, the target's head": both(WHOLE, drop("d2t", "lm_head.weight")),
    "draft_vocab_size too big": config(draft_vocab_size=DRAFT + 64),
    "sliding window": config(layer_types=["sliding_attention"], sliding_window=8, use_sliding_window=True),
    "rope dynamic": config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "model. before all": rename("", "model."),
    "model. before all but lm_head, fc and d2t": both(
        rename("", "model."),
        rename("model.lm_head", "lm_head"),
        rename("model.d2t", "d2t"),
        rename("model.fc", "fc"),
    ),
    "t2d alone for d2t": both(drop("d2t"), noise("t2d", VOCAB)),
    "hidden_act gelu": config(hidden_act="gelu"),
    "d2t missing": drop("d2t"),
    "head_dim absent": config(head_dim=ABSENT),
    "ids as text": config(**{IDS: ["2", "4", "5"]}),
    "architecture of its own": config(architectures=["MyEagle3Model"]),
    "keys in text_config": nested_in("text_config"),
    "text_config beside its own keys": config(text_config=ANOTHERS),
    "d2t of uint16": cast("d2t", "U16"),
}
SPECULATORS: dict[str, Edit] = {
    "none": unchanged,
    "norm_before_residual absent": config(norm_before_residual=ABSENT),
    "norm_before_residual": config(norm_before_residual=True),
    "ids 1, 4, 6": config(**{IDS: [1, 4, 6]}),
    "norm_before_fc": both(config(norm_before_fc=True), INPUT_NORM),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "architectures Eagle3Speculator": config(architectures=["Eagle3Speculator"]),
    "verifier_norm": noise("verifier_norm.weight", HIDDEN),
}


def speculators_drafter() -> Files:
    """A plain EAGLE-3 drafter in the speculators format."""
    files = drafter("speculators31")
    files.config |= {"fc_norm": False, "norm_output": False}
    files.tensors = {name: stored for name, stored in files.tensors.items() if "fc_norm" not in name}
    return files


def _every() -> dict[str, Case]:
    found = {
        f"llama.cpp/{name}": Case("llama3", partial(drafter, "llama3"), edit) for name, edit in OWN.items()
    }
    found |= {
        f"speculators3/{name}": Case("speculators3", speculators_drafter, edit)
        for name, edit in SPECULATORS.items()
    }
    for name in ("ids 1, 4, 6", "ids 2, 4, 8", "norm_before_residual"):
        found[f"qwen3-target/{name}"] = Case(
            "qwen3-target", partial(drafter_for, "qwen3", "llama3"), OWN[name], "qwen3"
        )
    # of the cases that vLLM was run with those that are recorded
    return found | {name: SHARED[name] for name in read(LLAMACPP_RECORDS) if name in SHARED}


CASES = _every()
