"""The target in the installed vLLM, for calibration: a child process answers and leaves states, one batch on disk at a time."""

import contextlib
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from eaglectl.acceptance.vllm_engine import ENVIRONMENT, end, require, tail
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import FolderSource
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines import vllm
from eaglectl.errors import Unreadable

if TYPE_CHECKING:
    import torch

    from eaglectl.reference.passes import States

ASKED, TOLD = "asked.json", "told.json"
MARGIN = 16  # as smoke leaves it
LOOK = 1.0  # seconds between looks at whether the child lives
GRACE = 10.0  # seconds that a child which has closed its end may take to be gone
FLOAT32 = 4
ROOT_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")


@dataclass(frozen=True, slots=True)
class Order:
    """What vLLM is to load, and for what: sequences of at most `length` tokens, `batch` of them at once."""

    target: Path
    boundaries: tuple[int, ...]
    dims: Dimensions
    length: int
    batch: int
    device: str
    tensor_parallel_size: int = 1
    timeout: float = 1800.0


class Child:
    """The process that runs vLLM; it tells something each time that it is asked, and once when it has started."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.folder, self.timeout = folder, timeout
        self.said: IO[bytes] = (folder / "said.txt").open("a+b")  # the child appends wherever this end reads
        environment = {**os.environ, **ENVIRONMENT}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eaglectl.acceptance.vllm_states_child", str(folder)],
            env=environment, start_new_session=True, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
        )  # fmt: skip

    def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """What the child tells to that. Raises Unreadable where it hangs, dies or says why it cannot."""
        (self.folder / ASKED).write_text(json.dumps(what))
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self.told()

    def told(self) -> dict[str, Any]:
        """What the child tells next."""
        until = time.monotonic() + self.timeout
        assert self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], LOOK)[0]:
            if self.process.poll() is not None:  # what it started may hold its end of the pipe
                raise self._ended()
            if time.monotonic() > until:
                raise Unreadable(
                    f"vLLM did not load the target, or did not finish a batch, within --timeout {self.timeout:g} s and was stopped"
                )
        if not self.process.stdout.read(1):
            raise self._ended()
        found: dict[str, Any] = json.loads((self.folder / TOLD).read_text())
        if "error" in found:
            raise Unreadable(f"vLLM does not run the target: {found['error']}{self._cause(found['error'])}")
        return found

    def close(self) -> None:
        """End the process and all that it started."""
        end(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.said):
            if stream is not None:
                stream.close()

    def _ended(self) -> Unreadable:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        return Unreadable(f"vLLM ended with code {self.process.poll()} and no answer: {tail(self._output())}")

    def _cause(self, error: str) -> str:
        """The error of a worker process, where vLLM only says that there was one."""
        causes = ROOT_CAUSE.findall(self._output()) if "root cause" in error.lower() else []
        return f" ({causes[0][:400]})" if causes else ""

    def _output(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace")


class VllmPasses:
    """The target in vLLM as `calibrate` asks for it (reference/passes.py)."""

    def __init__(self, child: Child, order: Order, engine: Mapping[str, str]) -> None:
        self.child, self.order, self.engine = child, order, engine
        self.layers = captured(order.boundaries)
        self._embedding: torch.Tensor | None = None

    @property
    def embedding(self) -> "torch.Tensor":
        """[vocab, hidden] out of the target's files, for drafters that share it."""
        from eaglectl.reference.loading import load_embedding

        if self._embedding is None:
            target = read_checkpoint(FolderSource(self.order.target))
            self._embedding = load_embedding(target, self.order.dims.vocab, self.order.dims.target_hidden)
        return self._embedding

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """So many greedy tokens after each sequence, past any end of sequence."""
        found = self.child.ask({"sequences": [list(ids) for ids in batch], "tokens": tokens})["answers"]
        if [len(answer) for answer in found] != [tokens] * len(batch):
            raise Unreadable(f"vLLM gave answers of {sorted({*map(len, found)})} tokens where {tokens} were asked for")
        return [list(answer) for answer in found]

    def states(self, batch: Sequence[Sequence[int]]) -> "States":
        """One pass over all tokens of these sequences; its files are gone after it."""
        from eaglectl.reference.loading import load_states
        from eaglectl.reference.passes import joined

        files = [
            Path(file) for file in self.child.ask({"sequences": [list(ids) for ids in batch], "tokens": 0})["files"]
        ]
        places = [self.layers.index(boundary) for boundary in self.order.boundaries]
        found = []
        for ids, file in zip(batch, files, strict=True):
            states = load_states(file, ids, len(self.layers), self.order.dims.target_hidden)
            found.append(states[:, places].flatten(1))
            file.unlink()
        return joined(batch, found)


def captured(boundaries: Sequence[int]) -> tuple[int, ...]:
    """The layer ids that vLLM is given: boundaries are its ids, and it captures each once, in order."""
    return tuple(sorted(set(boundaries)))


@contextlib.contextmanager
def vllm_passes(order: Order) -> Iterator[VllmPasses]:
    """The target loaded in vLLM. Raises Unreadable where vLLM is absent, hangs, dies, cannot run it, or is too old."""
    require("--engine transformers")
    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        child = Child(Path(name), order.timeout)
        try:
            release = str(child.told()["version"])
            if not vllm.extracts_states(release):
                raise Unreadable(
                    f"vLLM {release} does not give hidden states as calibration asks for them; install vLLM"
                    f" {vllm.data()['hidden_states']['releases']}, or use --engine transformers"
                )
            ran = child.ask(_loading(order))
            size = {"tensor_parallel_size": str(order.tensor_parallel_size)} if order.tensor_parallel_size > 1 else {}
            yield VllmPasses(child, order, {"name": "vllm", "vllm": release, **ran, **size})
        finally:
            child.close()


def _loading(order: Order) -> dict[str, Any]:
    config = json.loads((order.target / "config.json").read_text())
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    length = min(order.length + MARGIN, text.get("max_position_embeddings") or math.inf)
    # twice what a sequence takes where keys and values are as wide as the stream
    wide = 2 * text["num_hidden_layers"] + len(order.boundaries)
    return {
        "target": str(order.target.resolve()), "boundaries": captured(order.boundaries), "length": length, "batch": order.batch,
        "device": order.device, "tensor_parallel_size": order.tensor_parallel_size, "seed": 0, "is_mla_target": "kv_lora_rank" in text,
        "cache_bytes": 2 * length * wide * order.dims.target_hidden * FLOAT32,
    }  # fmt: skip
