"""What the hooks of both engines call. The rest of eaglectl is imported here, once there is a drafter."""

from collections.abc import Callable, Sequence
from typing import Any

from eaglectl.in_engine.hooks import Start, guarded


def look_before(engine: str, find_start: Callable[[], Start | None], *, is_refused: bool = False) -> bool:
    """Judge the drafter before its weights are loaded; return whether there is one.

    `is_refused`: the engine refuses it already.
    """
    start = None
    with guarded(engine):
        if start := find_start():
            from eaglectl.in_engine.look import before

            before(start, is_refused=is_refused)
    return start is not None


def look_after(
    start: Start, resolve: Callable[[], dict[str, Any]], models: Callable[[], Sequence[Any]]
) -> None:
    """Compare what the engine resolved with what was trained, then watch updates of the weights.

    `models` returns the drafter and the target.
    """
    with guarded(start.engine):
        from eaglectl.in_engine.look import after

        after(start, resolve())
    with guarded(start.engine):
        from eaglectl.in_engine.updates import watch_updates

        watch_updates(start, *models())
