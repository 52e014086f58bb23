"""`eaglectl validate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from eaglectl.api.options import ValidateOptions
from eaglectl.commands.arguments import Json, Page, exit_by, offered, page_file, policy_of, show, write_page
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files.files import is_regular
from eaglectl.files.layout import FILES_OF_FOLDER
from eaglectl.options import Option, Options
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault

if TYPE_CHECKING:
    from eaglectl.judge.judgement import Report

REPORTS = "Reports"
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, files in them (weights, config.json, the shard index), or Hub"
        " repositories: org/name[@revision]. From the Hub, headers and rows are read by range requests;"
        " rules that need all weights download them to the Hub client's cache, except with --headers-only.",
        autocompletion=offered,
    ),
]


class ReportOptions(Options, frozen=True):
    """What is written on the checkpoints, and where."""

    format: Annotated[
        str | None,
        Option(
            "The format on stdout: text (default), json, junit, sarif, github or markdown.",
            value="FORMAT",
            group=REPORTS,
            complete="formats",
        ),
    ] = None
    output: Annotated[
        tuple[str, ...],
        Option(
            "Also write a report to a file. Can be repeated.",
            value="FORMAT=FILE",
            group=REPORTS,
            complete="outputs",
        ),
    ] = ()

    def on_stdout(self, *, is_json: bool) -> str:
        """Return the format on stdout. Raises UsageError for two."""
        from eaglectl.report.outputs import FORMATS

        name = self.format or ("json" if is_json else "text")
        if name not in FORMATS:
            raise UsageError(
                f"--format {name}: one of {', '.join(FORMATS)} was expected", options=("--format",)
            )
        if is_json and name != "json":
            raise UsageError(
                f"--json and --format {name} are two formats; write one of them to a file: --output"
                f" {name}=FILE",
                options=("--json",),
            )
        return name


def validate_command(
    context: typer.Context,
    sources: Sources,
    options: ValidateOptions,
    reporting: ReportOptions,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Check checkpoints against the rules, and against each engine release."""
    from eaglectl.api.validate import check_options
    from eaglectl.judge.judgement import overall_verdict, unopened_report
    from eaglectl.report import outputs

    stdout_format, files = reporting.on_stdout(is_json=json_), outputs.parse_outputs(reporting.output)
    file, folders = page_file(page, files), list(dict.fromkeys(map(_folder, sources)))
    if options.engines and not options.has_engines:
        raise UsageError(
            "--engine and --no-engines contradict each other; leave one of them out", options=("--engine",)
        )

    def write(reports: "Sequence[Report]") -> None:
        write_page(file, *reports)
        outputs.write_outputs(files, reports)
        if "github" in (stdout_format, *(name for name, _ in files)):
            outputs.append_summary(reports)

    try:
        judged = [*sources, *filter(None, [options.target.place])]
        options = replace(options, policy=policy_of(options.policy, judged))
        check_options(options)
    except UnreadableError as error:  # of any checkpoint: no rule ran
        reports = [unopened_report(folder, str(error)) for folder in folders]
        if stdout_format not in ("text", "json"):  # whose sentence and document are those of every error
            emit(outputs.render(stdout_format, reports), has_commands=stdout_format == "github")
        write(reports)
        raise
    reports, has_crashed = _validate_all(context.obj, folders, options)
    if stdout_format == "text":
        from eaglectl.report.findings import reports_outline

        show(context.obj, reports_outline(reports, is_quiet=context.obj.quiet))
    else:
        emit(outputs.render(stdout_format, reports), has_commands=stdout_format == "github")
    write(reports)
    if has_crashed:
        raise typer.Exit(EaglectlError.exit_code)
    exit_by(overall_verdict(reports))


def _validate_all(
    settings: OutputSettings, folders: Sequence[str], options: ValidateOptions
) -> "tuple[list[Report], bool]":
    # validate each folder; returns the reports, and whether eaglectl itself failed
    from eaglectl.api.sources import run_all
    from eaglectl.api.validate import validate
    from eaglectl.judge.judgement import unopened_report

    policy = options.read_policy()
    unopened = partial(unopened_report, fail_on=options.least_severity(policy), policy=policy.origin)
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        reports, crashes = run_all(
            folders,
            partial(validate, options=options, on_progress=bar if len(folders) == 1 else None),
            lambda failure: unopened(failure.source, failure.message),
            on_progress=None if len(folders) == 1 else bar,
            jobs=1,
        )
    for crash in crashes:
        report_fault(crash)
    return reports, bool(crashes)


def _folder(source: str) -> str:
    path = Path(source)
    return str(path.parent) if path.name in FILES_OF_FOLDER and is_regular(path) else source
