"""Causes in the file: it contradicts itself, or its values mean something else."""

from collections.abc import Sequence

from eaglectl.acceptance.candidates import MADE_OF_T2D
from eaglectl.acceptance.causes.looks import NOT_RUN, as_shown, serving_errors, unchecked_rules
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.acceptance.sensitivity import LEAST_PROMPTS, Variant
from eaglectl.acceptance.significance import p_words
from eaglectl.drafter.vocabulary import FROM_D2T, FROM_T2D
from eaglectl.text import listed
from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome

CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command takes t2d for the right one, the second d2t"


def _rule(evidence: Evidence) -> Shown | NotLooked | None:
    errors = list(serving_errors(evidence, of_target=False))
    if certain := [finding for finding in errors if finding.rule.name != CONTRADICTION]:
        return as_shown(certain, *_known(evidence, "fix"))
    if errors:
        return NotLooked(f"{errors[0].rule.id} {CONTRADICTION}: which of the two is right is measured first")
    if problem := evidence.validated.problem:
        return Shown(problem, (evidence.commands["validate"],))
    return unchecked_rules(evidence, of_target=False)


def _known(evidence: Evidence, *names: str) -> tuple[str, ...]:
    """The commands of these names that are not known to fail."""
    return tuple(evidence.commands[name] for name in names if name in evidence.commands)


def _tables(evidence: Evidence) -> Shown | None:
    """d2t against t2d: the one that drafts better, else both choices."""
    errors = serving_errors(evidence, of_target=False)
    if not (found := [finding for finding in errors if finding.rule.name == CONTRADICTION]):
        return None
    probed = evidence.reference and evidence.reference.probed
    variants = probed.variants if probed else ()
    variant = next((variant for variant in variants if variant.name == MADE_OF_T2D), None)
    both = _known(evidence, FROM_T2D, FROM_D2T)
    words = f"{found[0].rule.id} {CONTRADICTION}: {found[0].match.message}"
    if not both:  # rows in another order than t2d's
        return Shown(f"{words}; fix: {found[0].fix}")
    if variant is None:
        gap = evidence.reference_refusal or evidence.reference_gap or NOT_RUN
        return Shown(f"{words}; which of them is right was not measured: {gap}{CHOICE}", both)
    words += (
        f"; with the tokens of t2d it drafts x{variant.ratio.value:.2f} [{variant.ratio.low:.2f},"
        f" {variant.ratio.high:.2f}] as much as with those of d2t"
    )
    if variant.is_better:
        return Shown(words, both[:1])
    if variant.ratio.high < 1:
        return Shown(words, both[1:])
    return Shown(f"{words}, which {variant.measured.prompts} prompts cannot tell from chance{CHOICE}", both)


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
TABLES = Cause(
    "tables",
    DiagnosisEnding.FILE,
    "reference",
    "d2t and t2d that name other tokens",
    "EGL305, and the sensitivity probe: whether the tokens of t2d draft better than those of d2t",
    "Run the printed `convert`; where it is not told which of them is right, choose.",
    _tables,
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
