"""Reading the aux layers: which boundaries the layer ids of a config mean.

Ids become boundaries by the user's answer, the numbers themselves or the producer; else it is asked.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import TypeAlias, get_args

from msgspec.structs import replace

from eaglectl.drafter.drafter import (
    TRAINING_DEFAULT,
    AuxLayers,
    Choice,
    Convention,
    Note,
    Target,
    convention_by_pattern,
    question,
    sorted_order,
    to_boundaries,
)
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.formats.config_keys import LAYERS, Keys, at, ids_question
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Answers, Format
from eaglectl.text import listed

Ids = tuple[int, ...]
# an ids list, its convention (None: it must be asked), and in words why it is read so
Meaning: TypeAlias = tuple[Ids, Convention | None, str]
# a longer list is no list of aux layers: targets have fewer layers
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
    """Return the places of layer ids that are read in a producer's files, the producer's own first."""
    producer_places = (place.key for place in format.ids if place.key not in COMMON_PLACES)
    return tuple(dict.fromkeys((*producer_places, *COMMON_PLACES)))


def read_aux_layers(
    keys: Keys, format: Format, count: int, target: Target, answers: Answers, unread: Mapping[str, object]
) -> AuxLayers:
    """Read the aux layers of a drafter whose fc takes `count` states.

    `unread` are values that look like layer ids, under unknown keys. Raises UsageError if --aux-layers does
    not fit.
    """
    lists = {place: ids for place in ids_places(format) if (ids := _read_ids(keys, place))}
    if answers.aux_layers is not None:
        return _from_user(answers, count, target)
    shifted = [[j + shift for j in ids] for ids in lists.values() for shift in (-1, 0, 1)]
    unknown = {key: value for key, value in unread.items() if value not in shifted}
    keys.notes.extend([ids_question(key, value) for key, value in unknown.items()])
    if lists:
        return _layers_of_ids(keys, format, count, target, _ids_meaning(keys, format, lists, target, answers))
    if unknown:
        return AuxLayers(count, None, False, f"ids under a key that is not read ({listed(unknown)})")
    return _default_layers(keys, format, count, target)


def _read_ids(keys: Keys, place: str) -> Ids:
    from_config = at(keys.config, place)
    if isinstance(from_config, list) and len(from_config) > MOST_IDS:
        raise RefusedError(
            f"config.json: {place} lists {len(from_config):,} layers; a drafter takes at most {MOST_IDS}",
            "value-types",
            f"config.json:{place}",
        )
    return tuple(keys.get(place, list) or ())


def _layers_of_ids(keys: Keys, format: Format, count: int, target: Target, meaning: Meaning) -> AuxLayers:
    # the boundaries that ids mean in a convention; None, and a question, if their number is not fc's
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
    is_past = depth is not None and max(boundaries) > depth
    keys.note(
        is_past,
        "problem",
        "aux layers",
        f"boundary {max(boundaries)} is past the target's {depth} layers (ids {list(ids)} read as"
        f" {convention})",
        "aux-range",
        "; pass --aux-convention or --aux-layers",
        ("--aux-convention", "--aux-layers"),
    )
    keys.note(
        order,
        "warning",
        "aux layers",
        f"ids {list(ids)} are not ascending and distinct; engines sort them and silently permute fc's inputs,"
        " and convert reorders fc to match",
        ("aux-repeated" if len(boundaries) < len(ids) else "aux-order"),
    )
    return AuxLayers(count, boundaries, _is_default(boundaries, target), how, ids, convention, order)


def _from_user(answers: Answers, count: int, target: Target) -> AuxLayers:
    # the boundaries by --aux-layers; raises UsageError if they do not fit fc or the target
    ids = answers.aux_layers or ()
    convention: Convention = answers.aux_convention or "boundary"
    boundaries = to_boundaries(ids, convention)
    check(
        (
            len(ids) != count or sorted(set(boundaries)) != list(boundaries),
            f"--aux-layers {','.join(map(str, ids))}: fc takes {count} states; {count} ascending layers were"
            " expected",
            ("--aux-layers",),
        )
    )
    if target.depth is not None and boundaries[-1] > target.depth:
        raise UsageError(
            f"--aux-layers: boundary {boundaries[-1]} is past the target's {target.depth} layers",
            options=("--aux-layers",),
        )
    return AuxLayers(
        count, boundaries, _is_default(boundaries, target), "given by --aux-layers", ids, convention
    )


def _ids_meaning(
    keys: Keys, format: Format, lists: Mapping[str, Ids], target: Target, answers: Answers
) -> Meaning:
    # the ids that count, their convention and how it is known; None for an open convention. The lists are in
    # the order of ids_places, the most trusted first
    key, ids = next(iter(lists.items()))
    readings = {place: _possible_boundaries(keys, format, place, ids) for place, ids in lists.items()}
    pairs = (pair for pair in combinations(readings, 2) if readings[pair[0]].isdisjoint(readings[pair[1]]))
    if pair := next(pairs, None):
        is_trainers_own = not format.is_layout and _is_certain(keys, format, key)
        keys.notes.append(_disagreement(format, lists, pair, key if is_trainers_own else ""))
        if not is_trainers_own:
            return ids, None, "lists that disagree"
    # without a place of the trainer's own; an answer of the user comes before both conclusions
    elif key in COMMON_PLACES and {TOP_IDS, NESTED_IDS} <= set(lists) and answers.aux_convention is None:
        top, nested = lists[TOP_IDS], lists[NESTED_IDS]
        # one list, which can only have one convention
        if top == nested and _declared_convention(format, NESTED_IDS) == "boundary":
            return top, "boundary", f"ids at both levels; {format.title} writes boundaries"
        if nested == tuple(j - 1 for j in top):
            return top, "boundary", "top-level ids, confirmed by nested ids one lower (SGLang adds one)"
    return _choose_convention(keys, format, key, ids, target, answers)


def _disagreement(format: Format, lists: Mapping[str, Ids], pair: tuple[str, str], trainers_own: str) -> Note:
    # a question on lists that disagree in every convention; a warning if the trainer reads `trainers_own`
    first, second = pair
    text = (
        f"config gives ids {list(lists[first])} in {first} and {list(lists[second])} in {second}, which agree"
        " in no convention"
    )
    if trainers_own:
        return Note(
            "warning", "aux layers", f"{text}; {format.title}'s trainer reads {trainers_own}", "aux-lists"
        )
    layers = (
        (place, to_boundaries(ids, _declared_convention(format, place) or "boundary"))
        for place, ids in lists.items()
    )
    return question(
        "aux layers",
        text,
        "aux-lists",
        [*[Choice("--aux-layers", ",".join(map(str, ids)), place) for place, ids in layers], LAYERS],
    )


def _possible_boundaries(keys: Keys, format: Format, place: str, ids: Ids) -> set[Ids]:
    # what the ids at a place may mean: by the declared convention if it is certain, else by each
    declared = "boundary" if place == VLLM_IDS else _declared_convention(format, place)
    is_known = declared and (place == VLLM_IDS or _is_certain(keys, format, place))
    conventions = (declared,) if declared and is_known else get_args(Convention)
    readings = {to_boundaries(ids, convention) for convention in conventions}
    return {tuple(sorted(layers)) for layers in readings} if format.orders_ids else readings


def _choose_convention(
    keys: Keys, format: Format, key: str, ids: Ids, target: Target, answers: Answers
) -> Meaning:
    # the first evidence that holds decides; only some of it depends on the producer
    where, answer = COMMON_PLACES.get(key, f"ids in {key}"), answers.aux_convention
    declared, depth = _declared_convention(format, key), target.depth
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
        (max(ids) == depth, "boundary", f"; {depth} is the target's depth, and no output id is as large"),
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
    # ask which convention the ids have, with the producer's as the usual one
    raised = [j + 1 for j in ids]
    if is_copy:
        why = (
            f"the ids {list(ids)} at the top level are the usual layers of trainers, counted as outputs of"
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
        why += "; the target's depth may settle it, and is unknown"
        choices.append(TARGET)
    return question("aux layers", why, "aux-convention", choices)


def _is_plausible(format: Format, key: str, ids: Ids, depth: int | None) -> bool:
    is_known = format.is_signed or depth is not None or key not in COMMON_PLACES
    # these look like lmsys' or nvidia's ids, copied into a speculators config
    is_copied = _declared_convention(format, key) == "boundary" and ids[0] == 1 and len(ids) == 3
    return is_known and not is_copied


def _declared_convention(format: Format, key: str) -> Convention | None:
    """Return the convention that the producer declares for ids at this place.

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


def _default_layers(keys: Keys, format: Format, count: int, target: Target) -> AuxLayers:
    # the producer's default layers; open, with a question, if it is not sure that it trained on them
    default, depth = format.training_default, target.depth
    boundaries = default.at(depth) if default and depth else None
    words, size = (default.words, len(default.at(LARGE_DEPTH))) if default else ("", count)
    layers, unnamed = ",".join(map(str, boundaries or ())), "config names no layers, and"
    usual = Choice("--aux-layers", layers, words, is_usual=True) if layers else TARGET
    doubts: tuple[tuple[object, str, str, list[Choice]], ...] = (
        (
            default is None,
            f"{unnamed} it is unknown which {count} {format.title} trained on",
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
