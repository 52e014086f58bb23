"""`eaglectl inspect`."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.api.options import InspectOptions, ValidateOptions
from eaglectl.commands.arguments import Json, Page, offered, page_file, show, write_page
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files.source import FolderSource, shared_repositories
from eaglectl.shell import as_path, join
from eaglectl.terminal import OutputSettings, ProgressBar, emit, report_fault, say
from eaglectl.text import listed

if TYPE_CHECKING:
    from eaglectl.results import FailedSource, Inspection

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Checkpoint folders, weight files next to their config.json, or Hub repositories:"
        " org/name[@revision][:folder].",
        autocompletion=offered,
    ),
]


def inspect_command(
    context: typer.Context, sources: Sources, options: InspectOptions, json_: Json = False, page: Page = None
) -> None:
    """Show what each checkpoint is, the layers it was trained on, and the engines that run it as trained.

    Reads headers only; -v lists the tensors. If one of several SOURCEs fails, the others still run; the exit
    code is the worst of all.
    """
    from eaglectl.api.inspect import inspect

    named, file = list(dict.fromkeys(sources)), page_file(page)
    results: Sequence[Inspection | FailedSource]
    if len(named) > 1:
        code, results = _inspect_several(context.obj, named, options)
    else:
        if not json_ and named[0]:  # an empty name is no folder
            _list_checkpoints(Path(named[0]))
        code, results = 0, [inspect(named[0], options)]
    if json_:
        from eaglectl.report.documents import render_json

        emit(render_json(*results))
    else:
        from eaglectl.report.documents import outline

        show(context.obj, outline(results))
    write_page(file, *results)
    if code:
        raise typer.Exit(code)


def _list_checkpoints(folder: Path) -> None:
    """List the drafters below a folder that is no checkpoint. Raises UnreadableError with the newest."""
    from eaglectl.files.files import errors_about, is_folder
    from eaglectl.files.layout import checkpoints_below, is_checkpoint
    from eaglectl.formats.other_drafters import why_other

    with errors_about(folder):
        is_run = is_folder(folder) and not is_checkpoint(folder)
        names = checkpoints_below(FolderSource(folder)) if is_run else ()
        others = [name for name in names if why_other(FolderSource(folder / name))]
        drafters = [str(folder / name) for name in names if name not in others]
        for path in drafters:
            written = time.localtime(Path(path).stat().st_mtime)
            say(f"{path}  written {time.strftime('%Y-%m-%d %H:%M', written)}")
    if others:
        say(f"not drafters: {listed(others)}")
    if drafters:
        newest = join(["eaglectl", "inspect", as_path(drafters[0])])
        raise UnreadableError(f"{folder} is not a checkpoint; the newest in it: `{newest}`")


def _inspect_several(
    settings: OutputSettings, sources: list[str], options: InspectOptions
) -> "tuple[int, Sequence[Inspection | FailedSource]]":
    # inspect each source; a failed one is part of the result, and the worst failure decides the exit code
    from eaglectl.api.inspect import inspect
    from eaglectl.api.sources import run_all
    from eaglectl.api.validate import check_options
    from eaglectl.results import FailedSource

    with shared_repositories(), ProgressBar(settings, is_on=not settings.quiet) as bar:
        check_options(ValidateOptions(options.target, options.engines))
        look = partial(inspect, options=options)
        reports, crashes = run_all(sources, look, lambda failure: failure, on_progress=bar)
    for crash in crashes:
        report_fault(crash)
    codes = [report.exit_code for report in reports if isinstance(report, FailedSource)]
    return EaglectlError.exit_code if crashes else max(codes, default=0), reports
