"""`convert --to 3.1`: statistics, the conversion, and the gate that it must pass before it is written."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglectl.conversion.request import DEFAULT_LAYOUT
from eaglectl.conversion.upgrade import (
    Statistics,
    UpgradeRecipe,
    check_statistics,
    is_output_free,
    needs_statistics,
    read_statistics,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.writer import check_apart, check_free
from eaglectl.formats.commands import command
from eaglectl.formats.reader import read_drafter
from eaglectl.keywords import StrPath, with_keywords
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
from eaglectl.progress import LOADING, OnProgress, report_step
from eaglectl.results import Conversion
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import Prompt, prompt_digest
from eaglectl.shell import as_path
from eaglectl.target import weights_folder

if TYPE_CHECKING:
    from eaglectl.run.gate import Gate

FEWEST_PROMPTS = 3  # an interval over fewer prompts does not generalise


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
    _check(options)
    if conversion.fixes:
        raise UsageError(
            "--fix-reading is a conversion of its own, which smoke can then measure: leave --to 3.1 out, and"
            " convert the output with it"
        )
    needs_target = not options.is_start and (options.has_gate or options.statistics is None)
    with prepared(os.fspath(source), out, conversion, on_progress, needs_target=needs_target) as ready:
        done = _upgraded(ready, options, None if out is None else Path(out), on_progress)
    return ready.finished(done, is_trusting=options.trust_remote_code)


def _check(options: UpgradeOptions) -> None:
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
        for path in filter(None, (options.statistics, options.prompts)):
            check_apart(place, path)
        is_whole = options.fc_norm != "off" and options.is_norm_output
        if not conversion.dry_run and (out is not None or is_whole):
            check_free(place, force=conversion.force)  # before long work
        statistics, prompts = _statistics(ready, drafter, options, on_progress)
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


def _statistics(
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
    # late: a conversion without statistics need not load it
    from eaglectl.operations.calibrating import GATE_SHARE, collect_statistics, split_prompts

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
    from eaglectl.run.gate import MIN_BASELINE_LENGTH, run_gate

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
