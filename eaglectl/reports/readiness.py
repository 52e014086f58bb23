"""What a report of `ready` says, for every medium."""

from collections.abc import Iterator

from eaglectl.acceptance.report import SmokeReport
from eaglectl.engines.registry import ENGINES
from eaglectl.results import EngineReadiness, Readiness
from eaglectl.verdicts import CheckVerdict

STORED_HEAD = ("engine", "as stored", "acceptance")
HEAD = (*STORED_HEAD, "converted", "acceptance")
REFERENCE = "reference: eaglectl's own run of what the files mean"
WORDS = {
    CheckVerdict.PASS: "ready",
    CheckVerdict.FAIL: "not ready",
    CheckVerdict.COULD_NOT_LOOK: "could not look",
}


def engine_table(result: Readiness) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head, and a row for each engine: what it does as stored and converted, and acceptance."""
    if all(state.converted_outcome is None for state in result.engines):
        return STORED_HEAD, [_stored_cells(state) for state in result.engines]
    rows: list[tuple[str, ...]] = []
    for state in result.engines:
        converted = acceptance(state.converted, state.converted_gap) if state.converted_outcome else "-"
        rows.append((*_stored_cells(state), state.converted_outcome or "-", converted))
    return HEAD, rows


def _stored_cells(state: EngineReadiness) -> tuple[str, str, str]:
    return name(state), state.stored_outcome, stored_acceptance(state)


def remark(result: Readiness) -> str:
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
    title = ENGINES[report.run.engine].title if report.run.engine in ENGINES else report.run.engine
    return f"in {title} {report.run.version}".strip()


def reasons(result: Readiness) -> Iterator[str]:
    """Why an engine does not run the files as trained, a line for each."""
    for state in result.engines:
        if not state.is_serving:
            why = "; ".join(state.converted_reasons or state.stored_reasons)
            yield f"{name(state)} does not run it as trained: {why}" if why else f"{name(state)}: not served"


def last_line(result: Readiness) -> str:
    """The line that says it all."""
    word, best = WORDS[result.verdict], result.best
    if result.verdict != CheckVerdict.PASS or best is None:
        why = result.diagnosis.title if result.diagnosis else result.reason
        return f"{word}  {why}"
    return f"{word}  {_figures(best)}; {_start(result, best)}"


def _figures(best: EngineReadiness) -> str:
    """Both acceptance lengths, and what they were measured with."""
    final = best.final
    if final is None:
        what = "converted" if best.converted_outcome else "right as stored"
        return f"{what}; acceptance not measured ({best.final_gap})"
    measured = f"{final.measured.length.value:.2f} {ran(final)}"
    if best.converted_outcome is None:
        figures = f"right as stored, {measured}"
    elif best.stored is not None:
        how = f" ({ran(best.stored)}, {best.stored_reading.words})" if best.stored_reading else ""
        figures = f"as stored {best.stored.measured.length.value:.2f}{how}, converted {measured}"
    else:
        figures = f"converted {measured}"
    return f"{figures} ({final.measured.prompts} prompts, k={final.k})"


def _start(result: Readiness, best: EngineReadiness) -> str:
    """What starts it, one line to paste; of several engines that were asked for, each."""
    serving = [state for state in result.engines if state.is_serving] if result.is_named else [best]
    lines = [state.command for state in sorted(serving, key=lambda state: state is not best) if state.command]
    if not lines:
        return f"it is served at {best.engine}"
    is_written = best.converted_outcome is None or result.out is not None
    first = lines[0] if is_written else f"{result.plan_command} && {lines[0]}"
    return f"start it with: {'; or '.join([first, *lines[1:]])}"


def published_lines(result: Readiness) -> list[str]:
    """What others reached: lengths of runs like this one, else how many were measured otherwise."""
    is_measured = result.best is not None and result.best.final is not None
    return list(result.published.lines) if is_measured and result.published else []
