"""One call of the Hub's client: its result, or a Failure without a word of what a server or an exception says, as it may hold the token."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Value = TypeVar("Value")
# a failure of the check of the card's front matter, which comes before the commit
YAML = "card"
# the client and its transport, which log what a server sends back
LOGGERS = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2")


class Failure(Exception):
    """A call that gave no result. `status` 0: no answer, or half of one; `wait`: seconds that the Hub asks to wait."""

    def __init__(self, status: int, code: str = "", wait: float = 0.0, kind: str = "") -> None:
        super().__init__(status, code)
        self.status, self.code, self.wait, self.kind = status, code, wait, kind

    @property
    def is_passing(self) -> bool:
        """Whether the same call may well succeed a moment later."""
        return self.status in (0, 408, 429) or self.status >= 500


def call(ask: Callable[[], Value]) -> Value:
    """The result of a call of the client, or Failure; its log, its warnings and its exceptions are kept from the screen."""
    with _quiet():
        try:
            return ask()
        except Exception as error:  # the client's, its transport's, Xet's: texts that are not ours to repeat
            failure = _failure(error)
    raise failure


def _failure(error: Exception) -> Failure:
    for one in (error, error.__cause__, error.__context__):
        response = getattr(one, "response", None)
        if response is not None:
            wait = str(response.headers.get("Retry-After", ""))
            is_card = str(response.request.url).endswith("/api/validate-yaml")
            code = YAML if is_card else str(response.headers.get("X-Error-Code", ""))
            return Failure(
                int(response.status_code), code, float(wait) if wait.isdigit() else 0.0, type(error).__name__
            )
    return Failure(0, kind=type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    from huggingface_hub import utils

    bars: Any = utils
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    is_bare = not bars.are_progress_bars_disabled() and not sys.stderr.isatty()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    if is_bare:
        bars.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if is_bare:
            bars.enable_progress_bars()
