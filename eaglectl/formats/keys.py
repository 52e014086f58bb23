"""Reading a config key by key: every spelling of a value, which one was used, and what was left untouched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglectl.drafter.drafter import Note
from eaglectl.errors import Refused

MISSING = object()

# canonical key <- the places that have held it, first one first; "a.b" is b inside the object a
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "fc_norm": ("fc_norm", "use_aux_norm", "eagle_architecture_config.fc_norm", "eagle_config.fc_norm"),
    "norm_output": (
        "norm_output", "eagle_config.return_hidden_post_norm", "return_hidden_post_norm",
        "eagle_architecture_config.norm_output", "eagle_architecture_config.return_hidden_post_norm", "eagle_config.norm_output",
    ),
    "norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc", "eagle_architecture_config.norm_before_fc"),
    "norm_before_residual": ("norm_before_residual", "eagle_config.norm_before_residual"),
    "draft_vocab_size": ("draft_vocab_size", "truncated_vocab_size"),
    "num_aux_hidden_states": ("num_aux_hidden_states", "num_aux_layers", "eagle_config.num_aux_hidden_states"),
    "target_hidden_size": ("target_hidden_size", "eagle_config.target_hidden_size"),
    "use_aux_hidden_state": ("eagle_config.use_aux_hidden_state", "use_aux_hidden_state"),
    "top_ids": ("eagle_aux_hidden_state_layer_ids",),
    "nested_ids": ("eagle_config.eagle_aux_hidden_state_layer_ids",),
    "layer_ids": ("eagle_config.layer_ids",),
}  # fmt: skip

# what a key that is absent means, because the class the config belongs to says so when it saves only differences
# (transformers 5.19, LlamaConfig / Qwen3Config / DeepseekV2Config)
CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu"},
    "qwen3": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "hidden_act": "silu"},
    "mla": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu"},
}


@dataclass(slots=True)
class Keys:
    """A config being read; `take` remembers what was read so that the rest can be carried over."""

    config: Mapping[str, Any]
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
        """The value of a canonical key under any of its spellings, or MISSING; two spellings that differ are refused."""
        places = SPELLINGS.get(key, (key,))
        found = [(place, self.at(place)) for place in places]
        self.taken.update(places)
        present = [(place, value) for place, value in found if value is not MISSING]
        for place, value in present[1:]:
            if value != present[0][1]:
                raise Refused(
                    f"config.json says {present[0][0]}: {present[0][1]!r} and {place}: {value!r}; make them agree",
                    "spellings-agree",
                    f"config.json:{place}",
                )
        return present[0][1] if present else MISSING

    def take_bool(self, key: str) -> bool | None:
        """A boolean, None when absent; anything else is refused."""
        found: bool | None = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return found

    def take_int(self, key: str) -> int | None:
        """A positive integer, None when absent; anything else is refused."""
        found: int | None = self._checked(
            key, lambda value: type(value) is int and value > 0, "a positive whole number"
        )
        return found

    def take_float(self, key: str) -> float | None:
        """A number, None when absent; anything else is refused."""
        found: float | None = self._checked(key, lambda value: type(value) in (int, float), "a number")
        return found

    def take_ids(self, key: str) -> tuple[int, ...] | None:
        """A list of layer ids, None when absent or empty (engines read an empty list as absent)."""
        value = self.take(key)
        if value is MISSING or value == []:
            return None
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise Refused(
                f"config.json: {SPELLINGS[key][0]} is {value!r}; a list of layer numbers from 0 was expected",
                "value-types",
                f"config.json:{SPELLINGS[key][0]}",
            )
        return tuple(value)

    def take_mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, None when absent."""
        found: Mapping[str, Any] | None = self._checked(key, lambda value: isinstance(value, Mapping), "an object")
        return found

    def _checked(self, key: str, is_right: Callable[[Any], bool], what: str) -> Any:
        value = self.take(key)
        if value is MISSING:
            return None
        if not is_right(value):
            raise Refused(f"config.json: {key} is {value!r}; {what} was expected", "value-types", f"config.json:{key}")
        return value

    def rest(self) -> dict[str, Any]:
        """Everything that nobody took, nested objects without the parts that were taken; nulls say nothing and are left out."""
        left: dict[str, Any] = {}
        for key, value in self.config.items():
            if key in self.taken or value is None:  # a null says no more than an absent key
                continue
            if isinstance(value, Mapping) and any(place.startswith(f"{key}.") for place in self.taken):
                value = {name: inner for name, inner in value.items() if f"{key}.{name}" not in self.taken}
                if not value:
                    continue
            left[key] = value
        return left

    def say(self, level: str, about: str, text: str, topic: str = "") -> None:
        """Add a note."""
        self.notes.append(Note(level, about, text, topic))  # type: ignore[arg-type]
