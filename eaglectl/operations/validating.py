"""Validating checkpoints by rules."""

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from msgspec.structs import replace

from eaglectl.base import Results
from eaglectl.engines.registry import parse_engine
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import read_checkpoint, read_config, why_no_checkpoint
from eaglectl.files.opening import check_cached, open_source, uncompared_weights
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.other_drafters import why_other
from eaglectl.judge.judgement import Report, judge, unopened_report
from eaglectl.judge.rules import select_rules
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.operations.copies import pickles_copied
from eaglectl.operations.options import ValidateOptions
from eaglectl.operations.several import run_all
from eaglectl.progress import OnProgress, notify
from eaglectl.target import choose_target, fitting_target, open_target, target_source
from eaglectl.verdicts import CheckVerdict

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource


@overload
def validate(
    source: StrPath,
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Report: ...
@overload
def validate(
    source: Sequence[StrPath],
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> tuple[Report, ...]: ...
@with_keywords
def validate(
    source: StrPath | Sequence[StrPath],
    options: ValidateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Report | tuple[Report, ...]:
    """Run the rules over one checkpoint, and what the requested engine releases do with it.

    A checkpoint that cannot be read is reported, not raised; of a list of them, each has a report. Raises
    UnreadableError where it does not exist, and UsageError for unknown rules and engines. Weights that are
    pickles are copied to a temporary folder, but with `headers_only`. `on_progress` is called with the bytes
    read of the weights.
    """
    options = options or ValidateOptions()
    if not isinstance(source, str | os.PathLike):
        names, judge_one = [os.fspath(each) for each in source], partial(validate, options=options)
        results = run_all(
            names,
            judge_one,
            lambda failure: unopened_report(failure.source, failure.message),
            jobs=options.jobs,
            on_progress=on_progress,
        )
        return Results(results.reports)
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
    """What `validate` does, for files that are open already; `path` is how commands name them.

    Raises UnreadableError for files in the Hub client's cache that are not what was downloaded.
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
    rules = select_rules(policy, options.select, options.ignore)
    with nullcontext() if options.headers_only else pickles_copied(opened) as copied:
        subject = Subject(
            opened,
            _given_target(opened, options),
            options.requests(policy),
            options.answers,
            policy,
            options.headers_only,
            on_progress,
            copied,
            jobs=options.jobs,
        )
        report = judge(subject, rules, policy, fail_on, path)
    return replace(report, is_of_copy=isinstance(copied, FolderSource))


@with_keywords
def check_options(options: ValidateOptions) -> None:
    """Raise what is wrong with options for any checkpoint: unknown engines or rules, or a missing target."""
    open_target(options.target)
    for text in options.engines:
        parse_engine(text)
    select_rules(options.read_policy(), options.select, options.ignore)


def _given_target(source: Source, options: ValidateOptions) -> GivenTarget:
    """The target that was given, or that the checkpoint names and that fits it.

    Without its config where that cannot be read.
    """
    choice = choose_target(source, options.target)
    if options.target is None and choice.place is not None:
        with suppress(EaglectlError):  # what cannot be read is for the rules to report
            choice = fitting_target(choice, read_checkpoint(source), options.answers)
    if choice.place is None:
        return GivenTarget(choice.known())
    files, config = target_source(choice.place), None
    with suppress(EaglectlError):
        config = read_config(files)
    return GivenTarget(choice.known(), files, config, choice.text)
