"""docs/commands.md: every command with its options, from the command line itself."""

from pathlib import Path
from typing import Any

import typer.main

from eaglectl.cli.app import make_app
from eaglectl.cli.help import GroupedCommand, examples

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Commands

Written by `make docs` from the command line; `eaglectl COMMAND --help` shows the same text. This page is the
contract: what it names stays, or changes in [CHANGELOG.md](../CHANGELOG.md) with a word on what to do.

`-q`, `-v`, `--no-color`, `--offline` and `--json` may stand before the command or behind it. Results go to
stdout; progress, warnings and errors go to stderr. `eaglectl --install-completion` sets up bash (4.4 or
newer), zsh or fish to complete options, checkpoints, rules, engines with their releases, and answers;
`--show-completion` prints the script.

| exit code | meaning |
|---|---|
| 0 | done, and nothing found |
| 1 | findings: a rule failed, drafters differ, the gate or the smoke test did not pass |
| 2 | the command line is wrong, or a question has to be answered first; the message names the option |
| 3 | it could not look: an unreadable file or repository, a missing engine, too few measurements |
| 70 | an error in eaglectl itself |
| 130 | interrupted |
"""


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(make_app(None))
    root.name = "eaglectl"
    parts = [HEAD]
    with root.make_context("eaglectl", [], resilient_parsing=True) as context:
        for name, command in root.commands.items():
            child = type(context)(command, parent=context, info_name=name)
            parts.append(_section(child, command))
            for below, subcommand in getattr(command, "commands", {}).items():
                parts.append(_section(type(context)(subcommand, parent=child, info_name=below), subcommand))
    return "\n".join(parts)


def _section(context: Any, command: Any) -> str:
    lines = [f"## {context.command_path}", "", _prose(command.help or command.callback.__doc__), ""]
    shown = examples(context.command_path, command.name)
    if shown:
        lines += ["```", *shown, "```", ""]
    if isinstance(command, GroupedCommand):
        for title, rows in command.sections(context).items():
            lines += [f"| {title.lower()} | |", "|---|---|"]
            lines += [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows if "--help" not in name]
            lines += [""]
    return "\n".join(lines)


def _prose(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
