"""Aux layers: boundaries inside, ids at the edges."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.drafter import AuxLayers, DefaultLayers, Target, convention_by_pattern
from eaglectl.engines.behaviour import capture
from eaglectl.engines.registry import ENGINES, aux_readings
from eaglectl.engines.sglang import sglang_ids
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import TARGET_DEPTH
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, drafter_folder
from tests.conftest import FIXTURES

IDS = "eagle_aux_hidden_state_layer_ids"
depths = st.integers(7, 128)
KINDS = "llama qwen3 deepseek_v3 kimi_k2 glm4_moe_lite glm_moe_dsa gpt_oss minimax_m3 gemma3_text"
kinds = st.sampled_from(KINDS.split())
DEEPSEEK = ("deepseek_v3", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa")


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


@pytest.mark.parametrize(
    "text", ["", "n", "()", "2 n", "(2, x)", "(2, n*2)", "(2, -1)", "(2, True)", "(2, 0.5)"]
)
def test_what_is_no_tuple_of_terms_is_no_default(text: str) -> None:
    with pytest.raises(ValueError, match="default layer"):
        DefaultLayers(text)


@given(st.data(), depths, kinds)
def test_ids_written_for_sglang_mean_the_trained_boundaries_there(
    data: st.DataObject, depth: int, kind: str
) -> None:
    boundaries = tuple(sorted(data.draw(st.sets(st.integers(0, depth), min_size=1, max_size=5))))
    target = Target(model_type=kind, depth=depth)
    try:
        ids = sglang_ids(boundaries, target)
    except RefusedError:
        # only the embeddings, and boundary 1 of DeepSeek, have no ids
        assert boundaries[0] == 0 or (boundaries[0] == 1 and kind in DEEPSEEK)
        return
    config = {"eagle_config": {IDS: list(ids)}}
    reading = next(r for r in aux_readings(config, target).values() if r.engine == "SGLang")
    assert reading.boundaries == boundaries


@pytest.mark.parametrize(
    ("release", "kind", "depth", "ids", "expected"),
    [
        ("0.5.16", "gpt_oss", 36, [24, 30, 36], (25, 31, 37)),
        # gpt_oss.py:1347-1352: the target's depth can be no output
        ("0.5.17", "gpt_oss", 36, [24, 30, 36], (24, 30, 36)),
        ("0.5.23", "gpt_oss", 36, [1, 17, 33], (2, 18, 34)),
        ("0.5.17", "minimax_m3_vl", 60, [], (2, 30, 57)),
        ("0.5.18", "minimax_m3_vl", 60, [], (3, 31, 58)),
        ("0.5.14", "glm_moe_dsa", 78, [2, 38, 75], (2, 38, 75)),  # its class inherits DeepSeek's
        ("0.5.23", "deepseek_v3", 61, [2, 30, 58], (2, 30, 58)),
        ("0.5.23", "deepseek_v3", 61, [1, 29, 57], (2, 30, 58)),
        ("0.5.23", "llama", 32, [], (2, 16, 29)),
        ("0.5.23", None, 61, [2, 30, 58], None),
    ],
)
def test_what_ids_and_defaults_mean_follows_the_target_and_the_release_of_sglang(
    release: str, kind: str | None, depth: int, ids: list[int], expected: tuple[int, ...] | None
) -> None:
    runner = ENGINES["sglang"].behaviour(release).runners["default"]
    config = {"eagle_config": {IDS: ids}} if ids else {}
    assert capture(runner, config, Target(model_type=kind, depth=depth)).boundaries == expected


def test_one_config_means_different_layers_to_different_engines() -> None:
    config = {"eagle_config": {IDS: [1, 29, 57]}}
    readings = aux_readings(config, Target(model_type="llama", depth=64)).values()
    read = {reading.engine: reading.boundaries for reading in readings}
    assert read["vLLM, V1 runner"] == read["ATOM"] == (1, 29, 57)
    assert read["vLLM, V2 runner"] == (2, 32, 61)
    assert read["SGLang"] == read["tokenspeed"] == (2, 30, 58)


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


def test_equal_lists_at_both_levels_are_asked_about_and_none_past_a_stated_depth_is_written(
    tmp_path: Path,
) -> None:
    aux, said = read(tmp_path, [24, 30, 36], [24, 30, 36], eagle_config=OF_MODELOPT)
    assert (aux.boundaries, said) == (None, ["aux-convention"])
    source, out = str(tmp_path / "drafter"), tmp_path / "out"
    with pytest.raises(UsageError, match=r"boundaries or outputs of layers \(boundaries \[25, 31, 37\]\)"):
        eaglectl.convert(source, out)
    config = json.loads((tmp_path / "drafter/config.json").read_text()) | {"target_layer_count": 36}
    (tmp_path / "drafter/config.json").write_text(json.dumps(config))
    once = {"hidden_norm": "once"}
    past = Answers((25, 31, 37), None, once), Answers(None, "output", once)
    for kind, answers in zip((UsageError, RefusedError), past, strict=True):
        with pytest.raises(kind, match="boundary 37 is past the target's 36 layers"):
            eaglectl.convert(source, out, ConvertOptions(answers=answers))
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
        ([3, 16, 30], [3, 16, 30], None, None, ["aux-convention"]),
        ([3, 16, 30], [2, 15, 29], None, (3, 16, 30), []),  # one lower, as SGLang takes them
    ],
)
@pytest.mark.parametrize("producer", ["modelopt", "torchspec"])
def test_ids_are_read_by_the_producer_only_where_it_writes_them(
    producer: str,
    top: object,
    nested: object,
    depth: int | None,
    boundaries: tuple[int, ...] | None,
    said: list[str],
    tmp_path: Path,
) -> None:
    of_torchspec = {"_torchspec_version": "0.0.1"}
    marks: dict[str, Any] = {"eagle_config": OF_MODELOPT} if producer == "modelopt" else of_torchspec
    aux, found = read(tmp_path, top, nested, depth, **marks)
    assert (aux.boundaries, found) == (boundaries, said)


@pytest.mark.parametrize(("convention", "boundaries"), [("boundary", (3, 16, 30)), ("output", (4, 17, 31))])
def test_an_answer_comes_before_what_two_lists_confirm(
    convention: str, boundaries: tuple[int, ...], tmp_path: Path
) -> None:
    stated = {**FLAGS, IDS: [3, 16, 30], "eagle_config": {IDS: [2, 15, 29]}}
    source = str(drafter_folder(tmp_path, config=stated))
    drafter = eaglectl.inspect(source, aux_convention=convention).drafter
    assert (drafter.aux.boundaries, drafter.aux.convention) == (boundaries, convention)


def test_boundaries_at_both_levels_are_settled_by_a_target_whose_producer_writes_boundaries(
    tmp_path: Path,
) -> None:
    marks: dict[str, Any] = {"_torchspec_version": "0.0.1", "model_type": "kimi_k2"}
    aux, said = read(tmp_path, [3, 16, 30], [3, 16, 30], **marks)
    assert (aux.boundaries, said) == ((3, 16, 30), [])


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


@pytest.mark.parametrize("depth", [None, 8])
@pytest.mark.parametrize("architecture", ["Eagle3DraftModel", "Eagle3Speculator"])
@pytest.mark.parametrize("ids", [[1, 4, 6], [1, 3, 4]])
def test_ids_that_speculators_converter_copied_are_asked_and_those_of_its_trainer_are_not(
    architecture: str, ids: list[int], depth: int | None, tmp_path: Path
) -> None:
    boundaries = tuple(ids) if architecture == "Eagle3DraftModel" else None
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers/speculators/plain", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture], IDS: ids}))
    target = str(FIXTURES / "target") if depth else None
    inspection = eaglectl.inspect(str(folder), target=target, engines=["vllm"])
    assert inspection.drafter.aux.boundaries == boundaries
    (verdict,) = inspection.requested
    assert verdict.outcome == "as trained" or boundaries is None or depth is None
    if depth and boundaries is None:
        assert inspection.drafter.notes_at("question") and verdict.outcome == "unknown"


@pytest.mark.parametrize("kind", DEEPSEEK)
def test_boundary_1_of_a_deepseek_target_cannot_be_written(kind: str) -> None:
    with pytest.raises(RefusedError, match="no ids"):
        sglang_ids((1, 30, 58), Target(model_type=kind, depth=61))
