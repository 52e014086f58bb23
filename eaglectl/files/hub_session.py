"""The Hub client's session under one policy of retries, and its downloads into its cache.

huggingface_hub repeats requests in several places, without a limit to the wait that a server asks for. Within
`hub_calls`, requests of its session are repeated here or not at all: what is raised in the end is a
TransferError, which the client does not repeat. Each wait is a notice. No text of a server or an exception is
repeated, as it may hold the token.
"""

import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from glob import escape
from importlib import import_module
from pathlib import Path
from threading import Lock
from traceback import walk_tb
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.files import keep_file
from eaglectl.files.hub_cache import SHA1_DIGITS
from eaglectl.files.hub_errors import HubRequest, refusal, unreachable
from eaglectl.files.hub_names import SCHEME
from eaglectl.files.layout import has_weights
from eaglectl.files.source import FolderSource
from eaglectl.progress import notify

TEMPORARY = frozenset((408, 429, 500, 502, 503, 504))
# requests that may be sent again without being asked: they change nothing, or put the same bytes in one place
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT"))
RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})")
# the code of a failure of Xet: of its tokens, which the Hub gives, or of its storage
XET_CODE = "xet"
XET_TOKENS = re.compile(r"/xet-(read|write)-token/")
# the same limits for Xet, which has retries of its own, in a library without Python; read when it is loaded
XET_LIMITS = {
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "4",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "500ms",
    "HF_XET_CLIENT_RETRY_MAX_DURATION": "60s",
}
LOGGERS = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2")
MARK = "_is_under_policy_of_eaglectl"


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
        if not (self.is_repeatable and failure.is_temporary) or self.failures >= attempts:
            raise failure
        wait = max(failure.wait, self.policy.backoff(self.failures))
        if self.waited + wait > self.policy.deadline:
            raise failure
        host = urlsplit(failure.url).hostname or "the Hub"
        number = f"attempt {self.failures + 1} of {attempts}"
        notify(f"waiting {wait:.1f} s before {number}: {host} {failure.how}")
        self.waited += wait
        time.sleep(wait)


class _Scope:
    """How many calls of eaglectl run now, and how many of those must not repeat a POST.

    While one runs, the client and its transport log nothing: they log what a server sends back.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls = self.single = 0
        self.levels: Mapping[str, int] = {}

    def enter(self, count: int, *, is_single: bool) -> None:
        with self.lock:
            if self.calls == 0:
                self.levels = {name: logging.getLogger(name).level for name in LOGGERS}
            self.calls += count
            self.single += count * is_single
            for name, level in self.levels.items():
                logging.getLogger(name).setLevel(logging.CRITICAL if self.calls else level)


SCOPE = _Scope()


@contextmanager
def hub_calls(client: Any, *, is_repeatable: bool = True) -> Iterator[Any]:
    """The client's session, under the policy until the block ends.

    `is_repeatable` False: a POST is sent once, as it may have taken effect although it failed.
    """
    for name, value in XET_LIMITS.items():
        os.environ.setdefault(name, value)
    session, transport = client.utils.get_session(), transport_of(client)
    with SCOPE.lock:
        # once for each session: its requests are under the policy while a block runs
        if not getattr(session, MARK, False):
            session.request = partial(_request, session.request, transport)
            session.stream = partial(_stream, session.stream, transport)
            setattr(session, MARK, True)
    SCOPE.enter(1, is_single=not is_repeatable)
    try:
        yield session
    finally:
        SCOPE.enter(-1, is_single=not is_repeatable)


def transport_of(client: Any) -> Any:
    """httpx, or what newer clients use in its place."""
    try:
        return client.utils.httpx
    except AttributeError:  # before 1.30
        return import_module("httpx")


def failure_of(error: Exception, transport: Any, url: str = "", timeout: object = None) -> TransferError:
    """The failure that an exception of the transport is; its text is not repeated."""
    kind = type(error).__name__
    match error:
        case transport.TimeoutException():
            seconds = f"for {timeout:.0f} seconds" if isinstance(timeout, int | float) else "in time"
            failure = TransferError(f"sent nothing {seconds}", kind=kind, url=url)
            failure.is_silent = True
        case transport.ConnectError():
            failure = TransferError("cannot be reached", kind=kind, url=url)
            failure.is_silent = True
        case transport.UnsupportedProtocol() | transport.InvalidURL():
            failure = TransferError("cannot be reached", kind=kind, url=url)
            failure.is_temporary = False
        case _:
            failure = TransferError(f"broke the answer off ({kind})", kind=kind, url=url)
            failure.is_temporary = not isinstance(error, transport.TooManyRedirects)
    return failure


def error_code(url: str, code: str) -> str:
    """The error code of a response: the Hub's own, or XET_CODE by what was asked for."""
    return XET_CODE if XET_TOKENS.search(url) else code


def is_xet_error(error: BaseException) -> bool:
    """Whether an exception came out of the client's transfers by Xet, whose storage is not the Hub's host."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    is_called = any("xet" in frame.f_code.co_name.lower() for frame in frames)
    return is_called or type(error).__module__.startswith("hf_xet")


def _failed_response(response: Any) -> TransferError:
    status = int(response.status_code)
    failure = TransferError(f"answered {status}", status, kind="HTTPStatusError", url=str(response.url))
    failure.code = error_code(failure.url, str(response.headers.get("x-error-code", "")))
    failure.wait = _requested_wait(response.headers)
    return failure


def _requested_wait(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: Retry-After, or the reset of a limit that is used up."""
    after = headers.get("retry-after", "").strip()
    if after.isdecimal():
        return float(after[:6])
    match = RESET.search(headers.get("ratelimit", ""))
    return float(match[1]) if match else 0.0


def _retries(method: str) -> Retries:
    return Retries(is_repeatable=method.upper() in REPEATABLE or not SCOPE.single)


def _request(send: Callable[..., Any], transport: Any, method: str, url: Any, **options: Any) -> Any:
    """`session.request`: a file that is sent is read from its start for each attempt."""
    if not SCOPE.calls:
        return send(method, url, **options)
    rewind = _rewinder(options)

    def send_once() -> Any:
        rewind()
        return send(method, url, **options)

    return _answer(send_once, transport, _retries(method), str(url), options.get("timeout"))


def _answer(send: Callable[[], Any], transport: Any, retries: Retries, url: str, timeout: Any) -> Any:
    """The first response that is no temporary failure, of as many as are tried."""
    while True:
        try:
            response = send()
        except (transport.HTTPError, transport.StreamError, transport.InvalidURL) as error:
            failure = failure_of(error, transport, url, timeout)
        else:
            if response.status_code not in TEMPORARY:
                return response
            failure = _failed_response(response)
            response.close()
        retries.wait_after(failure)


def _rewinder(options: Mapping[str, Any]) -> Callable[[], object]:
    """What sets the file that a request sends to where it was at first."""
    for name in ("data", "content"):
        file: Any = options.get(name)
        if hasattr(file, "seek") and hasattr(file, "tell"):
            return partial(file.seek, file.tell())
    return lambda: None


@contextmanager
def _stream(
    open_stream: Callable[..., Any], transport: Any, method: str, url: Any, **options: Any
) -> Iterator[Any]:
    """`session.stream`: a body that breaks off goes on with what is missing of it."""
    if not SCOPE.calls:
        with open_stream(method, url, **options) as response:
            yield response
        return
    retries = _retries(method)
    with ExitStack() as stack:

        def open_one(headers: Mapping[str, str] | None = None) -> Any:
            changed = {**options, "headers": {**(options.get("headers") or {}), **(headers or {})}}

            def send() -> Any:
                return stack.enter_context(open_stream(method, url, **changed))

            return _answer(send, transport, retries, str(url), options.get("timeout"))

        response = open_one()
        if method.upper() == "GET" and response.status_code in (200, 206):
            response.stream = _continued(response, open_one, retries, transport)
        yield response


def _continued(response: Any, reopen: Callable[..., Any], retries: Retries, transport: Any) -> Any:
    """The stream of a body, which is asked for again from where it broke off."""

    class ContinuedStream(transport.SyncByteStream):  # type: ignore[misc]
        """The bytes of one response, and of the responses that continue it."""

        def __init__(self) -> None:
            self.stream = response.stream

        def __iter__(self) -> Iterator[bytes]:
            received, mark = 0, 0
            while True:
                try:
                    for piece in self.stream:
                        received += len(piece)
                        yield piece
                    return
                except (transport.HTTPError, transport.StreamError) as error:
                    failure = failure_of(error, transport, str(response.url))
                if received - mark >= retries.policy.progress:
                    mark = received
                    retries.failures = 0  # attempts count from the first again
                if "content-encoding" in response.headers:
                    raise failure
                retries.wait_after(failure)
                self.stream = _rest(response, reopen, received, failure)

        def close(self) -> None:
            self.stream.close()

    return ContinuedStream()


def _rest(response: Any, reopen: Callable[..., Any], received: int, failure: TransferError) -> Any:
    """The stream of what is missing after `received` bytes. Raises `failure` for a server without ranges."""
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", response.request.headers.get("range", ""))
    start = received + (int(asked[1]) if asked else 0)
    etag = response.headers.get("etag", "")
    rest = reopen({"Range": f"bytes={start}-{asked[2] if asked else ''}"})
    is_rest = rest.status_code == 206 and rest.headers.get("content-range", "").startswith(f"bytes {start}-")
    if not is_rest or rest.headers.get("etag", "") != etag or "content-encoding" in rest.headers:
        raise failure
    return rest.stream


DOWNLOADS = threading.Lock()


def load_client() -> Any:
    """The Hub's client, which is imported when the first repository is opened."""
    # read when the client is loaded
    if "huggingface_hub" not in sys.modules:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.utils

    return huggingface_hub


def download(request: HubRequest, commit: str, sizes: Mapping[str, int]) -> FolderSource:
    """Files of a commit in the client's cache, with their listed sizes, downloaded if needed.

    Raises UnreadableError.
    """
    client = load_client()
    with DOWNLOADS, _quiet(client), hub_calls(client):
        try:
            root = client.snapshot_download(
                request.repo,
                revision=commit,
                allow_patterns=[escape(name) for name in sizes],
                endpoint=request.endpoint,
                library_name="eaglectl",
                library_version=eaglectl.__version__,
            )
        except Exception as error:  # of the client, its transport or Xet: the text may hold the token
            raise _download_error(request, error) from None
    source = FolderSource(Path(root))
    remember(source.root, request.revision, commit)
    for name, size in sizes.items():
        if source.size(name) != size:
            raise UnreadableError(
                f"{name} of {request.repo} has {source.size(name)} bytes in the Hub client's cache and the"
                f" Hub lists {size};"
                f" run `hf download {request.repo} --force-download`"
            )
    return source


def remember(snapshot: Path, revision: str, commit: str) -> None:
    """Record the commit of a revision in the cache, where the client looks it up when it is offline."""
    refs = snapshot.parent.parent / "refs"
    # the client looks up commit ids of other Hubs, which are longer than git's SHA-1, as it does branches
    is_commit = revision == commit and len(commit) == SHA1_DIGITS
    if is_commit or not (refs / revision).resolve().is_relative_to(refs.resolve()):
        return
    with suppress(OSError):  # a read-only cache can still be read
        keep_file(refs / revision, commit.encode())


def _download_error(request: HubRequest, error: BaseException) -> UnreadableError:
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, TransferError) and not cause.status:
            return unreachable(request, f"{cause.how}; files that came whole are kept")
        if isinstance(cause, TransferError):
            return refusal(request, cause.status, cause.code, cause.wait)
        response = getattr(cause, "response", None)
        if response is not None:
            code = error_code(str(response.request.url), response.headers.get("X-Error-Code", ""))
            return refusal(request, response.status_code, code)
    if is_xet_error(error):
        return refusal(request, 0, XET_CODE)
    if isinstance(error, OSError) and error.strerror:
        return UnreadableError(
            f"{request.repo} cannot be kept in the Hub client's cache: {error.strerror}; HF_HOME moves it"
        )
    return unreachable(
        request, f"did not send all files ({type(error).__name__}); files that came whole are kept"
    )


def open_snapshot(request: HubRequest, *, is_config_enough: bool) -> FolderSource:
    """Open what the cache holds of a repository, without the network."""
    client = load_client()
    advice = f"run `hf download {request.repo} --revision {request.revision}` where there is a network"
    with _quiet(client):
        try:
            root = client.snapshot_download(
                request.repo, revision=request.revision, local_files_only=True, allow_patterns=["config.json"]
            )
        except Exception:
            local = "" if request.text.startswith(SCHEME) else "no such file or folder here, and "
            raise UnreadableError(
                f"{request.text}: {local}{request.repo} at {request.revision} is not in the Hub client's"
                " cache,"
                f" and this call is offline; {advice}"
            ) from None
    source = FolderSource(Path(root))
    if not is_config_enough and not has_weights(source):
        raise UnreadableError(
            f"{request.repo} at {request.revision} is in the Hub client's cache without all of its weights,"
            f" and this call is offline; {advice}"
        )
    return source


@contextmanager
def _quiet(client: Any) -> Iterator[None]:
    """Silence the client's log, and its progress bars where there is no terminal."""
    logging, utils = client.utils.logging, client.utils
    level, had_bars = logging.get_verbosity(), not utils.are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    if had_bars and not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars and os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
            utils.enable_progress_bars()
