"""The target in the installed vLLM, in a child process, for calibration."""

import contextlib
import functools
import json
import math
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct, field

from eaglectl.acceptance.engine_arguments import unknown_argument
from eaglectl.acceptance.process import ANSWER, REQUEST, VLLM, kill_session, last_lines
from eaglectl.acceptance.tokens import read_context_length
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.checkpoint.source import FolderSource
from eaglectl.checkpoint.target_files import check_files, code_needed, read_target_config, text_part
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines import vllm
from eaglectl.errors import UnreadableError

if TYPE_CHECKING:
    import torch

    from eaglectl.reference.target_engine import AuxStates

MARGIN = 16  # tokens of context beyond the longest sequence, as in child.py
POLL = 1.0  # seconds between checks whether the child still runs
EXIT_TIMEOUT = 10.0  # seconds for a child that has closed its pipe to exit
FLOAT32_BYTES = 4
ROOT_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")


class VllmOptions(Struct, frozen=True):
    """What vLLM loads: a target for `batch` sequences of at most `length` tokens at once, on so many GPUs.

    `timeout` is in seconds, for loading and for each batch. `needs_tokenizer`: the target has one to load.
    `engine_arguments` are passed to vLLM's LLM.
    """

    target: Path
    boundaries: tuple[int, ...]
    dims: Dimensions
    length: int
    batch: int
    device: str
    tensor_parallel_size: int = 1
    timeout: float = 1800.0
    trust_remote_code: bool = False
    needs_tokenizer: bool = True
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)


class Child:
    """The process that runs vLLM (states_child.py): it answers at its start, and then each request."""

    def __init__(self, folder: Path, target: Path, timeout: float) -> None:
        self.folder, self.target, self.timeout = folder, target, timeout
        # append mode: the child writes at the end, wherever this process reads
        self.output: IO[bytes] = (folder / "output.txt").open("a+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eaglectl.acceptance.vllm.states_child", str(folder)],
            env=VLLM.child_environment(),
            start_new_session=True,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
        )

    def request(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises UnreadableError where the child hangs, dies or reports an error."""
        (self.folder / REQUEST).write_text(json.dumps(document), encoding="utf-8")
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The child's next answer. Raises as `request` does."""
        deadline = time.monotonic() + self.timeout
        assert self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], POLL)[0]:
            # a process that the child started may hold its end of the pipe open
            if self.process.poll() is not None:
                raise self._ended()
            if time.monotonic() > deadline:
                raise UnreadableError(
                    "vLLM did not load the target, or did not finish a batch, within --timeout"
                    f" {self.timeout:g} s and was stopped"
                )
        if not self.process.stdout.read(1):
            raise self._ended()
        document: dict[str, Any] = json.loads((self.folder / ANSWER).read_text(encoding="utf-8"))
        if document.get("needs_code"):
            raise code_needed(self.target)
        if "unknown" in document:
            raise unknown_argument("vLLM", document)
        if "error" in document:
            error = document["error"]
            raise UnreadableError(f"vLLM does not run the target: {error}{self._root_cause(error)}")
        return document

    def close(self) -> None:
        """Kill the process and all that it started."""
        kill_session(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.output):
            if stream is not None:
                stream.close()

    def _ended(self) -> UnreadableError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_TIMEOUT)
        code = self.process.poll()
        return UnreadableError(f"vLLM ended with code {code} and no answer: {last_lines(self._output())}")

    def _root_cause(self, error: str) -> str:
        """The error of a worker process, where vLLM's own error only refers to it."""
        causes = ROOT_CAUSE.findall(self._output()) if "root cause" in error.lower() else []
        return f" ({causes[0][:400]})" if causes else ""

    def _output(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


class VllmEngine:
    """The target in vLLM; a `TargetEngine` (reference/target_engine.py)."""

    def __init__(self, child: Child, options: VllmOptions, engine: Mapping[str, str]) -> None:
        self.child, self.options, self.engine = child, options, engine
        self.layers = captured_layers(options.boundaries)

    @functools.cached_property
    def embedding(self) -> "torch.Tensor":
        """The target's input embedding [vocab, hidden] from its files, for drafters that share it."""
        from eaglectl.reference.loading import load_embedding

        target, dims = read_checkpoint(FolderSource(self.options.target)), self.options.dims
        return load_embedding(target, dims.vocab, dims.target_hidden)

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        answers = self._run(batch, tokens)["answers"]
        if [len(answer) for answer in answers] != [tokens] * len(batch):
            lengths = sorted({*map(len, answers)})
            raise UnreadableError(f"vLLM gave answers of {lengths} tokens where {tokens} were asked for")
        return [list(answer) for answer in answers]

    def states(self, batch: Sequence[Sequence[int]]) -> "AuxStates":
        """Aux hidden states of all tokens of these sequences; vLLM's files are removed."""
        from eaglectl.reference.loading import load_states
        from eaglectl.reference.target_engine import join_states

        files = [Path(file) for file in self._run(batch, 0)["files"]]
        columns = [self.layers.index(boundary) for boundary in self.options.boundaries]
        aux = []
        for ids, file in zip(batch, files, strict=True):
            states = load_states(file, ids, len(self.layers), self.options.dims.target_hidden)
            aux.append(states[:, columns].flatten(1))
            file.unlink()
        return join_states(batch, aux)

    def _run(self, batch: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        return self.child.request({"sequences": [list(ids) for ids in batch], "tokens": tokens})


def captured_layers(boundaries: Sequence[int]) -> tuple[int, ...]:
    """The layer ids for vLLM: its ids are boundaries, and it captures each once, in order."""
    return tuple(sorted(set(boundaries)))


@contextlib.contextmanager
def start_vllm(options: VllmOptions) -> Iterator[VllmEngine]:
    """The target loaded in vLLM. Raises UnreadableError where vLLM is absent, too old, or fails."""
    VLLM.require("--engine transformers")
    check_files(options.target)
    with scratch_folder() as folder:
        child = Child(folder, options.target, options.timeout)
        try:
            release = str(child.answer()["version"])
            if not vllm.extracts_states(release):
                raise UnreadableError(
                    f"vLLM {release} does not give hidden states as calibration asks for them; install vLLM"
                    f" {vllm.ENGINE.data['hidden_states']['releases']}, or use --engine transformers"
                )
            engine = {"name": "vllm", "vllm": release, **child.request(_load_request(options))}
            if options.tensor_parallel_size > 1:
                engine["tensor_parallel_size"] = str(options.tensor_parallel_size)
            if options.engine_arguments:
                engine["arguments"] = json.dumps(options.engine_arguments)
            yield VllmEngine(child, options, engine)
        finally:
            child.close()


def _load_request(options: VllmOptions) -> dict[str, Any]:
    text_config = text_part(read_target_config(options.target))
    length = min(options.length + MARGIN, read_context_length(options.target) or math.inf)
    # twice the cache of one sequence whose keys and values are as wide as its residual stream
    layers = 2 * text_config["num_hidden_layers"] + len(options.boundaries)
    return {
        "target": str(options.target.resolve()),
        "boundaries": captured_layers(options.boundaries),
        "length": length,
        "batch": options.batch,
        "device": options.device,
        "tensor_parallel_size": options.tensor_parallel_size,
        "engine_arguments": dict(options.engine_arguments),
        "seed": 0,
        "trust_remote_code": options.trust_remote_code,
        "needs_tokenizer": options.needs_tokenizer,
        "is_mla_target": "kv_lora_rank" in text_config,
        "cache_bytes": 2 * length * layers * options.dims.target_hidden * FLOAT32_BYTES,
    }
