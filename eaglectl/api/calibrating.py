"""Statistics of a drafter's target, for a conversion to EAGLE-3.1."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.api.converting import convert, readable_folder
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import FolderSource, on_disk, open_folder
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter

if TYPE_CHECKING:
    from eaglectl.acceptance.prompts import Prompt
    from eaglectl.conversion.calibration import Statistics
    from eaglectl.reference.collecting import Batch
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.passes import Passes

ANSWER_TOKENS = 64
BATCH = 16
ENGINES = ("transformers", "vllm")
TIMEOUT = 1800.0
GATE_SHARE = 3
SHORTEST = 4  # token 0 is left out, and two more follow the last state that is looked at


@dataclass(frozen=True, slots=True)
class Way:
    """What runs the target, and where. `timeout` is in seconds, for vLLM to load, and for each of its batches."""

    engine: str = "transformers"
    device: str = "auto"
    tensor_parallel_size: int = 1
    timeout: float = TIMEOUT


def calibrate(
    source: str, target: str, out: str | Path | None = None, *, prompts: str | Path | None = None, answer_tokens: int = ANSWER_TOKENS, device: str = "auto",
    engine: str = "transformers", tensor_parallel_size: int = 1, timeout: float = TIMEOUT, answers: Answers | None = None, force: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> "Statistics":  # fmt: skip
    """Run the target over prompts and its own greedy answers, and collect what `convert --to 3.1` needs; written to `out` where one is given.

    `engine` runs the target: transformers in this process, or the installed vLLM in a child, over so many GPUs.
    Raises Unreadable without torch, the engine, the device or the target's weights, Refused and Usage as `convert` does.
    """
    from eaglectl.acceptance.prompts import builtin_prompts, read_prompts
    from eaglectl.checkpoint.writer import STATISTICS, check_apart, check_free
    from eaglectl.conversion.calibration import write_statistics

    way = Way(engine, device, tensor_parallel_size, timeout)
    check_way(way)
    if out is not None:
        for given in map(Path, (source, target, *([] if prompts is None else [prompts]))):
            check_apart(Path(out), given)
        check_free(Path(out), force=force, kind=STATISTICS)
    chosen = read_prompts(Path(prompts)) if prompts is not None else shared(builtin_prompts())[0]
    found = collected(source, target, chosen, answer_tokens=answer_tokens, way=way, answers=answers, told=told)
    if out is not None:
        write_statistics(found, Path(out), force=force)
    return found


def check_way(way: Way) -> None:
    """Raise Usage for an engine that is not known, or options that are another's."""
    if way.engine not in ENGINES:
        raise Usage(f"--engine {way.engine}: {' or '.join(ENGINES)} was expected")
    if way.tensor_parallel_size < 1 or way.timeout <= 0:
        raise Usage("--tensor-parallel-size needs to be at least 1, and --timeout more than 0")
    if way.tensor_parallel_size > 1 and way.engine != "vllm":
        raise Usage("--tensor-parallel-size is vLLM's: pass --engine vllm; transformers takes all GPUs it finds")


def collected(
    source: str, target: str, prompts: Sequence["Prompt"], *, answer_tokens: int, way: Way, answers: Answers | None, told: Callable[[int, int], None] | None
) -> "Statistics":  # fmt: skip
    """Statistics over `prompts`; three passes of the target: its answers, the sizes, the matrices."""
    from eaglectl.acceptance.job import Job
    from eaglectl.acceptance.reference_engine import tokenise
    from eaglectl.acceptance.vllm_engine import context
    from eaglectl.conversion.calibration import Matrices, Statistics, drafter_digest, target_digest

    try:
        from eaglectl.reference.collecting import collect_moments, collect_sizes
    except ImportError:
        raise Unreadable(
            "calibrating runs the target and needs torch and transformers; install eaglectl's torch extra: pip install '.[torch]' in a checkout"
        ) from None
    source, folder = on_disk(source), Path(on_disk(target))
    if not folder.is_dir():
        raise Unreadable(f"--target {target}: calibrating runs the target, so it must be a folder with its weights")
    done = count()
    tell = (lambda: told(next(done) + 1, 3 * len(prompts))) if told else lambda: None
    with readable_folder(source) as plain, tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        checkpoint = read_checkpoint(open_folder(plain))
        meant = _runnable(read_drafter(checkpoint, answers or Answers(), open_target(str(folder))))
        assert meant.aux.boundaries is not None
        place = Path(name) / "drafter"
        convert(plain, place, target=str(folder), answers=answers, link=True)
        texts = tokenise(Job(place, meant, folder, tuple(prompts), 1, answer_tokens), context(folder))
        batches = _batches(texts, [prompt.set for prompt in prompts])
        with _running(way, folder, place, meant, max(map(len, texts)) + answer_tokens) as (passes, drafter):
            answered = [_answered(passes, batch, answer_tokens, tell) for batch in batches]
            if max(len(text) for batch in answered for text in batch.texts) < SHORTEST:
                raise Usage(
                    f"prompts and answers of fewer than {SHORTEST} tokens show no fed-back states; give longer prompts, or more --answer-tokens"
                )
            sizes = collect_sizes(passes, drafter, answered, tell)
            if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
                raise Refused(
                    f"the states of drafter and target are not finite; see `eaglectl validate {source}` for NaN or infinite weights"
                )
            moments = collect_moments(passes, drafter, sizes.rms, answered, tell)
            engine = passes.engine
        digests = {
            "drafter": drafter_digest(checkpoint, meant), "target": target_digest(FolderSource(folder)),
            "prompts": hashlib.sha256("".join(map(prompt_digest, prompts)).encode()).hexdigest(),
        }  # fmt: skip
    return Statistics(
        digests, tuple(prompt_digest(prompt) for prompt in prompts), meant.aux.boundaries, float(meant.settings["rms_norm_eps"]), moments.tokens, sizes.rms,
        sizes.spread, sizes.sigma, sizes.sigmas, meant.norms.norm_before_residual, Matrices(moments.gram.cpu().numpy(), moments.cross.cpu().numpy()), engine,
    )  # fmt: skip


def _runnable(drafter: Drafter) -> Drafter:
    from eaglectl.conversion.upgrade_checks import check_changeable

    if drafter.aux.boundaries is None:
        raise Usage("the trained aux layers are not known; pass --aux-layers")
    if drafter.quantisation is not None:
        raise Refused("a quantised drafter is not run here; calibrate with the unquantised one")
    check_changeable(drafter)
    return drafter


def _batches(texts: Sequence[Sequence[int]], sets: Sequence[str]) -> "list[Batch]":
    from eaglectl.acceptance.prompts import alike
    from eaglectl.reference.collecting import Batch

    return [Batch([texts[i] for i in part], [sets[i] for i in part]) for part in alike(texts, BATCH)]


def _answered(passes: "Passes", batch: "Batch", tokens: int, told: Callable[[], None]) -> "Batch":
    found = passes.answers(batch.texts, tokens)
    for _ in found:
        told()
    return replace(batch, texts=[[*text, *answer] for text, answer in zip(batch.texts, found, strict=True)])


@contextmanager
def _running(
    way: Way, target: Path, drafter: Path, meant: Drafter, length: int
) -> Iterator[tuple["Passes", "DraftModel"]]:
    """The target as `way` runs it, for sequences of at most `length` tokens, and the drafter beside it."""
    from eaglectl.reference import target as targets
    from eaglectl.reference.loading import load_drafter
    from eaglectl.reference.passes import TransformersPasses

    assert meant.aux.boundaries is not None
    placed, dtype = targets.choose_device(way.device)
    if way.engine == "vllm":
        from eaglectl.acceptance.vllm_passes import Order, vllm_passes

        order = Order(
            target, meant.aux.boundaries, meant.dims, length, BATCH, way.device, way.tensor_parallel_size, way.timeout
        )
        with vllm_passes(order) as passes:
            yield passes, load_drafter(drafter, meant, dtype="float32", device="cpu")  # vLLM has taken the GPUs
        return
    model = targets.load_target(target, meant.aux.boundaries, dtype=dtype, device=placed)
    yield (
        TransformersPasses(model, placed, dtype),
        load_drafter(drafter, meant, dtype=dtype, device="cuda" if placed == "auto" else placed),
    )


def shared(prompts: Sequence["Prompt"]) -> "tuple[tuple[Prompt, ...], tuple[Prompt, ...]]":
    """Prompts to calibrate on, and those kept for the gate: every third of one list that serves both."""
    distinct = tuple({prompt_digest(prompt): prompt for prompt in prompts}.values())
    return tuple(prompt for index, prompt in enumerate(distinct) if index % GATE_SHARE), distinct[::GATE_SHARE]


def prompt_digest(prompt: "Prompt") -> str:
    """A name for one prompt, so that a gate can keep to others than those calibrated on."""
    return hashlib.sha256(prompt.text.encode()).hexdigest()[:16]
