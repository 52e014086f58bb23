"""What a new user types first: --help, --version, a wrong option, the examples; and the commands' page."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer.main

from eaglectl.cli.app import make_app
from eaglectl.cli.commands import COMMANDS, EXITS
from tests.builders import call
from tests.conftest import FIXTURES

# a model runs, or another file is needed
EXAMPLES_THAT_RUN = ("inspect", "validate", "diff", "rules", "engines", "verify")


def all_commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(make_app(None))
    named = dict(root.commands)
    return named | dict(getattr(named["engines"], "commands", {}))


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (("insect", "x"), "Did you mean 'inspect'"),
        (("inspect", "x", "--jsn"), "--json"),
        (("rules", "draft-vocb"), "draft-vocabulary-size"),
        (("convert", "x", "my-target"), "(my-target); pass the target model with --target"),
        (("smoke", "x", "my-target"), "(my-target); pass the target model with --target"),
    ],
)
def test_a_word_that_is_wrong_gets_the_one_that_is_near(arguments: tuple[str, ...], hint: str) -> None:
    done = call(*arguments)
    assert done.code == 2 and hint in done.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the examples run as they are written."""
    root = tmp_path_factory.mktemp("examples")
    shutil.copytree(FIXTURES / "tiny/eagle3", root / "my-drafter")
    shutil.copytree(FIXTURES / "tiny/eagle3", root / "old-drafter")
    shutil.copytree(FIXTURES / "tiny/target", root / "my-target")
    return root


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name in EXAMPLES_THAT_RUN])
def test_the_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for example in COMMANDS[name].examples:
        done = call(name, *shlex.split(example))
        assert done.code in (0, 3) and not re.search(r"Usage|Traceback", done.err), done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_are_parsed_and_fit_a_terminal(name: str) -> None:
    command = all_commands()[name]
    for example in COMMANDS[name].examples:
        assert command.make_context(name, shlex.split(example)).params
    shown = call(name, "--help").out.partition("Examples:\n")[2].splitlines()
    assert shown and all(len(line) <= 80 for line in shown)


# what a command needs beside the option and its source
NEEDED = {"calibrate": ("-o", "x"), "diff": ("my-drafter",), "upload": ("org/name",)}


def test_a_choice_that_help_names_is_a_choice_that_is_taken() -> None:
    closed = [
        (name, max(parameter.opts, key=len), parameter.metavar)
        for name, command in all_commands().items()
        for parameter in command.params
        if "|" in (parameter.metavar or "")
    ]
    assert len(closed) > 12
    for name, option, values in closed:
        done = call(name, "my-drafter", *NEEDED.get(name, ()), option, "nothing")
        assert done.code == 2, (name, option)
        assert all(value in done.err for value in values.split("|")), (name, option, done.err)


@pytest.mark.parametrize("source", ["modelopt/hf-ids", "vllm/native", "speculators/four-aux"])
def test_inspect_gives_the_same_serving_commands_as_text_and_as_json(source: str) -> None:
    place = FIXTURES / "producers" / source
    commands = call("inspect", place, "--json").document["commands"]
    before_tensors = call("inspect", "-v", place).out.partition("\nTensors\n")[0]
    _, *serving = re.split(r"\nServe(?:  .*)?\n", before_tensors)
    shown = [line.split(maxsplit=1) for text in serving for line in text.splitlines()]
    assert shown == [[*item] for item in commands.items()]


def test_convert_ends_with_the_command_that_serves_its_output_with_the_target_given(tmp_path: Path) -> None:
    source, target = FIXTURES / "tiny/eagle3", FIXTURES / "tiny/target"
    done = call("convert", source, "--target", target, "-o", tmp_path / "out")
    assert (
        f"vllm serve {target} --speculative-config" in done.out and f'"model": "{tmp_path}/out"' in done.out
    )
    config = call("convert", source, "--target", target / "config.json", "-o", tmp_path / "two", "--json")
    assert config.document["commands"]["vllm"].startswith(f"vllm serve {target} --speculative-config")
    start = call("convert", source, "--to", "3.1", "--init-only", "-o", tmp_path / "start", "--json")
    assert start.document["commands"] == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_page_of_help_has_few_options_and_says_where_the_others_are(name: str) -> None:
    first, whole = call(name, "--help"), call(name, "--help-all")
    flags = re.compile(r"^  (?:-\w, )?(--[a-z0-9-]+)", re.M)
    shown, every = (set(flags.findall(page.out)) for page in (first, whole))
    options = [each for each in all_commands()[name].params if each.param_type_name == "option"]
    own = {max(each.opts, key=len) for each in options if not each.hidden} - {"--help-all"}
    assert every == own | {"--help"} and len(shown - {"--help"}) <= 12
    assert set(COMMANDS[name].common) <= shown
    assert (f"{len(every - shown)} more options: eaglectl {name} --help-all" in first.out) == (shown != every)


def test_help_says_what_exit_codes_mean_and_the_page_what_a_pipeline_does() -> None:
    shown = " ".join(call("--help").out.split())
    assert all(f" {code} " in shown for code, _, _ in EXITS if code != "130")
    assert [code for code, _, _ in EXITS] == ["0", "1", "2", "3", "70", "130"]
    assert all(
        f"| {' | '.join(row)} |" in (FIXTURES.parent / "docs/commands.md").read_text() for row in EXITS
    )


def test_a_pipeline_tells_an_old_eaglectl_from_a_wrong_call() -> None:
    for engine, code, kind in (("vllm==99", 3, "outdated"), ("vlm", 2, "usage")):
        document = call("validate", "x", "--engine", engine, "--json").document
        assert (document["exit_code"], document["kind"]) == (code, kind)
