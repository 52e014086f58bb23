"""The repository on the Hub as `upload` uses it, and carrying out a plan: one commit on the plan's head.

Large files are sent first; the commit is verified, and only then tagged. It is asked for once: where the
response is lost, the repository is read, which holds the commit, or not. The token is given to the client
alone, and no text of a server or an exception is repeated, as it may hold the token.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import takewhile
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.base import Result
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.hub import check_token, failure_in, hub_calls
from eaglectl.files.hub_cache import SHA1_DIGITS
from eaglectl.files.hub_requests import (
    ACCOUNT,
    LOGIN,
    XET_CODE,
    HubRequest,
    TransferError,
    refusal,
    unreachable,
)
from eaglectl.progress import OnProgress, report_step
from eaglectl.publish.plan import RemoteFile, RepositoryState, UploadFile, UploadPlan, changed, moved_tag
from eaglectl.text import listed
from eaglectl.verdicts import UploadOutcome

Value = TypeVar("Value")
# the code of a failed check of the card's front matter, which comes before the commit
CARD_CODE = "card"
# what a Hub answers to a request that it does not know
NO_SUCH_REQUEST = (404, 405, 501)
# open pull requests that are searched for the same files, and commits newer than the plan
MAX_PULLS, MAX_COMMITS = 20, 20
# how often the repository is read after a lost response, and the pause between, which grows
TRIES, PAUSE = 3, 2.0


class Mismatch(Struct, frozen=True):
    """A file of the commit that is not as it was sent, and how it differs."""

    name: str
    how: str


class Commit(Struct, frozen=True):
    """A commit on the Hub; `pull` is the ref of its pull request."""

    oid: str
    url: str
    pull: str | None = field(default=None, name="pull_request")
    pull_url: str | None = field(default=None, name="pull_request_url")

    @property
    def shown(self) -> str:
        """The commit with its page, and its pull request's."""
        return f"{self.oid} ({self.url}{f', in {self.pull_url}' if self.pull_url else ''})"


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


def call(function: Callable[[], Value], *, is_repeatable: bool = True) -> Value:
    """The result of `function`, a call of the client, whose log is silenced.

    `is_repeatable`: each of its requests may be sent again. Raises TransferError.
    """
    with hub_calls(is_repeatable=is_repeatable), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function()
        except Exception as error:  # of the client, its transport or Xet: the text may hold the token
            failure = failure_in(error, "gave no answer")
    if failure.url.endswith("/api/validate-yaml"):
        failure.code = CARD_CODE
    # outside of the handler, so that no traceback shows the client's exception
    raise failure


class Remote:
    """A revision of a repository. Every method raises UnreadableError or RefusedError."""

    def __init__(self, repo: str, revision: str, *, needs_token: bool) -> None:
        import huggingface_hub
        from huggingface_hub import constants

        self.repo, self.revision = repo, revision
        endpoint = constants.ENDPOINT.rstrip("/")
        self.token = _token(repo)
        self.request = HubRequest(f"hf://{repo}", repo, revision, endpoint, has_token=self.token is not None)
        self.page = self.request.page
        if needs_token and self.token is None:
            raise UnreadableError(
                f"{repo}: publishing needs a token and there is none; {LOGIN}, or set HF_TOKEN"
            )
        self.api = huggingface_hub.HfApi(
            endpoint=endpoint,
            token=self.token or False,
            library_name="eaglectl",
            library_version=eaglectl.__version__,
        )

    def state(self) -> RepositoryState | None:
        """The repository now; None where it does not exist, or the token may not read it."""
        try:
            info = call(lambda: self.api.model_info(self.repo, revision=self.revision))
        except TransferError as error:
            # other Hubs have no codes
            if error.code == "RepoNotFound" or (error.status == 404 and not error.code):
                return None
            raise self.cannot_read(error) from None
        names = [file.rfilename for file in info.siblings or ()]
        tags, pulls = self.refs()
        return RepositoryState(
            str(info.sha), bool(info.private), self.files(str(info.sha), names), tags, pulls
        )

    def files(self, oid: str, names: Sequence[str]) -> Mapping[str, RemoteFile]:
        """The files of `names` that the repository has at a commit."""
        from huggingface_hub.hf_api import RepoFile

        if not names:
            return {}
        return {
            entry.path: RemoteFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in self._read(lambda: self.api.get_paths_info(self.repo, list(names), revision=oid))
            if isinstance(entry, RepoFile)
        }

    def mismatches(self, oid: str, files: Sequence[UploadFile]) -> tuple[Mismatch, ...]:
        """The files that a commit does not hold as they are sent."""
        stored = self.files(oid, [file.name for file in files])
        hows = {
            file.name: stored[file.name].difference(file) if file.name in stored else "is not there"
            for file in files
        }
        return tuple(Mismatch(name, how) for name, how in hows.items() if how)

    def head(self) -> str:
        """The commit that the revision points to now."""
        return str(self._read(lambda: self.api.model_info(self.repo, revision=self.revision)).sha)

    def proposal(self, state: RepositoryState, files: Sequence[UploadFile]) -> str | None:
        """The ref of the newest open pull request that holds all the files already."""
        request = partial(
            self.api.get_repo_discussions, discussion_type="pull_request", discussion_status="open"
        )
        try:
            pulls = call(lambda: list(request(self.repo)))
        except TransferError:  # a Hub that does not list them
            return None
        numbers = sorted((pull.num for pull in pulls), reverse=True)[:MAX_PULLS]
        refs = [ref for number in numbers if (ref := f"refs/pr/{number}") in state.pulls]
        return next((ref for ref in refs if not self.mismatches(state.pulls[ref], files)), None)

    def check_write(self) -> None:
        """Raise UnreadableError where the token may not write.

        Older clients cannot check it, nor can Hubs without this request: there the commit shows it.
        """
        if "write" not in signature(self.api.auth_check).parameters:
            return
        try:
            call(lambda: self.api.auth_check(self.repo, write=True))
        except TransferError as error:
            if error.status not in NO_SUCH_REQUEST:
                raise self.cannot_write(error) from None

    def create(self, *, is_private: bool) -> None:
        """Create the repository. A lost response is no error: the caller reads the state afterwards."""
        try:
            call(partial(self.api.create_repo, self.repo, private=is_private), is_repeatable=False)
        except TransferError as error:
            if error.status in (0, 409) or error.status >= 500:
                return
            raise self.cannot_write(error, "make the repository") from None

    def send_blobs(self, files: Sequence[UploadFile], *, is_pull: bool) -> list[Any]:
        """Send large files that the Hub does not have yet. Returns the operations of the commit.

        Raises TransferError, and RefusedError for a file that changed, or that the repository ignores.
        """
        from huggingface_hub import CommitOperationAdd

        operations = [
            CommitOperationAdd(
                path_in_repo=file.name,
                path_or_fileobj=file.content if isinstance(file.content, bytes) else str(file.content),
            )
            for file in files
        ]
        for operation, file in zip(operations, files, strict=True):
            if operation.upload_info.sha256.hex() != file.sha256:
                raise changed(file.name)
        call(
            lambda: self.api.preupload_lfs_files(
                self.repo,
                additions=operations,
                revision=self.revision,
                create_pr=is_pull,
                free_memory=False,
            )
        )
        # the client would leave them out of the commit without a word
        if ignored := [one.path_in_repo for one in operations if getattr(one, "_should_ignore", False)]:
            raise RefusedError(
                f"{self.repo} ignores {listed(ignored)}: a commit would lack what was judged, and"
                f" nothing was committed. Take those lines out of the repository's .gitignore"
                f" ({self.page}/tree/{self.revision})"
            )
        return operations

    def commit(self, operations: Sequence[Any], plan: UploadPlan, parent: str) -> Commit:
        """Create the commit, without retries. Raises TransferError, after which the commit may exist.

        The client takes no parent with an id that is longer than git's SHA-1.
        """
        request = partial(
            self.api.create_commit,
            commit_message=plan.title,
            commit_description=plan.description,
            revision=self.revision,
            create_pr=plan.is_pull,
            parent_commit=parent if len(parent) <= SHA1_DIGITS else None,
        )
        made = call(lambda: request(self.repo, operations), is_repeatable=False)
        return Commit(made.oid, str(made.commit_url), made.pr_revision, made.pr_url)

    def commits(self) -> list[str]:
        """The commits of the revision, newest first."""
        return [
            commit.commit_id
            for commit in self._read(lambda: self.api.list_repo_commits(self.repo, revision=self.revision))
        ]

    def tag(self, name: str, oid: str) -> None:
        """Tag a commit. Raises RefusedError where the tag is at another commit: it is never moved."""
        try:
            call(partial(self.api.create_tag, self.repo, tag=name, revision=oid), is_repeatable=False)
        except TransferError as error:
            tagged = self.refs()[0].get(name)
            if tagged == oid:
                return
            if tagged is not None:
                raise RefusedError(moved_tag(self.repo, name, tagged)) from None
            raise self.cannot_write(error, f"set the tag {name}") from None

    def refs(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Tags and pull requests with their commits; no pull requests where the Hub has none."""
        every = partial(self.api.list_repo_refs, self.repo, include_pull_requests=True)
        try:
            refs: Any = call(every)
        except TransferError as error:
            # without the list, the client fails with a KeyError
            if error.kind != "KeyError" and error.status not in NO_SUCH_REQUEST:
                raise self.cannot_read(error) from None
            refs = self._read(partial(every, include_pull_requests=False))
        pulls = {pull.ref: pull.target_commit for pull in refs.pull_requests or ()}
        return {tag.name: tag.target_commit for tag in refs.tags}, pulls

    def _read(self, function: Callable[[], Value]) -> Value:
        """The result of a call that changes nothing, so that its requests may be sent again."""
        try:
            return call(function)
        except TransferError as error:
            raise self.cannot_read(error) from None

    def cannot_read(self, error: TransferError) -> EaglectlError:
        """The error for a failed read."""
        if error.status == 0 and error.code != XET_CODE:
            return unreachable(self.request, f"did not answer ({error.kind})")
        return refusal(self.request, error.status, error.code, error.wait)

    def cannot_write(self, error: TransferError, what: str = "") -> EaglectlError:
        """The error for a failed write; `what` the Hub did not do."""
        repo, host = self.repo, self.request.host
        match error.status:
            case 0 | 429:
                return self.cannot_read(error)
            case _ if error.code == XET_CODE:
                return self.cannot_read(error)
            case 401:
                return UnreadableError(
                    f"{repo}: the Hub at {host} does not accept the token (401); {LOGIN}, or set HF_TOKEN"
                    " again"
                )
            case 403 | 404:
                return UnreadableError(
                    f"{repo}: the token may not write there ({error.status}); it needs the permission"
                    " to write, and its account access to"
                    f" {repo.split('/')[0]}; {ACCOUNT}"
                )
            case 400 if error.code == CARD_CODE:
                return RefusedError(
                    f"{repo}: the Hub does not accept the front matter of README.md; check that it is"
                    " valid YAML",
                    where="README.md",
                )
            case 400 | 413 | 422:
                return UnreadableError(
                    f"{repo}: the Hub at {host} does not {what or 'accept it'} ({error.status})"
                )
            case _:
                pause = f"after the {error.wait:.0f} seconds that it asks for" if error.wait else "later"
                return UnreadableError(
                    f"{repo}: the Hub at {host} fails ({error.status}) and did not {what or 'answer'};"
                    f" try again {pause}"
                )


def _token(repo: str) -> str | None:
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # of the exchange with a trusted publisher; its text may hold a secret
        advice = "run `hf auth login`"
        if resource := os.environ.get("HF_OIDC_RESOURCE"):
            advice = (
                f"see that {resource} has this job as a trusted publisher and lets it have an id token,"
                " or unset HF_OIDC_RESOURCE and set HF_TOKEN"
            )
        raise UnreadableError(
            f"{repo}: the Hub client could not get its token ({type(error).__name__}); {advice}"
        ) from None
    check_token(token or "")
    return token


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
        report_step(on_progress, f"making {plan.repo} ({'private' if plan.is_private else 'public'})")
        plan = replace(plan, state=_create(plan, remote))
    state = plan.state
    assert state is not None
    if plan.proposed:
        return Upload(plan, UploadOutcome.NOTHING_TO_DO, remote.page, state.pulls[plan.proposed])
    if not plan.changed:
        return _with_tag(
            Upload(plan, UploadOutcome.NOTHING_TO_DO, remote.page, state.head), state.head, remote
        )
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
        mismatches = remote.mismatches(sent.oid, plan.files)
    outcome = UploadOutcome.MISMATCH if mismatches else UploadOutcome.PUBLISHED
    done = Upload(plan, outcome, remote.page, sent.oid, sent, None, is_recovered, mismatches)
    if mismatches:
        return done
    with _naming(sent, "is there and holds what was sent", on_progress):
        return _with_tag(done, sent.oid, remote)


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
    try:
        commit = remote.commit(operations, plan, state.head)
    except TransferError as error:
        return _recover(plan, state, remote, error), True
    except KeyboardInterrupt:
        report_step(
            on_progress,
            f"interrupted; whether the commit took effect is not known, look at {remote.page}",
        )
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
    status = call_error.status
    answer = f"answered {status}" if status else f"gave no answer ({call_error.kind})"
    is_open = status in (0, 408) or (status >= 500 and status != 501)  # 501: the Hub has no such call
    for number in range(TRIES if is_open else 1):
        time.sleep(PAUSE * number)
        try:
            commit = _find_commit(plan, state, remote)
        except EaglectlError as error:
            raise UnreadableError(
                f"the Hub {answer} to the commit, and whether it took effect is not known, as"
                f" {error}; look at {remote.page}"
            ) from None
        if commit:
            return commit
    if status == 412:
        raise _moved(plan, state, remote.head())
    if is_open:
        raise UnreadableError(
            f"the Hub {answer} to the commit, and it did not take effect; nothing was committed"
            f" to {plan.repo}, run the command again"
        )
    raise _not_made(plan, remote, call_error, "make the commit")


def _not_made(plan: UploadPlan, remote: Remote, call_error: TransferError, what: str) -> EaglectlError:
    if call_error.status == 501 and plan.is_pull:
        return UsageError(
            f"{plan.repo}: the Hub at {remote.request.host} has no pull requests (501); nothing was"
            " committed, give --direct for a commit on the branch"
        )
    error = remote.cannot_write(call_error, what)
    return type(error)(f"{error}; nothing was committed", error.topic, error.where)


def _find_commit(plan: UploadPlan, state: RepositoryState, remote: Remote) -> Commit | None:
    """The commit of the plan: the first after the plan's head, or in a newer pull request, with its files."""
    if plan.is_pull:
        pulls = [(oid, ref) for ref, oid in remote.refs()[1].items() if ref not in state.pulls]
    else:
        newer = takewhile(lambda oid: oid != state.head, remote.commits())
        pulls = [(oid, "") for oid in reversed(list(newer)[:MAX_COMMITS])]
    for oid, ref in pulls:
        if not remote.mismatches(oid, plan.files):
            pull_url = f"{remote.page}/discussions/{ref.rpartition('/')[2]}" if ref else None
            return Commit(oid, f"{remote.page}/commit/{oid}", ref or None, pull_url)
    return None


def _with_tag(done: Upload, oid: str, remote: Remote) -> Upload:
    if done.plan.tag:
        remote.tag(done.plan.tag, oid)
    return replace(done, tag=done.plan.tag)


def _moved(plan: UploadPlan, state: RepositoryState, head: str) -> RefusedError:
    return RefusedError(
        f"{plan.repo} moved: {plan.revision} was at {state.head[:12]} when the plan was made and is at"
        f" {head[:12]} now; nothing was committed. Look at what changed, then run the command again"
    )
