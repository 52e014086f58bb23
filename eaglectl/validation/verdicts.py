"""A verdict for each requested engine release.

The facts that hold in it, and findings that concern every engine.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.engines.behaviour import AppliedFact
from eaglectl.engines.registry import ENGINES
from eaglectl.validation.finding import Finding
from eaglectl.validation.rule import SEVERITIES, CannotLook, Rule
from eaglectl.validation.subject import Subject
from eaglectl.verdicts import CheckVerdict, ServedAs

# what is wrong with files or with a release of the drafter does not change how an engine serves it, but for
# where its weights are
NOT_SERVED = ("files", "release")
LEAKS = ("local-path", "leaked-secret")
WEIGHT_FILES = ("one-weight-source", "safetensors-header", "shard-index", "distributed-checkpoint")
# a rule's id, "" where no rule reports it, and the reason
Reason = tuple[str, str]


class ReleaseVerdict(Struct, frozen=True):
    """Whether an engine release serves the checkpoint as it was trained.

    `rules` are the ids that report the `reasons`.
    """

    engine: str
    release: str
    outcome: CheckVerdict
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def asked_rules(rules: Iterable[Rule], subject: Subject, required: Collection[str]) -> list[Rule]:
    """The rules that are `required` or concern the request.

    Serving rules do only where a release of their engine is requested.
    """
    engines = tuple({request.engine for request in subject.requests if request.engine in ENGINES})
    return [
        rule for rule in rules if not rule.engines or rule.engines.startswith(engines) or rule.id in required
    ]


def one_each(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, of two on one defect the more severe.

    Of two alike the one that holds whatever the engine.
    """
    worst: dict[str, int] = {}
    for finding in findings:
        worst[finding.rule.id] = max(worst.get(finding.rule.id, -1), _severity(finding))
    replaced = {
        general
        for finding in findings
        for general in finding.rule.reported_by
        if worst.get(general, len(SEVERITIES)) < _severity(finding)
    }
    return [
        finding
        for finding in findings
        if finding.rule.id not in replaced
        and not any(worst.get(general, -1) >= _severity(finding) for general in finding.rule.reported_by)
    ]


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def release_verdicts(
    subject: Subject, rules: Collection[str], findings: Sequence[Finding]
) -> tuple[ReleaseVerdict, ...]:
    """A verdict for every requested release, by the facts of `rules` and by `findings`.

    None where no such rule was to run.
    """
    releases, unknown = _judged_releases(subject, rules), _unknown_releases(subject, rules)
    if not releases:
        return unknown
    general = tuple(general_errors(subject, findings))
    try:
        facts = subject.applied_facts
    except CannotLook as reason:
        if general:
            return (*unknown, *(_failed(*release, general) for release in releases))
        return (*unknown, *(_unjudged(*release, str(reason)) for release in releases))
    reporting = {finding.rule.id for finding in findings}
    questions = _questions(subject)
    judged = (
        _verdict(release, _of_rules(facts[release], rules), general, reporting, questions)
        for release in releases
    )
    return (*unknown, *(_with_runner(verdict, subject) for verdict in judged))


def _with_runner(verdict: ReleaseVerdict, subject: Subject) -> ReleaseVerdict:
    """The verdict; one of passing names the runner that it holds for, where another one differs."""
    if verdict.outcome != CheckVerdict.PASS:
        return verdict
    engine = ENGINES[verdict.engine]
    return replace(verdict, reasons=engine.runner_remarks(subject.view(engine.name), verdict.release))


def _unjudged(engine: str, release: str, reason: str) -> ReleaseVerdict:
    return ReleaseVerdict(engine, release, CheckVerdict.COULD_NOT_LOOK, (), (reason,))


def _unknown_releases(subject: Subject, rules: Collection[str]) -> tuple[ReleaseVerdict, ...]:
    """A verdict for each installed release of which nothing is known."""
    return tuple(
        _unjudged(request.engine, request.unknown, f"not a known release: the newest is {newest}")
        for request in subject.requests
        if request.unknown and request.engine in _judged_engines(rules)
        for newest in ENGINES[request.engine].releases[-1:]
    )


def _judged_engines(rules: Collection[str]) -> set[str]:
    """The engines of which some rule is to run."""
    return {name for name, engine in ENGINES.items() if any(fact.rule in rules for fact in engine.facts)}


def _judged_releases(subject: Subject, rules: Collection[str]) -> Sequence[tuple[str, str]]:
    """The requested (engine, release), of engines of which some rule is to run."""
    if not subject.requests:
        return []
    chosen = _judged_engines(rules)
    requests = [request for request in subject.requests if request.engine in chosen]
    releases = [(request.engine, release) for request in requests for release in request.releases]
    return list(dict.fromkeys(releases))


def _of_rules(facts: Sequence[AppliedFact], rules: Collection[str]) -> list[AppliedFact]:
    return [fact for fact in facts if fact.fact.rule in rules]


def _verdict(
    release: tuple[str, str],
    facts: Sequence[AppliedFact],
    general: Sequence[Reason],
    reporting: Collection[str],
    questions: Sequence[str],
) -> ReleaseVerdict:
    """The verdict on (engine, release), in which these facts hold.

    `reporting` are rules that have findings.
    """
    unknown = [fact for fact in facts if fact.fact.outcome == ServedAs.UNKNOWN]
    reasons = [(_reporting_rule(fact, reporting), fact.text) for fact in facts if fact not in unknown]
    rules = {rule for rule, _ in reasons}
    reasons += [reason for reason in general if reason[0] not in rules]
    if reasons:
        return _failed(*release, reasons)
    open_questions = [*(fact.text for fact in unknown), *questions]
    if open_questions:
        return _unjudged(*release, "; ".join(open_questions))
    return ReleaseVerdict(*release, CheckVerdict.PASS)


def _failed(engine: str, release: str, reasons: Sequence[Reason]) -> ReleaseVerdict:
    rules = tuple(dict.fromkeys(rule for rule, _ in reasons if rule))
    return ReleaseVerdict(
        engine, release, CheckVerdict.FAIL, rules, tuple(dict.fromkeys(text for _, text in reasons))
    )


def _reporting_rule(applied_fact: AppliedFact, reporting: Collection[str]) -> str:
    """The rule that reports a fact: its own, or another on the same defect."""
    own = applied_fact.fact.rule
    return next((rule for rule in (own, *applied_fact.fact.reported_by) if rule in reporting), own)


def general_errors(subject: Subject, findings: Sequence[Finding]) -> Iterator[Reason]:
    """Errors that concern every release.

    Those of other rules, and problems in reading that no rule reports.
    """
    for finding in findings:
        is_error = finding.rule.severity == "error" and not finding.match.engines
        if is_error and changes_serving(finding.rule) and _is_read(finding.rule, subject):
            yield finding.rule.id, finding.match.message
    for note in subject.drafter.notes if subject.read_error is None else ():
        if note.level == "problem" and not note.topic:
            yield "", note.text


def changes_serving(rule: Rule) -> bool:
    """Whether what the rule reports changes how any engine serves the checkpoint."""
    is_of_one_engine = rule.family.startswith("serving")
    is_served = not is_of_one_engine and rule.name not in LEAKS
    return is_served and (rule.family not in NOT_SERVED or rule.name in WEIGHT_FILES)


def _is_read(rule: Rule, subject: Subject) -> bool:
    return rule.family not in NOT_SERVED or subject.read_error is None


def _questions(subject: Subject) -> list[str]:
    return [note.reason for note in subject.drafter.unsettled]
