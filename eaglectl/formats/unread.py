"""Questions about config keys that no declaration knows and that may change what the drafter computes."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Choice, Note, question
from eaglectl.files.target_files import TEXT_PARTS
from eaglectl.formats.config_keys import Keys, Reading
from eaglectl.formats.format import Answers, Format

LAYERS = Choice("--aux-layers", meaning="with the boundaries that were trained on", is_free=True)
# objects that describe another part than the drafter's layer
OTHER_OBJECTS = ("quantization_config", "vision_config", "audio_config", *TEXT_PARTS)
# rope settings that vLLM reads (patch_rope_parameters) and trainers of drafters do not; a rule of their own
# reports them
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
# what a name and a value look like that state which target layers the drafter takes
_IDS_NAME = re.compile(r"layer_?(ids?|idx|index|indexes|indices)$|aux.*layer|layer.*aux|capture")
_LIST_NAME = re.compile(r"layer|capture|aux")
_COUNT_NAME = re.compile(r"(^|_)(num|n|count|total|number)(_|$)")
_NORM_NAME = re.compile(r"norm(?!al)")
_ROPE_NAME = re.compile(r"rope|rotary|yarn|mscale")
_MAP_NAME = re.compile(
    r"d2t|t2d|(vocab|token).*map|map.*(vocab|token)|(draft|target)_to_|selected_(token|vocab)"
)
_SCALE_NAME = re.compile(r"softcap|multiplier|scale_(emb|depth)|query_pre_attn")
# what a key of such a name may be, the first that fits
MEANINGS = (
    (_MAP_NAME, "a vocabulary map"),
    (_ROPE_NAME, "a rope setting"),
    (_NORM_NAME, "a norm switch"),
    (_SCALE_NAME, "a scale of states"),
)
# keys that match a pattern above and change nothing that an EAGLE-3 drafter computes, whatever their value:
# switches that a tensor decides (q/k norms), keys of MoE, hybrid or DeepSeek targets, trainers' own constants
HARMLESS = frozenset(
    {
        *("mlp_only_layers", "moe_layers", "moe_layer_indices", "dense_layers", "attention_layers"),
        *("attn_layer_indices", "full_attention_layers", "linear_attention_layers", "mamba_layers"),
        *("cross_attention_layers", "sliding_window_layers", "window_layers", "hidden_layers"),
        *("norm_topk_prob", "use_qk_norm", "qk_norm", "qk_layernorm", "attention_qk_norm"),
        *("norm_before_gate", "layer_norm_eps", "layer_norm_epsilon", "max_grad_norm"),
        *("rope_interleave", "qk_rope_head_dim", "ffn_dim_multiplier"),
    }
)
# the values at which such a key changes nothing; every other one, 0 and false too, is asked about
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("use_rope", "use_rotary_pos_emb"), (True,)),
    **dict.fromkeys(("use_mrope", "use_yarn", "rope_3d"), (False,)),
    **dict.fromkeys((*PARTIAL, "rope_ratio", "rope_scaling_factor", "mscale", "mscale_all_dim"), (1,)),
    "rope_type": ("default",),
    **dict.fromkeys(("use_input_layernorm_in_first_layer", "use_last_layernorm"), (True,)),
    **dict.fromkeys(("use_mtp_layernorm", "fc_post_norm", "post_fc_norm", "norm_after_fc"), (False,)),
    "norm_type": ("rms", "rmsnorm"),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "lm_head_multiplier"), (1,)),
}


def unread_ids(keys: Keys, taken: Iterable[str], format: Format) -> dict[str, Any]:
    """Keys that are not taken and look like layer ids, with their values."""
    return {place: value for place, value in _unread(keys, taken, format) if _is_ids(_name(place), value)}


def read_others(
    keys: Keys, taken: Collection[str], format: Format, answers: Answers
) -> Reading[Mapping[str, Any]]:
    """The keys that no reader takes, to be carried over; a question on each that may change the network."""
    answer = answers.semantics.get("harmless", "").split(",")
    # what is harmless is not carried either: the next reader would have to ask again
    unread = dict(_unread(keys, taken, format))
    harmless = tuple(place for place in unread if place in answer)
    notes = (_question(place, value, format) for place, value in unread.items() if place not in harmless)
    return Reading(keys.rest((*taken, *harmless)), harmless, tuple(filter(None, notes)))


def _question(place: str, value: Any, format: Format) -> Note | None:
    """The question that a key is whose name looks like a norm switch, a rope setting or a vocabulary map."""
    name = _name(place)
    if not (meaning := _meaning(name, value, is_of_target=format.copies_target)):
        return None
    why = f"config has {place}: {_short(value)}, which is not read and may be {meaning}"
    answer = Choice(
        "--source-semantics", f"harmless={place}", "if it changes nothing that the drafter computes"
    )
    topic = "partial-rotary" if name in PARTIAL else "unread-key"
    return question(place.rpartition(".")[2], why, topic, [answer])


def ids_question(place: str, value: Any) -> Note:
    """The question that layer ids under an unknown key are."""
    why = f"config has {place}: {_short(value)}, which looks like layer ids and is not read"
    if isinstance(value, list) and any(type(item) is int and item < 0 for item in value):
        why = (
            f"config has {place}: {_short(value)}, ids that count from the target's end, as forks of trainers"
            " (AMD Quark) write them; which states they mean, no engine and no trainer states"
        )
    return question("aux layers", why, "unread-key", [LAYERS])


def _unread(keys: Keys, taken: Iterable[str], format: Format) -> Iterator[tuple[str, Any]]:
    retired = {*format.retires, *OTHER_OBJECTS}
    places = keys.all_places(taken)
    for key, value in keys.rest(taken).items():
        if key not in retired:
            yield from _leaves(key, value, places)


def _leaves(place: str, value: Any, taken: set[str]) -> Iterator[tuple[str, Any]]:
    """A key, or the keys of an object; an object whose own name is a match is one value."""
    if not isinstance(value, Mapping) or _IDS_NAME.search(place) or _MAP_NAME.search(place):
        yield place, value
        return
    for name, inner in value.items():
        if f"{place}.{name}" not in taken:
            yield from _leaves(f"{place}.{name}", inner, taken)


def _meaning(name: str, value: Any, *, is_of_target: bool) -> str:
    """What a key that is no layer ids may mean; "" where it is harmless.

    The keys of a copied target are not judged, but for vocabulary maps.
    """
    is_neutral = any(
        value == each and (type(value) is bool) == (type(each) is bool) for each in NEUTRAL.get(name, ())
    )
    if name in HARMLESS or is_neutral or value is None or value in ("", [], {}):
        return ""
    meanings = MEANINGS[:1] if is_of_target else MEANINGS
    return next((meaning for pattern, meaning in meanings if pattern.search(name)), "")


def _is_ids(name: str, value: Any) -> bool:
    if name in HARMLESS or _ROPE_NAME.search(name):
        return False
    if _is_numbers(value):
        return _LIST_NAME.search(name) is not None
    if not _IDS_NAME.search(name) or _COUNT_NAME.search(name):
        return False
    is_text = isinstance(value, str) and any(letter.isdigit() for letter in value)
    return is_text or type(value) is int or (isinstance(value, Mapping) and bool(value))


def _is_numbers(value: Any) -> bool:
    """Whether a value is a list of whole numbers, or of such lists."""
    is_filled = isinstance(value, list) and bool(value)
    return is_filled and all(type(item) is int or _is_numbers(item) for item in value)


def _name(place: str) -> str:
    return place.rpartition(".")[2].lower()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
