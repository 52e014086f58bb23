"""Run in SGLang's scheduler process: the scheduler, with a report of what it resolved or why it ended.

Written against SGLang 0.5.23. Parameters of the drafter are NaN while its files are read, and get back what
they had where nothing filled them, so that the engine runs as it does without the report.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglectl.run.child import error_answer, load_over_nan

# variables that name the file of the child's answer, for an error, and that of the report
ANSWER, REPORT = "EAGLECTL_ANSWER", "EAGLECTL_SCHEDULER_REPORT"


def report_and_run(*arguments: Any, **named: Any) -> None:
    """SGLang's own function of the scheduler process, watched."""
    from sglang.srt.managers import scheduler

    watch(scheduler.Scheduler)
    scheduler.run_scheduler_process(*arguments, **named)


def watch(cls: Any) -> None:
    """Have the scheduler class report once it stands, and where it fails."""
    initialise, run = cls.__init__, cls.run_event_loop
    drafter: dict[str, Any] = {}
    watch_loading(drafter)

    def reporting_init(self: Any, *arguments: Any, **named: Any) -> None:
        with reported():
            initialise(self, *arguments, **named)
        _write(REPORT, describe(self, drafter))

    def reporting_run(self: Any, *arguments: Any, **named: Any) -> Any:
        with reported():
            return run(self, *arguments, **named)

    cls.__init__, cls.run_event_loop = reporting_init, reporting_run


@contextmanager
def reported() -> Iterator[None]:
    """Write what is raised as the child's answer: SGLang kills the child then."""
    import sglang

    try:
        yield
    except Exception as error:
        if not Path(os.environ[ANSWER]).exists():  # what follows from an error is not the cause
            _write(ANSWER, {"version": str(sglang.__version__), **error_answer(error)})
        raise


def _write(variable: str, document: dict[str, Any]) -> None:
    """Write the file that the variable names, which is there whole or not at all."""
    path = Path(os.environ[variable])
    whole = path.with_name(f"{path.name}.{os.getpid()}")
    whole.write_text(json.dumps(document), encoding="utf-8")
    whole.replace(path)


def watch_loading(drafter: dict[str, Any]) -> None:
    """Have the loader note the drafter's model, and its parameters that the files do not fill."""
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_loader.loader import DefaultModelLoader

    load_model, load_weights = ModelRunner.load_model, DefaultModelLoader.load_weights_and_postprocess

    def watched_weights(model: Any, weights: Any, device: Any) -> None:
        drafter["unfilled"] = load_over_nan(model, lambda: load_weights(model, weights, device))

    def watched_load(self: Any, *arguments: Any, **named: Any) -> Any:
        if not self.is_draft_worker:
            return load_model(self, *arguments, **named)
        DefaultModelLoader.load_weights_and_postprocess = staticmethod(watched_weights)
        try:
            result = load_model(self, *arguments, **named)
        finally:
            DefaultModelLoader.load_weights_and_postprocess = staticmethod(load_weights)
        drafter["model"] = self.model
        return result

    ModelRunner.load_model = watched_load


def describe(scheduler: Any, drafter: dict[str, Any]) -> dict[str, Any]:
    """The device, the dtype, and the settings of the drafter where there is one."""
    runner = scheduler.tp_worker.model_runner
    report = {"device": str(runner.device), "dtype": str(runner.dtype).removeprefix("torch.")}
    if "model" not in drafter:
        return report
    model = drafter["model"]
    resolved = resolved_flags(model) | {"aux_layers": aux_layers(runner.model)}
    tokens = getattr(model, "hot_token_id", None)
    size = getattr(model.config, "draft_vocab_size", None) or model.config.vocab_size
    resolved["draft_tokens"] = list(range(size)) if tokens is None else tokens.tolist()
    # the target's own head and embedding replace parameters of the drafter after loading
    if "unfilled" in drafter:
        now = dict(model.named_parameters())
        unfilled = drafter["unfilled"].items()
        resolved["unfilled"] = sorted(name for name, parameter in unfilled if now.get(name) is parameter)
    return report | {"resolved": resolved}


def resolved_flags(model: Any) -> dict[str, Any]:
    """The settings that SGLang's drafter class reads from the checkpoint; None where it shows none."""
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
    """The boundaries whose states the target hands to the drafter."""
    for module in target.modules():
        if layers := getattr(module, "layers_to_capture", None):
            return [int(layer) for layer in layers]
    return None
