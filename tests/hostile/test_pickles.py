"""Hostile pickles: refused in one sentence, without a crash, within 100 MB, and nothing is left behind."""

import contextlib
import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglectl.errors import UnreadableError
from eaglectl.files import opcodes
from eaglectl.files.opcodes import (
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_MEMO,
    MAX_OPCODES,
    Dict,
    List,
    PickleError,
    Tuple,
    Value,
    read_pickle,
)
from eaglectl.files.source import FolderSource
from eaglectl.files.torch_file import (
    NAMES,
    StorageView,
    TorchFile,
    UnfitTensorError,
    read_torch_file,
    state_views,
)
from tests.builders import contents, drafter_folder, drafter_tensors
from tests.conftest import FIXTURES
from tests.test_pickles import DTYPES, named, pickled_folder, state, training_folder, unreadable

torch = pytest.importorskip("torch")

LEVELS = 200_000
NESTED = b")" + b"\x85" * LEVELS
# each level holds the one before it twice: 2^60 values once they are hashed
LAUGHS = b")" + b"q\x00h\x00\x86" * 60
AS_KEY = {
    "nested": b"\x80\x02}" + NESTED + b"Ns.",
    "repeated": b"\x80\x02}" + LAUGHS + b"Ns.",
}
RUN = """
import sys
from eaglectl.cli import run
for folder in sys.argv[1:]:
    print(run(["convert", folder, "-o", folder + "-out"]), flush=True)
"""


def archive(
    data: bytes, storages: dict[str, bytes] | None = None, others: dict[str, bytes] | None = None
) -> bytes:
    """A torch zip around a data.pkl."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as whole:
        whole.writestr("archive/data.pkl", data)
        for key, content in (storages or {}).items():
            whole.writestr(f"archive/data/{key}", content)
        for name, content in (others or {}).items():
            whole.writestr(f"archive/{name}", content)
        whole.writestr("archive/version", "3\n")
    return raw.getvalue()


def vocabulary_folder(parent: Path, raw: bytes) -> Path:
    """The drafter without d2t, beside a vocabulary pickle."""
    folder = drafter_folder(parent, tensors={"d2t": None})
    (folder / "eagle_meta.pt").write_bytes(raw)
    return folder


PLACES: dict[str, Callable[[Path, bytes], Path]] = {
    "table": training_folder,
    "zip": lambda parent, raw: pickled_folder(parent, archive(raw)),
    "vocabulary": lambda parent, raw: vocabulary_folder(parent, archive(raw)),
}


@pytest.mark.parametrize("kind", AS_KEY)
@pytest.mark.parametrize("place", PLACES)
def test_a_nested_key_is_refused_wherever_a_pickle_is_read(tmp_path: Path, place: str, kind: str) -> None:
    unreadable(PLACES[place](tmp_path, AS_KEY[kind]))


@pytest.mark.slow
def test_a_nested_key_kills_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    # in a process of its own: what this guards against kills Python
    folders = []
    for place, build in PLACES.items():
        for kind, raw in AS_KEY.items():
            (parent := tmp_path / f"{place} {kind}").mkdir()
            folders.append(build(parent, raw))
    beside = {folder.parent: contents(folder.parent) for folder in folders}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, folders)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"] * len(folders)
    assert {parent: contents(parent) for parent in beside} == beside


# title: the pickle, and what its refusal says
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a million nested tuples": (lambda: b"\x80\x02)" + b"\x85" * 1_000_000 + b".", "inside each other"),
    "nested tuples as a key": (lambda: AS_KEY["nested"], "inside each other"),
    "a tuple that repeats itself as a key": (lambda: AS_KEY["repeated"], "a tuple as a key"),
    "nested lists": (lambda: b"]" * 90_000 + b"a" * 89_999 + b".", "inside each other"),
    "nested dicts": (lambda: b"}" + b"N}" * 99 + b"s" * 99 + b".", "inside each other"),
    "nested states": (
        lambda: b"\x80\x02" + b"ccollections\nCounter\n)R" * 99 + b"b" * 98 + b".",
        "inside each",
    ),
    "nested references": (lambda: b"N" + b"Q" * 99 + b".", "inside each other"),
    "a list in itself": (lambda: b"]q\x00h\x00a.", "holds itself"),
    "a list in itself by a tuple": (lambda: b"]q\x00h\x00\x85a.", "inside another"),
    "two lists in each other": (lambda: b"]q\x00]q\x01h\x00ah\x00h\x01aa.", "inside another"),
    "a dict in itself": (lambda: b"}q\x00Nh\x00s.", "holds itself"),
    "a state in itself": (lambda: b"ccollections\nCounter\n)Rq\x00h\x00b.", "holds itself"),
    "a huge memo number": (lambda: b"Nr\xff\xff\xff\x7f.", "memo number"),
    "a negative memo number": (lambda: b"Np-1\n.", "memo number"),
    "an integer of a MB": (lambda: b"\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".", "bits"),
    "an integer of 5000 digits": (lambda: b"L" + b"9" * 5000 + b"L\n.", ""),
    "a broken escape in an old text": (lambda: b"S'\\d'\nN.", "one value"),
    "a text of 2 GB": (lambda: b"X\xff\xff\xff\x7fabc.", ""),
    "a text of 2^63 bytes": (lambda: b"\x8d" + b"\xff" * 7 + b"\x7fabc.", ""),
    "more opcodes than are read": (lambda: b"(" + b"N" * MAX_OPCODES + b"t.", "opcodes"),
    "more containers than are read": (lambda: b"(" + b"]" * (MAX_CONTAINERS + 1) + b"t.", "containers"),
    "more bytes than are read": (
        lambda: b"B" + struct.pack("<I", MAX_BYTES) + bytes(MAX_BYTES) + b".",
        "at most",
    ),
    "keys that meet in one hash": (lambda: b"}\x8a\x0a" + bytes(8) + b"\x01\x00Ns.", "more than 64 bits"),
    "a key twice": (lambda: b"}X\x01\x00\x00\x00aNsX\x01\x00\x00\x00aNs.", "'a' twice"),
    "no mark": (lambda: b"Nt.", "mark"),
    "a mark left": (lambda: b"(N.", "one value"),
    "a value below a mark": (lambda: b"N(\x85.", "where none is"),
    "two values": (lambda: b"NN.", "one value"),
    "nothing": (lambda: b"", ""),
    "a protocol of the future": (lambda: b"\x80\x06N.", "protocol"),
    **{
        f"opcode {name}": (lambda raw=raw: b"(NN" + raw + b".", f"opcode {name}")
        for name, raw in {
            "INST": b"icollections\nOrderedDict\n",
            "OBJ": b"o",
            "EXT1": b"\x82\x01",
            "EXT2": b"\x83\x01\x00",
            "EXT4": b"\x84\x01\x00\x00\x00",
            "PERSID": b"P0\n",
            "DUP": b"2",
            "POP": b"0",
            "POP_MARK": b"1",
            "BYTEARRAY8": b"\x96" + bytes(8),
            "NEXT_BUFFER": b"\x97",
            "READONLY_BUFFER": b"\x98",
            "NEWOBJ_EX": b"\x92",
            "EMPTY_SET": b"\x8f",
            "ADDITEMS": b"\x90",
            "FROZENSET": b"\x91",
        }.items()
    },
    "os.system": (lambda: named("os", "system") + b"\x8c\x02id\x85R.", "it asks for os.system"),
    "torch.load": (lambda: b"ctorch\nload\n.", "it asks for torch.load"),
    "an attribute of what is allowed": (lambda: named("torch", "Size.mro") + b".", "torch.Size.mro"),
    "a call of a number": (lambda: b"K\x01)R.", "calls a int"),
    "a call of a call's value": (lambda: b"ccollections\nCounter\n)R)R.", "calls a Counter"),
}


def refusal_of(raw: bytes) -> str:
    with pytest.raises(PickleError) as caught:
        read_pickle(raw, NAMES, has_references=True)
    return str(caught.value)


@pytest.mark.parametrize("title", REFUSED)
def test_a_hostile_pickle_is_refused_in_a_sentence(title: str) -> None:
    build, words = REFUSED[title]
    message = refusal_of(build())
    assert words in message
    assert 0 < len(message) < 200
    assert "\n" not in message


# the largest values that each limit lets through, and what goes over it at the end
LARGEST: dict[str, Callable[[], bytes]] = {
    "dicts": lambda: b"(" + b"}NNs" * (MAX_CONTAINERS - 1) + b"t.",
    "lists": lambda: b"(" + b"]Na" * (MAX_CONTAINERS - 1) + b"t.",
    "tuples": lambda: b"(" + b"N\x85" * (MAX_CONTAINERS - 1) + b"t.",
    "calls": lambda: b"(ccollections\nCounter\nq\x00" + b"h\x00)R" * ((MAX_CONTAINERS - 1) // 2) + b"t.",
    "references": lambda: b"(" + b"NQ" * (MAX_CONTAINERS - 1) + b"t.",
    "integers": lambda: b"(" + b"J\xff\xff\xff\x7f" * (MAX_BYTES // 5 - 1) + b"t.",
    "long integers": lambda: b"(" + (b"\x8a\x0c" + b"\x01" * 12) * (MAX_BYTES // 14 - 1) + b"t.",
    "keys": lambda: (
        b"}(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(MAX_OPCODES // 2 - 5)) + b"u."
    ),
    "a memo": lambda: (
        b"J\xff\xff\xff\x7f" + b"".join(b"r" + struct.pack("<I", n) for n in range(MAX_MEMO)) + b"."
    ),
    "wide text": lambda: (
        b"X" + struct.pack("<I", MAX_BYTES - 8) + b"a" * (MAX_BYTES - 12) + "\U0001f600".encode() + b"."
    ),
    "all together": lambda: (
        b"((X"
        + struct.pack("<I", 3 << 20)
        + b"a" * ((3 << 20) - 4)
        + "\U0001f600".encode()
        + b"".join(b"}r" + struct.pack("<I", n) + b"NNs" for n in range(MAX_CONTAINERS - 2))
        + b"tt."
    ),
    "marks": lambda: b"(" * (MAX_OPCODES // 2 - 1) + b"t" * (MAX_OPCODES // 2 - 1) + b".",
}


@pytest.mark.slow
@pytest.mark.parametrize("title", LARGEST)
def test_the_largest_pickles_stay_within_100_mb(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw = LARGEST[title]()
    assert len(raw) <= MAX_BYTES
    tracemalloc.start()
    try:
        read_pickle(raw, NAMES, has_references=True)
    except PickleError:
        assert title == "marks"
    peak = tracemalloc.get_traced_memory()[1] + len(raw)
    tracemalloc.stop()
    with capsys.disabled():
        print(f"\n{title}: {len(raw) / 1e6:.1f} MB of pickle, {peak / 1e6:.0f} MB at most")
    assert peak < 100e6


# what the walk reads is what pickle and torch read


def plain(value: Value) -> Any:
    """A value without names as Python has it."""
    match value:
        case Tuple(items=items):
            return tuple(map(plain, items))
        case List(items=items):
            return list(map(plain, items))
        case Dict(entries=entries):
            return {key: plain(item) for key, item in entries.items()}
    return value


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(1 << 60), 1 << 60), inner)
    ),
    max_leaves=15,
)


@settings(max_examples=50, deadline=None)
@given(value=VALUES, protocol=st.sampled_from([0, 1, 2, 3, 4, 5]))
def test_any_value_of_plain_types_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    if protocol < 3:
        # bytes are a call of _codecs.encode there
        raw = pickle.dumps(value := pickle.loads(pickle.dumps(without_bytes(value))), protocol)
    assert plain(read_pickle(raw, NAMES).value) == value


def without_bytes(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case list():
            return list(map(without_bytes, value))
        case tuple():
            return tuple(map(without_bytes, value))
        case dict():
            return {key: without_bytes(item) for key, item in value.items()}
    return value


OPCODES = st.sampled_from(
    [
        *(bytes([code]) for code in b"NK()]}0125aesutlobRQ\x81\x85\x86\x87\x88\x89"),
        *(bytes([code]) for code in b"\x8f\x90\x91\x92\x93\x94\x97\x98"),
        *(b"K" + bytes([number]) for number in range(4)),
        *(code + bytes([number]) for code in (b"q", b"h", b"\x8a", b"U", b"\x8c") for number in range(4)),
        b"r\xff\xff\xff\xff",
        b"j\x00\x00\x00\x00",
        b"\x95" + bytes(8),
        b"X\x01\x00\x00\x00a",
        b"I01\n",
        b"L5L\n",
        b"F1e999\n",
        b"S'a'\n",
        b"Va\n",
        b"p0\n",
        b"g0\n",
        b"P0\n",
        b"G" + bytes(8),
        b"\x82\x01",
        b"\x80\x04",
        b"cos\nsystem\n",
        b"ccollections\nOrderedDict\n",
        b"ctorch\nSize\n",
        b"ctorch\nFloatStorage\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"icollections\nOrderedDict\n",
        NESTED[:100],
        LAUGHS[:60],
    ]
)
STREAMS = st.lists(OPCODES, max_size=60).map(lambda parts: b"".join(parts) + b".")


def depth(value: Value) -> int:
    return value.depth if isinstance(value, opcodes.Container) else 0


def check_stream(raw: bytes) -> None:
    """A stream gives a value that is not deep, or a refusal; and pickle's own value where both read it."""
    try:
        value = read_pickle(raw, NAMES, has_references=True).value
        assert depth(value) <= MAX_DEPTH
    except PickleError:
        value = None
    else:
        with contextlib.suppress(PickleError, UnfitTensorError):
            state_views(value)
    is_plain = not any(code in raw for code in (b"c", b"Q", b"\x81", b"\x93", b"R", b"i", b"\x82"))
    if value is not None and is_plain and b"\x8c" not in raw:
        try:
            expected = pickle.loads(raw)
        except Exception:
            # pickle has fewer kinds of keys
            return
        assert repr(plain(value)) == repr(expected) or "b'(" in repr(plain(value))


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(FUZZ, max_examples=300)
@given(raw=STREAMS)
def test_drawn_opcodes_are_read_or_refused(raw: bytes) -> None:
    check_stream(raw)


@pytest.mark.slow
@settings(FUZZ, max_examples=20_000)
@given(raw=STREAMS | st.binary(max_size=60).map(lambda raw: raw + b"."))
def test_many_drawn_opcodes_are_read_or_refused(raw: bytes) -> None:
    check_stream(raw)


# tables of tensors


def saved(value: Any, *, is_zip: bool = True) -> bytes:
    raw = io.BytesIO()
    torch.save(value, raw, _use_new_zipfile_serialization=is_zip)
    return raw.getvalue()


def data_pkl(raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as whole:
        return whole.read(next(name for name in whole.namelist() if name.endswith("/data.pkl")))


def table(raw: bytes) -> dict[str, StorageView]:
    value = read_pickle(data_pkl(raw), NAMES, has_references=True).value
    return {view.name: view for view in state_views(value)}


BASE = torch.arange(60, dtype=torch.float32).reshape(5, 12)
VIEWS = {
    "whole": BASE,
    "row": BASE[3],
    "columns": BASE[:, 2:9:3],
    "transposed": BASE.t(),
    "scalar": BASE[2, 2],
    "none": BASE[:0],
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "half": torch.ones(2, 2, dtype=torch.bfloat16),
    "eighth": torch.ones(4).to(torch.float8_e4m3fn),
    "unsigned": torch.ones(4, dtype=torch.uint16),
}


def test_a_table_names_what_torch_saved() -> None:
    views = table(saved(VIEWS))
    assert {name: (view.dtype, view.shape, view.strides, view.offset) for name, view in views.items()} == {
        name: (str(item.dtype)[6:], tuple(item.shape), item.stride(), item.storage_offset())
        for name, item in VIEWS.items()
    }
    assert len({views[name].storage.key for name in ("whole", "row", "columns", "transposed", "scalar")}) == 1


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.glob("producers/**/*.bin")), ids=lambda path: path.parent.name
)
def test_a_producers_pickle_has_the_table_that_torch_loads(path: Path) -> None:
    loaded = torch.load(path, weights_only=True)
    assert {
        name: (getattr(torch, view.dtype), view.shape, view.strides)
        for name, view in table(path.read_bytes()).items()
    } == {name: (item.dtype, tuple(item.shape), item.stride()) for name, item in loaded.items()}


def test_a_state_dict_of_a_module_has_a_table() -> None:
    layer = torch.nn.Linear(3, 2)
    assert set(table(saved(layer.state_dict()))) == {"weight", "bias"}
    assert set(table(saved({"model": OrderedDict(layer.state_dict()), "lr": 0.1}))) == {"weight", "bias"}


def tensor(
    shape: bytes = b"K\x04\x85", strides: bytes = b"K\x01\x85", offset: bytes = b"K\x00", **place: Any
) -> bytes:
    """The opcodes of a float32 tensor of four elements in storage 0, or as the arguments say."""
    key, count = place.get("key", "0"), place.get("count", 4)
    kind = place.get("kind", "FloatStorage").encode()
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage")
        + b"ctorch\n"
        + kind
        + b"\n"
        + text(key)
        + text("cpu")
        + b"\x8a\x08"
        + struct.pack("<q", count)
        + b"tQ"
        + offset
        + shape
        + strides
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def state_dict(*parts: bytes) -> bytes:
    """data.pkl of tensors named t0, t1 and so on."""
    items = (text(f"t{number}") + part for number, part in enumerate(parts))
    return b"\x80\x02}(" + b"".join(items) + b"u."


LONG = b"\x8a\x08" + struct.pack("<q", 1 << 59)
# title: a data.pkl, and what is said
TABLES: dict[str, tuple[bytes, str]] = {
    "past its storage": (state_dict(tensor(offset=b"K\x01")), "t0 is at bytes 4 to 20 of a storage of 16"),
    "far past its storage": (state_dict(tensor(offset=LONG)), "of a storage of 16"),
    "strides past its storage": (state_dict(tensor(strides=LONG + b"\x85")), "of a storage of 16"),
    "expanded": (state_dict(tensor(shape=LONG + b"\x85", strides=b"K\x00\x85")), "expanded"),
    "negative offset": (state_dict(tensor(offset=b"J\xff\xff\xff\xff")), "offset -1"),
    "negative size": (state_dict(tensor(shape=b"J\xff\xff\xff\xff\x85")), "natural numbers"),
    "negative stride": (state_dict(tensor(strides=b"J\xff\xff\xff\xff\x85")), "natural numbers"),
    "size of text": (state_dict(tensor(shape=text("a") + b"\x85")), "natural numbers"),
    "more strides than sizes": (state_dict(tensor(strides=b"K\x01K\x01\x86")), "2 strides"),
    "a thousand axes": (state_dict(tensor(shape=b"(" + b"K\x01" * 1000 + b"t")), "natural numbers"),
    "a storage of two sizes": (state_dict(tensor(), tensor(count=8)), "two sizes"),
    "a storage of a negative size": (state_dict(tensor(count=-4)), "no storage"),
    "a storage larger than any": (state_dict(tensor(count=1 << 62)), "no storage"),
    "a storage that is missing": (state_dict(tensor(key="7")), "the file nothing"),
    "a storage that is shorter": (state_dict(tensor(count=400)), "storage 0 has 1600 bytes, and the file 16"),
    "a key that is a path": (state_dict(tensor(key="../data.pkl")), "the file nothing"),
    "a name twice": (b"\x80\x02}(" + (text("a") + tensor()) * 2 + b"u.", "'a' twice"),
    "a name that is no text": (b"\x80\x02}K\x01" + tensor() + b"s.", "1, which is no tensor's name"),
    "a reference to no storage": (b"\x80\x02" + text("file") + b"\x85Q.", "no storage"),
}


@pytest.mark.parametrize("title", TABLES)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, title: str) -> None:
    raw, words = TABLES[title]
    message = unreadable(pickled_folder(tmp_path, archive(raw, {"0": bytes(16)})))
    assert words in message
    assert "pytorch_model.bin" in message


def read(folder: Path, raw: bytes) -> TorchFile:
    (folder / "x.bin").write_bytes(raw)
    return read_torch_file(FolderSource(folder), "x.bin")


def pointed(raw: bytes, name: bytes, other: bytes) -> bytes:
    """A zip whose directory says that record `name` is where `other` is."""
    start = raw.index(b"PK\x01\x02")
    here, there = (raw.index(wanted, start) - 46 for wanted in (name, other))
    return raw[: here + 42] + raw[there + 42 : there + 46] + raw[here + 46 :]


def large_directory() -> bytes:
    """A zip that says its directory has 3 MB."""
    size = 3 << 20
    return b"PK\x03\x04" + bytes(size) + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 9, 9, size, 4, 0)


def compressed() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as whole:
        whole.writestr("archive/data.pkl", state_dict(tensor()) + bytes(1 << 20))
    return raw.getvalue()


TWO = {"0": bytes(range(16)), "1": bytes(range(16))}
BOTH = archive(state_dict(tensor(), tensor(key="1")), TWO)
OLD = saved({"a": torch.arange(4.0)}, is_zip=False)
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "overlapping storages": (lambda: pointed(BOTH, b"archive/data/1", b"archive/data/0"), "overlaps another"),
    "a directory of 3 MB": (large_directory, "its directory has"),
    "a compressed pickle": (compressed, "is compressed"),
    "no pickle": (lambda: BOTH.replace(b"archive/data.pkl", b"archive/date.pkl"), "has 0 records"),
    "one name twice": (
        lambda: BOTH.replace(b"archive/data/1", b"archive/data/0"),
        "two records have one name",
    ),
    "a big-endian file": (
        lambda: archive(state_dict(tensor()), TWO, {"byteorder": b"big"}),
        "little-endian machine",
    ),
    "only its directory": (lambda: BOTH[BOTH.index(b"PK\x01\x02") :], ""),
    "only its beginning": (lambda: BOTH[:200], ""),
    "a file from before torch 1.6": (lambda: OLD, "open and save an older one with torch >= 1.6"),
}


@pytest.mark.parametrize("title", FILES)
def test_a_file_that_is_broken_is_refused(tmp_path: Path, title: str) -> None:
    build, words = FILES[title]
    assert words in unreadable(pickled_folder(tmp_path, build()))


def test_places_are_those_of_the_bytes(tmp_path: Path) -> None:
    raw = saved(state())
    whole = read(tmp_path, raw)
    views = state_views(whole.value)
    whole.check(views)
    names = {value: key for key, value in DTYPES.items()}
    stored = {}
    for view in views:
        first = whole.place(view.storage)[0]
        dtype = names[getattr(torch, view.dtype)]
        stored[view.name] = dtype, view.shape, raw[first + view.span[0] : first + view.span[1]]
    assert stored == drafter_tensors()


def check_file(folder: Path, raw: bytes) -> None:
    try:
        whole = read(folder, raw)
        whole.check(state_views(whole.value))
    except (PickleError, UnfitTensorError, UnreadableError):
        pass


def changed(raw: bytes) -> st.SearchStrategy[bytes]:
    """`raw` with some bytes changed, or cut."""
    places = st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), min_size=1, max_size=8)

    def change(places: list[tuple[int, int]]) -> bytes:
        data = bytearray(raw)
        for place, value in places:
            data[place] = value
        return bytes(data)

    return places.map(change) | st.integers(0, len(raw)).map(lambda stop: raw[:stop])


CHANGED = changed(BOTH) | changed(OLD) | changed(saved({"a": torch.ones(2)}))
SHARED = settings(FUZZ, suppress_health_check=list(HealthCheck))


@settings(SHARED, max_examples=200)
@given(raw=CHANGED)
def test_changed_files_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    check_file(tmp_path, raw)


@pytest.mark.slow
@settings(SHARED, max_examples=10_000)
@given(raw=CHANGED)
def test_many_changed_files_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    check_file(tmp_path, raw)


def test_pieces_of_a_table_that_overlap_are_refused(tmp_path: Path) -> None:
    raw = pickle.loads((FIXTURES / "producers/torchspec/dcp/model/.metadata").read_bytes())
    places = list(raw.storage_data.values())
    places[1].offset = places[0].offset + 1
    places[1].length = max(place.length for place in places)
    assert "keeps two pieces" in unreadable(training_folder(tmp_path, raw))
