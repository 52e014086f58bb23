"""`upload`: publish a drafter."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from msgspec.structs import replace

from eaglectl.commands.upload.release import (
    ReleaseTarget,
    card_text,
    changes_of,
    check_published,
    check_report,
    make_plan,
    other_pins,
    release_policy,
    release_target,
    served_releases,
    with_repository,
    with_written_files,
)
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.hub import is_offline
from eaglectl.files.hub_errors import NoAnswerError
from eaglectl.files.layout import RECORD
from eaglectl.files.opening import open_local_folder
from eaglectl.formats.commands import completing, whole_commands
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.outputs import notes_of
from eaglectl.judge.policy_file import read_policy
from eaglectl.judge.rule import Policy
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.operations.options import ValidateOptions
from eaglectl.operations.validating import judge_source
from eaglectl.progress import OnProgress, report_step
from eaglectl.publish.card import with_answers
from eaglectl.publish.card_block import CardFacts, few_prompts
from eaglectl.publish.leaks import check_leaks, check_message
from eaglectl.publish.plan import UploadPlan, check_plan
from eaglectl.publish.provenance import check_measured, kept_smoke, read_smoke
from eaglectl.publish.remote import Remote
from eaglectl.publish.request import Destination, UploadOptions
from eaglectl.publish.upload import Upload, carry_out
from eaglectl.publish.upload_files import FrozenSource, UploadFile, freeze
from eaglectl.target import open_target
from eaglectl.verdicts import UploadOutcome


@with_keywords
def upload(
    folder: StrPath,
    destination: Destination | str,
    options: UploadOptions | None = None,
    *,
    on_plan: Callable[[UploadPlan], None] | None = None,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Upload:
    """Validate a folder, publish it in one commit and verify the commit; the folder is never written to.

    Its files are hashed first: those bytes are judged, and those bytes are published. `on_plan` is called
    before anything is sent, and stops the upload by an error. `on_progress` is called with each step (without
    a unit), and with the bytes that are hashed. Raises RefusedError for what must not be published or was
    changed in the meantime, UnreadableError where the Hub cannot be reached or fails, UsageError for options
    that contradict each other.
    """
    folder, options = os.fspath(folder), options or UploadOptions()
    to = Destination(destination) if isinstance(destination, str) else destination
    with whole_commands(completing(folder, options.target, options.answers)):
        return _upload(folder, to, options, on_plan, on_progress)


def _upload(
    folder: str,
    to: Destination,
    options: UploadOptions,
    on_plan: Callable[[UploadPlan], None] | None,
    on_progress: OnProgress | None,
) -> Upload:
    to.check()
    options.card.check()
    source = open_local_folder(folder)
    smoke = None if options.smoke is None else read_smoke(options.smoke)
    check_online(to, options)
    rules, answers = _rules(options), options.answers
    frozen, files, left_out = freeze(source, rules.read_policy().allowed.get("files", ()), on_progress)
    report_step(on_progress, f"validating {folder}")
    target = release_target(frozen, folder, rules, options.card.base_model)
    rules = replace(rules, target=target.place)
    report = judge_source(frozen, folder, rules)
    frozen.check_unchanged()
    check_report(report, folder)
    for note in notes_of(report.findings):
        report_step(on_progress, f"warning: {note.text}")
    if smoke is not None:
        check_measured(smoke, files)
    checkpoint = read_checkpoint(frozen)
    facts = _card_facts(to.repo, frozen, checkpoint, target, options)
    facts = _with_measurement(facts, smoke, files, on_progress)
    write = partial(with_written_files, files, checkpoint, report)
    written = write(replace(facts, revision=to.tag))
    check_published(frozen, written, folder, rules)
    remote = None if is_offline() else Remote(to.repo, to.revision, needs_token=not options.dry_run)
    check_leaks(written, checkpoint.metadata, remote.token if remote else None)
    check_message(options.message, remote.token if remote else None)
    plan = make_plan(to, written, left_out, report, target, options.message)
    plan = _with_repository(plan, to, remote, is_dry_run=options.dry_run)
    others = (replace(plan, files=write(replace(facts, revision=pin))) for pin in other_pins(plan))
    plan = next((other for other in others if not other.changed), plan)
    plan = replace(plan, changes=changes_of(plan, frozen, folder, target.place, answers))
    check_plan(plan)
    if on_plan:
        on_plan(plan)
    if options.dry_run or remote is None:
        return Upload(plan, UploadOutcome.PLANNED, remote.page if remote else "")
    return carry_out(plan, remote, frozen.check_unchanged, on_progress)


def check_online(to: Destination, options: UploadOptions) -> None:
    """Raise UnreadableError where something is to be published offline."""
    if is_offline() and not options.dry_run:
        raise UnreadableError(f"{to.repo}: nothing can be published offline; --dry-run shows what would be")


def _rules(options: UploadOptions) -> ValidateOptions:
    """How the files are judged."""
    policy = options.policy
    policy = release_policy(read_policy(policy) if isinstance(policy, str) else policy or Policy())
    return ValidateOptions(
        options.target,
        options.engines,
        policy=policy,
        answers=options.answers,
        has_engines=options.has_engines,
    )


def _with_repository(
    plan: UploadPlan, to: Destination, remote: Remote | None, *, is_dry_run: bool
) -> UploadPlan:
    """The plan with the state of its repository; without it offline, and where a dry run gets no answer."""
    try:
        return with_repository(plan, to, remote) if remote else plan
    except NoAnswerError as error:
        if not is_dry_run:
            raise
        return replace(plan, unseen=str(error))


def _card_facts(
    repo: str, frozen: FrozenSource, checkpoint: Checkpoint, target: ReleaseTarget, options: UploadOptions
) -> CardFacts:
    """What the card states of the files, and what was answered."""
    drafter = read_drafter(checkpoint, options.answers, open_target(target.place))
    facts = CardFacts(
        repo,
        drafter,
        sum(
            prod(item.shape) for name, item in checkpoint.tensors.items() if not name.endswith(("d2t", "t2d"))
        ),
        checkpoint.nbytes,
        served_releases(frozen, checkpoint, drafter, target.place, options.answers),
        checkpoint.sidecars.get(RECORD, {}),
        target_gap=target.gap,
    )
    return with_answers(facts, card_text(frozen.hashed.values()), options.card)


def _with_measurement(
    facts: CardFacts,
    smoke: Mapping[str, Any] | None,
    files: Sequence[UploadFile],
    on_progress: OnProgress | None,
) -> CardFacts:
    """The facts with `smoke`, or with the measurement that the record keeps, if it is of these files."""
    kept = kept_smoke(facts.record, files)
    published = facts.record.get("published")
    is_lost = kept is None and isinstance(published, Mapping) and "smoke" in published
    if is_lost and smoke is None:
        report_step(on_progress, f"what {RECORD} says was measured is of other weights, and is left out")
    measured = smoke or kept
    if measured is not None and (warning := few_prompts(measured)):
        report_step(on_progress, f"warning: {warning}")
    return replace(facts, smoke=measured)
