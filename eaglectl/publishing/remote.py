"""The repository on the Hub as publishing needs it. The token is only ever handed to the client."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import eaglectl
from eaglectl.checkpoint.hub_faults import ACCOUNT, LOGIN, Asked, refusal, unreachable
from eaglectl.errors import EaglectlError, Refused, Unreadable
from eaglectl.publishing.calls import YAML, Failure, call
from eaglectl.publishing.plan import File, State, Stored

Value = TypeVar("Value")
TRIES, PAUSE, LONGEST = 4, 1.0, 30.0
# open pull requests that are looked at for the same files
PULLS = 20


@dataclass(frozen=True, slots=True)
class Sent:
    """A commit that took effect; `pull` is the ref of its pull request."""

    oid: str
    url: str
    pull: str | None = None
    pull_url: str | None = None


class Remote:
    """One repository, one revision. Every method raises Unreadable or Refused in words of ours."""

    def __init__(self, repo: str, revision: str, *, needs_token: bool) -> None:
        import huggingface_hub
        from huggingface_hub import constants

        self.revision = revision
        endpoint = constants.ENDPOINT.rstrip("/")
        self.token = _token(repo)
        self.asked = Asked(f"hf://{repo}", repo, revision, endpoint, has_token=self.token is not None)
        if needs_token and self.token is None:
            raise Unreadable(f"{repo}: publishing needs a token and there is none; {LOGIN}, or set HF_TOKEN")
        self.api = huggingface_hub.HfApi(
            endpoint=endpoint, token=self.token or False, library_name="eaglectl", library_version=eaglectl.__version__
        )

    @property
    def page(self) -> str:
        """Where people see the repository."""
        return self.asked.page

    def state(self) -> State | None:
        """The repository now; None where it is not there, or cannot be seen. Raises Unreadable where nobody answers."""
        try:
            info = self._safely(lambda: self.api.model_info(self.asked.repo, revision=self.revision))
        except Failure as failure:
            if failure.status in (401, 404) and failure.code == "RepoNotFound":
                return None
            raise self.cannot_read(failure) from None
        names = [file.rfilename for file in info.siblings or ()]
        tags, pulls = self.refs()
        return State(str(info.sha), bool(info.private), self.stored(str(info.sha), names), tags, pulls)

    def stored(self, oid: str, names: Sequence[str]) -> Mapping[str, Stored]:
        """Those of `names` that the repository has at a commit."""
        from huggingface_hub.hf_api import RepoFile

        try:
            found = (
                self._safely(lambda: self.api.get_paths_info(self.asked.repo, list(names), revision=oid))
                if names
                else []
            )
        except Failure as failure:
            raise self.cannot_read(failure) from None
        files = [one for one in found if isinstance(one, RepoFile)]
        return {one.path: Stored(one.size, one.lfs.sha256 if one.lfs else None, one.blob_id) for one in files}

    def head(self) -> str:
        """The commit that the revision is now."""
        try:
            return str(self._safely(lambda: self.api.model_info(self.asked.repo, revision=self.revision)).sha)
        except Failure as failure:
            raise self.cannot_read(failure) from None

    def open_pulls(self, state: State) -> Iterator[tuple[str, str]]:
        """Open pull requests, the newest first: ref and head. None where the Hub does not list them."""
        try:
            found = self._safely(lambda: list(self.api.get_repo_discussions(self.asked.repo, discussion_type="pull_request", discussion_status="open")))  # fmt: skip
        except Failure:
            return
        for number in sorted((one.num for one in found), reverse=True)[:PULLS]:
            if (ref := f"refs/pr/{number}") in state.pulls:
                yield ref, state.pulls[ref]

    def titles(self, revision: str) -> Mapping[str, str]:
        """Commits of a revision with their titles, the newest first."""
        try:
            commits = self._safely(lambda: self.api.list_repo_commits(self.asked.repo, revision=revision))
        except Failure as failure:
            raise self.cannot_read(failure) from None
        return {commit.commit_id: commit.title for commit in commits}

    def check_write(self) -> None:
        """Raise Unreadable where the token may not write to the repository; older clients cannot ask, and the Hub refuses the files."""
        if "write" not in signature(self.api.auth_check).parameters:
            return
        try:
            self._safely(lambda: self.api.auth_check(self.asked.repo, write=True))
        except Failure as failure:
            raise self.cannot_write(failure) from None

    def create(self, *, is_private: bool) -> None:
        """Make the repository. An answer that was lost is no fault: whoever asks for the state will see."""
        try:
            call(lambda: self.api.create_repo(self.asked.repo, private=is_private, repo_type="model"))
        except Failure as failure:
            if failure.status == 409 or failure.status == 0 or failure.status >= 500:
                return
            raise self.cannot_write(failure, "make the repository") from None

    def send_blobs(self, files: Sequence[File], *, is_pull: bool) -> list[Any]:
        """Upload large files; what is sent already is not sent again. Gives the operations of the commit."""
        from huggingface_hub import CommitOperationAdd

        operations = [
            CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file.content if isinstance(file.content, bytes) else str(file.content))
            for file in files
        ]  # fmt: skip
        try:
            self._safely(lambda: self.api.preupload_lfs_files(self.asked.repo, additions=operations, revision=self.revision, create_pr=is_pull, free_memory=False))  # fmt: skip
        except Failure as failure:
            raise self.cannot_write(failure, "take the files; nothing was committed") from None
        for operation, file in zip(operations, files, strict=True):
            if isinstance(file.content, Path) and operation.upload_info.sha256.hex() != file.sha256:
                raise Refused(f"{file.name} changed while it was sent; nothing was committed")
        return operations

    def commit(self, operations: Sequence[Any], title: str, description: str, parent: str, *, is_pull: bool) -> Sent:
        """Ask for the commit, once. Raises Failure: the caller finds out what became of it."""
        made = call(
            lambda: self.api.create_commit(
                self.asked.repo, operations, commit_message=title, commit_description=description, revision=self.revision,
                create_pr=is_pull, parent_commit=parent,
            )
        )  # fmt: skip
        return Sent(made.oid, str(made.commit_url), made.pr_revision, made.pr_url)

    def tag(self, name: str, oid: str) -> None:
        """Tag a commit. Raises Refused where the tag is at another one; an existing tag is never moved."""
        try:
            call(lambda: self.api.create_tag(self.asked.repo, tag=name, revision=oid))
        except Failure as failure:
            at = self.refs()[0].get(name)
            if at == oid:
                return
            if at is not None:
                raise Refused(moved_tag(self.asked.repo, name, at)) from None
            raise self.cannot_write(failure, f"set the tag {name}") from None

    def commit_url(self, oid: str) -> str:
        """Where people see a commit."""
        return f"{self.page}/commit/{oid}"

    def pull_url(self, ref: str) -> str:
        """Where people see a pull request."""
        return f"{self.page}/discussions/{ref.rpartition('/')[2]}"

    def refs(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Tags and pull requests with their commits."""
        try:
            found = self._safely(lambda: self.api.list_repo_refs(self.asked.repo, include_pull_requests=True))
        except Failure as failure:
            raise self.cannot_read(failure) from None
        pulls = {one.ref: one.target_commit for one in found.pull_requests or ()}
        return {one.name: one.target_commit for one in found.tags}, pulls

    def _safely(self, ask: Callable[[], Value]) -> Value:
        """Ask something that changes nothing, again where the answer may come a moment later."""
        for number in range(TRIES):
            try:
                return call(ask)
            except Failure as failure:
                if not failure.is_passing or number == TRIES - 1:
                    raise
                time.sleep(min(failure.wait or PAUSE * 2**number, LONGEST))
        raise AssertionError("the last try returns or raises")

    def cannot_read(self, failure: Failure) -> EaglectlError:
        """What a refused read means."""
        if failure.status == 0:
            return unreachable(self.asked, f"did not answer ({failure.kind})")
        return refusal(self.asked, failure.status, failure.code, failure.wait)

    def cannot_write(self, failure: Failure, what: str = "") -> EaglectlError:
        """What a refused write means."""
        repo, host = self.asked.repo, self.asked.host
        match failure.status:
            case 0 | 429:
                return self.cannot_read(failure)
            case 401:
                return Unreadable(
                    f"{repo}: the Hub at {host} does not accept the token (401); {LOGIN}, or set HF_TOKEN again"
                )
            case 403 | 404:
                return Unreadable(
                    f"{repo}: the token may not write there ({failure.status}); it needs the permission to write, and its account access to"
                    f" {repo.split('/')[0]}; {ACCOUNT}"
                )
            case 400 if failure.code == YAML:
                return Refused(
                    f"{repo}: the Hub does not accept the front matter of README.md; check that it is valid YAML; nothing was committed",
                    where="README.md",
                )
            case 400 | 413 | 422:
                return Unreadable(f"{repo}: the Hub at {host} does not {what or 'accept it'} ({failure.status})")
            case _:
                return Unreadable(
                    f"{repo}: the Hub at {host} fails ({failure.status}) and did not {what or 'answer'}; try again later"
                )


def moved_tag(repo: str, name: str, at: str) -> str:
    """What is said of a tag that is at another commit."""
    return f"the tag {name} of {repo} is at commit {at[:12]} already, and a tag is never moved; give another --tag"


def _token(repo: str) -> str | None:
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # the exchange of a trusted publisher; its text is not ours to repeat
        way_out = "run `hf auth login`"
        if resource := os.environ.get("HF_OIDC_RESOURCE"):
            way_out = f"see that {resource} has this job as a trusted publisher and lets it have an id token, or unset HF_OIDC_RESOURCE and set HF_TOKEN"
        raise Unreadable(
            f"{repo}: the Hub client could not get its token ({type(error).__name__}); {way_out}"
        ) from None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise Unreadable("the Hub token has characters that no token has; run `hf auth login`, or set HF_TOKEN again")
    return token
