"""`smoke --try-both`: an engine's acceptance with each answer to a drafter's open question."""

from msgspec.structs import replace

from eaglectl.api.convert import convert, open_notes
from eaglectl.api.options import ConvertOptions
from eaglectl.api.runs import Runs
from eaglectl.api.sources import opened
from eaglectl.drafter.drafter import Choice, Note
from eaglectl.engines.registry import usual_release
from eaglectl.errors import check
from eaglectl.files.checkpoint import open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.run.answering import MeasuredAnswer, compare_choices, first_choices
from eaglectl.run.probes import Drafts

OPTION = "--try-both"


def open_question(source: str, runs: Runs) -> Note:
    """Return the one question that `source` leaves open. Raises UsageError for none, or several.

    Also for a question without two complete answers, like one on layers, which only the user knows.
    """
    answers = replace(runs.options.answers, assume=False)
    with opened(open_folder(source), None) as files:
        notes = open_notes(files, read_drafter(files.checkpoint, answers, runs.target.known()), answers)
    about = ", ".join(note.about for note in notes)
    check(
        (not notes, f"{OPTION}: {source} leaves no question open; leave it out", (OPTION,)),
        (
            len(notes) > 1,
            f"{OPTION} tries the answers to one question, and {source} leaves {len(notes)} open: {about};"
            " answer all but one by options",
            (OPTION,),
        ),
        (
            any(len(note.whole_choices) < 2 for note in notes),
            f"{OPTION}: there are no two answers to try for {about}; answer it by its option",
            (OPTION,),
        ),
    )
    return notes[0]


def try_answers(source: str, note: Note, runs: Runs) -> MeasuredAnswer:
    """Convert `source` for the engine with each answer to `note`, run all, and compare what is accepted.

    Raises RefusedError for an answer with which the engine runs no output as trained.
    """
    answers, drafts = replace(runs.options.answers, assume=False), dict[Choice, Drafts]()
    # an output states its answers itself
    runs = replace(runs, compares_plain=False, options=replace(runs.options, answers=Answers()))
    for choice in first_choices(note, ()):
        wanted = ConvertOptions(
            layout=runs.engine,
            engines=(usual_release(runs.engine),),
            target=runs.target,
            answers=answers.choosing(choice),
            link=True,
            measure=None,
        )
        with scratch_folder() as scratch:
            convert(source, scratch / "drafter", wanted)
            drafts[choice] = Drafts.of_rounds(runs.report(str(scratch / "drafter")).run.results)
    best_first = sorted(drafts, key=lambda choice: drafts[choice].length, reverse=True)
    answer = compare_choices(note, {choice: drafts[choice] for choice in best_first}, runs.options.k)
    assert answer is not None
    return answer
