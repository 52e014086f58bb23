"""`diff`: compare two drafters."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from eaglectl.comparison.comparison import Comparison, Fact, Side
from eaglectl.comparison.meaning import (
    DRAFT_TOKENS,
    compare_facts,
    compare_spelling,
    compare_tokens,
    head_rows,
    questions,
    read_tokens,
    stated_fact,
    token_remarks,
)
from eaglectl.comparison.pairing import compare_data, in_one_order, pair_headers
from eaglectl.drafter.drafter import Target
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.hub import HubSource
from eaglectl.files.opening import open_source, uncompared_weights
from eaglectl.files.source import FolderSource
from eaglectl.formats.catalogue import by_name, known_answers
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import check_answers, read_drafter
from eaglectl.judge.judgement import judge_drafter
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.operations.copies import pickles_copied
from eaglectl.operations.options import DiffOptions
from eaglectl.progress import OnProgress
from eaglectl.target import (
    NONE_NAMED,
    TargetChoice,
    choose_target,
    fitting_target,
    open_target,
    with_places_looked_at,
)
from eaglectl.verdicts import FactState

IsOpen = Callable[[Side], bool]


def _has_note(*topics: str) -> IsOpen:
    return lambda side: any(note.topic in topics for note in side.drafter.notes)


# --source-semantics KEY: whether the files of a side leave it open
OPEN: Mapping[str, IsOpen] = {
    **dict.fromkeys(("norm_output", *known_answers()), lambda side: side.drafter.norms.norm_output is None),
    "norm_before_residual": lambda side: not Keys(side.flat).statements("norm_before_residual"),
    "rope": _has_note("rope-base-doubt", "rope-untrained"),
    "rope_interleave": _has_note("rope-pairing"),
    "mask_token_id": _has_note("mask-token"),
    "harmless": _has_note("unread-key", "partial-rotary"),
}


NOT_NEEDED = {
    "--aux-layers": "the files of both state their layers",
    "--aux-convention": "neither file has ids of unknown meaning",
}
# questions that make no fact unknown: both sides ask them
NOTED_QUESTIONS = ("rope_theta", "mask_token_id")


@with_keywords
def diff(
    a: StrPath,
    b: StrPath,
    options: DiffOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Comparison:
    """Compare two checkpoints: what they mean, their tensors' data, and how their files are written.

    With `headers_only` the verdict is never EQUAL. `on_progress` is called with bytes of A.
    Raises UsageError, and UnreadableError where the two cannot be compared, as for a side that is no drafter.
    """
    options = options or DiffOptions()
    try:
        comparison = _compare(os.fspath(a), os.fspath(b), options, on_progress)
        return _with_engines(comparison, options.answers)
    except RefusedError as error:  # its exit code would mean that they differ
        raise UnreadableError(str(error), error.topic, error.where) from None


def _compare(text_a: str, text_b: str, options: DiffOptions, on_progress: OnProgress | None) -> Comparison:
    answers = options.answers
    check_answers(answers)
    given = None if options.target is None else open_target(options.target)
    written_a, choice_a = _open("A", text_a, given, answers)
    written_b, choice_b = _open("B", text_b, given, answers)
    compared = compare_headers(written_a, written_b, answers)
    a, b, notes = compared.a, compared.b, (*_target_notes(choice_a, choice_b), *compared.notes)
    if options.headers_only:
        unread = (text for side in (a, b) for text in uncompared_weights(side.checkpoint.source))
        return replace(compared, notes=(*notes, *unread))
    answer, sizes = answers.semantics.get("d2t"), (a.drafter.dims.draft_vocab, b.drafter.dims.draft_vocab)
    with _readable(a) as (data_a, copied_a), _readable(b) as (data_b, copied_b):
        tokens_a, tokens_b = read_tokens(data_a, answer), read_tokens(data_b, answer)
        headers = list(pair_headers(a, b, head_rows(tokens_a, tokens_b)))
        pairs = tuple(compare_data(data_a.checkpoint, data_b.checkpoint, headers, on_progress))
    facts = (*compared.facts[:-1], compare_tokens(tokens_a, tokens_b, sizes))
    remarks = (*compared.spelling.remarks, *token_remarks(tokens_a, tokens_b))
    return replace(
        compared,
        facts=facts,
        tensors=pairs,
        spelling=replace(compared.spelling, remarks=remarks),
        has_values=True,
        notes=(*notes, *copied_a, *copied_b),
    )


def _with_engines(comparison: Comparison, answers: Answers) -> Comparison:
    requests = tuple(EngineRequest(name, engine.releases[-1:]) for name, engine in ENGINES.items())
    judgements = []
    for side in (comparison.a, comparison.b):
        source, read = side.checkpoint.source, (side.checkpoint, side.drafter)
        assert isinstance(source, FolderSource | HubSource)
        subject = Subject(source, GivenTarget(side.target), requests, answers, headers_only=True, read=read)
        judgements.append(judge_drafter(subject))
    a, b = judgements
    served = []
    for left, right in zip(a.releases, b.releases, strict=True):
        state = FactState.EQUAL if left.outcome == right.outcome else FactState.DIFFERS
        why = "; ".join(dict.fromkeys((*left.faults, *right.faults)))
        served.append(Fact(f"{left.engine} {left.release}", left.words, right.words, state, why))
    return replace(comparison, served=tuple(served), errors=(a.faults, b.faults))


def _open(name: str, text: str, given: Target | None, answers: Answers) -> tuple[Side, TargetChoice]:
    """A or B with the target that was given, or that it names; and how that was found."""
    choice = TargetChoice()
    try:
        with naming_side(name, text):
            checkpoint = read_checkpoint(open_source(text))
            if given is None:
                choice = fitting_target(choose_target(checkpoint.source, None), checkpoint, answers)
            return read_side(text, checkpoint, given or choice.known(), answers), choice
    except UsageError as error:
        raise UsageError(with_places_looked_at(str(error), choice), error.topic, error.where) from None


def _target_notes(a: TargetChoice, b: TargetChoice) -> Iterator[str]:
    """Which target each side was read with, and which one that it names could not be looked up."""
    choices = {"A and B": a} if (a.how, a.missing) == (b.how, b.missing) else {"A": a, "B": b}
    for name, choice in choices.items():
        if choice.how:
            yield f"the target of {name}: {choice.how}"
        elif choice.missing not in ("", NONE_NAMED):
            yield f"the target of {name} could not be looked up: {choice.missing}; pass --target"


def compare_headers(written_a: Side, written_b: Side, answers: Answers) -> Comparison:
    """Compare two opened drafters by config and headers; the last fact is the draft vocabulary's size."""
    a, b, order_notes = in_one_order(written_a, written_b)
    tokens = stated_fact(DRAFT_TOKENS, *(f"{side.drafter.dims.draft_vocab} tokens" for side in (a, b)))
    is_reduced = a.drafter.has_reduced_vocabulary or b.drafter.has_reduced_vocabulary
    if tokens.state == FactState.EQUAL and is_reduced:  # of one size, and of tokens that were not read
        tokens = replace(tokens, state=FactState.NOT_COMPARED)
    pairs = tuple(header.pair for header in pair_headers(a, b))
    asked = (
        *questions(written_a, written_b, NOTED_QUESTIONS),
        *unneeded_answers(written_a, written_b, answers),
    )
    spelling = compare_spelling(written_a, written_b)
    return Comparison(a, b, (*compare_facts(a, b), tokens), pairs, spelling, False, (*asked, *order_notes))


@contextmanager
def _readable(side: Side) -> Iterator[tuple[Side, tuple[str, ...]]]:
    """A side whose values can be read, and a note: weights that are pickles are copied for the time."""
    with pickles_copied(side.checkpoint.source) as copied:
        if isinstance(copied, EaglectlError):
            raise copied
        if copied is None:
            yield side, ()
            return
        note = (
            f"the weights of {side.source} are pickles ({', '.join(side.checkpoint.weight_files[:3])}); they"
            " were copied to a temporary folder to be compared, and nothing in them was run"
        )
        yield replace(side, checkpoint=read_checkpoint(copied)), (note,)


@contextmanager
def naming_side(name: str, text: str) -> Iterator[None]:
    """Raise errors but UsageError as UnreadableError, with the side: exit code 1 is for a difference."""
    try:
        yield
    except UsageError:
        raise
    except EaglectlError as error:
        label = name if text in str(error) else f"{name} ({text})"
        raise UnreadableError(f"{label}: {error}") from None


def read_side(text: str, checkpoint: Checkpoint, target: Target, answers: Answers) -> Side:
    """A or B, headers only, with those of the answers that its files need; d2t is read later."""
    needed = Answers()
    for _ in range(2):
        drafter = read_drafter(checkpoint, needed, target)
        flat = by_name(drafter.producer).flat(checkpoint.config)
        side = Side(text, checkpoint, drafter, flat, target, needed)
        aux = drafter.aux
        is_answered = aux.boundaries is None or (aux.ids is None and answers.aux_layers is not None)
        has_ids = aux.ids is not None or answers.aux_layers is not None
        needed = Answers(
            answers.aux_layers if is_answered else None,
            answers.aux_convention if is_answered and has_ids else None,
            {key: value for key, value in answers.semantics.items() if key in OPEN and OPEN[key](side)},
        )
        if needed == Answers():
            break
    _ = side.drafter.rope.mla_factors  # raises here, where the side is known
    return side


def unneeded_answers(a: Side, b: Side, answers: Answers) -> Iterator[str]:
    """A note for each answer that neither side needs."""
    given, *needed = (
        {
            "--aux-layers": each.aux_layers,
            "--aux-convention": each.aux_convention,
            **{f"--source-semantics {key}": True for key in each.semantics if key in OPEN},
        }
        for each in (answers, a.answers, b.answers)
    )
    for option, value in given.items():
        if value and not any(side.get(option) for side in needed):
            yield f"{option} was not needed: {NOT_NEEDED.get(option, 'neither file leaves it open')}"
