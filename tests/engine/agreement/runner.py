"""What the real vLLM does with mutated drafters: imported once, then a fork for each case, with a timeout.

`python -m tests.engine.agreement.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that `records.json` does not have yet, which it is then merged into (ANSWERS is records.json).
AGREEMENT_ROOT names a folder for what the engine drafted, so that another reading of the same bytes can be
held against it without running them again.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    OMP_NUM_THREADS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import contextlib

import torch
from safetensors.torch import load_file
from vllm import LLM

import eaglectl
from eaglectl.api.converting import ConvertOptions
from eaglectl.drafter.drafter import Feature
from eaglectl.errors import EaglectlError
from eaglectl.reference.model import DraftModel
from tests.engine.agreement.bases import BASES, TARGETS, Base, drafter, target
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.records import Record, read, write
from tests.engine.parity_child import Rounds, difference, in_reference, in_vllm

LENGTHS = (1, 6, 31, 40)  # vLLM's blocks hold 32 tokens
PATIENCE = float(os.environ.get("AGREEMENT_PATIENCE", "90"))
SIDE_BY_SIDE = 4
TOLERANCE = 1e-3
CRASH = 70
HEAD = 110  # characters kept of a message


def main() -> None:
    """Run what the arguments ask for."""
    out, asked = Path(sys.argv[1]), sys.argv[2:]
    known = {} if asked else read(out)
    names = asked or [
        name
        for name, case in CASES.items()
        if name not in known or known[name].digest != case.files().digest()
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "drafts").symlink_to(os.environ["AGREEMENT_ROOT"]) if "AGREEMENT_ROOT" in os.environ else (
            root / "drafts"
        ).mkdir()
        for kind in TARGETS:
            target(kind).write(root / "targets" / kind)
        bases = {CASES[name].base for name in names}
        _forked(root, [f"base/{base}" for base in BASES if base in bases])
        for place in range(0, len(names), 20):
            known |= _forked(root, names[place : place + 20])
            kept = known if asked else {name: known[name] for name in CASES if name in known}
            write(out, kept)
            print(f"{min(place + 20, len(names))} of {len(names)}", file=sys.stderr, flush=True)


def _forked(root: Path, names: list[str]) -> dict[str, Record]:
    """Each in a process group of its own, so that whatever it started goes with it."""
    waiting, running, found = list(names), dict[int, tuple[str, float]](), dict[str, Record]()
    while waiting or running:
        while waiting and len(running) < SIDE_BY_SIDE:
            name = waiting.pop(0)
            child = os.fork()
            if child == 0:
                _child(root, name)
            running[child] = name, time.monotonic() + PATIENCE
        for child, (name, deadline) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() < deadline:
                continue
            said = "no end within the time given" if not ended else f"ended with {_ending(status)}"
            _end(child, is_alive=not ended)
            del running[child]
            if ended and os.WIFEXITED(status) and os.WEXITSTATUS(status) == CRASH:
                sys.exit(
                    f"{name}: the runner itself"
                    f" failed\n{(root / 'logs' / name.replace('/', '--')).read_text()[-2000:]}"
                )
            found[name] = _answer(root, name, said)
        time.sleep(0.02)
    return found


def _ending(status: int) -> str:
    return (
        signal.Signals(os.WTERMSIG(status)).name
        if os.WIFSIGNALED(status)
        else f"code {os.WEXITSTATUS(status)}"
    )


def _end(child: int, *, is_alive: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if is_alive:
        os.waitpid(child, 0)


def _answer(root: Path, name: str, said: str) -> Record:
    path = root / "answers" / name.replace("/", "--")
    digest = CASES[name].files().digest() if name in CASES else ""
    return Record(digest, *json.loads(path.read_text())) if path.exists() else Record(digest, "dies", said)


def _child(root: Path, name: str) -> None:
    """In the fork: run, write the answer, leave."""
    os.setsid()
    place = name.replace("/", "--")
    for folder in ("logs", "answers"):
        (root / folder).mkdir(exist_ok=True)
    log = os.open(root / "logs" / place, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = CRASH
    try:
        torch.set_num_threads(1)
        answer = _base(root, name.removeprefix("base/")) if name.startswith("base/") else _case(root, name)
        (root / "answers" / place).write_text(json.dumps(answer))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def prompts() -> list[list[int]]:
    """The token ids that every drafter drafts behind."""
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (length,), generator=dice).tolist() for length in LENGTHS]


def _base(root: Path, name: str) -> tuple[str, str]:
    files = drafter(name)
    _engine(root, BASES[name], files.write(root / "bases" / name), files.digest())
    return "as base", ""


def _engine(root: Path, base: Base, folder: Path, digest: str) -> list[Rounds]:
    """What vLLM drafts with these bytes, kept under their digest."""
    kept = root / "drafts" / digest
    if not kept.exists():
        place = root / "targets" / base.kind
        drafted = in_vllm(place, folder, prompts(), is_mla=base.kind == "mla", skip_tokenizer_init=True)[0]
        torch.save(drafted, kept)
    found: list[Rounds] = torch.load(kept)
    return found


def _case(root: Path, name: str) -> tuple[str, str]:
    case = CASES[name]
    base = BASES[case.base]
    files = case.files()
    folder = files.write(root / "cases" / name)
    stage, generate = ["at load"], LLM.generate

    def watched(*arguments: Any, **named: Any) -> Any:
        stage[0] = "at a request"
        return generate(*arguments, **named)

    LLM.generate = watched
    try:
        drafted = _engine(root, base, folder, files.digest())
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = " | ".join(lines[:2]) or "(no message)"
        return "raises", f"{stage[0]}: {type(error).__name__}: {told.replace(str(root), '')}"[:HEAD]
    meant, reason = _meaning(root, base, folder)
    if meant is not None:
        return (
            ("as meant", "")
            if _same(drafted, meant)
            else ("differently", _likeness(drafted, root, case.base))
        )
    is_base = _same(drafted, _good(root, case.base))
    return ("as base" if is_base else "differently"), f"no meaning: {reason}".replace(str(root), "")[:HEAD]


def _good(root: Path, base: str) -> list[Rounds]:
    found: list[Rounds] = torch.load(root / "drafts" / drafter(base).digest())
    return found


def _likeness(drafted: list[Rounds], root: Path, base: str) -> str:
    return "drafts as the base, not as meant" if _same(drafted, _good(root, base)) else "not as meant"


def _meaning(root: Path, base: Base, folder: Path) -> tuple[list[Rounds] | None, str]:
    """What eaglectl's reference engine drafts with the checkpoint as it is written, or why it means
    nothing.
    """
    place, out = root / "targets" / base.kind, folder.parent / f"{folder.name}-meant"
    try:
        meant = eaglectl.convert(str(folder), out, ConvertOptions(target=str(place))).plan.drafter
        if problem := _nonsense(out):
            return None, problem
        if Feature.SLIDING_WINDOW in meant.features():
            _narrow(int(meant.carried["sliding_window"]))
        return in_reference(place, out, meant, prompts())[0], ""
    except EaglectlError as error:
        return None, str(error)
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError) as error:
        return None, f"the reference cannot run it: {type(error).__name__} {error}"


def _narrow(window: int) -> None:
    """Let the reference, which has no windows, look back no further than `window` tokens, the own one among
    them.
    """
    forward = DraftModel.forward

    def windowed(
        self: Any, embeddings: Any, state: Any, positions: Any, caches: Any, mask: torch.Tensor
    ) -> torch.Tensor:
        behind = mask.sum(-1, keepdim=True) - mask.cumsum(-1)
        return forward(self, embeddings, state, positions, caches, mask & (behind < window))

    DraftModel.forward = windowed


def _nonsense(folder: Path) -> str:
    """Why no training can have written these tensors, if so."""
    weights = {
        name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            return f"{name} is not finite"
    if "d2t" in weights:
        targets = (weights["d2t"] + torch.arange(len(weights["d2t"]))).tolist()
        if len(set(targets)) < len(targets) or min(targets) < 0 or max(targets) >= 256:
            return "draft tokens share a target, or have none"
    return ""


def _same(one: list[Rounds], other: list[Rounds]) -> bool:
    """Whether all drafted tokens agree, and the logits they were taken from."""
    for ours, theirs in zip(one, other, strict=True):
        for (tokens, logits), (their_tokens, their_logits) in zip(ours, theirs, strict=False):
            if tokens != their_tokens:
                return False
            for left, right in zip(logits, their_logits, strict=True):
                if left.shape != right.shape or not difference(left, right) < TOLERANCE:
                    return False
    return True


if __name__ == "__main__":
    main()
