"""Files that torch.save writes, read by range and without torch: their value and their storages.

Two formats (torch/serialization.py): a zip that holds data.pkl and one record a storage, and the old one:
several pickles, then the storages, each after its number of elements.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping

from msgspec import Struct

from eaglectl.checkpoint.opcodes import MAX_BYTES, List, Pickle, PickleError, Value, read_pickle
from eaglectl.checkpoint.source import Source
from eaglectl.checkpoint.tensor_table import NAMES, Storage, StorageView, read_storage, storages
from eaglectl.errors import EaglectlError

# zipfile makes an object of every record: 2 MB of directory is some 20,000 storages
MAX_DIRECTORY = 2 << 20
LOCAL_HEADER = 30
# read at once from both ends: the pickle is the first record, the directory the last; a drafter's have less
ENDS = 8 << 10
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
ENCRYPTED = 1


class TorchFile(Struct, frozen=True):
    """The value that was saved, and the bytes [start, stop) of the file that keep each storage."""

    value: Value
    places: Mapping[str, tuple[int, int]]

    def place(self, storage: Storage) -> tuple[int, int]:
        """The bytes of a storage. Raises PickleError where the file has fewer."""
        start, stop = self.places.get(storage.key, (0, -1))
        if stop - start < storage.nbytes:
            kept = f"{stop - start} bytes" if stop >= start else "nothing"
            raise PickleError(f"storage {storage.key[:80]} has {storage.nbytes} bytes, and the file {kept}")
        return start, start + storage.nbytes

    def check(self, views: Iterable[StorageView]) -> None:
        """Raise PickleError where a storage of `views` is not whole in the file, or is inside another."""
        end = 0
        for start, stop, key in sorted((*self.place(item), key) for key, item in storages(views).items()):
            if start < end and stop > start:
                raise PickleError(f"storage {key[:80]} overlaps another")
            end = max(end, stop)


class _Window:
    """Bytes [start, stop) of a file as a file of its own, of which little is read at once."""

    def __init__(self, source: Source, name: str, start: int, stop: int) -> None:
        self._source, self._name, self._start, self._size = source, name, start, stop - start
        self._position = 0
        self._ends: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, self._size)[whence]
        if base + offset < 0:
            raise PickleError("its directory is broken")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        size = left if size < 0 else min(size, left)
        if size > max(MAX_BYTES, MAX_DIRECTORY):
            raise PickleError(f"it has {size} bytes where at most {MAX_BYTES} are read")
        data = self._at_an_end(self._position, size) or self._range(self._position, size)
        self._position += size
        return data

    def _range(self, position: int, size: int) -> bytes:
        return self._source.read(self._name, self._start + position, self._start + position + size)

    def _at_an_end(self, position: int, size: int) -> bytes:
        """Bytes that are in the first or in the last ENDS bytes, which are read once; else none."""
        for first in (0, max(0, self._size - ENDS)):
            last = min(first + ENDS, self._size)
            if first <= position and position + size <= last:
                if first not in self._ends:
                    self._ends[first] = self._range(first, last - first)
                return self._ends[first][position - first : position - first + size]
        return b""


def read_torch_file(
    source: Source, name: str, start: int = 0, stop: int | None = None, *, has_places: bool = True
) -> TorchFile:
    """Bytes [start, stop) of a file that torch.save wrote; the places are offsets in the whole file.

    Without `has_places` they are as the file's directory states them: nothing is read at the storages, and
    no data may be read there.

    Raises PickleError, its subclass ForeignNameError where it asks for what no state dict needs, and
    UnreadableError where the file itself cannot be read.
    """
    end = source.size(name) if stop is None else stop
    window = _Window(source, name, start, end)
    if window.read(4) == b"PK\x03\x04":
        try:
            return _Archive(window, start, has_places=has_places).torch_file()
        except (PickleError, EaglectlError):
            raise
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError) as error:
            raise PickleError(str(error)[:120]) from None
    window.seek(0)
    return _old_format(window, start, end, has_places=has_places)


class _Archive:
    """The zip of torch's format since 1.6."""

    def __init__(self, window: _Window, start: int, *, has_places: bool) -> None:
        self.window, self.start, self.has_places = window, start, has_places
        window.seek(0)
        with zipfile.ZipFile(_Directory(window)) as archive:
            self.end = archive.start_dir
            infos = archive.infolist()
        self.records = {info.filename: info for info in infos}
        if len(self.records) != len(infos):
            raise PickleError("two records have one name")

    def torch_file(self) -> TorchFile:
        pickles = [name for name in self.records if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise PickleError(f"it has {len(pickles)} records of the name data.pkl, and torch.save writes 1")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in self.records and self.content(f"{root}byteorder") != b"little":
            raise PickleError("it was not saved on a little-endian machine")
        reading = read_pickle(self.content(pickles[0]), NAMES, has_references=True)
        keys = {read_storage(reference)[0].key for reference in reading.references}
        return TorchFile(
            reading.value,
            {key: self.storage(f"{root}data/{key}") for key in keys if f"{root}data/{key}" in self.records},
        )

    def storage(self, name: str) -> tuple[int, int]:
        """The bytes of a storage, or bytes of its record as many as it has."""
        if self.has_places:
            return self.place(name)
        info = self.records[name]
        _check_stored(info)
        first = info.header_offset + LOCAL_HEADER + len(info.orig_filename.encode())
        return self._span(info, first)

    def content(self, name: str) -> bytes:
        first, last = self.place(name)
        self.window.seek(first - self.start)
        return self.window.read(last - first)

    def place(self, name: str) -> tuple[int, int]:
        """The bytes of a record in the whole file."""
        info = self.records[name]
        _check_stored(info)
        self._span(info, info.header_offset + LOCAL_HEADER)
        self.window.seek(info.header_offset)
        header = self.window.read(LOCAL_HEADER)
        if header[:4] != b"PK\x03\x04" or len(header) < LOCAL_HEADER or info.flag_bits & ENCRYPTED:
            raise PickleError(f"record {name[:80]} is broken")
        names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        first = info.header_offset + LOCAL_HEADER + names + extra
        return self._span(info, first)

    def _span(self, info: zipfile.ZipInfo, first: int) -> tuple[int, int]:
        """The bytes of a record in the whole file, that begin at `first` of the archive."""
        if first + info.file_size > self.end:
            raise PickleError(f"record {info.filename[:80]} is past the end of the file")
        return self.start + first, self.start + first + info.file_size


def _check_stored(info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise PickleError(f"record {info.filename[:80]} is compressed; torch compresses no file of its own")


class _Directory:
    """A window through which no large directory is read."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self.tell, self.seek, self.seekable = window.tell, window.seek, window.seekable

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY:
            raise PickleError(f"its directory has {size} bytes, and at most {MAX_DIRECTORY} are read")
        return self._window.read(size)


def _old_format(window: _Window, start: int, end: int, *, has_places: bool) -> TorchFile:
    """Five pickles (magic number, protocol, the writer's machine, the value, keys), then the storages."""
    for size in (ENDS, MAX_BYTES >> 4, MAX_BYTES):
        window.seek(0)
        head = window.read(min(end - start, size))
        try:
            reading, keys = _old_pickles(head)
            break
        except PickleError:
            if len(head) < size or size == MAX_BYTES:
                raise
    return TorchFile(reading.value, _old_places(window, reading, keys, (start, end), has_places=has_places))


def _old_pickles(head: bytes) -> tuple[Pickle, Pickle]:
    """The value, and the keys of its storages. Raises PickleError."""
    magic = read_pickle(head, NAMES)
    if magic.value != MAGIC:
        raise PickleError("it is no zip, and does not begin with torch's magic number")
    protocol = read_pickle(head, NAMES, start=magic.stop)
    if protocol.value != PROTOCOL:
        raise PickleError("its protocol is not the one of torch's old format")
    machine = read_pickle(head, NAMES, start=protocol.stop)
    reading = read_pickle(head, NAMES, start=machine.stop, has_references=True)
    keys = read_pickle(head, NAMES, start=reading.stop)
    return reading, keys


def _old_places(
    window: _Window, reading: Pickle, keys: Pickle, span: tuple[int, int], *, has_places: bool
) -> Mapping[str, tuple[int, int]]:
    """Where the storages are: in the order of `keys`, each after its number of elements."""
    start, end = span
    if not isinstance(keys.value, List):
        raise PickleError("it does not list its storages")
    stored = {storage.key: storage for storage, _ in map(read_storage, reading.references)}
    position = keys.stop
    places: dict[str, tuple[int, int]] = {}
    for key in keys.value.items:
        if not isinstance(key, str) or key not in stored or key in places:
            raise PickleError("it lists a storage twice, or that nothing refers to")
        if has_places:
            _check_count(window, position, stored[key])
        first = start + position + 8
        position += 8 + stored[key].nbytes
        if start + position > end:
            raise PickleError(f"storage {key[:80]} is past the end of the file; it is truncated")
        places[key] = (first, start + position)
    return places


def _check_count(window: _Window, position: int, storage: Storage) -> None:
    """Raise PickleError unless the storage at `position` has as many elements as its pickle says."""
    window.seek(position)
    count = int.from_bytes(window.read(8), "little")
    if count * storage.item != storage.nbytes:
        text = f"storage {storage.key[:80]} has {count} elements where its pickle says another number"
        raise PickleError(text)
