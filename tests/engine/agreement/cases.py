"""All cases: a good drafter and an edit of it, by name. Those that are listed, and those that are drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eaglectl.formats.format import Answers
from tests.engine.agreement.bases import BASES, PACKED_HEAD, STRETCHED, WITH_TOKENIZER, Files, drafter
from tests.engine.agreement.drawn import drawn
from tests.engine.agreement.edits import Edit
from tests.engine.agreement.listed import LISTED


@dataclass(frozen=True, slots=True)
class Case:
    """A changed drafter, its target's kind, whether it is loaded only, and the engine's options.

    `answers` settle what the files leave open, or say otherwise.
    """

    base: str
    make: Callable[[], Files]
    edit: Edit
    kind: str = "llama"
    is_loaded_only: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)

    def files(self) -> Files:
        """Its files."""
        files = self.make()
        self.edit(files)
        return files


# how the drafters of these cases were trained, where the files say otherwise
LAYERS = Answers(aux_layers=(1, 4, 6))
TRAINED = {
    "llama3/norm_output told, trained without": Answers(semantics={"norm_output": "false"}),
    "llama3/rope_theta other, trained with 10000": Answers(semantics={"rope": "10000"}),
    "llama3/half of each head in rope_parameters, trained whole": Answers(semantics={"rope": "plain"}),
    "llama3/rope_scaling linear, trained without": Answers(semantics={"rope": "plain"}),
    "llama3/two rope scalings, that of rope_parameters trained": Answers(
        semantics={"rope": "rope_parameters"}
    ),
    "speculators31/norm_before_residual null, trained with it": Answers(
        semantics={"norm_before_residual": "true"}
    ),
    "llama31/P-EAGLE, aux ids in dflash_config": LAYERS,
    "llama31/P-EAGLE, aux ids in dflash_config, eagle_config beside it": LAYERS,
}
# targets other than the base's, and arguments of vLLM
KINDS = {
    "llama3/the target's lm_head in 4 bits": PACKED_HEAD,
    "llama3/embed_tokens of 192 rows": WITH_TOKENIZER,
    "llama3/embed_tokens of 200 rows": WITH_TOKENIZER,
    "llama3/positions 32, the target's stretched to 128": STRETCHED,
}
OPTIONS = {"llama3/rope_scaling longrope of 96 positions, started for 96": {"max_model_len": 96}}
IN_PARALLEL = {"parallel_drafting": True}


def unchanged(files: Files) -> None:
    """The good drafter itself."""


def _every() -> dict[str, Case]:
    def case(base: str, edit: Edit, name: str = "") -> Case:
        full = f"{base}/{name}"
        kind, answers = KINDS.get(full, BASES[base].kind), TRAINED.get(full, Answers())
        options = IN_PARALLEL if name.startswith("P-EAGLE") else OPTIONS.get(full, {})
        return Case(base, partial(drafter, base), edit, kind, options=options, answers=answers)

    found = {f"{base}/none": case(base, unchanged) for base in BASES}
    for base, edits in LISTED.items():
        found |= {f"{base}/{name}": case(base, edit, name) for name, edit in edits.items()}
    seen = {known.files().digest() for known in found.values()}
    for base in BASES:
        for name, edit in drawn(base).items():
            if (digest := case(base, edit).files().digest()) not in seen:
                found[f"{base}/{name}"] = case(base, edit)
                seen.add(digest)
    return found


CASES = _every()
