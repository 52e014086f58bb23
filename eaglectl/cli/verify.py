"""`eaglectl verify`."""

from typing import Annotated

import typer

from eaglectl.cli.options import Json, print_json
from eaglectl.terminal import Bar, Face


def verify_command(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A downloaded checkpoint.")],
    json_: Json = False,
) -> None:
    """Compare a downloaded drafter with its eaglectl.json and SHA256SUMS, file by file."""
    from eaglectl import api
    from eaglectl.reports.upload import print_verification, verification

    face: Face = context.obj
    with Bar(face, is_on=not (face.quiet or json_)) as bar:
        found = api.verify(folder, told=bar.reading)
    if json_:
        print_json(verification(found))
    else:
        face.show(lambda console: print_verification(console, found))
    if not found.is_equal:
        raise typer.Exit(1)
