"""What changed in engines and was not looked at: the recorded releases, small packages, and the verdicts."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.engines.data import FOLDER
from tests.builders import drafter_folder, write_package
from tools.engine_data import data_from
from tools.scan import looked
from tools.scan.closure import Scope, reached
from tools.scan.looked import ENGINES, changes, entries, main, problems, recorded, unlooked, written
from tools.scan.sources import Sources

ROOTS = frozenset({"model.py: Model", "runner.py: Runner.draft"})
CUTS = {"kernels": frozenset({"kernels/", "loop.py: unused"})}
LIMITS = Scope(ROOTS, frozenset({"kernels/kept.py"}), CUTS, {"rotation": frozenset({"rope/"})})
FILES: Mapping[str, str] = {
    "model.py": """
from .rope import get_rope
from .kernels.fast import fast
from . import loop
class Base:
    def first(self):
        return loop.step()
class Model(Base):
    def __init__(self):
        self.rope = get_rope(1.0)
        fast()
""",
    "rope/__init__.py": "from .tables import get_rope\n",
    "rope/tables.py": """
BASE = 10000.0
def get_rope(factor):
    return BASE * factor
def other():
    return 1
""",
    "kernels/fast.py": "def fast():\n    pass\n",
    "kernels/kept.py": "def kept():\n    return 3\n",
    "loop.py": """
def step():
    from .kernels.kept import kept
    return kept() + unused()
def unused():
    pass
""",
    "runner.py": """
class Runner:
    LIMIT = 4
    def draft(self):
        return self.LIMIT
    def serve(self):
        pass
""",
}
ALL = {
    ("model.py", "Base"),
    ("model.py", "Base.first"),
    ("model.py", "Model"),
    ("model.py", "Model.__init__"),
    ("rope/tables.py", "BASE"),
    ("rope/tables.py", "get_rope"),
    ("loop.py", "step"),
    ("kernels/kept.py", "kept"),
    ("runner.py", "Runner.draft"),
}


def package(parent: Path, files: Mapping[str, str], release: str = "0.99.0") -> Sources:
    write_package(parent / "vllm", {"__init__.py": "", **files}, {})
    (parent / f"vllm-{release}.dist-info").mkdir()
    return Sources(parent)


# the recorded releases


def test_every_recorded_change_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "15 releases of vllm and 13 releases of sglang" in capsys.readouterr().out


def test_the_digests_are_as_the_tool_writes_them() -> None:
    assert looked.DIGESTS.read_text() == written({engine: recorded(engine) for engine in ENGINES})


@pytest.mark.parametrize("engine", ENGINES)
def test_every_entry_is_of_a_change_and_says_what_was_read(engine: str) -> None:
    pairs = {(before, release): differing for before, release, differing in changes(recorded(engine))}
    for entry in entries(engine):
        differing = pairs[entry.before, entry.release]
        stated = {f"{entry.topic}: {path}": digest for path, digest in entry.files.items()}
        assert stated and stated.items() <= differing.items() and len(entry.read) > 10


YARN = "model_executor/layers/rotary_embedding/yarn_scaling_rope.py"
Change = Callable[[dict[str, Any]], object]


def _without(release: str, topic: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        data["vllm"] = [row for row in data["vllm"] if (row["to"], row["topic"]) != (release, topic)]

    return change


def _other_digest(data: dict[str, Any]) -> None:
    (row,) = [row for row in data["vllm"] if (row["to"], row["topic"]) == ("0.30.0", "rotation")]
    row["files"] |= {YARN: "0123456789ab"}


def _blank(data: dict[str, Any]) -> None:
    data["sglang"][0]["read"] = ""


def _other_word(data: dict[str, Any]) -> None:
    data["sglang"][0]["means"] = ["no-such-fact"]


def changed(change: Change, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(looked.LOOKED.read_text())
    change(data)
    (parent / "looked.json").write_text(json.dumps(data))
    monkeypatch.setattr(looked, "LOOKED", parent / "looked.json")


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (_without("0.31.0", "positions"), []),
        (
            _without("0.33.0", "positions"),
            ["vllm 0.33.0: positions: config/speculative.py\n", '"from": "0.32.0", "to": "0.33.0"'],
        ),
        (_other_digest, [f"vllm 0.30.0: rotation: {YARN}\n"]),
        (_blank, ["sglang 0.5.13.post1: proposal loop: srt/speculative/eagle_worker_v2.py\n"]),
        (_other_word, ["no fact or key is named no-such-fact"]),
    ],
)
def test_a_change_without_an_entry_of_its_own_fails(
    change: Change,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed(change, tmp_path, monkeypatch)
    assert main([]) == (1 if lines else 0)
    out = capsys.readouterr().out
    assert all(line in out for line in lines)
    assert ("all changes" in out) == (change is _other_word or not lines)


def test_the_data_has_to_name_the_topics_of_a_release_that_nobody_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(_without("0.33.0", "positions"), tmp_path, monkeypatch)
    (wrong,) = problems("vllm", recorded("vllm"))
    assert wrong == 'vllm_releases.json: `unlooked` has to be {"0.33.0": ["positions"]}'
    with data_from(_unlooked({"0.33.0": ["positions"]}, tmp_path)):
        assert [*problems("vllm", recorded("vllm"))] == []


def test_a_known_release_without_digests_is_named() -> None:
    table = {release: files for release, files in recorded("vllm").items() if release != "0.26.0"}
    assert any(line.startswith("vllm 0.26.0: no digests") for line in problems("vllm", table))


def test_a_new_release_is_compared_with_the_last_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rotary = "model_executor/layers/rotary_embedding/__init__.py"
    package(tmp_path, {rotary: "def get_rope(factor):\n    return factor\n"})
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "vllm 0.99.0: rotation: " in out and '"from": "0.33.0", "to": "0.99.0"' in out
    # what the release no longer has
    assert '"model_executor/models/llama_eagle3.py": null' in out


def test_two_releases_are_needed_for_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--diff", str(tmp_path)]) == 2
    assert "--diff needs two sources" in capsys.readouterr().err


def test_a_folder_without_an_engine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 3
    assert "it has to hold one Python package of vllm, sglang" in capsys.readouterr().err


# what a drafter's outcome depends on


def test_the_definitions_are_followed_through_imports_up_to_the_cuts(tmp_path: Path) -> None:
    assert reached(package(tmp_path, FILES), LIMITS).keys() == ALL


@pytest.mark.parametrize(
    ("file", "old", "new", "is_seen"),
    [
        ("rope/tables.py", "BASE = 10000.0", "BASE = 500000.0", True),
        ("rope/tables.py", "BASE * factor", "BASE / factor", True),
        ("kernels/kept.py", "return 3", "return 4", True),
        ("model.py", "get_rope(1.0)", "get_rope(2.0)", True),
        ("runner.py", "return self.LIMIT", "return self.LIMIT - 1", True),
        ("rope/tables.py", "return 1", "return 2", False),
        ("rope/tables.py", "(factor):", '(factor: float) -> float:\n    """Documentation."""', False),
        (
            "rope/tables.py",
            "    return BASE",
            "    # a comment\n    logger.info(1)\n    return  BASE",
            False,
        ),
        ("kernels/fast.py", "pass", "return 1", False),
        ("loop.py", "unused():\n    pass", "unused():\n    return 1", False),
        ("runner.py", "serve(self):\n        pass", "serve(self):\n        return 1", False),
    ],
)
def test_a_change_is_seen_where_it_can_decide_something(
    file: str, old: str, new: str, is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looked, "scope", lambda engine: LIMITS)
    assert FILES[file].count(old) == 1
    (before, after) = (
        looked.digests(package(tmp_path / name, files))
        for name, files in (("a", FILES), ("b", {**FILES, file: FILES[file].replace(old, new)}))
    )
    assert before.keys() == after.keys() and (before != after) == is_seen
    assert {name.partition(":")[0] for name in before} == {"other", "rotation"}


# what the product says of a release with such a change


def _unlooked(topics: Mapping[str, list[str]], parent: Path) -> Path:
    copy = parent / "data"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = copy / "vllm_releases.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unlooked": topics}))
    return copy


@pytest.mark.parametrize(
    ("topics", "outcome"),
    [
        ([], "as trained"),
        (["rotation"], "unknown"),
        (["quantisation"], "as trained"),
        (["vocabulary"], "unknown"),
    ],
)
def test_a_release_with_a_change_that_nobody_looked_at_is_unknown_for_the_drafters_it_concerns(
    topics: list[str], outcome: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path)
    with data_from(_unlooked({"0.33.0": topics}, tmp_path)):
        before, last = eaglectl.inspect(str(folder), engines=["vllm==0.33.0", "vllm==0.32.0"]).requested
        report = eaglectl.validate(folder, engines=["vllm==0.33.0"])
    assert (last.outcome, before.outcome) == (outcome, "as trained")
    if outcome == "unknown":
        assert last.reasons == (f"vLLM 0.33.0 changed its {topics[0]}, and nobody has looked at the change",)
    assert report.verdict == ("could-not-look" if outcome == "unknown" else "pass")


def test_a_known_fault_comes_before_a_change_that_nobody_looked_at(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"hidden_act": "gelu"})
    with data_from(_unlooked({"0.33.0": ["rotation"]}, tmp_path)):
        (verdict,) = eaglectl.inspect(str(folder), engines=["vllm==0.33.0"]).requested
    assert verdict.outcome == "fails"


def test_no_change_of_the_recorded_releases_is_unlooked() -> None:
    assert [unlooked(engine, recorded(engine), entries(engine)) for engine in ENGINES] == [[], []]
