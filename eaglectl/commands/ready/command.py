"""`eaglectl ready`."""

from typing import Annotated

import typer

from eaglectl.api.options import ReadyOptions
from eaglectl.commands.arguments import Json, Page, Source, exit_by, offered, page_file, print_result
from eaglectl.terminal import OutputSettings, ProgressBar

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="MODEL",
        help="The target model: a folder, config.json or Hub repository. It is run if its weights are on"
        " this machine. Default: the target that the checkpoint names, if it is on this machine.",
        autocompletion=offered,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--out",
        metavar="DIR",
        help="The folder to keep the conversion in. By default, it is only measured.",
    ),
]


MarkdownFile = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        metavar="FILE.md",
        help="Also write the result as a new Markdown file, for a card or a pull request.",
    ),
]


def ready_command(
    context: typer.Context,
    source: Source,
    *,
    target: Target = None,
    out: Out = None,
    options: ReadyOptions,
    json_: Json = False,
    page: Page = None,
    markdown: MarkdownFile = None,
) -> None:
    """Check if a drafter can be served, convert it if needed, and measure acceptance before and after."""
    from eaglectl.commands.ready.run import readiness_outline, ready
    from eaglectl.files.output_files import parse_new, write_new

    settings: OutputSettings = context.obj
    file, card = page_file(page), parse_new("--markdown", markdown)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        result = ready(source, target, out, options, on_progress=bar)
    outline = readiness_outline(result)
    print_result(settings, result, outline, is_json=json_, page=file)
    if card:
        from eaglectl.report.markdown import markdown as as_markdown

        write_new("--markdown", card, as_markdown(outline) + "\n")
    exit_by(result.verdict)
