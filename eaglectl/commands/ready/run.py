"""`ready`: from a trainer's folder to a serving command, with acceptance before and after.

What was measured is kept below the user's cache folder, by what it is of, for a call that is repeated.
"""

import hashlib
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl.commands.ready.report import engine_gain, release_name
from eaglectl.engines.engine import NetworkReading
from eaglectl.engines.registry import (
    ENGINES,
    SETTLED_BY_A_RUN,
    EngineRequest,
    default_requests,
    installed_release,
    output_commands,
    parse_engine,
)
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.files import home_folder, keep_file, open_regular
from eaglectl.files.layout import RECORD
from eaglectl.files.opening import hub_name, on_disk, open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.judge.outputs import judge_plan, notes_of
from eaglectl.judge.rule import Finding, Policy
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.comparing import diff
from eaglectl.operations.converting import convert, default_place
from eaglectl.operations.diagnosing import diagnose
from eaglectl.operations.inspecting import inspect, inspect_files
from eaglectl.operations.open_questions import OpenQuestions, measured_questions
from eaglectl.operations.options import (
    INSTALLED,
    ConvertOptions,
    DiagnoseOptions,
    DiffOptions,
    InspectOptions,
    ReadyOptions,
    ValidateOptions,
    is_server,
)
from eaglectl.operations.smoking import (
    CPU_SKIPPED,
    as_preset,
    published_beside,
    smoke_as_read,
    smoke_drafts,
)
from eaglectl.operations.validating import validate
from eaglectl.options import options_of
from eaglectl.progress import OnProgress, StagedWork, report_step
from eaglectl.results import Conversion, EngineReadiness, Inspection, Readiness
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.diagnosis import LOOK_POSITION_0
from eaglectl.run.engine_arguments import check_engine_arguments
from eaglectl.run.process import has_torch
from eaglectl.run.prompts import choose_prompts, digest_prompts
from eaglectl.run.report import SmokeReport
from eaglectl.run.stage import loading_once
from eaglectl.shell import as_path, without_secrets
from eaglectl.target import choose_target, fitting_target, weights_folder
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiffVerdict, ServedAs

MOST_FILES, MOST_BYTES = 100, 64 << 20
# bytes of a kept file's first line
SEAL = 65
NAMES = re.compile(r"[0-9a-f]{64}\.json")
Value = TypeVar("Value")
Stamps = tuple[tuple[int, ...], ...]


class KeptRuns(Struct, frozen=True):
    """The measurements of one target, by what they are of; `is_on` false: none is read, and none is kept.

    `reused` are the names of those that were read, `digests` those of the folders that were read, with the
    state of their files then.
    """

    target: Path
    is_on: bool = True
    reused: list[str] = field(default_factory=list)
    digests: dict[Path, tuple[Stamps, str]] = field(default_factory=dict)

    def get(
        self,
        name: str,
        place: Path,
        options: object,
        make: Callable[[], Value],
        kind: Any,
        may_keep: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """What was kept of a run of the files at `place` with the `options`, of the type `kind`.

        Else it is made, and kept where that may be and its folders can be read. `name` is what reports call
        it.
        """
        if not self.is_on:
            return make()
        try:
            path = self.path(place, options)
        except (OSError, UnreadableError):
            return make()  # no home, or files that cannot be read, of which who runs them says why
        # a file that was cut, exchanged or nested deeply is one that was not kept
        with suppress(OSError, UnreadableError, msgspec.DecodeError, ValueError, RecursionError):
            with open_regular(path) as file:
                seal, data = file.readline(SEAL), file.read(MOST_BYTES)
            if seal == _seal(path, data):
                kept: Value = msgspec.json.decode(data, type=kind)
                os.utime(path)  # the oldest are removed first
                self.reused.append(name)
                return kept
        before = dict(self.digests)
        value = make()
        with suppress(OSError):  # files that are gone, or a cache that cannot be written
            # where files changed meanwhile, the run may have read others than those of the digests
            if may_keep(value) and path == self.path(place, options) and self.digests == before:
                data = msgspec.json.encode(value)
                keep_file(path, _seal(path, data) + data)
                # a cache folder may be linked to another
                own = [each for each in path.parent.iterdir() if NAMES.fullmatch(each.name)]
                for other in sorted(own, key=lambda each: each.stat().st_mtime)[:-MOST_FILES]:
                    other.unlink(missing_ok=True)
        return value

    def path(self, place: Path, options: object) -> Path:
        """Where a run of these files with these options is kept. Raises OSError where they cannot be read."""
        parts = (self._digest(place), self._digest(self.target), repr(options), *_versions())
        return cache_folder() / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"

    def _digest(self, folder: Path) -> str:
        source = FolderSource(folder)
        # but for hard links to files, as runs make
        states = [(folder / name).stat() for name in (".", *source.names())]
        stamps = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
        if self.digests.get(folder, ((), ""))[0] != stamps:
            self.digests[folder] = stamps, folder_digest(source)
        return self.digests[folder][1]


def cache_folder() -> Path:
    """Where runs are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else home_folder() / ".cache") / "eaglectl" / "runs"


def folder_digest(source: FolderSource) -> str:
    """SHA-256 of the names and the bytes of all files of a folder. Raises OSError."""
    digest = hashlib.sha256()
    for name in sorted(source.names()):
        with (source.root / name).open("rb") as file:
            digest.update(f"{name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def _versions() -> tuple[Any, ...]:
    """All that runs depend on beside their inputs: the machine, eaglectl's own files, and what runs them."""
    own = sorted(
        path
        for path in Path(eaglectl.__file__).parent.rglob("*")
        if path.suffix in (".py", ".json", ".jsonl")
    )
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in own]
    engines = [installed_release(engine) for engine in ENGINES.values()]
    return platform.node(), eaglectl.__version__, stamps, engines, *map(_version, ("torch", "transformers"))


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _seal(path: Path, data: bytes) -> bytes:
    """The first line of a file: a digest of its name and of what follows."""
    return hashlib.sha256(path.name.encode() + data).hexdigest().encode() + b"\n"


REFERENCE = "reference"
# where llama-server listens by itself, and the options of the call that measure it alike
SERVED_AT, GIVEN_AGAIN = "http://127.0.0.1:8080", ("prompts", "like", "sample", "max_tokens", "seed")
# share of the tokens that others' drafters add to a round, below which something is wrong
FAR_BELOW = 0.5
# trained drafters keep 0.9 or more of the first token's rate at the second, which the fed-back state makes
FALLING = 0.5
NOTHING_TIMED = "neither vLLM here nor a server ran the drafter as it shall be served"
OWN_DRAFTER = "a server has loaded its own drafter: start it with the output, and run smoke against it"
# what the run of a server's own drafter says of it
OUTCOMES = {
    CheckVerdict.PASS: ServedAs.AS_TRAINED,
    CheckVerdict.FAIL: ServedAs.DIFFERS,
    CheckVerdict.COULD_NOT_LOOK: ServedAs.UNKNOWN,
}
# why the reference runs no files for an engine that is not installed here, by what that does with them
NOT_RUN = {
    ServedAs.FAILS: "fails with it",
    ServedAs.DIFFERS: "is not installed here, and the reference cannot run what it makes of the files",
}
# a run, or why there is none
Attempt = tuple[SmokeReport | None, str]


@with_keywords
def ready(
    source: StrPath,
    target: StrPath | None = None,
    out: StrPath | None = None,
    options: ReadyOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Readiness:
    """What engines do with a drafter as stored and converted, and how to start the one that serves it.

    Nothing is converted where an engine runs the stored files as trained. `out` is where the conversion is
    written; None: in a temporary folder, which is removed. Raises UsageError for what only the user knows,
    UnreadableError for input that cannot be read; a drafter that nothing serves is a result.
    """
    with loading_once():
        return _ready(os.fspath(source), target, out, options, on_progress)


def _ready(
    source: str,
    target: StrPath | None,
    out: StrPath | None,
    options: ReadyOptions | None,
    on_progress: OnProgress | None,
) -> Readiness:
    start = time.perf_counter()
    options = as_preset(options or ReadyOptions())
    requests = _engines(options)
    report_step(on_progress, "reading the files")
    place, weights = _target(source, path_text(target), options.answers)
    kept = KeptRuns(weights or Path(), options.reuse and weights is not None and has_torch())
    questions = _questions(source, place, options, kept, on_progress)
    options = replace(options, answers=questions.answers)
    with questions.explaining():
        asked = InspectOptions(target=place, engines=_labels(requests), answers=options.answers)
        inspection = inspect_files(source, asked, on_progress, headers_only=False)
    on_progress = StagedWork(
        on_progress, "ready", [("measuring", 1.0)] * _reference_runs(inspection, options)
    )
    work = _Work(source, place, weights, requests, options, questions, on_progress, kept)
    names = dict.fromkeys(request.engine for request in requests)
    states = (*(work.stored(engine, inspection) for engine in names), *map(work.server, options.servers))
    result = Readiness(source, inspection, states, questions.measured, is_named=options.is_named)
    if _needs_conversion(result):
        result = work.converted(result, None if out is None else Path(out))
    result = work.judged(replace(result, published=published_beside(source, place, options)))
    return replace(
        result,
        speed_gap=_speed_gap(result, options),
        reused=tuple(kept.reused),
        seconds=time.perf_counter() - start,
    )


def _needs_conversion(result: Readiness) -> bool:
    """Whether an engine is known not to serve the stored files, none serves them, or they have errors."""
    outcomes = {state.stored_outcome for state in result.engines if state.engine in ENGINES}
    is_wrong = any(outcome.is_known_wrong for outcome in outcomes) or _errors(result.inspection.findings)
    return bool(outcomes and (is_wrong or not any(outcome.is_served for outcome in outcomes)))


def _speed_gap(result: Readiness, options: ReadyOptions) -> str:
    """Why --speed has measured nothing; "" where it has, or was not given."""
    reports = [state.final for state in result.engines if state.final is not None]
    if options.speed is None or any(report.speed for report in reports):
        return ""
    return next((report.speed_gap for report in reports if report.speed_gap), NOTHING_TIMED)


def _reference_runs(inspection: Inspection, options: ReadyOptions) -> int:
    """How many runs of the reference are to come: one for each reading of the stored files, and the output's.

    Engines that are installed here run by themselves, and say by themselves how long they take.
    """
    verdicts = [each for each in inspection.requested if _installed(each.engine, options) != each.release]
    last = {each.engine: each for each in verdicts}.values()
    readings = {each.reading.key for each in last if each.outcome == ServedAs.DIFFERS and each.reading}
    return (
        any(each.outcome.is_served for each in last)
        + len(readings)
        + any(each.outcome.is_known_wrong for each in last)
    )


def _installed(engine: str, options: ReadyOptions) -> str | None:
    """The release of an engine that is run here; None where it cannot, or shall not."""
    is_run = engine in INSTALLED and (not options.runners or engine in options.runners)
    return installed_release(ENGINES[engine]) if is_run else None


def _questions(
    source: str, target: str | None, options: ReadyOptions, kept: KeptRuns, on_progress: OnProgress | None
) -> OpenQuestions:
    """What is open, and what measuring says of it, kept where it could look."""
    answers, measuring = options.answers, options.measuring

    def make() -> tuple[Answers, tuple[MeasuredAnswer, ...], str, Mapping[str, Any]]:
        made = measured_questions(source, target, answers, measuring, on_progress)
        return made.answers, made.measured, made.gap, made.record

    if measuring is None or not kept.is_on:
        return OpenQuestions(*make())
    kind = tuple[Answers, tuple[MeasuredAnswer, ...], str, dict[str, Any]]
    place, asked = Path(on_disk(source)), (answers, measuring)
    made = kept.get("what is open", place, asked, make, kind, lambda value: bool(value[1]) and not value[2])
    return OpenQuestions(*made)


def _engines(options: ReadyOptions) -> tuple[EngineRequest, ...]:
    """The engines to judge for: those of --engine, else the default ones, and none for a server alone.

    Raises UnreadableError for one of which nothing is known but the layers that it captures, and for one that
    shall run and is not here; UsageError for arguments of an engine that is not named, or that change what is
    measured.
    """
    requests = tuple(map(parse_engine, options.engines))
    for request in requests:
        if request.engine not in ENGINES:
            raise UnreadableError(
                f"--engine {request.engine}: read, not judged; engines are {', '.join(ENGINES)}; of others"
                f" {SETTLED_BY_A_RUN}"
            )
    if not options.is_named:
        requests = default_requests()
    for name in options.runners:
        _check_runner(name, requests)
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size)
    installed = {request.engine for request in requests if _installed(request.engine, options)}
    if options.engine_arguments and not (len(installed) == 1 and options.engines):
        raise UsageError(
            "--engine-arg is for one engine that is installed here: name it with --engine vllm or sglang"
        )
    if options.tensor_parallel_size > 1 and not installed:
        raise UsageError("--tensor-parallel-size is for an installed vLLM or SGLang, and neither is here")
    return requests


def _check_runner(name: str, requests: Sequence[EngineRequest]) -> None:
    """Raise UsageError for a --run-in that is none, UnreadableError for an engine that cannot run here."""
    if name not in (REFERENCE, *INSTALLED):
        raise UsageError(f"--run-in {name}: vllm, sglang, reference or a server's URL was expected")
    here = name == REFERENCE or installed_release(ENGINES[name])
    own = [request for request in requests if request.engine == name]
    if not here or (name != REFERENCE and not any(here in request.releases for request in own)):
        raise UnreadableError(
            f"--run-in {name}: {here or 'no release'} is installed here, and --engine is"
            f" {listed(_labels(own)) or 'another'}; --run-in reference runs what the file means"
        )


def _target(source: str, target: str | None, answers: Answers) -> tuple[str | None, Path | None]:
    """The target as it is named, and its folder where its weights are here."""
    if target is None:
        opened = open_folder(source)
        choice = choose_target(opened, None)
        try:
            target = fitting_target(choice, read_checkpoint(opened), answers).place
        except UnreadableError:  # pickles, which are read when they are converted
            target = choice.place
    return target, weights_folder(target)


def _labels(requests: Sequence[EngineRequest]) -> tuple[str, ...]:
    """The engines and releases of requests; of an installed one that is not known its engine alone."""
    labels = [(request.engine,) if request.unknown else request.labels for request in requests]
    return tuple(label for several in labels for label in several)


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    """The errors of files that fail `validate` whatever the engine."""
    return [each for each in findings if each.severity == "error" and not each.match.engines]


class _Work(Struct, frozen=True):
    """What the steps of one call share.

    `runs` are those that were made, by place, engine and reading: the reference stands for several. `failed`
    are the gaps of those that were tried and could not be made.
    """

    source: str
    target: str | None
    weights: Path | None
    requests: tuple[EngineRequest, ...]
    options: ReadyOptions
    questions: OpenQuestions
    on_progress: OnProgress | None
    kept: KeptRuns
    runs: dict[object, Attempt] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def stored(self, engine: str, inspection: Inspection) -> EngineReadiness:
        """What an engine does with the stored files, with acceptance where it can be run."""
        verdicts = {each.release: each for each in inspection.requested if each.engine == engine}
        known = verdicts.get(installed_release(ENGINES[engine]) or "") or list(verdicts.values())[-1]
        place, revision = hub_name(self.source) or (self.source, None)
        commands = output_commands(
            inspection.drafter, place, self.target, tokens=self.options.k, revision=revision
        )
        state = EngineReadiness(
            engine,
            known.release,
            known.outcome,
            known.reasons,
            command=commands[engine],
            measure_command=self._measure_command(engine, self.source),
        )
        is_here = _installed(engine, self.options) == known.release
        reading = known.reading if known.outcome == ServedAs.DIFFERS and not is_here else None
        report, gap = self._measured(self.source, state, reading)
        state = replace(state, stored=report, stored_gap=gap, stored_reading=reading if report else None)
        if report is None or not report.run.differences:
            return state
        # what the engine's own run shows counts, whatever was known of it
        return replace(state, stored_outcome=ServedAs.DIFFERS, stored_reasons=tuple(report.run.differences))

    def server(self, url: str) -> EngineReadiness:
        """What a server does with the drafter that it has loaded, by its own run."""
        report, gap = self._run(self.source, url)
        label = without_secrets(url)
        if report is None:
            return EngineReadiness(label, "", ServedAs.UNKNOWN, (), stored_gap=gap)
        return EngineReadiness(
            label, "", OUTCOMES[report.verdict], tuple(report.failures or report.gaps), stored=report
        )

    def _measure_command(self, engine: str, place: str) -> str:
        """What measures an engine that is not run here, once it serves the files at `place`."""
        if engine in INSTALLED:
            return ""
        answers = self.options.answers if place == self.source else None
        words, target = self._given_again(), self.target or "TARGET"
        return command("ready", place, "--run-in", SERVED_AT, *words, target=target, answers=answers)

    def _given_again(self) -> list[str]:
        """The options that another run of the same prompts has too, as they were given."""
        options = [(options_of(ReadyOptions)[name], getattr(self.options, name)) for name in GIVEN_AGAIN]
        given = [(option.flag, as_path(str(value))) for option, value in options if value != option.default]
        return [word for words in given for word in words]

    def converted(self, result: Readiness, out: Path | None) -> Readiness:
        """The result with the conversion, its validation, and its acceptance."""
        with nullcontext(out) if out else scratch_folder() as scratch:
            place = out or scratch / "converted"
            try:
                if not _errors(result.inspection.findings) and not self._is_better(result.engines):
                    return result
                conversion = self._written(place)
            except RefusedError as error:
                return replace(result, reason=str(error))
            shown = str(out or default_place(open_folder(self.source), result.inspection.drafter.version))
            served = [state for state in result.engines if state.engine in ENGINES]
            labels = [state.label for state in served if state.release in ENGINES[state.engine].releases]
            inspected = inspect(str(place), target=self.target, engines=labels)
            states = tuple(self._converted(state, inspected, place, shown) for state in result.engines)
            report_step(self.on_progress, "validating")
            serving = tuple(state.label for state in states if state.is_serving)
            judging = ValidateOptions(target=self.target, engines=serving, policy=Policy())
            return replace(
                result,
                conversion=conversion,
                out=out,
                plan_command=self._convert_command(shown),
                engines=states,
                report=validate(str(place), judging) if serving else None,
            )

    def _converted(
        self, state: EngineReadiness, inspected: Inspection, place: Path, shown: str
    ) -> EngineReadiness:
        if state.engine not in ENGINES:
            return replace(state, converted_gap=OWN_DRAFTER)
        verdict = {(each.engine, each.release): each for each in inspected.requested}.get(
            (state.engine, state.release)
        )
        if verdict is None:
            return state
        state = replace(
            state,
            converted_outcome=verdict.outcome,
            converted_reasons=verdict.reasons,
            command=output_commands(inspected.drafter, shown, self.target, tokens=self.options.k)[
                state.engine
            ],
            measure_command=self._measure_command(state.engine, shown),
        )
        if not verdict.outcome.is_served:
            return state
        report, gap = self._measured(str(place), state)
        return replace(state, converted=report, converted_gap=gap)

    def judged(self, result: Readiness) -> Readiness:
        """The result with its verdict, the reason, and why acceptance is low where it is."""
        if result.reason:
            return replace(result, verdict=CheckVerdict.FAIL)
        is_named, report = self.options.is_named, result.report
        serving = [state for state in result.engines if state.is_serving]
        # each engine that was asked for shall serve it, else any
        needed = len(result.engines) if is_named else 1
        if len(serving) < needed:
            return _unserved(result)
        findings = _errors(result.inspection.findings if report is None else report.findings)
        if findings or (report is not None and report.verdict == CheckVerdict.FAIL):
            problem = "" if report is None else report.problem
            reason = f"{findings[0].rule.id} {findings[0].match.message}" if findings else problem
            return replace(result, verdict=CheckVerdict.FAIL, reason=reason)
        best = [result.best] if result.best is not None and not is_named else serving
        return self._run_verdict(result, best)

    def _run_verdict(self, result: Readiness, states: Sequence[EngineReadiness]) -> Readiness:
        """The verdict of the runs of what is served: the worst of them.

        A run that could not be made is a gap; that nothing can run here is none.
        """
        reports = [state.final for state in states if state.final is not None]
        for report in reports:
            if report.verdict == CheckVerdict.FAIL:
                return self._diagnosed(result, report)
        for state in states:
            if loss := _loss(state):
                return replace(result, verdict=CheckVerdict.FAIL, reason=loss)
        gaps = [gap for report in reports for gap in report.gaps]
        gaps += [state.final_gap for state in states if not state.final and state.final_gap in self.failed]
        verdict = CheckVerdict.COULD_NOT_LOOK if gaps else CheckVerdict.PASS
        reasons = gaps or self._doubts(result, reports)
        return replace(result, verdict=verdict, reason="; ".join(dict.fromkeys(reasons)))

    def _doubts(self, result: Readiness, reports: Sequence[SmokeReport]) -> list[str]:
        """What stands out of the numbers of the files, and of the runs."""
        weak = [self._weakness(report, result) for report in reports]
        return [*(note.text for note in notes_of(result.inspection.findings)), *filter(None, weak)]

    def _weakness(self, report: SmokeReport, result: Readiness) -> str:
        """What holds acceptance down: the draft vocabulary, or what the command finds that it ends in."""
        if (coverage := report.coverage) and coverage.holds_down:
            share = f"the draft vocabulary holds {coverage.share:.1%} of {coverage.of}"
            return f"{share}; {coverage.advice_with_commands}"
        (first, *later), length = report.measured.per_position, report.measured.length
        second = later[0].value / first.value if later and first.value else 1.0
        others = [one.length for one in (result.published.alike if result.published else ())]
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
        look = command(
            "diagnose", self.source, *self._given_again(), target=self.target, answers=self.options.answers
        )
        return f"{weak}: look for the cause with {look}"

    def _diagnosed(self, result: Readiness, failed: SmokeReport) -> Readiness:
        """The result of a run that failed, with `diagnose`'s ending where that can look."""
        options = self.options
        result = replace(result, verdict=CheckVerdict.FAIL, reason="; ".join(failed.failures))
        if self.weights is None or not has_torch():
            return result
        asked = DiagnoseOptions(
            prompts=options.prompts,
            like=options.like,
            sample=options.sample,
            k=options.k,
            max_tokens=options.max_tokens,
            seed=options.seed,
            device=options.device,
            timeout=options.timeout,
            trust_remote_code=options.trust_remote_code,
            answers=options.answers,
        )
        return replace(
            result, diagnosis=diagnose(self.source, str(self.weights), asked, on_progress=self.on_progress)
        )

    def _is_better(self, states: Sequence[EngineReadiness]) -> bool:
        """Whether a conversion helps an engine that does not serve the stored files, or none serves them."""
        if not any(state.is_serving for state in states):
            return True
        with self.questions.explaining():
            plan = convert(
                self.source, None, replace(self._conversion, dry_run=True), on_progress=self.on_progress
            ).plan
        return any(
            verdict.outcome.is_served
            for state in states
            if state.stored_outcome.is_known_wrong
            for verdict in judge_plan(plan, EngineRequest(state.engine, (state.release,)))
        )

    @property
    def _layout(self) -> str | None:
        """The layout of the engines that were asked for, where one is for all of them; else the default."""
        layouts = {layout_for(request.engine) for request in self.requests if request.engine in ENGINES}
        return layouts.pop() if self.options.is_named and len(layouts) == 1 else None

    @property
    def _conversion(self) -> ConvertOptions:
        engines = _labels(self.requests) if self.options.is_named else ()
        asked = ConvertOptions(layout=self._layout, engines=engines, target=self.target, measure=None)
        return asked.answered(self.questions.answers, self.questions.record)

    def _written(self, place: Path) -> Conversion | None:
        """The conversion; None where `place` holds one of this source already, or does meanwhile."""
        if self._is_same(place):
            return None
        taken = UsageError(
            f"{place} is there already, and is no conversion of {self.source}; give another -o"
        )
        if os.path.lexists(place):
            raise taken
        report_step(self.on_progress, "converting")
        try:
            with self.questions.explaining():
                return convert(self.source, place, self._conversion, on_progress=self.on_progress)
        except UsageError:
            if self._is_same(place):  # another call wrote it meanwhile
                return None
            if os.path.lexists(place):
                raise taken from None
            raise

    def _is_same(self, place: Path) -> bool:
        """Whether `place` holds a conversion of the source, equal to it by meaning and tensors."""
        asked = DiffOptions(target=self.target, answers=self.options.answers)
        with suppress(EaglectlError):
            if os.path.lexists(place / RECORD):
                return diff(self.source, str(place), asked).meaning == DiffVerdict.EQUAL
        return False

    def _convert_command(self, place: str) -> str:
        words = ["-o", as_path(place)]
        if self._layout not in (None, default_format().name):
            words += ["--for", str(self._layout)]
        for label in _labels(self.requests) if self.options.is_named else ():
            words += ["--engine", label]
        return command("convert", self.source, *words, target=self.target, answers=self.options.answers)

    def _measured(self, place: str, state: EngineReadiness, reading: NetworkReading | None = None) -> Attempt:
        """A run of the files at `place`, in the engine where it is installed, else in the reference.

        The reference runs what files mean, and so stands for an engine that runs them as trained; with a
        `reading`, it runs the network that the engine makes of them.
        """
        outcome = state.final_outcome
        if _installed(state.engine, self.options) == state.release:
            return self._run(place, state.engine, is_timed=not outcome.is_known_wrong)
        if reading is None and not outcome.is_served:
            return None, f"{release_name(state)} {NOT_RUN.get(outcome, 'is not installed here')}"
        return self._run(place, REFERENCE, reading)

    def _run(
        self, place: str, engine: str, reading: NetworkReading | None = None, *, is_timed: bool = True
    ) -> Attempt:
        if self.weights is None:
            return None, "the target's weights are not here"
        if engine == REFERENCE and not has_torch():
            return None, "no torch"
        key = place, engine, reading and reading.key
        if key not in self.runs:
            try:
                self.runs[key] = self._smoke(place, engine, reading, is_timed=is_timed), ""
            except (RefusedError, UnreadableError) as error:
                self.runs[key] = None, str(error)
                if self.options.prompts is not None or isinstance(error, UnreadableError):
                    self.failed.append(str(error))
        return self.runs[key]

    def _smoke(
        self, place: str, engine: str, reading: NetworkReading | None, *, is_timed: bool
    ) -> SmokeReport:
        answers = self.options.answers if place == self.source else Answers()
        asked, target = self.options.smoke_options(engine, answers), str(self.weights)
        if not is_timed:
            asked = replace(asked, speed=None)

        def make() -> SmokeReport:
            if reading is None:
                return smoke_drafts(
                    on_disk(place), target, asked, self.on_progress, compares_plain=False, times_cpu=False
                )
            return smoke_as_read(place, target, reading, asked, on_progress=self.on_progress)

        if is_server(engine):  # what it has loaded is its own
            return make()
        chosen = choose_prompts(asked.prompts, asked.sample, asked.seed)
        runner = f"in {ENGINES[engine].title}" if engine in ENGINES else "in the reference"
        if reading:
            runner += f", {reading.words}"
        report = self.kept.get(
            f"{'as stored' if place == self.source else 'converted'}, {runner}",
            Path(on_disk(place)),
            (asked, digest_prompts(chosen.prompts), reading and reading.key),
            make,
            SmokeReport,
            lambda made: made.speed_gap in ("", CPU_SKIPPED),
        )
        return replace(report, choice=chosen)


def _unserved(result: Readiness) -> Readiness:
    """The result with the verdict and the reason of the first engine that is not known to serve it."""
    other = next(state for state in result.engines if not state.is_serving)
    failures = tuple(other.stored.failures) if other.stored else ()
    why = "; ".join(other.converted_reasons or other.stored_reasons or failures) or other.stored_gap
    is_open = other.final_outcome == ServedAs.UNKNOWN
    verdict = CheckVerdict.COULD_NOT_LOOK if is_open else CheckVerdict.FAIL
    return replace(result, verdict=verdict, reason=f"{release_name(other)}: {why}")


def _loss(state: EngineReadiness) -> str:
    """That a conversion drafts worse than the stored files in an engine; "" where it does not."""
    change = engine_gain(state)
    if change is None or change.ratio.high >= 1 or not state.stored or not state.converted:
        return ""
    before, after = state.stored.measured.length.value, state.converted.measured.length.value
    ratio = change.ratio
    return (
        f"the conversion drafts worse in {release_name(state)}: {before:.2f} as stored, {after:.2f} converted"
        f" (gain {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]); keep the stored files there"
    )
