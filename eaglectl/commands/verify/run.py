"""`verify`: compare a download with what was published; the result as sections and as a JSON document."""

import os
from collections.abc import Iterator
from typing import Any

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.hub import HubSource, open_hub
from eaglectl.files.layout import SIGNATURE
from eaglectl.files.opening import hub_name, open_local_folder
from eaglectl.judge.policy_file import read_policy
from eaglectl.judge.rule import Policy
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.progress import OnProgress
from eaglectl.publish.request import VerifyOptions
from eaglectl.publish.verification import CheckedFile, Verification, verify_folder, verify_repository
from eaglectl.report.documents.document import Parts
from eaglectl.report.section import Line, Lines, Outline, Section, Words, first_lines, toned
from eaglectl.text import listed
from eaglectl.verdicts import FileState


@with_keywords
def verify(
    folder: StrPath,
    options: VerifyOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Verification:
    """Compare a folder, or a repository on the Hub, with its SHA256SUMS and eaglectl.json.

    Of a repository (org/name[@revision]) nothing is downloaded that the Hub lists the SHA-256 of. Every file
    that is not listed is a difference; a model.sig is not looked into. Raises
    UnreadableError where there is nothing to compare with, UsageError for options that contradict each other.
    """
    folder, options = os.fspath(folder), options or VerifyOptions()
    policy = read_policy(options.policy) if isinstance(options.policy, str) else options.policy or Policy()
    needs_record = options.needs_record or policy.verify.require_record
    is_repository = hub_name(folder) is not None and not os.path.lexists(folder)
    if is_repository and options.against:
        raise UsageError(
            f"--against compares a folder with the Hub, and {folder} is on the Hub: leave it out"
        )
    if is_repository:
        return verify_repository(_listing(folder), folder, needs_record=needs_record)
    source = open_local_folder(folder)
    against = None if options.against is None else _listing(options.against)
    return verify_folder(source, folder, needs_record=needs_record, against=against, on_progress=on_progress)


def _listing(text: str) -> HubSource:
    """The listing of a repository. Raises UnreadableError, and UsageError for no name of one."""
    if hub_name(text) is None:
        raise UsageError(f"--against {text}: a repository was expected, like org/name or org/name@revision")
    source = open_hub(text)
    if not isinstance(source, HubSource):
        raise UnreadableError(f"{text}: the listing comes from the network, and this call is offline")
    return source


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
    return Outline(
        "verify", verdict, verification.folder, lead, (verdict, f"  {verification.folder}: {lead}"), sections
    )


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
