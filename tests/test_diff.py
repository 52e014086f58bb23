"""`diff`: meaning and tensors decide, spelling does not, and what is not known is never equal."""

import json
import math
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

import eaglectl
from eaglectl import DiffOptions
from eaglectl.comparison.comparison import Comparison, Numbers
from eaglectl.comparison.pairing import Content
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.source import PinnedSource
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from eaglectl.progress import Progress
from tests.builders import (
    ABSENT,
    ABSENT_FILE,
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
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
from tests.cases import CASES, Case, true_answers
from tests.conftest import FIXTURES, sampled
from tests.drafters import Made, drafters

PRODUCERS, TARGET = FIXTURES / "producers", FIXTURES / "target"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/diff.schema.json").read_text())
)
READABLE = [case for case in CASES if not case.is_pickled]
# NeMo's missing scale is folded into q_b_proj: arithmetic, which is a difference
COMPUTED = ("automodel/mla",)
LAYOUTS = ("vllm", "sglang", "speculators", "eagle", "modelopt", "torchspec")


def diff(a: Path, b: Path, *more: str) -> dict[str, Any]:
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


def pairs(document: dict[str, Any]) -> dict[str, str]:
    """The tensors that are not equal."""
    return {pair["name"]: pair["state"] for pair in document["tensors"] if pair["state"] != "equal"}


def pair(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["tensors"] if one["name"] == name]
    return found


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
    assert (document["verdict"], document["is_written_alike"], document["values"]) == (
        "equal",
        True,
        "compared",
    )
    assert {pair["state"] for pair in document["tensors"]} == {"equal"} and differing(document, "equal") == {
        fact["name"] for fact in document["facts"]
    }
    assert call("diff", a, b).out.startswith("equal: the same drafter\n")


# beside these, test_reading_back writes and reads those of every producer
@pytest.mark.parametrize(
    "case", sampled([case for case in READABLE if case.path not in COMPUTED], 3), ids=lambda case: case.path
)
def test_every_producers_drafter_is_the_same_in_every_layout(case: Case, tmp_path: Path) -> None:
    written = []
    target = str(TARGET) if max(case.boundaries or (0,)) <= 8 else None
    for layout in LAYOUTS:
        out = tmp_path / layout
        try:
            eaglectl.convert(
                str(case.folder), out, ConvertOptions(layout=layout, target=target, answers=case.answered())
            )
        except EaglectlError as error:
            assert isinstance(error, RefusedError | UsageError) and layout != "vllm"
            continue
        found = eaglectl.diff(str(case.folder), str(out), DiffOptions(target=target, answers=case.answered()))
        assert found.verdict == "equal", (layout, told(found))
        written.append(out)
    assert written


def told(found: Comparison) -> object:
    return [one for one in found.facts if one.state != "equal"], [
        one.name for one in found.tensors if one.differs
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=drafters())
def test_a_random_drafter_and_its_conversion_are_one(
    made: Made, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("made")
    source = made.write(folder / "in")
    try:
        eaglectl.convert(
            str(source), folder / "out", ConvertOptions(layout="speculators", target_name="org/target")
        )
    except EaglectlError:
        # engines serve not all that is drawn
        eaglectl.convert(str(source), folder / "out", ConvertOptions(force_unserved=True))
    found = eaglectl.diff(str(source), str(folder / "out"))
    assert found.verdict == "equal", told(found)


def test_fused_tensors_are_compared_by_their_parts() -> None:
    document = diff(PRODUCERS / "vllm/native", PRODUCERS / "vllm/fused")
    assert document["verdict"] == "equal" and pairs(document) == {}
    names = {one["name"]: one["b"] for one in document["spelling"]["names"]}
    assert names["layers.0.mlp.up_proj.weight"] == ["layers.0.mlp.gate_up_proj.weight"] and len(names) == 5


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


def test_absorbed_halves_are_kv_b_proj() -> None:
    document = diff(PRODUCERS / "vllm/mla", PRODUCERS / "sglang/mla-absorbed", "--aux-convention", "output")
    assert (document["verdict"], pairs(document)) == ("equal", {})


def test_shards_are_one_file_cut_up() -> None:
    document = diff(PRODUCERS / "vllm/native", PRODUCERS / "vllm/sharded")
    assert document["verdict"] == "equal"
    assert [one["about"] for one in document["spelling"]["remarks"]] == ["files"]


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
    keys = {one["key"]: (one["a"], one["b"]) for one in document["spelling"]["config"]}
    assert keys["torch_dtype"] == ("bfloat16", "float16") and keys["rope_parameters.rope_theta"] == (
        None,
        500000,
    )
    out = call("diff", a, b).out
    assert out.startswith("equal: the same drafter, written differently\n") and "bos_token_id" in out
    assert (
        "rope_parameters.rope_theta  -" not in out
        and "rope_parameters.rope_theta  -" in call("-v", "diff", a, b).out
    )


# what they mean

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention"]}


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
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor"}),
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


def test_a_scaling_means_its_defaults(tmp_path: Path) -> None:
    a = drafter_folder(tmp_path, "a", config={"rope_scaling": YARN})
    b = drafter_folder(
        tmp_path, "b", config={"rope_scaling": {**YARN, "type": "yarn", "beta_fast": 32.0, "mscale": None}}
    )
    c = drafter_folder(tmp_path, "c", config={"rope_scaling": {**YARN, "beta_fast": 16}})
    assert diff(a, b)["verdict"] == "equal"
    assert differing(diff(a, c)) == {"rope_scaling"}


def test_the_version_and_its_norms_are_told(tmp_path: Path) -> None:
    norms = {f"fc_norm.{i}.weight": floats(f"fc_norm.{i}", HIDDEN) for i in range(3)}
    a, b = two(tmp_path, norms, {"fc_norm": True, "norm_output": True})
    document = diff(a, b)
    assert differing(document) == {"eagle", "fc_norm", "norm_output"}
    assert pairs(document) == dict.fromkeys(norms, "only-b")
    assert (fact(document, "eagle")["a"], fact(document, "eagle")["b"]) == ("3", "3.1")


def test_the_default_layers_are_known_by_the_targets_depth(tmp_path: Path) -> None:
    unstated = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    a, b = two(tmp_path, {}, unstated)
    document = diff(a, b)
    assert document["verdict"] == "could-not-look" and differing(document, "unknown") == {"boundaries"}
    assert "--target" in fact(document, "boundaries")["why"]
    assert "could-not-look: nothing differs that is known" in call("diff", a, b).out
    assert diff(a, b, "--target", str(TARGET))["verdict"] == "equal"  # 8 layers: 2, 4, 5
    deep = tmp_path / "config.json"
    deep.write_text('{"num_hidden_layers": 9, "hidden_size": 16, "vocab_size": 64}')
    assert differing(diff(a, b, "--target", str(deep))) == {"boundaries"}


def test_a_conversion_by_the_default_layers_is_its_source_for_the_target(tmp_path: Path) -> None:
    config = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    source, out, target = drafter_folder(tmp_path, "source", config=config), tmp_path / "out", tmp_path / "8"
    target.mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64}')
    eaglectl.convert(source, out, target=str(target))
    assert differing(diff(source, out), "unknown") == {"boundaries"}
    assert diff(source, out, "--target", str(target))["verdict"] == "equal"


def test_layers_that_are_no_default_of_any_target_differ_from_the_default(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 4, 5], "eagle_config": ABSENT}
    a = drafter_folder(tmp_path, "a", config=ids)
    b = drafter_folder(
        tmp_path, "b", config={"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    )
    assert differing(diff(a, b)) == {"boundaries"}


def test_two_defaults_are_one(tmp_path: Path) -> None:
    unstated = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    a, b = (drafter_folder(tmp_path, name, config=unstated) for name in "ab")
    assert diff(a, b)["verdict"] == "equal"


def test_ids_of_unknown_meaning_are_asked_for_and_answered() -> None:
    a, b = PRODUCERS / "vllm/mla", PRODUCERS / "sglang/mla-absorbed"
    document = diff(a, b)
    assert (
        differing(document, "unknown") == {"boundaries"}
        and "--aux-convention" in fact(document, "boundaries")["why"]
    )
    assert diff(a, b, "--aux-convention", "output")["verdict"] == "equal"
    assert diff(b, a, "--aux-convention", "output")["verdict"] == "equal"
    assert differing(diff(a, b, "--aux-convention", "boundary")) == {"boundaries"}
    assert diff(a, b, "--aux-layers", "2,4,5")["verdict"] == "equal"
    assert diff(b, b)["verdict"] == "equal"  # whatever they mean


def test_layers_that_were_only_assumed_are_answered(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = tmp_path / "target/config.json"
    target.write_text('{"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64}')
    unstated = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    a = drafter_folder(tmp_path, "a", config=unstated)
    stated = {"eagle_aux_hidden_state_layer_ids": [2, 4, 6], "eagle_config": ABSENT}
    b = drafter_folder(tmp_path, "b", config=stated)
    assert differing(diff(a, b, "--target", target)) == {"boundaries"}
    document = diff(a, b, "--target", target, "--aux-layers", "2,4,6")
    assert document["verdict"] == "equal" and document["notes"] == []
    document = diff(a, b, "--target", target, "--aux-layers", "1,3,5", "--aux-convention", "output")
    assert document["verdict"] == "equal"
    assert differing(diff(a, b, "--target", target, "--aux-layers", "2,4,7")) == {"boundaries"}


def test_ids_that_agree_in_no_convention_differ() -> None:
    layers = diff(PRODUCERS / "lightseekorg/mla-eagle3.1", PRODUCERS / "sglang/mla-absorbed")
    assert "boundaries" in differing(layers)  # 2, 4, 6 against 1, 3, 4 or 2, 4, 5


def test_an_answer_hides_no_difference_that_the_files_state(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"eagle_aux_hidden_state_layer_ids": [2, 4, 6], "eagle_config": ABSENT})
    document = diff(
        a, b, "--aux-layers", "2,4,5", "--aux-convention", "output", "--source-semantics", "norm_output=true"
    )
    assert differing(document) == {"boundaries"}
    assert [note.split(" was ")[0] for note in document["notes"]] == [
        "--aux-layers",
        "--aux-convention",
        "--source-semantics norm_output",
    ]


def test_what_specforge_trained_is_asked_for_unless_both_are_its_own(tmp_path: Path) -> None:
    source, out = PRODUCERS / "specforge/eagle3.1", tmp_path / "out"
    eaglectl.convert(str(source), out, ConvertOptions(answers=Answers(semantics={"specforge": "post-879"})))
    document = diff(source, out)
    assert differing(document, "unknown") == {"eagle", "norm_output"}
    assert "--source-semantics specforge=" in fact(document, "norm_output")["why"]
    assert diff(source, out, "--source-semantics", "specforge=post-879")["verdict"] == "equal"
    assert differing(diff(source, out, "--source-semantics", "specforge=pre-879")) == {"eagle", "norm_output"}
    document = diff(source, source)
    assert document["verdict"] == "equal" and "both are written alike" in fact(document, "norm_output")["why"]
    assert "both are written alike" in call("diff", source, source).out


def test_fc_of_layers_listed_in_two_orders_is_one(tmp_path: Path) -> None:
    source, out = PRODUCERS / "modelopt/hf-ids-unsorted", tmp_path / "out"
    eaglectl.convert(str(source), out, ConvertOptions(target=str(TARGET), answers=true_answers(source)))
    assert (source / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()
    assert diff(source, out)["verdict"] == "equal"
    assert diff(source, source)["verdict"] == "equal"


def test_quantisation_is_a_fact() -> None:
    document = diff(PRODUCERS / "modelopt/hf", PRODUCERS / "modelopt/hf-fp8")
    assert "quantisation" in differing(document)
    assert pair(document, "layers.0.mlp.gate_proj.weight")["state"] == "dtype"
    assert pair(document, "layers.0.mlp.gate_proj.weight_scale")["state"] == "only-b"


# the draft vocabulary


def test_offsets_and_absolute_ids_are_the_same_tokens(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": integers(*TARGETS, dtype="I32"), "t2d": mask()})
    document = diff(a, b)
    assert (document["verdict"], pairs(document)) == ("differs", {})
    (remark,) = document["spelling"]["remarks"]
    assert (remark["a"], remark["b"]) == ("d2t holds offsets", "d2t holds absolute ids")


def test_a_t2d_beside_d2t_is_the_same_vocabulary(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"t2d": mask()})
    document = diff(a, b)
    assert (document["verdict"], document["is_written_alike"]) == ("equal", True)


def test_a_d2t_of_two_meanings_is_asked_for(tmp_path: Path) -> None:
    tokens = (*range(DRAFT - 1), 30)
    a = drafter_folder(tmp_path, "a", tensors={"d2t": offsets(tokens), "t2d": mask(tokens)})
    b = drafter_folder(tmp_path, "b", tensors={"d2t": integers(*tokens)})
    document = diff(a, b)
    assert document["verdict"] == "could-not-look" and differing(document, "unknown") == {"draft_tokens"}
    assert "--source-semantics d2t=offset" in fact(document, "draft_tokens")["why"]
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
    assert [one["about"] for one in document["spelling"]["remarks"]] == ["token order"]
    stale = drafter_folder(tmp_path, "stale", tensors=maps)
    assert pairs(diff(a, stale)) == {"lm_head.weight": "bytes"}


def test_a_pruned_drafter_keeps_the_rows_of_its_tokens(tmp_path: Path) -> None:
    dtype, _, data = drafter_tensors()["lm_head.weight"]
    row, kept = len(data) // DRAFT, [i for i in range(DRAFT) if i % 3]
    head = dtype, (len(kept), HIDDEN), b"".join(data[i * row : (i + 1) * row] for i in kept)
    tokens = [TARGETS[i] for i in kept]
    a, b = two(tmp_path, {"d2t": offsets(tokens), "lm_head.weight": head}, {"draft_vocab_size": len(kept)})
    document = diff(a, b)
    assert differing(document) == {"draft_vocab", "draft_tokens"} and pairs(document) == {}
    assert fact(document, "draft_tokens")["a"] == "24 tokens, 8 only here"
    assert pair(document, "lm_head.weight")["remark"] == "the rows of 16 tokens that are in both"


def test_no_token_in_common_is_no_head_in_common(tmp_path: Path) -> None:
    others = [token for token in range(VOCAB) if token not in TARGETS][:DRAFT]
    a, b = two(tmp_path, {"d2t": offsets(others)})
    document = diff(a, b)
    assert pairs(document) == {"lm_head.weight": "bytes"}
    assert pair(document, "lm_head.weight")["remark"] == "no token is in both"


def test_a_broken_map_differs_from_a_good_one_and_not_from_itself(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": integers(*range(100, 100 + DRAFT))})
    document = diff(a, b)
    assert differing(document) == {"draft_tokens"} and "d2t" in fact(document, "draft_tokens")["why"]
    assert diff(b, b)["verdict"] == "equal"


@pytest.mark.parametrize("kind", ["F32", "F64"])
def test_a_map_of_fractions_is_itself_and_no_other(kind: str, tmp_path: Path) -> None:
    size = {"F32": 4, "F64": 8}[kind]
    a, b = two(
        tmp_path,
        {"d2t": (kind, (DRAFT,), bytes(DRAFT * size - 1) + b"\x40")},
        first={"d2t": (kind, (DRAFT,), bytes(DRAFT * size))},
    )
    assert diff(a, a)["verdict"] == diff(b, b)["verdict"] == "equal"
    document = diff(a, b)
    assert differing(document) == {"draft_tokens"} and kind in fact(document, "draft_tokens")["why"]


def test_a_map_that_is_in_a_pickle_is_not_known(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"d2t": None})
    (b / "speculative_token_map.pt").write_bytes(b"pickle")
    document = diff(a, b)
    assert differing(document, "unknown") == {"draft_tokens"} and document["verdict"] == "could-not-look"
    assert "speculative_token_map.pt" in fact(document, "draft_tokens")["why"]
    c = drafter_folder(tmp_path, "c", tensors={"d2t": None})
    assert differing(diff(b, c), "unknown") == {"draft_tokens"}
    (c / "speculative_token_map.pt").write_bytes(b"another")
    assert differing(diff(b, c), "unknown") == {"draft_tokens"}
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


def numbers(tmp_path: Path, one: Stored, other: Stored) -> Numbers | None:
    a, b = two(tmp_path, {"norm.weight": other}, first={"norm.weight": one})
    found = eaglectl.diff(str(a), str(b))
    (changed,) = [pair for pair in found.tensors if pair.differs]
    assert changed.name == "norm.weight" and found.verdict == "differs"
    SCHEMA.validate(call("diff", a, b, "--json").document)
    return changed.numbers


ONES = (1.0,) * HIDDEN


def test_how_far_apart_numbers_are(tmp_path: Path) -> None:
    found = numbers(tmp_path, f32(*ONES), f32(1.5, 0.75, *ONES[2:]))
    assert found == Numbers(16, 2, 0.5, math.sqrt((0.25 + 0.0625) / 16))


@pytest.mark.parametrize(
    ("dtype", "one", "other", "apart"),
    [
        ("BF16", b"\x80\x3f", b"\x00\x40", 1.0),
        ("F16", b"\x00\x3c", b"\x00\x40", 1.0),
        ("F64", struct.pack("<d", 1.0), struct.pack("<d", 1.0 + 2.0**-40), 2.0**-40),
        ("F8_E4M3", b"\x38", b"\x40", 1.0),
        ("F8_E5M2", b"\x3c", b"\x40", 1.0),
    ],
)
def test_numbers_of_every_float(dtype: str, one: bytes, other: bytes, apart: float, tmp_path: Path) -> None:
    same = dtype, (HIDDEN,), one * HIDDEN
    found = numbers(tmp_path, same, (dtype, (HIDDEN,), other + one * (HIDDEN - 1)))
    assert found == Numbers(16, 1, apart, apart / 4)


def test_another_dtype_is_a_difference_of_the_same_numbers(tmp_path: Path) -> None:
    half = "BF16", (HIDDEN,), b"\x80\x3f" * HIDDEN
    assert numbers(tmp_path, half, f32(*ONES)) == Numbers(16, 0, 0.0, 0.0)


def test_what_is_not_finite_is_counted_and_kept_out_of_the_figures(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    found = numbers(tmp_path, f32(nan, nan, inf, *ONES[3:]), f32(nan, 1.0, -inf, 1.5, *ONES[4:]))
    assert found == Numbers(16, 3, 0.5, math.sqrt(0.25 / 13), 3)
    assert numbers(tmp_path / "again", f32(*(nan,) * 16), f32(*(inf,) * 16)) == Numbers(16, 16, 0.0, None, 16)


def test_not_a_number_of_eight_bits_is_not_finite(tmp_path: Path) -> None:
    one, other = (("F8_E4M3", (HIDDEN,), first + b"\x38" * 15) for first in (b"\x38", b"\x7f"))
    assert numbers(tmp_path, one, other) == Numbers(16, 1, 0.0, 0.0, 1)


def test_a_zero_of_the_other_sign_is_other_bytes_of_the_same_number(tmp_path: Path) -> None:
    assert numbers(tmp_path, f32(0.0, *ONES[1:]), f32(-0.0, *ONES[1:])) == Numbers(16, 1, 0.0, 0.0)


def test_numbers_that_overflow_their_squares_have_no_figure(tmp_path: Path) -> None:
    one, other = (("F64", (HIDDEN,), struct.pack("<16d", value, *ONES[1:])) for value in (1e308, -1e308))
    assert numbers(tmp_path, one, other) == Numbers(16, 1, None, None)


def test_a_difference_is_found_in_any_block(tmp_path: Path) -> None:
    rows = 300_000
    data = bytearray(rows * HIDDEN * 2)  # 9.6 MB of zeros
    config = {"vocab_size": rows}
    a = drafter_folder(
        tmp_path, "a", config=config, tensors={"embed_tokens.weight": ("BF16", (rows, HIDDEN), bytes(data))}
    )
    data[-2:] = b"\x80\x3f"
    b = drafter_folder(
        tmp_path, "b", config=config, tensors={"embed_tokens.weight": ("BF16", (rows, HIDDEN), bytes(data))}
    )
    found = pair(diff(a, b), "embed_tokens.weight")
    assert found["numbers"] == {
        "count": rows * HIDDEN,
        "differing": 1,
        "max_abs": 1.0,
        "relative_rms": None,
        "not_finite": 0,
    }
    assert found["a"]["sha256"] != found["b"]["sha256"]


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    rows = 2_000_000  # 64 MB
    config = {"vocab_size": rows}
    for name, word in (("a", b"\x80\x3f"), ("b", b"\x00\x40")):
        drafter_folder(
            tmp_path,
            name,
            config=config,
            tensors={"embed_tokens.weight": ("BF16", (rows, HIDDEN), word * (rows * HIDDEN))},
        )
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
    found = pair(diff(a, b), "stray")
    assert (found["state"], found["numbers"], found["a"]["shape"], found["b"]["shape"]) == (
        "shape",
        None,
        [4, 3],
        [3, 4],
    )
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
    assert pair(diff(a, b), "stray")["numbers"] == figures


# headers only


def test_headers_alone_are_never_equal(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"norm.weight": floats("other", HIDDEN)})
    document = diff(a, b, "--headers-only")
    assert (document["verdict"], document["values"]) == ("same-headers", "not-compared")
    assert {pair["state"] for pair in document["tensors"]} == {"not-compared"}
    assert differing(document, "not-compared") == {"draft_tokens"}
    done = call("diff", a, b, "--headers-only")
    assert (
        done.code == 0
        and "values were not compared" in done.out.splitlines()[0]
        and "the same" not in done.out
    )


def test_headers_tell_meaning_and_shapes(tmp_path: Path) -> None:
    tensors = {"norm.weight": f32(*ONES), "embed_tokens.weight": None}
    a, b = two(tmp_path, tensors, {"rope_theta": 10000.0})
    document = diff(a, b, "--headers-only")
    assert differing(document) == {"rope_theta"}
    assert {name: state for name, state in pairs(document).items() if state != "not-compared"} == {
        "norm.weight": "dtype",
        "embed_tokens.weight": "only-a",
    }
    assert call("diff", a, b, "--headers-only").out.startswith(
        "differs: two drafters, by 1 fact and 2 tensors; values were not"
    )


# bad input


def test_what_cannot_be_read_ends_with_3_and_names_its_side(tmp_path: Path) -> None:
    good, gone = drafter_folder(tmp_path), tmp_path / "gone"
    assert refusal(3, "diff", gone, good) == f"A: {gone}: {ABSENT_FILE}"
    assert refusal(3, "diff", good, gone) == f"B: {gone}: {ABSENT_FILE}"


def test_no_drafter_is_no_difference() -> None:
    message = refusal(3, "diff", PRODUCERS / "vllm/native", FIXTURES / "tiny/target")
    assert message.startswith("B: ") and "full language model" in message


def test_a_broken_pickle_is_no_difference(tmp_path: Path) -> None:
    shutil.copy(PRODUCERS / "eagle/bin/config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle")
    message = refusal(3, "diff", tmp_path, PRODUCERS / "vllm/native")
    assert message.startswith("A: ") and "pytorch_model.bin is not a torch file" in message


def test_a_contradiction_is_no_difference(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"norm.weight": floats("norm", 17)})
    assert "norm.weight is [17]" in refusal(3, "diff", a, b)
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": "four"}}
    assert "factor is 'four'" in refusal(3, "diff", a, drafter_folder(tmp_path, "c", config=scaled))


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


def test_a_target_that_is_an_adapter_is_no_difference(tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    target = tmp_path / "target"
    target.mkdir()
    (target / "adapter_config.json").write_text("{}")
    assert "LoRA adapter" in refusal(3, "diff", a, b, "--target", target)


def test_a_truncated_file_is_not_compared(tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "truncated" in refusal(3, "diff", a, b)


def test_a_file_that_shrinks_while_it_is_read_is_not_equal(tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    sides = eaglectl.diff(str(a), str(b))
    write_safetensors(b / "model.safetensors", {"d2t": offsets()})
    with PinnedSource(b) as pinned:
        checkpoint = replace(sides.b.checkpoint, source=pinned)
        norm = Content(sides.b.drafter.tensors["norm.weight"], checkpoint)
        with pytest.raises(UnreadableError, match="the file is truncated or being written"):
            list(norm.blocks())


@pytest.mark.parametrize(
    "given",
    [
        ["--source-semantics", "moon=full"],
        ["--source-semantics", "d2t=both"],
        ["--aux-layers", "two"],
        ["--aux-convention", "left"],
    ],
    ids=" ".join,
)
def test_answers_to_no_question_are_refused(given: list[str], tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    refusal(2, "diff", a, b, *given)


def test_a_target_that_is_not_there_is_said(tmp_path: Path) -> None:
    a, b = two(tmp_path, {})
    assert "nowhere" in refusal(3, "diff", a, b, "--target", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("given", [[], ["a"], ["a", "b", "c"]])
def test_two_are_compared(given: list[str]) -> None:
    done = call("diff", *given)
    assert done.code == 2 and "Usage" in done.err


def test_names_from_files_are_harmless(tmp_path: Path) -> None:
    a, b = two(tmp_path, {"ev\x1b[2Jil\n": floats("evil", 2)}, {"k\x1b[31m\n": "v\x1b[0m\n"})
    done = call("-v", "diff", a, b)
    assert done.code == 1 and "\x1b" not in done.out and "\\x1b[2Jil\\n" in done.out


def test_python_callers_get_a_value(tmp_path: Path) -> None:
    a, b = two(tmp_path, {}, {"rope_theta": 1.0})
    reports: list[Progress] = []
    found = eaglectl.diff(str(a), str(b), on_progress=reports.append)
    assert isinstance(found, Comparison) and found.verdict == "differs"
    assert [(one.name, one.a, one.b) for one in found.facts if one.state == "differs"] == [
        ("rope_theta", 500000.0, 1.0)
    ]
    last = reports[-1]
    assert (last.stage, last.unit) == ("comparing", "bytes") and last.done == last.total > 0


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_scattered_rows_are_read_in_whole_blocks(tmp_path: Path, size: int) -> None:
    folder = drafter_folder(tmp_path)
    side = eaglectl.diff(folder, folder, headers_only=True).a
    head, rows = side.drafter.tensors["lm_head.weight"], [5, 2, 3, 0]
    blocks = list(Content(head.with_rows(rows), side.checkpoint).blocks(size))
    whole, row = side.checkpoint.read(head.stored[0]), 2 * HIDDEN
    assert b"".join(blocks) == b"".join(whole[row * index : row * (index + 1)] for index in rows)
    assert {len(block) for block in blocks[:-1]} <= {size} and len(blocks[-1]) <= size
