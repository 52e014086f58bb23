"""The trained pair in every engine: the same prompts, and what each engine accepted of its drafts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

import eaglectl
from eaglectl.run.results import SmokeReport
from tests.tiny import PROMPTS, TARGET, TINY

DRAFTER = TINY / "eagle3"
COUNT, LONGEST, TOKENS, K = 6, 60, 32, 3
PARITY = Path(__file__).with_name("parity.json")


def prompts() -> list[list[int]]:
    """The first tokens of the first prompts; engines here have room for 128 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET, trust_remote_code=False)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[:COUNT]
    return [tokenizer(json.loads(line)["prompt"])["input_ids"][:LONGEST] for line in lines]


def recorded() -> Mapping[str, list[int]]:
    """Rounds and accepted draft tokens by engine."""
    return dict(json.loads(PARITY.read_text(encoding="utf-8")))


def smoke(drafter: Path, engine: str, folder: Path, **more: Any) -> SmokeReport:
    """The prompts in an engine, by the product."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in prompts()))
    options = eaglectl.SmokeOptions(
        run_in=engine, device="cpu", prompts=file, max_tokens=TOKENS, k=K, ignore_eos=True, **more
    )
    return eaglectl.smoke(str(drafter), str(TARGET), options)


def total(report: SmokeReport) -> list[int]:
    """The rounds of all prompts, and the accepted draft tokens that the answers take."""
    results = report.run.results
    taken = [min(sum(found.accepted), TOKENS - found.drafts) for found in results]
    return [sum(found.drafts for found in results), sum(taken)]
