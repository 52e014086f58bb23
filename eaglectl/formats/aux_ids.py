"""Layer ids as boundaries: by the user's answer, the numbers themselves or the producer; else a question."""

from collections.abc import Mapping
from itertools import combinations
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.boundaries import (
    TRAINING_DEFAULT,
    AuxLayers,
    Convention,
    convention_by_pattern,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.drafter import Choice, Note, Target, question
from eaglectl.errors import UsageError
from eaglectl.formats.config_keys import Keys, Reading
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Answers, Format
from eaglectl.formats.unread import LAYERS, ids_question, unread_ids
from eaglectl.text import listed

Ids = tuple[int, ...]

CONVENTIONS = (
    Choice("--aux-convention", "boundary", "the states that enter those layers"),
    Choice("--aux-convention", "output", "the states that leave them"),
)
TARGET = Choice("--target", is_free=True)
WORDS: Mapping[Convention | None, str] = {"boundary": "boundaries", "output": "outputs of layers"}
UNKNOWN_CONVENTION = "aux-convention"  # the topic of the question which it is
LARGE_DEPTH = 64  # any depth at which a default is ascending
VLLM_IDS = "eagle_config.layer_ids"
# places that many files have, the most trusted first, and how messages name them
COMMON_PLACES: Mapping[str, str] = {
    TOP_IDS: "top-level ids",
    NESTED_IDS: "ids in eagle_config",
    VLLM_IDS: VLLM_IDS,
}


class Meaning(Struct, frozen=True):
    """An ids list, its convention (None: it must be asked), in words why it is read so, and notes."""

    ids: Ids
    convention: Convention | None
    how: str
    notes: tuple[Note, ...] = ()


def read_aux_layers(
    keys: Keys, format: Format, count: int, target: Target, answers: Answers
) -> Reading[AuxLayers]:
    """The aux layers of a drafter whose fc takes `count` states; ids may be under keys that nobody knows.

    Raises UsageError where --aux-layers does not fit.
    """
    own = (place.key for place in format.ids if place.key not in COMMON_PLACES)
    places = tuple(dict.fromkeys((*own, *COMMON_PLACES)))
    lists = {place: ids for place in places if (ids := keys.ids(place)) is not None}
    unknown = unread_ids(keys, places, format)
    if answers.aux_layers is not None:
        # they are not carried: the answer stands in their place
        return Reading(_from_user(answers, count, target), (*places, *unknown))
    known = [[j + shift for j in ids] for ids in lists.values() for shift in (-1, 0, 1)]
    unknown = {key: value for key, value in unknown.items() if value not in known}
    asked = Reading.noting(ids_question(key, value) for key, value in unknown.items())
    if lists:
        aux = _boundaries(format, count, target, _meaning(keys, format, lists, target, answers))
    elif unknown:
        how = f"ids under a key that is not read ({listed(unknown)})"
        aux = Reading(AuxLayers(count, None, False, how))
    else:
        aux = _default(format, count, target)
    return Reading.of(aux.value, Reading(None, places), asked, aux)


def aux_layers_by_record(aux: Reading[AuxLayers], recorded: object, target: Target) -> Reading[AuxLayers]:
    """The aux layers in the convention in which their ids mean the boundaries of eaglectl.json."""
    layers = aux.value
    if layers.boundaries is not None or layers.ids is None or len(layers.ids) != layers.count:
        return aux
    for convention in get_args(Convention):
        boundaries = to_boundaries(layers.ids, convention)
        is_within = target.depth is None or max(boundaries) <= target.depth
        if list(boundaries) == recorded and is_within:
            how = f"{WORDS[convention]}, as eaglectl.json records"
            is_default = _is_default(boundaries, target)
            layers = AuxLayers(layers.count, boundaries, is_default, how, layers.ids, convention)
            notes = tuple(note for note in aux.notes if note.topic != UNKNOWN_CONVENTION)
            return Reading(layers, aux.taken, notes)
    return aux


def _boundaries(format: Format, count: int, target: Target, meaning: Meaning) -> Reading[AuxLayers]:
    ids, convention, how = meaning.ids, meaning.convention, meaning.how
    if convention is None:
        return Reading(AuxLayers(count, None, False, how, ids), (), meaning.notes)
    if len(ids) != count:
        why = f"{len(ids)} aux layer ids {list(ids)} and an fc that takes {count} states"
        asked = question("aux layers", why, "aux-count", [LAYERS])
        aux = AuxLayers(count, None, False, how, ids, convention)
        return Reading(aux, (), (*meaning.notes, asked))
    boundaries, order = sorted_order(to_boundaries(ids, convention))
    if format.orders_ids:
        order = None
    depth = target.depth
    past = (
        f"boundary {max(boundaries)} is past the target's {depth} layers (ids {list(ids)} read as"
        f" {convention}); pass --aux-convention or --aux-layers"
    )
    unordered = (
        f"ids {list(ids)} are not ascending and distinct; engines sort them and permute fc's inputs in"
        " silence, convert reorders fc to match"
    )
    topic = "aux-repeated" if len(boundaries) < len(ids) else "aux-order"
    aux = AuxLayers(count, boundaries, _is_default(boundaries, target), how, ids, convention, order)
    return Reading(aux, (), meaning.notes).with_notes(
        (
            depth is not None and max(boundaries) > depth,
            Note("problem", "aux layers", past, "aux-range", names_option=True),
        ),
        (order, Note("warning", "aux layers", unordered, topic)),
    )


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


def _meaning(
    keys: Keys, format: Format, stated: Mapping[str, Ids], target: Target, answers: Answers
) -> Meaning:
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
            layers = {
                place: to_boundaries(ids, _declared(format, place) or "boundary")
                for place, ids in stated.items()
            }
            choices = [
                Choice("--aux-layers", ",".join(map(str, ids)), place) for place, ids in layers.items()
            ]
            asked = question("aux layers", text, "aux-lists", [*choices, LAYERS])
            return Meaning(ids, None, "lists that disagree", (asked,))
        warning = Note("warning", "aux layers", f"{text}; {format.title}'s trainer reads {key}", "aux-lists")
        meaning = _convention(keys, format, key, ids, target, answers)
        return replace(meaning, notes=(warning, *meaning.notes))
    if key in COMMON_PLACES and (both := _two_lists(format, stated, answers)):
        return both
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


def _two_lists(format: Format, stated: Mapping[str, Ids], answers: Answers) -> Meaning | None:
    """What lists at the top and in eagle_config mean together; None where one alone decides."""
    top, nested = stated.get(TOP_IDS), stated.get(NESTED_IDS)
    if not top or not nested:
        return None
    if top == nested:  # one list, which can only have one convention
        is_boundary = answers.aux_convention is None and _declared(format, NESTED_IDS) == "boundary"
        how = f"ids at both levels; {format.title} writes boundaries"
        return Meaning(top, "boundary", how) if is_boundary else None
    if nested == tuple(j - 1 for j in top):
        how = "top-level ids, which nested ids one lower confirm (SGLang adds one)"
        return Meaning(top, "boundary", how)
    return None


def _convention(keys: Keys, format: Format, key: str, ids: Ids, target: Target, answers: Answers) -> Meaning:
    """The convention of one list by the first evidence that there is, or the question which it is."""
    where, answer = COMMON_PLACES.get(key, f"ids in {key}"), answers.aux_convention
    declared, depth = _declared(format, key), target.depth
    is_certain, pattern = _is_certain(keys, format, key), convention_by_pattern(ids, depth)
    # a trainer's usual outputs of layers at the top level, where vLLM reads boundaries
    is_copy = not is_certain and key == TOP_IDS and declared != "output" and pattern == "output"
    is_plausible = _is_plausible(format, key, ids, depth) and pattern is None
    unknown = ", in an unknown convention"
    evidence: tuple[tuple[object, Convention | None, str], ...] = (
        (answer, answer, f", read as --aux-convention {answer}"),
        (is_copy, None, unknown),
        (
            pattern and declared in (None, pattern),
            pattern,
            f"; the numbers fit a target of {depth} layers only as {pattern} ids",
        ),
        (max(ids) == depth, "boundary", f"; {depth} is the target's depth, which no output id can be"),
        (key == VLLM_IDS, "boundary", ", vLLM's own key"),
        (
            declared and (is_plausible or is_certain),
            declared,
            f"; {format.title} writes {WORDS.get(declared)}",
        ),
        (True, None, unknown),
    )
    convention, how = next((convention, how) for is_there, convention, how in evidence if is_there)
    if convention is not None:
        return Meaning(ids, convention, where + how)
    asked = _copy_question(ids) if is_copy else _convention_question(where, ids, target, declared)
    return Meaning(ids, None, where + how, (asked,))


def _is_plausible(format: Format, key: str, ids: Ids, depth: int | None) -> bool:
    is_known = format.is_signed or depth is not None or key not in COMMON_PLACES
    # these look like lmsys' or nvidia's ids, copied into a speculators config
    is_copied = _declared(format, key) == "boundary" and ids[0] == 1 and len(ids) == 3
    return is_known and not is_copied


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


def _copy_question(ids: Ids) -> Note:
    why = (
        f"the ids {list(ids)} at the top level are what trainers usually take, counted as outputs of layers"
        f" (boundaries {[j + 1 for j in ids]}), and vLLM reads boundaries {list(ids)} there: a copied list"
    )
    choices = (
        Choice("--aux-convention", "output", "as trainers count them", is_usual=True),
        Choice("--aux-convention", "boundary", "as vLLM reads them"),
    )
    return question("aux layers", why, "aux-copied", choices)


def _convention_question(where: str, ids: Ids, target: Target, declared: Convention | None) -> Note:
    raised = [j + 1 for j in ids]
    why = f"{where} {list(ids)} may be boundaries or outputs of layers (boundaries {raised})"
    choices = [replace(choice, is_usual=choice.value == declared) for choice in CONVENTIONS]
    if not target.depth:
        why += ", and the target's depth, which may settle it, is not known"
        choices.append(TARGET)
    return question("aux layers", why, UNKNOWN_CONVENTION, choices)


def _default(format: Format, count: int, target: Target) -> Reading[AuxLayers]:
    """The layers that the producer trains on where a recipe names none; a question where these do not fit."""
    default, depth = format.training_default, target.depth
    boundaries = default.at(depth) if default and depth else None
    words, size = (default.words, len(default.at(LARGE_DEPTH))) if default else ("", count)
    layers, unnamed = ",".join(map(str, boundaries or ())), "config names no layers, and"
    usual = Choice("--aux-layers", layers, words, is_usual=True) if layers else TARGET
    doubts: tuple[tuple[object, str, str, list[Choice]], ...] = (
        (
            default is None,
            f"{unnamed} which {count} {format.title} trained on without saying so is not known",
            "aux-ids-doubted",
            [LAYERS],
        ),
        (count != size, f"{unnamed} fc takes {count} aux states", "aux-count", [LAYERS]),
        (
            boundaries is None and default != TRAINING_DEFAULT,
            f"{unnamed} {words} depends on the target's depth",
            "aux-count",
            [TARGET, LAYERS],
        ),
        (
            boundaries is not None and list(boundaries) != sorted(set(boundaries)),
            f"{unnamed} the default of a target of {depth} layers is no {count}",
            "aux-range",
            [LAYERS],
        ),
        (
            not format.states_layers,
            f"{format.title} may train on other layers than the default and this config names none",
            "aux-ids-doubted",
            [usual, LAYERS],
        ),
    )
    for is_there, why, topic, choices in doubts:
        if is_there:
            asked = question("aux layers", why, topic, choices)
            return Reading(AuxLayers(count, None, False, "not stated"), (), (asked,))
    is_default = default == TRAINING_DEFAULT or (boundaries is not None and _is_default(boundaries, target))
    return Reading(AuxLayers(count, boundaries, is_default, f"no ids: {words}"))


def _is_default(boundaries: Ids, target: Target) -> bool:
    return target.depth is not None and boundaries == TRAINING_DEFAULT.at(target.depth)
