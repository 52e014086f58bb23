"""Where vLLM's start is looked at, and what it tells there. The names stand in engines/interface.json."""

from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any

from eaglectl.in_engine.calls import look_after, look_before
from eaglectl.in_engine.hooks import Hook, Start, guarded, register, replace_method

ENGINE = "vllm"


def start_of(config: Any) -> Start | None:
    """Return the start that a VllmConfig describes; None without an EAGLE-3 drafter."""
    speculative = config.speculative_config
    if speculative is None or speculative.method != "eagle3":
        return None
    # a property, absent in releases without a V2 runner
    runner = {None: "", False: "V1", True: "V2"}[getattr(config, "use_v2_model_runner", None)]
    model = config.model_config
    return Start(ENGINE, speculative.model, model.model, speculative.revision, model.revision, runner, model)


def start_of_arguments(arguments: Any) -> Start | None:
    """Return the start that EngineArgs describe which vLLM refuses; None without an EAGLE-3 drafter."""
    speculative = arguments.speculative_config or {}
    if speculative.get("method") != "eagle3" or not speculative.get("model"):
        return None
    return Start(
        ENGINE, speculative["model"], arguments.model, speculative.get("revision"), arguments.revision
    )


def create_config(original: Any, arguments: Any, *rest: Any, **named: Any) -> Any:
    """Make vLLM's configuration, and judge the drafter that it names."""
    try:
        config = original(arguments, *rest, **named)
    except Exception:
        look_before(ENGINE, lambda: start_of_arguments(arguments), is_refused=True)
        raise
    if look_before(ENGINE, lambda: start_of(config)):
        with guarded(ENGINE):  # the worker may be in this process
            import_module("vllm.v1.worker.worker_base")
            register(ENGINE, HOOKS)
    return config


def make_worker(original: Any, worker: Any, *rest: Any, **named: Any) -> None:
    """Make a worker; one with an EAGLE-3 drafter is looked at once it has loaded."""
    original(worker, *rest, **named)
    with guarded(ENGINE):
        if start := start_of(worker.vllm_config):

            def load(load_model: Any, *rest: Any, **named: Any) -> Any:
                return load_watched(load_model, worker, start, *rest, **named)

            replace_method(worker, "load_model", load)


def load_watched(load_model: Any, worker: Any, start: Start, *rest: Any, **named: Any) -> Any:
    """Load a worker's models, and look at the drafter in the first process that has it."""
    seen, guard = dict[str, Any](), partial(guarded, ENGINE)
    with ExitStack() as watching:
        with guard():
            from eaglectl.run.vllm.resolved import watched_loading

            watching.enter_context(watched_loading(worker.vllm_config.speculative_config, seen, guard))
        result = load_model(*rest, **named)
    with guard():
        from eaglectl.run.vllm.resolved import find_drafter, is_first, resolved_in_worker

        runner = worker.model_runner
        if find_drafter(runner)[1] is not None and is_first(worker.vllm_config):
            look_after(
                start,
                lambda: resolved_in_worker(worker, seen.get("unfilled")),
                lambda: (find_drafter(runner)[1], runner.get_model()),
            )
    return result


HOOKS = (
    Hook("vllm.engine.arg_utils", "EngineArgs.create_engine_config", create_config),
    Hook("vllm.v1.worker.worker_base", "WorkerBase.__init__", make_worker),
)
