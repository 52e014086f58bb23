"""What a command loads before it works: modules, as times differ from machine to machine; and no warnings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eaglectl
from eaglectl.api import inspect as inspecting
from eaglectl.errors import UnreadableError
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY

ROOT = FIXTURES.parent
# what takes as long to load as all of eaglectl, or longer
NAMES = "huggingface_hub jsonschema numpy packaging pydantic safetensors torch transformers yaml"
SLOW = set(NAMES.split())
RUN = """import sys; from eaglectl.cli import run; code = run(sys.argv[1:])
print("\\n".join(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"""


def process(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def modules(*arguments: str | Path) -> set[str]:
    """The modules that a run of the command line has loaded at its end."""
    done = process(RUN, *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


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


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    "module", ["eaglectl.cli", "msgspec", "eaglectl.terminal", "eaglectl.cli.app", "typer", "eaglectl.judge"]
)
def test_an_interruption_while_it_loads_is_one_line(module: str, drafter: Path) -> None:
    done = process(INTERRUPTED, module, "validate", drafter)
    assert (done.returncode, done.stderr) == (130, "eaglectl: interrupted; nothing was left behind\n")


def test_help_loads_the_names_of_the_commands_alone() -> None:
    loaded = modules("--help")
    # files.files, for a working folder that was removed
    names = "files files.files files.scratch cli cli.app cli.commands errors options progress terminal text"
    own = {name.removeprefix("eaglectl.") for name in loaded if name.startswith("eaglectl.")}
    assert own == set(names.split())


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("line", "unloaded"),
    [
        ("--version", {"_hashlib", "secrets"}),  # OpenSSL
        ("--help", {"_hashlib", "secrets", *SLOW}),
        (
            "convert DRAFTER --dry-run",
            {"eaglectl.run.results", "eaglectl.run.gate", "eaglectl.run.installed"},
        ),
        ("inspect DRAFTER", SLOW),
        ("inspect DRAFTER --json", SLOW),
        ("validate DRAFTER --headers-only --fail-on never", SLOW),
        ("convert DRAFTER -o OUT", SLOW - {"numpy"}),  # which reads the vocabulary's map
    ],
)
def test_what_is_slow_to_load_is_loaded_where_it_is_needed(
    line: str, unloaded: set[str], drafter: Path, tmp_path: Path
) -> None:
    places = {"DRAFTER": drafter, "OUT": tmp_path / "out"}
    loaded = modules(*(places.get(word, word) for word in line.split()))
    assert not unloaded & loaded


def test_a_command_loads_no_other_command(drafter: Path) -> None:
    loaded = {name for name in modules("inspect", drafter) if name.startswith("eaglectl.commands.")}
    assert loaded == {
        f"eaglectl.commands.{name}" for name in ("arguments", "completion", "inspect", "inspect.command")
    }


def test_a_value_that_has_to_be_checked_is(drafter: Path, tmp_path: Path) -> None:
    for number in ("0", "-1", "many", "1.5", "", "1_000", "99999999999999999999"):
        given = (drafter, "-o", tmp_path / "new", "--target", drafter, f"--answer-tokens={number}")
        assert call("calibrate", *given).code == 2, number
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
    done = process(PANIC, "validate", drafter)
    assert done.returncode == 3 and len(done.stderr) < 1000
    assert done.stderr.startswith("eaglectl: a library (in Rust) could not process the input: called")
    assert done.stderr.count("\n") == 1


def test_a_panic_of_a_library_is_an_error_of_python_too(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: object) -> None:
        raise type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("called unwrap()")

    monkeypatch.setattr(inspecting, "open_source", panic)
    with pytest.raises(
        UnreadableError, match=r"a library \(in Rust\) could not process the input: called unwrap"
    ):
        eaglectl.inspect(drafter)


def test_a_variable_without_a_name_is_no_fault() -> None:
    """Wine and Cygwin hand on such as `=::=::\\`, which the system takes and Python does not set."""
    command = ["env", "=x=y", sys.executable, "-m", "eaglectl", "--version"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


# what other packages warn of reaches no terminal, unless it is asked for

# as a package does: a warning, a deprecation, and a log by a handler of its own
PLANTED = """
import atexit, logging, sys, warnings

def warn():
    warnings.warn("planted warning", FutureWarning)
    warnings.warn_explicit("planted deprecation", DeprecationWarning, "lib.py", 1, module="lib")
    logging.getLogger("transformers.lib").addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("transformers.lib").warning("planted log")

atexit.register(warn)
"""


def err(folder: Path, *arguments: str, python: tuple[str, ...] = ()) -> str:
    """What a run of the command line in a process of its own writes to stderr."""
    (folder / "sitecustomize.py").write_text(PLANTED)
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONWARNINGS", None)
    command = [sys.executable, *python, "-m", "eaglectl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "arguments", [("rules", "EGL201"), ("validate", str(FIXTURES / "producers/vllm/native"))]
)
def test_no_warning_of_a_package_is_shown(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "planted warning" not in (quiet := err(tmp_path, *arguments)) and "planted dep" not in quiet


@pytest.mark.parametrize(("option", "python"), [(("-v",), ()), ((), ("-W", "default"))], ids=["-v", "-W"])
def test_it_is_shown_where_it_is_asked_for(
    option: tuple[str, ...], python: tuple[str, ...], tmp_path: Path
) -> None:
    shown = err(tmp_path, *option, "rules", "EGL201", python=python)
    assert "planted warning" in shown and "planted deprecation" in shown and "planted log" in shown


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("-v",)], ids=["quiet", "-v"])
def test_a_run_of_the_target_writes_nothing_but_its_own(option: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "prompts.txt").write_text("def a\ndef b\ndef c\ndef d\n")
    given = ("--target", str(TARGET), "--run-in", "reference", "--prompts", str(tmp_path / "prompts.txt"))
    text = err(tmp_path, *option, "smoke", str(TINY / "eagle3"), *given)
    assert ("planted log" in text) == ("planted warning" in text) == bool(option)
    assert option or text == ""
