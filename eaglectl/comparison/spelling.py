"""How two files write what they mean: producers, names of tensors, config keys, files."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.comparison.comparison import KeyPair, NamePair, Remark, Side, Spelling
from eaglectl.comparison.pairing import tensors_of
from eaglectl.drafter.boundaries import AuxLayers
from eaglectl.formats.catalogue import by_name

CONVENTIONS = {"boundary": "boundaries", "output": "outputs of layers", None: "of unknown meaning"}


def spelling(a: Side, b: Side, more: tuple[Remark, ...] = ()) -> Spelling:
    """Every difference of spelling; `more` are those of the draft vocabulary."""
    return Spelling((*_remarks(a, b), *more), tuple(_names(a, b)), tuple(_keys(a, b)))


def _remarks(a: Side, b: Side) -> Iterator[Remark]:
    one, other = a.drafter, b.drafter
    yield from _remark("producer", by_name(one.producer).title, by_name(other.producer).title)
    yield from _remark("layer ids", _ids(one.aux), _ids(other.aux))
    yield from _remark("files", _files(a), _files(b))
    yield from _remark("target", one.target.name or "not named", other.target.name or "not named")
    yield from _remark("strays", ", ".join(one.strays) or "none", ", ".join(other.strays) or "none")


def _remark(about: str, a: str, b: str) -> Iterator[Remark]:
    if a != b:
        yield Remark(about, a, b)


def _ids(aux: AuxLayers) -> str:
    return f"{', '.join(map(str, aux.ids))} ({CONVENTIONS[aux.convention]})" if aux.ids else "none"


def _files(side: Side) -> str:
    return ", ".join(side.checkpoint.weight_files)


def _names(a: Side, b: Side) -> Iterator[NamePair]:
    mine, theirs = tensors_of(a), tensors_of(b)
    for name in mine:
        if name in theirs and mine[name].stored != theirs[name].stored:
            yield NamePair(name, mine[name].stored, theirs[name].stored)


def _keys(a: Side, b: Side) -> Iterator[KeyPair]:
    mine, theirs = dict(_flat(a.flat)), dict(_flat(b.flat))
    for key in dict.fromkeys((*mine, *theirs)):
        if mine.get(key) != theirs.get(key):
            yield KeyPair(key, mine.get(key), theirs.get(key))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as "object.key"; a null says no more than an absent key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
