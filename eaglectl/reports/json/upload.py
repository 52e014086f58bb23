"""The JSON document of `upload`."""

from typing import TYPE_CHECKING, Any

from eaglectl.reports.differences import change_sentence, fact_values
from eaglectl.reports.json.document import head
from eaglectl.verdicts import FactState

if TYPE_CHECKING:
    from eaglectl.publishing.changes import Changes
    from eaglectl.publishing.remote import Commit
    from eaglectl.publishing.upload import Upload


def upload_document(done: "Upload") -> dict[str, Any]:
    """Return eaglectl/upload/1."""
    plan, sent = done.plan, done.sent
    return {
        **head("upload"),
        "repo": plan.repo,
        "outcome": done.outcome,
        "revision": plan.revision,
        "head": plan.state.head if plan.state else None,
        "is_seen": plan.is_seen,
        "is_new": plan.state is None and plan.is_seen,
        "is_private": plan.is_private,
        "is_pull_request": plan.is_pull,
        "message": plan.title,
        "target": plan.target,
        "is_target_seen": plan.is_target_seen,
        "verdict": plan.report and plan.report.verdict,
        "doubts": list(plan.doubts),
        "changes": plan.changes and _changes(plan.changes),
        "files": [
            {
                "name": file.name,
                "size": file.size,
                "sha256": file.sha256,
                "change": plan.change(file),
                "is_written": file.is_written,
            }
            for file in plan.files
        ],
        "not_sent": [{"name": left.name, "why": left.why} for left in plan.left_out],
        "only_there": list(plan.extra),
        "bytes": plan.nbytes,
        "commit": sent and _commit(sent),
        "proposed": plan.proposed,
        "is_recovered": done.is_recovered,
        "tag": done.tag,
        "mismatches": [{"name": mismatch.name, "how": mismatch.how} for mismatch in done.mismatches],
        "download": done.download if done.oid else None,
    }


def _changes(changes: "Changes") -> dict[str, Any]:
    compared = changes.comparison
    return {
        "verdict": compared.verdict if compared else None,
        "summary": change_sentence(changes),
        "facts": [
            {"name": fact.name, "there": there, "here": here}
            for fact in (compared.facts if compared else ())
            if fact.state == FactState.DIFFERS
            for there, here in [fact_values(fact)]
        ],
        "tensors": [pair.name for pair in (compared.tensors if compared else ()) if pair.differs],
        "weights": list(changes.weights),
        "diff": changes.command,
    }


def _commit(commit: "Commit") -> dict[str, Any]:
    return {
        "oid": commit.oid,
        "url": commit.url,
        "pull_request": commit.pull,
        "pull_request_url": commit.pull_url,
    }
