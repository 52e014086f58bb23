"""Targets: which release captures states of which class, as closed lists that agree with the sources."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.drafter.drafter import DefaultLayers, Target, to_boundaries
from eaglectl.engines.behaviour import adds_one
from eaglectl.engines.data import FOLDER, read
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import architectures, read_captures, target_class
from eaglectl.errors import RefusedError
from eaglectl.target.choice import open_target
from eaglectl.verdicts import ServedAs
from tests.builders import call, drafter_folder, refusal, target_of
from tools.scan import record
from tools.scan.record import releases_read, target_evidence

FOLLOWED = ("vllm", "sglang", "llama.cpp")
RECORDS = {
    (engine, release): {name: row for name, row in rows.items() if row["outcome"] in record.RUN}
    for engine in FOLLOWED
    for release, rows in record.records(engine).items()
}
STOPS = "has no class for it: its converter stops"
MODEL_TYPES = sorted({*read("model_types.json")["architectures"], "kimi_k2", "minimax_m3"})


def newest(engine: str) -> str:
    return ENGINES[engine].releases[-1]


def captures(engine: str, model_type: str, release: str = "") -> str:
    reading = read_captures(engine, release or newest(engine), Target(model_type=model_type))
    assert reading is not None
    return reading.captures


@pytest.mark.parametrize("engine", FOLLOWED)
def test_every_release_that_is_judged_was_read_and_its_table_is_the_one_that_it_showed(engine: str) -> None:
    assert releases_read(engine) == ENGINES[engine].releases
    tables = record.known(engine)
    stated = json.loads((FOLDER / f"{engine}_targets.json").read_text())["read"]
    assert {release: record.digest(table) for release, table in tables.items()} == stated


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
    ("name", "first", "last"),
    [
        ("Qwen3_5ForConditionalGeneration", "0.17.0", "0.17.1"),
        ("Qwen3_5MoeForConditionalGeneration", "0.17.0", "0.17.1"),
        ("Qwen4ExpForConditionalGeneration", "0.29.0", "0.33.0"),
        ("CohereCompassForConditionalGeneration", "0.30.0", "0.33.0"),
    ],
)
def test_an_interface_of_vllm_is_no_capture_without_a_decoder_that_reads_its_layers(
    name: str, first: str, last: str
) -> None:
    releases = ENGINES["vllm"].releases
    readings = {
        release: read_captures("vllm", release, Target(architectures=(name,))) for release in releases
    }
    unread = [
        release for release, reading in readings.items() if reading and "keeps no states" in reading.text
    ]
    assert unread == list(releases[releases.index(first) : releases.index(last) + 1])


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


@pytest.mark.parametrize(
    ("name", "engine", "way"),
    [
        ("Gemma3ForCausalLM", "sglang", "use sglang 0.5.14 - 0.5.16, since no later release serves it"),
        ("Gemma3ForCausalLM", "vllm", "no known release serves it"),
        ("Qwen3_5ForConditionalGeneration", "vllm==0.17.1", "use vllm>=0.18.0, since no conversion"),
    ],
)
def test_the_change_names_the_releases_that_serve_a_target(
    name: str, engine: str, way: str, tmp_path: Path
) -> None:
    target = target_of(tmp_path / "target", architectures=[name])
    report = eaglectl.validate(drafter_folder(tmp_path), engines=[engine], target=target)
    (change,) = report.smallest_changes
    assert way in change


LLAVA = {"outer_type": "llava", "architectures": ("LlavaForConditionalGeneration",)}


@pytest.mark.parametrize(
    ("engine", "release", "target", "expected"),
    [
        # a model type is judged by those of its classes that the release has
        ("vllm", "0.22.1", {"model_type": "step3p5"}, "lacks"),
        ("vllm", "0.23.0", {"model_type": "step3p5"}, "lacks"),
        ("vllm", "0.10.0", {"model_type": "llama4"}, "lacks"),
        ("vllm", "0.10.0", {"model_type": "gpt_oss"}, "absent"),
        ("vllm", "0.20.0", {"model_type": "qwen3_5"}, "captures"),
        ("sglang", "0.5.14", {"model_type": "qwen3_5"}, "lacks"),
        # the class that the config names decides, and of a wrapper, what is in it
        (
            "vllm",
            "0.33.0",
            {"model_type": "granite", "architectures": ("GraniteMoeHybridForCausalLM",)},
            "lacks",
        ),
        ("vllm", "0.33.0", {"model_type": "llama", **LLAVA}, "captures"),
        ("vllm", "0.33.0", {"model_type": "step3p5", **LLAVA}, "lacks"),
        ("vllm", "0.33.0", {"model_type": "foo_bar", **LLAVA}, "unknown"),
        # one that the release has not falls to transformers' class, where these capture
        ("vllm", "0.20.0", {"model_type": "nanbeige", "architectures": ("AXK1ForCausalLM",)}, "lacks"),
        ("vllm", "0.33.0", {"architectures": ("AquilaForCausalLM",)}, "unknown: was not looked at"),
        # llama.cpp's converter stops at one that it does not register; it takes what a text_config names
        ("llama.cpp", "", {"model_type": "foo", "architectures": ("FooForCausalLM",)}, f"absent: {STOPS}"),
        ("llama.cpp", "", {"model_type": "minicpmv", "architectures": ("MiniCPMV",)}, f"absent: {STOPS}"),
        ("llama.cpp", "", {"model_type": "llava_next"}, f"unknown: {STOPS}"),
        (
            "llama.cpp",
            "",
            {**LLAVA, "model_type": "mistral", "architectures": ("LlavaNextForConditionalGeneration",)},
            f"unknown: {STOPS}",
        ),
    ],
)
def test_which_class_a_release_takes_decides(
    engine: str, release: str, target: dict[str, Any], expected: str
) -> None:
    captures, _, words = expected.partition(": ")
    reading = read_captures(engine, release or newest(engine), Target(**target))
    assert reading is not None and reading.captures == captures and words in reading.text
    assert ("unless a text_config names another" in reading.text) == (expected == f"unknown: {STOPS}")


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


@pytest.mark.parametrize(("engine", "release"), RECORDS)
def test_what_an_engine_did_with_a_tiny_target_is_what_the_table_says(engine: str, release: str) -> None:
    runner = next(iter(ENGINES[engine].behaviour(release).runners.values()))
    for name, row in RECORDS[engine, release].items():
        stated = target_class(engine, release, name)
        assert stated is not None and (stated.captures == "captures") is record.RUN[row["outcome"]], name
        assert target_evidence(engine, release, name) == "run", name
        if row["outcome"] != "captured":
            continue
        seen = Target(model_type=row["model_type"], architectures=(name,), depth=8)
        expected = to_boundaries(row["ids"], "output" if adds_one(runner, row["ids"], seen) else "boundary")
        if stated.state:  # Gemma 3's MLP output in SGLang, without the stream that it is added to
            assert all(words.startswith("no boundary") for words in row["boundaries"]), name
            continue
        assert row["boundaries"] == list(expected), name
        assert row["default_boundaries"] == [2, 4, 5], name
        assert row["more"]["[1, 3, 5]"] == [place + (stated.adds_one != "") for place in (1, 3, 5)], name


def test_run_is_what_a_record_stands_for_and_the_rest_is_read() -> None:
    for engine in FOLLOWED:
        stated = json.loads((FOLDER / f"{engine}_targets.json").read_text())
        if record.records(engine):
            assert stated["run_in"] == record.runs(engine, record.known(engine))
            assert stated["refused_in"] == record.refused(engine, record.known(engine))
    assert target_evidence("sglang", "0.5.14", "LlamaForCausalLM") == "read"


def test_a_target_that_no_layer_is_captured_of_is_one_finding(tmp_path: Path) -> None:
    """Which layers would be captured of it is not said too."""
    config = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    folder = drafter_folder(tmp_path, config=config)
    answers = ("--aux-layers", "2,4,5", "--engine", "llama.cpp", "--json")
    known = call("validate", folder, "--target", target_of(tmp_path / "a"), *answers).document
    lacking = call(
        "validate", folder, "--target", target_of(tmp_path / "b", model_type="granite"), *answers
    ).document
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
    place = target_of(tmp_path / "target", model_type=model_type)
    drafter = drafter_folder(tmp_path)
    done = call("validate", drafter, "--target", place, "--engine", "sglang==0.5.23", "--select", "EGL11")
    assert done.code == code, done.out
    shown = call("inspect", "-v", drafter, "--target", place, "--engine", "sglang==0.5.23").out
    assert outcome in shown
    assert ("sglang.launch_server" in shown) is (outcome == ServedAs.AS_TRAINED)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "(modelopt NVFP4): "),
        ({"bits": 4}, "(unknown method): "),
        ({"quant_method": 8}, "(unknown method): "),
    ],
)
def test_inspect_names_the_method_of_a_quantised_target(
    stated: dict[str, Any], words: str, tmp_path: Path
) -> None:
    target = target_of(tmp_path / "target", quantization_config=stated)
    drafter = eaglectl.inspect(drafter_folder(tmp_path), target=target).drafter
    (note,) = (note for note in drafter.notes if note.topic == "changed-target")
    assert words in note.text


def test_an_adapter_alone_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(RefusedError, match="pass its base model"):
        open_target(str(tmp_path))


@pytest.mark.parametrize("key", ["time_step_limit", "rope_theta"])
def test_numbers_that_python_alone_writes_are_read_in_a_target(key: str, tmp_path: Path) -> None:
    target = target_of(tmp_path / "target", **{key: [0.0, float("inf")]})  # Nemotron-H states such a limit
    drafter = drafter_folder(tmp_path)
    assert eaglectl.inspect(drafter, target=target).drafter.target.depth == 8
    assert call("validate", drafter, "--target", target, "--json").code == 0
    (drafter / "config.json").write_text('{"rope_theta": Infinity}')
    assert "Infinity is not a JSON number" in refusal(3, "inspect", drafter)
