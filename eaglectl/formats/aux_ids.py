"""Layer ids as boundaries: by the user's answer, the numbers themselves or the producer; else a question."""

from collections.abc import Mapping
from itertools import combinations
from typing import get_args

from msgspec.structs import replace

from eaglectl.drafter.boundaries import (
    AuxLayers,
    Convention,
    convention_by_pattern,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.default_layers import TRAINING_DEFAULT, DefaultLayers
from eaglectl.drafter.drafter import Choice, Target
from eaglectl.errors import UsageError
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Answers, Format
from eaglectl.formats.unread import LAYERS, ask_about_ids, unread_ids
from eaglectl.text import listed

Ids = tuple[int, ...]
# an ids list, its convention (None: it must be asked), and in words why it is read so
Reading = tuple[Ids, Convention | None, str]

CONVENTIONS = (
    Choice("--aux-convention", "boundary", "the states that enter those layers"),
    Choice("--aux-convention", "output", "the states that leave them"),
)
TARGET = Choice("--target", is_free=True)
LARGE_DEPTH = 64  # any depth at which a default is ascending
VLLM_IDS = "eagle_config.layer_ids"
# places that many files have, the most trusted first, and how messages name them
COMMON_PLACES: Mapping[str, str] = {
    TOP_IDS: "top-level ids",
    NESTED_IDS: "ids in eagle_config",
    VLLM_IDS: VLLM_IDS,
}


def read_aux_layers(keys: Keys, format: Format, count: int, target: Target, answers: Answers) -> AuxLayers:
    """The aux layers of a drafter whose fc takes `count` states.

    Raises UsageError where --aux-layers does not fit.
    """
    stated = _stated(keys, format)
    unknown = unread_ids(keys, format)
    if answers.aux_layers is not None:
        keys.taken.update(unknown)  # they are not carried: the answer stands in their place
        return _from_user(answers, count, target)
    allowed = {ids for listed in stated.values() for ids in (listed, *_neighbours(listed))}
    unknown = {key: value for key, value in unknown.items() if _as_ids(value) not in allowed}
    for key, value in unknown.items():
        ask_about_ids(keys, key, value)
    if stated:
        return _boundaries(keys, format, count, target, _read(keys, format, stated, target, answers))
    if unknown:
        return AuxLayers(count, None, False, f"ids under a key that is not read ({listed(unknown)})")
    return _default(keys, format, count, target)


def by_record(keys: Keys, aux: AuxLayers, recorded: object, target: Target) -> AuxLayers:
    """The aux layers in the convention in which their ids mean the boundaries of eaglectl.json."""
    if aux.boundaries is not None or aux.ids is None or len(aux.ids) != aux.count:
        return aux
    for convention in get_args(Convention):
        boundaries = to_boundaries(aux.ids, convention)
        is_within = target.depth is None or max(boundaries) <= target.depth
        if list(boundaries) == recorded and is_within:
            keys.notes[:] = [note for note in keys.notes if note.topic != "aux-convention"]
            return replace(
                aux,
                boundaries=boundaries,
                is_default=_is_default(boundaries, target),
                how=f"{_words(convention)}, as eaglectl.json records",
                convention=convention,
            )
    return aux


def _stated(keys: Keys, format: Format) -> dict[str, Ids]:
    """The ids lists of the config by place: the producer's own places first."""
    places = dict.fromkeys(
        (*(place.key for place in format.ids if place.key not in COMMON_PLACES), *COMMON_PLACES)
    )
    lists = {key: keys.take_ids(key) for key in places}
    return {key: ids for key, ids in lists.items() if ids is not None}


def _boundaries(keys: Keys, format: Format, count: int, target: Target, reading: Reading) -> AuxLayers:
    ids, convention, how = reading
    if convention is None:
        return AuxLayers(count, None, False, how, ids)
    if len(ids) != count:
        why = f"{len(ids)} aux layer ids {list(ids)} and an fc that takes {count} states"
        keys.ask("aux layers", why, "aux-count", LAYERS)
        return AuxLayers(count, None, False, how, ids, convention)
    boundaries, order = sorted_order(to_boundaries(ids, convention))
    if format.orders_ids:
        order = None
    if target.depth is not None and max(boundaries) > target.depth:
        keys.add_note(
            "problem",
            "aux layers",
            f"boundary {max(boundaries)} is past the target's {target.depth} layers (ids {list(ids)} read as"
            f" {convention}); pass --aux-convention or --aux-layers",
            "aux-range",
            names_option=True,
        )
    if order:
        topic = "aux-repeated" if len(boundaries) < len(ids) else "aux-order"
        keys.add_note(
            "warning",
            "aux layers",
            f"ids {list(ids)} are not ascending and distinct; engines sort them and permute fc's inputs in"
            " silence, convert reorders fc to match",
            topic,
        )
    return AuxLayers(count, boundaries, _is_default(boundaries, target), how, ids, convention, order)


def _from_user(answers: Answers, count: int, target: Target) -> AuxLayers:
    given = answers.aux_layers or ()
    convention: Convention = answers.aux_convention or "boundary"
    boundaries = to_boundaries(given, convention)
    if len(given) != count or sorted(set(boundaries)) != list(boundaries):
        raise UsageError(
            f"--aux-layers {','.join(map(str, given))}: fc takes {count} states, so {count} ascending layers"
            " are needed"
        )
    if target.depth is not None and boundaries[-1] > target.depth:
        raise UsageError(
            f"--aux-layers: boundary {boundaries[-1]} is past the target's {target.depth} layers"
        )
    is_default = _is_default(boundaries, target)
    return AuxLayers(count, boundaries, is_default, "given by --aux-layers", given, convention)


def _read(keys: Keys, format: Format, stated: Mapping[str, Ids], target: Target, answers: Answers) -> Reading:
    """The list that is believed, its convention, and why."""
    key, ids = next(iter(stated.items()))
    pairs = combinations(stated, 2)
    if pair := next((pair for pair in pairs if not _agree(keys, format, stated, pair)), None):
        first, second = pair
        text = (
            f"config gives ids {list(stated[first])} in {first} and {list(stated[second])} in {second}, which"
            " agree in no convention"
        )
        if format.is_layout or not _is_certain(keys, format, key):
            choices = dict.fromkeys(_meanings(format, stated, place) for place in stated)
            keys.ask("aux layers", text, "aux-lists", *choices, LAYERS)
            return ids, None, "lists that disagree"
        keys.add_note("warning", "aux layers", f"{text}; {format.title}'s trainer reads {key}", "aux-lists")
    elif key in COMMON_PLACES and (reading := _two_lists(format, stated, answers)):
        return reading
    return _convention(keys, format, key, ids, target, answers)


def _agree(keys: Keys, format: Format, stated: Mapping[str, Ids], pair: tuple[str, str]) -> bool:
    """Whether two lists name the same layers in the same order, in conventions that their places allow."""
    first, second = (
        {
            tuple(sorted(boundaries)) if format.orders_ids else boundaries
            for convention in _conventions(keys, format, place)
            for boundaries in [to_boundaries(stated[place], convention)]
        }
        for place in pair
    )
    return bool(first & second)


def _conventions(keys: Keys, format: Format, place: str) -> tuple[Convention, ...]:
    """The conventions that ids at a place may be in."""
    if place == VLLM_IDS:
        return ("boundary",)
    declared = _declared(format, place)
    return (declared,) if declared and _is_certain(keys, format, place) else ("boundary", "output")


def _meanings(format: Format, stated: Mapping[str, Ids], place: str) -> Choice:
    """The layers of one list, in the convention that is usual at its place."""
    ids = to_boundaries(stated[place], _declared(format, place) or "boundary")
    return Choice("--aux-layers", ",".join(map(str, ids)), place)


def _two_lists(format: Format, stated: Mapping[str, Ids], answers: Answers) -> Reading | None:
    """What lists at the top and in eagle_config mean together; None where one alone decides."""
    top, nested = stated.get(TOP_IDS), stated.get(NESTED_IDS)
    if not top or not nested:
        return None
    if top == nested:  # one list, which can only have one convention
        is_boundary = answers.aux_convention is None and _declared(format, NESTED_IDS) == "boundary"
        how = f"ids at both levels; {format.title} writes boundaries"
        return (top, "boundary", how) if is_boundary else None
    if nested == tuple(j - 1 for j in top):
        return top, "boundary", "top-level ids, which nested ids one lower confirm (SGLang adds one)"
    return None


def _convention(keys: Keys, format: Format, key: str, ids: Ids, target: Target, answers: Answers) -> Reading:
    """The convention of one list, or the question which it is."""
    where = COMMON_PLACES.get(key, f"ids in {key}")
    if answers.aux_convention:
        return ids, answers.aux_convention, f"{where}, read as --aux-convention {answers.aux_convention}"
    declared = _declared(format, key)
    is_certain = _is_certain(keys, format, key)
    if not is_certain and _is_copy(key, ids, declared, target):
        _ask_of_copy(keys, ids)
        return ids, None, f"{where}, in an unknown convention"
    if reading := _by_numbers(key, ids, declared, target):
        return reading
    if key == VLLM_IDS:
        return ids, "boundary", f"{where}, vLLM's own key"
    is_known = format.is_signed or target.depth is not None or key not in COMMON_PLACES
    is_plausible = (
        is_known and convention_by_pattern(ids, target.depth) is None and not _is_copied(ids, declared)
    )
    if declared and (is_plausible or is_certain):
        return ids, declared, f"{where}; {format.title} writes {_words(declared)}"
    _ask_convention(keys, where, ids, target, declared)
    return ids, None, f"{where}, in an unknown convention"


def _is_copy(key: str, ids: Ids, declared: Convention | None, target: Target) -> bool:
    """Whether ids at the top level, where vLLM reads boundaries, are a trainer's usual outputs of layers."""
    return key == TOP_IDS and declared != "output" and convention_by_pattern(ids, target.depth) == "output"


def _by_numbers(key: str, ids: Ids, declared: Convention | None, target: Target) -> Reading | None:
    """The reading that the target's depth leaves, unless the producer declares the other."""
    where = COMMON_PLACES.get(key, f"ids in {key}")
    pattern = convention_by_pattern(ids, target.depth)
    if pattern and declared in (None, pattern):
        how = f"{where}; the numbers fit a target of {target.depth} layers only as {pattern} ids"
        return ids, pattern, how
    if max(ids) == target.depth:
        return ids, "boundary", f"{where}; {max(ids)} is the target's depth, which no output id can be"
    return None


def _declared(format: Format, key: str) -> Convention | None:
    """What the producer's declaration makes of ids at this place.

    None at the top level where the producer writes none: others put them there, for an engine.
    """
    place = format.ids_at(key)
    if place is None and key == TOP_IDS:
        return None
    return (place and place.convention) or format.aux_convention


def _is_certain(keys: Keys, format: Format, key: str) -> bool:
    place = format.ids_at(key)
    architectures = keys.config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return place is not None and (place.is_certain or first in place.certain_in)


def _ask_of_copy(keys: Keys, ids: Ids) -> None:
    keys.ask(
        "aux layers",
        f"the ids {list(ids)} at the top level are what trainers usually take, counted as outputs of layers"
        f" (boundaries {[j + 1 for j in ids]}), and vLLM reads boundaries {list(ids)} there: a copied list",
        "aux-copied",
        Choice("--aux-convention", "output", "as trainers count them", is_usual=True),
        Choice("--aux-convention", "boundary", "as vLLM reads them"),
    )


def _is_copied(ids: Ids, declared: Convention | None) -> bool:
    """Whether these look like lmsys' or nvidia's ids, copied into a speculators config."""
    return declared == "boundary" and ids[0] == 1 and len(ids) == 3


def _ask_convention(keys: Keys, where: str, ids: Ids, target: Target, declared: Convention | None) -> None:
    raised = [j + 1 for j in ids]
    why = f"{where} {list(ids)} may be boundaries or outputs of layers (boundaries {raised})"
    choices = [replace(choice, is_usual=choice.value == declared) for choice in CONVENTIONS]
    if not target.depth:
        why += ", and the target's depth, which may settle it, is not known"
        choices.append(TARGET)
    keys.ask("aux layers", why, "aux-convention", *choices)


def _default(keys: Keys, format: Format, count: int, target: Target) -> AuxLayers:
    """The layers that the producer trains on where a recipe names none; a question where these do not fit."""
    default = format.training_default
    if default is None:
        keys.ask(
            "aux layers",
            f"config names no layers, and which {count} {format.title} trained on without saying so is not"
            " known",
            "aux-ids-doubted",
            LAYERS,
        )
        return AuxLayers(count, None, False, "not stated")
    boundaries = default.at(target.depth) if target.depth else None
    if unsettled := _unsettled(default, boundaries, count, target):
        why, topic, choices = unsettled
        keys.ask("aux layers", f"config names no layers, and {why}", topic, *choices)
        return AuxLayers(count, None, False, "not stated")
    if not format.states_layers:
        usual = ",".join(map(str, boundaries or ()))
        keys.ask(
            "aux layers",
            f"{format.title} may train on other layers than the default and this config names none",
            "aux-ids-doubted",
            *([Choice("--aux-layers", usual, default.words, is_usual=True)] if usual else [TARGET]),
            LAYERS,
        )
        return AuxLayers(count, None, False, "not stated")
    is_default = default == TRAINING_DEFAULT or (boundaries is not None and _is_default(boundaries, target))
    return AuxLayers(count, boundaries, is_default, f"no ids: {default.words}")


def _unsettled(
    default: DefaultLayers, boundaries: Ids | None, count: int, target: Target
) -> tuple[str, str, tuple[Choice, ...]] | None:
    """Why the default is not what was trained on, the topic, and the options that answer it."""
    if count != len(default.at(LARGE_DEPTH)):
        return f"fc takes {count} aux states", "aux-count", (LAYERS,)
    if boundaries is None and default != TRAINING_DEFAULT:
        return f"{default.words} depends on the target's depth", "aux-count", (TARGET, LAYERS)
    if boundaries is not None and list(boundaries) != sorted(set(boundaries)):
        return f"the default of a target of {target.depth} layers is no {count}", "aux-range", (LAYERS,)
    return None


def _is_default(boundaries: Ids, target: Target) -> bool:
    return target.depth is not None and boundaries == TRAINING_DEFAULT.at(target.depth)


def _neighbours(ids: Ids) -> tuple[Ids, Ids]:
    """The same layers in the other convention, whichever `ids` are in."""
    return tuple(j - 1 for j in ids), tuple(j + 1 for j in ids)


def _as_ids(value: object) -> object:
    return tuple(value) if isinstance(value, list) and all(type(item) is int for item in value) else None


def _words(convention: Convention) -> str:
    return "boundaries" if convention == "boundary" else "outputs of layers"
