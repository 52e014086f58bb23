"""What `smoke` measured, acceptance and speed, as sections, and its keys in JSON documents."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eaglectl.report.documents.document import Parts
from eaglectl.report.documents.drafter import COVERAGE
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
    Tone,
    Words,
    toned,
)
from eaglectl.report.wording import plural
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import Estimate, Measurement, p_words
from eaglectl.run.probes import Variant
from eaglectl.run.process import INSTALLED
from eaglectl.run.published import Published, PublishedLength
from eaglectl.run.report import DrafterComparison, SmokeReport
from eaglectl.run.speed import BreakEven, FastestK, Place, Speed, SpeedRow, Spread
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict

DEFINITION = "length = 1 + accepted / drafts; in brackets 95 % over prompts"
RATIO = "ratio to the stated one, on the same prompts; p of no gain, corrected for the number of readings"
VARIANT_HEAD = ("reading", "length", "ratio", "p", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"
SPEED_HEAD = ("at a time", "per user", "in all", "without: per user", "in all", "ratio", "length")
TITLE = "Speed"
# of the line of sets
MOST_SETS = 8


def smoke_outline(report: SmokeReport) -> Outline:
    """Acceptance and its verdict, the reasons of a failure, what ran; then sets, readings and settings.

    A note that ends in a command, of engines that read the file otherwise, stands with the reasons.
    """
    text = f"{length(report)} ({plural(report.measured.prompts, 'prompt')})"
    if report.against:
        text += f", x{report.against.ratio.words} of {report.against.source}'s"
    verdict, answer = toned(report.verdict), Words(text, "strong")
    cause, following, others = _causes(report)
    notes = [Remark(Words("note", "plain"), text) for text in others]
    shown, more = facts(report)
    settings = [Words(text, "quiet") for text in filter(None, [_resolved(report.run)])]
    sections = [
        Section("Run", [Pairs(shown)], has_heading=False),
        *([speed_section(report.speed)] if report.speed else []),
        *([_against(report.against)] if report.against else []),
        *([_drift(report)] if report.drift_conditions else []),
        Section("Notes", [Remarks(notes)], has_heading=False, is_more=bool(report.variants)),
        Section("Acceptance", [_acceptance(report)], DEFINITION, is_more=True),
        readings_section(report.variants),
        Section("Settings", [Pairs(more), Lines(settings)], is_more=True),
    ]
    head = (verdict, "  ", answer)
    return Outline("smoke", verdict, report.source, answer, head, sections, cause=cause, next=following)


def _causes(report: SmokeReport) -> tuple[list[Line], str, list[str]]:
    """Why it fails and what warns, the command to run next, and the other notes."""
    against = report.against
    failures = (*report.failures, *(against.failures if against else ()))
    gaps = (*report.gaps, *(against.gaps if against else ()))
    reasons = [command_at_end(text) for text in (*failures, *gaps)]
    notes = [command_at_end(text) for text in report.notes]
    warnings = [(text, command) for text, command in notes if command]
    commands = [command for _, command in reasons if command]
    if not commands and report.verdict == CheckVerdict.FAIL:
        commands = [report.diagnose_command]
    commands += [command for _, command in warnings]
    others = [text for text, command in notes if not command]
    return [text for text, _ in (*reasons, *warnings)], next(iter(commands), ""), others


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


def readings_section(variants: Sequence[Variant]) -> Section:
    """Results of the sensitivity probe, the best reading first."""
    rows = [
        (
            variant.name,
            estimate(variant.measured.length),
            estimate(variant.ratio),
            p_words(variant.p_value),
            Words("yes", "good") if variant.is_better else Words("no", "quiet"),
        )
        for variant in sorted(variants, key=lambda variant: variant.ratio.value, reverse=True)
    ]
    table = Table(VARIANT_HEAD, rows, is_whole=True)
    return Section("Other readings of the file", [table], RATIO, is_more=True)


def readings_line(variants: Sequence[Variant]) -> str:
    """How many readings were tried, and how many draft better."""
    better = sum(variant.is_better for variant in variants)
    best = max(variants, key=lambda variant: variant.ratio.value)
    return f"{len(variants)} tried, better: {better or 'none'}; best: {best.name}, x{best.ratio.words}"


def _drift(report: SmokeReport) -> Section:
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


def _resolved(run: EngineRun) -> str:
    """The settings that vLLM or SGLang used; "" for other engines, and where they were not seen."""
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


def share(value: Estimate) -> str:
    """A share in percent, with its interval."""
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def facts(report: SmokeReport) -> tuple[list[tuple[str, Line]], list[tuple[str, Line]]]:
    """What a reader of the acceptance length needs, and what else there is of the run."""
    run, positions = report.run, enumerate(report.measured.per_position)
    lossless = {
        True: "yes, every output equals plain decoding",
        False: f"{run.equal_outputs} of {len(run.results)} outputs equal plain decoding",
        None: "not measured",
    }
    sets = sorted(report.by_set.items(), key=lambda part: -part[1].length.value)
    by_set = listed((f"{name} {measured.length.value:.2f}" for name, measured in sets), ", ", MOST_SETS)
    is_unseen = run.engine in INSTALLED and not run.resolved.get("class")
    trust = "the target's own code was allowed to run (--trust-remote-code)"
    shown = {
        "accepted": ", ".join(f"{share.value:.0%} at position {place}" for place, share in positions),
        "by set": by_set if len(sets) > 1 else "",
        "lossless": lossless[report.is_lossless],
        "measured by": f"{run.engine} on {run.device}, {run.dtype}: {run.proves}",
        "readings": readings_line(report.variants) if report.variants else "",
        "as these files": report.match.words if report.match else "",
        "settings": f"what {run.engine} resolved could not be seen" if is_unseen else "",
        "trust": trust if report.trust_remote_code else "",
    }
    return _filled(shown), _filled(_run_facts(report))


def _run_facts(report: SmokeReport) -> dict[str, str]:
    run = report.run
    times = f"{run.seconds:.1f} s with the drafter" if run.seconds else ""
    if run.plain and run.plain_seconds:
        times += f", {run.plain_seconds:.1f} s without"
    return {
        "engine": f"{run.engine} ({run.version}), {run.device}, {run.dtype}",
        "given": ", ".join(f"{name}={json.dumps(value)}" for name, value in run.arguments.items()),
        "time": f"{times}; {speed_meaning(report)}" if times else "",
        "prompts": _prompts(report),
        "vocabulary": f"holds {report.coverage.words}" if report.coverage else "",
        "others": "; ".join(report.published.lines) if report.published else "",
    }


def _filled(rows: dict[str, str]) -> list[tuple[str, Line]]:
    return [(name, text) for name, text in rows.items() if text]


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
    choice, end = report.choice, ", past the end of sequence" if report.ignores_eos else ""
    text = f"{report.measured.prompts}, {report.max_tokens} new tokens each at most{end}"
    if choice is not None and choice.sample is not None:
        text += f", a sample of {choice.total}"
    if choice is not None and choice.sha256 is not None:
        text += f", {choice.file} (SHA-256 {choice.sha256[:12]})"
    return f"{text}, digest {report.prompts_digest[:12]}, seed {report.seed}"


def speed_section(speed: Speed, subject: str = "") -> Section:
    """The ratios, the break-even, which k is the fastest, and the table; `subject` is what was timed."""
    several = len(speed.by_k) > 1
    rows = [(*([str(row.k)] if several else []), *_cells(row)) for row in speed.rows]
    head = ("k", *SPEED_HEAD) if several else SPEED_HEAD
    about = f"tokens/s with the drafter and without; median [least, most] of {speed.repeats} repeats"
    title = f"{TITLE}, {subject}" if subject else TITLE
    return Section(title, [Lines(list(_speed_lines(speed))), Table(head, rows)], about)


def _speed_lines(speed: Speed) -> Iterator[Line]:
    """What the table comes to, where it was measured, and what is not in it."""
    if speed.text:
        yield Words(speed.text, "strong")
    for even in speed.break_even:
        of = f" of k={even.k}" if len(speed.by_k) > 1 else ""
        yield f"break-even{of}: {even.text}, in requests at a time"
    if speed.fastest:
        yield f"fastest: {', '.join(choice.text for choice in speed.fastest)}"
    where = f"{speed.card or speed.device}: " if speed.device != "cpu" else ""
    yield Words(f"{where}{speed.how}", "doubt" if speed.device == "cpu" else "quiet")


def _cells(row: SpeedRow) -> Iterator[Line]:
    """Requests at a time; tokens a second of each user, and of all; the ratio and the length.

    The ratio is good where every repeat is faster with the drafter, bad where every one is slower.
    """
    yield str(row.concurrency)
    for rates in (row.drafted, row.plain):
        yield f"{rates.median / row.concurrency:.1f}" if rates else "-"
        yield f"{rates.median:.1f} [{rates.low:.1f}, {rates.high:.1f}]" if rates else "-"
    if (ratio := row.ratio) is None:
        yield "-"
    else:
        tone: Tone = "doubt"
        if not ratio.low <= 1 <= ratio.high:
            tone = "good" if ratio.low > 1 else "bad"
        yield Words(f"{ratio.median:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]", tone)
    yield "not counted" if row.length is None else f"{row.length:.2f}"


def measured(result: Any) -> list[dict[str, Any]]:
    """What the files left open and a measurement answered, as eaglectl.json has it."""
    return [answer.record for answer in result.measured]


def _rates(total: Spread | None, concurrency: int) -> dict[str, Any] | None:
    """Tokens a second of each user's requests, and of all together."""
    return {"per_user": total.divided(concurrency), "total": total} if total else None


MEASUREMENT: Parts = {
    **COVERAGE,
    Estimate: ("value", "interval"),
    Measurement: (
        "acceptance_length=length.value",
        "interval=length.interval",
        "per_position",
        "drafts",
        "tokens",
        "prompts",
    ),
    Spread: ("median", "least=low", "most=high"),
    SpeedRow: (
        "k",
        "concurrency",
        ("drafted", lambda row: _rates(row.drafted, row.concurrency)),
        ("plain", lambda row: _rates(row.plain, row.concurrency)),
        "ratio",
        "acceptance_length=length",
    ),
    Place: ("concurrency", "side"),
    BreakEven: ("k", "*place", "earliest", "latest"),
    FastestK: ("concurrency", "k", "others", "pays"),
    Speed: ("text", "how", "device", "card", "max_tokens", "repeats", "rows", "break_even", "fastest"),
    PublishedLength: ("length", "drafter", "preset", "k", "url"),
    Published: (
        ("target", lambda published: published.target or None),
        ("by", lambda published: published.how or None),
        ("like", lambda published: published.settings.preset if published.settings else None),
        "alike",
        ("otherwise", lambda published: len(published.otherwise)),
    ),
}
