"""The repository on the Hub as `upload` uses it; the token is given to the client alone.

No text of a server or an exception is repeated, as it may hold the token.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, TypeVar

from msgspec import Struct, field

import eaglectl
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError
from eaglectl.files.hub import check_token, failure_in, hub_calls
from eaglectl.files.hub_requests import (
    ACCOUNT,
    LOGIN,
    XET_CODE,
    HubRequest,
    TransferError,
    refusal,
    unreachable,
)
from eaglectl.publish.plan import RemoteFile, RepositoryState, moved_tag
from eaglectl.publish.upload_files import UploadFile, changed
from eaglectl.text import listed

Value = TypeVar("Value")
# the code of a failed check of the card's front matter, which comes before the commit
CARD_CODE = "card"

# digits of a commit id that the client takes as the parent of a commit
MAX_PARENT = 40
# what a Hub answers to a request that it does not know
NO_SUCH_REQUEST = (404, 405, 501)
# the first release of the client that exchanges a job's identity for a token (trusted publishers)
OIDC_CLIENT = (1, 19)
# open pull requests that are searched for the same files
MAX_PULLS = 20


def call(function: Callable[[], Value], *, is_repeatable: bool = False) -> Value:
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


def can_name(parent: str) -> bool:
    """Whether the client can ask for a commit on this one alone; it takes no longer ids."""
    return len(parent) <= MAX_PARENT


class Remote:
    """A revision of a repository. Every method raises UnreadableError or RefusedError."""

    def __init__(self, repo: str, revision: str, *, needs_token: bool) -> None:
        import huggingface_hub
        from huggingface_hub import constants

        self.revision = revision
        endpoint = constants.ENDPOINT.rstrip("/")
        self.token = _token(repo)
        self.request = HubRequest(f"hf://{repo}", repo, revision, endpoint, has_token=self.token is not None)
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

    @property
    def page(self) -> str:
        """The address of the repository's page."""
        return self.request.page

    def state(self) -> RepositoryState | None:
        """The repository now; None where it does not exist, or the token may not read it."""
        try:
            info = call(self._info, is_repeatable=True)
        except TransferError as error:
            if error.status in (401, 404) and error.code == "RepoNotFound":
                return None
            if error.status == 404 and not error.code:  # other Hubs have no codes
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
        entries = self._read(lambda: self.api.get_paths_info(self.request.repo, list(names), revision=oid))
        return {
            entry.path: RemoteFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in entries
            if isinstance(entry, RepoFile)
        }

    def head(self) -> str:
        """The commit that the revision points to now."""
        return str(self._read(self._info).sha)

    def _info(self) -> Any:
        return self.api.model_info(self.request.repo, revision=self.revision)

    def open_pulls(self, state: RepositoryState) -> Iterator[tuple[str, str]]:
        """Ref and head of open pull requests, newest first; none where the Hub does not list them."""
        try:
            pulls = call(
                lambda: list(
                    self.api.get_repo_discussions(
                        self.request.repo, discussion_type="pull_request", discussion_status="open"
                    )
                ),
                is_repeatable=True,
            )
        except TransferError:
            return
        for number in sorted((pull.num for pull in pulls), reverse=True)[:MAX_PULLS]:
            if (ref := f"refs/pr/{number}") in state.pulls:
                yield ref, state.pulls[ref]

    def parent(self, oid: str) -> str:
        """The commit before a commit; empty for the first. Raises UnreadableError where it is not listed."""
        oids = [*self.titles(oid), ""]
        if oid not in oids[:-1]:
            raise UnreadableError(f"{self.request.repo}: the Hub at {self.request.host} does not list {oid}")
        return oids[oids.index(oid) + 1]

    def titles(self, revision: str) -> Mapping[str, str]:
        """Titles of the commits of a revision, newest first."""
        commits = self._read(lambda: self.api.list_repo_commits(self.request.repo, revision=revision))
        return {commit.commit_id: commit.title for commit in commits}

    def check_write(self) -> None:
        """Raise UnreadableError where the token may not write.

        Older clients cannot check it, nor can Hubs without this request: there the commit shows it.
        """
        if "write" not in signature(self.api.auth_check).parameters:
            return
        try:
            call(lambda: self.api.auth_check(self.request.repo, write=True), is_repeatable=True)
        except TransferError as error:
            if error.status not in NO_SUCH_REQUEST:
                raise self.cannot_write(error) from None

    def create(self, *, is_private: bool) -> None:
        """Create the repository. A lost response is no error: the caller reads the state afterwards."""
        try:
            call(lambda: self.api.create_repo(self.request.repo, private=is_private, repo_type="model"))
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
                self.request.repo,
                additions=operations,
                revision=self.revision,
                create_pr=is_pull,
                free_memory=False,
            ),
            is_repeatable=True,
        )
        # the client would leave them out of the commit without a word
        if ignored := [one.path_in_repo for one in operations if getattr(one, "_should_ignore", False)]:
            raise RefusedError(
                f"{self.request.repo} ignores {listed(ignored)}: a commit would lack what was judged, and"
                f" nothing was committed. Take those lines out of the repository's .gitignore"
                f" ({self.page}/tree/{self.revision})"
            )
        return operations

    def commit(
        self, operations: Sequence[Any], title: str, description: str, parent: str, *, is_pull: bool
    ) -> Commit:
        """Create the commit, without retries. Raises TransferError, after which the commit may exist.

        Where the client cannot name the parent, the caller compares it afterwards.
        """
        made = call(
            lambda: self.api.create_commit(
                self.request.repo,
                operations,
                commit_message=title,
                commit_description=description,
                revision=self.revision,
                create_pr=is_pull,
                parent_commit=parent if can_name(parent) else None,
            )
        )
        return Commit(made.oid, str(made.commit_url), made.pr_revision, made.pr_url)

    def tag(self, name: str, oid: str) -> None:
        """Tag a commit. Raises RefusedError where the tag is at another commit: it is never moved."""
        try:
            call(lambda: self.api.create_tag(self.request.repo, tag=name, revision=oid))
        except TransferError as error:
            tagged = self.refs()[0].get(name)
            if tagged == oid:
                return
            if tagged is not None:
                raise RefusedError(moved_tag(self.request.repo, name, tagged)) from None
            raise self.cannot_write(error, f"set the tag {name}") from None

    def refs(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Tags and pull requests with their commits; no pull requests where the Hub has none."""
        every = partial(self.api.list_repo_refs, self.request.repo, include_pull_requests=True)
        try:
            refs: Any = call(every, is_repeatable=True)
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
            return call(function, is_repeatable=True)
        except TransferError as error:
            raise self.cannot_read(error) from None

    def cannot_read(self, error: TransferError) -> EaglectlError:
        """The error for a failed read."""
        if error.status == 0 and error.code != XET_CODE:
            return unreachable(self.request, f"did not answer ({error.kind})")
        return refusal(self.request, error.status, error.code, error.wait)

    def cannot_write(self, error: TransferError, what: str = "") -> EaglectlError:
        """The error for a failed write; `what` the Hub did not do."""
        repo, host = self.request.repo, self.request.host
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
    from huggingface_hub import __version__, get_token

    if "HF_OIDC_RESOURCE" in os.environ and tuple(map(int, __version__.split(".")[:2])) < OIDC_CLIENT:
        raise UnreadableError(
            f"{repo}: HF_OIDC_RESOURCE asks for a token by the job's identity, which huggingface-hub 1.19 and"
            f" newer can exchange, and this is {__version__}; run `pip install 'huggingface-hub>=1.19'`"
        )
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
