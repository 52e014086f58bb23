"""Opened sources: their headers, and a temporary safetensors copy of weights that are pickles."""

import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError, UsageError, input_error
from eaglectl.files.checkpoint import (
    Checkpoint,
    check_cached,
    errors_name_source,
    read_checkpoint,
    read_config,
)
from eaglectl.files.files import is_folder
from eaglectl.files.layout import VOCABULARY_PICKLES, pickle_files
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource, PinnedSource, Source, shared_repositories
from eaglectl.progress import OnProgress, Progress
from eaglectl.results import FailedSource


@contextmanager
def pickles_copied(source: Source) -> Iterator[FolderSource | EaglectlError | None]:
    """Yield a temporary safetensors copy of pickled weights, or the error that prevents it.

    None if there are no pickles.
    """
    with ExitStack() as stack:
        copied: FolderSource | EaglectlError | None = None
        try:
            if pickle_files(source):
                from eaglectl.files.hub import HubSource

                folder = source.downloaded() if isinstance(source, HubSource) else source
                assert isinstance(folder, FolderSource)
                check_cached(folder)
                files = stack.enter_context(opened(folder))
                files.original.check_unchanged()
                copied = files.readable
        except EaglectlError as error:
            copied = error
        yield copied


class OpenedSource(Struct, frozen=True):
    """A source whose headers are read: the original files, their pickles, and a readable copy of these."""

    original: PinnedSource
    pickles: tuple[str, ...]
    readable: FolderSource
    checkpoint: Checkpoint

    @property
    def original_path(self) -> str:
        """The folder or file as given."""
        return str(self.original.root / (self.original.only or ""))


@contextmanager
def opened(
    original: FolderSource, out: str | Path | None = None, *, is_looked_at: bool = False
) -> Iterator[OpenedSource]:
    """Open a source and read its headers; pickles are copied to a temporary folder, near `out` if possible.

    `is_looked_at`: do not copy them if their tables and a few ranges are enough for a plan.
    """
    with PinnedSource(original.root, original.only) as pinned:
        pickles = pickle_files(pinned)
        checkpoint = read_checkpoint(pinned) if is_looked_at or not pickles else None
        if checkpoint and not (pickles and checkpoint.scattered):
            yield OpenedSource(pinned, pickles, pinned, checkpoint)
            return
        from eaglectl.files.pickles import unpickle

        near = None if out is None or not is_folder(Path(out).parent) else Path(out).parent
        with scratch_folder(near) as scratch:
            with errors_name_source(pinned):
                read_config(pinned)
                for name in pickles:
                    pinned.pinned(name)
                readable = unpickle(pinned, scratch)
            yield OpenedSource(pinned, pickles, readable, read_checkpoint(readable))


def selected_tokens_of(original: FolderSource, drafter: Drafter) -> tuple[int, ...] | None:
    """Return the draft tokens in a trainer's side file, if the weights have no d2t."""
    has_side_file = any(name in VOCABULARY_PICKLES for name in original.names())
    if not drafter.has_reduced_vocabulary or "d2t" in drafter.tensors or not has_side_file:
        return None
    from eaglectl.files.pickles import selected_tokens

    return selected_tokens(original)


T = TypeVar("T")
F = TypeVar("F")
# sources that are read at the same time
JOBS = 8


def run_all(
    sources: Sequence[str],
    act: Callable[[str], T],
    report_failure: Callable[[FailedSource], F],
    on_progress: OnProgress | None = None,
    jobs: int = JOBS,
) -> tuple[list[T | F], list[str]]:
    """Run `act` on each source, `jobs` at a time; for a source that fails, return what `report_failure` does.

    Also returns tracebacks of internal errors. With one source, its UsageError is raised.
    """
    from concurrent.futures import ThreadPoolExecutor  # late: one source needs none

    count, crashes = itertools.count(1), list[str]()

    def run(source: str) -> T | F:
        # one source's failure is its own result, and the others go on; a usage error of a single source is
        # raised
        try:
            result: T | F = act(source)
        except Exception as raised:
            error = raised if isinstance(raised, EaglectlError) else input_error(raised)
            if isinstance(error, UsageError) and len(sources) == 1:
                raise error from None
            if error is not None:
                failure = FailedSource(source, error.kind, error.exit_code, str(error))
            else:
                crashes.append(traceback.format_exc())
                failure = FailedSource(
                    source,
                    "fault",
                    EaglectlError.exit_code,
                    f"internal error of eaglectl: {type(raised).__name__}: {raised}",
                )
            result = report_failure(failure)
        if on_progress:
            on_progress(Progress("checkpoints", next(count), len(sources), "checkpoints"))
        return result

    with shared_repositories(), ThreadPoolExecutor(jobs) as pool:
        return list((pool.map if min(jobs, len(sources)) > 1 else map)(run, sources)), crashes
