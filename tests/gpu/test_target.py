"""The real target, made once before the parts that run it."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_real_target_is_there(device: str, real_target: Path, figures: Callable[..., None]) -> None:
    size = (real_target / "model.safetensors").stat().st_size
    figures(megabytes=round(size / 1e6))
    assert size > 500_000_000
