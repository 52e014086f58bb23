"""Memory, threads, open files and sizes of files that the system does not give: exit 3 in a line that names
the limit; and Python without docstrings.
"""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglectl.errors import NO_FILES, NO_MEMORY, NO_THREADS, input_error
from eaglectl.judge.rule import rules
from tests.builders import Outcome, drafter_folder
from tests.conftest import FIXTURES
from tests.tiny import PROMPTS, TARGET, TINY

DRAFTER = FIXTURES / "producers/specforge/gqa-ids"
READY = f"ready {DRAFTER} --target {FIXTURES / 'target'} -o OUT/ready"
SMOKE = (
    f"smoke {TINY / 'eagle3'} --target {TARGET} --device cpu --prompts {PROMPTS} --sample 2 --max-tokens 4"
)
# of each the exit code without a limit
COMMANDS = {
    f"validate {DRAFTER}": 3,
    f"inspect {DRAFTER}": 0,
    f"diff {DRAFTER} {DRAFTER}": 0,
    f"validate {FIXTURES / 'producers/eagle/bin'}": 1,
    f"convert {DRAFTER} -o OUT/out --aux-convention boundary": 0,
    f"upload {DRAFTER} org/name --dry-run --aux-convention boundary": 1,
    f"verify {DRAFTER}": 3,
    READY: 0,
    SMOKE: 0,
    "rules": 0,
    "engines": 0,
    "--help": 0,
}


def run(words: str, folder: Path, limit: Callable[[], None] | None = None, **environment: str) -> Outcome:
    """A command in a process of its own, as a user runs it."""
    known = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "eaglectl", *words.replace("OUT", str(folder)).split()]
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, env={**known, **environment}
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def limited(kind: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (most, most))


def names_the_limit(outcome: Outcome, most: str) -> bool:
    """Whether an answer is that of the limit: could not look, and the limit is named."""
    return outcome.code == 3 and most in " ".join((outcome.out + outcome.err).split())


@pytest.mark.fast(2)
@pytest.mark.parametrize("size", [120, 60, 80, 100, 140, 160, 180, 200, 220, 240, 280, 400])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split()[0])
def test_memory_that_does_not_suffice_is_could_not_look(words: str, size: int, tmp_path: Path) -> None:
    done = run(words, tmp_path, limited(resource.RLIMIT_AS, size << 20))
    assert done.code == COMMANDS[words] or names_the_limit(done, "ulimit -v"), done.err[-600:]
    assert "Traceback" not in done.err


@pytest.mark.fast(2)
@pytest.mark.parametrize("size", [30, 60, 100, 120, 240])
@pytest.mark.parametrize("words", [*COMMANDS][3::-1], ids=lambda words: words.split()[0])
def test_memory_of_its_own_that_does_not_suffice_is_could_not_look(
    words: str, size: int, tmp_path: Path
) -> None:
    done = run(words, tmp_path, limited(resource.RLIMIT_DATA, size << 20))
    assert done.code == COMMANDS[words] or names_the_limit(done, NO_MEMORY), done.err[-600:]
    assert "OpenBLAS" not in done.err


@pytest.mark.fast(2)
@pytest.mark.parametrize("most", [5, 6, 7, 8, 9, 10, 12])  # with 4, Python itself may not start
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split()[0])
def test_open_files_that_do_not_suffice_are_could_not_look(words: str, most: int, tmp_path: Path) -> None:
    done = run(words, tmp_path, limited(resource.RLIMIT_NOFILE, most))
    assert done.code == COMMANDS[words] or names_the_limit(done, "oo many open files"), done.err[-600:]
    assert "Traceback" not in done.err


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", [resource.RLIMIT_FSIZE, resource.RLIMIT_STACK])
def test_other_limits_end_in_the_usual_answer(kind: int, tmp_path: Path) -> None:
    done = run(f"validate {drafter_folder(tmp_path)}", tmp_path, limited(kind, 256 << 10))
    assert done.code == 0, done.err[-600:]


# no thread can be started: OpenBLAS would end the process by a signal of its own
NO_THREAD = """
import sys, threading
def refused(*_):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = refused
sys.argv[0] = "eaglectl"
from eaglectl.__main__ import main
import atexit, os
atexit.register(lambda: print(os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.stderr))
main()
"""


def test_without_threads_openblas_takes_one_and_the_answer_names_the_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_THREAD, "validate", str(drafter_folder(tmp_path))]
    environment = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    threads = "1" if (os.cpu_count() or 1) > 1 else "None"
    assert (done.returncode, done.stderr.splitlines()) == (3, [threads]), done.stderr
    assert NO_THREADS in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(24, "Too many open files"), NO_FILES),
        (OSError(12, "Cannot allocate memory"), NO_MEMORY),
        (OSError(11, "Resource temporarily unavailable"), NO_THREADS),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device; make room"),
        (OSError(27, "File too large"), "ulimit -f"),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("can't start new thread"), NO_THREADS),
        (ImportError("lib.so: failed to map segment from shared object"), NO_MEMORY),
        (ImportError("lib.so: cannot open shared object file: Error 24"), NO_FILES),
    ],
)
def test_what_the_system_does_not_give_is_no_fault_of_eaglectl(error: Exception, words: str) -> None:
    answer = input_error(error)
    assert answer is not None and words in str(answer) and answer.exit_code == 3


def test_a_file_that_the_system_does_not_give_is_named() -> None:
    for number in (errno.EACCES, errno.ENAMETOOLONG, errno.EIO):
        assert "/a/b: denied; " in str(input_error(OSError(number, "denied", "/a/b")))


@pytest.mark.parametrize("error", [RuntimeError("x"), ImportError("no module"), OSError(13, "denied")])
def test_other_errors_are_not_laid_to_a_limit(error: Exception) -> None:
    assert input_error(error) is None


# without docstrings


@pytest.mark.fast(2)
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split()[0])
def test_python_without_docstrings_answers_as_with_them(words: str, tmp_path: Path) -> None:
    done = run(words, tmp_path, PYTHONOPTIMIZE="2", PYTHONDONTWRITEBYTECODE="1")
    # transformers reads docstrings of its own, without which it loads no target
    is_of_transformers = words == SMOKE and "cannot be loaded by transformers" in done.err
    assert done.code == (3 if is_of_transformers else COMMANDS[words]), done.err[-600:]


DOCUMENTED = """
from eaglectl.judge.rule import rules

print([rule.summary + rule.why + rule.fix for rule in rules()])
"""


def test_texts_of_rules_are_the_same_without_docstrings() -> None:
    done = subprocess.run([sys.executable, "-OO", "-B", "-c", DOCUMENTED], capture_output=True, text=True)
    assert done.stdout.splitlines() == [str([rule.summary + rule.why + rule.fix for rule in rules()])]


def test_a_rule_without_docstring_and_source_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglectl.judge import rule as module

    monkeypatch.setattr(module, "_docstrings", lambda *_: {})

    def check(_: object) -> object:
        return iter(())

    assert module.rule("EGL999", "some-name", "error")(check).summary == "some-name."  # type: ignore[arg-type]
