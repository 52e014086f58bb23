"""What `upload` will do: the files it sends, where to, and what the repository has of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from eaglectl.errors import RefusedError
from eaglectl.files.layout import CARD, RECORD, SIGNATURE, SUMS
from eaglectl.judge.judgement import Report
from eaglectl.publish.upload_files import LeftOut, UploadFile
from eaglectl.verdicts import FileChange

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison


class Changes(Struct, frozen=True):
    """The drafter of the repository (A) and of the folder (B).

    `comparison` None: `reason` states why nothing was compared. `weights` are weight files that are new or
    changed; their values are not compared, as the repository's are not downloaded: `command`, a `diff`, does.
    """

    comparison: "Comparison | None"
    reason: str
    weights: tuple[str, ...]
    command: str


class RemoteFile(Struct, frozen=True):
    """A file in the repository: `sha256` for files in LFS, git's sha1 for the others."""

    size: int
    sha256: str | None
    git_sha1: str

    def equals(self, file: UploadFile) -> bool:
        """Whether this is the file, byte for byte."""
        is_same = self.git_sha1 == file.git_sha1 if self.sha256 is None else self.sha256 == file.sha256
        return is_same and self.size == file.size

    def difference(self, file: UploadFile) -> str:
        """How this differs from the file that was sent."""
        if self.size != file.size:
            return f"{self.size} bytes there, {file.size} here"
        if self.sha256 is None:
            return f"git sha1 {self.git_sha1[:12]}... there, {file.git_sha1[:12]}... here"
        return f"SHA-256 {self.sha256[:12]}... there, {file.sha256[:12]}... here"


class RepositoryState(Struct, frozen=True):
    """A repository when it was read: head of the revision, files, tags, and the heads of pull requests."""

    head: str
    is_private: bool
    files: Mapping[str, RemoteFile]
    tags: Mapping[str, str] = field(default_factory=dict)
    pulls: Mapping[str, str] = field(default_factory=dict)


class UploadPlan(Struct, frozen=True):
    """What `upload` will do.

    `state` None: the repository does not exist, or (`is_seen` False) could not be read. `proposed` is an open
    pull request that holds all files already. `target` states which target the drafter was judged with, or
    why with none; `changes` how the drafter differs from that of the repository, where it has files;
    `doubts` what is open of how it was trained; `report` is the verdict on the files. `unseen` states why the
    repository could not be read, where the Hub did not answer.
    """

    repo: str
    revision: str
    files: tuple[UploadFile, ...]
    left_out: tuple[LeftOut, ...]
    state: RepositoryState | None
    is_seen: bool
    is_pull: bool
    is_private: bool
    tag: str | None
    title: str
    description: str
    target: str = ""
    is_target_seen: bool = True
    proposed: str | None = None
    changes: Changes | None = None
    doubts: tuple[str, ...] = ()
    report: Report | None = None
    unseen: str = ""

    @property
    def card(self) -> str:
        """The text of the card that is published."""
        content = next(file.content for file in self.files if file.name == CARD)
        return (content if isinstance(content, bytes) else content.read_bytes()).decode()

    def change(self, file: UploadFile) -> FileChange:
        """How the commit changes a file in the repository."""
        if self.state is None:
            return FileChange.NEW if self.is_seen else FileChange.UNKNOWN
        remote = self.state.files.get(file.name)
        if remote is None:
            return FileChange.NEW
        return FileChange.UNCHANGED if remote.equals(file) else FileChange.CHANGED

    @property
    def changed(self) -> tuple[UploadFile, ...]:
        """The files that the commit holds."""
        return tuple(file for file in self.files if self.change(file) != FileChange.UNCHANGED)

    @property
    def is_needed(self) -> bool:
        """Whether the repository lacks any of it: a file, or the tag."""
        is_there = self.proposed is not None or not self.changed
        is_tagged = self.tag is None or (self.state is not None and self.tag in self.state.tags)
        return not (is_there and is_tagged)

    @property
    def extra(self) -> tuple[str, ...]:
        """Files that only the repository has; they stay."""
        if self.state is None:
            return ()
        names = {file.name for file in self.files} | {".gitattributes"}
        return tuple(sorted(set(self.state.files) - names))

    @property
    def nbytes(self) -> int:
        """Bytes of the files that the commit holds."""
        return sum(file.size for file in self.changed)


def check_plan(plan: UploadPlan) -> None:
    """Raise RefusedError for what would fail only after the commit."""
    if plan.tag and plan.is_pull and plan.changed:
        raise RefusedError(
            "a pull request is not a release yet, and a tag is never moved: leave --tag out, merge, and"
            " run the"
            f" command with --tag {plan.tag} again; or give --direct"
        )
    if _breaks_signature(plan):
        raise RefusedError(
            f"{plan.repo} has a {SIGNATURE} over the files before, which these would break: sign them with"
            f" `model_signing sign`, or first run `hf repos delete-files {plan.repo} {SIGNATURE}`"
        )
    if plan.tag and plan.state:
        commit = plan.state.tags.get(plan.tag)
        if commit is not None and (plan.changed or commit != plan.state.head):
            raise RefusedError(moved_tag(plan.repo, plan.tag, commit))


def _breaks_signature(plan: UploadPlan) -> bool:
    """Whether a model.sig that stays in the repository is of other files.

    What upload writes is not among the files that it signs.
    """
    changed = {file.name for file in plan.changed}
    if SIGNATURE in plan.extra:
        return bool(changed)
    is_kept = plan.state is not None and SIGNATURE in plan.state.files and SIGNATURE not in changed
    return is_kept and not changed <= {CARD, RECORD, SUMS}


def moved_tag(repo: str, tag: str, commit: str) -> str:
    """The message for a tag that is at another commit."""
    return (
        f"the tag {tag} of {repo} is at commit {commit[:12]} already, and a tag is never moved; give another"
        " --tag"
    )
