"""`eaglectl validate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from eaglectl.api.options import ValidateOptions
from eaglectl.cli.options import JSON_VERSION, Json, Page, exit_by, offered, page_file, show, write_page
from eaglectl.errors import UsageError
from eaglectl.options import Option, Options
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault

if TYPE_CHECKING:
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.validation.judge import Report

REPORTS, REPAIR = "Reports", "Repair"
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, files in them (weights, config.json, the index of the shards), or Hub"
        " repositories: org/name[@revision]. Of those, headers and rows are read by ranges; rules that need"
        " all the weights download them into the Hub client's cache, and with --headers-only none are.",
        autocompletion=offered,
    ),
]
# files that stand for their folder, as pre-commit hooks are given file names
FILES_OF_FOLDER = ("config.json", "model.safetensors.index.json")
CRASH = 70


class ReportOptions(Options, frozen=True):
    """What is written on the checkpoints, and where."""

    format: Annotated[
        str | None,
        Option(
            "On stdout: text (the default), json, junit, sarif, github, gitlab, markdown.",
            value="FORMAT",
            group=REPORTS,
            complete="formats",
        ),
    ] = None
    output: Annotated[
        tuple[str, ...],
        Option(
            "Write a report to a file too. May be given several times.",
            value="FORMAT=FILE",
            group=REPORTS,
            complete="outputs",
        ),
    ] = ()
    json_version: Annotated[int, replace(JSON_VERSION, group=REPORTS)] = 1

    def on_stdout(self, *, is_json: bool) -> str:
        """The format on stdout. Raises UsageError for two."""
        from eaglectl.reports.ci.outputs import FORMATS

        name = self.format or ("json" if is_json else "text")
        if name not in FORMATS:
            raise UsageError(f"--format {name}: one of {', '.join(FORMATS)} was expected")
        if is_json and name != "json":
            raise UsageError(
                f"--json and --format {name} are two formats; write one of them to a file: --output"
                f" {name}=FILE"
            )
        return name


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


def validate_command(
    context: typer.Context,
    sources: Sources,
    options: ValidateOptions,
    reporting: ReportOptions,
    fixing: FixOptions,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Check checkpoints by rules, and by what each engine release does with them."""
    from eaglectl.api.validating import check_options
    from eaglectl.reports.ci import outputs
    from eaglectl.validation.judge import overall_verdict
    from eaglectl.validation.policy_file import read_policy

    shown, files = reporting.on_stdout(is_json=json_), outputs.parse_outputs(reporting.output)
    file, folders = page_file(page, files), list(dict.fromkeys(map(_folder, sources)))
    path = options.policy if isinstance(options.policy, str) else None
    options = replace(options, policy=read_policy(path, judged=sources))
    if options.engines and not options.has_engines:
        raise UsageError("--engine and --no-engines contradict each other; leave one of them out")
    check_options(options)
    fixing.check(folders, shown, skip_others=options.skip_others)
    has_crashed = False
    if fixing.fix:
        version = reporting.json_version if shown == "json" else None
        reports = [_fix_one(context.obj, folders[0], fixing, options, version)]
    else:
        reports, has_crashed = _validate_all(context.obj, folders, options)
        _show(context.obj, shown, reports, reporting.json_version)
    write_page(file, *reports)
    outputs.write_outputs(files, reports, reporting.json_version)
    if not fixing.fix and "github" in (shown, *(name for name, _ in files)):
        outputs.append_summary(reports)
    if has_crashed:
        raise typer.Exit(CRASH)
    exit_by(overall_verdict(reports))


def _validate_all(
    settings: OutputSettings, folders: Sequence[str], options: ValidateOptions
) -> "tuple[list[Report], bool]":
    """The reports on all folders, and whether eaglectl crashed on one; tracebacks go to stderr."""
    from eaglectl.api.several import validate_all
    from eaglectl.api.validating import validate
    from eaglectl.validation.judge import unopened_report

    policy, is_single = options.read_policy(), len(folders) == 1
    unopened = partial(unopened_report, fail_on=options.least_severity(policy), policy=policy.origin)
    one = options if is_single else replace(options, jobs=1)  # else one thread each, and `jobs` of them
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        judge = partial(validate, options=one, on_progress=bar if is_single else None)
        on_progress = None if is_single else bar
        results = validate_all(folders, judge, unopened, jobs=options.jobs, on_progress=on_progress)
    for crash in results.crashes:
        report_fault(crash)
    return results.reports, bool(results.crashes)


def _show(settings: OutputSettings, name: str, reports: "list[Report]", json_version: int) -> None:
    from eaglectl.reports.ci import outputs

    if name != "text":
        emit(outputs.render(name, reports, json_version), has_commands=name == "github")
        return
    from eaglectl.reports.findings import reports_outline

    show(settings, reports_outline(reports, is_quiet=settings.quiet))


def _fix_one(
    settings: OutputSettings,
    source: str,
    request: FixOptions,
    options: ValidateOptions,
    json_version: int | None,
) -> "Report":
    """Fix one checkpoint and print the result, as text or as the JSON document of a version.

    The report is on the output where one was written.
    """
    from eaglectl.api.fixing import fix
    from eaglectl.reports.conversion import plan_outline
    from eaglectl.reports.documents.document import render_json
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


def _folder(source: str) -> str:
    """The source, or the folder of a file of FILES_OF_FOLDER."""
    path = Path(source)
    return str(path.parent) if path.name in FILES_OF_FOLDER and path.is_file() else source
