"""The application: its common options, and every command in the order of `--help`."""

import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

import eaglectl
from eaglectl.cli.calibrate import calibrate_command
from eaglectl.cli.convert import convert_command
from eaglectl.cli.demo import demo_command
from eaglectl.cli.diff import diff_command
from eaglectl.cli.engines import engines_command
from eaglectl.cli.explain import explain_command
from eaglectl.cli.inspect import inspect_command
from eaglectl.cli.rules import rules_command
from eaglectl.cli.smoke import smoke_command
from eaglectl.cli.upload import upload_command
from eaglectl.cli.validate import validate_command
from eaglectl.cli.verify import verify_command
from eaglectl.terminal import Face

app = typer.Typer(
    name="eaglectl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback()
def common(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print results and errors only; of validate, only what fails.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Never use the network; HF_HUB_OFFLINE=1 does the same.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Inspect, convert, judge, run and publish EAGLE-3 and EAGLE-3.1 drafters, whatever trainer wrote them."""
    context.obj = Face(quiet, verbose, no_color)
    if offline:
        _set_offline(context)
    if version:
        print(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


def _set_offline(context: typer.Context) -> None:
    """Say so where every library and child process looks, for as long as this call lasts."""
    before = {name: os.environ.get(name) for name in OFFLINE}

    def restore() -> None:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)

    context.call_on_close(restore)
    os.environ.update(dict.fromkeys(OFFLINE, "1"))


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
COMMANDS: Mapping[Callable[..., None], str] = {
    inspect_command:   "Say what a drafter is, and which engines run it as trained.",
    convert_command:   "Rewrite a drafter in another layout, or EAGLE-3 as 3.1.",
    calibrate_command: "Collect what `convert --to 3.1` needs of the target's states.",
    validate_command:  "Judge checkpoints by rules and by what engines do.",
    smoke_command:     "Run a drafter against its target: how much is accepted?",
    diff_command:      "Compare two drafters, however they are spelled.",
    upload_command:    "Check, publish in one commit, and verify what landed.",
    verify_command:    "Hold a downloaded folder to its record.",
    explain_command:   "Explain a rule.",
    rules_command:     "List the rules of `validate`.",
    engines_command:   "Show which engine release serves which drafter.",
    demo_command:      "Run the main job on a checkout's fixtures.",
}  # fmt: skip
EPILOG = "Of every command: -q/--quiet, -v/--verbose, --no-color, --offline (see eaglectl --help)."
for command, brief in COMMANDS.items():
    app.command(command.__name__.removesuffix("_command"), short_help=brief, epilog=EPILOG)(command)
