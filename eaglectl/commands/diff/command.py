"""`eaglectl diff`."""

from typing import Annotated

import typer

from eaglectl.api.options import DiffOptions
from eaglectl.commands.arguments import Json, Page, exit_by, offered, page_file, print_result
from eaglectl.terminal import OutputSettings, ProgressBar

FORMS = (
    "a checkpoint folder, a weight file next to its config.json, or a Hub repository: org/name[@revision]."
)
A = Annotated[str, typer.Argument(metavar="A", help=f"One drafter: {FORMS}", autocompletion=offered)]
B = Annotated[
    str, typer.Argument(metavar="B", help="The other drafter, in the same forms.", autocompletion=offered)
]


def diff_command(
    context: typer.Context, a: A, b: B, options: DiffOptions, json_: Json = False, page: Page = None
) -> None:
    """Compare two drafters: their networks, then their tensors. Layout and spelling do not count.

    Exit code 0: the same drafter, in the same layout or in two. 1: the networks or a tensor differ. 3: it
    could not be determined. --aux-layers, --aux-convention and --source-semantics apply to the drafter whose
    files leave the question open.
    """
    from eaglectl.api.diff import diff
    from eaglectl.report.differences import comparison_outline

    settings: OutputSettings = context.obj
    file = page_file(page)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        comparison = diff(a, b, options, on_progress=bar)
    outline = comparison_outline(comparison, is_whole=settings.verbose)
    print_result(settings, comparison, outline, is_json=json_, page=file)
    exit_by(comparison.verdict)
