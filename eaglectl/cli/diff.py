"""`eaglectl diff`."""

from typing import Annotated

import typer

from eaglectl.cli.options import AuxConvention, AuxLayers, Json, Page, Semantics, Target, print_json
from eaglectl.terminal import Bar, Face

FORMS = "a checkpoint folder, a weight file beside its config.json, or a Hub repository: org/name[@revision]."
CODES = {"equal": 0, "same-headers": 0, "differs": 1, "could-not-look": 3}


def diff_command(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=f"One drafter: {FORMS}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other, in the same forms.")],
    target: Target = None,
    headers_only: Annotated[
        bool,
        typer.Option("--headers-only", help="Read no tensor data, and download none; values are then not compared."),
    ] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Compare two drafters: what they mean, then their tensors; how they are spelled does not count.

    Exits with 1 where they differ in meaning or in a tensor, with 0 where they are the same drafter, written alike or not, and
    with 3 where that cannot be told. --aux-layers, --aux-convention and --source-semantics answer for the side whose files
    leave the question open.
    """
    from eaglectl import api
    from eaglectl.reports.files import parse_page, write_page

    face: Face = context.obj
    file = parse_page(page)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    with Bar(face, is_on=not (face.quiet or json_)) as bar:
        found = api.diff(a, b, target=target, headers_only=headers_only, answers=answers, told=bar.reading)
    from eaglectl.reports.comparison import comparison, print_comparison

    if json_:
        print_json(comparison(found))
    else:
        face.show(lambda console: print_comparison(console, found, is_whole=face.verbose))
    if file:
        write_page(file, api.render_page(found))
    if code := CODES[found.verdict]:
        raise typer.Exit(code)
