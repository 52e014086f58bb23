"""Files of a source, a target or a key that are no regular files, or have no end: one sentence, at once."""

import os
import shutil
from pathlib import Path

import pytest

from eaglectl.cli import run
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.files import hub
from eaglectl.files import source as sources
from eaglectl.files.source import MAX_WHOLE_FILE, FolderSource, PinnedSource
from eaglectl.files.target_files import MAX_READ_WHOLE, check_files
from eaglectl.publish import plan as upload_files
from eaglectl.publish.plan import freeze
from tests.builders import call, drafter_folder, sharded_folder
from tests.hostile.side_files import KINDS, no_more_than
from tests.hub import client_hub
from tests.tiny import TARGET, TINY

GIB = 1 << 30
SPECIAL = {
    **{kind: KINDS[kind] for kind in ("pipe", "device", "socket", "folder")},
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a process": lambda path: path.symlink_to("/proc/self/environ"),
}


def large(path: Path, size: int = 3 * GIB) -> None:
    """A sparse file."""
    with path.open("wb") as file:
        file.truncate(size)


def one_line(error: str) -> bool:
    return len(error.splitlines()) == 1 and error.startswith("eaglectl: ")


# what a command reads of a source


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "hf_quant_config.json", "eaglectl.json"]
)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_what_is_no_file_in_a_source_is_one_sentence(
    command: str, name: str, kind: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path)
    (folder / name).unlink(missing_ok=True)
    SPECIAL[kind](folder / name)
    more = ["-o", tmp_path / "out"] if command == "convert" else []
    with no_more_than(60):
        done = call(command, folder, *more)
    is_unseen = kind == "folder" and name in ("hf_quant_config.json", "eaglectl.json")
    assert is_unseen or (done.code == 3 and one_line(done.err)), done
    assert is_unseen or not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "link to itself"])
def test_an_index_that_is_no_file_is_one_sentence(kind: str, tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    SPECIAL[kind](folder / "model.safetensors.index.json")
    with no_more_than(60):
        done = call("inspect", folder)
    assert done.code == 3 and one_line(done.err)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "eaglectl.json"])
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_file_of_gigabytes_is_not_read(command: str, name: str, tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    large(folder / name)
    more = ["-o", tmp_path / "out"] if command == "convert" else []
    done = call(command, folder, *more)
    assert done.code == 3 and one_line(done.err), done
    assert f"{3 * GIB} bytes; at most {MAX_WHOLE_FILE} are read" in done.err


def test_validate_reports_a_file_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a small one, as validate searches all of every file for secrets
    monkeypatch.setattr(sources, "MAX_WHOLE_FILE", 4000)
    folder = drafter_folder(tmp_path)
    large(folder / "config.json", 4001)
    done = call("validate", folder)
    assert done.code == 1 and "EGL008" in done.out
    assert "4001 bytes; at most 4000 are read" in done.out.replace("\n", " ")


def test_a_header_of_100_mb_is_read_and_a_longer_one_is_not(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    large(folder / "model.safetensors", GIB)
    with (folder / "model.safetensors").open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
    done = call("inspect", folder)
    assert done.code == 3 and "is over the format's 100000000" in done.err


@pytest.mark.parametrize("kind", [FolderSource, PinnedSource])
def test_a_file_that_is_exchanged_after_a_look_at_it_is_looked_at_again(
    kind: type[FolderSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    really = os.open

    def exchange(*arguments: object, **named: object) -> int:
        path.unlink()
        os.mkfifo(path)
        return really(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(sources.os, "open", exchange)
    with no_more_than(60), pytest.raises(UnreadableError, match="is not a regular file"):
        kind(tmp_path).read("config.json")


@pytest.mark.parametrize("kind", [FolderSource, PinnedSource])
def test_the_limit_is_of_what_is_read_whole(
    kind: type[FolderSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    monkeypatch.setattr(sources, "MAX_WHOLE_FILE", 4)
    assert kind(tmp_path).read("file", 0, 5) == b"12345"
    assert kind(tmp_path).read("file", 1) == b"2345"
    with pytest.raises(UnreadableError, match="5 bytes; at most 4 are read"):
        kind(tmp_path).read("file")


def test_a_config_of_3_gb_on_the_hub_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafter_folder(tmp_path)
    large(folder / "config.json")
    with client_hub(monkeypatch, tmp_path / "home") as hub:
        hub.add_repo("org/drafter", {file.name: file for file in folder.iterdir()})
        for arguments in (["inspect"], ["convert", "-o", tmp_path / "out"], ["smoke", "--target", TARGET]):
            done = call(arguments[0], "org/drafter", *arguments[1:])
            assert done.code == 3 and one_line(done.err), done
            assert "3221225472 bytes" in done.err
        assert not [request for request in hub.requests if "config.json" in request.path]


# what a loader opens of a target


@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself", "socket"])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    ],
)
@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_what_is_no_file_in_a_target_is_one_sentence(
    command: str, name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    (target / name).unlink(missing_ok=True)
    SPECIAL[kind](target / name)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a prompt\n", encoding="utf-8")
    more = ["--run-in", "reference"] if command == "smoke" else ["-o", str(tmp_path / "out")]
    options = ["--target", str(target), "--prompts", str(prompts), "--device", "cpu"]
    with no_more_than(60):
        assert run([command, str(TINY / "eagle3"), *options, *more]) == 3
    assert one_line(capsys.readouterr().err)


def test_a_tokenizer_of_gigabytes_is_not_loaded_and_weights_may_be_large(tmp_path: Path) -> None:
    large(tmp_path / "model.safetensors")
    large(tmp_path / "tokenizer.json", MAX_READ_WHOLE)
    check_files(tmp_path)
    large(tmp_path / "tokenizer.json", MAX_READ_WHOLE + 1)
    with pytest.raises(UnreadableError, match=r"tokenizer.json has 268435457 bytes"):
        check_files(tmp_path)


def test_a_target_that_is_no_decoder_could_not_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    target = tmp_path / "target"
    config = transformers.BertConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=8,
        num_attention_heads=2,
        intermediate_size=32,
        is_decoder=True,
    )
    shutil.copytree(TARGET, target)
    (target / "model.safetensors").unlink()
    transformers.BertLMHeadModel(config).save_pretrained(target)
    options = ["--target", str(target), "--run-in", "reference", "--device", "cpu", "--max-tokens", "2"]
    assert run(["smoke", str(TINY / "eagle3"), *options]) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert "BertLMHeadModel" in error and "give the language model" in error


# what changes between two looks


def test_a_file_that_was_rewritten_with_its_size_and_time_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_files, "MAX_KEPT", 1000)
    folder = drafter_folder(tmp_path)
    frozen, _, _ = freeze(FolderSource(folder))
    frozen.check_unchanged()
    path = folder / "model.safetensors"
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(RefusedError, match=r"model.safetensors changed after the files were hashed"):
        frozen.check_unchanged()
    with pytest.raises(RefusedError, match=r"model.safetensors changed after the files were hashed"):
        frozen.read("model.safetensors", 0, 8)


def test_a_revision_is_noted_in_the_cache_by_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshots/abc"
    snapshot.mkdir(parents=True)
    hub.remember(snapshot, "main", "abc")
    ref = tmp_path / "refs/main"
    assert ref.read_text(encoding="utf-8") == "abc"
    really = Path.write_bytes

    def half(path: Path, data: bytes) -> None:
        really(path, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    hub.remember(snapshot, "main", "def")
    assert ref.read_text(encoding="utf-8") == "abc"
    assert list(ref.parent.iterdir()) == [ref]
