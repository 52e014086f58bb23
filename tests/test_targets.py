"""Targets: which release captures states of which class, as closed lists that agree with the sources."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.drafter.boundaries import DefaultLayers, to_boundaries
from eaglectl.drafter.drafter import Target
from eaglectl.engines.data import FOLDER, read
from eaglectl.engines.layers import adds_one
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import (
    architectures,
    read_captures,
    target_class,
    target_classes,
)
from eaglectl.verdicts import ServedAs
from tests.builders import HIDDEN, VOCAB, call, drafter_folder
from tests.conftest import FIXTURES
from tools.engine_data import data_from
from tools.scan import record
from tools.scan.record import releases_read, target_evidence

FOLLOWED = ("vllm", "sglang", "llama.cpp")
SCANS = sorted(Path(__file__).parent.glob("tools/scans/*.json"))
RECORDS = [
    (engine, release, name, row)
    for engine in FOLLOWED
    for release, rows in record.records(engine).items()
    for name, row in sorted(rows.items())
    if row["outcome"] in record.RUN
]
MODEL_TYPES = sorted({*read("model_types.json")["architectures"], "kimi_k2", "minimax_m3"})


def newest(engine: str) -> str:
    return ENGINES[engine].releases[-1]


def captures(engine: str, model_type: str, release: str = "") -> str:
    reading = read_captures(engine, release or newest(engine), Target(model_type=model_type))
    assert reading is not None
    return reading.captures


@pytest.mark.parametrize("engine", FOLLOWED)
def test_the_sources_of_every_release_that_is_judged_were_read(engine: str) -> None:
    assert releases_read(engine) == ENGINES[engine].releases


@pytest.mark.parametrize("engine", FOLLOWED)
def test_each_table_is_the_one_that_its_release_showed(engine: str) -> None:
    tables = record.known(engine)
    stated = json.loads((FOLDER / f"{engine}_targets.json").read_text())["read"]
    assert {release: record.digest(table) for release, table in tables.items()} == stated


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_a_scan_shows_the_table_of_its_release(path: Path) -> None:
    found = json.loads(path.read_text())
    shown = record.without_drafters(found["targets"])
    assert len(shown) > 100
    assert record.digest(shown) == record.digest(record.known(found["engine"])[found["release"]])


@pytest.mark.parametrize(
    ("model_type", "vllm", "sglang", "llamacpp"),
    [
        ("foo_bar", "unknown", "unknown", "unknown"),
        ("granite", "captures", "lacks", "lacks"),
        ("kimi_k3", "captures", "lacks", "lacks"),
        ("step3p5", "lacks", "lacks", "lacks"),
        ("llava", "unknown", "lacks", "captures"),
        ("ernie4_5_moe", "lacks", "lacks", "lacks"),
        ("minicpmv", "lacks", "lacks", "unknown"),
        ("nemotron_h", "captures", "lacks", "captures"),
        ("deepseek_v4", "captures", "lacks", "captures"),
        ("gemma3_text", "lacks", "captures", "lacks"),
        ("llama", "captures", "captures", "captures"),
    ],
)
def test_what_the_newest_releases_do_with_a_model_type(
    model_type: str, vllm: str, sglang: str, llamacpp: str
) -> None:
    assert [captures(engine, model_type) for engine in FOLLOWED] == [vllm, sglang, llamacpp]


@pytest.mark.parametrize(
    ("engine", "model_type", "first"),
    [
        ("vllm", "granite", "0.32.0"),
        ("sglang", "minimax_m3", "0.5.18"),
        ("sglang", "qwen3_5_text", "0.5.22"),
        ("sglang", "qwen3_5_moe", "0.5.22"),
        ("sglang", "glm_moe_dsa", "0.5.14"),
        ("sglang", "qwen3_vl_moe", "0.5.14"),
        ("sglang", "qwen3_next", "0.5.14"),
    ],
)
def test_a_target_is_captured_from_a_release_on(engine: str, model_type: str, first: str) -> None:
    found = {release: captures(engine, model_type, release) for release in ENGINES[engine].releases}
    assert next(release for release, what in found.items() if what == "captures") == first
    assert set(found.values()) <= {"captures", "lacks", "absent"}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("InternS2PreviewForConditionalGeneration", "0.5.14"),
        ("InternS2MobiusForConditionalGeneration", "0.5.18"),
        ("Qwen4ExpForConditionalGeneration", "0.5.20"),
        ("MiniMaxM3SparseForCausalLM", "0.5.16"),
    ],
)
def test_a_hook_whose_ids_no_decoder_reads_captures_nothing(name: str, first: str) -> None:
    readings = {
        release: read_captures("sglang", release, Target(architectures=(name,)))
        for release in ENGINES["sglang"].releases
    }
    unread = [
        release
        for release, reading in readings.items()
        if reading is not None and "no state arrives" in reading.text
    ]
    assert unread[0] == first and unread[-1] == ("0.5.17" if "MiniMax" in name else "0.5.21")
    assert {readings[release].captures for release in unread} == {"lacks"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("GptOssForCausalLM", "0.5.17"),
        ("Gemma3ForConditionalGeneration", "0.5.14"),
        ("Gemma4ForCausalLM", "0.5.14"),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.23"),
        ("LlamaForCausalLM", None),
        ("Qwen3VLForConditionalGeneration", None),
    ],
)
def test_the_state_after_the_last_layer_is_a_fact_of_the_class(name: str, first: str | None) -> None:
    rows = {release: target_class("sglang", release, name) for release in ENGINES["sglang"].releases}
    assert next((release for release, row in rows.items() if row and row.last), None) == first


def test_a_class_that_the_config_names_decides_and_not_the_model_type() -> None:
    hybrid = Target(model_type="granite", architectures=("GraniteMoeHybridForCausalLM",))
    assert read_captures("vllm", "0.33.0", hybrid).captures == "lacks"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("inner", "expected"), [("llama", "captures"), ("step3p5", "lacks"), ("foo_bar", "unknown")]
)
def test_a_wrapper_captures_what_its_language_model_does(inner: str, expected: str) -> None:
    wrapper = Target(model_type=inner, outer_type="llava", architectures=("LlavaForConditionalGeneration",))
    assert read_captures("vllm", "0.33.0", wrapper).captures == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target(model_type="minicpmv", architectures=("MiniCPMV",)), "absent"),
        (Target(model_type="foo", architectures=("FooForCausalLM",)), "absent"),
        # its converter takes the class that a text_config names
        (
            Target(
                model_type="mistral",
                outer_type="llava_next",
                architectures=("LlavaNextForConditionalGeneration",),
            ),
            "unknown",
        ),
        (Target(model_type="llava_next"), "unknown"),
    ],
)
def test_llama_cpp_stops_at_a_class_that_its_converter_does_not_register(
    target: Target, expected: str
) -> None:
    reading = read_captures("llama.cpp", newest("llama.cpp"), target)
    assert reading is not None and reading.captures == expected
    assert reading.text.startswith("has no class for it: its converter stops")
    assert ("unless a text_config names another" in reading.text) == (expected == "unknown")


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("Olmo3ForCausalLM", "lacks"),
        ("ChameleonForCausalLM", "lacks"),
        ("MiniMaxM1ForCausalLM", "captures"),
        ("GraniteSpeechForConditionalGeneration", "absent"),
    ],
)
def test_llama_cpp_s_table_has_each_class_that_its_converter_registers_below_another(
    architecture: str, expected: str
) -> None:
    reading = read_captures("llama.cpp", newest("llama.cpp"), Target(architectures=(architecture,)))
    assert reading is not None and reading.captures == expected


@pytest.mark.parametrize("engine", FOLLOWED)
@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("foo_vl", "qwen3", ("unknown", "unknown", "unknown")),
        ("qwen3_vl", "qwen3_vl_text", ("captures", "captures", "lacks")),
        ("gemma3", "gemma3_text", ("lacks", "captures", "lacks")),
        ("mistral3", "mistral", ("captures", "lacks", "lacks")),
        ("llava", "llama", ("captures", "lacks", "captures")),
        ("kimi_k25", "kimi_k2", ("captures", "captures", "lacks")),
    ],
)
def test_a_wrapper_without_a_class_is_of_its_own_model_type_alone(
    engine: str, outer: str, inner: str, expected: tuple[str, ...]
) -> None:
    reading = read_captures(engine, newest(engine), Target(model_type=inner, outer_type=outer))
    assert reading is not None
    assert reading.captures == expected[FOLLOWED.index(engine)]


def test_of_a_target_of_which_nothing_is_named_nothing_is_said() -> None:
    assert read_captures("vllm", "0.33.0", Target(name="org/t", depth=32)) is None


def test_a_class_that_a_release_had_not_yet_falls_to_transformers_where_these_capture() -> None:
    early = read_captures("vllm", "0.10.0", Target(model_type="gpt_oss"))
    later = read_captures("vllm", "0.20.0", Target(model_type="nanbeige", architectures=("AXK1ForCausalLM",)))
    assert early is not None and early.captures == "absent"
    assert later is not None and later.captures == "lacks"
    gone = read_captures("vllm", "0.33.0", Target(architectures=("AquilaForCausalLM",)))
    assert gone is not None and gone.captures == "unknown" and "was not looked at" in gone.text


@pytest.mark.parametrize(
    ("engine", "release", "model_type", "expected"),
    [
        ("vllm", "0.22.1", "step3p5", "lacks"),
        ("vllm", "0.23.0", "step3p5", "lacks"),
        ("vllm", "0.10.0", "llama4", "lacks"),
        ("vllm", "0.20.0", "qwen3_5", "captures"),
        ("sglang", "0.5.14", "qwen3_5", "lacks"),
    ],
)
def test_a_model_type_is_judged_by_those_of_its_classes_that_the_release_has(
    engine: str, release: str, model_type: str, expected: str
) -> None:
    assert captures(engine, model_type, release) == expected


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
def test_no_unlisted_model_type_is_ever_captured(model_type: str) -> None:
    if not architectures(model_type):
        assert {captures(engine, model_type) for engine in FOLLOWED} == {"unknown"}


@given(
    st.sampled_from(("deepseek_v", "kimi_", "minimax_m3_vl_", "glm_moe_dsa", "qwen")),
    st.text("abcdefghij0123456789_", min_size=1, max_size=6),
)
def test_no_name_like_a_listed_one_has_its_rule(beginning: str, end: str) -> None:
    model_type = beginning + end
    if architectures(model_type):
        return
    runner = ENGINES["sglang"].behaviour(newest("sglang")).runners["default"]
    assert not any(
        rule.targets and rule.fits(model_type) for rule in (*runner.adds_one, *runner.default_layers)
    )
    assert captures("sglang", model_type) == "unknown"


@pytest.mark.parametrize("release", ENGINES["sglang"].releases)
def test_what_ids_mean_by_model_type_is_what_its_class_does(release: str) -> None:
    runner = ENGINES["sglang"].behaviour(release).runners["default"]
    classes = [(kind, name) for kind in MODEL_TYPES for name in architectures(kind)]
    rows = [(kind, row) for kind, name in classes if (row := target_class("sglang", release, name))]
    capturing = [(kind, row) for kind, row in rows if row.captures == "captures"]
    assert len(capturing) > 30
    for kind, row in capturing:
        rule = next(rule for rule in runner.adds_one if rule.fits(kind))
        default = next(rule for rule in runner.default_layers if rule.fits(kind))
        assert (kind, rule.value) == (kind, row.adds_one)
        assert DefaultLayers(default.value).at(40) == DefaultLayers(row.default).at(40)


def with_row(parent: Path, engine: str, name: str, rows: Any, **head: Any) -> Path:
    """A copy of the data files with other rows of one class."""
    for path in FOLDER.glob("*.json"):
        (parent / path.name).write_text(path.read_text())
    path = parent / f"{engine}_targets.json"
    stated = json.loads(path.read_text())
    path.write_text(json.dumps({**stated, **head, "architectures": {**stated["architectures"], name: rows}}))
    return parent


ROW = {"from": "0.5.14", "captures": True, "source": "llama.py:1"}


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("*Deepseek*", ROW, "regex"),
        ("Deepseek?", ROW, "regex"),
        ("FooForCausalLM", {**ROW, "source": ""}, "source"),
        ("FooForCausalLM", {"from": "0.5.14", "captures": True}, "source"),
    ],
)
def test_a_pattern_and_a_row_without_evidence_are_refused(
    name: str, row: Mapping[str, Any], says: str, tmp_path: Path
) -> None:
    with data_from(with_row(tmp_path, "sglang", name, [row])), pytest.raises(ValueError, match=says):
        target_classes("sglang")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_run_is_stated_of_rows_and_releases_that_are_there(engine: str) -> None:
    stated = read(f"{engine}_targets.json")
    assert stated["run_in"].keys() <= stated["read"].keys()
    assert all(set(names) <= stated["architectures"].keys() for names in stated["run_in"].values())
    rows = [row for rows in stated["architectures"].values() for row in rows]
    assert {row["from"] for row in rows} <= stated["read"].keys()


def test_a_pattern_in_an_engines_entries_is_refused(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text().replace('"kimi_k25"', '"*kimi*"'))
    with data_from(tmp_path), pytest.raises(ValueError, match="regex"):
        ENGINES["sglang"].behaviour("0.5.23")


@pytest.mark.parametrize(("engine", "release", "name", "row"), RECORDS, ids=lambda value: str(value)[:40])
def test_what_an_engine_did_with_a_tiny_target_is_what_the_table_says(
    engine: str, release: str, name: str, row: Mapping[str, Any]
) -> None:
    stated = target_class(engine, release, name)
    assert stated is not None and (stated.captures == "captures") is record.RUN[row["outcome"]]
    assert target_evidence(engine, release, name) == "run"
    if row["outcome"] == "captured":
        runner = next(iter(ENGINES[engine].behaviour(release).runners.values()))
        seen = Target(model_type=row["model_type"], architectures=(name,), depth=8)
        expected = to_boundaries(row["ids"], "output" if adds_one(runner, row["ids"], seen) else "boundary")
        assert (row["boundaries"] == list(expected)) is not bool(stated.state)


def test_run_is_what_a_record_stands_for_and_the_rest_is_read() -> None:
    for engine in FOLLOWED:
        stated = json.loads((FOLDER / f"{engine}_targets.json").read_text())
        if record.records(engine):
            assert stated["run_in"] == record.runs(engine, record.known(engine))
            assert stated["refused_in"] == record.refused(engine, record.known(engine))
    assert target_evidence("sglang", "0.5.14", "LlamaForCausalLM") == "read"


def test_the_lists_of_targets_in_the_engines_entries_have_whole_names_alone() -> None:
    for engine in FOLLOWED:
        text = (FOLDER / f"{engine}_releases.json").read_text()
        rows = [row for entry in json.loads(text)["behaviour"] for row in _rules(entry)]
        assert all(name.replace("_", "").isalnum() for row in rows for name in row.get("targets", ()))


def _rules(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    runners = entry.get("runners", {}).values()
    values = [*(runner.get(key) for runner in runners for key in ("adds_one", "default_layers"))]
    return [
        row for value in (*values, entry.get("default_runner")) if isinstance(value, list) for row in value
    ]


def test_every_class_of_the_page_s_families_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FIXTURES.parent / "docs")
    page = importlib.import_module("targets")
    known = {name for engine in FOLLOWED for name in target_classes(engine)}
    assert {name for names in page.FAMILIES.values() for name in names} <= known


def target(parent: Path, model_type: str) -> Path:
    path = parent / "target"
    path.mkdir(parents=True)
    sizes = {"num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
    (path / "config.json").write_text(json.dumps({"model_type": model_type, **sizes}))
    return path


def test_a_target_that_no_layer_is_captured_of_is_one_finding(tmp_path: Path) -> None:
    """Which layers would be captured of it is not said too."""
    config = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    folder = drafter_folder(tmp_path, config=config)
    answers = ("--aux-layers", "2,4,5", "--engine", "llama.cpp", "--json")
    known = call("validate", folder, "--target", target(tmp_path / "a", "llama"), *answers).document
    lacking = call("validate", folder, "--target", target(tmp_path / "b", "granite"), *answers).document
    rules = [[finding["rule"] for finding in document["findings"]] for document in (known, lacking)]
    assert "EGL1223" in rules[0] and "EGL1221" not in rules[0]
    assert "EGL1221" in rules[1] and "EGL1223" not in rules[1]


@pytest.mark.parametrize(
    ("model_type", "code", "outcome"),
    [("foo_bar", 3, ServedAs.UNKNOWN), ("granite", 1, ServedAs.FAILS), ("llama", 0, ServedAs.AS_TRAINED)],
)
def test_validate_never_passes_a_target_that_was_not_looked_at(
    model_type: str, code: int, outcome: ServedAs, tmp_path: Path
) -> None:
    place = target(tmp_path, model_type)
    drafter = drafter_folder(tmp_path)
    done = call("validate", drafter, "--target", place, "--engine", "sglang==0.5.23", "--select", "EGL11")
    assert done.code == code, done.out
    shown = call("inspect", "-v", drafter, "--target", place, "--engine", "sglang==0.5.23").out
    assert outcome in shown
    assert ("sglang.launch_server" in shown) is (outcome == ServedAs.AS_TRAINED)
