"""The KV cache goes into the target by the name that its transformers has for it."""

from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eaglectl.reference.target_model import load_target  # noqa: E402
from tests.tiny import TARGET  # noqa: E402


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_has_the_name_of_the_models_argument(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target(TARGET, (2, 4, 5), dtype="float32", device="cpu")
    target.reset()
    own, seen = target.model.forward, []
    its_name = "cache" if "cache" in signature(own).parameters else "past_key_values"

    def renamed(*, cache: Any = None, **others: Any) -> Any:
        seen.append("cache")
        return own(**{its_name: cache}, **others)

    def old(*, past_key_values: Any = None, **others: Any) -> Any:
        seen.append("past_key_values")
        return own(**{its_name: past_key_values}, **others)

    monkeypatch.setattr(target.model, "forward", renamed if name == "cache" else old)
    tokens = torch.tensor([[5, 6, 7]])
    for start in (0, 3):
        positions = torch.arange(start, start + 3)[None]
        target.forward(tokens, positions, torch.ones(1, start + 3, dtype=torch.bool))
    assert seen == [name, name] and target.cache.get_seq_length() == 6
