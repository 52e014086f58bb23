"""`diff`: compare two drafters."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from eaglectl.api.options import DiffOptions
from eaglectl.api.sources import pickles_copied
from eaglectl.comparison import (
    DRAFT_TOKENS,
    Comparison,
    Fact,
    Side,
    compare_data,
    compare_facts,
    compare_spelling,
    compare_tokens,
    have_same_files,
    head_rows,
    in_one_order,
    pair_headers,
    questions,
    read_tokens,
    token_remarks,
)
from eaglectl.drafter.drafter import Target
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, open_source, read_checkpoint, uncompared_weights
from eaglectl.files.hub import HubSource
from eaglectl.files.source import FolderSource
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import check_answers, read_drafter
from eaglectl.judge.judgement import GivenTarget, Subject, judge_drafter
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import OnProgress
from eaglectl.target.choice import NONE_NAMED, TargetChoice, asking_for, choose_target
from eaglectl.verdicts import FactState

if TYPE_CHECKING:
    from eaglectl.api.keywords import DiffFields

# config keys that --source-semantics rope= answers
ROPE = ("rope_theta", "rope_scaling")
# questions that are notes of the comparison, and make no fact unknown
NOTED_QUESTIONS = ("rope_theta", "mask_token_id")
# topics of notes that are no questions and that an answer settles
OPEN_TOPICS = ("rope-base-doubt", "rope-untrained", "rope-pairing")

SAME_FILES = "the Hub lists the same digests for the weight files of A and B"


@with_keywords
def diff(
    a: StrPath,
    b: StrPath,
    options: DiffOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[DiffFields]",
) -> Comparison:
    """Compare two checkpoints: their networks, their tensors' data, and the spelling of their files.

    With `headers_only` the verdict is never EQUAL. `on_progress` is called with bytes of A. Raises
    UsageError, and UnreadableError if the two cannot be compared, for example if one is no drafter.
    """
    options = options or DiffOptions()
    try:
        return _compare(os.fspath(a), os.fspath(b), options, on_progress)
    except RefusedError as error:  # its exit code would mean that they differ
        raise UnreadableError(str(error), error.topic, error.where, error.options) from None


def _compare(text_a: str, text_b: str, options: DiffOptions, on_progress: OnProgress | None) -> Comparison:
    # facts first, from headers; then, unless headers alone were requested, the tensors' values and tokens
    answers = options.answers
    check_answers(answers)
    options.target.known()
    written_a, choice_a = _open("A", text_a, options)
    written_b, choice_b = _open("B", text_b, options)
    compared = compare_headers(written_a, written_b, answers)
    a, b, notes = compared.a, compared.b, (*_target_notes(choice_a, choice_b), *compared.notes)
    served, errors = _as_stored((a, b), answers)
    compared = replace(compared, served=served, errors=errors)
    if options.headers_only:
        unread = (text for side in (a, b) for text in uncompared_weights(side.checkpoint.source))
        return replace(compared, notes=(*notes, *unread))
    answer, sizes = answers.semantics.get("d2t"), (a.drafter.dims.draft_vocab, b.drafter.dims.draft_vocab)
    with _readable(a) as (data_a, copied_a), _readable(b) as (data_b, copied_b):
        tokens_a, tokens_b = read_tokens(data_a, answer), read_tokens(data_b, answer)
        pairs = tuple(compare_data(data_a, data_b, head_rows(tokens_a, tokens_b), on_progress))
    same_files = [SAME_FILES] if have_same_files(a, b) else []
    facts = (*compared.facts[:-1], compare_tokens(tokens_a, tokens_b, sizes))
    spelling, notes = (
        replace(compared.spelling, remarks=(*compared.spelling.remarks, *token_remarks(tokens_a, tokens_b))),
        (*notes, *copied_a, *copied_b, *same_files),
    )
    return replace(compared, facts=facts, tensors=pairs, spelling=spelling, has_values=True, notes=notes)


def _as_stored(
    sides: tuple[Side, Side], answers: Answers
) -> tuple[tuple[Fact, ...], tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]]:
    # each engine's newest release for both drafters as they are stored, and the errors of each side
    requests = tuple(EngineRequest(name, engine.releases[-1:]) for name, engine in ENGINES.items())
    judgements = []
    for side in sides:
        source, read = side.checkpoint.source, (side.checkpoint, side.drafter)
        assert isinstance(source, FolderSource | HubSource)
        subject = Subject(source, GivenTarget(side.target), requests, answers, headers_only=True, read=read)
        judgements.append(judge_drafter(subject))
    a, b = judgements
    served = []
    for left, right in zip(a.releases, b.releases, strict=True):
        why = "; ".join(dict.fromkeys((*left.faults, *right.faults)))
        served.append(
            Fact(
                f"{left.engine} {left.release}",
                left.words,
                right.words,
                (FactState.EQUAL if left.outcome == right.outcome else FactState.DIFFERS),
                why,
            )
        )
    return tuple(served), (a.faults, b.faults)


def _open(name: str, text: str, options: DiffOptions) -> tuple[Side, TargetChoice]:
    choice, answers = TargetChoice(), options.answers
    with errors_of_side(name, text):
        checkpoint = read_checkpoint(open_source(text), headers_only=options.headers_only)
        choice = choose_target(checkpoint.source, options.target, answers, lambda: checkpoint)
        with asking_for(choice):
            return read_side(text, checkpoint, choice.known(), answers), choice


def _target_notes(a: TargetChoice, b: TargetChoice) -> Iterator[str]:
    choices = {"A and B": a} if (a.how, a.missing) == (b.how, b.missing) else {"A": a, "B": b}
    for name, choice in choices.items():
        if choice.how:
            yield f"the target of {name}: {choice.how}"
        elif choice.missing not in ("", NONE_NAMED):
            yield f"the target of {name} was not found: {choice.missing}; pass --target"


def compare_headers(written_a: Side, written_b: Side, answers: Answers) -> Comparison:
    """Compare two opened drafters by config and headers; the last fact is the draft vocabulary's size."""
    a, b, order_notes = in_one_order(written_a, written_b)
    size_a, size_b = (f"{side.drafter.dims.draft_vocab} tokens" for side in (a, b))
    state = FactState.EQUAL if size_a == size_b else FactState.DIFFERS
    if state == FactState.EQUAL and (a.drafter.has_reduced_vocabulary or b.drafter.has_reduced_vocabulary):
        state = FactState.NOT_COMPARED  # the sizes are equal, and the tokens were not read
    facts = (*compare_facts(a, b), Fact(DRAFT_TOKENS, size_a, size_b, state))
    open_questions = questions(written_a, written_b, NOTED_QUESTIONS)
    used = {"d2t", *(choice.key for side in (a, b) for choice in side.answers.choices)}
    unneeded = [
        f"{choice} was not needed: neither file leaves it open"
        for choice in answers.choices
        if choice.key not in used
    ]
    return Comparison(
        a,
        b,
        facts,
        tuple(pair_headers(a, b)),
        compare_spelling(written_a, written_b),
        False,
        (*open_questions, *unneeded, *order_notes),
    )


@contextmanager
def _readable(side: Side) -> Iterator[tuple[Side, tuple[str, ...]]]:
    with pickles_copied(side.checkpoint.source) as copied:
        if isinstance(copied, EaglectlError):
            raise copied
        if copied is None:
            yield side, ()
            return
        note = (
            f"the weights of {side.source} are pickles ({', '.join(side.checkpoint.weight_files[:3])}); they"
            " were copied to a temporary folder to compare them, and no code in them was run"
        )
        yield replace(side, checkpoint=read_checkpoint(copied)), (note,)


@contextmanager
def errors_of_side(name: str, text: str) -> Iterator[None]:
    """Raise errors but UsageError as UnreadableError, with the side: exit code 1 is for a difference."""
    try:
        yield
    except UsageError:
        raise
    except EaglectlError as error:
        label = name if error.source in (text, str(Path(text))) else f"{name} ({text})"
        raise UnreadableError(f"{label}: {error}", options=error.options) from None


def read_side(text: str, checkpoint: Checkpoint, target: Target, answers: Answers) -> Side:
    """Read A or B by its headers, with only the answers that its files leave open; d2t is read later."""
    side = _side(text, checkpoint, target, Answers())
    aux, notes = side.drafter.aux, side.drafter.notes
    is_open = aux.boundaries is None or (aux.ids is None and answers.aux_layers is not None)
    keys = {choice.key for note in notes for choice in note.choices}
    keys |= {
        "rope" if note.about in ROPE else note.about
        for note in notes
        if note.level == "question" or note.topic in OPEN_TOPICS
    }
    if not Keys(side.flat).statements("norm_before_residual"):
        keys.add("norm_before_residual")
    needed = replace(
        answers,
        aux_layers=answers.aux_layers if is_open else None,
        aux_convention=answers.aux_convention if is_open else None,
        semantics={key: value for key, value in answers.semantics.items() if key in keys},
    )
    side = side if needed == Answers() else _side(text, checkpoint, target, needed)
    _ = side.drafter.rope.mla_factors  # raises an error that names the side
    return side


def _side(text: str, checkpoint: Checkpoint, target: Target, answers: Answers) -> Side:
    drafter = read_drafter(checkpoint, answers, target)
    return Side(text, checkpoint, drafter, by_name(drafter.producer).flat(checkpoint.config), target, answers)
