"""Hub repositories read by ranges: the requests, the errors for each fault, and that no token is shown."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.files import hub as hub_module
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import open_source
from tests.builders import (
    Outcome,
    call,
    contents,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    sharded_folder,
)
from tests.hub import TOKEN, Fault, LoopbackHub, Reply, Request, client_hub, error, once

BIG = floats("big", 10_240, 16)  # 327,680 bytes: read by ranges, not whole
BIG_TENSORS, BIG_CONFIG = {"embed_tokens.weight": BIG}, {"vocab_size": 10_240}


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


def test_a_revision_is_pinned_by_one_request_and_named_in_the_commands(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    first = hub.repos["org/drafter"].head()
    hub.repos["org/drafter"].commit({"config.json": b"{}"})
    done = call("inspect", f"org/drafter@{first}")
    assert done.code == 0
    assert f'"model": "org/drafter", "num_speculative_tokens": 3, "revision": "{first}"' in done.out
    assert cost(hub) == [first, "config.json", "model.safetensors"]


def test_a_pull_request_is_a_revision(hub: LoopbackHub) -> None:
    repo = hub.repos["org/drafter"]
    repo.refs["refs/pr/1"] = repo.head()
    assert call("inspect", "org/drafter@refs/pr/1").code == 0
    assert call("inspect", "hf://org/drafter@refs%2Fpr%2F1").code == 0


def test_a_folder_of_that_name_wins(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter_folder(tmp_path / "org", "drafter")
    monkeypatch.chdir(tmp_path)
    assert call("inspect", "org/drafter").code == 0
    assert hub.requests == []


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


def test_a_target_costs_a_list_and_a_config(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    config = drafter_config(num_hidden_layers=8, architectures=["LlamaForCausalLM"])
    (tmp_path / "target/config.json").write_text(json.dumps(config))
    (tmp_path / "target/model.safetensors").write_bytes(b"0" * 1000)
    hub.add_repo("org/target", tmp_path / "target")
    assert call("inspect", tmp_path / "made/whole", "--target", "org/target").code == 0
    assert cost(hub) == ["main", "config.json"]


# what it costs


def big_repository(tmp_path: Path, shards: int = 6, **more: tuple[str, list[int]]) -> Path:
    """A drafter of 6.6 GB in shards whose data are holes, with `more` tensors."""
    hidden, mlp, vocab, draft = 8192, 28672, 200_000, 32_000
    config = drafter_config(
        hidden_size=hidden,
        intermediate_size=mlp,
        vocab_size=vocab,
        draft_vocab_size=draft,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        target_hidden_size=hidden,
    )
    sizes = {16: hidden, 24: mlp, 64: vocab, 32: 2 * hidden, 48: 3 * hidden}
    tensors: dict[str, tuple[str, list[int]]] = {}
    for name, (dtype, shape, _) in drafter_tensors().items():
        tensors[name] = (dtype, [sizes.get(size, size) for size in shape])
    tensors |= {
        "d2t": ("I64", [draft]),
        "lm_head.weight": ("F32", [draft, hidden]),
        **{
            f"layers.0.self_attn.{name}_proj.weight": ("BF16", [rows, 2 * hidden])
            for name, rows in (("q", 8192), ("k", 1024), ("v", 1024))
        },
        "layers.0.self_attn.o_proj.weight": ("BF16", [hidden, 8192]),
        **more,
    }
    folder = tmp_path / "six"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    place: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, (dtype, shape) in list(tensors.items())[number::shards]:
            count = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1}[dtype]
            for size in shape:
                count *= size
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + count]}
            position, place[name] = position + count, file
        header = json.dumps(table).encode()
        with (folder / file).open("wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            stream.truncate(8 + len(header) + position)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return folder


def add_six(hub: LoopbackHub, tmp_path: Path, shards: int = 6) -> None:
    folder = big_repository(tmp_path, shards)
    assert sum(path.stat().st_size for path in folder.iterdir()) > 6_000_000_000
    hub.add_repo(
        "org/six",
        {
            path.name: path if path.stat().st_size > 100_000 else path.read_bytes()
            for path in folder.iterdir()
        },
    )


def test_six_gigabytes_cost_their_headers(hub: LoopbackHub, tmp_path: Path) -> None:
    add_six(hub, tmp_path)
    call("inspect", "org/drafter")  # the client is loaded
    hub.requests.clear()
    start = time.process_time()
    assert call("inspect", "org/six", "--json").document["weights"]["bytes"] > 6_000_000_000
    assert time.process_time() - start < 1
    shards = [f"model-{number:05}-of-00006.safetensors" for number in range(1, 7)]
    d2t = shards[0]
    assert cost(hub) == ["main", "config.json", "model.safetensors.index.json", *shards, d2t]
    assert hub.traffic < 320_000


def test_five_shards_cost_fifteen_requests_and_the_bytes_of_d2t(hub: LoopbackHub, tmp_path: Path) -> None:
    add_six(hub, tmp_path, 5)
    assert call("inspect", "org/six").code == 0
    # the list, config and index; each shard's header and d2t after a redirect
    assert len(hub.requests) == 3 + 6 * 2
    assert hub.traffic < 300_000
    assert hub.leaks == []


def test_one_file_with_its_tables_and_norms_costs_fourteen_requests(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = big_repository(tmp_path, 1, t2d=("BOOL", [200_000]))
    files = {
        "config.json": (folder / "config.json").read_bytes(),
        "model.safetensors": folder / "model-00001-of-00001.safetensors",
    }
    hub.add_repo("org/one", files)
    done = call("inspect", "org/one", "--json")
    # the list and the config; the header, d2t, t2d and norms at three places, each after a redirect
    assert len(hub.requests) == 2 + 6 * 2 and hub.traffic < 700_000
    # holes are zeros, which no norm is
    assert {row["outcome"] for row in done.document["engines"]} <= {"differs", "fails"}


@pytest.mark.parametrize("jobs", ["1", "8"])
def test_fifty_repositories_are_listed_once_each_and_their_target_once(
    hub: LoopbackHub, tmp_path: Path, jobs: str
) -> None:
    config = drafter_config(num_hidden_layers=8, architectures=["LlamaForCausalLM"])
    hub.add_repo("org/target", {"config.json": json.dumps(config).encode(), "model.safetensors": b"0" * 9})
    files: dict[str, bytes | Path] = {
        name: (tmp_path / "made/whole" / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    names = [f"org/drafter-{number}" for number in range(50)]
    for name in names:
        hub.add_repo(name, files)
    assert call("inspect", *names, "--target", "org/target", "--jobs", jobs).code == 0
    lists = [request.path for request in hub.requests if request.is_info]
    assert sorted(lists) == sorted(f"/api/models/{name}/revision/main" for name in ("org/target", *names))
    # of each drafter the list, config and header after a redirect; of the target the list and config
    assert len(hub.requests) == 50 * 4 + 2


def test_a_repository_is_listed_anew_by_the_next_call(hub: LoopbackHub) -> None:
    hub.add_repo("org/other", {"config.json": b"{}"})
    call("inspect", "org/drafter", "org/other")
    before = hub.repos["org/drafter"].head()
    hub.repos["org/drafter"].commit({"config.json": b"{}"})
    assert open_source("org/drafter").commit != before  # type: ignore[union-attr]


def test_a_header_longer_than_the_first_read_costs_one_request_more(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "long", tensors=BIG_TENSORS, config=BIG_CONFIG)
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(
        {**json.loads(data[8 : 8 + length]), "__metadata__": {"format": "pt", "long": "x" * 120_000}}
    )
    (folder / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header.encode() + data[8 + length :]
    )
    hub.add_repo("org/long", folder)
    read_checkpoint(open_source("org/long"))
    assert cost(hub) == ["main", "config.json", "model.safetensors", "model.safetensors"]
    assert hub.traffic < 130_000


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
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    assert json.loads((tmp_path / "one/eaglectl.json").read_text())["source"]["name"] == "org/drafter"
    assert not any(
        "optimizer" in path or "log.txt" in path
        for path in map(str, (request.path for request in hub.requests))
    )


def test_the_output_is_named_after_the_repository(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("convert", "org/drafter", "--for", "sglang").code == 0
    assert (tmp_path / "drafter-eagle3/config.json").is_file()


def test_what_is_in_the_cache_is_not_asked_for(hub: LoopbackHub, tmp_path: Path) -> None:
    call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "out")
    hub.requests.clear()
    assert call("inspect", "org/drafter").code == 0
    assert cost(hub) == ["main"]


@pytest.mark.parametrize("how", ["--offline", "HF_HUB_OFFLINE"])
def test_offline_the_cache_is_all_there_is(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "out")
    hub.requests.clear()
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setenv(how, "1")
    always = [how] if how == "--offline" else []
    assert call(*always, "inspect", "org/drafter").code == 0
    assert "not in the Hub client's cache" in said(3, *always, "inspect", "org/other")
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


def test_several_are_judged_though_one_cannot_be_read(hub: LoopbackHub) -> None:
    hub.add_repo("org/gated", {"config.json": b"{}"}, is_gated=True)
    done = call(
        "validate",
        "org/drafter",
        "org/none",
        "org/gated",
        "--jobs",
        "3",
        "--headers-only",
        "--format",
        "json",
    )
    verdicts = {one["source"]: one["verdict"] for one in json.loads(done.out)["reports"]}
    assert done.code == 3
    assert sorted(verdicts.values()) == ["could-not-look", "could-not-look", "pass"]


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


ELSEWHERE = once(
    lambda request, proceed: Reply(302, {"Location": "http://localhost:9/" + (request.token or "")})
)
FAULTS: dict[str, tuple[Fault, str]] = {
    "401": (
        lambda r, p: error(401, "Invalid credentials in Authorization header"),
        "does not accept the token (401)",
    ),
    "gated": (lambda r, p: error(403, "gated", "GatedRepo"), "request access at http://127.0.0.1"),
    "403": (lambda r, p: error(403, "no"), "(403)"),
    "404": (lambda r, p: error(404, "gone", "EntryNotFound"), "org/big has no model.safetensors at main"),
    "416": (lambda r, p: Reply(416, {"Content-Range": "bytes */7"}), "(416)"),
    "429": (lambda r, p: Reply(429, {"Retry-After": "0"}), "too many requests from here (429)"),
    "429 for long": (lambda r, p: Reply(429, {"Retry-After": "3600"}), "wait for 3600 seconds"),
    "500": (lambda r, p: Reply(500), "fails (500); try again later"),
    "an echo": (echo, "fails (500); try again later"),
    "teapot": (lambda r, p: Reply(418), "answers 418"),
    "cut": (changed(cut=50), "broke the answer off"),
    "silent": (changed(pause=9), "sent nothing for 2 seconds"),
    "another range": (changed(headers={"Content-Range": "bytes 5-1004/400000"}), "sent other bytes than"),
    "no range": (changed(headers={"Content-Range": ""}), "sent other bytes than"),
    "compressed": (
        lambda r, p: changed(headers={"Content-Encoding": "gzip"})(r, p) if r.is_elsewhere else None,
        "compressed",
    ),
    "to nowhere": (lambda r, p: Reply(302, {"Location": "http://localhost:9/"}), "cannot be reached"),
    "to a file": (lambda r, p: Reply(302, {"Location": "file:///etc/passwd"}), "cannot be reached"),
    "round and round": (lambda r, p: Reply(302, {"Location": r.path}), "broke the answer off"),
    "redirect with the token": (
        lambda r, p: Reply(302, {"Location": f"http://localhost:9/{r.token}"}),
        "cannot be reached",
    ),
}


# how often a fault is waited for, where it may pass
WAITS = {
    "429": 3,
    "500": 3,
    "an echo": 3,
    "cut": 3,
    "silent": 1,
    "to nowhere": 1,
    "redirect with the token": 1,
}


@pytest.fixture
def big(hub: LoopbackHub, tmp_path: Path) -> LoopbackHub:
    hub.add_repo("org/big", drafter_folder(tmp_path, "big", tensors=BIG_TENSORS, config=BIG_CONFIG))
    return hub


def is_clean(outcome: Outcome, capfd: pytest.CaptureFixture[str]) -> bool:
    """Whether nothing but one line came out, without the token, on the real streams too."""
    real = capfd.readouterr()
    return (real.out, real.err) == ("", "") and TOKEN not in outcome.out + outcome.err


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("options", [[], ["-v"], ["-q"]], ids=["plain", "-v", "-q"])
def test_a_fault_on_the_weights_is_one_sentence(
    big: LoopbackHub, capfd: pytest.CaptureFixture[str], name: str, options: list[str]
) -> None:
    if options and name == "silent":
        pytest.skip("as slow as it sounds")
    fault, sentence = FAULTS[name]
    big.faults.append(for_weights(fault))
    done = call(*options, "inspect", "org/big")
    assert done.code == 3, done
    assert sentence in done.err
    *waits, message = done.err.splitlines()
    assert message.startswith("eaglectl: ") and sentence in message
    assert len(waits) == (0 if "-q" in options else WAITS.get(name, 0))
    assert all(line.startswith("eaglectl: waiting 0.0 s before attempt ") for line in waits), waits
    assert is_clean(done, capfd)
    assert big.leaks == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_the_list_or_in_a_download_shows_no_token(
    big: LoopbackHub,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
) -> None:
    if name == "silent":
        pytest.skip("as slow as it sounds; the client's own downloads wait")
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
    add_six(hub, tmp_path)
    hub.faults.append(lambda request, proceed: whole(request, proceed) if request.is_elsewhere else None)
    assert call("inspect", "org/six").code == 0
    assert hub.traffic < 100_000_000  # of 6 GB; what the sockets hold


def test_a_server_without_ranges_is_no_source_of_rows(big: LoopbackHub) -> None:
    big.faults.append(for_weights(whole))
    with pytest.raises(
        UnreadableError, match="sends whole files only, and not ranges; run `hf download org/big`"
    ):
        read_checkpoint(open_source("org/big")).read("norm.weight")


@pytest.mark.parametrize("fault", [Reply(503), Reply(429, {"Retry-After": "0"})], ids=["503", "429"])
def test_a_fault_that_passes_is_not_seen(big: LoopbackHub, fault: Reply) -> None:
    big.faults.append(once(lambda request, proceed: fault, 2))
    assert call("inspect", "org/big").code == 0


def test_a_connection_that_is_cut_once_is_tried_again(big: LoopbackHub) -> None:
    big.faults.append(once(for_weights(changed(cut=10))))
    assert call("inspect", "org/big").code == 0


def test_a_drip_is_cut_off(big: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PATIENCE", 0.2)
    monkeypatch.setattr(hub_module, "SLOWEST", 1e9)
    big.faults.append(
        for_weights(lambda r, p: replace(p(), pause=0.05, piece=10) if r.is_elsewhere else None)
    )
    assert "is too slow" in said(3, "inspect", "org/big")


def test_the_token_is_not_sent_to_another_host(big: LoopbackHub) -> None:
    assert call("inspect", "org/big").code == 0
    assert {request.token for request in big.requests if not request.is_elsewhere} == {TOKEN}
    assert any(request.is_elsewhere for request in big.requests)
    assert big.leaks == []


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


def test_whom_access_was_granted_reads_a_gated_repository(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/gated", tmp_path / "made/whole", is_gated=True, granted={"reader"})
    assert call("inspect", "org/gated").code == 0


def test_a_token_that_is_none_is_told_without_saying_it(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\x01é")
    message = said(3, "inspect", "org/drafter")
    assert "characters that no token has" in message
    assert TOKEN not in message


@pytest.mark.parametrize("name", ["hf://", "hf://a/b/c", "hf://../x", "hf://org/na me"])
def test_a_name_that_is_none_is_told(hub: LoopbackHub, name: str) -> None:
    assert "names no Hub repository" in said(3, "inspect", name)
    assert hub.requests == []


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"sha": "../..", "siblings": []}', b'{"sha": 1}'])
def test_an_answer_that_is_no_hubs_is_told(hub: LoopbackHub, answer: bytes) -> None:
    hub.faults.append(lambda request, proceed: Reply(200, {}, answer))
    assert "does not answer as a Hub does" in said(3, "inspect", "org/drafter")


@pytest.mark.parametrize("name", ["../../../config.json", "/config.json", "..\\config.json"])
def test_a_listed_name_cannot_point_out_of_the_cache(name: str, hub: LoopbackHub) -> None:
    hub.add_repo("org/bad", {name: b"{}"})
    assert "points out of the repository" in said(3, "inspect", "org/bad")


def test_a_crash_shows_no_token(hub: LoopbackHub, tmp_path: Path) -> None:
    """The whole program in its own process, with the client's debugging on."""
    hub.faults.append(
        lambda request, proceed: echo(request, proceed) if request.is_file("config.json") else None
    )
    given = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path),
        "HF_DEBUG": "1",
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }
    code = (
        "import eaglectl.files.hub_requests as r; r.POLICY = r.RetryPolicy(first_wait=0.01);"
        " from eaglectl.cli import main; main()"
    )
    for arguments in (
        ["-v", "inspect", "org/drafter"],
        ["convert", "org/drafter", "-o", str(tmp_path / "out")],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            timeout=120,
        )
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


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_changed_bytes_of_equal_size_are_not_converted(big: LoopbackHub, tmp_path: Path, name: str) -> None:
    big.faults.append(other_bytes(name))
    message = said(3, "convert", "org/big", "--for", "sglang", "-o", tmp_path / "out")
    assert f"{name} of org/big: the bytes that came are not those that the Hub" in message
    digest = big.repos["org/big"].files()[name].etag[:12]
    assert digest in message and ("SHA-256" in message) == (name == "model.safetensors")
    assert not (tmp_path / "out").exists()
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.name == name]
    assert cached == []
    big.faults.clear()
    assert call("convert", "org/big", "--for", "sglang", "-o", tmp_path / "out").code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_changed_bytes_of_a_small_file_are_not_inspected(hub: LoopbackHub, name: str) -> None:
    hub.faults.append(other_bytes(name))
    assert "the bytes that came are not those" in said(3, "inspect", "org/drafter")


@pytest.mark.parametrize("kind", ["sha1", "sha256", "git sha1", "git sha256"])
def test_digests_that_other_hubs_list_for_small_files_are_checked(hub: LoopbackHub, kind: str) -> None:
    import hashlib

    data = hub.repos["org/drafter"].files()["config.json"].data
    assert isinstance(data, bytes)
    head = b"blob %d\0" % len(data) if kind.startswith("git ") else b""
    digest = hashlib.new(kind.removeprefix("git "), head + data).hexdigest()

    def listing(request: Request, proceed: Any) -> Reply | None:
        if not request.is_info:
            return None
        answer = json.loads(proceed().body)
        for file in answer["siblings"]:
            if file["rfilename"] == "config.json":
                file["blobId"] = digest
        return Reply(200, {}, json.dumps(answer).encode())

    hub.faults.append(listing)
    assert call("inspect", "org/drafter").code == 0
    hub.faults.append(other_bytes("config.json"))
    assert "the bytes that came are not those" in said(3, "inspect", "org/drafter")


def test_inspect_says_where_no_digest_covers_what_it_read(big: LoopbackHub, tmp_path: Path) -> None:
    said_of = {
        name: call("inspect", "-v", name) for name in ("org/big", "org/drafter", str(tmp_path / "big"))
    }
    assert {name: "no digest covers" in done.out for name, done in said_of.items()} == {
        "org/big": True,
        "org/drafter": False,
        str(tmp_path / "big"): False,
    }
    assert call("inspect", "org/big", "--json").document["weights"]["unchecked"] == ["model.safetensors"]
    assert call("inspect", "org/drafter", "--json").document["weights"]["unchecked"] == []
