"""Run by test_tiny_sglang: a trained pair in SGLang and in the reference, in a process of its own.

Arguments: TARGET DRAFTER ANSWER.json.
"""

import json
import sys
from pathlib import Path

from tests.engine.sglang import engine  # isort: skip


import eaglectl
from eaglectl.operations.converting import ConvertOptions
from tests.engine import trained


def main() -> None:
    """Run both and write what each drafted and answered."""
    target, drafter, out = (Path(word) for word in sys.argv[1:])
    ids, count = trained.prompts(), trained.TOKENS
    served = engine.generate(engine.start(target, drafter, trained.K), ids, count)
    options = ConvertOptions(target=str(target))
    meant = eaglectl.convert(str(drafter), drafter.parent / "meant", options).plan.drafter
    drafts, answers, length = trained.in_reference(drafter.parent / "meant", meant)
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


if __name__ == "__main__":
    main()
