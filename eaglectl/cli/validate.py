"""`eaglectl validate`."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglectl.cli.fixing import Asked, Fix, Force, Out, fix_one
from eaglectl.cli.options import AuxConvention, AuxLayers, Engines, Json, Page, Semantics, Target
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face, emit

if TYPE_CHECKING:
    from eaglectl.reports.files import Outputs
    from eaglectl.validation.judging import Report

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, files in them (weights, config.json, the index of the shards), or Hub repositories:"
        " org/name[@revision]. Of those, headers and rows are read from where they are; rules that need all the weights"
        " download them into the Hub client's cache, and --headers-only asks for none.",
    ),
]
Select = Annotated[list[str] | None, typer.Option("--select", help="Only these rules: EGL201, a name, EGL2.")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="Not these rules.")]
FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", help="The least severity that fails: error (the default), warning, note or never."),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="What to ask for beyond the rules; by default the nearest eaglectl.toml, or pyproject.toml with"
        " [tool.eaglectl], from here upwards.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="On stdout: text (the default), json, junit, sarif, github, gitlab, markdown."),
]
Output = Annotated[
    list[str] | None,
    typer.Option("--output", metavar="FORMAT=FILE", help="Write a report to a file too. May be given several times."),
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Checkpoints judged at the same time.")]
# what a hook that is given files by their names may hand over in place of the folder
STAND_FOR_FOLDER = ("config.json", "model.safetensors.index.json")
CODES = {"pass": 0, "fail": 1, "could-not-look": 3}
CRASH = 70


def validate_command(
    context: typer.Context,
    sources: Sources,
    target: Target = None,
    engine: Engines = None,
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
    json_: Json = False,
    fix: Fix = False,
    out: Out = None,
    force: Force = False,
    page: Page = None,
) -> None:
    """Judge checkpoints by rules, and by what each engine release does with them."""
    from eaglectl import api
    from eaglectl.api.several import validate_all
    from eaglectl.reports import outputs
    from eaglectl.reports.files import parse_page
    from eaglectl.validation.judging import merged, unopened

    name, files, least = _format(format_, is_json=json_), outputs.parse_outputs(output or ()), _severity(fail_on)
    asked_page = parse_page(page, files)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    options: dict[str, Any] = {
        "target": target, "engines": engine or (), "select": select or (), "ignore": ignore or (),
    }  # fmt: skip
    options["policy"] = asked = api.read_policy(policy)
    api.check_options(**options)
    least = least or asked.fail_on
    judge = partial(api.validate, **options, fail_on=least, headers_only=headers_only, answers=answers)
    blind = partial(unopened, fail_on=None if least == "never" else least or "error", policy=asked.origin)
    folders, is_quiet = _folders(sources), context.obj.quiet
    fixing = Asked(fix, out, force)
    fixing.check(folders, name)
    if fix:
        options |= {"fail_on": least, "headers_only": headers_only, "answers": answers}
        report = fix_one(context.obj, folders[0], fixing, options, is_json=name == "json", is_quiet=is_quiet)
        _write(files, asked_page, [report])
        if CODES[report.verdict]:
            raise typer.Exit(CODES[report.verdict])
        return
    is_one = len(folders) == 1
    with Bar(context.obj, is_on=not is_quiet) as bar:
        judge = partial(judge, told=bar.reading if is_one else None)
        done = validate_all(folders, judge, blind, jobs=jobs, told=None if is_one else bar.checkpoints)
    for crash in done.crashes:
        print(f"{crash}eaglectl: this is a fault of eaglectl; please report it with the lines above", file=sys.stderr)
    _show(context.obj, name, done.reports, is_quiet=is_quiet)
    _write(files, asked_page, done.reports)
    if "github" in (name, *(file for file, _ in files)):
        outputs.append_summary(done.reports)
    code = CRASH if done.crashes else CODES[merged(done.reports)]
    if code:
        raise typer.Exit(code)


def _show(face: Face, name: str, reports: "list[Report]", *, is_quiet: bool) -> None:
    from eaglectl.reports import outputs

    if name != "text":
        emit(outputs.render(name, reports))
        return
    from eaglectl.reports.validation import print_reports

    face.show(lambda console: print_reports(console, reports, is_quiet=is_quiet))


def _write(files: "Outputs", page: Path | None, reports: "list[Report]") -> None:
    """The page first: files of --output that cannot be written end the call."""
    from eaglectl import api
    from eaglectl.reports import outputs
    from eaglectl.reports.files import write_page

    if page:
        write_page(page, api.render_page(*reports))
    outputs.write_outputs(files, reports)


def _folders(sources: list[str]) -> list[str]:
    """The sources, each folder once where files stand for it."""
    paths = [Path(source) for source in sources]
    stands = [path.name in STAND_FOR_FOLDER and path.is_file() for path in paths]
    named = [
        str(path.parent) if is_file else source for source, path, is_file in zip(sources, paths, stands, strict=True)
    ]
    return list(dict.fromkeys(named))


def _format(text: str | None, *, is_json: bool) -> str:
    from eaglectl.reports.outputs import FORMATS

    name = text or ("json" if is_json else "text")
    if name not in FORMATS:
        raise Usage(f"--format {text}: one of {', '.join(FORMATS)} was expected")
    if is_json and name != "json":
        raise Usage(f"--json and --format {name} are two formats; write one of them to a file: --output {name}=FILE")
    return name


def _severity(text: str | None) -> Any:
    if text not in (None, "error", "warning", "note", "never"):
        raise Usage(f"--fail-on {text}: error, warning, note or never was expected")
    return text
