"""`eaglectl inspect`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eaglectl.api.options import InspectOptions
from eaglectl.cli.options import JSON_VERSION, Json, Page, offered, show
from eaglectl.options import Option, Options
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, weight files beside their config.json,"
        " or Hub repositories: org/name[@revision].",
        autocompletion=offered,
    ),
]


class ListOptions(Options, frozen=True):
    """What is shown, and how many at once."""

    tensors: Annotated[bool, Option("List the tensors.")] = False
    jobs: Annotated[int, Option("Of several SOURCEs, how many at the same time.", least=1, most=64)] = 8
    json_version: Annotated[int, JSON_VERSION] = 1


def inspect_command(
    context: typer.Context,
    sources: Sources,
    options: InspectOptions,
    listing: ListOptions,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Show what checkpoints are, what they were trained on, and which engines run them as trained.

    Reads headers only. Of several SOURCEs, one that fails does not stop the rest; the exit code is the worst
    of all.
    """
    from eaglectl.api.inspecting import inspect

    named, file = list(dict.fromkeys(sources)), _page_file(page)
    if len(named) > 1:
        _inspect_several(context.obj, named, options, listing, file, is_json=json_)
        return
    inspection = inspect(named[0], options)
    if json_:
        from eaglectl.reports.documents.render import render_json

        emit(render_json(inspection, names=named, version=listing.json_version))
    else:
        from eaglectl.reports.inspection import inspection_outline

        show(context.obj, inspection_outline(inspection, has_tensors=listing.tensors))
    if file:
        from eaglectl.reports.files import write_page
        from eaglectl.reports.pages.render import render_page

        write_page(file, render_page(inspection, names=named, has_tensors=listing.tensors))


def _page_file(page: str | None) -> Path | None:
    if page is None:
        return None
    from eaglectl.reports.files import parse_page

    return parse_page(page)


def _inspect_several(
    settings: OutputSettings,
    sources: list[str],
    options: InspectOptions,
    listing: ListOptions,
    page: Path | None,
    *,
    is_json: bool,
) -> None:
    from eaglectl.api.inspecting import inspect
    from eaglectl.api.options import ValidateOptions
    from eaglectl.api.several import CRASH, inspect_all
    from eaglectl.api.validating import check_options
    from eaglectl.checkpoint.hub_sharing import shared_repositories
    from eaglectl.reports.documents.render import render_json
    from eaglectl.reports.files import write_page
    from eaglectl.reports.inspection import inspections_outline
    from eaglectl.reports.pages.render import render_page
    from eaglectl.results import FailedSource

    with shared_repositories(), ProgressBar(settings, is_on=not settings.quiet) as bar:
        check_options(ValidateOptions(options.target, options.engines))
        look = partial(inspect, options=options)
        results = inspect_all(sources, look, jobs=listing.jobs, on_progress=bar)
    for crash in results.crashes:
        report_fault(crash)
    inspections = list(zip(sources, results.reports, strict=True))
    if is_json:
        emit(render_json(*results.reports, names=sources, version=listing.json_version))
    else:
        show(settings, inspections_outline(inspections, has_tensors=listing.tensors))
    if page:
        write_page(page, render_page(*results.reports, names=sources, has_tensors=listing.tensors))
    codes = [report.exit_code for report in results.reports if isinstance(report, FailedSource)]
    if code := CRASH if results.crashes else max(codes, default=0):
        raise typer.Exit(code)
