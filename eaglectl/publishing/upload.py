"""Carrying out an upload plan: large files, one commit on the plan's head, its verification, the tag.

A commit is asked for once. Where the response is lost, the repository is read: it holds the commit, or not.
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eaglectl.errors import EaglectlError, RefusedError, UnreadableError
from eaglectl.progress import OnProgress, report_step
from eaglectl.publishing.calls import HubCallError
from eaglectl.publishing.files import UploadFile, check_unchanged
from eaglectl.publishing.plan import RemoteFile, RepositoryState, UploadPlan
from eaglectl.publishing.remote import Commit, Remote

# how often the repository is read after a lost response, and the pause between, which grows
TRIES, PAUSE = 3, 2.0
Outcome = Literal["planned", "nothing-to-do", "published", "mismatch"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A file of the commit that is not as it was sent, and how it differs."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Upload:
    """The result of `upload`.

    `sent` is the commit that was made, if any; `is_recovered`: its response was lost, and the repository
    holds it. `oid` is the commit that holds the files, `tag` the tag that is at it now.
    """

    plan: UploadPlan
    outcome: Outcome
    page: str
    oid: str | None = None
    sent: Commit | None = None
    tag: str | None = None
    is_recovered: bool = False
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def download(self) -> str:
        """The command that downloads exactly the files of the commit."""
        return f"hf download {shlex.quote(self.plan.repo)} --revision {self.oid}"


def find_proposal(remote: Remote, state: RepositoryState, files: Sequence[UploadFile]) -> str | None:
    """The ref of an open pull request that holds all the files already."""
    for ref, oid in remote.open_pulls(state):
        if not _mismatches(remote, oid, files):
            return ref
    return None


def carry_out(plan: UploadPlan, remote: Remote, on_progress: OnProgress | None = None) -> Upload:
    """Do what the plan states; `on_progress` is called with each step.

    Raises RefusedError where the repository changed in the meantime, UnreadableError where the Hub fails.
    """
    if plan.state is None:
        kind = "private" if plan.is_private else "public"
        report_step(on_progress, f"making {plan.repo} ({kind})")
        plan = replace(plan, state=_create(plan, remote))
    state = plan.state
    assert state is not None
    if plan.proposed:
        return Upload(plan, "nothing-to-do", remote.page, state.pulls[plan.proposed])
    if not plan.changed:
        return _with_tag(Upload(plan, "nothing-to-do", remote.page, state.head), remote)
    return _publish(plan, state, remote, on_progress)


def _publish(
    plan: UploadPlan, state: RepositoryState, remote: Remote, on_progress: OnProgress | None
) -> Upload:
    if not plan.is_pull or plan.tag:
        remote.check_write()
    report_step(on_progress, f"sending {len(plan.changed)} files")
    operations = remote.send_blobs(plan.changed, is_pull=plan.is_pull)
    check_unchanged(plan.files)
    if (head := remote.head()) != state.head:
        raise _moved(plan, state, head)
    sent, is_recovered = _commit(plan, state, remote, operations)
    report_step(on_progress, f"verifying {sent.oid[:12]}")
    mismatches = _mismatches(remote, sent.oid, plan.files)
    outcome: Outcome = "mismatch" if mismatches else "published"
    done = Upload(plan, outcome, remote.page, sent.oid, sent, None, is_recovered, mismatches)
    return done if mismatches else _with_tag(done, remote)


def _create(plan: UploadPlan, remote: Remote) -> RepositoryState:
    """Create the repository, and read it."""
    remote.create(is_private=plan.is_private)
    for number in range(TRIES):
        if (state := remote.state()) is not None:
            break
        time.sleep(PAUSE * number)
    else:
        raise UnreadableError(
            f"{plan.repo} was asked for and is not there; nothing was committed, run the command again"
        )
    if set(state.files) - {".gitattributes"}:
        raise RefusedError(
            f"{plan.repo} was made by somebody else in the meantime; nothing was committed, run the command"
            " again to see the plan"
        )
    if plan.is_private and not state.is_private:
        raise RefusedError(
            f"{plan.repo} was made and is public, against what was asked for; nothing was committed"
        )
    return state


def _commit(
    plan: UploadPlan, state: RepositoryState, remote: Remote, operations: Sequence[object]
) -> tuple[Commit, bool]:
    """The commit, and whether its response was lost."""
    try:
        commit = remote.commit(operations, plan.title, plan.description, state.head, is_pull=plan.is_pull)
        return commit, False
    except HubCallError as error:
        if error.status == 412:
            raise _moved(plan, state, remote.head()) from None
        if error.is_temporary and error.status != 429:
            return _recover(plan, state, remote, error), True
        raise remote.cannot_write(error, "make the commit; nothing was committed") from None


def _recover(plan: UploadPlan, state: RepositoryState, remote: Remote, call_error: HubCallError) -> Commit:
    """The commit whose response was lost, if it took effect."""
    how = f"gave no answer ({call_error.kind})"
    if call_error.status:
        how = f"answered {call_error.status}"
    find = _find_pull if plan.is_pull else _find_commit
    for number in range(TRIES):
        time.sleep(PAUSE * number)
        try:
            commit = find(plan, state, remote)
        except EaglectlError as error:
            raise UnreadableError(
                f"the Hub {how} to the commit, and whether it took effect is not known, as {error}; look at"
                f" {remote.page}"
            ) from None
        if commit:
            return commit
    raise UnreadableError(
        f"the Hub {how} to the commit, and it did not take effect; nothing was committed to {plan.repo}, run"
        " the command again"
    )


def _find_commit(plan: UploadPlan, state: RepositoryState, remote: Remote) -> Commit | None:
    """The commit of the plan on its revision, newer than the plan's head."""
    if remote.head() == state.head:
        return None
    for oid, title in remote.titles(plan.revision).items():
        if oid == state.head:
            return None
        if title == plan.title and not _mismatches(remote, oid, plan.files):
            return Commit(oid, remote.commit_url(oid))
    return None


def _find_pull(plan: UploadPlan, state: RepositoryState, remote: Remote) -> Commit | None:
    """The commit of the plan at the head of a pull request that is newer than the plan."""
    for ref, oid in remote.refs()[1].items():
        if ref in state.pulls or next(iter(remote.titles(oid).values()), "") != plan.title:
            continue
        if not _mismatches(remote, oid, plan.files):
            return Commit(oid, remote.commit_url(oid), ref, remote.pull_url(ref))
    return None


def _mismatches(remote: Remote, oid: str, files: Sequence[UploadFile]) -> tuple[Mismatch, ...]:
    """The files that a commit does not hold as they were sent."""
    stored: Mapping[str, RemoteFile] = remote.files(oid, [file.name for file in files])
    mismatches = []
    for file in files:
        remote_file = stored.get(file.name)
        if remote_file is None:
            mismatches.append(Mismatch(file.name, "is not there"))
        elif not remote_file.equals(file):
            mismatches.append(Mismatch(file.name, remote_file.difference(file)))
    return tuple(mismatches)


def _with_tag(done: Upload, remote: Remote) -> Upload:
    """The result with the plan's tag set on its commit."""
    tag = done.plan.tag
    if tag is None or done.oid is None:
        return done
    try:
        remote.tag(tag, done.oid)
    except EaglectlError as error:
        about = f"; the commit {done.oid[:12]} is there and holds what was sent" if done.sent else ""
        raise type(error)(f"{error}{about}") from None
    return replace(done, tag=tag)


def _moved(plan: UploadPlan, state: RepositoryState, head: str) -> RefusedError:
    return RefusedError(
        f"{plan.repo} moved: {plan.revision} was at {state.head[:12]} when the plan was made and is at"
        f" {head[:12]} now; nothing was committed. Look at what changed, then run the command again"
    )
