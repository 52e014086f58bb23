"""A key that no declaration knows and that looks meaningful is asked about, never called trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.errors import UsageError
from eaglectl.formats.catalogue import by_name, flattened
from eaglectl.formats.config_keys import (
    EAGLE_CONFIG,
    HARMLESS,
    KEYS,
    Keys,
    are_ids,
    ids_question,
    unread_questions,
)
from eaglectl.formats.format import Answers
from eaglectl.formats.producers.native import UNSIGNED
from eaglectl.operations.converting import ConvertOptions
from eaglectl.results import Inspection
from tests.builders import ABSENT, drafter_folder
from tests.conftest import FIXTURES

IDS = "eagle_aux_hidden_state_layer_ids"
# a drafter that states no layers, so that its producer's default would be taken
UNSTATED: dict[str, Any] = {IDS: ABSENT, "eagle_config": ABSENT}
ANGELSLIM = FIXTURES / "producers/angelslim/gqa"

LAYER_IDS: tuple[tuple[str, Any], ...] = (
    ("aux_hidden_states_layer_ids", [1, 3, 5]),  # AngelSlim's, in a file without its marks
    ("aux_hidden_layers", [2, -3, -1]),  # AMD Quark
    ("layers_to_capture", [1, 3, 5]),
    ("eagle3_layers_to_capture", [1, 3, 5]),
    ("target_layer_indices", [1, 3, 5]),
    ("aux_layer_ids", "1,3,5"),
    ("capture", {"layers": [1, 3, 5]}),
    ("fusion_layers", [1, 3, 5]),
)
OTHERS: tuple[tuple[str, Any, str], ...] = (
    ("use_fc_layernorm", True, "norm switch"),
    ("norm_after_fc", True, "norm switch"),
    ("post_fc_norm", True, "norm switch"),
    ("partial_rotary_factor", 0.5, "rope setting"),
    ("rope_ratio", 500, "rope setting"),
    ("rotary_pct", 0.25, "rope setting"),
    ("rope_local_base_freq", 10000.0, "rope setting"),
    ("rope_3d", True, "rope setting"),
    ("rotary_dim", 0, "rope setting"),
    ("use_rope", False, "rope setting"),
    ("rope_enabled", False, "rope setting"),
    ("rope_ratio", 0, "rope setting"),
    ("partial_rotary_factor", True, "rope setting"),
    ("use_final_norm", False, "norm switch"),
    ("use_last_layernorm", False, "norm switch"),
    ("use_mtp_layernorm", True, "norm switch"),
    ("norm_type", "layernorm", "norm switch"),
    ("residual_multiplier", 0.22, "scale of states"),
    ("embedding_multiplier", 0, "scale of states"),
    ("final_logit_softcapping", 30.0, "scale of states"),
    ("token_map", False, "vocabulary map"),
    ("draft_to_target", [0, 5], "vocabulary map"),
    ("vocab_mapping_path", "map.pt", "vocabulary map"),
    ("hot_token_map", {"0": 5}, "vocabulary map"),
)
# published configs have them, and they change nothing that an EAGLE-3 drafter computes
FINE: tuple[tuple[str, Any], ...] = (
    ("layer_types", ["full_attention"]),
    ("mlp_only_layers", [0, 1, 2]),
    ("max_window_layers", 28),
    ("first_k_dense_replace", 1),
    ("num_target_layers", 36),
    ("target_layer_count", 36),
    ("num_nextn_predict_layers", 0),
    ("norm_topk_prob", True),
    ("layer_norm_eps", 1e-5),
    ("max_grad_norm", 0.5),
    ("use_qk_norm", True),
    ("use_rotary_pos_emb", True),  # Hunyuan
    ("fc_post_norm", False),
    ("partial_rotary_factor", 1.0),
    ("rope_local_base_freq", None),
    ("use_mrope", False),  # MiniCPM
    ("norm_type", "rms"),
    ("use_last_layernorm", True),
    ("residual_multiplier", 1.0),
    ("final_logit_softcapping", None),
    ("vocab_map", {}),
    ("eos_token_id", [1, 2]),
    ("num_experts_per_tok", 8),
    ("quantization_config", {"ignored_layers": [1, 2]}),
)


def inspected(parent: Path, config: dict[str, Any], **answers: Any) -> Inspection:
    return eaglectl.inspect(str(drafter_folder(parent, config=config)), answers=Answers(**answers))


def outcomes(inspection: Inspection) -> set[str]:
    return {verdict.outcome for verdict in inspection.verdicts}


@pytest.mark.parametrize(("key", "value"), LAYER_IDS, ids=[key for key, _ in LAYER_IDS])
@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
def test_layer_ids_under_an_unknown_key_are_asked_about(
    key: str, value: Any, nested: bool, tmp_path: Path
) -> None:
    config = {"eagle_config": {key: value}, IDS: ABSENT} if nested else {**UNSTATED, key: value}
    inspection = inspected(tmp_path, config)
    (question,) = inspection.drafter.notes_at("question")
    assert key in question.text and "--aux-layers" in question.text and question.topic == "unread-key"
    assert inspection.drafter.aux.boundaries is None and not inspection.drafter.aux.is_default
    assert "as trained" not in outcomes(inspection)


def test_a_switch_within_an_object_that_no_declaration_knows_is_asked_about(tmp_path: Path) -> None:
    inspection = inspected(tmp_path, {"head_settings": {"use_fc_layernorm": True}})
    (question,) = inspection.drafter.notes_at("question")
    assert "head_settings.use_fc_layernorm" in question.text


def test_the_answer_takes_the_place_of_the_unknown_key(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={**UNSTATED, "fusion_layers": [1, 3, 5]})
    with pytest.raises(UsageError, match="fusion_layers"):
        eaglectl.convert(str(folder), tmp_path / "out")
    eaglectl.convert(str(folder), tmp_path / "out", ConvertOptions(answers=Answers(aux_layers=(2, 4, 6))))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written[IDS] == [2, 4, 6] and "fusion_layers" not in written
    assert not eaglectl.inspect(str(tmp_path / "out")).drafter.notes_at("question")


@pytest.mark.parametrize("ids", [[2, 4, 5], [1, 3, 4]], ids=["the same", "the same as outputs"])
def test_an_unknown_list_that_agrees_with_the_ids_is_no_question(ids: list[int], tmp_path: Path) -> None:
    assert inspected(tmp_path, {"my_layer_ids": ids}).drafter.notes_at("question") == ()


def test_an_unknown_list_that_disagrees_with_the_ids_is_a_question(tmp_path: Path) -> None:
    inspection = inspected(tmp_path, {"my_layer_ids": [1, 2, 3]})
    assert [note.topic for note in inspection.drafter.notes_at("question")] == ["unread-key"]
    assert outcomes(inspection) <= {"unknown", "fails", "differs"}


@pytest.mark.parametrize(("key", "value", "meaning"), OTHERS, ids=[key for key, _, _ in OTHERS])
@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
def test_an_unknown_key_with_a_meaning_is_asked_about(
    key: str, value: Any, meaning: str, nested: bool, tmp_path: Path
) -> None:
    stated = {IDS: [1, 3, 4], "use_aux_hidden_state": True}
    inspection = inspected(tmp_path, {"eagle_config": {**stated, key: value}} if nested else {key: value})
    (question,) = inspection.drafter.notes_at("question")
    place = f"eagle_config.{key}" if nested else key
    assert question.text.startswith(f"config has {place}: ") and f"may be a {meaning}" in question.text
    assert f"harmless={place}" in question.text
    assert "as trained" not in outcomes(inspection)


def test_a_key_that_changes_nothing_is_left_out_once_the_user_says_so(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"norm_after_fc": True, "rope_ratio": 5})
    with pytest.raises(UsageError, match=r"norm_after_fc.*rope_ratio"):
        eaglectl.convert(str(folder), tmp_path / "out")
    answers = Answers(semantics={"harmless": "norm_after_fc,rope_ratio"})
    assert eaglectl.inspect(str(folder), answers=answers).drafter.notes_at("question") == ()
    eaglectl.convert(str(folder), tmp_path / "out", ConvertOptions(answers=answers))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert not {"norm_after_fc", "rope_ratio"} & set(written)


def test_an_empty_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="harmless=KEY,KEY"):
        inspected(tmp_path, {}, semantics={"harmless": ""})


@pytest.mark.parametrize(("key", "value"), FINE, ids=[f"{key}-{value}" for key, value in FINE])
def test_known_keys_of_published_configs_are_no_question(key: str, value: Any, tmp_path: Path) -> None:
    assert inspected(tmp_path, {key: value}).drafter.notes_at("question") == ()


def test_a_copied_targets_own_keys_are_no_question() -> None:
    source = FIXTURES / "producers/automodel/gqa"
    config = json.loads((source / "config.json").read_text())
    keys = Keys({**config, "partial_rotary_factor": 0.5, "post_norm": True})
    format = by_name("automodel")
    assert unread_questions(keys.unread((), format), format) == []


WORDS = ("my", "draft", "eagle3", "target", "hidden", "state", "states", "selected", "input", "extra")
PARTS = {
    "layer ids": ("layer_ids", "layers_to_capture", "aux_layers", "capture_points", "layer_indices"),
    "a norm switch": ("norm", "layernorm", "rmsnorm", "norm_enabled"),
    "a rope setting": ("rope", "rope_base", "rotary_dim", "yarn_factor", "mscale"),
    "a vocabulary map": ("vocab_map", "token_mapping", "d2t", "t2d_table"),
}
VALUES = {
    "layer ids": st.lists(st.integers(-3, 90), min_size=1, max_size=5),
    "a norm switch": st.booleans(),
    "a rope setting": st.floats(1.5, 1e7)
    | st.integers(2, 99)
    | st.just(0)
    | st.just(False)
    | st.sampled_from(["linear", "yarn"]),
    "a vocabulary map": st.lists(st.integers(0, 99), min_size=1, max_size=4) | st.just("map.pt"),
}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_name_made_of_such_words_is_asked_about(data: st.DataObject) -> None:
    meaning = data.draw(st.sampled_from(sorted(PARTS)))
    words = data.draw(st.lists(st.sampled_from(WORDS), max_size=3))
    words.insert(data.draw(st.integers(0, len(words))), data.draw(st.sampled_from(PARTS[meaning])))
    name, value = "_".join(words), data.draw(VALUES[meaning])
    place = data.draw(st.sampled_from([name, f"eagle_config.{name}", f"training.drafter.{name}"]))
    if name in HARMLESS or name in KEYS or name in EAGLE_CONFIG:
        return
    config: Any = value
    for part in reversed(place.split(".")):
        config = {part: config}
    unread = Keys(config).unread((), UNSIGNED)
    asked = [note for note in unread_questions(unread, UNSIGNED) if place in note.text]
    assert asked or are_ids(place, unread[place])


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(
            lambda name: (
                not any(part in name for part in ("layer", "aux", "capture", "norm", "rope", "rot"))
                and not any(
                    part in name for part in ("yarn", "mscale", "map", "d2t", "t2d", "_to_", "select")
                )
            )
        ),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3),
        max_size=4,
    )
)
def test_other_names_are_carried_without_a_question(config: dict[str, Any]) -> None:
    unread = Keys(config).unread((), UNSIGNED)
    assert unread_questions(unread, UNSIGNED) == []
    assert not any(are_ids(place, value) for place, value in unread.items())


def angelslim(parent: Path, **changes: Any) -> Path:
    """AngelSlim's fixture with other config keys."""
    folder = parent / "angelslim"
    folder.mkdir()
    config = {**json.loads((ANGELSLIM / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((ANGELSLIM / "model.safetensors").read_bytes())
    return folder


def test_angelslims_own_ids_are_outputs_of_layers(tmp_path: Path) -> None:
    folder = angelslim(tmp_path, aux_hidden_states_layer_ids=[0, 3, 5])
    answers = Answers(semantics={"rope": "stored"})
    inspection = eaglectl.inspect(
        str(folder), target=str(FIXTURES / "target"), engines=["vllm>=0.22", "sglang"], answers=answers
    )
    aux = inspection.drafter.aux
    assert (aux.boundaries, aux.ids, aux.convention) == ((1, 4, 6), (0, 3, 5), "output")
    assert {verdict.outcome for verdict in inspection.requested} <= {"differs", "fails"}
    options = ConvertOptions(target=str(FIXTURES / "target"), answers=answers)
    eaglectl.convert(str(folder), tmp_path / "out", options)
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written[IDS] == [1, 4, 6] and "aux_hidden_states_layer_ids" not in written


def test_angelslims_trainer_reads_its_own_ids_whatever_engines_are_given(tmp_path: Path) -> None:
    folder = angelslim(tmp_path, aux_hidden_states_layer_ids=[0, 3, 5], **{IDS: [1, 4, 6]})
    answers = Answers(semantics={"rope": "stored"})
    assert eaglectl.inspect(str(folder), answers=answers).drafter.aux.boundaries == (1, 4, 6)
    (tmp_path / "other").mkdir()
    folder = angelslim(tmp_path / "other", aux_hidden_states_layer_ids=[0, 3, 5], **{IDS: [2, 4, 5]})
    drafter = eaglectl.inspect(str(folder), answers=answers).drafter
    assert "aux-lists" in [note.topic for note in drafter.notes_at("warning")]
    assert drafter.aux.boundaries == (1, 4, 6)


@pytest.mark.parametrize(("ids", "counts_from_the_end"), [([2, 4, 5], False), ([-7, -4, -1], True)])
def test_only_negative_ids_are_said_to_count_from_the_end(ids: list[int], counts_from_the_end: bool) -> None:
    assert ("from the target's end" in ids_question("my_layers", ids).text) is counts_from_the_end


def test_a_nested_config_is_read_without_its_nesting_by_who_knows_no_producer() -> None:
    assert flattened({"transformer_layer_config": {"rms_norm_eps": 1e-5}})["rms_norm_eps"] == 1e-5
