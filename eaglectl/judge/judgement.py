"""The judgement of a drafter, made once; every command prints parts of it."""

from collections.abc import Iterator, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.engines.engine import RuleResults, Verdict
from eaglectl.engines.registry import ENGINES, UPDATE, unfollowed_verdict
from eaglectl.errors import UnreadableError
from eaglectl.judge.policy import Policy
from eaglectl.judge.rule import SEVERITIES, CannotLook, Finding, Rule
from eaglectl.judge.rules import rules
from eaglectl.judge.subject import Subject
from eaglectl.verdicts import ServedAs

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

    `findings` are those of every rule whose inputs were at hand, `unchecked` what was not looked at and why,
    `releases` what each release does with the files, those that no data is of first.
    """

    subject: Subject
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    passed: tuple[Rule, ...]
    releases: tuple[Verdict, ...] = ()

    @property
    def rule_ids(self) -> list[str]:
        """The ids of the rules that ran or could not look."""
        return [rule.id for rule in self.rules]

    @property
    def errors(self) -> tuple[tuple[str, str], ...]:
        """The errors that change how every engine serves the files, as ids and messages.

        Those of other rules, and problems in reading that no rule reports ("").
        """
        is_read = self.subject.read_error is None
        return (
            *(self.subject.value_errors or ()),
            *(
                (finding.rule.id, finding.match.message)
                for finding in self.findings
                if finding.rule.severity == "error"
                and not finding.match.engines
                and changes_serving(finding.rule)
                and (is_read or finding.rule.family not in NOT_SERVED)
            ),
            *(
                ("", note.text)
                for note in (self.subject.drafter.notes if is_read else ())
                if note.level == "problem" and not note.topic
            ),
        )

    @property
    def faults(self) -> tuple[str, ...]:
        """The errors in tensors with which no engine accepts what is drafted, by the rules' families."""
        families = {rule.id: rule.family for rule in self.rules}
        return tuple(f"{rule} {text}" for rule, text in self.errors if families.get(rule) in OF_TENSORS)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is open of how the drafter was trained, by the rules that ran."""
        names = {rule.name for rule in self.rules}
        return tuple(note.reason for note in self.subject.unsettled if note.topic in names)


@cache
def serving_rules() -> tuple[Rule, ...]:
    """The rules that tell what an engine does with a checkpoint."""
    every = rules(without=("release",))
    return tuple(rule for rule in every if changes_serving(rule) or rule.family.startswith("serving"))


def judge_drafter(
    subject: Subject, chosen: Sequence[Rule] | None = None, policy: Policy = NO_POLICY
) -> Judgement:
    """The judgement of a drafter by the `chosen` rules, for the engine releases of the subject's requests.

    None: the rules of serving. Facts of an engine count where their rule is among them.
    """
    judgement = _run(subject, serving_rules() if chosen is None else chosen, policy)
    return replace(judgement, releases=tuple(_verdicts(subject, judgement)))


def _run(subject: Subject, chosen: Sequence[Rule], policy: Policy) -> Judgement:
    """Run the rules that concern the subject: rules on engines only where the engine was requested."""
    requested = tuple(request.engine for request in subject.requests if request.engine in ENGINES)
    asked = [
        rule
        for rule in chosen
        if not rule.engines or rule.engines.startswith(requested) or rule.id in policy.required
    ]
    chosen = asked or chosen
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    passed: list[Rule] = []
    for rule in chosen:
        before, reason = len(findings), ""
        try:
            for match in rule.check(subject):
                findings.append(Finding(rule, policy.severity(rule), match))
        except UnreadableError as error:  # CannotLook among them
            reason = str(error)
            is_required = rule.family.startswith("serving") or rule.id in policy.required
            unchecked.append(Unchecked(rule, reason, is_required))
        if not reason and len(findings) == before:
            passed.append(rule)
    return Judgement(subject, tuple(chosen), tuple(_one_each(findings)), tuple(unchecked), tuple(passed))


def _one_each(findings: Sequence[Finding]) -> list[Finding]:
    """Drop duplicates: keep the more severe of two findings on one defect.

    Of two alike, the one for all engines.
    """
    worst: dict[str, int] = {}
    for finding in findings:
        worst[finding.rule.id] = max(worst.get(finding.rule.id, -1), finding.level)
    replaced = {
        general
        for finding in findings
        for general in finding.rule.reported_by
        if worst.get(general, len(SEVERITIES)) < finding.level
    }
    return [
        finding
        for finding in findings
        if finding.rule.id not in replaced
        and not any(worst.get(general, -1) >= finding.level for general in finding.rule.reported_by)
    ]


def _verdicts(subject: Subject, judgement: Judgement) -> Iterator[Verdict]:
    """A verdict for every release asked about, and for engines of which no rule states what they read.

    None of an engine of which no rule was to run.
    """
    results = _results(judgement)
    ids = set(judgement.rule_ids)
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


def _verdict(name: str, release: str, subject: Subject, results: RuleResults) -> Verdict:
    """What an engine does with the files; an error of theirs may explain that they are no drafter."""
    try:
        if name not in ENGINES:
            return unfollowed_verdict(name, subject.drafter, subject.flat, results)
        applied = subject.applied_facts[name, release]
        return ENGINES[name].verdict(subject.view(name), release, results, applied)
    except CannotLook as reason:
        if not results.errors:
            return Verdict(name, release, ServedAs.UNKNOWN, (str(reason),))
        rules, texts = zip(*results.errors, strict=True)
        reasons = tuple(dict.fromkeys(texts))
        return Verdict(name, release, ServedAs.DIFFERS, reasons, tuple(filter(None, rules)))


def _results(judgement: Judgement) -> RuleResults:
    """What the rules say of the files to every engine."""
    subject = judgement.subject
    gaps = [entry.reason for entry in judgement.unchecked if entry.rule.name == MAP_RULE]
    has_map = subject.read_error is None and "d2t" in subject.drafter.tensors
    return RuleResults(
        judgement.errors,
        gaps if has_map else (),
        UNREAD if subject.headers_only and subject.value_errors is None else "",
        judgement.rule_ids,
        {finding.rule.id for finding in judgement.findings},
    )


def changes_serving(rule: Rule) -> bool:
    """Whether what the rule reports changes how any engine serves the checkpoint."""
    is_of_one_engine = rule.family.startswith("serving")
    is_served = not is_of_one_engine and rule.name not in LEAKS
    return is_served and (rule.family not in NOT_SERVED or rule.name in WEIGHT_FILES)
