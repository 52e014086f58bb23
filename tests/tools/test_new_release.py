"""A release of vLLM that does not exist, with other default layers and without the V1 runner.

One entry and one scan.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import eaglectl
from eaglectl.drafter.boundaries import TRAINING_DEFAULT, DefaultLayers
from eaglectl.engines import vllm
from eaglectl.engines.behaviour import merge
from eaglectl.engines.data import FOLDER
from eaglectl.engines.layers import IDS
from eaglectl.errors import UnreadableError
from eaglectl.formats.format import Answers
from eaglectl.operations.validating import ValidateOptions
from tests.builders import ABSENT, HIDDEN, call, drafter_folder, floats
from tests.conftest import FIXTURES
from tests.tools.calls import call_scan
from tests.tools.trees import SCANS, tree
from tools.engine_data import data_from
from tools.scan.scanner import Difference, compare, entry, scan

ENTRY: Mapping[str, Any] = {
    "range": ">=0.99.0",
    "releases": ["0.99.0"],
    "source": "no release",
    "run_in": {},
    "runners": {"V1": None, "V2": {"default_layers": [{"value": "(1, n//2, n-2)"}]}},
}
SCAN: Mapping[str, Any] = json.loads(SCANS[0].with_name("vllm-0.33.0.json").read_text()) | {
    "release": "0.99.0",
    "runners": ["V2"],
    "aux_ids": {"V1": None, "V2": [IDS, "target_layer_ids", "eagle_config.layer_ids"]},
    "default_aux_layers": "(1, n // 2, n - 2)",
}
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": HIDDEN,
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
    copy.mkdir()
    for file in FOLDER.glob("*.json"):
        shutil.copy(file, copy)
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


def target(parent: Path) -> str:
    path = parent / "target"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**TARGET, "vocab_size": 128}))
    return str(path)


def outcomes(drafter: Path, **options: Any) -> list[str]:
    inspection = eaglectl.inspect(str(drafter), engines=ENGINES, **options)
    return [verdict.outcome for verdict in inspection.requested]


def test_the_release_is_known_while_its_data_is_in_use(tmp_path: Path) -> None:
    with data_from(with_entry(tmp_path, ENTRY)):
        assert vllm.ENGINE.releases[-2:] == ("0.33.0", "0.99.0")
        assert list(vllm.ENGINE.behaviour("0.99.0").runners) == ["V2"]
        assert list(vllm.ENGINE.behaviour("0.33.0").runners) == ["V1", "V2"]
    assert vllm.ENGINE.releases[-1] != "0.99.0"


@pytest.mark.usefixtures("new_release")
@pytest.mark.parametrize("has_target", [True, False])
def test_a_drafter_without_ids_is_judged_by_the_default_of_each_release(
    tmp_path: Path, has_target: bool
) -> None:
    drafter = drafter_folder(tmp_path, config=NO_IDS)
    options = {"target": target(tmp_path)} if has_target else {}
    assert outcomes(drafter, **options) == ["as trained", "differs"]
    report = eaglectl.validate(str(drafter), ValidateOptions(engines=ENGINES, **options))
    assert [verdict.outcome.check for verdict in report.releases] == ["pass", "fail"]
    (rule,) = report.releases[1].rules
    assert rule == "EGL1036"
    layers = "the default, boundaries [1, 4, 6]" if has_target else "the default (1, n//2, n-2)"
    assert f"({layers}, V2 runner)" in report.releases[1].reasons[0]


@pytest.mark.usefixtures("new_release")
def test_a_drafter_trained_on_the_new_default_differs_in_the_release_before(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=NO_IDS)
    answers = Answers(aux_layers=(1, 4, 6))
    assert outcomes(drafter, target=target(tmp_path), answers=answers) == ["differs", "as trained"]


@pytest.mark.usefixtures("new_release")
def test_a_drafter_with_ids_is_served_by_both(tmp_path: Path) -> None:
    assert outcomes(drafter_folder(tmp_path)) == ["as trained", "as trained"]


@pytest.mark.usefixtures("new_release")
def test_parallel_drafting_fails_without_the_runner_that_has_it(tmp_path: Path) -> None:
    mask = {"mask_hidden": floats("mask_hidden", 1, 3 * HIDDEN)}
    drafter = drafter_folder(tmp_path, config={"mask_token_id": 3}, tensors=mask)
    assert outcomes(drafter) == ["as trained", "fails"]
    report = eaglectl.validate(str(drafter), ValidateOptions(engines=ENGINES))
    assert [verdict.outcome.check for verdict in report.releases] == ["pass", "fail"]
    assert report.releases[1].rules == ("EGL1078",) and "(it has V2)" in report.releases[1].reasons[0]
    assert any("no known release" in text or "nothing written" in text for text in report.smallest_changes)


@pytest.mark.usefixtures("new_release")
def test_inspect_shows_what_the_newest_release_captures(tmp_path: Path) -> None:
    inspection = eaglectl.inspect(str(drafter_folder(tmp_path, config=NO_IDS)), target=target(tmp_path))
    captured = {reading.engine: reading.boundaries for reading in inspection.captured_layers}
    assert captured["vLLM, V2 runner"] == (1, 4, 6) and captured["SGLang"] == (2, 4, 5)
    assert "vLLM, V1 runner" not in captured
    newest = [verdict for verdict in inspection.verdicts if verdict.engine == "vllm"][-1]
    assert newest.release == "0.99.0" and newest.outcome == "differs"


@pytest.mark.usefixtures("new_release")
def test_the_table_of_engines_has_the_release() -> None:
    text = call("-v", "engines").out
    assert "vLLM  0.10.0 - 0.99.0" in text and "V2 in 0.29.0 - 0.99.0" in text and "0.22.0 - 0.99.0" in text
    document = call("engines", "--json").document
    assert document["engines"][0]["releases"][-1]["runners"] == ["V2"]
    assert document["engines"][0]["releases"][-1]["run"] == []


@pytest.mark.usefixtures("new_release")
def test_what_engines_prints_of_layers_without_ids_is_the_data_s() -> None:
    text = call("-v", "engines").out
    defaults = "(2, n//2, n-3) in 0.10.0 - 0.33.0; (1, n//2, n-2) in 0.99.0"
    assert f"boundaries without layer ids: {defaults}" in " ".join(text.split())


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
        Difference("without ids the layers are (2, n // 2, n - 3)", True, False),
    ]


def test_the_entry_of_a_scan_is_the_one_to_add(tmp_path: Path) -> None:
    made = entry(SCAN, "0.33.0")
    assert {**made, "source": "no release"} == ENTRY
    with data_from(with_entry(tmp_path, made)):
        assert compare(SCAN, "0.99.0") == []


def test_the_command_prints_an_entry_that_can_be_pasted(tmp_path: Path) -> None:
    sources = tree(
        tmp_path, interfaces=("2, num_layers // 2, num_layers - 3", "1, num_layers // 2, num_layers - 2")
    )
    (sources / "vllm/v1/worker/gpu_model_runner.py").unlink()
    (sources / "vllm-0.99.0.dist-info").mkdir()
    done = call_scan(sources)
    text = done.out.split("vllm_releases.json:\n")[1].split("and keep the scan")[0]
    assert done.code == 1 and json.loads(text)["runners"] == ENTRY["runners"]
    assert (
        "which targets it captures layers of: record them" in done.out
        and "show only when the engine runs" in done.out
    )
    with data_from(with_entry(tmp_path, json.loads(text))):
        assert call_scan(sources).code == 0


def test_what_no_entry_settles_is_left_to_decide(tmp_path: Path) -> None:
    sources = tree(tmp_path, llama_eagle3=('getattr(self.config, "norm_output", False)', "False"))
    found = scan(sources)
    assert any("norm-output-absent" in text and "'<0.22.0'" in text for text in found.undecided)
    assert any("which release" in text for text in found.undecided)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"runners": {"V3": {"ids": []}}}, "missing required field"),
        ({"runners": {"V2": {"adds_one": [{"value": "sometimes"}]}}}, "sometimes"),
        ({"flags": None}, "flags"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_its_reason(
    change: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    with data_from(with_entry(tmp_path, {**ENTRY, **change})), pytest.raises(ValueError, match=reason):
        vllm.ENGINE.behaviour("0.99.0")


def test_a_release_is_unknown_again_without_its_data(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no known release fits"):
        outcomes(drafter_folder(tmp_path))


def test_changes_are_merged_key_by_key() -> None:
    before = {"a": {"b": 1, "c": 2}, "d": [1, 2]}
    assert merge(before, {"a": {"b": None, "e": 3}, "d": [3]}) == {"a": {"c": 2, "e": 3}, "d": [3]}
    assert before == {"a": {"b": 1, "c": 2}, "d": [1, 2]}


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


def test_a_default_is_worded_in_one_way() -> None:
    assert str(DefaultLayers("( 2,n // 2,n - 3 )")) == str(TRAINING_DEFAULT) == "(2, n//2, n-3)"
    assert TRAINING_DEFAULT.words == "the default (2, n//2, n-3)" and TRAINING_DEFAULT.at(61) == (2, 30, 58)
