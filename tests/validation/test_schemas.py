"""The schemas of config.json: well formed, complete for every fixture, and a rule that says what does not
fit.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eaglectl
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.judge.rules import config
from eaglectl.judge.rules.config import _fits, schema_file, violations
from tests.builders import ABSENT, drafter_config, drafter_folder
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

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


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("schemas_make", FOLDER / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_make_schemas_writes(make: ModuleType) -> None:
    texts = make.texts()
    assert set(FILES) <= set(texts)
    for path, text in texts.items():
        assert path.read_text() == text, "run `make schemas`"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.schema.json")), ids=lambda path: path.name)
def test_every_schema_is_one(path: Path) -> None:
    schema = loaded(path)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:eaglectl:")
    assert schema["title"]
    jsonschema.Draft202012Validator.check_schema(schema)


def test_every_format_has_a_schema() -> None:
    for one in FORMATS:
        assert schema_file(f"config-{one.schema_name}.schema.json") in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_says_what_it_means(path: Path) -> None:
    def walk(schema: dict[str, Any], place: str) -> None:
        for key, inner in schema.get("properties", {}).items():
            assert inner.get("description", "").endswith("."), f"{place}.{key}"
            walk(inner, f"{place}.{key}")

    walk(loaded(path), path.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_fixture_fits_the_schema_of_its_producer(case: Case) -> None:
    name = NOT_SIGNED.get(case.path) or by_name(case.producer).schema_name
    jsonschema.validate(loaded(case.folder / "config.json"), loaded(FOLDER / f"config-{name}.schema.json"))
    report = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(select=["config-schema"], answers=case.answered())
    )
    assert report.findings == ()


@pytest.mark.parametrize("missing", ["hidden_size", "fc_norm"])
def test_a_schema_on_its_own_asks_for_what_the_layout_states(missing: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=missing):
        jsonschema.validate(drafter_config(**{missing: ABSENT}), VLLM)


BAD = (
    Patch(
        "a text for a number of tokens",
        ("EGL121",),
        config={"sliding_window": "2048"},
        says="sliding_window does not fit: '2048' is not of type 'integer', 'null'",
    ),
    Patch("a text for a token", ("EGL121",), config={"eos_token_id": "</s>"}, says="eos_token_id"),
    Patch(
        "a text for a token in a list", ("EGL121",), config={"eos_token_id": [1, "2"]}, says="eos_token_id[1]"
    ),
    Patch("a text for a switch", ("EGL121",), config={"use_cache": "yes"}, says="use_cache"),
    Patch("a text for a list", ("EGL121",), config={"layer_types": "full_attention"}, says="layer_types"),
    Patch(
        "a share beyond one",
        ("EGL112",),
        config={"attention_dropout": 1.5},
        says="attention_dropout is 1.5; a number from 0 to 1",
    ),
    Patch(
        "a nested switch that is none",
        ("EGL121",),
        config={
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
                "use_aux_hidden_state": True,
                "norm_before_fc": False,
            },
            "transformers_version": 5,
        },
        says="transformers_version",
    ),
    Patch("a number that reading refuses", ("EGL112",), config={"hidden_size": "16"}),
    Patch(
        "layers that reading refuses", ("EGL112",), config={"eagle_aux_hidden_state_layer_ids": [2, "4", 5]}
    ),
    Patch("a kind that another rule judges", ("EGL118",), config={"model_type": 3}),
    Patch("a key that nobody knows", (), config={"my_own_key": {"any": ["thing"]}}),
)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_a_bad_value_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_finding_says_where(tmp_path: Path) -> None:
    config = {
        "speculators_model_type": "eagle3",
        "speculators_config": {"proposal_methods": [{"speculative_tokens": "3"}]},
    }
    schema = loaded(FOLDER / "config-speculators.schema.json")
    assert [where for where, _ in violations(schema, config)] == [
        "speculators_config.proposal_methods[0].speculative_tokens"
    ]
    report = eaglectl.validate(str(drafter_folder(tmp_path, config={"use_cache": 1})))
    assert [one.match.where for one in report.findings] == ["config.json:use_cache"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.floats(-2, 2)
    | st.sampled_from(["", "eagle3", "silu"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["use_aux_hidden_state", "factor"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(st.sampled_from([loaded(path) for path in FILES]), st.data())
def test_the_quick_look_says_what_jsonschema_says(schema: dict[str, Any], data: st.DataObject) -> None:
    config = data.draw(st.dictionaries(st.sampled_from(sorted(schema["properties"])), VALUES, max_size=3))
    if _fits(schema, config):
        assert not list(violations(schema, config))


def test_schemas_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "config-vllm-native.schema.json"
    assert schema_file(name) == FOLDER / name
    installed = tmp_path / "eaglectl/schemas" / name
    installed.parent.mkdir(parents=True)
    installed.write_text("{}")
    monkeypatch.setattr(config.eaglectl, "__file__", str(tmp_path / "eaglectl/__init__.py"))
    assert schema_file(name) == installed


def test_a_good_config_is_judged_without_jsonschema(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    validate = f"eaglectl.validate({str(folder)!r}, eaglectl.ValidateOptions(headers_only=True))"
    code = f"import eaglectl, sys; {validate}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jsonschema", "torch", "numpy", "huggingface_hub"} & set(done.stdout.split())
