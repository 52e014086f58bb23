"""`smoke`: a drafter run against its target."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.vocabulary import draft_vocabulary, marked_tokens
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.engine import NetworkReading
from eaglectl.engines.registry import ENGINES
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.opening import on_disk, open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.converting import convert
from eaglectl.operations.copies import opened
from eaglectl.operations.covering import OUT, with_commands
from eaglectl.operations.inspecting import inspect
from eaglectl.operations.options import (
    INSTALLED,
    NUMBERS,
    TIMED,
    ConvertOptions,
    DiagnoseOptions,
    ReadyOptions,
    SmokeOptions,
    is_rising,
    is_server,
)
from eaglectl.options import options_of
from eaglectl.progress import LOADING, OnProgress, report_step
from eaglectl.report.output_files import parse_new, write_new
from eaglectl.run.answering import LayerSearch, search_layers
from eaglectl.run.coverage import TokenText, counts_text
from eaglectl.run.engine_arguments import check_engine_arguments
from eaglectl.run.installed import load_only as load
from eaglectl.run.installed import run_installed
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.probes import Variant, probe_drift, probe_sensitivity
from eaglectl.run.process import SGLANG, VLLM, has_torch, require_torch
from eaglectl.run.prompts import Prompt, choose_prompts
from eaglectl.run.published import Published, Settings, preset, published_for
from eaglectl.run.report import (
    MAX_REGRESSION,
    SmokeReport,
    compare_drafters,
    compare_positions,
    make_report,
    match_server,
    with_variants,
)
from eaglectl.run.speed import measure_speed
from eaglectl.run.stage import run_reference
from eaglectl.shell import as_path
from eaglectl.target import (
    check_timeout,
    open_target,
    runnable_target,
    target_names,
    weights_folder,
)
from eaglectl.text import listed
from eaglectl.verdicts import MatchEnding

COUNTS = "--write-token-counts"
# bytes of a target that runs beside a server unasked
SMALL_TARGET = 4 << 30
CPU_SKIPPED = "this ran on a CPU, which is no measure of serving; smoke --speed times a CPU all the same"
RunOptions = TypeVar("RunOptions", SmokeOptions, DiagnoseOptions, ReadyOptions)
RUNNERS: Mapping[str, Callable[[EngineJob], EngineRun]] = {
    "vllm": partial(run_installed, VLLM),
    "sglang": partial(run_installed, SGLANG),
    "reference": run_reference,
}


@with_keywords
def smoke(
    source: StrPath,
    target: StrPath | None = None,
    options: SmokeOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> eaglectl.SmokeReport:
    """Run a drafter against its target and measure acceptance; the checkpoint may name the target itself.

    vLLM and SGLang get the checkpoint as stored; the reference engine runs what the checkpoint means. Raises
    UnreadableError where the engine, the device or an input is missing, RefusedError and UsageError as
    `convert` does.
    """
    source, target, options = os.fspath(source), path_text(target), options or SmokeOptions()
    report = smoke_drafts(source, target, options, on_progress)
    if report.run.engine == "server":
        return compare_files(report, source, target, as_preset(options), on_progress)
    if report.run.engine != "reference":
        return report
    judged = inspect(source, target=target, answers=options.answers)
    latest = {verdict.engine: verdict for verdict in judged.verdicts}
    wrong = [verdict for verdict in latest.values() if verdict.outcome.is_known_wrong]
    if not wrong:
        return report
    # of these the reference's figure says nothing
    names = [f"{ENGINES[verdict.engine].title} {verdict.release}" for verdict in wrong]
    reasons = {"; ".join(verdict.reasons) for verdict in wrong}
    why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
    repair = command("validate", source, target=target, answers=options.answers)
    note = (
        f"measured as if the file were read as trained; {listed(names)}"
        f" {'does' if len(names) == 1 else 'do'} not read it so{why}: `{repair}`"
    )
    return replace(report, notes=(*report.notes, note))


def smoke_drafts(
    source: str,
    target: str | None,
    options: SmokeOptions,
    on_progress: OnProgress | None,
    *,
    compares_plain: bool = True,
    times_cpu: bool = True,
) -> SmokeReport:
    """`smoke`, which need not decode without the drafter where nobody asks what is lossless; a probe is brief
    then too (`screens`).

    `times_cpu`: --speed measures on a CPU too, which is no measure of serving.
    """
    options = as_preset(options)
    _check(options)
    counts = parse_new(COUNTS, options.write_token_counts)
    report_step(on_progress, LOADING)
    chosen = choose_prompts(options.prompts, options.sample, options.seed)
    choice = runnable_target(source, target, options.answers, "smoke")
    given, source, folder = source, on_disk(source), Path(on_disk(str(choice.place)))
    if not is_folder(folder):
        raise UnreadableError(
            f"--target {target}: smoke runs the target, so it must be a folder with its weights"
        )
    engine = _choose_engine(options.run_in)
    runs = _Runs(engine, folder, chosen.prompts, options, on_progress, compares_plain)
    report = runs.report(source)
    if counts is not None:
        write_new(COUNTS, counts, counts_text(TokenText("", result.tokens) for result in report.run.results))
    diagnosis = () if options.run_in in ("auto", "reference") else ("--run-in", options.run_in)
    report = replace(
        report,
        choice=chosen,
        published=published_beside(given, str(choice.place), options, report.k),
        diagnose_command=_with_prompts("diagnose", diagnosis, given, target, options),
        notes=(*([f"target: {choice.how}"] if choice.how else []), *report.notes),
    )
    report = _with_coverage(report, given, target, options)
    if options.against is not None and engine in RUNNERS:
        report = _compared(report, runs, source)
    if options.speed:
        report = _timed(report, runs, source, times_cpu=times_cpu)
    if options.probe is not None:
        report = _probed(report, replace(runs, engine="reference"), source, given, target)
    return report


def compare_files(
    report: SmokeReport,
    source: str,
    target: str | None,
    options: SmokeOptions,
    on_progress: OnProgress | None,
) -> SmokeReport:
    """The report of a server with whether it drafts as the files do, and those of --against.

    Where neither is asked for, files are run where that is a small part of what the server does; what keeps
    them from running is then a note, and else raised.
    """
    if options.compare_files is False:
        return report
    place = str(runnable_target(source, target, options.answers, "smoke").place)
    gap = "" if options.needs_match else _why_not_compared(place, options)
    try:
        if not gap:
            return _matched(report, source, Path(on_disk(place)), options, on_progress)
    except (RefusedError, UnreadableError, UsageError) as error:
        if options.needs_match:
            raise
        gap = str(error)
    note = f"whether the server drafts as these files do was not looked at: {gap}"
    return replace(report, notes=(*report.notes, note))


def _why_not_compared(target: str, options: SmokeOptions) -> str:
    """Why the files of a drafter are not run beside a server where nobody asks; "" where they are."""
    folder = weights_folder(target)
    if options.temperature > 0:
        return "it is seen in greedy answers alone (--temperature 0)"
    if folder is None or not has_torch():
        return "the target's weights are not here" if folder is None else "torch is not installed here"
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return "the target is large; --compare-files runs it here too" if size > SMALL_TARGET else ""


def _matched(
    report: SmokeReport, source: str, target: Path, options: SmokeOptions, on_progress: OnProgress | None
) -> SmokeReport:
    assert report.choice is not None
    asked = replace(options, k=report.k, lossless=False, trust_remote_code=False)
    require_torch("comparing a server with files needs")
    reference = _Runs("reference", target, report.choice.prompts, asked, on_progress)
    runs = [reference.report(on_disk(place)) for place in filter(None, (source, options.against))]
    from eaglectl.reference.target import load_tokenizer

    tokenizer = load_tokenizer(target)
    texts = [tokenizer.decode(result.tokens, skip_special_tokens=True) for result in runs[0].run.results]
    match = match_server(report.run.results, [(run.source, run.run.results) for run in runs], texts)
    failures, gaps = report.failures, report.gaps
    if match.ending == MatchEnding.NO:
        failures += (f"the server does not draft as these files do: {match.words}",)
    if match.ending == MatchEnding.COULD_NOT_TELL and options.needs_match:
        gaps += (f"the server beside these files: {match.words}",)
    return replace(report, match=match, failures=failures, gaps=gaps)


def _compared(report: SmokeReport, runs: "_Runs", source: str) -> SmokeReport:
    """The report with the drafter of --against on the same prompts.

    With greedy answers in the reference, both draft from every position of these too.
    """
    options, positions = runs.options, None
    against = on_disk(str(options.against))
    least = MAX_REGRESSION if options.max_regression is None else options.max_regression
    if report.run.engine == "reference" and options.temperature == 0:
        report_step(runs.on_progress, "drafting from every position")
        quiet = replace(runs, on_progress=None)
        with quiet.job(source) as job, quiet.job(against) as baseline:
            positions = compare_positions(job, baseline, report.run.results, least)
    report_step(runs.on_progress, LOADING)
    return replace(report, against=compare_drafters(report, runs.report(against), least, positions))


def _with_prompts(
    name: str, words: Sequence[str], source: str, target: str | None, options: SmokeOptions
) -> str:
    if options.like is not None:  # which has prompts of its own
        words = (*words, "--like", options.like)
    elif options.prompts is not None:
        words = (*words, "--prompts", as_path(str(options.prompts)))
    extra = OUT if name == "smoke" else ()
    return command(name, source, *words, *extra, target=target, answers=options.answers)


def _with_coverage(
    report: SmokeReport, source: str, target: str | None, options: SmokeOptions
) -> SmokeReport:
    if report.coverage is None or not report.coverage.holds_down:
        return report
    counting = _with_prompts("smoke", ("--run-in", report.run.engine), source, target, options)
    coverage = with_commands(report.coverage, source, target, options.answers, counting)
    note = f"the draft vocabulary holds {coverage.words}; {coverage.advice_with_commands}"
    return replace(report, coverage=coverage, notes=(*report.notes, note))


def _probed(report: SmokeReport, runs: "_Runs", source: str, given: str, target: str | None) -> SmokeReport:
    repair = partial(repair_command, given, target, runs.options.answers)
    with runs.job(source) as job:
        if runs.options.probe == "drift":
            return replace(report, drift_conditions=probe_drift(job))
        is_reference = report.run.engine == "reference"
        stated = report.run if is_reference else run_reference(replace(job, compares_plain=False))
        found = probe_sensitivity(job, stated.results, screens=not runs.compares_plain)
        return with_variants(report, found, repair)


def _timed(report: SmokeReport, runs: "_Runs", source: str, *, times_cpu: bool) -> SmokeReport:
    if report.run.device == "cpu" and not times_cpu:
        return replace(report, speed_gap=CPU_SKIPPED)
    concurrencies = runs.options.speed or ()
    with runs.job(source) as job:
        try:
            if runs.engine in RUNNERS:
                return replace(report, speed=measure_speed(job, runs.options.chains, concurrencies))
            from eaglectl.run.server.run import measure_server  # late, as its run is

            return replace(report, speed=measure_server(job, runs.engine, report.k, concurrencies))
        except (RefusedError, UnreadableError) as error:  # what acceptance is was measured
            gap = f"speed was not measured: {error}"
            return replace(report, speed_gap=str(error), gaps=(*report.gaps, gap))


def search_aux_layers(
    source: str,
    target: str,
    report: SmokeReport,
    options: SmokeOptions,
    *,
    on_progress: OnProgress | None = None,
) -> LayerSearch:
    """Aux boundaries that draft better than those of the file, on the prompts and answers of a reference run.

    Raises UnreadableError for too few prompts.
    """
    assert report.choice is not None
    runs = _Runs("reference", Path(on_disk(target)), report.choice.prompts, options, on_progress)
    with runs.job(on_disk(source)) as job:
        return search_layers(job, report.run.results)


def smoke_as_read(
    source: str,
    target: str,
    reading: NetworkReading,
    options: SmokeOptions,
    *,
    on_progress: OnProgress | None = None,
) -> SmokeReport:
    """The report of the reference on the network that an engine makes of the files, by its reading of them.

    Raises as `smoke` does.
    """
    _check(options)
    report_step(on_progress, LOADING)
    chosen = choose_prompts(options.prompts, options.sample, options.seed)
    source = on_disk(source)
    engine = _choose_engine(options.run_in)
    with _Runs(engine, Path(on_disk(target)), chosen.prompts, options, on_progress).job(source) as job:
        report = make_report(open_folder(source).label, job, run_reference(job, reading), None, None)
        return replace(report, choice=chosen, files=_digests(open_folder(source)))


@with_keywords
def load_only(
    source: StrPath, target: StrPath | None = None, *, timeout: float = 600.0, trust_remote_code: bool = False
) -> eaglectl.LoadResult:
    """What vLLM's drafter class and loader make of `source`; the target's weights are not read."""
    check_timeout(timeout)
    source, target = os.fspath(source), path_text(target)
    choice = runnable_target(source, target, Answers(), "loading the drafter", needs_weights=False)
    source, target = on_disk(source), on_disk(str(choice.place), has_weights=False)
    drafter = _stored_drafter(open_folder(source), Path(target), Answers())
    trust = trust_remote_code
    job = EngineJob(Path(source), drafter, Path(target), (), timeout=timeout, trust_remote_code=trust)
    return replace(load(job), trust_remote_code=trust)


def _check(options: SmokeOptions) -> None:
    if options.trust_remote_code and is_server(options.run_in) and options.probe is None:
        raise UsageError(
            "--trust-remote-code: a server loads the target itself; give the option to the server"
        )
    check_timeout(options.timeout)
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size)
    engine, least = _choose_engine(options.run_in), options.max_regression
    argument = "--engine-arg" if options.engine_arguments else "--tensor-parallel-size"
    has_argument = options.engine_arguments or options.tensor_parallel_size > 1
    is_number = 0 <= options.temperature < inf and 0 <= options.seed < 1 << 63
    check(
        (
            has_argument and engine not in INSTALLED,
            f"{argument} is for an installed engine: pass --run-in vllm or --run-in sglang",
        ),
        (not is_number, "--temperature and --seed need to be at least 0, and numbers of 64 bits"),
        (
            least is not None and options.against is None,
            "--max-regression is the least ratio to another drafter; name that with --against",
        ),
        (
            least is not None and not 0 < least < inf,
            f"--max-regression {least or 0:g}: a ratio above 0 was expected, like 0.97",
        ),
        (
            min(options.chains, default=0) < 1 or options.max_tokens < 1,
            "-k and --max-tokens need to be at least 1",
        ),
    )
    _check_server(options, is_server=engine not in RUNNERS)
    _check_speed(options, engine)


def _check_server(options: SmokeOptions, *, is_server: bool) -> None:
    check(
        (
            is_server and options.write_token_counts is not None,
            f"{COUNTS}: a server tells the number of the tokens of its answers and not which; run it with"
            " --run-in reference",
        ),
        (
            is_server and options.needs_match and options.temperature > 0,
            f"--temperature {options.temperature:g}: a server is compared with files by greedy answers; leave"
            " it out",
        ),
        (
            is_server and options.max_regression is not None,
            "--max-regression is of two drafters in one engine; of a server --against says which it has",
        ),
        (
            not is_server and options.compare_files is not None,
            "--compare-files is of a running server; name it with --run-in http://HOST:PORT",
        ),
        (
            options.against is not None and options.compare_files is False,
            "--against compares a server with files, and --no-compare-files does not: leave one out",
        ),
    )


def _check_speed(options: SmokeOptions, engine: str) -> None:
    is_server, several = engine not in RUNNERS, len(options.chains) > 1
    for flag, numbers in (("--speed", options.speed), ("-k", options.chains if several else None)):
        if numbers is not None and not is_rising(numbers):
            raise UsageError(f"{flag} {','.join(map(str, numbers))}: {NUMBERS} was expected")
    check(
        (
            several and not options.speed,
            "-k with several numbers is for --speed, which says which is the fastest; give one, or --speed"
            " 1,4,16",
        ),
        (
            several and is_server,
            "-k with several numbers: a server drafts as many tokens as it was started with; leave -k out",
        ),
        (
            options.speed and not is_server and engine not in TIMED,
            f"--speed is measured in vLLM, which --run-in {engine} is not, or in a running server: pass"
            " --run-in vllm where it is installed, or the server's URL",
        ),
    )


class _Runs(Struct, frozen=True):
    """What drafters are run on: an engine or a server's URL, the folder of a target, prompts and options.

    `compares_plain`: the target decodes without them too, where the options ask for that.
    """

    engine: str
    target: Path
    prompts: tuple[Prompt, ...]
    options: SmokeOptions
    on_progress: OnProgress | None = None
    compares_plain: bool = True

    def report(self, source: str) -> SmokeReport:
        """The report of one drafter, without probes."""
        if Path(source).resolve() == self.target.resolve():
            raise RefusedError(
                f"{source} is the target itself; every token would be accepted, and nothing measured"
            )
        options, files = self.options, open_folder(source)
        with self.job(source) as job:
            job = replace(job, compares_plain=self.compares_plain and options.lossless)
            run = _run(job, self.engine)
            report = make_report(files.label, job, run, options.min_acceptance_length, options.min_position_0)
            return replace(report, files=_digests(files))

    @contextmanager
    def job(self, source: str) -> Iterator[EngineJob]:
        """The engine's job: the folder as stored, or for the reference engine with canonical names."""
        options = self.options
        job = partial(
            EngineJob,
            target=self.target,
            prompts=self.prompts,
            k=options.chains[-1],
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=options.seed,
            device=options.device,
            timeout=options.timeout,
            trust_remote_code=options.trust_remote_code,
            ignores_eos=options.ignore_eos,
            on_progress=self.on_progress,
            tensor_parallel_size=options.tensor_parallel_size,
            engine_arguments=options.engine_arguments,
        )
        if self.engine == "reference":
            with scratch_folder() as scratch:
                folder, marked = scratch / "drafter", _marked_tokens(source, self.target, options)
                drafter, tokens = _canonical(source, folder, self.target, options.answers, marked)
                yield job(folder, drafter, draft_tokens=tokens, marked_tokens=marked)
            return
        stored, tokens = open_folder(source), None
        drafter = _stored_drafter(stored, self.target, options.answers)
        is_sglang = self.engine == "sglang"
        if is_sglang or (self.engine in RUNNERS and drafter.has_reduced_vocabulary):
            # tables that contradict each other run in vLLM, and not in SGLang, whose map is compared
            with nullcontext() if is_sglang else suppress(EaglectlError):
                tokens = draft_vocabulary(read_checkpoint(stored), drafter, options.answers, None).targets
        yield job(stored.root, drafter, draft_tokens=tokens)


def _canonical(
    source: str, folder: Path, target: Path, answers: Answers, marked: tuple[int, ...]
) -> tuple[Drafter, tuple[int, ...] | None]:
    """Write the drafter to `folder` with canonical names; the drafter, and the tokens it drafts."""
    rewrite = ConvertOptions(
        target=str(target), answers=answers, link=True, measure=None, force_unserved=True
    )
    if marked:  # the probe tries both, and engines read d2t
        rewrite = replace(rewrite, fixes=(("t2d", "from-d2t"),))
    plan = convert(source, folder, rewrite).plan
    if not plan.drafter.has_reduced_vocabulary:
        return plan.drafter, None
    assert plan.output is not None
    written = read_checkpoint(FolderSource(folder))
    return plan.drafter, draft_vocabulary(written, plan.output[1], Answers(), None).targets


def _digests(source: FolderSource) -> Mapping[str, str]:
    digests = {}
    for name in source.names():
        is_weights = name == source.only if source.only else name.endswith(".safetensors")
        if name == "config.json" or is_weights:
            with source.open_file(name) as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def repair_command(source: str, target: str | None, answers: Answers, variant: Variant) -> str:
    """The command that converts `source` as `variant` reads it, in the place of a contrary answer."""
    return command("convert", source, *variant.option.split(" "), target=target, answers=answers)


def _marked_tokens(source: str, target: Path, options: SmokeOptions) -> tuple[int, ...]:
    if options.probe != "sensitivity":
        return ()
    with opened(open_folder(source), None, is_looked_at=True) as files:
        drafter = read_drafter(files.checkpoint, options.answers, open_target(str(target)))
        return marked_tokens(files.checkpoint, drafter)


def _stored_drafter(stored: FolderSource, target: Path, answers: Answers) -> Drafter:
    """The drafter as its files state it. Raises RefusedError for what hangs or aborts an engine."""
    drafter = read_drafter(read_checkpoint(stored), answers, open_target(str(target)))
    fatal = [note.text for note in drafter.notes_at("problem") if note.about in ("aux layers", "target")]
    if fatal:
        raise RefusedError("; ".join(fatal))
    return drafter


def _choose_engine(engine: str) -> str:
    if engine == "auto":
        return "vllm" if VLLM.is_installed() else "reference"
    if engine not in RUNNERS and not is_server(engine):
        raise UsageError(f"--run-in {engine}: auto, {', '.join(RUNNERS)} or a server's URL was expected")
    return engine


def _run(job: EngineJob, engine: str) -> EngineRun:
    if engine in RUNNERS:
        return RUNNERS[engine](job)
    from eaglectl.run.server.run import run_server  # late: its checks of answers are slow to load

    return run_server(job, engine)


def as_preset(options: RunOptions) -> RunOptions:
    """The options with those of their preset; the same without one, or where they have them already.

    Raises UsageError for a preset that cannot be run, and for an option that was given with another value; a
    chain of other length (-k) and a sample are allowed.
    """
    if options.like is None:
        return options

    wanted = preset(options.like)
    if options.prompts not in (None, options.like):
        raise UsageError(f"--like {options.like} has prompts of its own; leave --prompts out")
    values: dict[str, Any] = {"temperature": wanted.temperature, "max_tokens": wanted.max_new_tokens}
    if wanted.seed is not None:
        values["seed"] = wanted.seed
    declared = options_of(type(options))
    for name, value in values.items():
        given = getattr(options, name)
        if given not in (value, declared[name].default):
            raise UsageError(
                f"{declared[name].flag} {given:g}: --like {options.like} has {value:g}; leave one of them out"
            )
    k = options.k if options.k != declared["k"].default else wanted.steps
    return replace(options, prompts=options.like, k=k, **values)


def published_beside(source: str, target: str | None, options: RunOptions, k: int | None = None) -> Published:
    """What others reached with drafters of the target; with no known target, nothing.

    `k`: the length of the chain that ran, where that is not the one that was asked for.
    """
    settings = Settings(
        k or (options.chains[-1] if isinstance(options, SmokeOptions) else options.k),
        options.temperature,
        options.max_tokens,
        options.like,
        options.sample,
        getattr(options, "ignore_eos", False),
    )
    if target is None:
        return Published(settings=settings)
    try:
        names = target_names(target, open_folder(os.fspath(source)))
    except EaglectlError:  # what cannot be read is reported by who runs it
        names = {}
    return published_for(names, settings)
