"""Layer ids as boundaries: by the user's answer, the numbers themselves or the producer; else a question."""

from collections.abc import Mapping
from itertools import combinations
from typing import TypeAlias, get_args

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
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import LAYERS, Keys, at, ids_question
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Answers, Format
from eaglectl.text import listed

Ids = tuple[int, ...]
# an ids list, its convention (None: it must be asked), and in words why it is read so
Meaning: TypeAlias = tuple[Ids, Convention | None, str]

MOST_IDS = 256
CONVENTIONS = (
    Choice("--aux-convention", "boundary", "the states that enter those layers"),
    Choice("--aux-convention", "output", "the states that leave them"),
)
TARGET = Choice("--target", is_free=True)
WORDS: Mapping[Convention | None, str] = {"boundary": "boundaries", "output": "outputs of layers"}
LARGE_DEPTH = 64  # any depth at which a default is ascending
VLLM_IDS = "eagle_config.layer_ids"
# places that many files have, the most trusted first, and how messages name them
COMMON_PLACES: Mapping[str, str] = {
    TOP_IDS: "top-level ids",
    NESTED_IDS: "ids in eagle_config",
    VLLM_IDS: VLLM_IDS,
}


def ids_places(format: Format) -> tuple[str, ...]:
    """The places of layer ids that are read in a producer's files, its own first."""
    own = (place.key for place in format.ids if place.key not in COMMON_PLACES)
    return tuple(dict.fromkeys((*own, *COMMON_PLACES)))


def read_aux_layers(
    keys: Keys, format: Format, count: int, target: Target, answers: Answers, unread: Mapping[str, object]
) -> AuxLayers:
    """The aux layers of a drafter whose fc takes `count` states.

    `unread` are values that look like layer ids, under keys that nobody knows. Raises UsageError where
    --aux-layers does not fit.
    """
    lists = {place: ids for place in ids_places(format) if (ids := _read_ids(keys, place))}
    if answers.aux_layers is not None:
        return _from_user(answers, count, target)
    known = [[j + shift for j in ids] for ids in lists.values() for shift in (-1, 0, 1)]
    unknown = {key: value for key, value in unread.items() if value not in known}
    keys.notes.extend([ids_question(key, value) for key, value in unknown.items()])
    if lists:
        return _boundaries(keys, format, count, target, _meaning(keys, format, lists, target, answers))
    if unknown:
        return AuxLayers(count, None, False, f"ids under a key that is not read ({listed(unknown)})")
    return _default(keys, format, count, target)


def aux_layers_by_record(keys: Keys, layers: AuxLayers, recorded: object, target: Target) -> AuxLayers:
    """The aux layers in the convention in which their ids mean the boundaries of eaglectl.json."""
    if layers.boundaries is None and layers.ids is not None and len(layers.ids) == layers.count:
        for convention in get_args(Convention):
            boundaries = to_boundaries(layers.ids, convention)
            if list(boundaries) == recorded and (target.depth is None or max(boundaries) <= target.depth):
                keys.notes[:] = [note for note in keys.notes if note.topic != "aux-convention"]
                how = f"{WORDS[convention]}, as eaglectl.json records"
                is_default = _is_default(boundaries, target)
                return AuxLayers(layers.count, boundaries, is_default, how, layers.ids, convention)
    return layers


def _read_ids(keys: Keys, place: str) -> Ids:
    stated = at(keys.config, place)
    if isinstance(stated, list) and len(stated) > MOST_IDS:
        raise RefusedError(
            f"config.json: {place} lists {len(stated):,} layers; a drafter takes {MOST_IDS} at most",
            "value-types",
            f"config.json:{place}",
        )
    return tuple(keys.get(place, list) or ())


def _boundaries(keys: Keys, format: Format, count: int, target: Target, meaning: Meaning) -> AuxLayers:
    ids, convention, how = meaning
    if convention is None or len(ids) != count:
        if convention:
            keys.notes.append(
                question(
                    "aux layers",
                    f"{len(ids)} aux layer ids {list(ids)} and an fc that takes {count} states",
                    "aux-count",
                    [LAYERS],
                )
            )
        return AuxLayers(count, None, False, how, ids, convention)
    boundaries, order = sorted_order(to_boundaries(ids, convention))
    if format.orders_ids:
        order = None
    depth = target.depth
    past = (
        f"boundary {max(boundaries)} is past the target's {depth} layers (ids {list(ids)} read as"
        f" {convention}); pass --aux-convention or --aux-layers"
    )
    is_past = depth is not None and max(boundaries) > depth
    keys.note(is_past, "problem", "aux layers", past, "aux-range", names_option=True)
    unordered = (
        f"ids {list(ids)} are not ascending and distinct; engines sort them and permute fc's inputs in"
        " silence, convert reorders fc to match"
    )
    topic = "aux-repeated" if len(boundaries) < len(ids) else "aux-order"
    keys.note(order, "warning", "aux layers", unordered, topic)
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


def _meaning(
    keys: Keys, format: Format, lists: Mapping[str, Ids], target: Target, answers: Answers
) -> Meaning:
    key, ids = next(iter(lists.items()))
    readings = {place: _readings(keys, format, place, ids) for place, ids in lists.items()}
    pairs = (pair for pair in combinations(readings, 2) if readings[pair[0]].isdisjoint(readings[pair[1]]))
    if pair := next(pairs, None):
        is_believed = not format.is_layout and _is_certain(keys, format, key)
        keys.notes.append(_disagreement(format, lists, pair, key if is_believed else ""))
        if not is_believed:
            return ids, None, "lists that disagree"
    elif key in COMMON_PLACES and {TOP_IDS, NESTED_IDS} <= set(lists):
        top, nested = lists[TOP_IDS], lists[NESTED_IDS]
        is_boundary = answers.aux_convention is None and _declared(format, NESTED_IDS) == "boundary"
        if top == nested and is_boundary:  # one list, which can only have one convention
            return top, "boundary", f"ids at both levels; {format.title} writes boundaries"
        if nested == tuple(j - 1 for j in top):
            return top, "boundary", "top-level ids, which nested ids one lower confirm (SGLang adds one)"
    return _convention(keys, format, key, ids, target, answers)


def _disagreement(format: Format, lists: Mapping[str, Ids], pair: tuple[str, str], believed: str) -> Note:
    first, second = pair
    text = (
        f"config gives ids {list(lists[first])} in {first} and {list(lists[second])} in {second}, which agree"
        " in no convention"
    )
    if believed:
        text = f"{text}; {format.title}'s trainer reads {believed}"
        return Note("warning", "aux layers", text, "aux-lists")
    layers = (
        (place, to_boundaries(ids, _declared(format, place) or "boundary")) for place, ids in lists.items()
    )
    choices = [Choice("--aux-layers", ",".join(map(str, ids)), place) for place, ids in layers]
    return question("aux layers", text, "aux-lists", [*choices, LAYERS])


def _readings(keys: Keys, format: Format, place: str, ids: Ids) -> set[Ids]:
    declared = "boundary" if place == VLLM_IDS else _declared(format, place)
    is_known = declared and (place == VLLM_IDS or _is_certain(keys, format, place))
    conventions = (declared,) if declared and is_known else get_args(Convention)
    readings = {to_boundaries(ids, convention) for convention in conventions}
    return {tuple(sorted(layers)) for layers in readings} if format.orders_ids else readings


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
    if convention is None:
        keys.notes.append(_convention_question(where, ids, target, declared, is_copy=is_copy))
    return ids, convention, where + how


def _convention_question(
    where: str, ids: Ids, target: Target, declared: Convention | None, *, is_copy: bool
) -> Note:
    raised = [j + 1 for j in ids]
    if is_copy:
        why = (
            f"the ids {list(ids)} at the top level are what trainers usually take, counted as outputs of"
            f" layers (boundaries {raised}), and vLLM reads boundaries {list(ids)} there: a copied list"
        )
        choices = [
            Choice("--aux-convention", "output", "as trainers count them", is_usual=True),
            Choice("--aux-convention", "boundary", "as vLLM reads them"),
        ]
        return question("aux layers", why, "aux-copied", choices)
    why = f"{where} {list(ids)} may be boundaries or outputs of layers (boundaries {raised})"
    choices = [replace(choice, is_usual=choice.value == declared) for choice in CONVENTIONS]
    if not target.depth:
        why += ", and the target's depth, which may settle it, is not known"
        choices.append(TARGET)
    return question("aux layers", why, "aux-convention", choices)


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


def _default(keys: Keys, format: Format, count: int, target: Target) -> AuxLayers:
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
            keys.notes.append(question("aux layers", why, topic, choices))
            return AuxLayers(count, None, False, "not stated")
    is_default = default == TRAINING_DEFAULT or (boundaries is not None and _is_default(boundaries, target))
    return AuxLayers(count, boundaries, is_default, f"no ids: {words}")


def _is_default(boundaries: Ids, target: Target) -> bool:
    return target.depth is not None and boundaries == TRAINING_DEFAULT.at(target.depth)
