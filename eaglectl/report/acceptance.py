"""Acceptance and speed by `smoke`, and a diagnosis, as sections and as keys of JSON documents."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eaglectl.report.documents import Parts
from eaglectl.report.inspection import COVERAGE
from eaglectl.report.section import (
    TONES,
    Commands,
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
    first_line,
    grouped,
    toned,
)
from eaglectl.report.wording import plural
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import BreakEven, Estimate, Measurement, Place, Speed, SpeedRow, Spread, p_words
from eaglectl.run.probes import Variant
from eaglectl.run.process import INSTALLED
from eaglectl.run.published_lengths import Published, PublishedLength
from eaglectl.run.results import DrafterComparison, SmokeReport, reasons_of
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding, MatchEnding

DEFINITION = "length = 1 + accepted / drafts; in brackets the 95 % interval over prompts"
RATIO = "ratio to the stated reading on the same prompts; p of no gain, corrected for the number of readings"
VARIANT_HEAD = ("reading", "length", "ratio", "p", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"
SPEED_HEAD = ("at a time", "per user", "in all", "without: per user", "in all", "ratio", "length")
TITLE = "Speed"
# the most sets in the line "by set"
MOST_SETS = 8


def smoke_outline(report: SmokeReport) -> Outline:
    """Return the verdict and acceptance, reasons, and the run; then sets, readings and settings.

    A note with a command is shown with the reasons.
    """
    text = f"{length(report)} ({plural(report.measured.prompts, 'prompt')})"
    if report.against:
        text += f", x{report.against.ratio.words} of {report.against.source}'s"
    if report.run.engine == "server":
        is_decided = report.match and report.match.ending != MatchEnding.COULD_NOT_TELL
        text += "" if is_decided else ", not compared with these files"
    verdict, answer = toned(report.verdict), Words(text, "strong")
    cause, following, others = _causes(report)
    notes = [Remark(Words("note", "plain"), text) for text in others]
    settings = [Words(text, "quiet") for text in filter(None, [_resolved(report.run)])]
    sections = [
        Section("Run", [Pairs(_facts(report))], has_heading=False),
        *([speed_section(report.speed)] if report.speed else []),
        *([_against(report.against)] if report.against else []),
        *([_drift(report)] if report.drift_conditions else []),
        Section("Notes", [Remarks(notes)], has_heading=False, is_more=bool(report.variants)),
        Section("Acceptance", [_acceptance(report)], DEFINITION, is_more=True),
        readings_section(report.variants),
        Section("Settings", [Pairs(_run_facts(report)), Lines(settings)], is_more=True),
    ]
    head = first_line(report.verdict, answer)
    return Outline("smoke", verdict, report.source, answer, head, sections, cause=cause, next=following)


def _causes(report: SmokeReport) -> tuple[list[Line], str, list[str]]:
    """Return the reasons and warnings, the next command, and the other notes."""
    reasons = [*report.reasons]
    if (against := report.against) is not None:
        reasons += (*reasons_of("failure", against.failures), *reasons_of("gap", against.gaps))
    by_kind = grouped((reason.kind, reason) for reason in reasons)
    causes, notes = [*by_kind.get("failure", []), *by_kind.get("gap", [])], by_kind.get("note", [])
    commands = [line for reason in causes for line in reason.commands]
    if not commands and report.verdict == CheckVerdict.FAIL:
        commands = [report.diagnose_command]
    causes += [note for note in notes if note.commands]
    commands += [line for note in notes for line in note.commands]
    # a single command of a reason is the next one
    words: list[Line] = [cause.text if len(cause.commands) > 1 else cause.words for cause in causes]
    return words, next(filter(None, commands), ""), [note.words for note in notes if not note.commands]


def length(report: SmokeReport) -> str:
    """Return the acceptance length, with k."""
    return f"acceptance length {report.measured.length.words} at k={report.k}"


def _acceptance(report: SmokeReport) -> Table:
    # acceptance by set of prompts and by draft position
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
    # the ratio to the other drafter, of all prompts and by set
    rounds = f", of rounds {estimate(against.rounds)}" if against.has_positions else ""
    where = (
        f"at look {against.looks} ({against.confidence:.2%}: all looks have 95 %)"
        if against.looks
        else "on each set"
    )
    text = (
        f"{against.ending}: ratio {estimate(against.ratio)}{rounds}; its length"
        f" {estimate(against.measured.length)}; {where} the lower bound of the ratio must be at least"
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
    """Return the results of the sensitivity probe, the best reading first."""
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
    return Section(
        "Other readings of the file", [Table(VARIANT_HEAD, rows, is_whole=True)], RATIO, is_more=True
    )


def readings_line(variants: Sequence[Variant]) -> str:
    """Return how many readings were tried, how many are better, and the best."""
    better = sum(variant.is_better for variant in variants)
    best = max(variants, key=lambda variant: variant.ratio.value)
    return f"{len(variants)} tried, better: {better or 'none'}; best: {best.name}, x{best.ratio.words}"


def _drift(report: SmokeReport) -> Section:
    # how the fed-back state and the attention change with depth, by condition
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
    """Return the settings that vLLM or SGLang used; "" for other engines, and if they are unknown."""
    if not run.resolved.get("class"):
        return ""
    text = f"{run.engine} used {run.resolved['class']}, aux layers {run.resolved.get('aux_layers')}"
    if "runner" in run.resolved:
        text += f", runner {run.resolved['runner']}"
    if "unfilled" in run.resolved:
        text += f"; parameters that no tensor fills: {listed(run.resolved['unfilled']) or 'none'}"
    return text


def _logits(run: EngineRun) -> str:
    """Return how an installed engine's draft logits compare with the reference's; "" for other engines."""
    if (logits := run.logits) is None:
        return ""
    if logits.gap:
        return f"not compared with the reference: {logits.gap}"
    steps = listed("not finite" if off is None else f"{off:.0e}" for off in logits.differences)
    factor = logits.score_factor
    scores = f"; attention scores x {factor:.3g}" if factor is not None and factor != 1 else ""
    return (
        f"off by {steps} of the largest at the first draft steps, beside the float64 reference"
        f" ({logits.dtype}: less than {logits.bound:.0e}){scores}"
    )


def estimate(value: Estimate) -> str:
    """Return a value with its interval."""
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def share(value: Estimate) -> str:
    """Return a share in percent, with its interval."""
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def _facts(report: SmokeReport) -> list[tuple[str, Line]]:
    # the rows under the first line; empty ones are left out
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
    rows = {
        "accepted": ", ".join(f"{share.value:.0%} at position {place}" for place, share in positions),
        "by set": by_set if len(sets) > 1 else "",
        "lossless": lossless[report.is_lossless],
        "measured by": f"{run.engine} on {run.device}, {run.dtype}: {run.proves}",
        "draft logits": _logits(run),
        "readings": readings_line(report.variants) if report.variants else "",
        "as these files": report.match.words if report.match else "",
        "settings": f"what {run.engine} resolved could not be seen" if is_unseen else "",
        "trust": trust if report.trust_remote_code else "",
    }
    return [(name, text) for name, text in rows.items() if text]


def _run_facts(report: SmokeReport) -> list[tuple[str, Line]]:
    # the rows on how it was measured; empty ones are left out
    run, choice = report.run, report.choice
    times = f"{run.seconds:.1f} s with the drafter" if run.seconds else ""
    if run.plain and run.plain_seconds:
        times += f", {run.plain_seconds:.1f} s without"
    end = ", past the end of sequence" if report.ignores_eos else ""
    prompts = f"{report.measured.prompts}, {report.max_tokens} new tokens each at most{end}"
    if choice is not None and choice.sample is not None:
        prompts += f", a sample of {choice.total}"
    if choice is not None and choice.sha256 is not None:
        prompts += f", {choice.file} (SHA-256 {choice.sha256[:12]})"
    rows = {
        "engine": f"{run.engine} ({run.version}), {run.device}, {run.dtype}",
        "given": ", ".join(f"{name}={json.dumps(value)}" for name, value in run.arguments.items()),
        "time": f"{times}; {speed_meaning(report)}" if times else "",
        "prompts": f"{prompts}, digest {report.prompts_digest[:12]}, seed {report.seed}",
        "vocabulary": f"holds {report.coverage.words}" if report.coverage else "",
        "others": "; ".join(report.published.lines) if report.published else "",
    }
    return [(name, text) for name, text in rows.items() if text]


def speed_meaning(report: SmokeReport) -> str:
    """Return what the seconds of the prompts mean; they never measure the speed of serving."""
    run = report.run
    if run.engine == "server":
        return "one request after the other, in this server: no measure of serving; --speed measures it"
    if run.device == "cpu":
        return "time of this run on a CPU: no measure of serving"
    if run.engine == "reference":
        return "time of this run in plain torch: no measure of serving"
    return "one prompt after the other, without CUDA graphs: no measure of serving; --speed measures it"


def speed_section(speed: Speed, subject: str = "") -> Section:
    """Return the ratios, the break-even and the table; `subject` names the timed drafter."""
    about = f"tokens/s with and without the drafter; median [least, most] of {speed.repeats} repeats"
    title = f"{TITLE}, {subject}" if subject else TITLE
    return Section(
        title,
        [Lines(list(_speed_lines(speed))), Table(SPEED_HEAD, [tuple(_cells(row)) for row in speed.rows])],
        about,
    )


def _speed_lines(speed: Speed) -> Iterator[Line]:
    if speed.text:
        yield Words(speed.text, "strong")
    for even in speed.break_even:
        yield f"break-even: {even.text} requests at a time"
    where = f"{speed.card or speed.device}: " if speed.device != "cpu" else ""
    yield Words(f"{where}{speed.how}", "doubt" if speed.device == "cpu" else "quiet")


def _cells(row: SpeedRow) -> Iterator[Line]:
    """Yield requests at a time, tokens a second of each user and of all, the ratio and the length.

    The ratio is good if every repeat is faster with the drafter, bad if every repeat is slower.
    """
    yield str(row.concurrency)
    for rates in (row.drafted, row.plain):
        yield f"{rates.median / row.concurrency:.1f}" if rates else "-"
        yield f"{rates.median:.1f} [{rates.low:.1f}, {rates.high:.1f}]" if rates else "-"
    if (ratio := row.ratio) is None:
        yield "-"
    else:
        tone: Tone = "bad" if ratio.high < 1 else "doubt"
        tone = "good" if ratio.low > 1 else tone
        yield Words(f"{ratio.median:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]", tone)
    yield "not counted" if row.length is None else f"{row.length:.2f}"


def measured(result: Any) -> list[dict[str, Any]]:
    """Return the open questions that a measurement answered, as eaglectl.json has them."""
    return [answer.record for answer in result.measured]


def _rates(total: Spread | None, concurrency: int) -> dict[str, Any] | None:
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
    Speed: ("text", "how", "device", "card", "max_tokens", "repeats", "rows", "break_even"),
    PublishedLength: (
        "length",
        "drafter=figure.drafter",
        "k=figure.k",
        ("url", lambda length: length.figure.url or length.source.url),
    ),
    Published: (
        ("target", lambda published: published.target or None),
        ("by", lambda published: published.how or None),
        "alike",
        ("otherwise", lambda published: len(published.otherwise)),
    ),
}


# endings whose names alone are unclear, in words
ENDINGS: Mapping[DiagnosisEnding, str] = {
    DiagnosisEnding.FILE: "cause in the file",
    DiagnosisEnding.ENGINE: "cause in the engine",
    DiagnosisEnding.PAIR: "cause in the pair",
    DiagnosisEnding.PROMPTS: "cause in the prompts",
    DiagnosisEnding.TRAINING: "cause in the training",
    DiagnosisEnding.COULD_NOT_LOOK: "could not look",
    DiagnosisEnding.NOT_FOUND: "no cause found",
}
# the runs of the evidence, and their labels
RUNS = {
    "reference": "in the reference",
    "engine": "in the engine",
    "sampled": "sampled",
    "templated": "in the chat template",
}


def diagnosis_outline(diagnosis: Diagnosis) -> Outline:
    """Return the cause, its evidence, the next command and the measurements; then all tested causes."""
    verdict = Words(ENDINGS.get(diagnosis.ending, diagnosis.ending), TONES[diagnosis.verdict])
    served, reference = diagnosis.evidence.served, diagnosis.evidence.reference
    text, following, *others = diagnosis.title, *(diagnosis.commands or ("",))
    if served is not None and not diagnosis.has_figures:
        text += f" (acceptance length {served.measured.length.value:.2f} at k={served.k})"
    reasons = grouped((reason, title) for title, reason in diagnosis.not_looked)
    not_looked = [f"{'; '.join(titles)}: {reason}" for reason, titles in reasons.items()]
    notes = reference.probed.notes if reference and reference.probed else ()
    sections = [
        Section("Measured", [Pairs(list(_measured(diagnosis)))], has_heading=False),
        Section("Else", [Commands([("", command) for command in others])]),
        readings_section(_readings(diagnosis)),
        Section("Ruled out", [Lines(diagnosis.ruled_out or ["nothing"], is_list=True)], is_more=True),
        Section("Not looked at", [Lines(not_looked or ["nothing"], is_list=True)], is_more=True),
        Section("Notes", [Remarks([Remark(Words("note", "plain"), note) for note in notes])], is_more=True),
    ]
    # the fix is the next command
    words = diagnosis.finding if following else diagnosis.words
    cause, title = [words] if words else [], Words(text, "strong")
    head = first_line(diagnosis.verdict, verdict, ": " * bool(text), title)
    return Outline("diagnose", verdict, diagnosis.source, title, head, sections, cause=cause, next=following)


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, Line]]:
    """Yield the measured answers, each run, the tried readings and layers, and counts of causes.

    For a healthy drafter, also yield the warnings of `validate`.
    """
    for answer in diagnosis.measured:
        yield "answered", answer.text
    runs = {RUNS[name]: run for name, run in _runs(diagnosis).items() if run}
    for name, run in runs.items() if len(runs) > 1 else ():
        yield name, f"{length(run)}, {run.measured.prompts} prompts, {run.run.device}"
    if variants := _readings(diagnosis):
        yield "readings", readings_line(variants)
    if (layers := diagnosis.evidence.layers) is not None:
        better = f"{layers.found.name} draft x{layers.found.ratio.words}" if layers.found else "none better"
        yield "aux layers", f"{layers.tried} other sets tried, {better}"
    for finding in diagnosis.evidence.validated.findings:
        if diagnosis.verdict == CheckVerdict.PASS and finding.severity == "warning":
            yield "warning", f"{finding.rule.id} {finding.rule.name}: {finding.match.message}"
    yield "causes", f"{len(diagnosis.ruled_out)} ruled out, {len(diagnosis.not_looked)} not looked at"


def _runs(diagnosis: Diagnosis) -> dict[str, SmokeReport | None]:
    return {name: getattr(diagnosis.evidence, name) for name in RUNS}


def _readings(diagnosis: Diagnosis) -> tuple[Variant, ...]:
    evidence = diagnosis.evidence
    layers = evidence.layers.found if evidence.layers else None
    return (*(evidence.reference.variants if evidence.reference else ()), *([layers] if layers else []))


DIAGNOSIS: Parts = {
    **MEASUREMENT,
    Diagnosis: (
        "source",
        "target",
        "verdict",
        "ending",
        "cause",
        "title",
        "words",
        "next=commands",
        "ruled_out",
        (
            "not_looked",
            lambda diagnosis: [{"cause": title, "reason": why} for title, why in diagnosis.not_looked],
        ),
        ("measured", measured),
        "expected=evidence.expected",
        ("runs", _runs),
        ("published", lambda diagnosis: diagnosis.evidence.served and diagnosis.evidence.served.published),
        ("readings", _readings),
        (
            "trust_remote_code?",
            lambda diagnosis: any(run.trust_remote_code for run in _runs(diagnosis).values() if run),
        ),
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "k",
        "temperature",
        "prompts_digest",
        "*measured",
    ),
    Variant: ("name", "option", "outcome", "ratio"),
}
