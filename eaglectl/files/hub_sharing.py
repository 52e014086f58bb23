"""Repositories that are opened once for several commands; apart from the client, which folders need not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Shared:
    """Repositories that were opened within `shared_repositories`, and a lock for each."""

    def __init__(self) -> None:
        self.uses = 0
        self.lock = threading.Lock()
        self.locks: dict[str, threading.Lock] = {}
        self.sources: dict[str, Any] = {}  # HubSource, whose module imports this one


SHARED = _Shared()


@contextmanager
def shared_repositories() -> Iterator[None]:
    """Until the block ends, list each repository once, at the commit of the first time, for all threads."""
    with SHARED.lock:
        SHARED.uses += 1
    try:
        yield
    finally:
        with SHARED.lock:
            SHARED.uses -= 1
            if not SHARED.uses:
                SHARED.sources.clear()
                SHARED.locks.clear()
