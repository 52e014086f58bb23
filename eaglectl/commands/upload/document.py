"""The JSON document of `upload`."""

from typing import Any

from eaglectl.publish.plan import Changes
from eaglectl.publish.upload import Upload
from eaglectl.report.differences import change_sentence, fact_values
from eaglectl.report.documents.document import Parts
from eaglectl.verdicts import CheckVerdict, DiffVerdict, FactState


def _facts(changes: Changes) -> list[dict[str, str]]:
    compared = changes.comparison
    facts = [fact for fact in compared.facts if fact.state == FactState.DIFFERS] if compared else []
    sides = ((fact.name, *fact_values(fact)) for fact in facts)
    return [{"name": name, "there": there, "here": here} for name, there, here in sides]


def _tensors(changes: Changes) -> list[str]:
    compared = changes.comparison
    return [pair.name for pair in (compared.tensors if compared else ()) if pair.differs]


def _verdict(changes: Changes) -> DiffVerdict | None:
    return changes.comparison.verdict if changes.comparison else None


def _head(done: Upload) -> str | None:
    return done.plan.state.head if done.plan.state else None


def _is_new(done: Upload) -> bool:
    return done.plan.state is None and done.plan.is_seen


def _check_verdict(done: Upload) -> CheckVerdict | None:
    return done.plan.report.verdict if done.plan.report else None


def _files(done: Upload) -> list[dict[str, Any]]:
    return [
        {
            "name": file.name,
            "size": file.size,
            "sha256": file.sha256,
            "change": done.plan.change(file),
            "is_written": file.is_written,
        }
        for file in done.plan.files
    ]


def _download(done: Upload) -> str | None:
    return done.download if done.oid else None


TAG = "eaglectl/upload/1"
PARTS: Parts = {
    Upload: (
        "repo=plan.repo",
        "outcome",
        "revision=plan.revision",
        ("head", _head),
        "is_seen=plan.is_seen",
        ("is_new", _is_new),
        "is_private=plan.is_private",
        "is_pull_request=plan.is_pull",
        "message=plan.title",
        "target=plan.target",
        "is_target_seen=plan.is_target_seen",
        ("verdict", _check_verdict),
        "doubts=plan.doubts",
        "changes=plan.changes",
        ("files", _files),
        "not_sent=plan.left_out",
        "only_there=plan.extra",
        "bytes=plan.nbytes",
        "commit=sent",
        "proposed=plan.proposed",
        "is_recovered",
        "tag",
        "mismatches",
        ("download", _download),
    ),
    Changes: (
        ("verdict", _verdict),
        ("summary", change_sentence),
        ("facts", _facts),
        ("tensors", _tensors),
        "weights",
        "diff=command",
    ),
}
