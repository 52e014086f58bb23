"""Aux layers: boundaries inside, ids at the edges."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eaglectl
from eaglectl.drafter.boundaries import (
    TRAINING_DEFAULT,
    AuxLayers,
    DefaultLayers,
    convention_by_pattern,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.drafter import Target
from eaglectl.engines.layers import capture
from eaglectl.engines.registry import ENGINES, aux_readings
from eaglectl.engines.sglang import sglang_ids
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import TARGET_DEPTH
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import ABSENT, drafter_folder
from tests.conftest import FIXTURES

depths = st.integers(7, 128)
kinds = st.sampled_from(
    [
        "llama",
        "qwen3",
        "deepseek_v3",
        "kimi_k2",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gpt_oss",
        "minimax_m3",
        "gemma3_text",
    ]
)


@pytest.mark.parametrize(
    ("depth", "expected"), [(32, (2, 16, 29)), (61, (2, 30, 58)), (36, (2, 18, 33)), (80, (2, 40, 77))]
)
def test_the_default_is_what_engines_take(depth: int, expected: tuple[int, ...]) -> None:
    assert TRAINING_DEFAULT.at(depth) == expected


@pytest.mark.parametrize(
    ("ids", "depth", "expected"),
    [
        ((2, 30, 58), 61, "boundary"),
        ((1, 29, 57), 61, "output"),
        ((24, 30, 36), 36, "boundary"),  # nvidia/gpt-oss-120b-Eagle3-v3
        ((1, 17, 33), 36, None),  # SpecForge's gpt-oss-120b json: not the default, 34 as a boundary
        ((1, 11, 21), 24, None),
        ((2, 30, 58), None, None),
    ],
)
def test_numbers_give_their_convention_away_only_when_they_must(
    ids: tuple[int, ...], depth: int | None, expected: str | None
) -> None:
    assert convention_by_pattern(ids, depth) == expected


@given(depths)
def test_the_training_default_is_written_and_counted_alike(depth: int) -> None:
    assert TRAINING_DEFAULT.at(depth) == (2, depth // 2, depth - 3)
    assert TRAINING_DEFAULT.may_be((2, depth // 2, depth - 3))
    assert not TRAINING_DEFAULT.may_be((1, depth // 2, depth - 3))


@pytest.mark.parametrize(
    "text", ["", "n", "()", "2 n", "(2, x)", "(2, n*2)", "(2, -1)", "(2, True)", "(2, 0.5)"]
)
def test_what_is_no_tuple_of_terms_is_no_default(text: str) -> None:
    with pytest.raises(ValueError, match="default layer"):
        DefaultLayers(text)


def test_ids_of_any_size_are_no_default_and_cost_no_time() -> None:
    assert not TRAINING_DEFAULT.may_be((2, 10**9, 10**18))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_sorting_keeps_every_place(boundaries: list[int]) -> None:
    distinct, order = sorted_order(boundaries)
    if order is None:
        assert list(distinct) == boundaries
    else:
        assert sorted(place for places in order for place in places) == list(range(len(boundaries)))
        assert all(
            boundaries[place] == b for b, places in zip(distinct, order, strict=True) for place in places
        )


@given(st.data(), depths, kinds)
def test_ids_written_for_sglang_mean_the_trained_boundaries_there(
    data: st.DataObject, depth: int, kind: str
) -> None:
    boundaries = tuple(sorted(data.draw(st.sets(st.integers(0, depth), min_size=1, max_size=5))))
    target = Target(model_type=kind, depth=depth)
    try:
        ids = sglang_ids(boundaries, target)
    except RefusedError:
        assert boundaries[0] in (0, 1), "only the embeddings, and boundary 1 of DeepSeek, have no ids"
        return
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    reading = next(r for r in aux_readings(config, target).values() if r.engine == "SGLang")
    assert reading.boundaries == boundaries


@pytest.mark.parametrize(
    ("boundaries", "kind", "expected"),
    [
        ((2, 30, 58), "kimi_k2", (1, 29, 57)),
        ((3, 30, 58), "kimi_k2", (3, 30, 58)),
        ((3, 30, 58), "llama", (2, 29, 57)),
        ((24, 30, 36), "gpt_oss", (23, 29, 35)),
    ],
)
def test_sglang_ids_follow_the_model(
    boundaries: tuple[int, ...], kind: str, expected: tuple[int, ...]
) -> None:
    assert (
        sglang_ids(
            boundaries, Target(model_type=kind, depth={"kimi_k2": 61, "llama": 61, "gpt_oss": 36}[kind])
        )
        == expected
    )


@pytest.mark.parametrize(
    ("release", "kind", "depth", "ids", "expected"),
    [
        ("0.5.16", "gpt_oss", 36, [24, 30, 36], (25, 31, 37)),
        ("0.5.17", "gpt_oss", 36, [24, 30, 36], (24, 30, 36)),
        ("0.5.17", "minimax_m3_vl", 60, [], (2, 30, 57)),
        ("0.5.18", "minimax_m3_vl", 60, [], (3, 31, 58)),
        ("0.5.14", "glm_moe_dsa", 78, [2, 38, 75], (2, 38, 75)),
    ],
)
def test_what_ids_and_defaults_mean_changed_with_releases_of_sglang(
    release: str, kind: str, depth: int, ids: list[int], expected: tuple[int, ...]
) -> None:
    runner = ENGINES["sglang"].behaviour(release).runners["default"]
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}} if ids else {}
    assert capture(runner, config, Target(model_type=kind, depth=depth)).boundaries == expected


@pytest.mark.parametrize("kind", ["deepseek_v3", "kimi_k2", "glm_moe_dsa"])
def test_boundary_1_of_a_deepseek_target_cannot_be_written(kind: str) -> None:
    with pytest.raises(RefusedError, match="no ids"):
        sglang_ids((1, 30, 58), Target(model_type=kind, depth=61))


def test_without_a_model_type_only_what_all_models_agree_on_is_written() -> None:
    assert sglang_ids((2, 30, 58), Target()) == (1, 29, 57)
    with pytest.raises(UsageError, match="--target"):
        sglang_ids((3, 30, 58), Target())


def test_one_config_means_different_layers_to_different_engines() -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}
    read = {
        r.engine: r.boundaries for r in aux_readings(config, Target(model_type="llama", depth=64)).values()
    }
    assert read["vLLM, V1 runner"] == (1, 29, 57)
    assert read["vLLM, V2 runner"] == (2, 32, 61)
    assert read["SGLang"] == read["tokenspeed"] == (2, 30, 58)
    assert read["ATOM"] == (1, 29, 57)


@pytest.mark.parametrize(
    ("kind", "depth", "ids", "expected"),
    [
        (
            "gpt_oss",
            36,
            [24, 30, 36],
            (24, 30, 36),
        ),  # gpt_oss.py:1347-1352: the target's depth can be no output
        ("gpt_oss", 36, [1, 17, 33], (2, 18, 34)),
        ("deepseek_v3", 61, [2, 30, 58], (2, 30, 58)),
        ("deepseek_v3", 61, [1, 29, 57], (2, 30, 58)),
        ("glm_moe_dsa", 78, [2, 38, 75], (2, 38, 75)),  # GlmMoeDsaForCausalLM inherits DeepSeek's class
        ("llama", 32, [], (2, 16, 29)),
        ("minimax_m3_vl", 60, [], (3, 31, 58)),
        (None, 61, [2, 30, 58], None),
    ],
)
def test_sglang_adds_one_and_takes_defaults_by_target(
    kind: str | None, depth: int, ids: list[int], expected: tuple[int, ...] | None
) -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    assert aux_readings(config, Target(model_type=kind, depth=depth))["SGLang"].boundaries == expected


@given(st.lists(st.integers(0, 90), min_size=1, max_size=4))
def test_an_output_id_is_one_boundary_lower(ids: list[int]) -> None:
    assert to_boundaries(ids, "output") == tuple(i + 1 for i in to_boundaries(ids, "boundary"))


IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = dict.fromkeys(
    ("norm_before_residual", "fc_norm", "norm_output", "norm_before_fc", "num_aux_hidden_states"), ABSENT
)
OF_MODELOPT = {"use_last_layernorm": True, "next_layer_regular": True}


def read(
    parent: Path, top: object, nested: object, depth: int | None = None, **config: Any
) -> tuple[AuxLayers, list[str]]:
    """The aux layers of a drafter with these lists, and the topics of what is said of them."""
    inner = {**config.pop("eagle_config", {}), **({IDS: nested} if nested else {})}
    stated = {**FLAGS, IDS: top or ABSENT, "eagle_config": inner or ABSENT, **config}
    target = None
    if depth:
        (parent / "target").mkdir()
        (parent / "target/config.json").write_text(json.dumps({"num_hidden_layers": depth}))
        target = str(parent / "target")
    drafter = eaglectl.inspect(str(drafter_folder(parent, config=stated)), target=target).drafter
    about = [note for note in drafter.notes if note.about == "aux layers" and note.level != "note"]
    return drafter.aux, [note.topic for note in about]


@pytest.mark.parametrize("key", TARGET_DEPTH)
@pytest.mark.parametrize("is_nested", [False, True], ids=["top", "nested"])
def test_the_targets_depth_is_read_from_the_drafters_own_config(
    key: str, is_nested: bool, tmp_path: Path
) -> None:
    nested = {**OF_MODELOPT, key: 36} if is_nested else OF_MODELOPT
    config = {} if is_nested else {key: 36}
    aux, said = read(tmp_path, [24, 30, 36], [24, 30, 36], eagle_config=nested, **config)
    assert (aux.boundaries, aux.convention, said) == ((24, 30, 36), "boundary", [])


def test_equal_lists_at_both_levels_are_asked_about_where_nothing_states_the_depth(tmp_path: Path) -> None:
    aux, said = read(tmp_path, [24, 30, 36], [24, 30, 36], eagle_config=OF_MODELOPT)
    assert (aux.boundaries, said) == (None, ["aux-convention"])
    with pytest.raises(UsageError, match=r"boundaries or outputs of layers \(boundaries \[25, 31, 37\]\)"):
        eaglectl.convert(str(tmp_path / "drafter"), tmp_path / "out")


def test_no_boundary_past_the_stated_depth_is_written(tmp_path: Path) -> None:
    read(tmp_path, [24, 30, 36], [24, 30, 36], eagle_config=OF_MODELOPT, target_layer_count=36)
    source, out = str(tmp_path / "drafter"), tmp_path / "out"
    once = {"hidden_norm": "once"}
    with pytest.raises(RefusedError, match="boundary 37 is past the target's 36 layers"):
        eaglectl.convert(source, out, ConvertOptions(answers=Answers(None, "output", once)))
    with pytest.raises(UsageError, match="boundary 37 is past the target's 36 layers"):
        eaglectl.convert(source, out, ConvertOptions(answers=Answers((25, 31, 37), None, once)))
    eaglectl.convert(source, out, ConvertOptions(answers=Answers(semantics=once)))
    assert json.loads((out / "config.json").read_text())[IDS] == [24, 30, 36]


@pytest.mark.parametrize(
    ("config", "depth"),
    [
        ({"num_target_layers": 3}, None),  # it counts the layers that are captured
        ({"num_target_layers": 3, "target_num_hidden_layers": 12}, 12),
        ({"target_layer_count": "36"}, None),
        ({"target_layer_count": True}, None),
        ({"target_layer_count": -36}, None),
        ({"target_layer_count": 36, "num_target_layers": 48}, None),
        ({"target_layer_count": None}, None),
    ],
)
def test_what_is_no_depth_is_not_believed(config: dict[str, Any], depth: int | None, tmp_path: Path) -> None:
    inspection = eaglectl.inspect(str(drafter_folder(tmp_path, config=config)))
    assert inspection.drafter.target.depth == depth


@pytest.mark.parametrize(
    ("top", "nested", "depth", "boundaries", "said"),
    [
        ([2, 4, 5], None, 8, (2, 4, 5), []),
        ([1, 3, 4], None, 8, None, ["aux-copied"]),
        ([2, 23, 44], None, 48, None, ["aux-copied"]),  # thoughtworks' recipe, copied
        ([1, 18, 32], None, 36, None, ["aux-convention"]),  # LumenRL's
        ([3, 23, 47], None, 48, None, ["aux-convention"]),
        (None, [2, 30, 58], 62, (3, 31, 59), []),  # thoughtworks
        (None, [3, 23, 47], 48, (4, 24, 48), []),  # Qwen3-Coder-Next: the last output is boundary n
        (None, [24, 30, 36], 36, (24, 30, 36), []),
        ([2, 16, 29], [2, 16, 29], 32, (2, 16, 29), []),
        ([2, 16, 30], [2, 16, 30], 32, None, ["aux-convention"]),
    ],
)
@pytest.mark.parametrize("producer", ["modelopt", "torchspec"])
def test_ids_are_read_by_the_producer_only_where_it_writes_them(
    producer: str,
    top: object,
    nested: object,
    depth: int,
    boundaries: tuple[int, ...] | None,
    said: list[str],
    tmp_path: Path,
) -> None:
    marks: dict[str, Any] = {"eagle_config": OF_MODELOPT} if producer == "modelopt" else {}
    if producer == "torchspec":
        marks = {"_torchspec_version": "0.0.1"}
    aux, found = read(tmp_path, top, nested, depth, **marks)
    assert (aux.boundaries, found) == (boundaries, said)


@pytest.mark.parametrize("model_type", ["llama", "kimi_k2"])
def test_boundaries_at_both_levels_are_settled_where_the_producer_writes_boundaries(
    model_type: str, tmp_path: Path
) -> None:
    aux, said = read(tmp_path, [3, 16, 30], [3, 16, 30], _torchspec_version="0.0.1", model_type=model_type)
    expected = ((3, 16, 30), []) if model_type == "kimi_k2" else (None, ["aux-convention"])
    assert (aux.boundaries, said) == expected


def test_a_head_of_modelopt_without_ids_is_unknown_not_as_trained(tmp_path: Path) -> None:
    aux, said = read(tmp_path, None, None, 80, eagle_config=OF_MODELOPT)
    assert (aux.boundaries, aux.is_default, said) == (None, False, ["aux-ids-doubted"])
    folder, target = str(tmp_path / "drafter"), str(tmp_path / "target")
    engines = ["vllm>=0.20", "sglang"]
    inspection = eaglectl.inspect(folder, target=target, engines=engines)
    assert "as trained" not in {verdict.outcome for verdict in inspection.requested}
    report = eaglectl.validate(folder, eaglectl.ValidateOptions(target=target, engines=engines))
    assert "pass" not in {verdict.outcome.check for verdict in report.releases}
    answers = Answers(aux_layers=(2, 40, 77), semantics={"hidden_norm": "once"})
    assert eaglectl.inspect(folder, target=target, answers=answers).drafter.notes_at("question") == ()


@pytest.mark.parametrize(
    ("architecture", "boundaries"), [("Eagle3DraftModel", (1, 4, 6)), ("Eagle3Speculator", None)]
)
@pytest.mark.parametrize("depth", [None, 8])
def test_what_speculators_own_trainer_signs_is_not_asked_about(
    architecture: str, boundaries: tuple[int, ...] | None, depth: int | None, tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers/speculators/plain", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [architecture], IDS: [1, 4, 6]}
    (folder / "config.json").write_text(json.dumps(config))
    target = str(FIXTURES / "target") if depth else None
    assert eaglectl.inspect(str(folder), target=target).drafter.aux.boundaries == boundaries


@pytest.mark.parametrize(
    ("architecture", "boundaries", "said"),
    [("Eagle3DraftModel", (1, 3, 4), []), ("Eagle3Speculator", None, ["aux-copied"])],
)
def test_ids_that_speculators_converter_copied_are_asked(
    architecture: str, boundaries: tuple[int, ...] | None, said: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers/speculators/plain", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [architecture], IDS: [1, 3, 4]}
    (folder / "config.json").write_text(json.dumps(config))
    inspection = eaglectl.inspect(str(folder), target=str(FIXTURES / "target"), engines=["vllm"])
    assert inspection.drafter.aux.boundaries == boundaries
    assert [note.topic for note in inspection.drafter.notes_at("question")] == said
    (verdict,) = inspection.requested
    assert verdict.outcome == ("unknown" if said else "as trained")


def test_a_p_eagle_drafter_of_speco_is_asked_for_its_layers() -> None:
    folder = str(FIXTURES / "producers/speco/peagle")
    drafter = eaglectl.inspect(folder, target=str(FIXTURES / "target")).drafter
    assert (drafter.producer, drafter.kind, drafter.aux.boundaries) == ("speco", "peagle", None)
    (question,) = drafter.notes_at("question")
    assert "--aux-layers" in question.text and "verl-SpeCo" in question.text


def test_boundaries_are_listed_in_the_order_of_fcs_blocks() -> None:
    unsorted = AuxLayers(3, (2, 4, 5), False, "ids", (5, 2, 4), "boundary", ((1,), (2,), (0,)))
    assert unsorted.listed == (5, 2, 4)
    assert AuxLayers(3, (2, 4), False, "ids", (2, 4, 4), "boundary", ((0,), (1, 2))).listed == (2, 4, 4)
    assert AuxLayers(3, (2, 4, 5), False, "ids").listed == (2, 4, 5)


def test_an_engine_that_keeps_the_order_of_ids_captures_what_was_trained_on() -> None:
    config = {"eagle_aux_hidden_state_layer_ids": [5, 2, 4]}
    trained = AuxLayers(3, (2, 4, 5), False, "ids", (5, 2, 4), "boundary", ((1,), (2,), (0,)))
    readings = aux_readings(config, Target(model_type="llama", depth=8))
    assert readings["llama.cpp"].same_as(trained) is True
    assert readings["llama.cpp"].boundaries == (5, 2, 4)
    other = AuxLayers(3, (2, 4, 5), False, "ids", (4, 2, 5), "boundary", ((1,), (0,), (2,)))
    assert readings["llama.cpp"].same_as(other) is False
