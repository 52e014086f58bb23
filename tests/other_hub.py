"""A second Hub on loopback, written from what huggingface_hub's client asks for, not from tests/hub.py.

It keeps to the parts of the protocol that the client relies on and differs where the client allows it, as
Hubs that people run themselves do: commit ids of 64 digits, no auth-check, no pull requests (501), errors
without the Hub's codes, a listing without git ids, gzip of every JSON and small file whatever was asked for,
relative redirects to storage on the same host, no verify step after a blob.
"""

import gzip
import hashlib
import json
import threading
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]
Fault = Callable[[str, str], int | None]


def first_of(faults: list[Fault], method: str, path: str) -> int | None:
    """The status that the first of the faults gives."""
    return next((status for fault in faults if (status := fault(method, path)) is not None), None)


class OtherHub:
    """Repositories as lists of commits: (id, title, files); `is_bare` leaves ETag and commit headers out.

    `faults` are called with the method and path of each request: one that returns a status answers with it,
    before the request takes effect. `lost` returns the status of a request's answer that is exchanged after.
    """

    def __init__(self, endpoint: str, *, is_bare: bool = False) -> None:
        self.endpoint = endpoint
        self.is_bare = is_bare
        # ETags as versions: of so many hexadecimal digits, and no digests
        self.version_digits = 0
        # whether the tree lists git's ids
        self.has_ids = True
        self.repos: dict[str, list[tuple[str, str, Files]]] = {}
        self.tags: dict[str, dict[str, str]] = defaultdict(dict)
        self.blobs: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.lost: list[Fault] = []

    def commit(self, repo: str, files: Files, title: str = "first") -> str:
        """Add a commit with these files on top of the others."""
        log = self.repos.setdefault(repo, [])
        merged = {**(log[-1][2] if log else {}), **files}
        oid = hashlib.sha256(f"{repo} {len(log)} {title}".encode()).hexdigest()
        log.append((oid, title, merged))
        return oid

    def at(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """The commit id and files of a branch, tag or commit."""
        log = self.repos.get(repo)
        if not log:
            return None
        wanted = log[-1][0] if revision == "main" else self.tags[repo].get(revision, revision)
        return next(((oid, files) for oid, _, files in log if oid == wanted), None)


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
    if is_large(name):
        found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: OtherHub

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def reply(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, *, zipped: bool = False
    ) -> None:
        headers = dict(headers or {})
        if (lost := first_of(self.hub.lost, self.command, urlsplit(self.path).path)) is not None:
            status, body, headers, zipped = lost, b"", {}, False
        if zipped:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: object, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"}, zipped=True)

    def answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.asked.append((self.command, url.path))
        if (status := first_of(self.hub.faults, self.command, url.path)) is not None:
            return self.reply(status)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[0] == "storage":
            return self.storage(parts[1], parts[2] if len(parts) > 2 else "", body)
        if "authorization" not in {name.lower() for name in self.headers}:
            return self.json({"error": "who are you?"}, 401)
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self.model("/".join(parts[2:4]), parts[4:], body, parse_qs(url.query))
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'alice'}/{asked['name']}"
            self.hub.commit(name, {})
            return self.json({"url": f"{self.hub.endpoint}/{name}"})
        if parts == ["api", "validate-yaml"]:
            return self.json({})
        if url.path.endswith("/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        if len(parts) > 4 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.json({"detail": "Not Found"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def model(self, repo: str, rest: list[str], body: bytes, query: dict[str, list[str]]) -> None:
        kind, revision = [*rest, "", ""][:2]
        found = self.hub.at(repo, revision or "main")
        if kind == "discussions" or "create_pr" in query:
            self.json({"detail": "pull requests are not implemented"}, 501)
        elif kind == "refs" and repo in self.hub.repos:
            self.refs(repo)
        elif found is None:
            self.json({"detail": "no such repository, or no such revision"}, 404)
        elif kind == "tag":
            self.hub.tags[repo][json.loads(body)["tag"]] = found[0]
            self.json({})
        elif kind == "commit":
            self.commit(repo, found[0], [json.loads(line) for line in body.splitlines() if line])
        elif kind in READS:
            self.json(READS[kind](self, repo, found, body))
        else:
            self.json({"detail": "Not Found"}, 404)

    def refs(self, repo: str) -> None:
        head = {"name": "main", "ref": "refs/heads/main", "targetCommit": self.hub.repos[repo][-1][0]}
        tags = [
            {"name": name, "ref": f"refs/tags/{name}", "targetCommit": oid}
            for name, oid in self.hub.tags[repo].items()
        ]
        self.json({"branches": [head], "tags": tags, "converts": []})

    def info(self, repo: str, found: tuple[str, Files], _: bytes) -> object:
        siblings = []
        for name, data in found[1].items():
            lfs = entry(name, data).get("lfs")
            listed = {**lfs, "sha256": lfs["oid"]} if lfs else None
            siblings.append({"rfilename": name, "size": len(data), "lfs": listed})
        return {"id": repo, "sha": found[0], "private": True, "siblings": siblings, "tags": []}

    def tree(self, repo: str, found: tuple[str, Files], _: bytes) -> object:
        no_id = {} if self.hub.has_ids else {"oid": "version 1"}
        return [entry(name, data) | no_id for name, data in found[1].items()]

    def paths_info(self, repo: str, found: tuple[str, Files], body: bytes) -> object:
        is_json = "json" in self.headers.get("Content-Type", "")
        paths = (json.loads(body) if is_json else parse_qs(body.decode())).get("paths", [])
        return [entry(name, found[1][name]) for name in paths if name in found[1]]

    def preupload(self, repo: str, found: tuple[str, Files], body: bytes) -> object:
        rows = [
            {"path": row["path"], "uploadMode": "lfs" if is_large(row["path"]) else "regular"}
            for row in json.loads(body)["files"]
        ]
        return {"files": [{**row, "shouldIgnore": False} for row in rows]}

    def commits(self, repo: str, found: tuple[str, Files], _: bytes) -> object:
        rest = {"message": "", "date": "2026-01-01T00:00:00.000000Z", "authors": []}
        log = self.hub.repos[repo]
        log = log[: 1 + [oid for oid, _, _ in log].index(found[0])][::-1]
        return [{"id": oid, "title": title, **rest} for oid, title, _ in log]

    def commit(self, repo: str, head: str, lines: list[dict[str, Any]]) -> None:
        files: Files = {}
        title = ""
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    title = value["summary"]
                    if value.get("parentCommit") not in (None, head):
                        return self.json({"detail": "moved"}, 412)
                case "file":
                    files[value["path"]] = b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.blobs[value["oid"]]
        oid = self.hub.commit(repo, files, title)
        return self.json({"commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}", "commitOid": oid})

    def batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for one in asked["objects"]:
            upload = {"href": f"{self.hub.endpoint}/storage/{one['oid']}"}
            is_known = one["oid"] in self.hub.blobs
            objects.append(one if is_known else {**one, "actions": {"upload": upload}})
        self.json({"transfer": "basic", "objects": objects})

    def storage(self, oid: str, commit: str, body: bytes) -> None:
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != oid:
                return self.reply(400)
            self.hub.blobs[oid] = body
            return self.reply(201)
        data = self.hub.blobs[oid]
        start, stop = 0, len(data)
        headers = {} if self.hub.is_bare else {"X-Repo-Commit": commit, "ETag": f'"{oid}"'}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(data)) if last else len(data)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return self.reply(206, data[start:stop], headers)
        return self.reply(200, data, headers)

    def resolve(self, repo: str, revision: str, name: str) -> None:
        found = self.hub.at(repo, revision)
        if found is None or name not in found[1]:
            return self.json({"detail": "Not Found"}, 404)
        oid, data = found[0], found[1][name]
        digest = hashlib.sha256(data).hexdigest()
        version = hashlib.sha256(b"version of " + data).hexdigest()
        etag = version[: self.hub.version_digits] or digest
        headers = {"X-Repo-Commit": oid, "ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        headers = {} if self.hub.is_bare else headers
        if is_large(name):
            self.hub.blobs[digest] = data
            return self.reply(307, b"", {**headers, "Location": f"/storage/{digest}/{oid}"})
        return self.reply(200, data, headers, zipped=self.command == "GET")


READS: dict[str, Callable[[_Handler, str, tuple[str, Files], bytes], object]] = {
    "": _Handler.info,
    "revision": _Handler.info,
    "tree": _Handler.tree,
    "paths-info": _Handler.paths_info,
    "preupload": _Handler.preupload,
    "commits": _Handler.commits,
}


@contextmanager
def other_hub(*, is_bare: bool = False) -> Iterator[OtherHub]:
    """A running Hub; it takes any token."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.block_on_close = True, False
    handler.hub = OtherHub(f"http://127.0.0.1:{server.server_address[1]}", is_bare=is_bare)  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield handler.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
