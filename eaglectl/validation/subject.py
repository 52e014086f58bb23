"""What rules look at: one checkpoint, read as far as it can be, and the target that it belongs to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglectl.checkpoint.checkpoint import Checkpoint, read_checkpoint, read_config
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.drafter.drafter import Drafter, Note, Target
from eaglectl.drafter.tensors import is_known
from eaglectl.engines.catalogue import Wanted
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter
from eaglectl.validation.policy import Policy
from eaglectl.validation.rule import CannotLook, Hit

if TYPE_CHECKING:
    from eaglectl.checkpoint.hub import HubSource
    from eaglectl.validation.scanning import Summary


@dataclass(frozen=True)
class TargetSide:
    """The target as rules see it: what its config says, and its files where they were given."""

    known: Target
    source: Source | None = None
    config: Mapping[str, Any] | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The target's headers. Raises CannotLook."""
        if self.source is None:
            raise CannotLook("no target's weights were given; pass --target with its folder")
        try:
            return read_checkpoint(self.source)
        except EaglectlError as error:
            raise CannotLook(f"the target's weights cannot be read: {error}") from None


class Subject:
    """One checkpoint under validation. Every property raises CannotLook where it cannot be had.

    `stop` is why reading ended early, if it did: the rule whose topic it carries reports it, all that depend on it could not look.
    """

    def __init__(
        self,
        source: "FolderSource | HubSource",
        target: TargetSide,
        wanted: tuple[Wanted, ...],
        answers: Answers,
        *,
        headers_only: bool,
        policy: Policy | None = None,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.wanted = wanted
        self.answers = answers
        self.headers_only = headers_only
        self.policy = policy or Policy()
        self.told = told
        self.stop: EaglectlError | None = None
        self._config: Mapping[str, Any] | None = None
        self._checkpoint: Checkpoint | None = None
        self._drafter: Drafter | None = None
        try:
            self._config = read_config(source)
            self._checkpoint = read_checkpoint(source)
            self._drafter = read_drafter(self._checkpoint, answers, target.known)
        except EaglectlError as error:
            self.stop = error

    @property
    def label(self) -> str:
        """The checkpoint's own name."""
        return self.source.label

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files beside each other."""
        return self.source.names()

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        if self._config is None:
            raise CannotLook(f"config.json cannot be read: {self.stop}")
        return self._config

    @property
    def flat(self) -> Mapping[str, Any]:
        """The config with its producer's nesting undone."""
        flatten = by_name(self.drafter.producer).flatten
        return flatten(self.config) if flatten else self.config

    @property
    def checkpoint(self) -> Checkpoint:
        """Config and headers."""
        if self._checkpoint is None:
            raise CannotLook(f"the weights' headers cannot be read: {self.stop}")
        return self._checkpoint

    @property
    def drafter(self) -> Drafter:
        """The canonical drafter."""
        if self._drafter is None:
            raise CannotLook(f"the files do not describe one drafter: {self.stop}")
        return self._drafter

    @property
    def weights(self) -> Checkpoint:
        """Headers of weights whose data may be read too; not with --headers-only."""
        if self.headers_only:
            raise CannotLook("it needs the weights, and --headers-only leaves them closed")
        return self.checkpoint

    @cached_property
    def on_disk(self) -> FolderSource:
        """The files on this machine, for what reads them from end to end; a Hub repository's are downloaded. Raises Unreadable."""
        return self.source if isinstance(self.source, FolderSource) else self.source.downloaded()

    @cached_property
    def scan(self) -> Mapping[str, "Summary"]:
        """What one pass over the weights says of each tensor of floats, by its name in the file."""
        weights = self.weights  # before numpy is loaded
        from eaglectl.validation.scanning import scan

        try:
            return scan(self.on_disk, tuple(weights.tensors.values()), self.told)
        except EaglectlError as error:
            raise CannotLook(str(error)) from None

    def said(self, topic: str, *, is_asked: bool = False) -> Iterator[Hit]:
        """What reading the checkpoint said about a topic: its notes, and the error that ended it.

        A question, which only the user can answer, raises CannotLook; `is_asked`: it is a fault in itself, no engine can
        know the answer. Where reading ended before the topic could come up, CannotLook is raised.
        """
        if self.stop is not None and self.stop.topic == topic:
            yield Hit(str(self.stop), self.stop.where)
            return
        for note in self.drafter.notes:
            if note.topic != topic or note.level == "note":
                continue
            if note.level == "question" and not is_asked:
                raise CannotLook(note.text)
            yield Hit(note.text, place(note, self))


def place(note: Note, subject: Subject) -> str:
    """Where a note's subject lies: a tensor, a key of config.json, or the whole checkpoint."""
    if note.about in subject.checkpoint.tensors or is_known(note.about):
        return f"tensor:{note.about}"
    found = key_place(subject.config, note.about)
    return "" if found == "config.json" else found


def key_place(config: Mapping[str, Any], key: str) -> str:
    """Where a key lies: at the top, in an object of the config that holds it, or nowhere: the file alone."""
    if key in config:
        return f"config.json:{key}"
    for name in NESTS:
        inner = config.get(name)
        if isinstance(inner, Mapping) and key in inner:
            return f"config.json:{name}.{key}"
    return "config.json"


# the objects that producers keep a drafter's keys in
NESTS = ("transformer_layer_config", "eagle_config", "eagle_architecture_config")
