"""Every verdict, and the states of the parts that it depends on.

A member's value is its text on the terminal, on pages, in JSON documents and in the Python API.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class CheckVerdict(StrEnum):
    """How `validate`, `smoke` and `diagnose` end; SKIPPED: not a drafter (only `validate --skip-others`)."""

    PASS = "pass"
    FAIL = "fail"
    COULD_NOT_LOOK = "could-not-look"
    SKIPPED = "skipped"


class FirstWord(StrEnum):
    """How the text of every command begins; DONE: nothing was judged, and the work is done.

    PLANNED: nothing was written or sent; PROPOSED: a pull request was opened.
    """

    PASS = "pass"
    FAIL = "fail"
    COULD_NOT_LOOK = "could not look"
    SKIPPED = "skipped"
    DONE = "done"
    PLANNED = "planned"
    PROPOSED = "proposed"


class ServedAs(StrEnum):
    """What an engine release does with a checkpoint as stored (`inspect`).

    STARTED_SO: only with options of the engine's command line, which the verdict names. AS_PUBLISHED: facts
    about its training are open, but the release runs it as its authors did when they measured their published
    figures. APPROXIMATE: a part of the network was replaced by one that engines have, and what that changes
    was measured; a policy decides whether it passes.
    """

    AS_TRAINED = "as trained"
    STARTED_SO = "as trained, started so"
    AS_PUBLISHED = "as published"
    APPROXIMATE = "approximately as trained"
    DIFFERS = "differs"
    FAILS = "fails"
    UNKNOWN = "unknown"

    @property
    def is_known_wrong(self) -> bool:
        """Whether the release is known not to run it as trained."""
        return self in (ServedAs.DIFFERS, ServedAs.FAILS)

    @property
    def is_open(self) -> bool:
        """Whether the release is neither known to run it as trained nor known not to."""
        return self in (ServedAs.APPROXIMATE, ServedAs.UNKNOWN)

    @property
    def is_served(self) -> bool:
        """Whether the release runs it as trained, or as its authors measured it."""
        return self in (ServedAs.AS_TRAINED, ServedAs.STARTED_SO, ServedAs.AS_PUBLISHED)

    @property
    def is_run(self) -> bool:
        """Whether a run shows the acceptance of the network that the release computes on purpose."""
        return self.is_served or self == ServedAs.APPROXIMATE

    def words(self, options: Sequence[str]) -> str:
        """Return the outcome with the options that the engine needs: "as trained, started with --a 1"."""
        if self != ServedAs.STARTED_SO:
            return str(self)
        return f"{ServedAs.AS_TRAINED}, started with {' '.join(options)}"

    @property
    def level(self) -> int:
        """The rank of the outcome: 4 if it is served, 0 if it does not start."""
        worst_first = (ServedAs.FAILS, ServedAs.DIFFERS, ServedAs.UNKNOWN, ServedAs.APPROXIMATE)
        return len(worst_first) if self.is_served else worst_first.index(self)

    @property
    def check(self) -> CheckVerdict:
        """The outcome as the verdict of a check."""
        if self.is_known_wrong:
            return CheckVerdict.FAIL
        return CheckVerdict.COULD_NOT_LOOK if self.is_open else CheckVerdict.PASS


class DiffVerdict(StrEnum):
    """How `diff` ends: by meaning and tensors, not spelling; SAME_HEADERS: no tensor data was compared."""

    EQUAL = "equal"
    DIFFERS = "differs"
    SAME_HEADERS = "same-headers"
    COULD_NOT_LOOK = "could-not-look"


class FactState(StrEnum):
    """A property of two drafters in `diff`."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    NOT_COMPARED = "not-compared"


class TensorState(StrEnum):
    """A tensor of two drafters in `diff`; ZEROS: a bias on one side only that adds nothing."""

    EQUAL = "equal"
    ZEROS = "zeros"
    ONLY_A = "only-a"
    ONLY_B = "only-b"
    SHAPE = "shape"
    DTYPE = "dtype"
    BYTES = "bytes"
    NOT_COMPARED = "not-compared"


class VerifyVerdict(StrEnum):
    """How `verify` ends."""

    EQUAL = "equal"
    DIFFERS = "differs"
    COULD_NOT_LOOK = "could-not-look"


class FileState(StrEnum):
    """A file in `verify`, compared with its entries in the lists."""

    SAME = "same"
    DIFFERS = "differs"
    MISSING = "missing"
    UNLISTED = "unlisted"
    NOT_LOOKED = "not-looked"


class UploadOutcome(StrEnum):
    """How `upload` ends; MISMATCH: the commit differs from the files that were sent."""

    PLANNED = "planned"
    NOTHING_TO_DO = "nothing-to-do"
    PUBLISHED = "published"
    MISMATCH = "mismatch"


class FileChange(StrEnum):
    """A file of an upload, compared with the repository's; UNKNOWN: the repository was not looked at."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    UNKNOWN = "unknown"


class DiagnosisEnding(StrEnum):
    """Where the cause that `diagnose` names lies, or why there is none."""

    FILE = "file"
    ENGINE = "engine"
    PAIR = "pair"
    PROMPTS = "prompts"
    TRAINING = "training"
    VOCABULARY = "vocabulary"
    HEALTHY = "healthy"
    NOT_FOUND = "not-found"
    COULD_NOT_LOOK = "could-not-look"


class AnswerOutcome(StrEnum):
    """Whether a measurement shows which reading of its files a drafter was trained with."""

    MEASURED = "measured"
    TIE = "tie"
    NOTHING_DRAFTED = "nothing drafted"


class GateEnding(StrEnum):
    """Whether a conversion kept its acceptance: an upper bound below the tolerance is LOST."""

    KEPT = "kept"
    LOST = "lost"
    TOO_FEW_PROMPTS = "too few prompts"


class MatchEnding(StrEnum):
    """Whether a running server drafts as the files of a drafter do."""

    YES = "yes"
    NO = "no"
    COULD_NOT_TELL = "could not tell"


class ReadingOutcome(StrEnum):
    """How another reading of the file drafts, compared with the stated one (`smoke --probe`, `diagnose`)."""

    BETTER = "better"
    SLIGHTLY_BETTER = "slightly better"
    TOO_FEW_PROMPTS = "too few prompts"
    LATE_POSITIONS_ONLY = "late positions only"
    NO_BETTER = "no better"


# by the text of verdicts: CheckVerdict, DiffVerdict and VerifyVerdict share values
FIRST_WORDS: Mapping[str, FirstWord] = {
    CheckVerdict.PASS: FirstWord.PASS,
    CheckVerdict.FAIL: FirstWord.FAIL,
    CheckVerdict.COULD_NOT_LOOK: FirstWord.COULD_NOT_LOOK,
    CheckVerdict.SKIPPED: FirstWord.SKIPPED,
    DiffVerdict.EQUAL: FirstWord.PASS,
    DiffVerdict.SAME_HEADERS: FirstWord.PASS,
    DiffVerdict.DIFFERS: FirstWord.FAIL,
    UploadOutcome.MISMATCH: FirstWord.FAIL,
    UploadOutcome.PLANNED: FirstWord.PLANNED,
    FirstWord.PROPOSED: FirstWord.PROPOSED,
}


def first_word(verdict: str) -> FirstWord:
    """Return the first word of a command's text for this verdict."""
    return FIRST_WORDS.get(verdict, FirstWord.DONE)
