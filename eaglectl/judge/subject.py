"""What rules check: one checkpoint, read as far as possible, and the target that it is to serve."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import GIVEN, Drafter, Target
from eaglectl.drafter.tensors import is_known
from eaglectl.engines.behaviour import AppliedFact
from eaglectl.engines.registry import ENGINES, EngineRequest, view_for
from eaglectl.engines.view import View, WeightFiles
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint, read_config
from eaglectl.files.layout import CONFIG
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.rule import CannotLook, Match, Policy
from eaglectl.judge.samples import Sample, Summary, read_vectors, sample_matrices
from eaglectl.progress import OnProgress
from eaglectl.text import printable

if TYPE_CHECKING:
    from eaglectl.drafter.vocabulary import Fault, Ids
    from eaglectl.files.hub import HubSource

TABLES = {"d2t", "t2d"}
NO_TARGET = "no target was given; pass --target"
# up to which number a dtype holds every whole number exactly
EXACT: Mapping[str, int] = {
    "I64": 2**63,
    "U64": 2**64,
    "I32": 2**31,
    "U32": 2**32,
    "I16": 2**15,
    "U16": 2**16,
    "I8": 2**7,
    "U8": 2**8,
    "BOOL": 2,
    "F64": 2**53,
    "F32": 2**24,
    "F16": 2**11,
    "BF16": 2**8,
}


# the objects of config.json in which producers keep a drafter's keys
NESTED_KEYS = ("transformer_layer_config", "eagle_config", "eagle_architecture_config")


class GivenTarget(Struct, frozen=True, dict=True):
    """The target: its dimensions as far as they are known, its config, and its files where they were
    given. `text` is what --target names it by.
    """

    known: Target
    source: Source | None = None
    config: Mapping[str, Any] | None = None
    text: str | None = None

    @property
    def words(self) -> str:
        """Which one it is: as it was given, or how it was found; "" where there is none."""
        return self.known.origin or (printable(f"{self.text}, {GIVEN}") if self.text else "")

    @property
    def given_config(self) -> Mapping[str, Any]:
        """Its config. Raises CannotLook where there is none."""
        if self.config is None:
            raise CannotLook(NO_TARGET)
        return self.config

    @property
    def digest(self) -> str:
        """The SHA-256 of its config.json; "" where that was not read."""
        if self.source is None or self.config is None:
            return ""
        from hashlib import sha256  # late: it loads OpenSSL

        return sha256(self.source.read(CONFIG)).hexdigest()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The headers of its weights. Raises CannotLook."""
        if self.source is None:
            raise CannotLook("no target's weights were given; pass --target with its folder")
        try:
            return read_checkpoint(self.source)
        except EaglectlError as error:
            raise CannotLook(f"the target's weights cannot be read: {error}") from None


class Subject(Struct, frozen=True, eq=False, dict=True):
    """One checkpoint under validation. A property that cannot be read raises CannotLook.

    `requests` are the engine releases to validate for. With `headers_only` no tensor data is read but that of
    d2t, t2d and vectors. `unpickled` is a copy of weights that are pickles, or why there is none. `read` is
    what was read already. `jobs` threads read tensor data. `value_errors` are those of numbers that were read
    elsewhere: ids of rules and messages. `takes_samples`: a few rows of each matrix are read with
    `headers_only` too.
    """

    source: "FolderSource | HubSource"
    target: GivenTarget
    requests: tuple[EngineRequest, ...] = ()
    answers: Answers = field(default_factory=Answers)
    policy: Policy = field(default_factory=Policy)
    headers_only: bool = False
    on_progress: OnProgress | None = None
    unpickled: "FolderSource | EaglectlError | None" = None
    read: tuple[Checkpoint, Drafter] | None = None
    jobs: int = 1
    value_errors: tuple[tuple[str, str], ...] | None = None
    takes_samples: bool = False

    @cached_property
    def _reading(
        self,
    ) -> tuple[Mapping[str, Any] | None, Checkpoint | None, Drafter | None, EaglectlError | None]:
        """The config, the headers and the drafter, as far as they could be read, and what ended reading."""
        if self.read:
            return self.read[0].config, *self.read, None
        config = checkpoint = None
        try:
            config = read_config(self.source)
            checkpoint = read_checkpoint(self.source)
            return config, checkpoint, read_drafter(checkpoint, self.answers, self.target.known), None
        except EaglectlError as error:
            return config, checkpoint, None, error

    @property
    def read_error(self) -> EaglectlError | None:
        """The error that ended reading. The rule that its topic names reports it; others could not look."""
        return self._reading[3]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all files."""
        return self.source.names()

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json."""
        if (config := self._reading[0]) is None:
            raise CannotLook(f"config.json cannot be read: {self.read_error}")
        return config

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """The config without its producer's nesting."""
        return by_name(self.drafter.producer).flat(self.config)

    @property
    def checkpoint(self) -> Checkpoint:
        """The config and the headers of the weights."""
        if (checkpoint := self._reading[1]) is None:
            raise CannotLook(f"the weights' headers cannot be read: {self.read_error}")
        return checkpoint

    @property
    def drafter(self) -> Drafter:
        """The canonical drafter."""
        if (drafter := self._reading[2]) is None:
            raise CannotLook(f"the files do not describe one drafter: {self.read_error}")
        return drafter

    @property
    def weights(self) -> Checkpoint:
        """The checkpoint, for a rule that reads tensor data. Raises CannotLook with `headers_only`."""
        if self.headers_only:
            raise CannotLook("it needs the weights, and --headers-only leaves them closed")
        return self.values

    @cached_property
    def values(self) -> Checkpoint:
        """The checkpoint, for a rule that reads d2t, t2d or norms, which are small and always read."""
        checkpoint = self.checkpoint
        if isinstance(self.unpickled, EaglectlError):
            raise CannotLook(f"the weights are pickles that cannot be copied: {self.unpickled}")
        return checkpoint if self.unpickled is None else read_checkpoint(self.unpickled)

    @cached_property
    def on_disk(self) -> FolderSource:
        """The files on this machine; those of a Hub repository are downloaded. Raises UnreadableError."""
        return self.source if isinstance(self.source, FolderSource) else self.source.downloaded()

    @cached_property
    def scan(self) -> Mapping[str, Summary]:
        """A summary of each floating-point tensor, by its name in the file, from one pass over the
        weights.
        """
        tensors = tuple(self.weights.tensors.values())  # before numpy is loaded
        from eaglectl.judge.scanning import scan

        source = self.unpickled if isinstance(self.unpickled, FolderSource) else self.on_disk
        return scan(source, tensors, self.on_progress, jobs=self.jobs)

    @cached_property
    def vectors(self) -> Mapping[str, Summary]:
        """A summary of each norm and bias, by its name in the file."""
        return read_vectors(self.values)

    @cached_property
    def samples(self) -> Mapping[str, tuple[str, Sample]]:
        """A sample of each matrix with its stored name, by its canonical name; with `headers_only` only where
        `takes_samples`.
        """
        return sample_matrices(self.values if self.takes_samples else self.weights, self.drafter)

    def summaries(self) -> Iterator[tuple[str, Summary]]:
        """Names and summaries of all floating-point tensors.

        With `headers_only` those of `vectors`; then it raises CannotLook.
        """
        if self.headers_only:
            yield from self.vectors.items()
        yield from self.scan.items()

    @property
    def target_vocab(self) -> int:
        """The size of the target's vocabulary.

        Without t2d it is the larger of vocab_size and the embedding's rows: EGL114 reports an embedding cut
        short.
        """
        size, stated = self.drafter.dims.vocab, self.flat.get("vocab_size")
        return max(size, stated) if type(stated) is int and "t2d" not in self.drafter.tensors else size

    @property
    def is_d2t_rounded(self) -> bool:
        """Whether d2t has a dtype that cannot hold every token id of the target."""
        d2t = self.drafter.tensors.get("d2t")
        return d2t is not None and EXACT.get(d2t.dtype, 0) < self.drafter.dims.vocab

    @cached_property
    def vocabulary_tables(self) -> tuple["Ids | None", "Ids | None"]:
        """d2t and t2d as engines read them; None for a table that the file does not have."""
        tables = {name: self.drafter.tensors[name] for name in sorted(TABLES) if name in self.drafter.tensors}
        if not tables:
            return None, None
        if self.is_d2t_rounded:
            raise CannotLook(f"d2t is {tables['d2t'].dtype}, which cannot hold the vocabulary's numbers")
        weights = self.values  # before numpy is loaded
        d2t = tables.get("d2t")
        if d2t is not None and d2t.shape != (self.drafter.dims.draft_vocab,):
            raise CannotLook(f"d2t is {list(d2t.shape)}, which is no map of the draft vocabulary")
        from eaglectl.drafter.vocabulary import as_engines_read

        ids = {
            name: as_engines_read(name, tensor.dtype, weights.read(tensor.stored[0]))
            for name, tensor in tables.items()
        }
        return ids.get("d2t"), ids.get("t2d")

    @cached_property
    def vocabulary_repair(self) -> str:
        """How one table repairs the other; "" where none does, or it cannot be known."""
        try:
            weights = self.values
        except UnreadableError:
            return ""
        from eaglectl.conversion.vocabulary import table_readings

        readings = table_readings(weights, self.drafter)
        lines = [f"run `eaglectl convert SOURCE --fix-reading {reading}`" for reading in readings]
        if len(lines) < 2:
            return f"{lines[0]}, as that table is whole." if lines else ""
        return (
            "run `eaglectl diagnose SOURCE --target TARGET`, which measures which of them lm_head was trained"
            f" with; if it is t2d, {lines[0]}; if it is d2t, {lines[1]}."
        )

    @cached_property
    def vocabulary_faults(self) -> tuple["Fault", ...]:
        """What is wrong with the tables; empty where the draft vocabulary is larger than the target's."""
        draft_size = self.drafter.dims.draft_vocab
        if not TABLES & set(self.drafter.tensors) or draft_size > self.target_vocab:
            return ()
        d2t, t2d = self.vocabulary_tables
        from eaglectl.drafter.vocabulary import faults

        return faults(d2t, t2d, draft_size, self.target_vocab)

    def view(self, engine: str) -> View:
        """The checkpoint as an engine reads it."""
        read = self.checkpoint
        files = WeightFiles(read.names, read.weight_files, read.nested)
        names = tuple(read.tensors)
        return view_for(engine, self.drafter, self.config, self.flat, names, self.target.config, files)

    @cached_property
    def applied_facts(self) -> Mapping[tuple[str, str], tuple[AppliedFact, ...]]:
        """The facts that apply to the checkpoint, by requested engine and release."""
        requests = [request for request in self.requests if request.engine in ENGINES]
        views = {request.engine: self.view(request.engine) for request in requests}
        return {
            (request.engine, release): ENGINES[request.engine].applied(views[request.engine], release)
            for request in requests
            for release in request.releases
        }

    def reported(self, topic: str, *, is_fault: bool = False) -> Iterator[Match]:
        """What reading the checkpoint reported on a topic: its notes, or the error that ended reading.

        A question, which only the user can answer, raises CannotLook; with `is_fault` it is a match, for what
        no engine can know either. Raises CannotLook where reading ended before the topic could come up.
        """
        if self.read_error is not None and self.ended_on(topic):
            yield Match(str(self.read_error), self.read_error.where)
            return
        for note in self.drafter.notes:
            if note.topic != topic or note.level == "note":
                continue
            if note.level == "question" and not is_fault:
                raise CannotLook(note.text)
            place = key_place(self.config, note.about)
            if note.about in self.checkpoint.tensors or is_known(note.about):
                place = f"tensor:{note.about}"
            yield Match(note.text, "" if place == "config.json" else place)

    def ended_on(self, topic: str) -> bool:
        """Whether an error on this topic ended reading."""
        return self.read_error is not None and self.read_error.topic == topic


def key_place(config: Mapping[str, Any], key: str) -> str:
    """The place of a key: "config.json:KEY", "config.json:OBJECT.KEY", or "config.json" where it is
    absent.
    """
    if key in config:
        return f"config.json:{key}"
    for name in NESTED_KEYS:
        nested = config.get(name)
        if isinstance(nested, Mapping) and key in nested:
            return f"config.json:{name}.{key}"
    return "config.json"
