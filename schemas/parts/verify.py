"""The JSON document of `verify`."""

from typing import Annotated

from msgspec import Meta

from eaglectl.publish.verification import DigestKind, Evidence
from eaglectl.verdicts import FileState, VerifyVerdict
from schemas.parts.document import Document, Part


class CheckedFilePart(Part, frozen=True):
    """A file that is listed or there."""

    name: str
    judgement: FileState
    lists: tuple[str, ...]
    how: str
    by: Annotated[
        tuple[DigestKind, ...],
        Meta(
            description="What the file was compared by: its SHA-256, its SHA-256 as the Hub lists it (the"
            " file was not downloaded where the repository is verified), git's id of it, or the SHA-256 of"
            " its header and of each tensor"
        ),
    ]
    tensors: Annotated[
        tuple[str, ...],
        Meta(description="The tensors that differ, where the file was compared by tensors"),
    ]


class VerifyDocument(Document, frozen=True, tag="eaglectl/verify/1"):
    """What eaglectl verify --json prints."""

    folder: Annotated[str, Meta(description="The folder, or the repository on the Hub")]
    verdict: Annotated[
        VerifyVerdict,
        Meta(description="could-not-look: nothing differs, and a file could not be compared"),
    ]
    lists: Annotated[
        tuple[str, ...],
        Meta(
            description="Where digests were stated: SHA256SUMS, eaglectl.json, REPO@COMMIT for the listing of"
            " --against"
        ),
    ]
    files: tuple[CheckedFilePart, ...]
    others: Annotated[
        tuple[str, ...],
        Meta(
            description="Files that the Hub or its client writes after the lists; every other unlisted file"
            " is in files"
        ),
    ]
    has_signature: Annotated[bool, Meta(description="Whether there is a model.sig, which is not looked into")]
    evidence: Annotated[
        tuple[Evidence, ...], Meta(description="What was looked at and held, with what it does not prove")
    ]
