"""Files of a source, a target, an option or a key that are no regular files, or have no end: one sentence."""

import faulthandler
import gzip
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files import source as sources
from eaglectl.files.budgets import MAX_CONFIG
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.files import decoded, open_regular, read_small_file
from eaglectl.files.layout import SUMS
from eaglectl.files.source import MAX_WHOLE_FILE, FolderSource, PinnedSource
from eaglectl.formats.reader import MAX_TENSORS
from eaglectl.publish import upload as upload_files
from eaglectl.publish.upload import freeze
from eaglectl.run import prompts
from eaglectl.target.files import MAX_READ_WHOLE, check_files
from tests.builders import Outcome, call, drafter_folder, is_one_line, sharded_folder, target_of
from tests.hub import client_hub
from tests.tiny import TARGET, TINY

GIB = 1 << 30
DRAFTER = TINY / "eagle3"


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """End the process with a trace where something blocks."""
    faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def unix_socket(path: Path) -> None:
    # the name of a socket is short, wherever the tests run
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": unix_socket,
    "link to itself": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "link to a process": lambda path: path.symlink_to("/proc/self/environ"),
    "nothing": lambda path: None,
}


def large(path: Path, size: int = 3 * GIB) -> None:
    """A sparse file."""
    with path.open("wb") as file:
        file.truncate(size)


def run(command: str, source: Path | str, folder: Path) -> Outcome:
    """The command on a source, with the one option that `convert` needs."""
    return call(command, source, *(["-o", folder / "out"] if command == "convert" else []))


# what a command reads of a source


@pytest.mark.fast(15)
@pytest.mark.parametrize("kind", list(KINDS)[:6])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "hf_quant_config.json",
        "eaglectl.json",
    ],
)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_what_is_no_file_in_a_source_is_one_sentence(
    command: str, name: str, kind: str, tmp_path: Path
) -> None:
    folder = sharded_folder(tmp_path) if name.endswith("index.json") else drafter_folder(tmp_path)
    (folder / name).unlink(missing_ok=True)
    KINDS[kind](folder / name)
    done = run(command, folder, tmp_path)
    is_unseen = kind == "folder" and name in ("hf_quant_config.json", "eaglectl.json")
    assert is_unseen or (done.code == 3 and is_one_line(done)), done
    assert is_unseen or not (tmp_path / "out").exists()


# links for which the system's answer is an error, and not that nothing is there
UNFOLLOWED = {"a long name": "y" * 300, "a long name below": f"below/{'y' * 300}"}


@pytest.mark.fast(6)
@pytest.mark.parametrize("link", UNFOLLOWED)
@pytest.mark.parametrize(
    "name", ["config.json", "README.md", "notes", "model", "step_5", "step_5/config.json"]
)
def test_a_link_that_cannot_be_followed_is_no_fault_wherever_it_lies(
    name: str, link: str, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    (parent / "below").mkdir(parents=True)
    source, target = drafter_folder(parent), target_of(parent / "target")
    for folder in (source, target):
        (folder / "below").mkdir()
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(UNFOLLOWED[link])
    (source / SUMS).write_text(f"{'0' * 64}  {name}\n")
    for words in (
        ("inspect", source),
        ("inspect", parent),
        ("inspect", source, "--target", parent),
        ("validate", source, "--target", target),
        ("diff", source, source),
        ("convert", source, "-o", tmp_path / "out"),
        ("upload", source, "o/n", "--dry-run"),
    ):
        assert call(*words).code in (0, 1, 2, 3), words
    done = call("verify", source)
    assert done.code == 1 and f"{name} is a symbolic link" in " ".join(done.out.split())


@pytest.mark.parametrize("name", ["eaglectl.toml", "pyproject.toml"])
def test_a_policy_that_cannot_be_reached_is_not_passed_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).symlink_to("y" * 300)
    done = call("validate", DRAFTER)
    assert done.code == 3 and is_one_line(done) and f"{name}: File name too long" in done.err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "eaglectl.json"])
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_file_of_gigabytes_is_not_read(command: str, name: str, tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    large(folder / name)
    done = run(command, folder, tmp_path)
    assert done.code == 3 and is_one_line(done), done
    largest = MAX_CONFIG if name == "config.json" else MAX_WHOLE_FILE
    assert re.search(rf"{3 * GIB} bytes; the limit for [a-z ]+ is {largest}\b", done.err)


@pytest.mark.parametrize("conversions", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_record_of_the_most_tensors_is_read_after_many_conversions(
    conversions: int, tmp_path: Path
) -> None:
    file, entries = tmp_path / "out/eaglectl.json", []
    assert run("convert", drafter_folder(tmp_path), tmp_path).code == 0
    record = json.loads(file.read_bytes())
    for number in range(MAX_TENSORS):
        name = f"layers.{number}.self_attn.a_module_of_a_long_name.q_proj.weight"
        entries += [{"name": name, "action": "renamed", "from": ["model." + name]}]
    digests = {
        "files": {"model.safetensors": {"size": 1, "tensors": {entry["name"]: "a" * 64 for entry in entries}}}
    }
    earlier = record | {"tensors": entries, "source": digests, "output": digests}
    for _ in range(conversions):
        record = record | {"previous": earlier}
        earlier = earlier | {"previous": record["previous"]}
    file.write_text(json.dumps(record, indent=2))
    assert file.stat().st_size > conversions * 2_000_000
    done = call("verify", tmp_path / "out")
    assert done.code == 0, done
    # and it is evidence, as its own smaller one was
    assert read_checkpoint(FolderSource(tmp_path / "out")).earlier is not None


def test_validate_reports_a_file_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a small one, as validate searches all of every file for secrets
    monkeypatch.setattr(sources, "MAX_WHOLE_FILE", 4000)
    folder = drafter_folder(tmp_path)
    large(folder / "config.json", 4001)
    done = call("validate", folder)
    assert done.code == 1 and "EGL008" in done.out
    assert re.search(r"4001 bytes;\s+the\s+limit\s+for\s+[a-z\s]+\s+is\s+4000", done.out)


def test_a_header_of_more_than_100_mb_is_not_read(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    large(folder / "model.safetensors", GIB)
    with (folder / "model.safetensors").open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
    done = call("inspect", folder)
    assert done.code == 3 and "is over the format's 100000000" in done.err


def test_a_config_of_3_gb_on_the_hub_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafter_folder(tmp_path)
    large(folder / "config.json")
    with client_hub(monkeypatch, tmp_path / "home") as hub:
        hub.add_repo("org/drafter", {file.name: file for file in folder.iterdir()})
        for arguments in (["inspect"], ["convert", "-o", tmp_path / "out"], ["smoke", "--target", TARGET]):
            done = call(arguments[0], "org/drafter", *arguments[1:])
            assert done.code == 3 and is_one_line(done), done
            assert "3221225472 bytes" in done.err
        assert not [request for request in hub.requests if "config.json" in request.path]


# what a loader opens of a target


@pytest.mark.fast(7)
@pytest.mark.parametrize("kind", list(KINDS)[:4])
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
    command: str, name: str, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    target, texts = tmp_path / "target", tmp_path / "prompts.txt"
    shutil.copytree(TARGET, target)
    (target / name).unlink(missing_ok=True)
    KINDS[kind](target / name)
    texts.write_text("a prompt\n")
    more = ("--run-in", "reference") if command == "smoke" else ("-o", tmp_path / "out")
    done = call(command, DRAFTER, "--target", target, "--prompts", texts, "--device", "cpu", *more)
    assert done.code == 3 and is_one_line(done), done


def test_a_tokenizer_of_gigabytes_is_not_loaded_and_weights_may_be_large(tmp_path: Path) -> None:
    large(tmp_path / "model.safetensors")
    large(tmp_path / "tokenizer.json", MAX_READ_WHOLE)
    check_files(tmp_path)
    large(tmp_path / "tokenizer.json", MAX_READ_WHOLE + 1)
    with pytest.raises(UnreadableError, match=r"tokenizer.json has 268435457 bytes"):
        check_files(tmp_path)


# what an option names

SMOKE = ("smoke", DRAFTER, "--target", TARGET)
CALIBRATE = ("calibrate", DRAFTER, "--target", TARGET, "-o", "OUT")
UPGRADE = ("convert", DRAFTER, "-o", "OUT", "--to", "3.1", "--target", TARGET)
PRUNE = ("convert", DRAFTER, "-o", "OUT", "--draft-vocab", "8")
UPLOAD = ("upload", DRAFTER, "a/b", "--dry-run")
OPTIONS: tuple[tuple[int, tuple[str | Path, ...]], ...] = (
    (3, (*SMOKE, "--prompts", "FILE")),
    (3, (*CALIBRATE, "--prompts", "FILE")),
    (3, (*UPGRADE, "--prompts", "FILE")),
    # the name of the file in a folder that it takes for one of its own
    (3, (*UPGRADE, "--calibration", "FOLDER")),
    (3, (*PRUNE, "--token-counts", "FILE")),
    (2, ("validate", DRAFTER, "--policy", "FILE")),
    (2, (*UPLOAD, "--policy", "FILE")),
    (3, (*UPLOAD, "--smoke", "FILE")),
)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "nothing"])
@pytest.mark.parametrize(
    ("code", "arguments"), OPTIONS, ids=[f"{words[0]} {words[-2]}" for _, words in OPTIONS]
)
def test_what_is_no_file_at_an_option_is_one_sentence_that_names_it(
    code: int,
    arguments: tuple[str | Path, ...],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "folder/statistics.json"
    file.parent.mkdir()
    KINDS[kind](file)
    places = {"FILE": file, "FOLDER": file.parent, "OUT": tmp_path / "out"}
    done = call(*(places.get(str(argument), argument) for argument in arguments))
    assert done.code == code and is_one_line(done), done
    # a socket cannot even be opened
    assert (f"{file} is a {kind}" if kind in ("pipe", "device", "folder") else str(file)) in done.err


def test_a_file_over_its_limit_is_not_read_and_its_text_is_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_small_file(file, 5) == b"12345"
    os.truncate(file, 1 << 40)
    with pytest.raises(UsageError, match=r"--policy .*more than 4 bytes"):
        read_small_file(file, 4, "--policy", UsageError)
    with pytest.raises(UnreadableError, match=r"null (byte|character)"):
        read_small_file(Path("a\0b"), 5)
    with pytest.raises(UnreadableError, match="byte 0 is not UTF-8"):
        decoded(file, "a".encode("utf-16"))


KEPT = {
    **{kind: KINDS[kind] for kind in ("pipe", "folder")},
    "1 TB": lambda path: large(path, 1 << 40),
    "empty": Path.touch,
    "truncated": lambda path: path.write_bytes(gzip.compress(b"{}" * 100)[:-8]),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_file_in_the_cache_that_is_not_the_set_of_prompts_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    KEPT[kind](tmp_path / "set")
    monkeypatch.setattr(prompts, "is_offline", lambda: True)
    chosen = prompts.prompt_sets().sets["mt-bench"]
    monkeypatch.setattr(type(chosen), "cached", property(lambda _: tmp_path / "set"))
    with pytest.raises(UnreadableError, match="this call is offline"):
        prompts.lines_of("mt-bench")


# what changes between two looks


@pytest.mark.parametrize(
    "read",
    [
        lambda path: FolderSource(path.parent).read(path.name),
        lambda path: PinnedSource(path.parent).read(path.name),
        open_regular,
    ],
    ids=["source", "pinned source", "option"],
)
def test_a_file_that_is_exchanged_after_a_look_at_it_is_looked_at_again(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really = tmp_path / "config.json", os.open
    path.write_text("{}")

    def exchange(*arguments: object, **named: object) -> int:
        path.unlink()
        os.mkfifo(path)
        return really(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(UnreadableError, match=r"is not a regular file|is a pipe"):
        read(path)


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
