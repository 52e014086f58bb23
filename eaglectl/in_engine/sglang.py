"""Where SGLang's start is looked at, and what it tells there. The names stand in engines/interface.json."""

from contextlib import ExitStack
from functools import partial
from typing import Any

from eaglectl.in_engine.calls import look_after, look_before
from eaglectl.in_engine.hooks import Hook, Start, guarded

ENGINE = "sglang"


def start_of(arguments: Any) -> Start | None:
    """Return the start that ServerArgs describe; None without an EAGLE-3 drafter."""
    if str(arguments.speculative_algorithm).upper() != "EAGLE3" or not arguments.speculative_draft_model_path:
        return None
    return Start(
        ENGINE,
        arguments.speculative_draft_model_path,
        arguments.model_path,
        arguments.speculative_draft_model_revision,
        arguments.revision,
        arguments=arguments,
    )


def check_arguments(original: Any, arguments: Any, *rest: Any, **named: Any) -> Any:
    """Check the server's arguments, and judge the drafter that they name."""
    result = original(arguments, *rest, **named)
    look_before(ENGINE, lambda: start_of(arguments))
    return result


def make_scheduler(original: Any, scheduler: Any, arguments: Any, *rest: Any, **named: Any) -> None:
    """Make a scheduler, which loads the models; the first one looks at its drafter."""
    seen, start, guard = dict[str, Any](), None, partial(guarded, ENGINE)
    with ExitStack() as watching:
        with guard():
            if start := start_of(arguments):
                from eaglectl.run.sglang.resolved import watched_loading

                watching.enter_context(watched_loading(seen, guard))
        original(scheduler, arguments, *rest, **named)
    with guard():
        if start and "model" in seen and is_first(scheduler):
            from eaglectl.run.sglang.resolved import describe

            models = (seen["model"], scheduler.tp_worker.model_runner.model)
            look_after(start, lambda: describe(scheduler, seen)["resolved"], lambda: models)


def is_first(scheduler: Any) -> bool:
    """Whether this scheduler speaks for all of them: the first of its replica, of the first replica."""
    ranks = (getattr(scheduler, name, 0) or 0 for name in ("tp_rank", "dp_rank"))
    return not any(ranks)


HOOKS = (
    Hook("sglang.srt.server_args", "ServerArgs.check_server_args", check_arguments),
    Hook("sglang.srt.managers.scheduler", "Scheduler.__init__", make_scheduler),
)
