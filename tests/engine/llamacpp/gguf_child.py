"""Run by test_gguf_llamacpp: eaglectl's GGUF files beside those of llama.cpp's converter.

Argument: a folder, with what `write_ours` wrote; answer.json comes into it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.errors import EaglectlError
from eaglectl.operations.converting import ConvertOptions
from tests.engine import trained
from tests.engine.agreement.bases import target
from tests.engine.llamacpp.cases import CASES
from tests.engine.llamacpp.engine import draft, load_converter, to_gguf
from tests.engine.llamacpp.records import read
from tests.engine.llamacpp.runner import KINDS, add_tokenizer
from tests.engine.rounds import NEW_TOKENS, K, prompts
from tests.tiny import TARGET

# drafted with too: what the files state and not only the tensors decides here
DRAFTED = (
    "llama.cpp/none",
    "llama.cpp/norm_before_residual",
    "llama.cpp/norm_before_fc",
    "llama.cpp/rope yarn",
    "llama.cpp/rope linear",
    "llama.cpp/rope llama3",
    "llama.cpp/full vocabulary, no d2t",
    "llama.cpp/full vocabulary, the target's head",
)


def main() -> None:
    """Write what differs between the files of the pair and of each case, and what both draft."""
    root = Path(sys.argv[1])
    load_converter()
    answer = {
        "pair": _pair(root),
        "cases": {name: _case(root, name) for name in names() if _is_there(root, name)},
    }
    (root / "answer.json").write_text(json.dumps(answer))


def write_ours(root: Path) -> dict[str, str]:
    """Write eaglectl's files of the pair and of all cases; the cases that it refuses, with the reason.

    Not in the process of the converter, which brings a package gguf of its own.
    """
    _convert(trained.DRAFTER, root / "pair", TARGET, None)
    for kind in KINDS:
        add_tokenizer(target(kind).write(root / "targets" / kind))
    refused = {}
    for name in names():
        case, folder = CASES[name], _folder(root, name)
        source = case.files().write(folder / "case")
        try:
            _convert(source, folder, root / "targets" / case.kind, "F32")
        except EaglectlError as error:
            refused[name] = str(error)
    return refused


def names() -> list[str]:
    """The cases that llama.cpp drafts as meant."""
    return [name for name, record in read().items() if record.verdict == "as meant"]


def _folder(root: Path, name: str) -> Path:
    return root / re.sub(r"\W+", "-", name)


def _is_there(root: Path, name: str) -> bool:
    return (_folder(root, name) / "ours.gguf").exists()


def _convert(source: Path, folder: Path, target: Path, dtype: str | None) -> None:
    folder.mkdir(exist_ok=True)
    options = ConvertOptions("llama.cpp", target=str(target), gguf=folder / "ours.gguf", dtype=dtype)
    eaglectl.convert(str(source), folder / "out", options)


def _pair(root: Path) -> dict[str, Any]:
    """The trained pair, whose matrices are BF16."""
    ours, theirs = root / "pair/ours.gguf", root / "pair/theirs.gguf"
    to_gguf(root / "pair/out", theirs, TARGET, "bf16")
    to_gguf(TARGET, root / "target.gguf")
    found = draft(root / "target.gguf", ours, trained.prompts(), trained.K, trained.TOKENS)
    tokens = [answer[: trained.TOKENS] for answer in found.tokens]
    return {**difference(ours, theirs), "accepted": trained.accepted(found.drafts, tokens)}


def _case(root: Path, name: str) -> dict[str, Any]:
    """What differs, and for the drafted ones whether drafts do not."""
    kind, folder = CASES[name].kind, _folder(root, name)
    ours, theirs, served = folder / "ours.gguf", folder / "theirs.gguf", root / f"{kind}.gguf"
    if not served.exists():
        to_gguf(root / "targets" / kind, served)
    to_gguf(folder / "case", theirs, root / "targets" / kind)
    found = difference(ours, theirs)
    if name not in DRAFTED:
        return found
    both = [draft(served, file, prompts(), K, NEW_TOKENS).drafts for file in (ours, theirs)]
    return {**found, "is_drafted_equally": both[0] == both[1]}


def difference(ours: Path, theirs: Path) -> dict[str, Any]:
    """The keys and the tensors that are not the same, type and value."""
    import gguf

    readers = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
    facts = [
        {name: (field.types, field.contents()) for name, field in reader.fields.items()} for reader in readers
    ]
    tensors = [{tensor.name: tensor for tensor in reader.tensors} for reader in readers]
    both = tensors[0].keys() & tensors[1].keys()
    return {
        "keys": sorted(
            name for name in facts[0].keys() | facts[1].keys() if facts[0].get(name) != facts[1].get(name)
        ),
        "tensors": sorted(
            (tensors[0].keys() ^ tensors[1].keys())
            | {name for name in both if not is_same(tensors[0][name], tensors[1][name])}
        ),
    }


def is_same(ours: Any, theirs: Any) -> bool:
    """Type, shape and bytes; the factors of llama3, which both compute, to float32's precision."""
    if ours.tensor_type != theirs.tensor_type or ours.shape.tolist() != theirs.shape.tolist():
        return False
    if ours.name == "rope_freqs.weight":
        return bool((abs(ours.data - theirs.data) <= 2e-6 * theirs.data).all())
    return bool(ours.data.tobytes() == theirs.data.tobytes())


if __name__ == "__main__":
    main()
