"""The commands: the one table of them, in the order of `--help`.

The command NAME is `NAME_command` of eaglectl/commands/NAME/command.py, loaded when it is run.
"""

from collections.abc import Mapping

from msgspec import Struct


class Command(Struct, frozen=True):
    """A command: its line in `--help`, and the arguments of its examples.

    In examples `my-drafter`, `my-target` and `old-drafter` are folders. `common` are the options that
    `--help` shows, in that order; `--help-all` shows the others too. Without any, `--help` shows all.
    """

    summary: str
    examples: tuple[str, ...]
    common: tuple[str, ...] = ()


# exit code, its meaning, and what a pipeline should do
EXITS = (
    ("0", "done, no findings", "continue"),
    (
        "1",
        "findings: a rule failed, drafters differ, or a gate or smoke test did not pass (`inspect` reports"
        " findings and exits 0); or the files are refused, and the message gives the reason",
        "stop",
    ),
    (
        "2",
        "the call is wrong, or a question needs an answer; the message names the option",
        "fix the call; another drafter or release does not help",
    ),
    (
        "3",
        "it could not look: an unreadable file or repository, a missing engine, too few measurements",
        "retry or stop; if the message says `update eaglectl` (`kind` is `outdated` in JSON), this eaglectl"
        " does not know the engine's release",
    ),
    ("70", "an error in eaglectl itself", "report it"),
    ("130", "interrupted", "retry"),
)
EXIT_LINE = (
    "Exit codes: 0 fine, 1 findings (`inspect` reports them and exits 0) or refused files, 2 wrong call or"
    " open question, 3 could not look (or update eaglectl, if the message says so), 70 error in eaglectl."
)

# what users type for a command, as other tools name it
OTHER_NAMES = (
    ("check", "validate"),
    ("lint", "validate"),
    ("test", "smoke"),
    ("run", "smoke"),
    ("bench", "smoke --speed"),
    ("benchmark", "smoke --speed"),
    ("info", "inspect"),
    ("show", "inspect"),
    ("doctor", "diagnose"),
    ("debug", "diagnose"),
    ("compare", "diff"),
    ("export", "convert"),
    ("upgrade", "convert --to 3.1"),
    ("push", "upload"),
    ("publish", "upload"),
    ("serve", "ready"),
    ("demo", "ready"),
    ("version", "--version"),
)


def _flags(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMANDS: Mapping[str, Command] = {
    "ready": Command(
        "Check if a drafter can be served, and how to start the engine.",
        (
            "my-drafter --target my-target",
            "my-drafter --target my-target --engine vllm -o served",
        ),
        _flags(
            "--target --out --engine --run-in --prompts --sample --max-tokens --assume-defaults "
            "--markdown --json --page"
        ),
    ),
    "inspect": Command(
        "Show what a drafter is, and which engines run it as trained.",
        (
            "my-drafter",
            "my-drafter --target my-target --json",
        ),
        _flags(
            "--target --engine --aux-layers --aux-convention --source-semantics "
            "--assume-defaults --json --page"
        ),
    ),
    "convert": Command(
        "Rewrite a drafter in another layout, or EAGLE-3 as 3.1.",
        (
            "my-drafter --target my-target -o served",
            "my-drafter --to 3.1 --target my-target -o upgraded",
        ),
        _flags(
            "--out --for --to --target --engine --prompts --aux-layers --source-semantics "
            "--assume-defaults --dry-run --force --json"
        ),
    ),
    "calibrate": Command(
        "Collect statistics of the target for `convert --to 3.1`.",
        (
            "my-drafter --target my-target -o statistics",
            "my-drafter --target my-target --sample 100 -o statistics",
        ),
        _flags(
            "--out --target --prompts --run-in --answer-tokens --aux-layers "
            "--source-semantics --assume-defaults --force --json"
        ),
    ),
    "validate": Command(
        "Check drafters against rules and engine releases.",
        (
            "my-drafter --engine 'vllm>=0.22'",
            "my-drafter --target my-target --output sarif=eaglectl.sarif",
        ),
        _flags(
            "--target --engine --no-engines --headers-only --select --ignore --fail-on --policy "
            "--format --output --json --page"
        ),
    ),
    "smoke": Command(
        "Run a drafter with its target and measure acceptance.",
        (
            "my-drafter --target my-target --run-in reference",
            "my-drafter --target my-target --against old-drafter",
        ),
        _flags(
            "--target --run-in --num-speculative-tokens --prompts --max-tokens --speed --against "
            "--min-acceptance-length --probe --json --page"
        ),
    ),
    "diagnose": Command(
        "Find why a drafter's acceptance is low.",
        (
            "my-drafter --target my-target",
            "my-drafter --target my-target --engine vllm==0.32.0",
        ),
        _flags(
            "--target --engine --run-in --prompts --max-tokens --temperature --expected "
            "--assume-defaults --json --page"
        ),
    ),
    "diff": Command(
        "Compare two drafters, whatever their layouts.",
        (
            "my-drafter old-drafter",
            "my-drafter old-drafter --headers-only --json",
        ),
    ),
    "upload": Command(
        "Check, publish in one commit, and verify the commit.",
        (
            "my-drafter my-org/my-drafter --dry-run",
            "my-drafter my-org/my-drafter --direct --tag v1",
        ),
        _flags(
            "--dry-run --policy --target --engine --pr --private --tag --yes --smoke --license "
            "--base-model --json"
        ),
    ),
    "verify": Command(
        "Compare a downloaded folder with its record.",
        (
            "my-drafter",
            "my-org/my-drafter@v1 --require-record",
        ),
    ),
    "rules": Command(
        "List the rules of `validate`, or explain one.",
        (
            "",
            "EGL201",
            "missing-tensor --json",
        ),
    ),
    "engines": Command(
        "Show which engine release serves which drafter.",
        (
            "",
            "--json",
        ),
    ),
}
