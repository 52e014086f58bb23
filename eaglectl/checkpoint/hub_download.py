"""Downloads into the Hub client's cache, and what is in it: by the client, under one policy of retries.

No text of a server or an exception is repeated, as it may hold the token.
"""

import os
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.checkpoint.hub_digests import SHA1_DIGITS
from eaglectl.checkpoint.hub_errors import HubRequest, refusal, unreachable
from eaglectl.checkpoint.hub_listing import has_weights
from eaglectl.checkpoint.hub_names import SCHEME
from eaglectl.checkpoint.hub_session import (
    XET_CODE,
    TransferError,
    error_code,
    hub_calls,
    is_xet_error,
)
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import UnreadableError

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
        (refs / revision).parent.mkdir(parents=True, exist_ok=True)
        # by a rename: another process may read it, or this one end, between the two halves of a write
        part = (refs / revision).with_name(f".{secrets.token_hex(4)}.part")
        try:
            part.write_text(commit, encoding="utf-8")
            part.replace(refs / revision)
        finally:
            part.unlink(missing_ok=True)


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
