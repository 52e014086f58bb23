"""What SGLang's scheduler resolved of a drafter. What is taken of SGLang stands in engines/interface.json.

Runs in the scheduler's process. Written against SGLang 0.5.23.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from eaglectl.run.resolved import Guard, Recorder, load_over_nan, rope_in, vocabulary_in

# made for every layer, and used by the first one alone (SGLang 0.5.23, llama_eagle3.py:95-103); scales of the
# KV cache, which are 1 where the file has none (kv_cache.py 0.5.23:59)
UNUSED = r"layers\.[1-9]\d*\.input_layernorm\.weight|\.attn\.[kv]_scale$"


@contextmanager
def watched_loading(seen: dict[str, Any], guard: Guard = nullcontext) -> Iterator[None]:
    """Make SGLang's loader fill `seen`: "model" is the drafter's, "unfilled" its parameters not loaded.

    `guard` wraps our own code. ModelRunner.load_model is restored at the end.
    """
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_loader.loader import DefaultModelLoader

    load_model, load_weights = ModelRunner.load_model, DefaultModelLoader.load_weights_and_postprocess

    def watched_weights(model: Any, weights: Any, device: Any) -> None:
        load = partial(load_weights, model, weights, device)
        seen["unfilled"] = load_over_nan(model.named_parameters(), load, guard)

    def watched_load(self: Any, *arguments: Any, **named: Any) -> Any:
        if not self.is_draft_worker:
            return load_model(self, *arguments, **named)
        DefaultModelLoader.load_weights_and_postprocess = staticmethod(watched_weights)
        try:
            result = load_model(self, *arguments, **named)
        finally:
            DefaultModelLoader.load_weights_and_postprocess = staticmethod(load_weights)
        seen["model"] = self.model
        return result

    ModelRunner.load_model = watched_load
    try:
        yield
    finally:
        ModelRunner.load_model = load_model


def describe(scheduler: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Return the device, the dtype, and "resolved", the drafter's settings, if `seen` has its model."""
    runner = scheduler.tp_worker.model_runner
    report = {"device": str(runner.device), "dtype": str(runner.dtype).removeprefix("torch.")}
    if "model" not in seen:
        return report
    model = seen["model"]
    resolved = resolved_flags(model) | {"aux_layers": aux_layers(runner.model)}
    tokens = getattr(model, "hot_token_id", None)
    size = getattr(model.config, "draft_vocab_size", None) or model.config.vocab_size
    resolved["draft_tokens"] = list(range(size)) if tokens is None else tokens.tolist()
    resolved |= {"rope": rope_in(model.model), "vocabulary": vocabulary_in(model)}
    if "unfilled" in seen:
        # the target's own head and embedding replace parameters of the drafter after loading
        now = dict(model.named_parameters())
        names = (name for name, parameter in seen["unfilled"].items() if now.get(name) is parameter)
        resolved["unfilled"] = sorted(name for name in names if not re.search(UNUSED, name))
    return report | {"resolved": resolved}


def resolved_flags(model: Any) -> dict[str, Any]:
    """Return the settings that SGLang's drafter class reads from the checkpoint; None if it shows none."""
    inner = model.model
    fc = getattr(inner, "fc", None)
    source = inspect.getsource(sys.modules[type(model).__module__])
    return {
        "class": type(model).__name__,
        "layers": len(inner.layers) if hasattr(inner, "layers") else None,
        "fc_norm": getattr(inner, "fc_norm", None) is not None,
        "norm_output": bool(getattr(inner, "norm_output", False)),
        "norm_before_fc": bool(getattr(inner, "norm_before_fc", False)),
        # a class that does not know the flag adds to the state before the norm
        "norm_before_residual": None if "norm_before_residual" in source else False,
        "fc": None if fc is None else list(fc.weight.shape),
        "d2t": getattr(model, "hot_token_id", None) is not None,
        "own_lm_head": not getattr(model, "load_lm_head_from_target", False),
    }


def aux_layers(target: Any) -> list[int] | None:
    """Return the boundaries whose states the target hands to the drafter, in the order of its layers."""
    for module in target.modules():
        if layers := getattr(module, "layers_to_capture", None):
            return sorted(map(int, layers))
    return None


def record_draft(model: Any, finish: Callable[[Recorder], None]) -> None:
    """Record the drafter's first draft, and call `finish` once another one begins.

    SGLang calls `forward` and not the module, and computes logits of the last token of each sequence alone,
    over the draft vocabulary.
    """
    recorder, forward = Recorder(), model.forward

    def forward_and_keep(tokens: Any, positions: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        with recorder.guarded():
            # a state that is fed back is as wide as the drafter
            if (states := batch.spec_info.hidden_states).shape[-1] != model.config.hidden_size:
                recorder.add_states(states)
        output = forward(tokens, positions, batch, *rest, **named)
        with recorder.guarded():
            recorder.add_step(tokens, positions, lambda _: output.next_token_logits, is_last_only=True)
        if not recorder.is_on:
            with recorder.guarded():
                finish(recorder)
        return output

    model.forward = forward_and_keep
    recorder.undo.append(partial(setattr, model, "forward", forward))
