"""Causes in the file: it contradicts itself, or its values mean something else."""

from collections.abc import Sequence

from eaglectl.acceptance.causes.looks import NOT_RUN, as_shown, serving_errors, unchecked_rules
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.acceptance.sensitivity import LEAST_PROMPTS, Variant
from eaglectl.acceptance.significance import p_words
from eaglectl.text import listed
from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome


def _rule(evidence: Evidence) -> Shown | NotLooked | None:
    if shown := as_shown(list(serving_errors(evidence, of_target=False)), evidence.commands["fix"]):
        return shown
    if problem := evidence.validated.problem:
        return Shown(problem, (evidence.commands["validate"],))
    return unchecked_rules(evidence, of_target=False)


def _refused(evidence: Evidence) -> Shown | None:
    if not evidence.reference_refusal:
        return None
    return Shown(evidence.reference_refusal, (evidence.commands["inspect"],))


def _better_reading(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NOT_RUN)
    probed = evidence.reference.probed
    if (best := probed.best) is None:
        return _unsettled(probed.variants)
    words = (
        f"read with {best.name} it drafts x{best.ratio.value:.2f} [{best.ratio.low:.2f},"
        f" {best.ratio.high:.2f}] as much, beyond chance (p {p_words(best.p_value)} after"
        f" {len(probed.variants)} readings)"
    )
    return Shown(words, (evidence.commands["repair"],))


def _unsettled(variants: Sequence[Variant]) -> NotLooked | None:
    """Why it is not settled that no reading is better; None where it is."""
    if not variants:
        return NotLooked("no reading was tried")
    if (prompts := variants[0].measured.prompts) < LEAST_PROMPTS:
        return NotLooked(f"{prompts} prompts show no reading to be better; {LEAST_PROMPTS} or more can")
    few = [variant for variant in variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
    return NotLooked(f"too few prompts to tell of {listed(variant.name for variant in few)}") if few else None


def _other_layers(evidence: Evidence) -> Shown | NotLooked | None:
    if (search := evidence.layers) is None:
        return NotLooked(evidence.layers_gap or NOT_RUN)
    if (found := search.found) is None:
        return None
    words = (
        f"from {found.name} it drafts x{found.ratio.value:.2f} [{found.ratio.low:.2f},"
        f" {found.ratio.high:.2f}] as much as from {','.join(map(str, search.stated))} that the file states,"
        f" on {found.measured.prompts} prompts that did not choose them among {search.tried} sets"
    )
    if not found.is_better:
        return NotLooked(f"{words}: too few to tell from chance")
    return Shown(words, (evidence.commands["layers"],))


FILE_RULE = Cause(
    "file-rule",
    DiagnosisEnding.FILE,
    "reading",
    "a file that contradicts itself or misses tensors",
    "errors of `validate` that change what every engine serves",
    "Run the printed `validate --fix`; what it cannot repair has to be restored from the trainer.",
    _rule,
)
REFUSED = Cause(
    "refused",
    DiagnosisEnding.FILE,
    "reference",
    "a file that is not read without an answer",
    "whether the reference refuses the drafter",
    "Follow the sentence; `inspect` lists the questions.",
    _refused,
)
OTHER_READING = Cause(
    "other-reading",
    DiagnosisEnding.FILE,
    "reference",
    "a file whose tensors or switches mean something else",
    "the sensitivity probe: whether another reading drafts better by 3 % beyond chance",
    "Run the printed `convert`, with `--fix-reading`, `--source-semantics` or `--aux-layers`.",
    _better_reading,
)
OTHER_LAYERS = Cause(
    "other-layers",
    DiagnosisEnding.FILE,
    "reference",
    "other aux layers than the file states",
    "other boundaries of the target, moved one by one while first draft tokens get better on half of the"
    " prompts, and judged on the other half",
    "Run the printed `convert --aux-layers`, after a look into the trainer's config.",
    _other_layers,
)
