"""The header reader against the safetensors library: what it writes is read, what it refuses is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.numpy

from eaglectl.errors import UnreadableError
from eaglectl.files.budgets import MAX_HEADER
from eaglectl.files.checkpoint import FIRST_READ, open_source, read_checkpoint
from eaglectl.files.header import DTYPE_BITS, Header, header_length, parse_header
from tests.builders import Stored, floats, framed, safetensors_bytes, write_safetensors


def read(raw: bytes) -> Header:
    """Our reader on a whole file."""
    length = header_length("m.safetensors", raw[:8], len(raw))
    return parse_header("m.safetensors", raw[8 : 8 + length], len(raw))


def ours(raw: bytes) -> dict[str, Stored] | None:
    """Every tensor as our reader sees it; None where it refuses."""
    try:
        header = read(raw)
    except UnreadableError:
        return None
    return {
        tensor.name: (tensor.dtype, tensor.shape, raw[tensor.start : tensor.stop])
        for tensor in header.tensors
    }


def referee(raw: bytes) -> dict[str, Stored] | None:
    """Every tensor as the safetensors library sees it; None where it refuses."""
    try:
        found = safetensors.deserialize(raw)
    except safetensors.SafetensorError:
        return None
    return {name: (view["dtype"], tuple(view["shape"]), bytes(view["data"])) for name, view in found}


def one(dtype: str = "U8", shape: Any = (1,), offsets: Any = (0, 1), **more: Any) -> bytes:
    """The JSON of a header with one tensor, called weight."""
    return json.dumps({"weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}).encode()


def named(name: bytes) -> bytes:
    """The same of another name, as it is in JSON."""
    return one().replace(b"weight", name)


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_each_dtype_takes_the_bytes_that_safetensors_gives_it(dtype: str) -> None:
    raw = framed(one(dtype, [8], [0, DTYPE_BITS[dtype]]), bytes(DTYPE_BITS[dtype]))
    assert ours(raw) == referee(raw) == {"weight": (dtype, (8,), bytes(DTYPE_BITS[dtype]))}


def test_a_header_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    tensors = {f"layers.0.{'x' * 200}.{i}": floats(str(i), 2) for i in range(600)}
    (tmp_path / "config.json").write_text("{}")
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    assert int.from_bytes(path.read_bytes()[:8], "little") > FIRST_READ
    found = read_checkpoint(open_source(str(tmp_path)))
    assert {name: (t.dtype, t.shape, found.read(name)) for name, t in found.tensors.items()} == tensors


def pair(*entries: tuple[str, int, int, int]) -> bytes:
    """The JSON of a header with tensors of bytes: name, size, and the two offsets of each."""
    texts = (f'"{n}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{a},{b}]}}' for n, size, a, b in entries)
    return f"{{{','.join(texts)}}}".encode()


# title: header, data, words of our message
HOSTILE: dict[str, tuple[bytes, bytes, str]] = {
    "empty header": (b"", b"", "not valid JSON"),
    "header of spaces": (b"    ", b"", "not valid JSON"),
    "a list": (b"[]", b"", "JSON list, not an object"),
    "null": (b"null", b"", "not an object"),
    "cut JSON": (one()[:-3], b"x", "not valid JSON"),
    "bytes after the JSON": (b"{}\0\0", b"", "not valid JSON"),
    "byte order mark": (b"\xef\xbb\xbf{}", b"", "not valid JSON"),
    "trailing comma": (one().replace(b"[1]", b"[1,]"), b"x", "not valid JSON"),
    "leading zero": (one().replace(b"[1]", b"[01]"), b"x", "not valid JSON"),
    "raw control": (named(b"we\night"), b"x", "not valid JSON"),
    "not UTF-8": (named(b"\xff"), b"x", "not UTF-8 text (byte 2)"),
    "overlong UTF-8": (named(b"\xc0\xaf"), b"x", "not UTF-8"),
    "encoded surrogate": (named(b"\xed\xa0\x80"), b"x", "not UTF-8"),
    "escaped surrogate": (named(b"\\ud800"), b"x", "surrogate"),
    "surrogate metadata": (b'{"__metadata__":{"a":"\\ud800"}}', b"", "surrogate"),
    "deep nesting": (b'{"weight":' + b"[" * 5000 + b"]" * 5000 + b"}", b"", "nested too deeply"),
    "a NaN": (b'{"weight":NaN}', b"", "NaN is not a JSON number"),
    "an Infinity": (b'{"weight":-Infinity}', b"", "-Infinity is not a JSON number"),
    "no entry": (b'{"weight":null}', b"", "weight needs exactly dtype, shape and data_offsets"),
    "no dtype": (b'{"weight":{"shape":[1],"data_offsets":[0,1]}}', b"x", "weight needs exactly"),
    "no shape": (b'{"weight":{"dtype":"U8","data_offsets":[0,1]}}', b"x", "weight needs exactly"),
    "no offsets": (b'{"weight":{"dtype":"U8","shape":[1]}}', b"x", "weight needs exactly"),
    "unknown dtype": (one("F128"), b"x", "weight has dtype 'F128'"),
    "lower-case dtype": (one("u8"), b"x", "weight has dtype 'u8'"),
    "dtype a number": (one(8), b"x", "weight has dtype 8"),
    "dtype a list": (one(["U8"]), b"x", "weight has dtype ['U8']"),
    "shape a number": (one(shape=1), b"x", "weight has shape 1"),
    "shape of text": (one(shape=["1"]), b"x", "weight has shape ['1']"),
    "shape of floats": (one(shape=[1.0]), b"x", "weight has shape [1.0]"),
    "shape of booleans": (one(shape=[True]), b"x", "weight has shape [True]"),
    "shape of nulls": (one(shape=[None]), b"x", "weight has shape [None]"),
    "negative shape": (one(shape=[-1]), b"x", "weight has shape [-1]"),
    "negative shapes": (one(shape=[-1, -1]), b"x", "weight has shape [-1, -1]"),
    "minus zero": (b'{"weight":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b"", "weight"),
    "minus zero offset": (b'{"weight":{"dtype":"U8","shape":[0],"data_offsets":[-0,0]}}', b"", "weight"),
    "shape of 2**64": (one(shape=[2**64, 0], offsets=[0, 0]), b"", "weight"),
    "shape of 2**64 after 0": (one(shape=[0, 2**64], offsets=[0, 0]), b"", "weight has shape [0, 1844"),
    "shape overflows": (one(shape=[2**63, 2, 0], offsets=[0, 0]), b"", "weight"),
    "shape of 5000 digits": (one().replace(b"[1]", b"[" + b"9" * 5000 + b"]"), b"x", "not valid JSON"),
    "boolean offset": (one(offsets=[False, 1]), b"x", "data_offsets [False, 1]"),
    "negative offset": (one(offsets=[-1, 0]), b"x", "data_offsets [-1, 0]"),
    "backward offsets": (one(shape=[0], offsets=[1, 0]), b"x", "data_offsets [1, 0]"),
    "one offset": (one(offsets=[1]), b"x", "data_offsets [1]"),
    "three offsets": (one(offsets=[0, 1, 1]), b"x", "data_offsets [0, 1, 1]"),
    "offsets an object": (one(offsets={"0": 1}), b"x", "data_offsets {'0': 1}"),
    "bytes of another shape": (one(shape=[2]), b"x", "U8 [2] = 2 bytes, and its offsets span 1"),
    "half a byte": (one("F4", [3], [0, 2]), b"xx", "weight is F4 [3]"),
    "starts late": (one(offsets=[1, 2]), b"xx", "weight starts at byte 1 of the data and leaves a hole"),
    "past the file": (one(shape=[2], offsets=[0, 2]), b"x", "it is truncated"),
    "unowned bytes": (one(), b"xx", "followed by bytes that no tensor owns"),
    "bytes and no tensor": (b"{}", b"x", "followed by bytes that no tensor owns"),
    "overlap": (pair(("a", 2, 0, 2), ("b", 2, 1, 3)), b"xxx", "and overlaps the one before (expected 2)"),
    "same bytes twice": (pair(("a", 2, 0, 2), ("b", 2, 0, 2)), b"xx", "b starts at byte 0 of the data and o"),
    "hole": (pair(("a", 1, 0, 1), ("b", 1, 2, 3)), b"xxx", "leaves a hole before it (expected 1)"),
    "empty tensor inside": (pair(("a", 2, 0, 2), ("b", 0, 1, 1)), b"xx", "b starts at byte 1"),
    "empty tensor outside": (pair(("a", 2, 0, 2), ("b", 0, 3, 3)), b"xx", "b starts at byte 3"),
    "metadata of numbers": (b'{"__metadata__":{"a":1}}', b"", "__metadata__ must map text to text"),
    "metadata a list": (b'{"__metadata__":["a"]}', b"", "__metadata__ must map text to text"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', b"", 'key "__metadata__" appears twice'),
}


# what the library lets pass and two readers could understand in two ways
STRICTER: dict[str, tuple[bytes, bytes, str]] = {
    "a tensor twice": (pair(("a", 1, 0, 1), ("a", 1, 0, 1)), b"x", 'key "a" appears twice'),
    "metadata key twice": (b'{"__metadata__":{"a":"1","a":"2"}}', b"", 'key "a" appears twice'),
    "300,000 keys of metadata": (
        json.dumps({"__metadata__": {str(key): "" for key in range(300_000)}}).encode(),
        b"",
        "__metadata__ has more than 1000 keys",
    ),
    "metadata null": (b'{"__metadata__":null}', b"", "__metadata__ must map text to text"),
    "an unknown key": (one(stride=[1]), b"x", "weight needs exactly dtype, shape and data_offsets"),
    "entry as a list": (b'{"weight":["U8",[1],[0,1]]}', b"x", "weight needs exactly"),
}


@pytest.mark.parametrize("case", {**HOSTILE, **STRICTER})
def test_a_hostile_header_is_refused_as_the_referee_refuses_it(case: str) -> None:
    header, data, words = {**HOSTILE, **STRICTER}[case]
    assert case in STRICTER or referee(framed(header, data)) is None
    with pytest.raises(UnreadableError) as caught:
        read(framed(header, data))
    assert words in str(caught.value) and "m.safetensors" in str(caught.value)


LAWFUL: dict[str, tuple[bytes, bytes]] = {
    "no tensors": (b"{}", b""),
    "padding": (one() + b"      ", b"x"),
    "space around": (b"\n\t" + one() + b"\r\n", b"x"),
    "a scalar": (one(shape=[]), b"x"),
    "an empty tensor": (one(shape=[3, 0], offsets=[0, 0]), b""),
    "empty tensor last": (pair(("a", 2, 0, 2), ("b", 0, 2, 2)), b"xx"),
    "two empty tensors": (pair(("b", 0, 0, 0), ("a", 0, 0, 0)), b""),
    "out of order": (pair(("b", 1, 1, 2), ("a", 1, 0, 1)), b"ab"),
    "an empty name": (named(b""), b"x"),
    "an escaped pair": (named(b"\\ud83e\\udd85"), b"x"),
    "unaligned": (one()[:-1] + b"," + one("I64", offsets=[1, 9]).replace(b"weight", b"b")[1:], b"x" * 9),
    "a thousand axes": (one(shape=[1] * 1000), b"x"),
}


@pytest.mark.parametrize("case", LAWFUL)
def test_a_lawful_oddity_is_read_as_the_referee_reads_it(case: str) -> None:
    raw = framed(*LAWFUL[case])
    assert referee(raw) is not None
    assert ours(raw) == referee(raw)


SEED = safetensors_bytes(
    {"a": floats("a", 2, 3), "b.weight": ("U8", (0,), b""), "c": ("I64", (), bytes(8))}, {"format": "pt"}
)


def test_a_file_cut_anywhere_or_longer_is_refused() -> None:
    assert ours(SEED) == referee(SEED)
    assert [cut for cut in range(len(SEED)) if ours(SEED[:cut]) is not None] == []
    assert ours(SEED + b"\0") is None


@pytest.mark.parametrize(
    ("raw", "size", "words"),
    [
        *((bytes(size), size, f"has {size} bytes; a safetensors file has at least 8") for size in (0, 1, 7)),
        *(
            (length.to_bytes(8, "little"), 2**65, f"header length {length} is over the format's {MAX_HEADER}")
            for length in (MAX_HEADER + 1, 2**63, 2**64 - 1)
        ),
        ((100).to_bytes(8, "little"), 20, "header of 100 bytes does not fit in 20 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_refused_without_reading(raw: bytes, size: int, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        header_length("m.safetensors", raw, size)
