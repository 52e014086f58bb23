"""The real pair by eaglectl, and by the accounting of tools/real, which shares no code with it."""

import importlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.run.results import SmokeReport
from tests.real.conftest import REAL, ROOT

NEW = 64
SHORT = 32  # new tokens where an engine is slow
# of the 40 test chats: every fifth, and four with what those have
EIGHT = tuple(range(0, 40, 5))
FOUR = (0, 10, 25, 35)


@cache
def tool(name: str) -> Any:
    """A module of tools/real."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools/real"))
        return importlib.import_module(name)


accounting = partial(tool, "accounting")


def few_prompts(folder: Path, chats: Sequence[int] = EIGHT) -> Path:
    """These chats of the test set."""
    path = folder / "few.jsonl"
    lines = (REAL / "test.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[chat] for chat in chats))
    return path


def texts(target: Path, chats: Sequence[int]) -> list[list[int]]:
    """Their tokens, in the target's template."""
    from transformers import AutoTokenizer

    encoded = accounting().encode(AutoTokenizer.from_pretrained(target), REAL / "test.jsonl")
    return [encoded[chat] for chat in chats]


@cache
def target_answers(target: Path, k: int, chats: Sequence[int], new: int) -> tuple[Any, Any]:
    """The target's answers to those chats, and its embedding."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    answers = [accounting().answer(model, text, new + k) for text in texts(target, chats)]
    return answers, model.model.embed_tokens.weight.detach()


def accounted(name: str, target: Path, k: int, chats: Sequence[int] = EIGHT, new: int = NEW) -> Any:
    """Rounds, accepted tokens by position and answers of a drafter of fixtures/real."""
    answers, embedding = target_answers(target, k, chats, new)
    networks = {"specforge": accounting().SPECFORGE, "speculators": accounting().SPECULATORS}
    weights = accounting().read_weights(REAL / name)
    return accounting().count(accounting().Drafter(weights, networks[name], embedding), answers, k, new)


def accounted_counts(name: str, target: Path, k: int, chats: Sequence[int], new: int) -> list[int]:
    """Rounds by the accounting, and how many had each position accepted."""
    counts = accounted(name, target, k, chats, new)
    return [counts.drafts, *counts.accepted]


def smoke(drafter: Path, target: Path, prompts: Path, engine: str, **settings: Any) -> SmokeReport:
    options = eaglectl.SmokeOptions(run_in=engine, device="cpu", prompts=prompts, **settings)
    return eaglectl.smoke(str(drafter), str(target), options)


def counted(report: SmokeReport) -> list[int]:
    """The same by smoke."""
    measured = report.measured
    return [measured.drafts, *(round(share.value * measured.drafts) for share in measured.per_position)]
