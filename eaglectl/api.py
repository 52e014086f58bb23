"""The verbs as functions that return values; they print nothing and never exit."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.checkpoint.checkpoint import VOCABULARY_PICKLES, pickle_files, read_checkpoint, read_config
from eaglectl.checkpoint.source import FolderSource, Source, open_source
from eaglectl.conversion.plan import Plan, Wish
from eaglectl.drafter.drafter import Drafter, Note, Target
from eaglectl.drafter.tensors import Tensor
from eaglectl.engines.catalogue import Wanted, launch_commands, parse_engine, verdicts
from eaglectl.engines.engine import Verdict, aux_readings
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter, read_target
from eaglectl.reports.findings import Conversion, Inspection

if TYPE_CHECKING:
    from eaglectl.acceptance.job import EngineRun, Job
    from eaglectl.acceptance.report import SmokeReport


def inspect(
    source: str, *, target: str | None = None, engines: Sequence[str] = (), answers: Answers | None = None
) -> Inspection:
    """What a checkpoint is and what engines do with it; config and headers are read, no tensor data.

    Raises Unreadable (missing, truncated, pickled), Refused (no EAGLE-3 drafter, or contradictory), Usage.
    """
    wanted = [parse_engine(text) for text in engines]
    checkpoint = read_checkpoint(open_source(source))
    drafter = read_drafter(checkpoint, answers or Answers(), open_target(target))
    names, config = tuple(checkpoint.tensors), checkpoint.config
    flatten = by_name(drafter.producer).flatten
    flat = flatten(config) if flatten else config

    def judge(one: Wanted) -> tuple[Verdict, ...]:
        return verdicts(drafter, config, flat, names, one)

    every = (*judge(parse_engine("vllm>=0")), *judge(parse_engine("sglang")))
    asked = tuple(verdict for one in wanted for verdict in judge(one))
    readings = aux_readings(
        flat if "speculators_model_type" not in config else {**flat, "eagle_config": None}, drafter.target
    )
    return Inspection(
        checkpoint.source.label,
        drafter,
        checkpoint,
        readings,
        every,
        asked,
        {"source": source, **launch_commands(drafter, source)},
    )


def convert(
    source: str, out: str | Path | None = None, *, wish: Wish | None = None, target: str | None = None, target_name: str | None = None,
    answers: Answers | None = None, dry_run: bool = False, force: bool = False, link: bool = False, max_shard_size: int | None = None,
    told: Callable[[int], None] | None = None, planned: Callable[[Plan], None] | None = None,
) -> Conversion:  # fmt: skip
    """Rewrite a drafter in another layout; `out` defaults to NAME-eagleVERSION in the current folder.

    Raises Usage for what only the user knows, Refused for what cannot be done, Unreadable for input that cannot be read.
    `planned` is called with the plan before anything is written, `told` with each number of bytes that was.
    """
    import time

    from eaglectl.checkpoint.writer import check_apart
    from eaglectl.conversion.planning import make_plan
    from eaglectl.conversion.writing import Writing, write_plan

    start = time.perf_counter()
    wish, answers = wish or Wish(), answers or Answers()
    for engine in wish.engines:
        parse_engine(engine)
    original = open_source(source)
    where = Path(out) if out is not None else None
    guarded = [original.root, *([Path(target)] if target is not None else [])]
    if where is not None:
        for folder in guarded:
            check_apart(where, folder)
    pickles = pickle_files(original)
    known = open_target(target, target_name)
    with _readable(original, pickles, where) as readable:
        checkpoint = read_checkpoint(readable)
        drafter = read_drafter(checkpoint, answers, known)
        selected = _selected(original, drafter)
        plan = make_plan(checkpoint, drafter, wish, answers, selected)
        where = where or Path(f"{original.label}-eagle{plan.drafter.version}")
        for folder in guarded:
            check_apart(where, folder)
        plan = replace(plan, notes=(*plan.notes, *_judged(plan, wish)))
        if planned:
            planned(plan)
        if dry_run:
            return Conversion(plan, None, pickles, time.perf_counter() - start)
        writing = Writing(where, force=force, link=link and not pickles, max_shard_size=max_shard_size, told=told)
        write_plan(plan, checkpoint, original, pickles or checkpoint.weight_files, writing)
    return Conversion(plan, where, pickles, time.perf_counter() - start)


def smoke(
    source: str, target: str, *, engine: str = "auto", device: str = "auto", k: int = 3, prompts: str | Path | None = None, max_tokens: int = 64,
    temperature: float = 0.0, seed: int = 0, against: str | None = None, min_acceptance_length: float | None = None,
    min_position_0: float | None = None, timeout: float = 600.0, probe: str | None = None, answers: Answers | None = None,
    told: Callable[[int, int], None] | None = None,
) -> "SmokeReport":  # fmt: skip
    """Run a drafter against its target and measure acceptance; `engine` is auto, vllm, reference, or a server's URL.

    vLLM gets the checkpoint as it lies; the reference runs what the checkpoint means. Raises Unreadable where the engine,
    device or input is not there, Refused and Usage as `convert` does.
    """
    from eaglectl.acceptance.job import Job
    from eaglectl.acceptance.prompts import builtin_prompts, read_prompts
    from eaglectl.acceptance.report import compare, judge

    if k < 1 or max_tokens < 1:
        raise Usage("-k and --max-tokens need to be at least 1")
    chosen = tuple(read_prompts(Path(prompts)) if prompts is not None else builtin_prompts())
    folder = Path(target)
    if not folder.is_dir():
        raise Unreadable(f"--target {target}: smoke runs the target, so it must be a folder with its weights")
    if against is not None and _engine(engine) not in ("vllm", "reference"):
        raise Usage(
            "--against needs an engine that loads both drafters; a server has loaded its own: use --engine vllm"
        )
    reports = []
    for one in (source, against):
        if one is None:
            continue
        if Path(one).resolve() == folder.resolve():
            raise Refused(f"{one} is the target itself; every token would be accepted, and nothing measured")
        with _job(one, folder, answers or Answers(), engine) as (drafter, path):
            job = Job(
                path,
                drafter,
                folder,
                chosen,
                k,
                max_tokens,
                temperature,
                seed,
                device,
                timeout,
                told or (lambda done, total: None),
            )
            run = _run(job, engine)
            reports.append(judge(open_source(one).label, job, run, min_acceptance_length, min_position_0))
    report = reports[0] if against is None else replace(reports[0], against=compare(*reports))
    if probe is None:
        return report
    with _job(source, folder, answers or Answers(), "reference") as (drafter, path):
        job = Job(path, drafter, folder, chosen, k, max_tokens, temperature, seed, device, timeout)
        return _probed(report, job, probe)


def _probed(report: "SmokeReport", job: "Job", probe: str) -> "SmokeReport":
    from eaglectl.acceptance.probe import probe_drift, probe_sensitivity
    from eaglectl.acceptance.reference_engine import run_reference
    from eaglectl.acceptance.report import with_readings

    match probe:
        case "sensitivity":
            stated = report.run if report.run.engine == "reference" else run_reference(job)
            return with_readings(report, probe_sensitivity(job, stated.results))
        case "drift":
            return replace(report, drifts=probe_drift(job))
    raise Usage(f"--probe {probe}: sensitivity or drift was expected")


def load_only(source: str, target: str, *, timeout: float = 600.0) -> Mapping[str, Any]:
    """What vLLM's drafter class and loader make of `source`: `unfilled` parameters and `resolved` flags; no weights of the target."""
    from eaglectl.acceptance.job import Job
    from eaglectl.acceptance.vllm_engine import load_only as load

    drafter = _as_it_lies(open_source(source), Path(target), Answers())
    return load(Job(Path(source), drafter, Path(target), (), timeout=timeout))


@contextmanager
def _job(source: str, target: Path, answers: Answers, engine: str) -> Iterator[tuple[Drafter, Path]]:
    """The drafter and the folder that the engine gets: as it lies, or rewritten with canonical names for the reference."""
    if _engine(engine) != "reference":
        original = open_source(source)
        yield _as_it_lies(original, target, answers), original.root
        return
    with tempfile.TemporaryDirectory(prefix="eaglectl-") as folder:
        done = convert(source, Path(folder) / "drafter", target=str(target), answers=answers, link=True)
        yield done.plan.drafter, Path(folder) / "drafter"


def _as_it_lies(original: FolderSource, target: Path, answers: Answers) -> Drafter:
    drafter = read_drafter(read_checkpoint(original), answers, open_target(str(target)))
    # these hang an engine or abort it, so they are not tried
    if fatal := [note.text for note in drafter.told("problem") if note.about in ("aux layers", "target")]:
        raise Refused("; ".join(fatal))
    return drafter


def _engine(asked: str) -> str:
    from eaglectl.acceptance.vllm_engine import is_installed

    if asked == "auto":
        return "vllm" if is_installed() else "reference"
    if asked not in ("vllm", "reference") and not asked.startswith(("http://", "https://")):
        raise Usage(f"--engine {asked}: auto, vllm, reference or a server's URL was expected")
    return asked


def _run(job: "Job", engine: str) -> "EngineRun":
    match _engine(engine):
        case "vllm":
            from eaglectl.acceptance.vllm_engine import run_vllm

            return run_vllm(job)
        case "reference":
            from eaglectl.acceptance.reference_engine import run_reference

            return run_reference(job)
        case url:
            from eaglectl.acceptance.server import run_server

            return run_server(job, url)


def open_target(text: str | None, name: str | None = None) -> Target:
    """What is known of the target named by `text`: a folder or its config.json; `name` is what published files call it."""
    if text is None:
        return Target(name)
    if text.endswith(".json") and os.path.isfile(text):  # noqa: PTH113  (Path raises on names that are too long)
        path = Path(text)
        if path.name != "config.json":
            raise Usage(f"--target {text}: give the target's folder, or its config.json")
        source = FolderSource(path.parent)
    else:
        source = open_source(text)
    config = read_config(source)
    found = read_target(config, name)
    if found.depth is None:
        raise Unreadable(f"--target {text}: its config.json has no num_hidden_layers")
    return found


def parse_answers(aux_layers: str | None, aux_convention: str | None, semantics: Sequence[str]) -> Answers:
    """Answers from the command line's texts. Raises Usage."""
    layers = None
    if aux_layers is not None:
        try:
            layers = tuple(int(item) for item in aux_layers.split(","))
        except ValueError:
            raise Usage(f"--aux-layers {aux_layers}: whole numbers with commas were expected, like 2,16,29") from None
        if any(layer < 0 for layer in layers):
            raise Usage(f"--aux-layers {aux_layers}: layers count from 0")
    pairs: dict[str, str] = {}
    for item in semantics:
        key, equals, value = item.partition("=")
        if not equals:
            raise Usage(f"--source-semantics {item}: KEY=VALUE was expected")
        if pairs.setdefault(key, value) != value:
            raise Usage(f"--source-semantics {key} is given as {pairs[key]} and as {value}; give it once")
    if aux_convention not in (None, "boundary", "output"):
        raise Usage(f"--aux-convention {aux_convention}: boundary or output was expected")
    convention: Any = aux_convention
    return Answers(layers, convention, pairs)


def _judged(plan: Plan, wish: Wish) -> Iterator[Note]:
    """A warning for every engine asked for (vLLM's newest release by default) that would not run the output as trained."""
    asked = wish.engines or (
        ("sglang",) if plan.layout == "sglang" else ("vllm",) if plan.layout in ("vllm", "speculators") else ()
    )
    flatten = by_name(plan.layout).flatten
    flat = flatten(plan.config) if flatten else plan.config
    derived = {step.name: Tensor(step.name, step.dtype, step.shape, ()) for step in plan.steps if not step.origin}
    settled = replace(plan.drafter, notes=(), unknown=(), tensors={**derived, **plan.drafter.tensors})
    names = tuple(step.name for step in plan.steps)
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for text in asked:
        for verdict in verdicts(settled, plan.config, flat, names, parse_engine(text)):
            if verdict.outcome != "as trained":
                groups.setdefault((verdict.engine, verdict.outcome, verdict.reasons), []).append(verdict.release)
    for (engine, outcome, reasons), releases in groups.items():
        span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
        yield Note("warning", f"{engine} {span}", f"{engine} {span}, with this output: {outcome}: {'; '.join(reasons)}")


@contextmanager
def _readable(original: FolderSource, pickles: tuple[str, ...], out: Path | None) -> Iterator[Source]:
    """The source itself, or a safetensors rewriting of its pickles that is gone afterwards."""
    if not pickles:
        yield original
        return
    from eaglectl.checkpoint.pickles import unpickle

    read_config(original)
    near = out.parent if out is not None and out.parent.is_dir() else None
    try:
        folder = tempfile.TemporaryDirectory(prefix=".eaglectl-", dir=near)
    except OSError as error:
        raise Unreadable(f"{near}: cannot write there: {error.strerror}") from None
    with folder as name:
        yield unpickle(original, Path(name))


def _selected(original: FolderSource, drafter: Drafter) -> tuple[int, ...] | None:
    if (
        not drafter.has_reduced_vocabulary
        or "d2t" in drafter.tensors
        or not any(name in VOCABULARY_PICKLES for name in original.names())
    ):
        return None
    from eaglectl.checkpoint.pickles import selected_tokens

    return selected_tokens(original)
