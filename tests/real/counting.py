"""The real pair by eaglectl, and by the accounting of tools/real, which shares no code with it."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.real.conftest import REAL, ROOT

NEW = 64
EVERY = 5  # of the 40 chats


@cache
def accounting() -> Any:
    sys.path.insert(0, str(ROOT / "tools/real"))
    import accounting

    return accounting


def few_prompts(folder: Path) -> Path:
    """Every fifth chat of the test set, so that each kind is there."""
    path = folder / "few.jsonl"
    lines = (REAL / "test.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::EVERY]))
    return path


@cache
def target_answers(target: Path, k: int) -> tuple[Any, Any]:
    """The target's answers to those chats, and its embedding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    texts = accounting().encode(AutoTokenizer.from_pretrained(target), REAL / "test.jsonl", EVERY)
    answers = [accounting().answer(model, text, NEW + k) for text in texts]
    return answers, model.model.embed_tokens.weight.detach()


def accounted(name: str, target: Path, k: int) -> Any:
    """Rounds, accepted tokens by position and answers of a drafter of fixtures/real."""
    answers, embedding = target_answers(target, k)
    networks = {"specforge": accounting().SPECFORGE, "speculators": accounting().SPECULATORS}
    weights = accounting().read_weights(REAL / name)
    return accounting().count(accounting().Drafter(weights, networks[name], embedding), answers, k, NEW)


def recorded() -> dict[str, Any]:
    """Acceptance of each drafter as it was recorded when it was trained."""
    value: dict[str, Any] = json.loads((REAL / "acceptance.json").read_text())
    return value
