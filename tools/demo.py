"""The demo of one screen: a fault, both acceptance lengths, the repair, the gate: `make demo`.

It runs the commands that it shows, and of what they print it shows the answer: up to the first empty line.
"""

import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from tools.tour import FIXTURES, real_target

ENGINE = "--engine vllm==0.22.1"


class Pair(Struct, frozen=True):
    """A drafter as its trainer wrote it, its target and prompts, what they are, and how they are measured."""

    title: str
    drafter: Path
    target: Path
    prompts: Path
    options: str = ""


def pair(folder: Path) -> Pair:
    """The real pair where its target is there or can be made, else the tiny one, written into `folder`."""
    target, reason = real_target()
    if target is not None:
        title = "SmolLM2-135M-Instruct and its EAGLE-3.1 drafter, as speculators trained and wrote it"
        real = FIXTURES / "real"
        return Pair(title, real / "speculators", target, real / "test.jsonl", " --sample 12 --max-tokens 32")
    tiny = FIXTURES / "tiny"
    words = ["convert", tiny / "eagle3", "--target", tiny / "target", "--for", "torchspec", "-o", folder]
    subprocess.run([sys.executable, "-m", "eaglectl", "-q", *words], check=True, capture_output=True)
    title = f"a tiny drafter in TorchSpec's layout, as the real target is not there ({reason})"
    return Pair(title, folder, tiny / "target", tiny / "prompts.jsonl")


def commands(options: str) -> tuple[tuple[str, int], ...]:
    """The commands of the demo, each with the exit code that it must have."""
    return (
        (f"eaglectl validate mine --target target {ENGINE}", 1),
        (f"eaglectl ready mine --target target {ENGINE} --prompts prompts.jsonl{options}", 0),
        (f"eaglectl convert mine --target target {ENGINE} -o served", 0),
        (f"eaglectl validate served --target target {ENGINE}", 0),
    )


def main() -> int:
    """Run the commands in a new folder; 1 after one with another exit code than expected."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        shown = pair(folder / "torchspec")
        for link, place in (
            ("mine", shown.drafter),
            ("target", shown.target),
            ("prompts.jsonl", shown.prompts),
        ):
            (folder / link).symlink_to(place)
        print(f"# {shown.title}", flush=True)
        for command, expected in commands(shown.options):
            print(f"\n\033[1m$ {command}\033[0m", flush=True)
            code = show_answer(command, folder)
            if code != expected:
                print(f"exit code {code}, and {expected} was expected", file=sys.stderr)
                return 1
        return 0


def show_answer(command: str, folder: Path) -> int:
    """Run a command of eaglectl as on this terminal, and print its answer; returns its exit code."""
    reader, writer = pty.openpty()
    size = shutil.get_terminal_size((100, 24))
    termios.tcsetwinsize(writer, (size.lines, size.columns))
    words = [sys.executable, "-m", "eaglectl", *shlex.split(command)[1:]]
    # as on every terminal of the user's, but for the bar, which stands where nobody looks
    with subprocess.Popen(words, cwd=folder, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        lines = "".join(_output(reader)).splitlines()
        error = process.communicate()[1].decode()
    end = lines.index("") if "" in lines else len(lines)
    more = f"  ... {len(lines) - end - 1} more lines" if end < len(lines) else ""
    for line in filter(None, (*lines[:end], more)):
        print(line, flush=True)
    if process.returncode not in (0, 1):
        print(error, file=sys.stderr)
    return process.returncode


def _output(reader: int) -> Iterator[str]:
    """What a process writes to its terminal until it ends, which Linux reports as an error."""
    with open(reader, encoding="utf-8", newline="") as file:
        try:
            yield from (line.replace("\r\n", "\n") for line in file)
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main())
