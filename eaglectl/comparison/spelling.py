"""How the files of two drafters are written: producers, names of tensors, config keys, files."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.comparison.comparison import KeyPair, NamePair, Remark, Side, Spelling
from eaglectl.comparison.pairing import tensors_of
from eaglectl.drafter.boundaries import AuxLayers
from eaglectl.formats.catalogue import by_name
from eaglectl.text import listed

CONVENTIONS = {"boundary": "boundaries", "output": "outputs of layers", None: "of unknown meaning"}


def compare_spelling(a: Side, b: Side, vocabulary: tuple[Remark, ...] = ()) -> Spelling:
    """Every difference in how the files are written; `vocabulary` are those of the draft vocabulary."""
    return Spelling((*_remarks(a, b), *vocabulary), tuple(_names(a, b)), tuple(_keys(a, b)))


def _remarks(a: Side, b: Side) -> Iterator[Remark]:
    words_a, words_b = _words(a), _words(b)
    for about, text in words_a.items():
        if text != words_b[about]:
            yield Remark(about, text, words_b[about])


def _words(side: Side) -> dict[str, str]:
    drafter = side.drafter
    return {
        "producer": by_name(drafter.producer).title,
        "layer ids": _ids(drafter.aux),
        "files": listed(side.checkpoint.weight_files),
        "target": drafter.target.name or "not named",
        "strays": listed(drafter.strays) or "none",
    }


def _ids(aux: AuxLayers) -> str:
    return f"{', '.join(map(str, aux.ids))} ({CONVENTIONS[aux.convention]})" if aux.ids else "none"


def _names(a: Side, b: Side) -> Iterator[NamePair]:
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    for name, tensor in tensors_a.items():
        if name in tensors_b and tensor.stored != tensors_b[name].stored:
            yield NamePair(name, tensor.stored, tensors_b[name].stored)


def _keys(a: Side, b: Side) -> Iterator[KeyPair]:
    keys_a, keys_b = dict(_flat(a.flat)), dict(_flat(b.flat))
    for key in dict.fromkeys((*keys_a, *keys_b)):
        if keys_a.get(key) != keys_b.get(key):
            yield KeyPair(key, keys_a.get(key), keys_b.get(key))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as "object.key"; null is left out, as it means the same as an absent key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
