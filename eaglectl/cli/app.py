"""The application: its common options, and its commands in the order of `--help`."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

import eaglectl
from eaglectl.cli.calibrate import calibrate_command
from eaglectl.cli.convert import convert_command
from eaglectl.cli.defaults import command_defaults
from eaglectl.cli.demo import demo_command
from eaglectl.cli.diagnose import diagnose_command
from eaglectl.cli.diff import diff_command
from eaglectl.cli.engines import engines_app
from eaglectl.cli.explain import explain_command
from eaglectl.cli.help import COMMON, HELP_OPTIONS, GroupedCommand
from eaglectl.cli.init import init_command
from eaglectl.cli.inspect import inspect_command
from eaglectl.cli.plain_values import hand_on_plain_values
from eaglectl.cli.rules import rules_command
from eaglectl.cli.smoke import smoke_command
from eaglectl.cli.upload import upload_command
from eaglectl.cli.validate import validate_command
from eaglectl.cli.verify import verify_command
from eaglectl.progress import set_notices
from eaglectl.terminal import OutputSettings, say

# what the Hub's client, transformers and child processes read
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
COMMANDS: Mapping[Callable[..., None], str] = {
    inspect_command: "Show what a drafter is, and which engines run it as trained.",
    convert_command: "Rewrite a drafter in another layout, or EAGLE-3 as 3.1.",
    calibrate_command: "Collect statistics of the target for `convert --to 3.1`.",
    validate_command: "Check drafters by rules and by engine release.",
    smoke_command: "Run a drafter with its target and measure acceptance.",
    diagnose_command: "Find why a drafter's acceptance is low.",
    diff_command: "Compare two drafters, whatever their layouts.",
    upload_command: "Check, publish in one commit, and verify the commit.",
    verify_command: "Compare a downloaded folder with its record.",
    explain_command: "Explain a rule.",
    rules_command: "List the rules of `validate`.",
    init_command: "Write an eaglectl.toml with answers and defaults.",
    demo_command: "Run the main commands on the fixtures of a checkout.",
}

app = typer.Typer(
    name="eaglectl",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print results and errors only; of validate, only what fails."),
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Never use the network; HF_HUB_OFFLINE=1 does the same.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Inspect, convert, validate, run and publish EAGLE-3 and EAGLE-3.1 drafters from any trainer."""
    context.obj = OutputSettings(quiet, verbose, no_color)
    set_notices(None if quiet else lambda text: say(f"eaglectl: {text}", sys.stderr))
    if offline:
        _set_offline(context)
    context.default_map = dict(command_defaults(context.invoked_subcommand, is_quiet=quiet))


def _set_offline(context: typer.Context) -> None:
    """Set the environment variables of offline mode until the command ends."""
    before = {name: os.environ.get(name) for name in OFFLINE_VARIABLES}

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    context.call_on_close(restore)
    os.environ.update(dict.fromkeys(OFFLINE_VARIABLES, "1"))


hand_on_plain_values()
for command, summary in COMMANDS.items():
    app.command(
        command.__name__.removesuffix("_command"), cls=GroupedCommand, short_help=summary, epilog=COMMON
    )(command)
app.add_typer(
    engines_app, name="engines", short_help="Show which engine release serves which drafter.", epilog=COMMON
)
