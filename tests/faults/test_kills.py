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

import eaglectl
from eaglectl.cli.app import make_app
from tests.builders import HIDDEN, call, contents, drafter_folder, floats
from tests.conftest import KILLS
from tests.faults.processes import COMMAND, is_checkpoint, is_statistics, start
from tests.hub import TOKEN, LoopbackHub, User

TINY = Path(eaglectl.__file__).parent.parent / "fixtures/tiny"
FEW, MANY = 6, 187
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Case:
    """A command with SOURCE, TARGET and OUT in it, and what checks its output; `share` of the kills."""

    words: tuple[str, ...]
    check: Callable[[Path], object]
    share: int


def is_json(out: Path) -> None:
    json.loads(out.read_bytes())


def is_page(out: Path) -> None:
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")


MODEL = ("--target", "TARGET", "--device", "cpu")
RUN = (*MODEL, "--prompts", "FEW")
STATES = ("--states", "STATES", "--states-layers", "2,4,5")
CASES: Mapping[str, Case] = {
    name: Case(tuple(words.split()), check, share)
    for name, words, check, share in (
        ("convert", "convert SOURCE -o OUT --force", is_checkpoint, 40),
        (
            "convert to another layout",
            "convert SOURCE -o OUT --for torchspec --max-shard-size 3MB --force",
            is_checkpoint,
            20,
        ),
        (
            "convert --to 3.1 --init-only",
            "convert TINY --to 3.1 --init-only --fc-norm off -o OUT --force",
            is_checkpoint,
            20,
        ),
        (
            "convert --to 3.1",
            f"convert TINY --to 3.1 {' '.join(RUN)} --no-gate -o OUT --force",
            is_checkpoint,
            6,
        ),
        ("calibrate", f"calibrate TINY {' '.join(RUN)} --answer-tokens 4 -o OUT --force", is_statistics, 6),
        (
            "calibrate --states",
            f"calibrate TINY {' '.join(MODEL + STATES)} -o OUT --force",
            is_statistics,
            6,
        ),
        ("ready", f"ready AUTOMODEL {' '.join(RUN)} --max-tokens 4 -o OUT", is_checkpoint, 6),
        ("ready --page", f"ready TINY {' '.join(RUN)} --max-tokens 4 --page OUT", is_page, 5),
        ("validate --output", "validate SOURCE --output json=OUT", is_json, 20),
        ("validate --page", "validate SOURCE --page OUT", is_page, 20),
        ("inspect --page", "inspect SOURCE --page OUT", is_page, 8),
        ("diff --page", "diff SOURCE TINY --page OUT", is_page, 10),
        (
            "smoke --page",
            f"smoke TINY {' '.join(RUN)} --max-tokens 4 --run-in reference --page OUT",
            is_page,
            5,
        ),
        ("diagnose --page", f"diagnose TINY {' '.join(RUN)} --max-tokens 4 --page OUT", is_page, 5),
        (
            "upload",
            "upload TINY org/drafter --license mit --base-model org/target",
            lambda out: None,
            10,
        ),
    )
}
FAST = ("convert", "validate --output")


class Place:
    """The inputs, OUT and the temporary folder of a case, and how long the command takes."""

    def __init__(self, root: Path, case: Case, hub: LoopbackHub) -> None:
        embedding = floats("embedding", 65536, HIDDEN)
        inputs = root / "inputs"
        source = drafter_folder(
            inputs, config={"vocab_size": 65536}, tensors={"embed_tokens.weight": embedding}
        )
        prompts = inputs / "few.jsonl"
        prompts.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(keepends=True)[:3]))
        self.case, self.hub, self.inputs = case, hub, inputs
        self.outputs, self.temporary = root / "outputs", root / "tmp"
        self.out = self.outputs / "out"
        self.outputs.mkdir()
        self.temporary.mkdir()
        if "AUTOMODEL" in case.words:
            target = ("--target", TINY / "target")
            made = call("convert", TINY / "eagle3", "--for", "automodel", *target, "-o", inputs / "automodel")
            assert made.code == 0, made.err
        names = {
            "SOURCE": source,
            "AUTOMODEL": inputs / "automodel",
            "STATES": TINY / "states",
            "TINY": TINY / "eagle3",
            "TARGET": TINY / "target",
            "OUT": self.out,
            "FEW": prompts,
        }
        places = {"json=OUT": f"json={self.out}"}
        self.command = [str(names.get(word, places.get(word, word))) for word in case.words]
        self.before = contents(inputs)
        began = time.monotonic()
        self.requests = 0
        self.finish()
        self.seconds = time.monotonic() - began
        self.requests = len(hub.requests)

    def run(self) -> "subprocess.Popen[str]":
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
            while process.poll() is None and not self.left() and not self.has_asked(asked):
                time.sleep(0.0005)
            time.sleep((moment - 1) / 20)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert contents(self.inputs) == self.before
        if os.path.lexists(self.out):
            self.case.check(self.out)
        self.check_hub()
        if number != signal.SIGKILL:
            assert self.left() == []
        return process.returncode

    def has_asked(self, count: float) -> bool:
        """Whether the Hub has had so many requests, from a command that asks it."""
        return self.requests > 0 and len(self.hub.requests) > count

    def left(self) -> list[str]:
        """What a run left in the folder of OUT and in the temporary folder."""
        names = [path.name for path in (*self.outputs.iterdir(), *self.temporary.iterdir())]
        return [name for name in names if "eaglectl" in name or name.endswith(".partial")]

    def check_hub(self) -> None:
        """A repository has nothing, or all files of one commit."""
        for repo in self.hub.repos.values():
            files = set(repo.files()) - {".gitattributes"}
            assert not files or {"config.json", "model.safetensors", "README.md"} <= files

    def check_end(self) -> None:
        """A run that ends by itself leaves its output, whole, and nothing else."""
        if "OUT" in " ".join(self.case.words):
            self.case.check(self.out)
        assert self.left() == []

    def finish(self) -> None:
        """Run the command to its end, which removes what killed runs left."""
        process = self.run()
        _, error = process.communicate(timeout=120)
        assert process.returncode in (0, 1, 3), error  # few prompts may not tell
        self.check_end()


def kills(root: Path, name: str, count: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> Counter[str]:
    """Kill a case `count` times; the figures."""
    figures: Counter[str] = Counter()
    chance = random.Random(seed)
    with LoopbackHub() as hub:
        hub.users[TOKEN] = User("user", ("org",))
        settings = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(root / "hf"),
            "TMPDIR": str(root / "tmp"),
        }
        for key, value in settings.items():
            monkeypatch.setenv(key, value)
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


@pytest.mark.parametrize("name", FAST)
def test_a_few_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, request: pytest.FixtureRequest
) -> None:
    kills(tmp_path, name, FEW // len(FAST), monkeypatch, seed=len(name))


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
    of_validate = ("validate", "--output")
    assert of_validate in writing_options() and ("ready", "-o") in writing_options()
    cases = {(case.words[0], word) for case in CASES.values() for word in case.words}
    assert writing_options() - cases == set()
    assert ("upload", "org/drafter") in cases  # which writes to the Hub
    assert sum(case.share for case in CASES.values()) == MANY
    assert min(case.share for case in CASES.values()) >= 5


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
