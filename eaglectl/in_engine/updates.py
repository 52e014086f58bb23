"""Updates of a drafter's weights in a running engine, as training by reinforcement makes them."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from eaglectl.in_engine.hooks import Start, guarded, logger, replace_method
from eaglectl.run.resolved import load_over_nan
from eaglectl.text import listed

# calls that follow each other within so many seconds are one update; so often one is spoken of
PAUSE, INTERVAL = 10.0, 60.0
# updates of the target without one of the drafter
MOST_ALONE = 2


class Updates:
    """Looks at each call of `load_weights` of the drafter and of the target, in the process that has them."""

    def __init__(self, start: Start, drafter: Any, target: Any, clock: Callable[[], float]) -> None:
        self.start, self.clock = start, clock
        of_target = {id(parameter) for parameter in target.parameters()}
        # the target's embedding and head stand in for those of many drafters
        self.own = [(name, value) for name, value in drafter.named_parameters() if id(value) not in of_target]
        self.filled = set[str]()
        self.last, self.spoken, self.alone = -PAUSE, -INTERVAL, 0
        self.is_updated = False

    def of_drafter(self, load_weights: Any, weights: Iterable[Any], *rest: Any, **named: Any) -> Any:
        """Load weights of the drafter, and see which parameters no tensor fills."""
        with guarded(self.start.engine):
            self._begin()
        names, results = list[str](), list[Any]()

        def load() -> None:
            results.append(load_weights(_noted(weights, names), *rest, **named))

        holes = load_over_nan(self.own, load, partial(guarded, self.start.engine))
        with guarded(self.start.engine):
            filled = {name for name, _ in self.own} - holes.keys()
            if not names:
                self._warn("an update of the drafter brought no tensor")
            elif not filled:
                self._warn(f"no tensor of an update of the drafter has a place in it: {listed(names)}")
            else:
                self.filled, self.is_updated = self.filled | filled, True
        self.last = self.clock()
        return results[0]

    def of_target(self, load_weights: Any, *rest: Any, **named: Any) -> Any:
        """Load weights of the target, and count its updates without one of the drafter."""
        with guarded(self.start.engine):
            if self._begin():
                self.alone += 1
            if self.alone > MOST_ALONE and not self.is_updated:
                self._warn(
                    f"the target was updated {self.alone} times, and no tensor of the drafter has arrived:"
                    " it drafts with the weights of its start"
                )
        try:
            return load_weights(*rest, **named)
        finally:
            self.last = self.clock()

    def _begin(self) -> bool:
        """Begin an update if the last call was PAUSE seconds ago, and return whether it did.

        Warn of parameters that the last update left unfilled; one that filled none was reported at once.
        """
        if self.clock() - self.last < PAUSE:
            return False
        missing = sorted({name for name, _ in self.own} - self.filled) if self.filled else []
        self.filled = set()
        if missing:
            self._warn(f"no tensor of the last update of the drafter filled {listed(missing)}")
        return True

    def _warn(self, text: str) -> None:
        if self.clock() - self.spoken >= INTERVAL:
            self.spoken = self.clock()
            logger(self.start.engine).warning("eaglectl: %s", text)


def _noted(weights: Iterable[Any], names: list[str]) -> Iterator[Any]:
    for weight in weights:
        names.append(weight[0])
        yield weight


def watch_updates(
    start: Start, drafter: Any, target: Any, clock: Callable[[], float] = time.monotonic
) -> Updates:
    """Look at each update of the drafter's weights from here on."""
    updates = Updates(start, drafter, target, clock)
    replace_method(drafter, "load_weights", updates.of_drafter)
    replace_method(target, "load_weights", updates.of_target)
    return updates
