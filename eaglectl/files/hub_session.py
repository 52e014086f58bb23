"""Calls of the Hub's client, and its downloads into its cache.

No text of a server or an exception is repeated, as it may hold the token.
"""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from traceback import walk_tb
from typing import Any

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.files import keep_file
from eaglectl.files.hub_cache import SHA1_DIGITS
from eaglectl.files.hub_errors import HubRequest, refusal, unreachable
from eaglectl.files.hub_names import SCHEME
from eaglectl.files.hub_retries import XET_CODE, TransferError, failed_response
from eaglectl.files.layout import has_weights
from eaglectl.files.source import FolderSource

# the same limits for Xet, which has retries of its own, in a library without Python; read when it is loaded
XET_LIMITS = {
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "4",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "500ms",
    "HF_XET_CLIENT_RETRY_MAX_DURATION": "60s",
}
LOGGERS = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2")
DOWNLOADS = threading.Lock()
CALLS_LOCK = threading.Lock()
# what the end of the last call undoes
QUIET = ExitStack()


def load_client() -> Any:
    """The Hub's client, which is imported when the first repository is opened."""
    # read when the client is loaded
    if "huggingface_hub" not in sys.modules:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.utils

    return huggingface_hub


@contextmanager
def hub_calls(*, is_repeatable: bool = True) -> Iterator[Any]:
    """The client's session, under the policy of retries until the block ends.

    `is_repeatable` False: a POST is sent once, as it may have taken effect although it failed. Meanwhile the
    client and its transport log nothing: they log what a server sends back.
    """
    for name, value in XET_LIMITS.items():
        os.environ.setdefault(name, value)
    client = load_client()
    from eaglectl.files.hub_client import CALLS, install_client  # late: it loads the client

    with CALLS_LOCK:
        install_client()
        if not CALLS:
            _quieten(client)
        CALLS.append(is_repeatable)
    try:
        yield client.utils.get_session()
    finally:
        with CALLS_LOCK:
            CALLS.remove(is_repeatable)
            if not CALLS:
                QUIET.close()


def _quieten(client: Any) -> None:
    """Silence the client's log, and its progress bars where there is no terminal."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        QUIET.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
    is_chosen = client.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if not (is_chosen or sys.stderr.isatty() or client.utils.are_progress_bars_disabled()):
        client.utils.disable_progress_bars()
        QUIET.callback(client.utils.enable_progress_bars)


def failure_in(error: BaseException, how: str) -> TransferError:
    """The failure behind an exception of the client, its transport or Xet; `how` where that is not known."""
    for cause in (error, error.__cause__):
        if isinstance(cause, TransferError):
            return cause
        response = getattr(cause, "response", None)
        if response is not None:
            return failed_response(response)
    kind = type(error).__name__
    failure = TransferError(f"{how} ({kind})", kind=kind)
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    is_xet = any("xet" in frame.f_code.co_name.lower() for frame in frames)
    if is_xet or type(error).__module__.startswith("hf_xet"):
        failure.code = XET_CODE  # its storage is not the Hub's host
    return failure


def error_of(request: HubRequest, failure: TransferError, after: str = "") -> UnreadableError:
    """The error for a request that failed; `after` follows what went wrong."""
    if failure.status or failure.code:
        return refusal(request, failure.status, failure.code, failure.wait)
    return unreachable(request, f"{failure.how}{after}")


def download(request: HubRequest, commit: str, sizes: Mapping[str, int]) -> FolderSource:
    """Files of a commit in the client's cache, with their listed sizes, downloaded if needed.

    Raises UnreadableError.
    """
    client = load_client()
    with DOWNLOADS, hub_calls():
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
    failure = failure_in(error, "did not send all files")
    if isinstance(error, OSError) and error.strerror and not (failure.status or failure.code):
        return UnreadableError(
            f"{request.repo} cannot be kept in the Hub client's cache: {error.strerror}; HF_HOME moves it"
        )
    return error_of(request, failure, "; files that came whole are kept")


def open_snapshot(request: HubRequest, *, is_config_enough: bool) -> FolderSource:
    """Open what the cache holds of a repository, without the network."""
    client = load_client()
    advice = f"run `hf download {request.repo} --revision {request.revision}` where there is a network"
    try:
        root = client.snapshot_download(
            request.repo, revision=request.revision, local_files_only=True, allow_patterns=["config.json"]
        )
    except Exception:
        local = "" if request.text.startswith(SCHEME) else "no such file or folder here, and "
        raise UnreadableError(
            f"{request.text}: {local}{request.repo} at {request.revision} is not in the Hub client's cache,"
            f" and this call is offline; {advice}"
        ) from None
    source = FolderSource(Path(root))
    if not is_config_enough and not has_weights(source):
        raise UnreadableError(
            f"{request.repo} at {request.revision} is in the Hub client's cache without all of its weights,"
            f" and this call is offline; {advice}"
        )
    return source
