"""What engine releases do with a checkpoint: every fact has a condition, and known cases come out as they were measured."""

import pytest
from packaging.specifiers import SpecifierSet

import eaglectl
from eaglectl.engines import vllm
from eaglectl.engines.catalogue import parse_engine
from eaglectl.errors import Usage
from eaglectl.formats.format import Answers
from tests.conftest import FIXTURES

PRODUCERS = FIXTURES / "producers"


def outcomes(path: str, **semantics: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = eaglectl.inspect(str(PRODUCERS / path), answers=Answers(semantics=semantics))
    return {f"{verdict.engine} {verdict.release}": (verdict.outcome, verdict.reasons) for verdict in found.verdicts}


def test_every_fact_has_a_condition_and_every_condition_a_fact() -> None:
    assert {fact["id"] for fact in vllm.data()["facts"]} == set(vllm.CONDITIONS)


def test_every_fact_concerns_some_known_release() -> None:
    for fact in vllm.data()["facts"]:
        assert not fact["releases"] or any(release in SpecifierSet(fact["releases"]) for release in vllm.releases()), (
            fact["id"]
        )


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("vllm/native", "0.11.1"),  # top-level ids are read from here on
        ("vllm/mla", "0.18.0"),
        ("speculators/eagle3.1", "0.25.0"),
        ("speculators/qwen3", "0.24.0"),
        ("speculators/default", "0.25.0"),
        ("speculators/plain", "0.11.1"),
        ("speculators/two-layers", "0.11.1"),
    ],
)  # fmt: skip
def test_the_first_release_that_runs_it_as_trained(path: str, first: str) -> None:
    good = [release for release in vllm.releases() if outcomes(path)[f"vllm {release}"][0] == "as trained"]
    assert good[0] == first and good == list(vllm.releases())[vllm.releases().index(first) :]


@pytest.mark.parametrize(
    ("path", "release", "outcome", "word"),
    [
        ("automodel/gqa", "vllm 0.33.0", "fails", "model."),
        ("specforge/gqa-full-vocab", "vllm 0.29.0", "as trained", ""),
        ("specforge/gqa-full-vocab", "vllm 0.30.0", "fails", "d2t"),
        ("modelopt/hf-ids", "vllm 0.33.0", "differs", "other layers"),
        ("modelopt/hf-mla", "vllm 0.33.0", "fails", "draft_vocab_size"),
        ("speculators/four-aux", "vllm 0.33.0", "fails", "num_aux_hidden_states"),
        ("speculators/eagle3.1", "vllm 0.23.0", "fails", "fc_norm"),
        ("speculators/eagle3.1", "sglang 0.5.23", "fails", "speculators"),
        ("torchspec/mla-deepseek-v3", "vllm 0.33.0", "fails", "deepseek_v3"),
        ("sglang/aux-norm", "vllm 0.33.0", "fails", "fc_norm"),
        ("sglang/aux-norm", "sglang 0.5.23", "as trained", ""),
        ("vllm/bias", "sglang 0.5.23", "differs", "biases"),
        ("angelslim/cosyvoice", "vllm 0.33.0", "fails", "architecture"),
    ],
)  # fmt: skip
def test_known_cases_come_out_as_measured(path: str, release: str, outcome: str, word: str) -> None:
    seen, reasons = outcomes(path, rope="stored")[release]
    assert seen == outcome and word in " ".join(reasons)


def test_mla_with_fc_norm_is_loaded_and_not_applied_by_0_22() -> None:
    seen = outcomes("lightseekorg/mla-eagle3.1")
    assert "never applies" in " ".join(seen["vllm 0.22.1"][1]) and "never applies" not in " ".join(
        seen["vllm 0.23.0"][1]
    )


def test_what_cannot_be_known_is_never_called_as_trained() -> None:
    assert outcomes("specforge/eagle3.1")["vllm 0.33.0"][0] == "unknown"
    assert outcomes("specforge/gqa-ids")["vllm 0.33.0"][0] == "unknown"


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("vllm", ("0.33.0",)),
        ("vllm==0.32.0", ("0.32.0",)),
        ("vllm>=0.31", ("0.31.0", "0.32.0", "0.33.0")),
        ("sglang", ("0.5.23",)),
    ],
)
def test_engines_are_named_as_requirements(text: str, releases: tuple[str, ...]) -> None:
    assert parse_engine(text).releases == releases


@pytest.mark.parametrize("text", ["vllm=>1", "vllm>=99", "triton", "atom==1", ""])
def test_engines_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(Usage, match="--engine"):
        parse_engine(text)
