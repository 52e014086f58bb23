"""What `smoke` measured, as sections."""

import json
from collections.abc import Sequence

from eaglectl.report.section import (
    TONES,
    Line,
    Lines,
    Outline,
    Pairs,
    Remark,
    Remarks,
    Section,
    Table,
    Words,
    toned,
)
from eaglectl.report.speed import speed_section
from eaglectl.report.wording import plural
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import Estimate, p_words
from eaglectl.run.process import INSTALLED
from eaglectl.run.report import DrafterComparison, SmokeReport
from eaglectl.run.sensitivity import Variant
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict

DEFINITION = "length = 1 + accepted / drafts; in brackets 95 % over prompts"
RATIO = "ratio to the stated one, on the same prompts; p of no gain, corrected for the number of readings"
VARIANT_HEAD = ("reading", "length", "ratio", "p", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"
# of the line of sets
MOST_SETS = 8
VARIANTS_TITLE = "Other readings of the file"


def smoke_outline(report: SmokeReport) -> Outline:
    """Acceptance and its verdict, the reasons of a failure, what ran; then sets, readings and settings.

    A note that ends in a command, of engines that read the file otherwise, stands with the reasons.
    """
    verdict, settings, answer = toned(report.verdict), _resolved(report), Words(_answer(report), "strong")
    cause, following, others = _causes(report)
    notes = [Remark(Words("note", "plain"), text) for text in others]
    shown, more = facts(report)
    sections = [
        Section("Run", [Pairs(shown)], has_heading=False),
        *([speed_section(report.speed)] if report.speed else []),
        *([_against(report.against)] if report.against else []),
        *([_drift(report)] if report.drift_conditions else []),
        Section("Notes", [Remarks(notes)], has_heading=False, is_more=bool(report.variants)),
        Section("Acceptance", [_acceptance(report)], DEFINITION, is_more=True),
        *([readings_section(report.variants)] if report.variants else []),
        Section(
            "Settings", [Pairs(more), Lines([Words(settings, "quiet")] if settings else [])], is_more=True
        ),
    ]
    return Outline(
        "smoke",
        verdict,
        report.source,
        answer,
        (verdict, "  ", answer),
        sections,
        cause=cause,
        next=following,
    )


def _causes(report: SmokeReport) -> tuple[list[Line], str, list[str]]:
    """Why it fails and what warns, the command to run next, and the other notes."""
    reasons, notes = (list(map(command_at_end, texts)) for texts in (_reasons(report), report.notes))
    warnings = [(text, command) for text, command in notes if command]
    commands = [command for _, command in reasons if command]
    if not commands and report.verdict == CheckVerdict.FAIL:
        commands = [report.diagnose_command]
    commands += [command for _, command in warnings]
    others = [text for text, command in notes if not command]
    return [text for text, _ in (*reasons, *warnings)], next(iter(commands), ""), others


def _answer(report: SmokeReport) -> str:
    """The acceptance length, and the ratio to the second drafter's."""
    text = f"{length(report)} ({plural(report.measured.prompts, 'prompt')})"
    return f"{text}, x{report.against.ratio.words} of {report.against.source}'s" if report.against else text


def length(report: SmokeReport) -> str:
    """The acceptance length, with k."""
    return f"acceptance length {report.measured.length.words} at k={report.k}"


def command_at_end(text: str) -> tuple[str, str]:
    """A sentence without the command that it ends in, and the command, or ""; of several, the first."""
    sentence, _, command = text.removesuffix("`").rpartition(": `")
    if not sentence or not text.endswith("`"):
        return text, ""
    first, _, others = command.partition("`")
    return (text if others else sentence), first


def _acceptance(report: SmokeReport) -> Table:
    """Acceptance over each set, where there are several, and over all prompts."""
    sets = report.by_set if len(report.by_set) > 1 else {}
    head = ("prompts", "number", "drafts", "length", *(f"position {i}" for i in range(report.k)))
    rows = [
        (
            name,
            str(measured.prompts),
            str(measured.drafts),
            estimate(measured.length),
            *map(share, measured.per_position),
        )
        for name, measured in {**sets, "all": report.measured}.items()
    ]
    return Table(head, rows)


def _against(against: DrafterComparison) -> Section:
    """The second drafter's figures, what the ratio must be, and the ratio on each set."""
    rounds = f", of rounds {estimate(against.rounds)}" if against.has_positions else ""
    text = (
        f"{against.ending}: ratio {estimate(against.ratio)}{rounds}; its length"
        f" {estimate(against.measured.length)}; on each set the lower bound of the ratio must be at least"
        f" {against.max_regression:g}; {against.meaning}"
    )
    rows = [
        (
            part.name,
            str(part.prompts),
            estimate(part.ratio),
            estimate(part.rounds),
            Words(part.ending, TONES[part.outcome]),
        )
        for part in against.sets
    ]
    table = Table(("set", "prompts", "ratio", "of rounds", "ending"), rows)
    return Section(f"against {against.source}", [Lines([text]), table])


def _reasons(report: SmokeReport) -> list[str]:
    """Why it failed or could not be judged."""
    against = report.against
    failures = (*report.failures, *(against.failures if against else ()))
    return [*failures, *report.gaps, *(against.gaps if against else ())]


def readings_section(variants: Sequence[Variant]) -> Section:
    """Results of the sensitivity probe, the best reading first."""
    order = sorted(variants, key=lambda variant: variant.ratio.value, reverse=True)
    rows = [
        (
            variant.name,
            estimate(variant.measured.length),
            estimate(variant.ratio),
            p_words(variant.p_value),
            Words("yes", "good") if variant.is_better else Words("no", "quiet"),
        )
        for variant in order
    ]
    return Section(VARIANTS_TITLE, [Table(VARIANT_HEAD, rows, is_whole=True)], RATIO, is_more=True)


def readings_line(variants: Sequence[Variant]) -> str:
    """How many readings were tried, and how many draft better."""
    better = sum(variant.is_better for variant in variants)
    best = max(variants, key=lambda variant: variant.ratio.value)
    close = f"best: {best.name}, x{best.ratio.words}"
    return f"{len(variants)} tried, better: {better or 'none'}; {close}"


def _drift(report: SmokeReport) -> Section:
    """Results of the drift probe, by depth."""
    conditions = report.drift_conditions
    depths = range(len(conditions[0].state_growth))
    head = ("condition", "length", *(f"depth {depth}" for depth in depths))
    rows = [
        (
            condition.name,
            estimate(condition.measured.length),
            *(
                f"{condition.measured.per_position[depth].value:.0%} / x{condition.state_growth[depth]:.2f}"
                f" / {condition.attention_on_first[depth]:.0%} / {condition.attention_on_own[depth]:.0%}"
                for depth in depths
            ),
        )
        for condition in conditions
    ]
    return Section("Drift by depth", [Table(head, rows)], DRIFT_CELLS)


def _resolved(report: SmokeReport) -> str:
    """The settings that vLLM or SGLang used; "" for other engines, and where they were not seen."""
    run = report.run
    if not run.resolved.get("class"):
        return ""
    text = f"{run.engine} used {run.resolved['class']}, aux layers {run.resolved.get('aux_layers')}"
    if "runner" in run.resolved:
        text += f", runner {run.resolved['runner']}"
    if "unfilled" in run.resolved:
        text += f"; parameters that nothing fills: {listed(run.resolved['unfilled']) or 'none'}"
    return text


def estimate(value: Estimate) -> str:
    """A value with its interval."""
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def facts(report: SmokeReport) -> tuple[list[tuple[str, Line]], list[tuple[str, Line]]]:
    """What a reader of the acceptance length needs, and what else there is of the run."""
    run, positions = report.run, enumerate(report.measured.per_position)
    lossless = {
        True: "yes, every output equals plain decoding",
        False: f"{run.equal_outputs} of {len(run.results)} outputs equal plain decoding",
        None: "not measured",
    }
    times = _times(run)
    given = [f"{name}={json.dumps(value)}" for name, value in run.arguments.items()]
    others = report.published.lines if report.published else ()
    is_unseen = run.engine in INSTALLED and not run.resolved.get("class")
    unseen = [("settings", f"what {run.engine} resolved could not be seen")]
    trust = [("trust", "the target's own code was allowed to run (--trust-remote-code)")]
    sets = sorted(report.by_set.items(), key=lambda part: -part[1].length.value)
    by_set = listed((f"{name} {measured.length.value:.2f}" for name, measured in sets), ", ", MOST_SETS)
    shown: list[tuple[str, Line]] = [
        ("accepted", ", ".join(f"{share.value:.0%} at position {place}" for place, share in positions)),
        *([("by set", by_set)] if len(sets) > 1 else []),
        ("lossless", lossless[report.is_lossless]),
        ("measured by", f"{run.engine} on {run.device}, {run.dtype}: {run.proves}"),
        *([("readings", readings_line(report.variants))] if report.variants else []),
        *([("as these files", report.match.words)] if report.match else []),
        *(unseen if is_unseen else []),
        *(trust if report.trust_remote_code else []),
    ]
    more: list[tuple[str, Line]] = [
        ("engine", f"{run.engine} ({run.version}), {run.device}, {run.dtype}"),
        *([("given", ", ".join(given))] if given else []),
        *([("time", f"{times}; {speed_meaning(report)}")] if times else []),
        ("prompts", _prompts(report)),
        *([("vocabulary", f"holds {report.coverage.words}")] if report.coverage else []),
        *([("others", "; ".join(others))] if others else []),
    ]
    return shown, more


def _times(run: EngineRun) -> str:
    """How long the prompts took; "" where no time was taken."""
    times = f"{run.seconds:.1f} s with the drafter" if run.seconds else ""
    return f"{times}, {run.plain_seconds:.1f} s without" if run.plain and run.plain_seconds else times


def speed_meaning(report: SmokeReport) -> str:
    """What the seconds of the prompts are a measure of: of no serving."""
    run = report.run
    if run.engine == "server":
        return "one request after the other, in this server: no measure of serving, which --speed is"
    if run.device == "cpu":
        return "time of this run on a CPU: no measure of serving"
    if run.engine == "reference":
        return "time of this run in plain torch: no measure of serving"
    return "one prompt after the other, without CUDA graphs: no measure of serving, which --speed is"


def _prompts(report: SmokeReport) -> str:
    """How many prompts, of which file, and where their answers end."""
    choice, end = report.choice, ", past the end of sequence" if report.ignores_eos else ""
    text = f"{report.measured.prompts}, {report.max_tokens} new tokens each at most{end}"
    if choice is not None and choice.sample is not None:
        text += f", a sample of {choice.total}"
    if choice is not None and choice.sha256 is not None:
        text += f", {choice.file} (SHA-256 {choice.sha256[:12]})"
    return f"{text}, digest {report.prompts_digest[:12]}, seed {report.seed}"


def share(value: Estimate) -> str:
    """A share in percent, with its interval."""
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"
