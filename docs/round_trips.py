"""benchmarks/evidence/round-trips.md: every fixture written in every layout, and compared with before."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/round-trips.md"
sys.path.insert(0, str(PAGE.parents[2]))

import eaglectl
from eaglectl.conversion.plan import DEFAULT_LAYOUT
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import by_name, writable
from eaglectl.options import CALLER
from eaglectl.text import listed
from tests.cases import CASES, Case
from tests.conftest import FIXTURES

SAME = "same"
# the targets that are not the one of fixtures/target, as far as they differ
TARGETS: Mapping[str, Mapping[str, int]] = {
    "eagle/wide-target": {"hidden_size": 48},
    "modelopt-megatron/deep-unsorted-ids": {"num_hidden_layers": 16},
}
HEAD = """# Round trips

Written by `make docs`: every fixture in `fixtures/producers/`, in every layout of `convert --for`.

**same**: the layout was written, its files were read back without a question, and `eaglectl diff` finds the
same drafter. A number: it was refused, or a part of it is written otherwise, for the reason with that number.
Drafters that `convert` repairs, and pickles, are compared with the same drafter in the default layout.
"""


def outcomes(case: Case) -> Mapping[str, str]:
    """For each layout "same", or why the fixture is not written in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = folder / "target"
        target.mkdir()
        config = json.loads((FIXTURES / "target" / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, **TARGETS.get(case.path, {})}))
        source = case.folder
        if case.is_pickled or case.mends:
            source = folder / "source"
            _write(case, case.folder, source, DEFAULT_LAYOUT, target)
        return {layout: _outcome(case, source, folder / layout, layout, target) for layout in writable()}


def _outcome(case: Case, source: Path, out: Path, layout: str, target: Path) -> str:
    try:
        written = _write(case, case.folder, out, layout, target)
    except EaglectlError as error:
        reason = str(error).partition("; use ")[0]
        return reason.replace(by_name(layout).title, "the layout")
    if questions := eaglectl.inspect(str(out), target=str(target)).drafter.notes_at("question"):
        return f"WRITTEN WITH A QUESTION: {questions[0].text}"
    if modules := written.plan.record.get("dequantised"):
        return f"written, with {listed(modules)} dequantised, as the layout's engine builds it"
    verdict = eaglectl.diff(
        str(source), str(out), eaglectl.DiffOptions(str(target), False, case.answered())
    ).verdict
    return SAME if verdict == "equal" else f"WRITTEN, AND diff SAYS {verdict}"


def _write(case: Case, source: Path, out: Path, layout: str, target: Path) -> eaglectl.Conversion:
    options: dict[str, Any] = {"target": str(target), "target_name": "org/name", "answers": case.answered()}
    return eaglectl.convert(str(source), out, eaglectl.ConvertOptions(layout, **options))


def page() -> str:
    """The whole page, with options as the command line spells them."""
    was_command_line = CALLER.is_command_line
    CALLER.is_command_line = True
    try:
        return _page()
    finally:
        CALLER.is_command_line = was_command_line


def _page() -> str:
    reasons: dict[str, int] = {}
    layouts = writable()
    rows = [f"| fixture | {' | '.join(layouts)} |", "|---|" + "---|" * len(layouts)]
    for case in CASES:
        found = outcomes(case)
        cells = [
            SAME if found[layout] == SAME else str(reasons.setdefault(found[layout], len(reasons) + 1))
            for layout in layouts
        ]
        rows.append(f"| {case.path} | {' | '.join(cells)} |")
    numbered = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([HEAD, *rows, "", "## Why a layout is refused", "", *numbered, ""])
