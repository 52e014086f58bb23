"""The interface table against the sources of the installed vLLM; test_both_runners runs what it names."""

from typing import get_args

from eaglectl.run.vllm.child import sampled_drafting
from tests.engine.installed_sources import other_names


def test_the_sources_have_what_the_table_says_and_lack_what_it_says_they_lack() -> None:
    assert other_names("vllm") == []


def test_the_release_has_the_setting_of_sampled_drafts_that_is_asked_for() -> None:
    from vllm.config.speculative import DraftSampleMethod, SpeculativeConfig

    assert get_args(DraftSampleMethod) == ("greedy", "probabilistic")
    assert sampled_drafting() == "probabilistic"
    assert SpeculativeConfig.__dataclass_fields__["draft_sample_method"].default == "greedy"
