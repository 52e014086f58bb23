"""What every producer fixture is, as its README says; the tests hold eaglectl to it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eaglectl.formats.format import Answers
from tests.builders import Stored, read_safetensors
from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Case:
    """One fixture: the answers it needs, and what must come out."""

    path: str
    producer: str
    version: str = "3"
    attention: str = "GQA"
    layers: int = 1
    aux: int = 3
    boundaries: tuple[int, ...] | None = None
    draft_vocab: int = 96
    answers: dict[str, str] = field(default_factory=dict)
    aux_convention: str | None = None
    aux_layers: tuple[int, ...] | None = None
    is_pickled: bool = False
    back: str | None = None
    mends: tuple[str, ...] = ()  # the topics of problems that convert puts right unasked
    settled: str = "by the file"  # who answers what it leaves open beside its target: "measured", "asked"
    is_own: bool = False  # written for its producer it comes out as it was
    findings: tuple[str, ...] = ()  # what is truly wrong with it as its producer leaves it
    of_another_target: tuple[str, ...] = ()  # what convert's output has beside fixtures/target
    refused: str = ""  # a word of the reason, where convert refuses it

    @property
    def folder(self) -> Path:
        return FIXTURES / "producers" / self.path

    def answered(self) -> Answers:
        return Answers(self.aux_layers, self.aux_convention, self.answers)  # type: ignore[arg-type]

    @property
    def options(self) -> list[str]:
        """The answers as the command line takes them."""
        words = [f"--source-semantics={key}={value}" for key, value in self.answers.items()]
        words += [f"--aux-convention={self.aux_convention}"] if self.aux_convention else []
        return words + ([f"--aux-layers={','.join(map(str, self.aux_layers))}"] if self.aux_layers else [])


def stated_cases() -> Iterator[Case]:
    """The cases that each producer's folder states in its cases.json: {CASE: fields that differ}."""
    for path in sorted((FIXTURES / "producers").glob("*/cases.json")):
        name = path.parent.name
        for case, fields in json.loads(path.read_text()).items():
            values = {
                key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
            }
            yield Case(f"{name}/{case}", **{"producer": name, **values})


STATED = tuple(stated_cases())
CASES = tuple(case for case in STATED if not case.refused)
REFUSED = tuple(case for case in STATED if case.refused)


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every safetensors tensor of a folder as (dtype, shape, bytes), read without eaglectl."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor of a folder, with dtype and shape."""
    return {
        name: hashlib.sha256(f"{dtype}{shape}".encode() + data).hexdigest()
        for name, (dtype, shape, data) in stored_tensors(folder).items()
    }


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def true_answers(folder: Path | str) -> Answers:
    """What is true of a fixture and its file leaves open; no answers for any other folder."""
    return next((case.answered() for case in CASES if str(case.folder) == str(folder)), Answers())
