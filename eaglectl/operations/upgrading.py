"""`calibrate` and `convert --to 3.1`: statistics of a target, the conversion, and the gate that it passes."""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.request import DEFAULT_LAYOUT, UpgradeRecipe
from eaglectl.conversion.upgrade import (
    MassiveTokens,
    Matrices,
    Statistics,
    check_changeable,
    check_statistics,
    drafter_digest,
    is_output_free,
    needs_statistics,
    read_statistics,
    target_digest,
    write_statistics,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import until_end
from eaglectl.files.writer import STATISTICS, check_apart, check_free
from eaglectl.formats.commands import command
from eaglectl.formats.reader import read_drafter
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.converting import (
    Prepared,
    convert_files,
    default_place,
    plan_conversion,
    prepared,
    served_plan,
    write_conversion,
)
from eaglectl.operations.options import TOLERANCE, CalibrateOptions, ConvertOptions, UpgradeOptions
from eaglectl.progress import LOADING, OnProgress, TimedWork, report_step
from eaglectl.results import Conversion
from eaglectl.run.engine_arguments import check_engine_arguments
from eaglectl.run.installed import start_vllm
from eaglectl.run.job import EngineJob
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import Prompt, batches_by_length, choose_prompts, prompt_digest
from eaglectl.run.tokens import stop_tokens, tokenise
from eaglectl.shell import as_path
from eaglectl.target import check_timeout, runnable_target, weights_folder
from eaglectl.text import listed

if TYPE_CHECKING:
    from eaglectl.reference.collecting import Batch, Moments, Sizes
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.states import StateSource, TargetEngine
    from eaglectl.run.report import Gate

GATE_SHARE = 3  # one prompt of so many is kept for the gate
# tokens of the longest sequence: token 0 is left out, and two more follow the last state that is measured
MIN_TOKENS = 4
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
FEWEST_PROMPTS = 3  # an interval over fewer prompts does not generalise
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
        for given in filter(None, (source, target, options.prompts, options.states)):
            check_apart(Path(out), Path(given))
        check_free(Path(out), force=options.force, kind=STATISTICS)
    conversion = ConvertOptions(target=target, answers=options.answers, measure=options.measuring)
    with prepared(source, None, conversion, on_progress, needs_target=True) as ready:
        prompts: Sequence[Prompt] = ()
        if options.states is None:
            prompts = choose_prompts(options.prompts, options.sample, options.seed).prompts
            if options.prompts is None:  # a third of the built-in ones is the gate's
                prompts, _ = split_prompts(prompts)
        statistics = collect_statistics(ready, prompts, options, on_progress)
    statistics = replace(
        statistics,
        measured=tuple(ready.options.record.get("measured", ())),
        out=path_text(out),
        trust_remote_code=options.trust_remote_code,
    )
    if out is not None:
        write_statistics(statistics, Path(out), force=options.force)
    return statistics


def collect_statistics(
    ready: Prepared,
    prompts: Sequence[Prompt],
    options: CalibrateOptions,
    on_progress: OnProgress | None = None,
) -> Statistics:
    """Statistics over `prompts`, or over the sequences in the folder `options.states`.

    Of the options, prompts and answers are not read. Raises as `calibrate` does.
    """
    work = "runs the target" if options.states is None else "on stored states runs the drafter"
    require_torch(f"calibrating {work} and needs", runs_target=options.states is None)
    files, folder, answers = ready.files, Path(str(ready.options.target)), ready.options.answers
    if not is_folder(folder):
        raise UnreadableError(
            f"--target {folder}: calibrating runs the target, so it must be a folder with its weights"
        )
    drafter = read_drafter(files.checkpoint, answers, ready.target)
    if drafter.aux.boundaries is None:
        raise UsageError("the trained aux layers are not known; pass --aux-layers")
    if drafter.quantisation is not None:
        raise RefusedError("a quantised drafter is not run here; calibrate with the unquantised one")
    check_changeable(drafter)
    with scratch_folder() as scratch:
        rewrite = ConvertOptions(target=str(folder), answers=answers, link=True, force_unserved=True)
        convert_files(files, ready.target, rewrite, scratch / "drafter")
        digest = drafter_digest(files.checkpoint, drafter)
        pair = _Pair(drafter, drafter.aux.boundaries, digest, scratch / "drafter", folder)
        if options.states is None:
            statistics = _collect_run(pair, prompts, options, on_progress)
        else:
            statistics = _collect_stored(pair, options.states, options, on_progress)
        files.original.check_unchanged(is_status_compared=False)
    return statistics


class _Pair(Struct, frozen=True):
    """A drafter with its digest, `place` its copy that the reference loads, and the folder of its target."""

    drafter: Drafter
    boundaries: tuple[int, ...]
    digest: str
    place: Path
    target: Path


def _collect_run(
    pair: _Pair, prompts: Sequence[Prompt], options: CalibrateOptions, on_progress: OnProgress | None
) -> Statistics:
    from eaglectl.reference.collecting import collect_moments, collect_sizes
    from eaglectl.reference.states import KeptStates

    work = TimedWork(on_progress, "calibrating", PASSES * len(prompts))
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
    length = max(map(len, texts)) + options.answer_tokens
    with _start_engine(options.run_in, job, length) as (engine, model), scratch_folder() as folder:
        batches = _batches(texts, prompts)
        stop = stop_tokens(job)
        work.start(is_even=False)
        answered = [_answered(engine, batches[0], job, stop, work)]
        states = KeptStates(engine, folder)
        if len(batches) > 1 and answered[0].texts and on_progress is not None:
            # says how long all takes, by one batch that has its answers
            sizes = collect_sizes(states, model, answered, lambda: None)
            collect_moments(states, model, sizes.rms, answered, lambda: None)
            longest = [max(map(len, batch.texts)) + CalibrateOptions().answer_tokens for batch in batches]
            costs = [len(batch.texts) * size for batch, size in zip(batches, longest, strict=True)]
            work.estimate(costs[0] / sum(costs))
        answered += [_answered(engine, batch, job, stop, work) for batch in batches[1:]]
        return _collect(pair, states, model, prompts, [batch for batch in answered if batch.texts], work)


def _collect_stored(
    pair: _Pair, folder: str, options: CalibrateOptions, on_progress: OnProgress | None
) -> Statistics:
    """Over the sequences whose hidden states a trainer has on disk."""
    from eaglectl.reference.model import load_drafter
    from eaglectl.reference.states import StoredStates, load_embedding
    from eaglectl.reference.target import choose_device

    if options.states_layers is None:
        wanted = ",".join(map(str, pair.boundaries))
        raise UsageError(
            f"--states {folder}: the files do not state which layers they are of; pass --states-layers with"
            f" their boundaries in the order of the files ({wanted} are the drafter's)"
        )
    device, dims, target = choose_device(options.device)[0], pair.drafter.dims, FolderSource(pair.target)
    model = load_drafter(pair.place, pair.drafter, dtype="float32", device=device)
    states = StoredStates(
        Path(folder),
        options.states_layers,
        pair.boundaries,
        dims,
        model.device.type,
        lambda: load_embedding(read_checkpoint(target), dims.vocab, dims.target_hidden).to(model.device),
    )
    sequences = [tokens for tokens in states.files if len(tokens) >= MIN_TOKENS]
    prompts = [Prompt("", "states", token_ids=tuple(tokens)) for tokens in sequences]
    work = TimedWork(on_progress, "calibrating", (PASSES - 1) * len(sequences))
    work.start()
    return _collect(pair, states, model, prompts, _batches(sequences, prompts), work)


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


def _batches(texts: Sequence[Sequence[int]], prompts: Sequence[Prompt]) -> "list[Batch]":
    from eaglectl.reference.collecting import Batch

    return [
        Batch([texts[index] for index in indices], [prompts[index].set for index in indices])
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


def _collect(
    pair: _Pair,
    source: "StateSource",
    model: "DraftModel",
    prompts: Sequence[Prompt],
    batches: "Sequence[Batch]",
    work: TimedWork,
) -> Statistics:
    """Sizes, then matrices. Raises UsageError for short texts, RefusedError for infinite states."""
    from eaglectl.reference.collecting import collect_moments, collect_sizes

    if not batches:
        raise UsageError(
            f"prompts and answers of fewer than {MIN_TOKENS} tokens show no fed-back states; give longer"
            " prompts, or more --answer-tokens"
        )
    sizes = collect_sizes(source, model, batches, work.add)
    if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
        raise RefusedError(
            "the states of drafter and target are not finite; see `eaglectl validate SOURCE` for NaN or"
            " infinite weights"
        )
    moments = collect_moments(source, model, sizes.rms, batches, work.add)
    return _statistics(pair, tuple(map(prompt_digest, prompts)), source.engine, sizes, moments)


def _statistics(
    pair: _Pair, prompts: tuple[str, ...], engine: Mapping[str, str], sizes: "Sizes", moments: "Moments"
) -> Statistics:
    massive = moments.massive
    matrices = Matrices(moments.gram.cpu().numpy(), moments.cross.cpu().numpy())
    if massive.tokens and massive.parts:
        states, outputs = massive.rows()
        matrices = replace(matrices, massive_states=states.numpy(), massive_outputs=outputs.numpy())
    return Statistics(
        digests={
            "drafter": pair.digest,
            "target": target_digest(FolderSource(pair.target)),
            "prompts": hashlib.sha256("".join(prompts).encode()).hexdigest(),
        },
        prompts=prompts,
        boundaries=pair.boundaries,
        eps=float(pair.drafter.settings["rms_norm_eps"]),
        tokens=moments.tokens,
        rms=sizes.rms,
        spread=sizes.spread,
        sigma=sizes.sigma,
        sigmas=sizes.sigmas,
        is_direction=pair.drafter.norms.norm_before_residual,
        matrices=matrices,
        massive=MassiveTokens(
            massive.tokens,
            tuple(sorted(massive.positions)[:MOST_POSITIONS]),
            tuple(tuple(sorted(channels)) for channels in massive.channels),
            tuple(massive.times),
        ),
        engine=engine,
    )


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


@with_keywords
def upgrade(
    source: StrPath,
    out: StrPath | None = None,
    options: UpgradeOptions | None = None,
    conversion: ConvertOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Conversion:
    """Convert EAGLE-3 to 3.1.

    The gate's result is on the Conversion; without `out` on it, the gate was not passed.

    Raises UsageError for what is missing, RefusedError for what an upgrade would break,
    UnreadableError without torch or weights.
    """
    options = options or UpgradeOptions()
    conversion = replace(conversion or ConvertOptions(), version="3.1")
    _check_upgrade(options)
    if conversion.fixes:
        raise UsageError(
            "--fix-reading is a conversion of its own, which smoke can then measure: leave --to 3.1 out, and"
            " convert the output with it"
        )
    needs_target = not options.is_start and (options.has_gate or options.statistics is None)
    with prepared(os.fspath(source), out, conversion, on_progress, needs_target=needs_target) as ready:
        done = _upgraded(ready, options, None if out is None else Path(out), on_progress)
    return ready.finished(done, is_trusting=options.trust_remote_code)


def _check_upgrade(options: UpgradeOptions) -> None:
    why = "with --init-only there is no gate" if options.is_start else "--no-gate takes the gate away"
    has_own_prompts = options.statistics is not None and options.prompts is not None
    check(
        (
            not 0 < options.tolerance < math.inf,
            f"--tolerance {options.tolerance:g}: a ratio above 0 was expected, like {TOLERANCE}",
        ),
        (
            options.fc_norm == "off" and not options.is_norm_output,
            "--fc-norm off and --no-norm-output leave nothing of EAGLE-3.1 to be done; leave one of them out",
        ),
        (
            not options.is_measured and options.tolerance != TOLERANCE,
            f"{why}, and --tolerance is the gate's; leave it out",
        ),
        (
            not options.is_measured and has_own_prompts,
            f"{why}, and --calibration has its prompts already; leave --prompts out",
        ),
    )


def _upgraded(
    ready: Prepared, options: UpgradeOptions, out: Path | None, on_progress: OnProgress | None
) -> Conversion:
    files, target, conversion = ready.files, ready.target, ready.options
    drafter, gate = read_drafter(files.checkpoint, conversion.answers, target), None
    if drafter.version == "3":  # else it is 3.1 already, or the plan raises a question
        place = out or default_place(files.original, "3.1")
        for path in (options.statistics, options.prompts):
            if path is not None:
                check_apart(place, Path(path))
        is_whole = options.fc_norm != "off" and options.is_norm_output
        if not conversion.dry_run and (out is not None or is_whole):
            check_free(place, force=conversion.force)  # before long work
        statistics, prompts = _statistics_for(ready, drafter, options, on_progress)
        recipe = UpgradeRecipe(options.fc_norm, options.is_norm_output, statistics, options.is_start)
        conversion = replace(conversion, recipe=recipe)
        if not conversion.dry_run:
            plan = served_plan(files, plan_conversion(files, target, conversion), conversion)
            if options.is_measured:
                _check_gate(ready, plan.drafter, prompts, place)
                gate = _gate(ready, conversion, options, prompts, on_progress)
            if gate and not gate.is_passed:
                return Conversion(plan, None, files.pickles, 0.0, gate)
            conversion = replace(conversion, record={**conversion.record, "gate": _record(gate)})
    return replace(convert_files(files, target, conversion, out, on_progress=on_progress), gate=gate)


def _statistics_for(
    ready: Prepared, drafter: Drafter, options: UpgradeOptions, on_progress: OnProgress | None
) -> tuple[Statistics | None, tuple[Prompt, ...]]:
    """The statistics, if they are given or can be collected, and the prompts left for the gate."""
    prompts, folder = options.read_prompts(), weights_folder(ready.options.target)
    if options.statistics is not None:
        statistics = read_statistics(options.statistics)
        is_free = is_output_free(drafter, options.is_norm_output)
        check_statistics(
            statistics,
            ready.files.checkpoint,
            drafter,
            None if folder is None else FolderSource(folder),
            is_of_states=options.fc_norm == "calibrated" and is_free,
        )
        left = tuple(prompt for prompt in prompts if prompt_digest(prompt) not in statistics.prompts)
        return statistics, left
    is_needed = needs_statistics(drafter, options.fc_norm, options.is_norm_output)
    # of a drafter that does not run, the plan states what is wrong
    is_open = bool(drafter.notes_at("problem") or drafter.notes_at("question"))
    if folder is None or drafter.quantisation is not None or is_open or not is_needed:
        return None, prompts
    calibrated, left = split_prompts(prompts)
    if options.is_measured and len(left) < FEWEST_PROMPTS:
        needed = GATE_SHARE * (FEWEST_PROMPTS - 1) + 1
        raise UsageError(
            f"--prompts are shared between calibration and the gate, and there are {len(prompts)};"
            f" {needed} different ones are the least: give more, or --no-gate"
        )
    settings = CalibrateOptions(
        device=options.device, ignore_eos=options.ignore_eos, trust_remote_code=options.trust_remote_code
    )
    return collect_statistics(ready, calibrated or prompts, settings, on_progress), left


def _check_gate(ready: Prepared, drafter: Drafter, prompts: tuple[Prompt, ...], place: Path) -> None:
    against = ("--run-in", "vllm", "--against", as_path(ready.files.original_path))
    line = command("smoke", str(place), *against, target=ready.target_text)
    check(
        (
            drafter.quantisation is not None,
            "the gate runs drafters in plain torch, which runs no quantised ones; pass --no-gate, then"
            f" hold the output to its source with `{line}`",
        ),
        (
            weights_folder(ready.options.target) is None,
            "the gate runs both drafters on their target; pass --target with its weights, or --no-gate to"
            " write without looking",
        ),
        (
            not prompts,
            "every prompt was calibrated on, and none is left for the gate; pass other --prompts, or"
            " --no-gate",
        ),
        (
            len(prompts) < FEWEST_PROMPTS,
            f"{len(prompts)} of the prompts were not calibrated on, and the gate needs {FEWEST_PROMPTS}"
            " at the least; give more --prompts, or --no-gate",
        ),
    )


def _gate(
    ready: Prepared,
    conversion: ConvertOptions,
    options: UpgradeOptions,
    prompts: tuple[Prompt, ...],
    on_progress: OnProgress | None,
) -> "Gate":
    """Both drafters in vLLM's layout, run on the same prompts.

    Raises RefusedError where the drafter hardly drafts before the conversion.
    """
    from eaglectl.run.report import MIN_BASELINE_LENGTH, run_gate

    after = replace(conversion, layout=DEFAULT_LAYOUT, link=False, max_shard_size=None)
    report_step(on_progress, LOADING)
    with scratch_folder() as scratch:
        jobs = []
        for name, wanted in (("before", replace(after, version=None, recipe=None)), ("after", after)):
            plan = plan_conversion(ready.files, ready.target, wanted)
            write_conversion(ready.files, plan, scratch / name, wanted)
            job = EngineJob(
                scratch / name,
                plan.drafter,
                Path(str(weights_folder(conversion.target))),
                prompts,
                max_tokens=options.max_tokens,
                device=options.device,
                trust_remote_code=options.trust_remote_code,
                ignores_eos=options.ignore_eos,
            )
            jobs.append(job)
        gate = run_gate(jobs[0], jobs[1], options.tolerance, on_progress)
    baseline = gate.rows[0].before.length.value
    if baseline < MIN_BASELINE_LENGTH:
        trust = " --trust-remote-code" * options.trust_remote_code
        raise RefusedError(
            f"the drafter as it is has an acceptance length of {baseline:.3f} at k=3, which is hardly"
            " drafting: find out why before converting it, with `eaglectl smoke SOURCE --target TARGET"
            f" --probe sensitivity{trust}`"
        )
    return gate


def _record(gate: "Gate | None") -> Mapping[str, Any] | None:
    if gate is None:
        return None
    rows = [
        {
            "k": row.k,
            "acceptance_length_before": row.before.length.value,
            "acceptance_length": row.after.length.value,
            "ratio": row.ratio.value,
            "interval": [row.ratio.low, row.ratio.high],
            "rounds": row.rounds.value,
        }
        for row in gate.rows
    ]
    names = ("prompts", "tolerance", "is_passed", "ending", "engine", "device", "dtype")
    return {"rows": rows, **{name: getattr(gate, name) for name in names}}
