"""`eaglectl validate --fix`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from eaglectl.cli.options import show
from eaglectl.errors import UsageError
from eaglectl.options import Option, Options
from eaglectl.terminal import OutputSettings, ProgressBar, emit

if TYPE_CHECKING:
    from eaglectl.api.options import ValidateOptions
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.validation.judge import Report

REPAIR = "Repair"


class FixOptions(Options, frozen=True):
    """The options of --fix."""

    fix: Annotated[
        bool,
        Option(
            "Convert the checkpoint where that repairs findings and needs no other file; the verdict is that"
            " of the output.",
            group=REPAIR,
        ),
    ] = False
    out: Annotated[
        Path | None,
        Option(
            "--fix: the folder to write; NAME-fixed in the current folder by default.",
            "-o, --out",
            value="DIR",
            group=REPAIR,
            complete="folders",
        ),
    ] = None
    force: Annotated[bool, Option("--fix: replace an existing checkpoint folder at OUT.", group=REPAIR)] = (
        False
    )

    def check(self, sources: Sequence[str], report_format: str, *, skip_others: bool) -> None:
        """Raise UsageError for options that contradict each other."""
        if not self.fix and (self.out is not None or self.force):
            raise UsageError("-o and --force belong to --fix; a report is written by --output FORMAT=FILE")
        if self.fix and len(sources) > 1:
            raise UsageError("--fix takes one checkpoint; give one")
        if self.fix and skip_others:
            raise UsageError("--fix and --skip-others: what is to be fixed is a drafter; leave one out")
        if self.fix and report_format not in ("text", "json"):
            raise UsageError(
                f"--fix and --format {report_format}: text or json was expected;"
                f" --output {report_format}=FILE writes the report too"
            )


def fix_one(
    settings: OutputSettings,
    source: str,
    request: FixOptions,
    options: "ValidateOptions",
    json_version: int | None,
) -> "Report":
    """Fix one checkpoint and print the result, as text or as the JSON document of a version.

    The report is on the output where one was written.
    """
    from eaglectl.api.fixing import fix
    from eaglectl.reports.conversion import plan_outline
    from eaglectl.reports.documents.render import render_json
    from eaglectl.reports.findings import fix_outline

    is_silent = json_version is not None or settings.quiet

    def show_plan(plan: "ConversionPlan") -> None:
        if not is_silent:
            show(settings, plan_outline(plan))

    with ProgressBar(settings, is_on=not is_silent) as bar:
        result = fix(source, request.out, options, force=request.force, on_plan=show_plan, on_progress=bar)
    if json_version is not None:
        emit(render_json(result, version=json_version))
    else:
        show(settings, fix_outline(result, is_quiet=settings.quiet))
    return result.report
