"""Run by test_tiny_llamacpp: the trained pair in llama.cpp and in the reference, in a process of its own.

Argument: ANSWER.json.
"""

import json
import sys
from pathlib import Path

import eaglectl
from eaglectl.operations.converting import ConvertOptions
from tests.engine import trained
from tests.engine.llamacpp.engine import draft, load_converter, to_gguf
from tests.tiny import TARGET

COUNT = trained.TOKENS


def main() -> None:
    """Convert the pair, run both and write what each drafted and answered."""
    out = Path(sys.argv[1])
    root = out.parent
    prompts = trained.prompts()
    options = ConvertOptions(layout="llama.cpp", target=str(TARGET))
    drafter = eaglectl.convert(str(trained.DRAFTER), root / "drafter", options).plan.drafter
    load_converter()
    to_gguf(TARGET, root / "target.gguf")
    to_gguf(root / "drafter", root / "drafter.gguf", TARGET)
    served = draft(root / "target.gguf", root / "drafter.gguf", prompts, trained.K, COUNT)
    rounds = sum(map(len, served.drafts))
    drafts, answers, length = trained.in_reference(root / "drafter", drafter)
    out.write_text(
        json.dumps(
            {
                "drafts": served.drafts,
                "reference_drafts": drafts,
                "tokens": [tokens[:COUNT] for tokens in served.tokens],
                "reference_tokens": answers,
                # of each answer the first token is the prompt's
                "acceptance_length": sum(len(tokens) - 1 for tokens in served.tokens) / rounds,
                "reference_acceptance_length": length,
            }
        )
    )


if __name__ == "__main__":
    main()
