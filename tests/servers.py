"""Servers of other engines, as far as eaglectl asks them."""

import http.server
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.run.results import SmokeReport
from tests.builders import drafter_folder

MODELS = {"data": [{"id": "m"}]}
INFO = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "version": "0.5.23",
    "speculative_draft_model_path": "org/drafter",
}
DETAILS = {"spec_verify_ct": 10, "spec_correct_drafts_histogram": [4, 3, 2, 1]}
ANSWER = {"usage": {"completion_tokens": 20}, "sglext": {"spec_tokens_details": DETAILS}}
SGLANG = {"/v1/models": MODELS, "/server_info": INFO, "/v1/completions": ANSWER}


@contextmanager
def server(pages: Mapping[str, Any], seen: list[Any]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            page = page(len(seen)) if callable(page) else page
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with running(Handler) as url:
        yield url


@contextmanager
def running(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server whose requests this class answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def smoke(
    tmp_path: Path,
    pages: Mapping[str, Any],
    seen: list[Any] | None = None,
    prompts: str = "one\ntwo\n",
    **options: Any,
) -> SmokeReport:
    folder, target, file = drafter_folder(tmp_path), tmp_path / "target", tmp_path / "prompts.txt"
    target.mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama", "vocab_size": 64}')
    file.write_text(prompts)
    with server(pages, [] if seen is None else seen) as url:
        given = eaglectl.SmokeOptions(run_in=url, prompts=file, max_tokens=20, **options)
        return eaglectl.smoke(str(folder), str(target), given)


PROPS = {
    "build_info": "b1-0c1e570",
    "model_path": "target.gguf",
    "endpoint_metrics": True,
    "default_generation_settings": {"n_ctx": 512},
}
# after each prompt of 20 tokens: the first one, then 10 rounds, in which 6, 3 and 0 drafts were accepted
GROWTH = {"tokens_predicted_total": 20, "spec_decode_num_drafts_total": 10}
ACCEPTED = (6, 3, 0)


def llama_metrics(prompts: int) -> str:
    """The page after so many prompts: positions are counted from the first draft on."""
    lines = [f"llamacpp:{name} {count * prompts}" for name, count in GROWTH.items()]
    lines += ["llamacpp:requests_processing 0", "llamacpp:prompt_tokens_seconds 1.23457e+06"]
    by_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    if prompts:
        lines += [
            f'{by_position}{{position="{place}"}} {count * prompts}' for place, count in enumerate(ACCEPTED)
        ]
    return "\n".join(["# TYPE llamacpp:n_decode_total counter", *lines, ""])


LLAMA = {
    "/v1/models": MODELS,
    "/props": PROPS,
    "/metrics": llama_metrics,
    "/v1/completions": {
        "usage": {"completion_tokens": 20},
        "timings": {"draft_n": 30, "draft_n_accepted": 9},
    },
}
METRICS = (
    'vllm:num_requests_running{{engine="0"}} 0.0\n'
    'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
    'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}\n'
)
COMPLETIONS, COUNTERS = "/v1/completions", "/metrics"
TOO_LONG = 60.0
# what a page sends: bytes, or what is done with the connection
Page = bytes | Callable[[socket.socket], None]


def answer(body: bytes | str | object, status: str = "200 OK", *headers: str) -> bytes:
    """An answer with its length; a body that is neither bytes nor text is sent as JSON."""
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Raw:
    """A server of raw bytes on loopback, and the requests that came."""

    pages: Mapping[str, Page]
    requests: list[bytes] = field(default_factory=list)
    url: str = ""

    def serve(self, listener: socket.socket) -> None:
        threads = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                thread = threading.Thread(target=self.reply, args=(connection,), daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()

    def reply(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(TOO_LONG)
            request = b""
            while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                request += piece
            head, _, body = request.partition(b"\r\n\r\n")
            if length := re.search(rb"(?i)content-length: (\d+)", head):
                while len(body) < int(length[1]) and (piece := connection.recv(65536)):
                    body += piece
            self.requests.append(head)
            path = head.split(b" ")[1].decode().partition("?")[0] if b" " in head else ""
            page = self.pages.get(path, answer("", "404 Not Found"))
            if callable(page):
                page(connection)
            else:
                connection.sendall(page)


@contextmanager
def raw_server(pages: Mapping[str, Page], server: Raw | None = None) -> Iterator[Raw]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = server or Raw(pages)
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
