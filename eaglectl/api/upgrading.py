"""`convert --to 3.1`: statistics, the conversion, and the gate that it has to pass before anything is written."""

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.api.calibrating import ANSWER_TOKENS, GATE_SHARE, Way, collected, prompt_digest, shared
from eaglectl.api.converting import convert, default_place, readable_folder
from eaglectl.api.inputs import open_target
from eaglectl.api.meanings import ask_with_figures
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import FolderSource, on_disk, open_folder
from eaglectl.checkpoint.writer import check_apart, check_free
from eaglectl.conversion.plan import Wish
from eaglectl.errors import Refused, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter
from eaglectl.reports.findings import Conversion

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import Gate
    from eaglectl.acceptance.prompts import Prompt
    from eaglectl.conversion.calibration import Statistics

TOLERANCE = 0.97
QUANTISED = (
    "the gate runs drafters in plain torch, which runs no quantised ones; pass --no-gate, then hold the output to its source with"
    " `eaglectl smoke OUT --target T --engine vllm --against SOURCE`"
)
LEAST_PROMPTS = 3  # an interval over fewer prompts says nothing of others
DEVICES = ("auto", "cuda", "cpu")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What is asked of an upgrade. `statistics` is a folder of `calibrate`; without one, calibration runs on the prompts."""

    fc_norm: str = "refit"
    is_norm_output: bool = True
    statistics: Path | None = None
    prompts: Path | None = None
    tolerance: float = TOLERANCE
    has_gate: bool = True
    is_start: bool = False
    device: str = "auto"
    max_tokens: int = 64


def upgrade(
    source: str, out: str | Path | None = None, *, wish: Wish | None = None, asked: Upgrade | None = None, target: str | None = None, target_name: str | None = None,
    answers: Answers | None = None, dry_run: bool = False, force: bool = False, link: bool = False, max_shard_size: int | None = None,
    told: Callable[[str, int, int], None] | None = None,
) -> Conversion:  # fmt: skip
    """EAGLE-3 to 3.1. `told` gets (stage, done, total). The gate's result is on the Conversion whether or not it was passed.

    Raises Usage for what is missing, Refused for what section 4.3 of eagle3-to-3.1.md forbids, Unreadable without torch or weights.
    """
    from eaglectl.conversion.recipe import Recipe

    asked, wish = asked or Upgrade(), replace(wish or Wish(), version="3.1")
    tell = told or (lambda stage, done, total: None)
    _check(asked)
    source = on_disk(source)
    if target is not None and not asked.is_start and (asked.has_gate or asked.statistics is None):
        target = on_disk(target)  # it is going to run
    settings: dict[str, Any] = {"target": target, "target_name": target_name, "answers": answers}
    last: dict[str, Any] = {"force": force, "link": link, "max_shard_size": max_shard_size, **settings}
    with readable_folder(source) as plain:
        version = _version(plain, target, answers)
        if version == "3 or 3.1" and not dry_run:
            _ask(plain, target, asked, answers or Answers(), lambda done, total: tell("measuring", done, total))
        if version != "3":  # it is 3.1 already, or the plan asks what it is
            return convert(source, out, wish=wish, dry_run=dry_run, **last)
        place = Path(out) if out is not None else default_place(open_folder(source), "3.1")
        for given in filter(None, (asked.statistics, asked.prompts)):
            check_apart(place, given)
        if not dry_run and (out is not None or (asked.fc_norm != "off" and asked.is_norm_output)):
            check_free(place, force=force)
        folder = _runnable(target)
        statistics, held = _known(plain, folder, asked, settings, lambda done, total: tell("calibrating", done, total))
        wish = replace(wish, recipe=Recipe(asked.fc_norm, asked.is_norm_output, statistics, asked.is_start))
        planned = convert(source, out, wish=wish, dry_run=True, **settings)
        if dry_run:
            return planned
        gate = None
        if asked.has_gate and not asked.is_start:
            if planned.plan.drafter.quantisation is not None:
                raise Usage(QUANTISED)
            gate = _gated(
                plain, folder, wish, settings, asked, held, lambda done, total: tell("measuring", done, total)
            )
            _check_baseline(gate, source, target)
            if not gate.is_passed:
                return replace(planned, gate=gate)
        done = convert(source, out, wish=replace(wish, record=gate_record(gate)), **last)
    return replace(done, gate=gate)


def _check(asked: Upgrade) -> None:
    """Raise Usage for what makes no sense, and for what would be passed over in silence."""
    from eaglectl.conversion.recipe import FC_NORM

    if asked.fc_norm not in FC_NORM:
        raise Usage(f"--fc-norm {asked.fc_norm}: {', '.join(FC_NORM)} was expected")
    if asked.device not in DEVICES:
        raise Usage(f"--device {asked.device}: auto, cuda or cpu was expected")
    if not 0 < asked.tolerance < math.inf:
        raise Usage(f"--tolerance {asked.tolerance:g}: a ratio above 0 was expected, like {TOLERANCE}")
    if asked.fc_norm == "off" and not asked.is_norm_output:
        raise Usage("--fc-norm off and --no-norm-output leave nothing of EAGLE-3.1 to be done; leave one of them out")
    if not asked.has_gate or asked.is_start:
        why = "with --init-only there is no gate" if asked.is_start else "--no-gate takes the gate away"
        if asked.tolerance != TOLERANCE:
            raise Usage(f"{why}, and --tolerance is the gate's; leave it out")
        if asked.statistics is not None and asked.prompts is not None:
            raise Usage(f"{why}, and --calibration has its prompts already; leave --prompts out")


def _check_baseline(gate: "Gate", source: str, target: str | None) -> None:
    if not gate.is_baseline_alive:
        raise Refused(
            f"the drafter as it is has an acceptance length of {gate.rows[0].before.length.value:.3f} at k=3, which is hardly drafting: find out"
            f" why before converting it, with `eaglectl smoke {source} --target {target} --probe sensitivity`"
        )


def _ask(
    source: str, target: str | None, asked: Upgrade, answers: Answers, told: Callable[[int, int], None]
) -> None:  # fmt: skip
    """Raise Usage with figures for either meaning of norm_output, where the target can be run."""
    from eaglectl.acceptance.prompts import builtin_prompts, read_prompts

    folder = _runnable(target)
    if folder is not None and asked.has_gate:
        given = read_prompts(asked.prompts) if asked.prompts is not None else builtin_prompts()
        ask_with_figures(source, folder, given, answers, asked.device, told)


def _version(source: str, target: str | None, answers: Answers | None) -> str:
    return read_drafter(read_checkpoint(open_folder(source)), answers or Answers(), open_target(target)).version


def _known(
    source: str, target: Path | None, asked: Upgrade, settings: Mapping[str, Any], told: Callable[[int, int], None]
) -> "tuple[Statistics | None, tuple[Prompt, ...]]":
    """Statistics, if any are given or can be made, and the prompts that are left for the gate."""
    from eaglectl.acceptance.prompts import builtin_prompts, read_prompts
    from eaglectl.conversion.calibration import check_statistics, read_statistics

    given = read_prompts(asked.prompts) if asked.prompts is not None else builtin_prompts()
    checkpoint = read_checkpoint(open_folder(source))
    drafter = read_drafter(checkpoint, settings["answers"] or Answers(), open_target(settings["target"]))
    is_output_free = not asked.is_norm_output or bool(drafter.norms.norm_output) or drafter.norms.norm_before_residual
    if asked.statistics is not None:
        statistics = read_statistics(asked.statistics)
        is_of_states = asked.fc_norm == "calibrated" and is_output_free
        files = None if target is None else FolderSource(target)
        check_statistics(statistics, checkpoint, drafter, files, is_of_states=is_of_states)
        return statistics, tuple(prompt for prompt in given if prompt_digest(prompt) not in statistics.prompts)
    is_free = asked.fc_norm in ("off", "ones") and is_output_free
    is_bare = (
        drafter.version != "3"
        or drafter.quantisation is not None
        or bool(drafter.told("problem") or drafter.told("question"))
    )
    if target is None or is_free or is_bare:  # nothing to find out, or the plan will say what is wrong
        return None, given
    calibrated, held = shared(given)
    if asked.has_gate and not asked.is_start and len(held) < LEAST_PROMPTS:
        needed = GATE_SHARE * (LEAST_PROMPTS - 1) + 1
        raise Usage(f"--prompts are shared between calibration and the gate, and there are {len(given)}; {needed} different ones are the least: give more, or --no-gate")  # fmt: skip
    found = collected(
        source,
        str(target),
        calibrated or given,
        answer_tokens=ANSWER_TOKENS,
        way=Way(device=asked.device),
        answers=settings["answers"],
        told=told,
    )
    return found, held


def _gated(
    source: str, target: Path | None, wish: Wish, settings: Mapping[str, Any], asked: Upgrade, prompts: "tuple[Prompt, ...]", told: Callable[[int, int], None]
) -> "Gate":  # fmt: skip
    """Both drafters in vLLM's layout beside each other, run on the same prompts."""
    from eaglectl.acceptance.gate import hold
    from eaglectl.acceptance.job import Job

    if target is None:
        raise Usage(
            "the gate runs both drafters on their target; pass --target with its weights, or --no-gate to write without looking"
        )
    if not prompts:
        raise Usage("every prompt was calibrated on, and none is left for the gate; pass other --prompts, or --no-gate")
    if len(prompts) < LEAST_PROMPTS:
        raise Usage(f"{len(prompts)} of the prompts were not calibrated on, and the gate needs {LEAST_PROMPTS} at the least; give more --prompts, or --no-gate")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        jobs = []
        for place, version in (
            ("before", replace(wish, layout="vllm", version=None, recipe=None)),
            ("after", replace(wish, layout="vllm")),
        ):
            done = convert(source, Path(name) / place, wish=version, **settings)
            jobs.append(
                Job(
                    Path(name) / place,
                    done.plan.drafter,
                    target,
                    prompts,
                    max_tokens=asked.max_tokens,
                    device=asked.device,
                )
            )
        return hold(jobs[0], jobs[1], asked.tolerance, told)


def gate_record(gate: "Gate | None") -> Mapping[str, Any]:
    """What eaglectl.json keeps of a gate."""
    if gate is None:
        return {"gate": None}
    rows = [
        {
            "k": row.k, "acceptance_length_before": row.before.length.value, "acceptance_length": row.after.length.value,
            "ratio": row.ratio.value, "interval": [row.ratio.low, row.ratio.high],
        }
        for row in gate.rows
    ]  # fmt: skip
    return {
        "gate": {
            "rows": rows, "prompts": gate.prompts, "tolerance": gate.tolerance, "is_passed": gate.is_passed, "engine": gate.engine,
            "device": gate.device, "dtype": gate.dtype,
        }
    }  # fmt: skip


def _runnable(target: str | None) -> Path | None:
    """The target's folder, where its weights are in it."""
    folder = None if target is None else Path(target)
    if folder is None or not folder.is_dir():
        return None
    return folder if any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir()) else None
