"""A config by canonical keys: every spelling of a value, which states it, and what nobody has read."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field

from eaglectl.drafter.drafter import Choice, Level, Note, question
from eaglectl.errors import RefusedError
from eaglectl.files.target_files import TEXT_PARTS
from eaglectl.formats.format import Format

T = TypeVar("T")

# of a parallel drafter, as engines and trainers write it
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dflash_config.mask_token_id")
# the objects in which trainers and engines repeat keys of the top level
OBJECTS = ("eagle_config", "eagle_architecture_config", "transformer_layer_config", "speculators_config")

# canonical key <- the places where trainers and engines state it, the first wins; "a.b" is b inside the
# object a
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "fc_norm": ("fc_norm", "use_aux_norm", "eagle_architecture_config.fc_norm", "eagle_config.fc_norm"),
    "norm_output": (
        "norm_output",
        "eagle_config.return_hidden_post_norm",
        "return_hidden_post_norm",
        "eagle_architecture_config.norm_output",
        "eagle_architecture_config.return_hidden_post_norm",
        "eagle_config.norm_output",
    ),
    "norm_before_fc": (
        "eagle_config.norm_before_fc",
        "norm_before_fc",
        "eagle_architecture_config.norm_before_fc",
    ),
    "norm_before_residual": ("norm_before_residual", "eagle_config.norm_before_residual"),
    "draft_vocab_size": ("draft_vocab_size", "truncated_vocab_size"),
    "num_aux_hidden_states": (
        "num_aux_hidden_states",
        "num_aux_layers",
        "eagle_config.num_aux_hidden_states",
    ),
    "target_hidden_size": ("target_hidden_size", "eagle_config.target_hidden_size"),
    "use_aux_hidden_state": ("eagle_config.use_aux_hidden_state", "use_aux_hidden_state"),
}

# where drafters state the number of layers of their target, at the top level or in eagle_config
TARGET_DEPTH = (
    "target_layer_count",
    "num_target_layers",
    "target_num_hidden_layers",
    "target_num_layers",
    "num_target_hidden_layers",
    "target_model_num_hidden_layers",
    "target_model_num_layers",
)

# what a key that is absent means, because the class the config belongs to says so when it saves only
# differences
# (transformers 5.19, LlamaConfig / Qwen3Config / DeepseekV2Config)
CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu"},
    "qwen3": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "hidden_act": "silu"},
    "mla": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu"},
}


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
_ROPE_NAME = re.compile(r"rope|rotary|yarn|mscale")
_MAP_NAME = re.compile(
    r"d2t|t2d|(vocab|token).*map|map.*(vocab|token)|(draft|target)_to_|selected_(token|vocab)"
)
# what a key of such a name may be, the first that fits
MEANINGS = (
    (_MAP_NAME, "a vocabulary map"),
    (_ROPE_NAME, "a rope setting"),
    (re.compile(r"norm(?!al)"), "a norm switch"),
    (re.compile(r"softcap|multiplier|scale_(emb|depth)|query_pre_attn"), "a scale of states"),
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


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


# the types that a value may be asked for as: in words, and whether it is of them
TYPES: Mapping[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a positive whole number", lambda value: type(value) is int and value > 0),
    float: ("a number", lambda value: type(value) in (int, float)),
    list: ("a list of layer numbers from 0", _are_ids),
    dict: ("an object", lambda value: isinstance(value, Mapping)),
}


def at(config: Mapping[str, Any], place: str) -> Any:
    """The value at "key" or "object.key"; None where there is none, or a null."""
    value: Any = config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Keys(Struct, frozen=True):
    """The keys of a config, and the notes that readers leave on them for the user.

    `own` is the producer's own place of a canonical key; at those of `inverted` the opposite is stated.
    `stored` is the config before its producer's nesting was undone.
    """

    config: Mapping[str, Any]
    own: Mapping[str, str] = field(default_factory=dict)
    inverted: frozenset[str] = frozenset()
    stored: Mapping[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(
        self,
        is_there: object,
        level: Level,
        about: str,
        text: str,
        topic: str = "",
        *,
        names_option: bool = False,
    ) -> None:
        """Leave a note where its condition is true."""
        if is_there:
            self.notes.append(Note(level, about, text, topic, names_option=names_option))

    def places(self, key: str) -> tuple[str, ...]:
        """The places of a canonical key, the producer's own first."""
        own = (self.own[key],) if key in self.own else ()
        return (*own, *SPELLINGS.get(key, (key,)))

    def spelling(self, key: str) -> str:
        """A canonical key as this config has it, or as its producer writes it."""
        return next(iter(self.statements(key)), self.own.get(key, key))

    def statements(self, key: str) -> dict[str, Any]:
        """The values of a canonical key by place, the one that is read first; `inverted` ones as meant.

        Another value in an object where nothing reads it counts beside one that is read.
        """
        values = {place: value for place in self.places(key) if (value := at(self.config, place)) is not None}
        own = self.own.get(key, "")
        if key in self.inverted and isinstance(values.get(own), bool):
            values[own] = not values[own]
        if values and key in SPELLINGS:
            first = next(iter(values.values()))
            for place in (f"{name}.{key}" for name in OBJECTS):
                if (other := at(self.stored, place)) not in (None, first):
                    values.setdefault(place, other)
        return values

    def contradiction(self, key: str) -> tuple[str, str]:
        """What the first two places say that state other values of a canonical key, and the second place."""
        values = self.statements(key)
        first = next(iter(values), "")
        if not (other := next((place for place in values if values[place] != values[first]), "")):
            return "", ""
        return f"config.json says {first}: {values[first]!r} and {other}: {values[other]!r}", other

    def disbelieved(self, key: str, evidence: str) -> bool:
        """Whether two places state other values; a warning then says that `evidence` is believed."""
        contradiction, _ = self.contradiction(key)
        text = f"{contradiction}; {evidence}, which is believed"
        self.note(contradiction, "warning", key, text, "spellings-agree")
        return bool(contradiction)

    def value(self, key: str) -> Any:
        """The value of a canonical key under any of its spellings; None when absent.

        Raises RefusedError where two places state other values.
        """
        contradiction, place = self.contradiction(key)
        if contradiction:
            raise RefusedError(f"{contradiction}; make them agree", "spellings-agree", f"config.json:{place}")
        return next(iter(self.statements(key).values()), None)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The same of one of TYPES. Raises RefusedError for a value of another type too."""
        value: T | None = self.value(key)
        expected, is_right = TYPES[kind]
        if value is not None and not is_right(value):
            text = f"config.json: {key} is {value!r}; {expected} was expected"
            raise RefusedError(text, "value-types", f"config.json:{key}")
        return value

    def all_places(self, keys: Iterable[str]) -> set[str]:
        """The places of these keys, and those of contrary statements of them."""
        return {place for key in set(keys) for place in (*self.places(key), *self.statements(key))}

    def rest(self, taken: Iterable[str]) -> dict[str, Any]:
        """All keys that are not at a place of the taken ones, and such parts of objects; no nulls."""
        places = self.all_places(taken)
        left: dict[str, Any] = {}
        for key, value in self.config.items():
            if isinstance(value, Mapping) and any(place.startswith(f"{key}.") for place in places):
                value = {
                    name: inner for name, inner in value.items() if f"{key}.{name}" not in places
                } or None
            if key not in places and value is not None:
                left[key] = value
        return left

    def unread(self, taken: Iterable[str], format: Format) -> dict[str, Any]:
        """The values by place that no reader takes and that may be the drafter's.

        An object whose own name looks like layer ids or a map is one value.
        """
        retired = {*format.retires, *OTHER_OBJECTS}
        left = [(key, value) for key, value in self.rest(taken).items() if key not in retired]
        unread: dict[str, Any] = {}
        for place, value in left:  # which grows by the keys of objects
            if isinstance(value, Mapping) and not (_IDS_NAME.search(place) or _MAP_NAME.search(place)):
                left += [(f"{place}.{key}", inner) for key, inner in value.items()]
            else:
                unread[place] = value
        return unread


def mask_token(config: Mapping[str, Any]) -> Any:
    """The mask token of a parallel drafter, under any key that vLLM reads; None without."""
    return next((value for key in MASK_KEYS if (value := at(config, key)) is not None), None)


def are_ids(place: str, value: Any) -> bool:
    """Whether a value that nobody reads looks like layer ids."""
    name = _name(place)
    if name in HARMLESS or _ROPE_NAME.search(name):
        return False
    if _is_numbers(value):
        return _LIST_NAME.search(name) is not None
    if not _IDS_NAME.search(name) or _COUNT_NAME.search(name):
        return False
    is_text = isinstance(value, str) and any(letter.isdigit() for letter in value)
    return is_text or type(value) is int or (isinstance(value, Mapping) and bool(value))


def ids_question(place: str, value: Any) -> Note:
    """The question that layer ids under an unknown key are."""
    why = "which looks like layer ids and is not read"
    if isinstance(value, list) and any(type(item) is int and item < 0 for item in value):
        why = (
            "ids that count from the target's end, as forks of trainers (AMD Quark) write them; which states"
            " they mean, no engine and no trainer states"
        )
    return question("aux layers", f"config has {place}: {_short(value)}, {why}", "unread-key", [LAYERS])


def unread_questions(unread: Mapping[str, Any], format: Format) -> list[Note]:
    """A question on each unread key whose name looks like a norm switch, a rope setting or a vocabulary map.

    The keys of a copied target are not judged, but for vocabulary maps.
    """
    notes = []
    meanings = MEANINGS[:1] if format.copies_target else MEANINGS
    for place, value in unread.items():
        name = _name(place)
        meaning = next((meaning for pattern, meaning in meanings if pattern.search(name)), "")
        neutral = [each for each in NEUTRAL.get(name, ()) if (type(value) is bool) == (type(each) is bool)]
        if meaning and name not in HARMLESS and value not in (None, "", [], {}, *neutral):
            why = f"config has {place}: {_short(value)}, which is not read and may be {meaning}"
            topic = "partial-rotary" if name in PARTIAL else "unread-key"
            meaning = "if it changes nothing that the drafter computes"
            answer = Choice("--source-semantics", f"harmless={place}", meaning)
            notes.append(question(place.rpartition(".")[2], why, topic, [answer]))
    return notes


def _is_numbers(value: Any) -> bool:
    """Whether a value is a list of whole numbers, or of such lists."""
    is_filled = isinstance(value, list) and bool(value)
    return is_filled and all(type(item) is int or _is_numbers(item) for item in value)


def _name(place: str) -> str:
    return place.rpartition(".")[2].lower()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
