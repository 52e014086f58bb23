"""What engine releases do with a checkpoint.

Every fact has a condition, and known cases come out as they were measured.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.specifiers import SpecifierSet

import eaglectl
from eaglectl.drafter.boundaries import DefaultLayers
from eaglectl.engines import vllm
from eaglectl.engines.behaviour import Behaviour, judged_unversioned, unversioned, unversioned_behaviour
from eaglectl.engines.data import load
from eaglectl.engines.registry import ENGINES, parse_engine, view_for
from eaglectl.engines.releases import is_within, ranges, release_order
from eaglectl.engines.view import COMMON
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.judge.support import ideal, services
from tests.builders import call, changed, refusal
from tests.cases import stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made

PRODUCERS = FIXTURES / "producers"


def outcomes(path: str, **semantics: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = eaglectl.inspect(str(PRODUCERS / path), answers=Answers(semantics=semantics))
    return {
        f"{verdict.engine} {verdict.release}": (verdict.outcome, verdict.reasons)
        for verdict in found.verdicts
    }


def test_every_fact_has_a_condition_and_every_condition_a_fact() -> None:
    ids = [{fact.id for fact in engine.facts} for engine in ENGINES.values()]
    for engine, own in zip(ENGINES.values(), ids, strict=True):
        assert own <= set(engine.conditions) <= own | set(COMMON)
    assert all(sum(name in own for own in ids) > 1 for name in COMMON)


def test_every_fact_concerns_some_known_release() -> None:
    for fact in vllm.ENGINE.data["facts"]:
        assert not fact["releases"] or any(
            release in SpecifierSet(fact["releases"]) for release in vllm.ENGINE.releases
        ), fact["id"]


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("vllm/native", "0.11.1"),  # top-level ids are read from here on
        ("vllm/mla", "0.18.0"),
        ("speculators/eagle3.1", "0.25.0"),
        ("speculators/qwen3", "0.24.0"),
        ("speculators/default", "0.25.0"),
        ("speculators/plain", "0.24.0"),  # before, transformers 4 may not read its rope_parameters
        ("speculators/two-layers", "0.24.0"),
    ],
)
def test_the_first_release_that_runs_it_as_trained(path: str, first: str) -> None:
    good = [
        release for release in vllm.ENGINE.releases if outcomes(path)[f"vllm {release}"][0] == "as trained"
    ]
    assert good[0] == first and good == list(vllm.ENGINE.releases)[vllm.ENGINE.releases.index(first) :]


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
        ("speculators/eagle3.1", "llama.cpp 0.3.36", "fails", "fc_norm"),
        ("speculators/plain", "llama.cpp 0.3.36", "as trained", ""),
        ("vllm/mla", "llama.cpp 0.3.36", "fails", "MLA"),
        ("angelslim/cosyvoice", "vllm 0.33.0", "fails", "architecture"),
    ],
)
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
        ("vllm", (vllm.ENGINE.releases[-1],)),
        ("vllm==0.32.0", ("0.32.0",)),
        ("vllm>=0.31,<=0.33", ("0.31.0", "0.32.0", "0.33.0")),
        ("sglang", ("0.5.23",)),
        ("sglang>=0.5.15,<0.5.17", ("0.5.15", "0.5.15.post1", "0.5.16")),
        ("llama.cpp", ("0.3.36",)),
        ("llama.cpp==0.3.36", ("0.3.36",)),
    ],
)
def test_engines_are_named_as_requirements(text: str, releases: tuple[str, ...]) -> None:
    assert parse_engine(text).releases == releases


@pytest.mark.parametrize("text", ["vllm=>1", "vllm>=99", "triton", "atom==1", ""])
def test_engines_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(EaglectlError, match="--engine"):
        parse_engine(text)


NATIVE = PRODUCERS / "vllm/native"


@pytest.mark.parametrize(
    ("source", "patch", "outcome"),
    [
        (NATIVE, {}, "as trained"),
        (NATIVE, {"num_aux_hidden_states": 2}, "fails"),
        (NATIVE, {"num_aux_hidden_states": 4}, "fails"),
        (NATIVE, {"num_hidden_layers": 3}, "differs"),
        (NATIVE, {"num_hidden_layers": None}, "differs"),
        (NATIVE, {"intermediate_size": 40}, "differs"),
        (NATIVE, {"intermediate_size": 64}, "fails"),
        (NATIVE, {"num_key_value_heads": 4}, "fails"),
        (NATIVE, {"draft_vocab_size": 90}, "fails"),
        (NATIVE, {"hidden_act": "gelu"}, "fails"),
        (NATIVE, {"mlp_bias": True}, "differs"),
        (NATIVE, {"attention_bias": True}, "differs"),
        (NATIVE, {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "fails"),
        (NATIVE, {"architectures": ["PEagleDraftModel"]}, "fails"),
        (NATIVE, {"target_hidden_size": None}, "as trained"),
        (PRODUCERS / "speculators/two-layers", {}, "as trained"),
        (PRODUCERS / "speculators/eagle3.1", {"eagle_aux_hidden_state_layer_ids": [5, 2, 4]}, "differs"),
        (PRODUCERS / "speculators/four-aux", {"num_aux_hidden_states": 4}, "fails"),
        (PRODUCERS / "speculators/peagle-llama", {"norm_output": True}, "differs"),
        (PRODUCERS / "speculators/qwen3", {"norm_output": True}, "as trained"),
    ],
)
def test_patched_configs_come_out_as_vllm_0_32_did_with_them(
    source: Path, patch: dict[str, Any], outcome: str, tmp_path: Path
) -> None:
    folder = Made(changed(source, **patch), stored_tensors(source)).write(tmp_path / "d")
    assert eaglectl.inspect(str(folder), engines=["vllm==0.32.0"]).requested[0].outcome == outcome


def test_runtime_names_and_renamed_norms_are_seen_in_the_file() -> None:
    found = eaglectl.inspect(
        str(PRODUCERS / "sglang/mla-absorbed"), engines=["vllm"], answers=Answers(aux_convention="output")
    )
    assert found.requested[0].outcome == "fails" and "w_kc" in found.requested[0].reasons[0]
    found = eaglectl.inspect(
        str(PRODUCERS / "sglang/two-layers"), engines=["vllm"], answers=Answers(aux_layers=(2, 4, 5))
    )
    assert found.requested[0].outcome == "differs" and any(
        "input_layernorm" in reason for reason in found.requested[0].reasons
    )


def test_a_rope_base_that_was_not_trained_differs() -> None:
    assert outcomes("angelslim/gqa", rope="10000")["vllm 0.33.0"][0] == "differs"
    assert outcomes("angelslim/gqa", rope="stored")["vllm 0.33.0"][0] == "as trained"


def test_what_loads_without_its_d2t_differs_and_does_not_fail() -> None:
    assert outcomes("modelopt-megatron/no-d2t")["vllm 0.33.0"][0] == "differs"


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("vlm", "near it: vllm"),
        ("vllm-0.32.0", "near it: vllm==0.32.0"),
        ("vLLM 0.32", "near it: vllm==0.32"),
        ("sglangg==0.5.23", "near it: sglang==0.5.23"),
        ("tensorrt_llm", "near it: tensorrt-llm"),
        ("tensorrt-llm==1.2", "write tensorrt-llm"),
        ("llama.ccp", "near it: llama.cpp"),
        ("llamacpp", "near it: llama.cpp"),
        ("triton", "engines are vllm, sglang, llama.cpp, atom, lmdeploy, max, mlx-vlm, tensorrt-llm"),
        ("vllm==0.22.5", "near it: vllm==0.22.1, vllm==0.23.0"),
        ("vllm>=99", f"near it: vllm=={vllm.ENGINE.releases[-1]}"),
        ("vllm<0.3", "near it: vllm==0.10.0"),
        ("sglang==0.6.0", "near it: sglang==0.5.23"),
        ("sglang==0.5.13", "sglang is known from 0.5.14 to 0.5.23; near it: sglang==0.5.14"),
        ("vllm==0.9.*", "near it: vllm==0.10.0"),
        ("vllm=>1", "vllm"),
        ("\x1b[31mvllm\n==", "vllm"),
        ("", "engines are"),
    ],
)
def test_an_engine_that_is_not_known_names_the_nearest(text: str, near: str) -> None:
    with pytest.raises(EaglectlError, match="--engine") as raised:
        parse_engine(text)
    assert near in str(raised.value)


@pytest.mark.parametrize(
    ("release", "target", "taken"),
    [
        ("0.21.0", "qwen3", ("V1",)),
        ("0.22.0", "qwen3", ("V2",)),
        ("0.22.0", "llama", ("V1",)),
        ("0.23.0", "llama", ("V2",)),
        ("0.24.0", "deepseek_v2", ("V2",)),
        ("0.28.0", "gpt_oss", ("V1",)),
        ("0.28.0", "some_new", ("V1", "V2")),
        ("0.25.0", None, ("V1", "V2")),
        ("0.29.0", "gpt_oss", ("V2",)),
        ("0.33.0", None, ("V2",)),
    ],
)
def test_the_runner_of_a_release_depends_on_the_target_for_a_while(
    release: str, target: str | None, taken: tuple[str, ...]
) -> None:
    assert vllm.ENGINE.behaviour(release).runners_for(target) == taken


def test_every_release_has_a_runner() -> None:
    assert all(vllm.ENGINE.behaviour(release).runners_for(None) for release in vllm.ENGINE.releases)


SERVED = {(one.engine, one.layout, one.version, one.attention): one.releases for one in services()}


@pytest.mark.parametrize(
    ("layout", "version", "attention", "first"),
    [
        ("vllm", "3", "GQA", "0.10.2"),
        ("vllm", "3.1", "GQA", "0.22.0"),
        ("vllm", "3.1-joint", "GQA", "0.22.0"),
        ("vllm", "3", "MLA", "0.18.0"),
        ("vllm", "3.1", "MLA", "0.23.0"),
        ("vllm", "3", "Qwen3", "0.24.0"),
        ("vllm", "3.1", "Qwen3", "0.24.0"),
        ("speculators", "3", "GQA", "0.10.1"),
        ("speculators", "3.1", "GQA", "0.25.0"),
        ("speculators", "3.1", "Qwen3", "0.25.0"),
    ],
)
def test_the_first_release_that_serves_an_ideal_drafter(
    layout: str, version: str, attention: str, first: str
) -> None:
    served = SERVED["vllm", layout, version, attention]
    assert served == vllm.ENGINE.releases[vllm.ENGINE.releases.index(first) :]


def test_what_no_release_serves_is_empty_and_not_left_out() -> None:
    assert (
        SERVED["vllm", "vllm", "3.1-joint", "MLA"] == () and SERVED["sglang", "speculators", "3", "GQA"] == ()
    )
    known = ENGINES["sglang"].releases
    assert SERVED["sglang", "sglang", "3.1", "MLA"] == known
    assert SERVED["sglang", "sglang", "3.1-joint", "GQA"] == known[known.index("0.5.17") :]
    assert ("vllm", "speculators", "3", "MLA") not in SERVED  # the layout has no place for it


def test_the_table_of_engines_is_printed_and_fits_its_schema() -> None:
    done = call("engines", "-v")
    assert (
        done.code == 0
        and f"0.22.0 - {vllm.ENGINE.releases[-1]}" in done.out
        and "eagle3_layers_to_capture" in done.out
    )
    assert "V1 or V2, by the target's architecture in 0.22.0 - 0.28.0" in done.out
    document = call("engines", "-v", "--json").document
    jsonschema.validate(document, json.loads((FIXTURES.parent / "schemas/engines.schema.json").read_text()))
    assert {one["engine"] for one in document["engines"]} == {"vllm", "sglang", "llama.cpp"}
    assert [one["engine"] for one in document["not_followed"]] == [
        *("tensorrt-llm", "tokenspeed", "atom", "max", "vllm-ascend", "lmdeploy", "mlx-vlm")
    ]


@pytest.mark.parametrize(
    ("engine", "release", "expected"),
    [
        ("vllm", "0.21.0", True),
        ("vllm", "0.22.0", False),
        ("vllm", "0.33.0", False),
        ("sglang", "0.5.23", False),
    ],
)
def test_a_switch_in_eagle_config_goes_before_the_one_at_the_top(
    engine: str, release: str, expected: bool
) -> None:
    config = {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}
    view = view_for(engine, ideal("3.1-joint", "GQA"), config, config, ())
    assert ENGINES[engine].case(view, release).flag("norm_before_fc") is expected


RANGES = sorted(
    {row["range"] for row in vllm.ENGINE.data["behaviour"]} | {fact.releases for fact in vllm.ENGINE.facts}
)


@pytest.mark.parametrize(
    "text",
    [
        *RANGES,
        "<0.22",
        "==0.10",
        "<=0.33.0",
        "==0.22.0.post1",
        "<0.22.0.post2",
    ],
)
def test_ranges_are_those_of_pep_508(text: str) -> None:
    posts = ("0.22.0.post1", "0.22.0.post12", "0.10.1.post1")
    for release in (*vllm.ENGINE.releases, *posts, "0.22", "0.100.0", "1", "0.0"):
        assert is_within(text, release) == (not text or release in SpecifierSet(text)), release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("~=0.22.0", "0.22.0"),
        ("!=0.11.0", "0.22.0"),
        (">0.10.1", "0.22.0"),
        ("==0.22.*", "0.22.0"),
        (">=0.22.0", "0.34.0rc1"),
    ],
)
def test_no_data_has_other_comparisons_or_releases_than_of_numbers(text: str, release: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        is_within(text, release)


def test_ranges_of_releases_are_told_in_few_words() -> None:
    assert ranges(("0.33.0", "0.31.0", "0.32.0", "0.10.0"), vllm.ENGINE.releases) == "0.10.0, 0.31.0 - 0.33.0"
    assert ranges((), vllm.ENGINE.releases) == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fact_is_run_in_releases_that_it_concerns_alone(engine: str) -> None:
    for fact in ENGINES[engine].facts:
        assert all(is_within(fact.releases, release) for release in fact.run_in), fact.id


@pytest.mark.parametrize("engine", ENGINES)
def test_the_entries_of_an_engine_do_not_contradict_themselves(engine: str) -> None:
    for entry in load(engine)["behaviour"]:
        assert entry["run_in"].keys() <= set(entry["releases"]), "run_in says which were run: {} for none"
        assert all(is_within(entry["range"], release) for release in entry["releases"])
    releases = ENGINES[engine].releases
    assert sorted(set(releases), key=release_order) == list(releases)


def behaviours() -> Iterator[Behaviour]:
    """What each release does, and each engine whose releases are not followed."""
    for engine in ENGINES.values():
        yield from map(engine.behaviour, engine.releases)
    yield from map(unversioned_behaviour, judged_unversioned())


def test_runners_are_those_of_the_release_and_layers_of_n() -> None:
    for known in behaviours():
        assert {name for rule in known.default_runner for name in rule.value} <= known.runners.keys()
        assert known.default_runner and not known.default_runner[-1].targets, "the last is of all others"
        for runner in known.runners.values():
            assert all(DefaultLayers(rule.value).words for rule in runner.default_layers)


def test_an_engine_without_releases_states_its_evidence_too() -> None:
    assert all("run_in" in engine for engine in unversioned()["engines"].values())


def test_the_table_of_engines_says_what_was_run_and_what_was_read() -> None:
    out = call("engines", "-v").out
    assert (
        "run: 0.32.0 (" in out and "read in their sources, not run, all else: 0.10.0 - 0.31.0, 0.33.0" in out
    )
    assert "the functions that resolve layer ids were run: 0.22.0 - 0.33.0" in out
    assert (
        "read in their sources, not run: tensorrt-llm, tokenspeed, atom, max, vllm-ascend, lmdeploy, mlx-vlm"
        in out
    )
    document = call("engines", "-v", "--json").document
    releases = {row["release"]: row for row in document["engines"][0]["releases"]}
    assert "V1" in releases["0.32.0"]["run"] and releases["0.32.0"]["facts"]["run"] >= 28
    assert releases["0.31.0"]["run"] == [] and releases["0.31.0"]["facts"]["run"] == 0
    assert releases["0.31.0"]["ids"] == "run" and releases["0.21.0"]["ids"] == "read"
    facts = {row["id"]: row["run_in"] for row in document["engines"][0]["facts"]}
    assert facts["d2t-missing"] == {"0.32.0": "llama3/d2t missing"} and facts["fc-norm-dropped"] == {}
    assert {row["evidence"] for row in document["not_followed"]} == {"read"}


def test_rules_shows_the_evidence_of_a_fact() -> None:
    assert (
        "run on vLLM 0.32.0: llama3/d2t missing; read in the sources of the other"
        in call("rules", "EGL1009").out
    )
    assert "read in the sources of vLLM, not run" in call("rules", "EGL1016").out
    assert (
        call("rules", "EGL1016", "--json").document["rules"][0]["evidence"]
        == "read in the sources of vLLM, not run"
    )
    assert (
        call("rules", "EGL101", "--json").document["rules"][0]["evidence"] == ""
        and "Evidence" not in call("rules", "EGL101").out
    )


def test_engines_names_what_is_known_of_parallel_serving() -> None:
    text = " ".join(call("engines", "-v", "vllm").out.split())
    assert "P-EAGLE with structured output" in text and "pipeline parallel" in text and "SGLang" not in text
    assert "-sm tensor: stops" in " ".join(call("engines", "-v", "llama.cpp").out.split())


@pytest.mark.parametrize("name", ["tensorrt-llm", "max", "vllm-ascend", "lmdeploy", "mlx-vlm"])
def test_engines_takes_an_engine_whose_releases_are_not_followed(name: str) -> None:
    document = call("engines", name, "--json").document
    assert document["engines"] == [] and [row["engine"] for row in document["not_followed"]] == [name]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("lmdeploy", "(2, 30, 58) without, and only checks and counts them"),
        ("lmdeploy", "fc_norm (or use_aux_norm) and norm_output"),
        ("max", "no norm_before_fc"),
    ],
)
def test_engines_says_what_was_read_of_an_engine_that_is_not_followed(name: str, word: str) -> None:
    assert word in " ".join(call("engines", name).out.split())


def test_engines_names_the_nearest_of_an_unknown_engine() -> None:
    assert "near it: vllm" in refusal(2, "engines", "vlm")


def test_inspect_says_what_is_known_of_p_eagle_with_structured_output() -> None:
    assert eaglectl.inspect(PRODUCERS / "specforge/peagle").drafter.kind == "peagle"
    text = " ".join(call("inspect", "-v", FIXTURES / "producers/specforge/peagle").out.split())
    assert "P-EAGLE with structured output: users reported" in text
    plain = call("inspect", "-v", FIXTURES / "producers/specforge/gqa").out
    assert "users reported" not in plain and "`eaglectl engines`" not in plain
    every = " ".join(call("engines", "-v", "vllm").out.split())
    assert "P-EAGLE with structured output: users reported" in every


def test_inspect_says_which_targets_split_tensors_stop_for(tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    target.write_text(json.dumps({"model_type": "minimax_m2", "num_hidden_layers": 8}))
    shown = call("inspect", "-v", FIXTURES / "producers/specforge/gqa", "--target", target).out
    assert "-sm tensor: stops" in " ".join(shown.split())
