"""The JSON document of `upload`."""

from typing import Annotated

from msgspec import Meta, field

from eaglectl.base import Count, Digest
from eaglectl.publish.plan import LeftOut
from eaglectl.publish.upload import Commit, Mismatch
from eaglectl.verdicts import CheckVerdict, DiffVerdict, FileChange, UploadOutcome
from schemas.parts.document import Document, Part


class FactPart(Part, frozen=True):
    """A property that differs."""

    name: str
    there: str
    here: str


class ChangesPart(Part, frozen=True):
    """The drafter of the repository and of the folder."""

    verdict: DiffVerdict | None
    summary: str
    facts: tuple[FactPart, ...]
    tensors: tuple[str, ...]
    weights: Annotated[
        tuple[str, ...], Meta(description="Weight files with other bytes; their values are not compared")
    ]
    command: Annotated[str, Meta(description="The command that compares the values")] = field(name="diff")


class FilePart(Part, frozen=True):
    """A file that is sent."""

    name: str
    size: Count
    sha256: Digest
    change: FileChange
    is_written: Annotated[bool, Meta(description="Whether eaglectl made these bytes")]


class UploadDocument(Document, frozen=True, tag="eaglectl/upload/1"):
    """What eaglectl upload --json prints."""

    repo: str
    outcome: UploadOutcome
    revision: str
    head: Annotated[str | None, Meta(description="The commit that the revision was when the plan was made")]
    is_seen: Annotated[bool, Meta(description="Whether the repository could be looked at")]
    is_new: bool
    is_private: bool
    is_pull: bool = field(name="is_pull_request")
    title: Annotated[str, Meta(description="The title of the commit")] = field(name="message")
    target: Annotated[str, Meta(description="The target that the drafter was judged with, or why with none")]
    is_target_seen: Annotated[
        bool, Meta(description="Whether every target that the files name could be looked up")
    ]
    verdict: Annotated[CheckVerdict | None, Meta(description="The verdict of the rules on the files")]
    doubts: Annotated[tuple[str, ...], Meta(description="What is open of how the drafter was trained")]
    changes: Annotated[
        ChangesPart | None,
        Meta(description="How the drafter differs from the repository's, by config and headers"),
    ]
    files: tuple[FilePart, ...]
    left_out: tuple[LeftOut, ...] = field(name="not_sent")
    extra: tuple[str, ...] = field(name="only_there")
    nbytes: Count = field(name="bytes")
    sent: Commit | None = field(name="commit")
    proposed: Annotated[str | None, Meta(description="An open pull request that holds these files already")]
    is_recovered: Annotated[
        bool, Meta(description="Whether the answer to the commit was lost and the commit found")
    ]
    tag: str | None
    mismatches: tuple[Mismatch, ...]
    download: str | None
