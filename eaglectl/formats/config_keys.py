"""The keys of configs: their spellings and kinds, what they mean, and what nobody has read."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

from msgspec import Struct, field

from eaglectl.drafter.drafter import Choice, Level, Note, question
from eaglectl.errors import RefusedError, check
from eaglectl.files.text_part import TEXT_PARTS
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

# what absent keys mean to transformers' config classes, which trainers and engines make of config.json
# (5.19: LlamaConfig, Qwen3Config, DeepseekV2Config)
POSITIONS, CLASS_EPS = "max_position_embeddings", 1e-6
CLASS_POSITIONS: Mapping[str, int] = {"llama": 2048, "qwen3": 32768, "mla": 2048}


LAYERS = Choice("--aux-layers", meaning="with the boundaries that were trained on", is_free=True)
# objects that describe another part than the drafter's layer
OTHER_OBJECTS = ("quantization_config", "vision_config", "audio_config", *TEXT_PARTS)
# rope settings that vLLM reads (patch_rope_parameters) and trainers of drafters do not; a rule of their own
# reports them
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
# the keys under which quantisers list the modules that they exclude
EXCLUDE_KEYS = ("ignore", "exclude_modules", "exclude", "ignored_layers", "modules_to_not_convert")
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
KEYS_WITHOUT_EFFECT = frozenset(
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


# the types that a value may be asked for as: in words, and whether it is of them
TYPES: Mapping[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a positive whole number", lambda value: type(value) is int and value > 0),
    float: ("a number", lambda value: type(value) in (int, float)),
    list: (
        "a list of layer numbers from 0",
        lambda value: (
            isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)
        ),
    ),
    dict: ("an object", lambda value: isinstance(value, Mapping)),
}


def at(config: Mapping[str, Any], place: str) -> Any:
    """Return the value at a path such as "eagle_config.fc_norm"; None if it is absent or null."""
    value: Any = config
    for key in place.split("."):
        # most are dicts, and the test for a Mapping is slow
        value = value.get(key) if type(value) is dict or isinstance(value, Mapping) else None
    return value


class Keys(Struct, frozen=True):
    """The keys of a config, and the notes that readers leave on them for the user.

    `stored` is the config before its producer's nesting was undone.
    """

    config: Mapping[str, Any]
    stored: Mapping[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(
        self,
        is_there: object,
        level: Level,
        about: str,
        why: str,
        topic: str = "",
        advice: str = "",
        remedies: tuple[str, ...] = (),
    ) -> None:
        """Add a note if its condition is true."""
        if is_there:
            self.notes.append(Note(level, about, why, topic, advice=advice, remedies=remedies))

    def spelling(self, key: str) -> str:
        """Return the spelling of a canonical key in this config."""
        return next(iter(self.statements(key)), key)

    def statements(self, key: str) -> dict[str, Any]:
        """Return the values of a canonical key by place, the one that is read first.

        A different value in an object that nothing reads is included too.
        """
        places = SPELLINGS.get(key, (key,))
        values = {place: value for place in places if (value := at(self.config, place)) is not None}
        if values and key in SPELLINGS:
            first = next(iter(values.values()))
            for place in (f"{name}.{key}" for name in OBJECTS):
                if (other := at(self.stored, place)) not in (None, first):
                    values.setdefault(place, other)
        return values

    def contradiction(self, key: str) -> tuple[str, str]:
        """Return how two places contradict each other on a canonical key, and the second; or "" twice."""
        values = self.statements(key)
        first = next(iter(values), "")
        if not (other := next((place for place in values if values[place] != values[first]), "")):
            return "", ""
        return f"config.json says {first}: {values[first]!r} and {other}: {values[other]!r}", other

    def disbelieved(self, key: str, evidence: str) -> bool:
        """Whether two places state different values; a warning then states that `evidence` is used."""
        contradiction, _ = self.contradiction(key)
        self.note(
            contradiction,
            "warning",
            key,
            f"{contradiction}; {evidence}, and this is used",
            "spellings-agree",
        )
        return bool(contradiction)

    def value(self, key: str) -> Any:
        """Return the value of a canonical key under any of its spellings; None when absent.

        Raises RefusedError if two places contradict each other.
        """
        contradiction, place = self.contradiction(key)
        check(
            (
                contradiction,
                f"{contradiction}; correct one of them",
                "spellings-agree",
                f"config.json:{place}",
            ),
            error=RefusedError,
        )
        return next(iter(self.statements(key).values()), None)

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return the value of a canonical key, of one of TYPES; None when absent. Raises RefusedError."""
        value: T | None = self.value(key)
        expected, is_right = TYPES[kind]
        check(
            (
                value is not None and not is_right(value),
                f"config.json: {key} is {value!r}; {expected} was expected",
                "value-types",
                f"config.json:{key}",
            ),
            error=RefusedError,
        )
        return value

    def rest(self, taken: Iterable[str]) -> dict[str, Any]:
        """Return all keys and parts of objects at no place of the `taken` keys; nulls are left out.

        The places are those of every spelling, and of contradicting values.
        """
        places = {place for key in taken for place in (*SPELLINGS.get(key, (key,)), *self.statements(key))}
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
        """Return the values by place that no reader takes and that may be the drafter's.

        An object whose own name looks like layer ids or a map is one value.
        """
        left = [
            (key, value)
            for key, value in self.rest(taken).items()
            if key not in {*format.retires, *OTHER_OBJECTS}
        ]
        unread: dict[str, Any] = {}
        for place, value in left:  # which grows by the keys of objects
            if isinstance(value, Mapping) and not (_IDS_NAME.search(place) or _MAP_NAME.search(place)):
                left += [(f"{place}.{key}", inner) for key, inner in value.items()]
            else:
                unread[place] = value
        return unread


def mask_token(config: Mapping[str, Any]) -> Any:
    """Return the mask token of a parallel drafter, under any key that vLLM reads; None without one."""
    return next((value for key in MASK_KEYS if (value := at(config, key)) is not None), None)


def looks_like_layer_ids(place: str, value: Any) -> bool:
    """Whether a key that no reader took looks like the layers whose states the drafter was trained on.

    These are lists of numbers under a name with "layer", "capture" or "aux", and a number, a text with digits
    or an object under a name of layer ids. They are asked about: another trainer's key may state other layers
    than the ones that were read. Counts of layers, rope settings and known keys without effect are none.
    """
    name = _last_key(place)
    if name in KEYS_WITHOUT_EFFECT or _ROPE_NAME.search(name):
        return False
    if _is_numbers(value):
        return _LIST_NAME.search(name) is not None
    if not _IDS_NAME.search(name) or _COUNT_NAME.search(name):
        return False
    is_text = isinstance(value, str) and any(letter.isdigit() for letter in value)
    return is_text or type(value) is int or (isinstance(value, Mapping) and bool(value))


def ids_question(place: str, value: Any) -> Note:
    """Return the question on layer ids under an unknown key."""
    why = "which looks like layer ids and is not read"
    if isinstance(value, list) and any(type(item) is int and item < 0 for item in value):
        why = (
            "ids that count from the target's end, as forks of trainers (AMD Quark) write them; no engine or"
            " trainer documents which states they mean"
        )
    return question(
        "aux layers", f"config has {_shown(place)}: {_short(value)}, {why}", "unread-key", [LAYERS]
    )


def unread_questions(unread: Mapping[str, Any], format: Format) -> list[Note]:
    """Return a question on each unread key named like a norm switch, a rope setting or a vocabulary map.

    Of the keys of a copied target, only vocabulary maps are judged.
    """
    notes = []
    meanings = MEANINGS[:1] if format.copies_target else MEANINGS
    for place, value in unread.items():
        name = _last_key(place)
        meaning = next((meaning for pattern, meaning in meanings if pattern.search(name)), "")
        neutral = [
            default for default in NEUTRAL.get(name, ()) if (type(value) is bool) == (type(default) is bool)
        ]
        if meaning and name not in KEYS_WITHOUT_EFFECT and value not in (None, "", [], {}, *neutral):
            why = f"config has {_shown(place)}: {_short(value)}, which is not read and may be {meaning}"
            meaning = "if it does not change what the drafter computes"
            notes.append(
                question(
                    place.rpartition(".")[2],
                    why,
                    ("partial-rotary" if name in PARTIAL else "unread-key"),
                    [Choice("--source-semantics", f"harmless={place}", meaning)],
                )
            )
    return notes


def _is_numbers(value: Any) -> bool:
    return (isinstance(value, list) and bool(value)) and all(
        type(item) is int or _is_numbers(item) for item in value
    )


def _last_key(place: str) -> str:
    return place.rpartition(".")[2].lower()


def _shown(place: str) -> str:
    # spaces at the ends of a key are seen in quotes alone
    return place if place == place.strip() else repr(place)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# engines count in 32 bits and compute in float32
MAX_COUNT, MAX_NUMBER = (1 << 31) - 1, 3.4028234663852886e38
SIZE = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
COUNT = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_NUMBER}
NATURAL = {"type": "number", "minimum": 0, "maximum": MAX_NUMBER}
FLAG = {"type": "boolean"}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
IDS = {"type": "array", "items": COUNT}
TOKENS = {"type": ["integer", "array"], "minimum": 0, "maximum": MAX_COUNT, "items": COUNT}
PART = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
OBJECT = {"type": "object"}


# numbers of a rope's scaling, whatever its rope_type
ROPE: dict[str, dict[str, Any]] = {
    "rope_theta": POSITIVE,
    "factor": POSITIVE,
    "original_max_position_embeddings": {**POSITIVE, "maximum": MAX_COUNT},
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "beta_fast": POSITIVE,
    "beta_slow": POSITIVE,
    "attention_factor": POSITIVE,
    "attn_factor": POSITIVE,
    "alpha": POSITIVE,
    "mscale": NATURAL,
    "mscale_all_dim": NATURAL,
    "short_factor": {"type": "array", "items": POSITIVE},
    "long_factor": {"type": "array", "items": POSITIVE},
    "partial_rotary_factor": PART,
}


def _nullable(kind: dict[str, Any]) -> dict[str, Any]:
    types = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    return {**kind, "type": [*types, "null"]}


# key: kind, meaning. Sizes count elements; positions and vocabularies count tokens
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "architectures": (TEXTS, "The drafter's class; engines take the first."),
    "model_type": (TEXT, "Class of the decoder layer, as transformers names it."),
    "hidden_size": (SIZE, "Width of the drafter's hidden state, in channels."),
    "intermediate_size": (SIZE, "Width of the MLP, in channels."),
    "num_hidden_layers": (SIZE, "Decoder layers of the drafter, usually 1."),
    "num_attention_heads": (SIZE, "Query heads."),
    "num_key_value_heads": (SIZE, "Key and value heads; as many as query heads where absent."),
    "head_dim": (SIZE, "Width of one head, in channels; hidden_size / num_attention_heads where absent."),
    "vocab_size": (SIZE, "Tokens of the target's vocabulary."),
    "draft_vocab_size": (
        _nullable(SIZE),
        "Tokens that the drafter can propose: rows of lm_head; the whole vocabulary where null.",
    ),
    "target_hidden_size": (
        _nullable(SIZE),
        "Width of the target's hidden states, in channels; hidden_size where absent.",
    ),
    "max_position_embeddings": (SIZE, "Longest context that the rotary table covers, in tokens."),
    "rms_norm_eps": (POSITIVE, "What RMSNorm adds to the mean square."),
    "hidden_act": (TEXT, "Activation of the MLP; engines have silu alone."),
    "attention_bias": (FLAG, "Whether the attention projections have biases."),
    "mlp_bias": (FLAG, "Whether the MLP projections have biases."),
    "attention_dropout": (
        {"type": "number", "minimum": 0, "maximum": 1},
        "Share of attention weights dropped in training; engines ignore it.",
    ),
    "initializer_range": (
        {"type": "number", "minimum": 0},
        "Standard deviation of weights before training; engines ignore it.",
    ),
    "pretraining_tp": (COUNT, "Left from older transformers; engines ignore it."),
    "rope_theta": (
        _nullable(POSITIVE),
        "Base of the rotary frequencies; 10000 where absent, never the target's.",
    ),
    "rope_scaling": (
        _nullable(OBJECT),
        "How rotary frequencies are stretched (rope_type, factor, ...); not at all where null.",
    ),
    "rope_parameters": (_nullable(OBJECT), "transformers 5: rope_theta and the scaling in one object."),
    "tie_word_embeddings": (FLAG, "Whether lm_head is the embedding; a drafter has its own."),
    "torch_dtype": (_nullable(TEXT), "Type of the weights: bfloat16, float16, float32."),
    "dtype": (_nullable(TEXT), "transformers 5: torch_dtype."),
    "bos_token_id": (_nullable(TOKENS), "Token at the beginning of a text."),
    "eos_token_id": (_nullable(TOKENS), "Token, or tokens, that end a text."),
    "pad_token_id": (
        _nullable({"type": "integer", "minimum": -1, "maximum": MAX_COUNT}),  # -1: none
        "Token that fills a batch.",
    ),
    "sliding_window": (
        _nullable(COUNT),
        "Tokens that attention looks back, where a layer slides; the whole context where null.",
    ),
    "use_sliding_window": (FLAG, "Whether attention slides."),
    "max_window_layers": (COUNT, "Layers from this one on slide."),
    "layer_types": (
        {"type": "array", "items": TEXT},
        "Attention of each layer of the drafter: full_attention or sliding_attention.",
    ),
    "use_cache": (FLAG, "Whether transformers keeps keys and values; engines ignore it."),
    "transformers_version": (_nullable(TEXT), "Version of transformers that wrote the file."),
    "quantization_config": (
        _nullable(OBJECT),
        "How the weights are quantised; only beside quantised weights.",
    ),
    "q_lora_rank": (_nullable(SIZE), "MLA: rank of the compressed query; engines need one."),
    "kv_lora_rank": (
        SIZE,
        "MLA: rank of the compressed keys and values; with qk_rope_head_dim 320, 512 or 576 in vLLM.",
    ),
    "qk_nope_head_dim": (SIZE, "MLA: width of a head's part without rotary positions, in channels."),
    "qk_rope_head_dim": (SIZE, "MLA: width of a head's part with rotary positions, in channels."),
    "v_head_dim": (SIZE, "MLA: width of a value head, in channels."),
    "rope_interleave": (FLAG, "MLA: whether rotary pairs are neighbours."),
    "fc_norm": (FLAG, "EAGLE-3.1: each aux state has a norm of its own before fc."),
    "norm_output": (FLAG, "EAGLE-3.1: the state fed back to the drafter is the one after the last norm."),
    "norm_before_fc": (FLAG, "One norm over all aux states before fc."),
    "norm_before_residual": (FLAG, "The residual is the hidden state after its norm."),
    "num_aux_hidden_states": (SIZE, "Hidden states of the target that fc takes; 3 where absent."),
    "eagle_config": (OBJECT, "What engines and trainers keep for EAGLE alone."),
    "use_aux_norm": (FLAG, "SGLang's older name of fc_norm."),
    "mask_token_id": (_nullable(COUNT), "P-EAGLE: the token that stands for those not yet known."),
    "target_model_type": (_nullable(TEXT), "model_type of the target."),
}
# keys of eagle_config; layer ids are declared by each producer (Format.ids)
EAGLE_CONFIG: dict[str, tuple[dict[str, Any], str]] = {
    "use_aux_hidden_state": (
        FLAG,
        "Whether the drafter takes hidden states of several target layers; engines have no EAGLE-3 without.",
    ),
    "norm_before_fc": (FLAG, "One norm over all aux states before fc; TensorRT-LLM reads it here alone."),
    "use_input_layernorm_in_first_layer": (FLAG, "Trainer's switch: the embedding is normed."),
    "use_last_layernorm": (FLAG, "Trainer's switch: there is a norm before lm_head."),
    "use_mtp_layernorm": (FLAG, "Trainer's switch of another drafter family."),
    "next_layer_regular": (FLAG, "Trainer's switch: layers after the first take one hidden state."),
    "parallel_draft_step": (SIZE, "Trainer's switch: tokens proposed at once."),
    "parallel_draft_heads_num_layers": (COUNT, "Trainer's switch: layers of each parallel head."),
}

MLA_KEYS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
)
SWITCH_KEYS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "num_aux_hidden_states")
_ELSEWHERE = (
    *MLA_KEYS,
    *SWITCH_KEYS,
    "eagle_config",
    "use_aux_norm",
    "mask_token_id",
    "target_model_type",
)
DECODER_KEYS = tuple(key for key in KEYS if key not in _ELSEWHERE)
SHAPE_KEYS = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)
TRAINER_KEYS = (
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
)


def common_keys(*names: str) -> dict[str, Any]:
    """Return the schemas of several keys of the common table."""
    return {name: {**KEYS[name][0], "description": KEYS[name][1]} for name in names}


# objects of a config whose keys are those of the top level too
ROPE_TABLES = ("rope_scaling", "rope_parameters")
# of an attention window
WINDOW_KEYS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
LAYER = "transformer_layer_config"

KINDS: Mapping[str, Mapping[str, Any]] = {
    **{key: kind for key, (kind, _) in {**EAGLE_CONFIG, **KEYS}.items()},
    **dict.fromkeys(PARTIAL, PART),
}


def is_within(kind: Mapping[str, Any], value: float) -> bool:
    """Whether a number is in the range of a kind."""
    least, most, above = kind.get("minimum"), kind.get("maximum"), kind.get("exclusiveMinimum")
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
    )


def number_notes(config: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a problem for each number of a config that cannot be what its key means."""
    for place, text in _invalid_numbers(config):
        is_rope = place.startswith(ROPE_TABLES) or place in ("rope_theta", *PARTIAL)
        yield Note("problem", place.partition(".")[0], text, "rope-values" if is_rope else "value-types")


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise RefusedError for a config to write in which a number cannot be what its key means."""
    for place, text in _invalid_numbers(config):
        raise RefusedError(text, "value-types", f"config.json:{place}")


def _invalid_numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for prefix in ("", f"{LAYER}.", "eagle_config."):
        table = config.get(prefix[:-1]) if prefix else config
        for key, value in table.items() if isinstance(table, Mapping) else ():
            if key in ROPE_TABLES and isinstance(value, Mapping):
                yield from _unfit_rope(f"{prefix}{key}", value)
            elif not _are_numbers_valid(kind := KINDS.get(key, {}), value):
                yield prefix + key, f"config.json: {prefix}{key} is {value!r}; {_expected(kind)} was expected"


def _are_numbers_valid(kind: Mapping[str, Any], value: Any) -> bool:
    if isinstance(value, list) and "items" in kind:
        return all(_are_numbers_valid(kind["items"], item) for item in value)
    if not _is_number(value):
        return True
    return is_within(kind, value) and (
        type(value) is int or "integer" not in kind.get("type", ()) or value == int(value)
    )


def _unfit_rope(place: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # the first value of a rope table that has another type or range than the common keys' schema
    for key, kind in ROPE.items():
        value, item = table.get(key), kind.get("items", kind)
        values = value if isinstance(value, list) and "items" in kind else [value]
        if value is not None and not all(_is_number(number) and is_within(item, number) for number in values):
            expected = f"{_expected(item)}{' for each' if 'items' in kind else ''}"
            yield place, f"config.json: {place}.{key} is {value!r}; {expected} was expected"
            return
    low, high = table.get("low_freq_factor"), table.get("high_freq_factor")
    if low is not None and high is not None and high <= low:
        text = f"high_freq_factor is {high!r}; a number above low_freq_factor, {low!r}, was expected"
        yield place, f"config.json: {place}.{text}"


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _expected(kind: Mapping[str, Any]) -> str:
    name = "a whole number" if "integer" in kind.get("type", ()) else "a number"
    least, most = kind.get("minimum"), kind.get("maximum")
    start = f"above {kind['exclusiveMinimum']}" if least is None else f"from {least}"
    return f"{name} {start} to {most}" if isinstance(most, int) else f"{name} {start} that float32 holds"
