"""What config and tensors say of the network: aux layers, norm switches, rope and settings.

Layer ids become boundaries by the user's answer, the numbers themselves or the producer; else it is asked.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, TypeAlias, get_args

from msgspec.structs import replace

from eaglectl.drafter.drafter import (
    DOUBLE_NORM,
    HIDDEN_NORM,
    ONE_NORM,
    TRAINING_DEFAULT,
    TWICE,
    AuxLayers,
    Choice,
    Convention,
    Norms,
    Note,
    Rope,
    Target,
    convention_by_pattern,
    question,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor, is_quantised_part
from eaglectl.errors import RefusedError, UnreadableError, UsageError, check
from eaglectl.files.budgets import MAX_DEPTH, MAX_MODULES, MAX_NAME, MAX_STEPS
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.config_keys import (
    CLASS_EPS,
    LAYERS,
    MAX_NUMBER,
    POSITIONS,
    ROPE_TABLES,
    Keys,
    at,
    ids_question,
)
from eaglectl.formats.format import (
    NESTED_IDS,
    STORED,
    TOP_IDS,
    Answers,
    CheckpointSummary,
    Format,
    RopeAnswer,
    rope_question,
)
from eaglectl.text import listed

# what marks an expression among names of modules; groups that repeat, or letters whose blanks do not count,
# where comparing may take exponential time; bits of the length of a module's name; and
# steps to compile one
EXPRESSION, NESTED = "re:", r"\)\s*[*+{]|\(\?[a-zA-Z-]*x"
NAME_BITS, LEAST_STEPS = 6, 1 << 17
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


# switches whose norms have tensors; an answer can only be that none was trained
TENSOR_FLAGS = ("fc_norm", "norm_before_fc")
# of biases
UNTRUE = (
    "config says {key}: true and the file has no such bias; vLLM would add uninitialised memory; convert"
    " writes false"
)
UNSTATED = (
    "the file has biases and config does not say {key}: true; vLLM silently drops them; convert writes true"
)


def read_norms(
    keys: Keys,
    format: Format,
    summary: CheckpointSummary,
    answers: Answers,
    tensors: Mapping[str, Tensor],
    dims: Dimensions,
) -> Norms:
    """Read the four norm switches; norm_output is None if the user must answer it."""
    norms, joint = len(list(filter(NORM.fullmatch, tensors))), int("input_norm.weight" in tensors)
    fc_norm = _read_tensor_flag(
        keys, answers, "fc_norm", f"{dims.aux} fc_norm.N.weight", count=norms, needed=dims.aux
    )
    before_fc = _read_tensor_flag(keys, answers, "norm_before_fc", "input_norm.weight", count=joint, needed=1)
    keys.note(
        fc_norm and before_fc,
        "warning",
        "norms",
        "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm",
        "both-norms",
    )
    hidden = answers.semantics.get("hidden_norm")
    twice = format.hidden_twice(summary, answers) if hidden is None else hidden == "twice"
    return Norms(
        fc_norm,
        before_fc,
        _read_norm_output(keys, format, summary, answers, has_fc_norm=fc_norm),
        _read_residual(keys, format, answers),
        twice,
    )


def norms_by_record(keys: Keys, norms: Norms, producer: str, twice: object) -> Norms:
    """Return the switches, with hidden_twice from eaglectl.json if the files leave it open."""
    if norms.hidden_twice is not None or not isinstance(twice, bool):
        return norms
    keys.notes[:] = [note for note in keys.notes if note.topic != DOUBLE_NORM]
    if twice:
        keys.notes.append(
            Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, producer, is_open=True, advice=ONE_NORM)
        )
    return replace(norms, hidden_twice=twice)


def _read_norm_output(
    keys: Keys, format: Format, summary: CheckpointSummary, answers: Answers, *, has_fc_norm: bool
) -> bool | None:
    # by the user, then the producer, then the config; None, with a question, if it stays open
    key = "norm_output"
    from_config = _read_flag(keys, key, answers)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    if any(keys.contradiction(key)):  # it is asked
        return None
    if format.norm_output:
        return format.norm_output(summary, from_config, answers)
    if from_config is not None or not has_fc_norm:
        return bool(from_config)
    choices = (
        Choice("--source-semantics", "norm_output=true", "EAGLE-3.1"),
        Choice("--source-semantics", "norm_output=false", "EAGLE-3 with fc_norm"),
    )
    keys.notes.append(
        question(key, "fc_norm is trained in and config has no norm_output", "norm-output-unknown", choices)
    )
    return None


def _read_residual(keys: Keys, format: Format, answers: Answers) -> bool:
    # norm_before_residual by the user, then the config, then the producer's default
    key, usual = "norm_before_residual", format.residual_default
    from_config = _read_flag(keys, key, answers, usual)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    keys.note(
        from_config is None and usual,
        "note",
        key,
        f"config has no {key}; in {format.title}'s files that means true",
    )
    return usual if from_config is None else from_config


def _read_flag(keys: Keys, key: str, answers: Answers, usual: bool | None = None) -> bool | None:
    """Read a switch that no tensor decides; None, and a question, if two places contradict each other.

    `usual` is the producer's value if nothing is set; None: it has none.
    """
    contradiction, _ = keys.contradiction(key)
    if not contradiction:
        return keys.get(key, bool)
    if key not in answers.semantics:
        choices = [
            Choice("--source-semantics", f"{key}={str(value).lower()}", is_usual=value is usual)
            for value in (True, False)
        ]
        keys.notes.append(question(key, contradiction, "spellings-agree", choices))
    return None


def _question_of_tensor(flag: str, contradiction: str, tensor: str) -> Note:
    meaning = "if none was trained; else restore the tensor from the trainer"
    choice = Choice("--source-semantics", f"{flag}=false", meaning)
    return question(flag, f"{contradiction}, and the file has no {tensor}", "spellings-agree", [choice])


# whether a norm is there, by its tensors: a flag without tensors is refused, as engines would use ones
def _read_tensor_flag(
    keys: Keys, answers: Answers, flag: str, tensor: str, *, count: int, needed: int
) -> bool:
    name, where = keys.spelling(flag), f"config.json:{keys.spelling(flag)}"
    check(
        (
            count and count != needed,
            f"the file has {count} of {needed} {flag} tensors; engines would fill the others with ones",
            "norm-tensor-missing",
            where,
        ),
        error=RefusedError,
    )
    answer = answers.semantics.get(flag)
    check(
        (
            answer and count,
            f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained",
            ("--source-semantics",),
        )
    )
    contradiction, _ = keys.contradiction(flag)
    if contradiction and count:
        return keys.disbelieved(flag, f"the file has {tensor}")
    if contradiction and not answer:
        keys.notes.append(_question_of_tensor(flag, contradiction, tensor))
    if contradiction or answer:
        return False
    from_config = keys.get(flag, bool)
    check(
        (
            from_config and not count,
            f"config says {name}: true and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            where,
        ),
        error=RefusedError,
    )
    keys.note(
        count and from_config is False,
        "problem",
        flag,
        f"config says {name}: false and the file has {tensor}; one of them is wrong",
        "norm-flag-missing",
    )
    keys.note(
        count and from_config is None, "note", flag, f"config has no {name}; the file's tensors say true"
    )
    return bool(count)


def _absent_eps(keys: Keys, format: Format, answers: Answers) -> float:
    # the trainer's epsilon for a config without one; a question where the producer has none
    key = "rms_norm_eps"
    about, answer = f"config has no {key}", answers.semantics.get(key)
    if answer is None and not format.has_config_class:
        meanings = {"1e-06": "of the config class", "1e-05": "of Llama 3 and Mistral"}
        choices = [
            Choice("--source-semantics", f"{key}={value}", meaning, is_usual=value == "1e-06")
            for value, meaning in meanings.items()
        ]
        keys.notes.append(question(key, f"{about}, and the trainer is unknown", "absent-epsilon", choices))
        return CLASS_EPS
    who = "the answer is" if answer else f"the default of {format.title}'s config class is"
    value = float(answer or CLASS_EPS)
    keys.note(True, "note", key, f"{about}; {who} {value:g}, which is written")
    return value


def read_settings(
    keys: Keys, format: Format, answers: Answers, tensors: Mapping[str, Tensor], rope: Rope
) -> Mapping[str, Any]:
    """Read the values that every layout states.

    An absent one is what the trainer's code means by its absence. Positions that no scaling implies are None
    and are left out.
    """
    settings: dict[str, Any] = {
        "rms_norm_eps": keys.get("rms_norm_eps", float),
        "max_position_embeddings": keys.get("max_position_embeddings", int),
        "hidden_act": keys.value("hidden_act"),
    }
    if settings[POSITIONS] is None:
        settings[POSITIONS] = rope.positions
        what = "the trained number is unknown, so it is left out and engines use the default of their class"
        if rope.positions is not None:
            what = f"the rope scaling implies {rope.positions}, which is written"
        keys.note(True, "note", POSITIONS, f"config has no {POSITIONS}; {what}")
    if settings["hidden_act"] is None:  # the one that every trainer of EAGLE-3 and every engine takes
        settings["hidden_act"] = "silu"
    if settings["rms_norm_eps"] is None:
        settings["rms_norm_eps"] = _absent_eps(keys, format, answers)
    for key, part in {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}.items():
        has = any(part in name and name.endswith(".bias") for name in tensors)
        keys.note(
            bool(keys.get(key, bool)) != has,
            "warning",
            key,
            (UNSTATED if has else UNTRUE).format(key=key),
            "bias-flag",
        )
    return settings


def read_quantisation(keys: Keys, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return the quantisation config if the file really holds quantised weights, else None."""
    key = "quantization_config"
    from_config = keys.get(key, dict) or checkpoint.sidecars.get(QUANTISATION)
    _check_expressions(list(_texts(from_config)))
    inner = (from_config or {}).get("quantization")
    table = inner if isinstance(inner, Mapping) else from_config or {}
    # ModelOpt's null, which vLLM 0.33 and SGLang 0.5.23 read as no quantisation
    if "quant_algo" in table and table["quant_algo"] is None and not table.get("quant_method"):
        from_config = None
    # numbers of 8 bits are a quantiser's where the config has one, with their scales or without
    has_parts = any(
        is_quantised_part(name) or (from_config and tensor.dtype.startswith("F8"))
        for name, tensor in checkpoint.tensors.items()
    )
    if has_parts == (from_config is not None):
        return from_config
    text = (
        "config has a quantization_config and the file has no quantised weight; engines would look for"
        " scales that are not there; convert leaves it out"
    )
    if has_parts:
        text = (
            "the file has quantisation scales and no quantization_config; engines would read the weights"
            " without scales"
        )
    keys.note(True, "warning", key, text, "quantisation-config")
    return {} if has_parts else None


def _texts(value: Any) -> Iterator[str]:
    # the texts in lists of a JSON value, and the expressions that are GPTQModel's keys
    if isinstance(value, Mapping):
        yield from (f"{EXPRESSION}{key[2:]}" for key in value if key.startswith(("-:", "+:")))
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from (item,) if isinstance(item, str) else _texts(item)


def _check_expressions(names: Sequence[str]) -> None:
    """Raise UnreadableError for more names of modules, or expressions, than are compared in seconds."""
    longest, what = max(map(len, names), default=0), "the quantisation config has"
    check(
        (len(names) > MAX_MODULES, f"{what} {len(names)} names; at most {MAX_MODULES} are compared"),
        (longest > MAX_NAME, f"{what} a name of {longest} characters; at most {MAX_NAME} are compared"),
        error=UnreadableError,
    )
    steps = 0
    for text in (name for name in names if name.startswith(EXPRESSION)):
        steps += _steps(text)
        words = f"{what} {text[:80]}, which may take hours to compare: write the modules' names"
        check((steps > MAX_STEPS, words), error=UnreadableError)


def _steps(text: str) -> int:
    """Return the steps that comparing an expression may take; more than MAX_STEPS if they have no bound."""
    powers, choices = len(re.findall(r"[*+{]", text)), len(re.findall(r"(?<!\()\?|\|", text))
    steps = max(LEAST_STEPS, 1 << min(NAME_BITS * powers + choices, 99))
    if re.search(NESTED, text) or steps > MAX_STEPS or text.count("(") > MAX_DEPTH:
        return MAX_STEPS + 1
    with warnings.catch_warnings(action="ignore"), suppress(re.error):  # EGL802 reports it
        try:
            re.compile(text.removeprefix(EXPRESSION))
        except OverflowError:
            return MAX_STEPS + 1
    return steps


PART = "partial_rotary_factor"


def rope_keys(keys: Keys, answers: Answers) -> tuple[str, ...]:
    """Return the config keys that the rope is read from."""
    # SGLang reads the part that rotates at the top alone, where a copy stands of that in the object
    part = at(keys.config, PART)
    is_copied = part not in (None, 1) and any(
        at(keys.config, f"{name}.{PART}") == part for name in ROPE_TABLES
    )
    is_read = is_copied or _top_part(keys.config, answers) is not None
    return ("rope_theta", *ROPE_TABLES, *((PART,) if is_read else ()))


def _top_part(config: Mapping[str, Any], answers: Answers) -> float | None:
    # the rotated part that the top of a config states, if an answer says what was trained
    part, answer = config.get(PART), RopeAnswer.of(answers).scaling
    return part if answer in ("stored", "plain") and type(part) is float and 0 < part < 1 else None


def _with_part(scaling: Mapping[str, Any] | None, part: float | None) -> Mapping[str, Any] | None:
    # a rope scaling with this rotated part, unless it states one itself
    return scaling if part is None else {"rope_type": "default", PART: part, **(scaling or {})}


def read_rope(
    keys: Keys,
    answers: Answers | None = None,
    target: Target | None = None,
    *,
    is_mla: bool,
    has_mla_factors: bool = True,
) -> Rope:
    """Read the rope of a config with the user's answers; every loader takes an absent base as 10000.

    Raises RefusedError for impossible values, and UsageError if the target's rope is chosen and unknown.
    """
    answers = answers or Answers()
    answer, theta = RopeAnswer.of(answers), keys.get("rope_theta", float)
    tables = {name: keys.get(name, dict) or {} for name in ROPE_TABLES}
    if any(isinstance(value, Mapping) for value in tables["rope_parameters"].values()):
        # settings of each layer type, as targets with sliding windows have them
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, and no EAGLE-3 class reads that; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    bases = {"rope_theta": theta, **{f"{name}.rope_theta": at(tables[name], "rope_theta") for name in tables}}
    bases = {place: base for place, base in bases.items() if base is not None}
    for place, base in bases.items():
        _check_number(place, base, place.partition(".")[0])
    scalings = {
        name: scaling for name, table in tables.items() if (scaling := _checked_scaling(table)) is not None
    }
    _ask_contradictions(keys, answers, bases, scalings)
    keys.note(
        not bases,
        "note",
        "rope_theta",
        "config has no rope_theta; every loader then uses 10000, which is written",
    )
    base, scaling = next(iter(bases.values()), 10000.0), next(iter(scalings.values()), None)
    scaling = _with_part(scaling, _top_part(keys.config, answers))
    is_interleaved = is_mla and _is_interleaved(keys, answers.semantics.get("rope_interleave"))
    rope = Rope(base, scaling, is_interleaved, has_mla_factors)
    positions = keys.config.get(POSITIONS)
    return _with_answers(
        rope, answer, {"llama3": _as_llama3(scaling, positions), **scalings}, target or Target()
    )


def partial_rotary(config: Mapping[str, Any], answers: Answers) -> Iterator[Note]:
    """Yield a question if the config states that a part of each head is rotated.

    speculators since pull 733 (0.7.0) keeps the key with --no-draft-mrope-full-head-hack and trains so
    (rotary_partial.py); its older releases and all other trainers of EAGLE-3 rotate whole heads.
    """
    tables = [table for name in ROPE_TABLES if isinstance(table := config.get(name), Mapping)]
    shares = [table.get(PART, 1) for table in tables if table.get("rope_type") != "proportional"]
    shares.append(_top_part(config, answers) or 1)
    if not (parts := [share for share in shares if share != 1]):
        return
    about = (
        f"config states {PART} {parts[0]}: speculators since 0.7.0 keeps it if it trained that part of each"
        " head (--no-draft-mrope-full-head-hack); other trainers and its older releases copied it from the"
        " target and rotated whole heads; vLLM rotates that part"
    )
    if (answer := RopeAnswer.of(answers).scaling) is None:
        values = {"stored": STORED, "plain": "whole heads were rotated"}
        yield rope_question(answers, "rope_scaling", about, "partial-rotary", values)
    else:
        outcome = "no scaling is written" if answer == "plain" else "the key is kept"
        yield Note("note", "rope_scaling", f"{about}; {outcome}", "partial-rotary")


def _as_llama3(scaling: Mapping[str, Any] | None, positions: Any) -> Mapping[str, Any]:
    # llama3's schedule with the numbers of another scaling, as Automodel's LlamaRotaryEmbedding had it
    defaults = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    numbers = {**defaults, "original_max_position_embeddings": positions} | dict(scaling or {})
    names = (*defaults, "original_max_position_embeddings")
    return {"rope_type": "llama3", **{name: numbers[name] for name in names}}


def _with_answers(
    rope: Rope, answer: RopeAnswer, scalings: Mapping[str, Mapping[str, Any]], target: Target
) -> Rope:
    # the rope with the user's base and scaling in the place of the file's
    target_rotary = target.rope
    if target_rotary is None and "target" in (answer.base, answer.scaling):
        advice = "pass --target to read its rope"
        if target.hidden is not None:
            advice = "the target's config states no rope base, or several; pass rope=N with its base"
        raise UsageError(f"--source-semantics rope=target: {advice}", options=("--source-semantics",))
    if answer.base not in (None, "stored"):
        rope = replace(
            rope,
            theta=target_rotary.theta if target_rotary and answer.base == "target" else float(answer.base),
        )
    scalings_by_answer = {
        "plain": None,
        "target": target_rotary.scaling if target_rotary else None,
        **scalings,
    }
    return replace(rope, scaling=scalings_by_answer.get(answer.scaling or "", rope.scaling))


def _ask_contradictions(
    keys: Keys, answers: Answers, bases: Mapping[str, float], scalings: Mapping[str, Mapping[str, Any]]
) -> None:
    # ask about bases and scalings that config.json states twice, and differently
    answer = RopeAnswer.of(answers)
    if answer.base in (None, "stored") and len(set(bases.values())) > 1:
        listed = " and ".join(f"{place}: {base:g}" for place, base in bases.items())
        values = {f"{int(base)}": place for place, base in bases.items() if base == int(base)}
        keys.notes.append(
            rope_question(answers, "rope_theta", f"config.json says {listed}", "rope-spellings", values)
        )
    is_contradiction = len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]
    if answer.scaling in (None, "stored") and is_contradiction:
        listed = " and ".join(f"{name}: {dict(scaling)}" for name, scaling in scalings.items())
        values = {**dict.fromkeys(scalings, "as it stands there"), "plain": "none was trained"}
        keys.notes.append(
            rope_question(
                answers,
                "rope_scaling",
                f"config.json describes two scalings, {listed}",
                "rope-spellings",
                values,
            )
        )


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """Return the rope of a target's text model; None if its config states no base or several, or leaves a
    question on it open.
    """
    keys = Keys(config)
    if all(at(config, place) is None for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        rope = read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None
    return None if any(note.level == "question" for note in keys.notes) else rope


def _check_number(what: str, value: object, place: str = "rope_scaling") -> None:
    check(
        (
            type(value) not in (int, float),
            f"config.json: {what} is {value!r}; a number was expected",
            "rope-values",
            f"config.json:{place}",
        ),
        error=RefusedError,
    )


def _is_interleaved(keys: Keys, answer: str | None) -> bool:
    """Whether an MLA drafter's weights pair neighbouring dimensions, as all engines and most trainers do.

    The problem of dimensions that are paired by halves is noted.
    """
    from_config = keys.get("rope_interleave", bool)
    is_interleaved = from_config is not False if answer is None else answer == "true"
    who, others = "the rotary dimensions are paired by halves, as answered", ""
    remedies: tuple[str, ...] = ("--rope-style interleaved",)
    if answer is None:
        who = "config says rope_interleave: false"
        others = ", or --source-semantics rope_interleave=true if they are interleaved already"
        remedies += ("--source-semantics",)
    keys.note(
        not is_interleaved,
        "problem",
        "rope_interleave",
        f"{who}, and engines rotate MLA drafters interleaved",
        "rope-pairing",
        f"; pass --rope-style interleaved to reorder the rows{others}",
        remedies,
    )
    return is_interleaved


def _checked_scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    # the scaling with one name for its type; None for the default, which scales nothing
    kind = raw.get("rope_type", raw.get("type", "default"))
    check(
        (
            not isinstance(kind, str),
            f"config.json: rope_type is {kind!r}; a name was expected",
            "rope-values",
            "config.json:rope_scaling",
        ),
        error=RefusedError,
    )
    _check_number("the rope scaling's factor", raw.get("factor", 1))
    _check_number(PART, raw.get(PART, 1))
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    if kind == "linear" and 0 < rest.get("factor", 0) < MAX_NUMBER:
        rest["factor"] = float(rest["factor"])  # vLLM takes no int (linear_scaling_rope.py 0.32.0:70)
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
