"""`eaglectl verify`."""

from typing import Annotated

import typer
from msgspec.structs import replace

from eaglectl.commands.arguments import Json, exit_by, offered, policy_of, print_result
from eaglectl.publish.request import VerifyOptions
from eaglectl.terminal import OutputSettings, ProgressBar

Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="A downloaded or converted checkpoint, or a Hub repository (org/name[@revision]), whose"
        " weights are not downloaded.",
        autocompletion=offered,
    ),
]


def verify_command(
    context: typer.Context, folder: Folder, options: VerifyOptions, json_: Json = False
) -> None:
    """Compare a drafter with its eaglectl.json and SHA256SUMS, file by file.

    The output of `convert` is compared tensor by tensor.
    """
    from eaglectl.commands.verify.run import verify

    options = replace(options, policy=policy_of(options.policy, [folder]))
    settings: OutputSettings = context.obj
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        verification = verify(folder, options, on_progress=bar)
    print_result(settings, verification, is_json=json_)
    exit_by(verification.verdict)
