"""Validating checkpoints by rules."""

import datetime
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Unpack, overload

from msgspec.structs import replace

from eaglectl.api.options import ValidateOptions
from eaglectl.api.sources import pickles_copied, run_all
from eaglectl.base import Results
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.errors import UsageError
from eaglectl.files.checkpoint import (
    check_cached,
    open_source,
    read_checkpoint,
    uncompared_weights,
    why_no_checkpoint,
)
from eaglectl.files.source import FolderSource
from eaglectl.formats.commands import Complete, Fix
from eaglectl.formats.other_drafters import why_other
from eaglectl.judge.judgement import (
    Following,
    Judgement,
    Report,
    Subject,
    Suppressed,
    conversion_refusal,
    given_target,
    judge_drafter,
    unopened_report,
)
from eaglectl.judge.rule import (
    SEVERITIES,
    CannotLook,
    Finding,
    Policy,
    Rule,
    Severity,
    Suppression,
    select_rules,
)
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import OnProgress, notify
from eaglectl.target.choice import choose_target
from eaglectl.verdicts import CheckVerdict, ServedAs

if TYPE_CHECKING:
    from eaglectl.api.keywords import ValidateFields
    from eaglectl.api.outputs import Advice
    from eaglectl.files.hub import HubSource


# a text is a sequence of texts too
@overload
def validate(  # type: ignore[overload-overlap]
    source: StrPath,
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[ValidateFields]",
) -> Report: ...
@overload
def validate(
    source: Sequence[StrPath],
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[ValidateFields]",
) -> tuple[Report, ...]: ...
@with_keywords
def validate(
    source: StrPath | Sequence[StrPath],
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[ValidateFields]",
) -> Report | tuple[Report, ...]:
    """Check one checkpoint against the rules, and against the requested engine releases.

    A checkpoint that cannot be read is reported, not raised; for a list, returns one report each. Raises
    UnreadableError if it does not exist, and UsageError for unknown rules and engines. Pickled weights are
    copied to a temporary folder, except with `headers_only`. `on_progress` is called with the bytes of
    weights that were read.
    """
    options = options or ValidateOptions()
    if not isinstance(source, str | os.PathLike):
        reports, _ = run_all(
            [os.fspath(path) for path in source],
            partial(validate, options=options),
            lambda failure: unopened_report(failure.source, failure.message),
            on_progress=on_progress,
            jobs=1,
        )
        return Results(reports)
    source = os.fspath(source)
    opened = open_source(source)
    report = judge_source(opened, source, options, on_progress)
    for text in uncompared_weights(opened) if options.headers_only else ():
        notify(text)
    return report


def judge_source(
    opened: "FolderSource | HubSource",
    path: str,
    options: ValidateOptions,
    on_progress: OnProgress | None = None,
) -> Report:
    """Validate files that are already open; `path` names them in commands.

    Raises UnreadableError for files in the Hub client's cache that differ from the download.
    """
    policy = options.read_policy()
    fail_on = options.least_severity(policy)
    if options.skip_others and (why := why_other(opened)):
        return Report(
            path, path, (), CheckVerdict.SKIPPED, policy=policy.origin, fail_on=fail_on, skipped=why
        )
    if why := why_no_checkpoint(opened):
        return unopened_report(path, why, fail_on, policy.origin)
    if not options.headers_only:
        check_cached(opened)
    rules, read = (
        select_rules(policy, options.select, options.ignore),
        partial(read_checkpoint, opened, headers_only=options.headers_only),
    )
    choice = options.deployment.of(choose_target(opened, options.target, options.answers, read))
    with nullcontext() if options.headers_only else pickles_copied(opened) as copied:
        subject = Subject(
            opened,
            given_target(choice),
            options.requests(policy),
            options.answers,
            policy,
            options.headers_only,
            on_progress,
            copied,
        )
        report = judge(subject, rules, policy, fail_on, path)
    return replace(report, is_of_copy=isinstance(copied, FolderSource))


@with_keywords
def check_options(options: ValidateOptions) -> None:
    """Raise the error of options that fail for any checkpoint: unknown rules or releases, or no target."""
    policy = options.read_policy()
    options.requests(policy)
    options.target.known()
    select_rules(policy, options.select, options.ignore)


def judge(
    subject: Subject, rules: Sequence[Rule], policy: Policy, fail_on: Severity | None, path: str
) -> Report:
    """Run `rules` over `subject`; findings of severity `fail_on` or above fail it, none if that is None.

    Findings are ordered by severity, the highest first, then by rule. `path` names the checkpoint in
    commands.
    """
    start = time.perf_counter()
    judgement = judge_drafter(subject, rules, policy)
    if isinstance(subject.read_error, UsageError):  # a wrong answer
        raise subject.read_error
    complete = Complete(path, subject.target.choice, subject.answers)
    reported, changes, following = _repairs(judgement, path)
    report = _report([finding.completed(complete) for finding in reported], judgement, policy, fail_on, path)
    if subject.read_error is not None and not _has_errors(report.findings):
        report = replace(report, problem=complete(str(subject.read_error)))
    unsettled = () if subject.read_error else _unsettled(subject.drafter, policy.approximate)
    topics = {rule.name for rule in judgement.rules}
    open_notes = tuple(note for note in unsettled if note.topic in topics)
    return replace(
        report,
        verdict=_check(judgement, report, is_open=bool(open_notes or report.problem), unsettled=unsettled),
        unchecked=tuple(replace(entry, reason=complete(entry.reason)) for entry in judgement.unchecked),
        releases=tuple(verdict.completed(complete) for verdict in judgement.releases),
        changes=tuple(change.completed(complete) for change in changes),
        open_notes=open_notes,
        questions=tuple(note.text for note in unsettled if note.level == "question"),
        seconds=time.perf_counter() - start,
        following=replace(following, why=complete(following.why)),
    )


def _unsettled(drafter: Drafter, most: float) -> tuple[Note, ...]:
    # what is open, without what was measured to change at most this part
    return tuple(note for note in drafter.unsettled if note.deviation is None or note.deviation > most)


def _report(
    findings: Sequence[Finding], judgement: Judgement, policy: Policy, fail_on: Severity | None, path: str
) -> Report:
    """Return the report before its verdict: a finding is reported unless a suppression covers it."""
    subject, today = judgement.subject, datetime.datetime.now(datetime.UTC).date()
    expired = tuple(entry for entry in policy.suppress if entry.until and entry.until < today)
    valid = [entry for entry in policy.suppress if entry not in expired]
    reported, suppressed = _kept_and_suppressed(findings, valid)
    requested = {label: request.why for request in subject.requests for label in request.labels}
    return Report(
        source=subject.source.label,
        path=path,
        engines=tuple(requested),
        verdict=CheckVerdict.PASS,
        findings=reported,
        suppressed=suppressed,
        unused=_unused(valid, suppressed, judgement),
        passed=judgement.passed,
        policy=policy.origin,
        fail_on=fail_on,
        expired=expired,
        target=subject.target.words,
        target_digest=subject.target.digest,
        off=tuple(sorted(policy.off)),
        lowered={
            rule.id: policy.severity(rule)
            for rule in judgement.rules
            if SEVERITIES.index(policy.severity(rule)) < SEVERITIES.index(rule.severity)
        },
        default_engines=tuple((label, why) for label, why in requested.items() if why),
        trained=(subject.drafter.aux.boundaries or ()) if subject.read_error is None else (),
    )


def _kept_and_suppressed(
    findings: Sequence[Finding], suppressions: Sequence[Suppression]
) -> tuple[tuple[Finding, ...], tuple[Suppressed, ...]]:
    pairs = [(finding, next((by for by in suppressions if by.covers(finding)), None)) for finding in findings]
    reported = sorted((finding for finding, by in pairs if by is None), key=lambda finding: -finding.level)
    return tuple(reported), tuple(Suppressed(finding, by) for finding, by in pairs if by is not None)


def _unused(
    suppressions: Sequence[Suppression], suppressed: Sequence[Suppressed], judgement: Judgement
) -> tuple[Suppression, ...]:
    # the rules that had something to look at
    looked = {rule.id for rule in judgement.rules} - {entry.rule.id for entry in judgement.unchecked}
    used = {entry.by for entry in suppressed}
    return tuple(entry for entry in suppressions if entry not in used and entry.rule in looked)


def _is_asking(subject: Subject) -> bool:
    return subject.read_error is None and bool(subject.drafter.notes_at("question"))


def _repairs(judgement: Judgement, path: str) -> tuple[Sequence[Finding], tuple[Fix, ...], Following]:
    """Return the findings, the smallest changes, and the conversions with each answer to an open question.

    In the findings' fixes, refused conversions are replaced by the reason.
    """
    subject, reported = judgement.subject, judgement.findings
    is_open = _is_asking(subject)
    if not (is_open or _has_defects(subject) or _is_conversion_offered(reported)):
        return reported, (), Following()
    # late: most checkpoints need no repair
    from eaglectl.api.convert import is_measured
    from eaglectl.api.outputs import Advice, smallest_changes

    is_run = is_open and is_measured(subject.drafter, subject.target.choice)
    # a request with a reason is a default, and not the user's
    advice = Advice(path, subject, None, is_run, [request for request in subject.requests if not request.why])
    findings = _with_possible_fixes(advice, reported)
    if refusal := conversion_refusal(findings):
        advice = replace(advice, refusal=refusal)
        findings = _with_possible_fixes(advice, reported)
    newest = [request for request in judgement.releases if request.engine == judgement.releases[0].engine][
        -1:
    ]
    following = [advice.following(verdict, findings) for verdict in newest if is_open]
    changes = smallest_changes(advice, [rule.id for rule in judgement.rules])
    return findings, changes, next(iter(following), Following())


def _has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _has_defects(subject: Subject) -> bool:
    try:
        return any(subject.applied_facts.values())
    except CannotLook:
        return False


def _is_conversion_offered(findings: Sequence[Finding]) -> bool:
    """Whether a finding offers a conversion; without an error, only one that makes engines serve it."""
    has_errors = _has_errors(findings)
    offers = (finding.repair for finding in findings if finding.repair.conversions)
    return any(has_errors or repair.remedy == "serve" for repair in offers)


def _with_possible_fixes(advice: "Advice", findings: Sequence[Finding]) -> list[Finding]:
    return [
        replace(finding, match=replace(finding.match, repair=advice.possible(finding)))
        for finding in findings
    ]


def _check(judgement: Judgement, report: Report, *, is_open: bool, unsettled: Sequence[Note]) -> CheckVerdict:
    """Return FAIL for a finding that is severe enough, or a failing release that no rule reports.

    COULD_NOT_LOOK: unread files, an open question, a required rule without a result, an unknown release.
    """
    releases, fail_on = judgement.releases, report.fail_on
    unreported = any(verdict.outcome.is_known_wrong and not verdict.rules for verdict in releases)
    if (unreported and fail_on) or any(finding.fails(fail_on) for finding in report.findings):
        return CheckVerdict.FAIL
    is_open = is_open or any(
        verdict.outcome == ServedAs.UNKNOWN or (unsettled and verdict.outcome.is_open) for verdict in releases
    )
    is_open = is_open or any(entry.is_required for entry in judgement.unchecked)
    return CheckVerdict.COULD_NOT_LOOK if is_open else CheckVerdict.PASS
