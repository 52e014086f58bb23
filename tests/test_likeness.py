"""`--like`: the run of a published figure, and the names that a target is known by."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from eaglectl.errors import UsageError
from eaglectl.files.opening import open_folder
from eaglectl.operations.options import DiagnoseOptions, ReadyOptions, SmokeOptions
from eaglectl.operations.smoking import as_preset, published_beside
from eaglectl.target import target_names

RECORDS = (SmokeOptions, DiagnoseOptions, ReadyOptions)


@pytest.mark.parametrize("record", RECORDS)
def test_a_preset_sets_prompts_draft_tokens_temperature_tokens_and_seed(
    record: type[SmokeOptions | DiagnoseOptions | ReadyOptions],
) -> None:
    options = as_preset(record(like="vllm-mt-bench"))
    assert (options.prompts, options.k, options.temperature, options.max_tokens, options.seed) == (
        "vllm-mt-bench",
        3,
        0.0,
        256,
        42,
    )
    assert as_preset(options) == options


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"temperature": 0.7}, "--temperature 0.7"),
        ({"max_tokens": 100}, "--max-tokens 100"),
        ({"seed": 7}, "--seed 7"),
        ({"prompts": "mine.jsonl"}, "leave --prompts out"),
    ],
)
def test_an_option_that_contradicts_the_preset_is_refused(given: dict[str, object], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        as_preset(replace(SmokeOptions(like="vllm-mt-bench"), **given))


def test_another_chain_and_a_sample_are_allowed() -> None:
    options = as_preset(SmokeOptions(like="specbundle-humaneval", k=5, sample=20))
    assert (options.k, options.sample) == (5, 20)


def target(folder: Path, **config: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2, **config}))
    return str(folder)


def test_a_target_is_known_by_its_config_before_its_folder(tmp_path: Path) -> None:
    place = target(tmp_path / "mine", _name_or_path="Qwen/Qwen3-8B")
    assert target_names(place) == {
        "Qwen/Qwen3-8B": "_name_or_path in its config.json",
        "mine": "its folder's name",
    }


def test_a_path_of_another_machine_is_no_name(tmp_path: Path) -> None:
    assert list(target_names(target(tmp_path / "mine", _name_or_path="/data/x"))) == ["mine"]


def test_the_card_of_the_drafter_names_its_target(tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    (drafter / "README.md").write_text("---\nbase_model: Qwen/Qwen3-8B\n---\n")
    names = target_names(target(tmp_path / "mine"), open_folder(str(drafter)))
    assert names["Qwen/Qwen3-8B"] == "base_model in README.md of the drafter"


def test_figures_of_the_same_run_stand_beside_a_folder_of_the_target(tmp_path: Path) -> None:
    place = target(tmp_path / "mine", _name_or_path="Qwen/Qwen3-8B")
    found = published_beside(place, place, as_preset(SmokeOptions(like="vllm-mt-bench")))
    assert [(length.length, length.drafter) for length in found.alike] == [
        (2.26, "RedHatAI/Qwen3-8B-speculator.eagle3")
    ]
    sample = published_beside(place, place, as_preset(SmokeOptions(like="vllm-mt-bench", sample=8)))
    assert sample.alike == ()
    assert "a sample of 8 prompts" in sample.lines[0]
