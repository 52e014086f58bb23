"""SHA-256 of a source's files, computed in a thread beside the copying."""

import hashlib
import os
import threading
from collections.abc import Sequence

from eaglectl.checkpoint.pinned import PinnedSource
from eaglectl.errors import EaglectlError

BLOCK = 1 << 20


class FileDigests:
    """SHA-256 of files, computed while they are copied so that both share one pass through the page cache."""

    def __init__(self, source: PinnedSource, names: Sequence[str]) -> None:
        # opened here and not in the thread: the same descriptors are copied from
        self.descriptors = {name: source.pinned(name).descriptor for name in names}
        self.digests: dict[str, str] = {}
        self.error: OSError | EaglectlError | None = None
        self.is_stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "FileDigests":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_stopped = True
        self.thread.join()

    def result(self, names: Sequence[str]) -> dict[str, str | None]:
        """The digest of each of `names`; None for a file that was not read. Raises what reading raised."""
        self.thread.join()
        if self.error:
            raise self.error
        return {name: self.digests.get(name) for name in names}

    def _run(self) -> None:
        try:
            for name, descriptor in self.descriptors.items():
                digest, position = hashlib.sha256(), 0
                while not self.is_stopped and (block := os.pread(descriptor, BLOCK, position)):
                    digest.update(block)
                    position += len(block)
                self.digests[name] = digest.hexdigest()
        except (OSError, EaglectlError) as error:
            self.error = error
