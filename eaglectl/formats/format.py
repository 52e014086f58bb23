"""What a producer's layout is: the marks that identify it, its conventions, and what it can express."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eaglectl.drafter.boundaries import Convention
from eaglectl.drafter.drafter import Feature, Note

Family = Literal["llama", "qwen3", "mla"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user said that the file cannot: aux layers, their convention, and facts about the trainer."""

    aux_layers: tuple[int, ...] | None = None
    aux_convention: Convention | None = None
    semantics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A checkpoint as detection sees it: no tensor data."""

    config: Mapping[str, Any]
    names: tuple[str, ...]
    metadata: Mapping[str, str]

    def has(self, *parts: str) -> bool:
        """Whether any tensor name contains any of `parts`."""
        return any(part in name for name in self.names for part in parts)

    @property
    def architecture(self) -> str:
        """The first entry of `architectures`, or an empty text."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def nested(self, key: str) -> Mapping[str, Any]:
        """An object of the config, empty where there is none."""
        value = self.config.get(key)
        return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a layout is written.

    `nested_ids`: what eagle_config ids mean there ("sglang": by SGLang's rule for the target, "output", "boundary"; None:
    not written). `lacks`: what one family's class has no place for. `states_flags`: whether all four norm switches are written or only those that are on.
    """

    architectures: Mapping[Family, str]
    model_types: Mapping[Family, str]
    expresses: frozenset[Feature]
    layer: str = "layers.{}"
    prefix: str = ""
    later_norm: str = "input_layernorm"
    has_top_ids: bool = False
    nested_ids: Literal["sglang", "output", "boundary"] | None = None
    has_identity_map: bool = False
    states_flags: bool = False
    has_aux_count: bool = False
    is_nested_config: bool = False
    lacks: Mapping[Family, frozenset[Feature]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})


@dataclass(frozen=True, slots=True)
class Format:
    """One producer: how it is recognised, how its config is read, how it is written (`layout`; None: only read).

    `orders_ids`: its fc takes the states in ascending order whatever order the ids are listed in.
    `is_signed`: its marks are its own; where they are not, ids are only believed once the target's depth is known.
    `has_mla_factors`: its MLA attention multiplies by what yarn's mscale gives, as engines do.
    `retires` lists config keys that say who wrote the file and mean nothing elsewhere; they go into the provenance.
    `doubts` yields what is known to be wrong with this producer's files.
    """

    name: str
    title: str
    recognise: Callable[[Sighting], str | None]
    aux_convention: Convention | None = None
    orders_ids: bool = False
    is_signed: bool = True
    residual_default: bool = False
    has_mla_factors: bool = True
    retires: tuple[str, ...] = ()
    flatten: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    doubts: Callable[[Sighting, Answers], Iterable[Note]] = lambda sighting, answers: ()
    norm_output: Callable[[Sighting, bool | None, Answers], bool | None] | None = None
    layout: Layout | None = None


def rope_doubt(sighting: Sighting, answers: Answers, who: str, *, is_sure: bool) -> Iterable[Note]:
    """A trainer that rotates with base 10000 whatever its config says: a question, or a warning where it may not be the trainer."""
    theta = sighting.config.get("rope_theta", sighting.nested("rope_parameters").get("rope_theta"))
    if theta in (None, 10000):
        return
    about = f"{who} trains with rope base 10000 whatever the config says, and this file says {theta:g}"
    match answers.semantics.get("rope"):
        case "stored":
            yield Note("warning", "rope_theta", f"{about}; the stored base is kept, as asked", "rope-base-doubt")
        case "10000":
            yield Note("warning", "rope_theta", f"{about}; 10000 is written, as asked", "rope-base-doubt")
        case _ if is_sure:
            yield Note(
                "question",
                "rope_theta",
                f"{about}; pass --source-semantics rope=10000 (what it trained) or rope=stored",
                "rope-base-doubt",
            )
        case _:
            yield Note(
                "warning",
                "rope_theta",
                f"{about}; this head may be affected: compare acceptance at both bases before a release",
                "rope-base-doubt",
            )


LLAMA: Mapping[Family, str] = {"llama": "LlamaForCausalLMEagle3"}
LLAMA_TYPE: Mapping[Family, str] = {"llama": "llama"}
ALWAYS = frozenset({Feature.REDUCED_VOCABULARY, Feature.WIDE_TARGET})
