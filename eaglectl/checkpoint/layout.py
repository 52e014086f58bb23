"""Names of the files that a checkpoint is made of, and of what is published beside it."""

import re

from eaglectl.checkpoint.source import Source

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# published beside the weights
CARD, RECORD, SUMS, SIGNATURE = "README.md", "eaglectl.json", "SHA256SUMS", "model.sig"
PICKLES = (".bin", ".pt", ".pth")
WEIGHT_SUFFIXES = (".safetensors", *PICKLES)
# small pickles beside the weights that hold the draft vocabulary (NeMo Automodel, SpecForge)
VOCABULARY_PICKLES = ("speculative_token_map.pt", "eagle_meta.pt", "vocab_mapping.pt")
# a trainer's state beside the weights, which no engine reads
NOT_WEIGHTS = re.compile(
    r"(optimizer|scheduler|scaler|rng_state|training_args|training_state_rank)|"
    + "|".join(map(re.escape, VOCABULARY_PICKLES))
)


def pickle_files(source: Source) -> tuple[str, ...]:
    """The pickles that hold the weights of `source`; empty where a safetensors file holds them."""
    if source.only is not None:
        return (source.only,) if source.only.endswith(PICKLES) else ()
    names = source.names()
    if any(name.endswith(".safetensors") or name == INDEX for name in names):
        return ()
    return _distributed_files(names) or tuple(
        name for name in names if name.endswith(PICKLES) and not NOT_WEIGHTS.match(name)
    )


def _distributed_files(names: tuple[str, ...]) -> tuple[str, ...]:
    """The table and the shards of a torch distributed checkpoint; empty where there is none."""
    shards = tuple(name for name in names if name.endswith(".distcp"))
    table = next((name for name in (".metadata", "model/.metadata") if name in names), None)
    return (table, *shards) if table and shards else ()
