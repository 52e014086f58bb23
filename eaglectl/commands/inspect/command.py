"""`eaglectl inspect`."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.commands.arguments import JSON_VERSION, Json, Page, offered, page_file, show, write_page
from eaglectl.errors import EaglectlError
from eaglectl.operations.options import InspectOptions
from eaglectl.options import Option, Options
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault, say

if TYPE_CHECKING:
    from eaglectl.results import FailedSource, Inspection

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
    of all. In the place of SOURCE may stand a whole `vllm serve` command with --speculative-config: its
    drafter is inspected for its target in vLLM.
    """
    from eaglectl.operations.inspecting import inspect

    named, file = list(dict.fromkeys(sources)), page_file(page)
    results: Sequence[Inspection | FailedSource]
    if len(named) > 1:
        code, results = _inspect_several(context.obj, named, options, listing.jobs)
    else:
        if not json_:
            _list_checkpoints(Path(named[0]))
        code, results = 0, [inspect(named[0], options)]
    if json_:
        from eaglectl.report.documents.document import render_json

        emit(render_json(*results, names=named, version=listing.json_version))
    else:
        from eaglectl.report.outlines import outline

        show(context.obj, outline(results, names=named, has_tensors=listing.tensors))
    write_page(file, *results, names=named, has_tensors=listing.tensors)
    if code:
        raise typer.Exit(code)


def _list_checkpoints(folder: Path) -> None:
    from eaglectl.files.files import is_folder, naming
    from eaglectl.files.layout import folders_with_config, is_checkpoint

    with naming(folder):
        names = folders_with_config(folder) if is_folder(folder) and not is_checkpoint(folder) else ()
        for name in names:
            written = time.localtime((folder / name).stat().st_mtime)
            say(f"{folder / name}  written {time.strftime('%Y-%m-%d %H:%M', written)}")


def _inspect_several(
    settings: OutputSettings, sources: list[str], options: InspectOptions, jobs: int
) -> "tuple[int, Sequence[Inspection | FailedSource]]":
    """The exit code, and the results of the sources; tracebacks go to stderr."""
    from eaglectl.files.hub_cache import shared_repositories
    from eaglectl.operations.inspecting import inspect
    from eaglectl.operations.options import ValidateOptions
    from eaglectl.operations.several import SeveralResults, run_all
    from eaglectl.operations.validating import check_options
    from eaglectl.results import FailedSource

    with shared_repositories(), ProgressBar(settings, is_on=not settings.quiet) as bar:
        check_options(ValidateOptions(options.target, options.engines))
        look = partial(inspect, options=options)
        results: SeveralResults[Inspection | FailedSource] = run_all(
            sources, look, lambda failure: failure, jobs=jobs, on_progress=bar
        )
    for crash in results.crashes:
        report_fault(crash)
    codes = [report.exit_code for report in results.reports if isinstance(report, FailedSource)]
    return EaglectlError.exit_code if results.crashes else max(codes, default=0), results.reports
