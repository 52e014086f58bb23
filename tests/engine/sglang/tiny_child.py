"""Run by test_tiny_sglang: a trained pair in SGLang and in the reference, in a process of its own.

Arguments: TARGET DRAFTER ANSWER.json.
"""

import json
import sys
from pathlib import Path

from tests.engine.sglang import engine  # isort: skip

import torch

import eaglectl
from eaglectl.api.converting import ConvertOptions
from eaglectl.reference.loading import load_drafter
from eaglectl.reference.speculation import DecodingSettings, DraftSession, SpeculativeDecoder
from eaglectl.reference.target import load_target
from tests.engine import trained


def main() -> None:
    """Run both and write what each drafted and answered."""
    target, drafter, out = (Path(word) for word in sys.argv[1:])
    ids, count = trained.prompts(), trained.TOKENS
    served = engine.generate(engine.start(target, drafter, trained.K), ids, count)
    drafts, answers, length = _reference(target, drafter, ids, count)
    out.write_text(
        json.dumps(
            {
                "drafts": [[row[1:] for row in rows] for rows in served.rounds],
                "reference_drafts": drafts,
                "tokens": served.tokens,
                "reference_tokens": answers,
                "acceptance_length": served.acceptance_length,
                "reference_acceptance_length": length,
            }
        )
    )


def _reference(
    target: Path, drafter: Path, prompts: list[list[int]], count: int
) -> tuple[list[list[list[int]]], list[list[int]], float]:
    meant = eaglectl.convert(
        str(drafter), drafter.parent / "meant", ConvertOptions(target=str(target))
    ).plan.drafter
    boundaries = meant.aux.boundaries
    assert boundaries is not None
    model = load_drafter(drafter.parent / "meant", meant, dtype="float32", device="cpu")
    loaded = load_target(target, boundaries, dtype="float32", device="cpu")
    draft, rows = DraftSession.draft, list[list[int]]()

    def recorded(self: DraftSession, verified: torch.Tensor) -> torch.Tensor:
        found = draft(self, verified)
        rows.append(found[0].tolist())
        return found

    DraftSession.draft = recorded  # type: ignore[method-assign]
    drafts, answers, accepted = [], [], 0
    for prompt in prompts:
        rows.clear()
        (found,) = SpeculativeDecoder(loaded, model, DecodingSettings(trained.K, count)).run([prompt])
        drafts.append(list(rows))
        answers.append(list(found.tokens)[:count])
        accepted += sum(found.accepted)
    return drafts, answers, 1 + accepted / sum(len(rounds) for rounds in drafts)


if __name__ == "__main__":
    main()
