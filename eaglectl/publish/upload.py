"""Carrying out an upload plan: large files, one commit on the plan's head, its verification, the tag.

A commit is asked for once. Where the response is lost, the repository is read: it holds the commit, or not.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from eaglectl import shell
from eaglectl.base import Result
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.hub_requests import TransferError
from eaglectl.progress import OnProgress, report_step
from eaglectl.publish.plan import RemoteFile, RepositoryState, UploadPlan
from eaglectl.publish.remote import Commit, Remote, can_name
from eaglectl.publish.upload_files import UploadFile
from eaglectl.verdicts import UploadOutcome

# how often the repository is read after a lost response, and the pause between, which grows
TRIES, PAUSE = 3, 2.0
# commits newer than the plan that are searched for the plan's
MAX_COMMITS = 20


class Mismatch(Struct, frozen=True):
    """A file of the commit that is not as it was sent, and how it differs."""

    name: str
    how: str


class Upload(Result, frozen=True):
    """The result of `upload`.

    `sent` is the commit that was made, if any; `is_recovered`: its response was lost, and the repository
    holds it. `oid` is the commit that holds the files, `tag` the tag that is at it now.
    """

    plan: UploadPlan
    outcome: UploadOutcome
    page: str
    oid: str | None = None
    sent: Commit | None = None
    tag: str | None = None
    is_recovered: bool = False
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def download(self) -> str:
        """The command that downloads exactly the files of the commit."""
        return shell.join(["hf", "download", self.plan.repo, "--revision", str(self.oid)])


def find_proposal(remote: Remote, state: RepositoryState, files: Sequence[UploadFile]) -> str | None:
    """The ref of an open pull request that holds all the files already."""
    for ref, oid in remote.open_pulls(state):
        if not _mismatches(remote, oid, files):
            return ref
    return None


def carry_out(
    plan: UploadPlan,
    remote: Remote,
    check_unchanged: Callable[[], None],
    on_progress: OnProgress | None = None,
) -> Upload:
    """Do what the plan states; `on_progress` is called with each step.

    `check_unchanged` raises RefusedError where the folder is not as it was when it was judged. Raises
    RefusedError where the repository changed in the meantime, UnreadableError where the Hub fails; each error
    after a commit names it.
    """
    check_unchanged()
    if plan.state is None:
        kind = "private" if plan.is_private else "public"
        report_step(on_progress, f"making {plan.repo} ({kind})")
        plan = replace(plan, state=_create(plan, remote))
    state = plan.state
    assert state is not None
    if plan.proposed:
        return Upload(plan, UploadOutcome.NOTHING_TO_DO, remote.page, state.pulls[plan.proposed])
    if not plan.changed:
        return _with_tag(Upload(plan, UploadOutcome.NOTHING_TO_DO, remote.page, state.head), remote)
    return _publish(plan, state, remote, check_unchanged, on_progress)


def _publish(
    plan: UploadPlan,
    state: RepositoryState,
    remote: Remote,
    check_unchanged: Callable[[], None],
    on_progress: OnProgress | None,
) -> Upload:
    if not plan.is_pull or plan.tag:
        remote.check_write()
    report_step(on_progress, f"sending {len(plan.changed)} files")
    try:
        operations = remote.send_blobs(plan.changed, is_pull=plan.is_pull)
    except TransferError as error:
        raise _not_made(plan, remote, error, "take the files") from None
    check_unchanged()
    if (head := remote.head()) != state.head:
        raise _moved(plan, state, head)
    sent, is_recovered = _commit(plan, state, remote, operations, on_progress)
    report_step(on_progress, f"verifying {sent.shown}")
    with _naming(sent, "is not verified; run the command again, which compares it", on_progress):
        mismatches = _mismatches(remote, sent.oid, plan.files)
    outcome = UploadOutcome.MISMATCH if mismatches else UploadOutcome.PUBLISHED
    done = Upload(plan, outcome, remote.page, sent.oid, sent, None, is_recovered, mismatches)
    if mismatches:
        return done
    with _naming(sent, "is there and holds what was sent", on_progress):
        _check_parent(plan, state, remote, sent)
        return _with_tag(done, remote)


@contextmanager
def _naming(sent: Commit, state: str, on_progress: OnProgress | None) -> Iterator[None]:
    """Errors after a commit name it, with its state."""
    about = f"the commit {sent.shown} was made before and {state}"
    try:
        yield
    except EaglectlError as error:
        raise type(error)(f"{error}; {about}", error.topic, error.where) from None
    except KeyboardInterrupt:
        report_step(on_progress, f"interrupted; {about}")
        raise


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
    plan: UploadPlan,
    state: RepositoryState,
    remote: Remote,
    operations: Sequence[object],
    on_progress: OnProgress | None,
) -> tuple[Commit, bool]:
    """The commit, and whether its response was lost."""
    try:
        commit = remote.commit(operations, plan.title, plan.description, state.head, is_pull=plan.is_pull)
    except TransferError as error:
        return _recover(plan, state, remote, error), True
    except KeyboardInterrupt:
        unknown = "whether the commit took effect is not known"
        report_step(on_progress, f"interrupted; {unknown}, look at {remote.page}")
        raise
    if commit.oid == state.head:
        raise RefusedError(
            f"{plan.repo}: the Hub says that its files are these already, and made no commit; what it listed"
            f" before differs. Look at {commit.url}, then run the command again"
        )
    return commit, False


def _recover(plan: UploadPlan, state: RepositoryState, remote: Remote, call_error: TransferError) -> Commit:
    """The commit that an error answered, if it took effect all the same; raises what is so if it did not.

    A refusal counts as one once the repository shows it: a proxy may refuse the answer to a commit that was
    made, and a client that asked twice is told that the head moved, by its own commit.
    """
    find = _find_pull if plan.is_pull else _find_commit
    status = call_error.status
    is_open = status in (0, 408) or (status >= 500 and status != 501)  # 501: the Hub has no such call
    for number in range(TRIES if is_open else 1):
        time.sleep(PAUSE * number)
        try:
            commit = find(plan, state, remote)
        except EaglectlError as error:
            raise UnreadableError(
                f"the Hub {_answer(call_error)} to the commit, and whether it took effect is not known, as"
                f" {error}; look at {remote.page}"
            ) from None
        if commit:
            return commit
    if call_error.status == 412:
        raise _moved(plan, state, remote.head())
    if is_open:
        raise UnreadableError(
            f"the Hub {_answer(call_error)} to the commit, and it did not take effect; nothing was committed"
            f" to {plan.repo}, run the command again"
        )
    raise _not_made(plan, remote, call_error, "make the commit")


def _answer(error: TransferError) -> str:
    return f"answered {error.status}" if error.status else f"gave no answer ({error.kind})"


def _not_made(plan: UploadPlan, remote: Remote, call_error: TransferError, what: str) -> EaglectlError:
    """The error for a call before the commit, or the commit, that the Hub refused."""
    if call_error.status == 501 and plan.is_pull:
        return UsageError(
            f"{plan.repo}: the Hub at {remote.request.host} has no pull requests (501); nothing was"
            " committed, give --direct for a commit on the branch"
        )
    error = remote.cannot_write(call_error, what)
    return type(error)(f"{error}; nothing was committed", error.topic, error.where)


def _find_commit(plan: UploadPlan, state: RepositoryState, remote: Remote) -> Commit | None:
    """The commit of the plan on its revision: the first after the plan's head that holds its files."""
    if remote.head() == state.head:
        return None
    newer = list(takewhile(lambda oid: oid != state.head, remote.titles(plan.revision)))[:MAX_COMMITS]
    for oid in reversed(newer):
        if not _mismatches(remote, oid, plan.files):
            return Commit(oid, f"{remote.page}/commit/{oid}")
    return None


def _find_pull(plan: UploadPlan, state: RepositoryState, remote: Remote) -> Commit | None:
    """The commit of the plan at the head of a pull request that is newer than the plan."""
    for ref, oid in remote.refs()[1].items():
        if ref not in state.pulls and not _mismatches(remote, oid, plan.files):
            pull_url = f"{remote.page}/discussions/{ref.rpartition('/')[2]}"
            return Commit(oid, f"{remote.page}/commit/{oid}", ref, pull_url)
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


def _check_parent(plan: UploadPlan, state: RepositoryState, remote: Remote, sent: Commit) -> None:
    """Raise RefusedError for a commit that is not on the plan's head, where the Hub could not be told to."""
    if can_name(state.head) or (parent := remote.parent(sent.oid)) == state.head:
        return
    raise RefusedError(
        f"{plan.repo} moved while the commit was made: it is on {parent[:12]} and the plan was made for"
        f" {state.head[:12]}, as the client cannot ask for a parent with so long an id. Look at what is in"
        " between, then run the command again"
    )


def _with_tag(done: Upload, remote: Remote) -> Upload:
    """The result with the plan's tag set on its commit."""
    tag = done.plan.tag
    if tag is None or done.oid is None:
        return done
    remote.tag(tag, done.oid)
    return replace(done, tag=tag)


def _moved(plan: UploadPlan, state: RepositoryState, head: str) -> RefusedError:
    return RefusedError(
        f"{plan.repo} moved: {plan.revision} was at {state.head[:12]} when the plan was made and is at"
        f" {head[:12]} now; nothing was committed. Look at what changed, then run the command again"
    )
