"""What several causes look at: findings, acceptance that is low, dead or too little."""

from collections.abc import Iterator

from eaglectl.acceptance.diagnosis import Evidence, NotLooked, Shown
from eaglectl.acceptance.measurement import (
    DEAD_LENGTH,
    DEAD_POSITION_0,
    FEWEST_DRAFTS,
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    ratio,
)
from eaglectl.acceptance.report import SmokeReport
from eaglectl.text import listed
from eaglectl.validation.judge import changes_serving
from eaglectl.validation.rule import Finding

# below it more is looked at where there is nothing to judge acceptance by; no drafter is weak for it
LOOK_POSITION_0 = 0.5
# rules that could not look are reported by a cause of their own
OWN_CAUSES = ("rotated-target", "marked-rotation")
NOT_RUN = "the reference did not run it"


def serving_errors(evidence: Evidence, *, of_target: bool) -> Iterator[Finding]:
    """Errors of `validate` that change what every engine serves, on the target or on the file."""
    for finding in evidence.validated.findings:
        is_of_target = finding.rule.family == "target"
        if finding.severity == "error" and changes_serving(finding.rule) and is_of_target == of_target:
            yield finding


def as_shown(findings: list[Finding], *commands: str) -> Shown | None:
    """The first finding with its repair, and the names of the others; None where there is none."""
    if not findings:
        return None
    first, more = findings[0], len(findings) - 1
    rest = f" (and {more} more: {listed(finding.rule.name for finding in findings[1:])})" if more else ""
    words = f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}; fix: {first.fix}"
    return Shown(words, commands)


def unchecked_rules(evidence: Evidence, *, of_target: bool) -> NotLooked | None:
    """Which rules that change what is served could not look; None where all could."""
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule)
        and (entry.rule.family == "target") == of_target
        and entry.rule.name not in OWN_CAUSES
    ]
    return NotLooked(f"rules that could not look: {listed(rules)}") if rules else None


def warned(name: str, evidence: Evidence) -> Shown | NotLooked | None:
    """A rule's warning where it stands beside low acceptance."""
    if reasons := [entry.reason for entry in evidence.validated.unchecked if entry.rule.name == name]:
        return NotLooked(reasons[0])
    found = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    return as_shown(found, evidence.commands["validate"]) if found and may_be_low(evidence) else None


def is_thin(measured: Measurement) -> bool:
    """Whether too little was measured for any verdict."""
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


def is_dead(measured: Measurement) -> bool:
    """Whether it accepts next to nothing, as a drafter that is broken or was never trained."""
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def sampled_ratio(evidence: Evidence) -> Estimate | None:
    """Acceptance at the temperature over that at 0, prompt by prompt; None where it was not run."""
    return _over_reference(evidence, evidence.sampled)


def templated_ratio(evidence: Evidence) -> Estimate | None:
    """Acceptance in the target's chat template over that as given; None where it was not run."""
    return _over_reference(evidence, evidence.templated)


def _over_reference(evidence: Evidence, other: SmokeReport | None) -> Estimate | None:
    if other is None or evidence.reference is None:
        return None
    return ratio(other.run.results, evidence.reference.run.results)


def bar(evidence: Evidence) -> tuple[float, str] | None:
    """The acceptance length to judge by, and whose it is; None where there is none.

    That of --expected, else the lowest that others reach on a run like this one.
    """
    if evidence.expected is not None:
        return evidence.expected, "that was expected"
    served = evidence.served
    alike = served.published.alike if served and served.published else ()
    least = min((length for length in alike if not length.is_dead), key=lambda one: one.length, default=None)
    return None if least is None else (least.length, f"that {least.drafter} reaches on such a run")


def is_low(evidence: Evidence) -> bool:
    """Whether acceptance is below what was expected, or what others reach on a run like this one."""
    served, judged = evidence.served, bar(evidence)
    assert served is not None
    return judged is not None and served.measured.length.high < judged[0]


def may_be_low(evidence: Evidence) -> bool:
    """Whether what the files warn of is named: acceptance is low, or may be with nothing to judge it by."""
    served = evidence.served
    assert served is not None
    if bar(evidence) is not None:
        return is_low(evidence)
    return served.measured.per_position[0].value < LOOK_POSITION_0
