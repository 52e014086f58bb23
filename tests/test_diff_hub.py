"""`diff` of Hub repositories: headers by ranges, weights through the cache, equal files not downloaded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import call, drafter_folder, drafter_tensors, floats, refusal, write_safetensors
from tests.hub import TOKEN, LoopbackHub, Reply, client_hub

BIG = {"embed_tokens.weight": floats("big", 10_240, 16)}  # 327,680 bytes: read by ranges, not whole
CONFIG = {"vocab_size": 10_240}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub for this process's client, with a drafter in two repositories under other configs."""
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/a", drafter_folder(tmp_path / "made", "a", config=CONFIG, tensors=BIG))
        other = {**CONFIG, "rope_theta": 10000.0, "bos_token_id": 1}
        running.add_repo("org/b", drafter_folder(tmp_path / "made", "b", config=other, tensors=BIG))
        yield running


def diff(*arguments: str | Path) -> dict[str, Any]:
    done = call("diff", *arguments, "--json")
    assert done.err == "", done.err
    return done.document


def cached(tmp_path: Path) -> set[str]:
    """Weight files in the Hub client's cache."""
    return {
        f"{path.parents[2].name.rpartition('--')[2]}/{path.name}"
        for path in (tmp_path / "cache").rglob("*.safetensors")
    }


def sharded(parent: Path, name: str, **changes: Any) -> Path:
    """The drafter in two shards, the first one with the embedding; `changes` are tensors of the second."""
    folder = drafter_folder(parent, name, config=CONFIG)
    (folder / "model.safetensors").unlink()
    rest = {key: stored for key, stored in drafter_tensors(**changes).items() if key not in BIG}
    write_safetensors(folder / ONE, BIG)
    write_safetensors(folder / TWO, rest)
    weight_map = {**dict.fromkeys(BIG, ONE), **dict.fromkeys(rest, TWO)}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder


def test_files_that_the_hub_lists_as_the_same_are_not_downloaded(hub: LoopbackHub, tmp_path: Path) -> None:
    document = diff("org/a", "org/b")
    assert [fact["name"] for fact in document["facts"] if fact["state"] == "differs"] == ["rope_theta"]
    assert {pair["state"] for pair in document["tensors"]} == {"equal"}
    assert {pair["a"]["sha256"] for pair in document["tensors"]} == {None}  # nobody read them here
    assert cached(tmp_path) == set() and hub.traffic < 300_000


def test_a_folder_that_is_what_was_published_costs_no_download(hub: LoopbackHub, tmp_path: Path) -> None:
    for pair in (("org/a", tmp_path / "made/a"), (tmp_path / "made/a", "org/a")):
        document = diff(*pair)
        assert (document["verdict"], document["values"]) == ("equal", "compared")
    assert cached(tmp_path) == set()


def test_weights_that_differ_go_through_the_cache_once(hub: LoopbackHub, tmp_path: Path) -> None:
    local = drafter_folder(
        tmp_path, "local", config=CONFIG, tensors={**BIG, "norm.weight": floats("other", 16)}
    )
    for _ in range(2):
        document = diff(local, "org/a")
        assert [pair["name"] for pair in document["tensors"] if pair["state"] != "equal"] == ["norm.weight"]
    assert cached(tmp_path) == {"a/model.safetensors"}
    assert sum(request.is_elsewhere and request.range is None for request in hub.requests) == 1


def test_of_shards_only_those_that_differ_are_downloaded(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/one", sharded(tmp_path / "made", "one"))
    hub.add_repo("org/two", sharded(tmp_path / "made", "two", **{"norm.weight": floats("other", 16)}))
    document = diff("org/one", "org/two")
    assert [pair["name"] for pair in document["tensors"] if pair["state"] != "equal"] == ["norm.weight"]
    assert cached(tmp_path) == {f"one/{TWO}", f"two/{TWO}"}


def test_headers_only_downloads_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    local = drafter_folder(
        tmp_path, "local", config=CONFIG, tensors={**BIG, "norm.weight": floats("other", 16)}
    )
    document = diff(local, "org/a", "--headers-only")
    assert (document["verdict"], document["values"]) == ("same-headers", "not-compared")
    assert cached(tmp_path) == set() and hub.traffic < 200_000


def test_revisions_of_one_repository_are_two_sides(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = hub.repos["org/a"]
    first = repo.head()
    repo.commit({"config.json": (tmp_path / "made/b/config.json").read_bytes()})
    document = diff(f"org/a@{first}", "org/a@main")
    assert [fact["name"] for fact in document["facts"] if fact["state"] == "differs"] == ["rope_theta"]
    assert (document["a"]["source"], document["b"]["source"]) == (f"org/a@{first}", "org/a@main")


def test_a_hub_that_lists_no_digests_is_read(hub: LoopbackHub, tmp_path: Path) -> None:
    def bare(request: Any, proceed: Any) -> Reply | None:
        is_tree = "/tree/" in request.path
        if not request.is_info and not is_tree:
            return None
        body = json.loads(proceed().body)
        for file in body if is_tree else body["siblings"]:
            file.pop("lfs", None)
            file.pop("blobId", None)
            file["oid"] = "version 1"
        return Reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    hub.faults.append(bare)
    done = call("diff", "org/a", "org/b", "--json")
    document = done.document
    assert all(pair["state"] == "equal" and pair["a"]["sha256"] for pair in document["tensors"])
    assert done.err.count("config.json, model.safetensors; only the size was checked\n") == 2
    assert cached(tmp_path) == {"a/model.safetensors", "b/model.safetensors"}


def test_a_repository_that_is_not_there_is_no_difference(hub: LoopbackHub) -> None:
    message = refusal(3, "diff", "org/a", "org/nowhere")
    assert message.startswith("B: ") and "org/nowhere" in message and TOKEN not in message


def test_a_download_that_fails_is_no_difference(hub: LoopbackHub, tmp_path: Path) -> None:
    local = drafter_folder(
        tmp_path, "local", config=CONFIG, tensors={**BIG, "norm.weight": floats("other", 16)}
    )
    hub.faults.append(lambda request, proceed: Reply(500) if request.method == "HEAD" else None)
    assert "org/a" in refusal(3, "diff", local, "org/a")


def test_several_repositories_are_inspected_by_their_headers(hub: LoopbackHub, tmp_path: Path) -> None:
    done = call("inspect", "org/a", "org/nowhere", "org/b", "--json")
    first, second, third = done.document["inspections"]
    assert done.code == 3 and first["source"] == "org/a" and third["drafter"]["rope"]["theta"] == 10000.0
    assert "org/nowhere" in second["error"]["message"] and cached(tmp_path) == set()
    assert hub.leaks == []
