"""docs/configuration.md: every key of eaglectl.toml, from its declaration."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from eaglectl.judge.policy_keys import KEYS, Key

PAGE = Path(__file__).with_name("configuration.md")
HEAD = """# eaglectl.toml

Written by `make docs` from `eaglectl/judge/policy_keys.py`.

A file `eaglectl.toml`, or `[tool.eaglectl]` of a `pyproject.toml`, holds what a folder requires of its
checkpoints, and what commands take where their command line says nothing. The nearest one from the current
folder upwards is read, and none that lies in or below a checkpoint or a download: what is judged does not
carry its judge. `--policy FILE` of `validate`, `upload` and `verify` names another.

## To begin with

`eaglectl inspect my-drafter` asks what the files leave open, each question with the values that answer
it. The answers, for every command in this folder and below:

```toml
engines = ["vllm>=0.22", "sglang"]

[defaults]
target = "my-target"
aux-layers = [2, 16, 29]
source-semantics = { modelopt = "pre-689" }
```

The command line wins over the file. A target from the file is told on stderr, with `-q` too; the other
defaults with `-v`. An error names the line: `eaglectl.toml:3: defaults.taget is no key of a policy; did you
mean target?`

Editors complete and check it by [its schema](../schemas/eaglectl.toml.schema.json), and `[tool.eaglectl]`
by [that of pyproject.toml](../schemas/pyproject.toml.schema.json): for Taplo, the first line of the file is
`#:schema schemas/eaglectl.toml.schema.json`, with the path to a checkout.
"""


def page() -> str:
    """The whole page."""
    single = {name: key for name, key in KEYS.items() if not key.keys}
    parts = [HEAD, "## At the top level\n", *_rows(single)]
    for name, key in KEYS.items():
        if key.keys:
            title = f"`[[{name}]]`" if key.kind == "tables" else f"`[{name}]`"
            parts += [f"\n## {title}\n", f"{key.help}\n", *_rows(key.keys)]
    return "\n".join([*parts, "\n## An example\n", "```toml", example().rstrip(), "```", ""])


def _rows(keys: Mapping[str, Key]) -> Iterator[str]:
    yield from ("| key | value | example | |", "|---|---|---|---|")
    for name, key in keys.items():
        cells = (f"`{name}`", _kind(key), f"`{key.example}`" if key.example else "", key.help)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _kind(key: Key) -> str:
    if key.each is not None:
        return f"a table of {key.each.expected.removeprefix('a ')}" + "s" * (key.each.kind == "text")
    return key.expected.partition(", as ")[0] + (", needed" if key.is_needed else "")


def example() -> str:
    """A file with the example of every key that has one."""
    lines = [f"{name} = {key.example}" for name, key in KEYS.items() if key.example]
    for name, key in KEYS.items():
        inner = {below: one for below, one in key.keys.items() if one.example}
        if inner:
            lines += ["", f"[[{name}]]" if key.kind == "tables" else f"[{name}]"]
            lines += [f"{below} = {one.example}" for below, one in inner.items()]
    return "\n".join([*lines, ""])
