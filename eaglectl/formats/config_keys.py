"""Reading a config key by key: every spelling of a value, which of them was used, and what was not read."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import Choice, Level, Note, question
from eaglectl.errors import RefusedError

MISSING = object()
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


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


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


class Keys(Struct):
    """A config being read; `take` records what was read so that the rest can be carried over.

    `own` is the producer's own place of a canonical key; at those of `inverted` the opposite is stated.
    `stored` is the config before its producer's nesting was undone.
    """

    config: Mapping[str, Any]
    own: Mapping[str, str] = field(default_factory=dict)
    inverted: frozenset[str] = frozenset()
    stored: Mapping[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

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

    def take(self, key: str) -> Any:
        """The value of a canonical key under any of its spellings, or MISSING.

        Raises RefusedError where two places state other values.
        """
        values = self.statements(key)
        self.taken.update(self.places(key), values)
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
        first, stored = next(iter(values.values()), MISSING), Keys(self.stored)
        for place in (f"{name}.{key}" for name in OBJECTS if first is not MISSING and key in SPELLINGS):
            if place not in values and stored.at(place) not in (MISSING, first):
                values[place] = stored.at(place)
        return values

    def contradiction(self, key: str) -> str:
        """The first two places that state other values of a canonical key; "" where all agree."""
        return _contradiction(self.statements(key))

    def believe(self, key: str, measured: Any, evidence: str) -> Any:
        """`measured` (on tensors, the target) with a warning where two places state other values; else None.

        `measured` None: nothing shows it.
        """
        contradiction = self.contradiction(key)
        if measured is None or not contradiction:
            return None
        self.taken.update(self.places(key), self.statements(key))
        text = f"{contradiction}; {evidence}, which is believed"
        self.add_note("warning", key, text, "spellings-agree")
        return measured

    def places(self, key: str) -> tuple[str, ...]:
        """The places of a canonical key, the producer's own first."""
        own = self.own.get(key)
        return (*((own,) if own else ()), *SPELLINGS.get(key, (key,)))

    def spelling(self, key: str) -> str:
        """A canonical key as this config has it, or as its producer writes it."""
        places = self.places(key)
        own = self.own.get(key, key)
        return next((place for place in places if self.at(place) is not MISSING), own)

    def is_stated(self, key: str) -> bool:
        """Whether any spelling of a canonical key has a value."""
        return any(self.at(place) is not MISSING for place in self.places(key))

    def take_bool(self, key: str) -> bool | None:
        """A boolean, None when absent; anything else is refused."""
        value: bool | None = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return value

    def take_int(self, key: str) -> int | None:
        """A positive integer, None when absent; anything else is refused."""
        value: int | None = self._checked(
            key, lambda value: type(value) is int and value > 0, "a positive whole number"
        )
        return value

    def take_float(self, key: str) -> float | None:
        """A number, None when absent; anything else is refused."""
        value: float | None = self._checked(key, lambda value: type(value) in (int, float), "a number")
        return value

    def take_ids(self, key: str) -> tuple[int, ...] | None:
        """A list of layer ids, None when absent or empty (engines read an empty list as absent)."""
        value = self.take(key)
        if value is MISSING or value == []:
            return None
        if not isinstance(value, list) or not all(map(_is_id, value)):
            raise RefusedError(
                f"config.json: {key} is {value!r}; a list of layer numbers from 0 was expected",
                "value-types",
                f"config.json:{key}",
            )
        return tuple(value)

    def take_mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, None when absent."""
        value: Mapping[str, Any] | None = self._checked(
            key, lambda value: isinstance(value, Mapping), "an object"
        )
        return value

    def _checked(self, key: str, is_right: Callable[[Any], bool], what: str) -> Any:
        value = self.take(key)
        if value is MISSING:
            return None
        if not is_right(value):
            raise RefusedError(
                f"config.json: {key} is {value!r}; {what} was expected", "value-types", f"config.json:{key}"
            )
        return value

    def rest(self) -> dict[str, Any]:
        """All keys that were not taken, and the parts of objects that were not; nulls are left out."""
        left: dict[str, Any] = {}
        for key, value in self.config.items():
            if key in self.taken or value is None:
                continue
            if isinstance(value, Mapping) and any(place.startswith(f"{key}.") for place in self.taken):
                value = {name: inner for name, inner in value.items() if f"{key}.{name}" not in self.taken}
                if not value:
                    continue
            left[key] = value
        return left

    def ask(self, about: str, why: str, topic: str, *choices: Choice) -> None:
        """Add a question with the options that answer it."""
        self.notes.append(question(about, why, topic, choices))

    def add_note(
        self, level: Level, about: str, text: str, topic: str = "", *, names_option: bool = False
    ) -> None:
        """Add a note; `names_option` where the text names the option that takes a problem out."""
        self.notes.append(Note(level, about, text, topic, names_option=names_option))
