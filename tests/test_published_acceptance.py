"""Published acceptance lengths: the data, the names of a target, and that only like is compared with like."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from eaglectl.api.options import SmokeOptions
from eaglectl.api.smoke import published_beside
from eaglectl.files.checkpoint import open_folder
from eaglectl.formats import published
from eaglectl.formats.published import published_file
from eaglectl.run.prompts import prompt_sets
from eaglectl.run.published_lengths import Published, published_lengths
from eaglectl.run.published_lengths import published_for as published_by_names
from eaglectl.target.choice import as_target, target_names
from schemas.files import published_schema
from tests.builders import drafter_folder, target_of
from tests.conftest import FIXTURES

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def published_for(
    target: str, prompts: str | None, k: int, temperature: float, max_tokens: int = 256
) -> Published:
    return published_by_names({target: "a test"}, prompts, k, temperature, max_tokens)


def test_the_file_keeps_its_schema_which_is_that_of_its_records() -> None:
    schema = json.loads((FIXTURES.parent / "schemas/published.schema.json").read_text())
    assert schema == json.loads(json.dumps(published_schema()))
    jsonschema.Draft202012Validator(schema).validate(json.loads(published.DATA.read_text()))


LMSYS = "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge"
REDHAT = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "alike"),
    [
        ("humaneval", 1024, [(LMSYS, 3.34), ("lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B", 3.05)]),
        ("mt-bench", 256, [(REDHAT, 2.60)]),  # another source puts its prompts otherwise
    ],
)
def test_alike_are_the_same_prompts_chain_temperature_and_tokens_highest_first(
    prompts: str, max_tokens: int, alike: list[tuple[str, float]]
) -> None:
    found = published_for(LLAMA, prompts, 3, 0.0, max_tokens).alike
    assert [(length.figure.drafter, round(length.length, 2)) for length in found] == alike
    assert {length.figure.chain for length in found} == {"k=3"}


@pytest.mark.parametrize(
    ("prompts", "k", "temperature", "max_tokens"),
    [
        (None, 3, 0.0, 256),
        ("mt-bench", 4, 0.0, 256),
        ("mt-bench", 3, 0.7, 256),
        ("mt-bench", 3, 0.0, 64),
        ("gsm8k", 3, 0.0, 512),
    ],
)
def test_other_prompts_another_chain_temperature_or_answers_are_no_comparison(
    prompts: str | None, k: int, temperature: float, max_tokens: int
) -> None:
    found = published_for(LLAMA, prompts, k, temperature, max_tokens)
    assert found.alike == ()
    assert len(found.otherwise) == len([one for one in published_lengths() if one.figure.target == LLAMA])
    assert found.lines[0].startswith("measured differently: ")


def test_the_first_name_with_figures_is_the_target() -> None:
    found = published_by_names({"me/mine": "a", "x/Qwen3-8B": "its folder's name"}, None, 3, 0.0, 64)
    assert found.lines[-1] == "the target is identified as Qwen/Qwen3-8B by its folder's name"


def test_a_length_under_the_line_is_called_dead() -> None:
    dead = [length for length in published_lengths() if length.is_dead]
    assert [round(length.length, 2) for length in dead] == [1.02, 1.01]
    found = Published(alike=tuple(dead))
    assert found.lines[0].startswith("1.02 (dead)  EAGLE-3 of the test")


def test_a_tree_of_drafts_is_never_alike_to_a_chain() -> None:
    found = published_for(LLAMA, "humaneval", 5, 0.0, 1024)
    assert {length.figure.chain for length in found.alike} == {"k=5"}
    assert "tree of 5 steps, top 3, 6 tokens" in {length.figure.chain for length in found.otherwise}


@pytest.mark.parametrize(
    ("target", "alike"),
    [
        *((name, 2) for name in ("/models/Llama-3.1-8B-Instruct", "unsloth/llama-3.1-8b-instruct", LLAMA)),
        *((name, 0) for name in ("Llama-3.1-8B", "", "meta-llama", "Llama-3.1-8B-Instruct-FP8")),
    ],
)
def test_a_target_is_known_by_the_last_part_of_its_name(target: str, alike: int) -> None:
    found = published_for(target, "math500", 3, 0.0, 2048)
    assert len(found.alike) == alike and bool(found.otherwise) == bool(alike)


def test_every_comparable_set_has_a_name_and_figures() -> None:
    for name, source in published_file().sources.items():
        for prompts in source.comparable:
            assert prompts in prompt_sets().sets
            assert any(
                figure.source == name and prompts in figure.lengths for figure in published_file().figures
            )


@pytest.mark.parametrize(
    "change", [{"lengths": {"gsm8k": "2"}}, {"steps": 1.5}, {"unknown": 1}, {"target": None}]
)
def test_a_figure_that_is_not_as_declared_is_refused(
    change: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads(published.DATA.read_text())
    data["figures"][0] |= change
    (tmp_path / "published.json").write_text(json.dumps(data))
    monkeypatch.setattr(published, "DATA", tmp_path / "published.json")
    published.published_file.cache_clear()
    try:
        with pytest.raises(msgspec.ValidationError):
            published_file()
    finally:
        published.published_file.cache_clear()


def target(folder: Path, **config: object) -> str:
    return str(target_of(folder / "mine", **config))


def test_a_target_is_known_by_its_config_before_its_folder(tmp_path: Path) -> None:
    names = target_names(as_target(target(tmp_path, _name_or_path="Qwen/Qwen3-8B")))
    assert names == {"Qwen/Qwen3-8B": "_name_or_path in its config.json", "mine": "its folder's name"}


def test_the_card_of_the_drafter_names_its_target(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, card="---\nbase_model: Qwen/Qwen3-8B\n---\n")
    names = target_names(as_target(target(tmp_path)), open_folder(str(drafter)))
    assert names["Qwen/Qwen3-8B"] == "base_model in README.md of the drafter"


def test_figures_of_the_same_run_stand_beside_a_folder_of_the_target(tmp_path: Path) -> None:
    place = target(tmp_path, _name_or_path="Qwen/Qwen3-8B")
    given = as_target(place)
    found = published_beside(place, given, SmokeOptions(prompts="mt-bench", max_tokens=256))
    assert [(length.length, length.figure.drafter) for length in found.alike] == [
        (2.26, "RedHatAI/Qwen3-8B-speculator.eagle3")
    ]
    sample = published_beside(
        place, as_target(place), SmokeOptions(prompts="mt-bench", max_tokens=256, sample=8)
    )
    assert sample.alike == ()
    assert sample.lines[0].startswith("measured differently: ")
