"""Carrying out the plan: blobs first, one commit on the head that the plan saw, then a look at what landed, and only then the tag.

A commit is asked for once. Where its answer is lost, the repository is looked at: it holds the commit, or it does not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eaglectl.errors import EaglectlError, Refused, Unreadable
from eaglectl.publishing.calls import Failure
from eaglectl.publishing.plan import SIGNATURE, File, Plan, State, Stored, check_unchanged
from eaglectl.publishing.remote import Remote, Sent, moved_tag

LOOKS, PAUSE = 3, 2.0
Outcome = Literal["planned", "nothing-to-do", "published", "mismatch"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A file that did not land as it was sent, and how it differs."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Upload:
    """What became of a plan. `sent` None: no commit was made; `is_recovered`: its answer was lost, and it was found.

    `oid` is the commit that holds the files; `tag` the tag that is at it now.
    """

    plan: Plan
    outcome: Outcome
    page: str
    oid: str | None = None
    sent: Sent | None = None
    tag: str | None = None
    is_recovered: bool = False
    mismatches: tuple[Mismatch, ...] = ()


def proposed(remote: Remote, state: State, files: Sequence[File]) -> str | None:
    """An open pull request that holds all the files already, but for a signature, of which no two are alike."""
    names = [file.name for file in files]
    return next((ref for ref, oid in remote.open_pulls(state) if not _mismatches(remote.stored(oid, names), files)), None)  # fmt: skip


def check_plan(plan: Plan) -> None:
    """Raise Refused for what would fail only after the commit."""
    if plan.tag and plan.is_pull and plan.changed:
        raise Refused(
            f"a pull request is not a release yet, and a tag is never moved: leave --tag out, merge, and run the command with --tag {plan.tag}"
            " again; or give --direct"
        )
    if plan.changed and SIGNATURE in plan.extra:
        raise Refused(
            f"{plan.repo} has a {SIGNATURE} over the files before, which these would break: sign them with --sign, or first run"
            f" `hf repos delete-files {plan.repo} {SIGNATURE}`"
        )
    at = plan.state.tags.get(plan.tag) if plan.state and plan.tag else None
    if plan.tag and at is not None and (plan.changed or not plan.state or at != plan.state.head):
        raise Refused(moved_tag(plan.repo, plan.tag, at))


def carry_out(plan: Plan, remote: Remote, told: Callable[[str], None]) -> Upload:
    """Do what the plan says. Raises Refused where it was overtaken, Unreadable where the Hub does not do it; `told` hears the steps."""
    if plan.state is None:
        told(f"making {plan.repo} ({'private' if plan.is_private else 'public'})")
        plan = _made(plan, remote)
    assert plan.state is not None
    if plan.proposed:
        return Upload(plan, "nothing-to-do", remote.page, plan.state.pulls[plan.proposed])
    if not plan.changed:
        return _tagged(plan, remote, Upload(plan, "nothing-to-do", remote.page, plan.state.head))
    if not plan.is_pull or plan.tag:
        remote.check_write()
    told(f"sending {len(plan.changed)} files")
    operations = remote.send_blobs(plan.changed, is_pull=plan.is_pull)
    check_unchanged(plan.files)
    if (now := remote.head()) != plan.state.head:
        raise _moved(plan, now)
    sent, is_recovered = _committed(plan, plan.state, remote, operations)
    told(f"verifying {sent.oid[:12]}")
    found = remote.stored(sent.oid, [file.name for file in plan.files])
    if wrong := _mismatches(found, plan.files):
        return Upload(plan, "mismatch", remote.page, sent.oid, sent, None, is_recovered, wrong)
    done = Upload(plan, "published", remote.page, sent.oid, sent, None, is_recovered)
    return _tagged(plan, remote, done)


def _made(plan: Plan, remote: Remote) -> Plan:
    """The plan on the repository that was made for it."""
    remote.create(is_private=plan.is_private)
    for number in range(LOOKS):
        if (state := remote.state()) is not None:
            break
        time.sleep(PAUSE * number)
    else:
        raise Unreadable(f"{plan.repo} was asked for and is not there; nothing was committed, run the command again")
    if set(state.stored) - {".gitattributes"}:
        raise Refused(
            f"{plan.repo} was made by somebody else in the meantime; nothing was committed, run the command again to see the plan"
        )
    if plan.is_private and not state.is_private:
        raise Refused(f"{plan.repo} was made and is public, against what was asked for; nothing was committed")
    return replace(plan, state=state)


def _committed(plan: Plan, state: State, remote: Remote, operations: Sequence[object]) -> tuple[Sent, bool]:
    """The commit, and whether its answer was lost."""
    try:
        return remote.commit(operations, plan.title, plan.description, state.head, is_pull=plan.is_pull), False
    except Failure as failure:
        if failure.status == 412:
            raise _moved(plan, remote.head()) from None
        if failure.is_passing and failure.status != 429:
            return _looked_for(plan, state, remote, failure), True
        raise remote.cannot_write(failure, "make the commit; nothing was committed") from None


def _looked_for(plan: Plan, state: State, remote: Remote, failure: Failure) -> Sent:
    """The commit whose answer was lost, if it took effect."""
    why = f"answered {failure.status}" if failure.status else f"gave no answer ({failure.kind})"
    for number in range(LOOKS):
        time.sleep(PAUSE * number)
        try:
            found = _in_pulls(plan, state, remote) if plan.is_pull else _on_revision(plan, state, remote)
        except EaglectlError as error:
            raise Unreadable(f"the Hub {why} to the commit, and whether it took effect is not known, as {error}; look at {remote.page}") from None  # fmt: skip
        if found:
            return found
    raise Unreadable(f"the Hub {why} to the commit, and it did not take effect; nothing was committed to {plan.repo}, run the command again")  # fmt: skip


def _on_revision(plan: Plan, state: State, remote: Remote) -> Sent | None:
    if remote.head() == state.head:
        return None
    for oid, title in remote.titles(plan.revision).items():
        if oid == state.head:
            return None
        if title == plan.title and not _mismatches(remote.stored(oid, [file.name for file in plan.files]), plan.files):
            return Sent(oid, remote.commit_url(oid))
    return None


def _in_pulls(plan: Plan, state: State, remote: Remote) -> Sent | None:
    for ref, oid in remote.refs()[1].items():
        is_new = ref not in state.pulls and next(iter(remote.titles(oid).values()), "") == plan.title
        if is_new and not _mismatches(remote.stored(oid, [file.name for file in plan.files]), plan.files):
            return Sent(oid, remote.commit_url(oid), ref, remote.pull_url(ref))
    return None


def _mismatches(stored: Mapping[str, Stored], files: Sequence[File]) -> tuple[Mismatch, ...]:
    found = []
    for file in files:
        there = stored.get(file.name)
        if there is None or not there.holds(file):
            found.append(Mismatch(file.name, "is not there" if there is None else there.difference(file)))
    return tuple(found)


def _tagged(plan: Plan, remote: Remote, done: Upload) -> Upload:
    if plan.tag is None or done.oid is None:
        return done
    try:
        remote.tag(plan.tag, done.oid)
    except EaglectlError as error:
        kind = type(error)
        what = f"; the commit {done.oid[:12]} is there and holds what was sent" if done.sent else ""
        raise kind(f"{error}{what}") from None
    return replace(done, tag=plan.tag)


def _moved(plan: Plan, now: str) -> Refused:
    before = plan.state.head if plan.state else ""
    return Refused(
        f"{plan.repo} moved: {plan.revision} was at {before[:12]} when the plan was made and is at {now[:12]} now; nothing was committed."
        " Look at what changed, then run the command again"
    )
