"""The two matrices of a target that a drafter may share, by the names that models give them."""

from collections.abc import Mapping, Sequence

from eaglectl.checkpoint.header import StoredTensor

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
HEADS = ("lm_head.weight", "output.weight")
PLAIN = ("F64", "F32", "F16", "BF16")


def matrix(tensors: Mapping[str, StoredTensor], endings: Sequence[str]) -> str | None:
    """The first matrix of plain numbers with one of `names`; vision towers have none of these."""
    for ending in endings:
        names = sorted((name for name in tensors if name == ending or name.endswith(f".{ending}")), key=len)
        for name in names:
            if tensors[name].dtype in PLAIN and len(tensors[name].shape) == 2:
                return name
    return None
