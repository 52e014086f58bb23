"""Tests on a GPU, by `make test-gpu`; EAGLECTL_DEVICE=cpu runs the same code where there is none."""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import changed
from tests.gpu.results import FIGURES, pytest_runtest_logreport
from tests.real.conftest import real_target
from tests.tiny import TARGET, TINY

__all__ = ["pytest_runtest_logreport", "real_target"]

DEVICE = os.environ.get("EAGLECTL_DEVICE", "cuda")


def installed(engine: str) -> None:
    """Skip the test where this Python has no such engine."""
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed for this Python")


def restated(folder: Path, **config: Any) -> Path:
    """The tiny drafter in vLLM's layout with these keys of its config, and no record of what they were."""
    import eaglectl

    eaglectl.convert(str(TINY / "eagle3"), folder, target=str(TARGET))
    (folder / "eaglectl.json").unlink()
    (folder / "config.json").write_text(json.dumps(changed(folder, **config)))
    return folder


@pytest.fixture
def device() -> str:
    """The device; the test is skipped, with the reason, where it is a GPU and torch sees none."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        pytest.skip(
            f"torch {torch.__version__} (built for {built}) sees no GPU; EAGLECTL_DEVICE=cpu tests the code"
        )
    return DEVICE


@pytest.fixture
def figures(device: str, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Records figures, with the device's name, which are printed after the tests."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"

    def record(**values: object) -> None:
        record_property(FIGURES, {"device": name, "torch": torch.__version__, **values})

    return record


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Path], Path]:
    """A drafter in vLLM's layout, whose tensor names are canonical."""
    import eaglectl

    made: dict[Path, Path] = {}

    def convert(drafter: Path, target: Path) -> Path:
        if drafter not in made:
            out = tmp_path_factory.mktemp("converted") / drafter.name
            eaglectl.convert(str(drafter), out, target=str(target), force_unserved=True, measure=None)
            made[drafter] = out
        return made[drafter]

    return convert
