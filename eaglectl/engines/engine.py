"""What every engine needs told apart: how it reads aux-layer ids, and what a verdict on a drafter is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eaglectl.drafter.boundaries import AuxLayers, default_boundaries, may_be_default, to_boundaries
from eaglectl.drafter.drafter import Target

Outcome = Literal["as trained", "differs", "fails", "unknown"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The aux layers that one engine takes from a config. `boundaries` None: the default, of a target of unknown depth."""

    engine: str
    key: str
    ids: tuple[int, ...] | None
    boundaries: tuple[int, ...] | None
    is_default: bool

    def same_as(self, trained: AuxLayers) -> bool | None:
        """Whether this engine captures what was trained on; None where that cannot be known."""
        if trained.boundaries is not None and self.boundaries is not None:
            return self.boundaries == trained.boundaries
        if trained.is_default and self.is_default:
            return True
        if self.is_default and trained.boundaries is not None and not may_be_default(trained.boundaries):
            return False
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one engine release does with a checkpoint as it lies; `reasons` say why it is not as trained."""

    engine: str
    release: str
    outcome: Outcome
    reasons: tuple[str, ...]


def ids_at(config: Mapping[str, Any], *path: str) -> tuple[int, ...] | None:
    """A non-empty list of whole numbers in a config; None otherwise (engines read an empty list as absent)."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return tuple(value) if isinstance(value, list) and value and all(type(i) is int for i in value) else None


IDS = "eagle_aux_hidden_state_layer_ids"


def aux_readings(config: Mapping[str, Any], target: Target) -> tuple[Reading, ...]:
    """How each engine reads `config`: vLLM 0.33 (both runners), SGLang 0.5.23, TensorRT-LLM, tokenspeed, ATOM (formats.md, 2.1)."""
    top, nested, layer_ids = (
        ids_at(config, IDS),
        ids_at(config, "eagle_config", IDS),
        ids_at(config, "eagle_config", "layer_ids"),
    )
    depth = target.depth

    def read(
        engine: str, *places: tuple[str, tuple[int, ...] | None], add: bool = False, sort: bool = False
    ) -> Reading:
        for key, ids in places:
            if ids is not None:
                boundaries = to_boundaries(ids, "output" if add else "boundary")
                return Reading(engine, key, ids, tuple(sorted(set(boundaries))) if sort else boundaries, False)
        return Reading(engine, "none: default", None, default_boundaries(depth) if depth else None, True)

    top_place, nested_place = ("top level", top), ("eagle_config", nested)
    return (
        read("vLLM, V2 runner", top_place, ("eagle_config.layer_ids", layer_ids), sort=True),
        read("vLLM, V1 runner", top_place, nested_place, sort=True),
        _sglang(nested, target),
        Reading("TensorRT-LLM", "serving config", None, default_boundaries(depth) if depth else None, True),
        read("tokenspeed", nested_place, top_place, add=True),
        read("ATOM", nested_place),
    )


def sglang_adds_one(ids: Sequence[int], target: Target) -> bool | None:
    """Whether SGLang 0.5.23 adds one to explicit ids for this target; None where the target decides and is not known.

    Sources: llama.py:941, deepseek_v2.py:3470-3473 (also Kimi and glm4_moe_lite), gpt_oss.py:1347-1352.
    """
    kind = (target.model_type or "").lower()
    if not kind:
        return True if ids[0] == 1 else None
    if any(name in kind for name in DEEPSEEK_LIKE):
        return ids[0] == 1
    if kind == "gpt_oss" and target.depth is not None:
        return max(ids) != target.depth
    return True


DEEPSEEK_LIKE = ("deepseek", "kimi", "glm4_moe_lite")


def _sglang(nested: tuple[int, ...] | None, target: Target) -> Reading:
    if nested is None:
        base = default_boundaries(target.depth) if target.depth else None
        is_default = not (target.model_type or "").startswith("minimax_m3")
        if base is not None and not is_default:
            base = (base[0] + 1, base[1] + 1, base[2] + 1)  # minimax_m3_vl.py:246-268 adds one to the default too
        return Reading("SGLang", "none: default", None, base, is_default)
    adds = sglang_adds_one(nested, target)
    if adds is None:
        return Reading("SGLang", "eagle_config, +1 unless the target is DeepSeek or Kimi", nested, None, False)
    return Reading(
        "SGLang",
        "eagle_config" + (", +1" if adds else ""),
        nested,
        to_boundaries(nested, "output" if adds else "boundary"),
        False,
    )


def sglang_ids(boundaries: Sequence[int], target: Target) -> tuple[int, ...] | str:
    """The eagle_config ids with which SGLang captures `boundaries`, or a sentence that says why there are none (formats.md, 2.3)."""
    lowered = tuple(b - 1 for b in boundaries)
    fits = [
        ids for ids in (lowered, tuple(boundaries)) if ids[0] >= 0 and _sglang_gives(ids, target) == tuple(boundaries)
    ]
    if fits:
        return fits[0]
    if target.model_type is None and boundaries[0] > 0:
        return (
            f"SGLang's ids for boundaries {list(boundaries)} depend on the target's model type, which is not known;"
            " pass --target"
        )
    return f"SGLang has no ids that mean boundaries {list(boundaries)} for a {target.model_type or 'known'} target"


def _sglang_gives(ids: Sequence[int], target: Target) -> tuple[int, ...] | None:
    adds = sglang_adds_one(ids, target)
    return None if adds is None else to_boundaries(ids, "output" if adds else "boundary")
