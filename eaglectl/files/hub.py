"""A repository on the Hugging Face Hub at one commit.

Headers and rows are read by HTTP ranges, whole files through the Hub client's cache. huggingface_hub gives
the session (proxies, certificates), the endpoint, the token and the cache; it is loaded when the first
repository is opened. Requests are made here and not by its own retrying functions: those log to stderr, wait
as long as a server asks, and read a body to its end where a server ignores the range. No text of a server or
an exception is repeated, as it may hold the token. A redirect to another host is followed without the token:
the session's client drops it there.
"""

import dataclasses
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.files import Stamp, open_regular
from eaglectl.files.hub_cache import ListedDigests, blocks_of, compared, is_compared, other_bytes, repair
from eaglectl.files.hub_errors import HubRequest, refusal, unreachable
from eaglectl.files.hub_names import split_name
from eaglectl.files.hub_retries import TransferError
from eaglectl.files.hub_session import (
    download,
    error_of,
    failure_in,
    hub_calls,
    load_client,
    open_snapshot,
)
from eaglectl.files.hub_sharing import SHARED
from eaglectl.files.layout import CONFIG, INDEX, checkpoint_files, readable_files
from eaglectl.files.source import FolderSource, check_whole
from eaglectl.progress import notify
from eaglectl.text import listed

# a range may take this long, and a second more for each so many bytes
PATIENCE, SLOWEST = 30.0, 50_000


# git's names of commits and files: SHA-1, SHA-256 where the repository uses it
GIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHA256 = re.compile(r"[0-9a-f]{64}")
# what msgspec raises for a body that is not what was expected
NO_ANSWER = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _ListedFile(Struct):
    name: str = msgspec.field(name="rfilename")
    size: Annotated[int, Meta(ge=0)]
    lfs: Any = None
    git_id: Any = msgspec.field(default=None, name="blobId")


class _Revision(Struct):
    """A Hub's answer to `revision`."""

    commit: Annotated[str, Meta(pattern=r"\A[0-9a-f]{40,64}\Z")] = msgspec.field(name="sha")
    files: list[_ListedFile] = msgspec.field(name="siblings")


class _TreeEntry(Struct):
    """An entry of a Hub's answer to `tree`."""

    name: str = msgspec.field(name="path")
    lfs: Any = None
    git_id: Any = msgspec.field(default=None, name="oid")


def with_tree(digests: ListedDigests, body: bytes) -> ListedDigests:
    """The digests and those of other files in a Hub's answer to `tree`; an answer without any adds none."""
    try:
        entries = msgspec.json.decode(body, type=list[_TreeEntry])
    except NO_ANSWER:
        return digests
    more = _digests([entry for entry in entries if entry.name not in digests])
    return ListedDigests({**digests.sha256, **more.sha256}, {**digests.git_ids, **more.git_ids})


def _digests(files: Sequence[_ListedFile | _TreeEntry]) -> ListedDigests:
    """The digests that a Hub lists; the git id of a file in LFS is that of its pointer, and none of it."""
    sha256 = {file.name: file.lfs.get("sha256", file.lfs.get("oid")) for file in files if _is_in_lfs(file)}
    git_ids = {file.name: file.git_id for file in files if not _is_in_lfs(file)}
    return ListedDigests(
        {name: text for name, text in sha256.items() if isinstance(text, str) and SHA256.fullmatch(text)},
        {name: text for name, text in git_ids.items() if isinstance(text, str) and GIT_ID.fullmatch(text)},
    )


def _is_in_lfs(file: _ListedFile | _TreeEntry) -> bool:
    return isinstance(file.lfs, dict)


class Response(Struct, frozen=True):
    """A response: its status, its headers, and as much of its body as was requested."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def refusal(self, request: HubRequest) -> UnreadableError:
        """The error for a response of this status."""
        return refusal(request, self.status, self.headers.get("x-error-code", ""))


def read_whole(request: HubRequest, url: str, headers: Mapping[str, str], most: int) -> bytes:
    """The whole body at `url`. Raises UnreadableError, also where it has more than `most` bytes."""
    response = _read(request, url, headers, most)
    if response.status != 200 or len(response.body) > most:
        raise response.refusal(request)
    return response.body


def read_range(
    request: HubRequest, url: str, headers: Mapping[str, str], place: tuple[int, int, int]
) -> bytes:
    """Bytes [start, stop) of a file of `size` bytes (`place` is all three). Raises UnreadableError."""
    start, stop, size = place
    is_part = (start, stop) != (0, size)
    ranged = {**headers, "Range": f"bytes={start}-{stop - 1}"} if is_part else headers
    response = _read(request, url, ranged, stop - start)
    part = f"bytes {start}-{stop - 1}/{size}"
    if response.status not in (200, 206):
        raise response.refusal(request)
    if response.status == 206 and response.headers.get("content-range", "").strip() != part:
        raise unreachable(request, f"sent other bytes than {start} to {stop}, which were asked for")
    if response.status == 200 and start:  # else the file's beginning, whatever follows
        raise UnreadableError(
            f"{request.subject}: the Hub at {request.host} sends whole files only, and not ranges; run"
            f" `hf download {request.repo}`, and give it again"
        )
    if not is_part and len(response.body) > size:
        raise unreachable(request, f"sent more than the {size} bytes that it lists")
    if len(response.body) < stop - start:
        raise unreachable(request, f"sent {len(response.body)} bytes of {stop - start}")
    return response.body[: stop - start]


def _read(request: HubRequest, url: str, headers: Mapping[str, str], most: int) -> Response:
    """The response; its body is read to its end, or until there is more than `most` of it."""
    seconds = float(load_client().constants.HF_HUB_DOWNLOAD_TIMEOUT)
    options = {"headers": dict(headers), "timeout": seconds, "follow_redirects": True}
    try:
        with hub_calls() as session, session.stream("GET", url, **options) as response:
            if "Range" in headers and response.headers.get("content-encoding", "identity") != "identity":
                raise TransferError("sends a range compressed, although it was asked not to")
            return Response(response.status_code, response.headers, b"".join(_pieces(response, most)))
    except OSError as error:
        failure = TransferError(f"cannot be reached ({type(error).__name__})")
    except Exception as error:  # of the client or its transport: the text may hold the token
        failure = failure_in(error, "broke the answer off")
    raise error_of(request, failure)


def _pieces(response: Any, most: int) -> Iterator[bytes]:
    end = time.monotonic() + PATIENCE + most / SLOWEST
    count = 0
    for piece in response.iter_bytes():
        yield piece
        count += len(piece)
        if count > most:
            return
        if time.monotonic() > end:
            raise TransferError(f"is too slow: {count} bytes came of {most}")


# files up to this size are read whole, in one request
MAX_WHOLE = 200_000
# ranges up to this size are kept in memory
MAX_KEPT = 4 << 20
# bytes that the list of files of a repository may have
MAX_LIST = 64 << 20


@dataclass(frozen=True, slots=True)
class HubSource:
    """The files of a repository at `commit`.

    `sizes`, `listed` (digests) and `below` (sizes of files in subfolders) are the Hub's; `kept` are ranges
    read before, `cached` files that were read from the client's cache.
    """

    request: HubRequest
    commit: str
    sizes: Mapping[str, int]
    headers: Mapping[str, str] = field(repr=False)  # they hold the token
    kept: dict[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False)
    listed: ListedDigests = field(default_factory=lambda: ListedDigests({}, {}), repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    cached: set[str] = field(default_factory=set, repr=False, compare=False)
    below: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """org/name."""
        return self.request.repo

    @property
    def place(self) -> str:
        """org/name."""
        return self.request.repo

    @property
    def only(self) -> str | None:
        """None: a repository is read as a whole."""
        return None

    def names(self) -> tuple[str, ...]:
        """Files at the top of the repository, and those of a torch distributed checkpoint in its `model/`."""
        return tuple(sorted(self.sizes))

    def size(self, name: str) -> int:
        """Bytes of a file, as the Hub lists them."""
        if name not in self.sizes:
            raise UnreadableError(f"{self.label} has no file {name} at {self.commit[:12]}")
        return self.sizes[name]

    def path(self, name: str) -> Path | None:
        """The file in the Hub client's cache, if it is there."""
        self.size(name)
        constants = load_client().constants
        if not (Path(constants.HF_HUB_CACHE) / f"models--{self.label.replace('/', '--')}").is_dir():
            return None
        # imported late: it loads most of the client
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.label, name, revision=self.commit)
        return Path(path) if isinstance(path, str) else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file: from the cache, from memory, or by one request."""
        size = self.size(name)
        if stop is None:
            check_whole(self.label, name, size - start)
            stop = size
        if (path := self.path(name)) is not None:
            self.cached.add(name)
            return FolderSource(path.parents[name.count("/")]).read(name, start, stop)
        if stop > size or start > stop:
            raise UnreadableError(f"{name} ended at byte {size}; {stop} were expected: the file is truncated")
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

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Files of which bytes came from the Hub or the cache and no digest covers them: parts, or no digest
        is known.
        """
        names = {
            name
            for name, start, stop in self.kept
            if name not in self.listed or (start, stop) != (0, self.sizes[name])
        }
        paths = {name: self.path(name) for name in self.cached}
        names |= {name for name, path in paths.items() if path is None or not is_compared(path)}
        return tuple(sorted(names))

    def downloaded(self, without: Collection[str] = ()) -> FolderSource:
        """The checkpoint's files but those in `without`, downloaded into the Hub client's cache if needed.

        Each is compared with its listed digest, those that were in the cache before too. Raises
        UnreadableError.
        """
        for name in {CONFIG, INDEX} & set(self.sizes):
            check_whole(self.label, name, self.sizes[name])
        files = checkpoint_files(self, self.sizes)
        sizes = {name: self.sizes[name] for name in files if name not in without}
        new = [name for name in sizes if self.path(name) is None]
        folder = download(self.request, self.commit, sizes)
        self._compare({name: folder.path(name) for name in sizes}, new)
        if unlisted := [name for name in new if name not in self.listed]:
            notify(
                f"{self.label}: the Hub at {self.request.host} lists no digest of {listed(unlisted)};"
                " only the size was checked"
            )
        folder.check_cached(name for name in sizes if name not in self.listed and name not in new)
        return folder

    def check_cached(self) -> None:
        """Compare the checkpoint's files that are in the cache with their listed digests.

        Raises UnreadableError for other bytes.
        """
        paths = {name: self.path(name) for name in readable_files(self, self.sizes)}
        self._compare({name: path for name, path in paths.items() if path is not None})

    def _compare(self, paths: Mapping[str, Path], new: Sequence[str] = ()) -> None:
        """Compare files in the cache with their listed digests; others that are `new` are removed.

        Raises UnreadableError for other bytes.
        """
        with ThreadPoolExecutor() as pool:
            tuple(pool.map(lambda name: self._compare_file(name, paths[name], is_new=name in new), paths))

    def _compare_file(self, name: str, path: Path, *, is_new: bool) -> None:
        if name not in self.listed or is_compared(path):
            return
        with open_regular(path) as file:
            stamp = Stamp.of(os.fstat(file.fileno()))
            if self.listed.is_same(name, stamp.size, blocks_of(file.fileno())):
                return compared(path, stamp)
        where, advice = "in the Hub client's cache", repair(path)
        if is_new:
            where, advice = "that came", "it was removed from the cache; run the command again"
            with suppress(OSError):  # a cache that others share may not be ours to change
                path.resolve().unlink()
                path.unlink(missing_ok=True)
        raise other_bytes(self.request, name, self.listed, advice=advice, where=where)

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        url = f"{self.request.endpoint}/{self.label}/resolve/{self.commit}/{quote(name)}"
        request = replace(self.request, file=name)
        data = read_range(request, url, self.headers, (start, stop, self.size(name)))
        if len(data) == self.size(name) and not self.listed.is_same(name, len(data), [data]):
            raise other_bytes(self.request, name, self.listed, advice="run the command again")
        return data


def open_hub(text: str, *, is_config_enough: bool = False) -> HubSource | FolderSource:
    """Open the repository that `text` names, at the commit its revision points to; offline, from the cache.

    `is_config_enough`: weights that are not in the cache are no error. Raises UnreadableError.
    """
    repo, revision = split_name(text)
    request = HubRequest(text, repo, revision or "main", load_client().constants.ENDPOINT.rstrip("/"))
    if is_offline():
        return open_snapshot(request, is_config_enough=is_config_enough)
    if not SHARED.uses:
        return _list(request)
    with SHARED.lock:
        lock = SHARED.locks.setdefault(text, threading.Lock())
    with lock:
        if text not in SHARED.sources:
            SHARED.sources[text] = _list(request)
        shared: HubSource = SHARED.sources[text]
        return shared


def _list(request: HubRequest) -> HubSource:
    """The repository at the commit of its revision, by one request, or two where that lists no digests."""
    headers = _headers(request)
    request = replace(request, has_token="authorization" in headers)
    url = (
        f"{request.endpoint}/api/models/{request.repo}/revision/{quote(request.revision, safe='')}?blobs=true"
    )
    source = read_listing(request, headers, read_whole(request, url, headers, MAX_LIST))
    if not all(name in source.listed for name in source.sizes):  # huggingface.co lists all, other Hubs do not
        url = f"{request.endpoint}/api/models/{request.repo}/tree/{source.commit}?recursive=true"
        with suppress(UnreadableError):  # what is unlisted then is said where its bytes are used
            body = read_whole(request, url, headers, MAX_LIST)
            source = dataclasses.replace(source, listed=with_tree(source.listed, body))
    return source


def read_listing(request: HubRequest, headers: Mapping[str, str], body: bytes) -> HubSource:
    """The repository in the Hub's list of files. Raises UnreadableError."""
    try:
        revision = msgspec.json.decode(body, type=_Revision)
    except NO_ANSWER:
        raise unreachable(request, "does not answer as a Hub does") from None
    sizes = {file.name: file.size for file in revision.files}
    for name in sizes:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise unreachable(request, f'lists a file "{name}", which points out of the repository')
    has_model = "model/.metadata" in sizes
    wanted = {
        name: size
        for name, size in sizes.items()
        if "/" not in name or (has_model and re.fullmatch(r"model/[^/]+", name))
    }
    below = {name: size for name, size in sizes.items() if name not in wanted}
    digests = _digests(revision.files)
    return HubSource(request, revision.commit, wanted, headers, listed=digests, below=below)


def open_cached(text: str) -> FolderSource:
    """Open what the Hub client's cache holds of the repository, without the network, weights or not.

    Raises UnreadableError.
    """
    repo, revision = split_name(text)
    return open_snapshot(HubRequest(text, repo, revision or "main", ""), is_config_enough=True)


def is_offline() -> bool:
    """Whether the network must not be used: by HF_HUB_OFFLINE or --offline."""
    return bool(load_client().constants.HF_HUB_OFFLINE) or os.environ.get("HF_HUB_OFFLINE", "").upper() in (
        "1",
        "TRUE",
        "YES",
        "ON",
    )


def _headers(request: HubRequest) -> dict[str, str]:
    """Headers of each request: the token from the environment or the client's store, and eaglectl's name."""
    try:
        headers: dict[str, str] = load_client().utils.build_hf_headers(
            library_name="eaglectl", library_version=eaglectl.__version__
        )
    except Exception as error:  # its text may hold a secret
        raise UnreadableError(
            f"{request.repo}: the Hub client could not get its token ({type(error).__name__}); run `hf auth"
            " login`"
        ) from None
    check_token(headers.get("authorization", "").removeprefix("Bearer "))
    return {**headers, "Accept-Encoding": "identity"}


def check_token(token: str) -> None:
    """Raise UnreadableError for a token with characters that no token has."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UnreadableError(
            "the Hub token has characters that no token has; run `hf auth login`, or set HF_TOKEN again"
        )
