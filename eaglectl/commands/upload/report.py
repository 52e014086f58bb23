"""An upload as sections (the plan, the card, and what came of it) and as a JSON document."""

from collections.abc import Iterator, Mapping, Sequence

from eaglectl.files.layout import CARD
from eaglectl.publish.plan import Changes, UploadPlan
from eaglectl.publish.upload import Upload
from eaglectl.report.differences import change_sentence, fact_values, fact_why, shown_facts
from eaglectl.report.documents.document import Parts
from eaglectl.report.findings import total
from eaglectl.report.section import (
    TONES,
    Commands,
    Line,
    Lines,
    Outline,
    Remark,
    Remarks,
    Section,
    Table,
    Tone,
    Words,
    first_lines,
    plain,
)
from eaglectl.report.wording import size
from eaglectl.text import listed
from eaglectl.verdicts import FactState, FileChange, UploadOutcome

WEIGHTS = (".safetensors", ".index.json", ".bin", ".pt", ".pth")
CHANGE_TONES: Mapping[FileChange, Tone] = {FileChange.NEW: "good", FileChange.CHANGED: "doubt"}
OUTCOME_TONES: Mapping[UploadOutcome, Tone] = {
    UploadOutcome.PLANNED: "",
    UploadOutcome.NOTHING_TO_DO: "good",
    UploadOutcome.PUBLISHED: "good",
    UploadOutcome.MISMATCH: "bad",
}


def upload_plan_outline(plan: UploadPlan) -> Outline:
    """The destination, what changes in the drafter, and every file with its size and change."""
    where = _where(plan)
    files = [
        (
            (file.name, Words(" (made by eaglectl)" if file.is_written else "", "quiet")),
            str(file.size),
            size(file.size),
            Words(plan.change(file), CHANGE_TONES.get(plan.change(file), "quiet")),
            file.sha256[:12],
        )
        for file in plan.files
    ]
    what = f"{len(plan.changed)} of {len(plan.files)} files, {size(plan.nbytes)}"
    sections = [
        Section("Plan", [Remarks(list(_judged(plan)))], where, has_heading=False),
        *(_changes(plan.changes) if plan.changes else []),
        Section(
            "Files",
            [
                Table(("file", "bytes", "size", "there", "sha256"), files),
                Remarks(list(_unsent(plan))),
                Lines([Words(f"{what}; tag {plan.tag}" if plan.tag else what, "quiet")]),
            ],
            has_heading=False,
        ),
    ]
    return Outline(
        "upload",
        Words("a plan", "plain"),
        plan.repo,
        where,
        (Words(plan.repo, "strong"), f"  {where}"),
        sections,
    )


def card_outline(plan: UploadPlan) -> Outline:
    """The card that is published, as it is written."""
    lines = Lines(plan.card.splitlines(), is_unbroken=True)
    return Outline("upload", Words("the card", "plain"), CARD, "", "", [Section(CARD, [lines])])


def upload_outline(done: Upload) -> Outline:
    """The outcome, and the command that downloads what was published."""
    is_published = done.oid and done.outcome != UploadOutcome.MISMATCH
    lines = [*_checked(done), *([f"tag {done.tag} is at {done.oid}"] if done.tag else [])]
    commands = [("", done.download)] if is_published else []
    commit = Section("Commit", [Lines(lines, is_unbroken=True), Commands(commands)], has_heading=False)
    verdict, lead = Words(done.outcome, OUTCOME_TONES[done.outcome]), _lead(done)
    return Outline("upload", verdict, done.plan.repo, lead, (verdict, ": ", *lead), [commit])


def _judged(plan: UploadPlan) -> Iterator[Remark]:
    unseen = "" if plan.is_target_seen else "not compared: "
    yield Remark(Words("target", "doubt" if unseen else "quiet"), f"{unseen}{plan.target}")
    if plan.report is not None:
        verdict = plan.report.verdict
        yield Remark(Words("verdict", TONES[verdict]), f"{verdict}: {total([plan.report])}")
    for doubt in plan.doubts:
        yield Remark(Words("open", "doubt"), doubt)
    if plan.changes:
        yield Remark(Words("drafter", "quiet"), change_sentence(plan.changes))


def _changes(changes: Changes) -> Iterator[Section]:
    compared = changes.comparison
    if compared is None:
        return
    rows: list[Sequence[Line]] = [
        (
            Words(fact.name, "doubt" if fact.state == FactState.DIFFERS else "quiet"),
            *fact_values(fact),
            Words(fact_why(fact), "quiet"),
        )
        for fact in shown_facts(compared)
        # without its data, a draft vocabulary of one size is never compared
        if fact.state != FactState.NOT_COMPARED
    ]
    for pair in compared.tensors:
        if pair.differs:
            sides = (f"{side.dtype} {list(side.shape)}" if side else "-" for side in (pair.a, pair.b))
            rows.append((Words(pair.name, "doubt"), *sides, ""))
    has = "has" if len(changes.weights) == 1 else "have"
    values = f"{listed(changes.weights)} {has} other bytes; their values: `{changes.command}`"
    table = Table(("fact", "there", "here", "why"), rows)
    yield Section("Changes", [table, Lines([values] if changes.weights else [])], has_heading=False)


def _unsent(plan: UploadPlan) -> Iterator[Remark]:
    for text in first_lines([f"{left.name}: {left.why}" for left in plan.left_out]):
        yield Remark(Words("not sent", "doubt"), plain(text))
    if plan.extra:
        names = listed(plan.extra)
        if any(name.endswith(WEIGHTS) for name in plan.extra):
            names += "; weights among them may be loaded beside these or in their place"
        yield Remark(Words("stays", "doubt"), f"there and not here: {names}")


def _where(plan: UploadPlan) -> str:
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


def _lead(done: Upload) -> tuple[str | Words, ...]:
    if done.outcome == UploadOutcome.PUBLISHED and done.sent is not None:
        return (Words(done.sent.pull_url or done.sent.url, "strong"),)
    where = f"{done.plan.revision} at {(done.oid or '')[:12]} has"
    if done.plan.proposed:
        where = f"pull request {done.plan.proposed} holds"
    texts = {
        UploadOutcome.PLANNED: "nothing was sent (--dry-run)",
        UploadOutcome.NOTHING_TO_DO: f"{where} these files already",
        UploadOutcome.MISMATCH: "the commit does not hold what was sent; do not merge or serve it",
    }
    return (texts[done.outcome],)


def _checked(done: Upload) -> Iterator[Line]:
    if done.is_recovered:
        yield "the Hub's answer was lost; the repository was looked at, and holds the commit"
    if done.outcome == UploadOutcome.PUBLISHED:
        yield f"verified at commit {done.oid}: {len(done.plan.files)} files, sizes and digests"
    elif done.outcome == UploadOutcome.MISMATCH and done.sent:
        yield f"commit {done.sent.shown}"
    yield from first_lines([f"{mismatch.name}: {mismatch.how}" for mismatch in done.mismatches])


def _changed_facts(changes: Changes) -> list[dict[str, str]]:
    facts = changes.comparison.facts if changes.comparison else ()
    sides = ((fact.name, *fact_values(fact)) for fact in facts if fact.state == FactState.DIFFERS)
    return [{"name": name, "there": there, "here": here} for name, there, here in sides]


TAG = "eaglectl/upload/1"
PARTS: Parts = {
    Upload: (
        "repo=plan.repo",
        "outcome",
        "revision=plan.revision",
        "head=plan.state.head",
        "is_seen=plan.is_seen",
        ("is_new", lambda done: done.plan.state is None and done.plan.is_seen),
        "is_private=plan.is_private",
        "is_pull_request=plan.is_pull",
        "message=plan.title",
        "target=plan.target",
        "is_target_seen=plan.is_target_seen",
        "verdict=plan.report.verdict",
        "doubts=plan.doubts",
        "changes=plan.changes",
        (
            "files",
            lambda done: [
                {
                    "name": file.name,
                    "size": file.size,
                    "sha256": file.sha256,
                    "change": done.plan.change(file),
                    "is_written": file.is_written,
                }
                for file in done.plan.files
            ],
        ),
        "not_sent=plan.left_out",
        "only_there=plan.extra",
        "bytes=plan.nbytes",
        "commit=sent",
        "proposed=plan.proposed",
        "is_recovered",
        "tag",
        "mismatches",
        ("download", lambda done: done.download if done.oid else None),
    ),
    Changes: (
        "verdict=comparison.verdict",
        ("summary", change_sentence),
        ("facts", _changed_facts),
        (
            "tensors",
            lambda changes: [
                pair.name
                for pair in (changes.comparison.tensors if changes.comparison else ())
                if pair.differs
            ],
        ),
        "weights",
        "diff=command",
    ),
}
