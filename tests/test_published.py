"""Published drafters: what the commands say of each is held to what is known to be true of it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.builders import Outcome, call
from tests.published import ALL, PUBLISHED, Published

VIEWS = ("with_target", "without_target")
NORMS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


def cases(command: str) -> list[Any]:
    """Every drafter with and without its target; what is known to be wrong must still be wrong."""
    found = []
    for drafter in ALL:
        for view in VIEWS:
            why = drafter.said.get("open", {}).get(f"{command} {view}")
            marks = [pytest.mark.xfail(reason=why, strict=True, raises=AssertionError)] if why else []
            if command == "convert" and drafter.is_pickled:
                marks.append(pytest.mark.slow)  # the weights are unpickled to plan a conversion
            found.append(pytest.param(drafter, view, id=f"{drafter.file.stem}-{view}", marks=marks))
    return found


def run(command: str, drafter: Published, view: str, folder: Path, *options: str | Path) -> Outcome:
    target = ("--target", drafter.target(folder)) if view == "with_target" else ()
    outcome = call("--offline", command, drafter.folder(folder), *target, *options, "--json")
    expected = drafter.said["expect"][view]
    if expected["outcome"] == "refused" and command != "validate":
        assert outcome.code == 1, outcome
        assert [word for word in expected["says"] if word not in outcome.document["message"]] == []
    return outcome


def is_true_of(drafter: Published, found: dict[str, Any], view: str) -> None:
    """Hold a drafter part of a document to the declaration."""
    truth = drafter.said["truth"]
    assert found["eagle"] == truth["eagle"]
    known = [key for key in NORMS if key not in asks(drafter, view)]
    assert {key: found["norms"][key] for key in known} == {key: truth.get(key, False) for key in known}
    assert found["rope"]["theta"] == truth["rope_theta"]
    assert found["dimensions"]["draft_vocab"] == truth["draft_vocab"]
    boundaries = found["aux"]["boundaries"]
    if boundaries is None and truth["boundaries"] != "unknown" and "aux layers" not in asks(drafter, view):
        # without the target's depth the default layers stay a rule
        assert view == "without_target"
        assert found["aux"]["is_default"]
        depth = depth_of(drafter)
        assert truth["boundaries"] == [2, depth // 2, depth - 3]
    elif boundaries is not None:
        assert boundaries == truth["boundaries"]


def depth_of(drafter: Published) -> int:
    config = drafter.said["target"]["config"]
    for key in ("thinker_config", "text_config"):
        config = config.get(key, config)
    return int(config.get("num_hidden_layers") or config["num_layers"])


def asks(drafter: Published, view: str) -> list[str]:
    return drafter.said["expect"][view].get("asks", [])  # type: ignore[no-any-return]


@pytest.mark.fast(8)
@pytest.mark.parametrize(("drafter", "view"), cases("inspect"))
def test_inspect_says_what_is_true(drafter: Published, view: str, tmp_path: Path) -> None:
    expected = drafter.said["expect"][view]
    outcome = run("inspect", drafter, view, tmp_path)
    if expected["outcome"] == "refused":
        return
    assert outcome.code == 0, outcome.out
    found = outcome.document["drafter"]
    assert found["producer"] == drafter.said["producer"]
    questions = sorted(note["about"] for note in found["notes"] if note["level"] == "question")
    assert questions == asks(drafter, view)
    warned = {note["about"] for note in found["notes"] if note["level"] in ("warning", "problem")}
    assert warned >= {*expected.get("warns_about", ())}
    is_true_of(drafter, found, view)


@pytest.mark.fast(8)
@pytest.mark.parametrize(("drafter", "view"), cases("convert"))
def test_convert_plans_what_is_true_or_asks(drafter: Published, view: str, tmp_path: Path) -> None:
    expected = drafter.said["expect"][view]
    how = ("--dry-run", "--force-unserved")  # one is for a target that no release captures states of
    outcome = run("convert", drafter, view, tmp_path, "-o", tmp_path / "out", *how)
    if expected["outcome"] == "refused":
        return
    if expected["outcome"] == "asked":
        assert outcome.code == 2, outcome.out
        return
    assert outcome.code == 0, outcome.out
    plan = outcome.document["plan"]
    is_true_of(drafter, plan["drafter"], view)
    written = plan["config"].get("eagle_aux_hidden_state_layer_ids")
    assert written == plan["drafter"]["aux"]["boundaries"]
    assert plan["config"]["rope_theta"] == drafter.said["truth"]["rope_theta"]
    assert not (tmp_path / "out").exists()


@pytest.mark.fast(10)
@pytest.mark.parametrize(("drafter", "view"), cases("validate"))
def test_validate_fails_what_does_not_run_and_nothing_else(
    drafter: Published, view: str, tmp_path: Path
) -> None:
    expected = drafter.said["expect"][view]
    outcome = run("validate", drafter, view, tmp_path, "--headers-only", "--no-engines")
    if expected["outcome"] == "refused":
        assert outcome.code in (1, 3), outcome.out
        return
    assert outcome.code in (0, 1, 3), outcome.out
    document = outcome.document
    found = {(finding["severity"], finding["rule"]) for finding in document["findings"]}
    errors = sorted(rule for severity, rule in found if severity == "error")
    assert errors == expected.get("errors", []) or (errors and expected.get("errors") == "some")
    is_open = expected.get("asks") or "EGL507" in {rule for _, rule in found}
    assert outcome.code == (1 if errors else 3 if is_open else 0)
    assert {("warning", rule) for rule in expected.get("warnings", ())} <= found


def test_declarations_keep_their_schema_and_nineteen_in_twenty_ask_an_engineer_nothing_needless() -> None:
    """Every case is held to its declaration above, so those without an open fault are settled as they say."""
    schema = jsonschema.Draft202012Validator(json.loads((PUBLISHED / "schema.json").read_text()))
    for drafter in ALL:
        schema.validate(drafter.said)
    assert len(ALL) == len({drafter.name for drafter in ALL}) >= 60
    faults = {drafter.name: drafter.said["open"] for drafter in ALL if "open" in drafter.said}
    assert [name for name, fault in faults.items() if fault.get("is") == "wrong"] == []
    assert len(faults) / len(ALL) <= 0.05, faults
