"""Published acceptance lengths: the data, and that only like is compared with like."""

import json
from typing import Any

import msgspec
import pytest

from eaglectl.acceptance import published
from eaglectl.acceptance.prompt_sets import prompt_sets
from eaglectl.acceptance.published import figures, presets, published_for, published_lengths, sources

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def test_every_figure_names_a_source_of_the_file() -> None:
    assert {figure.source for figure in figures()} == set(sources())


def test_no_two_figures_are_of_the_same_drafter_target_drafts_temperature_and_source() -> None:
    keys = [
        (
            figure.source,
            figure.target,
            figure.drafter,
            figure.steps,
            figure.topk,
            figure.temperature,
            figure.url,
        )
        for figure in figures()
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
        figure.drafter for figure in figures() if figure.k is not None and figure.draft_tokens != figure.k + 1
    ] == []


def test_the_shares_by_position_add_up_to_the_length() -> None:
    stated = [figure for figure in figures() if figure.by_position]
    assert stated
    for figure in stated:
        (length,) = figure.lengths.values()
        assert 1 + sum(figure.by_position) == pytest.approx(length, abs=0.02)


def test_specbundles_drafters_have_five_settings_each() -> None:
    bundle = [figure for figure in figures() if figure.source == "specbundle"]
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
    [(None, 3, 0.0), ("vllm-mt-bench", 4, 0.0), ("vllm-mt-bench", 3, 0.7), ("mt-bench", 3, 0.0)],
)
def test_another_preset_chain_or_temperature_is_no_comparison(
    preset: str | None, k: int, temperature: float
) -> None:
    found = published_for(LLAMA, preset, k, temperature)
    assert found.alike == ()
    assert len(found.otherwise) == len([one for one in published_lengths() if one.target == LLAMA])


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
    for name, preset in presets().items():
        assert preset.prompts in prompt_sets()
        alike = [length for length in published_lengths() if (length.preset, length.k) == (name, preset.k)]
        assert alike
        assert {length.temperature for length in alike} == {preset.temperature}


def test_what_a_source_does_not_state_is_not_compared() -> None:
    unstated = published_for("gpt-oss-20b", "the test's prompts", 3, 0.0)
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
    published._data.cache_clear()
    try:
        with pytest.raises(msgspec.ValidationError):
            figures()
    finally:
        published._data.cache_clear()
