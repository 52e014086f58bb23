"""The recorded runs of tiny targets are whole, and the engines' data says the same of each."""

from typing import Any

import pytest

from eaglectl.engines import targets
from tests.engine.targets import models, records
from tools.scan.record import target_evidence

KNOWN = {
    ("vllm", "0.32.0"): records.read(records.VLLM),
    ("sglang", "0.5.23"): records.read(records.SGLANG),
}
KEYS = {
    "captured": {"model_type", "outcome", "ids", "boundaries", "default_boundaries", "more"},
    **{key: {"model_type", "outcome", "reason"} for key in ("refused", "not-run", "not-constructed")},
}
# what this class hands out is the output of a layer's MLP, normed, without the stream that it is added to
NO_BOUNDARY = {("sglang", "Gemma3ForCausalLM")}

each_engine = pytest.mark.parametrize(("engine", "release"), KNOWN)


def captured(engine: str, release: str) -> dict[str, dict[str, Any]]:
    """The targets whose captured states are boundaries."""
    return {
        name: record
        for name, record in KNOWN[engine, release].items()
        if record["outcome"] == "captured" and (engine, name) not in NO_BOUNDARY
    }


@each_engine
def test_every_architecture_has_a_record(engine: str, release: str) -> None:
    found = {name: record["model_type"] for name, record in KNOWN[engine, release].items()}
    assert found == {name: models.model_type(name) for name in models.ALL}


@each_engine
def test_a_record_has_the_keys_of_its_outcome(engine: str, release: str) -> None:
    wrong = [name for name, row in KNOWN[engine, release].items() if set(row) != KEYS[row["outcome"]]]
    assert not wrong


@each_engine
def test_states_that_were_captured_are_boundaries(engine: str, release: str) -> None:
    for name, record in captured(engine, release).items():
        found = [*record["boundaries"], *record["default_boundaries"]]
        assert all(isinstance(place, int) for place in found), name


def test_gemma_3_hands_out_no_boundary_in_sglang() -> None:
    record = KNOWN["sglang", "0.5.23"]["Gemma3ForCausalLM"]
    assert all(words.startswith("no boundary") for words in record["boundaries"])


@each_engine
def test_the_data_says_which_targets_were_run_and_whether_they_capture(engine: str, release: str) -> None:
    for name, record in KNOWN[engine, release].items():
        if record["outcome"] in ("captured", "refused"):
            row = targets.target_class(engine, release, name)
            expected = ("captures",) if record["outcome"] == "captured" else ("lacks", "absent")
            assert row.captures in expected, name
            assert target_evidence(engine, release, name) == "run", name
        else:
            assert target_evidence(engine, release, name) == "read", name


@each_engine
def test_the_data_has_the_rule_by_which_ids_became_boundaries(engine: str, release: str) -> None:
    for name, record in captured(engine, release).items():
        adds_one = targets.target_class(engine, release, name).adds_one
        assert record["boundaries"] == [place + (adds_one in ("always", "no id is n")) for place in (2, 4, 6)]
        assert record["more"]["[1, 3, 5]"] == [place + (adds_one != "") for place in (1, 3, 5)], name
        assert record["default_boundaries"] == [2, 4, 5], name
