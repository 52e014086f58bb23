"""The trained pair in every engine: the same prompts, and what each engine accepted of its drafts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from eaglectl.drafter.drafter import Drafter
from eaglectl.reference.model import load_drafter
from eaglectl.reference.speculation import DecodingSettings, DraftSession, SpeculativeDecoder
from eaglectl.reference.target import load_target
from tests.tiny import PROMPTS, TARGET, TINY

DRAFTER = TINY / "eagle3"
COUNT, LONGEST, TOKENS, K = 6, 60, 32, 3
PARITY = Path(__file__).with_name("parity.json")


def prompts() -> list[list[int]]:
    """The first tokens of the first prompts; engines here have room for 128 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET, trust_remote_code=False)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[:COUNT]
    return [tokenizer(json.loads(line)["prompt"])["input_ids"][:LONGEST] for line in lines]


def in_reference(folder: Path, drafter: Drafter) -> tuple[list[list[list[int]]], list[list[int]], float]:
    """Each prompt's rounds of draft tokens, its answer, and the acceptance length of all, in float32."""
    boundaries = drafter.aux.boundaries
    assert boundaries is not None
    model = load_drafter(folder, drafter, dtype="float32", device="cpu")
    loaded = load_target(TARGET, boundaries, dtype="float32", device="cpu")
    decoder = SpeculativeDecoder(loaded, model, DecodingSettings(K, TOKENS))
    propose, rows = DraftSession.draft, list[list[int]]()

    def recorded_draft(self: DraftSession, verified: torch.Tensor) -> torch.Tensor:
        found = propose(self, verified)
        rows.append(found[0].tolist())
        return found

    DraftSession.draft = recorded_draft  # type: ignore[method-assign]
    drafts, answers, taken = [], [], 0
    try:
        for prompt in prompts():
            rows.clear()
            (found,) = decoder.run([prompt])
            drafts.append(list(rows))
            answers.append(list(found.tokens)[:TOKENS])
            taken += sum(found.accepted)
    finally:
        DraftSession.draft = propose  # type: ignore[method-assign]
    return drafts, answers, 1 + taken / sum(len(rounds) for rounds in drafts)


def accepted(drafts: Sequence[Sequence[Sequence[int]]], tokens: Sequence[Sequence[int]]) -> list[int]:
    """The number of rounds of all prompts, and that of draft tokens which are in the answers.

    `drafts` are each prompt's rounds, `tokens` its answer, which begins with the token behind the prompt.
    """
    rounds = taken = 0
    for prompt, answer in zip(drafts, tokens, strict=True):
        place = 1
        for draft in prompt:
            if place >= len(answer):
                break
            wanted = answer[place : place + len(draft)]
            same = next((i for i, one in enumerate(wanted) if one != draft[i]), len(wanted))
            rounds, taken, place = rounds + 1, taken + same, place + same + 1
    return [rounds, taken]


def recorded() -> Mapping[str, list[int]]:
    """Rounds and accepted draft tokens by engine."""
    return dict(json.loads(PARITY.read_text(encoding="utf-8")))
