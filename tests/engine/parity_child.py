"""Run by test_parity: every case in a fork, vLLM and the reference side by side; an answer a case."""

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1"
)

if os.environ.get("ENGINE_RUNNER") == "V2":
    import tests.engine.interpreted  # noqa: F401
else:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"

import torch
import vllm
from msgspec.structs import replace
from vllm import LLM, SamplingParams
from vllm.model_executor.models import registry

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.conversion.rewriting import evaluate
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.behaviour import is_since
from eaglectl.files.checkpoint import open_source, read_checkpoint
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.run.vllm.child import llm_arguments, speculative_config, start_engine
from eaglectl.run.vllm.resolved import PROPOSERS
from eaglectl.target.choice import open_target
from tests.engine import pairs
from tests.engine.agreement.forks import Death, forked
from tests.engine.logits import difference
from tests.engine.rounds import NEW_TOKENS, K, Rounds, in_reference, prompts

# else each start looks at the classes of its models in a process that imports vLLM anew
registry._run_in_subprocess = lambda function: function()
RELEASE = vllm.__version__.partition("+")[0]
RUNNER = "V2" if os.environ.get("ENGINE_RUNNER") == "V2" else "V1"
PATIENCE = 120.0 if RUNNER == "V1" else 400.0
SIDE_BY_SIDE = 2
# map of MLA -> the fixture it starts from; all written in float32, so that no rounding hides an error
MAPS = {"scale": "automodel/mla", "query": "vllm/mla"}


def main() -> None:
    """Arguments: a folder with the targets, an answer's path, and paths of fixtures, or names of MAPS."""
    root, out, *names = sys.argv[1:]
    found = forked(Path(root), names, partial(_answer, Path(root)), PATIENCE, SIDE_BY_SIDE)
    dead = {name: {"error": answer.reason} for name, answer in found.items() if isinstance(answer, Death)}
    Path(out).write_text(json.dumps(found | dead))


def _answer(root: Path, name: str) -> dict[str, Any]:
    try:
        return run(root, name)
    except BaseException:
        return {"error": traceback.format_exc()}


def run(root: Path, name: str) -> dict[str, Any]:
    """Both sides on the same prompts, compared step by step.

    Of a map, vLLM on the converted drafter and the reference on the source.
    """
    path = MAPS.get(name, name)
    target, folder = root / ("mla" if pairs.case(path).attention == "MLA" else "llama"), root / name
    folder.parent.mkdir(exist_ok=True)
    if name in MAPS:
        source, drafter, plain = _source(path, target, root / f"{name}-source", without_rank=name == "query")
        options = ConvertOptions(
            dtype="F32", has_query_lora=name == "query", target=str(target), answers=answers(path)
        )
        eaglectl.convert(str(source), folder, options)
    else:
        drafter, plain = pairs.drafter(path, target, folder), folder
    theirs, their_output = in_vllm(target, folder, prompts(), is_mla=drafter.dims.attention == "MLA")
    ours, generated = in_reference(target, plain, drafter, prompts())
    rounds = [pair for one, other in zip(theirs, ours, strict=True) for pair in zip(one, other, strict=False)]
    differences = [
        difference(one, other)
        for (_, one_logits), (_, other_logits) in rounds
        for one, other in zip(one_logits, other_logits, strict=True)
    ]
    return {
        "rounds": sum(map(len, ours)),
        "difference": max(differences),
        "is_draft_equal": all(one == other for (one, _), (other, _) in rounds),
        "is_output_equal": their_output == [found.tokens for found in generated],
        "accepted": sum(found.accepted[0] for found in generated),
    }


def answers(path: str) -> Answers:
    """What a fixture's file leaves open; its own rope is the one that both sides compute with."""
    known = pairs.case(path).answered()
    return replace(known, semantics={**known.semantics, "rope": "stored"})


def _source(path: str, target: Path, folder: Path, *, without_rank: bool) -> tuple[Path, Drafter, Path]:
    """A copy of a fixture whose head says what the target says, and the same for the reference."""
    source = pairs.case(path).folder
    tensors, config = pairs.tensors(source), json.loads((source / "config.json").read_text())
    drafted = torch.arange(len(tensors["lm_head.weight"])) + tensors.get("d2t", torch.tensor(0))
    tensors["lm_head.weight"] = pairs.hushed(tensors["lm_head.weight"], drafted)
    if without_rank:
        at, config["q_lora_rank"] = "layers.0.self_attn.", None
        lora = [tensors.pop(f"{at}{part}.weight") for part in ("q_b_proj", "q_a_proj", "q_a_layernorm")]
        dice = torch.Generator().manual_seed(2)
        query = torch.randn(lora[0].shape[0], lora[1].shape[1], generator=dice) * 0.3
        tensors[f"{at}q_proj.weight"] = query.bfloat16()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    pairs.write(tensors, folder)
    checkpoint = read_checkpoint(open_source(str(folder)))
    drafter = read_drafter(checkpoint, answers(path), open_target(str(target)))
    plain = folder.with_name(folder.name.replace("-source", "-plain"))
    plain.mkdir()
    floats = {
        name: torch.from_numpy(evaluate(t, checkpoint).copy()).float()
        for name, t in drafter.tensors.items()
        if name not in ("d2t", "t2d")
    }
    pairs.write(floats | ({"d2t": tensors["d2t"]} if "d2t" in tensors else {}), plain)
    return folder, drafter, plain


def in_vllm(
    target: Path,
    folder: Path,
    prompts: list[list[int]],
    *,
    is_mla: bool,
    is_parallel: bool = False,
    **options: Any,
) -> tuple[list[Rounds], list[tuple[int, ...]]]:
    """vLLM as smoke starts it, what its proposer computes recorded; `options` are more of LLM's."""
    request = pairs.request_of(
        target, folder, K, is_mla=is_mla, is_parallel=is_parallel, needs_tokenizer=True
    )
    given = {**options, **in_process(), "speculative_config": speculative_config(request)}
    llm = start_engine(request, llm_arguments(request, 128) | given)
    drafter: Any = getattr(runner_of(llm), PROPOSERS[RUNNER])
    logits: list[torch.Tensor] = []
    rounds: Rounds = []
    compute, propose = drafter.model.compute_logits, drafter.propose

    def recorded_compute(states: torch.Tensor) -> torch.Tensor:
        found = compute(states)
        # of one sequence: all tokens where they are drafted in one pass
        logits.extend(found[: K if is_parallel else 1].clone())
        return found

    def recorded_propose(*arguments: Any, **named: Any) -> torch.Tensor:
        logits.clear()
        found = propose(*arguments, **named)
        rounds.append((found[0].tolist(), list(logits)))
        return found

    drafter.model.compute_logits, drafter.propose = recorded_compute, recorded_propose
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    every, outputs = [], []
    for ids in prompts:
        rounds.clear()
        found = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        outputs.append(tuple(found[0].outputs[0].token_ids))
        every.append(list(rounds))
    return every, outputs


def in_process() -> dict[str, Any]:
    """What keeps the worker in this process: CPU builds before 0.24.0 take their "uni" for one of its own."""
    if is_since("0.24.0", RELEASE):
        return {}
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return {"distributed_executor_backend": UniProcExecutor}


def runner_of(llm: LLM) -> Any:
    """The model runner of vLLM's one worker, which is in this process."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


if __name__ == "__main__":
    main()
