"""What came of each engine release asked for: the facts that hold in it, and what other rules found that concerns every engine."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from eaglectl.engines.catalogue import ENGINES
from eaglectl.engines.facts import Applied
from eaglectl.validation.rule import SEVERITIES, CannotLook, Finding, Rule
from eaglectl.validation.serving import applied
from eaglectl.validation.subject import Subject

Outcome = Literal["pass", "fail", "could-not-look"]
# what is wrong with files or with a release of the drafter says nothing of how an engine serves it, but for where its weights lie
NOT_SERVED = ("files", "release")
WEIGHT_FILES = ("one-weight-source", "safetensors-header", "shard-index")


@dataclass(frozen=True, slots=True)
class ReleaseVerdict:
    """Whether one engine release serves the checkpoint as it was trained: `reasons` say why not, `rules` are the ids that found it."""

    engine: str
    release: str
    outcome: Outcome
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def is_asked(rule: Rule, subject: Subject) -> bool:
    """Whether a rule concerns what was asked: serving rules only where a release of their engine is."""
    return not rule.family.startswith("serving") or any(
        rule.engines.startswith(one.engine) for one in subject.wanted if one.engine in ENGINES
    )


def one_each(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, of two on one defect only the more severe; of two alike the one that holds whatever the engine."""
    worst: dict[str, int] = {}
    for one in findings:
        worst[one.rule.id] = max(worst.get(one.rule.id, -1), SEVERITIES.index(one.severity))
    outdone = {
        said for one in findings for said in one.rule.said_by if worst.get(said, 9) < SEVERITIES.index(one.severity)
    }
    return [
        one
        for one in findings
        if one.rule.id not in outdone
        and not any(worst.get(said, -1) >= SEVERITIES.index(one.severity) for said in one.rule.said_by)
    ]


def release_verdicts(
    subject: Subject, rules: Collection[str], findings: Sequence[Finding]
) -> tuple[ReleaseVerdict, ...]:
    """A verdict for every release asked for, by the facts of `rules` and by `findings`; none where no such rule was to run."""
    chosen = {name for name, engine in ENGINES.items() if any(fact.rule in rules for fact in engine.facts)}
    asked = [(one.engine, release) for one in subject.wanted if one.engine in chosen for release in one.releases]
    general = tuple(_general(subject, findings))
    try:
        facts = applied(subject)
    except CannotLook as reason:
        rest: tuple[Outcome, str] = ("fail", "") if general else ("could-not-look", str(reason))
        return tuple(_verdict(engine, release, general, (), rest) for engine, release in dict.fromkeys(asked))
    said = {one.rule.id for one in findings}
    verdicts = []
    for engine, release in dict.fromkeys(asked):
        held = [one for one in facts[engine, release] if one.fact.rule in rules]
        against = [(_finder(one, said), one.text) for one in held if one.fact.outcome != "unknown"]
        open_ = [*(one.text for one in held if one.fact.outcome == "unknown"), *_questions(subject)]
        verdicts.append(
            _verdict(engine, release, general, against, ("could-not-look", "; ".join(open_)) if open_ else ("pass", ""))
        )
    return tuple(verdicts)  # fmt: skip


def _verdict(
    engine: str, release: str, general: Sequence[tuple[str, str]], against: Sequence[tuple[str, str]], rest: tuple[Outcome, str],
) -> ReleaseVerdict:  # fmt: skip
    told = {rule for rule, _ in against}
    every = [*against, *(one for one in general if one[0] not in told)]
    if not every:
        return ReleaseVerdict(engine, release, rest[0], (), (rest[1],) if rest[1] else ())
    ids = dict.fromkeys(rule for rule, _ in every if rule)
    return ReleaseVerdict(engine, release, "fail", tuple(ids), tuple(dict.fromkeys(text for _, text in every)))


def _finder(one: Applied, said: Collection[str]) -> str:
    """The rule that reports a fact: its own, or the one that said the same."""
    if one.fact.rule in said:
        return one.fact.rule
    return next((rule for rule in one.fact.said_by if rule in said), one.fact.rule)


def _general(subject: Subject, findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """What concerns every release: errors that other rules found, and what reading says that no rule reports."""
    for one in findings:
        is_served = one.rule.family not in NOT_SERVED or (subject.stop is None and one.rule.name in WEIGHT_FILES)
        is_served = is_served and not one.rule.family.startswith("serving")
        if is_served and one.rule.severity == "error" and not one.hit.engines:
            yield one.rule.id, one.hit.message
    for note in subject.drafter.notes if subject.stop is None else ():
        if note.level == "problem" and not note.topic:
            yield "", note.text


def _questions(subject: Subject) -> list[str]:
    return [note.text for note in subject.drafter.notes if note.level == "question"]
