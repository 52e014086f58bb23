"""`eaglectl diff`."""

from typing import Annotated

import typer

from eaglectl.api.options import DiffOptions
from eaglectl.commands.arguments import Json, Page, exit_by, offered, page_file, print_result
from eaglectl.terminal import OutputSettings, ProgressBar

FORMS = "a checkpoint folder, a weight file beside its config.json, or a Hub repository: org/name[@revision]."
A = Annotated[str, typer.Argument(metavar="A", help=f"One drafter: {FORMS}", autocompletion=offered)]
B = Annotated[str, typer.Argument(metavar="B", help="The other, in the same forms.", autocompletion=offered)]


def diff_command(
    context: typer.Context, a: A, b: B, options: DiffOptions, json_: Json = False, page: Page = None
) -> None:
    """Compare two drafters: what they mean, then their tensors; how they are spelled does not count.

    Exits with 1 where they differ in meaning or in a tensor, with 0 where they are the same drafter,
    written alike or not, and with 3 where that cannot be told. --aux-layers, --aux-convention and
    --source-semantics answer for the side whose files leave the question open.
    """
    from eaglectl.api.diff import diff
    from eaglectl.report.differences import comparison_outline

    settings: OutputSettings = context.obj
    file = page_file(page)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        comparison = diff(a, b, options, on_progress=bar)
    shown = comparison_outline(comparison, is_whole=settings.verbose)
    print_result(settings, comparison, shown, is_json=json_, page=file)
    exit_by(comparison.verdict)
