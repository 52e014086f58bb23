"""The two matrices of a target that a drafter may share, by the names that models give them."""

import hashlib
from collections.abc import Mapping, Sequence

from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import StoredTensor

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
HEADS = ("lm_head.weight", "output.weight")
PLAIN = ("F64", "F32", "F16", "BF16")
SAMPLED_ROWS = 64


def matrix(tensors: Mapping[str, StoredTensor], endings: Sequence[str]) -> str | None:
    """The first matrix of plain numbers whose name has one of `endings`; vision towers have none of these."""
    for ending in endings:
        names = sorted((name for name in tensors if name == ending or name.endswith(f".{ending}")), key=len)
        for name in names:
            if tensors[name].dtype in PLAIN and len(tensors[name].shape) == 2:
                return name
    return None


def spread_over(count: int, most: int = SAMPLED_ROWS) -> list[int]:
    """Up to `most` row numbers, evenly from the first to the last."""
    most = min(count, most)
    return sorted({(count - 1) * i // max(most - 1, 1) for i in range(most)})


def embedding_digest(target: Checkpoint) -> str | None:
    """SHA-256 of sampled rows of a target's embedding; None where it has none of plain numbers."""
    if (name := matrix(target.tensors, EMBEDDINGS)) is None:
        return None
    size, digest = target.tensors[name].row_bytes, hashlib.sha256()
    for row in spread_over(target.tensors[name].shape[0]):
        digest.update(target.read(name, row * size, (row + 1) * size))
    return digest.hexdigest()
