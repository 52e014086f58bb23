"""What `upload` plans and did, and what `verify` found: on the screen, and as JSON documents with versioned schemas."""

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports.text import indented, table
from eaglectl.reports.wording import size

if TYPE_CHECKING:
    from eaglectl.publishing.plan import Plan
    from eaglectl.publishing.upload import Upload
    from eaglectl.publishing.verification import Verification

WEIGHTS = (".safetensors", ".index.json", ".bin", ".pt", ".pth")
VERDICTS = {"equal": ("equal", "green"), "differs": ("differs", "bold red"), "could-not-look": ("could not look", "bold yellow")}  # fmt: skip
SIGNATURES = {
    "verified": ("signature verified", "green"), "failed": ("signature failed", "bold red"), "missing": ("signature missing", "bold red"),
    "not-looked": ("could not look at the signature", "bold yellow"),
}  # fmt: skip
STYLES = {"new": "green", "changed": "yellow", "unchanged": "dim", "unknown": "dim"}


def print_plan(console: Console, plan: "Plan") -> None:
    """Where to, and every file with its size and what becomes of it there."""
    console.print(Text.assemble((printable(plan.repo), "bold"), f"  {_where(plan)}"), soft_wrap=True)
    rows = table("file", "bytes", "size", "there", "sha256")
    for file in plan.files:
        word = plan.change(file)
        made = Text(" (made by eaglectl)", style="dim") if file.is_written else Text("")
        rows.add_row(Text(printable(file.name)) + made, str(file.size), size(file.size), Text(word, style=STYLES[word]), file.sha256[:12])  # fmt: skip
    console.print(indented(rows))
    for left in plan.left_out:
        console.print(
            Text.assemble("  ", ("not sent  ", "yellow"), f"{printable(left.name)}: {left.why}"), soft_wrap=True
        )
    if plan.extra:
        names = ", ".join(map(printable, plan.extra))
        if any(name.endswith(WEIGHTS) for name in plan.extra):
            names += "; weights among them may be loaded beside these or in their place"
        console.print(Text.assemble("  ", ("stays     ", "yellow"), f"there and not here: {names}"), soft_wrap=True)
    what = f"{len(plan.changed)} of {len(plan.files)} files, {size(plan.nbytes)}"
    console.print(Text(f"  {what}; tag {plan.tag}" if plan.tag else f"  {what}", style="dim"), soft_wrap=True)


def _where(plan: "Plan") -> str:
    if plan.state is None and not plan.is_seen:
        return "was not looked at: it is not there, or it is private and there is no token, or this call is offline"
    where = f"a pull request to {plan.revision}" if plan.is_pull else f"a commit on {plan.revision}"
    kind = "private" if plan.is_private else "public"
    return (
        f"{where} of a new {kind} repository"
        if plan.state is None
        else f"{where}, now at {plan.state.head[:12]} ({kind})"
    )


def print_upload(console: Console, done: "Upload") -> None:
    """What became of the plan, and how to fetch it."""
    plan, sent = done.plan, done.sent
    match done.outcome:
        case "planned":
            console.print("nothing was sent (--dry-run)")
        case "nothing-to-do":
            where = (
                f"pull request {done.plan.proposed} holds"
                if plan.proposed
                else f"{plan.revision} at {(done.oid or '')[:12]} has"
            )
            console.print(Text.assemble(("nothing to do", "green"), f": {where} these files already"), soft_wrap=True)
        case "published" if sent:
            console.print(Text.assemble(("published ", "green"), (sent.pull_url or sent.url, "bold")), soft_wrap=True)
            if done.is_recovered:
                console.print(
                    "  the Hub's answer was lost; the repository was looked at, and holds the commit", soft_wrap=True
                )
            console.print(
                f"  verified at commit {sent.oid}: {len(plan.files)} files, sizes and digests", soft_wrap=True
            )
        case _:
            url = sent.url if sent else ""
            head = f": {url} does not hold what was sent; do not merge or serve it"
            console.print(Text.assemble(("mismatch", "bold red"), head), soft_wrap=True)
            for one in done.mismatches:
                console.print(f"  {printable(one.name)}: {one.how}", soft_wrap=True)
    if done.tag:
        console.print(f"  tag {done.tag} is at {done.oid}", soft_wrap=True)
    if done.oid and done.outcome != "mismatch":
        console.print(f"  {download(done)}", soft_wrap=True)


def download(done: "Upload") -> str:
    """The command that fetches exactly what was published."""
    return f"hf download {shlex.quote(done.plan.repo)} --revision {done.oid}"


def upload(done: "Upload") -> dict[str, Any]:
    """eaglectl/upload/1."""
    plan, sent = done.plan, done.sent
    return {
        "schema": "eaglectl/upload/1", "version": eaglectl.__version__, "repo": plan.repo, "outcome": done.outcome, "revision": plan.revision,
        "head": plan.state.head if plan.state else None, "is_seen": plan.is_seen, "is_new": plan.state is None and plan.is_seen,
        "is_private": plan.is_private, "is_pull_request": plan.is_pull,
        "files": [
            {"name": one.name, "size": one.size, "sha256": one.sha256, "change": plan.change(one), "is_written": one.is_written}
            for one in plan.files
        ],
        "not_sent": [{"name": one.name, "why": one.why} for one in plan.left_out],
        "only_there": list(plan.extra),
        "bytes": plan.nbytes,
        "commit": None if sent is None else {"oid": sent.oid, "url": sent.url, "pull_request": sent.pull, "pull_request_url": sent.pull_url},
        "proposed": plan.proposed, "is_recovered": done.is_recovered, "tag": done.tag,
        "mismatches": [{"name": one.name, "how": one.how} for one in done.mismatches],
        "download": download(done) if done.oid else None,
    }  # fmt: skip


def print_verification(console: Console, found: "Verification") -> None:
    """The verdict, then every file that is not as it was published, and the signature."""
    word, style = VERDICTS[found.verdict]
    good = sum(one.judgement == "same" for one in found.files)
    lists = f": {good} files as {' and '.join(found.lists)} say" if found.lists else ": no list beside the signature"
    console.print(Text.assemble((word, style), f"  {printable(found.folder)}{lists}"), soft_wrap=True)
    for one in found.files:
        if one.judgement != "same":
            console.print(
                Text.assemble("  ", (one.judgement, "red"), f"  {printable(one.name)} {one.how}"), soft_wrap=True
            )
    if found.signature:
        word, style = SIGNATURES[found.signature.judgement]
        console.print(Text.assemble("  ", (word, style), f"  {printable(found.signature.how)}"), soft_wrap=True)
    if found.others:
        console.print(Text(f"  in no list: {', '.join(map(printable, found.others))}", style="dim"), soft_wrap=True)


def verification(found: "Verification") -> dict[str, Any]:
    """eaglectl/verify/1."""
    signature = found.signature
    return {
        "schema": "eaglectl/verify/1", "version": eaglectl.__version__, "folder": found.folder,
        "verdict": found.verdict, "lists": list(found.lists),
        "files": [{"name": one.name, "judgement": one.judgement, "lists": list(one.lists), "how": one.how} for one in found.files],
        "others": list(found.others),
        "signature": None if signature is None else {"judgement": signature.judgement, "how": signature.how},
    }  # fmt: skip
