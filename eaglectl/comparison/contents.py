"""The bytes of canonical tensors, read by range; each file is opened once."""

from bisect import bisect_right
from contextlib import ExitStack
from io import FileIO
from itertools import accumulate

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.arithmetic import encode, evaluate, join_absorbed
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.errors import UnreadableError


class Files:
    """The weight files of a checkpoint, kept open while it is read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._open: dict[str, FileIO | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, stored: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a stored tensor's data. Raises UnreadableError."""
        tensor = self.checkpoint.tensors[stored]
        stream = self._stream(tensor.file)
        if stream is None:
            return self.checkpoint.read(stored, start, stop)
        try:
            stream.seek(tensor.start + start)
            data = stream.read(stop - start)
        except OSError as error:
            raise UnreadableError(
                f"{tensor.file} in {self.checkpoint.source.place}: {error.strerror}"
            ) from None
        if len(data) != stop - start:
            raise UnreadableError(f"{tensor.file} ends within {stored}: it is truncated or being written")
        return data

    def _stream(self, file: str) -> FileIO | None:
        if file not in self._open:
            path = self.checkpoint.source.path(file)
            try:
                self._open[file] = self._stack.enter_context(path.open("rb", buffering=0)) if path else None
            except OSError as error:
                raise UnreadableError(f"{file} in {self.checkpoint.source.place}: {error.strerror}") from None
        return self._open[file]


class Content:
    """The data of a canonical tensor as contiguous bytes; a computed tensor is held in memory."""

    def __init__(self, tensor: Tensor, files: Files) -> None:
        self.tensor, self._files = tensor, files
        self._whole: bytes | None = None
        self._segments: tuple[Segment, ...] = ()
        match tensor.origin:
            case Absorbed(w_kc, w_vc):
                self._whole = b"".join(join_absorbed(files.checkpoint, w_kc, w_vc))
            case Computed():
                self._whole = encode(evaluate(tensor, files.checkpoint), tensor.dtype, tensor.name)
            case segments:
                self._segments = segments
        sizes = [segment.stop - segment.start for segment in self._segments]
        if self._whole is not None:
            sizes = [len(self._whole)]
        self._ends = list(accumulate(sizes))

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop)."""
        if self._whole is not None:
            return self._whole[start:stop]
        parts = []
        index = bisect_right(self._ends, start)
        while start < stop:
            segment, end = self._segments[index], self._ends[index]
            begin = end - (segment.stop - segment.start)
            upto = min(stop, end)
            parts.append(
                self._files.read(segment.stored, segment.start + start - begin, segment.start + upto - begin)
            )
            start, index = upto, index + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)
