"""`eaglectl inspect`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from eaglectl.cli.options import (
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Engines,
    Json,
    Page,
    Semantics,
    Target,
    print_json,
)
from eaglectl.terminal import OutputSettings, ProgressBar, report_fault

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, weight files beside their config.json,"
        " or Hub repositories: org/name[@revision].",
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, max=64, help="Of several SOURCEs, how many at the same time.")
]
TOGETHER = 8


def inspect_command(
    context: typer.Context,
    sources: Sources,
    target: Target = None,
    engine: Engines = None,
    json_: Json = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors.")] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    jobs: Jobs = TOGETHER,
    page: Page = None,
) -> None:
    """Show what checkpoints are, what they were trained on, and which engines run them as trained.

    Reads headers only. Of several SOURCEs, one that fails does not stop the rest; the exit code is the worst
    of all.
    """
    from eaglectl import api

    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    look = partial(api.inspect, target=target, engines=engine or (), answers=answers)
    named, file = list(dict.fromkeys(sources)), _page_file(page)
    if len(named) > 1:
        from eaglectl.checkpoint.hub_sharing import shared_repositories

        with shared_repositories():
            api.check_options(api.ValidateOptions(target, engine or ()))
            _several(context.obj, named, look, jobs, file, is_json=json_, has_tensors=tensors)
        return
    found = look(named[0])
    if json_:
        from eaglectl.reports.json.inspect import inspect_document

        print_json(inspect_document(found))
    else:
        from eaglectl.reports.terminal.inspect import print_inspection

        context.obj.show(lambda console: print_inspection(console, found, has_tensors=tensors))
    if file:
        from eaglectl.reports.files import write_page

        write_page(file, api.render_page(found, names=named, has_tensors=tensors))


def _page_file(page: str | None) -> Path | None:
    if page is None:
        return None
    from eaglectl.reports.files import parse_page

    return parse_page(page)


def _several(
    settings: OutputSettings,
    sources: list[str],
    look: Any,
    jobs: int,
    page: Path | None,
    *,
    is_json: bool,
    has_tensors: bool,
) -> None:
    from eaglectl import api
    from eaglectl.api.several import CRASH, inspect_all
    from eaglectl.reports.files import write_page
    from eaglectl.reports.json.inspect import inspections_document
    from eaglectl.reports.terminal.inspect import print_inspections
    from eaglectl.results import FailedSource

    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        done = inspect_all(sources, look, jobs=jobs, on_progress=bar)
    for crash in done.crashes:
        report_fault(crash)
    found = list(zip(sources, done.reports, strict=True))
    if is_json:
        print_json(inspections_document(found))
    else:
        settings.show(lambda console: print_inspections(console, found, has_tensors=has_tensors))
    if page:
        write_page(page, api.render_page(*done.reports, names=sources, has_tensors=has_tensors))
    codes = [report.exit_code for report in done.reports if isinstance(report, FailedSource)]
    code = CRASH if done.crashes else max(codes, default=0)
    if code:
        raise typer.Exit(code)
