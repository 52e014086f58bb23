"""`ready`: from a trainer's folder to a serving command, with acceptance before and after; its report."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.api.convert import OpenQuestions, convert, default_output, measured_questions
from eaglectl.api.diagnose import diagnose
from eaglectl.api.diff import diff
from eaglectl.api.inspect import inspect, inspect_files
from eaglectl.api.options import (
    INSTALLED,
    ConvertOptions,
    DiagnoseOptions,
    DiffOptions,
    InspectOptions,
    MeasureOptions,
    ReadyOptions,
    ValidateOptions,
)
from eaglectl.api.outputs import judge_plan, notes_of
from eaglectl.api.smoke import check_numbers, published_beside, smoke_drafts
from eaglectl.api.validate import validate
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.engine import NetworkReading, Verdict
from eaglectl.engines.registry import (
    ENGINES,
    SETTLED_BY_A_RUN,
    EngineRequest,
    default_requests,
    installed_release,
    output_commands,
    started,
)
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import hub_name, on_disk, open_folder
from eaglectl.files.layout import RECORD
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import split_folder
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Finding, Policy
from eaglectl.options import StrPath, options_of, with_keywords
from eaglectl.progress import OnProgress, StagedWork, report_step
from eaglectl.report.acceptance import MEASUREMENT, measured
from eaglectl.report.documents import Parts
from eaglectl.report.section import (
    TONES,
    Commands,
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Words,
    first_line,
    grouped,
    plain,
)
from eaglectl.report.wording import OUTCOME_TONES, engine_names, placeholders, unserved_words
from eaglectl.results import Conversion, EngineReadiness, Inspection, Readiness, ServedFiles
from eaglectl.run.evidence import LOOK_POSITION_0
from eaglectl.run.installed import check_engine_arguments
from eaglectl.run.job import share_loaded_targets
from eaglectl.run.process import has_torch
from eaglectl.run.results import Gain, Reason, SmokeReport, gain
from eaglectl.shell import as_path, without_secrets
from eaglectl.target.choice import TargetChoice, as_target, named_target
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiffVerdict, ServedAs

if TYPE_CHECKING:
    from eaglectl.api.keywords import ReadyFields

REFERENCE = "reference"
# the options of the call that a later command needs to measure the same
GIVEN_AGAIN = ("prompts", "sample", "max_tokens", "seed")
# the share of the draft tokens per round of published drafters below which something is wrong
FAR_BELOW = 0.5
# trained drafters keep 0.9 or more of the first token's rate at the second, which uses the fed-back state
FALLING = 0.5
# the outcome of a server's own drafter by the verdict of its run
OUTCOMES = {
    CheckVerdict.PASS: ServedAs.AS_TRAINED,
    CheckVerdict.FAIL: ServedAs.DIFFERS,
    CheckVerdict.COULD_NOT_LOOK: ServedAs.UNKNOWN,
}
# why the reference does not stand for an engine that is not installed, by the engine's outcome
NOT_RUN = {
    ServedAs.FAILS: "fails with it",
    ServedAs.DIFFERS: "is not installed here, and the reference cannot run the network that it builds",
}
# a run, or the reason if there is none
Attempt = tuple[SmokeReport | None, str, bool]


@with_keywords
@share_loaded_targets()
def ready(
    source: StrPath,
    target: StrPath | TargetChoice | None = None,
    out: StrPath | None = None,
    options: ReadyOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[ReadyFields]",
) -> Readiness:
    """Return how engines run a drafter as stored and converted, and the command that starts one.

    Converts only for engines that do not run the stored files as trained. `out` is the folder of the
    conversion; None: a temporary folder, which is removed. Raises UsageError for an open question,
    UnreadableError for input that cannot be read; a drafter that no engine serves is a result.
    """
    source, target, options = os.fspath(source), as_target(target), options or ReadyOptions()
    start = time.perf_counter()
    check_numbers(options)
    requests = _requests(options)
    report_step(on_progress, "reading the files")
    if target.place is None:
        target = as_target(named_target(source, options.answers).place)
    target = options.deployment.of(target)
    questions = measured_questions(source, target, options.answers, options.measuring, on_progress)
    options = replace(options, answers=questions.answers)
    with questions.explaining():
        inspecting = InspectOptions(target=target, engines=requests, answers=options.answers)
        inspection = inspect_files(source, inspecting, on_progress, headers_only=False)
    judged = _judged(inspection, options)
    on_progress = StagedWork(on_progress, "ready", [("measuring", 1.0)] * _reference_runs(judged, options))
    work = _Work(source, target, requests, options, questions, on_progress)
    states = (
        *(work.stored(verdict, inspection.drafter) for verdict in judged),
        *map(work.server, options.servers),
    )
    result = Readiness(source, inspection, states, questions.measured, is_named=options.is_named)
    if _needs_conversion(result):
        result = work.converted(result, None if out is None else Path(out))
    result = work.judged(replace(result, published=published_beside(source, target, options)))
    return replace(
        result,
        unwritten=None if out is None or result.out else Path(out),
        seconds=time.perf_counter() - start,
    )


def _needs_conversion(result: Readiness) -> bool:
    """Whether an engine is known not to serve the stored files, none serves them, or they have errors."""
    outcomes = {state.stored.outcome for state in result.engines if state.engine in ENGINES}
    is_wrong = any(outcome.is_known_wrong for outcome in outcomes) or _errors(result.inspection.findings)
    return bool(outcomes and (is_wrong or not any(outcome.is_served for outcome in outcomes)))


def _judged(inspection: Inspection, options: ReadyOptions) -> Sequence[Verdict]:
    """Return every requested release; for default engines the installed one, otherwise the newest."""
    if options.is_named:
        return inspection.requested
    engines = grouped((verdict.engine, verdict) for verdict in inspection.requested)
    return [
        next((member for member in group if member.release == installed_release(ENGINES[engine])), group[-1])
        for engine, group in engines.items()
    ]


def _reference_runs(judged: Sequence[Verdict], options: ReadyOptions) -> int:
    """Count the coming runs of the reference: one for each reading of the stored files, and the output's.

    Installed engines run the files themselves, and report their own progress.
    """
    others = [verdict for verdict in judged if _installed(verdict.engine, options) != verdict.release]
    differing = [verdict for verdict in others if verdict.outcome == ServedAs.DIFFERS]
    readings = {verdict.reading.key for verdict in differing if verdict.reading}
    return (
        any(verdict.outcome.is_served for verdict in others)
        + len(readings)
        + any(verdict.outcome.is_known_wrong for verdict in others)
    )


def _installed(engine: str, options: ReadyOptions) -> str | None:
    is_run = engine in INSTALLED and (not options.runners or engine in options.runners)
    return installed_release(ENGINES[engine]) if is_run else None


def _requests(options: ReadyOptions) -> tuple[EngineRequest, ...]:
    """Return the engines to judge for: those of --engine, else the default ones; none for only a server.

    Raises UnreadableError for an engine of which only the captured layers are known, and for a requested
    runner that is not installed; UsageError for arguments without a named engine, or that change the
    measurement.
    """
    requests = options.engines
    advice = f"engines are {', '.join(ENGINES)}; for others {SETTLED_BY_A_RUN}"
    for request in requests:
        if request.engine not in ENGINES:
            raise UnreadableError(
                f"--engine {request.engine}: read, not judged; {advice}", options=("--engine",)
            )
    if not options.is_named:
        requests = default_requests()
    for name in options.runners:
        if name != REFERENCE:
            _check_runner(name, [request for request in requests if request.engine == name])
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size)
    installed = {request.engine for request in requests if _installed(request.engine, options)}
    check(
        (
            options.engine_arguments and not (len(installed) == 1 and options.engines),
            "--engine-arg is for one installed engine: pass --engine vllm or --engine sglang",
            ("--engine-arg",),
        ),
    )
    return requests


def _check_runner(name: str, requests: Sequence[EngineRequest]) -> None:
    """Raise UsageError for a --run-in that is no engine, UnreadableError for one that cannot run here."""
    if name not in INSTALLED:
        raise UsageError(
            f"--run-in {name}: vllm, sglang, reference or a server's URL was expected", options=("--run-in",)
        )
    here = installed_release(ENGINES[name])
    if not any(here in request.releases for request in requests):
        raise UnreadableError(
            f"--run-in {name}: {here or 'no release'} is installed here, and --engine is"
            f" {listed(request.text or listed(request.labels) for request in requests) or 'another'};"
            " pass --run-in reference to run the drafter as trained",
            options=("--run-in",),
        )


def _request(state: EngineReadiness) -> EngineRequest:
    return EngineRequest(state.engine, (state.release,))


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error" and not finding.match.engines]


class _Work(Struct, frozen=True):
    """The steps of one call of `ready`, and the values that they share.

    `runs` are those that were made, by place, engine and reading: the reference stands for several.
    """

    source: str
    target: TargetChoice
    requests: tuple[EngineRequest, ...]
    options: ReadyOptions
    questions: OpenQuestions
    on_progress: OnProgress | None
    runs: dict[object, Attempt] = field(default_factory=dict)

    def stored(self, verdict: Verdict, drafter: Drafter) -> EngineReadiness:
        # a release's verdict on the files as they are stored, and a measurement of them
        place, revision = hub_name(self.source) or (self.source, None)
        if place != self.source and split_folder(self.source)[1]:  # which no engine takes
            place, revision = on_disk(self.source), None
        tokens = self.options.k
        commands = output_commands(drafter, place, self.target.text, tokens=tokens, revision=revision)
        files = self._measured(self.source, verdict)
        if files.report is not None and files.report.run.differences:
            # what the engine's own run shows counts, whatever was known of it
            files = replace(
                files,
                outcome=ServedAs.DIFFERS,
                reasons=tuple(files.report.run.differences),
                keys=(release_name(verdict),),
            )
        start = started(commands[verdict.engine], verdict.options)
        return EngineReadiness(verdict.engine, verdict.release, files, None, start)

    def server(self, url: str) -> EngineReadiness:
        # a running server's measurement; it stands in the place of an engine's release
        report, gap, has_failed = self._run(self.source, url)
        outcome = OUTCOMES[report.verdict] if report else ServedAs.UNKNOWN
        return EngineReadiness(
            without_secrets(url),
            "",
            ServedFiles(
                outcome,
                tuple(report.failures or report.gaps) if report else (),
                report,
                gap,
                has_failed=has_failed,
                keys=(url,),
            ),
        )

    def _given_again(self) -> list[str]:
        options = [(options_of(ReadyOptions)[name], getattr(self.options, name)) for name in GIVEN_AGAIN]
        changed_options = [
            (option.flag, as_path(str(value))) for option, value in options if value != option.default
        ]
        return [word for words in changed_options for word in words]

    def _written(self, place: Path) -> Conversion | None:
        """Return the conversion; None if `place` holds one of the source, equal by meaning and tensors.

        Raises UsageError if it holds anything else.
        """
        if not os.path.lexists(place):
            report_step(self.on_progress, "converting")
            try:
                with self.questions.explaining():
                    return convert(self.source, place, self._measuring, on_progress=self.on_progress)
            except UsageError:
                if not os.path.lexists(place):  # otherwise it appeared meanwhile, and is compared below
                    raise
        comparing = DiffOptions(target=self.target, answers=self.options.answers)
        with suppress(EaglectlError):
            is_ours = os.path.lexists(place / RECORD)
            if is_ours and diff(self.source, str(place), comparing).meaning == DiffVerdict.EQUAL:
                return None
        raise UsageError(
            f"{place} exists already and is not a conversion of {self.source}; pass another -o",
            options=("-o",),
        )

    def converted(self, result: Readiness, out: Path | None) -> Readiness:
        # convert if that is better, then judge and run the output as the stored files were
        with nullcontext(out) if out else scratch_folder() as scratch:
            place = out or scratch / "converted"
            try:
                if not self._is_better(result):
                    return result
                conversion = self._written(place)
            except RefusedError as error:
                return replace(result, reason=str(error))
            shown_path = str(
                out or default_output(open_folder(self.source), result.inspection.drafter.version)
            )
            served = [state for state in result.engines if state.engine in ENGINES]
            inspected = inspect(
                str(place),
                target=self.target,
                engines=[
                    _request(state) for state in served if state.release in ENGINES[state.engine].releases
                ],
            )
            states = tuple(self._converted(state, inspected, place, shown_path) for state in result.engines)
            report_step(self.on_progress, "validating")
            serving = tuple(_request(state) for state in states if state.is_serving)
            judging = ValidateOptions(target=self.target, engines=serving, policy=Policy())
            return replace(
                result,
                conversion=conversion,
                out=out,
                plan_command=self._convert_command(shown_path),
                engines=states,
                report=validate(str(place), judging) if serving else None,
            )

    def _converted(
        self, state: EngineReadiness, inspected: Inspection, place: Path, shown_path: str
    ) -> EngineReadiness:
        # the engine's state with the output's verdict, and a run of it if it is served
        verdicts = {(entry.engine, entry.release): entry for entry in inspected.requested}
        if (verdict := verdicts.get((state.engine, state.release))) is None:
            return state
        files = _served(verdict)
        tokens = self.options.k
        commands = output_commands(inspected.drafter, shown_path, self.target.text, tokens=tokens)
        return replace(
            state,
            converted=self._measured(str(place), verdict) if files.outcome.is_run else files,
            command=started(commands[state.engine], verdict.options),
        )

    def judged(self, result: Readiness) -> Readiness:
        # the verdict: a refusal, too few engines that serve it, an error of a rule, then the runs
        if result.reason:
            return replace(result, verdict=CheckVerdict.FAIL)
        is_named, report = self.options.is_named, result.report
        serving = [state for state in result.engines if state.is_serving]
        # each release that was asked for shall serve it, else any
        if len(serving) < (len(result.engines) if is_named else 1):
            return _without_serving(result)
        findings = _errors(result.inspection.findings if report is None else report.findings)
        if findings:
            rule, match = findings[0].rule, findings[0].match
            return replace(
                result,
                verdict=CheckVerdict.FAIL,
                reason=f"{rule.id} {match.message}",
                keys=(match.key or rule.id,),
            )
        if report is not None and report.verdict == CheckVerdict.FAIL:
            return replace(result, verdict=CheckVerdict.FAIL, reason=report.problem)
        return self._run_verdict(
            result, [result.best] if result.best is not None and not is_named else serving
        )

    def _run_verdict(self, result: Readiness, states: Sequence[EngineReadiness]) -> Readiness:
        """Return the verdict of the runs of what is served: the worst of them.

        A run that could not be made is a gap; that nothing can run here is none.
        """
        reports = [state.final.report for state in states if state.final.report]
        for report in reports:
            if report.verdict == CheckVerdict.FAIL:
                return self._with_diagnosis(result, report)
        if losses := list(filter(None, map(_regression, states))):
            return replace(result, verdict=CheckVerdict.FAIL, reason=losses[0])
        failed = {release_name(state): state.final.gap for state in states if state.final.has_failed}
        if gaps := [*(gap for report in reports for gap in report.gaps), *failed.values()]:
            reason = "; ".join(dict.fromkeys(gaps))
            return replace(result, verdict=CheckVerdict.COULD_NOT_LOOK, reason=reason, keys=tuple(failed))
        # what stands out of the numbers of the files, and of the runs
        doubts = [note.text for note in notes_of(result.inspection.findings)]
        doubts += filter(None, (self._weakness(report, result) for report in reports))
        return replace(result, verdict=CheckVerdict.PASS, reason="; ".join(dict.fromkeys(doubts)))

    def _weakness(self, report: SmokeReport, result: Readiness) -> str:
        """Return what holds acceptance down: the draft vocabulary, or what a diagnosis may find; else ""."""
        if (coverage := report.coverage) and coverage.holds_down:
            share = f"the draft vocabulary holds {coverage.share:.1%} of {coverage.tokens_are}"
            return Reason("note", f"{share}; {coverage.advice}", coverage.commands).text
        (first, *later), length = report.measured.per_position, report.measured.length
        second = later[0].value / first.value if later and first.value else 1.0
        others = [figure.length for figure in (result.published.alike if result.published else ())]
        # a length less 1 is the number of drafts accepted per step
        if others and length.high - 1 < FAR_BELOW * (min(others) - 1):
            reached = f"{min(others):.2f} to {max(others):.2f}"
            weak = f"{length.value:.2f} is far below the {reached} that others reach"
        elif first.value < LOOK_POSITION_0:
            weak = f"only {first.value:.0%} of first draft tokens are accepted"
        elif second < FALLING * first.value:  # as where norm_output is not as trained
            weak = (
                f"{first.value:.0%} of first draft tokens are accepted, and {second:.0%} of those that follow"
            )
        else:
            return ""
        words, target = self._given_again(), self.target
        look = command("diagnose", self.source, *words, target=target, answers=self.options.answers)
        return f"{weak}: look for the cause with {look}"

    def _with_diagnosis(self, result: Readiness, failed: SmokeReport) -> Readiness:
        result = replace(result, verdict=CheckVerdict.FAIL, reason="; ".join(failed.failures))
        if self.target.weights is None or not has_torch():
            return result
        # the engines are ready's own, and what sampling costs is not asked here
        diagnosing = self.options.passed_to(DiagnoseOptions, run_in=None, temperature=0.0, measure=True)
        return replace(
            result,
            diagnosis=diagnose(self.source, self.target.here, diagnosing, on_progress=self.on_progress),
        )

    def _is_better(self, result: Readiness) -> bool:
        # whether the output would be served where the stored files are known to be wrong
        states = result.engines
        if _errors(result.inspection.findings) or not any(state.is_serving for state in states):
            return True
        with self.questions.explaining():
            plan = convert(
                self.source, None, replace(self._conversion, dry_run=True), on_progress=self.on_progress
            ).plan
        return any(
            verdict.outcome.is_served
            for state in states
            if state.stored.outcome.is_known_wrong
            for verdict in judge_plan(plan, _request(state))
        )

    @property
    def _conversion(self) -> ConvertOptions:
        # options for one conversion: to the layout of the named engines if they share one, else to the
        # default
        layouts = {layout_for(request.engine) for request in self.requests}
        is_one = self.options.is_named and len(layouts) == 1
        converting = ConvertOptions(
            layout=layouts.pop() if is_one else None,
            engines=self.requests if self.options.is_named else (),
            target=self.target,
            measure=None,
        )
        return converting.answered(self.questions.answers, self.questions.record)

    @property
    def _measuring(self) -> ConvertOptions:
        # the conversion that is written. Open questions were measured before: only the effect of one norm in
        # the place of two is measured here
        is_settled = not self.questions.gap and all(answer.choice for answer in self.questions.measured)
        measures = self.options.measure and is_settled
        return replace(self._conversion, measure=self.options.passed_to(MeasureOptions) if measures else None)

    def _convert_command(self, place: str) -> str:
        words, converting = ["-o", as_path(place)], self._conversion
        if converting.layout not in (None, default_format().name):
            words += ["--for", str(converting.layout)]
        words += [word for request in converting.engines for word in ("--engine", request.text)]
        target, answers = self.target, self.options.answers
        return command("convert", self.source, *words, target=target, answers=answers)

    def _measured(self, place: str, verdict: Verdict) -> ServedFiles:
        """Run the files at `place`, in the engine if it is installed, else in the reference.

        The reference runs the network as trained, and stands for engines that do so. For another engine it
        runs the network as that engine builds it, if that is known.
        """
        files, engine, reading = _served(verdict), REFERENCE, None
        if _installed(verdict.engine, self.options) == verdict.release:
            engine = verdict.engine
        elif files.outcome == ServedAs.DIFFERS and verdict.reading:
            reading = verdict.reading
        elif not files.outcome.is_run:
            predicate = NOT_RUN.get(files.outcome, "is not installed here")
            return replace(files, gap=f"{release_name(verdict)} {predicate}", predicate=predicate)
        report, gap, has_failed = self._run(place, engine, reading)
        return replace(
            files, report=report, gap=gap, reading=reading if report else None, has_failed=has_failed
        )

    def _run(self, place: str, engine: str, reading: NetworkReading | None = None) -> Attempt:
        # run a folder in an engine, once: attempts are kept by folder, engine and reading
        if self.target.weights is None:
            return None, "the target's weights are not here", False
        if engine == REFERENCE and not has_torch():
            return None, "torch is not installed", False
        key = place, engine, reading and reading.key
        if key not in self.runs:
            answers = self.options.answers if place == self.source else Answers()
            smoking, target = self.options.smoke_options(engine, answers), self.target.here
            try:
                report = smoke_drafts(
                    on_disk(place), target, smoking, self.on_progress, is_brief=True, reading=reading
                )
                self.runs[key] = report, "", False
            except (RefusedError, UnreadableError) as error:
                has_failed = self.options.prompts is not None or isinstance(error, UnreadableError)
                self.runs[key] = None, str(error), has_failed
        return self.runs[key]


def _served(verdict: Verdict) -> ServedFiles:
    keys = tuple(key for key, _ in verdict.keyed_reasons)
    return ServedFiles(verdict.outcome, verdict.reasons, keys=keys, options=verdict.start_options)


def _without_serving(result: Readiness) -> Readiness:
    # the result if too few engines serve the drafter: a failure if that is known of one of them, else an open
    # one
    others = [state for state in result.engines if not state.is_serving]
    is_known = any(state.final.outcome.is_known_wrong for state in others)
    reasons = grouped((_why_not(state), state) for state in others)
    return replace(
        result,
        verdict=CheckVerdict.FAIL if is_known else CheckVerdict.COULD_NOT_LOOK,
        reason="; ".join(f"{engine_names(group)}: {why}" for why, group in reasons.items()),
        keys=tuple(key for state in others for key in state.final.keys or state.stored.keys),
    )


def _why_not(state: EngineReadiness) -> str:
    """Return why an engine does not serve the drafter."""
    failures = state.stored.report.failures if state.stored.report else ()
    return "; ".join(state.final.reasons or state.stored.reasons or failures) or state.stored.gap


def _regression(state: EngineReadiness) -> str:
    # how much worse the conversion drafts in an engine; "" if it may be as good
    change = engine_gain(state)
    if change is None or change.ratio.high >= 1:
        return ""
    ratio = change.ratio
    before, after = (run.measured.length.value for run in runs_of(state))  # both ran: there is a gain
    return (
        f"the conversion drafts worse in {release_name(state)}: {before:.2f} as stored, {after:.2f} converted"
        f" (gain {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]); keep the stored files there"
    )


HEAD = ("engine", "as stored", "acceptance", "converted", "acceptance")
STORED_COLUMNS = 3  # those of HEAD without a conversion
OWN_DRAFTER = "the server has its own drafter loaded: start it with the output, and run smoke against it"
WORDS = {
    CheckVerdict.PASS: "ready",
    CheckVerdict.FAIL: "not ready",
    CheckVerdict.COULD_NOT_LOOK: "could not look",
}


def readiness_outline(result: Readiness) -> Outline:
    """Return the verdict with both acceptance lengths, why, what to run next, the engines, the drafter."""
    word, lengths = Words(WORDS[result.verdict], TONES[result.verdict]), Words(_lengths(result), "strong")
    commands = _commands(result)
    command = next(
        iter([*(result.diagnosis.commands if result.diagnosis else ()), *(text for _, text in commands)]), ""
    )
    starts = [row for row in commands if row[1] != command]
    sections = [
        _engines(result),
        Section("Start it", [Commands(starts)], placeholders(text for _, text in starts)),
        Section("Measured first", [Lines([answer.text for answer in result.measured])], is_more=True),
    ]
    head = first_line(result.verdict, word, *_unserved_words(result), ": ", lengths)
    cause = list(_cause(result))
    return Outline("ready", word, result.source, lengths, head, sections, cause=cause, next=command)


def _unserved_words(result: Readiness) -> list[Words]:
    states = [state for state in result.engines if result.is_named and state.engine in ENGINES]
    return unserved_words((state.final.outcome, state) for state in states)


def runs_of(state: EngineReadiness) -> list[SmokeReport]:
    """Return the runs of the stored and of the converted files that were made."""
    return [files.report for files in (state.stored, state.converted) if files and files.report]


def _lengths(result: Readiness) -> str:
    # the acceptance lengths as stored and converted, of the best engine, else of the first that ran
    state = result.best or next(
        (engine_state for engine_state in result.engines if runs_of(engine_state)), None
    )
    if state is None:
        return "acceptance not measured"
    if not (runs := runs_of(state)):
        return f"{'converted' if state.converted else 'as stored'}, acceptance not measured"
    names = ["as stored" if state.engine in ENGINES else "served"] if state.stored.report else []
    figures = [
        f"{name} {run.measured.length.value:.2f}"
        for name, run in zip((*names, "converted"), runs, strict=False)
    ]
    prompts = runs[-1].measured.prompts
    return f"{', '.join(figures)} tokens per target step ({prompts} prompts, k={runs[-1].k})"


def _wrong_as_stored(result: Readiness) -> Iterator[Line]:
    states = [
        state
        for state in result.engines
        if state.stored.outcome.is_known_wrong and not set(state.stored.keys) <= set(result.keys)
    ]
    for why, group in grouped(("; ".join(state.stored.reasons), state) for state in states).items():
        yield f"{engine_names(group)}, as stored: {why}"


def _cause(result: Readiness) -> Iterator[Line]:
    # why the verdict is so, and what the prompts could not decide
    text, best = result.diagnosis.title if result.diagnosis else result.reason, result.best
    if text:
        yield text
    if result.unwritten is not None:
        why = "" if best is None else f": {release_name(best)} takes {as_path(result.source)} as it is stored"
        yield f"nothing was written to {as_path(str(result.unwritten))}{why}"
    if best is not None and best.stored.outcome == ServedAs.AS_PUBLISHED:
        yield f"{best.stored.outcome} ({best.stored.reasons[0]})"
    yield from _wrong_as_stored(result)
    change = None if best is None or best.is_right_twice else engine_gain(best)
    if change is not None and not change.is_shown:
        needed = f"; about {change.prompts_needed} would" if change.prompts_needed else ""
        yield f"the prompts do not tell the two apart{needed}"


def _commands(result: Readiness) -> list[tuple[str, str]]:
    converted = [state.converted.outcome for state in result.engines if state.converted]
    if ServedAs.APPROXIMATE in converted and result.best is None and result.out is None:
        return [("", result.plan_command)]
    if result.verdict != CheckVerdict.PASS or result.best is None or result.diagnosis:
        return []
    is_unwritten = result.best.converted is not None and result.out is None
    written = [("", result.plan_command)] if is_unwritten else []
    names = grouped((state.command, release_name(state)) for state in _serving(result) if state.command)
    starts = [(listed(releases) if len(names) > 1 else "", command) for command, releases in names.items()]
    return [*written, *starts]


def _serving(result: Readiness) -> list[EngineReadiness]:
    best = result.best
    if best is None or not result.is_named:
        return [] if best is None else [best]
    return sorted(
        [state for state in result.engines if state.is_serving], key=lambda state: state is not best
    )


def _engines(result: Readiness) -> Section:
    # the table of engines; the reference is named beside a length only if other engines ran too
    ran = {run.run.engine for state in result.engines for run in runs_of(state)}
    has_reference, has_others = "reference" in ran, not ran <= {"reference"}
    suffix = " (reference)" if has_reference and has_others else ""
    rows: list[tuple[Line, ...]] = [
        (release_name(state), *_cells(state.stored, suffix), *_cells(state.converted, suffix))
        for state in result.engines
    ]
    width = len(HEAD) if any(state.converted for state in result.engines) else STORED_COLUMNS
    table = Table(HEAD[:width], [row[:width] for row in rows])
    runner = ", by eaglectl's own torch reference" if has_reference else ""
    return Section("Engines", [table, Lines(list(_gaps(result)))], f"acceptance length [95 %]{runner}")


def _cells(files: ServedFiles | None, suffix: str) -> tuple[Words, str]:
    if files is None:
        return Words("-"), "-"
    outcome, length = Words(files.outcome.words(files.options), OUTCOME_TONES[files.outcome]), "-"
    if (report := files.report) is not None:
        # the verdict is on the runner that the release takes for the target, which may be another
        runner = f" ({report.run.runner.split()[0]} runner)" if report.run.runner else ""
        length = f"{report.measured.length.words}{suffix if report.run.engine == 'reference' else runner}"
    return outcome, length


def release_name(state: EngineReadiness | Verdict) -> str:
    """Return the engine and its release in words."""
    title = ENGINES[state.engine].title if state.engine in ENGINES else state.engine
    return f"{title} {state.release}".strip()


def _gaps(result: Readiness) -> Iterator[Words]:
    """Yield why acceptance was not measured although an engine runs the files: each reason, with engines."""
    gaps = [
        (f"the engine {files.predicate}" if files.predicate else files.gap, release_name(state))
        for state in result.engines
        for files in (state.stored, state.converted)
        if files
        and files.outcome != ServedAs.FAILS
        and not (files.has_failed and release_name(state) in result.keys)
    ]
    if result.plan_command:
        gaps += [(OWN_DRAFTER, state.engine) for state in result.engines if state.engine not in ENGINES]
    for gap, names in grouped(row for row in gaps if row[0]).items():
        of = "" if len(set(names)) == len(result.engines) else f" in {listed(dict.fromkeys(names))}"
        yield Words(f"not measured{of}: {gap}", "quiet")


def engine_gain(state: EngineReadiness) -> Gain | None:
    """Return the gain of the conversion in an engine; None if the engine did not run both."""
    stored, converted = state.stored.report, state.converted and state.converted.report
    return gain(converted, stored) if converted and stored else None


def last_line(result: Readiness) -> str:
    """Return the line that sums up: the verdict with both lengths, why, and what writes and starts it."""
    commands = [command for _, command in _commands(result)]
    if commands and commands[0] == result.plan_command:
        commands[:2] = [" && ".join(commands[:2])]
    start = [f"start it with: {'; or '.join(commands)}"] if commands else []
    summary = "; ".join([_lengths(result), *map(plain, _cause(result)), *start])
    return plain(first_line(result.verdict, WORDS[result.verdict], *_unserved_words(result), ": ", summary))


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
        ("seconds", lambda result: round(result.seconds, 3)),
    ),
    EngineReadiness: (
        "engine",
        "release",
        "stored",
        "converted",
        ("gain", engine_gain),
        ("command", lambda state: state.command if state.is_serving else None),
    ),
    ServedFiles: (
        "outcome",
        "reasons",
        "options",
        "acceptance=report",
        "gap",
        # as what the reference ran them
        ("reading", lambda files: files.reading and files.reading.words),
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "verdict",
        "k",
        "prompts_digest",
        "*measured",
        "coverage?",
        "runner=run.runner?",
    ),
    Gain: ("*ratio", "prompts_needed"),
}
