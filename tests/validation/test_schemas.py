"""The schemas of config.json: complete for every fixture, and a rule that says what does not fit."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.judge.rules.config import _fits, schema_file, violations
from tests.builders import ABSENT, drafter_config, drafter_folder, loaded_after
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, exact

FOLDER = FIXTURES.parent / "schemas"
FILES = sorted(FOLDER.glob("config-*.schema.json"))
VLLM = json.loads((FOLDER / "config-vllm-native.schema.json").read_text())
NOT_SIGNED = {
    "torchspec/llama-vllm": "torchspec-vllm",
    "sglang/two-layers": "sglang-native",
    "specforge/peagle": "specforge",
}


def loaded(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_the_files_are_what_make_schemas_writes() -> None:
    texts = runpy.run_path(str(FOLDER / "make.py"))["texts"]()
    assert set(FILES) <= set(texts)
    for path, text in texts.items():
        assert path.read_text() == text, "run `make schemas`"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.schema.json")), ids=lambda path: path.name)
def test_every_schema_is_one_and_every_key_of_a_config_says_what_it_means(path: Path) -> None:
    def walk(schema: dict[str, Any], place: str) -> None:
        for key, inner in schema.get("properties", {}).items():
            assert inner.get("description", "").endswith("."), f"{place}.{key}"
            walk(inner, f"{place}.{key}")

    schema = loaded(path)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:eaglectl:") and schema["title"]
    jsonschema.Draft202012Validator.check_schema(schema)
    if path in FILES:
        walk(schema, path.name)


def test_every_format_has_a_schema() -> None:
    assert {schema_file(f"config-{each.schema_name}.schema.json") for each in FORMATS} <= set(FILES)


@pytest.mark.fast(9)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_fixture_fits_the_schema_of_its_producer(case: Case) -> None:
    name = NOT_SIGNED.get(case.path) or by_name(case.producer).schema_name
    jsonschema.validate(loaded(case.folder / "config.json"), loaded(FOLDER / f"config-{name}.schema.json"))
    report = eaglectl.validate(case.folder, select=["config-schema"], answers=case.answered())
    assert report.findings == ()


@pytest.mark.parametrize("missing", ["hidden_size", "fc_norm"])
def test_a_schema_on_its_own_asks_for_what_the_layout_states(missing: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=missing):
        jsonschema.validate(drafter_config(**{missing: ABSENT}), VLLM)


BAD = (
    Patch("a text for a number of tokens", "EGL121", {"sliding_window": "2048"}, "'2048' is not of type"),
    Patch("a text for a token", "EGL121", {"eos_token_id": "</s>"}, "eos_token_id"),
    Patch("a text for a token in a list", "EGL121", {"eos_token_id": [1, "2"]}, "eos_token_id[1]"),
    Patch("a text for a switch", "EGL121", {"use_cache": "yes"}, "use_cache"),
    Patch("a text for a list", "EGL121", {"layer_types": "full_attention"}, "layer_types"),
    Patch("a share beyond one", "EGL112", {"attention_dropout": 1.5}, "is 1.5; a number from 0 to 1"),
    Patch("a number for a text", "EGL121", {"transformers_version": 5}, "transformers_version"),
    Patch("a number that reading refuses", "EGL112", {"hidden_size": "16"}),
    Patch("layers that reading refuses", "EGL112", {"eagle_aux_hidden_state_layer_ids": [2, "4", 5]}),
    Patch("a kind that another rule judges", "EGL118", {"model_type": 3}),
    Patch("a key that nobody knows", "", {"my_own_key": {"any": ["thing"]}}),
)

test_a_bad_value_gives_exactly_its_findings = exact(BAD)


def test_a_finding_says_where(tmp_path: Path) -> None:
    methods = {"proposal_methods": [{"speculative_tokens": "3"}]}
    config = {"speculators_model_type": "eagle3", "speculators_config": methods}
    ((where, _),) = violations(loaded(FOLDER / "config-speculators.schema.json"), config)
    assert where == "speculators_config.proposal_methods[0].speculative_tokens"
    report = eaglectl.validate(str(drafter_folder(tmp_path, config={"use_cache": 1})))
    # and the engines that stop at it
    places = {one.rule.id: one.match.where for one in report.findings}
    assert places == {"EGL121": "config.json:use_cache", "EGL1195": "", "EGL2029": ""}


KEYS = st.sampled_from(["use_aux_hidden_state", "factor"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 5) | st.floats(-2, 2) | st.sampled_from(["", "eagle3"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=5
)


@settings(max_examples=30)
@given(st.sampled_from([loaded(path) for path in FILES]), st.data())
def test_the_quick_look_says_what_jsonschema_says(schema: dict[str, Any], data: st.DataObject) -> None:
    config = data.draw(st.dictionaries(st.sampled_from(sorted(schema["properties"])), VALUES, max_size=3))
    if _fits(schema, config):
        assert not list(violations(schema, config))


def test_a_good_config_is_judged_without_jsonschema(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    code = f"import eaglectl; eaglectl.validate({str(folder)!r}, eaglectl.ValidateOptions(headers_only=True))"
    assert not {"jsonschema", "torch", "numpy", "huggingface_hub"} & loaded_after(code)
