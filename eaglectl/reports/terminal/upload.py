"""The plan and the result of `upload` on the terminal."""

from typing import TYPE_CHECKING

from eaglectl.checkpoint.layout import CARD
from eaglectl.reports.differences import change_sentence, fact_values, fact_why, shown_facts
from eaglectl.reports.findings import total
from eaglectl.reports.section import TONES
from eaglectl.reports.terminal.console import MOST_ROWS, Console, Text, indented
from eaglectl.reports.terminal.layout import print_rest, table
from eaglectl.reports.terminal.report import STYLES as TONE_STYLES
from eaglectl.reports.wording import size
from eaglectl.text import listed
from eaglectl.verdicts import FactState, FileChange, UploadOutcome

if TYPE_CHECKING:
    from eaglectl.publishing.changes import Changes
    from eaglectl.publishing.plan import UploadPlan
    from eaglectl.publishing.upload import Upload
    from eaglectl.validation.judge import Report

WEIGHTS = (".safetensors", ".index.json", ".bin", ".pt", ".pth")
STYLES = {
    FileChange.NEW: "green",
    FileChange.CHANGED: "yellow",
    FileChange.UNCHANGED: "dim",
    FileChange.UNKNOWN: "dim",
}


def print_plan(console: Console, plan: "UploadPlan") -> None:
    """Print the destination, what changes in the drafter, and every file with its size and change."""
    console.print(Text.assemble((plan.repo, "bold"), f"  {_where(plan)}"), soft_wrap=True)
    style, words = ("dim", plan.target) if plan.is_target_seen else ("yellow", f"not compared: {plan.target}")
    console.print(Text.assemble("  ", ("target    ", style), words), soft_wrap=True)
    if plan.report is not None:
        _print_verdict(console, plan.report)
    for doubt in plan.doubts:
        console.print(Text.assemble("  ", ("open      ", "yellow"), doubt), soft_wrap=True)
    if plan.changes:
        _print_changes(console, plan.changes)
    rows = table("file", "bytes", "size", "there", "sha256")
    for file in plan.files[:MOST_ROWS]:
        word = plan.change(file)
        made = Text(" (made by eaglectl)", style="dim") if file.is_written else Text("")
        rows.add_row(
            Text(file.name) + made,
            str(file.size),
            size(file.size),
            Text(word, style=STYLES[word]),
            file.sha256[:12],
        )
    console.print(indented(rows))
    print_rest(console, len(plan.files) - MOST_ROWS, "files")
    for left in plan.left_out[:MOST_ROWS]:
        console.print(
            Text.assemble("  ", ("not sent  ", "yellow"), f"{left.name}: {left.why}"),
            soft_wrap=True,
        )
    print_rest(console, len(plan.left_out) - MOST_ROWS, "that are not sent")
    if plan.extra:
        names = listed(plan.extra)
        if any(name.endswith(WEIGHTS) for name in plan.extra):
            names += "; weights among them may be loaded beside these or in their place"
        console.print(
            Text.assemble("  ", ("stays     ", "yellow"), f"there and not here: {names}"), soft_wrap=True
        )
    what = f"{len(plan.changed)} of {len(plan.files)} files, {size(plan.nbytes)}"
    console.print(Text(f"  {what}; tag {plan.tag}" if plan.tag else f"  {what}", style="dim"), soft_wrap=True)


def print_card(console: Console, plan: "UploadPlan") -> None:
    """Print the card that is published, as it is written."""
    console.print(Text.assemble("  ", ("card      ", "dim"), CARD))
    for line in plan.card.splitlines():
        console.print(Text(f"    {line}".rstrip()), soft_wrap=True)


def _print_verdict(console: Console, report: "Report") -> None:
    """Print the verdict on the files, with what it found."""
    console.print(
        Text.assemble(
            "  ",
            ("verdict   ", "dim"),
            (report.verdict, TONE_STYLES[TONES[report.verdict]]),
            f"  {total([report])}",
        ),
        soft_wrap=True,
    )


def _print_changes(console: Console, changes: "Changes") -> None:
    """Print the facts and tensors that differ from the repository's drafter, by config and headers."""
    compared = changes.comparison
    if compared is None:
        console.print(Text.assemble("  ", ("drafter   ", "dim"), changes.reason), soft_wrap=True)
        return
    console.print(Text.assemble("  ", ("drafter   ", "dim"), change_sentence(changes)), soft_wrap=True)
    rows = table("", "there", "here", "")
    # without its data, a draft vocabulary of one size is never compared
    for fact in (fact for fact in shown_facts(compared) if fact.state != FactState.NOT_COMPARED):
        style = {FactState.DIFFERS: "yellow"}.get(fact.state, "dim")
        rows.add_row(
            Text(fact.name, style=style), *map(Text, fact_values(fact)), Text(fact_why(fact), style="dim")
        )
    for pair in [pair for pair in compared.tensors if pair.differs][:MOST_ROWS]:
        sides = (f"{side.dtype} {list(side.shape)}" if side else "-" for side in (pair.a, pair.b))
        rows.add_row(Text(pair.name, style="yellow"), *map(Text, sides), "")
    if rows.row_count:
        console.print(indented(rows))
    if changes.weights:
        console.print(
            f"  {listed(changes.weights)} {'has' if len(changes.weights) == 1 else 'have'} other bytes; their"
            f" values: `{changes.command}`",
            soft_wrap=True,
        )


def _where(plan: "UploadPlan") -> str:
    if plan.unseen:
        return f"was not looked at: {plan.unseen.removeprefix(f'{plan.repo}: ')}"
    if plan.state is None and not plan.is_seen:
        return (
            "was not looked at: it is not there, or it is private and there is no token, or this call is"
            " offline"
        )
    where = f"a pull request to {plan.revision}" if plan.is_pull else f"a commit on {plan.revision}"
    kind = "private" if plan.is_private else "public"
    if plan.state is None:
        return f"{where} of a new {kind} repository"
    return f"{where}, now at {plan.state.head[:12]} ({kind})"


def print_upload(console: Console, done: "Upload") -> None:
    """Print the outcome, and the command that downloads what was published."""
    match done.outcome:
        case UploadOutcome.PLANNED:
            console.print(f"{done.outcome}: nothing was sent (--dry-run)")
        case UploadOutcome.NOTHING_TO_DO:
            _print_nothing_to_do(console, done)
        case UploadOutcome.PUBLISHED:
            _print_published(console, done)
        case UploadOutcome.MISMATCH:
            _print_mismatch(console, done)
    if done.tag:
        console.print(f"  tag {done.tag} is at {done.oid}", soft_wrap=True)
    if done.oid and done.outcome != UploadOutcome.MISMATCH:
        console.print(f"  {done.download}", soft_wrap=True)


def _print_nothing_to_do(console: Console, done: "Upload") -> None:
    where = f"{done.plan.revision} at {(done.oid or '')[:12]} has"
    if done.plan.proposed:
        where = f"pull request {done.plan.proposed} holds"
    console.print(Text.assemble((done.outcome, "green"), f": {where} these files already"), soft_wrap=True)


def _print_published(console: Console, done: "Upload") -> None:
    sent = done.sent
    assert sent is not None
    console.print(
        Text.assemble((f"{done.outcome} ", "green"), (sent.pull_url or sent.url, "bold")), soft_wrap=True
    )
    if done.is_recovered:
        console.print(
            "  the Hub's answer was lost; the repository was looked at, and holds the commit", soft_wrap=True
        )
    console.print(
        f"  verified at commit {sent.oid}: {len(done.plan.files)} files, sizes and digests", soft_wrap=True
    )


def _print_mismatch(console: Console, done: "Upload") -> None:
    commit = done.sent.shown if done.sent else ""
    text = f": the commit {commit} does not hold what was sent; do not merge or serve it"
    console.print(Text.assemble((done.outcome, "bold red"), text), soft_wrap=True)
    for mismatch in done.mismatches[:MOST_ROWS]:
        console.print(f"  {mismatch.name}: {mismatch.how}", soft_wrap=True)
    print_rest(console, len(done.mismatches) - MOST_ROWS)
