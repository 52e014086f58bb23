"""The result of `verify` on the terminal."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from eaglectl.publishing.evidence import evidence_of
from eaglectl.reports.terminal.console import Console, Text, indented
from eaglectl.text import listed
from eaglectl.verdicts import FileState, SignatureState, VerifyVerdict

if TYPE_CHECKING:
    from eaglectl.publishing.verification import Verification

MAX_FILES = 20
# what files were compared by
BY = {
    "sha256": "by SHA-256",
    "lfs-sha256": "by the SHA-256 that the Hub lists",
    "git-id": "by the git id that the Hub lists",
    "tensors": "by the SHA-256 of the header and of each tensor",
}
STYLES: Mapping[str, str] = {
    VerifyVerdict.EQUAL: "green",
    VerifyVerdict.DIFFERS: "bold red",
    VerifyVerdict.COULD_NOT_LOOK: "bold yellow",
    SignatureState.VERIFIED: "green",
    SignatureState.FAILED: "bold red",
    SignatureState.MISSING: "bold red",
    SignatureState.NOT_LOOKED: "bold yellow",
}


def print_verification(console: Console, verification: "Verification") -> None:
    """Print the verdict, every file that differs, and the signature."""
    verdict = (verification.verdict, STYLES[verification.verdict])
    good = sum(file.judgement == FileState.SAME for file in verification.files)
    lists = ": no list beside the signature"
    if verification.lists:
        lists = f": {good} files as {' and '.join(verification.lists)} say"
    console.print(Text.assemble(verdict, f"  {verification.folder}{lists}"), soft_wrap=True)
    for line in _settled(verification):
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    different = [file for file in verification.files if file.judgement != FileState.SAME]
    for file in different[:MAX_FILES]:
        judgement = (file.judgement, "yellow" if file.judgement == FileState.NOT_LOOKED else "red")
        console.print(Text.assemble("  ", judgement, f"  {file.name} {file.how}"), soft_wrap=True)
    if len(different) > MAX_FILES:
        console.print(f"  and {len(different) - MAX_FILES:,} more; --json lists all", soft_wrap=True)
    for name, signed in (("signature", verification.signature), ("provenance", verification.provenance)):
        if signed:
            words = (f"{name} {signed.judgement}", STYLES[signed.judgement])
            console.print(Text.assemble("  ", words, f"  {signed.how}"), soft_wrap=True)
    for part in evidence_of(verification):
        text = f"by {part.name}  proved: {part.proves}; not: {part.leaves_open}"
        if console.is_terminal:
            console.print(indented(text))
        else:
            console.print(f"  {text}", soft_wrap=True)
    if verification.others:
        about = f"  beside them, {len(verification.others)} files that the Hub or its client writes"
        console.print(Text(about, style="dim"), soft_wrap=True)


def _settled(verification: "Verification") -> Iterator[str]:
    """What the equal files were compared by."""
    for digest, text in BY.items():
        files = [
            file for file in verification.files if file.judgement == FileState.SAME and digest in file.by
        ]
        if files:
            tensors = sum(file.compared for file in files)
            of = f" ({tensors} tensors)" if digest == "tensors" else ""
            yield f"{text}{of}: {listed(file.name for file in files)}"
