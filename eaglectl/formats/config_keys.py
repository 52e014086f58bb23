"""A config by canonical keys: every spelling of a value, which states it, and what nobody has read."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.drafter.drafter import Note
from eaglectl.errors import RefusedError

T = TypeVar("T")

MOST_IDS = 256
MISSING = object()
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


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


def _contrary(values: Mapping[str, Any]) -> str:
    """The first place of another value than the first one; "" where there is none."""
    first = next(iter(values.values()), MISSING)
    return next((place for place, value in values.items() if value != first), "")


def _contradiction(values: Mapping[str, Any]) -> str:
    """The first two places of other values, with these; "" where all agree."""
    if not (other := _contrary(values)):
        return ""
    first = next(iter(values))
    return f"config.json says {first}: {values[first]!r} and {other}: {values[other]!r}"


class Reading(Struct, Generic[T], frozen=True):
    """What a reader makes of a config: a value, the keys that are read by it, and notes for the user."""

    value: T
    taken: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    @staticmethod
    def of(value: T, *parts: "Reading[Any]") -> "Reading[T]":
        """A value that is made of others, with all their keys and notes, in this order."""
        taken = (key for part in parts for key in part.taken)
        return Reading(value, tuple(taken), tuple(note for part in parts for note in part.notes))

    def with_notes(self, *notes: tuple[object, Note]) -> "Reading[T]":
        """The same with those notes whose condition is true, after its own."""
        return replace(self, notes=(*self.notes, *(note for is_true, note in notes if is_true)))

    @staticmethod
    def noting(notes: Iterable[Note]) -> "Reading[None]":
        """Notes without a value."""
        return Reading(None, (), tuple(notes))


class Keys(Struct, frozen=True):
    """The keys of a config.

    `own` is the producer's own place of a canonical key; at those of `inverted` the opposite is stated.
    `stored` is the config before its producer's nesting was undone.
    """

    config: Mapping[str, Any]
    own: Mapping[str, str] = field(default_factory=dict)
    inverted: frozenset[str] = frozenset()
    stored: Mapping[str, Any] = field(default_factory=dict)

    def at(self, place: str) -> Any:
        """The value at "key" or "object.key", or MISSING; a null counts as missing."""
        value: Any = self.config
        for part in place.split("."):
            if not isinstance(value, Mapping) or value.get(part) is None:
                return MISSING
            value = value[part]
        return value

    def absence(self, key: str) -> str:
        """The rule's name that a key without a value is a case of: a null is not the same as no key."""
        return "null-fields" if key in self.config else "config-dimensions"

    def value(self, key: str) -> Any:
        """The value of a canonical key under any of its spellings, or MISSING.

        Raises RefusedError where two places state other values.
        """
        values = self.statements(key)
        if contradiction := _contradiction(values):
            place = f"config.json:{_contrary(values)}"
            raise RefusedError(f"{contradiction}; make them agree", "spellings-agree", place)
        return next(iter(values.values()), MISSING)

    def statements(self, key: str) -> dict[str, Any]:
        """The values of a canonical key by place, the one that is read first; `inverted` ones as meant.

        Another value in an object where nothing reads it counts beside one that is read.
        """
        values = {place: value for place in self.places(key) if (value := self.at(place)) is not MISSING}
        own = self.own.get(key, "")
        if key in self.inverted and isinstance(values.get(own), bool):
            values[own] = not values[own]
        if not values or key not in SPELLINGS:
            return values
        first, stored = next(iter(values.values())), Keys(self.stored)
        for place in (f"{name}.{key}" for name in OBJECTS):
            if place not in values and stored.at(place) not in (MISSING, first):
                values[place] = stored.at(place)
        return values

    def contradiction(self, key: str) -> str:
        """The first two places that state other values of a canonical key; "" where all agree."""
        return _contradiction(self.statements(key))

    def disbelieved(self, key: str, evidence: str) -> tuple[Note, ...]:
        """The warning that two places state other values and `evidence` is believed; none where all agree."""
        contradiction = self.contradiction(key)
        text = f"{contradiction}; {evidence}, which is believed"
        return (Note("warning", key, text, "spellings-agree"),) if contradiction else ()

    def places(self, key: str) -> tuple[str, ...]:
        """The places of a canonical key, the producer's own first."""
        own = self.own.get(key)
        return (*((own,) if own else ()), *SPELLINGS.get(key, (key,)))

    def all_places(self, keys: Iterable[str]) -> set[str]:
        """The places of these keys, and those of contrary statements of them."""
        return {place for key in set(keys) for place in (*self.places(key), *self.statements(key))}

    def spelling(self, key: str) -> str:
        """A canonical key as this config has it, or as its producer writes it."""
        places = self.places(key)
        own = self.own.get(key, key)
        return next((place for place in places if self.at(place) is not MISSING), own)

    def is_stated(self, key: str) -> bool:
        """Whether any spelling of a canonical key has a value."""
        return any(self.at(place) is not MISSING for place in self.places(key))

    def flag(self, key: str) -> bool | None:
        """A boolean, None when absent; anything else is refused."""
        value: bool | None = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return value

    def count(self, key: str) -> int | None:
        """A positive integer, None when absent; anything else is refused."""
        value: int | None = self._checked(
            key, lambda value: type(value) is int and value > 0, "a positive whole number"
        )
        return value

    def number(self, key: str) -> float | None:
        """A number, None when absent; anything else is refused."""
        value: float | None = self._checked(key, lambda value: type(value) in (int, float), "a number")
        return value

    def ids(self, key: str) -> tuple[int, ...] | None:
        """A list of layer ids, None when absent or empty (engines read an empty list as absent)."""
        stated = self.value(key)
        if isinstance(stated, list) and len(stated) > MOST_IDS:
            text = f"config.json: {key} lists {len(stated):,} layers; a drafter takes {MOST_IDS} at most"
            raise RefusedError(text, "value-types", f"config.json:{key}")
        value = self._checked(key, _are_ids, "a list of layer numbers from 0")
        return tuple(value) if value else None

    def table(self, key: str) -> Mapping[str, Any] | None:
        """An object, None when absent."""
        value: Mapping[str, Any] | None = self._checked(
            key, lambda value: isinstance(value, Mapping), "an object"
        )
        return value

    def _checked(self, key: str, is_right: Callable[[Any], bool], what: str) -> Any:
        value = self.value(key)
        if value is MISSING:
            return None
        if not is_right(value):
            raise RefusedError(
                f"config.json: {key} is {value!r}; {what} was expected", "value-types", f"config.json:{key}"
            )
        return value

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


def mask_token(config: Mapping[str, Any]) -> Any:
    """The mask token of a parallel drafter, under any key that vLLM reads; None without."""
    values = (Keys(config).at(key) for key in MASK_KEYS)
    return next((value for value in values if value is not MISSING), None)
