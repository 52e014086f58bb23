"""The demo of one screen: a fault, both acceptance lengths, the repair, the gate, 3.1: `make demo`.

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

from tools.real.target import cache_folder

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TINY, REAL = FIXTURES / "tiny", FIXTURES / "real"
EAGLECTL = (sys.executable, "-m", "eaglectl")


# options of `ready` on the real pair, for seconds
FEW = " --sample 6 --max-tokens 32"
# each command, and the exit code that it must have
THERE = "--target target --engine vllm==0.22.1"
COMMANDS = (
    (f"eaglectl -q validate mine {THERE}", 1),
    (f"eaglectl ready mine {THERE} --prompts prompts.jsonl", 0),
    (f"eaglectl convert mine {THERE} -o served", 0),
    (f"eaglectl -q validate served {THERE}", 0),
    ("eaglectl convert tiny/eagle3 --to 3.1 --target tiny/target -o tiny-3.1", 0),
)


def main() -> int:
    """Run the commands in a new folder; 1 after one with another exit code than expected."""
    title = "a tiny drafter; after `make real-target`, one of a real model"
    drafter, target, prompts, few = TINY / "eagle3", TINY / "target", TINY / "prompts.jsonl", ""
    real_target = cache_folder() / "target"
    if (real_target / "model.safetensors").is_file():
        title = "a drafter of SmolLM2-135M-Instruct"
        drafter, target, prompts, few = REAL / "specforge", real_target, REAL / "test.jsonl", FEW
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "target").symlink_to(target)
        (folder / "prompts.jsonl").symlink_to(prompts)
        (folder / "tiny").symlink_to(TINY)  # --to 3.1 of the real pair takes minutes
        written = ("convert", drafter, "--target", "target", "--for", "torchspec", "-o", "mine")
        subprocess.run([*EAGLECTL, "-q", *written], cwd=folder, check=True, capture_output=True)
        print(f"# mine: {title}, as TorchSpec writes one", flush=True)
        for text, expected in COMMANDS:
            command = text + few * text.startswith("eaglectl ready")
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
    words = [*EAGLECTL, *shlex.split(command)[1:]]
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
