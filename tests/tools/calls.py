"""Calls of the tools' command lines in this process."""

import contextlib
import io
from pathlib import Path

from tests.builders import Outcome
from tools.scan.__main__ import main


def call_scan(*arguments: str | Path) -> Outcome:
    """Run `python -m tools.scan`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())
