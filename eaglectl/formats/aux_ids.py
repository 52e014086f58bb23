"""From the layer ids in a config to boundaries: by what the user says, by the numbers themselves, by the producer; or a question."""

from dataclasses import replace
from typing import get_args

from eaglectl.drafter.boundaries import (
    AuxLayers,
    Convention,
    convention_by_pattern,
    default_boundaries,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.drafter import Target
from eaglectl.errors import Usage
from eaglectl.formats.format import Answers, Format
from eaglectl.formats.keys import Keys

# trainers that do not write the layers they trained on, and whose recipes may change them
UNSTATED = ("automodel", "modelopt", "modelopt-megatron")
# formats whose top-level ids are boundaries, whatever eagle_config says
TOP_IS_BOUNDARIES = ("vllm", "speculators", "peagle")


def read_aux_layers(keys: Keys, format: Format, count: int, target: Target, answers: Answers) -> AuxLayers:
    """The aux layers of a drafter whose `fc` takes `count` of them. Raises Usage when --aux-layers does not fit."""
    top, nested, v2 = (keys.take_ids(key) for key in ("top_ids", "nested_ids", "layer_ids"))
    if answers.aux_layers is not None:
        return _from_user(answers, count, target)
    ids, convention, how = _stated(keys, format, top, nested, v2, target, answers)
    if ids is None:
        return _default(keys, format, count, target)
    if convention is None:
        return AuxLayers(count, None, False, how, ids)
    boundaries, order = sorted_order(to_boundaries(ids, convention))
    if format.orders_ids:
        order = None
    depth = target.depth
    if len(ids) != count:
        keys.say(
            "problem",
            "aux layers",
            f"{len(ids)} aux layer ids {list(ids)} and an fc that takes {count} states; pass --aux-layers",
            "aux-count",
        )
    if depth is not None and max(boundaries) > depth:
        keys.say(
            "problem",
            "aux layers",
            f"boundary {max(boundaries)} is past the target's {depth} layers (ids {list(ids)} read as {convention});"
            " pass --aux-convention or --aux-layers",
            "aux-range",
        )
    if order:
        keys.say(
            "warning",
            "aux layers",
            f"ids {list(ids)} are not ascending and distinct; engines sort them and permute fc's inputs in silence,"
            " convert reorders fc to match",
            "aux-repeated" if len(boundaries) < len(ids) else "aux-order",
        )
    is_default = depth is not None and boundaries == default_boundaries(depth)
    return AuxLayers(count, boundaries, is_default, how, ids, convention, order)


def _from_user(answers: Answers, count: int, target: Target) -> AuxLayers:
    given = answers.aux_layers or ()
    convention: Convention = answers.aux_convention or "boundary"
    boundaries = to_boundaries(given, convention)
    if len(given) != count or sorted(set(boundaries)) != list(boundaries):
        raise Usage(
            f"--aux-layers {','.join(map(str, given))}: fc takes {count} states, so {count} ascending layers are needed"
        )
    if target.depth is not None and boundaries[-1] > target.depth:
        raise Usage(f"--aux-layers: boundary {boundaries[-1]} is past the target's {target.depth} layers")
    is_default = target.depth is not None and boundaries == default_boundaries(target.depth)
    return AuxLayers(count, boundaries, is_default, "given by --aux-layers", given, convention)


def _stated(
    keys: Keys, format: Format, top: tuple[int, ...] | None, nested: tuple[int, ...] | None, v2: tuple[int, ...] | None,
    target: Target, answers: Answers,
) -> tuple[tuple[int, ...] | None, Convention | None, str]:  # fmt: skip
    if top and nested and nested == tuple(j - 1 for j in top):
        return top, "boundary", "top-level ids, which nested ids one lower confirm (SGLang adds one)"
    if top and nested and top != nested:
        text = (
            f"config gives ids {list(top)} at the top and {list(nested)} in eagle_config, which agree in no convention"
        )
        if format.name not in TOP_IS_BOUNDARIES:
            keys.say("question", "aux layers", f"{text}; pass --aux-layers", "aux-lists")
            return top, None, "two lists that disagree"
        if sorted(nested) not in ([j - 1 for j in sorted(top)], sorted(top)):
            keys.say("warning", "aux layers", f"{text}; those at the top are believed", "aux-lists")
    ids, place = (
        (top, "top-level ids") if top else (nested, "ids in eagle_config") if nested else (v2, "eagle_config.layer_ids")
    )
    if ids is None:
        return None, None, "no ids"
    if answers.aux_convention:
        return ids, answers.aux_convention, f"{place}, read as --aux-convention {answers.aux_convention}"
    pattern = convention_by_pattern(ids, target.depth)
    if pattern and format.aux_convention in (None, pattern):
        return ids, pattern, f"{place}; the numbers fit a target of {target.depth} layers only as {pattern} ids"
    if max(ids) == target.depth:
        return ids, "boundary", f"{place}; {max(ids)} is the target's depth, which no output id can be"
    if ids is v2:
        return ids, "boundary", f"{place}, vLLM's own key"
    if format.name == "vllm" and top:
        return ids, "boundary", f"{place}, in a file that states everything vLLM reads"
    # lmsys and nvidia ids begin with 1 and have been copied into speculators configs unchanged (formats.md, 2.3)
    is_suspect = pattern is not None or (format.aux_convention == "boundary" and ids[0] == 1 and len(ids) == 3)
    is_believed = format.is_signed or target.depth is not None
    if format.aux_convention and is_believed and not is_suspect:
        return ids, format.aux_convention, f"{place}; {format.title} writes {_words(format.aux_convention)}"
    why = f"{list(ids)} may be boundaries or outputs of layers"
    if not target.depth:
        why += ", and the target's depth, which might tell, is not known"
    keys.say(
        "question",
        "aux layers",
        f"{place} {why}; pass --aux-convention boundary or output" + ("" if target.depth else ", or --target"),
        "aux-convention",
    )
    return ids, None, f"{place}, in an unknown convention"


def _default(keys: Keys, format: Format, count: int, target: Target) -> AuxLayers:
    if count != 3:
        keys.say(
            "question",
            "aux layers",
            f"fc takes {count} aux states and config names no layers; pass --aux-layers with {count} boundaries",
            "aux-count",
        )
        return AuxLayers(count, None, False, "not stated")
    if format.name in UNSTATED:
        keys.say(
            "warning",
            "aux layers",
            f"{format.title} may train on other layers than the default and this config names none; if the recipe set"
            " them, pass --aux-layers",
            "aux-ids-doubted",
        )
    boundaries = default_boundaries(target.depth) if target.depth else None
    if boundaries is not None and (boundaries[0] >= boundaries[1] or boundaries[1] >= boundaries[2]):
        keys.say(
            "question",
            "aux layers",
            f"config names no layers, and the default of a target of {target.depth} layers is no three; pass"
            " --aux-layers",
            "aux-range",
        )
        return AuxLayers(count, None, False, "not stated")
    return AuxLayers(count, boundaries, True, "no ids: the default (2, n//2, n-3)")


def by_record(keys: Keys, aux: AuxLayers, recorded: object, target: Target) -> AuxLayers:
    """The aux layers, their convention settled by the boundaries that eaglectl.json records, where the ids still mean those."""
    if aux.boundaries is not None or aux.ids is None or len(aux.ids) != aux.count:
        return aux
    for convention in get_args(Convention):
        boundaries = to_boundaries(aux.ids, convention)
        is_within = target.depth is None or max(boundaries) <= target.depth
        if list(boundaries) == recorded and is_within:
            keys.notes[:] = [note for note in keys.notes if note.topic != "aux-convention"]
            is_default = target.depth is not None and boundaries == default_boundaries(target.depth)
            how = f"{_words(convention)}, as eaglectl.json records"
            return replace(aux, boundaries=boundaries, is_default=is_default, how=how, convention=convention)
    return aux


def _words(convention: Convention) -> str:
    return "boundaries" if convention == "boundary" else "outputs of layers"
