"""Where each tensor of a drafter goes in SGLang, which parameters get none, and what it then captures."""

from collections.abc import Iterator
from typing import Any

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def watch(cls: type, seen: dict[str, Any]) -> None:
    """Have `cls` note in `seen` what its loader leaves out; parameters are filled with NaN while it runs."""
    load = cls.load_weights  # type: ignore[attr-defined]

    def load_weights(self: Any, weights: Any) -> Any:
        parameters = {name: p for name, p in self.named_parameters() if p.dtype in FLOATS}
        initial = {name: p.detach().clone() for name, p in parameters.items()}
        for parameter in parameters.values():
            parameter.data.fill_(float("nan"))
        loaded: dict[str, bool] = {}

        def watched() -> Iterator[Any]:
            before = _holes(parameters)
            for name, value in weights:
                yield name, value
                after = _holes(parameters)
                loaded[name] = after != before
                before = after

        try:
            return load(self, watched())
        finally:
            holes = _holes(parameters)
            whole = {name: p.numel() for name, p in parameters.items()}
            seen["skipped"] = sorted(name for name, is_loaded in loaded.items() if not is_loaded)
            seen["partly"] = sorted(name for name, count in holes.items() if 0 < count < whole[name])
            seen["unfilled"] = sorted(name for name, count in holes.items() if count == whole[name])
            for name, parameter in parameters.items():
                is_hole = parameter.detach().isnan()
                parameter.data[is_hole] = initial[name][is_hole]

    cls.load_weights = load_weights  # type: ignore[attr-defined]


def _holes(parameters: dict[str, Any]) -> dict[str, int]:
    return {name: int(p.detach().isnan().sum()) for name, p in parameters.items()}


def captured(engine: Any) -> list[int]:
    """The boundaries whose hidden states the running target hands to the drafter."""
    target = engine.tp_worker.model_runner.model
    return list(getattr(getattr(target, "model", target), "layers_to_capture", None) or [])
