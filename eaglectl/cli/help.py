"""`--help`: options in groups, with what each takes, and two examples for each command.

One table for each, so that a new option is placed by one line. An option of no group is a usual one, and
comes first.
"""

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand, TyperOption

from eaglectl.cli.defaults import command_defaults

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
COMMON = "Of every command: -q/--quiet, -v/--verbose, --no-color, --offline (see eaglectl --help)."

ANSWERS = "Answers to questions"
ADVANCED = "Advanced"
WRITING = "Writing"
UPGRADE = "EAGLE-3 as 3.1 (with --to 3.1)"
SHARED: Mapping[str, tuple[str, ...]] = {
    ANSWERS: ("--aux-layers", "--aux-convention", "--source-semantics", "--drop"),
}
# by command, then by group, in the order of --help
GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "convert": {
        WRITING: (
            "--dry-run",
            "--force",
            "--force-unserved",
            "--gguf",
            "--link",
            "--max-shard-size",
            "--dtype",
            "--target-name",
        ),
        UPGRADE: (
            "--prompts",
            "--calibration",
            "--init-only",
            "--tolerance",
            "--gate",
            "--fc-norm",
            "--norm-output",
            "--sample",
            "--seed",
            "--ignore-eos",
            "--device",
            "--trust-remote-code",
        ),
        "MLA, pruning and other rewriting": (
            "--attention",
            "--rope-style",
            "--mla-query-lora",
            "--materialize-lm-head",
            "--draft-vocab",
            "--token-counts",
            "--fix-reading",
        ),
    },
    "validate": {
        "Rules": ("--select", "--ignore", "--fail-on", "--policy"),
        "Reports": ("--format", "--output", "--page", "--json"),
        "Repair": ("--fix", "--out", "--force"),
    },
    "smoke": {
        "What must hold": ("--against", "--max-regression", "--min-acceptance-length", "--min-position-0"),
        ADVANCED: (
            "--device",
            "--tensor-parallel-size",
            "--engine-arg",
            "--temperature",
            "--seed",
            "--sample",
            "--ignore-eos",
            "--timeout",
            "--load-only",
            "--trust-remote-code",
        ),
    },
    "calibrate": {
        "A trainer's states": ("--states", "--states-layers"),
        ADVANCED: (
            "--device",
            "--engine",
            "--tensor-parallel-size",
            "--engine-arg",
            "--timeout",
            "--sample",
            "--seed",
            "--ignore-eos",
            "--trust-remote-code",
        ),
    },
    "diagnose": {
        ADVANCED: (
            "--num-speculative-tokens",
            "--sample",
            "--seed",
            "--device",
            "--timeout",
            "--trust-remote-code",
        ),
    },
    "ready": {
        ADVANCED: (
            "--num-speculative-tokens",
            "--max-tokens",
            "--temperature",
            "--sample",
            "--seed",
            "--device",
            "--timeout",
            "--trust-remote-code",
        ),
    },
    "upload": {
        "The commit": ("--pr", "--revision", "--message", "--tag", "--private", "--yes"),
        "The card": ("--license", "--base-model", "--training", "--smoke", "--eval-results"),
        "Evidence": ("--sign", "--signing-certificate", "--certificate-chain", "--ml-bom"),
    },
    "verify": {
        "Signature": (
            "--public-key",
            "--identity",
            "--identity-provider",
            "--certificate-chain",
            "--no-signature",
        ),
        "What must be there": ("--require-signature", "--require-record", "--policy"),
    },
}
# what an option takes: its values where the set is closed, else what they are
VALUES: Mapping[str, str] = {
    "--target": "MODEL",
    "--engine": "ENGINE",
    "--aux-layers": "2,16,29",
    "--aux-convention": "boundary|output",
    "--to": "3|3.1",
    "--for": "LAYOUT",
    "--target-name": "ORG/NAME",
    "--drop": "TENSOR",
    "--dtype": "bfloat16|float16|float32",
    "--max-shard-size": "SIZE",
    "--out": "DIR",
    "--calibration": "DIR",
    "--states": "DIR",
    "--states-layers": "2,4,5",
    "--prompts": "FILE",
    "--token-counts": "FILE",
    "--fc-norm": "refit|calibrated|off",
    "--device": "auto|cuda|cpu",
    "--attention": "mha",
    "--rope-style": "interleaved",
    "--fix-reading": "KEY=VALUE",
    "--select": "RULE",
    "--ignore": "RULE",
    "--fail-on": "error|warning|note|never",
    "--format": "FORMAT",
    "--probe": "sensitivity|drift",
    "--against": "DRAFTER",
    "--revision": "BRANCH",
    "--tag": "TAG",
    "--gguf": "FILE",
    "--like": "PRESET",
}
# how typer writes the types of parameters without a name for their value
KINDS = {" <str>": "", " <list[str]>": "", " <path>": "", "<int>": "N", "<float>": "X", "<int range>": "N"}
# `my-drafter`, `my-target` and `old-drafter` stand for folders
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "ready": ("my-drafter --target my-target", "my-drafter --target my-target --engine vllm -o served"),
    "inspect": ("my-drafter", "my-drafter --target my-target --json"),
    "convert": (
        "my-drafter --target my-target -o served",
        "my-drafter --to 3.1 --target my-target -o upgraded",
    ),
    "calibrate": (
        "my-drafter --target my-target -o statistics",
        "my-drafter --target my-target --sample 100 -o statistics",
    ),
    "validate": (
        "my-drafter --engine 'vllm>=0.22'",
        "my-drafter --target my-target --output sarif=eaglectl.sarif",
    ),
    "smoke": (
        "my-drafter --target my-target --engine reference",
        "my-drafter --target my-target --against old-drafter",
    ),
    "diagnose": (
        "my-drafter --target my-target",
        "my-drafter --target my-target --engine vllm==0.32.0",
    ),
    "diff": ("my-drafter old-drafter", "my-drafter old-drafter --headers-only --json"),
    "upload": ("my-drafter my-org/my-drafter --dry-run", "my-drafter my-org/my-drafter --direct --tag v1"),
    "verify": ("my-drafter", "my-drafter --public-key key.pub --require-signature"),
    "init": ("my-drafter", "my-drafter --target my-target --engine 'vllm>=0.22'"),
    "explain": ("EGL201", "missing-tensor --json"),
    "rules": ("", "--json"),
    "demo": ("",),
    "engines": ("", "--json"),
}


class GroupedCommand(TyperCommand):
    """A command whose `--help` shows its options in the groups of GROUPS, and its EXAMPLES."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            name = next((name for name in parameter.opts if name in VALUES), None)
            if name and parameter.metavar is None:
                parameter.metavar = VALUES[name]

    def _place(self, parameter: Any) -> int:
        """Where the parameter stands in its group; parameters without one keep the order of the function."""
        names = [*GROUPS.get(self.name or "", {}).values(), *SHARED.values()]
        order = [name for group in names for name in group]
        return next((order.index(name) for name in parameter.opts if name in order), -1)

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """By the title of each group: parameters with what they take, and their help."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        sections |= {title: [] for title in (*SHARED, *GROUPS.get(self.name or "", {}))}
        for parameter in sorted(self.get_params(ctx), key=self._place):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                for kind, value in KINDS.items():
                    name = name.replace(kind, value)
                sections[self._title(parameter)].append((name, text))
        return {title: rows for title, rows in sections.items() if rows}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, each group of options, and the examples."""
        for title, rows in self.sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)
        with formatter.section("Examples"):
            for example in examples(ctx.command_path, self.name or ""):
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an argument too many is answered with the option that it may be meant for."""
        try:
            ctx.default_map = command_defaults(self.name or "", self._arguments(ctx, args))
            return super().parse_args(ctx, args)
        except Exception as error:
            message = str(getattr(error, "message", ""))
            if message.startswith("Got unexpected extra argument") and self._has("--target"):
                error.message = f"{message}; the target model is given by --target"  # type: ignore[attr-defined]
            raise

    def _arguments(self, ctx: Any, args: list[str]) -> list[str]:
        """The texts of the command's arguments, which are not options."""
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        texts: list[str] = []
        for parameter in self.params:
            if not isinstance(parameter, TyperOption) and (value := values.get(parameter.name)):
                texts += [value] if isinstance(value, str) else value
        return texts

    def _has(self, name: str) -> bool:
        return any(name in parameter.opts for parameter in self.params)

    def _title(self, parameter: Any) -> str:
        if not isinstance(parameter, TyperOption):
            return "Arguments"
        groups = {**GROUPS.get(self.name or "", {}), **SHARED}
        for title, names in groups.items():
            if set(names) & set(parameter.opts):
                return title
        return "Options"


def examples(path: str, name: str) -> list[str]:
    """Whole command lines of a command, which stands at `path`, like `eaglectl inspect`."""
    return [f"{path} {options}".rstrip() for options in EXAMPLES.get(name, ())]
