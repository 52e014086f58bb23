"""Holding validate to the engine: no false pass, no false alarm, and the few cases where a disagreement stands, with the reason."""

from collections.abc import Mapping
from pathlib import Path

import eaglectl
from eaglectl.validation.judging import Report
from tests.engine.agreement.bases import BASES, TARGETS, target
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.records import VLLM, Record

# what validate rightly reports though this engine, this time, served it
JUSTIFIED: Mapping[str, str] = {}


def targets(root: Path) -> Path:
    """Write all targets below `root`."""
    for kind in TARGETS:
        target(kind).write(root / kind)
    return root


def report(name: str, root: Path, parent: Path) -> Report:
    """What validate says of a case, its target at hand."""
    case = CASES[name]
    folder = case.files().write(parent / "drafter")
    return eaglectl.validate(str(folder), target=str(root / BASES[case.base].kind), engines=[VLLM])


def disagreement(record: Record, found: Report) -> str:
    """How validate and the engine disagree, in words; empty where they do not."""
    errors = [f"{one.rule.id} {one.hit.message}" for one in found.findings if one.severity == "error"]
    if not record.is_served and found.verdict == "pass":
        return f"false pass: the engine: {record.verdict}, {record.said}"
    if record.is_served and errors:
        return f"false alarm: the engine serves it ({record.verdict}{', ' if record.said else ''}{record.said}), validate: {'; '.join(errors)}"
    return ""
