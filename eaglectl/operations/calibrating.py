"""`calibrate`: statistics of a drafter's target, for a conversion to EAGLE-3.1."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.calibration import (
    MassiveTokens,
    Matrices,
    Statistics,
    drafter_digest,
    target_digest,
    write_statistics,
)
from eaglectl.conversion.upgrade import check_changeable
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.opening import on_disk, open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import until_end
from eaglectl.files.writer import STATISTICS, check_apart, check_free
from eaglectl.formats.commands import command
from eaglectl.formats.reader import read_drafter
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.converting import convert, readable_folder
from eaglectl.operations.open_questions import measured_questions
from eaglectl.operations.options import CalibrateOptions, ConvertOptions
from eaglectl.progress import OnProgress, TimedWork
from eaglectl.run.engine_arguments import check_engine_arguments
from eaglectl.run.installed import start_vllm
from eaglectl.run.job import EngineJob
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import Prompt, batches_by_length, choose_prompts, prompt_digest
from eaglectl.run.tokens import stop_tokens, tokenise
from eaglectl.target import check_timeout, open_target, runnable_target
from eaglectl.text import listed

if TYPE_CHECKING:
    from eaglectl.reference.collecting import Batch, Moments, Sizes
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.states import StateSource, TargetEngine

GATE_SHARE = 3  # one prompt of so many is kept for the gate
MIN_TOKENS = (
    4  # of the longest sequence: token 0 is left out, and two more follow the last state that is measured
)
# options of a run of the target, which states on disk take the place of
OF_A_RUN = {
    "--prompts": "prompts",
    "--sample": "sample",
    "--seed": "seed",
    "--answer-tokens": "answer_tokens",
    "--ignore-eos": "ignore_eos",
    "--run-in": "run_in",
    "--tensor-parallel-size": "tensor_parallel_size",
    "--engine-arg": "engine_arguments",
    "--timeout": "timeout",
}
MOST_POSITIONS = 100  # of massive tokens that are kept
PASSES = 3  # over each prompt: the target's answer, the sizes, the matrices


@with_keywords
def calibrate(
    source: StrPath,
    target: StrPath | None = None,
    out: StrPath | None = None,
    options: CalibrateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Statistics:
    """Run the target on prompts and its own answers, and collect what `convert --to 3.1` needs.

    With `options.states`, nothing is run but the drafter. Without `target`, it is the one that the checkpoint
    names.
    They are written to the folder `out`, where it is given. Raises UnreadableError without torch, the engine,
    the device or the target's weights, RefusedError and UsageError as `convert` does.
    """
    source, options = os.fspath(source), options or CalibrateOptions()
    _check(options)
    target = str(runnable_target(source, path_text(target), options.answers, "calibrate").place)
    if out is not None:
        for given in (source, target, options.prompts, options.states):
            if given is not None:
                check_apart(Path(out), Path(given))
        check_free(Path(out), force=options.force, kind=STATISTICS)
    questions = measured_questions(source, target, options.answers, options.measuring, on_progress)
    options = replace(options, answers=questions.answers)
    with questions.explaining():
        if options.states is not None:
            statistics = collect_stored(source, target, options, on_progress)
        else:
            prompts = choose_prompts(options.prompts, options.sample, options.seed).prompts
            if options.prompts is None:  # a third of the built-in ones is the gate's
                prompts, _ = split_prompts(prompts)
            statistics = collect_statistics(source, target, prompts, options, on_progress)
    statistics = replace(
        statistics,
        measured=tuple(questions.record.get("measured", ())),
        out=path_text(out),
        trust_remote_code=options.trust_remote_code,
    )
    if out is not None:
        write_statistics(statistics, Path(out), force=options.force)
    return statistics


def collect_statistics(
    source: str,
    target: str,
    prompts: Sequence[Prompt],
    options: CalibrateOptions,
    on_progress: OnProgress | None = None,
) -> Statistics:
    """Statistics over `prompts`; `options.prompts` is not read. Raises as `calibrate` does."""
    require_torch("calibrating runs the target and needs")
    from eaglectl.reference.states import KeptStates

    work = TimedWork(on_progress, "calibrating", PASSES * len(prompts))
    with _opened_pair(source, target, options) as pair:
        job = EngineJob(
            pair.place,
            pair.drafter,
            pair.target,
            tuple(prompts),
            k=1,
            max_tokens=options.answer_tokens,
            device=options.device,
            timeout=options.timeout,
            trust_remote_code=options.trust_remote_code,
            ignores_eos=options.ignore_eos,
            on_progress=on_progress,
            tensor_parallel_size=options.tensor_parallel_size,
            engine_arguments=options.engine_arguments,
        )
        texts = tokenise(job)
        with _start_engine(options.run_in, job, max(map(len, texts)) + options.answer_tokens) as (
            engine,
            model,
        ):
            batches = _batches(texts, [prompt.set for prompt in prompts])
            stop = stop_tokens(job)
            work.start(is_even=False)
            answered = [_answered(engine, batches[0], job, stop, work)]
            with scratch_folder() as folder:
                states = KeptStates(engine, folder)
                _time_passes(states, model, answered[0], batches, work)
                answered += [_answered(engine, batch, job, stop, work) for batch in batches[1:]]
                collected = _collect(states, model, [b for b in answered if b.texts], work.add, source)
            return pair.statistics(prompts, engine, *collected)


def collect_stored(
    source: str, target: str, options: CalibrateOptions, on_progress: OnProgress | None = None
) -> Statistics:
    """Statistics over the sequences in the folder `options.states`. Raises as `calibrate` does."""
    require_torch("calibrating on stored states runs the drafter and needs", runs_target=False)
    from eaglectl.reference.model import load_drafter
    from eaglectl.reference.states import StoredStates, load_embedding
    from eaglectl.reference.target import choose_device

    with _opened_pair(source, target, options) as pair:
        dims = pair.drafter.dims
        if options.states_layers is None:
            wanted = ",".join(map(str, pair.boundaries))
            raise UsageError(
                f"--states {options.states}: the files do not state which layers they are of; pass"
                " --states-layers with their boundaries in the order of the files"
                f" ({wanted} are the drafter's)"
            )
        device = choose_device(options.device)[0]
        model = load_drafter(pair.place, pair.drafter, dtype="float32", device=device)
        states = StoredStates(
            Path(str(options.states)),
            options.states_layers,
            pair.boundaries,
            dims,
            model.device.type,
            lambda: load_embedding(
                read_checkpoint(FolderSource(pair.target)), dims.vocab, dims.target_hidden
            ).to(model.device),
        )
        sequences = [tokens for tokens in states.files if len(tokens) >= MIN_TOKENS]
        prompts = [Prompt("", "states", token_ids=tuple(tokens)) for tokens in sequences]
        work = TimedWork(on_progress, "calibrating", (PASSES - 1) * len(sequences))
        batches = _batches(sequences, [prompt.set for prompt in prompts])
        work.start()
        return pair.statistics(prompts, states, *_collect(states, model, batches, work.add, source))


class _Pair(Struct, frozen=True):
    """A drafter, `place` its copy that the reference loads, and the folder of its target."""

    checkpoint: Checkpoint
    drafter: Drafter
    boundaries: tuple[int, ...]
    place: Path
    target: Path

    def statistics(
        self, prompts: Sequence[Prompt], source: "StateSource", sizes: "Sizes", moments: "Moments"
    ) -> Statistics:
        """What was collected from `source` over `prompts`, with the digests of the pair."""
        digests = {
            "drafter": drafter_digest(self.checkpoint, self.drafter),
            "target": target_digest(FolderSource(self.target)),
            "prompts": hashlib.sha256("".join(map(prompt_digest, prompts)).encode()).hexdigest(),
        }
        massive = moments.massive
        matrices = Matrices(moments.gram.cpu().numpy(), moments.cross.cpu().numpy())
        if massive.tokens and massive.parts:
            states, outputs = massive.rows()
            matrices = replace(matrices, massive_states=states.numpy(), massive_outputs=outputs.numpy())
        return Statistics(
            digests=digests,
            prompts=tuple(prompt_digest(prompt) for prompt in prompts),
            boundaries=self.boundaries,
            eps=float(self.drafter.settings["rms_norm_eps"]),
            tokens=moments.tokens,
            rms=sizes.rms,
            spread=sizes.spread,
            sigma=sizes.sigma,
            sigmas=sizes.sigmas,
            is_direction=self.drafter.norms.norm_before_residual,
            matrices=matrices,
            massive=MassiveTokens(
                massive.tokens,
                tuple(sorted(massive.positions)[:MOST_POSITIONS]),
                tuple(tuple(sorted(channels)) for channels in massive.channels),
                tuple(massive.times),
            ),
            engine=source.engine,
        )


@contextmanager
def _opened_pair(source: str, target: str, options: CalibrateOptions) -> Iterator[_Pair]:
    """Open a drafter and its target. Raises as `calibrate` does."""
    source, folder = on_disk(source), Path(on_disk(target))
    if not is_folder(folder):
        raise UnreadableError(
            f"--target {target}: calibrating runs the target, so it must be a folder with its weights"
        )
    with readable_folder(source) as plain, scratch_folder() as scratch:
        checkpoint = read_checkpoint(open_folder(plain))
        drafter = read_drafter(checkpoint, options.answers, open_target(str(folder)))
        boundaries = _check_runnable(drafter)
        place = scratch / "drafter"
        rewrite = ConvertOptions(
            target=str(folder), answers=options.answers, link=True, measure=None, force_unserved=True
        )
        convert(plain, place, rewrite)
        yield _Pair(checkpoint, drafter, boundaries, place, folder)


def split_prompts(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Distinct prompts for calibration, and those for the gate: every third of them."""
    distinct = tuple({prompt_digest(prompt): prompt for prompt in prompts}.values())
    for_calibration = tuple(prompt for index, prompt in enumerate(distinct) if index % GATE_SHARE)
    return for_calibration, distinct[::GATE_SHARE]


def _check(options: CalibrateOptions) -> None:
    """Raise UsageError for options that this engine does not have, or of a run beside states on disk."""
    check_timeout(options.timeout)
    default, is_vllm = CalibrateOptions(), options.run_in == "vllm"
    given = [option for option, name in OF_A_RUN.items() if getattr(options, name) != getattr(default, name)]
    verb, them = ("is", "it") if len(given) == 1 else ("are", "them")
    check(
        (
            options.states is None and options.states_layers is not None,
            "--states-layers is of --states; pass the folder of the hidden states too",
        ),
        (
            options.states is not None and given,
            f"--states takes the place of a run of the target, which {listed(given)} {verb} of; leave {them}"
            " out",
        ),
        (
            options.sample is not None and options.prompts is None,
            "--sample draws from a file of prompts; give it with --prompts",
        ),
    )
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size, is_calibration=True)
    check(
        (
            options.tensor_parallel_size > 1 and not is_vllm,
            "--tensor-parallel-size is vLLM's: pass --run-in vllm; transformers takes all GPUs it finds",
        ),
        (options.engine_arguments and not is_vllm, "--engine-arg is for vLLM: pass --run-in vllm"),
    )


def _check_runnable(drafter: Drafter) -> tuple[int, ...]:
    """The trained aux boundaries. Raises UsageError or RefusedError where calibration is impossible."""
    if drafter.aux.boundaries is None:
        raise UsageError("the trained aux layers are not known; pass --aux-layers")
    if drafter.quantisation is not None:
        raise RefusedError("a quantised drafter is not run here; calibrate with the unquantised one")
    check_changeable(drafter)
    return drafter.aux.boundaries


def _batches(texts: Sequence[Sequence[int]], sets: Sequence[str]) -> "list[Batch]":
    from eaglectl.reference.collecting import Batch

    return [
        Batch([texts[index] for index in indices], [sets[index] for index in indices])
        for indices in batches_by_length(texts, CalibrateOptions().answer_tokens)
    ]


def _answered(
    engine: "TargetEngine", batch: "Batch", job: EngineJob, stop: frozenset[int], work: TimedWork
) -> "Batch":
    """The batch with the target's own answers after its texts; texts too short to measure are left out."""
    answers = engine.answers(batch.texts, job.max_tokens)
    texts = [[*text, *until_end(answer, stop)] for text, answer in zip(batch.texts, answers, strict=True)]
    kept = [index for index, text in enumerate(texts) if len(text) >= MIN_TOKENS]
    # prompts that are left out have no further pass
    work.add(len(texts) + (PASSES - 1) * (len(texts) - len(kept)))
    return replace(batch, texts=[texts[i] for i in kept], sets=[batch.sets[i] for i in kept])


def _time_passes(
    states: "StateSource",
    model: "DraftModel",
    batch: "Batch",
    batches: "Sequence[Batch]",
    work: TimedWork,
) -> None:
    """Say how long all takes, by one batch that has its answers."""
    if len(batches) == 1 or not batch.texts or work.on_progress is None:
        return
    from eaglectl.reference.collecting import collect_moments, collect_sizes

    sizes = collect_sizes(states, model, [batch], lambda: None)
    collect_moments(states, model, sizes.rms, [batch], lambda: None)
    work.estimate(_cost(batches[0]) / sum(map(_cost, batches)))


def _cost(batch: "Batch") -> int:
    """What a batch costs, in tokens with padding."""
    return len(batch.texts) * (max(map(len, batch.texts)) + CalibrateOptions().answer_tokens)


def _collect(
    engine: "StateSource",
    model: "DraftModel",
    batches: "Sequence[Batch]",
    on_sequence: Callable[[], None],
    source: str,
) -> "tuple[Sizes, Moments]":
    """Sizes, then matrices. Raises UsageError for short texts, RefusedError for infinite states."""
    from eaglectl.reference.collecting import collect_moments, collect_sizes

    if not batches:
        raise UsageError(
            f"prompts and answers of fewer than {MIN_TOKENS} tokens show no fed-back states; give longer"
            " prompts, or more --answer-tokens"
        )
    sizes = collect_sizes(engine, model, batches, on_sequence)
    if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
        raise RefusedError(
            "the states of drafter and target are not finite; see"
            f" `{command('validate', source)}` for NaN or infinite weights"
        )
    return sizes, collect_moments(engine, model, sizes.rms, batches, on_sequence)


@contextmanager
def _start_engine(
    engine_name: str, job: EngineJob, length: int
) -> Iterator[tuple["TargetEngine", "DraftModel"]]:
    """The target in its engine, for sequences of at most `length` tokens, and the reference model."""
    from eaglectl.reference.model import load_drafter
    from eaglectl.reference.states import TransformersEngine
    from eaglectl.reference.target import choose_device, load_target

    device, dtype = choose_device(job.device)
    if engine_name == "vllm":
        # the drafter runs on the CPU: vLLM has taken the GPUs
        with start_vllm(job, length) as engine:
            yield engine, load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
        return
    target = load_target(
        job.target,
        job.drafter.aux.boundaries or (),
        dtype=dtype,
        device=device,
        trust_remote_code=job.trust_remote_code,
        on_progress=job.on_progress,
    )
    model = load_drafter(job.folder, job.drafter, dtype=dtype, device=device)
    yield TransformersEngine(target, device, dtype), model
