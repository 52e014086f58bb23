"""A key that no declaration knows and that looks meaningful is asked about, never called trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import UsageError
from eaglectl.formats.format import Answers
from eaglectl.results import Inspection
from tests.builders import ABSENT, changed, drafter_folder
from tests.conftest import FIXTURES

IDS = "eagle_aux_hidden_state_layer_ids"
# a drafter that states no layers, so that its producer's default would be taken
UNSTATED: dict[str, Any] = {IDS: ABSENT, "eagle_config": ABSENT}

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
    ("n_predict", 1),
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


def test_the_answer_takes_the_place_of_the_unknown_key(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={**UNSTATED, "fusion_layers": [1, 3, 5]})
    with pytest.raises(UsageError, match="fusion_layers"):
        eaglectl.convert(str(folder), tmp_path / "out")
    eaglectl.convert(str(folder), tmp_path / "out", ConvertOptions(answers=Answers(aux_layers=(2, 4, 6))))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written[IDS] == [2, 4, 6] and "fusion_layers" not in written
    assert not eaglectl.inspect(str(tmp_path / "out")).drafter.notes_at("question")


def test_an_unknown_list_is_a_question_where_it_disagrees_with_the_ids(tmp_path: Path) -> None:
    for number, ids in enumerate(([2, 4, 5], [1, 3, 4])):  # the same, and the same as outputs
        inspection = inspected(tmp_path / f"{number}", {"my_layer_ids": ids})
        assert inspection.drafter.notes_at("question") == ()
    inspection = inspected(tmp_path, {"my_layer_ids": [1, 2, 3]})
    assert [note.topic for note in inspection.drafter.notes_at("question")] == ["unread-key"]
    assert outcomes(inspection) <= {"unknown", "fails", "differs"}


@pytest.mark.fast(16)
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


def test_a_key_that_ends_in_a_space_is_quoted_and_can_be_answered(tmp_path: Path) -> None:
    key = "norm_after_fc "
    folder = drafter_folder(tmp_path, config={key: True})
    (question,) = eaglectl.inspect(folder).drafter.notes_at("question")
    assert question.text.startswith(f"config has '{key}': True, ")
    assert f"pass --source-semantics 'harmless={key}' (if" in question.text
    answers = Answers(semantics={"harmless": key})
    assert eaglectl.inspect(folder, answers=answers).drafter.notes_at("question") == ()


def test_two_unread_keys_have_one_condition(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "producers/specforge/gqa-ids", tmp_path / "drafter")
    config = json.loads((folder / "config.json").read_text()) | {"norm_after_fc": True, "rope_ratio": 5}
    (folder / "config.json").write_text(json.dumps(config))
    following = eaglectl.validate(folder).following
    assert len(following.choices) == 2, following
    for means in following.choices.values():
        assert means.count("if it does not change what the drafter computes") == 1


def test_a_key_that_changes_nothing_is_left_out_once_the_user_says_so(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"norm_after_fc": True, "rope_ratio": 5})
    for given, words in (({}, r"norm_after_fc.*rope_ratio"), ({"harmless": ""}, "harmless=KEY,KEY")):
        with pytest.raises(UsageError, match=words):
            eaglectl.convert(str(folder), tmp_path / "out", answers=Answers(semantics=given))
    answers = Answers(semantics={"harmless": "norm_after_fc,rope_ratio"})
    assert eaglectl.inspect(str(folder), answers=answers).drafter.notes_at("question") == ()
    eaglectl.convert(str(folder), tmp_path / "out", ConvertOptions(answers=answers))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert not {"norm_after_fc", "rope_ratio"} & set(written)


def test_known_keys_of_published_configs_and_a_copied_targets_own_are_no_question(tmp_path: Path) -> None:
    for number, (key, value) in enumerate(FINE):
        questions = inspected(tmp_path / f"{number}", {key: value}).drafter.notes_at("question")
        assert questions == (), key
    folder, source = tmp_path / "copied", FIXTURES / "producers/automodel/gqa"
    shutil.copytree(source, folder)
    own = changed(source, partial_rotary_factor=0.5, post_norm=True)
    (folder / "config.json").write_text(json.dumps(own))
    found = [eaglectl.inspect(str(place)).drafter.notes_at("question") for place in (source, folder)]
    assert found[0] == found[1]
