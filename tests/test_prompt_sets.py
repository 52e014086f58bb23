"""Named prompt sets: fetched once, held to their digest, cached, and never taken for a file of that name."""

import gzip
import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("huggingface_hub")

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run import prompts as module
from eaglectl.run.prompts import PromptSet, choose_prompts, lines_of, prompt_sets
from tests.servers import Page, Raw, answer, raw_server

MT_BENCH = b'{"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now a limerick."]}\n'
MT_BENCH += b'{"question_id": 82, "category": "math", "turns": ["What is 3 * 5?", "And half of it?"]}\n'
HUMANEVAL = gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def add(a, b):\\n", "test": ""}\n', mtime=0)


Use = Callable[..., PromptSet]


@pytest.fixture
def server() -> Iterator[Raw]:
    with raw_server({}) as running:
        yield running


@pytest.fixture
def use(server: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Puts a small file of the same shape in the place of a set's; `page` is what the server sends for it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def put(name: str, body: bytes, page: Page | None = None) -> PromptSet:
        real = prompt_sets().sets[name]
        path = f"/{Path(real.url).name}"
        server.pages = {path: answer(body) if page is None else page}
        digest = hashlib.sha256(body).hexdigest()
        small = replace(real, url=f"{server.url}{path}", sha256=digest, size=len(body))
        sets = replace(prompt_sets(), sets={**prompt_sets().sets, name: small})
        monkeypatch.setattr(module, "prompt_sets", lambda: sets)
        return small

    return put


def test_every_set_is_at_a_fixed_commit_with_a_licence() -> None:
    for chosen in prompt_sets().sets.values():
        commits = [part for part in chosen.url.split("/") if len(part) == 40]
        assert len(commits) == 1
        assert chosen.licence in {"Apache-2.0", "MIT"}
        assert len(chosen.sha256) == 64


@pytest.mark.parametrize(
    ("name", "body", "prompts"),
    [
        ("mt-bench", MT_BENCH, [("Write a haiku.", "mt-bench writing"), ("What is 3 * 5?", "mt-bench math")]),
        ("humaneval", HUMANEVAL, [("def add(a, b):\n", "humaneval")]),
    ],
)
def test_the_first_turn_is_the_prompt_and_the_category_its_set(
    name: str, body: bytes, prompts: list[tuple[str, str]], use: Use
) -> None:
    use(name, body)
    choice = choose_prompts(name)
    assert [(prompt.text, prompt.set) for prompt in choice.prompts] == prompts
    assert all(prompt.is_chat for prompt in choice.prompts)
    assert (choice.file, choice.sha256) == (name, hashlib.sha256(body).hexdigest())


def test_a_set_is_fetched_once_and_without_a_token_and_then_needs_no_network(
    use: Use, server: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    use("mt-bench", MT_BENCH)
    lines = lines_of("mt-bench")
    monkeypatch.setattr(module, "is_offline", lambda: True)
    assert lines_of("mt-bench") == lines and len(server.requests) == 1
    assert b"authorization" not in server.requests[0].lower()


def test_offline_a_set_that_is_not_cached_says_where_it_is(
    use: Use, server: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = use("mt-bench", MT_BENCH)
    monkeypatch.setattr(module, "is_offline", lambda: True)
    with pytest.raises(UnreadableError, match="this call is offline") as caught:
        lines_of("mt-bench")
    assert chosen.url in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (answer(MT_BENCH + b"\n"), "nothing was stored"),
        (answer(b""), "nothing was stored"),
        (answer(MT_BENCH[:-2]), "nothing was stored"),
        (answer(b"x" * 10_000_000), "nothing was stored"),
        (answer("", "404 Not Found"), r"question\.jsonl answered 404"),
    ],
    ids=["a line more", "empty", "cut", "too large", "not found"],
)
def test_other_bytes_are_refused_and_not_kept(use: Use, page: bytes, words: str) -> None:
    chosen = use("mt-bench", MT_BENCH, page)
    with pytest.raises(UnreadableError, match=words):
        lines_of("mt-bench")
    assert not chosen.cached.exists()


def test_a_file_of_that_name_is_the_file(use: Use, server: Raw, tmp_path: Path) -> None:
    use("mt-bench", MT_BENCH)
    (tmp_path / "mt-bench").write_text("A prompt of mine\n")
    assert [prompt.text for prompt in choose_prompts("mt-bench").prompts] == ["A prompt of mine"]
    assert server.requests == []


def test_a_sample_is_of_the_set_and_a_name_that_is_none_is_a_file_that_is_missing(use: Use) -> None:
    use("mt-bench", MT_BENCH)
    assert len(choose_prompts("mt-bench", sample=1).prompts) == 1
    with pytest.raises(UsageError, match="has 2 prompts"):
        choose_prompts("mt-bench", sample=3)
    with pytest.raises(UnreadableError, match="mtbench"):
        choose_prompts("mtbench")


def test_a_file_that_drips_is_not_waited_for(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(connection: socket.socket) -> None:
        head, _, body = answer(MT_BENCH).partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        for byte in body:
            connection.sendall(bytes([byte]))
            time.sleep(0.2)

    use("mt-bench", MT_BENCH, drip)
    monkeypatch.setattr(module, "DEADLINE", 0.5)
    with pytest.raises(UnreadableError, match=r"sent [1-9] of .* bytes in 0.5 s; try again"):
        choose_prompts("mt-bench")


def test_a_prompt_and_what_is_run_of_a_file_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("x" * (4 << 20) + "x\n")
    with pytest.raises(UsageError, match="line 1 has 4,194,305 characters; a prompt has at most 4,194,304"):
        choose_prompts(file)
    file.write_text(("x" * (4 << 20) + "\n") * 9)
    with pytest.raises(UsageError, match="select fewer with --sample"):
        choose_prompts(file)
    assert len(choose_prompts(file, sample=8).prompts) == 8
