"""Files in the Hub client's cache are used with the bytes that were downloaded, or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglectl.files import source
from tests.builders import call, drafter_folder, floats
from tests.hub import LoopbackHub, client_hub

pytest.importorskip("huggingface_hub")
NAME = "org/drafter"
WEIGHTS = "model.safetensors"
SNAPSHOT = "the folder in the cache"
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", NAME, "-v"),
    "validate": ("validate", NAME),
    "convert": ("convert", NAME, "--for", "sglang", "-o", "out"),
    "diff": ("diff", NAME, "made"),
    "inspect of a path": ("inspect", SNAPSHOT, "-v"),
    "validate of a path": ("validate", SNAPSHOT),
    "upload": ("upload", SNAPSHOT, "org/new", "--dry-run"),
    "smoke": ("smoke", SNAPSHOT, "--target", "made"),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with a drafter that is in the cache; the weights count as a large file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "COMPARED", {})
    with client_hub(monkeypatch, tmp_path) as running:
        tensors = {"embed_tokens.weight": floats("big", 2_048, 16)}
        folder = drafter_folder(tmp_path, "made", tensors=tensors, config={"vocab_size": 2_048})
        monkeypatch.setattr(source, "MAX_WHOLE_FILE", (folder / WEIGHTS).stat().st_size - 1)
        running.add_repo(NAME, folder)
        assert call("convert", NAME, "--for", "sglang", "-o", tmp_path / "first").code == 0
        source.COMPARED.clear()
        yield running


def snapshot() -> Path:
    return next(Path("cache").glob("models--org--drafter/snapshots/*")).resolve()


def change(name: str) -> Path:
    """Another last byte of a cached file, and where it is."""
    path = (snapshot() / name).resolve()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return path


@pytest.mark.fast(10)
@pytest.mark.parametrize("how", [(), ("--offline",)], ids=["online", "offline"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_changed_bytes_in_the_cache_are_not_used(
    hub: LoopbackHub, name: str, command: str, how: tuple[str, ...]
) -> None:
    path = change(name)
    arguments = [str(snapshot()) if argument == SNAPSHOT else argument for argument in COMMANDS[command]]
    done = call(*how, *arguments)
    if command.startswith("inspect") and name == WEIGHTS:  # whose header alone is read
        assert done.code == 0 and "no digest covers" in " ".join(done.out.split())
        return
    shown = "".join((done.out + done.err).split())
    assert done.code == 3 and name in shown and str(path) in shown, done
    assert not Path("out").exists()
    if NAME in arguments:
        assert f"rm{path}`" in shown
        path.unlink()
        assert call(*arguments).code == 0


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_verify_says_what_differs_in_a_snapshot(hub: LoopbackHub, name: str) -> None:
    change(name)
    done = call("verify", snapshot(), "--against", NAME)
    assert done.code == 1 and name in done.out, done


@pytest.mark.parametrize("command", ["validate", "diff"])
def test_headers_only_names_the_weights_that_were_not_compared(hub: LoopbackHub, command: str) -> None:
    change(WEIGHTS)
    sources = [NAME] if command == "validate" else [NAME, "made"]
    done = call(command, *sources, "--headers-only")
    words = f"headers of {WEIGHTS} were read from the Hub or its cache, and no digest covers them"
    assert words in done.err + done.out
    plain = call(command, *["made"] * len(sources), "--headers-only")
    assert "no digest covers" not in plain.err + plain.out


def test_a_cache_without_digests_is_told(hub: LoopbackHub) -> None:
    """A system without links has the files themselves in the snapshot."""
    for path in snapshot().iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    done = call("--offline", *COMMANDS["convert"])
    assert done.code == 0 and f"has a digest of .gitattributes, config.json, {WEIGHTS}" in done.err, done
    read = call("--offline", "inspect", NAME, "--json").document
    assert read["weights"]["unchecked"] == ["config.json", WEIGHTS]
    change(WEIGHTS)  # the Hub lists one
    done = call(*COMMANDS["convert"], "--force")
    assert done.code == 3 and f"{WEIGHTS} of {NAME} in the Hub client's cache does not match" in done.err


def test_the_record_names_a_target_that_was_damaged_in_the_cache(hub: LoopbackHub, tmp_path: Path) -> None:
    target = {"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 2_048, "model_type": "llama"}
    hub.add_repo("org/target", {"config.json": json.dumps(target).encode() + b"  "})
    assert call("inspect", NAME, "--target", "org/target").code == 0
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download("org/target", "config.json", endpoint=hub.endpoint)).resolve()
    path.write_bytes(path.read_bytes()[:-1] + b"\n")
    done = call("inspect", NAME, "--target", "org/target")
    assert done.code == 3 and "config.json of org/target" in done.err
