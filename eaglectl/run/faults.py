"""Whose fault an engine's error is: the drafter's, the engine's set-up, the caller's, or eaglectl's own.

The drafter is at fault only where the engine's code for drafters raised: its loader, its classes, its
config, or its rounds. What a child process reports of an error is `error_answer` (acceptance/child.py).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.target_files import code_needed
from eaglectl.run.engine_arguments import unknown_argument
from eaglectl.run.process import EngineProcess, InstalledEngine
from eaglectl.text import listed

# modules of an engine that load or run drafters alone (vLLM's config/speculative.py, v1/spec_decode,
# v1/worker/gpu/spec_decode, models/*_eagle3.py; SGLang's srt/speculative, models/*_eagle3.py)
DRAFTER_MODULE = re.compile(r"^(?:vllm|sglang)\..*(?:speculative|spec_decode|eagle)")
# what engines say of a target that gives no hidden states to a drafter
PAIR = re.compile(r"does not support EAGLE-?3|EAGLE-?3 .*not supported|set_eagle3_layers_to_capture", re.I)
# the weight that a function of a drafter class multiplies by, where shapes do not fit
WEIGHTS = {"combine_hidden_states": "fc", "compute_logits": "lm_head"}
MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|Cannot allocate memory|Not enough memory|No available memory"
    r"|Free memory on device|KV cache is needed",
    re.I,
)
# what the set-up lacks, by what the engine says; the advice is the one thing to change
SETUP: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"No module named '([\w.]+)'"), "install the package {}"),
    (re.compile("cannot open shared object file|cannot import name"), "install the engine again"),
    (
        re.compile(r"CUDA error|CUDA driver|no CUDA|NVML|NCCL|device ordinal|Failed to infer device", re.I),
        "its device cannot be used; check it with nvidia-smi, or pass --device cpu with --run-in reference",
    ),
    (
        re.compile(r"attention.?backend|No valid attention", re.I),
        "its attention backends do not fit this device; name one with --engine-arg attention_backend=NAME",
    ),
    (
        re.compile(r"InterpreterError|triton|PTXAS|no kernel image", re.I),
        "its kernels do not run on this device; take a build that is made for it",
    ),
    (re.compile(r"No space left|Read-only file system|Permission denied"), "it cannot write its files"),
    (
        re.compile(r"world size|tensor.?parallel|number of GPUs", re.I),
        "give it another number of GPUs with --tensor-parallel-size",
    ),
)
# of a worker process: its engine says only that a worker failed
IN_WORKER = re.compile(r"root cause|Worker failed|EngineCore")
WORKER_FRAME = re.compile(r'File "[^"]*?((?:vllm|sglang)/[\w/]+)\.py", line \d+, in (\w+)')
ROOT_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")


def receive_answer(process: EngineProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request that was sent. Raises what `fault` makes of an error."""
    answer = process.receive()
    if "error" in answer:
        raise fault(process.engine, answer, request, process.output())
    return answer


def fault(
    engine: InstalledEngine, answer: Mapping[str, Any], request: Mapping[str, Any], output: str = ""
) -> EaglectlError:
    """The error to raise for a child's answer with "error".

    `output` is what the engine's processes printed: UnreadableError for its set-up or the target, UsageError
    for the user's arguments, RefusedError for the drafter, EaglectlError (exit code 70) for our own code.
    """
    if answer.get("needs_code"):
        return code_needed(Path(request["target"]))
    if "unknown" in answer:
        return unknown_argument(engine.title, answer)
    release = f"{engine.title} {answer.get('version', '')}".strip()
    text, frames = answer["error"], [(module, function) for module, function in answer.get("frames", ())]
    if "needs" in answer:
        return UnreadableError(f"{release}: {text}; install {answer['needs']}")
    if IN_WORKER.search(text):
        frames += [(match[1].replace("/", "."), match[2]) for match in WORKER_FRAME.finditer(output)]
        if cause := ROOT_CAUSE.search(output):
            text += f" ({cause[0][:400]})"
    if MEMORY.search(text):
        name = engine.memory_argument
        return UnreadableError(
            f"{release} could not look, as memory does not suffice: {text}; end what else uses the device, or"
            f" give the engine another share of it with --engine-arg {name}=0.5"
        )
    fields = answer.get("fields", ())
    if given := [name for name in fields if name in request["engine_arguments"]]:
        return UsageError(f"--engine-arg {listed(given)}: {release} says {text}")
    if fields:  # an argument that eaglectl sets
        frames.append(("eaglectl", f"its arguments, {listed(fields)}"))
    if frames and frames[-1][0].partition(".")[0] == "eaglectl":
        return EaglectlError(
            f"this is an error of eaglectl with {release}, and says nothing of the drafter: {text}"
            f" ({', '.join(frames[-1])}); report it, and use --run-in reference meanwhile"
        )
    return _run_fault(release, text, frames, answer, request)


def _run_fault(
    release: str,
    text: str,
    frames: Sequence[tuple[str, str]],
    answer: Mapping[str, Any],
    request: Mapping[str, Any],
) -> EaglectlError:
    for pattern, advice in SETUP:
        if match := pattern.search(text):
            return UnreadableError(f"{release} could not look: {text}; {advice.format(*match.groups())}")
    place = next((frame for frame in reversed(frames) if DRAFTER_MODULE.search(frame[0])), None)
    if request["mode"] != "plain" and (place or PAIR.search(text)):
        where = f" ({_where(place, answer)})" if place else ""
        return RefusedError(f"{release} does not run this drafter: {text}{where}")
    if request["mode"] == "generate" and request.get("has_plain"):
        return UnreadableError(
            f"{release} runs the target, and failed with the drafter outside its code for drafters: {text};"
            " --run-in reference runs without it"
        )
    return UnreadableError(f"{release} does not run the target {request['target']}: {text}")


def _where(place: tuple[str, str], answer: Mapping[str, Any]) -> str:
    """The tensor that was read when a loader failed, or the weight of the function, and that function."""
    module, function = place
    tensor = answer.get("tensor") if "load" in function else WEIGHTS.get(function)
    return "".join([f"tensor {tensor}, " if tensor else "", f"{module.rpartition('.')[2]}.py, {function}"])
