"""`inspect`: what a checkpoint is, and how each engine runs it."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from msgspec.structs import replace

from eaglectl.api.options import ConvertOptions, InspectOptions
from eaglectl.api.outputs import notes_of
from eaglectl.api.sources import pickles_copied, run_all
from eaglectl.base import Results
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.behaviour import CapturedLayers
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import (
    ENGINES,
    EngineRequest,
    as_served,
    aux_readings,
    default_requests,
    every_release,
    launch_commands,
    requested_places,
)
from eaglectl.errors import EaglectlError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, hub_name, open_source, read_checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.layout import CONFIG, INDEX, STATE, STATE_CONFIG, config_name
from eaglectl.files.source import FolderSource, is_repo_name, split_folder
from eaglectl.formats.commands import Complete, command
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import (
    Following,
    Judgement,
    Subject,
    conversion_refusal,
    given_target,
    judge_drafter,
)
from eaglectl.judge.rule import rules
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import OnProgress
from eaglectl.results import FailedSource, Inspection
from eaglectl.run.coverage import (
    TEXTS,
    Coverage,
    TokenText,
    counts_text,
    coverage_of_counts,
    measure_coverage,
    pruned_from,
    script_of,
)
from eaglectl.shell import as_path
from eaglectl.target.choice import TargetChoice, choose_target

if TYPE_CHECKING:
    from eaglectl.api.keywords import InspectFields
    from eaglectl.files.hub import HubSource


# a text is a sequence of texts too
@overload
def inspect(  # type: ignore[overload-overlap]
    source: StrPath, options: InspectOptions | None = None, **fields: "Unpack[InspectFields]"
) -> Inspection: ...
@overload
def inspect(
    source: Sequence[StrPath], options: InspectOptions | None = None, **fields: "Unpack[InspectFields]"
) -> tuple[Inspection | FailedSource, ...]: ...
@with_keywords
def inspect(
    source: StrPath | Sequence[StrPath],
    options: InspectOptions | None = None,
    **fields: "Unpack[InspectFields]",
) -> Inspection | tuple[Inspection | FailedSource, ...]:
    """Return what a checkpoint is, and how each engine runs it.

    Reads d2t, t2d and the norms, and a few rows of matrices that are on this machine.

    For a list of sources, returns one result each; a source that cannot be inspected gives a FailedSource.
    Raises UnreadableError (missing, truncated, pickled), RefusedError (no EAGLE-3 drafter, or contradictory)
    and UsageError.
    """
    chosen = options or InspectOptions()
    if isinstance(source, str | os.PathLike):
        return inspect_files(os.fspath(source), chosen)
    names = [os.fspath(path) for path in source]
    return Results(run_all(names, lambda name: inspect(name, chosen), lambda failure: failure)[0])


def inspect_files(
    source: str,
    options: InspectOptions,
    on_progress: OnProgress | None = None,
    *,
    headers_only: bool = True,
    beside: Sequence[EngineRequest] | None = None,
) -> Inspection:
    """Inspect one source, with tensor data unless `headers_only`; `beside` are further releases to judge."""
    requests, answers, opened = options.engines, options.answers, open_source(source)
    checkpoint = read_checkpoint(opened, headers_only=headers_only)
    choice = choose_target(checkpoint.source, options.target, answers, lambda: checkpoint)
    target = given_target(options.deployment.of(choice))
    drafter = read_drafter(checkpoint, answers, target.known)
    complete = Complete(source, target.choice, answers)
    drafter = replace(drafter, notes=tuple(_notes(checkpoint, drafter, choice))).completed(complete)
    beside = tuple(_shown_releases() if beside is None else beside)
    with nullcontext() if headers_only else pickles_copied(opened) as copied:
        subject = Subject(
            opened,
            replace(target, source=None) if headers_only else target,
            (*beside, *requests),
            answers,
            headers_only=headers_only,
            on_progress=on_progress,
            unpickled=copied,
            read=(checkpoint, drafter),
            takes_samples=isinstance(opened, FolderSource),
        )
        judgement = judge_drafter(subject, None if headers_only else rules())
    drafter = replace(drafter, notes=(*drafter.notes, *_notes_of_rules(judgement, complete)))
    verdicts = {(result.engine, result.release): result.completed(complete) for result in judgement.releases}
    shown_verdicts = tuple(verdicts[place] for request in beside for place in request.places)
    requested = tuple(verdicts[place] for place in requested_places(requests))
    return Inspection(
        checkpoint.source.label,
        drafter,
        checkpoint,
        _captured_layers(subject, drafter),
        shown_verdicts,
        requested,
        _launch_commands(source, checkpoint, judgement, shown_verdicts),
        _following(source, judgement, requested or shown_verdicts, requests, complete),
        command("validate", source, *_answerable(requests, verdicts), target=target.choice, answers=answers),
        _uncompared(opened, checkpoint),
        target.words,
        target.digest,
        tuple(finding.completed(complete) for finding in judgement.findings),
        cover_given(checkpoint, drafter, options, source, target.choice),
    )


def _notes_of_rules(judgement: Judgement, complete: Complete) -> Iterator[Note]:
    return (note.completed(complete) for note in notes_of(judgement.findings))


def _captured_layers(subject: Subject, drafter: Drafter) -> tuple[CapturedLayers, ...]:
    nested = {"eagle_config": None} if "speculators_model_type" in subject.config else {}
    return tuple(aux_readings({**subject.flat, **nested}, drafter.target).values())


def _following(
    source: str,
    judgement: Judgement,
    verdicts: Sequence[Verdict],
    engines: Sequence[EngineRequest],
    complete: Complete,
) -> Following:
    """Return the repair for the newest judged release of the first engine.

    Results of an answer to an open question are given for all requested `engines`.
    """
    newest = {verdict.engine: verdict for verdict in verdicts}
    subject, verdict = judgement.subject, newest[verdicts[0].engine]
    if verdict.outcome.is_served or verdict.engine not in ENGINES:
        return Following()
    from eaglectl.api.convert import is_measured
    from eaglectl.api.outputs import Advice  # late: numpy

    advice = Advice(
        source,
        subject,
        conversion_refusal(judgement.findings),
        is_measured(subject.drafter, subject.target.choice),
        engines,
    )
    following = advice.following(verdict, judgement.findings)
    return replace(following, why=complete(following.why))


def _answerable(
    requests: Sequence[EngineRequest], verdicts: Mapping[tuple[str, str], Verdict]
) -> Sequence[str]:
    """Return the --engine options for `validate`, without engines of an unknown outcome."""
    settled = {place for place, verdict in verdicts.items() if not verdict.outcome.is_open}
    engines = [
        f"--engine={request.text or request.engine}"
        for request in requests or default_requests()
        if settled.issuperset(request.places)
    ]
    return engines if requests or len(engines) < len(default_requests()) else ()


def _uncompared(opened: "FolderSource | HubSource", checkpoint: Checkpoint) -> tuple[str, ...]:
    if not isinstance(opened, FolderSource):
        return opened.unchecked
    names = checkpoint.source.names()
    beside = {config_name(names) or CONFIG, INDEX, *checkpoint.sidecars} & set(names)
    return opened.uncompared((*checkpoint.weight_files, *beside))


def _launch_commands(
    source: str, checkpoint: Checkpoint, judgement: Judgement, verdicts: Sequence[Verdict]
) -> Mapping[str, str]:
    """Return the launch commands of engines that run it; engines take a folder or a repository, and no file.

    No engine loads a trainer's state.
    """
    if config_name(checkpoint.source.names()) != CONFIG:
        return {}
    place, revision = hub_name(source) or (source, None)
    if hub_name(source) and split_folder(source)[1]:  # which no engine takes
        if (config := checkpoint.source.path(CONFIG)) is None:
            return {}
        place, revision = str(config.parent), None
    if checkpoint.source.only is not None:
        place = os.path.dirname(source) or "."  # noqa: PTH120
    text = judgement.subject.target.choice.text
    commands = launch_commands(judgement.subject.drafter, place, revision=revision, target_text=text)
    return as_served(commands, verdicts, is_sound=not judgement.errors)


def _notes(checkpoint: Checkpoint, drafter: Drafter, choice: TargetChoice) -> Iterator[Note]:
    """Return the reader's notes; a question lists where a target was searched, a trainer's state adds one."""
    for note in drafter.notes:
        asks = choice.missing and note.level == "question" and "--target" in note.options
        yield replace(note, advice=f"{note.advice} ({choice.missing})") if asks else note
    if config_name(checkpoint.source.names()) == STATE_CONFIG:
        from eaglectl.files.pickles import training_progress  # late: few sources are pickles

        progress = training_progress(checkpoint.source)
        state = f"a trainer's state ({progress})" if progress else "a trainer's state"
        yield Note(
            "note",
            "files",
            f"{STATE} is {state}, read with {STATE_CONFIG}; engines load the output of convert",
        )


def _shown_releases() -> Iterator[EngineRequest]:
    """Yield every release of vLLM, and of other engines the installed and the newest known release."""
    default = default_requests()
    for name, engine in ENGINES.items():
        installed = [release for request in default if request.engine == name for release in request.releases]
        releases = tuple(dict.fromkeys([*installed, engine.releases[-1]]))
        yield every_release(name) if engine.is_shown_whole else EngineRequest(name, releases)


# draft tokens in a round, as of `smoke`
K = 3
# the output of printed commands
COUNTS = "counts.txt"
OUT = ("--write-token-counts", COUNTS)


def cover_given(
    checkpoint: Checkpoint, drafter: Drafter, options: InspectOptions, source: str, target: TargetChoice
) -> Coverage | None:
    """Compute the coverage of the texts or counts in the options; None without either.

    Raises UsageError for options that do not fit, UnreadableError where the tokenizer cannot be loaded,
    RefusedError for a drafter whose draft vocabulary cannot be read.
    """
    prompts, counts, out = options.prompts, options.token_counts, options.write_token_counts
    check(
        (
            prompts is not None and counts is not None,
            "pass --prompts or --token-counts, not both",
            ("--prompts",),
        ),
        (
            out is not None and prompts is None,
            "--write-token-counts counts the tokens of --prompts; pass --prompts too",
            ("--write-token-counts",),
        ),
    )
    if prompts is None and counts is None:
        return None
    from eaglectl.conversion.readings import draft_vocabulary, read_counts
    from eaglectl.files.output_files import parse_new, write_new

    vocabulary: Collection[int] = range(drafter.dims.vocab)
    if drafter.has_reduced_vocabulary:
        vocabulary = frozenset(draft_vocabulary(checkpoint, drafter, options.answers, None).targets)
    counting = None
    if counts is not None:
        coverage = coverage_of_counts(read_counts(Path(counts), drafter.dims.vocab).by_token, vocabulary, K)
    else:
        texts, path = list(_texts(str(prompts), target)), parse_new("--write-token-counts", out)
        if (measured := measure_coverage(texts, vocabulary, K, TEXTS)) is None:
            raise UsageError(
                "--prompts: its texts have one token each; use longer texts", options=("--prompts",)
            )
        coverage = measured
        if path is not None:
            write_new("--write-token-counts", path, counts_text(texts))
        else:
            words = ["--prompts", as_path(str(prompts)), *OUT]
            counting = command("inspect", source, *words, target=target, answers=options.answers)
    coverage = replace(coverage, wider=pruned_from(checkpoint.record))
    return with_commands(coverage, source, target, options.answers, counting, counts or out or COUNTS)


def with_commands(
    coverage: Coverage,
    source: str,
    target: TargetChoice,
    answers: Answers,
    counting: str | None,
    counts: str = COUNTS,
) -> Coverage:
    """Return the coverage with the commands that raise a low one.

    `counting` is the command that writes `counts`, from which `convert` chooses the tokens.
    """
    if not coverage.holds_down:
        return coverage
    commands = [counting] if counting else []
    words = ["--draft-vocab", str(coverage.size), "--token-counts", as_path(counts)]
    if is_of_target := _fits_target(source, target, answers):
        words = ["--materialize-lm-head", *words]
        commands.append(command("convert", source, *words, target=target, answers=answers))
    elif coverage.wider:  # on the Hub, or beside the source
        name, beside = coverage.wider[0], Path(source).resolve().parent / coverage.wider[0]
        if is_repo_name(name) or is_folder(beside):
            place = name if is_repo_name(name) else str(beside)
            commands.append(command("convert", place, *words, target=target))
    return replace(coverage, commands=tuple(commands), is_of_target=is_of_target)


def _fits_target(source: str, target: TargetChoice, answers: Answers) -> bool:
    # whether a conversion can copy the target's lm_head
    if target.weights is None:
        return False
    from eaglectl.api.convert import convert  # late: it inspects

    options = ConvertOptions(target=target, answers=answers, has_target_head=True, dry_run=True, measure=None)
    with suppress(EaglectlError):
        convert(source, None, options)
        return True
    return False


def _texts(prompts: str, target: TargetChoice) -> Iterator[TokenText]:
    """Yield the prompts' tokens: texts and the contents of messages, without a chat template."""
    from eaglectl.run.process import require_torch
    from eaglectl.run.prompts import choose_prompts

    if target.place is None:
        raise UsageError(
            "--prompts needs the target's tokenizer; pass --target with its folder",
            options=("--prompts", "--target"),
        )
    every = choose_prompts(prompts).prompts
    require_torch("--prompts of inspect needs")
    from eaglectl.reference.target_model import load_tokenizer

    place = Path(str(target.on_disk(has_weights=False).place))
    tokenizer: Any = load_tokenizer(place if is_folder(place) else place.parent)
    for prompt in every:
        contents = [message.get("content") for message in prompt.messages]
        text = "\n".join([prompt.text, *filter(None, contents)]).strip("\n")
        tokens = prompt.token_ids or tokenizer(text, add_special_tokens=False)["input_ids"]
        yield TokenText(prompt.set, tuple(tokens), script_of(text or tokenizer.decode(tokens)))
