"""The parts of `upload`: target, what must not be released, card, record, plan, and what changes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.comparison.sides import naming_side, read_side
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.engines.releases import ranges
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.hub_names import SCHEME, is_repo_name
from eaglectl.files.layout import CARD, CONFIG, RECORD, SUMS
from eaglectl.files.opening import open_source
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.judge.judgement import Report, judge_drafter
from eaglectl.judge.rule import Finding, Policy
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.operations.comparing import compare_headers
from eaglectl.operations.options import ValidateOptions
from eaglectl.operations.validating import judge_source
from eaglectl.publish.card import make_card
from eaglectl.publish.card_block import CardFacts
from eaglectl.publish.plan import Changes, UploadPlan
from eaglectl.publish.provenance import digest_of, make_record, make_sums
from eaglectl.publish.remote import Remote
from eaglectl.publish.request import Destination
from eaglectl.publish.upload import find_proposal
from eaglectl.publish.upload_files import FrozenSource, LeftOut, UploadFile, written_file
from eaglectl.report.documents.validate import validate_document
from eaglectl.target import NONE_NAMED, TargetChoice, base_models, named_choices, open_target
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict

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


def release_policy(policy: Policy) -> Policy:
    """`policy` with the rules that a release must pass as errors, but for those it names itself."""
    named = {*policy.severities, *policy.off}
    return replace(policy, forbidden=policy.forbidden | (set(FORBIDDEN) - named))


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
    files: Sequence[UploadFile], checkpoint: Checkpoint, report: Report, facts: CardFacts
) -> tuple[UploadFile, ...]:
    """The files with the card, the record and the checksums that are published."""
    by_name = {file.name: file for file in files}

    def add(name: str, data: bytes) -> None:
        file = written_file(name, data)
        if name not in by_name or by_name[name].sha256 != file.sha256:
            by_name[name] = file

    add(CARD, make_card(card_text(files), facts).encode())
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
    files: Sequence[UploadFile],
    left_out: Sequence[LeftOut],
    report: Report,
    target: ReleaseTarget,
    message: str | None,
) -> UploadPlan:
    """The plan for the files; the repository is not read yet."""
    title, _, more = (message or f"Upload with eaglectl {eaglectl.__version__}").strip().partition("\n")
    document = validate_document([report])
    digest = digest_of({key: value for key, value in document.items() if key != "source"})
    sums = next(file.sha256 for file in files if file.name == SUMS)
    about = (
        f"{SUMS}: sha256 {sums}\n"
        f"validation: {report.verdict}, policy {Path(report.policy).name}, report sha256 {digest}\n"
        f"eaglectl {eaglectl.__version__}"
    )
    return UploadPlan(
        to.repo,
        to.revision,
        tuple(files),
        tuple(left_out),
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


def with_repository(plan: UploadPlan, to: Destination, remote: Remote) -> UploadPlan:
    """The plan with the state of its repository.

    Raises UsageError and UnreadableError for a destination that does not fit it.
    """
    state = remote.state()
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
        return replace(plan, proposed=find_proposal(remote, state, plan.files))
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


def release_target(
    source: FrozenSource, folder: str, options: ValidateOptions, base_model: str | None = None
) -> ReleaseTarget:
    """The target that was given, or the first of those that the files name; only config.json files are read.

    `base_model` is the one that the card will name.

    Raises RefusedError for a named target that does not fit the drafter.
    """
    if options.target is not None:
        return ReleaseTarget(f"{options.target}, given by --target", options.target)
    others = {base_model: "--base-model"} if base_model else None
    choices = list(named_choices(source, may_fetch=True, others=others))
    seen = [choice for choice in choices if choice.place is not None]
    unseen = [choice for choice in choices if choice.place is None]
    for choice in seen:
        _check_fits(source, folder, choice, options)
    how = [*(_origin(choice) for choice in seen[:1]), *(choice.missing for choice in unseen)]
    if len(bases := base_models(source)) > 1:
        how.append(f"base_model in {CARD} names {len(bases)} models, and a drafter has one target")
    place = seen[0].place if seen else None
    return ReleaseTarget("; ".join(filter(None, how)) or NONE_NAMED, place, _gap(unseen, is_any=bool(seen)))


def _gap(unseen: Sequence[TargetChoice], *, is_any: bool) -> str:
    """What the card says of targets that were not looked up: those that a reader can know by name."""
    if names := [str(choice.text) for choice in unseen if is_repo_name(str(choice.text))]:
        return (
            f"The config of {listed(names)} could not be looked up when this was published: width and"
            " vocabulary were not compared with it."
        )
    if is_any:
        return ""
    return (
        "No target could be looked up when this was published: width and vocabulary were compared with none."
    )


def _origin(choice: TargetChoice) -> str:
    """Which target this is, and which file names it."""
    return choice.how.removesuffix(OTHER)


def _check_fits(source: FrozenSource, folder: str, choice: TargetChoice, options: ValidateOptions) -> None:
    """Raise RefusedError for a target of other width or vocabulary, or that is a drafter."""
    policy = replace(options.read_policy(), required=frozenset())
    narrow = ValidateOptions(
        choice.place,
        select=RULES,
        policy=policy,
        headers_only=True,
        answers=options.answers,
        has_engines=False,
    )
    report = judge_source(source, folder, narrow)
    if errors := [finding for finding in report.findings if finding.severity == "error"]:
        raise RefusedError(
            f"{folder} must not be published: {_error_text(errors)}. The target is {_origin(choice)}: name"
            " the one that it was trained on there, or give it by --target",
            where=errors[0].match.where,
        )


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
