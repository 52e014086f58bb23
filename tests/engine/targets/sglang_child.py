"""What SGLang's classes capture of tiny targets: imported once, then a fork for each architecture.

`python -m tests.engine.targets.sglang_child ANSWERS ARCHITECTURE...` runs these and writes {name: record};
without names, all of `models.py`.
"""

import os
from pathlib import Path
from typing import Any

# SGLang's Triton kernels, slowly, in NumPy
os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.sglang import stubs  # isort: skip

stubs.install()

from tests.engine.targets import sglang_kernels  # isort: skip

sglang_kernels.stand_in()

from tests.engine.sglang import engine  # isort: skip

import sglang.srt.models
import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.models.registry import ModelRegistry

from tests.engine.targets import models
from tests.engine.targets.asking import NotHereError, matched, record

sglang_kernels.stand_in_norms()
SOURCES = Path(sglang.srt.models.__path__[0])

# these classes refuse torch_native
NEEDS_TRITON = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "ExaoneMoeForCausalLM",
    "Glm4MoeLiteForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "GptOssForCausalLM",
)  # fmt: skip


def _refusal(name: str) -> str:
    cls = ModelRegistry.models.get(name)
    if cls is None and any(f"class {name}(" in file.read_text() for file in SOURCES.glob("*.py")):
        raise NotHereError("its module is not imported without a GPU")
    cls = cls or ModelRegistry.models["TransformersForCausalLM"]
    has_setter = hasattr(cls, "set_eagle3_layers_to_capture")
    return "" if has_setter else f"{cls.__name__} has no set_eagle3_layers_to_capture"


def _start(name: str, folder: Path) -> Any:
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *_: None
    engine.OPTIONS["attention_backend"] = "triton" if name in NEEDS_TRITON else "torch_native"
    return engine.start(folder)


def _captured(running: Any, states: models.States, ids: list[int] | None) -> list[int | str]:
    """The boundaries that the target hands to the head for these ids, by its states."""
    running.tp_worker.model_runner.model.set_eagle3_layers_to_capture(ids)
    held: list[Any] = []
    forward = LogitsProcessor.forward

    def watched(
        self: Any, ids: Any, hidden: Any, head: Any, batch: Any, aux: Any = None, *more: Any, **named: Any
    ) -> Any:
        held.append((hidden, aux))
        return forward(self, ids, hidden, head, batch, aux, *more, **named)

    LogitsProcessor.forward = watched
    engine.generate(running, [models.PROMPT], 1)
    hidden, aux = held[0]
    if isinstance(aux, torch.Tensor):
        aux = aux.split(states.final.shape[-1], -1)
    return matched(hidden, aux, states)


if __name__ == "__main__":
    record(_refusal, _start, _captured)
