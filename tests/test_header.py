"""The header reader against the safetensors library: what it writes is read, what it refuses is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import FIRST_READ, read_checkpoint
from eaglectl.files.header import (
    DTYPE_BITS,
    MAX_DEPTH,
    MAX_HEADER,
    Header,
    header_length,
    parse_header,
    parse_json,
)
from eaglectl.files.opening import open_source
from tests.builders import Stored, drafter_tensors, floats, framed, safetensors_bytes, write_safetensors

NUMPY_DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


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


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    dtype = draw(st.sampled_from(NUMPY_DTYPES))
    start = draw(st.integers(0, 100))
    return np.arange(start, start + int(np.prod(shape))).astype(dtype).reshape(shape)


@given(
    st.dictionaries(TEXT.filter(lambda name: name != "__metadata__"), arrays(), max_size=5),
    st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
)
@settings(deadline=None)
def test_what_safetensors_writes_is_read_identically(
    tensors: dict[str, Any], metadata: dict[str, str] | None
) -> None:
    raw = safetensors.numpy.save(tensors, metadata)
    header = read(raw)
    assert ours(raw) == referee(raw)
    assert {t.name: raw[t.start : t.stop] for t in header.tensors} == {
        n: a.tobytes() for n, a in tensors.items()
    }
    assert header.metadata == (metadata or {})


@given(st.dictionaries(TEXT.filter(lambda name: name != "__metadata__"), arrays(), max_size=5))
@settings(deadline=None)
def test_tensors_come_in_file_order_and_cover_the_data(tensors: dict[str, Any]) -> None:
    raw = safetensors.numpy.save(tensors)
    header = read(raw)
    edges = [8 + header_length("weights", raw[:8], len(raw)), *(tensor.stop for tensor in header.tensors)]
    assert [tensor.start for tensor in header.tensors] == edges[:-1]
    assert edges[-1] == len(raw)


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


# title: header, data, words of our message
HOSTILE: dict[str, tuple[bytes, bytes, str]] = {
    "empty header": (b"", b"", "not valid JSON"),
    "header of spaces": (b"    ", b"", "not valid JSON"),
    "a list": (b"[]", b"", "JSON list, not an object"),
    "null": (b"null", b"", "not an object"),
    "cut JSON": (one()[:-3], b"x", "not valid JSON"),
    "bytes after the JSON": (b"{}\0\0", b"", "not valid JSON"),
    "byte order mark": (b"\xef\xbb\xbf{}", b"", "not valid JSON"),
    "trailing comma": (
        b'{"weight":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}',
        b"x",
        "not valid JSON",
    ),
    "leading zero": (b'{"weight":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}', b"x", "not valid JSON"),
    "raw control": (b'{"we\night":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x", "not valid JSON"),
    "not UTF-8": (
        b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "not UTF-8 text (byte 2)",
    ),
    "overlong UTF-8": (b'{"\xc0\xaf":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x", "not UTF-8"),
    "encoded surrogate": (
        b'{"\xed\xa0\x80":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "not UTF-8",
    ),
    "escaped surrogate": (b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x", "surrogate"),
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
    "starts late": (
        one(offsets=[1, 2]),
        b"xx",
        "weight starts at byte 1 of the data and leaves a hole before it (expected 0)",
    ),
    "past the file": (one(shape=[2], offsets=[0, 2]), b"x", "it is truncated"),
    "unowned bytes": (one(), b"xx", "followed by bytes that no tensor owns"),
    "bytes and no tensor": (b"{}", b"x", "followed by bytes that no tensor owns"),
    "overlap": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        b"xxx",
        "b starts at byte 1 of the data and overlaps the one before (expected 2)",
    ),
    "same bytes twice": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b"xx",
        "b starts at byte 0 of the data and overlaps",
    ),
    "hole": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}',
        b"xxx",
        "b starts at byte 2 of the data and leaves a hole before it (expected 1)",
    ),
    "empty tensor inside": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}',
        b"xx",
        "b starts at byte 1",
    ),
    "empty tensor outside": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}}',
        b"xx",
        "b starts at byte 3",
    ),
    "metadata of numbers": (b'{"__metadata__":{"a":1}}', b"", "__metadata__ must map text to text"),
    "metadata a list": (b'{"__metadata__":["a"]}', b"", "__metadata__ must map text to text"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', b"", 'key "__metadata__" appears twice'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_as_the_referee_refuses_it(case: str) -> None:
    header, data, words = HOSTILE[case]
    assert referee(framed(header, data)) is None
    with pytest.raises(UnreadableError) as caught:
        read(framed(header, data))
    assert words in str(caught.value)
    assert "m.safetensors" in str(caught.value)


# what the library lets pass and two readers could understand in two ways
STRICTER: dict[str, tuple[bytes, bytes, str]] = {
    "a tensor twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        'key "a" appears twice',
    ),
    "metadata key twice": (b'{"__metadata__":{"a":"1","a":"2"}}', b"", 'key "a" appears twice'),
    "metadata null": (b'{"__metadata__":null}', b"", "__metadata__ must map text to text"),
    "an unknown key": (one(stride=[1]), b"x", "weight needs exactly dtype, shape and data_offsets"),
    "entry as a list": (b'{"weight":["U8",[1],[0,1]]}', b"x", "weight needs exactly"),
}


@pytest.mark.parametrize("case", STRICTER)
def test_a_header_of_two_meanings_is_refused(case: str) -> None:
    header, data, words = STRICTER[case]
    with pytest.raises(UnreadableError) as caught:
        read(framed(header, data))
    assert words in str(caught.value)


LAWFUL: dict[str, tuple[bytes, bytes]] = {
    "no tensors": (b"{}", b""),
    "padding": (one() + b"      ", b"x"),
    "space around": (b"\n\t" + one() + b"\r\n", b"x"),
    "a scalar": (one(shape=[]), b"x"),
    "an empty tensor": (one(shape=[3, 0], offsets=[0, 0]), b""),
    "empty tensor last": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}',
        b"xx",
    ),
    "two empty tensors": (
        b'{"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        b"",
    ),
    "out of order": (
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"ab",
    ),
    "an empty name": (b'{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "an escaped pair": (b'{"\\ud83e\\udd85":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "unaligned": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I64","shape":[1],"data_offsets":[1,9]}}',
        b"x" * 9,
    ),
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
HEADER_END = 8 + int.from_bytes(SEED[:8], "little")
TOKENS = (
    b"-0",
    b"-1",
    b"0",
    b"1e0",
    b"1.0",
    b"00",
    b"18446744073709551616",
    b"9223372036854775808",
    b"true",
    b"null",
    b"NaN",
    b"Infinity",
    b"\\ud800",
    b"\\u0000",
    b"\xff",
    b"\x00",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b'"a":{}',
    b'"b.weight":',
    b"U8",
    b"BF16",
)


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A good file after a few cuts, insertions and changes of length; its length field mostly mended."""
    header, data = SEED[8:HEADER_END], SEED[HEADER_END:]
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(header)))
        stop = draw(st.integers(start, min(len(header), start + 8)))
        header = header[:start] + draw(st.sampled_from(TOKENS) | st.binary(max_size=3)) + header[stop:]
    data = data[: draw(st.integers(0, len(data)) | st.just(len(data)))] + draw(
        st.just(b"") | st.binary(max_size=9)
    )
    raw = framed(header, data)
    return (
        draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little") + raw[8:]
        if draw(st.integers(0, 9)) == 0
        else raw
    )


@given(mutants())
@example(framed(one(shape=[2**63, 2, 0], offsets=[0, 0])))
@example(framed(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'))
@example(framed(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'))
@settings(max_examples=600, deadline=None)
def test_no_mutant_is_accepted_that_the_referee_refuses(raw: bytes) -> None:
    found = ours(raw)  # anything but UnreadableError would be raised here
    assert found is None or found == referee(raw)


HOSTILE_NUMBERS = (
    st.integers(-2, 9)
    | st.sampled_from([2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**30])
    | st.sampled_from([None, True, 0.0, 1.0, -0.0, "1", [], {}])
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F128", "", None, 8]),
        "shape": st.lists(HOSTILE_NUMBERS, max_size=3) | HOSTILE_NUMBERS,
        "data_offsets": st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list)
        | st.lists(HOSTILE_NUMBERS, max_size=3),
    }
)


@given(st.dictionaries(st.sampled_from("abc"), ENTRIES, max_size=3), st.binary(max_size=9))
@settings(max_examples=600, deadline=None)
def test_no_hostile_table_is_accepted_that_the_referee_refuses(table: dict[str, Any], data: bytes) -> None:
    raw = framed(json.dumps(table).encode(), data)
    found = ours(raw)
    assert found is None or found == referee(raw)


def test_a_file_cut_anywhere_is_refused() -> None:
    assert ours(SEED) == referee(SEED)
    assert [cut for cut in range(len(SEED)) if ours(SEED[:cut]) is not None] == []


def test_a_file_with_one_byte_more_is_refused() -> None:
    assert ours(SEED + b"\0") is None


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_of_less_than_8_bytes_is_refused(size: int) -> None:
    with pytest.raises(UnreadableError, match=f"has {size} bytes; a safetensors file has at least 8"):
        read(bytes(size))


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 2**63, 2**64 - 1])
def test_a_huge_header_length_is_refused_without_reading(length: int) -> None:
    with pytest.raises(UnreadableError, match=f"header length {length} is over the format's {MAX_HEADER}"):
        header_length("m.safetensors", length.to_bytes(8, "little"), 2**65)


def test_the_largest_header_length_is_allowed() -> None:
    assert header_length("m.safetensors", MAX_HEADER.to_bytes(8, "little"), MAX_HEADER + 8) == MAX_HEADER


def test_a_header_longer_than_the_file_is_refused() -> None:
    with pytest.raises(UnreadableError, match="header of 100 bytes does not fit in 20 bytes"):
        header_length("m.safetensors", (100).to_bytes(8, "little"), 20)


def test_a_row_is_the_bytes_of_one_index_of_the_first_axis() -> None:
    tensors = {tensor.name: tensor for tensor in read(safetensors_bytes(drafter_tensors())).tensors}
    assert tensors["fc.weight"].row_bytes == 2 * tensors["fc.weight"].shape[1]


def test_a_scalar_and_an_empty_tensor_have_no_rows() -> None:
    found = {tensor.name: tensor.row_bytes for tensor in read(SEED).tensors}
    assert (found["b.weight"], found["c"]) == (0, 0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"a": 1, "a": 1}', 'key "a" appears twice'),
        (b'{"x": {"a": 1, "a": 2}}', 'key "a" appears twice'),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": 1e999}', "is not a JSON number"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": 1', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff", "not UTF-8 text (byte 0)"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_json_of_two_meanings_or_none_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_json("config.json", raw)
    assert words in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_header_has_no_more_tensors_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglectl.files.header.MAX_TENSORS", 1)
    entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    assert len(read(framed(json.dumps({"a": entry}).encode(), b"")).tensors) == 1
    with pytest.raises(UnreadableError, match="the header has 3 tensors; at most 1 are read"):
        read(framed(json.dumps(dict.fromkeys("abc", entry)).encode(), b""))


def test_values_inside_each_other_are_read_to_a_depth() -> None:
    assert parse_json("config.json", b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    deeper = MAX_DEPTH + 1
    with pytest.raises(UnreadableError, match=f"are {deeper} deep in each other; at most {MAX_DEPTH}"):
        parse_json("config.json", b"[" * deeper + b"]" * deeper)
