"""Run by test_runners, once for each of vLLM's runners (ENGINE_RUNNER): what it captures, drafts and answers.

Arguments: an empty folder, the drafter of the trained pair, and an answer's path.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine import parity_child  # isort: skip

import eaglectl
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.vllm.child import captured_layers, llm_arguments, speculative_config, start_engine
from tests.engine import trained
from tests.engine.agreement.bases import target
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.forks import Death, forked
from tests.engine.rounds import K, in_reference
from tests.engine.spellings import SPELLINGS
from tests.tiny import TARGET

PATIENCE = 400.0
TRAINED = "trained pair"


def main() -> None:
    """Run every spelling and the trained pair, each in a fork."""
    root, drafter, out = (Path(word) for word in sys.argv[1:])
    target("llama").write(root / "target")
    found = forked(root, [TRAINED, *SPELLINGS], partial(_answer, root, drafter), PATIENCE, side_by_side=2)
    out.write_text(json.dumps({name: _said(answer) for name, answer in found.items()}))


def _said(answer: Any) -> Any:
    return {"error": answer.reason} if isinstance(answer, Death) else answer


def _answer(root: Path, drafter: Path, name: str) -> Any:
    return _trained(root, drafter) if name == TRAINED else _captured(root, name)


def _captured(root: Path, name: str) -> dict[str, Any]:
    """The class of the runner that started, and the layers that its target captures."""
    folder = CASES[name].files().write(root / "cases" / name)
    request = {
        "target": str(root / "target"),
        "drafter": str(folder),
        "k": K,
        "seed": 0,
        "device": "cpu",
        "is_mla": False,
        "is_mla_target": False,
        "needs_tokenizer": False,
    }
    llm = start_engine(
        request, llm_arguments(request, 128) | {"speculative_config": speculative_config(request)}
    )
    runner = parity_child.runner_of(llm)
    return {"module": type(runner).__module__, "layers": captured_layers(runner.get_model())}


def _trained(root: Path, drafter: Path) -> dict[str, Any]:
    """The trained pair on the same prompts in this runner and in the reference."""
    prompts = trained.prompts()
    folder = root / "drafter"
    meant = eaglectl.convert(str(drafter), folder, ConvertOptions(target=str(TARGET))).plan.drafter
    rounds, output = parity_child.in_vllm(TARGET, folder, prompts, is_mla=False)
    vocab = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    ours, generated = in_reference(TARGET, folder, meant, prompts, vocab)
    return {
        "drafts": [[tokens for tokens, _ in prompt] for prompt in rounds],
        "reference_drafts": [[tokens for tokens, _ in prompt] for prompt in ours],
        "tokens": output,
        "reference_tokens": [found.tokens for found in generated],
    }


if __name__ == "__main__":
    main()
