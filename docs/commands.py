"""docs/commands.md: every command with its options, from the command line itself."""

from pathlib import Path
from typing import Any

import typer.main

from eaglectl.cli.app import GroupedCommand, examples, make_app
from eaglectl.cli.commands import EXITS

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Commands

Written by `make docs` from the command line; `eaglectl COMMAND --help` shows the same text. This page is the
stable interface: [CHANGELOG.md](../CHANGELOG.md) lists each change of it, with the steps to take.

`-q`, `-v`, `--no-color`, `--offline` and `--json` can be before or after the command. Results go to stdout;
progress, warnings and errors go to stderr. The output of every command begins with `pass`, `fail`, `could not
look`, `skipped`, `planned` (nothing was written or uploaded), `proposed` (a pull request) or `done`.
`eaglectl --show-completion bash` (or zsh, fish) prints a script that completes options, rules, engines with
their releases, and answers; its first line says where to save it.

| exit code | meaning | what a pipeline should do |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(make_app(None))
    root.name = "eaglectl"
    parts = [HEAD + "".join(f"| {' | '.join(row)} |\n" for row in EXITS)]
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
