"""The drafters that the sensitivity probe's table is made with, and the prompts of each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Trained:
    """A trained drafter. The table runs `tokens` behind each of the first `prompts` prompts of its pair.

    Prompts are cut to `longest` characters.
    """

    pair: str
    name: str
    prompts: int
    tokens: int
    longest: int

    @property
    def key(self) -> str:
        return f"{self.pair}/{self.name}"

    @property
    def folder(self) -> Path:
        return FIXTURES / self.pair / self.name

    @property
    def target(self) -> Path:
        return FIXTURES / self.pair / "target"

    def converted(self, out: Path) -> Path:
        """The drafter in vLLM's layout."""
        import eaglectl
        from eaglectl.api.convert import ConvertOptions

        eaglectl.convert(str(self.folder), out, ConvertOptions(target=str(self.target)))
        return out

    def texts(self, *files: str) -> list[str]:
        """The prompts of its pair's files, cut."""
        names = files or ("prompts",)
        paths = [FIXTURES / self.pair / f"{name}.jsonl" for name in names]
        lines = [line for path in paths for line in path.read_text().splitlines()]
        return [json.loads(line)["prompt"].strip()[: self.longest] for line in lines]


TINY = Trained("tiny", "eagle3", prompts=24, tokens=24, longest=160)
SECOND = Trained("second", "eagle3", prompts=24, tokens=24, longest=60)
MLA = Trained("second", "mla", prompts=24, tokens=24, longest=60)
TABLE = (TINY, SECOND, MLA)


def write_prompts(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path
