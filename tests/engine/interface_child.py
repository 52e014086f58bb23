"""Run by test_interface for each of vLLM's runners: which names of the table its objects have in a run.

Arguments: the drafter's folder, and an answer's path.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglectl.run.vllm.child import llm_arguments, speculative_config, start_engine
from tests.tiny import TARGET
from tools.scan.interface import names

K = 2


def main() -> None:
    """Draft for one prompt, and write for each attribute of the table whether its owner has it."""
    from vllm import SamplingParams

    request: dict[str, Any] = {
        "target": str(TARGET),
        "drafter": sys.argv[1],
        "k": K,
        "seed": 0,
        "device": "cpu",
    }
    request |= {"is_mla": False, "is_mla_target": False}
    llm = start_engine(
        request, llm_arguments(request, 64) | {"speculative_config": speculative_config(request)}
    )
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    output = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)[0]
    Path(sys.argv[2]).write_text(json.dumps(dict(answers(owners(llm, output)))))


def answers(held: Mapping[str, list[Any]]) -> Iterator[tuple[str, bool]]:
    """Whether one of the owners of each attribute has it; without those that no owner was found of."""
    for row in names("vllm"):
        owner, _, attribute = row.name.rpartition(".")
        if row.kind == "attribute" and held.get(owner):
            yield row.name, any(hasattr(value, attribute) for value in held[owner])
        elif row.kind == "metric":
            yield row.name, any(metric.name == row.name for metric in held["metric"])


def owners(llm: Any, output: Any) -> dict[str, list[Any]]:
    """The objects of a run by the names that the table has for them."""
    import vllm
    from vllm.config import speculative
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.platforms import current_platform
    from vllm.v1.worker import cpu_model_runner

    config, client = llm.llm_engine.vllm_config, llm.llm_engine.engine_core
    core = client.engine_core
    worker = core.model_executor.driver_worker.worker
    runner = worker.model_runner
    proposers = {name: getattr(runner, name, None) for name in ("drafter", "speculator")}
    model = next(proposer.model for proposer in proposers.values() if proposer is not None)
    return {
        "vllm": [vllm],
        "speculative": [speculative],
        "DefaultModelLoader": [DefaultModelLoader],
        "cpu_model_runner": [cpu_model_runner],
        "EngineArgs": [EngineArgs],
        "current_platform": [current_platform],
        "llm": [llm],
        "llm_engine": [llm.llm_engine],
        "engine_core": [client],
        "core": [core],
        "scheduler": [core.scheduler],
        "request_output": [output],
        "completion_output": [*output.outputs],
        "metric": llm.get_metrics(),
        "vllm_config": [config],
        "device_config": [config.device_config],
        "model_config": [config.model_config],
        "speculative_config": [config.speculative_config],
        "worker": [worker],
        "runner": [runner],
        **{name: [proposer] for name, proposer in proposers.items() if proposer is not None},
        "target": [*runner.get_model().modules()],
        "draft_model": [model],
        "draft_inner": [model.model],
        "layer": [model.model.layers[0]],
        "fc": [model.model.fc],
    }


if __name__ == "__main__":
    main()
