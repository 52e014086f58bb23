"""The retry policy of every request to the Hub, and the user's error for each failure.

huggingface_hub repeats requests in several places, without a limit to the wait that a server asks for. Here a
request is repeated within limits, and the final error is a TransferError, which the client does not repeat.
Each wait is a notice. Texts of servers and exceptions are never printed, since they may hold the token.
"""

import os
import random
import time
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.progress import notify

# the code of a failure of Xet: of its tokens, which the Hub gives, or of its storage
XET_CODE = "xet"
LOGIN = "run `hf auth login`"
ACCOUNT = "`hf auth whoami` shows the token's account"


class RetryPolicy(Struct, frozen=True):
    """How often a request is sent, and the waits between, in seconds.

    `silent_attempts` is for servers without any answer. A wait doubles up to `longest_wait`, is shortened by
    up to the share `jitter`, and is never shorter than the server asks. All waits of a request together are
    at most `deadline`. `hopeless_attempts` is for addresses that cannot answer.
    """

    attempts: int = 4
    silent_attempts: int = 2
    hopeless_attempts: int = 1
    first_wait: float = 0.5
    longest_wait: float = 8.0
    jitter: float = 0.25
    deadline: float = 60.0

    def backoff(self, failures: int) -> float:
        """Return the seconds to wait after so many failures, if the server asks for no wait."""
        return min(self.first_wait * 2.0 ** (failures - 1), self.longest_wait) * (
            1 - self.jitter * random.random()
        )


POLICY = RetryPolicy()


class TransferError(Exception):
    """A request that failed for good. `status` is 0 where no response came, or a broken one.

    `how` continues "the Hub at HOST". `code` is the Hub's error code, `wait` the requested seconds,
    `attempts` the number of attempts for such a request. `is_body`: a body broke off, and the caller has to
    request it again. `url` may hold a secret and is not for messages.
    """

    def __init__(
        self,
        how: str,
        status: int = 0,
        *,
        kind: str = "",
        url: str = "",
        code: str = "",
        wait: float = 0.0,
        attempts: int | None = None,
        is_body: bool = False,
    ) -> None:
        super().__init__(how)
        self.how, self.status, self.kind, self.url, self.code, self.wait = how, status, kind, url, code, wait
        self.attempts, self.is_body = attempts or POLICY.attempts, is_body


class Retries:
    """The failed attempts of one request, and the time that was waited for it."""

    def __init__(self, *, is_repeatable: bool) -> None:
        self.is_repeatable, self.failures, self.waited = is_repeatable, 0, 0.0

    def wait_after(self, failure: TransferError) -> None:
        """Wait before the next attempt. Raises `failure` where there is none."""
        self.failures += 1
        wait = max(failure.wait, POLICY.backoff(self.failures))
        is_over = self.failures >= failure.attempts or self.waited + wait > POLICY.deadline
        if is_over or not self.is_repeatable:
            raise failure
        notify(
            f"waiting {wait:.1f} s before attempt {self.failures + 1} of {failure.attempts}:"
            f" {urlsplit(failure.url).hostname or 'the Hub'} {failure.how}"
        )
        self.waited += wait
        time.sleep(wait)


# settings of the client that are read when it is loaded. Xet has the same limits: it has retries of its own,
# in a library without Python
SETTINGS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "4",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "500ms",
    "HF_XET_CLIENT_RETRY_MAX_DURATION": "60s",
}
# the calls of eaglectl that run now: whether a POST of them may be repeated
CALLS: list[bool] = []


def load_client() -> Any:
    """Return the Hub's client, imported when the first repository is opened."""
    for name, value in SETTINGS.items():  # Xet reads them later than the client, which may be loaded already
        os.environ.setdefault(name, value)
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.utils

    return huggingface_hub


class HubRequest(Struct, frozen=True):
    """A request to the Hub: `text` is the SOURCE as given, `file` the requested file, if any."""

    text: str
    repo: str
    revision: str
    endpoint: str
    has_token: bool = False
    file: str = ""

    @property
    def host(self) -> str:
        """The Hub's address, without the name and password in HF_ENDPOINT."""
        parts = urlsplit(self.endpoint)
        return f"{parts.hostname or parts.path}{f':{parts.port}' if parts.port else ''}"

    @property
    def page(self) -> str:
        """The address of the repository's page."""
        return f"{urlsplit(self.endpoint).scheme or 'https'}://{self.host}/{self.repo}"

    @property
    def not_here(self) -> str:
        """The start of a message on a repository, if its SOURCE may have been meant as a path."""
        return "" if self.text.startswith("hf://") else f"{self.text}: no such file or folder here, and "

    @property
    def subject(self) -> str:
        """The requested file, or the repository."""
        return f"{self.file} of {self.repo}" if self.file else self.repo


class NoAnswerError(UnreadableError):
    """The Hub gave no response, or a broken one."""


def unreachable(request: HubRequest, how: str) -> NoAnswerError:
    """Return the error for a request without a response, or with a broken one."""
    head = ("" if request.file else request.not_here) or f"{request.subject}: "
    return NoAnswerError(
        f"{head}the Hub at {request.host} {how}; check the network and HF_ENDPOINT, or use --offline to read"
        " earlier downloads",
        options=("--offline",),
        source=request.repo,
    )


def failed(request: HubRequest, failure: TransferError, after: str = "") -> UnreadableError:
    """Return the error for a request that failed; `after` is added to its cause."""
    if failure.status or failure.code:
        return refusal(request, failure.status, failure.code, failure.wait)
    return unreachable(request, f"{failure.how}{after}")


def refusal(request: HubRequest, status: int, code: str = "", wait: float = 0.0) -> UnreadableError:
    """Return the error for a response of `status` and the Hub's error `code`; `wait`: seconds to wait."""
    repo, subject, host = request.repo, request.subject, request.host
    access, sight = f"then {LOGIN} with that account", f"and, if it is private, {LOGIN}"
    relief = f"{LOGIN}, which raises the limit, or wait"
    if request.has_token:
        access = f"the token's account has no access; {ACCOUNT}"
        relief, sight = "wait", f"and that the token may read it ({ACCOUNT})"
    unseen = f"{request.not_here}the Hub shows no repository {repo}; check its name, {sight}"
    unauthorised = (
        f"the Hub does not accept the token (401) for {repo}; {LOGIN}, or unset HF_TOKEN to read without an"
        " account"
    )
    texts: dict[str | int, str] = {
        "GatedRepo": (
            f"{repo} is gated: its files need access, which its owner grants; request access at"
            f" {request.page}, {access}"
        ),
        "RevisionNotFound": (
            f"{repo} has no revision {request.revision}; {request.page}/commits/main lists its commits"
        ),
        "EntryNotFound": f"{repo} has no {request.file} at {request.revision}",
        XET_CODE: (
            f"{subject}: the transfer from the Hub at {host} by Xet failed; set HF_HUB_DISABLE_XET=1 to"
            " transfer by HTTP, and run the command again"
        ),
        401: unauthorised if request.has_token and code != "RepoNotFound" else unseen,
        404: unseen,
        403: (
            f"the Hub forbids reading {subject} (403): it is disabled, or the token lacks the permission to"
            f" read its contents; {ACCOUNT}"
        ),
        416: (f"{subject} is shorter than the Hub lists it (416); try again, or run `hf download {repo}`"),
        429: f"the Hub had too many requests from this address (429) and did not send {subject}; {relief}"
        f"{f' for {wait:.0f} seconds' if wait else ''} and try again",
    }
    pause = f"after the {wait:.0f} seconds that it asks for" if wait else "later"
    other = f"answers {status}, which a Hub does not do; check HF_ENDPOINT"
    if status >= 500:
        other = f"fails ({status}); try again {pause}, or use --offline to read earlier downloads"
    return UnreadableError(
        texts.get(code) or texts.get(status) or f"{subject}: the Hub at {host} {other}", source=repo
    )
