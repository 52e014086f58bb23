"""`eaglectl diagnose`."""

import typer

from eaglectl.api.options import DiagnoseOptions
from eaglectl.cli.options import EXIT_CODES, Json, Page, RunTarget, Source, show
from eaglectl.terminal import OutputSettings, ProgressBar, emit


def diagnose_command(
    context: typer.Context,
    source: Source,
    *,
    target: RunTarget = None,
    options: DiagnoseOptions,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Find why a drafter's acceptance is low: the file, the engine, the pair, the prompts or the training."""
    from eaglectl.api.diagnosing import diagnose
    from eaglectl.reports.files import parse_page, write_page

    settings: OutputSettings = context.obj
    file = parse_page(page)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        diagnosis = diagnose(source, target, options, on_progress=bar)
    if json_:
        emit(diagnosis.to_json())
    else:
        from eaglectl.reports.diagnosis import diagnosis_outline

        show(settings, diagnosis_outline(diagnosis))
    if file:
        from eaglectl.reports.pages.render import render_page

        write_page(file, render_page(diagnosis))
    if code := EXIT_CODES[diagnosis.verdict]:
        raise typer.Exit(code)
