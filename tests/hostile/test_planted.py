"""Secrets that a user or a server states, searched for in every medium: ten shapes, and none may come out."""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.progress import Progress
from eaglectl.run.installed import parse_engine_arguments, shown_arguments
from eaglectl.terminal import Guard, OutputSettings, ProgressBar
from eaglectl.text import printable
from tests.builders import call
from tests.servers import COMPLETIONS, SGLANG, Page, answer, raw_server
from tests.tiny import TARGET, TINY

# halves, as a line or a mask may end between them
FIRST, SECOND = "sEcrEtAlphaOne", "hAlfBetaTwoXyz"
SECRET = FIRST + SECOND
# of a URL: what stands before its host, and what follows its path
URLS: Mapping[str, tuple[str, str]] = {
    "userinfo": (f"user:{SECRET}@", ""),
    "percent-encoded password": (f"user:{FIRST}%40{SECOND}@", ""),
    "token as the name": (f"hf_{SECRET}@", ""),
    "api_key": ("", f"?api_key={SECRET}"),
    "token": ("", f"?n=1&token={SECRET}"),
    "access_token": ("", f"#access_token={SECRET}"),
    "x-api-key": ("", f"?x-api-key={SECRET}"),
    "signed URL": ("", f"?X-Amz-Credential={FIRST}&X-Amz-Signature={SECOND}"),
    "split by a line break": ("", f"?token={FIRST}\n{SECOND}"),
    "password that a line break splits": (f"user:{FIRST}\n{SECOND}@", ""),
}
# what a server, a library or a file says
TEXTS: Mapping[str, str] = {
    "Authorization, Bearer": f"Authorization: Bearer {SECRET}",
    "Authorization, Basic": f'{{"authorization": "Basic {SECRET}"}}',
    "a header of a key": f"x-api-key: {SECRET}",
    "a token of the Hub": f"model hf_{SECRET}",
    "a Bearer": f"sent Bearer {SECRET}",
    "a path of a log": f'"GET /v1/models?api_key={SECRET} HTTP/1.1" 401',
    "a URL": f"see https://user:{SECRET}@host/x",
    "a URL with a slash in the password": f"see https://user:{FIRST}/{SECOND}@host/x",
    "a URL as a path": f"http:/user:{SECRET}@host/x",
    "a line break in a password": f"https://user:{FIRST}\n{SECOND}@host/x",
}
RUN = ("--target", str(TARGET), "--sample", "2", "--max-tokens", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the cache below it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leaks(text: str) -> list[str]:
    """The halves of the secret in a text, which may be broken over lines and elements, or escaped."""
    bare = re.sub(r"<[^>]*>|\\n|%0A|[\s|]", "", text)
    return [half for half in (FIRST, SECOND) if half in bare or half in text]


def assert_none(texts: Mapping[str, str]) -> None:
    assert {name: leaks(text) for name, text in texts.items() if leaks(text)} == {}


def files_below(folder: Path) -> dict[str, str]:
    """The text of every file that was written, the cache's and the records too, and of every name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {f"{path.relative_to(folder)}": f"{path}\n{path.read_bytes().decode('latin-1')}" for path in files}


def place(url: str, kind: str) -> str:
    before, after = URLS[kind]
    return f"{url.replace('://', f'://{before}')}{after}"


@contextlib.contextmanager
def server(**pages: Page) -> Iterator[str]:
    good = {path: answer(page) for path, page in SGLANG.items()}
    with raw_server({**good, **pages}) as running:
        yield running.url


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", URLS)
def test_ready_shows_no_secret_of_a_url_in_any_medium(kind: str, folder: Path) -> None:
    """Every medium of `ready`, with a run that ends well or not, and of its Python function."""
    with server() as address:
        url = place(address, kind)
        written = ("--page", "p.svg", "--markdown", "m.md", "-o", "out")
        done = call("-v", "ready", TINY / "eagle3", *RUN, "--run-in", url, *written)
        assert done.code in (0, 1, 2, 3), done.err
        given = {"sample": 2, "max_tokens": 4, "device": "cpu"}
        try:
            made = eaglectl.ready(TINY / "eagle3", TARGET, engines=[url], **given)
            python = f"{made!r} {made._repr_html_()} {made.to_json()}"
        except EaglectlError as error:
            python = f"{error} {error!r}"
        assert_none({"terminal": done.out + done.err, "Python": python, **files_below(folder)})


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("command", "kind"),
    [*(("smoke", kind) for kind in reversed(URLS)), ("diagnose", "userinfo"), ("diagnose", "api_key")],
)
def test_a_run_on_a_server_shows_no_secret_of_its_url(command: str, kind: str, folder: Path) -> None:
    texts = {}
    with server() as url:
        for more in ((), ("--json",)):
            done = call(command, TINY / "eagle3", *RUN, "--engine", place(url, kind), *more)
            assert done.code in (0, 1, 2, 3), done.err
            texts[str(more)] = done.out + done.err
    assert_none({**texts, **files_below(folder)})


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", TEXTS)
def test_what_a_server_says_of_secrets_is_not_repeated(kind: str, folder: Path) -> None:
    named = answer({"data": [{"id": TEXTS[kind]}]})
    said = {"/v1/models": named}, {COMPLETIONS: answer(TEXTS[kind], "500 Internal Server Error")}
    texts = {}
    for number, pages in enumerate(said):
        with server(**pages) as url:
            arguments = ("smoke", TINY / "eagle3", *RUN, "--run-in", url)
            texts[str(number)] = "".join(str(call(*arguments, *more)) for more in ((), ("--json",)))
    assert_none({**texts, **files_below(folder)})


@pytest.mark.parametrize("kind", TEXTS)
def test_no_way_to_show_a_text_shows_a_secret(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, stream = TEXTS[kind], io.StringIO()
    Guard(stream).write(text.replace("\n", ""))
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        bar(Progress(text, 0, 1_000_000_000, "bytes"))
    OutputSettings().warn(text)
    shown = capsys.readouterr()
    texts = {"error": str(UnreadableError(text)), "guard": stream.getvalue(), "screen": shown.out + shown.err}
    assert_none({**texts, "printable": printable(text)})


@pytest.mark.fast(21)
@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "URL"),
        ("inspect", TINY / "eagle3", "--target", "URL"),
        ("validate", "URL"),
        ("validate", TINY / "eagle3", "--page", "URL"),
        ("validate", TINY / "eagle3", "--output", "json=URL"),
        ("validate", TINY / "eagle3", "--policy", "URL"),
        ("validate", TINY / "eagle3", "--engine", "URL"),
        ("convert", TINY / "eagle3", "--target", TARGET, "-o", "URL"),
        ("diff", "URL", "URL"),
        ("ready", "URL"),
        ("ready", TINY / "eagle3", "--target", "URL"),
        ("smoke", TINY / "eagle3", *RUN, "--prompts", "URL"),
        ("smoke", TINY / "eagle3", *RUN, "--run-in", "URL", "--json"),
        ("smoke", TINY / "eagle3", *RUN, "--run-in", "reference", "--engine-arg", "api_key=URL"),
        ("smoke", TINY / "eagle3", *RUN, "--against", "URL"),
        ("calibrate", TINY / "eagle3", "--target", "URL", "-o", "stats"),
        ("upload", "URL", "org/name", "--dry-run"),
        ("upload", TINY / "eagle3", "URL", "--dry-run"),
        ("upload", TINY / "eagle3", "org/name", "--dry-run", "--smoke", "URL"),
        ("verify", "URL"),
        ("rules", "URL"),
    ],
    ids=lambda arguments: " ".join(str(word).rpartition("/")[2] for word in arguments),
)
def test_a_url_in_the_place_of_a_path_is_refused_without_its_secrets(
    kind: str, arguments: tuple[str | Path, ...], folder: Path
) -> None:
    url = place("https://host.invalid/x", kind)
    given = [word.replace("URL", url) if isinstance(word, str) else word for word in arguments]
    done = call(*given)
    assert done.code in (1, 2, 3), done.out
    assert_none({"shown": done.out + done.err, **files_below(folder)})


def test_arguments_of_an_engine_are_kept_without_secrets() -> None:
    given = {
        "hf_token": f"hf_{SECRET}",
        "kv_transfer_config": {"api_key": SECRET, "address": f"http://u:{SECRET}@h"},
        "tokenizer_mode": "auto",
        "max_num_batched_tokens": 8,
    }
    assert shown_arguments(given) == {
        "hf_token": "***",
        "kv_transfer_config": {"api_key": "***", "address": "http://***@h"},
        "tokenizer_mode": "auto",
        "max_num_batched_tokens": 8,
    }
    with pytest.raises(EaglectlError) as error:
        parse_engine_arguments([f"hf_token={SECRET} {SECRET}"])
    assert_none({"error": str(error.value)})


def test_a_name_that_looks_like_a_secret_is_none() -> None:
    text = (
        "a folder key=1, tokens=3; https://huggingface.co/a/b@main; user@host; hf_config; api_keys are none"
    )
    assert printable(text) == text
