"""What a command loads before it works: a list of modules, as times differ from machine to machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import drafter_folder
from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
# what takes as long to load as all of eaglectl, or longer
SLOW = {
    "huggingface_hub",
    "jsonschema",
    "numpy",
    "packaging",
    "pydantic",
    "safetensors",
    "torch",
    "transformers",
    "yaml",
}
RUN = """import sys; from eaglectl.cli import run; code = run(sys.argv[1:])
print("\\n".join(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"""


def modules(*arguments: str | Path) -> set[str]:
    """The modules that a run of the command line has loaded at its end."""
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def packages(*arguments: str | Path) -> set[str]:
    return {name.partition(".")[0] for name in modules(*arguments)}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafter_folder(tmp_path_factory.mktemp("startup"))


INTERRUPTED = """import os, runpy, signal, sys
awaited = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == awaited:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
runpy.run_module("eaglectl", run_name="__main__")"""


@pytest.mark.parametrize(
    "module", ["eaglectl.cli", "msgspec", "eaglectl.terminal", "eaglectl.cli.app", "typer", "eaglectl.judge"]
)
def test_an_interruption_while_it_loads_is_one_line(module: str, drafter: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module, "validate", str(drafter)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "eaglectl: interrupted; nothing was left behind\n")


def test_help_loads_the_names_of_the_commands_alone() -> None:
    loaded = modules("--help")
    assert {name for name in loaded if name.startswith("eaglectl.")} == {
        "eaglectl.files",
        "eaglectl.files.files",  # a working folder that was removed
        "eaglectl.files.scratch",
        "eaglectl.cli",
        "eaglectl.cli.app",
        "eaglectl.cli.commands",
        "eaglectl.cli.help",
        "eaglectl.errors",
        "eaglectl.options",
        "eaglectl.progress",
        "eaglectl.terminal",
        "eaglectl.text",
    }
    assert not SLOW & {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_reads_no_file_loads_no_openssl(option: str) -> None:
    assert not {"_hashlib", "secrets"} & modules(option)


def test_a_conversion_that_measures_nothing_loads_no_engine() -> None:
    loaded = modules("convert", FIXTURES / "tiny/eagle3", "--dry-run")
    assert not {"eaglectl.run.report", "eaglectl.run.installed"} & loaded


def test_a_command_loads_no_other_command(drafter: Path) -> None:
    loaded = {name for name in modules("inspect", drafter) if name.startswith("eaglectl.commands.")}
    assert loaded == {
        f"eaglectl.commands.{name}" for name in ("arguments", "completion", "inspect", "inspect.command")
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("inspect", "--json"),
        ("inspect", "--jobs", "1"),
        ("validate", "--headers-only", "--fail-on", "never"),
    ],
)
def test_headers_are_read_without_what_is_slow_to_load(drafter: Path, arguments: tuple[str, ...]) -> None:
    assert not SLOW & packages(*arguments[:1], drafter, *arguments[1:])


def test_convert_writes_without_what_is_slow_to_load(drafter: Path, tmp_path: Path) -> None:
    """numpy reads the vocabulary's map."""
    assert SLOW & packages("convert", drafter, "-o", tmp_path / "out") == {"numpy"}
    assert (tmp_path / "out/config.json").is_file()


def test_a_value_that_has_to_be_checked_is(drafter: Path, tmp_path: Path) -> None:
    from tests.builders import call

    for jobs in ("0", "65", "-1", "many", "1.5", "", "1_000", "99999999999"):
        assert call("inspect", drafter, f"--jobs={jobs}").code == 2, jobs
    for jobs in ("1", "64", "007"):
        assert call("inspect", drafter, f"--jobs={jobs}").code == 0, jobs
    assert call("inspect").code == 2
    (tmp_path / "out").mkdir()
    assert call("convert", drafter, "-o", tmp_path / "out").code == 2


PANIC = """import sys
from eaglectl import cli
PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
def panic(*_):
    raise PanicException("called `Result::unwrap()` on an `Err` value: " + "x" * 5000)
cli._command = panic
sys.exit(cli.run(sys.argv[1:]))"""


def test_a_panic_of_a_library_is_one_line(drafter: Path) -> None:
    command = [sys.executable, "-c", PANIC, "validate", str(drafter)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3 and len(done.stderr) < 1000
    assert done.stderr.startswith("eaglectl: a library (in Rust) gave up on the input: called")
    assert done.stderr.count("\n") == 1


def test_a_panic_of_a_library_is_an_error_of_python_too(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import eaglectl
    from eaglectl.errors import UnreadableError
    from eaglectl.operations import inspecting

    def panic(*_: object) -> None:
        raise type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("called unwrap()")

    monkeypatch.setattr(inspecting, "open_source", panic)
    with pytest.raises(UnreadableError, match=r"a library \(in Rust\) gave up on the input: called unwrap"):
        eaglectl.inspect(drafter)
