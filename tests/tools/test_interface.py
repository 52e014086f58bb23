"""The scan of what eaglectl takes from engines, on kept extracts of releases and small sources."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from eaglectl.engines.behaviour import is_within
from eaglectl.engines.data import FOLDER
from tests.builders import write_package
from tests.tools.trees import call_scan
from tools.scan import record_interface
from tools.scan.interface import Modules, has_names, names, split
from tools.scan.record_interface import ANSWERS, KEPT, kept_answers, packed, record, span, stated, written
from tools.scan.sources import Sources

ENGINES = ("vllm", "sglang")
EXTRACTS = sorted(KEPT.glob("*-*.json"))


def package(parent: Path, files: Mapping[str, str], name: str = "vllm", release: str = "") -> Path:
    """A folder that holds a package, as a wheel has it."""
    write_package(parent / name, {"__init__.py": "", **files}, {})
    if release:
        (parent / f"{name}-{release}.dist-info").mkdir()
    return parent


def unpacked(extract: Path, parent: Path) -> Path:
    """A kept extract as the folder that it was made of."""
    engine, _, release = extract.stem.rpartition("-")
    return package(parent, json.loads(extract.read_text()), engine, release)


def expected(engine: str, release: str) -> Mapping[str, list[str]]:
    """What the data says that a release has."""
    return {
        row.name: [part for part, text in row.releases.items() if text and is_within(text, release)]
        for row in names(engine)
    }


# the data and what is kept of each release


def test_the_files_are_as_the_tool_writes_them() -> None:
    tables = {engine: stated(engine, kept_answers(engine)) for engine in ENGINES}
    assert (FOLDER / "interface.json").read_text() == written(tables), "run tools.scan.record_interface"
    answers = {engine: packed(engine, kept_answers(engine)) for engine in ENGINES}
    assert ANSWERS.read_text() == written(answers)


@pytest.mark.parametrize("path", EXTRACTS, ids=lambda path: path.stem)
def test_the_scan_of_an_extract_gives_what_the_data_says_of_its_release(path: Path, tmp_path: Path) -> None:
    sources = Sources(unpacked(path, tmp_path))
    assert has_names(sources) == expected(sources.package, sources.release)


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
    before = ": holds before, does not hold in these sources"
    says = (before, " is gone; the draft model is that of `runner.drafter`")
    runners = ("V2", "V2 on CPUs")
    assert gone == [f"interface: runner.speculator ({runner}){text}" for text in says for runner in runners]
    assert "`python -m tools.scan.record_interface SOURCES`" in done.out
    assert "names of its interface" in done.out.splitlines()[0]


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


HELD = (
    "a.py", "sub/__init__.py", "a.py: value", "a.py: typed", "a.py: function", "a.py: later", "a.py: Own",
    "a.py: renamed", "a.py: Base", "a.py: again", "a.py: Late", "a.py: fast", "a.py: Own.field",
    "a.py: Own.constant", "a.py: Own.made", "a.py: Own.also", "a.py: Own.typed", "a.py: Own.read",
    "a.py: Own.method", "a.py: Own.method(parameter)", "a.py: function(word)", "a.py: function(first)",
    "a.py: Own.inherited", "a.py: Own.inherited(given)", "a.py: Own.set", "a.py: Own.deep",
    "a.py: Chosen.late", "a.py: Chosen.deep", "a.py: 'text'", "a.py: `@decorated\nclass Marked`",
    "sub/: Late", "sub/: *.late", "gone.py | a.py: value",
)  # fmt: skip


LACKED = (
    "gone.py", "gone.py: value", "a.py: first", "a.py: local", "a.py: other", "a.py: Own.local",
    "a.py: Own.word", "a.py: Own.parameter", "a.py: Own.method(word)", "a.py: function(parameter)",
    "a.py: value(first)", "a.py: Own.Base", "a.py: Loop.made", "a.py: 'documented'", "a.py: 'tex'",
    "a.py: `class Gone`", "sub/: value", "sub/: *.made", "a.py: self", "gone.py | a.py: gone",
)  # fmt: skip


def test_a_place_is_found_where_the_sources_have_it(tmp_path: Path) -> None:
    modules = Modules(Sources(package(tmp_path, FILES)))
    assert [place for place in (*HELD, *LACKED) if modules.hold(place)] == [*HELD]


@pytest.mark.parametrize("place", ["", "a.py:", "a.py: a b", "a.py: a.b.c", "a.py: f(a", ": name"])
def test_a_place_of_no_known_form_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        split(place)


# the tool that writes


def test_a_range_is_that_of_the_releases_that_have_the_name() -> None:
    ranges = {"yyy": ">=1.0", "nyy": ">=1.1", "yyn": ">=1.0,<=1.1", "nnn": None}
    assert {answers: span("x", answers, ["1.0", "1.1", "1.2"]) for answers in ranges} == ranges


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
