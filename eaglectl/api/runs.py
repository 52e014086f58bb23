"""Runs of drafters with their target, in an engine, in the reference or on a server."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.api.convert import convert
from eaglectl.api.inspect import inspect_files
from eaglectl.api.options import ConvertOptions, InspectOptions, SmokeOptions
from eaglectl.api.sources import opened
from eaglectl.conversion.readings import draft_vocabulary
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.engine import NetworkReading
from eaglectl.engines.registry import usual_release
from eaglectl.errors import EaglectlError, RefusedError, check
from eaglectl.files.checkpoint import open_folder, read_checkpoint
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.formats.tables import marked_tokens
from eaglectl.progress import OnProgress
from eaglectl.run.installed import run_installed
from eaglectl.run.job import EngineJob, EngineRun, run_reference
from eaglectl.run.process import SGLANG, VLLM
from eaglectl.run.prompts import Prompt
from eaglectl.run.results import SmokeReport, make_report
from eaglectl.target.choice import TargetChoice

RUNNERS: Mapping[str, Callable[[EngineJob], EngineRun]] = {
    "vllm": partial(run_installed, VLLM),
    "sglang": partial(run_installed, SGLANG),
    "reference": run_reference,
}


class Runs(Struct, frozen=True):
    """How drafters are run: an engine or a server's URL, a target on disk, prompts and options.

    `compares_plain`: also decode without the drafter, if the options say so.
    """

    engine: str
    target: TargetChoice
    prompts: tuple[Prompt, ...]
    options: SmokeOptions
    on_progress: OnProgress | None = None
    compares_plain: bool = True
    reading: NetworkReading | None = None

    def report(self, source: str) -> SmokeReport:
        """Run the drafter in the engine or on the server, and return what was measured."""
        check(
            (
                Path(source).resolve() == self.target.folder.resolve(),
                f"{source} is the target itself: every token would be accepted; pass a drafter",
            ),
            error=RefusedError,
        )
        options, files = self.options, open_folder(source)
        with self.job(source) as job:
            job = replace(job, compares_plain=self.compares_plain and options.lossless)
            if self.reading:
                run = run_reference(job, self.reading)
            elif self.engine in RUNNERS:
                run = RUNNERS[self.engine](job)
            else:
                from eaglectl.run.server import run_server  # late: its checks of answers are slow to load

                run = run_server(job, self.engine)
            report = make_report(files.label, job, run, options.min_acceptance_length, options.min_position_0)
            return replace(report, files=_digests(files))

    @contextmanager
    def job(self, source: str) -> Iterator[EngineJob]:
        """Yield the job of a drafter: for the reference with a canonical copy in a scratch folder, else with
        the files as stored.
        """
        options = self.options
        job = partial(
            EngineJob,
            target=self.target.folder,
            prompts=self.prompts,
            k=options.k,
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
                drafter, tokens, t2d_tokens = _canonical(source, scratch / "drafter", self.target, options)
                yield job(scratch / "drafter", drafter, draft_tokens=tokens, marked_tokens=t2d_tokens)
            return
        stored, tokens = open_folder(source), None
        drafter = stored_drafter(stored, self.target, options.answers)
        is_sglang = self.engine == "sglang"
        # SGLang's own table of draft tokens is compared with these, also a whole vocabulary's; a server has
        # none that could be read. vLLM runs contradictory tables, which are an error here
        if is_sglang or (self.engine in RUNNERS and drafter.has_reduced_vocabulary):
            with suppress(*(() if is_sglang else (EaglectlError,))):
                tokens = draft_vocabulary(read_checkpoint(stored), drafter, options.answers, None).targets
        start = self._start_options(source) if is_sglang else {}
        yield job(stored.root, drafter, draft_tokens=tokens, start_options=start)

    def _start_options(self, source: str) -> Mapping[str, int | str]:
        # the options with which the installed release runs the drafter as trained
        request = usual_release(self.engine)
        inspecting = InspectOptions(target=self.target, engines=(request,), answers=self.options.answers)
        verdict = inspect_files(source, inspecting, beside=()).requested[0]
        return dict(option.argument for option in verdict.options)


def _canonical(
    source: str, folder: Path, target: TargetChoice, options: SmokeOptions
) -> tuple[Drafter, tuple[int, ...] | None, tuple[int, ...]]:
    """Write the drafter to `folder` with canonical names; return it, and the tokens that it drafts.

    For the probe also return the tokens that t2d marks, if both tables are whole.
    """
    answers, t2d_tokens = options.answers, tuple[int, ...]()
    if options.probe == "sensitivity":
        with opened(open_folder(source), None, is_looked_at=True) as files:
            read = read_drafter(files.checkpoint, answers, target.known())
            t2d_tokens = marked_tokens(files.checkpoint, read)
    fixes = (("t2d", "from-d2t"),) if t2d_tokens else ()  # the probe tries both, and engines read d2t
    rewrite = ConvertOptions(
        target=target, answers=answers, link=True, measure=None, force_unserved=True, fixes=fixes
    )
    plan = convert(source, folder, rewrite).plan
    if not plan.drafter.has_reduced_vocabulary:
        return plan.drafter, None, t2d_tokens
    assert plan.output is not None
    written = read_checkpoint(FolderSource(folder), headers_only=True)
    return plan.drafter, draft_vocabulary(written, plan.output[1], Answers(), None).targets, t2d_tokens


def _digests(source: FolderSource) -> Mapping[str, str]:
    digests = {}
    for name in source.names():
        is_weights = name == source.only if source.only else name.endswith(".safetensors")
        if name == "config.json" or is_weights:
            with source.open_file(name) as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def stored_drafter(stored: FolderSource, target: TargetChoice, answers: Answers) -> Drafter:
    """Read the drafter as stored. Raises RefusedError for contents that hang or abort an engine."""
    drafter = read_drafter(read_checkpoint(stored), answers, target.known())
    fatal = [note.text for note in drafter.notes_at("problem") if note.about in ("aux layers", "target")]
    check((fatal, "; ".join(fatal)), error=RefusedError)
    return drafter
