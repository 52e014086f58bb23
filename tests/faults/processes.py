"""Commands in processes of their own that stop at a chosen place, to be ended there."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from tests.builders import HIDDEN, call, drafter_folder, floats
from tests.hub import TOKEN, LoopbackHub, User
from tests.tiny import TARGET, TINY

# the command waits for ever when it first comes to a function of a module, or a method of the writer's Folder
PAUSED = """
import pkgutil, sys, time
from eaglectl.cli import run
module, name = sys.argv[1].rsplit(".", 1)
owner = pkgutil.resolve_name(module)
real, calls = getattr(owner, name), []
def pause(*arguments, **named):
    if calls:
        return real(*arguments, **named)
    calls.append(name)
    print("here", flush=True)
    for _ in range(6000):  # in pieces: a signal that comes just before a sleep does not end it
        time.sleep(0.1)
setattr(owner, name, pause)
sys.exit(run(sys.argv[2:]))
"""
# as in the foreground of a terminal, whatever this process ignores
HEEDED = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
COMMAND = "import sys; from eaglectl.cli import run; sys.exit(run(sys.argv[1:]))"


def start(code: str, *arguments: str | Path, ignored: signal.Signals | None = None) -> subprocess.Popen[str]:
    """A process that runs `code` with `arguments`; `ignored` is a signal that it inherits as ignored.

    Under nohup it would inherit SIGHUP as that, in the background of a script SIGINT, and no such signal of a
    test would end it.
    """
    prefix = HEEDED
    if ignored is not None:
        prefix += f"signal.signal({int(ignored)}, signal.SIG_IGN)\n"
    command = [sys.executable, "-W", "ignore", "-c", prefix + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def paused(
    place: str, *arguments: str | Path, ignored: signal.Signals | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command that has come to `place` (module.function) and waits there."""
    process = start(PAUSED, place, *arguments, ignored=ignored)
    try:
        assert process.stdout is not None and process.stderr is not None
        assert "here\n" in process.stdout, f"{place} was not come to: {process.stderr.read()}"
        yield process
    finally:
        process.kill()
        process.communicate()


def large_drafter(parent: Path) -> Path:
    """A drafter of two megabytes."""
    embedding = floats("embedding", 65536, HIDDEN)
    return drafter_folder(parent, config={"vocab_size": 65536}, tensors={"embed_tokens.weight": embedding})


def automodel(parent: Path) -> Path:
    """The drafter of the trained pair in a layout that no engine reads."""
    given = ("--for", "automodel", "--target", TARGET, "-o", parent / "automodel")
    assert call("convert", TINY / "eagle3", *given).code == 0
    return parent / "automodel"


def publish_to(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let processes publish to a Hub on loopback."""
    hub.users[TOKEN] = User("user", ("org",))
    home = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(root / "hf")}
    for key, value in {**home, "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(key, value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_checkpoint(out: Path) -> None:
    checkpoint = read_checkpoint(FolderSource(out))
    record = json.loads((out / "eaglectl.json").read_bytes())
    assert record["schema"] == "eaglectl/provenance/1"
    assert checkpoint.nbytes > 0


def is_statistics(out: Path) -> None:
    assert json.loads((out / "statistics.json").read_bytes())["schema"]
    assert (out / "statistics.safetensors").is_file()
