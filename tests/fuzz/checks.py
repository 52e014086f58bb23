"""The property of every parser, and what an input that breaks it is called."""

import json
import resource
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eaglectl.errors import RefusedError, UnreadableError, UsageError
from tests.fuzz.parsers import Parser

ANSWERS = (RefusedError, UsageError, UnreadableError)
# of processor time, for one input of at most MAX_INPUT bytes; of memory, beside what the process has at first
SECONDS, MEMORY, MAX_INPUT = 5.0, 1 << 30, 1 << 16
HERE = Path(__file__).parent
CORPUS, REGRESSIONS = HERE / "corpus", HERE / "regressions"


@dataclass(frozen=True, slots=True)
class Finding:
    """What an input broke; `place` tells one fault from another."""

    place: str
    text: str


def finding(parser: Parser, data: bytes) -> Finding | None:
    """How an input breaks the property; None where it does not."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parser.read(data)
    except (*ANSWERS, *parser.refusals):
        pass
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "eaglectl" in frame.filename] or list(frames)
        place = f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
        return Finding(place, "".join(traceback.format_exception(error))[-4000:])
    if (seconds := time.process_time() - began) > SECONDS:
        return Finding("slow", f"{seconds:.1f} s for {len(data)} bytes")
    return None


def limit_memory() -> None:
    """From now on, more than MEMORY is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def kept_inputs(folder: Path, name: str) -> Iterator[bytes]:
    """The inputs in NAME.jsonl of a folder: one a line, a JSON text whose characters are the bytes."""
    file = folder / f"{name}.jsonl"
    if file.exists():
        for line in file.read_text(encoding="ascii").splitlines():
            yield json.loads(line).encode("latin-1")
