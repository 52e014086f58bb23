"""One policy of retries for every request to the Hub.

huggingface_hub repeats requests in several places, without a limit to the wait that a server asks for. Here a
request is repeated within limits, and what is raised in the end is a TransferError, which the client does not
repeat. Each wait is a notice. No text of a server or an exception is repeated, as it may hold the token.
"""

import random
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from eaglectl.progress import notify

TEMPORARY = frozenset((408, 429, 500, 502, 503, 504))
# requests that may be sent again without being asked: they change nothing, or put the same bytes in one place
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT"))
RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})")
# the code of a failure of Xet: of its tokens, which the Hub gives, or of its storage
XET_CODE = "xet"
XET_TOKENS = re.compile(r"/xet-(read|write)-token/")


class RetryPolicy(Struct, frozen=True):
    """How often a request is sent, and the waits between, in seconds.

    `silent_attempts` is for servers without any answer. A wait doubles up to `longest_wait`, is shortened by
    up to the share `jitter`, and is never shorter than the server asks. All waits of a request together are
    at most `deadline`. `progress`: bytes of a body after which the count of attempts starts again.
    """

    attempts: int = 4
    silent_attempts: int = 2
    first_wait: float = 0.5
    longest_wait: float = 8.0
    jitter: float = 0.25
    deadline: float = 60.0
    progress: int = 1 << 20

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures, where the server does not ask for a wait."""
        wait = min(self.first_wait * 2.0 ** (failures - 1), self.longest_wait)
        return wait * (1 - self.jitter * random.random())


POLICY = RetryPolicy()


class TransferError(Exception):
    """A request that failed for good. `status` is 0 where no response came, or a broken one.

    `how` continues "the Hub at HOST"; `code` is the Hub's error code, `wait` the seconds that it asked for.
    `url` may hold a secret and is not for messages.
    """

    def __init__(self, how: str, status: int = 0, *, kind: str = "", url: str = "") -> None:
        super().__init__(how)
        self.how, self.status, self.kind, self.url = how, status, kind, url
        self.code, self.wait = "", 0.0
        self.is_silent, self.is_temporary = False, status == 0 or status in TEMPORARY


class Retries:
    """The failed attempts of one request, and the time that was waited for it."""

    def __init__(self, *, is_repeatable: bool) -> None:
        self.is_repeatable = is_repeatable
        self.policy = POLICY
        self.failures, self.waited = 0, 0.0

    def wait_after(self, failure: TransferError) -> None:
        """Wait before the next attempt. Raises `failure` where there is none."""
        self.failures += 1
        attempts = self.policy.silent_attempts if failure.is_silent else self.policy.attempts
        wait = max(failure.wait, self.policy.backoff(self.failures))
        is_over = self.failures >= attempts or self.waited + wait > self.policy.deadline
        if is_over or not (self.is_repeatable and failure.is_temporary):
            raise failure
        host = urlsplit(failure.url).hostname or "the Hub"
        number = f"attempt {self.failures + 1} of {attempts}"
        notify(f"waiting {wait:.1f} s before {number}: {host} {failure.how}")
        self.waited += wait
        time.sleep(wait)


def failure_of(
    error: Exception, transport: Any, url: str = "", seconds: float | None = None
) -> TransferError:
    """The failure that an exception of the transport is; its text is not repeated.

    `seconds`: the time after which a silent server is given up.
    """
    kind = type(error).__name__
    is_no_address = isinstance(error, transport.UnsupportedProtocol | transport.InvalidURL)
    is_timeout = isinstance(error, transport.TimeoutException)
    is_silent = is_timeout or isinstance(error, transport.ConnectError)
    how = f"broke the answer off ({kind})"
    if is_timeout:
        how = f"sent nothing for {seconds:.0f} seconds" if seconds else "sent nothing in time"
    elif is_silent or is_no_address:
        how = "cannot be reached"
    failure = TransferError(how, kind=kind, url=url)
    failure.is_silent = is_silent
    failure.is_temporary = not (is_no_address or isinstance(error, transport.TooManyRedirects))
    return failure


def failed_response(response: Any) -> TransferError:
    """The failure that a response of a TEMPORARY status is."""
    status = int(response.status_code)
    failure = TransferError(f"answered {status}", status, kind="HTTPStatusError", url=str(response.url))
    failure.code = error_code(failure.url, str(response.headers.get("x-error-code", "")))
    failure.wait = _requested_wait(response.headers)
    return failure


def error_code(url: str, code: str) -> str:
    """The error code of a response: the Hub's own, or XET_CODE by what was asked for."""
    return XET_CODE if XET_TOKENS.search(url) else code


def _requested_wait(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: Retry-After, or the reset of a limit that is used up."""
    after = headers.get("retry-after", "").strip()
    if after.isdecimal():
        return float(after[:6])
    match = RESET.search(headers.get("ratelimit", ""))
    return float(match[1]) if match else 0.0
