"""Files in the Hub client's cache are used with the bytes that were downloaded, or not at all."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eaglectl.errors import UnreadableError
from eaglectl.files import hub_cache, source
from eaglectl.files.opening import on_disk
from tests.builders import call, drafter_folder, floats
from tests.hub import LoopbackHub, client_hub

pytest.importorskip("huggingface_hub")
NAME = "org/drafter"
WEIGHTS = "model.safetensors"
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", NAME),
    "validate": ("validate", NAME),
    "convert": ("convert", NAME, "--for", "sglang", "-o", "out"),
    "diff": ("diff", NAME, "made"),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with a drafter that is in the cache; the weights count as a large file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub_cache, "COMPARED", {})
    with client_hub(monkeypatch, tmp_path) as running:
        tensors = {"embed_tokens.weight": floats("big", 2_048, 16)}
        folder = drafter_folder(tmp_path, "made", tensors=tensors, config={"vocab_size": 2_048})
        monkeypatch.setattr(source, "MAX_WHOLE_FILE", (folder / WEIGHTS).stat().st_size - 1)
        running.add_repo(NAME, folder)
        assert call("convert", NAME, "--for", "sglang", "-o", tmp_path / "first").code == 0
        hub_cache.COMPARED.clear()
        yield running


def snapshot() -> Path:
    return next(Path("cache").glob("models--org--drafter/snapshots/*")).resolve()


def change(name: str) -> Path:
    """Another last byte of a cached file, and where it is."""
    path = (snapshot() / name).resolve()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return path


def advice(message: str) -> list[str]:
    """The command that a message advises."""
    return shlex.split(message.partition("run `")[2].partition("`")[0])


@pytest.mark.parametrize("how", [(), ("--offline",)], ids=["online", "offline"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_changed_bytes_in_the_cache_are_not_used(
    hub: LoopbackHub, name: str, command: str, how: tuple[str, ...]
) -> None:
    path = change(name)
    done = call(*how, *COMMANDS[command], *(("--json",) if command == "inspect" else ()))
    if command == "inspect" and name == WEIGHTS:  # whose header alone is read
        assert (done.code, done.document["weights"]["unchecked"]) == (0, [WEIGHTS])
        return
    if command == "diff" and not how and name == WEIGHTS:  # the listing shows that they are equal
        assert done.code == 0
        return
    if command == "validate":  # which breaks lines
        assert done.code == 3 and f"rm{path}`" in "".join(done.out.split()), done
        return
    message = done.err.splitlines()[-1]
    assert done.code == 3 and name in message, done
    assert advice(message) == ["rm", str(path)]
    assert not Path("out").exists()
    subprocess.run(advice(message), check=True)
    assert call(*COMMANDS[command]).code == 0


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("validate",),
        ("upload", "--dry-run"),
        ("smoke", "--target", "made"),
        ("verify", "--against", NAME),
    ],
    ids=lambda command: command[0],
)
def test_a_snapshot_that_is_given_by_its_path_is_compared_too(
    hub: LoopbackHub, command: tuple[str, ...], name: str
) -> None:
    changed = change(name)
    first, *options = command
    there = ["org/new"] if first == "upload" else []
    done = call(first, str(snapshot()), *there, *options, "-v")
    if first == "verify":  # which says itself what differs
        assert done.code == 1 and name in done.out, done
        return
    if first == "inspect" and name == WEIGHTS:
        assert done.code == 0 and "which no digest covers" in done.out
        return
    assert done.code == 3 and str(changed) in "".join((done.out + done.err).split()), done


@pytest.mark.parametrize("how", [(), ("--offline",)], ids=["online", "offline"])
@pytest.mark.parametrize("command", ["validate", "diff"])
def test_headers_only_names_the_weights_that_were_not_compared(
    hub: LoopbackHub, command: str, how: tuple[str, ...]
) -> None:
    change(WEIGHTS)
    sources = [NAME] if command == "validate" else [NAME, "made"]
    done = call(*how, command, *sources, "--headers-only")
    assert (
        f"headers of {WEIGHTS} were read from the Hub or its cache, which no digest covers"
        in done.err + done.out
    )
    plain = call(command, *["made"] * len(sources), "--headers-only")
    assert "no digest covers" not in plain.err + plain.out


def test_only_small_files_are_compared_where_no_weights_are_read(hub: LoopbackHub) -> None:
    change(WEIGHTS)
    place = str(snapshot())
    with pytest.raises(UnreadableError, match=WEIGHTS):
        on_disk(place)
    assert on_disk(place, has_weights=False) == place
    change("config.json")
    with pytest.raises(UnreadableError, match="config"):
        on_disk(place, has_weights=False)


def test_what_was_compared_is_read_once(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(descriptor: int) -> Iterator[bytes]:
        for block in blocks(descriptor):
            read.append(len(block))
            yield block

    blocks: Callable[[int], Iterator[bytes]] = hub_cache.blocks_of
    monkeypatch.setattr(hub_cache, "blocks_of", counted)
    assert call("--offline", *COMMANDS["convert"]).code == 0
    assert sum(read) == sum(path.stat().st_size for path in snapshot().iterdir())
    change(WEIGHTS)
    assert call("--offline", *COMMANDS["validate"]).code == 3


def test_inspect_does_not_read_large_weights_to_compare_them(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Path] = []
    monkeypatch.setattr(hub_cache, "compared", lambda path, stamp: called.append(path))
    assert call("--offline", "inspect", NAME).code == 0
    assert {path.name for path in called} == {"config.json"}


def test_files_of_the_store_that_repositories_share_are_read_and_compared(hub: LoopbackHub) -> None:
    """Newer clients keep what came by Xet there: blobs/ETAG is a link to ../../blobs/XX/HASH."""
    client = pytest.importorskip("huggingface_hub.utils._shared_blobs")
    blob = snapshot() / (snapshot() / WEIGHTS).readlink()
    blob, cache = Path(os.path.normpath(blob)), Path("cache").resolve()
    size, name = blob.stat().st_size, "ab" * 32
    assert client.publish_blob_to_shared_store(
        blob_path=str(blob), xet_hash=name, cache_dir=str(cache), expected_size=size
    )
    stored = cache / "blobs/ab" / name
    assert blob.is_symlink() and stored.stat().st_size == size
    assert call("--offline", *COMMANDS["convert"]).code == 0
    assert call("--offline", "inspect", NAME, "--json").document["weights"]["unchecked"] == []
    change(WEIGHTS)
    message = call("--offline", *COMMANDS["convert"], "--force").err.splitlines()[-1]
    assert advice(message) == ["rm", str(stored)]
    subprocess.run(advice(message), check=True)
    assert call(*COMMANDS["convert"], "--force").code == 0


def test_a_cache_without_digests_is_told(hub: LoopbackHub) -> None:
    """A system without links has the files themselves in the snapshot."""
    for path in snapshot().iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    done = call("--offline", *COMMANDS["convert"])
    assert done.code == 0 and f"has no digest of .gitattributes, config.json, {WEIGHTS}" in done.err, done
    read = call("--offline", "inspect", NAME, "--json").document
    assert read["weights"]["unchecked"] == ["config.json", WEIGHTS]
    change(WEIGHTS)  # the Hub lists one
    done = call(*COMMANDS["convert"], "--force")
    assert (
        done.code == 3
        and f"{WEIGHTS} of {NAME}: the bytes in the Hub client's cache are not those" in done.err
    )


def test_the_record_names_a_target_that_was_damaged_in_the_cache(hub: LoopbackHub, tmp_path: Path) -> None:
    target = {"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 2_048, "model_type": "llama"}
    hub.add_repo("org/target", {"config.json": json.dumps(target).encode() + b"  "})
    assert call("inspect", NAME, "--target", "org/target").code == 0
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download("org/target", "config.json", endpoint=hub.endpoint)).resolve()
    path.write_bytes(path.read_bytes()[:-1] + b"\n")
    done = call("inspect", NAME, "--target", "org/target")
    assert done.code == 3 and "config.json of org/target" in done.err
