"""What `verify` found as sections and as a JSON document."""

from collections.abc import Iterator

from eaglectl.files.layout import SIGNATURE
from eaglectl.publish.verification import CheckedFile, Verification
from eaglectl.report.documents.document import Parts
from eaglectl.report.section import Line, Lines, Outline, Section, Words, first_lines, toned
from eaglectl.text import listed
from eaglectl.verdicts import FileState

TAG = "eaglectl/verify/1"
PARTS: Parts = {
    Verification: ("folder", "verdict", "lists", "files", "others", "has_signature", "evidence"),
    CheckedFile: ("name", "judgement", "lists", "how", "by", "tensors"),
}
# what files were compared by
BY = {
    "sha256": "by SHA-256",
    "lfs-sha256": "by the SHA-256 that the Hub lists",
    "git-id": "by the git id that the Hub lists",
    "tensors": "by the digests of the header and of each tensor",
}


def verification_outline(verification: Verification) -> Outline:
    """The verdict, every file that differs, and what all of it proves."""
    good = sum(file.judgement == FileState.SAME for file in verification.files)
    lead = "no list"
    if verification.lists:
        lead = f"{good} files as {' and '.join(verification.lists)} say"
    evidence = [
        f"by {part.name} proved: {part.proves}; not: {part.leaves_open}" for part in verification.evidence
    ]
    about = f"beside them, {len(verification.others)} files that the Hub or its client writes"
    others = [Words(about, "quiet")] if verification.others else []
    sections = [
        Section("Files", [Lines(list(_files(verification)), is_unbroken=True)], has_heading=False),
        Section("Evidence", [Lines(evidence), Lines(others)], has_heading=False),
    ]
    verdict = toned(verification.verdict)
    head = (verdict, f"  {verification.folder}: {lead}")
    return Outline("verify", verdict, verification.folder, lead, head, sections)


def _files(verification: Verification) -> Iterator[Line]:
    """What the equal files were compared by, then the first of the others."""
    for digest, text in BY.items():
        files = [
            file for file in verification.files if file.judgement == FileState.SAME and digest in file.by
        ]
        if files:
            tensors = sum(file.compared for file in files)
            of = f" ({tensors} tensors)" if digest == "tensors" else ""
            yield Words(f"{text}{of}: {listed(file.name for file in files)}", "quiet")
    yield from first_lines(
        [
            (toned(file.judgement), f"  {file.name} {file.how}")
            for file in verification.files
            if file.judgement != FileState.SAME
        ]
    )
    if verification.has_signature:
        yield Words(f"{SIGNATURE} was not looked into: `model_signing verify` shows who signed", "doubt")
