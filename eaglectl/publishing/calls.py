"""A call of the Hub's client: its result, or HubCallError.

No text of a server or an exception is repeated, as it may hold the token.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from eaglectl.checkpoint.hub_session import XET_CODE, TransferError, error_code, hub_calls, is_xet_error

Value = TypeVar("Value")
# the code of a failed check of the card's front matter, which comes before the commit
CARD_CODE = "card"


class HubCallError(Exception):
    """A failed call. `status` 0: no response, or a broken one; `wait`: seconds that the Hub asks to wait."""

    def __init__(self, status: int, code: str = "", wait: float = 0.0, kind: str = "") -> None:
        super().__init__(status, code)
        self.status, self.code, self.wait, self.kind = status, code, wait, kind

    @property
    def is_temporary(self) -> bool:
        """Whether the same call may succeed a moment later."""
        # 501: the Hub has no such call
        return self.status in (0, 408, 429) or (self.status >= 500 and self.status != 501)


def call(function: Callable[[], Value], *, is_repeatable: bool = False) -> Value:
    """The result of `function`, a call of the client, whose log is silenced.

    `is_repeatable`: each of its requests may be sent again. Raises HubCallError.
    """
    import huggingface_hub
    import huggingface_hub.utils

    with _quiet(), hub_calls(huggingface_hub, is_repeatable=is_repeatable):
        try:
            return function()
        except Exception as error:  # of the client, its transport or Xet: the text may hold the token
            call_error = _call_error(error)
    # outside of the handler, so that no traceback shows the client's exception
    raise call_error


def _call_error(error: Exception) -> HubCallError:
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, TransferError):
            return HubCallError(cause.status, _code(cause.url, cause.code), cause.wait, cause.kind)
        response = getattr(cause, "response", None)
        if response is not None:
            wait = str(response.headers.get("Retry-After", ""))
            code = _code(str(response.request.url), str(response.headers.get("X-Error-Code", "")))
            seconds = float(wait) if wait.isdigit() else 0.0
            return HubCallError(int(response.status_code), code, seconds, type(error).__name__)
    return HubCallError(0, XET_CODE if is_xet_error(error) else "", kind=type(error).__name__)


def _code(url: str, code: str) -> str:
    """The error code of a response: the Hub's, or by what was asked for."""
    if url.endswith("/api/validate-yaml"):
        return CARD_CODE
    return error_code(url, code)


@contextmanager
def _quiet() -> Iterator[None]:
    from huggingface_hub import utils

    bars: Any = utils
    hides_bars = not bars.are_progress_bars_disabled() and not sys.stderr.isatty()
    if hides_bars:
        bars.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if hides_bars:
            bars.enable_progress_bars()
