"""A server that wants a bearer token: it comes from the environment, and nothing shows it."""

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run.http import open_server
from tests.builders import call
from tests.servers import running
from tests.tiny import TARGET, TINY

KEY = "sk-secret-of-this-server"


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            self.send_response(200 if given == f"Bearer {KEY}" else 401)
            self.end_headers()
            self.wfile.write(f"you sent {given}".encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with running(Handler) as address:
        yield address


@pytest.mark.parametrize("name", ["EAGLECTL_SERVER_TOKEN", "VLLM_API_KEY"])
def test_the_token_of_the_environment_opens_the_server(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, KEY)
    server = open_server(url, 5.0)
    assert server.read("/v1/models") == f"you sent Bearer {KEY}".encode()
    assert KEY not in str(server) and server.shown(f"you sent {KEY}") == "you sent ***"


def test_our_variable_goes_before_vllms(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECTL_SERVER_TOKEN", KEY)
    monkeypatch.setenv("VLLM_API_KEY", "another")
    assert open_server(url, 5.0).read("/")


def test_a_server_without_its_token_says_which_variable_holds_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreadableError, match=r"answered 401 .*; set EAGLECTL_SERVER_TOKEN to its API key"):
        open_server(url, 5.0).read("/v1/models")
    monkeypatch.setenv("EAGLECTL_SERVER_TOKEN", "wrong-token-of-mine")
    with pytest.raises(UnreadableError) as caught:
        open_server(url, 5.0).read("/v1/models")
    assert "wrong-token-of-mine" not in str(caught.value)


def test_a_name_and_a_password_in_the_url_go_before_a_token(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_SERVER_TOKEN", KEY)
    assert (
        open_server(url.replace("//", "//user:password@"), 5.0).headers["Authorization"].startswith("Basic ")
    )


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ümlaut"])
def test_a_token_that_no_header_holds_is_a_wrong_call(
    token: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_SERVER_TOKEN", token)
    with pytest.raises(UsageError, match="EAGLECTL_SERVER_TOKEN: a token is ASCII without spaces") as caught:
        open_server(url, 5.0)
    assert token not in str(caught.value)


def test_the_command_line_says_so_too(url: str, tmp_path: Path) -> None:
    done = call("smoke", TINY / "eagle3", "--target", TARGET, "--run-in", url)
    assert done.code == 3 and "set EAGLECTL_SERVER_TOKEN to its API key" in done.err + done.out
