"""Hub repositories read by ranges: the requests, the errors for each fault, and that no token is shown."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eaglectl.files import hub as hub_module
from eaglectl.files.checkpoint import open_source, read_checkpoint
from eaglectl.files.source import is_hub_name, is_repo_name
from tests.builders import (
    HIDDEN,
    Outcome,
    call,
    contents,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    framed,
    read_safetensors,
    sharded_folder,
    target_of,
    write_safetensors,
)
from tests.hub import TOKEN, Fault, LoopbackHub, Reply, Request, client_hub, error
from tests.processor import within

SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
BIG = floats("big", 10_240, 16)  # 327,680 bytes: read by ranges, not whole
BIG_TENSORS, BIG_CONFIG = {"embed_tokens.weight": BIG}, {"vocab_size": 10_240}


NAME_PARTS = ("a", "Z0", "_", ".", "-", "/", "git", ".git", "--", "..")


@given(st.lists(st.sampled_from(NAME_PARTS), min_size=1, max_size=8))
def test_a_name_that_is_taken_is_one_that_the_client_takes(parts: list[str]) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = "".join(parts)
    try:
        validate_repo_id(name)
        is_allowed = name.count("/") == 1 and name[0].isalnum() and name.partition("/")[2][0].isalnum()
    except HFValidationError:
        is_allowed = False
    assert is_repo_name(name) == is_hub_name(name) == is_allowed


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub that this process's client talks to, with a planted token and short pauses."""
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/drafter", drafter_folder(tmp_path / "made", "whole"))
        yield running


def said(code: int, *arguments: str | Path) -> str:
    """The one line of a call that ends with `code`."""
    done = call(*arguments)
    assert done.code == code, done
    return done.err


def cost(hub: LoopbackHub) -> list[str]:
    """What was asked of the Hub itself, by the last parts of the paths; redirects are not counted."""
    asked = [request for request in hub.requests if not request.is_elsewhere]
    return [request.path.rpartition("/resolve/")[2].rpartition("/")[2] for request in asked]


# what it reads


@pytest.mark.parametrize(
    "text", ["org/drafter", "org/drafter@main", "hf://org/drafter", "hf://org/drafter@main"]
)
def test_a_repository_is_what_its_folder_is(hub: LoopbackHub, tmp_path: Path, text: str) -> None:
    here = call("inspect", tmp_path / "made/whole", "--json").document
    there = call("inspect", text, "--json").document
    same = {key for key in here if here[key] == there[key]}
    assert set(here) - same == {"commands", "source"}
    assert there["source"] == "org/drafter"


def test_a_revision_is_pinned_by_one_request_and_named_in_the_commands(hub: LoopbackHub) -> None:
    first = hub.repos["org/drafter"].head()
    hub.repos["org/drafter"].commit({"config.json": b"{}"})
    hub.repos["org/drafter"].refs["refs/pr/1"] = first
    done = call("-v", "inspect", f"org/drafter@{first}")
    assert done.code == 0
    assert f'"model": "org/drafter", "num_speculative_tokens": 3, "revision": "{first}"' in done.out
    assert cost(hub) == [first, "config.json", "model.safetensors"]
    for pull in ("org/drafter@refs/pr/1", "hf://org/drafter@refs%2Fpr%2F1"):
        assert call("inspect", pull).code == 0


def test_a_folder_of_that_name_wins(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter_folder(tmp_path / "org", "drafter")
    monkeypatch.chdir(tmp_path)
    assert call("inspect", "org/drafter").code == 0
    assert hub.requests == []


@pytest.fixture
def variants(hub: LoopbackHub, tmp_path: Path) -> LoopbackHub:
    """A repository with two drafters in folders, and no config at its top."""
    for name in ("full", "compressed"):
        drafter_folder(tmp_path / "variants", name)
    hub.add_repo("org/variants", tmp_path / "variants")
    return hub


@pytest.mark.parametrize("command", ["inspect", "validate", "convert"])
def test_a_repository_of_several_drafters_names_their_folders(variants: LoopbackHub, command: str) -> None:
    done = call(command, "org/variants")
    words = " ".join((done.out + done.err).split())
    assert done.code == 3 and "pass the folder of one checkpoint in it" in words
    assert (
        "org/variants:full, org/variants:compressed; such as: `eaglectl inspect org/variants:full`" in words
    )


def test_a_folder_of_a_repository_is_a_source(variants: LoopbackHub, tmp_path: Path) -> None:
    here = call("inspect", tmp_path / "variants/full", "--json").document
    there = call("inspect", "org/variants:full", "--json").document
    assert {key for key in here if here[key] != there[key]} <= {"commands", "source"}
    assert there["source"] == "org/variants:full"
    assert call("convert", "org/variants@main:compressed", "-o", tmp_path / "out").code == 0
    assert call("diff", tmp_path / "out", "org/variants:compressed").code == 0
    # no engine takes a folder of a repository: commands name the downloaded one, or there are none
    assert there["commands"] == {}
    (snapshot,) = (tmp_path / "cache").rglob("snapshots/*/compressed")
    commands = call("inspect", "org/variants:compressed", "--json").document["commands"]
    assert str(snapshot) in commands["vllm"] and "org/variants" not in str(commands)


def test_a_folder_that_a_repository_lacks_is_named(variants: LoopbackHub) -> None:
    assert "org/variants has no folder half at " in said(3, "inspect", "org/variants:half")


def test_a_cached_repository_of_several_drafters_is_whole_offline(
    variants: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("full", "compressed"):
        assert call("convert", f"org/variants:{folder}", "-o", tmp_path / folder).code == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = said(3, "inspect", "org/variants")
    assert "org/variants:full, org/variants:compressed" in message and "hf download" not in message
    assert call("inspect", "org/variants:full").code == 0
    assert (
        call("inspect", "org/variants:compressed", "--json").document["source"] == "org/variants:compressed"
    )
    assert "hf download org/variants" in said(3, "inspect", "org/variants:half")


def test_the_bytes_of_a_tensor_are_a_range(hub: LoopbackHub, tmp_path: Path) -> None:
    tensors = drafter_tensors(**{"embed_tokens.weight": BIG})
    hub.add_repo("org/big", drafter_folder(tmp_path, "big", tensors=BIG_TENSORS, config=BIG_CONFIG))
    checkpoint = read_checkpoint(open_source("org/big"))
    before = hub.traffic
    assert checkpoint.read("d2t") == tensors["d2t"][2]
    assert checkpoint.read("embed_tokens.weight", 128, 256) == BIG[2][128:256]
    assert hub.traffic - before < 60_000  # the header may be counted late; the tensor alone is far more
    assert checkpoint.read("d2t") == tensors["d2t"][2]
    assert [r.range is not None for r in hub.requests if r.is_elsewhere] == [True] * 3
    assert {(r.is_elsewhere, r.token) for r in hub.requests} == {(False, TOKEN), (True, None)}


# what it costs


def add_large(hub: LoopbackHub, tmp_path: Path) -> None:
    """A drafter of 640 MB in three shards, whose embedding is a hole."""
    rows, name, file = 10_000_000, "embed_tokens.weight", "embedding.safetensors"
    folder = sharded_folder(tmp_path, weight_map={name: file})
    (folder / "config.json").write_text(json.dumps(drafter_config(vocab_size=rows)))
    second = read_safetensors(folder / SHARDS[1])
    del second[name]
    write_safetensors(folder / SHARDS[1], second)
    size = rows * HIDDEN * 4
    entry = {"dtype": "F32", "shape": [rows, HIDDEN], "data_offsets": [0, size]}
    header = framed(json.dumps({name: entry}).encode())
    with (folder / file).open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + size)
    files = {path.name: path if path.name == file else path.read_bytes() for path in folder.iterdir()}
    hub.add_repo("org/large", files)


def test_large_weights_cost_their_headers(hub: LoopbackHub, tmp_path: Path) -> None:
    add_large(hub, tmp_path)
    call("inspect", "org/drafter")  # the client is loaded
    hub.requests.clear()
    with within(20):
        assert call("inspect", "org/large", "--json").document["weights"]["bytes"] > 640_000_000
    assert cost(hub) == [
        "main",
        "config.json",
        "model.safetensors.index.json",
        "embedding.safetensors",
        *SHARDS,
    ]
    assert hub.traffic < 100_000


def test_many_repositories_are_listed_once_each_and_their_target_once(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.add_repo("org/target", target_of(tmp_path / "target"))
    files: dict[str, bytes | Path] = {
        name: (tmp_path / "made/whole" / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    names = [f"org/drafter-{number}" for number in range(12)]
    for name in names:
        hub.add_repo(name, files)
    assert call("inspect", *names, "--target", "org/target").code == 0
    lists = [request.path for request in hub.requests if request.is_info]
    assert sorted(lists) == sorted(f"/api/models/{name}/revision/main" for name in ("org/target", *names))
    # of each drafter the list, config and header after a redirect; of the target the list and config
    assert len(hub.requests) == 12 * 4 + 2


# the cache


def test_convert_downloads_and_writes_what_it_writes_of_a_folder(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = hub.repos["org/drafter"]
    repo.commit({"optimizer.pt": b"0" * 100, "run/log.txt": b"x", "README.md": b"a card"})
    folder = shutil.copytree(
        tmp_path / "made/whole", tmp_path / "models--org--drafter/snapshots" / repo.head()
    )
    (folder / "README.md").write_text("a card")
    (folder / ".gitattributes").write_bytes(repo.files()[".gitattributes"].data)  # type: ignore[arg-type]
    for source, out in (("org/drafter", "one"), (folder, "other")):
        done = call("convert", source, "--for", "sglang", "-o", tmp_path / out)
        assert done.code == 0, done
    one, other = contents(tmp_path / "one"), contents(tmp_path / "other")
    records = [json.loads((tmp_path / out / "eaglectl.json").read_text()) for out in ("one", "other")]
    assert [record["source"].pop("name") for record in records] == ["org/drafter", "drafter"]
    assert {**one, "eaglectl.json": ""} == {**other, "eaglectl.json": ""} and records[0] == records[1]
    assert not hub.asked("optimizer") and not hub.asked("log.txt")


@pytest.mark.parametrize("how", ["", "--offline", "HF_HUB_OFFLINE"])
def test_what_is_in_the_cache_is_not_asked_for_and_offline_is_all_there_is(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "out")
    hub.requests.clear()
    always = [how] if how == "--offline" else []
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setenv(how, "1")
    assert call(*always, "inspect", "org/drafter").code == 0
    assert cost(hub) == ([] if how else ["main"])
    if how:
        message = said(3, *always, "inspect", "org/other")
        assert "not in the Hub client's cache" in message
        assert "hf download org/other --revision main" in message
        assert hub.requests == []
    assert (how == "HF_HUB_OFFLINE") == ("HF_HUB_OFFLINE" in os.environ)


def test_offline_a_config_without_weights_is_a_target_and_no_drafter(hub: LoopbackHub) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download("org/drafter", "config.json", endpoint=hub.endpoint)
    assert "without all of its weights" in said(3, "--offline", "inspect", "org/drafter")
    assert open_source("org/drafter").label == "org/drafter"


def test_validate_downloads_only_for_rules_that_read_all_weights(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/sharded", sharded_folder(tmp_path / "made"))
    assert call("validate", "org/sharded", "--headers-only").code == 0
    assert call("validate", "org/sharded", "--select", "EGL3").code == 0
    assert not hub.asked(method="HEAD")
    done = call("validate", "org/sharded")
    assert done.code == 0, done
    assert hub.asked(method="HEAD")


# what a server may do


def for_weights(fault: Fault) -> Fault:
    return lambda request, proceed: fault(request, proceed) if request.is_file("model.safetensors") else None


def changed(**changes: Any) -> Fault:
    """Answers with other headers, cut or slow."""

    def fault(request: Request, proceed: Any) -> Reply:
        reply = proceed()
        headers = {**reply.headers, **changes.get("headers", {})}
        return replace(reply, **{**changes, "headers": headers})

    return fault


def whole(request: Request, proceed: Any) -> Reply:
    """A server that does not know ranges."""
    request.headers = {name: value for name, value in request.headers.items() if name != "range"}
    return proceed()


def echo(request: Request, proceed: Any) -> Reply:
    """A server that says what it was sent."""
    return error(500, f"bad request: {dict(request.headers)}")


# what a server answers, what is said of it, and how often it is waited for, where it may pass
FAULTS: dict[str, tuple[Fault, str, int]] = {
    "401": (
        lambda r, p: error(401, "Invalid credentials in Authorization header"),
        "does not accept the token (401)",
        0,
    ),
    "gated": (lambda r, p: error(403, "gated", "GatedRepo"), "request access at http://127.0.0.1", 0),
    "403": (lambda r, p: error(403, "no"), "(403)", 0),
    "404": (lambda r, p: error(404, "gone", "EntryNotFound"), "org/big has no model.safetensors at main", 0),
    "416": (lambda r, p: Reply(416, {"Content-Range": "bytes */7"}), "(416)", 0),
    "429": (lambda r, p: Reply(429, {"Retry-After": "0"}), "too many requests from this address (429)", 3),
    "429 for long": (lambda r, p: Reply(429, {"Retry-After": "3600"}), "wait for 3600 seconds", 0),
    "500": (lambda r, p: Reply(500), "fails (500); try again later", 3),
    "an echo": (echo, "fails (500); try again later", 3),
    "teapot": (lambda r, p: Reply(418), "answers 418", 0),
    "cut": (changed(cut=50), "broke the answer off", 3),
    "silent": (changed(pause=9), "sent nothing in time", 1),
    "another range": (changed(headers={"Content-Range": "bytes 5-1004/400000"}), "sent other bytes than", 0),
    "no range": (changed(headers={"Content-Range": ""}), "sent other bytes than", 0),
    "compressed": (
        lambda r, p: changed(headers={"Content-Encoding": "gzip"})(r, p) if r.is_elsewhere else None,
        "compressed",
        0,
    ),
    "to nowhere": (lambda r, p: Reply(302, {"Location": "http://localhost:9/"}), "cannot be reached", 1),
    "to a file": (lambda r, p: Reply(302, {"Location": "file:///etc/passwd"}), "cannot be reached", 0),
    "round and round": (lambda r, p: Reply(302, {"Location": r.path}), "redirects without an end", 0),
    "redirect with the token": (
        lambda r, p: Reply(302, {"Location": f"http://localhost:9/{r.token}"}),
        "cannot be reached",
        1,
    ),
}


@pytest.fixture
def big(hub: LoopbackHub, tmp_path: Path) -> LoopbackHub:
    hub.add_repo("org/big", drafter_folder(tmp_path, "big", tensors=BIG_TENSORS, config=BIG_CONFIG))
    return hub


def is_clean(outcome: Outcome, capfd: pytest.CaptureFixture[str]) -> bool:
    """Whether nothing but one line came out, without the token, on the real streams too."""
    real = capfd.readouterr()
    return (real.out, real.err) == ("", "") and TOKEN not in outcome.out + outcome.err


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    ("name", "options"), [*((name, []) for name in FAULTS), *(("an echo", [level]) for level in ("-v", "-q"))]
)
def test_a_fault_on_the_weights_is_one_sentence(
    big: LoopbackHub, capfd: pytest.CaptureFixture[str], name: str, options: list[str]
) -> None:
    fault, sentence, count = FAULTS[name]
    big.faults.append(for_weights(fault))
    done = call(*options, "inspect", "org/big")
    assert done.code == 3, done
    assert sentence in done.err
    *waits, message = done.err.splitlines()
    assert message.startswith("eaglectl: ") and sentence in message
    assert len(waits) == (0 if "-q" in options else count)
    assert all(line.startswith("eaglectl: waiting 0.0 s before attempt ") for line in waits), waits
    assert is_clean(done, capfd)
    assert big.leaks == []


@pytest.mark.fast(5)
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "silent"])  # the client itself waits
def test_a_fault_on_the_list_or_in_a_download_shows_no_token(
    big: LoopbackHub, capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    fault = FAULTS[name][0]
    big.faults[:] = [lambda request, proceed: fault(request, proceed) if request.is_info else None]
    assert is_clean(call("inspect", "org/big"), capfd)
    big.faults[:] = [for_weights(fault)]
    done = call("convert", "org/big", "--for", "sglang", "-o", tmp_path / "out")
    assert done.code in (0, 3)
    assert (done.code == 0) == (tmp_path / "out").exists()
    assert is_clean(done, capfd)
    assert big.leaks == []


def test_a_server_without_ranges_gives_headers_and_is_not_heard_to_the_end(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    add_large(hub, tmp_path)
    hub.faults.append(lambda request, proceed: whole(request, proceed) if request.is_elsewhere else None)
    assert call("inspect", "org/large").code == 0
    assert hub.traffic < 100_000_000  # of 640 MB; what the sockets hold


def test_a_drip_is_cut_off(big: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PATIENCE", 0.2)
    monkeypatch.setattr(hub_module, "SLOWEST", 1e9)
    big.faults.append(
        for_weights(lambda r, p: replace(p(), pause=0.05, piece=10) if r.is_elsewhere else None)
    )
    assert "is too slow" in said(3, "inspect", "org/big")


# who may see what


def test_what_is_not_there_is_told_with_and_without_a_token(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo("org/private", {"config.json": b"{}"}, is_private=True)
    hub.add_repo("org/gated", {"config.json": b"{}"}, is_gated=True)
    for name in ("org/none", "org/private"):
        assert "hf auth whoami" in said(3, "inspect", name)
    assert "request access at" in said(3, "inspect", "org/gated")
    assert "has no revision v9" in said(3, "inspect", "org/drafter@v9")
    monkeypatch.delenv("HF_TOKEN")
    for name in ("org/none", "org/private", "org/gated"):
        assert "hf auth login" in said(3, "inspect", name)


def test_a_token_that_is_none_is_told_without_saying_it(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\x01é")
    message = said(3, "inspect", "org/drafter")
    assert "has invalid characters" in message
    assert TOKEN not in message


@pytest.mark.parametrize("name", ["hf://", "hf://a/b/c", "hf://../x", "hf://org/na me"])
def test_a_name_that_is_none_is_told(hub: LoopbackHub, name: str) -> None:
    assert "is not the name of a Hub repository" in said(3, "inspect", name)
    assert hub.requests == []


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"sha": "../..", "siblings": []}', b'{"sha": 1}'])
def test_an_answer_that_is_no_hubs_is_told(hub: LoopbackHub, answer: bytes) -> None:
    hub.faults.append(lambda request, proceed: Reply(200, {}, answer))
    assert "does not answer as a Hub does" in said(3, "inspect", "org/drafter")


def test_a_listed_name_cannot_point_out_of_the_cache(hub: LoopbackHub) -> None:
    for name in ("../../../config.json", "/config.json", "..\\config.json"):
        hub.add_repo("org/bad", {name: b"{}"})
        assert "outside of the repository" in said(3, "inspect", "org/bad")


def test_a_crash_shows_no_token(hub: LoopbackHub, tmp_path: Path) -> None:
    """The whole program in its own process, with the client's debugging on."""
    hub.faults.append(
        lambda request, proceed: echo(request, proceed) if request.is_file("config.json") else None
    )
    given = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_DEBUG": "1", "HF_TOKEN": TOKEN}
    code = (
        "import eaglectl.files.hub_requests as r; r.POLICY = r.RetryPolicy(first_wait=0.01);"
        " from eaglectl.cli import main; main()"
    )
    arguments = ["-v", "convert", "org/drafter", "-o", str(tmp_path / "out")]
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, **given, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done
    assert "fails (500)" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert not hub.asked("agent-harnesses")  # nothing is told about the machine


# what came is what is listed


def other_bytes(name: str) -> Fault:
    """The bytes of a file, one of them another."""

    def fault(request: Request, proceed: Any) -> Reply | None:
        if not request.is_file(name) or request.method != "GET":
            return None
        reply = proceed()
        if isinstance(reply.body, bytes):
            return None  # a redirect
        data = b"".join(reply.body[0].pieces(*reply.body[1:]))
        return replace(reply, body=data[:-1] + bytes([data[-1] ^ 1]))

    return fault


@pytest.mark.parametrize(
    ("name", "listed"),
    [("model.safetensors", ""), *(("config.json", kind) for kind in ("", "sha1", "git sha1", "git sha256"))],
)
def test_changed_bytes_are_not_inspected_whichever_digest_is_listed(
    hub: LoopbackHub, name: str, listed: str
) -> None:
    """Other Hubs list other digests of small files."""
    data = bytes(hub.repos["org/drafter"].files()["config.json"].data)  # type: ignore[arg-type]
    head = b"blob %d\0" % len(data) if listed.startswith("git ") else b""

    def listing(request: Request, proceed: Any) -> Reply | None:
        if not request.is_info or not listed:
            return None
        answer = json.loads(proceed().body)
        (file,) = (file for file in answer["siblings"] if file["rfilename"] == name)
        file["blobId"] = hashlib.new(listed.removeprefix("git "), head + data).hexdigest()
        return Reply(200, {}, json.dumps(answer).encode())

    hub.faults.append(listing)
    assert call("inspect", "org/drafter").code == 0
    hub.faults.append(other_bytes(name))
    assert "the received bytes do not have the digest" in said(3, "inspect", "org/drafter")


def test_inspect_says_where_no_digest_covers_what_it_read(big: LoopbackHub, tmp_path: Path) -> None:
    for source, unchecked in (
        ("org/big", ["model.safetensors"]),
        ("org/drafter", []),
        (tmp_path / "big", []),
    ):
        assert call("inspect", source, "--json").document["weights"]["unchecked"] == unchecked
