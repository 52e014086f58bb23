"""What vLLM's classes capture of tiny targets: imported once, then a fork for each architecture.

`python -m tests.engine.targets.vllm_child ANSWERS ARCHITECTURE...` runs these and writes {name: record};
without names, all of `models.py`.
"""

import os
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_USE_V2_MODEL_RUNNER="0",
    OMP_NUM_THREADS="1",
    # compiling small functions does not end in a fork, and changes nothing of what they return
    TORCHDYNAMO_DISABLE="1",
)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tests.engine.sglang import stubs  # isort: skip

# imported at module level by the classes of targets with a vision tower; the index's builds are CUDA's
stubs.install(("torchvision", "torchaudio"))

from vllm import LLM, SamplingParams
from vllm.model_executor.models import registry
from vllm.model_executor.models.interfaces import supports_eagle3

from eaglectl.run.vllm.child import llm_arguments
from tests.engine.targets import models
from tests.engine.targets.asking import matched, record

LENGTH = 64

# vLLM looks at a class in another process, to keep off CUDA; that one has no stubs
registry._run_in_subprocess = lambda function: function()


def _refusal(name: str) -> str:
    known = registry.ModelRegistry.models
    cls = (known.get(name) or known["TransformersForCausalLM"]).load_model_cls()
    return "" if supports_eagle3(cls) else f"supports_eagle3({cls.__name__}) is false"


def _start(name: str, folder: Path) -> Any:
    """vLLM with a tiny target, without prompts of images."""
    request = {"target": str(folder), "seed": 0, "device": "cpu", "is_mla_target": models.is_mla(name)}
    extra: dict[str, Any] = {"language_model_only": True} if name in models.WRAPPERS else {}
    arguments = llm_arguments(request | {"needs_tokenizer": False}, LENGTH)
    return LLM(**arguments | extra | {"dtype": models.dtype(name)})


def _captured(llm: Any, states: models.States, ids: list[int] | None) -> list[int | str]:
    """The boundaries that the target hands out for these ids, by its states."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    layers = model.get_eagle3_default_aux_hidden_state_layers() if ids is None else tuple(ids)
    model.set_aux_hidden_state_layers(layers)
    runner.use_aux_hidden_state_outputs = True
    outputs: list[Any] = []
    forward = model.forward

    def watched(*arguments: Any, **named: Any) -> Any:
        outputs.append(forward(*arguments, **named))
        return outputs[-1]

    model.forward = watched
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": models.PROMPT}], params, use_tqdm=False)
    hidden, aux = outputs[0]
    return matched(hidden, aux, states)


if __name__ == "__main__":
    record(_refusal, _start, _captured)
