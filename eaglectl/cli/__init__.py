"""The command line: parse arguments, call the API, print results, exit with documented codes."""

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import traceback
import warnings
from itertools import pairwise

from eaglectl.errors import EaglectlError, UnreadableError, UsageError, input_error
from eaglectl.files.scratch import Terminated, run_removals
from eaglectl.options import CALLER
from eaglectl.terminal import discard_stdout, guard_streams, report_fault, say
from eaglectl.text import printable

USAGE = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
# objects made between two looks for garbage: what loading makes is none, and Python looks every 700
GARBAGE_EVERY = 100_000
# set by a shell that asks how a line goes on
ASKED = "_EAGLECTL_COMPLETE"
COMPLETION = ("--install-completion", "--show-completion")
VERBOSE = {"-v", "--verbose"}
# what torch's C++ code and tokenizers' Rust code read, which write to stderr themselves
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
COMMON_OPTIONS = ("-q", "--quiet", "-v", "--verbose", "--no-color", "--offline")


def main() -> None:
    """Run the command line of the process and exit."""
    gc.set_threshold(GARBAGE_EVERY)
    if ASKED not in os.environ:  # what a shell is answered has tabs, and goes to no terminal
        guard_streams()
    quiet_packages(sys.argv[1:])
    code = run(sys.argv[1:])
    gc.freeze()  # what is left ends with the process: the last look for garbage was a fifth of `inspect`
    sys.exit(code)


def quiet_packages(arguments: list[str]) -> None:
    """Show nothing of what other packages warn of, or all of it with -v; Python's own -W goes before."""
    if sys.warnoptions:
        return
    CALLER.is_quiet = not VERBOSE & set(arguments)
    warnings.simplefilter("ignore" if CALLER.is_quiet else "default")
    if CALLER.is_quiet:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; only an error in eaglectl itself prints a traceback."""
    from eaglectl.cli.app import make_app  # loads typer

    before, CALLER.is_command_line = CALLER.is_command_line, True
    arguments = _as_help(arguments)
    try:
        _check_moved(arguments)
        if _completes(arguments):
            return 0
        app = make_app(_command(arguments))
        if "serve" in arguments and _command(arguments) == "inspect":
            from eaglectl.commands.inspect.launch_line import inspected

            arguments = inspected(arguments)
        code = int(app(common_first(arguments), prog_name="eaglectl", standalone_mode=False) or 0)
    except EaglectlError as error:
        return _refused(error, arguments)
    except Terminated as end:
        _print_end(f"ended by {signal.Signals(end.number).name}")
        return 128 + end.number
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        code = _handle_other(error, arguments)
    except BaseException as error:
        if (refusal := input_error(error)) is None:
            raise
        return _refused(refusal, arguments)
    finally:
        CALLER.is_command_line = before
    if code == INTERRUPTED:
        _print_end("interrupted")
    return code


def _as_help(arguments: list[str]) -> list[str]:
    """The arguments, with `help COMMAND` as `COMMAND --help`."""
    return [*arguments[1:2], "--help"] if arguments[:1] == ["help"] else arguments


def _refused(error: EaglectlError, arguments: list[str]) -> int:
    _print_error(error, arguments)
    say(f"eaglectl: {error}", sys.stderr)
    return error.exit_code


def _completes(arguments: list[str]) -> bool:
    """Print or install completion where that is asked for, of the shell that is named."""
    option = next((option for option in COMPLETION if option in arguments), None)
    if option is not None:
        from eaglectl.cli.shells import complete

        complete(option, _command(arguments) or "")
    return option is not None


def _command(arguments: list[str]) -> str | None:
    """The command that is asked for, empty for none; None: a shell asks how a line goes on."""
    if ASKED in os.environ:
        return None
    return next((text for text in arguments if not text.startswith("-")), "")


def _check_moved(arguments: list[str]) -> None:
    """Raise UsageError for the command that the package has no more, with its place."""
    if [text for text in arguments if not text.startswith("-")][:2] == ["engines", "scan"]:
        raise UsageError("engines scan is a tool of a checkout now: python -m tools.scan WHEEL")


def _print_end(what: str) -> None:
    """Remove what the exception of a signal kept from being removed, and say how the run ended."""
    rest = "nothing was left behind" if run_removals() else "the next run removes what it left"
    say(f"eaglectl: {what}; {rest}", sys.stderr)


def common_first(arguments: list[str]) -> list[str]:
    """Move the common options, which the application parses, before the command, and --json behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[:end]
    common = [option for option in options if option in COMMON_OPTIONS]
    others = [option for option in options if option not in COMMON_OPTIONS]
    if others[:1] == ["--json"] and len(others) > 1:
        others = [*others[1:], "--json"]
    return [*common, *others, *arguments[end:]]


def _print_error(error: EaglectlError, arguments: list[str]) -> None:
    """Print the error as a JSON document if the command line asks for JSON."""
    is_json = bool({"--json", "--format=json"} & set(arguments)) or ("--format", "json") in pairwise(
        arguments
    )
    if is_json:
        from eaglectl.commands.arguments import print_json
        from eaglectl.report.documents.document import error_document

        with contextlib.suppress(UnreadableError):  # stdout that takes nothing; the sentence is on stderr
            print_json(error_document(error))


def _handle_other(error: Exception, arguments: list[str]) -> int:
    """Print a usage error of click, or the traceback of an error in eaglectl; return the exit code."""
    if (refusal := input_error(error)) is not None:
        return _refused(refusal, arguments)
    # click's errors are known by their methods, as typer may ship click under another name
    show = getattr(error, "show", None)
    if callable(show) and hasattr(error, "exit_code"):
        message = getattr(error, "format_message", lambda: str(error))()
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is our own help, of many lines
            for line in message.splitlines():
                say(line, sys.stderr)
            return USAGE
        _print_error(UsageError(message), arguments)
        error.message = printable(str(getattr(error, "message", "")))  # type: ignore[attr-defined]
        usage = io.StringIO()
        show(file=usage)
        for line in usage.getvalue().splitlines():
            say(line, sys.stderr)
        return USAGE
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        discard_stdout()
        say(f"eaglectl: {error.filename or 'stdout'}: {error.strerror}; make room", sys.stderr)
        return UnreadableError.exit_code
    report_fault(traceback.format_exc())
    return INTERNAL_ERROR
