"""One parser for some seconds, in a process of its own: atheris where it is installed, else hypothesis."""

import faulthandler
import hashlib
import json
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.checks import CORPUS, MAX_INPUT, REGRESSIONS, finding, kept_inputs, limit_memory
from tests.fuzz.parsers import Parser

# what an input that hangs may take by the clock; a busy machine takes less than this for any other
HANGS = 120
PARTS = re.compile(rb"[A-Za-z_][\w.-]{1,40}|[{}\[\]\":,]+|[0-9a-f]{8,}")
ODD = (
    b"null", b"true", b"-0", b"1e999", b"NaN", b"18446744073709551616", b"[[[[[[[[", b"\\ud800",
    b"\xed\xa0\x80",
)  # fmt: skip


class Run:
    """The inputs of one parser, counted, and what they found, written once a place."""

    def __init__(self, parser: Parser, folder: Path) -> None:
        self.parser, self.folder = parser, folder
        self.inputs, self.places = 0, dict[str, str]()
        for name in ("findings", "corpus"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.began = self.noted = time.monotonic()
        kept = (kept_inputs(place, parser.name) for place in (CORPUS, REGRESSIONS))
        self.seeds = [*parser.seeds(), *(data for inputs in kept for data in inputs)]

    def one(self, data: bytes) -> None:
        """Check an input."""
        self.inputs += 1
        found = finding(self.parser, data)
        now = time.monotonic()
        if found is not None and found.place not in self.places:
            name = hashlib.sha256(data).hexdigest()[:16]
            (self.folder / "findings" / name).write_bytes(data)
            text = f"{found.place}\n{found.text}"
            (self.folder / "findings" / f"{name}.txt").write_text(text, encoding="utf-8")
            self.places[found.place] = name
        elif now - self.noted < 0.5:
            return
        self.noted = now
        self.note()

    def note(self) -> None:
        """Write the figures; the process may be ended at any time."""
        figures = {"inputs": self.inputs, "seconds": time.monotonic() - self.began, "places": self.places}
        (self.folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def run_parser(parser: Parser, seconds: float, seed: int, folder: Path) -> None:
    """Fuzz a parser. May end the process, and not return.

    What is found goes to FOLDER/findings, the inputs that atheris keeps to FOLDER/corpus, figures to
    FOLDER/figures.json.
    """
    run = Run(parser, folder)
    if find_spec("atheris"):
        by_atheris(run, seconds, seed)
    else:
        by_hypothesis(run, seconds)


def by_atheris(run: Run, seconds: float, seed: int) -> None:
    """Mutations led by the coverage of eaglectl and of what it reads with. Does not return."""
    import atheris

    folder = run.folder
    for number, data in enumerate(run.seeds):
        (folder / "corpus" / f"seed-{number}").write_bytes(data)
    words = {word for data in run.seeds for word in PARTS.findall(data)[:200]} | set(ODD)
    entries = ("".join(f"\\x{byte:02x}" for byte in word) for word in sorted(words)[:400])
    (folder / "words").write_text("".join(f'"{entry}"\n' for entry in entries), encoding="ascii")
    options = {
        "max_total_time": max(1, round(seconds)),
        "seed": seed,
        "timeout": HANGS,
        "rss_limit_mb": 3000,
        "max_len": min(MAX_INPUT, max([4096, *map(len, run.seeds)])),
        "dict": folder / "words",
        "artifact_prefix": f"{folder / 'findings'}/",
    }
    limit_memory()
    words_of_options = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([sys.argv[0], *words_of_options, str(folder / "corpus")], run.one)
    atheris.Fuzz()


def by_hypothesis(run: Run, seconds: float) -> None:
    """Random bytes, and seeds with a few edits."""
    from tests.fuzz.edits import run_examples

    limit_memory()
    for seed in run.seeds:
        run.one(seed)
    while time.monotonic() - run.began < seconds:
        faulthandler.dump_traceback_later(HANGS + seconds, exit=True)
        run_examples(run.one, run.seeds, 5, 20)
    faulthandler.cancel_dump_traceback_later()
    run.note()
