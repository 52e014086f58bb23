"""Running a drafter against its target."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.api.converting import convert
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import FolderSource, on_disk, open_folder
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter

if TYPE_CHECKING:
    from eaglectl.acceptance.job import EngineRun, Job
    from eaglectl.acceptance.report import SmokeReport


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
    source, against, folder = on_disk(source), against and on_disk(against), Path(on_disk(target))
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
            made = judge(open_folder(one).label, job, run, min_acceptance_length, min_position_0)
            reports.append(replace(made, files=_digests(open_folder(one))))
    report = reports[0] if against is None else replace(reports[0], against=compare(*reports))
    if probe is None:
        return report
    with _job(source, folder, answers or Answers(), "reference") as (drafter, path):
        job = Job(path, drafter, folder, chosen, k, max_tokens, temperature, seed, device, timeout)
        return _probed(report, job, probe)


def _digests(source: FolderSource) -> Mapping[str, str]:
    """SHA-256 of what decides how a drafter drafts, so that its figures are not taken for another's."""
    found = {}
    for name in source.names():
        if name == "config.json" or (name == source.only if source.only else name.endswith(".safetensors")):
            with source.path(name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


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

    source, target = on_disk(source), on_disk(target)
    drafter = _as_it_lies(open_folder(source), Path(target), Answers())
    return load(Job(Path(source), drafter, Path(target), (), timeout=timeout))


@contextmanager
def _job(source: str, target: Path, answers: Answers, engine: str) -> Iterator[tuple[Drafter, Path]]:
    """The drafter and the folder that the engine gets: as it lies, or rewritten with canonical names for the reference."""
    if _engine(engine) != "reference":
        original = open_folder(source)
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
