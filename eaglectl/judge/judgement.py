"""The judgement of a drafter, made once: every command prints parts of it, `validate` its report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.engines.engine import RuleResults, Verdict
from eaglectl.engines.registry import ENGINES, UPDATE, unfollowed_verdict
from eaglectl.errors import UnreadableError
from eaglectl.judge.rule import SEVERITIES, CannotLook, Finding, Policy, Rule, Severity, Suppression
from eaglectl.judge.rules import rules
from eaglectl.judge.subject import Subject
from eaglectl.verdicts import CheckVerdict, ServedAs

# what is wrong with files or with a release of the drafter does not change how an engine serves it, but for
# where its weights are
NOT_SERVED = ("files", "release")
LEAKS = ("local-path", "leaked-secret")
WEIGHT_FILES = ("one-weight-source", "safetensors-header", "shard-index", "distributed-checkpoint")
# what says which tokens are drafted: an engine drafts other ones where it could not be looked at
MAP_RULE = "d2t-absolute"
UNREAD = "weights not read"
OF_TENSORS = ("weights", "draft vocabulary")
NO_POLICY = Policy()


class Unchecked(Struct, frozen=True):
    """A rule that could not look, and why. Where `is_required`, the checkpoint does not pass without it."""

    rule: Rule
    reason: str
    is_required: bool


class Judgement(Struct, frozen=True):
    """All that is known of one drafter, its target and the engine releases asked about.

    `rules` are those that ran or could not look, `findings` those of every rule whose inputs were at hand,
    `unchecked` what was not looked at and why, `releases` what each release does with the files, those that
    no data is of first. `errors` change how every engine serves the files: those of numbers that were read
    elsewhere, of rules, and problems in reading that no rule reports (""), as ids and messages.
    """

    subject: Subject
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    passed: tuple[Rule, ...]
    errors: tuple[tuple[str, str], ...] = ()
    releases: tuple[Verdict, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """The errors in tensors with which no engine accepts what is drafted, by the rules' families."""
        families = {rule.id: rule.family for rule in self.rules}
        return tuple(f"{rule} {text}" for rule, text in self.errors if families.get(rule) in OF_TENSORS)


@cache
def serving_rules() -> tuple[Rule, ...]:
    """The rules that tell what an engine does with a checkpoint."""
    every = rules(without=("release",))
    return tuple(rule for rule in every if changes_serving(rule) or rule.family.startswith("serving"))


def judge_drafter(
    subject: Subject, chosen: Sequence[Rule] | None = None, policy: Policy = NO_POLICY
) -> Judgement:
    """The judgement of a drafter by the `chosen` rules, for the engine releases of the subject's requests.

    None: the rules of serving. Rules on an engine run only where it was requested or the policy requires
    them, and facts of an engine count where their rule is among those that run.
    """
    requested = tuple(request.engine for request in subject.requests if request.engine in ENGINES)
    chosen = serving_rules() if chosen is None else chosen
    concerned = [
        rule
        for rule in chosen
        if not rule.engines or rule.engines.startswith(requested) or rule.id in policy.required
    ]
    ran = tuple(concerned or chosen)
    findings: list[Finding] = []
    unchecked, passed = list[Unchecked](), list[Rule]()
    for rule in ran:
        before = len(findings)
        try:
            findings.extend(Finding(rule, policy.severity(rule), match) for match in rule.check(subject))
        except UnreadableError as error:  # CannotLook among them
            is_required = rule.family.startswith("serving") or rule.id in policy.required
            unchecked.append(Unchecked(rule, str(error), is_required))
            continue
        if len(findings) == before:
            passed.append(rule)
    reported = _one_each(findings)
    errors = (*(subject.value_errors or ()), *_errors(subject, reported))
    judgement = Judgement(subject, ran, reported, tuple(unchecked), tuple(passed), errors)
    return replace(judgement, releases=tuple(_verdicts(judgement)))


def _one_each(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop duplicates: keep the more severe of two findings on one defect.

    Of two alike, the one for all engines.
    """
    levels = {finding.rule.id: finding.level for finding in findings}
    replaced = {
        general
        for finding in findings
        for general in finding.rule.reported_by
        if levels.get(general, len(SEVERITIES)) < finding.level
    }
    return tuple(
        finding
        for finding in findings
        if finding.rule.id not in replaced
        and not any(levels.get(general, -1) >= finding.level for general in finding.rule.reported_by)
    )


def _errors(subject: Subject, findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    is_read = subject.read_error is None
    for finding in findings:
        rule = finding.rule
        is_served = changes_serving(rule) and (is_read or rule.family not in NOT_SERVED)
        if rule.severity == "error" and not finding.match.engines and is_served:
            yield rule.id, finding.match.message
    for note in subject.drafter.notes if is_read else ():
        if note.level == "problem" and not note.topic:
            yield "", note.text


def _verdicts(judgement: Judgement) -> Iterator[Verdict]:
    """A verdict for every release asked about, and for engines of which no rule states what they read.

    None of an engine of which no rule was to run.
    """
    subject, ids = judgement.subject, [rule.id for rule in judgement.rules]
    results = _results(judgement, ids)
    judged = {name for name, engine in ENGINES.items() if any(fact.rule in ids for fact in engine.facts)}
    requests = [request for request in subject.requests if request.engine in judged]
    for request in requests:
        if request.unknown:
            reason = f"not a known release: {UPDATE.format(request.engine)}"
            yield Verdict(request.engine, request.unknown, ServedAs.UNKNOWN, (reason,))
    places = [(request.engine, release) for request in requests for release in request.releases]
    places += [(request.engine, "") for request in subject.requests if request.engine not in ENGINES]
    for name, release in dict.fromkeys(places):
        yield _verdict(name, release, subject, results)


def _results(judgement: Judgement, ids: Sequence[str]) -> RuleResults:
    """What the rules with these ids, which are those of the judgement, report whatever the engine."""
    subject = judgement.subject
    has_map = subject.read_error is None and "d2t" in subject.drafter.tensors
    return RuleResults(
        judgement.errors,
        [entry.reason for entry in judgement.unchecked if has_map and entry.rule.name == MAP_RULE],
        UNREAD if subject.headers_only and subject.value_errors is None else "",
        ids,
        {finding.rule.id for finding in judgement.findings},
    )


def _verdict(name: str, release: str, subject: Subject, results: RuleResults) -> Verdict:
    """What an engine does with the files; an error of theirs may explain that they are no drafter."""
    try:
        if name not in ENGINES:
            return unfollowed_verdict(name, subject.drafter, subject.flat, results)
        return ENGINES[name].verdict(
            subject.view(name), release, results, subject.applied_facts[name, release]
        )
    except CannotLook as reason:
        if not results.errors:
            return Verdict(name, release, ServedAs.UNKNOWN, (str(reason),))
        rules, texts = zip(*results.errors, strict=True)
        return Verdict(
            name, release, ServedAs.DIFFERS, tuple(dict.fromkeys(texts)), tuple(filter(None, rules))
        )


def changes_serving(rule: Rule) -> bool:
    """Whether what the rule reports changes how any engine serves the checkpoint."""
    is_served = not rule.family.startswith("serving") and rule.name not in LEAKS
    return is_served and (rule.family not in NOT_SERVED or rule.name in WEIGHT_FILES)


class Suppressed(Struct, frozen=True):
    """A finding that a suppression of the policy allows."""

    finding: Finding
    by: Suppression


class Report(Result, frozen=True):
    """The result of validating one checkpoint.

    `unused` are suppressions that no finding needed, `expired` those past their last day, which have no
    effect. `fail_on` is the lowest severity that fails, None for none. `problem` states why the checkpoint
    could not be read, where no rule reports it. `releases` has a verdict for each requested engine release,
    oldest first; `smallest_changes` are the changes with which all of them pass. `target` names the target
    and states how it was found, `target_digest` is the SHA-256 of its config.json. `is_of_copy`: the weights
    are pickles, and their values were read from a temporary copy. `skipped` states why a folder is no
    drafter's, where such are to be skipped: no rule ran. `doubts` are what is open of how the drafter was
    trained, `questions` those that somebody has to answer. `off` are the rules that the policy switches off,
    `lowered` those whose severity it lowers, with the new one.
    `default_engines` are the releases that nobody named, each with the reason why it was judged.
    """

    source: str
    path: str
    engines: tuple[str, ...]
    verdict: CheckVerdict
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    unused: tuple[Suppression, ...] = ()
    passed: tuple[Rule, ...] = ()
    policy: str = "built in"
    seconds: float = 0.0
    fail_on: Severity | None = "error"
    problem: str = ""
    releases: tuple[Verdict, ...] = ()
    smallest_changes: tuple[str, ...] = ()
    expired: tuple[Suppression, ...] = ()
    target: str = ""
    target_digest: str = ""
    is_of_copy: bool = False
    skipped: str = ""
    doubts: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    lowered: Mapping[str, Severity] = field(default_factory=dict)
    default_engines: tuple[tuple[str, str], ...] = ()

    def __fspath__(self) -> str:
        return self.path


def unopened_report(
    source: str, problem: str, fail_on: Severity | None = "error", policy: str = "built in"
) -> Report:
    """The report on a checkpoint that could not be opened: no rule ran, so it does not pass."""
    verdict = CheckVerdict.COULD_NOT_LOOK
    return Report(source, source, (), verdict, policy=policy, fail_on=fail_on, problem=problem)


def overall_verdict(reports: Iterable[Report]) -> CheckVerdict:
    """The worst verdict of several checkpoints; SKIPPED where all are, as then nothing was judged."""
    verdicts = {report.verdict for report in reports}
    order = (CheckVerdict.FAIL, CheckVerdict.COULD_NOT_LOOK, CheckVerdict.PASS, CheckVerdict.SKIPPED)
    return next((verdict for verdict in order if verdict in verdicts), CheckVerdict.PASS)
