"""`eaglectl convert`."""

from typing import Annotated

import typer
from msgspec.structs import replace

from eaglectl.api.options import ConvertOptions, UpgradeOptions
from eaglectl.commands.arguments import Json, Source, print_result, print_trust
from eaglectl.errors import UsageError
from eaglectl.terminal import OutputSettings, ProgressBar
from eaglectl.text import listed
from eaglectl.verdicts import GateEnding

Out = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--out",
        metavar="DIR",
        help="The folder to write. Default: NAME-eagleVERSION in the current folder.",
    ),
]


def convert_command(
    context: typer.Context,
    source: Source,
    *,
    out: Out = None,
    options: ConvertOptions,
    upgrading: UpgradeOptions,
    json_: Json = False,
) -> None:
    """Convert a drafter to another layout.

    Tensors keep their values, except where the plan names a step that changes them.
    """
    from eaglectl.api.convert import convert
    from eaglectl.commands.convert.report import conversion_outline

    settings: OutputSettings = context.obj
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        if options.version == "3.1":
            from eaglectl.api.upgrade import upgrade  # late: it loads what runs targets

            conversion = upgrade(source, out, upgrading, options, on_progress=bar)
        else:
            _check_run(options, upgrading)
            conversion = convert(source, out, options, on_progress=bar)
    if conversion.pickles and not (settings.quiet or json_):
        settings.warn(f"read from pickles ({listed(conversion.pickles, most=3)}) without running code")
    print_result(
        settings,
        conversion,
        conversion_outline(conversion, is_quiet=settings.quiet),
        is_json=json_,
    )
    if not json_:
        print_trust(upgrading.trust_remote_code)
    if conversion.gate is not None and not conversion.gate.is_passed:
        raise typer.Exit(1 if conversion.gate.ending == GateEnding.LOST else 3)
    if conversion.is_missed:
        raise typer.Exit(1)


def _check_run(options: ConvertOptions, upgrading: UpgradeOptions) -> None:
    """Raise UsageError for options of an upgrade or of a run where there is none."""
    of_upgrade = replace(
        UpgradeOptions(),
        prompts=upgrading.prompts,
        sample=upgrading.sample,
        seed=upgrading.seed,
        device=upgrading.device,
        ignore_eos=upgrading.ignore_eos,
        trust_remote_code=upgrading.trust_remote_code,
    )
    if upgrading != of_upgrade:
        raise UsageError(
            "--calibration, --fc-norm, --norm-output, --tolerance, --gate, --top-up and --init-only need"
            " --to 3.1",
            options=("--calibration",),
        )
    if options.measure is None and upgrading != UpgradeOptions():
        raise UsageError(
            "--prompts, --sample, --seed, --ignore-eos, --device and --trust-remote-code are for runs of the"
            " target: for measuring, which --no-measure switches off, and for --to 3.1",
            options=("--prompts",),
        )
