"""`upload`: publish a drafter: its target, forbidden content, card, record, plan and changes.

Also the plan, the card and the result as sections and as a JSON document.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from msgspec.structs import replace

import eaglectl
from eaglectl.api.options import ValidateOptions
from eaglectl.api.outputs import notes_of
from eaglectl.api.validate import judge_source
from eaglectl.drafter.drafter import GIVEN
from eaglectl.engines.behaviour import ranges
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, open_local_folder, read_checkpoint
from eaglectl.files.hub import is_offline
from eaglectl.files.layout import CARD, RECORD, SIGNATURE, SUMS
from eaglectl.files.source import is_repo_name
from eaglectl.formats.commands import SOURCE, Complete, command, whole_commands
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import Report, Subject, given_target, judge_drafter
from eaglectl.judge.rule import Finding, Severity
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import OnProgress, report_step
from eaglectl.publish.card import (
    CardFacts,
    check_measured,
    kept_smoke,
    make_card,
    make_record,
    read_smoke,
    with_answers,
)
from eaglectl.publish.request import Destination, UploadOptions
from eaglectl.publish.upload import (
    FrozenSource,
    Remote,
    Upload,
    UploadFile,
    UploadPlan,
    check_leaks,
    check_plan,
    freeze,
)
from eaglectl.report.documents import Parts
from eaglectl.report.findings import total
from eaglectl.report.section import (
    TONES,
    Commands,
    Line,
    Lines,
    Outline,
    Remark,
    Remarks,
    Section,
    Table,
    Tone,
    Words,
    first_line,
    first_lines,
    grouped,
    plain,
)
from eaglectl.report.wording import answer_line, size
from eaglectl.target.choice import NONE_NAMED, TargetChoice, as_target, named_choices
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, FileChange, FirstWord, UploadOutcome

if TYPE_CHECKING:
    from eaglectl.api.keywords import UploadFields

# rules that a release must pass, whatever their severity; a policy that names a rule decides itself
FORBIDDEN = ("EGL005", "EGL109", "EGL115", "EGL708", "EGL905", "EGL906")
# rules on the files that eaglectl writes, except for the digests, which it has just computed
OF_RELEASES = ("EGL901", "EGL902", "EGL903", "EGL905", "EGL906", "EGL907", "EGL908", "EGL909")

# rules on width, tokens, and a model that cannot be the target
RULES = ("EGL701", "EGL702", "EGL706", "EGL708")
# what was not compared, for the card
NOT_COMPARED = (
    "The target's config was not available when this was published: width and vocabulary were not compared"
    " with it."
)


@with_keywords
def upload(
    folder: StrPath,
    destination: Destination | str,
    options: UploadOptions | None = None,
    *,
    on_plan: Callable[[UploadPlan], None] | None = None,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[UploadFields]",
) -> Upload:
    """Validate a folder, publish it in one commit and verify the commit; the folder is never written to.

    The files are hashed first, so that the validated bytes are the published bytes. `on_plan` is called
    before anything is sent, and can stop the upload by an error. `on_progress` is called with each step
    (without a unit), and with the bytes hashed. Raises RefusedError for content that must not be published or
    has changed meanwhile, UnreadableError if the Hub cannot be reached or fails, UsageError for options that
    contradict each other.
    """
    folder, options = os.fspath(folder), options or UploadOptions()
    to = Destination(destination) if isinstance(destination, str) else destination
    with whole_commands(Complete(folder, options.target, options.answers)):
        return _upload(folder, to, options, on_plan, on_progress)


# Freeze, judge, add card and record, judge again, check for leaks, then publish; nothing is written
# remotely before `on_plan`.
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
        raise UnreadableError(
            f"{to.repo}: nothing can be published offline; pass --dry-run to see the plan",
            options=("--dry-run",),
        )
    judge_options = _judge_options(options)
    frozen, files, unsent = freeze(source, judge_options.read_policy().allowed.get("files", ()), on_progress)
    report_step(on_progress, f"validating {folder}")
    target_words, target, not_compared = release_target(
        frozen, folder, judge_options, options.card.base_model
    )
    judge_options = replace(judge_options, target=target)
    report = _judge(frozen, frozen, folder, judge_options)
    for note in notes_of(report.findings):
        report_step(on_progress, f"warning: {note.text}")
    checkpoint = read_checkpoint(frozen)
    if checkpoint.distrust:
        report_step(
            on_progress, f"{RECORD} {checkpoint.distrust}: it is replaced, and its entries are dropped"
        )
    measured = _measured(checkpoint.sidecars.get(RECORD, {}), smoke, files, on_progress)
    facts = _card_facts(to.repo, frozen, checkpoint, target, options)
    facts = replace(facts, smoke=measured, target_gap=not_compared)
    files = _with_written_files(files, checkpoint, report, facts)
    plan = _make_plan(to, files, unsent, report, options.message)
    plan = replace(plan, target=target_words, is_target_seen=not not_compared)
    # the card and the record too must break no rule
    _judge(frozen, frozen.published(plan.files), folder, _narrow(judge_options, OF_RELEASES))
    remote = None if is_offline() else Remote(to.repo, to.revision, needs_token=not options.dry_run)
    token = remote.token if remote else None
    check_leaks(frozen, plan.files, checkpoint.metadata, token, options.message or "")
    if remote:
        plan = _with_repository(plan, to, remote)
    check_plan(plan)
    if on_plan:
        on_plan(plan)
    if options.dry_run or remote is None:
        return Upload(plan, UploadOutcome.PLANNED)
    return remote.carry_out(plan, frozen.check_unchanged, on_progress)


def _judge_options(options: UploadOptions) -> ValidateOptions:
    judge_options = ValidateOptions(
        options.target,
        options.engines,
        policy=options.policy,
        answers=options.answers,
        has_engines=options.has_engines,
    )
    policy = judge_options.read_policy()
    # a policy overrides the rules that it names
    severities: dict[str, Severity | Literal["off"]] = dict.fromkeys(FORBIDDEN, "error")
    return replace(judge_options, policy=replace(policy, severities={**severities, **policy.severities}))


def release_target(
    source: FrozenSource, folder: str, options: ValidateOptions, base_model: str | None = None
) -> tuple[str, TargetChoice, str]:
    """Return the given target, or the first of those that the files name; only config.json files are read.

    Returns its words for the plan, the target, and, for the card, what was not compared ("" if nothing is
    open). `base_model` is the one that the card will name. Raises RefusedError for a named target that does
    not fit the drafter.
    """
    if options.target.place is not None:
        return f"{options.target.text}, {GIVEN}", options.target, ""
    others = {base_model: "--base-model"} if base_model else None
    words, target, not_compared = list[str](), TargetChoice(), ""
    for choice in named_choices(source, may_fetch=True, others=others):
        if choice.place is None:
            words.append(choice.missing)
            # other names mean nothing to a reader
            not_compared = NOT_COMPARED if is_repo_name(str(choice.text)) else not_compared
            continue
        given_target = as_target(choice.place)
        if errors := _errors(
            judge_source(source, folder, replace(_narrow(options, RULES), target=given_target))
        ):
            raise RefusedError(
                f"{folder} must not be published: {_error_text(errors)}. The target is {choice.named}; state"
                " the target of the training there, or pass it with --target",
                where=errors[0].match.where,
                options=("--target",),
            )
        if target.place is None:
            words.insert(0, choice.named)
            target = given_target
    return "; ".join(words) or NONE_NAMED, target, not_compared if target.place else NOT_COMPARED


def _narrow(judge_options: ValidateOptions, select: tuple[str, ...]) -> ValidateOptions:
    """Return options for a few rules alone, none of which is required to look."""
    policy = replace(judge_options.read_policy(), required=frozenset())
    return replace(judge_options, select=select, policy=policy, headers_only=True, has_engines=False)


def _errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "error"]


def _judge(frozen: FrozenSource, source: FrozenSource, folder: str, judge_options: ValidateOptions) -> Report:
    """Raise RefusedError if validation fails, UnreadableError if it could not judge the folder."""
    report = judge_source(source, folder, judge_options)
    frozen.check_unchanged()
    if report.verdict == CheckVerdict.PASS:
        return report
    engines = [f"--engine={request.text}" for request in judge_options.engines]
    if report.verdict == CheckVerdict.COULD_NOT_LOOK:
        _check_doubts(report, folder, command("inspect", SOURCE, *engines))
        return report
    errors = _errors(report) or [finding for finding in report.findings if finding.fails(report.fail_on)]
    reason = _error_text(errors[:3]) or "; ".join(report.unreported)
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    if report.default_engines and any(error.match.engines for error in errors):
        more += "; these engines were judged by default: pass --engine with those that will serve it"
    raise RefusedError(
        f"{folder} must not be published: {reason}{more}; `{command('validate', SOURCE, *engines)}`"
        " shows how to repair it",
        where=errors[0].match.where if errors else "",
    )


def _check_doubts(report: Report, folder: str, look: str) -> None:
    """Raise UnreadableError, unless every open question was assumed on request (stated in plan and card)."""
    reasons = [rule.reason for rule in report.unchecked if rule.is_required]
    reasons += [*report.questions, *filter(None, (report.problem,))]
    for verdict in report.releases:
        open_keys = {note.key for note in report.open_notes}
        open_reasons = [reason for key, reason in verdict.keyed_reasons if key not in open_keys]
        reasons += [f"{verdict.engine} {verdict.release}: {reason}" for reason in open_reasons]
    if reasons or not report.doubts:
        reason = next(iter(reasons), "an engine's release could not be judged")
        raise UnreadableError(
            f"{folder} could not be judged, and nothing was sent: {reason}; `{look}` shows more"
        )


def _error_text(errors: Sequence[Finding]) -> str:
    return "; ".join(f"{error.rule.id} {error.rule.name}: {error.match.message}" for error in errors)


def _measured(
    record: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
    files: Sequence[UploadFile],
    on_progress: OnProgress | None,
) -> Mapping[str, Any] | None:
    """Return `smoke` if given, else the measurement in the record, if it is of these files.

    Raises what `check_measured` raises for a `smoke` that is of other files.
    """
    if smoke is not None:
        check_measured(smoke, files)
    measured = smoke or kept_smoke(record, files)
    match record:
        case {"published": {"smoke": _}} if measured is None:
            report_step(on_progress, f"the measurement in {RECORD} is of other weights, and left out")
    return measured


def _card_facts(
    repo: str, frozen: FrozenSource, checkpoint: Checkpoint, target: TargetChoice, options: UploadOptions
) -> CardFacts:
    """Return what the card states; for each engine, the releases that serve the drafter as trained."""
    drafter = read_drafter(checkpoint, options.answers, target.known())
    subject = Subject(
        frozen,
        given_target(target),
        tuple(EngineRequest(name, engine.releases) for name, engine in ENGINES.items()),
        options.answers,
        headers_only=True,
        read=(checkpoint, drafter),
    )
    verdicts = judge_drafter(subject).releases
    served = grouped((verdict.engine, verdict.release) for verdict in verdicts if verdict.outcome.is_served)
    tensors = checkpoint.tensors.items()
    facts = CardFacts(
        repo,
        drafter,
        sum(prod(tensor.shape) for name, tensor in tensors if not name.endswith(("d2t", "t2d"))),
        checkpoint.nbytes,
        {engine: ranges(releases, ENGINES[engine].releases) for engine, releases in served.items()},
        checkpoint.earlier or {},
        options={verdict.engine: verdict.options for verdict in verdicts if verdict.outcome.is_served},
    )
    return with_answers(facts, _card_text(frozen.hashed.values()), options.card)


def _card_text(files: Iterable[UploadFile]) -> str:
    card = next((file.content for file in files if file.name == CARD), b"")
    try:
        return card.decode() if isinstance(card, bytes) else ""
    except UnicodeDecodeError:
        raise RefusedError(f"{CARD} is not UTF-8; save it as that") from None


def _with_written_files(
    files: Sequence[UploadFile], checkpoint: Checkpoint, report: Report, facts: CardFacts
) -> tuple[UploadFile, ...]:
    """Return the files with the card, the record and the checksums."""
    by_name = {file.name: file for file in files}

    def add(name: str, data: bytes) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        if name not in by_name or by_name[name].sha256 != sha256:
            by_name[name] = UploadFile(name, len(data), sha256, data, is_written=True)

    add(CARD, make_card(_card_text(files), facts).encode())
    outcome = {
        "verdict": report.verdict,
        "policy": Path(report.policy).name,
        "engines": list(report.engines),
        "target": facts.drafter.target.name,
        "target_config": report.target_digest or None,
        "rules": eaglectl.__version__,
    }
    add(RECORD, make_record(checkpoint, facts.drafter, list(by_name.values()), outcome, facts.smoke))
    # as `sha256sum` writes it, over every file but itself and what is made after it
    listed_files = [by_name[name] for name in sorted(by_name) if name not in (SUMS, SIGNATURE)]
    add(SUMS, "".join(f"{file.sha256}  {file.name}\n" for file in listed_files).encode())
    return tuple(by_name[name] for name in sorted(by_name))


def _make_plan(
    to: Destination,
    files: tuple[UploadFile, ...],
    left_out: Mapping[str, str],
    report: Report,
    message: str | None,
) -> UploadPlan:
    # the plan before the repository was read: `state` and `is_seen` follow from it
    title, _, more = ((message or "").strip() or f"Upload with eaglectl {eaglectl.__version__}").partition(
        "\n"
    )
    about = (
        f"{SUMS}: sha256 {next(file.sha256 for file in files if file.name == SUMS)}\n"
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
        report=report,
    )


def _with_repository(plan: UploadPlan, to: Destination, remote: Remote) -> UploadPlan:
    """Return the plan with the state of its repository.

    Raises UsageError and UnreadableError for a destination that does not fit it.
    """
    state = remote.state()
    if state is None:
        is_seen = remote.token is not None
        if is_seen and to.revision != "main":
            raise UnreadableError(
                f"{to.repo} does not exist and has no revision {to.revision}; leave"
                " --revision out to create it",
                options=("--revision",),
            )
        return replace(plan, is_seen=is_seen)
    if to.is_private is not None and to.is_private != state.is_private:
        kind = "private" if state.is_private else "public"
        raise UsageError(
            f"{to.repo} is {kind} already, and upload does not change that; leave --private and --public out",
            options=("--private",),
        )
    is_pull = to.is_pull is not False
    return replace(plan, state=state, is_seen=True, is_pull=is_pull, is_private=state.is_private)


CHANGE_TONES: Mapping[FileChange, Tone] = {FileChange.NEW: "good", FileChange.CHANGED: "doubt"}


def upload_plan_outline(plan: UploadPlan) -> Outline:
    """Return the destination, what changes in the drafter, and every file with its size and change."""
    where = _destination_text(plan)
    files = [
        (
            (file.name, Words(" (made by eaglectl)" if file.is_written else "", "quiet")),
            str(file.size),
            size(file.size),
            Words(plan.change(file), CHANGE_TONES.get(plan.change(file), "quiet")),
            file.sha256[:12],
        )
        for file in plan.files
    ]
    what = f"{len(plan.changed)} of {len(plan.files)} files, {size(plan.nbytes)}"
    sections = [
        Section("Plan", [Remarks(list(_judged(plan)))], where, has_heading=False),
        Section(
            "Files",
            [
                Table(("file", "bytes", "size", "there", "sha256"), files),
                Remarks(list(_remarks_on_files(plan))),
                Lines([Words(f"{what}; tag {plan.tag}" if plan.tag else what, "quiet")]),
            ],
            has_heading=False,
        ),
    ]
    return Outline(
        "upload",
        Words("a plan", "plain"),
        plan.repo,
        where,
        first_line(UploadOutcome.PLANNED, Words(plan.repo, "strong"), f"  {where}"),
        sections,
    )


def card_outline(plan: UploadPlan) -> Outline:
    """Return the published card, as it is written."""
    card = next(file.content for file in plan.files if file.name == CARD)
    text = (card if isinstance(card, bytes) else card.read_bytes()).decode()
    sections = [Section(CARD, [Lines(text.splitlines(), is_unbroken=True)])]
    return Outline("upload", Words("the card", "plain"), CARD, "", "", sections)


def upload_outline(done: Upload, plans: Sequence[UploadPlan] = ()) -> Outline:
    """Return the outcome, the command that downloads the files, and plans that were not shown before."""
    plan, sent, oid = done.plan, done.sent, done.oid
    answers: dict[UploadOutcome, tuple[Tone, str | Words]] = {
        UploadOutcome.PLANNED: ("", "nothing was sent (--dry-run)"),
        UploadOutcome.NOTHING_TO_DO: (
            "good",
            f"{plan.revision} at {(oid or '')[:12]} has these files already",
        ),
        UploadOutcome.PUBLISHED: ("good", Words((sent.pull_url or sent.url) if sent else "", "strong")),
        UploadOutcome.MISMATCH: (
            "bad",
            "the commit differs from what was sent; do not merge or serve it",
        ),
    }
    lines: list[Line] = [f"{name}: {how}" for name, how in done.mismatches.items()]
    if done.outcome == UploadOutcome.PUBLISHED:
        lines = [f"verified at commit {oid}: {len(plan.files)} files, sizes and digests"]
    elif sent:
        lines = [f"commit {sent.shown}", *first_lines(lines)]
    lines += [f"tag {done.tag} is at {oid}"] if done.tag else []
    commands = [("", done.download)] if oid and done.outcome != UploadOutcome.MISMATCH else []
    commit = Section("Commit", [Lines(lines, is_unbroken=True), Commands(commands)], has_heading=False)
    tone, lead = answers[done.outcome]
    is_proposed = done.outcome == UploadOutcome.PUBLISHED and plan.is_pull
    verdict = Words(FirstWord.PROPOSED if is_proposed else done.outcome, tone)
    head = first_line(verdict.text, verdict, ": ", lead)
    return Outline("upload", verdict, plan.repo, (lead,), head, [commit, *_plan_sections(plans)])


def _plan_sections(plans: Sequence[UploadPlan]) -> Iterator[Section]:
    for plan in plans:
        yield from upload_plan_outline(plan).sections
        yield from (replace(section, is_more=True) for section in card_outline(plan).sections)


def _judged(plan: UploadPlan) -> Iterator[Remark]:
    unseen, verdict = "" if plan.is_target_seen else "not compared: ", plan.report.verdict
    yield Remark(Words("target", "doubt" if unseen else "quiet"), f"{unseen}{plan.target}")
    yield Remark(Words("verdict", TONES[verdict]), f"{verdict}: {total([plan.report])}")
    if plan.report.releases:
        yield Remark(Words("engines", "quiet"), plain(answer_line(plan.report.releases, plan.report.trained)))
    for doubt in plan.report.doubts:
        yield Remark(Words("open", "doubt"), doubt)


def _remarks_on_files(plan: UploadPlan) -> Iterator[Remark]:
    for text in first_lines([f"{name}: {why}" for name, why in plan.left_out.items()]):
        yield Remark(Words("not sent", "doubt"), plain(text))
    if plan.extra:
        text = f"only in the repository, and weights among them may be loaded: {listed(plan.extra)}"
        yield Remark(Words("stays", "doubt"), text)


def _destination_text(plan: UploadPlan) -> str:
    if plan.state is None and not plan.is_seen:
        return (
            "was not read: it does not exist, or it is private and there is no token, or this call is offline"
        )
    where = f"a pull request to {plan.revision}" if plan.is_pull else f"a commit on {plan.revision}"
    kind = "private" if plan.is_private else "public"
    if plan.state is None:
        return f"{where} of a new {kind} repository"
    return f"{where}, now at {plan.state.head[:12]} ({kind})"


def _named(texts: Mapping[str, str], key: str) -> list[dict[str, str]]:
    return [{"name": name, key: text} for name, text in texts.items()]


PARTS: Parts = {
    Upload: (
        "repo=plan.repo",
        "outcome",
        "revision=plan.revision",
        "head=plan.state.head",
        "is_seen=plan.is_seen",
        ("is_new", lambda done: done.plan.state is None and done.plan.is_seen),
        "is_private=plan.is_private",
        "is_pull_request=plan.is_pull",
        "message=plan.title",
        "target=plan.target",
        "is_target_seen=plan.is_target_seen",
        "verdict=plan.report.verdict",
        "doubts=plan.report.doubts",
        "releases=plan.report.releases",
        (
            "files",
            lambda done: [
                {
                    "name": file.name,
                    "size": file.size,
                    "sha256": file.sha256,
                    "change": done.plan.change(file),
                    "is_written": file.is_written,
                }
                for file in done.plan.files
            ],
        ),
        ("not_sent", lambda done: _named(done.plan.left_out, "why")),
        "only_there=plan.extra",
        "bytes=plan.nbytes",
        "commit=sent",
        # keys of the first version of this document, with constant values
        ("proposed", lambda _: None),
        ("is_recovered", lambda _: False),
        "tag",
        ("mismatches", lambda done: _named(done.mismatches, "how")),
        ("download", lambda done: done.download if done.oid else None),
    ),
    Verdict: ("engine", "release", "outcome", "reasons", "rules", "unread", "options=start_options"),
}
