"""`eaglectl validate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from eaglectl.cli.fixing import Fix, FixRequest, Force, Out, fix_one
from eaglectl.cli.options import (
    EXIT_CODES,
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Engines,
    Json,
    NoEngines,
    Page,
    Semantics,
    Target,
)
from eaglectl.errors import UsageError
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault

if TYPE_CHECKING:
    from eaglectl.api import ValidateOptions
    from eaglectl.reports.files import Outputs
    from eaglectl.validation.judge import Report
    from eaglectl.validation.policy import Policy

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, files in them (weights, config.json, the index of the shards), or Hub"
        " repositories: org/name[@revision]. Of those, headers and rows are read by ranges; rules that need"
        " all the weights download them into the Hub client's cache, and with --headers-only none are.",
    ),
]
Select = Annotated[list[str] | None, typer.Option("--select", help="Only these rules: EGL201, a name, EGL2.")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="Not these rules.")]
FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on", help="The least severity that fails: error (the default), warning, note or never."
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="What to ask for beyond the rules; by default the nearest eaglectl.toml, or pyproject.toml with"
        " [tool.eaglectl], from here upwards, and none in a checkpoint or a download.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="On stdout: text (the default), json, junit, sarif, github, gitlab, markdown."
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output", metavar="FORMAT=FILE", help="Write a report to a file too. May be given several times."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        min=1,
        max=64,
        help="Checkpoints judged at the same time; of one, threads that read weights.",
    ),
]
SkipOthers = Annotated[
    bool,
    typer.Option(
        "--skip-others",
        help="Skip folders without a mark of a drafter, as hooks and globs name them: a target, another"
        " tool's config.json. What has a mark and cannot be read is not skipped.",
    ),
]
# files that stand for their folder, as pre-commit hooks are given file names
FILES_OF_FOLDER = ("config.json", "model.safetensors.index.json")
CRASH = 70


def validate_command(
    context: typer.Context,
    sources: Sources,
    target: Target = None,
    engine: Engines = None,
    no_engines: NoEngines = False,
    select: Select = None,
    ignore: Ignore = None,
    fail_on: FailOn = None,
    policy: PolicyFile = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Read no tensor data.")] = False,
    format_: Format = None,
    output: Output = None,
    jobs: Jobs = 1,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    json_: Json = False,
    fix: Fix = False,
    out: Out = None,
    force: Force = False,
    skip_others: SkipOthers = False,
    page: Page = None,
) -> None:
    """Check checkpoints by rules, and by what each engine release does with them."""
    from eaglectl import api
    from eaglectl.reports.ci import outputs
    from eaglectl.reports.files import parse_page

    report_format, files = _report_format(format_, is_json=json_), outputs.parse_outputs(output or ())
    severity, page_file = _severity(fail_on), parse_page(page, files)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    read_policy = api.read_policy(policy, judged=sources)
    options = api.ValidateOptions(
        target, engine or (), select or (), ignore or (), severity, read_policy, headers_only, answers
    )
    if engine and no_engines:
        raise UsageError("--engine and --no-engines contradict each other; leave one of them out")
    options = replace(options, skip_others=skip_others, has_engines=not no_engines)
    api.check_options(options)
    fix_request, folders = FixRequest(fix, out, force), _folders(sources)
    if len(folders) == 1:
        options = replace(options, jobs=jobs)
    fix_request.check(folders, report_format, skip_others=skip_others)
    is_quiet, has_crashed = context.obj.quiet, False
    if fix:
        is_json = report_format == "json"
        reports = [fix_one(context.obj, folders[0], fix_request, options, is_json=is_json)]
    else:
        reports, has_crashed = _validate_all(context.obj, folders, options, read_policy, jobs)
        _show(context.obj, report_format, reports, is_quiet=is_quiet)
    _write(files, page_file, reports)
    if not fix and "github" in (report_format, *(name for name, _ in files)):
        outputs.append_summary(reports)
    _exit(reports, has_crashed=has_crashed)


def _validate_all(
    settings: OutputSettings, folders: Sequence[str], options: "ValidateOptions", policy: "Policy", jobs: int
) -> "tuple[list[Report], bool]":
    """The reports on all folders, and whether eaglectl crashed on one; tracebacks go to stderr."""
    from eaglectl import api
    from eaglectl.api.several import validate_all
    from eaglectl.validation.judge import unopened_report

    unopened = partial(unopened_report, fail_on=options.least_severity(policy), policy=policy.origin)
    is_single = len(folders) == 1
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        validate = partial(api.validate, options=options, on_progress=bar if is_single else None)
        on_progress = None if is_single else bar
        results = validate_all(folders, validate, unopened, jobs=jobs, on_progress=on_progress)
    for crash in results.crashes:
        report_fault(crash)
    return results.reports, bool(results.crashes)


def _exit(reports: "list[Report]", *, has_crashed: bool) -> None:
    from eaglectl.validation.judge import overall_verdict

    code = CRASH if has_crashed else EXIT_CODES[overall_verdict(reports)]
    if code:
        raise typer.Exit(code)


def _show(settings: OutputSettings, name: str, reports: "list[Report]", *, is_quiet: bool) -> None:
    from eaglectl.reports.ci import outputs

    if name != "text":
        emit(outputs.render(name, reports), has_commands=name == "github")
        return
    from eaglectl.reports.terminal.validate import print_reports

    settings.show(lambda console: print_reports(console, reports, is_quiet=is_quiet))


def _write(files: "Outputs", page: Path | None, reports: "list[Report]") -> None:
    """Write the page, then the files of --output: one that cannot be written ends the command."""
    from eaglectl import api
    from eaglectl.reports.ci import outputs
    from eaglectl.reports.files import write_page

    if page:
        write_page(page, api.render_page(*reports))
    outputs.write_outputs(files, reports)


def _folders(sources: list[str]) -> list[str]:
    """The sources without repeats; a file of FILES_OF_FOLDER becomes its folder."""
    return list(dict.fromkeys(_folder(source) for source in sources))


def _folder(source: str) -> str:
    path = Path(source)
    return str(path.parent) if path.name in FILES_OF_FOLDER and path.is_file() else source


def _report_format(text: str | None, *, is_json: bool) -> str:
    from eaglectl.reports.ci.outputs import FORMATS

    name = text or ("json" if is_json else "text")
    if name not in FORMATS:
        raise UsageError(f"--format {text}: one of {', '.join(FORMATS)} was expected")
    if is_json and name != "json":
        raise UsageError(
            f"--json and --format {name} are two formats; write one of them to a file: --output {name}=FILE"
        )
    return name


def _severity(text: str | None) -> Any:
    if text not in (None, "error", "warning", "note", "never"):
        raise UsageError(f"--fail-on {text}: error, warning, note or never was expected")
    return text
