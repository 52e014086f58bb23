"""The scan of what eaglectl takes from engines, on kept extracts of releases and small sources."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from eaglectl.engines.data import FOLDER, read
from eaglectl.engines.releases import is_within
from eaglectl.errors import UnreadableError
from tests.tools.calls import call_scan
from tools.engine_data import data_from
from tools.scan import record_interface
from tools.scan.interface import Modules, consequences, differences, has_names, names, split
from tools.scan.record_interface import ANSWERS, KEPT, kept_answers, packed, record, span, stated, written
from tools.scan.scanner import extracted
from tools.scan.sources import Sources

ENGINES = ("vllm", "sglang")
EXTRACTS = sorted(KEPT.glob("*-*.json"))


def package(parent: Path, files: Mapping[str, str], name: str = "vllm", release: str = "") -> Path:
    """A folder that holds a package, as a wheel has it."""
    for path, text in {"__init__.py": "", **files}.items():
        (file := parent / name / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if release:
        (parent / f"{name}-{release}.dist-info").mkdir(exist_ok=True)
    return parent


def unpacked(extract: Path, parent: Path) -> Path:
    """A kept extract as the folder that it was made of."""
    engine, _, release = extract.stem.rpartition("-")
    return package(parent, json.loads(extract.read_text()), engine, release)


def expected(engine: str, release: str) -> Mapping[str, list[str]]:
    """What the data says that a release has."""
    return {
        row.name: [
            part for part, text in row.releases.items() if text is not None and is_within(text, release)
        ]
        for row in names(engine)
    }


# the data and what is kept of each release


@pytest.mark.parametrize("engine", ENGINES)
def test_the_releases_of_each_name_are_those_that_sources_showed(engine: str) -> None:
    assert stated(engine, kept_answers(engine)) == read("interface.json")[engine]


def test_the_files_are_as_the_tool_writes_them() -> None:
    tables = {engine: stated(engine, kept_answers(engine)) for engine in ENGINES}
    assert (FOLDER / "interface.json").read_text() == written(tables), "run tools.scan.record_interface"
    answers = {engine: packed(engine, kept_answers(engine)) for engine in ENGINES}
    assert ANSWERS.read_text() == written(answers)


@pytest.mark.parametrize("path", EXTRACTS, ids=lambda path: path.stem)
def test_the_scan_of_an_extract_gives_what_the_data_says_of_its_release(path: Path, tmp_path: Path) -> None:
    sources = Sources(unpacked(path, tmp_path))
    assert has_names(sources) == expected(sources.package, sources.release)


def test_extracts_are_kept_of_the_oldest_and_the_newest_release() -> None:
    ends = [(engine, read("interface.json")[engine]["read"]) for engine in ENGINES]
    kept = {f"{engine}-{release}" for engine, read_ in ends for release in (read_[0], read_[-1])}
    assert kept == {path.stem for path in EXTRACTS}


# a release that lacks something


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """vLLM's newest release, whose V2 runner calls its speculator otherwise, as 0.99.0."""
    folder = unpacked(KEPT / "vllm-0.33.0.json", tmp_path)
    (tmp_path / "vllm-0.33.0.dist-info").rename(tmp_path / "vllm-0.99.0.dist-info")
    runner = folder / "vllm/v1/worker/gpu/model_runner.py"
    assert "self.speculator" in runner.read_text()
    runner.write_text(runner.read_text().replace("self.speculator", "self.proposer"))
    return folder


def test_the_scan_of_a_new_release_says_what_of_the_interface_it_lacks(changed: Path) -> None:
    done = call_scan(changed)
    assert done.code == 1
    gone = [line.strip() for line in done.out.splitlines() if line.strip().startswith("interface: ")]
    assert gone == [
        "interface: runner.speculator (V2): holds before, does not hold in these sources",
        "interface: runner.speculator (V2 on CPUs): holds before, does not hold in these sources",
        "interface: runner.speculator (V2) is gone; the draft model is that of `runner.drafter`",
        "interface: runner.speculator (V2 on CPUs) is gone; the draft model is that of `runner.drafter`",
    ]
    assert "`python -m tools.scan.record_interface SOURCES`" in done.out
    assert "names of its interface" in done.out.splitlines()[0]


def test_a_name_that_is_there_again_is_told_too(tmp_path: Path) -> None:
    folder = unpacked(KEPT / "vllm-0.22.0.json", tmp_path)
    backends = folder / "vllm/v1/attention/backends/registry.py"
    backends.write_text("class AttentionBackendEnum:\n    CPU_MLA = 1")
    found = {"engine": "vllm", "release": "0.22.0", "interface": has_names(Sources(folder))}
    names_ = ("backend: CPU_MLA", "attention_backend: CPU_MLA")
    told = [*consequences(found, differences(found, "0.22.0"))]
    assert told == [f"interface: {name} is there now" for name in names_]


def test_releases_before_the_first_that_was_read_are_not_compared() -> None:
    found = {"engine": "vllm", "interface": {"vllm.LLM": []}}
    assert differences(found, "0.21.0") == []
    assert len(differences(found, "0.22.0")) == 1


def test_a_name_that_was_not_looked_for_is_no_difference() -> None:
    assert differences({"engine": "vllm", "interface": {}}, "0.22.0") == []


def test_sources_without_the_engines_entry_point_are_too_few_to_look_at(tmp_path: Path) -> None:
    assert extracted(package(tmp_path, {"outputs.py": ""}))["interface"] is None


# places in sources

FILES = {
    "a.py": """
import x.y as renamed
from .sub.b import Base, other as again
if True:
    from vllm.sub.c import Late
else:
    Late = Base
try:
    import fast
except ImportError:
    def fast(): ...
value = 1
typed: int = 2
def function(first, *, word=1): "'documented'"
async def later(first): ...
class Own(Base):
    field: int
    constant = 1
    def __init__(self):
        local = 3
        self.made, self.also = 1, 2
        self.typed: int = 3
    @property
    def read(self): return 'text'
    def method(self, parameter): ...
class Loop(Loop): pass
class Chosen(Late): pass
@decorated
class Marked: pass
""",
    "sub/__init__.py": "",
    "sub/b.py": "from ..root import Root\nclass Base(Root[int]):\n def inherited(self, given): self.set = 1",
    "sub/c.py": "class Late:\n    late = 1",
    "root.py": "class Root:\n    deep = 1",
}


@pytest.mark.parametrize(
    "place",
    [
        "a.py",
        "sub/__init__.py",
        "a.py: value",
        "a.py: typed",
        "a.py: function",
        "a.py: later",
        "a.py: Own",
        "a.py: renamed",
        "a.py: Base",
        "a.py: again",
        "a.py: Late",
        "a.py: fast",
        "a.py: Own.field",
        "a.py: Own.constant",
        "a.py: Own.made",
        "a.py: Own.also",
        "a.py: Own.typed",
        "a.py: Own.read",
        "a.py: Own.method",
        "a.py: Own.method(parameter)",
        "a.py: function(word)",
        "a.py: function(first)",
        "a.py: Own.inherited",
        "a.py: Own.inherited(given)",
        "a.py: Own.set",
        "a.py: Own.deep",
        "a.py: Chosen.late",
        "a.py: Chosen.deep",
        "a.py: 'text'",
        "a.py: `@decorated\nclass Marked`",
        "sub/: Late",
        "sub/: *.late",
        "gone.py | a.py: value",
    ],
)
def test_a_place_that_the_sources_have_is_found(place: str, tmp_path: Path) -> None:
    assert Modules(Sources(package(tmp_path, FILES))).hold(place)


@pytest.mark.parametrize(
    "place",
    [
        "gone.py",
        "gone.py: value",
        "a.py: first",
        "a.py: local",
        "a.py: other",
        "a.py: Own.local",
        "a.py: Own.word",
        "a.py: Own.parameter",
        "a.py: Own.method(word)",
        "a.py: function(parameter)",
        "a.py: value(first)",
        "a.py: Own.Base",
        "a.py: Loop.made",
        "a.py: 'documented'",
        "a.py: 'tex'",
        "a.py: `class Gone`",
        "sub/: value",
        "sub/: *.made",
        "a.py: self",
        "gone.py | a.py: gone",
    ],
)
def test_a_place_that_the_sources_lack_is_not_found(place: str, tmp_path: Path) -> None:
    assert not Modules(Sources(package(tmp_path, FILES))).hold(place)


@pytest.mark.parametrize("place", ["", "a.py:", "a.py: a b", "a.py: a.b.c", "a.py: f(a", ": name"])
def test_a_place_of_no_known_form_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        split(place)


# the tool that writes


def test_a_range_is_that_of_the_releases_that_have_the_name() -> None:
    releases = ["1.0", "1.1", "1.2"]
    assert span("x", "yyy", releases) == ">=1.0"
    assert span("x", "nyy", releases) == ">=1.1"
    assert span("x", "yyn", releases) == ">=1.0,<=1.1"
    assert span("x", "nnn", releases) is None


@pytest.mark.parametrize(("marks", "words"), [("yny", "lack it"), ("y?y", "was not looked for in 1.1")])
def test_what_no_range_says_is_refused(marks: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        span("x", marks, ["1.0", "1.1", "1.2"])


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the files that the tool writes."""
    shutil.copytree(KEPT, tmp_path / "kept")
    (tmp_path / "data").mkdir()
    shutil.copy(FOLDER / "interface.json", tmp_path / "data")
    for name, path in (("KEPT", "kept"), ("ANSWERS", "kept/answers.json"), ("FOLDER", "data")):
        monkeypatch.setattr(record_interface, name, tmp_path / path)
    return tmp_path


def test_recording_an_extract_again_changes_nothing(copies: Path, tmp_path: Path) -> None:
    record([unpacked(path, tmp_path / path.stem) for path in EXTRACTS])
    assert (copies / "kept/answers.json").read_text() == ANSWERS.read_text()
    assert (copies / "data/interface.json").read_text() == (FOLDER / "interface.json").read_text()


def test_recording_a_new_release_writes_what_it_lacks(copies: Path, changed: Path) -> None:
    record([changed])
    rows = json.loads((copies / "data/interface.json").read_text())["vllm"]
    row = next(row for row in rows["names"] if row["name"] == "runner.speculator")
    assert rows["read"][-1] == "0.99.0"
    assert row["releases"]["V2"] == ">=0.22.0,<=0.33.0"
    assert row["releases"]["V1"] is None
    assert (copies / "kept/vllm-0.99.0.json").exists()


def test_a_name_that_is_declared_anew_asks_for_the_sources_of_every_release(copies: Path) -> None:
    path = copies / "data/interface.json"
    data = json.loads(path.read_text())
    data["vllm"]["names"].append({"name": "x", "kind": "import", "where": {"": "x.py"}})
    path.write_text(json.dumps(data))
    with (
        data_from(copies / "data"),
        pytest.raises(UnreadableError, match=r"x was not looked for in 0\.22\.0"),
    ):
        record([])


def test_sources_that_cannot_be_scanned_end_with_exit_code_3(
    copies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["record_interface", str(package(tmp_path / "few", {}))])
    assert record_interface.main() == 3
    assert "does not hold the engine's entry point" in capsys.readouterr().err
