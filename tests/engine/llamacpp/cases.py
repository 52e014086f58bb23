"""The drafters that llama.cpp was run with: its own, and those of the vLLM records that are recorded here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.builders import ABSENT, integers
from tests.engine.agreement import cases as shared
from tests.engine.agreement.bases import DRAFT, DRAFTED, HIDDEN, VOCAB, Files, drafter, target, uniform
from tests.engine.agreement.edits import Edit, add, both, config, drop, inside, noise, rename
from tests.engine.agreement.plain import ATTENTION, IDS, KEYS, NESTED, ROWS, second_layer
from tests.engine.llamacpp.records import read


@dataclass(frozen=True, slots=True)
class Case:
    """A changed drafter, and the kind of its target."""

    base: str
    make: Callable[[], Files]
    edit: Edit
    kind: str = "llama"

    def files(self) -> Files:
        files = self.make()
        self.edit(files)
        return files


def unchanged(files: Files) -> None:
    """The good drafter itself."""


def top(*ids: int) -> Edit:
    """The ids that llama.cpp reads, and those that SGLang does."""
    return both(config(**{IDS: list(ids)}), inside(NESTED, **{IDS: [one - 1 for one in ids]}))


INPUT_NORM = add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, low=0.5, high=1.5))
# on llama3: boundaries 2, 4, 5 of a target of 8 layers, a reduced vocabulary
OWN: dict[str, Edit] = {
    "none": unchanged,
    "ids 1, 4, 6": top(1, 4, 6),
    "ids 0, 3, 7": top(0, 3, 7),
    "ids 5, 2, 4": top(5, 2, 4),
    "ids 2, 4, 4": top(2, 4, 4),
    "ids 2, 4, 8": top(2, 4, 8),
    "ids nested alone, other layers": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: [0, 3, 5]})),
    "ids nested disagree": both(config(**{IDS: [2, 4, 5]}), inside(NESTED, **{IDS: [0, 3, 5]})),
    "four states": both(
        top(1, 2, 4, 5), config(num_aux_hidden_states=4), noise("fc.weight", HIDDEN, 4 * HIDDEN)
    ),
    "two states": both(top(2, 5), config(num_aux_hidden_states=2), noise("fc.weight", HIDDEN, 2 * HIDDEN)),
    "norm_before_residual": config(norm_before_residual=True),
    "norm_before_fc": both(config(norm_before_fc=True), INPUT_NORM),
    "norm_before_fc nested": both(
        config(norm_before_fc=ABSENT), inside(NESTED, norm_before_fc=True), INPUT_NORM
    ),
    "norm_before_fc both": both(config(norm_before_fc=True, norm_before_residual=True), INPUT_NORM),
    "input_norm, nothing told": both(config(norm_before_fc=ABSENT), INPUT_NORM),
    "norm_output": config(norm_output=True),
    "norm_output and norm_before_fc": both(config(norm_output=True, norm_before_fc=True), INPUT_NORM),
    "fc_norm": both(
        config(fc_norm=True),
        *(add(f"fc_norm.{i}.weight", uniform(f"fn{i}", HIDDEN, low=0.5, high=1.5)) for i in range(3)),
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
    "full vocabulary, identity d2t": both(
        config(draft_vocab_size=VOCAB),
        add("d2t", integers(*[0] * VOCAB)),
        noise("lm_head.weight", VOCAB, HIDDEN),
    ),
    "full vocabulary, no d2t": both(
        config(draft_vocab_size=VOCAB), drop("d2t"), noise("lm_head.weight", VOCAB, HIDDEN)
    ),
    "full vocabulary, draft_vocab_size absent": both(
        config(draft_vocab_size=ABSENT), drop("d2t"), noise("lm_head.weight", VOCAB, HIDDEN)
    ),
    "full vocabulary, the target's head": both(config(draft_vocab_size=VOCAB), drop("d2t", "lm_head.weight")),
    "no lm_head beside d2t": drop("lm_head.weight"),
    "no embed_tokens": drop("embed_tokens.weight"),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
    "draft_vocab_size too big": config(draft_vocab_size=DRAFT + 64),
    "sliding window": config(layer_types=["sliding_attention"], sliding_window=8, use_sliding_window=True),
    "rope_theta 500000": config(rope_theta=500000.0),
    "rope yarn": config(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    ),
    "rope linear": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "rope llama3": config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
    "rope dynamic": config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "model. before all": rename("", "model."),
    "model. before all but lm_head, fc and d2t": both(
        rename("", "model."),
        rename("model.lm_head", "lm_head"),
        rename("model.d2t", "d2t"),
        rename("model.fc", "fc"),
    ),
    "midlayer.": rename("layers.0.", "midlayer."),
    "t2d alone for d2t": both(drop("d2t"), noise("t2d", VOCAB)),
    "hidden_act gelu": config(hidden_act="gelu"),
    "d2t missing": drop("d2t"),
    "head_dim absent": config(head_dim=ABSENT),
    "ids as text": config(**{IDS: ["2", "4", "5"]}),
    "no ids": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT})),
    "architecture of its own": config(architectures=["MyEagle3Model"]),
    "architecture LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "an unknown bias": noise("norm.bias", HIDDEN),
    "fc.bias": noise("fc.bias", HIDDEN),
    "tie_word_embeddings": config(tie_word_embeddings=True),
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


def qwen_target_drafter() -> Files:
    """llama3's drafter with the embedding of the Qwen3 target."""
    files = drafter("llama3")
    files.tensors["embed_tokens.weight"] = target("qwen3").tensors["model.embed_tokens.weight"]
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
        found[f"qwen3-target/{name}"] = Case("qwen3-target", qwen_target_drafter, OWN[name], "qwen3")
    # of the cases that vLLM was run with those that are recorded
    for name in read():
        if name in shared.CASES:
            case = shared.CASES[name]
            kind = shared.BASES[case.base].kind
            found[name] = Case(case.base, partial(drafter, case.base), case.edit, kind)
    return found


CASES = _every()
