"""What `ready` found, as sections."""

from collections.abc import Iterator, Sequence

from eaglectl.engines.registry import ENGINES
from eaglectl.report.inspection import OUTCOME_TONES, headline, layer_strip
from eaglectl.report.section import TONES, Commands, Line, Lines, Outline, Section, Table, Tone, Words
from eaglectl.report.speed import TITLE, speed_section
from eaglectl.report.wording import placeholders, trained_layers
from eaglectl.results import EngineReadiness, Readiness
from eaglectl.run.report import Gain, SmokeReport, gain
from eaglectl.verdicts import CheckVerdict, ServedAs

STORED_HEAD = ("engine", "as stored", "acceptance")
HEAD = (*STORED_HEAD, "converted", "acceptance")
SOURCES = "docs/acceptance.md has the sources"
REFERENCE = "reference: eaglectl's own run of what the files mean"
WORDS = {
    CheckVerdict.PASS: "ready",
    CheckVerdict.FAIL: "not ready",
    CheckVerdict.COULD_NOT_LOOK: "could not look",
}


def readiness_outline(result: Readiness) -> Outline:
    """The drafter in two lines, its layers, the engines, what others reach, and how to start it."""
    drafter = result.inspection.drafter
    tone, word = TONES[result.verdict], WORDS[result.verdict]
    version, producer, evidence = headline(drafter)
    what = (Words(version, "strong"), producer, Words(evidence, "quiet"))
    strip = layer_strip(result.inspection.drafter, result.inspection.captured_layers)
    trained = f"trained on boundaries {trained_layers(drafter.aux)}"
    others, commands = _published_lines(result), _commands(result)
    answers = [answer.text for answer in result.measured]
    sections = [
        Section("What it is", [Lines([what], only="markdown"), Lines(answers)], has_heading=False),
        Section("Aux layers", [strip] if strip else [], trained),
        Section("Engines", [_engine_table(result), Lines(list(_reasons(result)))], _remark(result)),
        *_speed(result),
        *([Section("What others reach", [Lines(others)], SOURCES)] if others else []),
        *([Section("Commands", [Commands(commands)], only="markdown")] if commands else []),
    ]
    last: list[Line] = [Words(last_line(result), tone)]
    if result.diagnosis and result.diagnosis.commands:
        last.append(f"next  {result.diagnosis.commands[0]}")
    lead = Words(_summary(result), "strong")
    return Outline("ready", Words(word, tone), result.source, lead, what, sections, last)


def _speed(result: Readiness) -> Iterator[Section]:
    """What --speed measured of what is served, or why it did not."""
    for state in result.engines:
        if state.final is not None and state.final.speed:
            yield speed_section(state.final.speed, name(state))
    if result.speed_gap:
        yield Section(TITLE, [Lines([Words(f"not measured: {result.speed_gap}", "doubt")])])


def _commands(result: Readiness) -> list[tuple[str, str]]:
    """The commands that write and start what is served, or the next one where nothing is."""
    if result.diagnosis and result.diagnosis.commands:
        return [("next", result.diagnosis.commands[0])]
    if result.verdict != CheckVerdict.PASS or result.best is None:
        return []
    is_unwritten = result.best.converted_outcome is not None and result.out is None
    written = [("write it with", result.plan_command)] if is_unwritten else []
    serving = [state for state in result.engines if state.is_serving and state.command]
    measured = [(f"measure {name(one)}", one.measure_command) for one in serving if one.measure_command]
    return [*written, *((f"start {name(state)}", state.command) for state in serving), *measured]


def _engine_table(result: Readiness) -> Table:
    """A row for each engine: what it does as stored and converted, and acceptance."""
    if all(state.converted_outcome is None for state in result.engines):
        return Table(STORED_HEAD, [_stored_cells(state) for state in result.engines])
    rows: list[tuple[Line, ...]] = []
    for state in result.engines:
        converted = acceptance(state.converted, state.converted_gap) if state.converted_outcome else "-"
        rows.append((*_stored_cells(state), _outcome(state.converted_outcome), converted))
    return Table(HEAD, rows)


def _outcome(outcome: ServedAs | None) -> Words:
    return Words(outcome, OUTCOME_TONES[outcome]) if outcome else Words("-")


def _stored_cells(state: EngineReadiness) -> tuple[Line, Line, Line]:
    return name(state), _outcome(state.stored_outcome), stored_acceptance(state)


def _remark(result: Readiness) -> str:
    """What the figures are."""
    runs = [report for state in result.engines for report in (state.stored, state.converted) if report]
    text = "acceptance length, 95 % over prompts in brackets"
    if result.reused:
        text += f"; kept of an earlier call: {len(result.reused)}"
    return f"{text}; {REFERENCE}" if any(run.run.engine == "reference" for run in runs) else text


def name(state: EngineReadiness) -> str:
    """The engine and its release in words."""
    title = ENGINES[state.engine].title if state.engine in ENGINES else state.engine
    return f"{title} {state.release}".strip()


def acceptance(report: SmokeReport | None, gap: str) -> str:
    """The acceptance length with its interval, and what ran; or why there is none."""
    if report is None:
        return f"not measured: {gap}" if gap else "-"
    length = report.measured.length
    by = " (reference)" if report.run.engine == "reference" else ""
    return f"{length.value:.2f} [{length.low:.2f}, {length.high:.2f}]{by}"


def stored_acceptance(state: EngineReadiness) -> str:
    """The same of the stored files; where the reference read them as the engine does, that is said."""
    text = acceptance(state.stored, state.stored_gap)
    return (
        text.replace("(reference)", f"(reference, {state.stored_reading.words})")
        if state.stored_reading
        else text
    )


def ran(report: SmokeReport) -> str:
    """What ran the drafter, in words."""
    if report.run.engine == "reference":
        return "in the reference"
    if report.run.engine not in ENGINES:
        return f"in {report.run.version}, by its own counters"
    return f"in {ENGINES[report.run.engine].title} {report.run.version}".strip()


def engine_gain(state: EngineReadiness) -> Gain | None:
    """What the conversion changes in an engine; None where it did not run both."""
    return gain(state.converted, state.stored) if state.converted and state.stored else None


def _reasons(result: Readiness) -> Iterator[Words]:
    """What the draft vocabulary holds, and why engines do not run the files as trained, a line for each."""
    final = result.best.final if result.best else None
    if final is not None and final.coverage:
        tone: Tone = "doubt" if final.coverage.holds_down else "quiet"
        yield Words(f"the draft vocabulary holds {final.coverage.words}", tone)
    for state in result.engines:
        if not state.is_serving:
            why = "; ".join(state.converted_reasons or state.stored_reasons)
            text = f"{name(state)} does not run it as trained: {why}" if why else f"{name(state)}: not served"
            yield Words(text, "doubt")


def last_line(result: Readiness) -> str:
    """The line that says it all."""
    return f"{WORDS[result.verdict]}  {_end(result)}"


def _end(result: Readiness) -> str:
    """The figures and how to start it, or why it is not ready."""
    best = result.best
    if result.verdict != CheckVerdict.PASS or best is None:
        return _summary(result)
    doubt = f"; {result.reason}" if result.reason else ""
    return f"{_figures(best)}{doubt}; {_start(result, best)}"


def _summary(result: Readiness) -> str:
    """The figures, or why it is not ready."""
    best = result.best
    if result.verdict != CheckVerdict.PASS or best is None:
        return result.diagnosis.title if result.diagnosis else result.reason
    return _figures(best)


def _figures(best: EngineReadiness) -> str:
    """Both acceptance lengths, and what they were measured with."""
    final = best.final
    if final is None:
        what = "converted" if best.converted_outcome else _as_stored(best)
        return f"{what}; acceptance not measured ({best.final_gap})"
    measured = f"{final.measured.length.value:.2f} {ran(final)}"
    if best.converted_outcome is None:
        # a server does not say which files it has loaded
        figures = f"{_as_stored(best)}, {measured}" if best.engine in ENGINES else f"served, {measured}"
    elif best.stored is not None:
        how = f" ({ran(best.stored)}, {best.stored_reading.words})" if best.stored_reading else ""
        figures = f"as stored {best.stored.measured.length.value:.2f}{how}, converted {measured}"
    else:
        figures = f"converted {measured}"
    return f"{figures} ({final.measured.prompts} prompts, k={final.k}{_doubt(best)})"


def _as_stored(state: EngineReadiness) -> str:
    """What the stored files are for an engine that serves them."""
    if state.stored_outcome == ServedAs.AS_PUBLISHED:
        return f"{state.stored_outcome} ({state.stored_reasons[0]})"
    return "right as stored"


def _doubt(state: EngineReadiness) -> str:
    """That the prompts do not tell the two figures apart, and how many would."""
    change = None if state.is_right_twice else engine_gain(state)
    if change is None or change.is_shown:
        return ""
    needed = f"; about {change.prompts_needed} would" if change.prompts_needed else ""
    return f", which do not tell the two apart{needed}"


def _start(result: Readiness, best: EngineReadiness) -> str:
    """What starts it, one line to paste; of several engines that were asked for, each."""
    serving = [state for state in result.engines if state.is_serving] if result.is_named else [best]
    lines = [state.command for state in sorted(serving, key=lambda state: state is not best) if state.command]
    if not lines:
        return f"it is served at {best.engine}"
    is_written = best.converted_outcome is None or result.out is not None
    first = lines[0] if is_written else f"{result.plan_command} && {lines[0]}"
    return f"start it with: {'; or '.join([first, *lines[1:]])}{_measuring(serving)}"


def _measuring(states: Sequence[EngineReadiness]) -> str:
    """How engines that `ready` cannot run are measured once they are started, and what is started with."""
    others = [state for state in states if state.measure_command]
    parts = [f"{name(state)} is measured where it runs: {state.measure_command}" for state in others]
    named = placeholders(state.command for state in others)
    return "".join(f"; {part}" for part in (named, *parts) if part)


def _published_lines(result: Readiness) -> list[str]:
    """What others reached: lengths of runs like this one, else how many were measured otherwise."""
    is_measured = result.best is not None and result.best.final is not None
    return list(result.published.lines) if is_measured and result.published else []
