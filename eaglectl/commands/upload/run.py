"""`upload`: publish a drafter; its target, what must not be released, card, record, plan, what changes."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import GIVEN, Drafter
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.engines.releases import ranges
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.hub import is_offline
from eaglectl.files.hub_cache import SCHEME, is_repo_name
from eaglectl.files.hub_requests import NoAnswerError
from eaglectl.files.layout import CARD, CONFIG, RECORD, SUMS
from eaglectl.files.opening import open_local_folder, open_source
from eaglectl.formats.commands import command, completing, whole_commands
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import Report, judge_drafter
from eaglectl.judge.outputs import notes_of
from eaglectl.judge.policy_file import read_policy
from eaglectl.judge.rule import Finding, Policy
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.operations.comparing import compare_headers, naming_side, read_side
from eaglectl.operations.options import ValidateOptions
from eaglectl.operations.validating import judge_source
from eaglectl.progress import OnProgress, report_step
from eaglectl.publish.card import (
    CardFacts,
    check_measured,
    few_prompts,
    kept_smoke,
    make_card,
    make_record,
    make_sums,
    read_smoke,
    with_answers,
)
from eaglectl.publish.plan import (
    Changes,
    FrozenSource,
    LeftOut,
    UploadFile,
    UploadPlan,
    check_leaks,
    check_message,
    check_plan,
    freeze,
    written_file,
)
from eaglectl.publish.request import Destination, UploadOptions
from eaglectl.publish.upload import Remote, Upload, carry_out
from eaglectl.target import NONE_NAMED, TargetChoice, base_models, named_choices, open_target
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, UploadOutcome

# rules that a release must pass, whatever their severity; a policy that names a rule decides itself
FORBIDDEN = ("EGL005", "EGL109", "EGL115", "EGL708", "EGL905", "EGL906")
# rules on what eaglectl writes into the folder, but for the digests, which it has just computed
OF_RELEASES = ("EGL901", "EGL902", "EGL903", "EGL905", "EGL906", "EGL907", "EGL908", "EGL909")

# rules on width, tokens, and a target that is none
RULES = ("EGL701", "EGL702", "EGL706", "EGL708")
OTHER = "; --target takes another"


class ReleaseTarget(Struct, frozen=True):
    """A target in words for the plan; `place` is what --target would take, None where there is none.

    `gap` states for the card what was not compared; empty where nothing is left open.
    """

    how: str
    place: str | None = None
    gap: str = ""


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
    if is_offline() and not options.dry_run:
        raise UnreadableError(f"{to.repo}: nothing can be published offline; --dry-run shows what would be")
    rules = _rules(options)
    frozen, files, left_out = freeze(source, rules.read_policy().allowed.get("files", ()), on_progress)
    report_step(on_progress, f"validating {folder}")
    target = release_target(frozen, folder, rules, options.card.base_model)
    rules = replace(rules, target=target.place)
    report = judge_source(frozen, folder, rules)
    frozen.check_unchanged()
    check_report(report, folder)
    for note in notes_of(report.findings):
        report_step(on_progress, f"warning: {note.text}")
    checkpoint = read_checkpoint(frozen)
    measured = _measured(checkpoint.sidecars.get(RECORD, {}), smoke, files, on_progress)
    facts = _card_facts(to.repo, frozen, checkpoint, target, options)
    write = partial(with_written_files, files, checkpoint, report, replace(facts, smoke=measured))
    plan = make_plan(to, write(to.tag), left_out, report, target, options.message)
    check_published(frozen, plan.files, folder, rules)
    remote = None if is_offline() else Remote(to.repo, to.revision, needs_token=not options.dry_run)
    token = remote.token if remote else None
    check_leaks(frozen, plan.files, checkpoint.metadata, token)
    check_message(options.message, token)
    if remote:
        plan = with_repository(plan, to, remote, is_dry_run=options.dry_run)
    others = (replace(plan, files=write(pin)) for pin in other_pins(plan))
    plan = next((other for other in others if not other.changed), plan)
    plan = replace(plan, changes=changes_of(plan, frozen, folder, target.place, options.answers))
    check_plan(plan)
    if on_plan:
        on_plan(plan)
    if options.dry_run or remote is None:
        return Upload(plan, UploadOutcome.PLANNED, remote.page if remote else "")
    return carry_out(plan, remote, frozen.check_unchanged, on_progress)


def _rules(options: UploadOptions) -> ValidateOptions:
    """How the files are judged; a policy decides itself on the rules that it names."""
    policy = options.policy
    policy = read_policy(policy) if isinstance(policy, str) else policy or Policy()
    forbidden = policy.forbidden | (set(FORBIDDEN) - {*policy.severities, *policy.off})
    return ValidateOptions(
        options.target,
        options.engines,
        policy=replace(policy, forbidden=forbidden),
        answers=options.answers,
        has_engines=options.has_engines,
    )


def release_target(
    source: FrozenSource, folder: str, options: ValidateOptions, base_model: str | None = None
) -> ReleaseTarget:
    """The target that was given, or the first of those that the files name; only config.json files are read.

    `base_model` is the one that the card will name.

    Raises RefusedError for a named target that does not fit the drafter.
    """
    if options.target is not None:
        return ReleaseTarget(f"{options.target}, {GIVEN}", options.target)
    others = {base_model: "--base-model"} if base_model else None
    choices = list(named_choices(source, may_fetch=True, others=others))
    seen = [choice for choice in choices if choice.place is not None]
    unseen = [choice for choice in choices if choice.place is None]
    for choice in seen:
        _check_fits(source, folder, choice, options)
    how = [*(choice.how.removesuffix(OTHER) for choice in seen[:1]), *(choice.missing for choice in unseen)]
    if len(bases := base_models(source)) > 1:
        how.append(f"base_model in {CARD} names {len(bases)} models, and a drafter has one target")
    place = seen[0].place if seen else None
    return ReleaseTarget("; ".join(filter(None, how)) or NONE_NAMED, place, _target_gap(place, unseen))


def _target_gap(place: str | None, unseen: Sequence[TargetChoice]) -> str:
    """What was not compared, for the card; "" where nothing is left open."""
    # what a reader can know by name
    names = [str(choice.text) for choice in unseen if is_repo_name(str(choice.text))]
    if names:
        return (
            f"The config of {listed(names)} could not be looked up when this was published: width and"
            " vocabulary were not compared with it."
        )
    if place is None:
        return (
            "No target could be looked up when this was published: width and vocabulary were compared with"
            " none."
        )
    return ""


def _check_fits(source: FrozenSource, folder: str, choice: TargetChoice, options: ValidateOptions) -> None:
    """Raise RefusedError for a target of other width or vocabulary, or that is a drafter."""
    narrow = ValidateOptions(
        choice.place,
        select=RULES,
        policy=replace(options.read_policy(), required=frozenset()),
        headers_only=True,
        answers=options.answers,
        has_engines=False,
    )
    if errors := [
        finding for finding in judge_source(source, folder, narrow).findings if finding.severity == "error"
    ]:
        raise RefusedError(
            f"{folder} must not be published: {_error_text(errors)}. The target is"
            f" {choice.how.removesuffix(OTHER)}: name the one that it was trained on there, or give it by"
            " --target",
            where=errors[0].match.where,
        )


def check_report(report: Report, folder: str) -> None:
    """Raise RefusedError where validation failed, UnreadableError where it could not judge the folder."""
    if report.verdict == CheckVerdict.PASS:
        return
    if report.verdict == CheckVerdict.COULD_NOT_LOOK:
        _check_doubts(report, folder)
        return
    errors = [finding for finding in report.findings if finding.severity == "error"] or list(report.findings)
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    if report.default_engines and any(error.match.engines for error in errors):
        more += "; --engine names the engines that it is for, where these were judged by default"
    raise RefusedError(
        f"{folder} must not be published: {_error_text(errors[:3])}{more}; `{command('validate', folder)}`"
        " says how to mend it",
        where=errors[0].match.where if errors else "",
    )


def _check_doubts(report: Report, folder: str) -> None:
    """Raise UnreadableError, unless all that is open was assumed on request: the plan and the card say so."""
    required = [rule.reason for rule in report.unchecked if rule.is_required]
    required += [*report.questions, *filter(None, (report.problem,))]
    of_releases = [(verdict, reason) for verdict in report.releases for reason in verdict.reasons]
    is_doubted = report.doubts and {reason for _, reason in of_releases} <= set(report.doubts)
    if is_doubted and not required:
        return
    required += [f"{verdict.engine} {verdict.release}: {reason}" for verdict, reason in of_releases]
    reason = (required or ["an engine's release could not be judged"])[0]
    raise UnreadableError(
        f"{folder} could not be judged, and nothing was sent: {reason}; `{command('validate', folder)}` says"
        " more"
    )


def _error_text(errors: Sequence[Finding]) -> str:
    return "; ".join(f"{error.rule.id} {error.rule.name}: {error.match.message}" for error in errors)


def check_published(
    frozen: FrozenSource, files: Sequence[UploadFile], folder: str, options: ValidateOptions
) -> None:
    """Raise RefusedError where the card or the record among the files to publish breaks a rule."""
    policy = replace(options.read_policy(), required=frozenset())
    options = replace(options, policy=policy, has_engines=False, select=OF_RELEASES, headers_only=True)
    report = judge_source(frozen.published(files), folder, options)
    frozen.check_unchanged()
    check_report(report, folder)


def _measured(
    record: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
    files: Sequence[UploadFile],
    on_progress: OnProgress | None,
) -> Mapping[str, Any] | None:
    """What was given as `smoke`, or the measurement that the record keeps, if it is of these files.

    Raises what `check_measured` raises for a `smoke` that is of other files.
    """
    if smoke is not None:
        check_measured(smoke, files)
    kept = kept_smoke(record, files)
    published = record.get("published")
    if kept is None and smoke is None and isinstance(published, Mapping) and "smoke" in published:
        report_step(on_progress, f"what {RECORD} says was measured is of other weights, and is left out")
    measured = smoke or kept
    if measured is not None and (warning := few_prompts(measured)):
        report_step(on_progress, f"warning: {warning}")
    return measured


def _card_facts(
    repo: str, frozen: FrozenSource, checkpoint: Checkpoint, target: ReleaseTarget, options: UploadOptions
) -> CardFacts:
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


def served_releases(
    source: FrozenSource, checkpoint: Checkpoint, drafter: Drafter, target: str | None, answers: Answers
) -> dict[str, str]:
    """Engine -> its releases that serve the drafter as it was trained; engines without any are left out."""
    known, files, config = TargetChoice(target, target).read()
    subject = Subject(
        source,
        GivenTarget(known, files, config, target),
        tuple(EngineRequest(name, engine.releases) for name, engine in ENGINES.items()),
        answers,
        headers_only=True,
        read=(checkpoint, drafter),
    )
    passed: dict[str, list[str]] = {}
    for verdict in judge_drafter(subject).releases:
        if verdict.outcome.is_served:
            passed.setdefault(verdict.engine, []).append(verdict.release)
    return {engine: ranges(releases, ENGINES[engine].releases) for engine, releases in passed.items()}


def card_text(files: Iterable[UploadFile]) -> str:
    """README.md; empty where there is none. Raises RefusedError where it is not UTF-8."""
    card = next((file.content for file in files if file.name == CARD), b"")
    try:
        return card.decode() if isinstance(card, bytes) else ""
    except UnicodeDecodeError:
        raise RefusedError(f"{CARD} is not UTF-8; save it as that") from None


def with_written_files(
    files: Sequence[UploadFile], checkpoint: Checkpoint, report: Report, facts: CardFacts, pin: str | None
) -> tuple[UploadFile, ...]:
    """The files with the card, whose commands `pin` a revision, the record and the checksums."""
    by_name = {file.name: file for file in files}

    def add(name: str, data: bytes) -> None:
        file = written_file(name, data)
        if name not in by_name or by_name[name].sha256 != file.sha256:
            by_name[name] = file

    add(CARD, make_card(card_text(files), replace(facts, revision=pin)).encode())
    outcome = {
        "verdict": report.verdict,
        "policy": Path(report.policy).name,
        "engines": list(report.engines),
        "target": facts.drafter.target.name,
        "target_config": report.target_digest or None,
        "rules": eaglectl.__version__,
    }
    add(RECORD, make_record(checkpoint, facts.drafter, list(by_name.values()), outcome, facts.smoke))
    add(SUMS, make_sums(list(by_name.values())))
    return tuple(sorted(by_name.values(), key=lambda file: file.name))


def make_plan(
    to: Destination,
    files: tuple[UploadFile, ...],
    left_out: tuple[LeftOut, ...],
    report: Report,
    target: ReleaseTarget,
    message: str | None,
) -> UploadPlan:
    """The plan for the files; the repository is not read yet."""
    title, _, more = (message or f"Upload with eaglectl {eaglectl.__version__}").strip().partition("\n")
    sums = next(file.sha256 for file in files if file.name == SUMS)
    about = (
        f"{SUMS}: sha256 {sums}\n"
        f"validation: {report.verdict}, policy {Path(report.policy).name}\n"
        f"eaglectl {eaglectl.__version__}"
    )
    return UploadPlan(
        to.repo,
        to.revision,
        files,
        left_out,
        state=None,
        is_seen=False,
        is_pull=bool(to.is_pull),
        is_private=to.is_private is not False,
        tag=to.tag,
        title=title.strip(),
        description="\n\n".join(filter(None, (more.strip(), about))),
        target=target.how,
        is_target_seen=not target.gap,
        doubts=report.doubts,
        report=report,
    )


def with_repository(plan: UploadPlan, to: Destination, remote: Remote, *, is_dry_run: bool) -> UploadPlan:
    """The plan with the state of its repository; without it where a dry run gets no answer.

    Raises UsageError and UnreadableError for a destination that does not fit it.
    """
    try:
        state = remote.state()
    except NoAnswerError as error:
        if not is_dry_run:
            raise
        return replace(plan, unseen=str(error))
    if state is None:
        is_seen = remote.token is not None
        if is_seen and to.revision != "main":
            raise UnreadableError(
                f"{to.repo} is not there, so it has no revision {to.revision}; leave --revision out to make"
                " it"
            )
        return replace(plan, is_seen=is_seen)
    if to.is_private is not None and to.is_private != state.is_private:
        kind = "private" if state.is_private else "public"
        raise UsageError(
            f"{to.repo} is {kind} already, and upload does not change that; leave --private and --public out"
        )
    is_pull = to.is_pull is not False
    plan = replace(plan, state=state, is_seen=True, is_pull=is_pull, is_private=state.is_private)
    if is_pull and plan.changed:
        return replace(plan, proposed=remote.proposal(state, plan.files))
    return plan


def other_pins(plan: UploadPlan) -> tuple[str | None, ...]:
    """Revisions that the repository's card may pin in place of the plan's tag: that alone is no change.

    A card is written before its tag where a pull request came first, and stays as it is without --tag.
    """
    if plan.state is None or not {file.name for file in plan.changed} <= {CARD, RECORD, SUMS}:
        return ()
    head = plan.state.head
    tags = [name for name, commit in plan.state.tags.items() if commit == head]
    return tuple(revision for revision in (None, *tags) if revision != plan.tag)


def changes_of(
    plan: UploadPlan, frozen: FrozenSource, folder: str, target: str | None, answers: Answers
) -> Changes | None:
    """How the drafter differs from the repository's, by config and headers; None where that has no files.

    A comparison that fails does not raise: the result states why nothing was compared.
    """
    state = plan.state
    if state is None or not plan.changed:
        return None
    there = f"{plan.repo}@{state.head}"
    weights = tuple(file.name for file in plan.changed if file.name.endswith(".safetensors"))
    diff = command("diff", there, folder, target=target, answers=answers)
    if CONFIG not in state.files:
        return Changes(None, f"{plan.repo} has no {CONFIG} yet", weights, diff)
    if not weights and CONFIG not in {file.name for file in plan.changed}:
        return Changes(None, "config and weights are the same bytes", weights, diff)
    try:
        known, there = open_target(target), f"{SCHEME}{there}"
        with naming_side("A", there):
            before = read_side(there, read_checkpoint(open_source(there)), known, answers)
        with naming_side("B", folder):
            after = read_side(folder, read_checkpoint(frozen), known, answers)
        return Changes(compare_headers(before, after, answers), "", weights, diff)
    except EaglectlError as error:
        return Changes(None, f"could not be compared: {error}", weights, diff)
