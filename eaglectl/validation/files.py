"""Rules on the files of a checkpoint: what is there, what must not be, and whether they can be read."""

from collections.abc import Iterator

from eaglectl.checkpoint.checkpoint import NOT_WEIGHTS, PICKLES
from eaglectl.validation.rule import Hit, rule
from eaglectl.validation.subject import Subject


@rule("EGL002", "no-pickles", "error")
def no_pickles(subject: Subject) -> Iterator[Hit]:
    """No file of the checkpoint is a pickle.

    Whoever opens a pickle runs what is in it; hubs scan for them and mark the repository, and engines that only read
    safetensors find no weights.

    Fix: run `eaglectl convert` and ship its output; remove pickles beside safetensors.
    """
    for name in subject.names:
        if name.endswith((*PICKLES, ".pkl", ".pickle", ".ckpt", ".distcp")) or NOT_WEIGHTS.match(name):
            yield Hit(f"{name} is a pickle", name)
