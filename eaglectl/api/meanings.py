"""A drafter run with either meaning of norm_output, where its files do not state which one it has."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.api.converting import ConvertOptions
from eaglectl.api.measuring import PairMeasurement
from eaglectl.drafter.drafter import Drafter
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.progress import OnProgress

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import GateRow

PROMPTS = 40


class MeaningComparison(Struct, frozen=True):
    """Acceptance with either answer to a question: `row` has the first as before, the second as after."""

    question: str
    answers: tuple[str, str]
    row: "GateRow"

    @property
    def message(self) -> str:
        """The question with the figures, for the user to answer."""
        sides = zip(self.answers, (self.row.before, self.row.after), strict=True)
        lengths = " and ".join(f"{side.length.value:.2f} with {answer}" for answer, side in sides)
        ratio = self.row.ratio
        text = f"{self.question}. Run both ways here, its acceptance length at k={self.row.k} is {lengths}"
        if ratio.low <= 1.0 <= ratio.high:
            return f"{text}, which does not tell them apart: ask whoever trained it"
        better = self.answers[1] if ratio.low > 1.0 else self.answers[0]
        interval = f"ratio {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        return f"{text} ({interval}): {better} fits what it learned"


def compare_meanings(
    pair: PairMeasurement, answers: Answers, on_progress: OnProgress | None = None
) -> MeaningComparison | None:
    """The acceptance with either meaning of norm_output.

    None where that is not the only question, where a meaning does not fit the files, and for drafters that
    cannot run.
    """
    checkpoint, target = pair.files.checkpoint, pair.target
    drafter = read_drafter(checkpoint, answers, target)
    questions = drafter.notes_at("question")
    is_only_question = [note.about for note in questions] == ["norm_output"]
    if not is_only_question or drafter.notes_at("problem") or drafter.quantisation is not None:
        return None
    choices = {
        name: choice
        for name, choice in _choices(drafter, answers).items()
        if not read_drafter(checkpoint, choice, target).notes_at("problem")
    }
    if len(choices) != 2:
        return None
    (first, before), (second, after) = choices.items()
    pair = replace(pair, prompts=pair.prompts[:PROMPTS])
    gate = pair.measure(
        ConvertOptions(answers=before, link=True), ConvertOptions(answers=after, link=True), 0.0, on_progress
    )
    return MeaningComparison(
        questions[0].text, (first, second), gate.rows[-1]
    )  # deep drafts show the feedback most


def _choices(drafter: Drafter, answers: Answers) -> Mapping[str, Answers]:
    """The answers a user can give, by what to pass to --source-semantics.

    The producer's own where it has some, else the value itself.
    """
    own = [(key, value) for key, values in by_name(drafter.producer).answers.items() for value in values]
    choices = own or [("norm_output", "false"), ("norm_output", "true")]
    return {
        f"{key}={value}": replace(answers, semantics={**answers.semantics, key: value})
        for key, value in choices
    }
