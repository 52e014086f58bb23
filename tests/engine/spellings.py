"""One drafter whose layer ids are spelled in every way that vLLM's runners tell apart."""

from collections.abc import Mapping

DEFAULT = (2, 4, 5)
# the agreement case, and what 0.32.0 captures of it: V1, V2
SPELLINGS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "llama31/no aux ids": (DEFAULT, DEFAULT),
    "llama31/aux ids at the top alone": ((1, 4, 6), (1, 4, 6)),
    "llama31/aux ids nested alone, as at the top": ((1, 4, 6), DEFAULT),
    "llama31/aux ids nested as layer_ids": (DEFAULT, (1, 4, 6)),
    "llama31/aux ids as target_layer_ids": (DEFAULT, (1, 4, 6)),
    "llama31/aux ids empty at the top": ((1, 4, 6), DEFAULT),
}
