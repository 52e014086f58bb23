"""Published drafters: what the commands say of each is held to what is known to be true of it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.builders import Outcome, call
from tests.published import ALL, PUBLISHED, Published

VIEWS = ("with_target", "without_target")
SHARE = 0.95
MANY = 60
SCHEMA = json.loads((PUBLISHED / "schema.json").read_text())
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
    return call("--offline", command, drafter.folder(folder), *target, *options, "--json")


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


def is_refused(outcome: Outcome, expected: dict[str, Any]) -> None:
    assert outcome.code == 1, outcome
    for word in expected["says"]:
        assert word in outcome.document["message"]


@pytest.mark.parametrize(("drafter", "view"), cases("inspect"))
def test_inspect_says_what_is_true(drafter: Published, view: str, tmp_path: Path) -> None:
    expected = drafter.said["expect"][view]
    outcome = run("inspect", drafter, view, tmp_path)
    if expected["outcome"] == "refused":
        is_refused(outcome, expected)
        return
    assert outcome.code == 0, outcome.out
    found = outcome.document["drafter"]
    assert found["producer"] == drafter.said["producer"]
    assert sorted(note["about"] for note in found["notes"] if note["level"] == "question") == asks(
        drafter, view
    )
    for about in expected.get("warns_about", ()):
        assert about in [note["about"] for note in found["notes"] if note["level"] in ("warning", "problem")]
    is_true_of(drafter, found, view)


@pytest.mark.parametrize(("drafter", "view"), cases("convert"))
def test_convert_plans_what_is_true_or_asks(drafter: Published, view: str, tmp_path: Path) -> None:
    expected = drafter.said["expect"][view]
    how = ("--dry-run", "--force-unserved")  # one is for a target that no release captures states of
    outcome = run("convert", drafter, view, tmp_path, "-o", tmp_path / "out", *how)
    if expected["outcome"] == "refused":
        is_refused(outcome, expected)
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
    found = {severity: set() for severity in ("error", "warning", "note")}  # type: dict[str, set[str]]
    for finding in document["findings"]:
        found[finding["severity"]].add(finding["rule"])
    errors = expected.get("errors", [])
    assert sorted(found["error"]) == (sorted(found["error"]) or ["one"] if errors == "some" else errors)
    doubts = {finding["rule"] for finding in document["findings"]} & {"EGL507"}
    is_open = bool(expected.get("asks") or doubts)
    assert outcome.code == (1 if found["error"] else 3 if is_open else 0)
    assert set(expected.get("warnings", ())) <= found["warning"]


@pytest.mark.parametrize("drafter", ALL, ids=lambda drafter: drafter.file.stem)
def test_a_declaration_keeps_its_schema(drafter: Published) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(drafter.said)


def test_there_are_many_drafters_and_none_twice() -> None:
    assert len(ALL) >= MANY
    assert len({drafter.name for drafter in ALL}) == len(ALL)


def test_nothing_is_silently_wrong() -> None:
    wrong = [drafter.name for drafter in ALL if drafter.said.get("open", {}).get("is") == "wrong"]
    assert wrong == []


def test_an_engineer_is_asked_nothing_needless_about_nineteen_in_twenty() -> None:
    """Every case is held to its declaration above, so those without an open fault are settled as they say."""
    settled = [drafter for drafter in ALL if "open" not in drafter.said]
    assert len(settled) / len(ALL) >= SHARE, [drafter.name for drafter in ALL if "open" in drafter.said]
