"""Publishing a drafter, and checking what was published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.api.inputs import open_target
from eaglectl.api.validating import validate
from eaglectl.checkpoint.checkpoint import Checkpoint, read_checkpoint
from eaglectl.checkpoint.hub import is_hub_name, is_offline
from eaglectl.checkpoint.source import FolderSource
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.catalogue import ENGINES
from eaglectl.engines.facts import ranges
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter
from eaglectl.publishing.card import HUB_NAME, Facts, make_card
from eaglectl.publishing.leaks import check_leaks
from eaglectl.publishing.plan import CARD, RECORD, SIGNATURE, SUMS, File, LeftOut, Plan, State, freeze, written
from eaglectl.publishing.provenance import check_measured, digest_of, kept_smoke, make_record, make_sums, read_smoke
from eaglectl.publishing.remote import Remote
from eaglectl.publishing.results import nothing_measured
from eaglectl.publishing.signature import SIGSTORE, Signer, check_signer, sign
from eaglectl.publishing.upload import Upload, carry_out, check_plan, proposed
from eaglectl.publishing.verification import Verification, verify_folder
from eaglectl.reports.documents import validation
from eaglectl.validation.judging import Report
from eaglectl.validation.policy import Policy
from eaglectl.validation.policy_file import read_policy
from eaglectl.validation.release import front_matter

# what a release must not hold, whatever severity the rule has elsewhere; a policy that names the rule decides itself
RELEASE = ("EGL005", "EGL109", "EGL115", "EGL905", "EGL906")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to. `is_pull` None: a pull request, but straight to a repository that this call makes. `is_private` None: private where it makes one."""

    repo: str
    revision: str = "main"
    is_pull: bool | None = None
    is_private: bool | None = None
    tag: str | None = None

    def check(self) -> None:
        """Raise Usage for names that the Hub does not have."""
        if not HUB_NAME.fullmatch(self.repo) or not is_hub_name(self.repo):
            raise Usage(f"{self.repo}: REPO is org/name; a branch is given by --revision")
        for option, name in (("--revision", self.revision), ("--tag", self.tag or "v1")):
            if (
                not name.isprintable()
                or not name.strip()
                or set(name) & set(" ~^:?*[\\")
                or ".." in name
                or name[:1] in "-/"
            ):
                raise Usage(
                    f"{option} {name}: the name of a {'tag' if option == '--tag' else 'branch'} was expected, like v1.0"
                )


def upload(
    folder: str, destination: Destination | str, *, policy: Policy | str | None = None, engines: Sequence[str] = (), target: str | None = None,
    smoke: str | Path | None = None, has_results: bool = False, signer: str | None = None, dry_run: bool = False, answers: Answers | None = None,
    told: Callable[[str], None] | None = None, hashed: Callable[[int, int], None] | None = None, planned: Callable[[Plan], None] | None = None,
) -> Upload:  # fmt: skip
    """Validate DIR, publish it in one commit, and look at what landed; DIR itself is never written to.

    Raises Refused for what must not be published or was overtaken, Unreadable where the Hub cannot be asked or does not do it,
    Usage for options that contradict each other. `told` hears each step, `hashed` bytes of bytes, `planned` the plan before
    anything is sent. `has_results`: what `smoke` measured (that file, or what eaglectl.json keeps) goes into the card's front matter.
    """
    to = Destination(destination) if isinstance(destination, str) else destination
    to.check()
    tell = told or _silent
    source, measured = _folder(folder), read_smoke(smoke) if smoke is not None else None
    check_signer(signer)
    if has_results and measured is None and RECORD not in source.names():
        raise nothing_measured()
    if is_offline() and not dry_run:
        raise Unreadable(f"{to.repo}: nothing can be published offline; --dry-run shows what would be")
    tell(f"validating {folder}")
    asked = release_policy(read_policy(policy) if isinstance(policy, str) else policy or Policy())
    options: dict[str, Any] = {"target": target, "policy": asked, "answers": answers}
    report = validate(folder, engines=engines, **options)
    _check_report(report, folder)
    files, left = freeze(source, asked.allowed.get("files", ()), hashed)
    if measured is not None:
        check_measured(measured, files)
    checkpoint = read_checkpoint(source)
    drafter = read_drafter(checkpoint, answers or Answers(), open_target(target))
    facts = _facts(to.repo, checkpoint, drafter, _served(folder, options), measured, files, tell)
    files = _with_written(files, checkpoint, replace(facts, has_results=has_results), report)
    remote = None if is_offline() else Remote(to.repo, to.revision, needs_token=not dry_run)
    check_leaks(files, checkpoint.metadata, remote.token if remote else None)
    plan = _planned(to, remote, files, report)
    plan = replace(plan, left_out=left)
    if signer is not None:
        plan = _signed(plan, signer, is_dry=dry_run)
    check_plan(plan)
    if planned:
        planned(plan)
    if dry_run or remote is None:
        return Upload(plan, "planned", remote.page if remote else "")
    return carry_out(plan, remote, tell)


def verify(
    folder: str, *, signer: Signer | None = None, is_signature_ignored: bool = False, told: Callable[[int, int], None] | None = None
) -> Verification:  # fmt: skip
    """A downloaded folder against its SHA256SUMS, eaglectl.json and model.sig. `signer` says who must have signed.

    A signature that could not be looked at is on the Verification. Raises Unreadable where there is nothing to compare with,
    Usage for a signer that contradicts itself. `told` hears bytes of bytes.
    """
    asked = signer or Signer()
    asked.check()
    if is_signature_ignored and asked.said:
        raise Usage("--no-signature leaves model.sig closed; leave it out, or --public-key and --identity")
    return verify_folder(
        _folder(folder), folder, None if is_signature_ignored else asked, is_offline=is_offline(), told=told
    )


def release_policy(policy: Policy) -> Policy:
    """`policy` with what a release must not hold as errors; what it says of these rules itself stays."""
    named = {*policy.severities, *policy.off}
    return replace(policy, forbidden=policy.forbidden | {one for one in RELEASE if one not in named})


def _folder(text: str) -> FolderSource:
    if not Path(text).is_dir():
        raise Unreadable(f"{text}: no such folder; give the folder of one checkpoint")
    return FolderSource(Path(text))


def _silent(_: str) -> None:
    """Tell nobody."""


def _check_report(report: Report, folder: str) -> None:
    if report.verdict == "pass":
        return
    if report.verdict == "could-not-look":
        reasons = [one.reason for one in report.unlooked if one.is_required] or [
            report.problem or "an engine's release could not be judged"
        ]
        raise Unreadable(
            f"{folder} could not be judged, and nothing was sent: {reasons[0]}; `eaglectl validate {folder}` says more"
        )
    errors = [one for one in report.findings if one.severity == "error"] or list(report.findings)
    shown = "; ".join(f"{one.rule.id} {one.rule.name}: {one.hit.message}" for one in errors[:3])
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    raise Refused(f"{folder} must not be published: {shown}{more}; `eaglectl validate {folder}` says how to mend it", where=errors[0].hit.where if errors else "")  # fmt: skip


def _served(folder: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Engine -> the releases that serve the drafter as it was trained; engines that have none are left out."""
    report = validate(
        folder,
        engines=[f"{name}>=0" for name in ENGINES],
        select=["EGL10", "EGL11"],
        headers_only=True,
        fail_on="never",
        **options,
    )
    fit: dict[str, list[str]] = {}
    for one in report.releases:
        if one.outcome == "pass":
            fit.setdefault(one.engine, []).append(one.release)
    return {engine: ranges(found, ENGINES[engine].releases) for engine, found in fit.items()}


def _facts(
    repo: str, checkpoint: Checkpoint, drafter: Drafter, served: Mapping[str, str], smoke: Mapping[str, Any] | None, files: Sequence[File],
    tell: Callable[[str], None],
) -> Facts:  # fmt: skip
    named = front_matter(_text(files)).get("base_model", [])
    if not drafter.target.name and len(named) == 1:
        drafter = replace(drafter, target=replace(drafter.target, name=named[0]))
    elif drafter.target.name and not HUB_NAME.fullmatch(drafter.target.name):
        drafter = replace(drafter, target=replace(drafter.target, name=named[0] if len(named) == 1 else None))
    record = checkpoint.sidecars.get(RECORD, {})
    kept = kept_smoke(record, files)
    published = record.get("published")
    if kept is None and smoke is None and isinstance(published, Mapping) and "smoke" in published:
        tell(f"what {RECORD} says was measured is of other weights, and is left out")
    parameters = sum(prod(one.shape) for name, one in checkpoint.tensors.items() if not name.endswith(("d2t", "t2d")))
    return Facts(repo, drafter, parameters, checkpoint.nbytes, served, record, smoke or kept)


def _text(files: Sequence[File]) -> str:
    card = next((file.content for file in files if file.name == CARD), b"")
    try:
        return card.decode() if isinstance(card, bytes) else ""
    except UnicodeDecodeError:
        raise Refused(f"{CARD} is not UTF-8; save it as that") from None


def _with_written(files: Sequence[File], checkpoint: Checkpoint, facts: Facts, report: Report) -> tuple[File, ...]:
    """The files, with the card, the record and the checksums as they are published."""
    found = {file.name: file for file in files}
    found.pop(SIGNATURE, None)  # it is of the files before

    def add(name: str, data: bytes) -> None:
        new = written(name, data)
        if name not in found or found[name].sha256 != new.sha256:
            found[name] = new

    add(CARD, make_card(_text(files), facts).encode())
    judged = {
        "verdict": report.verdict,
        "policy": Path(report.policy).name,
        "engines": list(report.engines),
        "rules": eaglectl.__version__,
    }
    add(RECORD, make_record(checkpoint, facts.drafter, list(found.values()), judged, facts.smoke))
    add(SUMS, make_sums(list(found.values())))
    return tuple(sorted(found.values(), key=lambda file: file.name))


def _planned(to: Destination, remote: Remote | None, files: tuple[File, ...], report: Report) -> Plan:
    state = remote.state() if remote else None
    is_seen = remote is not None and (state is not None or remote.token is not None)
    if state is not None and to.is_private is not None and to.is_private != state.is_private:
        what = "private" if state.is_private else "public"
        raise Usage(f"{to.repo} is {what} already, and upload does not change that; leave --private and --public out")
    if state is None and is_seen and to.revision != "main":
        raise Unreadable(
            f"{to.repo} is not there, so it has no revision {to.revision}; leave --revision out to make it"
        )
    is_pull = state is not None if to.is_pull is None else to.is_pull
    is_private = state.is_private if state else to.is_private is not False
    document = {key: value for key, value in validation([report]).items() if key != "source"}
    sums = next(file.sha256 for file in files if file.name == SUMS)
    about = (
        f"{SUMS}: sha256 {sums}\nvalidation: {report.verdict}, policy {Path(report.policy).name}, report sha256 {digest_of(document)}\n"
        f"eaglectl {eaglectl.__version__}"
    )
    plan = Plan(to.repo, to.revision, files, (), state, is_seen, is_pull, is_private, to.tag, f"Upload with eaglectl {eaglectl.__version__}", about)  # fmt: skip
    return replace(plan, proposed=_proposed(plan, remote, state))


def _proposed(plan: Plan, remote: Remote | None, state: State | None) -> str | None:
    is_asked = plan.is_pull and plan.changed and state is not None and remote is not None
    return proposed(remote, state, plan.files) if is_asked and remote and state else None


def _signed(plan: Plan, signer: str, *, is_dry: bool) -> Plan:
    """The plan with a signature over its files; one that is there over the same files stays, as no two are alike."""
    if not plan.changed and plan.state and SIGNATURE in plan.state.stored:
        return plan
    if is_dry and signer == SIGSTORE:  # which writes to a public log
        return replace(plan, left_out=(*plan.left_out, LeftOut(SIGNATURE, "it is made when the files are sent")))
    return replace(plan, files=(*plan.files, written(SIGNATURE, sign(plan.files, signer))))
