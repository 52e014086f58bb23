"""Digests of ranges of open files, on as many threads as there are cores.

Tensors have a BLAKE3 digest, which costs little on every processor; whole files SHA-256, as SHA256SUMS and
the Hub give it.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, get_args

from blake3 import blake3
from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.files import naming
from eaglectl.files.header import StoredTensor

# bytes that a thread reads at once: they stay in its core's cache while they are hashed
BLOCK = 1 << 18
# how a record states the digests of tensors; one that does not say it is from before BLAKE3
Algorithm = Literal["sha256", "blake3"]
ALGORITHMS = get_args(Algorithm)
TENSORS: Algorithm = "blake3"
# a range of a file: its first byte, and the byte after its last
Range = tuple[int, int]
# the key of the range before the first tensor of a safetensors file; no tensor may have that name
HEADER_KEY = "__metadata__"


def hashed(parts: Iterable[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    """The same parts, which a digest takes as they pass."""
    for part in parts:
        digest.update(part)
        yield part


def tensor_ranges(tensors: Iterable[StoredTensor], file: str) -> dict[str, Range]:
    """Where the tensors of a safetensors file lie in it, and what is before them."""
    ranges = {tensor.name: (tensor.start, tensor.stop) for tensor in tensors if tensor.file == file}
    return {HEADER_KEY: (0, min((start for start, _ in ranges.values()), default=0)), **ranges}


class Digests:
    """Threads that hash ranges of files: a context manager, which stops them at its end.

    `on_bytes` is called with the size of each block, by one thread at a time.
    """

    def __init__(self, on_bytes: Callable[[int], None] | None = None) -> None:
        self.on_bytes, self.counting = on_bytes, threading.Lock()
        self.is_stopped = False
        self.descriptors: list[int] = []
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, "digest")

    def __enter__(self) -> "Digests":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_stopped = True
        self.pool.shutdown(cancel_futures=True)
        while self.descriptors:
            os.close(self.descriptors.pop())

    def of_ranges(
        self, name: str, descriptor: int, ranges: Mapping[str, Range], algorithm: Algorithm
    ) -> "RangeDigests":
        """Start on ranges of an open file; `name` is for messages, the descriptor is copied."""
        self.descriptors.append(os.dup(descriptor))

        def digest(place: Range) -> Future[str]:
            return self.pool.submit(self._hash, name, self.descriptors[-1], place, algorithm)

        in_order = sorted(ranges.items(), key=lambda item: item[1])
        return RangeDigests(name, {key: digest(place) for key, place in in_order})

    def _hash(self, name: str, descriptor: int, place: Range, algorithm: Algorithm) -> str:
        start, stop = place
        digest: Any = blake3() if algorithm == "blake3" else hashlib.sha256()
        buffer = memoryview(bytearray(min(BLOCK, stop - start)))
        while start < stop and not self.is_stopped:
            size = os.preadv(descriptor, [buffer[: stop - start]], start)
            if not size:
                raise UnreadableError(f"{name} became shorter while it was read; run the command again")
            digest.update(buffer[:size])
            start += size
            if self.on_bytes:
                with self.counting:
                    self.on_bytes(size)
        return str(digest.hexdigest())


class RangeDigests(Struct, frozen=True):
    """The digests of ranges of one file, as they are made."""

    name: str
    futures: Mapping[str, Future[str]]

    def result(self) -> dict[str, str]:
        """The digest of each range. Raises UnreadableError for a file that is shorter, or fails to read."""
        with naming(self.name):
            return {key: future.result() for key, future in self.futures.items()}
