"""The command line: parse arguments, call the API, print results, exit with documented codes."""

import atexit
import contextlib
import gc
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from itertools import pairwise
from typing import Any

from eaglectl.errors import EaglectlError, UnreadableError, UsageError, input_error
from eaglectl.files.scratch import Terminated, run_removals
from eaglectl.options import CALLER
from eaglectl.terminal import discard, guard_streams, report_fault, say
from eaglectl.text import printable

INTERRUPTED = 130
# set by a shell that requests completions of a line
ASKED = "_EAGLECTL_COMPLETE"
# what torch's C++ code and tokenizers' Rust code read, which write to stderr themselves
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
# bytes that numpy takes with one thread of OpenBLAS, and what its first products take beside it; and that
# torch takes, which loads numpy: of its own, and with its libraries
ROOMS = {
    "numpy": {"RLIMIT_DATA": 176 << 20, "RLIMIT_AS": 176 << 20},
    "torch": {"RLIMIT_DATA": 224 << 20, "RLIMIT_AS": 576 << 20},
}
# that numpy's builds of OpenBLAS start at most
MOST_THREADS = 64
COMMON_OPTIONS = ("-q", "--quiet", "-v", "--verbose", "--no-color", "--offline")


def main() -> None:
    """Run the command line of the process and exit."""
    if ASKED not in os.environ:  # completions have tabs, and the shell reads them
        guard_streams()
    quiet_packages(sys.argv[1:])
    atexit.register(discard_leaks)
    sys.meta_path.insert(0, ImportLimits())
    code = run(sys.argv[1:])
    gc.freeze()  # the process ends: a last garbage collection took a fifth of the time of `inspect`
    sys.exit(code)


def discard_leaks() -> None:
    """Let triton, if it was loaded, write nothing to stderr while the process ends.

    Its library lists every object and function that Python still holds then: 30 lines without a meaning.
    """
    if "triton" in sys.modules and CALLER.is_quiet:
        discard(sys.stderr)


class ImportLimits:
    """An import hook that checks the limits of the process when numpy or torch is first imported.

    numpy loads OpenBLAS, which ends the process with exit code 1 if memory is short, and by SIGINT if it
    cannot start its threads; torch aborts. The hook finds no module.
    """

    def __init__(self) -> None:
        self.rooms = dict(ROOMS)

    def find_spec(self, name: str, *_: object) -> None:
        """Let OpenBLAS have one thread if the process has limits. Raises OSError without memory for it."""
        if name not in self.rooms:
            return
        import mmap  # late: most commands have no use for it
        import resource

        limits = {kind: resource.getrlimit(getattr(resource, kind))[0] for kind in self.rooms[name]}
        rooms = [size for kind, size in self.rooms[name].items() if limits[kind] != resource.RLIM_INFINITY]
        if rooms or not _can_start_threads():
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if rooms:
            # private, as RLIMIT_DATA counts no shared memory
            mmap.mmap(-1, max(rooms), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        del self.rooms[name]  # a module that had no room is asked for again


def _can_start_threads() -> bool:
    # whether as many threads may start as numpy's OpenBLAS starts: it ends the process if it cannot
    end = threading.Event()
    try:
        for _ in range(min(os.cpu_count() or 1, MOST_THREADS) - 1):
            threading.Thread(target=end.wait).start()
    except RuntimeError:
        return False
    finally:
        end.set()
    return True


def quiet_packages(arguments: list[str]) -> None:
    """Let other packages print warnings only with -v; Python's own -W takes precedence."""
    if sys.warnoptions:
        return
    CALLER.is_quiet = {"-v", "--verbose"}.isdisjoint(arguments)
    warnings.simplefilter("ignore" if CALLER.is_quiet else "default")
    if CALLER.is_quiet:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; only an error in eaglectl itself prints a traceback."""
    was_command_line = CALLER.is_command_line
    CALLER.is_command_line, CALLER.remains = True, ""
    try:
        code = _run(_current(arguments))
    except Terminated as end:
        _print_end(f"ended by {signal.Signals(end.number).name}")
        return 128 + end.number
    except BaseException as error:
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else _failed(error, arguments)
    finally:
        CALLER.is_command_line = was_command_line
    if code == INTERRUPTED:  # typer's code of Ctrl-C too
        _print_end("interrupted")
    return code


def _run(arguments: list[str]) -> int:
    from eaglectl.cli.app import make_app  # loads typer

    # None: a shell requests completions
    command = None if ASKED in os.environ else _command(arguments)
    if "--show-completion" in arguments:
        from eaglectl.commands.completion import show_completion

        show_completion(command or "")
        return 0
    return int(make_app(command)(common_first(arguments), prog_name="eaglectl", standalone_mode=False) or 0)


def _command(arguments: list[str]) -> str:
    return next((text for text in arguments if not text.startswith("-")), "")


def _current(arguments: list[str]) -> list[str]:
    """Return the arguments in their present spelling: `COMMAND --help` for `help COMMAND`, `--run-in`."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:2], "--help"]
    current = [re.sub(r"^--engine(?==|$)", "--run-in", text) for text in arguments]
    if current == arguments or _command(arguments) not in ("smoke", "calibrate"):
        return arguments
    if "--run-in" in {text.partition("=")[0] for text in arguments}:
        raise UsageError(
            "--engine and --run-in contradict each other; leave --engine out", options=("--engine",)
        )
    say("eaglectl: --engine was renamed to --run-in", sys.stderr)
    return current


def _print_end(what: str) -> None:
    removed = CALLER.remains or "nothing was left behind"
    say(
        f"eaglectl: {what}; {removed if run_removals() else 'the next run removes temporary files'}",
        sys.stderr,
    )


def common_first(arguments: list[str]) -> list[str]:
    """Move the common options, which the application parses, before the command, and --json behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    common = [option for option in arguments[:end] if option in COMMON_OPTIONS]
    others = [option for option in arguments[:end] if option not in COMMON_OPTIONS]
    if others[:1] == ["--json"] and len(others) > 1:
        others = [*others[1:], "--json"]
    return [*common, *others, *arguments[end:]]


def _print_error(error: EaglectlError, arguments: list[str]) -> None:
    if {"--json", "--format=json"} & {*arguments} or ("--format", "json") in pairwise(arguments):
        from eaglectl.commands.arguments import print_json
        from eaglectl.report.documents import error_document

        with contextlib.suppress(UnreadableError):  # stdout cannot be written; the message is on stderr
            print_json(error_document(error))


def _failed(error: BaseException, arguments: list[str]) -> int:
    """Print why a command ended, and return its exit code. Other BaseExceptions are raised again."""
    refusal = error if isinstance(error, EaglectlError) else input_error(error)
    if refusal is not None:
        _print_error(refusal, arguments)
        if isinstance(error, OSError):  # it may be stdout's, which is flushed again at exit
            discard(sys.stdout)
        say(f"eaglectl: {refusal}", sys.stderr)
        return refusal.exit_code
    if not isinstance(error, Exception):
        raise error
    # click's errors are known by their names and methods, as typer may ship click under another name
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if hasattr(error, "show") and hasattr(error, "format_message"):
        _print_usage(error, arguments)
        return UsageError.exit_code
    report_fault(traceback.format_exc())
    return EaglectlError.exit_code


def _print_usage(error: Any, arguments: list[str]) -> None:
    message = error.format_message()
    if type(error).__name__ != "NoArgsIsHelpError":  # its message is our own help
        _print_error(UsageError(message), arguments)
        error.message, text = printable(str(error.message)), io.StringIO()
        error.show(file=text)
        message = text.getvalue()
    for line in message.splitlines():
        say(line, sys.stderr)
