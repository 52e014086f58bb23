"""Which targets each release captures hidden states of: closed lists of classes, with evidence."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from eaglectl.drafter.drafter import Target
from eaglectl.engines.behaviour import Name, is_since
from eaglectl.engines.data import cached, read

# absent: other releases register the class, this one does not
Captures = Literal["captures", "lacks", "absent", "unknown"]
# as a row states them
CAPTURES: Mapping[bool | None, Captures] = {True: "captures", False: "lacks", None: "absent"}
OF_CONFIG = "of text_config"
NEVER_SEEN = "was never examined with such a target"


class TargetClass(Struct, frozen=True, rename={"since": "from"}):
    """What one release does with the targets of one architecture.

    `adds_one` and `default` are the class's own rule, if an engine leaves it to classes. `language_model` is
    the class that a wrapper passes layers on to, or OF_CONFIG if its text_config decides. `backend` is the
    library of a model that is not the engine's own. `state` describes captured states that are no boundary,
    or what happens to its ids if its decoder does not read them. `last`: the state after the last layer is
    captured too. `relays`: its states are handed on over the stages of a pipeline. `source` is the place in
    `since`, the release that introduced this.
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
    relays: bool = False


class TargetReading(Struct, frozen=True):
    """Whether a release captures a target's hidden states; if not, `text` states what it does instead.

    `target` is the class as messages name it, or the model type. `last` and `relays` are the class's.
    """

    captures: Captures
    target: str
    text: str = ""
    source: str = ""
    state: str = ""
    last: bool = False
    relays: bool = False


def targets_data(engine: str) -> Mapping[str, Any]:
    """Return the data on an engine's targets; its `notes` are on serving them in parallel."""
    return read(f"{engine}_targets.json")


@cached
def target_classes(engine: str) -> Mapping[str, Sequence[TargetClass]]:
    """Return the rows of each architecture, oldest first. Raises ValueError for a pattern as name."""
    rows = {
        name: [{**row, "architecture": name, "captures": CAPTURES[row["captures"]]} for row in listed]
        for name, listed in targets_data(engine)["architectures"].items()
    }
    return convert(rows, dict[str, tuple[TargetClass, ...]])


def target_class(engine: str, release: str, architecture: str) -> TargetClass | None:
    """Return what a release does with an architecture; None without a row, or for an unread release."""
    data = targets_data(engine)
    if release not in data["read"]:
        return None
    rows = target_classes(engine).get(architecture, ())
    if fitting := [row for row in rows if is_since(row.since, release)]:
        return fitting[-1]
    if rows:
        return TargetClass(architecture, "absent", release, "not in the registry")
    if architecture in data["refused_in"].get(release, ()):
        return TargetClass(architecture, "lacks", release, "not registered; run")
    return None


def architectures_of(target: Target) -> tuple[str, ...]:
    """Return the possible classes of a target: as its config names them, else those of its model type.

    A wrapper's model type counts, also if unknown: its language model does not say what it hands on.
    """
    return target.architectures or architectures(target.outer_type or target.model_type or "")


def architectures(model_type: str) -> tuple[str, ...]:
    """Return the generating classes of a model type, by transformers or the model's own config.json."""
    data = read("model_types.json")
    remote = data["remote"].get(model_type, {}).get("architectures", ())
    return tuple(dict.fromkeys((*remote, *data["architectures"].get(model_type, ()))))


def needs_own_code(target: Target) -> bool:
    """Whether engines read the target with its own code: transformers does not have its model type."""
    of_transformers = read("model_types.json")["architectures"]
    return target.has_own_code and (target.outer_type or target.model_type) not in of_transformers


def read_captures(engine: str, release: str, target: Target) -> TargetReading | None:
    """Return whether a release captures a target's hidden states; None for an unknown kind of target."""
    names, kind = architectures_of(target), target.outer_type or target.model_type
    if not (names or kind):
        return None
    rows = [row for name in names if (row := target_class(engine, release, name))]
    # what a release lacks counts only where it has none of the others
    rows = list(filter(lambda row: row.captures != "absent", rows)) or rows
    # engines take the first that they know
    rows = rows[:1] if target.architectures else rows
    readings = [_reading(engine, release, row, target) for row in rows]
    if len({reading.captures for reading in readings}) == 1:
        return readings[0]
    named, other = " or ".join(names) or f"model_type {kind}", _unregistered(engine, release)
    if readings:
        return TargetReading("unknown", named, "captures layers of some of these classes, not of all")
    return _unlisted(other if names else {}, target, named)


def _unlisted(other: Mapping[str, Any], target: Target, named: str) -> TargetReading:
    # the reading of a class that no row is of
    if "is_closed" not in other:
        return TargetReading("unknown", named, NEVER_SEEN)
    # all registered classes are known; llama.cpp's converter takes the class of a text_config first
    # (conversion/base.py:2900, 0.3.36)
    if target.architectures and target.outer_type is None:
        return TargetReading("absent", named, other["text"], other["source"])
    return TargetReading(
        "unknown", named, f"{other['text']}, unless a text_config names another", other["source"]
    )


def as_seen(engine: str, release: str, target: Target) -> Target:
    """Return the target, without its kind if no such target was ever seen with the release."""
    reading = read_captures(engine, release, target)
    if reading is None or reading.captures != "unknown":
        return target
    return replace(target, model_type=None, outer_type=None, architectures=())


def _reading(engine: str, release: str, row: TargetClass, target: Target) -> TargetReading:
    # whether a target's class in a release captures aux states, and where that is known from
    source, data = f"{row.source} ({row.since})", targets_data(engine)
    if row.captures == "lacks":
        text = data["unread" if row.state else "lacking"]["text"]
        return TargetReading("lacks", row.architecture, text, source)
    if row.captures == "absent":
        other = _unregistered(engine, release)
        captures: Captures = "absent" if other["fails"] else "unknown"
        return TargetReading(captures, row.architecture, other["text"], other["source"])
    if row.language_model != OF_CONFIG:
        return TargetReading(
            "captures",
            row.architecture,
            source=source,
            state=row.state,
            last=row.last,
            relays=row.relays,
        )
    # a wrapper captures what the language model of its text_config does; without an outer type the model type
    # is the wrapper's own
    kinds = architectures(target.model_type or "") if target.outer_type else ()
    inner = [inner_class for name in kinds if (inner_class := target_class(engine, release, name))]
    inner_captures = {inner_class.captures for inner_class in inner}
    if inner_captures == {"captures"}:
        relays = all(inner_class.relays for inner_class in inner)
        return TargetReading("captures", row.architecture, source=source, relays=relays)
    inner_type = target.model_type if target.outer_type else "that is not stated"
    named = f"{row.architecture} with a language model of type {inner_type}"
    if inner_captures == {"lacks"}:
        return TargetReading("lacks", named, data["lacking"]["text"], inner[0].source)
    return TargetReading("unknown", named, NEVER_SEEN)


def _unregistered(engine: str, release: str) -> Mapping[str, Any]:
    # what it does with classes that it does not register; where `is_closed`, no row is missing
    rows: Sequence[Mapping[str, Any]] = targets_data(engine)["unregistered"]
    return [row for row in rows if is_since(row["from"], release)][-1]
