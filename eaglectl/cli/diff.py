"""`eaglectl diff`."""

from typing import Annotated

import typer

from eaglectl.cli.options import (
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Json,
    Page,
    Semantics,
    Target,
    print_json,
)
from eaglectl.terminal import OutputSettings, ProgressBar
from eaglectl.verdicts import DiffVerdict

FORMS = "a checkpoint folder, a weight file beside its config.json, or a Hub repository: org/name[@revision]."
CODES = {
    DiffVerdict.EQUAL: 0,
    DiffVerdict.SAME_HEADERS: 0,
    DiffVerdict.DIFFERS: 1,
    DiffVerdict.COULD_NOT_LOOK: 3,
}


def diff_command(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=f"One drafter: {FORMS}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other, in the same forms.")],
    target: Target = None,
    headers_only: Annotated[
        bool,
        typer.Option(
            "--headers-only", help="Read no tensor data, and download none; values are then not compared."
        ),
    ] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Compare two drafters: what they mean, then their tensors; how they are spelled does not count.

    Exits with 1 where they differ in meaning or in a tensor, with 0 where they are the same drafter,
    written alike or not, and with 3 where that cannot be told. --aux-layers, --aux-convention and
    --source-semantics answer for the side whose files leave the question open.
    """
    from eaglectl import api
    from eaglectl.reports.files import parse_page, write_page

    settings: OutputSettings = context.obj
    file = parse_page(page)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        comparison = api.diff(a, b, api.DiffOptions(target, headers_only, answers), on_progress=bar)
    from eaglectl.reports.json.diff import diff_document
    from eaglectl.reports.terminal.diff import print_comparison

    if json_:
        print_json(diff_document(comparison))
    else:
        settings.show(lambda console: print_comparison(console, comparison, is_whole=settings.verbose))
    if file:
        write_page(file, api.render_page(comparison))
    if code := CODES[comparison.verdict]:
        raise typer.Exit(code)
