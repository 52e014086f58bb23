"""What a verification proves, and what it leaves open, in words."""

from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.checkpoint.layout import BOM, PROVENANCE, SIGNATURE
from eaglectl.verdicts import FileState, SignatureState

if TYPE_CHECKING:
    from eaglectl.publishing.verification import Verification


class Evidence(Struct, frozen=True):
    """A file that speaks for the others, what it proves here, and what it does not."""

    name: str
    proves: str
    leaves_open: str


def evidence_of(verification: "Verification") -> tuple[Evidence, ...]:
    """What was looked at and held; a file that failed, or was not looked at, proves nothing."""
    found = []
    if verification.lists and all(file.judgement == FileState.SAME for file in verification.files):
        found.append(
            Evidence(
                " and ".join(verification.lists),
                "no file was lost, added or damaged since the lists were written",
                "who wrote the lists: whoever can change the files can change them too",
            )
        )
    signature = verification.signature
    if signature is not None and signature.judgement == SignatureState.VERIFIED:
        found.append(
            Evidence(
                SIGNATURE,
                f"the files are those that were signed by {signature.by}",
                f"that the drafter is good or harmless, or who trained it{signature.leaves_open}",
            )
        )
    provenance = verification.provenance
    if provenance is not None and provenance.judgement == SignatureState.VERIFIED:
        found.append(
            Evidence(
                PROVENANCE,
                f"the same signer states how they were made: {provenance.how.partition(': ')[2]}",
                "that the statement is true: nothing was built again, and the run was not looked at",
            )
        )
    if any(file.name == BOM and file.judgement == FileState.SAME for file in verification.files):
        found.append(
            Evidence(
                BOM,
                "it is the list of parts that was published with the files",
                "the licence, the target and the data in it: its publisher states them",
            )
        )
    return tuple(found)
