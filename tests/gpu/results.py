"""How a test on a GPU ended, as a line of JSON for the table of __main__.py, without torch and eaglectl."""

import json
import os
from pathlib import Path
from typing import Any

# the properties in which a test records its figures, and the command that it typed
FIGURES, COMMAND = "figures", "command"


def pytest_runtest_logreport(report: Any) -> None:
    """Append a test's end to EAGLECTL_GPU_RESULTS: that of the phase which ran it, or did not let it run."""
    file = os.environ.get("EAGLECTL_GPU_RESULTS")
    if file is None or (report.when != "call" and report.passed):
        return
    reason = report.longrepr[2] if report.skipped else last_error(report)
    properties = dict(reversed(report.user_properties))  # the first of each name
    line = {
        "test": report.nodeid,
        "result": report.outcome,
        "reason": str(reason).removeprefix("Skipped: "),
        "seconds": round(report.duration, 1),
        "command": properties.get(COMMAND),
        "figures": properties.get(FIGURES, {}),
    }
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, default=str) + "\n")


def last_error(report: Any) -> str:
    """The message of what a test raised; "" where it passed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else str(report.longrepr or "")
