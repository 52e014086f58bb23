"""Run by test_tiny_llamacpp: the trained pair in llama.cpp and in the reference, in a process of its own.

Argument: ANSWER.json.
"""

import json
import sys
from pathlib import Path

import torch

import eaglectl
from eaglectl.api.converting import ConvertOptions
from eaglectl.reference.loading import load_drafter
from eaglectl.reference.speculation import DecodingSettings, DraftSession, SpeculativeDecoder
from eaglectl.reference.target import load_target
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
    boundaries = drafter.aux.boundaries
    assert boundaries is not None
    model = load_drafter(root / "drafter", drafter, dtype="float32", device="cpu")
    loaded = load_target(TARGET, boundaries, dtype="float32", device="cpu")
    drafts, answers, length = _reference(
        SpeculativeDecoder(loaded, model, DecodingSettings(trained.K, COUNT)), prompts
    )
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


def _reference(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> tuple[list[list[list[int]]], list[list[int]], float]:
    propose, rows = DraftSession.draft, list[list[int]]()

    def recorded(self: DraftSession, verified: torch.Tensor) -> torch.Tensor:
        found = propose(self, verified)
        rows.append(found[0].tolist())
        return found

    DraftSession.draft = recorded  # type: ignore[method-assign]
    drafts, answers, accepted = [], [], 0
    for prompt in prompts:
        rows.clear()
        (found,) = decoder.run([prompt])
        drafts.append(list(rows))
        answers.append(list(found.tokens)[:COUNT])
        accepted += sum(found.accepted)
    return drafts, answers, 1 + accepted / sum(len(rounds) for rounds in drafts)


if __name__ == "__main__":
    main()
