"""One entry and one scan of a release of vLLM that does not exist: other default layers, no V1 runner."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import eaglectl
from eaglectl.drafter.drafter import DefaultLayers
from eaglectl.engines.behaviour import IDS
from eaglectl.engines.data import FOLDER
from tests.builders import ABSENT, HIDDEN, drafter_folder, floats, target_of
from tests.conftest import FIXTURES
from tests.tools.trees import SCANS, call_scan, scan, tree
from tools.engine_data import data_from
from tools.scan.scanner import Difference, compare

ENTRY: Mapping[str, Any] = {
    "range": ">=0.99.0",
    "releases": ["0.99.0"],
    "source": "no release",
    "runners": {"V1": None, "V2": {"default_layers": [{"value": "(1, n//2, n-2)"}]}},
}
SCAN: Mapping[str, Any] = scan(SCANS[0].with_name("vllm-0.33.0.json")) | {
    "release": "0.99.0",
    "runners": ["V2"],
    "aux_ids": {
        "V1": None,
        "V2": [
            IDS,
            "dflash_config.target_layer_ids",
            "target_layer_ids",
            "dflash_config.layer_ids",
            "eagle_config.layer_ids",
        ],
    },
    "default_aux_layers": "(1, n // 2, n - 2)",
}
NO_IDS = {IDS: ABSENT, "eagle_config": ABSENT}
ENGINES = ("vllm==0.33.0", "vllm==0.99.0")


def _up_to_033(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in entries:
        releases = [release for release in row["releases"] if Version(release) <= Version("0.33.0")]
        if releases:
            yield {**row, "releases": releases}


def with_entry(parent: Path, added: Mapping[str, Any]) -> Path:
    """A copy of the data files up to vLLM 0.33.0, whose vllm_releases.json has one more entry."""
    copy = parent / "data"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = copy / "vllm_releases.json"
    data = json.loads(path.read_text())
    data["behaviour"] = [*_up_to_033(data["behaviour"]), added]
    path.write_text(json.dumps(data))
    targets = copy / "vllm_targets.json"
    stated = json.loads(targets.read_text())
    stated["read"]["0.99.0"] = stated["read"]["0.33.0"]
    targets.write_text(json.dumps(stated))
    return copy


@pytest.fixture
def new_release(tmp_path: Path) -> Iterator[None]:
    with data_from(with_entry(tmp_path, ENTRY)):
        yield


def outcomes(drafter: Path, **options: Any) -> list[str]:
    inspection = eaglectl.inspect(str(drafter), engines=ENGINES, **options)
    return [verdict.outcome for verdict in inspection.requested]


@pytest.mark.usefixtures("new_release")
@pytest.mark.parametrize("has_target", [True, False])
def test_a_drafter_without_ids_is_judged_by_the_default_of_each_release(
    tmp_path: Path, has_target: bool
) -> None:
    drafter = drafter_folder(tmp_path, config=NO_IDS)
    options: dict[str, Any] = {"target": str(target_of(tmp_path / "target"))} if has_target else {}
    assert outcomes(drafter, **options) == ["as trained", "differs"]
    report = eaglectl.validate(drafter, engines=ENGINES, **options)
    assert [verdict.outcome.check for verdict in report.releases] == ["pass", "fail"]
    assert report.releases[1].rules == ("EGL1036",)
    layers = "the default, boundaries [1, 4, 6]" if has_target else "the default (1, n//2, n-2)"
    assert f"({layers}, V2 runner)" in report.releases[1].reasons[0]


@pytest.mark.usefixtures("new_release")
def test_parallel_drafting_fails_without_the_runner_that_has_it(tmp_path: Path) -> None:
    mask = {"mask_hidden": floats("mask_hidden", 1, 3 * HIDDEN)}
    drafter = drafter_folder(tmp_path, config={"mask_token_id": 3}, tensors=mask)
    assert outcomes(drafter) == ["as trained", "fails"]
    report = eaglectl.validate(drafter, engines=ENGINES)
    assert [verdict.outcome.check for verdict in report.releases] == ["pass", "fail"]
    assert report.releases[1].rules == ("EGL1078",) and "(it has V2)" in report.releases[1].reasons[0]
    assert any("no later release serves it" in text for text in report.smallest_changes)


@pytest.mark.usefixtures("new_release")
def test_inspect_shows_what_the_newest_release_captures(tmp_path: Path) -> None:
    drafter, target = drafter_folder(tmp_path, config=NO_IDS), target_of(tmp_path / "target")
    inspection = eaglectl.inspect(drafter, target=str(target))
    captured = {reading.engine: reading.boundaries for reading in inspection.captured_layers}
    assert captured["vLLM, V2 runner"] == (1, 4, 6) and captured["SGLang"] == (2, 4, 5)
    assert "vLLM, V1 runner" not in captured
    newest = [verdict for verdict in inspection.verdicts if verdict.engine == "vllm"][-1]
    assert newest.release == "0.99.0" and newest.outcome == "differs"


@pytest.mark.parametrize("page", ["serve.md", "low-acceptance.md", "questions.md"])
def test_no_page_states_an_engine_s_default_layers_by_hand(page: str) -> None:
    prose = (FIXTURES.parent / "docs" / page).read_text().split("```")[::2]
    assert not any("n//2" in part for part in prose)


def test_the_scan_agrees_with_the_entry(tmp_path: Path) -> None:
    with data_from(with_entry(tmp_path, ENTRY)):
        assert compare(SCAN, "0.99.0") == []


def test_without_the_entry_the_scan_shows_every_difference() -> None:
    assert compare(SCAN, "0.33.0") == [
        Difference("the V1 runner has EAGLE-3", True, False),
        Difference("ids are read at the top of the config (V1 runner)", True, False),
        Difference("ids are read in eagle_config (V1 runner)", True, False),
        Difference("ids are read in dflash_config.target_layer_ids (V1 runner)", True, False),
        Difference("without ids the layers are (2, n // 2, n - 3)", True, False),
    ]


def test_the_command_prints_an_entry_that_can_be_pasted(tmp_path: Path) -> None:
    layers = "2, num_layers // 2, num_layers - 3"
    sources = tree(tmp_path, interfaces=(layers, "1, num_layers // 2, num_layers - 2"))
    (sources / "vllm/v1/worker/gpu_model_runner.py").unlink()
    (sources / "vllm-0.99.0.dist-info").mkdir()
    done = call_scan(sources)
    text = done.out.split("vllm_releases.json:\n")[1].split("and keep the scan")[0]
    assert done.code == 1 and json.loads(text)["runners"] == ENTRY["runners"]
    assert "which targets it captures layers of: record them" in done.out
    assert "show only when the engine runs" in done.out
    with data_from(with_entry(tmp_path, json.loads(text))):
        assert call_scan(sources).code == 0


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("(2, n // 2, n - 3)", "(2, n//2, n-3)", True),
        ("(1, n//2, n-2)", "(2, n//2, n-3)", False),
        ("(2, n//2, n-3)", "(2, (n+1)//2, n-3)", None),
    ],
)
def test_defaults_are_the_same_for_every_depth_or_none_or_some(
    text: str, other: str, same: bool | None
) -> None:
    assert DefaultLayers(text).same_as(DefaultLayers(other)) is same
