"""`eaglectl verify`."""

from typing import Annotated

import typer

from eaglectl.cli.options import Json, print_json
from eaglectl.terminal import OutputSettings, ProgressBar
from eaglectl.verdicts import VerifyVerdict


def verify_command(
    context: typer.Context,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A checkpoint that was downloaded or converted, or a Hub repository (org/name[@revision]),"
            " whose weights are not downloaded.",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="REPO", help="Compare DIR with what the Hub lists: org/name[@revision]."
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option("--public-key", metavar="FILE", help="Who must have signed: the holder of this key."),
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="NAME", help="Who must have signed, by Sigstore.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--identity-provider", metavar="URL", help="Who knows that identity.")
    ] = None,
    certificate_chain: Annotated[
        str | None,
        typer.Option(
            "--certificate-chain",
            metavar="FILE",
            help="Who must have signed: the holder of a certificate under a root in this file.",
        ),
    ] = None,
    no_signature: Annotated[
        bool, typer.Option("--no-signature", help="Leave model.sig unlooked at.")
    ] = False,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="A download without model.sig differs.")
    ] = False,
    require_record: Annotated[
        bool, typer.Option("--require-record", help="A download without the list in eaglectl.json differs.")
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Its [verify] says who must have signed; by default the nearest eaglectl.toml"
            " outside of DIR.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare a drafter with its eaglectl.json, SHA256SUMS and model.sig, file by file.

    What `convert` wrote is compared tensor by tensor.
    """
    from eaglectl import api
    from eaglectl.reports.json.verify import verify_document
    from eaglectl.reports.terminal.verify import print_verification

    options = api.VerifyOptions(
        api.Signer(public_key, identity, provider, certificate_chain),
        is_signature_ignored=no_signature,
        needs_signature=require_signature,
        needs_record=require_record,
        policy=api.read_policy(policy, judged=[folder]),
        against=against,
    )
    settings: OutputSettings = context.obj
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        done = api.verify(
            folder,
            options,
            on_progress=bar,
        )
    if json_:
        print_json(verify_document(done))
    else:
        settings.show(lambda console: print_verification(console, done))
    if done.verdict != VerifyVerdict.EQUAL:
        raise typer.Exit(1 if done.verdict == VerifyVerdict.DIFFERS else 3)
