"""`calibrate` and `convert --to 3.1`: statistics of a target, the conversion, and its gate."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.api.convert import (
    Prepared,
    carry_out,
    default_output,
    plan_conversion,
    prepared,
    served_plan,
    write_conversion,
)
from eaglectl.api.options import TOLERANCE, CalibrateOptions, ConvertOptions, UpgradeOptions
from eaglectl.conversion.plan import DEFAULT_LAYOUT, ConversionPlan, UpgradeRecipe
from eaglectl.conversion.upgrade import (
    GateResults,
    Matrices,
    Statistics,
    check_changeable,
    check_statistics,
    check_upgrade,
    drafter_digest,
    needs_statistics,
    read_statistics,
    refit_tokens,
    target_digest,
    write_statistics,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.files import sha256
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.writer import STATISTICS, check_apart, check_free
from eaglectl.formats.commands import command
from eaglectl.formats.reader import read_drafter
from eaglectl.options import StrPath, path_text, with_keywords
from eaglectl.progress import LOADING, OnProgress, TimedWork, notify, report_step
from eaglectl.results import Conversion
from eaglectl.run.installed import check_engine_arguments, start_vllm
from eaglectl.run.job import (
    EngineJob,
    Stage,
    read_context_length,
    share_loaded_targets,
    stop_tokens,
    tokenise,
)
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import Prompt, batches_by_length, built_in_prompts, choose_prompts, prompt_digest
from eaglectl.shell import as_path
from eaglectl.target.choice import NONE_NAMED, TargetChoice, as_target, check_timeout, runnable_target
from eaglectl.target.files import until_end
from eaglectl.text import duration
from eaglectl.verdicts import GateEnding

if TYPE_CHECKING:
    from eaglectl.api.keywords import CalibrateFields, UpgradeFields
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.states import Batch, TargetEngine
    from eaglectl.run.gate import Gate

GATE_SHARE = 3  # one prompt of so many is kept for the gate
# tokens of the longest sequence: token 0 is left out, and two more follow the last state that is measured
MIN_TOKENS = 4
FEWEST_PROMPTS = 3  # an interval over fewer prompts does not generalise
PASSES = 3  # over each prompt: the target's answer, the sizes, the matrices
ROOM = 64  # tokens of an answer that a batch has room for
LONGEST_ANSWER = 512  # tokens up to which answers are continued where prompts lack
# prompts of the gate's first look, which double with each look, and those of one call
FIRST_LOOK, MOST_OF_GATE = 32, 128
LARGE_SET = "spec-bench"  # prompts of several kinds, for a gate that has measured all built-in ones
TOP_UP_ALONE = "--top-up adds built-in prompts to those of --prompts; pass --prompts, or leave it out"


@with_keywords
def calibrate(
    source: StrPath,
    target: StrPath | TargetChoice | None = None,
    out: StrPath | None = None,
    options: CalibrateOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[CalibrateFields]",
) -> Statistics:
    """Run the target on prompts and its own answers, and collect the statistics for `convert --to 3.1`.

    `target` defaults to the one that the checkpoint names. With `out`, writes the statistics to that folder.
    Raises UnreadableError without torch, the engine, the device or the target's weights, RefusedError and
    UsageError as `convert` does.
    """
    source, options = os.fspath(source), options or CalibrateOptions()
    _check(options)
    target = runnable_target(source, as_target(target), options.answers, "calibrate")
    if out is not None:
        for path in filter(None, (source, target.place, options.prompts)):
            check_apart(Path(out), Path(path))
        check_free(Path(out), force=options.force, kind=STATISTICS)
    conversion = ConvertOptions(target=target, answers=options.answers, measure=options.measuring)
    with prepared(source, None, conversion, on_progress, needs_target=True) as ready:
        prompts, spare = _chosen_prompts(options, ready.options.target)
        # a third of the built-in ones is the gate's
        spare = split_prompts(spare)[0]
        statistics = collect_statistics(ready, prompts, options, on_progress, spare=spare)
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
    *,
    spare: Sequence[Prompt] = (),
    following: int = 0,
) -> Statistics:
    """Collect statistics over `prompts`, and over as many of `spare` as a refit needs.

    The prompts of the options are not read. The forecast counts `following` prompts of a later gate. Raises
    as `calibrate` does.
    """
    require_torch("calibrating runs the target and needs")
    files, answers = ready.files, ready.options.answers
    folder = ready.options.target.on_disk("calibrating").folder
    drafter = read_drafter(files.checkpoint, answers, ready.target)
    _check_runnable(drafter)
    wanted = ConvertOptions(target=ready.options.target, answers=answers, link=True, force_unserved=True)
    with scratch_folder() as scratch:
        carry_out(files, served_plan(files, ready.target, wanted), wanted, scratch / "drafter")
        job = EngineJob(
            scratch / "drafter",
            drafter,
            folder,
            (*prompts, *spare),
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
        needed = refit_tokens(drafter) if spare else 0
        statistics = _collect_run(job, options.run_in, len(prompts), needed, following)
        digest = drafter_digest(files.checkpoint, drafter)
        files.original.check_unchanged()
    return replace(statistics, digests={"drafter": digest, **statistics.digests})


def _check_runnable(drafter: Drafter) -> None:
    # the reference must be able to run the drafter, and the upgrade to change it
    check(
        (
            drafter.aux.boundaries is None,
            "the trained aux layers are not known; pass --aux-layers",
            ("--aux-layers",),
        )
    )
    check(
        (
            drafter.quantisation is not None,
            "calibrating does not run quantised drafters; calibrate with the unquantised one",
        ),
        error=RefusedError,
    )
    check_changeable(drafter)


def _collect_run(job: EngineJob, engine_name: str, count: int, needed: int, following: int) -> Statistics:
    """Collect statistics over the first `count` prompts, and over more until there are `needed` tokens.

    If all prompts have too few tokens, answers are continued. The forecast counts `following` prompts.
    """
    from eaglectl.reference.states import Batch

    work, prompts, stop = TimedWork(job.on_progress, "calibrating", 1), tokenise(job), stop_tokens(job)
    size, context = max(map(len, prompts)), read_context_length(job.target) or math.inf
    longest = int(min(LONGEST_ANSWER, context - size - job.k - 1)) if needed else 0
    texts, answered = list[list[int]](), 0

    def batch_of(rows: Iterable[int]) -> Batch:
        used = [row for row in rows if len(texts[row]) >= MIN_TOKENS]
        return Batch([texts[row] for row in used], [job.prompts[row].set for row in used])

    with _start_engine(engine_name, job, size + max(longest, job.max_tokens)) as (engine, model):
        work.start(is_even=False)
        for rows, step in _rounds(job, prompts, texts, count, needed, longest):
            answered += len(rows)
            work.total = answered + (PASSES - 1) * len(texts)
            for places in batches_by_length([texts[row] for row in rows], ROOM):
                indices, is_first = [rows[place] for place in places], not work.done
                answers = engine.answers([texts[row] for row in indices], step)
                for row, answer in zip(indices, answers, strict=True):
                    texts[row] += until_end(answer, stop)
                work.add(len(indices))
                if is_first and job.on_progress is not None:
                    _forecast((engine, model), batch_of(indices), work, texts, needed, following)
        batches = [batch for rows in batches_by_length(texts) if (batch := batch_of(rows)).texts]
        # prompts that are left out have no further pass
        work.add((PASSES - 1) * (len(texts) - sum(len(batch.texts) for batch in batches)))
        return _collect(replace(job, prompts=job.prompts[: len(texts)]), engine, model, batches, work)


def _rounds(
    job: EngineJob,
    prompts: Sequence[list[int]],
    texts: list[list[int]],
    count: int,
    needed: int,
    longest: int,
) -> Iterator[tuple[Sequence[int], int]]:
    """Yield the rows of `texts` to continue and by how many tokens, until there are `needed` tokens.

    `texts` are prompts with their answers so far, which the caller extends between two rounds. The first
    round has `count` prompts, or as many as `needed` tokens take if that is 0; further rounds add prompts.
    Then unfinished answers are continued, up to `longest` tokens.
    """
    stop = stop_tokens(job)
    while (lacking := needed - sum(len(text) for text in texts if len(text) >= MIN_TOKENS)) > 0 or not texts:
        if (start := len(texts)) < len(prompts):
            totals = accumulate(len(prompt) + job.max_tokens for prompt in prompts[start:])
            more = (not start and count) or 1 + sum(total < lacking for total in totals)
            texts += map(list, prompts[start : start + more])
            yield range(start, len(texts)), job.max_tokens
            continue
        lengths = {
            row: len(text) - len(prompts[row])
            for row, text in enumerate(texts)
            if text[-1] not in stop and len(text) < len(prompts[row]) + longest
        }
        if not lengths:
            return
        yield list(lengths), min(-(-lacking // len(lengths)), longest - max(lengths.values()))


def _forecast(
    run: "tuple[TargetEngine, DraftModel]",
    batch: "Batch",
    work: TimedWork,
    texts: Sequence[Sequence[int]],
    needed: int,
    following: int,
) -> None:
    """Print an estimate of the total time, from one batch that has its answers.

    The batch is calibrated here once, only to be timed. `work` counts the seconds since the engine was
    loaded, so that they include those of the batch's answers.
    """
    from eaglectl.reference.states import RememberedStates, collect_moments, collect_sizes

    text = f"calibrating on {len(texts)} prompts, for the {needed:,} tokens that a refit needs"
    text += f"; then the gate on {following} others, and on more if the result is not clear" * (following > 0)
    if 0 < len(batch.texts) < len(texts):
        engine, model = run
        target = RememberedStates(engine)
        sizes = collect_sizes(target, model, [batch], lambda: None)
        collect_moments(target, model, sizes.rms, [batch], lambda: None)
        total = sum(len(text) + ROOM for text in texts)
        seconds = work.estimate(min(1.0, len(batch.texts) * max(map(len, batch.texts)) / total))
        text += f": about {duration(seconds * (1 + following / len(texts)))}"
    if needed:
        notify(text)


def _chosen_prompts(
    options: UpgradeOptions | CalibrateOptions, target: TargetChoice
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return the user's prompts, and built-in ones to use as needed: without --prompts, or with --top-up."""
    is_built_in = options.prompts is None and options.sample is None
    chosen = () if is_built_in else choose_prompts(options.prompts, options.sample, options.seed).prompts
    if not (is_built_in or options.tops_up):
        return chosen, ()
    folder = target.weights and target.weights.root
    return chosen, built_in_prompts((folder and read_context_length(folder)) or math.inf, chosen)


def split_prompts(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return the distinct prompts for calibration, and those for the gate: every third."""
    distinct = tuple({prompt_digest(prompt): prompt for prompt in prompts}.values())
    for_calibration = tuple(prompt for index, prompt in enumerate(distinct) if index % GATE_SHARE)
    return for_calibration, distinct[::GATE_SHARE]


def _check(options: CalibrateOptions) -> None:
    # raise UsageError for options that do not fit each other, before a model is loaded
    check_timeout(options.timeout)
    is_vllm = options.run_in == "vllm"
    check(
        (
            options.sample is not None and options.prompts is None,
            "--sample draws from a file of prompts; pass it with --prompts",
            ("--sample",),
        ),
        (options.tops_up and options.prompts is None, TOP_UP_ALONE, ("--top-up",)),
        (
            options.tensor_parallel_size > 1 and not is_vllm,
            "--tensor-parallel-size is for vLLM: pass --run-in vllm; transformers uses all GPUs",
            ("--tensor-parallel-size",),
        ),
        (
            options.engine_arguments and not is_vllm,
            "--engine-arg is for vLLM: pass --run-in vllm",
            ("--engine-arg",),
        ),
    )
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size, is_calibration=True)


def _collect(
    job: EngineJob,
    engine: "TargetEngine",
    model: "DraftModel",
    batches: "Sequence[Batch]",
    work: TimedWork,
) -> Statistics:
    """Collect sizes, then matrices. Raises UsageError for short texts, RefusedError for infinite states."""
    from eaglectl.reference.states import RememberedStates, collect_moments, collect_sizes

    check(
        (
            not batches,
            f"prompts and answers of fewer than {MIN_TOKENS} tokens show no fed-back states; use longer"
            " prompts, or more --answer-tokens",
            ("--answer-tokens",),
        )
    )
    target = RememberedStates(engine)
    sizes = collect_sizes(target, model, batches, work.add)
    if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
        raise RefusedError(
            "hidden states of the drafter or the target are not finite; check for NaN and infinite weights"
            " with `eaglectl validate SOURCE`"
        )
    moments = collect_moments(target, model, sizes.rms, batches, work.add)
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
    # the target in the chosen engine, and the drafter in plain torch
    from eaglectl.reference.model import load_drafter
    from eaglectl.reference.states import TransformersEngine

    if engine_name == "vllm":
        # the drafter runs on the CPU: vLLM has taken the GPUs
        with start_vllm(job, length) as engine:
            yield engine, load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
        return
    stage = Stage(job)
    yield TransformersEngine(stage.target, stage.device, stage.dtype), stage.drafter


@with_keywords
@share_loaded_targets()
def upgrade(
    source: StrPath,
    out: StrPath | None = None,
    options: UpgradeOptions | None = None,
    conversion: ConvertOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[UpgradeFields]",
) -> Conversion:
    """Convert EAGLE-3 to 3.1.

    The Conversion has the gate's result; if the gate did not pass, its `out` is None.

    Raises UsageError for missing options, RefusedError for a drafter that the upgrade would break,
    UnreadableError without torch or weights.
    """
    options = options or UpgradeOptions()
    conversion = conversion or ConvertOptions()
    deployment = replace(conversion.deployment, trusts_code=options.trust_remote_code)
    conversion = replace(conversion, version="3.1", deployment=deployment)
    _check_upgrade(options, conversion)
    needs_target = not options.is_start and (options.has_gate or options.statistics is None)
    with prepared(os.fspath(source), out, conversion, on_progress, needs_target=needs_target) as ready:
        return ready.finished(_upgraded(ready, options, None if out is None else Path(out), on_progress))


def _check_upgrade(options: UpgradeOptions, conversion: ConvertOptions) -> None:
    # raise UsageError for options of an upgrade that contradict each other or the conversion's
    why = "with --init-only there is no gate" if options.is_start else "with --no-gate there is no gate"
    has_own_prompts = options.statistics is not None and options.prompts is not None
    check(
        (
            not 0 < options.tolerance < math.inf,
            f"--tolerance {options.tolerance:g}: a ratio above 0 was expected, like {TOLERANCE}",
            ("--tolerance",),
        ),
        (
            options.fc_norm == "off" and not options.is_norm_output,
            "--fc-norm off and --no-norm-output leave nothing of EAGLE-3.1; leave one of them out",
            ("--fc-norm",),
        ),
        (
            not options.is_measured and options.tolerance != TOLERANCE,
            f"{why}, and --tolerance is for the gate; leave it out",
            ("--tolerance",),
        ),
        (
            not options.is_measured and has_own_prompts,
            f"{why}, and --calibration has its prompts already; leave --prompts out",
            ("--calibration",),
        ),
        (options.tops_up and options.prompts is None, TOP_UP_ALONE, ("--top-up",)),
        (
            conversion.fixes,
            "--fix-reading cannot be combined with --to 3.1, so that smoke can measure its output: leave"
            " --to 3.1 out, and convert the output with it",
            ("--fix-reading",),
        ),
    )


def _upgraded(
    ready: Prepared, options: UpgradeOptions, out: Path | None, on_progress: OnProgress | None
) -> Conversion:
    # calibrate, plan, pass the gate, then write; if the gate is not passed, nothing is written but its
    # measurements
    files, conversion, gate = ready.files, ready.options, None
    drafter = read_drafter(files.checkpoint, conversion.answers, ready.target)
    if drafter.version != "3":  # it is 3.1 already, or the plan raises a question
        plan = served_plan(files, ready.target, conversion)
        return carry_out(files, plan, conversion, out, on_progress=on_progress)
    place = _check_place(ready, options, out)
    recipe = UpgradeRecipe(options.fc_norm, options.is_norm_output, is_start=options.is_start)
    statistics, prompts = _statistics_for(ready, drafter, recipe, options, out, on_progress)
    conversion = replace(conversion, recipe=replace(recipe, statistics=statistics))
    plan = served_plan(files, ready.target, conversion)
    if options.is_measured and not conversion.dry_run:
        prompts = prompts.left_by(statistics, _subject(options, conversion))
        _check_gate(ready, plan.drafter, prompts.every, place)
        gate = _gate(ready, plan, conversion, options, prompts, on_progress)
        if not gate.is_passed:
            missed = Conversion(plan, None, files.pickles, 0.0, gate)
            return _kept(missed, gate, statistics, ready, options, place)
    if not conversion.dry_run:
        plan = replace(plan, record={**plan.record, "gate": _record(gate)})
    return replace(carry_out(files, plan, conversion, out, on_progress=on_progress), gate=gate)


def _check_place(ready: Prepared, options: UpgradeOptions, out: Path | None) -> Path:
    """Return the output folder; raise UsageError before long work if it cannot be written."""
    place = out or default_output(ready.files.original, "3.1")
    for path in filter(None, (options.statistics, options.prompts)):
        check_apart(place, Path(str(path)))
    is_named = out is not None or (options.fc_norm != "off" and options.is_norm_output)
    if not ready.options.dry_run and is_named:
        check_free(place, force=ready.options.force)
    return place


class GatePrompts(Struct, frozen=True):
    """The prompts of a gate: the user's, `spare` built-in ones to use as needed, and earlier results.

    Without the latter two there is one look, at all prompts.
    """

    given: tuple[Prompt, ...]
    spare: tuple[Prompt, ...] = ()
    earlier: GateResults | None = None

    @property
    def every(self) -> tuple[Prompt, ...]:
        """All prompts that can be run."""
        return (*self.given, *self.spare)

    @property
    def looks(self) -> tuple[int, ...]:
        """The number of prompts up to each look, without those of earlier gates; () for one look at all.

        The total doubles with each look: sizes are fixed before anything is measured, for `look_level`.
        """
        if not (self.spare or self.earlier):
            return ()
        before, count, ends = len(self.earlier.prompts) if self.earlier else 0, len(self.given), list[int]()
        most, total = min(len(self.every), max(MOST_OF_GATE, count)), max(FIRST_LOOK, count)
        while 1.5 * total <= before + most:  # the last look has at least half as many more as the one before
            ends += [total - before] if total > before else []
            total *= 2
        return (*ends, most)

    def left_by(self, statistics: Statistics | None, subject: str) -> "GatePrompts":
        """Return the prompts that were not calibrated on, with the earlier results for the same `subject`."""
        if statistics is None:
            return self
        earlier = statistics.gate if statistics.gate and statistics.gate.of == subject else None
        gone = {*statistics.prompts, *(row.prompt for row in (earlier.prompts if earlier else ()))}
        remaining, spare = (
            tuple(prompt for prompt in prompts if prompt_digest(prompt) not in gone)
            for prompts in (self.given, self.spare)
        )
        return GatePrompts(remaining, spare, earlier)


def _subject(options: UpgradeOptions, conversion: ConvertOptions) -> str:
    """Return a key of the options behind a gate's results; a later gate with the same key continues them."""
    norms = options.fc_norm, options.is_norm_output
    return repr((*norms, conversion.dtype, options.max_tokens, options.ignore_eos))


def _kept(
    missed: Conversion,
    gate: "Gate",
    statistics: Statistics | None,
    ready: Prepared,
    options: UpgradeOptions,
    place: Path,
) -> Conversion:
    """Keep an undecided gate's results in a new folder beside OUT, and return the command that continues it.

    One look at all given prompts does not count as a look of a later gate: the intervals of its looks hold
    together, whatever else was looked at.
    """
    if gate.ending != GateEnding.TOO_FEW_PROMPTS or statistics is None:
        return missed
    names = (Path(f"{place}-calibration{f'-{number}' * (number > 1)}") for number in count(1))
    folder = next(name for name in names if not os.path.lexists(name))
    results = GateResults(_subject(options, ready.options), gate.looks * gate.has_looks, gate.measured)
    statistics = replace(statistics, gate=results)
    write_statistics(statistics, folder, force=False)
    _, spare = _chosen_prompts(UpgradeOptions(), ready.options.target)
    again = replace(options, tops_up=options.prompts is not None)
    if len(GatePrompts(spare).left_by(statistics, results.of).given) < FEWEST_PROMPTS:
        if options.prompts == LARGE_SET:
            return replace(missed, kept=folder)
        again = replace(options, prompts=LARGE_SET, tops_up=False)
    line = _again(again, ready, {"--calibration": folder, "-o": place})
    return replace(missed, kept=folder, resume=line)


def _statistics_for(
    ready: Prepared,
    drafter: Drafter,
    recipe: UpgradeRecipe,
    options: UpgradeOptions,
    out: Path | None,
    on_progress: OnProgress | None,
) -> tuple[Statistics | None, GatePrompts]:
    """Return the statistics, if they are given or can be collected, and the prompts left for the gate."""
    weights = ready.options.target.weights
    chosen, spare = _chosen_prompts(options, ready.options.target)
    # the gate's share first, then the others if calibration needs few
    to_calibrate, to_gate = split_prompts(spare)
    prompts = GatePrompts(chosen, (*to_gate, *to_calibrate))
    if options.statistics is not None:
        return _given_statistics(ready, drafter, options.statistics, recipe), prompts
    # for a drafter that does not run, the plan reports the error
    is_runnable = not (drafter.quantisation or drafter.notes_at("problem") or drafter.notes_at("question"))
    is_needed = needs_statistics(drafter, recipe.fc_norm, recipe.is_norm_output)
    if not (is_runnable and is_needed) or (weights is None and recipe.is_start):
        return None, prompts
    check_upgrade(drafter, recipe)
    if weights is None:
        raise _target_needed(ready, options, out)
    calibrated, left = split_prompts(chosen)
    if options.is_measured and not spare and len(left) < FEWEST_PROMPTS:
        needed = GATE_SHARE * (FEWEST_PROMPTS - 1) + 1
        raise UsageError(
            f"--prompts are shared between calibration and the gate, and there are {len(chosen)};"
            f" at least {needed} different ones are needed: pass more, --top-up to add built-in ones, or"
            " --no-gate",
            options=("--prompts",),
        )
    settings = CalibrateOptions(
        device=options.device, ignore_eos=options.ignore_eos, trust_remote_code=options.trust_remote_code
    )
    following = FIRST_LOOK if options.is_measured else 0
    statistics = collect_statistics(
        ready, calibrated or chosen, settings, on_progress, spare=to_calibrate, following=following
    )
    return statistics, replace(prompts, given=left)


def _given_statistics(ready: Prepared, drafter: Drafter, place: Path, recipe: UpgradeRecipe) -> Statistics:
    # the statistics of --calibration; if only scales are used, they may come from another drafter of the same
    # layers
    statistics, is_scaled = read_statistics(place), needs_statistics(drafter, "off", recipe.is_norm_output)
    check_statistics(
        statistics,
        ready.files.checkpoint,
        drafter,
        ready.options.target.weights,
        is_of_states=recipe.fc_norm == "calibrated" and not is_scaled,
    )
    return statistics


def _target_needed(ready: Prepared, options: UpgradeOptions, out: Path | None) -> UsageError:
    """Return the error for missing target weights, with this command and --target as the next one."""
    line = _again(options, ready, {"-o": out}, "PATH")
    why = ready.options.target.missing or f"{ready.options.target.text} has none here"
    if why == NONE_NAMED:
        why = "the drafter's files name no target"
    return UsageError(
        f"--to 3.1 computes its new norms from the target's hidden states and needs the target's weights"
        f" ({why}); without them: --calibration with the output of calibrate on another machine, or"
        f" --init-only for a starting point of training; next, with the target's folder as PATH: {line}",
        options=("--to",),
    )


def _again(
    options: UpgradeOptions, ready: Prepared, changed: Mapping[str, object], target: str | None = None
) -> str:
    """Return the command of this call, with `changed` values."""
    conversion, usual = ready.options, UpgradeOptions()
    values = {
        "--for": conversion.layout,
        "--dtype": conversion.dtype,
        "--fc-norm": None if options.fc_norm == usual.fc_norm else options.fc_norm,
        "--tolerance": None if options.tolerance == usual.tolerance else options.tolerance,
        "--prompts": options.prompts,
        "--sample": options.sample,
        "--seed": options.seed or None,
        "--device": None if options.device == usual.device else options.device,
        **changed,
    }
    flags = {
        "--no-norm-output": not options.is_norm_output,
        "--no-gate": not options.has_gate,
        "--top-up": options.tops_up,
        "--ignore-eos": options.ignore_eos,
        "--dry-run": conversion.dry_run,
        "--force": conversion.force,
    }
    arguments = [(name, as_path(str(value))) for name, value in values.items() if value is not None]
    arguments += [("--engine", request.text) for request in conversion.engines]
    words = [word for pair in arguments for word in pair]
    words += [name for name, is_given in flags.items() if is_given]
    place = replace(conversion.target, text=target or conversion.target.text)
    source = ready.files.original_path
    return command("convert", source, "--to", "3.1", *words, target=place, answers=conversion.answers)


def _check_gate(ready: Prepared, drafter: Drafter, prompts: tuple[Prompt, ...], place: Path) -> None:
    # raise UsageError if the gate cannot run: quantised drafter, no target weights, too few prompts
    against = ("--run-in", "vllm", "--against", as_path(ready.files.original_path))
    line = command("smoke", str(place), *against, target=ready.options.target)
    check(
        (
            drafter.quantisation is not None,
            "the gate runs drafters in plain torch, without quantisation; pass --no-gate, then"
            f" compare the output with its source: `{line}`",
            ("--no-gate",),
        ),
        (
            ready.options.target.weights is None,
            "the gate runs both drafters with the target; pass --target with its weights, or --no-gate to"
            " write without measuring",
            ("--target",),
        ),
        (
            not prompts,
            "all prompts were used for calibration or measured before, and none is left for the gate; pass"
            " other --prompts, or --no-gate",
            ("--prompts",),
        ),
        (
            len(prompts) < FEWEST_PROMPTS,
            f"calibration left {len(prompts)} prompts, and the gate needs at least {FEWEST_PROMPTS}; pass"
            " more --prompts, or --no-gate",
            ("--prompts",),
        ),
    )


def _record(gate: "Gate | None") -> Mapping[str, Any] | None:
    # the gate's entry in eaglectl.json
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
    names = (
        "prompts",
        "tolerance",
        "is_passed",
        "ending",
        "looks",
        "confidence",
        "engine",
        "device",
        "dtype",
    )
    return {"rows": rows, **{name: getattr(gate, name) for name in names}}


def _gate(
    ready: Prepared,
    plan: ConversionPlan,
    conversion: ConvertOptions,
    options: UpgradeOptions,
    prompts: GatePrompts,
    on_progress: OnProgress | None,
) -> "Gate":
    """Run both drafters in vLLM's layout on the same prompts; `plan` is the conversion's.

    Raises RefusedError if almost no draft tokens of the source are accepted.
    """
    from eaglectl.run.gate import run_gate

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
                conversion.target.folder,
                prompts.every[: prompts.looks[-1]] if prompts.looks else prompts.given,
                max_tokens=options.max_tokens,
                device=options.device,
                trust_remote_code=options.trust_remote_code,
                ignores_eos=options.ignore_eos,
            )
            jobs.append(job)
        gate = run_gate(jobs[0], jobs[1], options.tolerance, on_progress, prompts.looks, prompts.earlier)
    if gate.is_dead:
        raise RefusedError(
            f"the source has an acceptance length of {gate.rows[0].before.length.value:.3f} at k=3: almost no"
            " draft token is accepted; find the cause first: `eaglectl smoke SOURCE --target TARGET"
            " --probe sensitivity`"
        )
    return gate
