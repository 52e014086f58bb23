"""What `ready` found, as sections and as a JSON document."""

from collections.abc import Iterator

from eaglectl.engines.registry import ENGINES
from eaglectl.report.acceptance import MEASUREMENT, TITLE, measured, speed_section
from eaglectl.report.documents.document import Parts
from eaglectl.report.inspection import headline, layer_strip
from eaglectl.report.section import (
    TONES,
    Commands,
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Words,
    grouped,
    plain,
)
from eaglectl.report.wording import OUTCOME_TONES, placeholders, trained_layers
from eaglectl.results import EngineReadiness, Readiness
from eaglectl.run.report import Gain, SmokeReport, gain
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, ServedAs

HEAD = ("engine", "as stored", "acceptance", "converted", "acceptance")
SOURCES = "docs/reference/acceptance.md has the sources"
WORDS = {
    CheckVerdict.PASS: "ready",
    CheckVerdict.FAIL: "not ready",
    CheckVerdict.COULD_NOT_LOOK: "could not look",
}


def readiness_outline(result: Readiness) -> Outline:
    """The verdict with both acceptance lengths, why, what to run next, the engines; then the drafter."""
    inspection, published = result.inspection, result.published
    word, lengths = Words(WORDS[result.verdict], TONES[result.verdict]), Words(_lengths(result), "strong")
    version, producer, evidence = headline(inspection.drafter)
    what = (Words(version, "strong"), producer, Words(evidence, "quiet"))
    strip = layer_strip(inspection.drafter, inspection.captured_layers)
    commands = _commands(result)
    following = result.diagnosis.commands if result.diagnosis else ()
    command = next(iter([*following, *(text for _, text in commands)]), "")
    is_measured = result.best is not None and result.best.final is not None
    others = list(published.lines) if is_measured and published else []
    starts = [row for row in commands if row[1] != command]
    answers = [answer.text for answer in result.measured]
    trained = f"trained on boundaries {trained_layers(inspection.drafter.aux)}"
    # engines that `ready` cannot run are measured once they are started
    is_ready = result.verdict == CheckVerdict.PASS
    unmeasured = [state for state in _serving(result) if state.measure_command and is_ready]
    rows = [(release_name(state), state.measure_command) for state in unmeasured]
    sections = [
        _engines(result),
        Section("Start it", [Commands(starts)]),
        *_speed(result),
        Section("Measured first", [Lines(answers)], is_more=True),
        Section("What it is", [Lines([what])], is_more=True),
        Section("Aux layers", [strip] if strip else [], trained, is_more=True),
        Section(
            "Measure it where it runs",
            [Commands(rows)],
            placeholders(state.command for state in unmeasured),
            is_more=True,
        ),
        Section("What others reach", [Lines(others)], SOURCES, is_more=True),
    ]
    head, cause = (word, "  ", lengths), list(_cause(result))
    return Outline("ready", word, result.source, lengths, head, sections, cause=cause, next=command)


def _lengths(result: Readiness) -> str:
    """Both acceptance lengths of the engine that the verdict is of, or that there are none."""
    state = result.best or next((each for each in result.engines if each.stored or each.converted), None)
    if state is None:
        return "acceptance not measured"
    runs = {"as stored" if state.engine in ENGINES else "served": state.stored, "converted": state.converted}
    made = {name: run for name, run in runs.items() if run is not None}
    if not made:
        what = "as stored" if state.converted_outcome is None else "converted"
        return f"{what}, acceptance not measured"
    last = list(made.values())[-1]
    figures = ", ".join(f"{name} {run.measured.length.value:.2f}" for name, run in made.items())
    return f"{figures} tokens per target step ({last.measured.prompts} prompts, k={last.k})"


def _cause(result: Readiness) -> Iterator[Line]:
    """Why it is not ready, or what to look into; which engines read the stored files otherwise, and how."""
    text, best = result.diagnosis.title if result.diagnosis else result.reason, result.best
    if text:
        yield text
    if best is not None and best.stored_outcome == ServedAs.AS_PUBLISHED:
        yield f"{best.stored_outcome} ({best.stored_reasons[0]})"
    states = [state for state in result.engines if state.stored_outcome.is_known_wrong]
    reasons = grouped(("; ".join(state.stored_reasons), release_name(state)) for state in states)
    yield from (f"{listed(names)}, as stored: {why}" for why, names in reasons.items() if why not in text)
    change = None if best is None or best.is_right_twice else engine_gain(best)
    if change is not None and not change.is_shown:
        needed = f"; about {change.prompts_needed} would" if change.prompts_needed else ""
        yield f"the prompts do not tell the two apart{needed}"


def _commands(result: Readiness) -> list[tuple[str, str]]:
    """The commands that write and start what is served; of several engines that were asked for, each."""
    if result.verdict != CheckVerdict.PASS or result.best is None or result.diagnosis:
        return []
    is_unwritten = result.best.converted_outcome is not None and result.out is None
    written = [("", result.plan_command)] if is_unwritten else []
    starts = [(release_name(state), state.command) for state in _serving(result) if state.command]
    return [*written, *(starts if len(starts) > 1 else [("", command) for _, command in starts])]


def _serving(result: Readiness) -> list[EngineReadiness]:
    """The engines that are started: the best first, and with it others that were asked for."""
    best = result.best
    if best is None or not result.is_named:
        return [] if best is None else [best]
    return sorted(
        [state for state in result.engines if state.is_serving], key=lambda state: state is not best
    )


def _speed(result: Readiness) -> Iterator[Section]:
    for state in result.engines:
        if state.final is not None and state.final.speed:
            yield speed_section(state.final.speed, release_name(state))
    if result.speed_gap:
        yield Section(TITLE, [Lines([Words(f"not measured: {result.speed_gap}", "doubt")])])


def _engines(result: Readiness) -> Section:
    runs = [run for state in result.engines for run in (state.stored, state.converted) if run]
    by_reference = {run.run.engine == "reference" for run in runs}
    suffix = " (reference)" if len(by_reference) > 1 else ""
    rows: list[tuple[Line, ...]] = [
        (
            release_name(state),
            *_cells(state.stored_outcome, state.stored, suffix),
            *_cells(state.converted_outcome, state.converted, suffix),
        )
        for state in result.engines
    ]
    width = len(HEAD) if any(state.converted_outcome is not None for state in result.engines) else 3
    table = Table(HEAD[:width], [row[:width] for row in rows])
    about = "acceptance length [95 %]"
    if True in by_reference:
        about += ", by eaglectl's own torch reference"
    if result.reused:
        about += f"; kept of an earlier call: {len(result.reused)}"
    return Section("Engines", [table, Lines(list(_gaps(result)))], about)


def _cells(outcome: ServedAs | None, report: SmokeReport | None, suffix: str) -> tuple[Words, str]:
    """An outcome, and the acceptance length with its interval; `suffix` is for those of the reference."""
    word = Words(outcome, OUTCOME_TONES[outcome]) if outcome else Words("-")
    if report is None:
        return word, "-"
    return word, f"{report.measured.length.words}{suffix if report.run.engine == 'reference' else ''}"


def release_name(state: EngineReadiness) -> str:
    """The engine and its release in words."""
    title = ENGINES[state.engine].title if state.engine in ENGINES else state.engine
    return f"{title} {state.release}".strip()


def _gaps(result: Readiness) -> Iterator[Words]:
    """Why acceptance was not measured where an engine runs the files: each reason, with its engines."""
    gaps = grouped(
        (gap.replace(f"{release_name(state)} ", "the engine ", 1), release_name(state))
        for state in result.engines
        for outcome, gap in (
            (state.stored_outcome, state.stored_gap),
            (state.converted_outcome, state.converted_gap),
        )
        if gap and gap != result.reason and outcome != ServedAs.FAILS
    )
    for gap, names in gaps.items():
        of = "" if len(set(names)) == len(result.engines) else f" in {listed(dict.fromkeys(names))}"
        yield Words(f"not measured{of}: {gap}", "quiet")


def engine_gain(state: EngineReadiness) -> Gain | None:
    """What the conversion changes in an engine; None where it did not run both."""
    return gain(state.converted, state.stored) if state.converted and state.stored else None


def last_line(result: Readiness) -> str:
    """The line that says it all: the verdict with both lengths, why, and what writes and starts it."""
    commands = [command for _, command in _commands(result)]
    if commands and commands[0] == result.plan_command:
        commands[:2] = [" && ".join(commands[:2])]
    start = [f"start it with: {'; or '.join(commands)}"] if commands else []
    return f"{WORDS[result.verdict]}  {'; '.join([_lengths(result), *map(plain, _cause(result)), *start])}"


TAG = "eaglectl/ready/1"
PARTS: Parts = {
    **MEASUREMENT,
    Readiness: (
        "source",
        "verdict",
        "reason",
        ("line", last_line),
        "out",
        ("is_converted", lambda result: result.plan_command != ""),
        ("convert", lambda result: result.plan_command or None),
        ("measured", measured),
        "engines",
        "cause=diagnosis.cause",
        ("next", lambda result: result.diagnosis.commands if result.diagnosis else ()),
        ("published", lambda result: result.published.alike if result.published else ()),
        "reused",
        ("seconds", lambda result: round(result.seconds, 3)),
        "speed_gap?",
    ),
    EngineReadiness: (
        "engine",
        "release",
        (
            "stored",
            lambda state: {
                "outcome": state.stored_outcome,
                "reasons": state.stored_reasons,
                "acceptance": state.stored,
                "gap": state.stored_gap,
                # as what the reference ran them
                "reading": state.stored_reading and state.stored_reading.words,
            },
        ),
        (
            "converted",
            lambda state: (
                state.converted_outcome
                and {
                    "outcome": state.converted_outcome,
                    "reasons": state.converted_reasons,
                    "acceptance": state.converted,
                    "gap": state.converted_gap,
                    "reading": None,
                }
            ),
        ),
        ("gain", engine_gain),
        ("command", lambda state: state.command if state.is_serving else None),
        ("measure", lambda state: (state.is_serving and state.measure_command) or None),
        "speed=final.speed?",
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "verdict",
        "k",
        "prompts_digest",
        "*measured",
        "coverage?",
    ),
    Gain: ("*ratio", "prompts_needed"),
}
