"""Published acceptance lengths: the data, and that only like is compared with like."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from eaglectl.errors import UsageError
from eaglectl.formats import published
from eaglectl.formats.published import published_file
from eaglectl.run.prompts import prompt_sets
from eaglectl.run.published import Published, Settings, preset, published_lengths
from eaglectl.run.published import published_for as published_by_names
from schemas.files import published_schema
from tests.conftest import FIXTURES

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def published_for(target: str, name: str | None, k: int, temperature: float, **given: Any) -> Published:
    tokens = published_file().presets[name].max_new_tokens if name in published_file().presets else 64
    settings = Settings(k, temperature, given.pop("max_tokens", tokens), name, **given)
    return published_by_names({target: "a test"}, settings)


def test_the_file_keeps_its_schema_which_is_that_of_its_records() -> None:
    schema = json.loads((FIXTURES.parent / "schemas/published.schema.json").read_text())
    assert schema == json.loads(json.dumps(published_schema()))
    jsonschema.Draft202012Validator(schema).validate(json.loads(published.DATA.read_text()))


def test_every_figure_names_a_source_of_the_file() -> None:
    assert {figure.source for figure in published_file().figures} == set(published_file().sources)


def test_no_two_figures_are_of_the_same_drafter_target_drafts_temperature_reading_and_source() -> None:
    keys = [
        (
            figure.source,
            figure.target,
            figure.drafter,
            figure.steps,
            figure.topk,
            figure.temperature,
            figure.url,
            figure.changed,
        )
        for figure in published_file().figures
    ]
    assert len(set(keys)) == len(keys)


def test_lengths_are_between_one_and_all_drafts_accepted() -> None:
    assert [
        length.drafter
        for length in published_lengths()
        if length.length < 1 or (length.k is not None and length.length > length.k + 1)
    ] == []


def test_a_chain_verifies_one_token_more_than_it_drafts() -> None:
    assert [
        figure.drafter
        for figure in published_file().figures
        if figure.k is not None and figure.draft_tokens != figure.k + 1
    ] == []


def test_the_shares_by_position_add_up_to_the_length() -> None:
    stated = [figure for figure in published_file().figures if figure.by_position]
    assert stated
    for figure in stated:
        (length,) = figure.lengths.values()
        assert 1 + sum(figure.by_position) == pytest.approx(length, abs=0.02)


def test_specbundles_drafters_have_five_settings_each() -> None:
    bundle = [figure for figure in published_file().figures if figure.source == "specbundle"]
    drafters = {(figure.target, figure.drafter) for figure in bundle}
    assert len(bundle) == 5 * len(drafters)


def test_alike_are_the_same_preset_chain_and_temperature_highest_first() -> None:
    found = published_for(LLAMA, "specbundle-humaneval", 3, 0.0)
    assert [(length.drafter, round(length.length, 2), length.chain) for length in found.alike] == [
        ("lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", 3.34, "k=3"),
        ("lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B", 3.05, "k=3"),
    ]


def test_one_set_put_otherwise_by_two_sources_is_two_presets() -> None:
    (alike,) = published_for(LLAMA, "vllm-mt-bench", 3, 0.0).alike
    assert (alike.drafter, alike.length) == ("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", 2.60)


@pytest.mark.parametrize(
    ("preset", "k", "temperature"),
    [(None, 3, 0.0), ("vllm-mt-bench", 4, 0.0), ("vllm-mt-bench", 3, 0.7)],
)
def test_another_preset_chain_or_temperature_is_no_comparison(
    preset: str | None, k: int, temperature: float
) -> None:
    found = published_for(LLAMA, preset, k, temperature)
    assert found.alike == ()
    assert len(found.otherwise) == len([one for one in published_lengths() if one.target == LLAMA])


@pytest.mark.parametrize("change", [{"sample": 20}, {"max_tokens": 64}, {"ignores_eos": True}])
def test_a_sample_or_other_answers_of_a_preset_are_no_comparison(change: dict[str, Any]) -> None:
    found = published_for(LLAMA, "vllm-mt-bench", 3, 0.0, **change)
    assert found.alike == ()
    assert "measured otherwise: " in found.lines[0] and "(here: " in found.lines[0]


def test_a_run_that_cannot_stop_as_its_source_does_is_not_alike() -> None:
    found = published_for(LLAMA, "specbundle-gsm8k", 3, 0.0)
    assert found.alike == ()
    assert 'the source stops at the next "Question"' in found.lines[0]


def test_the_first_name_with_figures_is_the_target() -> None:
    found = published_by_names({"me/mine": "a", "x/Qwen3-8B": "its folder's name"}, Settings(3, 0.0, 64))
    assert found.lines[-1] == "the target is taken for Qwen/Qwen3-8B, by its folder's name"


def test_a_length_under_the_line_is_called_dead() -> None:
    dead = [length for length in published_lengths() if length.is_dead]
    assert [round(length.length, 2) for length in dead] == [1.02, 1.01]
    found = Published(alike=tuple(dead))
    assert found.lines[0].startswith("1.02 (dead)  EAGLE-3 of the test")


@pytest.mark.parametrize("name", ["specbundle-gpqa", "specbundle-mt-bench"])
def test_a_run_that_cannot_be_made_here_says_why(name: str) -> None:
    with pytest.raises(UsageError, match=r"gated|first answers"):
        preset(name)


def test_a_tree_of_drafts_is_never_alike_to_a_chain() -> None:
    found = published_for(LLAMA, "specbundle-humaneval", 5, 0.0)
    assert {length.chain for length in found.alike} == {"k=5"}
    assert "tree of 5 steps, top 3, 6 tokens" in {length.chain for length in found.otherwise}


@pytest.mark.parametrize("target", ["/models/Llama-3.1-8B-Instruct", "unsloth/llama-3.1-8b-instruct", LLAMA])
def test_a_target_is_known_by_the_last_part_of_its_name(target: str) -> None:
    assert len(published_for(target, "specbundle-math500", 3, 0.0).alike) == 2


@pytest.mark.parametrize("target", ["Llama-3.1-8B", "", "meta-llama", "Llama-3.1-8B-Instruct-FP8"])
def test_another_target_has_no_published_lengths(target: str) -> None:
    found = published_for(target, "vllm-mt-bench", 3, 0.0)
    assert (found.alike, found.otherwise) == ((), ())


def test_every_preset_has_figures_and_a_named_set_of_prompts() -> None:
    for name, declared in published_file().presets.items():
        chosen = prompt_sets().sets[declared.prompts]
        assert chosen.answer_field or not declared.shots
        alike = [
            length for length in published_lengths() if (length.preset, length.k) == (name, declared.steps)
        ]
        assert alike
        assert {length.temperature for length in alike} == {declared.temperature}


def test_what_a_source_does_not_state_is_not_compared() -> None:
    unstated = published_for("gpt-oss-20b", None, 3, 0.0)
    assert unstated.alike == ()
    assert "drafts not stated" in {length.chain for length in unstated.otherwise}


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
