"""Which targets each engine release captures hidden states of: closed lists of classes, with evidence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.engines.behaviour import Name
from eaglectl.engines.data import cached, read
from eaglectl.engines.releases import is_since, is_within

# absent: other releases register the class, this one does not
Captures = Literal["captures", "lacks", "absent", "unknown"]
# as a row states them
CAPTURES: Mapping[bool | None, Captures] = {True: "captures", False: "lacks", None: "absent"}
OF_CONFIG = "of text_config"
NEVER_SEEN = "was never looked at with such a target"


class TargetClass(Struct, frozen=True, rename={"since": "from"}):
    """What one release does with the targets of one architecture.

    `adds_one` and `default` are the class's own rule, where an engine leaves it to classes; `language_model`
    is the class that a wrapper hands layers on to, or that its text_config decides; `backend` is whose
    model it is where it is not the engine's own; `state` is what it captures, where that is no boundary, or
    where its ids go, where its decoder does not read them; `last`: with the state after the last layer.
    `source` is the place in `since`, the release with which this came.
    """

    architecture: Name
    captures: Captures
    since: str
    source: Annotated[str, Meta(min_length=1)]
    adds_one: str = ""
    default: str = ""
    language_model: str = ""
    backend: str = ""
    state: str = ""
    last: bool = False


class ServingNote(Struct, frozen=True):
    """What is known of serving in parallel or with structured output, in a range of releases.

    `kind`: of drafters of that kind alone; `targets`: with targets of these classes alone.
    """

    releases: str
    text: str
    source: str
    kind: str = ""
    targets: tuple[Name, ...] = ()


class TargetReading(Struct, frozen=True):
    """Whether a release captures a target's hidden states; `text` says what it does where it does not.

    `target` is the class as messages name it, or the model type; `last`: the state after its last layer too.
    """

    captures: Captures
    target: str
    text: str = ""
    source: str = ""
    state: str = ""
    last: bool = False


@cached
def target_classes(engine: str) -> Mapping[str, Sequence[TargetClass]]:
    """The rows of each architecture, oldest first. Raises ValueError where a name is a pattern."""
    rows = {
        name: [{**row, "architecture": name, "captures": CAPTURES[row["captures"]]} for row in listed]
        for name, listed in _data(engine)["architectures"].items()
    }
    return convert(rows, dict[str, tuple[TargetClass, ...]])


@cached
def serving_notes(engine: str) -> tuple[ServingNote, ...]:
    """What the engine's sources and users say of serving in parallel and with structured output."""
    return convert(_data(engine)["notes"], tuple[ServingNote, ...])


def notes_on_pair(engine: str, release: str, drafter: Drafter) -> Iterator[ServingNote]:
    """The notes that hold for this kind of drafter or of target, and not for all."""
    names = architectures_of(drafter.target)
    for note in serving_notes(engine):
        is_concerned = note.kind == drafter.kind or not set(note.targets).isdisjoint(names)
        if is_concerned and is_within(note.releases, release):
            yield note


def target_class(engine: str, release: str, architecture: str) -> TargetClass | None:
    """What a release does with an architecture; None where no release has it, or this one was not read."""
    if release not in _data(engine)["read"]:
        return None
    rows = target_classes(engine).get(architecture, ())
    fitting = [row for row in rows if is_since(row.since, release)]
    if fitting:
        return fitting[-1]
    if not rows:
        is_refused = architecture in _data(engine)["refused_in"].get(release, ())
        return TargetClass(architecture, "lacks", release, "not registered; run") if is_refused else None
    return TargetClass(architecture, "absent", release, "not in the registry")


def architectures_of(target: Target) -> tuple[str, ...]:
    """The classes that a target may be of: as its config names them, else those of its model type.

    A wrapper is of its own model type, known or not: its language model does not say what it hands on.
    """
    return target.architectures or architectures(target.outer_type or target.model_type or "")


def architectures(model_type: str) -> tuple[str, ...]:
    """The generating classes of a model type, as transformers or the model's own config.json names them."""
    stated = read("model_types.json")
    remote = stated["remote"].get(model_type, {}).get("architectures", ())
    return tuple(dict.fromkeys((*remote, *stated["architectures"].get(model_type, ()))))


def read_captures(engine: str, release: str, target: Target) -> TargetReading | None:
    """Whether a release captures a target's hidden states; None where nothing names the target's kind."""
    names = architectures_of(target)
    kind = target.outer_type or target.model_type
    if not names and not kind:
        return None
    readings = [_reading(engine, release, row, target) for row in _rows(engine, release, names)]
    if target.architectures:
        readings = readings[:1]  # engines take the first that they know
    if len({reading.captures for reading in readings}) == 1:
        return readings[0]
    named = " or ".join(names) or f"model_type {kind}"
    if readings:
        return TargetReading("unknown", named, "captures layers of some of these classes and not of others")
    return _unlisted(_unregistered(engine, release), target, named if names else "") or TargetReading(
        "unknown", named, NEVER_SEEN
    )


def _rows(engine: str, release: str, names: Sequence[str]) -> list[TargetClass]:
    """The rows of these classes; those that a release lacks only where it has none of the others."""
    rows = [row for name in names if (row := target_class(engine, release, name))]
    return [row for row in rows if row.captures != "absent"] or rows


def _unlisted(other: Mapping[str, Any], target: Target, named: str) -> TargetReading | None:
    """A target whose classes, as they are `named`, have no row."""
    if not named or "is_closed" not in other:
        return None
    # all registered classes are known; llama.cpp's converter takes the class of a text_config first
    # (conversion/base.py:2900, 0.3.36)
    if target.architectures and target.outer_type is None:
        return TargetReading("absent", named, other["text"], other["source"])
    text = f"{other['text']}, unless a text_config names another"
    return TargetReading("unknown", named, text, other["source"])


def as_seen(engine: str, release: str, target: Target) -> Target:
    """The target, without its kind where the release was never seen with such a one."""
    reading = read_captures(engine, release, target)
    if reading is None or reading.captures != "unknown":
        return target
    return replace(target, model_type=None, outer_type=None, architectures=())


def _reading(engine: str, release: str, row: TargetClass, target: Target) -> TargetReading:
    source = f"{row.source} ({row.since})"
    stated = _data(engine)
    if row.captures == "lacks":
        missing = stated["unread" if row.state else "lacking"]
        return TargetReading("lacks", row.architecture, missing["text"], source)
    if row.captures == "absent":
        other = _unregistered(engine, release)
        captures: Captures = "absent" if other["fails"] else "unknown"
        return TargetReading(captures, row.architecture, other["text"], other["source"])
    if row.language_model == OF_CONFIG:
        return _inner_reading(engine, release, row, target)
    return TargetReading("captures", row.architecture, source=source, state=row.state, last=row.last)


def _unregistered(engine: str, release: str) -> Mapping[str, Any]:
    """What a release does with classes that it does not register; where `is_closed`, no row is missing."""
    known = [row for row in _data(engine)["unregistered"] if is_since(row["from"], release)]
    return cast(Mapping[str, Any], known[-1])


def _inner_reading(engine: str, release: str, row: TargetClass, target: Target) -> TargetReading:
    """A wrapper captures what the language model of its text_config does."""
    # without an outer type the model type is the wrapper's own
    kinds = architectures(target.model_type or "") if target.outer_type else ()
    inner = [each for name in kinds if (each := target_class(engine, release, name))]
    found = {each.captures for each in inner}
    if found == {"captures"}:
        return TargetReading("captures", row.architecture, source=f"{row.source} ({row.since})")
    inner_type = target.model_type if target.outer_type else "that is not stated"
    named = f"{row.architecture} with a language model of type {inner_type}"
    if found == {"lacks"}:
        return TargetReading("lacks", named, _data(engine)["lacking"]["text"], inner[0].source)
    return TargetReading("unknown", named, NEVER_SEEN)


def _data(engine: str) -> Mapping[str, Any]:
    return read(f"{engine}_targets.json")
