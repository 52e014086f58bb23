"""What vLLM's model runner resolved of a drafter. What is taken of vLLM stands in engines/interface.json."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from eaglectl.run.resolved import Guard, Recorder, load_over_nan, rope_in, vocabulary_in

# the attribute of each model runner that drafts, whose `model` is the drafter
PROPOSERS = {"V2": "speculator", "V1": "drafter"}
# made for every layer, and used by the first one alone (0.32.0, llama_eagle3.py, LlamaDecoderLayer); scales
# of the KV cache, which are 1 where the file has none (kv_cache.py 0.32.0:123)
UNUSED = r"layers\.[1-9]\d*\.hidden_norm\.weight|\.attn\.[qkv]_(scale|zero_point)$"


def resolved_flags(model: Any) -> dict[str, Any]:
    """Return the settings that vLLM's drafter class reads from the checkpoint."""
    inner = model.model
    fc = getattr(inner, "fc", None)
    residual = getattr(inner.layers[0], "_residual_norm", None)
    return {
        "class": type(model).__name__,
        "layers": len(inner.layers),
        "fc_norm": getattr(inner, "fc_norm", None) is not None,
        "norm_output": bool(getattr(inner, "norm_output", False)),
        "norm_before_fc": bool(getattr(inner, "norm_before_fc", False)),
        "norm_before_residual": None if residual is None else residual.__name__ == "_norm_before_residual",
        "fc": None if fc is None else [fc.output_size, fc.input_size],  # its weight may be repacked by now
        "own_embed_tokens": bool(getattr(model, "has_own_embed_tokens", False)),
        "own_lm_head": bool(getattr(model, "has_own_lm_head", False)),
    }


def resolved_tables(model: Any) -> dict[str, Any]:
    """Return what the class made of tables: draft tokens, sizes of vocabularies, rotary embedding."""
    offsets, sizes = getattr(model, "draft_id_to_target_id", None), vocabulary_in(model)
    if offsets is not None:
        tokens = [place + offset for place, offset in enumerate(offsets.tolist())]
    else:
        tokens = list(range(sizes[0])) if sizes else []
    return {"draft_tokens": tokens or None, "vocabulary": sizes, "rope": rope_in(model.model)}


def find_drafter(runner: Any) -> tuple[str, Any]:
    """Return the version of a model runner ("" if unknown), and its drafter's model; None without one."""
    for version, name in PROPOSERS.items():
        if (proposer := getattr(runner, name, None)) is not None:
            return version, getattr(proposer, "model", None)
    return "", None


@contextmanager
def watched_loading(speculative: Any, seen: dict[str, Any], guard: Guard = nullcontext) -> Iterator[None]:
    """Fill `seen`["unfilled"] with the drafter's parameters that vLLM did not load, by name.

    `speculative` is vLLM's SpeculativeConfig. Nothing is added if vLLM uses another loader. Its load_weights
    is restored at the end. `guard` wraps our own code.
    """
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load_weights = DefaultModelLoader.load_weights

    def watched(loader: Any, model: Any, model_config: Any) -> None:
        if model_config.model != speculative.draft_model_config.model:
            load_weights(loader, model, model_config)
            return
        load = partial(load_weights, loader, model, model_config)
        seen["unfilled"] = load_over_nan(model.named_parameters(), load, guard)

    DefaultModelLoader.load_weights = watched
    try:
        yield
    finally:
        DefaultModelLoader.load_weights = load_weights


def is_first(config: Any) -> bool:
    """Whether this worker speaks for all that have the drafter: first of its group, of the first replica."""
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank() == 0 and not config.parallel_config.data_parallel_rank


def resolved_in_worker(worker: Any, unfilled: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what the model runner of one worker resolved; without the drafter's settings if hidden.

    `unfilled` are the parameters that no file filled, if loading was watched.
    """
    runner = worker.model_runner
    version, model = find_drafter(runner)
    resolved = {} if model is None else resolved_flags(model) | resolved_tables(model)
    if model is not None and unfilled is not None:
        of_target, now = (
            {id(value) for value in runner.get_model().parameters()},
            dict(model.named_parameters()),
        )
        # without parameters that the drafter takes from the target; others may have been repacked since
        names = (name for name in unfilled if id(now.get(name)) not in of_target)
        resolved["unfilled"] = sorted(name for name in names if not re.search(UNUSED, name))
    name = f"{version} ({type(runner).__name__})".strip()
    return resolved | {"aux_layers": captured_layers(runner.get_model()), "runner": name}


def captured_layers(target: Any) -> list[int] | None:
    """Return the layer ids whose hidden states the target gives to the drafter; None if it shows none."""
    for module in target.modules():
        if layers := getattr(module, "aux_hidden_state_layers", None):
            return sorted(layers)
    return None


# of a worker's process, between two calls
RECORDERS: list[Recorder] = []


def record_in_worker(worker: Any) -> None:
    """Record the next draft of a worker's drafter, until `write_in_worker`."""
    recorder = Recorder()
    RECORDERS.append(recorder)
    with recorder.guarded():
        model = find_drafter(worker.model_runner)[1]
        combine = model.combine_hidden_states

        def combine_and_keep(states: Any) -> Any:
            with recorder.guarded():
                recorder.add_states(states)
            return combine(states)

        def keep(_: Any, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            with recorder.guarded():
                tokens, positions = (
                    given[place] if place < len(given) else named[name]
                    for place, name in enumerate(("input_ids", "positions"))
                )
                last = output[0] if isinstance(output, tuple) else output
                recorder.add_step(tokens, positions, lambda rows: model.compute_logits(last[rows]))

        model.combine_hidden_states = combine_and_keep
        hook = model.register_forward_hook(keep, with_kwargs=True)
        recorder.undo += [partial(delattr, model, "combine_hidden_states"), hook.remove]


def write_in_worker(worker: Any, path: str) -> dict[str, str]:
    """Write what was recorded since `record_in_worker` to a file; see `Recorder.write`."""
    return RECORDERS.pop().write(path)
