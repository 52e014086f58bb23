"""Diagnoses of the trained pairs."""

from pathlib import Path

from tests.pairs import TINY, Trained, write_prompts


def prompts_file(
    folder: Path, name: str = "prompts", start: int = 0, count: int = TINY.prompts, trained: Trained = TINY
) -> Path:
    """Prompts of the pair, cut, as a file."""
    return write_prompts(folder / "prompts.jsonl", trained.texts(name)[start : start + count])
