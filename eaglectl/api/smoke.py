"""`smoke`: running a drafter with its target."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from msgspec.structs import replace

import eaglectl
from eaglectl.api.inspect import OUT, inspect, with_commands
from eaglectl.api.options import (
    INSTALLED,
    NUMBERS,
    TIMED,
    DiagnoseOptions,
    ReadyOptions,
    SmokeOptions,
    is_rising,
    is_server,
)
from eaglectl.api.runs import RUNNERS, Runs, stored_drafter
from eaglectl.api.trying import open_question, try_answers
from eaglectl.engines.behaviour import ranges
from eaglectl.engines.engine import NetworkReading
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.sglang import window_option
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import on_disk, open_folder, read_checkpoint
from eaglectl.files.output_files import parse_new, write_new
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import LOADING, OnProgress, report_step
from eaglectl.report.section import grouped
from eaglectl.results import Inspection
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.coverage import TokenText, counts_text
from eaglectl.run.gate import MAX_REGRESSION, compare_positions
from eaglectl.run.installed import check_engine_arguments, measure_speed
from eaglectl.run.installed import load_only as load
from eaglectl.run.job import (
    EngineJob,
    read_context_length,
    run_reference,
    share_loaded_targets,
    tokenizer_of,
)
from eaglectl.run.measurement import DEAD_LENGTH, PromptResult, below_thresholds
from eaglectl.run.probes import Variant, probe_drift, probe_sensitivity
from eaglectl.run.process import VLLM, has_torch, require_torch
from eaglectl.run.prompts import built_in_prompts, choose_prompts
from eaglectl.run.published_lengths import Published, published_for
from eaglectl.run.results import Reason, SmokeReport, compare_drafters, reasons_of, with_variants
from eaglectl.run.server_match import match_server
from eaglectl.run.windows import measure_windows
from eaglectl.shell import as_path, without_secrets
from eaglectl.target.choice import TargetChoice, as_target, check_timeout, runnable_target, target_names
from eaglectl.text import listed
from eaglectl.verdicts import GateEnding, MatchEnding

if TYPE_CHECKING:
    from eaglectl.api.keywords import SmokeFields

COUNTS = "--write-token-counts"
ALONE, NOT_COMPARED = "--no-compare-files", "whether the server drafts as these files do"
# built-in prompts at each look of --against: those of every run, then twice as many until the result is clear
LOOKS = (24, 48, 96, 192)
# largest size in bytes of a target that runs beside a server by default
SMALL_TARGET = 4 << 30
RunOptions = TypeVar("RunOptions", SmokeOptions, DiagnoseOptions, ReadyOptions)


@with_keywords
@share_loaded_targets()
def smoke(
    source: StrPath,
    target: StrPath | TargetChoice | None = None,
    options: SmokeOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[SmokeFields]",
) -> eaglectl.SmokeReport:
    """Run a drafter with its target and measure acceptance; by default with the target that it names.

    vLLM and SGLang load the checkpoint as stored; the reference runs the network as eaglectl reads it. Raises
    UnreadableError if the engine, the device or an input is missing, RefusedError and UsageError as `convert`
    does.
    """
    source, target, options = os.fspath(source), as_target(target), options or SmokeOptions()
    report = smoke_drafts(source, target, options, on_progress)
    wrong = []
    if report.run.engine == "reference":
        judged = inspect(source, target=target, answers=options.answers)
        if judged.drafter.quantisation is not None:
            report = replace(report, reasons=(*report.reasons, *_quantised_notes(judged, options.against)))
        latest = {
            verdict.engine: verdict for verdict in judged.verdicts if ENGINES[verdict.engine].is_default
        }
        # the reference's figure does not hold for these
        wrong = [verdict for verdict in latest.values() if verdict.outcome.is_known_wrong]
    if not wrong:
        return report
    names = [f"{ENGINES[verdict.engine].title} {verdict.release}" for verdict in wrong]
    reasons = {"; ".join(verdict.reasons) for verdict in wrong}
    why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
    repair = command("validate", source, target=target, answers=options.answers)
    note = (
        f"this is the acceptance of the drafter as trained; {listed(names)}"
        f" {'does' if len(names) == 1 else 'do'} not read the file as trained{why}"
    )
    return replace(report, reasons=(*report.reasons, Reason("note", note, (repair,))))


def _quantised_notes(judged: Inspection, against: str | None) -> Iterator[Reason]:
    """Yield what the reference leaves out of a quantised drafter, what it saves, and who loads it."""
    yield Reason(
        "note",
        "the weights are multiplied out here, and activations are not quantised: a kernel that quantises them"
        " (W8A8, W4A4) may accept less",
    )
    if against is not None:
        bytes_here = judged.checkpoint.nbytes
        bytes_there = read_checkpoint(open_folder(on_disk(against)), headers_only=True).nbytes
        saved = 1 - bytes_here / bytes_there
        yield Reason("note", f"{bytes_here:,} of the {bytes_there:,} bytes of {against}: {saved:.0%} saved")
    served = grouped(
        (verdict.engine, verdict.release) for verdict in judged.verdicts if verdict.outcome.is_served
    )
    names = [
        f"{ENGINES[engine].title} {ranges(releases, ENGINES[engine].releases)}"
        for engine, releases in served.items()
    ]
    yield Reason("note", f"run as quantised by {listed(names) or 'no release that was judged'}")


def smoke_drafts(
    source: str,
    target: TargetChoice,
    options: SmokeOptions,
    on_progress: OnProgress | None,
    *,
    is_brief: bool = False,
    reading: NetworkReading | None = None,
) -> SmokeReport:
    """Run `smoke`; with a `reading`, run the network as that engine builds it from the files.

    `is_brief`: do not decode without the drafter to check that it is lossless; shorten the probe (`screens`).
    """
    _check(options)
    counts = parse_new(COUNTS, options.write_token_counts)
    report_step(on_progress, LOADING)
    chosen = choose_prompts(options.prompts, options.sample, options.seed)
    choice = runnable_target(source, target, options.answers, "smoke")
    source_name, source, engine = source, on_disk(source), _choose_engine(options.run_in)
    local, prompts, target = choice.on_disk("smoke"), chosen.prompts, options.deployment.of(target)
    runs = Runs(engine, local, prompts, options, on_progress, not is_brief, reading)
    note = open_question(source, runs) if options.try_both else None
    report = runs.report(source)
    if counts is not None:
        write_new(COUNTS, counts, counts_text(TokenText("", result.tokens) for result in report.run.results))
    diagnosis = () if options.run_in in ("auto", "reference") else ("--run-in", options.run_in)
    report = replace(
        report,
        choice=chosen,
        published=published_beside(source_name, choice, options, report.k),
        diagnose_command=_with_prompts("diagnose", diagnosis, source_name, target, options),
        reasons=(*([Reason("note", f"target: {choice.how}")] if choice.how else []), *report.reasons),
    )
    if engine not in RUNNERS:
        report = _with_match(report, runs, source_name, target)
    elif options.against is not None:
        report = _compared(report, runs, source)
    if note is not None:
        report = _with_answer(report, try_answers(source, note, runs), source_name, target, options)
    if options.speed:
        report = _timed(report, runs, source)
    if options.window:
        report = _windowed(report, replace(runs, engine="reference"), source)
    if options.probe is not None:
        report = _probed(report, replace(runs, engine="reference"), source, source_name, target)
    return _with_coverage(report, source_name, target, options)


def _with_match(report: SmokeReport, runs: "Runs", source_name: str, target: TargetChoice) -> SmokeReport:
    """Add to a server's report whether it drafts like the files, and like those of --against.

    By default the files are run only with a small target. Without a result the report is no pass, unless only
    a threshold was requested.
    """
    options, again = runs.options, ("--run-in", without_secrets(runs.engine))
    if options.compare_files is False:
        return report
    try:
        if options.needs_match or not (obstacle := _why_not_compared(runs)):
            return _matched(report, replace(runs, engine="reference"), source_name)
        why, option = obstacle
    except (RefusedError, UnreadableError, UsageError) as error:
        if options.needs_match:
            raise
        why, option = f"{error}; to skip it", ALONE
    line = _with_prompts("smoke", (*again, option), source_name, target, options)
    return _unanswered(report, options, f"{NOT_COMPARED} was not checked: {why}", line)


def _why_not_compared(runs: "Runs") -> tuple[str, str] | None:
    """Return why the files are not run beside a server by default, and the option to pass.

    None if they are run.
    """
    options, weights = runs.options, runs.target.weights
    size = sum(path.stat().st_size for path in weights.root.glob("*.safetensors")) if weights else 0
    reasons = (
        (options.temperature > 0, "that needs greedy answers (--temperature 0); to skip it", ALONE),
        (weights is None, "the target's weights are not on this machine; to skip it", ALONE),
        (not has_torch(), "torch is not installed; to skip it", ALONE),
        (size > SMALL_TARGET, "the target is large; to run it here too", "--compare-files"),
    )
    return next(((why, option) for is_so, why, option in reasons if is_so), None)


def _unanswered(report: SmokeReport, options: SmokeOptions, text: str, *commands: str) -> SmokeReport:
    """Add to the report why it is unknown whether a server drafts like the files."""
    is_note = options.has_threshold and not options.needs_match
    return replace(report, reasons=(*report.reasons, Reason("note" if is_note else "gap", text, commands)))


def _matched(report: SmokeReport, runs: "Runs", source: str) -> SmokeReport:
    """Add to a server's report how its answers and rounds compare with those of the files.

    If another target gave the answers, only thresholds and differences that the server states can fail.
    """
    options = replace(runs.options, k=report.k, lossless=False, trust_remote_code=False)
    require_torch("comparing a server with files needs")
    runs = replace(runs, options=options)
    files = [runs.report(on_disk(place)) for place in filter(None, (source, options.against))]
    tokenizer = tokenizer_of(runs.target.folder)
    texts = [tokenizer.decode(result.tokens, skip_special_tokens=True) for result in files[0].run.results]
    match = match_server(report.run.results, [(run.source, run.run.results) for run in files], texts)
    report = replace(report, match=match)
    if match.is_of_another_target:
        limits = options.min_acceptance_length, options.min_position_0
        failures = (*below_thresholds(report.measured, *limits), *report.run.differences)
        others = (reason for reason in report.reasons if reason.kind != "failure")
        return replace(
            report, reasons=(*reasons_of("failure", failures), Reason("gap", match.words), *others)
        )
    if match.ending == MatchEnding.NO:
        failure = f"the server does not draft as these files do: {match.words}"
        return replace(report, reasons=(*report.reasons, Reason("failure", failure)))
    if match.ending == MatchEnding.COULD_NOT_TELL:
        return _unanswered(report, options, f"{NOT_COMPARED}: {match.words}")
    return report


def _compared(report: SmokeReport, runs: "Runs", source: str) -> SmokeReport:
    """Add the comparison with --against on the same prompts, and on more built-in ones until it is clear.

    `report` keeps its own measurements; only the comparison is of the further prompts.
    """
    options, against, whole = runs.options, on_disk(str(runs.options.against)), report
    least = MAX_REGRESSION if options.max_regression is None else options.max_regression
    is_built_in = options.prompts is None and options.sample is None
    for look, end in enumerate(LOOKS if is_built_in else LOOKS[:1], 1):
        if look > 1:
            report_step(runs.on_progress, f"a tie after {len(runs.prompts)} prompts, running {end}")
            further = built_in_prompts(read_context_length(runs.target.folder) or inf, runs.prompts)
            prompts = (*runs.prompts, *further)[:end]
            runs = replace(runs, prompts=prompts, compares_plain=False)
            whole = runs.report(source)
        positions = _positions(whole, runs, source, against)
        report_step(runs.on_progress, LOADING)
        other = runs.report(against)
        # 0 looks: the user's prompts, which are compared once
        comparison = compare_drafters(whole, other, least, positions, look if is_built_in else 0)
        if comparison.ending != GateEnding.TOO_FEW_PROMPTS:
            break
    return replace(report, against=comparison)


def _positions(
    report: SmokeReport, runs: "Runs", source: str, against: str
) -> tuple[list[PromptResult], list[PromptResult]] | None:
    """Return what both draft at every position of greedy answers in the reference; None for other runs."""
    if report.run.engine != "reference" or runs.options.temperature != 0:
        return None
    report_step(runs.on_progress, "drafting from every position")
    quiet = replace(runs, on_progress=None)
    with quiet.job(source) as job, quiet.job(against) as baseline:
        return compare_positions(job, baseline, report.run.results)


def _with_prompts(
    name: str,
    words: Sequence[str],
    source: str,
    target: TargetChoice,
    options: SmokeOptions,
    more: Sequence[str] = (),
) -> str:
    if options.prompts is not None:
        words = (*words, "--prompts", as_path(str(options.prompts)))
    return command(name, source, *words, *more, target=target, answers=options.answers)


def _with_coverage(
    report: SmokeReport, source: str, target: TargetChoice, options: SmokeOptions
) -> SmokeReport:
    # for a dead drafter the token table itself may be wrong
    is_dead = report.measured.length.value <= DEAD_LENGTH
    if report.coverage is None or not report.coverage.holds_down or is_dead:
        return report
    coverage = with_commands(
        report.coverage,
        source,
        target,
        options.answers,
        _with_prompts("smoke", ("--run-in", report.run.engine), source, target, options, OUT),
    )
    note = Reason(
        "note", f"the draft vocabulary holds {coverage.words}; {coverage.advice}", coverage.commands
    )
    return replace(report, coverage=coverage, reasons=(*report.reasons, note))


def _probed(
    report: SmokeReport, runs: "Runs", source: str, source_name: str, target: TargetChoice
) -> SmokeReport:
    # the report with the requested probe; the readings are compared in the reference, which shows the draft
    # logits
    repair = partial(repair_command, source_name, target, runs.options.answers)
    with runs.job(source) as job:
        if runs.options.probe == "drift":
            return replace(report, drift_conditions=probe_drift(job))
        is_reference = report.run.engine == "reference"
        baseline = report.run if is_reference else run_reference(replace(job, compares_plain=False))
        return with_variants(
            report, probe_sensitivity(job, baseline.results, screens=not runs.compares_plain), repair
        )


def _with_answer(
    report: SmokeReport, answer: MeasuredAnswer, source: str, target: TargetChoice, options: SmokeOptions
) -> SmokeReport:
    # the report with the result of --try-both; the conversion with an answer that was found is the next step
    if answer.choice is None:
        return replace(report, tried=answer, reasons=(*report.reasons, Reason("gap", answer.text)))
    answers = replace(options.answers, assume=False).choosing(answer.choice)
    convert_command = command("convert", source, target=target, answers=answers)
    reason = Reason("note", answer.text, (convert_command,))
    return replace(report, tried=answer, diagnose_command="", reasons=(*report.reasons, reason))


def _windowed(report: SmokeReport, runs: "Runs", source: str) -> SmokeReport:
    """Add acceptance with the attention windows of --window, and how an engine takes one."""
    with runs.job(source) as job:
        windows = measure_windows(job, runs.options.window or ())
    best = max(windows, key=lambda result: result.ratio.value).window
    how = (
        f"a window of {best}: SGLang takes --speculative-draft-window-size {window_option(best)}, which does"
        " not count the token itself, and its MLA class takes none; vLLM has no option for it,"
        f' and reads "sliding_window": {best} with "layer_types": ["sliding_attention"] in config.json'
    )
    notes = reasons_of("note", (*(result.words for result in windows), how))
    return replace(report, windows=windows, reasons=(*report.reasons, *notes))


def _timed(report: SmokeReport, runs: "Runs", source: str) -> SmokeReport:
    concurrencies = runs.options.speed or ()
    with runs.job(source) as job:
        try:
            if runs.engine in RUNNERS:
                return replace(report, speed=measure_speed(job, concurrencies))
            from eaglectl.run.server import measure_server

            return replace(
                report,
                speed=measure_server(job, runs.engine, report.k, concurrencies, runs.options.baseline_url),
            )
        except (RefusedError, UnreadableError) as error:  # acceptance was measured
            gap = f"speed was not measured: {error}"
            return replace(report, speed_gap=str(error), reasons=(*report.reasons, Reason("gap", gap)))


@with_keywords
def load_only(
    source: StrPath,
    target: StrPath | TargetChoice | None = None,
    *,
    timeout: float = 600.0,
    trust_remote_code: bool = False,
) -> eaglectl.LoadResult:
    """Load `source` with vLLM's drafter class and loader; the target's weights are not read."""
    check_timeout(timeout)
    source, target = os.fspath(source), as_target(target)
    target = runnable_target(source, target, Answers(), "loading the drafter", needs_weights=False)
    source, target = on_disk(source), target.on_disk(has_weights=False)
    drafter, folder = stored_drafter(open_folder(source), target, Answers()), target.folder
    job = EngineJob(Path(source), drafter, folder, (), timeout=timeout, trust_remote_code=trust_remote_code)
    return replace(load(job), trust_remote_code=trust_remote_code)


def check_numbers(options: SmokeOptions | DiagnoseOptions | ReadyOptions) -> None:
    """Raise UsageError for numbers with which nothing can be run."""
    check_timeout(options.timeout)
    check(
        (
            not (0 <= options.temperature < inf and 0 <= options.seed < 1 << 63),
            "--temperature and --seed must be 64-bit numbers of at least 0",
            ("--temperature",),
        ),
        (
            options.k < 1 or options.max_tokens < 1,
            "-k and --max-tokens must be at least 1",
            ("-k",),
        ),
    )


def _check(options: SmokeOptions) -> None:
    # raise UsageError for options that do not fit each other or the chosen engine
    check(
        (
            options.trust_remote_code and is_server(options.run_in) and options.probe is None,
            "--trust-remote-code: a server loads the target itself; pass the option to the server",
            ("--trust-remote-code",),
        )
    )
    check_numbers(options)
    check_engine_arguments(options.engine_arguments, options.tensor_parallel_size)
    engine, least = _choose_engine(options.run_in), options.max_regression
    argument = "--engine-arg" if options.engine_arguments else "--tensor-parallel-size"
    has_argument = options.engine_arguments or options.tensor_parallel_size > 1
    check(
        (
            has_argument and engine not in INSTALLED,
            f"{argument} is for an installed engine: pass --run-in vllm or --run-in sglang",
            ("--run-in",),
        ),
        (
            least is not None and options.against is None,
            "--max-regression is the lowest ratio to another drafter; pass that drafter with --against",
            ("--max-regression",),
        ),
        (
            least is not None and not 0 < least < inf,
            f"--max-regression {least or 0:g}: a ratio above 0 was expected, like 0.97",
            ("--max-regression",),
        ),
        (
            options.window is not None and not is_rising(options.window),
            f"--window {','.join(map(str, options.window or ()))}: {NUMBERS} was expected",
            ("--window",),
        ),
    )
    _check_server(options, engine)
    _check_started(options, engine)
    _check_baseline(options)


def _check_server(options: SmokeOptions, engine: str) -> None:
    # the checks that differ between a running server and an engine that eaglectl starts
    is_server = engine not in RUNNERS
    check(
        (
            is_server and options.write_token_counts is not None,
            f"{COUNTS}: a server reports how many tokens it generated, and not which; pass --run-in"
            " reference",
            ("--run-in",),
        ),
        (
            is_server and options.k != SmokeOptions().k,
            f"-k {options.k}: a running server has its own number of draft tokens; leave it out",
            ("-k",),
        ),
        (
            is_server and options.needs_match and options.temperature > 0,
            f"--temperature {options.temperature:g}: comparing a server with files needs greedy answers;"
            " leave it out",
            ("--temperature",),
        ),
        (
            is_server and options.max_regression is not None,
            "--max-regression compares two drafters in one engine; with a server, --against only checks"
            " which drafter it has",
            ("--max-regression",),
        ),
        (
            not is_server and options.compare_files is not None,
            "--compare-files needs a running server; pass its URL with --run-in http://HOST:PORT",
            ("--compare-files",),
        ),
        (
            options.against is not None and options.compare_files is False,
            "--against compares a server with files, and --no-compare-files does not: leave one out",
            ("--against",),
        ),
    )


def _check_started(options: SmokeOptions, engine: str) -> None:
    # the checks of what only some engines can do
    speed = options.speed
    check(
        (
            options.try_both and engine not in INSTALLED,
            "--try-both starts an engine: pass --run-in vllm or --run-in sglang (convert tries the answers in"
            " the reference)",
            ("--try-both",),
        ),
        (
            speed is not None and not is_rising(speed),
            f"--speed {','.join(map(str, speed or ()))}: {NUMBERS} was expected",
            ("--speed",),
        ),
        (
            speed and engine in RUNNERS and engine not in TIMED,
            f"--speed needs vLLM or a running server, and not --run-in {engine}: pass --run-in vllm if it is"
            " installed, or the server's URL",
            ("--speed",),
        ),
    )


def _check_baseline(options: SmokeOptions) -> None:
    url = options.baseline_url
    check(
        (
            url is not None and not is_server(url),
            f"--baseline-url {url}: a URL like http://localhost:8001 was expected",
            ("--baseline-url",),
        ),
        (
            url is not None and not (options.speed and is_server(options.run_in)),
            "--baseline-url is for a running server's speed: pass its URL as --run-in, and --speed 1,4,16",
            ("--baseline-url",),
        ),
        (
            url is not None and url.rstrip("/") == options.run_in.rstrip("/"),
            f"--baseline-url {url} is the server of --run-in; pass one that runs without a drafter",
            ("--baseline-url",),
        ),
    )


def repair_command(source: str, target: TargetChoice, answers: Answers, variant: Variant) -> str:
    """Return the command that converts `source` as `variant` reads it, replacing a contrary answer."""
    return command("convert", source, *variant.option.split(" "), target=target, answers=answers)


def _choose_engine(engine: str) -> str:
    if engine == "auto":
        return "vllm" if VLLM.is_installed() else "reference"
    if engine not in RUNNERS and not is_server(engine):
        raise UsageError(
            f"--run-in {engine}: auto, {', '.join(RUNNERS)} or a server's URL was expected",
            options=("--run-in",),
        )
    return engine


def published_beside(
    source: str, target: TargetChoice, options: RunOptions, k: int | None = None
) -> Published:
    """Return published acceptance lengths of the target's drafters; none for an unknown target.

    `k`: the number of draft tokens of the run, if it differs from the requested one.
    """
    # a file here takes precedence over a prompt set of that name
    is_set = options.prompts is not None and not os.path.lexists(options.prompts)
    is_whole = is_set and options.sample is None and not getattr(options, "ignore_eos", False)
    try:
        names = target_names(target, open_folder(os.fspath(source)))
    except EaglectlError:  # the run reports what cannot be read
        names = {}
    prompts = str(options.prompts) if is_whole else None
    return published_for(names, prompts, k or options.k, options.temperature, options.max_tokens)
