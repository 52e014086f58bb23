"""The interface table against the installed SGLang: its sources, its imports and its arguments."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglectl.engines.releases import is_within
from tests.conftest import FIXTURES
from tests.engine.sglang.test_smoke_sglang import HOOKED
from tools.scan.interface import differences, has_names, names
from tools.scan.sources import Sources

PATIENCE = 600.0


@pytest.fixture(scope="module")
def sources() -> Sources:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    return Sources(Path(spec.origin).parent)


def test_the_sources_have_what_the_table_says_and_lack_what_it_says_they_lack(sources: Sources) -> None:
    found = {"engine": "sglang", "interface": has_names(sources)}
    assert found["interface"]
    assert differences(found, sources.release) == []


def test_what_is_imported_and_given_is_there(sources: Sources, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.interface_live", "sglang", str(answer)],
        cwd=FIXTURES.parent,
        env={**os.environ, **HOOKED, "EAGLECTL_TEST": str(tmp_path)},
        timeout=PATIENCE,
        check=True,
    )
    found = json.loads(answer.read_text())
    rows = {row.name: row for row in names("sglang")}
    spans = {name: rows[name].releases[""] for name in found}
    assert found == {
        name: span is not None and is_within(span, sources.release) for name, span in spans.items()
    }
    imports = {row.name for row in rows.values() if row.kind == "import"}
    assert imports - found.keys() <= {"sglang.srt.ray.engine.RayEngine"}  # it takes the package ray
