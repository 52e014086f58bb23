"""`convert --to 3.1`: statistics, the conversion, and the gate that it must pass before it is written."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.calibration import Statistics, check_statistics, read_statistics
from eaglectl.conversion.plan import ConversionPlan
from eaglectl.conversion.request import DEFAULT_LAYOUT, UpgradeRecipe
from eaglectl.conversion.upgrade import is_output_free, needs_statistics
from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.opening import on_disk, open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.writer import check_apart, check_free
from eaglectl.formats.commands import command, completing, whole_commands
from eaglectl.formats.reader import read_drafter
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.converting import (
    check_options,
    convert_files,
    default_place,
    plan_conversion,
    served_plan,
    target_of,
    write_conversion,
)
from eaglectl.operations.copies import OpenedSource, opened
from eaglectl.operations.open_questions import measure_open_questions, measure_run
from eaglectl.operations.options import TOLERANCE, CalibrateOptions, ConvertOptions, UpgradeOptions
from eaglectl.progress import LOADING, OnProgress, report_step
from eaglectl.results import Conversion
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import Prompt, prompt_digest
from eaglectl.shell import as_path
from eaglectl.target import TargetChoice, asking_for, weights_folder

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
    source, options = os.fspath(source), options or UpgradeOptions()
    conversion = replace(conversion or ConvertOptions(), version="3.1")
    _check(options)
    if conversion.fixes:
        raise UsageError(
            "--fix-reading is a conversion of its own, which smoke can then measure: leave --to 3.1 out, and"
            " convert the output with it"
        )
    original = open_folder(on_disk(source))
    named = conversion.target
    needs_target = not options.is_start and (options.has_gate or options.statistics is None)
    if conversion.target is not None and needs_target:
        conversion = replace(conversion, target=on_disk(conversion.target))
    check_options(original, out, conversion)
    given = None if named is None else TargetChoice(named, conversion.target)
    target = given and given.known(conversion.target_name)
    with opened(original, path_text(out)) as files:
        choice = given or target_of(files, conversion.answers, needs_weights=needs_target)
        target = target or choice.known(conversion.target_name)
        conversion = replace(conversion, target=choice.place)
        questions = measure_open_questions(
            files, target, conversion.answers, measure_run(conversion), on_progress
        )
        conversion = conversion.answered(questions.answers, questions.record)
        place = None if out is None else Path(out)
        complete = completing(source, choice.text, conversion.answers)
        with asking_for(choice), questions.explaining(), whole_commands(complete):
            done = _Upgrade(files, target, options, conversion, on_progress, choice.text).run(place)
    return replace(
        done,
        plan=done.plan.completed(complete),
        measured=questions.measured,
        trust_remote_code=options.trust_remote_code or conversion.is_trusting,
    )


def _check(options: UpgradeOptions) -> None:
    """Raise UsageError for a value that is not known, and for options that would have no effect."""
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


class _Upgrade(Struct, frozen=True):
    """An upgrade of a source whose headers were read once, for calibration, gate and output alike."""

    files: OpenedSource
    target: Target
    options: UpgradeOptions
    conversion: ConvertOptions
    on_progress: OnProgress | None
    target_text: str | None = None

    def run(self, out: Path | None) -> Conversion:
        """Calibrate, plan, measure and write."""
        drafter = read_drafter(self.files.checkpoint, self.conversion.answers, self.target)
        if drafter.version != "3":  # it is 3.1 already, or the plan raises a question
            return self._written(out, self.conversion, None)
        self._check_out(out)
        statistics, prompts = self._statistics(drafter)
        recipe = UpgradeRecipe(
            self.options.fc_norm, self.options.is_norm_output, statistics, self.options.is_start
        )
        conversion = replace(self.conversion, recipe=recipe)
        if conversion.dry_run:
            return self._written(out, conversion, None)
        plan = self._plan(conversion)
        gate = None
        if self.options.is_measured:
            gate = self._gate(conversion, plan.drafter, prompts, out)
            if not gate.is_passed:
                return Conversion(plan, None, self.files.pickles, 0.0, gate)
        record = {**conversion.record, **gate_record(gate)}
        return self._written(out, replace(conversion, record=record), gate)

    def _written(self, out: Path | None, conversion: ConvertOptions, gate: "Gate | None") -> Conversion:
        written = convert_files(self.files, self.target, conversion, out, on_progress=self.on_progress)
        return replace(written, gate=None if conversion.dry_run else gate)

    def _plan(self, conversion: ConvertOptions) -> ConversionPlan:
        """The plan, which an engine runs as trained. Raises RefusedError where none does."""
        return served_plan(self.files, plan_conversion(self.files, self.target, conversion), conversion)

    def _check_out(self, out: Path | None) -> None:
        """Raise UsageError before long work where the output cannot be written."""
        place = out or default_place(self.files.original, "3.1")
        for path in (self.options.statistics, self.options.prompts):
            if path is not None:
                check_apart(place, Path(path))
        is_whole = self.options.fc_norm != "off" and self.options.is_norm_output
        if not self.conversion.dry_run and (out is not None or is_whole):
            check_free(place, force=self.conversion.force)

    def _statistics(self, drafter: Drafter) -> tuple[Statistics | None, tuple[Prompt, ...]]:
        """The statistics, if they are given or can be collected, and the prompts left for the gate."""
        prompts = self.options.read_prompts()
        if self.options.statistics is not None:
            statistics, own = read_statistics(self.options.statistics), weights_folder(self.conversion.target)
            is_free = is_output_free(drafter, self.options.is_norm_output)
            check_statistics(
                statistics,
                self.files.checkpoint,
                drafter,
                None if own is None else FolderSource(own),
                is_of_states=self.options.fc_norm == "calibrated" and is_free,
            )
            left = tuple(prompt for prompt in prompts if prompt_digest(prompt) not in statistics.prompts)
            return statistics, left
        folder = weights_folder(self.conversion.target)
        is_needed = needs_statistics(drafter, self.options.fc_norm, self.options.is_norm_output)
        # of a drafter that does not run, the plan states what is wrong
        is_open = bool(drafter.notes_at("problem") or drafter.notes_at("question"))
        if folder is None or drafter.quantisation is not None or is_open or not is_needed:
            return None, prompts
        # late: a conversion without statistics need not load it
        from eaglectl.operations.calibrating import GATE_SHARE, collect_statistics, split_prompts

        calibrated, left = split_prompts(prompts)
        if self.options.is_measured and len(left) < FEWEST_PROMPTS:
            needed = GATE_SHARE * (FEWEST_PROMPTS - 1) + 1
            raise UsageError(
                f"--prompts are shared between calibration and the gate, and there are {len(prompts)};"
                f" {needed} different ones are the least: give more, or --no-gate"
            )
        settings = CalibrateOptions(
            device=self.options.device,
            ignore_eos=self.options.ignore_eos,
            answers=self.conversion.answers,
            trust_remote_code=self.options.trust_remote_code,
        )
        statistics = collect_statistics(
            self.files.path, str(folder), calibrated or prompts, settings, self.on_progress
        )
        return statistics, left

    def _gate(
        self,
        conversion: ConvertOptions,
        drafter: Drafter,
        prompts: tuple[Prompt, ...],
        out: Path | None,
    ) -> "Gate":
        """Both drafters in vLLM's layout, run on the same prompts.

        Raises UsageError where they cannot be run, RefusedError where the drafter hardly drafts before the
        conversion.
        """
        from eaglectl.run.gate import run_gate

        folder = weights_folder(conversion.target)
        place = str(out or default_place(self.files.original, "3.1"))
        against = ("--run-in", "vllm", "--against", as_path(self.files.original_path))
        line = command("smoke", place, *against, target=self.target_text)
        check(
            (
                drafter.quantisation is not None,
                "the gate runs drafters in plain torch, which runs no quantised ones; pass --no-gate, then"
                f" hold the output to its source with `{line}`",
            ),
            (
                folder is None,
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
        assert folder is not None
        after = replace(conversion, layout=DEFAULT_LAYOUT, link=False, max_shard_size=None)
        before = replace(after, version=None, recipe=None)
        report_step(self.on_progress, LOADING)
        with scratch_folder() as scratch:
            first = self._job(scratch / "before", folder, prompts, before)
            second = self._job(scratch / "after", folder, prompts, after)
            gate = run_gate(first, second, self.options.tolerance, self.on_progress)
        self._check_baseline(gate.rows[0].before.length.value)
        return gate

    def _check_baseline(self, baseline: float) -> None:
        """Raise RefusedError where the drafter hardly drafts before the conversion."""
        from eaglectl.run.gate import MIN_BASELINE_LENGTH

        if baseline < MIN_BASELINE_LENGTH:
            trust = ["--trust-remote-code"] * self.options.trust_remote_code
            probe = ("--probe", "sensitivity", *trust)
            line = command(
                "smoke",
                self.files.original_path,
                *probe,
                target=self.target_text,
                answers=self.conversion.answers,
            )
            raise RefusedError(
                f"the drafter as it is has an acceptance length of {baseline:.3f} at"
                f" k=3, which is hardly drafting: find out why before converting it, with `{line}`"
            )

    def _job(
        self, place: Path, target: Path, prompts: tuple[Prompt, ...], conversion: ConvertOptions
    ) -> EngineJob:
        """The drafter converted into a folder, for a run on the prompts."""
        plan, options = plan_conversion(self.files, self.target, conversion), self.options
        write_conversion(self.files, plan, place, conversion)
        return EngineJob(
            place,
            plan.drafter,
            target,
            prompts,
            max_tokens=options.max_tokens,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
            ignores_eos=options.ignore_eos,
        )


def gate_record(gate: "Gate | None") -> Mapping[str, Any]:
    """What eaglectl.json keeps of a gate."""
    if gate is None:
        return {"gate": None}
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
    return {
        "gate": {
            "rows": rows,
            "prompts": gate.prompts,
            "tolerance": gate.tolerance,
            "is_passed": gate.is_passed,
            "ending": gate.ending,
            "engine": gate.engine,
            "device": gate.device,
            "dtype": gate.dtype,
        }
    }
