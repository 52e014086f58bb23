"""`eaglectl validate --fix`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglectl.cli.options import print_json
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face

if TYPE_CHECKING:
    from eaglectl.conversion.plan import Plan
    from eaglectl.validation.judging import Report

Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Write the checkpoint anew where that repairs what is found and needs nothing from outside; the verdict is"
        " the output's.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="--fix: the folder to write; NAME-fixed in the current folder by default."),
]
Force = Annotated[bool, typer.Option("--force", help="--fix: replace an existing checkpoint folder at OUT.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of --fix."""

    is_on: bool
    out: Path | None
    force: bool

    def check(self, sources: Sequence[str], form: str) -> None:
        """Raise Usage for what does not go together."""
        if not self.is_on and (self.out is not None or self.force):
            raise Usage("-o and --force belong to --fix; a report is written by --output FORMAT=FILE")
        if self.is_on and len(sources) > 1:
            raise Usage("--fix takes one SOURCE")
        if self.is_on and form not in ("text", "json"):
            raise Usage(
                f"--fix and --format {form}: text or json was expected; --output {form}=FILE writes the report too"
            )


def fix_one(
    face: Face, source: str, asked: Asked, options: dict[str, Any], *, is_json: bool, is_quiet: bool
) -> "Report":
    """Fix one checkpoint and show what came of it; the report is that of the output, where one was written."""
    from eaglectl.api import fix
    from eaglectl.reports.fixing import fixing, print_fixing
    from eaglectl.reports.text import print_plan

    with Bar(face, is_on=not (is_json or is_quiet)) as bar:

        def planned(plan: "Plan") -> None:
            if not (is_json or is_quiet):
                face.show(partial(print_plan, plan=plan))
            bar.start(plan)

        done = fix(source, asked.out, force=asked.force, planned=planned, told=bar.advance, **options)
    if is_json:
        print_json(fixing(done))
    else:
        face.show(partial(print_fixing, done=done, is_quiet=is_quiet))
    return done.report
