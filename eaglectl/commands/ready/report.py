"""What `ready` found, as sections."""

from collections.abc import Iterator, Sequence

from eaglectl.engines.registry import ENGINES
from eaglectl.report.acceptance import TITLE, speed_section
from eaglectl.report.inspection import headline, layer_strip
from eaglectl.report.section import TONES, Commands, Line, Lines, Outline, Section, Table, Words, grouped
from eaglectl.report.wording import OUTCOME_TONES, placeholders, trained_layers
from eaglectl.results import EngineReadiness, Readiness
from eaglectl.run.report import Gain, SmokeReport, gain
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, ServedAs

STORED_HEAD = ("engine", "as stored", "acceptance")
HEAD = (*STORED_HEAD, "converted", "acceptance")
SOURCES = "docs/reference/acceptance.md has the sources"
WORDS = {
    CheckVerdict.PASS: "ready",
    CheckVerdict.FAIL: "not ready",
    CheckVerdict.COULD_NOT_LOOK: "could not look",
}


def readiness_outline(result: Readiness) -> Outline:
    """The verdict with both acceptance lengths, why, what to run next, the engines; then the drafter."""
    inspection, others = result.inspection, _published_lines(result)
    word, lengths = Words(WORDS[result.verdict], TONES[result.verdict]), Words(_lengths(result), "strong")
    version, producer, evidence = headline(inspection.drafter)
    what = (Words(version, "strong"), producer, Words(evidence, "quiet"))
    strip = layer_strip(inspection.drafter, inspection.captured_layers)
    commands = _commands(result)
    starts = [row for row in commands if row[1] != _next(result)]
    answers = [answer.text for answer in result.measured]
    sections = [
        Section("Engines", [_engine_table(result), Lines(list(_gaps(result)))], _remark(result)),
        *([Section("Start it", [Commands(starts)])] if starts else []),
        *_speed(result),
        *([Section("Measured first", [Lines(answers)], is_more=True)] if answers else []),
        Section("What it is", [Lines([what])], is_more=True),
        Section(
            "Aux layers",
            [strip] if strip else [],
            f"trained on boundaries {trained_layers(inspection.drafter.aux)}",
            is_more=True,
        ),
        *_measuring_section(result),
        *([Section("What others reach", [Lines(others)], SOURCES, is_more=True)] if others else []),
    ]
    return Outline(
        "ready",
        word,
        result.source,
        lengths,
        (word, "  ", lengths),
        sections,
        cause=list(_cause(result)),
        next=_next(result),
    )


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
    text = result.diagnosis.title if result.diagnosis else result.reason
    if text:
        yield text
    states = [state for state in result.engines if state.stored_outcome.is_known_wrong]
    if result.best is not None and result.best.stored_outcome == ServedAs.AS_PUBLISHED:
        yield _as_stored(result.best)
    reasons = grouped(("; ".join(state.stored_reasons), name(state)) for state in states)
    yield from (f"{listed(names)}, as stored: {why}" for why, names in reasons.items() if why not in text)
    if result.best is not None and (doubt := _doubt(result.best)):
        yield f"the prompts {doubt.removeprefix(', which ')}"


def _next(result: Readiness) -> str:
    """The command to run next: of the diagnosis, else what writes or starts what is served."""
    if result.diagnosis and result.diagnosis.commands:
        return result.diagnosis.commands[0]
    return next((command for _, command in _commands(result)), "")


def _commands(result: Readiness) -> list[tuple[str, str]]:
    """The commands that write and start what is served; of several engines that were asked for, each."""
    if result.verdict != CheckVerdict.PASS or result.best is None or result.diagnosis:
        return []
    is_unwritten = result.best.converted_outcome is not None and result.out is None
    written = [("", result.plan_command)] if is_unwritten else []
    starts = [(name(state), state.command) for state in _serving(result) if state.command]
    return [*written, *(starts if len(starts) > 1 else [("", command) for _, command in starts])]


def _serving(result: Readiness) -> list[EngineReadiness]:
    """The engines that are started: the best first, and with it others that were asked for."""
    best = result.best
    if best is None or not result.is_named:
        return [] if best is None else [best]
    serving = [state for state in result.engines if state.is_serving]
    return sorted(serving, key=lambda state: state is not best)


def _speed(result: Readiness) -> Iterator[Section]:
    """What --speed measured of what is served, or why it did not."""
    for state in result.engines:
        if state.final is not None and state.final.speed:
            yield speed_section(state.final.speed, name(state))
    if result.speed_gap:
        yield Section(TITLE, [Lines([Words(f"not measured: {result.speed_gap}", "doubt")])])


def _measuring_section(result: Readiness) -> Iterator[Section]:
    """How engines that `ready` cannot run are measured once they are started."""
    states = [state for state in _serving(result) if state.measure_command]
    if result.verdict == CheckVerdict.PASS and states:
        rows = [(name(state), state.measure_command) for state in states]
        about = placeholders(state.command for state in states)
        yield Section("Measure it where it runs", [Commands(rows)], about, is_more=True)


def _engine_table(result: Readiness) -> Table:
    """A row for each engine: what it does as stored and converted, and acceptance."""
    by_reference = " (reference)" if _is_mixed(result) else ""
    rows: list[tuple[Line, ...]] = []
    is_converted = any(state.converted_outcome is not None for state in result.engines)
    for state in result.engines:
        stored = (_outcome(state.stored_outcome), _acceptance(state.stored, by_reference))
        after: tuple[Line, ...] = ()
        if is_converted:
            after = (_outcome(state.converted_outcome), _acceptance(state.converted, by_reference))
        rows.append((name(state), *stored, *after))
    return Table(HEAD if is_converted else STORED_HEAD, rows)


def _outcome(outcome: ServedAs | None) -> Words:
    return Words(outcome, OUTCOME_TONES[outcome]) if outcome else Words("-")


def _runs(result: Readiness) -> list[SmokeReport]:
    return [run for state in result.engines for run in (state.stored, state.converted) if run]


def _is_mixed(result: Readiness) -> bool:
    """Whether some runs are of the reference and others of engines."""
    return len({run.run.engine == "reference" for run in _runs(result)}) > 1


def _remark(result: Readiness) -> str:
    """What the figures are."""
    text = "acceptance length [95 %]"
    if any(run.run.engine == "reference" for run in _runs(result)):
        text += ", by eaglectl's own torch reference"
    return f"{text}; kept of an earlier call: {len(result.reused)}" if result.reused else text


def name(state: EngineReadiness) -> str:
    """The engine and its release in words."""
    title = ENGINES[state.engine].title if state.engine in ENGINES else state.engine
    return f"{title} {state.release}".strip()


def _acceptance(report: SmokeReport | None, by_reference: str) -> str:
    """The acceptance length with its interval, if it was measured."""
    if report is None:
        return "-"
    return f"{report.measured.length.words}{by_reference if report.run.engine == 'reference' else ''}"


def _gaps(result: Readiness) -> Iterator[Words]:
    """Why acceptance was not measured where an engine runs the files: each reason, with its engines."""
    gaps = grouped(
        (gap.replace(f"{name(state)} ", "the engine ", 1), name(state))
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
    serving = _serving(result)
    lines = [state.command for state in serving if state.command]
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
