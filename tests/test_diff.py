"""`diff`: meaning and tensors decide, spelling does not, and what is not known is never equal."""

import json
import math
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.comparison import Numbers
from eaglectl.formats.format import Answers
from eaglectl.progress import Progress
from tests.builders import (
    ABSENT,
    ABSENT_FILE,
    DRAFT,
    HIDDEN,
    TARGETS,
    Stored,
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    integers,
    mask,
    offsets,
    read_safetensors,
    refusal,
    write_safetensors,
)
from tests.conftest import FIXTURES
from tests.hub import TOKEN, LoopbackHub, Reply, client_hub
from tests.published import ALL

PRODUCERS, TARGET = FIXTURES / "producers", FIXTURES / "target"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/diff.schema.json").read_text())
)


def diff(a: Path | str, b: Path | str, *more: str) -> dict[str, Any]:
    """The document, held to its schema; the exit code must be what the verdict says."""
    done = call("diff", a, b, "--json", *more)
    SCHEMA.validate(done.document)
    codes = {"equal": 0, "same-headers": 0, "differs": 1, "could-not-look": 3}
    assert done.code == codes[done.document["verdict"]] and done.err == ""
    return done.document


def differing(document: dict[str, Any], state: str = "differs") -> set[str]:
    return {fact["name"] for fact in document["facts"] if fact["state"] == state}


def fact(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["facts"] if one["name"] == name]
    return found


def tensor(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["tensors"] if one["name"] == name]
    return found


def unknown(document: dict[str, Any], name: str) -> str:
    """Why the one fact of this name is all that is not known."""
    assert differing(document, "unknown") == {name} and document["verdict"] == "could-not-look"
    return str(fact(document, name)["why"])


def pairs(document: dict[str, Any]) -> dict[str, str]:
    """The tensors that are not equal."""
    return {pair["name"]: pair["state"] for pair in document["tensors"] if pair["state"] != "equal"}


def two(
    tmp_path: Path,
    tensors: dict[str, Any],
    config: dict[str, Any] | None = None,
    *,
    first: dict[str, Any] | None = None,
) -> tuple[Path, Path]:
    """The good drafter, and a copy with tensors and keys changed; `first` changes tensors of the first."""
    a = drafter_folder(tmp_path, "a", tensors=first)
    return a, drafter_folder(tmp_path, "b", config=config, tensors=tensors)


# the same drafter, written differently


def test_a_drafter_is_itself(tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    document = diff(a, b)
    shown = document["verdict"], document["is_written_alike"], document["values"]
    assert shown == ("equal", True, "compared")
    assert {each["state"] for each in document["tensors"] + document["facts"]} == {"equal"}
    assert call("diff", a, b).out.startswith("pass: equal: the same drafter\n")


def test_a_part_of_a_fused_tensor_that_differs_is_named(tmp_path: Path) -> None:
    def fused(parts: dict[str, Stored]) -> dict[str, Any]:
        data = b"".join(stored[2] for stored in parts.values())
        rows = sum(stored[1][0] for stored in parts.values())
        return {**dict.fromkeys(parts), "layers.0.mlp.gate_up_proj.weight": ("BF16", (rows, HIDDEN), data)}

    names = ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight")
    gate, up = (drafter_tensors()[name] for name in names)
    a, same = two(tmp_path, fused({names[0]: gate, names[1]: up}))
    other = drafter_folder(tmp_path, "c", tensors=fused({names[0]: gate, names[1]: floats("other", *up[1])}))
    assert pairs(diff(a, same)) == {}
    assert pairs(diff(a, other)) == {names[1]: "bytes"}


def test_shards_are_one_file_cut_up() -> None:
    document = diff(PRODUCERS / "vllm/native", PRODUCERS / "vllm/sharded")
    assert document["verdict"] == "equal"
    assert [one["name"] for one in document["spelling"]["remarks"]] == ["files"]


def test_a_spelling_alone_is_no_difference(tmp_path: Path) -> None:
    config = {
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000},
    }
    a, b = two(tmp_path, {}, config)
    document = diff(a, b)
    assert (document["verdict"], document["is_written_alike"]) == ("equal", False)
    keys = {one["name"]: (one["a"], one["b"]) for one in document["spelling"]["config"]}
    assert keys["torch_dtype"] == ("bfloat16", "float16")
    assert keys["rope_parameters.rope_theta"] == (None, 500000)
    out = call("diff", a, b).out
    assert out.startswith("pass: equal: the same drafter, written differently\n") and "bos_token_id" in out
    added = "rope_parameters.rope_theta  -"
    assert added not in out and added in call("-v", "diff", a, b).out


# what they mean

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention"]}


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"rope_theta": 10000.0}, {"rope_theta"}),
        ({"rope_theta": None}, {"rope_theta"}),  # which then means 10000
        ({"rope_scaling": YARN}, {"rope_scaling"}),
        ({"rms_norm_eps": 1e-5}, {"rms_norm_eps"}),
        ({"max_position_embeddings": 4096}, {"max_position_embeddings"}),
        ({"norm_output": True}, {"norm_output"}),
        ({"norm_before_residual": True}, {"norm_before_residual"}),
        ({"logit_scale": 0.5}, {"logit_scale"}),
        (SLIDING, {"sliding_window"}),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 6], "eagle_config": ABSENT}, {"boundaries"}),
        ({"rope_scaling": {"rope_type": "default"}}, set()),
        ({"sliding_window": 64}, set()),  # and no layer that slides
        ({"logit_scale": 1, "hidden_act": None, "vocab_size": None}, set()),
    ],
    ids=lambda value: (
        json.dumps(value)[:50] if isinstance(value, dict) and ABSENT not in value.values() else None
    ),
)
def test_a_key_is_the_fact_that_it_means(config: dict[str, Any], names: set[str], tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, config)
    document = diff(a, b)
    assert differing(document) == names and document["verdict"] == ("differs" if names else "equal")
    assert pairs(document) == {}


def test_a_fact_that_is_asked_of_one_side_is_unknown(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"partial_rotary_factor": 0.5})
    document = diff(a, b)
    assert differing(document) == set() and document["verdict"] == "could-not-look"


@pytest.mark.parametrize("key", ["ROPE_THETA", "rope_theta ", "norm_after_fc"])
def test_an_unread_key_that_is_asked_about_makes_no_equal_drafters(key: str, tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {key: True if "norm" in key else 5.0})
    assert "may be a" in unknown(diff(a, b), key)
    assert diff(b, b)["verdict"] == "equal"
    assert diff(a, b, "--source-semantics", f"harmless={key}")["verdict"] == "equal"


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [({"type": "yarn", "beta_fast": 32.0, "mscale": None}, "equal"), ({"beta_fast": 16}, "differs")],
)
def test_a_scaling_means_its_defaults(keys: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    a = drafter_folder(tmp_path, "a", config={"rope_scaling": YARN})
    b = drafter_folder(tmp_path, "b", config={"rope_scaling": {**YARN, **keys}})
    assert diff(a, b)["verdict"] == verdict


def test_reasons_stand_below_the_table_and_columns_without_numbers_are_left_out(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"ROPE_THETA": 5.0})
    lines = call("diff", a, b).out.splitlines()
    assert next(line for line in lines if line.startswith("  ROPE_THETA  ")).endswith("unknown")
    assert any(line.startswith("  ROPE_THETA: B: config has ROPE_THETA: 5.0") for line in lines)
    without = drafter_folder(tmp_path, "c", tensors={"embed_tokens.weight": None})
    other = drafter_folder(tmp_path, "d", tensors={"fc.weight": floats("other", HIDDEN, 3 * HIDDEN)})
    for b, has_numbers in ((without, False), (other, True)):
        done = call("diff", a, b)
        assert done.code == 1 and ("numbers that differ" in done.out) == has_numbers


def test_reasons_of_engines_are_wrapped_at_the_terminals_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    a, b = two(tmp_path, {}, {"ROPE_THETA": 5.0})
    _, _, after = str(eaglectl.diff(a, b)).partition("As stored")
    assert "ROPE_THETA" in after and max(map(len, after.splitlines())) <= 80


def test_the_default_layers_are_known_by_the_targets_depth(tmp_path: Path) -> None:
    unstated = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    a, b = two(tmp_path, {}, unstated)
    assert "--target" in unknown(diff(a, b), "boundaries")
    assert call("diff", a, b).out.startswith("could not look: no known fact differs")
    assert diff(a, b, "--target", str(TARGET))["verdict"] == "equal"  # 8 layers: 2, 4, 5
    deep = tmp_path / "config.json"
    deep.write_text('{"num_hidden_layers": 9, "hidden_size": 16, "vocab_size": 64}')
    assert differing(diff(a, b, "--target", str(deep))) == {"boundaries"}


def test_ids_of_unknown_meaning_are_asked_for_and_answered() -> None:
    a, b = PRODUCERS / "vllm/mla", PRODUCERS / "sglang/mla-absorbed"
    assert "--aux-convention" in unknown(diff(a, b), "boundaries")
    assert diff(a, b, "--aux-convention", "output")["verdict"] == "equal"
    assert diff(b, a, "--aux-convention", "output")["verdict"] == "equal"
    assert differing(diff(a, b, "--aux-convention", "boundary")) == {"boundaries"}
    assert diff(a, b, "--aux-layers", "2,4,5")["verdict"] == "equal"
    assert diff(b, b)["verdict"] == "equal"  # whatever they mean


def test_an_answer_hides_no_difference_that_the_files_state(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"eagle_aux_hidden_state_layer_ids": [2, 4, 6], "eagle_config": ABSENT})
    answers = ("--aux-layers 2,4,5", "--aux-convention output", "--source-semantics norm_output=true")
    document = diff(a, b, *(word for answer in answers for word in answer.split()))
    assert differing(document) == {"boundaries"}
    assert [note.split(" was ")[0] for note in document["notes"]] == [*answers]


def test_what_specforge_trained_is_asked_for_unless_both_are_its_own(tmp_path: Path) -> None:
    source, out = PRODUCERS / "specforge/eagle3.1", tmp_path / "out"
    eaglectl.convert(str(source), out, ConvertOptions(answers=Answers(semantics={"specforge": "post-879"})))
    document = diff(source, out)
    assert differing(document, "unknown") == {"eagle", "norm_output"}
    assert "--source-semantics specforge=" in fact(document, "norm_output")["why"]
    assert diff(source, out, "--source-semantics", "specforge=post-879")["verdict"] == "equal"
    assert differing(diff(source, out, "--source-semantics", "specforge=pre-879")) == {"eagle", "norm_output"}
    done = call("diff", source, source)
    assert done.code == 0 and "both are written alike" in done.out


# the draft vocabulary


def test_offsets_and_absolute_ids_are_the_same_tokens(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": integers(*TARGETS, dtype="I32"), "t2d": mask()})
    document = diff(a, b)
    assert (document["verdict"], pairs(document)) == ("differs", {})
    (remark,) = document["spelling"]["remarks"]
    assert (remark["a"], remark["b"]) == ("d2t holds offsets", "d2t holds absolute ids")


def test_a_d2t_of_two_meanings_is_asked_for(tmp_path: Path) -> None:
    tokens = (*range(DRAFT - 1), 30)
    a = drafter_folder(tmp_path, "a", tensors={"d2t": offsets(tokens), "t2d": mask(tokens)})
    b = drafter_folder(tmp_path, "b", tensors={"d2t": integers(*tokens)})
    assert "--source-semantics d2t=offset" in unknown(diff(a, b), "draft_tokens")
    absolute = diff(a, b, "--source-semantics", "d2t=absolute")  # a, which t2d settles, stays offsets
    assert differing(absolute) == set() and absolute["verdict"] == "differs"
    assert "draft_tokens" in differing(diff(a, b, "--source-semantics", "d2t=offset"))
    assert diff(b, b)["verdict"] == "equal"


def test_tokens_in_another_order_are_compared_row_by_row(tmp_path: Path) -> None:
    dtype, shape, data = drafter_tensors()["lm_head.weight"]
    row = len(data) // DRAFT
    backwards = b"".join(data[i * row : (i + 1) * row] for i in reversed(range(DRAFT)))
    maps = {"d2t": offsets(TARGETS[::-1])}
    a, b = two(tmp_path, {**maps, "lm_head.weight": (dtype, shape, backwards)})
    document = diff(a, b)
    assert (document["verdict"], pairs(document)) == ("equal", {})
    assert [one["name"] for one in document["spelling"]["remarks"]] == ["draft tokens"]
    stale = drafter_folder(tmp_path, "stale", tensors=maps)
    assert pairs(diff(a, stale)) == {"lm_head.weight": "bytes"}


def test_a_broken_map_differs_from_a_good_one_and_not_from_itself(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": integers(*range(100, 100 + DRAFT))})
    document = diff(a, b)
    assert differing(document) == {"draft_tokens"} and "d2t" in fact(document, "draft_tokens")["why"]
    assert diff(b, b)["verdict"] == "equal"


def test_a_map_that_is_in_a_pickle_is_not_known(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": None})
    (b / "speculative_token_map.pt").write_bytes(b"pickle")
    assert "speculative_token_map.pt" in unknown(diff(a, b), "draft_tokens")
    c = drafter_folder(tmp_path, "c", tensors={"d2t": None})
    assert unknown(diff(b, c), "draft_tokens")
    (c / "speculative_token_map.pt").write_bytes(b"another")
    assert unknown(diff(b, c), "draft_tokens")
    (c / "speculative_token_map.pt").write_bytes(b"pickle")
    assert diff(b, c)["verdict"] == "equal"


def test_marks_without_their_order_differ_where_the_tokens_do(tmp_path: Path) -> None:
    nemo = {"architectures": ["LlamaEagle3DraftModel"], "num_aux_hidden_states": ABSENT}
    others = (*TARGETS[:-1], 60)
    a, b = (
        drafter_folder(tmp_path, name, config=nemo, tensors={"d2t": None, "t2d": mask(tokens)})
        for name, tokens in (("a", TARGETS), ("b", others))
    )
    assert differing(diff(a, b)) == {"draft_tokens"}
    assert diff(a, a)["verdict"] == "equal" and diff(a, a)["a"]["producer"] == "automodel"


# tensors


def f32(*values: float) -> Stored:
    return "F32", (len(values),), struct.pack(f"<{len(values)}f", *values)


ONES = (1.0,) * HIDDEN


def filled(dtype: str, item: bytes, first: bytes = b"") -> Stored:
    """Equal numbers, but for the first where it is given."""
    return dtype, (HIDDEN,), (first or item) + item * (HIDDEN - 1)


NAN, INF, TINY_STEP = math.nan, math.inf, 2.0**-40
DOUBLE, LONGER = struct.pack("<d", 1.0), struct.pack("<d", 1.0 + TINY_STEP)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (f32(*ONES), f32(1.5, 0.75, *ONES[2:]), Numbers(16, 2, 0.5, math.sqrt((0.25 + 0.0625) / 16))),
        (filled("BF16", b"\x80\x3f"), filled("BF16", b"\x80\x3f", b"\x00\x40"), Numbers(16, 1, 1.0, 0.25)),
        (filled("F16", b"\x00\x3c"), filled("F16", b"\x00\x3c", b"\x00\x40"), Numbers(16, 1, 1.0, 0.25)),
        (filled("F64", DOUBLE), filled("F64", DOUBLE, LONGER), Numbers(16, 1, TINY_STEP, TINY_STEP / 4)),
        (filled("F8_E4M3", b"\x38"), filled("F8_E4M3", b"\x38", b"\x40"), Numbers(16, 1, 1.0, 0.25)),
        (filled("F8_E5M2", b"\x3c"), filled("F8_E5M2", b"\x3c", b"\x40"), Numbers(16, 1, 1.0, 0.25)),
        (filled("BF16", b"\x80\x3f"), f32(*ONES), Numbers(16, 0, 0.0, 0.0)),
        (
            f32(NAN, NAN, INF, *ONES[3:]),
            f32(NAN, 1.0, -INF, 1.5, *ONES[4:]),
            Numbers(16, 3, 0.5, math.sqrt(0.25 / 13), 3),
        ),
        (f32(*(NAN,) * 16), f32(*(INF,) * 16), Numbers(16, 16, 0.0, None, 16)),
    ],
)
def test_numbers_are_compared_by_value_and_what_is_not_finite_is_counted(
    one: Stored, other: Stored, expected: Numbers, tmp_path: Path
) -> None:
    a, b = two(tmp_path, {"norm.weight": other}, first={"norm.weight": one})
    found = eaglectl.diff(str(a), str(b))
    (changed,) = [pair for pair in found.tensors if pair.differs]
    assert (changed.name, changed.numbers, found.verdict) == ("norm.weight", expected, "differs")
    SCHEMA.validate(call("diff", a, b, "--json").document)


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    rows = 2_000_000  # 64 MB
    for name, word in (("a", b"\x80\x3f"), ("b", b"\x00\x40")):
        embedding = "BF16", (rows, HIDDEN), word * (rows * HIDDEN)
        config = {"vocab_size": rows}
        drafter_folder(tmp_path, name, config=config, tensors={"embed_tokens.weight": embedding})
    eaglectl.diff(str(tmp_path / "a"), str(tmp_path / "a"))  # modules and maps are loaded
    tracemalloc.start()
    found = eaglectl.diff(str(tmp_path / "a"), str(tmp_path / "b"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (changed,) = [pair for pair in found.tensors if pair.differs]
    assert changed.numbers == Numbers(rows * HIDDEN, rows * HIDDEN, 1.0, 1.0)
    assert peak < 40_000_000


def test_shapes_are_named_and_not_compared_further(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"stray": floats("stray", 3, 4)}, first={"stray": floats("stray", 4, 3)})
    found = tensor(diff(a, b), "stray")
    assert (found["state"], found["numbers"]) == ("shape", None)
    assert (found["a"]["shape"], found["b"]["shape"]) == ([4, 3], [3, 4])
    assert "[4, 3] in A, [3, 4] in B" in call("diff", a, b).out


def test_a_tensor_of_one_side_is_a_difference(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"embed_tokens.weight": None})
    assert pairs(diff(a, b)) == {"embed_tokens.weight": "only-a"}
    assert pairs(diff(b, a)) == {"embed_tokens.weight": "only-b"}
    assert "only in A" in call("diff", a, b).out


@pytest.mark.parametrize(("last", "state"), [(0, "zeros"), (1, "only-b")])
def test_a_bias_of_zeros_adds_nothing(last: int, state: str, tmp_path: Path) -> None:
    biases = {
        f"layers.0.self_attn.{name}_proj.bias": floats(name, size)
        for name, size in (("q", 32), ("k", 16), ("v", 16))
    }
    zeros = "BF16", (HIDDEN,), bytes(2 * HIDDEN - 1) + bytes([last])
    a, b = two(
        tmp_path, {**biases, "layers.0.self_attn.o_proj.bias": zeros}, {"attention_bias": True}, first=biases
    )
    document = diff(a, b)
    assert pairs(document) == {"layers.0.self_attn.o_proj.bias": state}
    assert document["verdict"] == ("differs" if last else "equal")


def test_whole_numbers_have_a_count_alone(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"stray": integers(1, 2, 4)}, first={"stray": integers(1, 2, 3)})
    figures = {"count": 3, "differing": 1, "max_abs": None, "relative_rms": None, "not_finite": 0}
    assert tensor(diff(a, b), "stray")["numbers"] == figures


# headers only


def test_headers_alone_are_never_equal(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"norm.weight": floats("other", HIDDEN)})
    document = diff(a, b, "--headers-only")
    assert (document["verdict"], document["values"]) == ("same-headers", "not-compared")
    assert {pair["state"] for pair in document["tensors"]} == {"not-compared"}
    assert differing(document, "not-compared") == {"draft_tokens"}
    done = call("diff", a, b, "--headers-only")
    assert done.code == 0 and "values were not compared" in done.out.splitlines()[0]
    assert "the same" not in done.out


def test_headers_tell_meaning_and_shapes(tmp_path: Path) -> None:
    tensors = {"norm.weight": f32(*ONES), "embed_tokens.weight": None}
    a, b = two(tmp_path, tensors, {"rope_theta": 10000.0})
    document = diff(a, b, "--headers-only")
    assert differing(document) == {"rope_theta"}
    states = {"norm.weight": "dtype", "embed_tokens.weight": "only-a"}
    assert {name: state for name, state in pairs(document).items() if state != "not-compared"} == states
    assert call("diff", a, b, "--headers-only").out.startswith(
        "fail: differs: two drafters, which differ in 1 fact and 2 tensors; values were not"
    )


# bad input


def test_what_cannot_be_read_ends_with_3_and_names_its_side(tmp_path: Path) -> None:
    good, gone = drafter_folder(tmp_path), tmp_path / "gone"
    assert refusal(3, "diff", gone, good) == f"A: {gone}: {ABSENT_FILE}"
    assert refusal(3, "diff", good, gone) == f"B: {gone}: {ABSENT_FILE}"


def test_python_callers_get_a_value(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"rope_theta": 1.0})
    reports: list[Progress] = []
    found = eaglectl.diff(str(a), str(b), on_progress=reports.append)
    (changed,) = [one for one in found.facts if one.state == "differs"]
    assert (changed.name, changed.a, changed.b) == ("rope_theta", 500000.0, 1.0)
    last = reports[-1]
    assert (last.stage, last.unit) == ("comparing", "bytes") and last.done == last.total > 0


def test_what_cannot_be_joined_is_no_difference(tmp_path: Path) -> None:
    source = PRODUCERS / "sglang/mla-absorbed"
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = read_safetensors(source / "model.safetensors")
    _, shape, data = tensors["layers.0.self_attn.w_vc"]
    tensors["layers.0.self_attn.w_vc"] = "F16", shape, data
    write_safetensors(folder / "model.safetensors", tensors)
    assert "kv_b_proj needs one dtype" in refusal(3, "diff", source, folder)


# repositories of the Hub: headers by ranges, weights through the cache, equal files not downloaded

BIG = {"embed_tokens.weight": floats("big", 10_240, 16)}  # 327,680 bytes: read by ranges, not whole
CONFIG = {"vocab_size": 10_240}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub for this process's client, with a drafter in two repositories under other configs."""
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/a", drafter_folder(tmp_path / "made", "a", config=CONFIG, tensors=BIG))
        other = {**CONFIG, "rope_theta": 10000.0, "bos_token_id": 1}
        running.add_repo("org/b", drafter_folder(tmp_path / "made", "b", config=other, tensors=BIG))
        yield running


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The drafter of the hub with one other tensor."""
    tensors = {**BIG, "norm.weight": floats("other", 16)}
    return drafter_folder(tmp_path, "local", config=CONFIG, tensors=tensors)


def cached(tmp_path: Path) -> set[str]:
    """Weight files in the Hub client's cache."""
    return {
        f"{path.parents[2].name.rpartition('--')[2]}/{path.name}"
        for path in (tmp_path / "cache").rglob("*.safetensors")
    }


def test_weights_that_differ_go_through_the_cache_once(hub: LoopbackHub, local: Path, tmp_path: Path) -> None:
    for _ in range(2):
        document = diff(local, "org/a")
        assert [pair["name"] for pair in document["tensors"] if pair["state"] != "equal"] == ["norm.weight"]
    assert cached(tmp_path) == {"a/model.safetensors"}
    assert sum(request.is_elsewhere and request.range is None for request in hub.requests) == 1


def test_files_with_equal_digests_are_not_downloaded(hub: LoopbackHub, tmp_path: Path) -> None:
    document = diff("org/a", "org/b")
    assert {pair["state"] for pair in document["tensors"]} == {"equal"}
    assert {fact["name"] for fact in document["facts"] if fact["state"] == "differs"} == {"rope_theta"}
    assert "the Hub lists the same digests for the weight files of A and B" in document["notes"]
    assert cached(tmp_path) == set()


def test_files_with_other_digests_are_downloaded(hub: LoopbackHub, local: Path, tmp_path: Path) -> None:
    hub.add_repo("org/other", local)
    document = diff("org/a", "org/other")
    assert [pair["name"] for pair in document["tensors"] if pair["state"] != "equal"] == ["norm.weight"]
    assert cached(tmp_path) == {"a/model.safetensors", "other/model.safetensors"}


def test_headers_only_downloads_nothing(hub: LoopbackHub, local: Path, tmp_path: Path) -> None:
    document = diff(local, "org/a", "--headers-only")
    assert (document["verdict"], document["values"]) == ("same-headers", "not-compared")
    assert cached(tmp_path) == set() and hub.traffic < 200_000


def test_revisions_of_one_repository_are_two_sides(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = hub.repos["org/a"]
    first = repo.head()
    repo.commit({"config.json": (tmp_path / "made/b/config.json").read_bytes()})
    document = diff(f"org/a@{first}", "org/a@main")
    assert [fact["name"] for fact in document["facts"] if fact["state"] == "differs"] == ["rope_theta"]
    assert (document["a"]["source"], document["b"]["source"]) == (f"org/a@{first}", "org/a@main")


def test_a_hub_that_lists_no_digests_is_read(hub: LoopbackHub, tmp_path: Path) -> None:
    def bare(request: Any, proceed: Any) -> Reply | None:
        if not request.is_info:
            return None
        body = json.loads(proceed().body)
        for file in body["siblings"]:
            file.pop("lfs", None)
            file.pop("blobId", None)
        return Reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    hub.faults.append(bare)
    document = call("diff", "org/a", "org/b", "--json").document
    assert all(pair["state"] == "equal" for pair in document["tensors"])
    assert cached(tmp_path) == {"a/model.safetensors", "b/model.safetensors"}


def test_a_repository_that_is_not_there_is_no_difference(hub: LoopbackHub) -> None:
    message = refusal(3, "diff", "org/a", "org/nowhere")
    assert message.startswith("B: ") and "org/nowhere" in message and TOKEN not in message


# what the files leave open


def opened(tmp_path: Path, name: str, **keys: Any) -> Path:
    """AngelSlim's published drafter, whose base of the rope is open."""
    published = next(drafter for drafter in ALL if drafter.name == "AngelSlim/Qwen3-4B_eagle3")
    (tmp_path / name).mkdir()
    folder = published.folder(tmp_path / name)
    (folder / "config.json").write_text(json.dumps({**published.said["config"], **keys}))
    return folder


def facts_of(*arguments: str | Path) -> tuple[int, dict[str, str]]:
    done = call("diff", *arguments, "--headers-only", "--json")
    return done.code, {fact["name"]: fact["state"] for fact in done.document["facts"]}


def test_an_open_rope_is_not_known_to_differ(tmp_path: Path) -> None:
    a, b = opened(tmp_path, "a"), opened(tmp_path, "b", rope_theta=5000000)
    code, facts = facts_of(a, b)
    assert (code, facts["rope_theta"]) == (3, "unknown")
    code, facts = facts_of(a, b, "--source-semantics", "rope=stored")
    assert (code, facts["rope_theta"]) == (1, "differs")
    code, facts = facts_of(a, b, "--assume-defaults")
    assert facts["rope_theta"] != "unknown"


def test_of_two_that_are_written_alike_an_open_rope_is_equal(tmp_path: Path) -> None:
    assert facts_of(opened(tmp_path, "a"), opened(tmp_path, "b"))[1]["rope_theta"] == "equal"


def test_an_assumption_is_one_in_diff_too(tmp_path: Path) -> None:
    folder = FIXTURES / "producers/specforge/gqa-ids"
    stated = tmp_path / "stated"
    eaglectl.convert(folder, stated, answers=Answers(aux_convention="output"))
    assert facts_of(folder, stated) == (3, {**facts_of(folder, stated)[1], "boundaries": "unknown"})
    code, facts = facts_of(folder, stated, "--assume-defaults")
    assert (code, facts["boundaries"]) == (0, "equal")
    assert "assumed" in call("diff", folder, stated, "--assume-defaults", "--json").out
