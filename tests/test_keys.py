"""Which keys a release reads, and that `convert` writes one that each release and runner reads."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.engines.registry import ENGINES
from eaglectl.formats.format import Answers
from tests.conftest import FIXTURES
from tools.key_readers import FOLLOWED, IDS, key_readers, left_out

PRODUCERS = FIXTURES / "producers"
# drafters that use what engines read: switches, other ids, four states, a mask token, MLA, q/k norms
WRITTEN = {
    "speculators/eagle3.1": {},
    "speculators/four-aux": {},
    "speculators/residual": {},
    "speculators/qwen3": {},
    "specforge/peagle": {"mask_token_id": "255"},
    "torchspec/mla": {"rope": "stored"},
    "modelopt/hf-ids": {"modelopt": "pre-689", "rope": "stored"},
}


def config_of(name: str, layout: str) -> tuple[dict[str, object], eaglectl.Drafter]:
    plan = eaglectl.convert(
        PRODUCERS / name,
        layout=layout,
        target=FIXTURES / "target",
        dry_run=True,
        force_unserved=True,
        answers=Answers(semantics=WRITTEN[name]),
    ).plan
    return dict(plan.config), plan.drafter


@pytest.mark.parametrize("layout", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_layout_serves_each_release_of_its_engine_that_any_key_serves(name: str, layout: str) -> None:
    try:
        config, drafter = config_of(name, layout)
    except eaglectl.RefusedError as error:
        assert "cannot express" in str(error)
        assert layout != "vllm"
        return
    assert left_out(config, drafter, layout) == {}


@pytest.mark.parametrize(
    ("key", "engine", "missing"),
    [
        ("eagle_aux_hidden_state_layer_ids", "vllm", {(IDS, "V1"), (IDS, "V2")}),
        ("eagle_config", "sglang", {(IDS, "default")}),
        ("num_aux_hidden_states", "vllm", set()),  # eagle_config's ids are counted
        ("draft_vocab_size", "vllm", {("draft vocabulary", "")}),
        ("rope_theta", "sglang", {("rope base", "")}),
    ],
)
def test_a_key_that_is_taken_away_leaves_releases_out(
    key: str, engine: str, missing: set[tuple[str, str]]
) -> None:
    config, drafter = config_of("speculators/four-aux", "vllm")
    del config[key]
    assert set(left_out(config, drafter, engine)) == missing


@pytest.mark.parametrize(("engine", "oldest"), [("vllm", "0.10.0"), ("sglang", "0.5.14")])
def test_only_training_without_the_scale_of_mla_needs_a_key_that_leaves_it_out(
    engine: str, oldest: str
) -> None:
    config, drafter = config_of("torchspec/mla", "vllm")
    trained = replace(drafter, rope=replace(drafter.rope, has_mla_factors=False))
    missing = left_out(config, trained, engine)
    assert set(missing) == {("factor of MLA", "")}
    assert (missing["factor of MLA", ""][0], missing["factor of MLA", ""][-1]) == (
        oldest,
        ENGINES[engine].releases[-1],
    )
    plain = replace(trained, rope=replace(trained.rope, scaling=None))
    assert left_out(config, plain, engine) == {}


def test_the_mask_token_is_read_under_one_name_by_all_releases_and_under_another_by_new_ones() -> None:
    config, drafter = config_of("specforge/peagle", "vllm")
    assert config["pard_token"] == config["mask_token_id"] == 255
    del config["pard_token"]
    missing = left_out(config, drafter, "vllm")[("mask token", "V1")]
    assert (missing[0], missing[-1]) == ("0.16.0", "0.27.1")


def test_every_release_has_one_reader_for_each_fact_runner_and_class() -> None:
    for engine in FOLLOWED:
        read = [
            (row.fact, row.runner, row.model_class, release)
            for row in key_readers(engine)
            for release in row.releases
        ]
        assert len(read) == len(set(read))
        assert {release for *_, release in read} == set(ENGINES[engine].releases)


SCANNED = {"draft_vocab_size", "target_hidden_size", "attention_bias"}


@pytest.mark.parametrize(
    "scan", sorted((FIXTURES.parent / "tests/tools/scans").glob("*.json")), ids=lambda p: p.stem
)
def test_the_keys_are_those_that_the_scan_of_a_release_has(scan: Path) -> None:
    found = json.loads(scan.read_text())
    classes = [drafter["reads"] for drafter in found["classes"].values() if drafter]
    read = {key for key in SCANNED if any("top" in reads.get(key, ()) for reads in classes)}
    rows = [row for row in key_readers(found["engine"]) if found["release"] in row.releases]
    stated = {key for row in rows for key in row.keys}
    assert stated & SCANNED == read
    switches = {key for reads in classes for key in reads if "norm" in key and "top" in reads[key]}
    assert switches == {key for key in stated if "norm" in key and "." not in key}


def rules_of(folder: Path, engine: str) -> list[str]:
    report = eaglectl.validate(folder, engines=[engine], answers=Answers(semantics={"rope": "stored"}))
    return [finding.rule.id for finding in report.findings if finding.rule.id in ("EGL1148", "EGL1228")]


def test_sglang_reads_a_partial_rotary_at_the_top_alone_and_llamacpp_nowhere(tmp_path: Path) -> None:
    source = shutil.copytree(PRODUCERS / "speculators/plain", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["transformer_layer_config"]["rope_parameters"]["partial_rotary_factor"] = 0.5
    (source / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    eaglectl.convert(source, out, answers=Answers(semantics={"rope": "stored"}))
    config = json.loads((out / "config.json").read_text())
    assert config["partial_rotary_factor"] == config["rope_scaling"]["partial_rotary_factor"] == 0.5
    assert rules_of(out, "sglang") == []
    assert rules_of(out, "llama.cpp") == ["EGL1228"]
    del config["partial_rotary_factor"]
    (out / "config.json").write_text(json.dumps(config))
    assert rules_of(out, "sglang") == ["EGL1148"]
