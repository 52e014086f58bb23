"""A loopback Hub: the parts of huggingface.co that eaglectl uses, in memory, for the real client.

    with LoopbackHub() as hub:
        repo = hub.add_repo("org/drafter", {"config.json": b"{}", "model.safetensors": Path("weights")})
        HfApi(endpoint=hub.endpoint).model_info("org/drafter").sha == repo.head("main")

Two servers on 127.0.0.1: the Hub at `hub.endpoint`, and another host, at `hub.elsewhere`, that large files
(LFS) are sent from and uploaded to: it knows no tokens, and a request that brings one there is a leak
(`hub.leaks`). Uploads go by LFS; with `constants.HF_HUB_DISABLE_XET` unset the client asks for Xet.

`hub.users` maps a token to a User; repositories are private or gated. Every request is kept in
`hub.requests`, in order, with what was answered and how many bytes. Faults are functions in `hub.faults`,
called for each request as `fault(request, proceed)`: return None to let it be, a Reply to answer without
doing anything, or call `proceed()`, which does it, and change or replace the Reply that it gives; `once`
makes one that passes.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

TOKEN = "hf_plantedPLANTEDplantedPLANTED0123456"

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp", ".gguf", ".pkl", ".onnx")
LFS_SIZE = 10_000_000
PIECE = 1 << 16


class Blob(Struct, frozen=True):
    """A file's content: bytes, or a file on disk (for a sparse one of any size, the hash is made up)."""

    name: str
    data: bytes | Path

    @property
    def size(self) -> int:
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size

    @property
    def is_lfs(self) -> bool:
        return self.name.endswith(LFS_SUFFIXES) or self.size > LFS_SIZE

    @property
    def sha256(self) -> str:
        data = self.data if isinstance(self.data, bytes) else str(self.data).encode()
        return hashlib.sha256(data).hexdigest()

    @property
    def pointer(self) -> bytes:
        version = "version https://git-lfs.github.com/spec/v1"
        return f"{version}\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @property
    def git_sha1(self) -> str:
        """Git's own hash; of the pointer for an LFS file."""
        data = self.pointer if self.is_lfs or isinstance(self.data, Path) else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_lfs else self.git_sha1

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        if isinstance(self.data, bytes):
            yield self.data[start:stop]
            return
        with self.data.open("rb") as file:
            file.seek(start)
            while start < stop and (piece := file.read(min(PIECE, stop - start))):
                start += len(piece)
                yield piece


class Commit(Struct, frozen=True):
    """One state of a repository."""

    oid: str
    parent: str | None
    files: Mapping[str, Blob]
    title: str = ""
    description: str = ""


class Repo(Struct):
    """A model repository; `refs` maps `main`, other branches, `refs/pr/N` and tags to commits.

    A private one is seen by members of its org (the first part of its name); a gated one is listed for
    everybody, and its files are sent to members.
    """

    name: str
    is_private: bool = False
    is_gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, str] = field(default_factory=dict)

    def head(self, ref: str = "main") -> str:
        return self.refs[ref]

    def at(self, revision: str) -> Commit | None:
        oid = self.refs.get(revision) or self.tags.get(revision) or revision
        return self.commits.get(oid)

    def files(self, ref: str = "main") -> Mapping[str, Blob]:
        found = self.at(ref)
        assert found is not None, ref
        return found.files

    def commit(
        self, files: Mapping[str, bytes | Path], *, delete: tuple[str, ...] = (), title: str = "a commit"
    ) -> str:
        """Add files on top of main, as somebody else would; gives the new head."""
        blobs = {name: Blob(name, data) for name, data in files.items()}
        return self.put("main", blobs, delete, title, "")

    def put(
        self, ref: str, blobs: Mapping[str, Blob], delete: tuple[str, ...], title: str, description: str
    ) -> str:
        parent = self.refs.get(ref) or self.refs.get("main")
        before = self.commits[parent].files if parent else {}
        kept = {name: blob for name, blob in before.items() if name not in delete}
        seed = f"{self.name} {ref} {parent} {len(self.commits)} {title}"
        oid = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[oid] = Commit(oid, parent, {**kept, **blobs}, title, description)
        self.refs[ref] = oid
        return oid

    def log(self, ref: str = "main") -> list[Commit]:
        found = [self.at(ref)]
        while found[-1] is not None:
            found.append(self.commits.get(found[-1].parent or ""))
        return [commit for commit in found if commit is not None]


class User(Struct, frozen=True):
    """Who a token belongs to, and whether it may write."""

    name: str
    orgs: tuple[str, ...] = ()
    can_write: bool = True

    def is_member(self, repo: str) -> bool:
        return repo.split("/")[0] in (self.name, *self.orgs)


class Reply(Struct, frozen=True):
    """An answer. `cut`: close the connection after so many bytes; `pause`: seconds before each part."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | tuple[Blob, int, int] = b""
    cut: int | None = None
    pause: float = 0.0
    piece: int = PIECE

    @property
    def size(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body[2] - self.body[1]


class Request(Struct):
    """A request, and afterwards what was answered: the status, and bytes of head and body that were sent."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    is_elsewhere: bool
    status: int = 0
    sent: int = 0

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def is_commit(self) -> bool:
        return self.method == "POST" and "/commit/" in self.path

    @property
    def is_blob(self) -> bool:
        return self.method == "PUT" and self.path.startswith("/lfs/")

    @property
    def is_info(self) -> bool:
        is_it = re.fullmatch(r"/api/models/[^/]+/[^/]+(/revision/.+)?", self.path)
        return self.method == "GET" and is_it is not None

    def is_file(self, name: str = "") -> bool:
        """Whether a file (of this name) is asked for, at the Hub or where it redirects to."""
        is_content = "/resolve/" in self.path or self.is_elsewhere
        return self.method == "GET" and is_content and self.path.endswith(name)


Fault = Callable[[Request, Callable[[], Reply]], Reply | None]


def once(fault: Fault, times: int = 1) -> Fault:
    """`fault` for as many requests as it changes, `times`, and no more."""
    left = [times]

    def only(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        reply = fault(request, proceed) if left[0] else None
        left[0] -= reply is not None
        return reply

    return only


class LoopbackHub:
    """Both servers and the state behind them; a context manager."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.users: dict[str, User] = {}
        # (a CI's id token, repository) -> the token it is exchanged for
        self.trusted: dict[tuple[str, str], str] = {}
        self.stored: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        handlers = [
            type("Handler", (_Handler,), {"hub": self, "is_elsewhere": here}) for here in (False, True)
        ]
        self.servers = [_Server(("127.0.0.1", 0), handler) for handler in handlers]
        self.endpoint = f"http://127.0.0.1:{self.servers[0].server_address[1]}"
        self.elsewhere = f"http://localhost:{self.servers[1].server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add_repo(self, name: str, files: Mapping[str, bytes | Path] | Path, **state: Any) -> Repo:
        """A repository with one commit on main; `files` may be a folder."""
        if isinstance(files, Path):
            files = {
                str(p.relative_to(files)): p.read_bytes() for p in sorted(files.rglob("*")) if p.is_file()
            }
        repo = self.repos[name] = Repo(name, **state)
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n", **files}, title="initial commit")
        return repo

    def asked(self, part: str = "", *, method: str | None = None) -> list[Request]:
        """Requests whose path holds `part`."""
        return [r for r in self.requests if part in r.path and method in (None, r.method)]

    @property
    def traffic(self) -> int:
        """Bytes sent so far, heads and bodies."""
        return sum(request.sent for request in self.requests)

    @property
    def leaks(self) -> list[Request]:
        """Requests that brought a token to the other host."""
        return [request for request in self.requests if request.is_elsewhere and request.token]

    def answer(self, request: Request) -> Reply:
        """What a request gets: faults first, then the route."""

        def proceed() -> Reply:
            with self.lock:
                return route(self, request)

        for fault in list(self.faults):
            reply = fault(request, proceed)
            if reply is not None:
                return reply
        return proceed()


# the token of a member of "org", who may write
PUBLISHER = "hf_" + "plantedSecret" * 3


@contextmanager
def client_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, tries: int = 3, token: str = TOKEN
) -> Iterator["LoopbackHub"]:
    """A loopback Hub for this process's client, with an empty cache and a planted token that may read.

    Waits are short, after `tries` of them a request has failed, and the client never waits by itself.
    """
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http, close_session

    from eaglectl.files import hub_requests

    client_waits: list[float] = []
    with LoopbackHub() as running:
        for name, value in {
            "ENDPOINT": running.endpoint,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_OFFLINE": False,
            "HUGGINGFACE_CO_URL_TEMPLATE": running.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
            "HF_HUB_DOWNLOAD_TIMEOUT": 2,
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", token)
        policy = replace(hub_requests.POLICY, attempts=tries + 1, first_wait=0.01, longest_wait=0.01)
        monkeypatch.setattr(hub_requests, "POLICY", policy)
        for module in (_http, file_download):
            monkeypatch.setattr(module, "time", SimpleNamespace(sleep=client_waits.append))
        running.users = {TOKEN: User("reader"), PUBLISHER: User("alice", ("org",))}
        yield running
        close_session()
    assert client_waits == []


@contextmanager
def publishing_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator["LoopbackHub"]:
    """The same with PUBLISHER's token, for `upload` in this folder."""
    monkeypatch.chdir(tmp_path)
    with client_hub(monkeypatch, tmp_path, token=PUBLISHER) as running:
        yield running


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator["LoopbackHub"]:
    """That Hub, for a test."""
    with publishing_hub(monkeypatch, tmp_path) as running:
        yield running


# --- what the Hub does


def error(status: int, message: str, code: str = "") -> Reply:
    """An error as the Hub words it: in two headers and in JSON."""
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    reply = as_json({"error": message}, status)
    return replace(reply, headers={**reply.headers, **headers})


def as_json(value: object, status: int = 200) -> Reply:
    return Reply(status, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(value).encode())


def route(hub: LoopbackHub, request: Request) -> Reply:
    if request.is_elsewhere:
        return _storage(hub, request)
    if request.token is not None and request.token not in hub.users:
        return error(401, "Invalid credentials in Authorization header")
    for method, pattern, action in ROUTES:
        found = re.fullmatch(pattern, request.path)
        if not found or request.method not in method.split():
            continue
        parts = [unquote(part) if part else "" for part in found.groups()]
        if not pattern.startswith(REPO_ROUTES):
            return action(hub, request, *parts)
        try:
            refusal = _refusal(hub, request, parts[0])
            return refusal or action(hub, request, hub.repos[parts[0]], *parts[1:])
        except NoRevisionError as missing:
            return error(404, str(missing), "RevisionNotFound")
    return error(404, f"no route for {request.method} {request.path}")


def _refusal(hub: LoopbackHub, request: Request, name: str) -> Reply | None:
    user, repo = hub.users.get(request.token or ""), hub.repos.get(name)
    if repo is None or (repo.is_private and not (user and user.is_member(name))):
        status, message = (404, "Repository not found") if user else (401, "Invalid username or password.")
        return error(status, message, "RepoNotFound")
    is_file = "/resolve/" in request.path
    if is_file and repo.is_gated and not (user and user.is_member(name)):
        message = f"Access to model {name} is restricted"
        return error(403 if user else 401, message, "GatedRepo")
    is_write = request.method in ("POST", "PUT", "DELETE") and "/paths-info/" not in request.path
    if is_write:
        if user is None:
            return error(401, "Invalid username or password.")
        if not user.can_write or not (user.is_member(name) or "create_pr" in request.query):
            return error(403, f"You don't have write access to {name}")
    return None


class NoRevisionError(Exception):
    """A request names a revision that is not there."""


def _at(repo: Repo, revision: str) -> Commit:
    if commit := repo.at(revision):
        return commit
    raise NoRevisionError(f"Invalid rev id: {revision}")


def info(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    commit = _at(repo, revision or "main")
    siblings = []
    for name, blob in sorted(commit.files.items()):
        entry: dict[str, Any] = {"rfilename": name}
        if request.query.get("blobs", "").lower() == "true":
            entry |= {"size": blob.size, "blobId": blob.git_sha1}
            if blob.is_lfs:
                entry["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
        siblings.append(entry)
    state: dict[str, Any] = {
        "private": repo.is_private,
        "gated": "auto" if repo.is_gated else False,
        "tags": [],
    }
    counts = {"downloads": 0, "likes": 0, "createdAt": "2026-01-01T00:00:00.000Z"}
    known = {"_id": "0", "id": repo.name, "modelId": repo.name, "sha": commit.oid}
    return as_json({**known, **state, **counts, "siblings": siblings})


def _entry(name: str, blob: Blob) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": blob.git_sha1, "size": blob.size, "path": name}
    if blob.is_lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
    return entry


def tree(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    commit = _at(repo, revision)
    return as_json([_entry(name, blob) for name, blob in sorted(commit.files.items())])


def paths_info(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    commit = _at(repo, revision)
    is_json = "json" in request.headers.get("content-type", "")
    asked = json.loads(request.body) if is_json else parse_qs(request.body.decode())
    return as_json(
        [_entry(path, commit.files[path]) for path in asked.get("paths", []) if path in commit.files]
    )


def resolve(hub: LoopbackHub, request: Request, repo: Repo, revision: str, name: str) -> Reply:
    commit = _at(repo, revision)
    blob = commit.files.get(name)
    if blob is None:
        return error(404, "Entry not found", "EntryNotFound")
    headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
    if not blob.is_lfs:
        return _content(request, blob, headers)
    headers |= {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"'}
    location = f"{hub.elsewhere}/files/{repo.name}/{commit.oid}/{quote(name)}"
    return Reply(302, {**headers, "Location": location}, b"Found. Redirecting")


def _content(request: Request, blob: Blob, headers: Mapping[str, str]) -> Reply:
    if request.range is None:
        return Reply(200, headers, (blob, 0, blob.size))
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range)
    start = int(found[1]) if found else blob.size
    stop = min(int(found[2]) + 1, blob.size) if found and found[2] else blob.size
    if start >= stop:
        return Reply(416, {**headers, "Content-Range": f"bytes */{blob.size}"})
    return Reply(
        206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{blob.size}"}, (blob, start, stop)
    )


def _storage(hub: LoopbackHub, request: Request) -> Reply:
    """The other host: files to read at /files/ORG/NAME/COMMIT/PATH, blobs to put at /lfs/SHA256."""
    if found := re.fullmatch(r"/files/([^/]+/[^/]+)/([^/]+)/(.+)", request.path):
        blob = hub.repos[found[1]].commits[found[2]].files[unquote(found[3])]
        return _content(request, blob, {"ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"})
    if request.is_blob:
        oid = request.path.removeprefix("/lfs/")
        if hashlib.sha256(request.body).hexdigest() != oid:
            return error(400, "the SHA-256 of what was sent is another one")
        hub.stored[oid] = request.body
        return Reply(200)
    return error(404, "no such object")


def create_repo(hub: LoopbackHub, request: Request) -> Reply:
    user, asked = hub.users.get(request.token or ""), json.loads(request.body)
    if user is None or not user.can_write:
        return error(401 if user is None else 403, "You don't have the rights to create a model")
    name = f"{asked.get('organization') or user.name}/{asked['name']}"
    if not user.is_member(name):
        return error(403, f"You don't have the rights to create a model under the namespace of {name}")
    if name in hub.repos:
        return as_json({"error": "You already created this model repo", "url": f"{hub.endpoint}/{name}"}, 409)
    is_private = bool(asked.get("private")) or asked.get("visibility") == "private"
    hub.add_repo(name, {}, is_private=is_private)
    return as_json({"url": f"{hub.endpoint}/{name}", "name": name, "id": "0"})


def validate_yaml(hub: LoopbackHub, request: Request) -> Reply:
    return as_json({"errors": [], "warnings": []})


def preupload(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    commit = _at(repo, revision)
    found = []
    for file in json.loads(request.body)["files"]:
        old = commit.files.get(file["path"])
        is_lfs = file["path"].endswith(LFS_SUFFIXES) or file["size"] > LFS_SIZE
        entry = {"path": file["path"], "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False}
        found.append({**entry, **({"oid": old.etag} if old else {})})
    return as_json({"files": found})


def lfs_batch(hub: LoopbackHub, request: Request, repo: Repo) -> Reply:
    known, objects = _lfs_data(hub), []
    for asked in json.loads(request.body)["objects"]:
        upload = {"href": f"{hub.elsewhere}/lfs/{asked['oid']}", "header": {}}
        objects.append({**asked, **({} if asked["oid"] in known else {"actions": {"upload": upload}})})
    return as_json({"transfer": "basic", "objects": objects})


def commit(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    base = _at(repo, revision)
    if header.get("parentCommit") not in (None, base.oid):
        return error(412, "A commit has happened since. Please refresh and try again.")
    blobs: dict[str, Blob] = {}
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            blobs[value["path"]] = Blob(value["path"], base64.b64decode(value["content"]))
        elif line["key"] == "lfsFile":
            data = _lfs_data(hub).get(value["oid"])
            if data is None:
                return error(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
            blobs[value["path"]] = Blob(value["path"], data)
    delete = tuple(line["value"]["path"] for line in lines if line["key"] == "deletedFile")
    is_pull = "create_pr" in request.query
    ref = _open_pull(repo, base.oid) if is_pull else revision
    oid = repo.put(ref, blobs, delete, header.get("summary", ""), header.get("description", ""))
    place = f"{hub.endpoint}/{repo.name}"
    pull = {"pullRequestUrl": f"{place}/discussions/{max(repo.pulls)}"} if is_pull else {}
    return as_json({"success": True, "commitOid": oid, "commitUrl": f"{place}/commit/{oid}", **pull})


def _lfs_data(hub: LoopbackHub) -> Mapping[str, bytes | Path]:
    """Every large file that is there, by its digest."""
    states = (state for repo in hub.repos.values() for state in repo.commits.values())
    blobs = (blob for state in states for blob in state.files.values() if blob.is_lfs)
    return {**{blob.sha256: blob.data for blob in blobs}, **hub.stored}


def _open_pull(repo: Repo, oid: str) -> str:
    number = len(repo.pulls) + 1
    repo.pulls[number], repo.refs[f"refs/pr/{number}"] = "open", oid
    return f"refs/pr/{number}"


def tag(hub: LoopbackHub, request: Request, repo: Repo, revision: str) -> Reply:
    found, name = _at(repo, revision), json.loads(request.body)["tag"]
    if name in repo.tags:
        return error(409, f"Tag reference exists already: {name}")
    repo.tags[name] = found.oid
    return Reply(201)


def refs(hub: LoopbackHub, request: Request, repo: Repo) -> Reply:
    def rows(kind: str, found: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "ref": f"{kind}{name}", "targetCommit": oid} for name, oid in found.items()]

    pulls = {name: oid for name, oid in repo.refs.items() if name.startswith("refs/pr/")}
    answer = {
        "branches": rows("refs/heads/", {name: oid for name, oid in repo.refs.items() if name not in pulls}),
        "tags": rows("refs/tags/", repo.tags),
        "converts": [],
    }
    return as_json({**answer, "pullRequests": rows("", pulls)} if "include_prs" in request.query else answer)


def exchange(hub: LoopbackHub, request: Request) -> Reply:
    asked = json.loads(request.body)
    token = hub.trusted.get((asked["subject_token"], asked["resource"]))
    if token is None:
        return error(401, "This publisher is not trusted.")
    return as_json({"access_token": token, "token_type": "bearer", "expires_in": 3600})


REPO = r"/api/models/([^/]+/[^/]+)"
REPO_ROUTES = (REPO, r"/([^/]+/[^/]+)")
ROUTES: tuple[tuple[str, str, Callable[..., Reply]], ...] = (
    ("POST", r"/api/repos/create", create_repo),
    ("POST", r"/oauth/token", exchange),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("GET", REPO + r"/tree/([^/]+)", tree),
    ("POST", REPO + r"/paths-info/([^/]+)", paths_info),
    ("POST", REPO + r"/preupload/([^/]+)", preupload),
    ("POST", REPO + r"/commit/([^/]+)", commit),
    ("POST", REPO + r"/tag/([^/]+)", tag),
    ("GET", REPO + r"/refs", refs),
    ("GET", REPO + r"(?:/revision/([^/]+))?", info),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", lfs_batch),
    ("GET HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", resolve),
)  # fmt: skip


# --- the wire


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: ClassVar[LoopbackHub]
    is_elsewhere: ClassVar[bool]

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, url.path, query, headers, self._body(headers), self.is_elsewhere)
        self.hub.requests.append(request)
        reply = self.hub.answer(request)
        request.status = reply.status
        self._send(request, reply)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        body = b""
        while length := int(self.rfile.readline(), 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, request: Request, reply: Reply) -> None:
        head = {"Content-Length": str(reply.size), **reply.headers}
        self.send_response(reply.status)
        for name, value in head.items():
            self.send_header(name, value)
        request.sent += sum(len(line) for line in self._headers_buffer)
        self.end_headers()
        if self.command == "HEAD":
            return
        left = reply.size if reply.cut is None else reply.cut
        for piece in self._pieces(reply):
            self.hub.closing.wait(reply.pause) if reply.pause else None
            self.wfile.write(piece[:left])
            request.sent += len(piece[:left])
            left -= len(piece[:left])
            if left <= 0 or self.hub.closing.is_set():
                break
        self.close_connection = self.close_connection or reply.cut is not None

    def _pieces(self, reply: Reply) -> Iterator[bytes]:
        whole = (reply.body,) if isinstance(reply.body, bytes) else reply.body[0].pieces(*reply.body[1:])
        for part in whole:
            for start in range(0, len(part), reply.piece):
                yield part[start : start + reply.piece]

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: `hub.requests` is the log."""


def assert_holds(repo: Repo, folder: Path, ref: str) -> None:
    """The ref holds the folder's files, and a card, a record and checksums of exactly what is there."""
    files = repo.files(ref)
    for path in folder.iterdir():
        if path.name not in ("README.md", "eaglectl.json", "SHA256SUMS"):
            assert files[path.name].data == path.read_bytes()
    digests = {
        name: blob.sha256 for name, blob in files.items() if name not in (".gitattributes", "SHA256SUMS")
    }
    sums = bytes(files["SHA256SUMS"].data).decode()  # type: ignore[arg-type]
    assert dict(line.split("  ")[::-1] for line in sums.splitlines()) == digests
    recorded = json.loads(files["eaglectl.json"].data)["published"]["files"]  # type: ignore[arg-type]
    assert {name: one["sha256"] for name, one in recorded.items()} == {
        name: digest for name, digest in digests.items() if name != "eaglectl.json"
    }
