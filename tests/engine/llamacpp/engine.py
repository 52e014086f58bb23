"""llama.cpp as a test runs it: its converter in this process, and a small program on its own libraries.

`python -m tests.engine.llamacpp.engine FOLDER OUT [TARGET]` runs the converter in a process of its own.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.conftest import FIXTURES

ROOT = Path(os.environ.get("EAGLECTL_LLAMACPP", FIXTURES.parent / ".llamacpp"))
# what `make test-llamacpp` puts there: the source, what it builds, and the converter's own Python packages
SOURCE, BUILD, PACKAGES = ROOT / "source", ROOT / "build", ROOT / "packages"
DRAFTS, SERVER = BUILD / "drafts", BUILD / "bin/llama-server"
# at its start with a drafter the server reads memory that nothing has written, and can end by `scale > 0.0f`;
# pages that malloc takes anew are zero
FRESH_PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536"}
LAYERS = re.compile(r"extract_layers = \[([-\d, ]+)\]")
LAST_WORDS = (
    r"error loading model: .*",
    r"\S+:\d+: (?:GGML_ASSERT|EAGLE3).*",
    r"what\(\): .*",
    r"GGML_ASSERT.*",
    r".*(?:failed|does not load).*",
)
# of the server, for a small pair
PATIENCE = 120.0
SETTINGS = (
    *("--offline", "--no-warmup", "--threads", "1", "--parallel", "1"),
    *("--ctx-size", "512", "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"),
    *("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"),
)
# of one prompt: the draft tokens of each round
Rounds = list[list[int]]


def is_built() -> bool:
    """Whether llama.cpp is here."""
    return DRAFTS.exists() and SERVER.exists() and (SOURCE / "convert_hf_to_gguf.py").exists()


def load_converter() -> None:
    """Import the converter, with one thing changed: every tokenizer's pre-tokenizer is taken for GPT-2's.

    It knows real tokenizers by a hash of what they make of a text; those of the fixtures are not among them.
    """
    sys.path[:0] = [str(SOURCE / "gguf-py"), str(SOURCE), str(PACKAGES)]
    import conversion.base

    for value in list(vars(conversion.base).values()):
        if isinstance(value, type) and hasattr(value, "get_vocab_base_pre"):
            value.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"


def to_gguf(folder: Path, out: Path, target: Path | None = None) -> None:
    """Run `convert_hf_to_gguf.py folder --outfile out --outtype f32`; raises what it raises."""
    import convert_hf_to_gguf

    words = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--outtype", "f32"]
    more = [] if target is None else ["--target-model-dir", str(target)]
    with mock.patch.object(sys, "argv", [*words, *more]):
        convert_hf_to_gguf.main()


class EndedError(Exception):
    """The program ended: at load or at a request, with its last words."""

    def __init__(self, log: str, *, is_loaded: bool) -> None:
        super().__init__(_last_words(log))
        self.is_loaded, self.captured = is_loaded, _captured(log)


@dataclass(frozen=True, slots=True)
class Drafted:
    """Of each prompt the draft tokens of its rounds, and the tokens that were generated."""

    drafts: list[Rounds]
    tokens: list[list[int]]
    captured: list[int]


def draft(
    target: Path,
    drafter: Path,
    prompts: Sequence[Sequence[int]],
    steps: int,
    tokens: int,
    patience: float = 120.0,
) -> Drafted:
    """What these two GGUF files draft, greedy and in float32. Raises EndedError."""
    command = [str(DRAFTS), str(target), str(drafter), str(steps), str(tokens)]
    text = "\n".join(" ".join(map(str, prompt)) for prompt in prompts)
    kinds = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    process = subprocess.run(command, input=text, timeout=patience, check=False, **kinds)
    lines = process.stdout.splitlines()
    if process.returncode or len(lines) != len(prompts) + 1:
        raise EndedError(process.stderr, is_loaded="loaded" in lines)
    answers = [json.loads(line) for line in lines[1:]]
    return Drafted(
        [answer["drafts"] for answer in answers],
        [answer["tokens"] for answer in answers],
        _captured(process.stderr),
    )


def _captured(log: str) -> list[int]:
    """The target layers whose inputs the drafter gets."""
    found = LAYERS.search(log)
    return [int(layer) for layer in found[1].split(",")] if found else []


def _last_words(log: str) -> str:
    """Why the program ended: the first line of its log that says so."""
    for pattern in LAST_WORDS:
        if found := re.search(pattern, log):
            return found[0]
    return log.strip().splitlines()[-1] if log.strip() else "no words"


if __name__ == "__main__":
    load_converter()
    to_gguf(*map(Path, sys.argv[1:]))
