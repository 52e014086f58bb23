"""The command line: it parses, calls the API, prints, and exits with the codes that the contract names."""

import sys
import traceback
from itertools import pairwise

from eaglectl.cli.app import app
from eaglectl.cli.options import print_json
from eaglectl.errors import EaglectlError, Usage


def main() -> None:
    """Run, and turn every outcome into the contract's exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run with these arguments and return the exit code; only a crash of our own shows a traceback."""
    try:
        code = int(app(_common_first(arguments), prog_name="eaglectl", standalone_mode=False) or 0)
    except EaglectlError as problem:
        if _wants_json(arguments):
            from eaglectl.reports import machine

            print_json(machine.error(problem))
        print(f"eaglectl: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as problem:
        code = _other(problem, is_json=_wants_json(arguments))
    if code == INTERRUPTED:
        print("eaglectl: interrupted; nothing was left behind", file=sys.stderr)
    return code


INTERRUPTED = 130
COMMON = ("-q", "--quiet", "-v", "--verbose", "--no-color", "--offline")


def _common_first(arguments: list[str]) -> list[str]:
    """The options that every command has are the application's; users write them after the command as well."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    common = [argument for argument in arguments[:end] if argument in COMMON]
    return [*common, *(argument for argument in arguments[:end] if argument not in COMMON), *arguments[end:]]


def _wants_json(arguments: list[str]) -> bool:
    return bool({"--json", "--format=json"} & set(arguments)) or ("--format", "json") in pairwise(arguments)


def _other(problem: Exception, *, is_json: bool) -> int:
    show = getattr(problem, "show", None)  # click's usage errors, which typer may vendor under another module
    if callable(show) and hasattr(problem, "exit_code"):
        if is_json:
            from eaglectl.reports import machine

            message = getattr(problem, "format_message", lambda: str(problem))()
            print_json(machine.error(Usage(message)))
        show()
        return 2
    if type(problem).__name__ == "Abort":
        return INTERRUPTED
    traceback.print_exc()
    print("eaglectl: this is a fault of eaglectl; please report it with the lines above", file=sys.stderr)
    return 70
