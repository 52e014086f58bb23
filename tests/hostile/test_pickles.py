"""Hostile pickles: refused in one sentence, without a crash, within 100 MB, and nothing is left behind."""

import ast
import contextlib
import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.files.opcodes import (
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_MEMO,
    MAX_OPCODES,
    PickleError,
    read_pickle,
)
from eaglectl.files.pickles import NAMES, TorchFile, UnfitTensorError, state_views
from eaglectl.files.source import FolderSource
from tests.builders import contents, refusal
from tests.conftest import FIXTURES
from tests.hub import client_hub
from tests.modules import modules
from tests.pickles import (
    archive,
    listed_folder,
    metadata,
    named,
    pickled_folder,
    state_dict,
    tensor,
    text,
    training_folder,
    unreadable,
)

torch = pytest.importorskip("torch")

NESTED = b")" + b"\x85" * 90_000
# each level holds the one before it twice: 2^60 values once they are hashed
LAUGHS = b")" + b"q\x00h\x00\x86" * 60
AS_KEY = {"nested": b"\x80\x02}" + NESTED + b"Ns.", "repeated": b"\x80\x02}" + LAUGHS + b"Ns."}
RUN = """
import sys
from eaglectl.cli import run
for folder in sys.argv[1:]:
    print(run(["convert", folder, "-o", folder + "-out"]), flush=True)
"""
PLACES: dict[str, Callable[[Path, bytes], Path]] = {
    "table": training_folder,
    "zip": lambda parent, raw: pickled_folder(parent, archive(raw)),
    "vocabulary": lambda parent, raw: listed_folder(parent, archive(raw)),
}


COUNTER = b"ccollections\nCounter\n)R"
# values that hold themselves or nest deeply, which nothing that reads them follows
ENDLESS: dict[str, bytes] = {
    "nested tuples": NESTED + b".",
    "nested lists": b"]" * 90_000 + b"a" * 89_999 + b".",
    "nested dicts": b"}" + b"N}" * 90_000 + b"s" * 90_000 + b".",
    "dicts in each other under a state's name": (
        b"}q\x00" + text("model") + b"q\x01}q\x02h\x01h\x00ssh\x02h\x01h\x02s."
    ),
    "nested states": COUNTER * 90_000 + b"b" * 89_999 + b".",
    "nested parameters": NESTED[:1] + b"\x85ctorch._utils\n_rebuild_parameter\nq\x00h\x00)R" + b".",
    "nested references": b"N" + b"Q" * 90_000 + b".",
    "a list in itself": b"]q\x00h\x00a.",
    "two lists in each other": b"]q\x00]q\x01h\x00ah\x00h\x01aa.",
    "a dict in itself": b"}q\x00Nh\x00s.",
    "a state in itself": COUNTER + b"q\x00h\x00b.",
}


@pytest.mark.fast(4)
@pytest.mark.parametrize(("place", "kind"), [*product(PLACES, AS_KEY), *(("zip", kind) for kind in ENDLESS)])
def test_a_value_without_an_end_is_refused_wherever_a_pickle_is_read(
    tmp_path: Path, place: str, kind: str
) -> None:
    unreadable(PLACES[place](tmp_path, {**AS_KEY, **ENDLESS}[kind]))


@pytest.mark.slow
def test_a_deep_value_kills_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    # in a process of its own: what this guards against kills Python
    folders = []
    for place, build in PLACES.items():
        for kind, raw in {**AS_KEY, **ENDLESS}.items():
            (parent := tmp_path / f"{place} {kind}").mkdir()
            folders.append(build(parent, raw))
    beside = {folder.parent: contents(folder.parent) for folder in folders}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, folders)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"] * len(folders)
    assert {parent: contents(parent) for parent in beside} == beside


def read(raw: bytes) -> Any:
    return read_pickle(raw, NAMES, has_references=True)


# title: the pickle, and what its refusal says
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a million nested tuples": (lambda: b"\x80\x02)" + b"\x85" * 999_000 + b".", "containers"),
    "nested tuples as a key": (lambda: AS_KEY["nested"], "a tuple as a key"),
    "a tuple that repeats itself as a key": (lambda: AS_KEY["repeated"], "a tuple as a key"),
    "a long tuple as a key": (lambda: b"}(" + b"N" * 17 + b"tNs.", "a tuple as a key"),
    "a tuple with a list as a key": (lambda: b"}]\x85Ns.", "a tuple as a key"),
    "a list as a key": (lambda: b"}]Ns.", "a list as a key"),
    "a huge memo number": (lambda: b"Nr\xff\xff\xff\x7f.", "memo number"),
    "an integer of a MB": (lambda: b"\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".", "bits"),
    "an integer of 5000 digits": (lambda: b"L" + b"9" * 5000 + b"L\n.", ""),
    "a broken escape in an old text": (lambda: b"S'\\d'\nN.", "STRING"),
    "a text of 2 GB": (lambda: b"X\xff\xff\xff\x7fabc.", ""),
    "a text of 2^63 bytes": (lambda: b"\x8d" + b"\xff" * 7 + b"\x7fabc.", ""),
    "more opcodes than are read": (lambda: b"(" + b"N" * MAX_OPCODES + b"t.", "opcodes"),
    "more containers than are read": (lambda: b"(" + b"]" * (MAX_CONTAINERS + 1) + b"t.", "containers"),
    "more bytes than are read": (
        lambda: b"B" + struct.pack("<I", MAX_BYTES) + bytes(MAX_BYTES) + b".",
        "the limit is",
    ),
    "tuples of -1 and -2, of one hash": (
        lambda: b"}J\xff\xff\xff\xffJ\xfe\xff\xff\xff\x86Ns.",
        "a tuple as a key",
    ),
    "tuples of numbers of one hash": (lambda: b"}\x8a\x10" + b"\x01" * 16 + b"\x85Ns.", "a tuple as a key"),
    "tuples of floats of one hash": (
        lambda: b"}G" + struct.pack(">d", 2.0**61) + b"\x85Ns.",
        "a tuple as a key",
    ),
    "keys that meet in one hash": (lambda: b"}\x8a\x0a" + bytes(8) + b"\x01\x00Ns.", "more than 64 bits"),
    "a key twice": (lambda: b"}X\x01\x00\x00\x00aNsX\x01\x00\x00\x00aNs.", "'a' twice"),
    "an unknown memo number": (lambda: b"h\x05.", "never set"),
    "no mark": (lambda: b"Nt.", "mark"),
    "a mark left": (lambda: b"(N.", "one value"),
    "a value below a mark": (lambda: b"N(\x85.", "from an empty stack"),
    "an empty stack": (lambda: b"s.", "from an empty stack"),
    "two values": (lambda: b"NN.", "one value"),
    "nothing": (lambda: b"", ""),
    "no end": (lambda: b"\x80\x02N", ""),
    "no opcode": (lambda: b"\x80\x02\xff.", ""),
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
            "PUT": b"p-1\n",
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
    "os.system": (lambda: named("os", "system") + b"\x8c\x02id\x85R.", "it refers to os.system"),
    "torch.load": (lambda: b"ctorch\nload\n.", "it refers to torch.load"),
    "an attribute of what is allowed": (lambda: named("torch", "Size.mro") + b".", "torch.Size.mro"),
    "a call of a number": (lambda: b"K\x01)R.", "calls a int"),
    "a call of a call's value": (lambda: COUNTER + b")R.", "calls a Counter"),
    "items of a number": (lambda: b"K\x01K\x02K\x03s.", "sets items of a int"),
    "an item of a dict": (lambda: b"}Na.", "appends to a dict"),
    "a state of a list": (lambda: b"]Nb.", "gives a state to a list"),
    "a class that is no text": (lambda: b"NN\x93.", "is not a text"),
}


@pytest.mark.fast(2)
@pytest.mark.parametrize("title", REFUSED)
def test_a_hostile_pickle_is_refused_in_a_sentence(title: str) -> None:
    build, words = REFUSED[title]
    with pytest.raises(PickleError) as caught:
        read(build())
    message = str(caught.value)
    assert words in message and 0 < len(message) < 200 and "\n" not in message


# the largest values that each limit lets through, and what goes over it at the end
LARGEST: dict[str, Callable[[], bytes]] = {
    "dicts": lambda: b"(" + b"}NNs" * (MAX_CONTAINERS - 1) + b"t.",
    "lists": lambda: b"(" + b"]Na" * (MAX_CONTAINERS - 1) + b"t.",
    "calls": lambda: b"(ccollections\nCounter\nq\x00" + b"h\x00)R" * ((MAX_CONTAINERS - 1) // 2) + b"t.",
    "long integers": lambda: b"(" + (b"\x8a\x0c" + b"\x01" * 12) * (MAX_BYTES // 14 - 1) + b"t.",
    "keys": lambda: (
        b"}(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(MAX_OPCODES // 2 - 5)) + b"u."
    ),
    "all together": lambda: (
        b"((X"
        + struct.pack("<I", 3 << 20)
        + b"a" * ((3 << 20) - 4)
        + "\U0001f600".encode()
        + b"".join(b"}r" + struct.pack("<I", n) + b"NNs" for n in range(MAX_CONTAINERS - 2))
        + b"tt."
    ),
    "a memo": lambda: (
        b"J\xff\xff\xff\x7f" + b"".join(b"r" + struct.pack("<I", n) for n in range(MAX_MEMO)) + b"."
    ),
    "marks": lambda: b"(" * (MAX_OPCODES // 2 - 1) + b"t" * (MAX_OPCODES // 2 - 1) + b".",
}


@pytest.mark.slow
@pytest.mark.parametrize("title", LARGEST)
def test_the_largest_pickles_stay_within_100_mb(title: str) -> None:
    raw = LARGEST[title]()
    assert len(raw) <= MAX_BYTES
    tracemalloc.start()
    with pytest.raises(PickleError) if title == "marks" else contextlib.nullcontext():
        read(raw)
    peak = tracemalloc.get_traced_memory()[1] + len(raw)
    tracemalloc.stop()
    assert peak < 100e6


# what the walk reads is what pickle and torch read

OPCODES = st.sampled_from(
    [
        *(bytes([code]) for code in b"NK()]}0125aesutlobRQ\x81\x85\x86\x87\x88\x89"),
        *(bytes([code]) for code in b"\x8f\x90\x91\x92\x93\x94\x97\x98"),
        *(b"K" + bytes([number]) for number in range(4)),
        *(code + bytes([number]) for code in (b"q", b"h", b"\x8a", b"U", b"\x8c") for number in range(4)),
        *(b"r\xff\xff\xff\xff", b"j\x00\x00\x00\x00", b"\x95" + bytes(8), b"X\x01\x00\x00\x00a", b"I01\n"),
        *(b"L5L\n", b"F1e999\n", b"S'a'\n", b"Va\n", b"p0\n", b"g0\n", b"P0\n", b"G" + bytes(8)),
        *(b"\x82\x01", b"\x80\x04", b"cos\nsystem\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n"),
        *(b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n"),
        *(b"icollections\nOrderedDict\n", NESTED[:100], LAUGHS[:60]),
    ]
)
STREAMS = st.lists(OPCODES, max_size=60).map(lambda parts: b"".join(parts) + b".")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(raw=STREAMS)
def test_drawn_opcodes_are_read_as_pickle_reads_them_or_refused(raw: bytes) -> None:
    try:
        value = read(raw)
    except PickleError:
        return
    with contextlib.suppress(PickleError, UnfitTensorError):
        state_views(value)
    if not any(code in raw for code in (b"c", b"Q", b"\x81", b"\x93", b"R", b"i", b"\x82", b"\x8c")):
        with contextlib.suppress(Exception):  # pickle has fewer kinds of keys
            expected = pickle.loads(raw)
            assert repr(value) == repr(expected)


# tables of tensors


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


def test_a_table_names_what_torch_saved(tmp_path: Path) -> None:
    torch.save(VIEWS, tmp_path / "x.bin")
    views = {view.name: view for view in state_views(TorchFile(FolderSource(tmp_path), "x.bin").value)}
    assert {name: (view.dtype, view.shape, view.strides, view.offset) for name, view in views.items()} == {
        name: (str(item.dtype)[6:], tuple(item.shape), item.stride(), item.storage_offset())
        for name, item in VIEWS.items()
    }
    assert len({views[name].storage for name in ("whole", "row", "columns", "transposed", "scalar")}) == 1


def pointed(raw: bytes, name: bytes, place: int | bytes) -> bytes:
    """A zip whose directory says that record `name` is at `place`, or where the record of that name is."""
    start = raw.index(b"PK\x01\x02")
    here = raw.index(name, start) - 46
    if isinstance(place, bytes):
        there = raw.index(place, start) - 46
        return raw[: here + 42] + raw[there + 42 : there + 46] + raw[here + 46 :]
    return raw[: here + 42] + struct.pack("<I", place) + raw[here + 46 :]


def large_directory() -> bytes:
    """A zip that says its directory has 3 MB."""
    size = 3 << 20
    return b"PK\x03\x04" + bytes(size) + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 9, 9, size, 4, 0)


def compressed() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as whole:
        whole.writestr("archive/data.pkl", state_dict(tensor()) + bytes(1 << 20))
    return raw.getvalue()


def in_16_bytes(*parts: bytes) -> Callable[[], bytes]:
    """An archive of tensors t0, t1 and so on, whose storage 0 has 16 bytes."""
    return lambda: archive(state_dict(*parts), {"0": bytes(16)})


LONG = b"\x8a\x08" + struct.pack("<q", 1 << 59)
TWO = {"0": bytes(range(16)), "1": bytes(range(16))}
BOTH = archive(state_dict(tensor(), tensor(key="1")), TWO)
# title: a .bin file, and what is said
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "past its storage": (in_16_bytes(tensor(offset=b"K\x01")), "t0 is at bytes 4 to 20 of a storage of 16"),
    "far past its storage": (in_16_bytes(tensor(offset=LONG)), "of a storage of 16"),
    "strides past its storage": (in_16_bytes(tensor(strides=LONG + b"\x85")), "of a storage of 16"),
    "expanded": (in_16_bytes(tensor(shape=LONG + b"\x85", strides=b"K\x00\x85")), "expanded"),
    "negative offset": (in_16_bytes(tensor(offset=b"J\xff\xff\xff\xff")), "offset -1"),
    "negative size": (in_16_bytes(tensor(shape=b"J\xff\xff\xff\xff\x85")), "natural numbers"),
    "negative stride": (in_16_bytes(tensor(strides=b"J\xff\xff\xff\xff\x85")), "natural numbers"),
    "size of text": (in_16_bytes(tensor(shape=text("a") + b"\x85")), "natural numbers"),
    "more strides than sizes": (in_16_bytes(tensor(strides=b"K\x01K\x01\x86")), "2 strides"),
    "a thousand axes": (in_16_bytes(tensor(shape=b"(" + b"K\x01" * 1000 + b"t")), "natural numbers"),
    "a storage of two sizes": (in_16_bytes(tensor(), tensor(count=8)), "two sizes"),
    "a storage of a negative size": (in_16_bytes(tensor(count=-4)), "not made as torch makes"),
    "a storage larger than any": (in_16_bytes(tensor(count=1 << 62)), "not made as torch makes"),
    "a reference to no storage": (in_16_bytes(tensor(word="file")), "not made as torch makes"),
    "a storage of no type": (in_16_bytes(tensor(kind="UntypedStorage")), "of dtype untyped"),
    "no type, third version": (
        in_16_bytes(tensor(kind="UntypedStorage", maker="_rebuild_tensor_v3")),
        "of dtype untyped",
    ),
    "a quantized tensor": (in_16_bytes(tensor(maker="_rebuild_qtensor")), "t0 is quantized"),
    "a storage that is missing": (in_16_bytes(tensor(key="7")), "the file nothing"),
    "a storage that is shorter": (in_16_bytes(tensor(count=400)), "has 1600 bytes, and the file 16"),
    "a key that is a path": (in_16_bytes(tensor(key="../data.pkl")), "the file nothing"),
    "a name twice": (lambda: archive(b"\x80\x02}(" + (text("a") + tensor()) * 2 + b"u."), "'a' twice"),
    "a name that is no text": (
        lambda: archive(b"\x80\x02}K\x01" + tensor() + b"s."),
        "1, which is no tensor",
    ),
    "a name of half a character": (
        lambda: archive(b"\x80\x02}X\x03\0\0\0\xed\xa0\x80" + tensor() + b"s."),
        "no tensor's name",
    ),
    "a name outside the list": (lambda: archive(b"\x80\x02}c__main__\nx\n)R."), "refers to __main__.x"),
    "a million flat tuples": (lambda: archive(b"\x80\x02(" + b")" * 999_000 + b"t."), "containers"),
    "overlapping storages": (lambda: pointed(BOTH, b"archive/data/1", b"archive/data/0"), "overlaps another"),
    "a record past the file": (lambda: pointed(BOTH, b"archive/data/1", 1 << 20), "past the end of the file"),
    "a directory of 3 MB": (large_directory, "its directory has"),
    "a compressed pickle": (compressed, "is compressed"),
    "no pickle": (lambda: BOTH.replace(b"archive/data.pkl", b"archive/date.pkl"), "has 0 records"),
    "one name twice": (lambda: archive(state_dict(tensor()), TWO, twice=True), "two records have one name"),
    "a big-endian file": (
        lambda: archive(state_dict(tensor()), TWO, {"byteorder": b"big"}),
        "little-endian machine",
    ),
    "only its directory": (lambda: BOTH[BOTH.index(b"PK\x01\x02") :], ""),
    "only its beginning": (lambda: BOTH[:200], ""),
}


@pytest.mark.parametrize("title", FILES)
def test_a_file_that_is_broken_is_refused(tmp_path: Path, title: str) -> None:
    build, words = FILES[title]
    message = unreadable(pickled_folder(tmp_path, build()))
    assert words in message and "pytorch_model.bin" in message


# a record, a name, a tensor, a storage, a record's place, an opcode's limit
SAMPLE = (
    "overlapping storages", "a name outside the list", "past its storage", "a storage that is shorter",
    "one name twice", "a record past the file", "a million flat tuples",
)  # fmt: skip


@pytest.mark.fast(2)
@pytest.mark.parametrize("title", SAMPLE)
def test_every_command_that_looks_refuses_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    build, words = FILES[title]
    folder = pickled_folder(tmp_path, build())
    looks = ("inspect", folder), ("diff", folder, folder, "--headers-only"), ("inspect", "org/drafter")
    with client_hub(monkeypatch, tmp_path) as hub:
        hub.add_repo("org/drafter", folder)
        for command in looks:
            message = refusal(3, *command)
            assert words in message and "pytorch_model.bin" in message
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(headers_only=True))
    assert "EGL002" in {finding.rule.id for finding in report.findings}
    assert report.verdict == "fail"


@pytest.mark.parametrize("command", ["inspect", "diff", "convert", "ready"])
def test_every_command_names_the_folder_of_a_broken_pickle(command: str, tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, BOTH[:200])
    others = {"diff": [folder], "ready": ["--target", FIXTURES / "target"]}.get(command, [])
    assert f"{folder}: pytorch_model.bin is not a torch file" in refusal(3, command, folder, *others)


def test_pieces_of_a_table_that_overlap_are_refused(tmp_path: Path) -> None:
    raw = metadata()
    places = list(raw.storage_data.values())
    places[1].offset = places[0].offset + 1
    places[1].length = max(place.length for place in places)
    assert "has two pieces" in unreadable(training_folder(tmp_path, raw))


def test_no_module_of_eaglectl_unpickles() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads", "Unpickler")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("torch", "pickle", "numpy", "np", "joblib")
    ]
    assert found == []
