"""A temporary safetensors copy of weights that are pickles, for commands that read their values."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.layout import pickle_files
from eaglectl.checkpoint.opening import check_cached
from eaglectl.checkpoint.pinned import PinnedSource
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.errors import EaglectlError


@contextmanager
def pickles_copied(source: Source) -> Iterator[FolderSource | EaglectlError | None]:
    """A temporary safetensors copy of weights that are pickles, or the error why there is none.

    None where they are no pickles, or there are no weights.
    """
    with ExitStack() as stack:
        copied: FolderSource | EaglectlError | None = None
        try:
            if pickle_files(source):
                from eaglectl.checkpoint.hub import HubSource

                folder = source.downloaded() if isinstance(source, HubSource) else source
                assert isinstance(folder, FolderSource)
                check_cached(folder)
                pinned = stack.enter_context(pinned_folder(folder))
                copied, _ = stack.enter_context(without_pickles(pinned))
                pinned.check_unchanged(is_status_compared=False)
        except EaglectlError as error:
            copied = error
        yield copied


def pinned_folder(original: FolderSource) -> PinnedSource:
    """The source, whose files are opened once each."""
    return PinnedSource(original.root, original.only)


@contextmanager
def without_pickles(
    original: PinnedSource, near: Path | None = None
) -> Iterator[tuple[FolderSource, tuple[str, ...]]]:
    """The source, or a temporary safetensors copy of its pickles in the folder `near`; and the pickles."""
    pickles = pickle_files(original)
    if not pickles:
        yield original, pickles
        return
    from eaglectl.checkpoint.pickles import unpickle

    read_config(original)
    for name in pickles:
        original.pinned(name)
    near = near if near and near.is_dir() else None
    with scratch_folder(near) as scratch:
        yield unpickle(original, scratch), pickles
