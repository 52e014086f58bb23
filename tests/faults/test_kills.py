"""Commands that are killed at random moments: OUT is absent or whole, inputs unchanged, nothing stays."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from eaglectl.cli.app import make_app
from tests.builders import contents
from tests.conftest import KILLS
from tests.faults.processes import (
    COMMAND,
    automodel,
    is_checkpoint,
    is_statistics,
    large_drafter,
    publish_to,
    start,
)
from tests.hub import LoopbackHub
from tests.tiny import TARGET, TINY, short_prompts

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Case:
    """A command with SOURCE, TARGET and OUT in it, and what checks its output; `share` of the kills."""

    text: str
    check: Callable[[Path], object]
    share: int

    @property
    def words(self) -> list[str]:
        return self.text.split()


def is_json(out: Path) -> None:
    json.loads(out.read_bytes())


def is_page(out: Path) -> None:
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")


RUN = "--target TARGET --device cpu --prompts FEW"
SHORT = f"{RUN} --max-tokens 4"
CASES: Mapping[str, Case] = {
    "convert": Case("convert SOURCE -o OUT --force", is_checkpoint, 40),
    "convert to another layout": Case(
        "convert SOURCE -o OUT --for torchspec --max-shard-size 3MB --force", is_checkpoint, 20
    ),
    "convert --to 3.1 --init-only": Case(
        "convert TINY --to 3.1 --init-only --fc-norm off -o OUT --force", is_checkpoint, 20
    ),
    "convert --to 3.1": Case(f"convert TINY --to 3.1 {RUN} --no-gate -o OUT --force", is_checkpoint, 6),
    "calibrate": Case(f"calibrate TINY {RUN} --answer-tokens 4 -o OUT --force", is_statistics, 6),
    "ready": Case(f"ready AUTOMODEL {SHORT} -o OUT", is_checkpoint, 6),
    "ready --page": Case(f"ready TINY {SHORT} --page OUT", is_page, 5),
    "validate --output": Case("validate SOURCE --output json=OUT", is_json, 20),
    "validate --page": Case("validate SOURCE --page OUT", is_page, 20),
    "inspect --page": Case("inspect SOURCE --page OUT", is_page, 8),
    "diff --page": Case("diff SOURCE TINY --page OUT", is_page, 10),
    "smoke --page": Case(f"smoke TINY {SHORT} --run-in reference --page OUT", is_page, 5),
    "diagnose --page": Case(f"diagnose TINY {SHORT} --page OUT", is_page, 5),
    "upload": Case("upload TINY org/drafter --license mit --base-model org/target", lambda out: None, 10),
}


class Place:
    """The inputs, OUT and the temporary folder of a case, and how long the command takes."""

    def __init__(self, root: Path, case: Case, hub: LoopbackHub) -> None:
        inputs = root / "inputs"
        source = large_drafter(inputs)
        prompts = short_prompts(inputs, 3)
        self.case, self.hub, self.inputs = case, hub, inputs
        self.outputs, self.temporary = root / "outputs", root / "tmp"
        self.out = self.outputs / "out"
        self.outputs.mkdir()
        self.temporary.mkdir()
        places = {
            **{"SOURCE": source, "TINY": TINY / "eagle3", "TARGET": TARGET, "FEW": prompts},
            **{"OUT": self.out, "json=OUT": f"json={self.out}"},
        }
        if "AUTOMODEL" in case.words:
            places["AUTOMODEL"] = automodel(inputs)
        self.command = [str(places.get(word, word)) for word in case.words]
        self.before = contents(inputs)
        began = time.monotonic()
        self.requests = 0
        self.finish()
        self.seconds = time.monotonic() - began
        self.requests = len(hub.requests)

    def run(self) -> subprocess.Popen[str]:
        """The command, started; a folder at OUT that it does not replace is taken away."""
        if self.out.is_dir() and "--force" not in self.command:
            shutil.rmtree(self.out)
        return start(COMMAND, *self.command)

    def kill(self, number: signal.Signals, moment: float) -> int:
        """Kill a run after a share `moment` of its time; its code.

        Above 1: soon after it began to write, or after a share of 2 * (moment - 1) of its requests.
        """
        asked = len(self.hub.requests) + self.requests * (moment - 1) * 2
        process = self.run()
        if moment <= 1:
            time.sleep(self.seconds * moment)
        else:
            while process.poll() is None and not self.left():
                if self.requests and len(self.hub.requests) > asked:
                    break
                time.sleep(0.0005)
            time.sleep((moment - 1) / 20)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert contents(self.inputs) == self.before
        if os.path.lexists(self.out):
            self.case.check(self.out)
        for repo in self.hub.repos.values():  # which has nothing, or all files of one commit
            files = set(repo.files()) - {".gitattributes"}
            assert not files or {"config.json", "model.safetensors", "README.md"} <= files
        if number != signal.SIGKILL:
            assert self.left() == []
        return process.returncode

    def left(self) -> list[str]:
        """What a run left in the folder of OUT and in the temporary folder."""
        names = [path.name for path in (*self.outputs.iterdir(), *self.temporary.iterdir())]
        return [name for name in names if "eaglectl" in name or name.endswith(".partial")]

    def finish(self) -> None:
        """Run the command to its end, which leaves its output, whole, and nothing of killed runs."""
        process = self.run()
        _, error = process.communicate(timeout=120)
        assert process.returncode in (0, 1, 3), error  # few prompts may not tell
        if "OUT" in self.case.text:
            self.case.check(self.out)
        assert self.left() == []


def kills(root: Path, name: str, count: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> Counter[str]:
    """Kill a case `count` times; the figures."""
    figures: Counter[str] = Counter()
    chance = random.Random(seed)
    with LoopbackHub() as hub:
        publish_to(hub, monkeypatch, root)
        monkeypatch.setenv("TMPDIR", str(root / "tmp"))
        place = Place(root, CASES[name], hub)
        for _ in range(count):
            if name == "upload":
                hub.repos.clear()
            number = chance.choice(SIGNALS)
            # imports take most of the time of a small run: most kills wait until it writes
            code = place.kill(number, chance.uniform(0.75, 1.5))
            figures["ended before the signal" if code in (0, 1, 3) else f"ended by {number.name}"] += 1
            figures["left something"] += bool(place.left())
            if place.left():
                place.finish()
        place.finish()
    return figures


def test_a_few_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kills(tmp_path, "convert", 3, monkeypatch, seed=7)


def writing_options() -> set[tuple[str, str]]:
    """Each command with each of its options that name a place to write to."""
    group: Any = typer.main.get_command(make_app(None))
    return {
        (name, option)
        for name, command in group.commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option in ("-o", "--page", "--output")
    }


def test_every_command_that_writes_has_its_share() -> None:
    assert {("validate", "--output"), ("ready", "-o")} <= writing_options()
    cases = {(case.words[0], word) for case in CASES.values() for word in case.words}
    assert writing_options() - cases == set()
    assert "upload" in CASES  # which writes to the Hub


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, record_property: Callable[[str, object], None]
) -> None:
    count = max(1, int(CASES[name].share * float(os.environ.get("EAGLECTL_KILLS", "1"))))
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown where a kill finds something
    figures = kills(tmp_path, name, count, monkeypatch, seed)
    record_property(KILLS, {"case": name, "kills": count, **figures})
