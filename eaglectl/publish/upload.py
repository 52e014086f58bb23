"""The plan of `upload`, the repository on the Hub, and carrying out the plan.

The files are hashed once. Those bytes are judged, searched for secrets (keys, the token in use, home folders)
and published, or it is an error: large files are sent first, one commit is made on the plan's head, verified,
and only then tagged. The commit is requested once: if the response is lost, the error names the page to
check. Only the client gets the token. Texts of servers and exceptions are never printed, since they may hold
it.
"""

import dataclasses
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.base import Result
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.files import Stamp, errors_about
from eaglectl.files.hub import check_token, failure_in, hub_calls
from eaglectl.files.hub_requests import (
    ACCOUNT,
    LOGIN,
    XET_CODE,
    HubRequest,
    TransferError,
    failed,
    load_client,
)
from eaglectl.files.layout import CARD, NOT_WEIGHTS, RECORD, SIGNATURE, SUMS
from eaglectl.files.source import SHA1_DIGITS, FolderSource
from eaglectl.judge.judgement import Report
from eaglectl.judge.rules.config import CODE, KNOWN, PICKLE_SUFFIXES
from eaglectl.judge.rules.release import PATH, first_home, scan_file, scan_text
from eaglectl.options import CALLER
from eaglectl.progress import ByteCounter, OnProgress, report_step
from eaglectl.text import listed
from eaglectl.verdicts import FileChange, UploadOutcome

IMAGES = (".png", ".jpg", ".safetensors")
# not searched for home folders: rules check paths in config.json, and the others hold a vocabulary
NOT_TEXT = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model")
# files up to this size stay in memory once they are hashed; files outside of LFS are smaller
MAX_KEPT = 16 << 20
BLOCK = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class UploadFile:
    """A file with its size and digests at the time it was hashed.

    `content` is its path where it is large; `stamp` is of the file on disk. `is_written`: eaglectl wrote it,
    and the folder has another or none.
    """

    name: str
    size: int
    sha256: str
    content: bytes | Path = dataclasses.field(repr=False)
    stamp: Stamp | None = None
    is_written: bool = False


def _reason_left_out(name: str, allowed: Sequence[str]) -> str:
    # why a file is not published; "" for files of a drafter
    reasons = {
        "a trainer's state": re.match(NOT_WEIGHTS, name),
        "a pickle": name.endswith(PICKLE_SUFFIXES),
        "code": name.endswith(CODE),
        "a hidden file": name.startswith("."),
        "not a file of a drafter": not any(fnmatchcase(name, pattern) for pattern in (*KNOWN, *allowed)),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _read_file(
    source: FolderSource, name: str, path: Path, on_bytes: Callable[[int], object] = bool
) -> UploadFile:
    # a file's digest, and its content if it is small: what is published is what was hashed
    source.check_cached([name])
    digest, content = hashlib.sha256(), bytearray()
    with source.open_file(name) as file, errors_about(f"{name} in {source.place}"):
        stamp = Stamp.of(os.fstat(file.fileno()))
        is_kept = stamp.size <= MAX_KEPT
        while block := file.read(BLOCK):
            digest.update(block)
            if is_kept:
                content += block
            on_bytes(len(block))
    return UploadFile(name, stamp.size, digest.hexdigest(), bytes(content) if is_kept else path, stamp)


class FrozenSource(FolderSource, frozen=True, eq=False):
    """A folder with its names and hashed files at one moment, and no others.

    Small files are read from memory, the others from the disk; `check_unchanged`, called after reading,
    raises an error if these are not the hashed files.
    """

    listing: tuple[str, ...] = ()
    hashed: Mapping[str, UploadFile] = {}

    def published(self, files: Sequence[UploadFile]) -> "FrozenSource":
        """Return a download of `files` as it will be: with what eaglectl wrote, without what is left out."""
        by_name = {file.name: file for file in files}
        return replace(self, listing=tuple(sorted(by_name)), hashed=by_name)

    def names(self) -> tuple[str, ...]:
        """Return the files that the folder had."""
        return self.listing

    def size(self, name: str) -> int:
        """Return the bytes of a file when it was hashed."""
        return self.hashed[name].size if name in self.hashed else FolderSource.size(self, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of a file."""
        content = self.hashed[name].content if name in self.hashed else None
        if isinstance(content, bytes) and (stop is None or stop <= len(content)):
            return content[start:stop]
        return FolderSource.read(self, name, start, stop)

    def check_unchanged(self) -> None:
        """Raise RefusedError where a file was changed, added or removed after the files were hashed."""
        names = set(FolderSource.names(self))
        for name in sorted(names ^ set(self.listing)):
            raise changed(name, "was added" if name in names else "was removed")
        for name, file in self.hashed.items():
            with errors_about(f"{name} in {self.place}"):
                stamp = Stamp.of((self.root / name).stat())
            if stamp == file.stamp:
                continue
            # a hard link that another run made and removed changes the status alone
            is_same = file.stamp is not None and file.stamp.is_same_content(stamp)
            if not is_same or _read_file(self, name, self.root / name).sha256 != file.sha256:
                raise changed(name)


def freeze(
    source: FolderSource, allowed: Sequence[str] = (), on_progress: OnProgress | None = None
) -> tuple[FrozenSource, tuple[UploadFile, ...], Mapping[str, str]]:
    """Hash every file of the folder that may be sent; return them, and why others are left out.

    `allowed` adds patterns of names. Raises RefusedError for a link that leaves the folder, UnreadableError
    for a file that cannot be read.
    """
    names = source.names()
    reasons = {name: _reason_left_out(name, allowed) for name in names}
    left_out = {name: why for name, why in reasons.items() if why}
    try:
        paths = {name: source.path(name) for name, why in reasons.items() if not why}
    except UnreadableError as error:
        raise RefusedError(str(error), error.topic, error.where, error.options) from None
    folders = [f"{path.name}/" for path in sorted(source.root.iterdir()) if path.is_dir()]
    left_out |= dict.fromkeys(folders, "a folder; a drafter has all files in one folder")
    counter = ByteCounter(on_progress, "hashing", sum(map(source.size, paths)))
    files = tuple(_read_file(source, name, path, counter.add) for name, path in paths.items())
    frozen = FrozenSource(source.root, source.only, listing=names, hashed={file.name: file for file in files})
    return frozen, files, left_out


def changed(name: str, how: str = "changed") -> RefusedError:
    """Return the error for a file that changed since the files were hashed."""
    return RefusedError(
        f"{name} {how} after the files were hashed and judged; nothing was committed. Run the command again"
        " when no other process writes to the folder"
    )


def check_leaks(
    frozen: FrozenSource,
    files: Sequence[UploadFile],
    metadata: Mapping[str, str],
    token: str | None,
    message: str = "",
) -> None:
    """Raise RefusedError where what is sent, or the message, holds a secret or names a home folder."""
    published, metadata_text = frozen.published(files), "\n".join((*metadata, *metadata.values()))
    texts = {"the metadata of the weights": metadata_text, "--message": message}
    leaks = {f"{name} holds {kind}" for name, text in texts.items() for kind, _ in scan_text(text, token)}
    if home := first_home(metadata_text.encode("utf-8", "replace")):
        leaks.add(f"the metadata of the weights names {home}, a home folder")
    paths = [key for key, value in metadata.items() if PATH.fullmatch(value)]
    leaks |= {f"{key} in the metadata of the weights is a path of one machine" for key in paths}
    for file in files:
        read = partial(published.read, file.name)
        for kind, place in scan_file(file.name, file.size, read, token):
            leaks.add(f"{file.name} holds {kind} ({place})")
        if file.name in NOT_TEXT or file.name.endswith(IMAGES):
            continue
        if home := first_home(read(0, file.size)):
            leaks.add(f"{file.name} names {home}, a home folder")
    if leaks:
        raise RefusedError(
            f"{listed(sorted(leaks), most=5)}. Remove it and run the command again; revoke any key"
            " that was exposed",
            options=("--message",) if any(scan_text(message, token)) else (),
        )


class RemoteFile(Struct, frozen=True):
    """A file in the repository: `sha256` for files in LFS, git's sha1 for the others."""

    size: int
    sha256: str | None
    git_sha1: str

    def difference(self, file: UploadFile) -> str:
        """Return how this differs from the file that is sent; "" if both are the same, byte for byte."""
        theirs, ours = self.sha256 or self.git_sha1, file.sha256
        if self.sha256 is None and isinstance(file.content, bytes):  # as is what the Hub keeps outside of LFS
            content = b"blob %d\0" % file.size + file.content
            ours = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        if theirs == ours:
            return ""
        return f"the Hub has {self.size} bytes, {theirs[:12]}..., and {file.size}, {ours[:12]}..., were sent"


class RepositoryState(Struct, frozen=True):
    """A repository when it was read: head of the revision, files and tags."""

    head: str
    is_private: bool
    files: Mapping[str, RemoteFile]
    tags: Mapping[str, str] = {}


class UploadPlan(Struct, frozen=True):
    """What `upload` will do.

    `state` None: the repository does not exist, or (`is_seen` False) could not be read. `target` states which
    target the drafter was judged with, or why with none; `report` is the verdict on the files.
    """

    repo: str
    revision: str
    files: tuple[UploadFile, ...]
    left_out: Mapping[str, str]
    state: RepositoryState | None
    is_seen: bool
    is_pull: bool
    is_private: bool
    tag: str | None
    title: str
    description: str
    report: Report
    target: str = ""
    is_target_seen: bool = True

    def change(self, file: UploadFile) -> FileChange:
        """Return how the commit changes a file in the repository."""
        remote = self.state.files.get(file.name) if self.state else None
        if remote is None:
            return FileChange.NEW if self.is_seen else FileChange.UNKNOWN
        return FileChange.CHANGED if remote.difference(file) else FileChange.UNCHANGED

    @property
    def changed(self) -> tuple[UploadFile, ...]:
        """The files that the commit holds."""
        return tuple(file for file in self.files if self.change(file) != FileChange.UNCHANGED)

    @property
    def is_needed(self) -> bool:
        """Whether the repository lacks a file or the tag."""
        is_tagged = self.tag is None or (self.state is not None and self.tag in self.state.tags)
        return bool(self.changed) or not is_tagged

    @property
    def extra(self) -> tuple[str, ...]:
        """Files that only the repository has; they stay."""
        remote_names = set(self.state.files) if self.state else set()
        return tuple(sorted(remote_names - {file.name for file in self.files} - {".gitattributes"}))

    @property
    def nbytes(self) -> int:
        """Bytes of the files that the commit holds."""
        return sum(file.size for file in self.changed)


def check_plan(plan: UploadPlan) -> None:
    """Raise RefusedError for what would fail only after the commit."""
    if plan.tag and plan.is_pull and plan.changed:
        raise RefusedError(
            "a pull request is not a release yet, and a tag is never moved: leave --tag out, merge, and"
            f" run the command again with --tag {plan.tag}; or use --direct",
            options=("--tag",),
        )
    changed = {file.name for file in plan.changed}
    # a signature that stays in the repository; of what upload writes itself it signs none
    is_kept = plan.state is not None and SIGNATURE in plan.state.files and SIGNATURE not in changed
    if is_kept and changed - ({CARD, RECORD, SUMS} if SIGNATURE not in plan.extra else set()):
        raise RefusedError(
            f"the {SIGNATURE} of {plan.repo} would not match these files: sign them with `model_signing"
            f" sign`, or first run `hf repos delete-files {plan.repo} {SIGNATURE}`"
        )
    if plan.tag and plan.state:
        commit = plan.state.tags.get(plan.tag)
        if commit is not None and (plan.changed or commit != plan.state.head):
            raise RefusedError(_moved_tag(plan.repo, plan.tag, commit), options=("--tag",))


def _moved_tag(repo: str, tag: str, commit: str) -> str:
    return (
        f"the tag {tag} of {repo} is at commit {commit[:12]} already, and a tag is never moved; pass another"
        " --tag"
    )


Value = TypeVar("Value")
UNKNOWN = "it is unknown whether the commit took effect"
# the status of a Hub that does not know a request
NO_CALL = 501
# seconds before each look for a new repository
PAUSES = (0.0, 2.0, 4.0)


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

    `mismatches` are files that did not arrive as sent, each with the difference. `sent` is the new commit, if
    any, `oid` the commit with the files, `tag` its tag.
    """

    plan: UploadPlan
    outcome: UploadOutcome
    oid: str | None = None
    sent: Commit | None = None
    tag: str | None = None
    mismatches: Mapping[str, str] = {}

    @property
    def download(self) -> str:
        """The command that downloads exactly the files of the commit."""
        return shell.join(["hf", "download", self.plan.repo, "--revision", str(self.oid)])


def call(function: Callable[[], Value], *, is_repeatable: bool = True) -> Value:
    """Return the result of `function`, a call of the client, with its log silenced.

    `is_repeatable`: each of its requests may be sent again. Raises TransferError.
    """
    with hub_calls(is_repeatable=is_repeatable), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function()
        except Exception as error:  # of the client, its transport or Xet: the text may hold the token
            failure = failure_in(error, "did not answer")
    # outside of the handler, so that no traceback shows the client's exception
    raise failure


class Remote:
    """A revision of a repository. Every method raises UnreadableError or RefusedError."""

    def __init__(self, repo: str, revision: str, *, needs_token: bool) -> None:
        client, self.repo, self.revision = load_client(), repo, revision
        endpoint = client.constants.ENDPOINT.rstrip("/")
        self.token = _token(repo)
        self.request = HubRequest(f"hf://{repo}", repo, revision, endpoint, has_token=self.token is not None)
        if needs_token and self.token is None:
            raise UnreadableError(
                f"{repo}: publishing needs a token and there is none; {LOGIN}, or set HF_TOKEN"
            )
        self.api = client.HfApi(
            endpoint=endpoint,
            token=self.token or False,
            library_name="eaglectl",
            library_version=eaglectl.__version__,
        )

    def state(self) -> RepositoryState | None:
        """Return the repository's present state; None if it does not exist or the token may not read it."""
        try:
            info = call(partial(self.api.model_info, self.repo, revision=self.revision))
        except TransferError as error:
            # other Hubs have no codes
            if error.code == "RepoNotFound" or (error.status == 404 and not error.code):
                return None
            raise failed(self.request, error) from None
        head, names = str(info.sha), [file.rfilename for file in info.siblings or ()]
        return RepositoryState(head, bool(info.private), self._files(head, names), self._tags())

    def carry_out(
        self, plan: UploadPlan, check_unchanged: Callable[[], None], on_progress: OnProgress | None = None
    ) -> Upload:
        """Do what the plan states; `on_progress` is called with each step.

        `check_unchanged` raises RefusedError where the folder is not as it was when it was judged. Raises
        RefusedError where the repository changed in the meantime, UnreadableError where the Hub fails; each
        error after a commit names it.
        """
        check_unchanged()
        CALLER.remains = f"{plan.repo} may have received files; run the same command again to complete it"
        if plan.state is None:
            report_step(on_progress, f"making {plan.repo} ({'private' if plan.is_private else 'public'})")
            plan = replace(plan, state=self._create(is_private=plan.is_private))
        assert plan.state is not None
        done = Upload(plan, UploadOutcome.NOTHING_TO_DO, plan.state.head)
        if not plan.changed:
            return self._tagged(done)
        report_step(on_progress, f"sending {len(plan.changed)} files")
        try:
            operations = self._send_blobs(plan.changed, is_pull=plan.is_pull)
        except TransferError as error:
            raise self._not_done(error, "take the files", is_pull=plan.is_pull) from None
        check_unchanged()
        self._check_head(plan.state.head)
        sent = self._commit(operations, plan, plan.state.head, on_progress)
        report_step(on_progress, f"verifying {sent.shown}")
        return self._verified(replace(done, oid=sent.oid, sent=sent), sent, on_progress)

    def _verified(self, done: Upload, sent: Commit, on_progress: OnProgress | None) -> Upload:
        """Compare the commit with what was sent, and tag it. Errors name it, with its state."""
        state = "is not verified; run the command again, which compares it"
        try:
            stored = self._files(sent.oid, [file.name for file in done.plan.files])
            hows = {
                file.name: stored[file.name].difference(file) if file.name in stored else "is not there"
                for file in done.plan.files
            }
            if mismatches := {name: how for name, how in hows.items() if how}:
                return replace(done, outcome=UploadOutcome.MISMATCH, mismatches=mismatches)
            state = "is there and holds what was sent"
            return self._tagged(replace(done, outcome=UploadOutcome.PUBLISHED))
        except EaglectlError as error:
            about = f"the commit {sent.shown} was made before and {state}"
            raise error.reworded(f"{error}; {about}") from None
        except KeyboardInterrupt:
            report_step(on_progress, f"interrupted; the commit {sent.shown} was made before and {state}")
            raise

    def _create(self, *, is_private: bool) -> RepositoryState:
        # create the repository, and wait until it appears with the requested visibility
        try:
            call(partial(self.api.create_repo, self.repo, private=is_private), is_repeatable=False)
        except TransferError as error:
            raise self._not_done(error, "make the repository") from None
        for pause in PAUSES:  # a new one may be seen late
            time.sleep(pause)
            if (state := self.state()) is not None:
                break
        else:
            raise UnreadableError(
                f"{self.repo} was created and does not appear; nothing was committed, run the command again"
            )
        if is_private and not state.is_private:
            raise RefusedError(f"{self.repo} was created as public instead of private; nothing was committed")
        return state

    def _send_blobs(self, files: Sequence[UploadFile], *, is_pull: bool) -> list[Any]:
        """Send large files that the Hub does not have yet. Returns the operations of the commit.

        Raises TransferError, and RefusedError for a file that changed, or that the repository ignores.
        """
        from huggingface_hub import CommitOperationAdd

        operations = []
        for file in files:
            content = file.content if isinstance(file.content, bytes) else str(file.content)
            operations.append(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=content))
            if operations[-1].upload_info.sha256.hex() != file.sha256:
                raise changed(file.name)
        send = partial(self.api.preupload_lfs_files, self.repo, revision=self.revision, create_pr=is_pull)
        call(partial(send, additions=operations, free_memory=False))
        # the client would leave them out of the commit without a word
        if ignored := [
            operation.path_in_repo for operation in operations if getattr(operation, "_should_ignore", False)
        ]:
            raise RefusedError(
                f"{self.repo} ignores {listed(ignored)}: a commit would lack these files, and nothing was"
                f" committed. Remove those lines from the repository's .gitignore"
                f" ({self.request.page}/tree/{self.revision})"
            )
        return operations

    def _check_head(self, planned: str) -> None:
        head = str(self._read(partial(self.api.model_info, self.repo, revision=self.revision)).sha)
        if head != planned:
            raise RefusedError(
                f"{self.repo} changed: {self.revision} was at {planned[:12]} in the plan and is at"
                f" {head[:12]} now; nothing was committed. Check the changes, then run the command again"
            )

    def _commit(
        self, operations: Sequence[Any], plan: UploadPlan, parent: str, on_progress: OnProgress | None
    ) -> Commit:
        # one commit on `parent`; if the Hub's answer is lost, it is unknown whether the commit exists, and
        # the error says so
        request = partial(
            self.api.create_commit,
            commit_message=plan.title,
            commit_description=plan.description,
            revision=self.revision,
            create_pr=plan.is_pull,
            # the client takes no id that is longer than git's SHA-1
            parent_commit=parent if len(parent) <= SHA1_DIGITS else None,
        )
        try:
            commit = call(partial(request, self.repo, operations), is_repeatable=False)
        except TransferError as error:
            status = error.status
            if status in (0, 408) or (status >= 500 and status != NO_CALL):
                answer = f"answered {status}" if status else f"gave no answer ({error.kind})"
                raise UnreadableError(
                    f"the Hub {answer} to the commit, and {UNKNOWN}; check"
                    f" {self._commits(is_pull=plan.is_pull)}, and run the command again if it is not there"
                ) from None
            if status == 412:
                self._check_head(parent)
            raise self._not_done(error, "make the commit", is_pull=plan.is_pull) from None
        except KeyboardInterrupt:
            report_step(on_progress, f"interrupted; {UNKNOWN}: check {self._commits(is_pull=plan.is_pull)}")
            raise
        if commit.oid == parent:
            raise RefusedError(
                f"{self.repo}: the Hub made no commit because it has these files already, and its list"
                f" differs. Check {commit.commit_url}, then run the command again"
            )
        return Commit(commit.oid, str(commit.commit_url), commit.pr_revision, commit.pr_url)

    def _commits(self, *, is_pull: bool) -> str:
        return f"{self.request.page}/{'discussions' if is_pull else f'commits/{self.revision}'}"

    def _tagged(self, done: Upload) -> Upload:
        """Tag the commit. Raises RefusedError where the tag is at another commit: it is never moved."""
        name, oid = done.plan.tag, str(done.oid)
        if not name:
            return done
        try:
            call(partial(self.api.create_tag, self.repo, tag=name, revision=oid), is_repeatable=False)
        except TransferError as error:
            if (tagged := self._tags().get(name)) is None:
                raise self._not_done(error, f"set the tag {name}", after="") from None
            if tagged != oid:
                raise RefusedError(_moved_tag(self.repo, name, tagged)) from None
        return replace(done, tag=name)

    def _files(self, oid: str, names: Sequence[str]) -> Mapping[str, RemoteFile]:
        from huggingface_hub.hf_api import RepoFile

        if not names:
            return {}
        return {
            entry.path: RemoteFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in self._read(partial(self.api.get_paths_info, self.repo, list(names), revision=oid))
            if isinstance(entry, RepoFile)
        }

    def _tags(self) -> Mapping[str, str]:
        refs = self._read(partial(self.api.list_repo_refs, self.repo))
        return {tag.name: tag.target_commit for tag in refs.tags}

    def _read(self, function: Callable[[], Value]) -> Value:
        try:
            return call(function)
        except TransferError as error:
            raise failed(self.request, error) from None

    def _not_done(
        self,
        failure: TransferError,
        what: str,
        *,
        is_pull: bool = False,
        after: str = "; nothing was committed",
    ) -> EaglectlError:
        """Return the error for a request that the Hub did not carry out."""
        host, status = self.request.host, failure.status
        if status == NO_CALL and is_pull:
            return UsageError(
                f"{self.repo}: the Hub at {host} has no pull requests ({status}){after}; pass --direct to"
                " commit to the branch",
                options=("--direct",),
            )
        if status == 400 and failure.url.endswith("/api/validate-yaml"):  # before the commit
            return RefusedError(
                f"{self.repo}: the Hub does not accept the front matter of {CARD}; check that it is valid"
                f" YAML{after}",
                where=CARD,
            )
        text = f"{self.repo}: the Hub at {host} did not {what} ({status})"
        if status in (0, 401, 429) or failure.code == XET_CODE:
            text = str(failed(self.request, failure))
        elif status in (403, 404):
            text = (
                f"{self.repo}: the token may not write there ({status}); the token needs the write"
                f" permission, and its account needs access to {self.repo.split('/')[0]}; {ACCOUNT}"
            )
        elif status >= 500:
            wait = f"after the {failure.wait:.0f} seconds that it asks for" if failure.wait else "later"
            text += f"; try again {wait}"
        return UnreadableError(f"{text}{after}")


def _token(repo: str) -> str | None:
    # the Hub client's token, None without one; no error shows the client's text
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # of the exchange with a trusted publisher; its text may hold a secret
        raise UnreadableError(
            f"{repo}: the Hub client could not get its token ({type(error).__name__}); run `hf auth login`;"
            " if HF_OIDC_RESOURCE is set, check that this job is a trusted publisher there and may request an"
            " id token"
        ) from None
    check_token(token or "")
    return token
