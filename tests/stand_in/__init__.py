"""A stand-in of the package `vllm` for a test and the children of its process (README.md beside this)."""

from pathlib import Path

import pytest

from tests.conftest import FIXTURES

SITE = Path(__file__).parent


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Have `import vllm` find the stand-in; the file in `folder` where it keeps what its LLM was given."""
    given = folder / "given.json"
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("PYTHONPATH", f"{SITE}:{FIXTURES.parent}")
    monkeypatch.setenv("STAND_IN_GIVEN", str(given))
    return given
