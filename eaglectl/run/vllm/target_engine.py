"""The target in the installed vLLM, in a child process, for calibration."""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.engines import vllm
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import check_files, read_target_config, text_part
from eaglectl.run.faults import receive_answer
from eaglectl.run.installed import ENGINE_BYTES, activation_bytes, weight_bytes
from eaglectl.run.job import EngineJob
from eaglectl.run.process import VLLM
from eaglectl.run.prompts import BATCH
from eaglectl.run.tokens import read_context_length

if TYPE_CHECKING:
    import torch

    from eaglectl.reference.states import AuxStates

MARGIN = 16  # tokens of context beyond the longest sequence
FLOAT32_BYTES = 4
CACHE_BYTES = 256 << 20  # the least of vLLM's cache


class VllmEngine:
    """The target in vLLM; a `TargetEngine` (reference/states.py)."""

    def __init__(
        self,
        job: EngineJob,
        engine: Mapping[str, str],
        ask: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self.engine, self.ask = engine, ask
        self.target, self.dims = job.target, job.drafter.dims
        boundaries = job.drafter.aux.boundaries or ()
        # vLLM's ids are boundaries, and it captures each once, in order
        self.layers = sorted(set(boundaries))
        self.columns = [self.layers.index(boundary) for boundary in boundaries]

    @functools.cached_property
    def embedding(self) -> "torch.Tensor":
        """The target's input embedding [vocab, hidden] from its files, for drafters that share it."""
        from eaglectl.reference.states import load_embedding

        target = read_checkpoint(FolderSource(self.target))
        return load_embedding(target, self.dims.vocab, self.dims.target_hidden)

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        answers = self._run(batch, tokens)["answers"]
        if [len(answer) for answer in answers] != [tokens] * len(batch):
            lengths = sorted({*map(len, answers)})
            raise UnreadableError(f"vLLM gave answers of {lengths} tokens where {tokens} were asked for")
        return [list(answer) for answer in answers]

    def states(self, batch: Sequence[Sequence[int]]) -> "AuxStates":
        """Aux hidden states of all tokens of these sequences; vLLM's files are removed."""
        from eaglectl.reference.states import join_states, load_states

        files = [Path(file) for file in self._run(batch, 0)["files"]]
        aux = []
        for ids, file in zip(batch, files, strict=True):
            states = load_states(file, ids, len(self.layers), self.dims.target_hidden)
            aux.append(states[:, self.columns].flatten(1))
            file.unlink()
        return join_states(batch, aux)

    def _run(self, batch: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        return self.ask({"mode": "states", "sequences": [list(ids) for ids in batch], "tokens": tokens})


@contextlib.contextmanager
def start_vllm(job: EngineJob, length: int) -> Iterator[VllmEngine]:
    """The target loaded in vLLM, for batches of sequences of at most `length` tokens.

    Loading and each batch may take the job's timeout. Raises UnreadableError where vLLM is absent, too old,
    or fails.
    """
    VLLM.require("--run-in transformers")
    check_files(job.target)
    with VLLM.started(job.timeout) as process:
        base = _base_request(job, length) | {"folder": str(process.folder)}

        def ask(request: Mapping[str, Any]) -> dict[str, Any]:
            whole = {**base, **request}
            process.send(whole)
            return receive_answer(process, whole)

        release = str(ask({"mode": "memory"})["version"])
        if not vllm.extracts_states(release):
            raise UnreadableError(
                f"vLLM {release} does not give hidden states as calibration asks for them; install vLLM"
                f" {vllm.ENGINE.data['hidden_states']['releases']}, or use --run-in transformers"
            )
        described = ask({"mode": "open states"})
        engine = {"name": "vllm", "vllm": release, "device": described["device"], "dtype": described["dtype"]}
        if job.tensor_parallel_size > 1:
            engine["tensor_parallel_size"] = str(job.tensor_parallel_size)
        if job.engine_arguments:
            engine["arguments"] = json.dumps(job.engine_arguments)
        yield VllmEngine(job, engine, ask)


def _base_request(job: EngineJob, longest: int) -> dict[str, Any]:
    text_config = text_part(read_target_config(job.target))
    length = min(longest + MARGIN, read_context_length(job.target) or math.inf)
    # twice the cache of one sequence whose keys and values are as wide as its residual stream
    boundaries = job.drafter.aux.boundaries or ()
    layers = 2 * text_config["num_hidden_layers"] + len(boundaries)
    cache = 2 * length * layers * job.drafter.dims.target_hidden * FLOAT32_BYTES
    weights = weight_bytes(job.target) // job.tensor_parallel_size
    return {
        "target": str(job.target.resolve()),
        "boundaries": sorted(set(boundaries)),
        "length": length,
        "batch": BATCH,
        "device": job.device,
        "tensor_parallel_size": job.tensor_parallel_size,
        "engine_arguments": dict(job.engine_arguments),
        "seed": 0,
        "trust_remote_code": job.trust_remote_code,
        "needs_tokenizer": job.needs_tokenizer,
        "is_mla_target": "kv_lora_rank" in text_config,
        "cache_bytes": max(cache, CACHE_BYTES),
        "memory_bytes": weights + BATCH * cache + activation_bytes(text_config) + ENGINE_BYTES,
    }
