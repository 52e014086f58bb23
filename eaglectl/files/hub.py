"""A repository on the Hugging Face Hub at one commit.

Headers and rows are read by HTTP ranges, whole files through the Hub client's cache. huggingface_hub gives
the session (proxies, certificates), the endpoint, the token and the cache; it is loaded when the first
repository is opened. Requests are made here and not by its own retrying functions: those log to stderr, wait
as long as a server asks, and read a body to its end if a server ignores the range. Texts of servers and
exceptions are never printed, since they may hold the token. A redirect to another host is followed without
the token: the session's client drops it there.
"""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath
from traceback import walk_tb
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import UnreadableError, check
from eaglectl.files.files import is_folder
from eaglectl.files.hub_requests import (
    CALLS,
    XET_CODE,
    HubRequest,
    Retries,
    TransferError,
    failed,
    load_client,
    refusal,
    unreachable,
)
from eaglectl.files.layout import (
    CONFIG,
    INDEX,
    checkpoint_files,
    checkpoints_below,
    has_weights,
    readable_files,
)
from eaglectl.files.source import (
    SCHEME,
    SHARED,
    FolderSource,
    ListedDigests,
    check_whole,
    has_digest,
    is_compared,
    split_folder,
    split_name,
)

# the time limit of a range in seconds, and the bytes for which it grows by a second
PATIENCE, SLOWEST = 30.0, 50_000
# files up to this size are read whole, in one request
MAX_WHOLE = 200_000
# ranges up to this size are kept in memory
MAX_KEPT = 4 << 20
# bytes that the list of files of a repository may have
MAX_LIST = 64 << 20
# git's names of commits and files: SHA-1, SHA-256 where the repository uses it
GIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHA256 = re.compile(r"[0-9a-f]{64}")
# errors of msgspec for a body of another form
NO_ANSWER = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
DOWNLOADS, CALLS_LOCK = threading.Lock(), threading.Lock()
# what the end of the last call of the client undoes
QUIET = ExitStack()
LOGGERS = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2")


@contextmanager
def hub_calls(*, is_repeatable: bool = True) -> Iterator[Any]:
    """Yield the client's session, with the policy of retries until the block ends.

    `is_repeatable` False: a POST is sent once, as it may have taken effect although it failed. Meanwhile the
    client and its transport log nothing, as they log what a server sends back, and there are no progress bars
    without a terminal.
    """
    client = load_client()
    from eaglectl.files.hub_client import install_client  # late: it loads the client

    with CALLS_LOCK:
        install_client()
        if not CALLS:
            for logger in map(logging.getLogger, LOGGERS):
                QUIET.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.CRITICAL)
            is_chosen = client.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
            if not (is_chosen or sys.stderr.isatty() or client.utils.are_progress_bars_disabled()):
                client.utils.disable_progress_bars()
                QUIET.callback(client.utils.enable_progress_bars)
        CALLS.append(is_repeatable)
    try:
        yield client.utils.get_session()
    finally:
        with CALLS_LOCK:
            CALLS.remove(is_repeatable)
            if not CALLS:
                QUIET.close()


def failure_in(error: BaseException, how: str) -> TransferError:
    """Return the failure behind an exception of the client, its transport or Xet; `how` describes an unknown
    one.
    """
    from eaglectl.files.hub_client import failed_response

    for cause in (error, error.__cause__):
        if isinstance(cause, TransferError):
            return cause
        if (response := getattr(cause, "response", None)) is not None:
            return failed_response(response)
    kind = type(error).__name__
    names = [type(error).__module__] + [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    is_xet = any("xet" in name.lower() for name in names)  # its storage is not the Hub's host
    return TransferError(f"{how} ({kind})", kind=kind, code=XET_CODE if is_xet else "")


class _ListedFile(Struct):
    name: str = msgspec.field(name="rfilename")
    size: Annotated[int, Meta(ge=0)]
    lfs: Any = None
    git_id: Any = msgspec.field(default=None, name="blobId")


class _Revision(Struct):
    commit: Annotated[str, Meta(pattern=r"\A[0-9a-f]{40,64}\Z")] = msgspec.field(name="sha")
    files: list[_ListedFile] = msgspec.field(name="siblings")


def _digests(files: Sequence[_ListedFile]) -> ListedDigests:
    """Return the digests that a Hub lists; the git id of a file in LFS is of its pointer and is left out."""
    digests = ListedDigests({}, {})
    for file in files:
        if isinstance(file.lfs, dict):
            text, pattern, table = file.lfs.get("sha256", file.lfs.get("oid")), SHA256, digests.sha256
        else:
            text, pattern, table = file.git_id, GIT_ID, digests.git_ids
        if isinstance(text, str) and pattern.fullmatch(text):
            table[file.name] = text
    return digests


def _read(
    request: HubRequest, url: str, headers: Mapping[str, str], most: int
) -> tuple[int, Mapping[str, str], bytes]:
    # one GET request: status, headers and at most `most` bytes; a failure never shows the client's text
    seconds = float(load_client().constants.HF_HUB_DOWNLOAD_TIMEOUT)
    options = {"headers": dict(headers), "timeout": seconds, "follow_redirects": True}

    def read() -> tuple[int, Mapping[str, str], bytes]:
        with hub_calls() as session, session.stream("GET", url, **options) as response:
            if "Range" in headers and response.headers.get("content-encoding", "identity") != "identity":
                raise TransferError("sends a range compressed, although it was asked not to")
            return response.status_code, response.headers, b"".join(_timed_pieces(response, most))

    try:
        answer: tuple[int, Mapping[str, str], bytes] = _retry_broken_bodies(read)
    except OSError as error:
        raise failed(request, TransferError(f"cannot be reached ({type(error).__name__})")) from None
    except Exception as error:  # of the client or its transport: the text may hold the token
        raise failed(request, failure_in(error, "broke the answer off")) from None
    if answer[0] not in (200, 206):
        raise refusal(request, answer[0], answer[1].get("x-error-code", ""))
    return answer


def _retry_broken_bodies(act: Callable[[], Any]) -> Any:
    """Return the result of `act`, called again by the policy if the body of an answer breaks off."""
    retries = Retries(is_repeatable=True)
    while True:
        try:
            return act()
        except Exception as error:
            if not (failure := failure_in(error, "")).is_body:
                raise
            retries.wait_after(failure)


def _timed_pieces(response: Any, most: int) -> Iterator[bytes]:
    # the pieces of an answer; more bytes than asked for end it, and too slow a connection is an error
    end, count = time.monotonic() + PATIENCE + most / SLOWEST, 0
    for piece in response.iter_bytes():
        yield piece
        count += len(piece)
        if count > most:
            return
        if time.monotonic() > end:
            raise TransferError(f"is too slow: {count} bytes came of {most}")


@dataclass(frozen=True, slots=True)
class HubSource:
    """The files of a repository at `commit`.

    `sizes`, `listed` (digests) and `below` (sizes of files in subfolders) are the Hub's, of the files in
    `folder` and by their names in it; `kept` are ranges read before, `cached` files that were read from the
    client's cache.
    """

    only: ClassVar[str | None] = None  # a repository is read as a whole

    request: HubRequest
    commit: str
    sizes: Mapping[str, int]
    headers: Mapping[str, str] = field(repr=False)  # they hold the token
    kept: dict[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False)
    listed: ListedDigests = field(default_factory=lambda: ListedDigests({}, {}), repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    cached: set[str] = field(default_factory=set, repr=False, compare=False)
    below: Mapping[str, int] = field(default_factory=dict, repr=False)
    folder: str = ""

    @property
    def label(self) -> str:
        """org/name, with the folder."""
        return f"{self.request.repo}:{self.folder}" if self.folder else self.request.repo

    place = label

    @property
    def _snapshot(self) -> Path:
        """The folder of this commit, or of its `folder`, in the Hub client's cache."""
        name = f"models--{self.request.repo.replace('/', '--')}"
        repository = Path(load_client().constants.HF_HUB_CACHE) / name
        return repository / "snapshots" / self.commit / self.folder

    def names(self) -> tuple[str, ...]:
        """Return the files at the top of the repository, or folder, and those of a torch distributed
        checkpoint in `model/`.
        """
        return tuple(sorted(self.sizes))

    def names_below(self) -> tuple[str, ...]:
        """Return the relative paths of the files in its folders."""
        return tuple(self.below)

    def place_of(self, folder: str) -> str:
        """Return org/name[@revision]:folder."""
        name = split_folder(self.request.text)[0]
        return f"{name}:{'/'.join(filter(None, (self.folder, folder)))}"

    def in_folder(self, folder: str) -> "HubSource":
        """Return a folder of the repository as a source. Raises UnreadableError if it has no files."""
        start = len(folder) + 1
        every = {**self.sizes, **self.below}
        inside = {name[start:]: name for name in every if name.startswith(f"{folder}/")}
        check(
            (not inside, f"{self.label} has no folder {folder} at {self.commit[:12]}"),
            error=partial(UnreadableError, source=self.label),
        )
        top, below = _levels({name: every[stored] for name, stored in inside.items()})
        sha256, git_ids = (
            {name: digests[stored] for name, stored in inside.items() if stored in digests}
            for digests in (self.listed.sha256, self.listed.git_ids)
        )
        listed = ListedDigests(sha256, git_ids)
        return HubSource(
            self.request, self.commit, top, self.headers, listed=listed, below=below, folder=folder
        )

    def size(self, name: str) -> int:
        """Return the bytes of a file, as the Hub lists them. Raises UnreadableError for an unlisted file."""
        if name not in self.sizes:
            raise UnreadableError(f"{self.label} has no file {name} at {self.commit[:12]}", source=self.label)
        return self.sizes[name]

    def path(self, name: str) -> Path | None:
        """Return the file's path in the Hub client's cache; None if it is not cached."""
        self.size(name)
        path = self._snapshot / name
        return path if os.path.isfile(path) else None  # noqa: PTH113 (odd names are False, no error)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of a file: from the cache, from memory, or by one request."""
        size = self.size(name)
        if stop is None:
            check_whole(self.label, name, size - start)
            stop = size
        if self.path(name) is not None:
            self.cached.add(name)
            return FolderSource(self._snapshot).read(name, start, stop)
        check(
            (
                stop > size or start > stop,
                f"{name} ended at byte {size}; {stop} were expected: the file is truncated",
            ),
            error=UnreadableError,
        )
        if start == stop:
            return b""
        first, last = (0, size) if size <= MAX_WHOLE else (start, stop)
        key = (name, first, last)
        if last - first > MAX_KEPT:
            return self._fetch(name, first, last)[start - first : stop - first]
        with self.lock:  # of several threads that need the same bytes, one asks for them
            data = self.kept.get(key) or self._fetch(name, first, last)
            self.kept[key] = data
        return data[start - first : stop - first]

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        # bytes [start, stop) of a file at this commit, checked against the length and the digest that the Hub
        # lists
        stored = f"{self.folder}/{name}" if self.folder else name
        request, size = replace(self.request, file=stored), self.sizes[name]
        is_part, headers = stop - start < size, dict(self.headers)
        if is_part:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        status, answer, data = _read(
            request,
            f"{request.endpoint}/{request.repo}/resolve/{self.commit}/{quote(stored)}",
            headers,
            stop - start,
        )
        if status == 206 and answer.get("content-range", "").strip() != f"bytes {start}-{stop - 1}/{size}":
            raise unreachable(request, f"sent other bytes than the requested {start} to {stop}")
        if status == 200 and start:  # without `start`, the beginning of the file is enough
            raise UnreadableError(
                f"{request.subject}: the Hub at {request.host} sends whole files only, and not ranges; run"
                f" `hf download {request.repo}`, then this command again",
                source=request.repo,
            )
        if len(data) < stop - start:
            raise unreachable(request, f"sent {len(data)} bytes of {stop - start}")
        if not is_part and len(data) > size:
            raise unreachable(request, f"sent more than the {size} bytes that it lists")
        if not is_part and (digest := self.listed.of(name)) and not has_digest(digest, size, [data]):
            raise UnreadableError(
                f"{name} of {self.label}: the received bytes do not have the digest that the Hub at"
                f" {request.host} lists ({digest[:12]}...); run the command again",
                source=self.label,
            )
        return data[: stop - start]

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Files whose bytes were compared with no digest: read in part, without a listed digest, or from the
        cache unchecked.
        """
        from_hub = {  # _fetch checks whole files that have a digest
            name
            for name, start, stop in self.kept
            if not self.listed.of(name) or (start, stop) != (0, self.sizes[name])
        }
        from_cache = {name for name in self.cached if not (path := self.path(name)) or not is_compared(path)}
        return tuple(sorted(from_hub | from_cache))

    def downloaded(self, without: Collection[str] = ()) -> FolderSource:
        """Download the checkpoint's files, except those in `without`, into the Hub client's cache if needed.

        Each file is compared with its listed digest, also if it was cached before. Raises UnreadableError.
        """
        for name in {CONFIG, INDEX} & set(self.sizes):
            check_whole(self.label, name, self.sizes[name])
        names = [name for name in checkpoint_files(self, self.sizes) if name not in without]
        folder = self._download(names)
        folder.check_cached(names, self.listed)
        return folder

    def _download(self, names: Sequence[str]) -> FolderSource:
        # whole files into the Hub client's cache, checked against the commit and the sizes that the Hub lists
        request = self.request
        with DOWNLOADS, hub_calls():
            try:
                root = _retry_broken_bodies(
                    partial(
                        load_client().snapshot_download,
                        request.repo,
                        revision=request.revision,
                        allow_patterns=[escape(str(PurePosixPath(self.folder, name))) for name in names],
                        endpoint=request.endpoint,
                        library_name="eaglectl",
                        library_version=eaglectl.__version__,
                    )
                )
            except Exception as error:  # of the client, its transport or Xet: the text may hold the token
                failure = failure_in(error, "did not send all files")
                if isinstance(error, OSError) and error.strerror and not (failure.status or failure.code):
                    raise UnreadableError(
                        f"{request.repo} cannot be stored in the Hub client's cache: {error.strerror}; set"
                        " HF_HOME to move the cache",
                        source=request.repo,
                    ) from None
                raise failed(request, failure, "; complete files stay in the cache") from None
        source = FolderSource(Path(root) / self.folder)
        check(
            (Path(root).name != self.commit, f"{request.repo} changed meanwhile; run the command again"),
            error=UnreadableError,
        )
        for name in names:
            if (size := source.size(name)) != self.sizes[name]:
                raise UnreadableError(
                    f"{name} of {request.repo} has {size} bytes in the Hub client's cache and the"
                    f" Hub lists {self.sizes[name]}; run `hf download {request.repo} --force-download`"
                )
        return source

    def check_cached(self) -> None:
        """Compare the checkpoint's files that are in the cache with their listed digests.

        Raises UnreadableError for other bytes.
        """
        if cached := [name for name in readable_files(self, self.sizes) if self.path(name)]:
            FolderSource(self._snapshot).check_cached(cached, self.listed)


def open_hub(text: str, *, is_config_enough: bool = False) -> HubSource | FolderSource:
    """Open the repository that `text` names, at the commit its revision points to; offline, from the cache.

    `is_config_enough`: weights that are not in the cache are no error. Raises UnreadableError.
    """
    if is_offline():
        return open_cached(text, is_config_enough=is_config_enough)
    name, folder = split_folder(text)
    lock, sources = (SHARED[0] if SHARED else {}).setdefault(name, (threading.Lock(), []))
    with lock:
        if not sources:
            sources.append(_list(name))
        source: HubSource = sources[0]
    return source.in_folder(folder) if folder else source


def _list(text: str) -> HubSource:
    """List the repository at the commit of its revision, by one request."""
    repo, revision = split_name(text)
    headers, endpoint = _headers(repo), load_client().constants.ENDPOINT.rstrip("/")
    request = HubRequest(text, repo, revision or "main", endpoint, has_token="authorization" in headers)
    url = f"{endpoint}/api/models/{repo}"
    return read_listing(
        request,
        headers,
        _read_list(request, f"{url}/revision/{quote(request.revision, safe='')}?blobs=true", headers),
    )


def _read_list(request: HubRequest, url: str, headers: Mapping[str, str]) -> bytes:
    status, answer, body = _read(request, url, headers, MAX_LIST)
    if status != 200 or len(body) > MAX_LIST:
        raise refusal(request, status, answer.get("x-error-code", ""))
    return body


def read_listing(request: HubRequest, headers: Mapping[str, str], body: bytes) -> HubSource:
    """Read the Hub's list of a repository's files. Raises UnreadableError."""
    try:
        revision = msgspec.json.decode(body, type=_Revision)
    except NO_ANSWER:
        raise unreachable(request, "does not answer as a Hub does") from None
    sizes = {file.name: file.size for file in revision.files}
    for name in sizes:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise unreachable(request, f'lists a file "{name}" outside of the repository')
    top, below = _levels(sizes)
    return HubSource(request, revision.commit, top, headers, listed=_digests(revision.files), below=below)


def _levels(sizes: Mapping[str, int]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    # the files at the top, with those of a torch distributed checkpoint, and the files in folders
    pattern = re.compile(r"(model/)?[^/]+" if "model/.metadata" in sizes else r"[^/]+", re.DOTALL)
    top = {name: size for name, size in sizes.items() if pattern.fullmatch(name)}
    return top, {name: size for name, size in sizes.items() if name not in top}


def open_cached(text: str, *, is_config_enough: bool = True) -> FolderSource:
    """Open what the Hub client's cache holds of the repository, without the network, weights or not.

    `is_config_enough` False: its weights have to be there. Raises UnreadableError.
    """
    repo, named = split_name(text)
    revision = named or "main"
    folder = split_folder(text)[1]
    lack, what = "", f"{repo} at {revision}{f' (its folder {folder})' if folder else ''}"
    options = {"revision": revision, "local_files_only": True, "allow_patterns": ["config.json"]}
    try:
        source = FolderSource(Path(load_client().snapshot_download(repo, **options)) / folder)
        is_enough = is_config_enough or bool(checkpoints_below(source))
        if is_folder(source.root) and (is_enough or has_weights(source)):
            return source
        lack = f"{what} is in the Hub client's cache without all of its weights"
    except UnreadableError:
        raise
    except Exception:  # of the client: its text may hold a path or the token
        local = "" if text.startswith(SCHEME) else "no such file or folder here, and "
        lack = f"{text}: {local}{what} is not in the Hub client's cache"
    raise UnreadableError(
        f"{lack}, and this call is offline; run `hf download {repo} --revision {revision}` on a machine with"
        " network access"
    )


def is_offline() -> bool:
    """Whether the network must not be used: by HF_HUB_OFFLINE or --offline."""
    setting = os.environ.get("HF_HUB_OFFLINE", "").upper()
    return bool(load_client().constants.HF_HUB_OFFLINE) or setting in ("1", "TRUE", "YES", "ON")


def _headers(repo: str) -> dict[str, str]:
    try:
        headers: dict[str, str] = load_client().utils.build_hf_headers(
            library_name="eaglectl", library_version=eaglectl.__version__
        )
    except Exception as error:  # its text may hold a secret
        raise UnreadableError(
            f"{repo}: the Hub client could not get its token ({type(error).__name__}); run `hf auth login`"
        ) from None
    check_token(headers.get("authorization", "").removeprefix("Bearer "))
    return {**headers, "Accept-Encoding": "identity"}


def check_token(token: str) -> None:
    """Raise UnreadableError for a token with characters that no token has."""
    check(
        (
            not token.isascii() or not token.isprintable() or " " in token,
            "the Hub token has invalid characters; run `hf auth login`, or set HF_TOKEN again",
        ),
        error=UnreadableError,
    )
