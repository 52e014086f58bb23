"""`eaglectl diagnose`."""

import typer

from eaglectl.api.options import DiagnoseOptions
from eaglectl.commands.arguments import Json, Page, RunTarget, Source, exit_by, page_file, print_result
from eaglectl.terminal import OutputSettings, ProgressBar


def diagnose_command(
    context: typer.Context,
    source: Source,
    *,
    target: RunTarget = None,
    options: DiagnoseOptions,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Find why acceptance is low: the file, the engine, the target, the prompts or the training."""
    from eaglectl.api.diagnose import diagnose

    settings: OutputSettings = context.obj
    file = page_file(page)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        diagnosis = diagnose(source, target, options, on_progress=bar)
    print_result(settings, diagnosis, is_json=json_, page=file)
    exit_by(diagnosis.verdict)
