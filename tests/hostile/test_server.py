"""Hostile and broken servers on raw sockets: each is exit 3 and one line, in bounded time and memory."""

import asyncio
import gzip
import json
import logging
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglectl.errors import UnreadableError
from eaglectl.run.counters import parse_counters
from eaglectl.run.http import get, open_server
from eaglectl.text import masked
from tests import servers
from tests.builders import Outcome, call, is_one_line
from tests.servers import COMPLETIONS, COUNTERS, METRICS, TOO_LONG, Page, answer, raw_server
from tests.tiny import TARGET, TINY

MODELS, INFO = "/v1/models", "/server_info"


HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SGLANG: dict[str, Page] = {path: answer(page) for path, page in servers.SGLANG.items()}
NOTHING_YET = METRICS.format(tokens=0, drafts=0, first=0, second=0)
VLLM: dict[str, Page] = {
    MODELS: SGLANG[MODELS],
    COMPLETIONS: SGLANG[COMPLETIONS],
    COUNTERS: answer(NOTHING_YET),
}


def repeated(head: bytes, piece: bytes, pause: float = 0.0) -> Page:
    """Send `piece` again and again after `head`, until the client closes, or for far too long."""

    def page(connection: socket.socket) -> None:
        connection.sendall(head)
        end = time.monotonic() + TOO_LONG
        while time.monotonic() < end:
            connection.sendall(piece)
            time.sleep(pause)

    return page


def silence(connection: socket.socket) -> None:
    """Send nothing until the client closes."""
    connection.recv(1)


def reset(connection: socket.socket) -> None:
    """Close with an RST in the middle of an answer."""
    connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def info(**changes: object) -> dict[str, Page]:
    return {**SGLANG, INFO: answer({**servers.INFO, **changes})}


def made(tokens: object) -> dict[str, Page]:
    return completed({**servers.ANSWER, "usage": {"completion_tokens": tokens}})


def rounds(histogram: object) -> dict[str, Page]:
    details = {"spec_tokens_details": {"spec_correct_drafts_histogram": histogram}}
    return completed({**servers.ANSWER, "sglext": details})


def models(page: Page | object) -> dict[str, Page]:
    return {MODELS: page if isinstance(page, bytes) or callable(page) else answer(page)}


def completed(page: Page | object) -> dict[str, Page]:
    return {**SGLANG, COMPLETIONS: page if isinstance(page, bytes) else answer(page)}


def counters(old: str, new: str) -> dict[str, Page]:
    """A vLLM whose metrics have one text replaced."""
    assert old in NOTHING_YET
    return {**VLLM, COUNTERS: answer(NOTHING_YET.replace(old, new))}


def growth(version: Page | None = None, **after: int) -> dict[str, Page]:
    """A vLLM whose counters grow as given with the first completion."""
    values = {"tokens": 20, "drafts": 10, "first": 6, "second": 4, **after}
    pages = dict(VLLM) if version is None else {**VLLM, "/version": version}

    def complete(connection: socket.socket) -> None:
        pages[COUNTERS] = answer(METRICS.format(**values))
        connection.sendall(answer(servers.ANSWER))

    pages[COMPLETIONS] = complete
    return pages


REDIRECT = answer("", "307 Temporary", f"Location: {MODELS}")
METHOD = {"speculative_config": {"rejection_sample_method": []}}
GOOD = '{"usage": {"completion_tokens": 20}, '
LONG_LABEL = 'x="' + '\\"' * 500_000 + "} 0"
BOMB = answer(gzip.compress(bytes(50_000_000)), "200 OK", "Content-Encoding: gzip")
DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0"} 0'
SECOND = 'position="1"} 0'
# each server, and a word of the sentence that it must give
SHAPES: dict[str, tuple[dict[str, Page], str]] = {
    # HTTP
    "no status line": (models(b"hello\r\n\r\n"), "not HTTP"),
    "status is no number": (models(b"HTTP/1.1 abc OK\r\n\r\n"), "not HTTP"),
    "another protocol": (models(b"\x16\x03\x01\x02\x00\x01\x00"), "not HTTP"),
    "closed at once": (models(b""), "not HTTP"),
    "reset in the body": (models(reset), "sent an incomplete answer"),
    "bad chunk": (models(CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n"), "not HTTP"),
    "chunk cut off": (models(CHUNKED + b"ff\r\n{"), "sent an incomplete answer"),
    "negative chunk": (models(CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n"), "not HTTP"),
    "short body": (models(HEAD + b"Content-Length: 500\r\n\r\n{}"), "sent an incomplete answer"),
    "length is no number": (models(HEAD + b"Content-Length: many\r\n\r\n{}"), "not HTTP"),
    "length of 6000 digits": (models(HEAD + b"Content-Length: " + b"9" * 6000 + b"\r\n\r\n{}"), "HTTP"),
    "two lengths": (models(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), "not HTTP"),
    "unknown transfer": (models(HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}"), "not HTTP"),
    "header without colon": (models(HEAD + b"nonsense\r\n\r\n{}"), "not HTTP"),
    "header of 1 MB": (models(HEAD + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n{}"), "HTTP"),
    "NUL in a header": (models(HEAD + b"X: a\x00b\r\n\r\n{}"), "not HTTP"),
    "switching protocols": (models(answer("", "101 Switching Protocols", "Upgrade: x")), "not HTTP"),
    "only a part": (models(answer("{}", "206 Partial Content")), "answered 206"),
    "no content": (models(b"HTTP/1.1 204 No Content\r\n\r\n"), "answered 204"),
    "status 999": (models(answer("{}", "999 Strange")), "answered 999"),
    "500 full of escapes": (models(answer("\x1b[2J\n::error::x\u202e\0", "500 X")), "answered 500"),
    "500 of 5 MB": (models(answer("é" * 2_500_000, "500 X")), "answered 500"),
    "500 that is no text": (models(answer(bytes(range(256)), "500 X")), "answered 500"),
    "not authorized": (models(answer('{"error": "Unauthorized"}', "401 Unauthorized")), "answered 401"),
    "500 at server_info": ({**VLLM, INFO: answer("", "500 X")}, "server_info answered 500"),
    "500 at metrics": ({**VLLM, COUNTERS: answer("", "500 X")}, "metrics answered 500"),
    # redirects
    "redirect to itself": (models(answer("", "302 F", f"Location: {MODELS}")), "follows no redirects"),
    "redirect elsewhere": (
        models(answer("", "302 F", "Location: http://127.0.0.2:1/")),
        "follows no redirects",
    ),
    "redirect to a file": (
        models(answer("", "302 F", "Location: file:///etc/passwd")),
        "follows no redirects",
    ),
    "redirect nowhere": (models(answer("", "302 F")), "redirects (302) to nowhere"),
    "redirect to no URL": (models(answer("", "302 F", "Location: http://[::1/")), "follows no redirects"),
    "redirect of a POST": (completed(REDIRECT), "completions redirects (307) to /v1/models"),
    # bodies
    "gzip bomb": (models(BOMB), "compressed"),
    "compressed unasked": (models(answer("{}", "200 OK", "Content-Encoding: br")), "compressed"),
    "9 MB": (models(answer(b" " * 9_000_000)), "more than 8 MiB"),
    "empty": (models(answer(b"")), "not valid JSON"),
    "HTML": (models(answer("<html>hello</html>")), "not valid JSON"),
    "UTF-16": (models(answer(json.dumps(servers.MODELS).encode("utf-16"))), "not UTF-8"),
    "UTF-8 with a mark": (models(answer(b"\xef\xbb\xbf" + b"{}")), "not valid JSON"),
    "Latin-1": (models(answer('{"data": "é"}'.encode("latin-1"))), "not UTF-8"),
    "JSON cut off": (models(answer('{"data": [{"id": "m"')), "not valid JSON"),
    "two documents": (models(answer("{}{}")), "not valid JSON"),
    "200,000 levels": (models(answer("[" * 200_000)), "nested too deeply"),
    "900 levels": (models(answer('{"data": ' + "[" * 900 + "]" * 900 + "}")), "901 levels deep"),
    "a key twice": (models(answer('{"data": [], "data": []}')), "twice"),
    "lone surrogate": (models(answer('{"data": [{"id": "\\ud800"}]}')), "surrogate"),
    # /v1/models
    "models are a list": (models([]), "an object was expected"),
    "models are null": (models(None), "an object was expected"),
    "no data": (models({}), "has no data"),
    "data is text": (models({"data": "m"}), "has data ="),
    "data is empty": (models({"data": []}), "at least one model"),
    "model is text": (models({"data": ["m"]}), "data.0"),
    "model without id": (models({"data": [{}]}), "has no data.0.id"),
    "id is a number": (models({"data": [{"id": 5}]}), "data.0.id = 5"),
    "id of 1 MB": (models({"data": [{"id": "m" * 1_000_000}]}), "of 1 to 4096"),
    # /server_info
    "algorithm is a number": (info(speculative_algorithm=3), "speculative_algorithm = 3"),
    "10 billion steps": (info(speculative_num_steps=10**10), "= 10000000000"),
    "no step": (info(speculative_num_steps=0), "from 1 to 64"),
    "steps are true": (info(speculative_num_steps=True), "= true"),
    "steps are text": (info(speculative_num_steps="3"), "from 1 to 64"),
    "steps are 3.0": (info(speculative_num_steps=3.0), "= 3.0"),
    "topk is a list": (info(speculative_eagle_topk=[1]), "a list of 1"),
    "drafter is an object": (info(speculative_draft_model_path={}), "an object"),
    "version is a list": (info(version=["0.5"]), "version = a list of 1"),
    "config is a number": ({**VLLM, INFO: answer({"vllm_config": 5})}, "vllm_config = 5"),
    "method is a list": ({**VLLM, INFO: answer({"vllm_config": METHOD})}, "rejection_sample_method"),
    "vLLM's version is an object": (growth(answer({"version": {}})), "version = an object"),
    # completions
    "no usage": (completed({}), "has no usage"),
    "usage is a list": (completed({"usage": []}), "usage = a list of 0"),
    "2 billion tokens": (made(2_000_000_000), "= 2000000000"),
    "200 tokens for 20": (made(200), "but 20 were requested"),
    "minus 3 tokens": (made(-3), "= -3"),
    "tokens are text": (made("20"), '= "20"'),
    "tokens are true": (made(True), "= true"),
    "tokens are 20.0": (made(20.0), "= 20.0"),
    "tokens are null": (made(None), "= null"),
    "NaN": (completed(GOOD + '"x": NaN}'), "NaN"),
    "Infinity": (completed(GOOD + '"x": -Infinity}'), "Infinity"),
    "1e999": (completed(GOOD + '"x": 1e999}'), "1e999"),
    "5000 digits": (completed(GOOD + '"x": ' + "9" * 5000 + "}"), "5000 digits"),
    "no extension": (completed(GOOD + '"x": 1}'), "has no sglext"),
    "extension is text": (completed(GOOD + '"sglext": "x"}'), "an object was expected"),
    "histogram is an object": (rounds({"0": 1}), "1 to 65"),
    "empty histogram": (rounds([]), "1 to 65"),
    "histogram of 300,000": (rounds([1] * 300_000), "a list of 300000"),
    "negative rounds": (rounds([5, -1]), "= -1"),
    "rounds are text": (rounds(["5"]), '= "5"'),
    "10 billion rounds": (rounds([10**10]), "= 10000000000"),
    "a million rounds": (rounds([10**6]), "1000000 rounds"),
    "more accepted than drafted": (rounds([1, 1, 1, 1, 1]), "at most 84 rounds of 3"),
    "nothing was drafted": (rounds([0]), "nothing was drafted"),
    # metrics
    "metrics are JSON": ({**VLLM, COUNTERS: answer("{}")}, "runs no speculative decoding"),
    "metrics in UTF-16": ({**VLLM, COUNTERS: answer("vllm:x 1".encode("utf-16"))}, "not UTF-8"),
    "counter is NaN": (counters(DRAFTS, DRAFTS[:-1] + "NaN"), "invalid or repeated counter"),
    "counter is +Inf": (counters(DRAFTS, DRAFTS[:-1] + "+Inf"), "invalid or repeated counter"),
    "counter is 1e999": (counters(DRAFTS, DRAFTS[:-1] + "1e999"), "invalid or repeated counter"),
    "counter is 1e99": (counters(DRAFTS, DRAFTS[:-1] + "1e99"), "invalid or repeated counter"),
    "counter is negative": (counters(DRAFTS, DRAFTS[:-1] + "-5"), "invalid or repeated counter"),
    "counter is a half": (counters(DRAFTS, DRAFTS[:-1] + "0.5"), "invalid or repeated counter"),
    "counter is hexadecimal": (counters(DRAFTS, DRAFTS[:-1] + "0x10"), "invalid or repeated counter"),
    "counter has no value": (counters(DRAFTS, DRAFTS[:-2]), "invalid or repeated counter"),
    "counter twice": (counters(DRAFTS, f"{DRAFTS}\n{DRAFTS}"), "repeated counter"),
    "labels stay open": (counters(DRAFTS, DRAFTS.replace('"} 0', " 0")), "invalid or repeated counter"),
    "position of 13 GiB": (counters(SECOND, 'position="1700000000"} 0'), "invalid or repeated counter"),
    "position 70": (counters(SECOND, 'position="70"} 0'), "positions that are not"),
    "position without number": (counters(SECOND, 'position="x"} 0'), "invalid or repeated counter"),
    "no positions": (counters("accepted_tokens_per_pos", "accepted"), "has no counts by position"),
    "label of 1 MB": (counters(SECOND, LONG_LABEL), "invalid or repeated counter"),
    "counters fall": (growth(drafts=0), "contradicts itself"),
    "more drafts than tokens": (growth(drafts=10**6), "contradicts itself"),
    "later positions accepted more": (growth(second=9), "contradicts itself"),
}


def smoke(url: str, *options: str | Path) -> Outcome:
    pair = (TINY / "eagle3", "--target", TARGET)
    return call("smoke", *pair, "--run-in", url, "--max-tokens", "20", *options)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    (tmp_path / "prompts.txt").write_text("one two\n")
    return str(tmp_path / "prompts.txt")


def sentence(done: Outcome) -> str:
    """What was printed: one line on stderr, of printable characters and no great length."""
    assert done.code == 3 and done.out == "" and is_one_line(done), done
    assert done.err.startswith("eaglectl: http://127.0.0.1:") or "nothing was drafted" in done.err
    assert len(done.err) <= 1000
    return done.err


def assert_measured(done: Outcome) -> None:
    """smoke went to its end: exit 3 here is one prompt, too few to judge by, and no error."""
    assert done.code == 3
    assert "too few to judge by: prompts 1 of the 4 needed, drafts 10 of the 50 needed" in done.out


@pytest.mark.fast(50)
@pytest.mark.parametrize("name", SHAPES)
def test_a_hostile_server_is_one_sentence(name: str, prompts: str) -> None:
    pages, word = SHAPES[name]
    with raw_server(pages) as server:
        line = sentence(smoke(server.url, "--prompts", prompts, "--timeout", "60"))
    assert word in line
    assert ";" in line, "the sentence ends with what to do next"


DRIP = 0.02
SLOW: dict[str, dict[str, Page]] = {
    "silence": models(silence),
    "silence at server_info": {**SGLANG, INFO: silence},
    "silence after a prompt": {**SGLANG, COMPLETIONS: silence},
    "silence at metrics": {**VLLM, COUNTERS: silence},
    "a status line by letters": models(repeated(b"HTTP/1.1 200 ", b"O", DRIP)),
    "headers that never end, slowly": models(repeated(HEAD, b"X: y\r\n", DRIP)),
    "a body by bytes": models(repeated(HEAD + b"\r\n", b" ", DRIP)),
    "chunks by bytes": models(repeated(CHUNKED, b"1\r\n \r\n", DRIP)),
    "a chunk's length by digits": models(repeated(CHUNKED, b"0", DRIP)),
    "a body by bytes after a prompt": {**SGLANG, COMPLETIONS: repeated(HEAD + b"\r\n", b" ", DRIP)},
    "an error by bytes": models(repeated(HEAD.replace(b"200", b"500") + b"\r\n", b" ", DRIP)),
    "100 Continue without end": models(repeated(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10)),
}


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_server_ends_at_the_deadline(name: str, prompts: str) -> None:
    with raw_server(SLOW[name]) as server:
        line = sentence(smoke(server.url, "--prompts", prompts, "--timeout", "0.3"))
    assert "did not finish its answer within 0.3 s; " in line and line.endswith("or raise --timeout\n")


def test_a_page_has_a_limit_of_its_own_which_no_option_raises(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglectl.run.http.PAGE_TIMEOUT", 0.2)
    with raw_server(SLOW["a body by bytes"]) as server:
        line = sentence(smoke(server.url, "--prompts", prompts))
    assert "within 0.2 s; " in line and line.endswith("or try again when it is less busy\n")


ENDLESS: dict[str, Page] = {
    "a body": repeated(HEAD + b"\r\n", b" " * 65536),
    "chunks": repeated(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "a status line": repeated(b"HTTP/1.1 200 ", b"O" * 65536),
    "headers": repeated(HEAD, b"X: y\r\n" * 10_000),
    "a header": repeated(HEAD + b"X: ", b"y" * 65536),
    "a chunk's extension": repeated(CHUNKED + b"1;", b"y" * 65536),
    "trailers": repeated(CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000),
    "an error": repeated(HEAD.replace(b"200", b"500") + b"\r\n", b" " * 65536),
    "a bomb of 2 GB": answer(gzip.compress(bytes(2_000_000), 9) * 1000, "200 OK", "Content-Encoding: gzip"),
}


def peak() -> int:
    """The most memory since the peak was forgotten, in bytes."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024


@contextmanager
def within(most: int) -> Iterator[None]:
    """Fail where memory grows by more than so many bytes meanwhile."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("this system does not measure the memory of a process")
    before = peak()
    yield
    assert peak() - before < most


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_answer_takes_little_memory(name: str) -> None:
    with raw_server({MODELS: ENDLESS[name]}) as server, within(64 << 20), pytest.raises(UnreadableError):
        open_server(server.url, TOO_LONG).read(MODELS)


@pytest.mark.slow
def test_what_is_read_of_json_takes_little_memory() -> None:
    pages = models(answer("[" + "[]," * (8 * 2**20 // 3 - 10) + "[]]"))
    with (
        raw_server(pages) as server,
        within(400 << 20),
        pytest.raises(UnreadableError, match="entries; at most"),
    ):
        get(open_server(server.url, TOO_LONG), MODELS, "models")


LOCAL = open_server("http://127.0.0.1:1", 1.0)


def test_braces_quotes_and_times_in_samples_are_read() -> None:
    page = b"""# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{engine="0",model_name="a}\\"b"} 1.5e+03 1700000000
vllm:spec_decode_num_drafts_total{engine="1",model_name="a"} 2.0
vllm:generation_tokens_total 7
vllm:generation_tokens_total_created 1.7e+09
vllm:other NaN
"""
    expected = {"vllm:spec_decode_num_drafts_total": 1502, "vllm:generation_tokens_total": 7}
    assert parse_counters(LOCAL, page) == expected


WHOLE = (answer("{}"), CHUNKED + b"2\r\n{}\r\n0\r\n\r\n")


@given(st.sampled_from(WHOLE), st.integers(0, 90), st.integers(0, 8), st.binary(max_size=8))
@settings(max_examples=60)
def test_a_damaged_answer_is_bytes_or_a_sentence(good: bytes, start: int, size: int, piece: bytes) -> None:
    with raw_server({MODELS: good[:start] + piece + good[start + size :]}) as server:
        try:
            assert isinstance(open_server(server.url, TOO_LONG).read(MODELS), bytes)
        except UnreadableError as error:
            assert str(error).startswith(server.url)


PASSWORD = "s3cret/pa?ss"
QUOTED = "s3cret%2Fpa%3Fss"
PAIR = "dXNlcjpzM2NyZXQvcGE/c3M="  # base64 of user:PASSWORD
TOKEN = "tok-0123456789"


def assert_no_secret(text: str) -> None:
    assert [secret for secret in (PASSWORD, QUOTED, PAIR, TOKEN, "s3cret") if secret in text] == []


def test_a_password_is_sent_and_never_shown(
    prompts: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    page = tmp_path / "page.html"
    # the server shows what it was sent wherever a text of its own is reported
    drafter = f"https://user:{QUOTED}@hub/{TOKEN}/{PAIR}"
    pages = info(speculative_draft_model_path=drafter, version=PASSWORD)
    pages[MODELS] = answer({"data": [{"id": f"m-{PASSWORD}"}]})
    with raw_server(pages) as server:
        url = server.url.replace("://", f"://user:{QUOTED}@") + f"/?token={TOKEN}"
        done = smoke(url, "--prompts", prompts, "--verbose", "--page", page)
        document = smoke(url, "--prompts", prompts, "--json").out
    assert_measured(done)
    for head in server.requests:
        assert f"authorization: basic {PAIR}".lower().encode() in head.lower() and PAIR.encode() in head
        assert f"token={TOKEN}".encode() in head.splitlines()[0]
    for shown in (done.out, done.err, document, caplog.text, page.read_text()):
        assert_no_secret(shown)
    assert "***" in done.out and "***" in document


@pytest.mark.parametrize(
    "url",
    [
        f"HTTP://user:{QUOTED}@127.0.0.1:1",
        f"ftp://user:{QUOTED}@127.0.0.1",
        f"http://user:{PASSWORD}@127.0.0.1:1",
        f"http://user:{PASSWORD.replace('/', '@')}@127.0.0.1:1",
        f"http://user/{QUOTED}@127.0.0.1:1",
        f"http://user:{QUOTED}@127.0.0.1:99999",
        f"http://user:{QUOTED}@",
        f"http://user:{QUOTED}@127.0.0.1:1/\x7f",
    ],
)
def test_a_url_that_is_refused_is_not_repeated_with_its_password(url: str) -> None:
    done = smoke(url)
    assert done.code == 2 and done.err.startswith("eaglectl: --run-in")
    assert_no_secret(done.err)


def test_neither_proxies_nor_netrc_of_the_environment_see_a_request(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login user password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with raw_server({}) as proxy, raw_server(SGLANG) as server, raw_server({}) as other:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert_measured(smoke(server.url, "--prompts", prompts))
        with raw_server(models(answer("", "302 F", f"Location: {other.url}/x"))) as redirecting:
            assert "redirect" in sentence(smoke(redirecting.url, "--prompts", prompts))
    assert proxy.requests == other.requests == []
    assert server.requests
    assert not any(b"authorization" in head.lower() for head in server.requests)


def test_the_api_works_inside_of_a_running_event_loop() -> None:
    async def read() -> bytes:
        return open_server(server.url, TOO_LONG).read(MODELS)

    with raw_server(SGLANG) as server:
        assert json.loads(asyncio.run(read())) == servers.MODELS


def test_a_refused_connection_says_what_to_start(prompts: str) -> None:
    line = sentence(smoke("http://127.0.0.1:9", "--prompts", prompts))
    assert "cannot be reached" in line and "start the server" in line


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "1e300"])
def test_a_timeout_that_nothing_can_wait_for_is_refused(timeout: str) -> None:
    done = smoke("http://127.0.0.1:1", "--timeout", timeout)
    assert done.code == 2 and "--timeout" in done.err


def test_only_the_secrets_of_a_url_are_masked() -> None:
    assert masked("http://u:p@h:80/x") == "http://***@h:80/x"
    assert masked("see https://token@h, https://huggingface.co/a/b@main") == (
        "see https://***@h, https://huggingface.co/a/b@main"
    )
    assert masked("http://h/?api_key=x&n=1&Token=y z") == "http://h/?api_key=***&n=1&Token=*** z"
    assert masked("user@host and a=b, hf://org/name@revision") == "user@host and a=b, hf://org/name@revision"
    assert masked("?tokentoken" * 100_000)[-5:] == "token"
