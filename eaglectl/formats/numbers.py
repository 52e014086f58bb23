"""Numbers of a config, held to the kinds that config_schema declares when it is read and written."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from eaglectl.drafter.drafter import Note
from eaglectl.errors import RefusedError
from eaglectl.formats.config_schema import EAGLE_CONFIG, KEYS, PART, ROPE
from eaglectl.formats.unread import PARTIAL

# objects of a config whose keys are those of the top level too
LAYER = "transformer_layer_config"
ROPES = ("rope_scaling", "rope_parameters")
KINDS: Mapping[str, Mapping[str, Any]] = {
    **{key: kind for key, (kind, _) in {**EAGLE_CONFIG, **KEYS}.items()},
    **dict.fromkeys(PARTIAL, PART),
}


def is_within(kind: Mapping[str, Any], value: float) -> bool:
    """Whether a number is in the range of a kind of config_schema."""
    least, most, above = kind.get("minimum"), kind.get("maximum"), kind.get("exclusiveMinimum")
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
    )


def number_notes(config: Mapping[str, Any]) -> Iterator[Note]:
    """A problem for each number of a config that cannot be what its key means."""
    for place, text in _unfit(config):
        is_rope = place.startswith(ROPES) or place in ("rope_theta", *PARTIAL)
        yield Note("problem", place.partition(".")[0], text, "rope-values" if is_rope else "value-types")


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise RefusedError for a config to write in which a number cannot be what its key means."""
    for place, text in _unfit(config):
        raise RefusedError(text, "value-types", f"config.json:{place}")


def _unfit(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Places, and what is wrong with the number there."""
    for prefix in ("", f"{LAYER}.", "eagle_config."):
        table = config.get(prefix[:-1]) if prefix else config
        if not isinstance(table, Mapping):
            continue
        for key, value in table.items():
            if key in ROPES and isinstance(value, Mapping):
                yield from _unfit_rope(f"{prefix}{key}", value)
            elif not _fits(kind := KINDS.get(key, {}), value):
                yield prefix + key, f"config.json: {prefix}{key} is {value!r}; {_expected(kind)} was expected"


def _fits(kind: Mapping[str, Any], value: Any) -> bool:
    """Whether a number, or each of a list where the kind has items, is of a kind; true for other values."""
    if isinstance(value, list) and "items" in kind:
        return all(_fits(kind["items"], each) for each in value)
    if not _is_number(value):
        return True
    is_counted = "integer" in kind.get("type", ())
    return is_within(kind, value) and (type(value) is int or not is_counted or value == int(value))


def _unfit_rope(place: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, kind in ROPE.items():
        value, item = table.get(key), kind.get("items", kind)
        values = value if isinstance(value, list) and "items" in kind else [value]
        if value is not None and not all(_is_number(each) and is_within(item, each) for each in values):
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
