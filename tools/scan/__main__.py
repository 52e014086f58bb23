"""`python -m tools.scan WHEEL`: print the entry that eaglectl's data lacks for a release, from its sources.

None of them is run. Exits with 1 where the data and the sources differ, with 3 for sources that cannot be
read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from eaglectl.errors import EaglectlError
from eaglectl.terminal import say
from tools.scan.report import lines
from tools.scan.scanner import scan


def main(arguments: Sequence[str] | None = None) -> int:
    """Scan as the arguments say and return the exit code."""
    parser = argparse.ArgumentParser("python -m tools.scan", description="Scan an engine release's sources.")
    parser.add_argument(
        "wheel", type=Path, help="a wheel of vLLM or SGLang, or a folder with its Python files"
    )
    parser.add_argument(
        "--against",
        metavar="RELEASE_OR_SCAN",
        help="a known release (the wheel's own, else the newest), or the JSON file of a scan",
    )
    parser.add_argument("--json", action="store_true", help="print all that the sources show")
    options = parser.parse_args(arguments)
    try:
        result = scan(options.wheel, options.against)
    except EaglectlError as error:
        say(f"eaglectl: {error}", sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(result.found, indent=2))
    else:
        for line in lines(result, str(options.wheel)):
            say(line)
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
