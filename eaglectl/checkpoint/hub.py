"""A repository on the Hugging Face Hub at one commit: headers and rows by HTTP ranges, whole files through the Hub client's cache.

The home of huggingface_hub, which gives the session (proxies, certificates), the endpoint, the token and the cache, and which
is loaded when the first repository is opened. Requests are made here and not by its own retrying ones: those log to stderr,
wait as long as a server asks them to, and read a body to its end where a server ignores the range. Nothing that a server or
an exception says is repeated, as it may hold the token.
"""

import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import eaglectl
from eaglectl.checkpoint.hub_faults import Asked, refusal, unreachable
from eaglectl.checkpoint.hub_listing import is_whole, listed, needed
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import Unreadable

SCHEME = "hf://"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@\S+)?", re.ASCII)
OLD_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}(@\S+)?", re.ASCII)
# files up to this size are read whole: one request, however often their parts are asked for
WHOLE = 200_000
# ranges up to this size are kept
KEPT = 4 << 20
# what the list of files of a repository may weigh
LIST = 64 << 20


def is_hub_name(text: str) -> bool:
    """Whether `text` can name a Hub repository: org/name, org/name@revision, or hf:// before either."""
    if text.startswith(SCHEME):
        return OLD_NAME.fullmatch(text.removeprefix(SCHEME)) is not None
    return NAME.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """Repository and revision that `text` names."""
    repo, _, revision = text.removeprefix(SCHEME).partition("@")
    return repo, (unquote(revision) if text.startswith(SCHEME) else revision) or None


@dataclass(frozen=True, slots=True)
class HubSource:
    """The files of a repository at `commit`; `sizes` and `digests` (SHA-256, of large files) are those the Hub lists, `kept` the bytes that were read before."""

    asked: Asked
    commit: str
    sizes: Mapping[str, int]
    headers: Mapping[str, str] = field(repr=False)  # they hold the token
    kept: dict[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """org/name."""
        return self.asked.repo

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
            raise Unreadable(f"{self.label} has no file {name} at {self.commit[:12]}")
        return self.sizes[name]

    def path(self, name: str) -> Path | None:
        """The file in the Hub client's cache, if it is there."""
        self.size(name)
        constants = _client().constants
        if not (Path(constants.HF_HUB_CACHE) / f"models--{self.label.replace('/', '--')}").is_dir():
            return None  # and the client's larger part need not be loaded
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.label, name, revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file: from the cache, from memory, or by one request."""
        size = self.size(name)
        stop = size if stop is None else stop
        if (path := self.path(name)) is not None:
            return FolderSource(path.parents[name.count("/")]).read(name, start, stop)
        if stop > size or start >= stop:
            return self._beyond(name, start, stop)
        first, last = (0, size) if size <= WHOLE else (start, stop)
        key = (name, first, last)
        data = self.kept.get(key) or self._fetched(name, first, last)
        if last - first <= KEPT:
            self.kept[key] = data
        return data[start - first : stop - first]

    def downloaded(self, without: Collection[str] = ()) -> FolderSource:
        """The checkpoint's own files in the Hub client's cache, fetched where they are not there yet, but for those `without`."""
        wanted = {name: self.sizes[name] for name in needed(self, self.sizes) if name not in without}
        return _download(self.asked, self.commit, wanted)

    def _beyond(self, name: str, start: int, stop: int) -> bytes:
        if start == stop <= self.size(name):
            return b""
        raise Unreadable(f"{name} ended at byte {self.size(name)}; {stop} were expected: the file is truncated")

    def _fetched(self, name: str, start: int, stop: int) -> bytes:
        from eaglectl.checkpoint.ranges import read_range

        url = f"{self.asked.endpoint}/{self.label}/resolve/{self.commit}/{quote(name)}"
        asked = replace(self.asked, file=name)
        return read_range(_client(), asked, url, self.headers, (start, stop, self.size(name)))


def open_hub(text: str, *, is_config_enough: bool = False) -> HubSource | FolderSource:
    """The repository that `text` names, at the commit that its revision is now; offline, what the cache holds of it.

    `is_config_enough`: weights that are not in the cache are no fault. Raises Unreadable.
    """
    client, (repo, revision) = _client(), split_name(text)
    asked = Asked(text, repo, revision or "main", client.constants.ENDPOINT.rstrip("/"))
    if is_offline():
        return _cached(asked, is_config_enough=is_config_enough)
    headers = _headers(asked)
    asked = replace(asked, has_token="authorization" in headers)
    from eaglectl.checkpoint.ranges import read_whole

    url = f"{asked.endpoint}/api/models/{repo}/revision/{quote(asked.revision, safe='')}?blobs=true"
    found = listed(asked, read_whole(client, asked, url, headers, LIST).body)
    return HubSource(asked, found.commit, found.sizes, headers, digests=found.digests)


def is_offline() -> bool:
    """Whether the network is not to be used: the client's own switch, or --offline."""
    return bool(_client().constants.HF_HUB_OFFLINE) or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")  # fmt: skip


def _client() -> Any:
    # its requests carry what it finds out of the machine, unless it is told before it is loaded
    if "huggingface_hub" not in sys.modules:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.utils

    return huggingface_hub


def _headers(asked: Asked) -> dict[str, str]:
    """What each request carries: the token from the environment or the client's store, and our name."""
    try:
        found: dict[str, str] = _client().utils.build_hf_headers(
            library_name="eaglectl", library_version=eaglectl.__version__
        )
    except Exception as error:  # whatever it was, its text may hold a secret
        raise Unreadable(
            f"{asked.repo}: the Hub client could not get its token ({type(error).__name__}); run `hf auth login`"
        ) from None
    token = found.get("authorization", "")
    if not token.isascii() or not token.isprintable():
        raise Unreadable("the Hub token has characters that no token has; run `hf auth login`, or set HF_TOKEN again")
    return {**found, "Accept-Encoding": "identity"}


DOWNLOADS = threading.Lock()


def _download(asked: Asked, commit: str, sizes: Mapping[str, int]) -> FolderSource:
    client = _client()
    with DOWNLOADS, _quiet(client):
        try:
            root = client.snapshot_download(
                asked.repo,
                revision=commit,
                allow_patterns=[escape(name) for name in sizes],
                endpoint=asked.endpoint,
                library_name="eaglectl",
                library_version=eaglectl.__version__,
            )
        except Exception as error:  # the client's, its transport's, Xet's: texts that are not ours to repeat
            raise _download_fault(asked, error) from None
    found = FolderSource(Path(root))
    _remember(found.root, asked.revision, commit)
    for name, size in sizes.items():
        if found.size(name) != size:
            raise Unreadable(
                f"{name} of {asked.repo} has {found.size(name)} bytes in the Hub client's cache and the Hub lists {size};"
                f" run `hf download {asked.repo} --force-download`"
            )
    return found


def _remember(snapshot: Path, revision: str, commit: str) -> None:
    """What the revision was, where the client looks when it is offline; it was asked for the commit alone."""
    refs = snapshot.parent.parent / "refs"
    if revision == commit or not (refs / revision).resolve().is_relative_to(refs.resolve()):
        return
    with suppress(OSError):  # a cache that cannot be written to is no worse for reading
        (refs / revision).parent.mkdir(parents=True, exist_ok=True)
        (refs / revision).write_text(commit)


def _download_fault(asked: Asked, error: BaseException) -> Unreadable:
    for one in (error, error.__cause__, error.__context__):
        response = getattr(one, "response", None)
        if response is not None:
            return refusal(asked, response.status_code, response.headers.get("X-Error-Code", ""))
    if isinstance(error, OSError) and error.strerror:
        return Unreadable(f"{asked.repo} cannot be kept in the Hub client's cache: {error.strerror}; HF_HOME moves it")
    return unreachable(asked, f"did not send all files ({type(error).__name__}; what came is kept)")


def _cached(asked: Asked, *, is_config_enough: bool) -> FolderSource:
    """What the cache holds of a repository, where the network is not to be used."""
    client = _client()
    way = f"run `hf download {asked.repo} --revision {asked.revision}` where there is a network"
    with _quiet(client):
        try:
            root = client.snapshot_download(
                asked.repo, revision=asked.revision, local_files_only=True, allow_patterns=["config.json"]
            )
        except Exception:  # whatever it was, there is nothing to read
            local = "" if asked.text.startswith(SCHEME) else "no such file or folder here, and "
            raise Unreadable(
                f"{asked.text}: {local}{asked.repo} at {asked.revision} is not in the Hub client's cache, and this call is offline; {way}"
            ) from None
    found = FolderSource(Path(root))
    if not is_config_enough and not is_whole(found):
        raise Unreadable(
            f"{asked.repo} at {asked.revision} is in the Hub client's cache without all of its weights, and this call is offline; {way}"
        )
    return found


@contextmanager
def _quiet(client: Any) -> Iterator[None]:
    """The client without its log, and without its bars where there is no terminal."""
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
