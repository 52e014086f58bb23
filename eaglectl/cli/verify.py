"""`eaglectl verify`."""

from typing import Annotated

import typer

from eaglectl.cli.options import Json, print_json
from eaglectl.terminal import Bar, Face


def verify_command(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A downloaded checkpoint.")],
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="FILE", help="Who must have signed: the holder of this key.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="NAME", help="Who must have signed, by Sigstore.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--identity-provider", metavar="URL", help="Who knows that identity.")
    ] = None,
    no_signature: Annotated[bool, typer.Option("--no-signature", help="Leave model.sig unlooked at.")] = False,
    json_: Json = False,
) -> None:
    """Compare a downloaded drafter with its eaglectl.json, SHA256SUMS and model.sig, file by file."""
    from eaglectl import api
    from eaglectl.reports.upload import print_verification, verification

    face: Face = context.obj
    with Bar(face, is_on=not face.quiet) as bar:
        found = api.verify(
            folder,
            signer=api.Signer(public_key, identity, provider),
            is_signature_ignored=no_signature,
            told=bar.hashing,
        )
    if json_:
        print_json(verification(found))
    else:
        face.show(lambda console: print_verification(console, found))
    if found.verdict != "equal":
        raise typer.Exit(1 if found.verdict == "differs" else 3)
