"""`calibrate` and `convert --to 3.1`: statistics of a target, the conversion, and the gate that it passes."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglectl.conversion.plan import DEFAULT_LAYOUT, ConversionPlan, UpgradeRecipe
from eaglectl.conversion.upgrade import (
    Matrices,
    Statistics,
    check_changeable,
    check_statistics,
    check_upgrade,
    drafter_digest,
    needs_statistics,
    read_statistics,
    target_digest,
    write_statistics,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError, UsageError, check
from eaglectl.files.files import is_folder, sha256
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import until_end
from eaglectl.files.writer import STATISTICS, check_apart, check_free
from eaglectl.formats.commands import command
from eaglectl.formats.reader import read_drafter
from eaglectl.operations.converting import (
    Prepared,
    carry_out,
    default_output,
    plan_conversion,
    prepared,
    served_plan,
    write_conversion,
)
from eaglectl.operations.options import TOLERANCE, CalibrateOptions, ConvertOptions, UpgradeOptions
from eaglectl.options import StrPath, path_text, with_keywords
from eaglectl.progress import LOADING, OnProgress, TimedWork, report_step
from eaglectl.results import Conversion
from eaglectl.run.installed import check_engine_arguments, start_vllm
from eaglectl.run.job import EngineJob, stop_tokens, tokenise
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import Prompt, batches_by_length, choose_prompts, prompt_digest
from eaglectl.shell import as_path
from eaglectl.target import NONE_NAMED, check_timeout, runnable_target, weights_folder

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.states import Batch, TargetEngine
    from eaglectl.run.report import Gate

GATE_SHARE = 3  # one prompt of so many is kept for the gate
# tokens of the longest sequence: token 0 is left out, and two more follow the last state that is measured
MIN_TOKENS = 4
FEWEST_PROMPTS = 3  # an interval over fewer prompts does not generalise
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

    Without `target`, it is the one that the checkpoint names. They are written to the folder `out`, where it
    is given. Raises UnreadableError without torch, the engine, the device or the target's weights,
    RefusedError and UsageError as `convert` does.
    """
    source, options = os.fspath(source), options or CalibrateOptions()
    _check(options)
    target = str(runnable_target(source, path_text(target), options.answers, "calibrate").place)
    if out is not None:
        for given in filter(None, (source, target, options.prompts)):
            check_apart(Path(out), Path(given))
        check_free(Path(out), force=options.force, kind=STATISTICS)
    conversion = ConvertOptions(target=target, answers=options.answers, measure=options.measuring)
    with prepared(source, None, conversion, on_progress, needs_target=True) as ready:
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
    """Statistics over `prompts`; those of the options are not read. Raises as `calibrate` does."""
    require_torch("calibrating runs the target and needs")
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
    wanted = ConvertOptions(target=str(folder), answers=answers, link=True, force_unserved=True)
    with scratch_folder() as scratch:
        carry_out(files, served_plan(files, ready.target, wanted), wanted, scratch / "drafter")
        job = EngineJob(
            scratch / "drafter",
            drafter,
            folder,
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
        statistics = _collect_run(job, options.run_in)
        digest = drafter_digest(files.checkpoint, drafter)
        files.original.check_unchanged(is_status_compared=False)
    return replace(statistics, digests={"drafter": digest, **statistics.digests})


def _collect_run(job: EngineJob, engine_name: str) -> Statistics:
    from eaglectl.reference.states import Batch, collect_moments, collect_sizes

    work, texts = TimedWork(job.on_progress, "calibrating", PASSES * len(job.prompts)), tokenise(job)
    length = max(map(len, texts)) + job.max_tokens
    answer, stop = CalibrateOptions().answer_tokens, stop_tokens(job)
    batches = [
        Batch([texts[index] for index in indices], [job.prompts[index].set for index in indices])
        for indices in batches_by_length(texts, answer)
    ]
    with _start_engine(engine_name, job, length) as (engine, model):

        def answered(batch: Batch) -> Batch:
            """The batch with the target's own answers, but for texts that are too short to measure."""
            answers = zip(batch.texts, engine.answers(batch.texts, job.max_tokens), strict=True)
            texts = [[*text, *until_end(answer, stop)] for text, answer in answers]
            kept = [index for index, text in enumerate(texts) if len(text) >= MIN_TOKENS]
            # prompts that are left out have no further pass
            work.add(len(texts) + (PASSES - 1) * (len(texts) - len(kept)))
            return replace(batch, texts=[texts[i] for i in kept], sets=[batch.sets[i] for i in kept])

        work.start(is_even=False)
        done = [answered(batches[0])]
        if len(batches) > 1 and done[0].texts and job.on_progress is not None:
            # says how long all takes, by one batch that has its answers
            sizes = collect_sizes(engine, model, done, lambda: None)
            collect_moments(engine, model, sizes.rms, done, lambda: None)
            costs = [len(batch.texts) * (max(map(len, batch.texts)) + answer) for batch in batches]
            work.estimate(costs[0] / sum(costs))
        done += map(answered, batches[1:])
        return _collect(job, engine, model, [batch for batch in done if batch.texts], work)


def split_prompts(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Distinct prompts for calibration, and those for the gate: every third of them."""
    distinct = tuple({prompt_digest(prompt): prompt for prompt in prompts}.values())
    for_calibration = tuple(prompt for index, prompt in enumerate(distinct) if index % GATE_SHARE)
    return for_calibration, distinct[::GATE_SHARE]


def _check(options: CalibrateOptions) -> None:
    check_timeout(options.timeout)
    is_vllm = options.run_in == "vllm"
    check(
        (
            options.sample is not None and options.prompts is None,
            "--sample draws from a file of prompts; give it with --prompts",
        ),
        (
            options.tensor_parallel_size > 1 and not is_vllm,
            "--tensor-parallel-size is vLLM's: pass --run-in vllm; transformers takes all GPUs it finds",
        ),
        (options.engine_arguments and not is_vllm, "--engine-arg is for vLLM: pass --run-in vllm"),
    )
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size, is_calibration=True)


def _collect(
    job: EngineJob,
    engine: "TargetEngine",
    model: "DraftModel",
    batches: "Sequence[Batch]",
    work: TimedWork,
) -> Statistics:
    """Sizes, then matrices. Raises UsageError for short texts, RefusedError for infinite states."""
    from eaglectl.reference.states import collect_moments, collect_sizes

    if not batches:
        raise UsageError(
            f"prompts and answers of fewer than {MIN_TOKENS} tokens show no fed-back states; give longer"
            " prompts, or more --answer-tokens"
        )
    sizes = collect_sizes(engine, model, batches, work.add)
    if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
        raise RefusedError(
            "the states of drafter and target are not finite; see `eaglectl validate SOURCE` for NaN or"
            " infinite weights"
        )
    moments = collect_moments(engine, model, sizes.rms, batches, work.add)
    digests = tuple(map(prompt_digest, job.prompts))
    return Statistics(
        digests={
            "target": target_digest(FolderSource(job.target)),
            "prompts": sha256("".join(digests).encode()).hexdigest(),
        },
        prompts=digests,
        boundaries=job.drafter.aux.boundaries or (),
        eps=float(job.drafter.settings["rms_norm_eps"]),
        tokens=moments.tokens,
        rms=sizes.rms,
        spread=sizes.spread,
        sigma=sizes.sigma,
        sigmas=sizes.sigmas,
        is_direction=job.drafter.norms.norm_before_residual,
        matrices=Matrices(moments.gram.cpu().numpy(), moments.cross.cpu().numpy()),
        engine=engine.engine,
    )


@contextmanager
def _start_engine(
    engine_name: str, job: EngineJob, length: int
) -> Iterator[tuple["TargetEngine", "DraftModel"]]:
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
        (
            conversion.fixes,
            "--fix-reading is a conversion of its own, which smoke can then measure: leave --to 3.1 out, and"
            " convert the output with it",
        ),
    )
    needs_target = not options.is_start and (options.has_gate or options.statistics is None)
    with prepared(os.fspath(source), out, conversion, on_progress, needs_target=needs_target) as ready:
        return ready.finished(
            _upgraded(ready, options, None if out is None else Path(out), on_progress),
            is_trusting=options.trust_remote_code,
        )


def _upgraded(
    ready: Prepared, options: UpgradeOptions, out: Path | None, on_progress: OnProgress | None
) -> Conversion:
    files, target, conversion = ready.files, ready.target, ready.options
    drafter, gate = read_drafter(files.checkpoint, conversion.answers, target), None
    prompts: tuple[Prompt, ...] = ()
    if drafter.version == "3":  # else it is 3.1 already, or the plan raises a question
        place = out or default_output(files.original, "3.1")
        for path in (options.statistics, options.prompts):
            if path is not None:
                check_apart(place, Path(path))
        is_named = out is not None or (options.fc_norm != "off" and options.is_norm_output)
        if not conversion.dry_run and is_named:
            check_free(place, force=conversion.force)  # before long work
        recipe = UpgradeRecipe(options.fc_norm, options.is_norm_output, is_start=options.is_start)
        statistics, prompts = _statistics_for(ready, drafter, recipe, options, out, on_progress)
        conversion = replace(conversion, recipe=replace(recipe, statistics=statistics))
    plan = served_plan(files, target, conversion)
    if drafter.version == "3" and not conversion.dry_run:
        if options.is_measured:
            _check_gate(ready, plan.drafter, prompts, place)
            gate = _gate(ready, plan, conversion, options, prompts, on_progress)
        if gate and not gate.is_passed:
            return Conversion(plan, None, files.pickles, 0.0, gate)
        plan = replace(plan, record={**plan.record, "gate": _record(gate)})
    return replace(carry_out(files, plan, conversion, out, on_progress=on_progress), gate=gate)


def _statistics_for(
    ready: Prepared,
    drafter: Drafter,
    recipe: UpgradeRecipe,
    options: UpgradeOptions,
    out: Path | None,
    on_progress: OnProgress | None,
) -> tuple[Statistics | None, tuple[Prompt, ...]]:
    """The statistics, if they are given or can be collected, and the prompts left for the gate."""
    prompts, folder = (
        choose_prompts(options.prompts, options.sample, options.seed).prompts,
        weights_folder(ready.options.target),
    )
    if options.statistics is not None:
        statistics = _given_statistics(ready, drafter, options.statistics, recipe)
        return statistics, tuple(
            prompt for prompt in prompts if prompt_digest(prompt) not in statistics.prompts
        )
    # of a drafter that does not run, the plan states what is wrong
    is_runnable = not (drafter.quantisation or drafter.notes_at("problem") or drafter.notes_at("question"))
    if not is_runnable or not needs_statistics(drafter, recipe.fc_norm, recipe.is_norm_output):
        return None, prompts
    if folder is None and recipe.is_start:
        return None, prompts
    check_upgrade(drafter, recipe)
    if folder is None:
        raise _target_needed(ready, options, out)
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


def _given_statistics(ready: Prepared, drafter: Drafter, place: Path, recipe: UpgradeRecipe) -> Statistics:
    statistics, folder = read_statistics(place), weights_folder(ready.options.target)
    is_scaled = needs_statistics(drafter, "off", recipe.is_norm_output)
    check_statistics(
        statistics,
        ready.files.checkpoint,
        drafter,
        None if folder is None else FolderSource(folder),
        is_of_states=recipe.fc_norm == "calibrated" and not is_scaled,
    )
    return statistics


def _target_needed(ready: Prepared, options: UpgradeOptions, out: Path | None) -> UsageError:
    """What lacks and the command to run next: the call that was made, with --target."""
    conversion = ready.options
    values = {
        "--for": conversion.layout,
        "--dtype": conversion.dtype,
        "--fc-norm": None if options.fc_norm == "refit" else options.fc_norm,
        "--prompts": options.prompts,
        "-o": out,
        "--target": "PATH",
    }
    flags = {
        "--no-norm-output": not options.is_norm_output,
        "--no-gate": not options.has_gate,
        "--dry-run": conversion.dry_run,
        "--force": conversion.force,
    }
    given = [(name, as_path(str(value))) for name, value in values.items() if value is not None]
    given += [("--engine", request.text) for request in conversion.engines]
    words = [word for pair in given for word in pair]
    words += [name for name, is_given in flags.items() if is_given]
    line = command("convert", ready.files.original_path, "--to", "3.1", *words, answers=conversion.answers)
    why = ready.choice.missing or f"{ready.choice.text} has none here"
    if why == NONE_NAMED:
        why = "the drafter's files name no target"
    return UsageError(
        f"--to 3.1 sets its new norms from the target's states and needs the target's weights ({why});"
        " without them: --calibration with what calibrate wrote elsewhere, or --init-only for a trainer's"
        f" start; next, with the target's folder as PATH: {line}"
    )


def _check_gate(ready: Prepared, drafter: Drafter, prompts: tuple[Prompt, ...], place: Path) -> None:
    against = ("--run-in", "vllm", "--against", as_path(ready.files.original_path))
    line = command("smoke", str(place), *against, target=ready.choice.text)
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


def _gate(
    ready: Prepared,
    plan: ConversionPlan,
    conversion: ConvertOptions,
    options: UpgradeOptions,
    prompts: tuple[Prompt, ...],
    on_progress: OnProgress | None,
) -> "Gate":
    """Both drafters in vLLM's layout, run on the same prompts; `plan` is of the one after.

    Raises RefusedError where the drafter hardly drafts before the conversion.
    """
    from eaglectl.run.report import MIN_BASELINE_LENGTH, run_gate

    after = replace(conversion, layout=DEFAULT_LAYOUT, link=False, max_shard_size=None)
    report_step(on_progress, LOADING)
    with scratch_folder() as scratch:
        before, jobs = replace(after, version=None, recipe=None), []
        if plan.layout != DEFAULT_LAYOUT:
            plan = plan_conversion(ready.files, ready.target, after)
        plans = (plan_conversion(ready.files, ready.target, before), plan)
        for name, written, wanted in zip(("before", "after"), plans, (before, after), strict=True):
            write_conversion(ready.files, written, scratch / name, wanted)
            job = EngineJob(
                scratch / name,
                written.drafter,
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
        raise RefusedError(
            f"the drafter as it is has an acceptance length of {baseline:.3f} at k=3, which is hardly"
            " drafting: find out why before converting it, with `eaglectl smoke SOURCE --target TARGET"
            f" --probe sensitivity{' --trust-remote-code' * options.trust_remote_code}`"
        )
    return gate
