"""Writing all or nothing: a fault at any point leaves the old or the new state, and the source as it was."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eaglectl.files import writer
from tests.builders import (
    HIDDEN,
    call,
    contents,
    converted_folder,
    drafter_folder,
    floats,
    is_one_line,
    read_safetensors,
    refusal,
    sharded_folder,
)

WRITTEN = ["README.md", "config.json", "eaglectl.json", "model.safetensors"]


def big_drafter(parent: Path) -> Path:
    """A drafter whose embedding (128 kB) is copied by the system and not through memory."""
    embedding = floats("embedding", 4096, HIDDEN)
    return drafter_folder(parent, config={"vocab_size": 4096}, tensors={"embed_tokens.weight": embedding})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException, at: int = 0, times: int = 1000
) -> Iterator[None]:
    """os.`function`, or the writer's `rename_new`, raises `error` from call `at` on, `times` times."""
    owner = writer if function == "rename_new" else os
    real, calls = getattr(owner, function), 0

    def fail(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if at < calls <= at + times:
            raise error
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail)
        yield


# what is written


@pytest.mark.fast(2)
@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM])
def test_a_system_without_copy_file_range_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    source = big_drafter(tmp_path)
    with failing(monkeypatch, "copy_file_range", OSError(number, os.strerror(number))):
        assert call("convert", source, "-o", tmp_path / "out").code == 0
    assert read_safetensors(tmp_path / "out/model.safetensors") == read_safetensors(
        source / "model.safetensors"
    )


@pytest.mark.parametrize(("mask", "layout"), [(0o022, "vllm"), (0o077, "torchspec"), (0o002, "vllm")])
def test_modes_follow_the_umask(tmp_path: Path, mask: int, layout: str) -> None:
    source = sharded_folder(tmp_path)
    before = os.umask(mask)
    try:
        assert call("convert", source, "-o", tmp_path / "new/out", "--for", layout).code == 0
    finally:
        os.umask(before)
    written = [tmp_path / "new", tmp_path / "new/out", *(tmp_path / "new/out").iterdir()]
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in written}
    assert modes == {path.name: oct((0o777 if path.is_dir() else 0o666) & ~mask) for path in written}


@pytest.mark.parametrize("option", ["--dry-run", "--json", "-v"])
def test_a_link_is_the_source_and_said_to_be(tmp_path: Path, option: str) -> None:
    source = drafter_folder(tmp_path)
    outcome = call("convert", source, "-o", tmp_path / "out", "--link", option)
    assert outcome.code == 0
    if option != "--dry-run":
        assert (tmp_path / "out/model.safetensors").samefile(source / "model.safetensors")
    text = "--link: model.safetensors (the source's model.safetensors) is one file under two names"
    assert text in " ".join(outcome.out.split())
    if option == "--json":
        levels = [note["level"] for note in outcome.document["plan"]["notes"] if note["about"] == "link"]
        assert levels == ["warning"]


def test_a_system_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_folder(tmp_path)
    with failing(monkeypatch, "link", PermissionError(errno.EPERM, "Operation not permitted")):
        assert call("convert", source, "-o", tmp_path / "out", "--link").code == 0
    assert not (tmp_path / "out/model.safetensors").samefile(source / "model.safetensors")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


# where it may be written


@pytest.mark.parametrize(
    "make", [drafter_folder, Path.touch, Path.mkdir, lambda path: path.symlink_to("gone")]
)
def test_what_is_there_is_not_replaced_unasked(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "out")
    before, source = contents(tmp_path), drafter_folder(tmp_path)
    message = refusal(2, "convert", source, "-o", tmp_path / "out")
    assert f"{tmp_path / 'out'} exists already" in message and "--force" in message
    assert before.items() <= contents(tmp_path).items()


def test_force_replaces_a_whole_checkpoint_folder(tmp_path: Path) -> None:
    out = converted_folder(tmp_path, "old")
    (out / "SHA256SUMS").write_text("")
    assert call("convert", drafter_folder(tmp_path), "-o", out, "--force").code == 0
    assert names(out) == WRITTEN
    assert names(tmp_path) == ["drafter", "old"]


def test_a_rename_that_fails_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = converted_folder(tmp_path, "old")
    before = contents(out)
    with failing(monkeypatch, "rename_new", OSError(errno.EIO, "Input/output error"), at=1, times=1):
        assert call("convert", drafter_folder(tmp_path), "-o", out, "--force").code == 3
    assert contents(out) == before and names(tmp_path) == ["drafter", "old"]


def holding(name: str, text: str = "years of work") -> Callable[[Path], None]:
    """A folder with this file."""

    def make(out: Path) -> None:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)

    return make


def target_at(out: Path) -> None:
    (drafter_folder(out.parent, out.name, card="my notes") / "tokenizer.json").write_text("{}")


def recorded(text: str) -> Callable[[Path], object]:
    return lambda out: (drafter_folder(out.parent, out.name) / "eaglectl.json").write_text(text)


def beside(name: str) -> Callable[[Path], object]:
    """A conversion, with something of the user's in its folder."""

    def make(out: Path) -> None:
        converted_folder(out.parent, out.name)
        (out / name).mkdir() if name == "sub" else (out / name).write_text("mine")

    return make


OTHERS = "is not only an output of `convert`"
RECORDS = ("", "[]", "{}", '{"schema": "eaglectl/provenance/1"}', '{"output": []}')
PUT_THERE = ("notes.txt", "tokenizer.json", "extra.safetensors", "README.md.old", "sub")
KEPT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a thesis": (holding("thesis.tex"), OTHERS),
    "a module": (holding("model.py"), OTHERS),
    "notes below": (holding("sub/notes.txt"), OTHERS),
    "a project": (holding("config.json", '{"name": "a web application"}'), OTHERS),
    "a target": (target_at, "model.safetensors and 1 more, and no eaglectl.json"),
    "a file": (lambda out: out.write_text("kept"), OTHERS),
    "a link": (lambda out: out.symlink_to(converted_folder(out.parent, "real")), OTHERS),
    **{f"a record {text}": (recorded(text), "config.json") for text in RECORDS},
    **{name: (beside(name), f"(it has {name}, not listed in eaglectl.json)") for name in PUT_THERE},
}


@pytest.mark.fast(12)
@pytest.mark.parametrize("case", KEPT)
def test_force_replaces_nothing_but_what_convert_wrote(case: str, tmp_path: Path) -> None:
    make, words = KEPT[case]
    source = drafter_folder(tmp_path)
    make(tmp_path / "out")
    before = contents(tmp_path)
    assert words in refusal(2, "convert", source, "-o", tmp_path / "out", "--force")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize(
    ("given", "place"),
    [
        *(("drafter", f"drafter/{place}") for place in (".", "..", "inside/deeper", "../drafter/./inside")),
        ("drafter", "link/out"),
        ("link", "drafter/out"),
        ("drafter/model.safetensors", "drafter"),
    ],
)
def test_output_and_source_must_lie_apart(
    tmp_path: Path, given: str, place: str, force: tuple[str, ...]
) -> None:
    parent = tmp_path / "parent"
    drafter_folder(parent)
    (parent / "link").symlink_to(parent / "drafter")
    before = contents(tmp_path)
    if force or place != "drafter":  # which is there already
        assert "overlap, and eaglectl never overwrites its input" in refusal(
            2, "convert", parent / given, "-o", parent / place, *force
        )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("option", ["--target", "--trained-target"])
def test_a_target_is_not_replaced_by_its_drafter(tmp_path: Path, option: str) -> None:
    target = converted_folder(tmp_path, "target", config={"num_hidden_layers": 8})
    before, words = contents(target), ("-o", target, "--force", option, target, "--target-rotation", "q")
    assert "overlap, and eaglectl never overwrites its input" in refusal(
        2, "convert", drafter_folder(tmp_path), *words
    )
    assert contents(target) == before


@pytest.mark.parametrize("place", ["file", "file/out", "file/deeper/out", "x" * 300, "loop/out"])
def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    code = 2 if place in ("file", "loop/out") else 3
    assert str(tmp_path) in refusal(code, "convert", drafter_folder(tmp_path), "-o", tmp_path / place)
    assert names(tmp_path) == ["drafter", "file", "loop"]


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_current_folder_as_output_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    if not is_empty:
        (here / "config.json").write_text("{}")
    monkeypatch.chdir(here)
    outcome = call("convert", drafter_folder(tmp_path), "-o", ".", "--force")
    assert outcome.code == 0 or is_one_line(outcome)
    assert names(tmp_path) == ["drafter", "here"]


# faults on the way


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CALLS = ("write", "fsync", "copy_file_range", "mkdir", "rename_new")


@pytest.mark.fast(12)
@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("number", [*FULL, errno.EIO, errno.EROFS, errno.ESTALE, None])
def test_a_failing_disk_leaves_nothing_and_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int | None
) -> None:
    source, out = big_drafter(tmp_path), tmp_path / "new" / "out"
    before = contents(tmp_path)
    error = KeyboardInterrupt() if number is None else OSError(number, os.strerror(number))
    with failing(monkeypatch, function, error):
        outcome = call("convert", source, "-o", out)
    assert outcome.code == (130 if number is None else 3) and is_one_line(outcome)
    is_full = number in FULL and function != "mkdir"
    words = "interrupted" if number is None else "no space left for" if is_full else os.strerror(number)
    assert words in outcome.err
    assert contents(tmp_path) == before


@pytest.mark.fast(2)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_fault_at_any_sync_leaves_the_old_folder_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_forced: bool
) -> None:
    source, original = drafter_folder(tmp_path), contents(tmp_path / "drafter")
    assert call("convert", source, "-o", tmp_path / "new").code == 0
    new = contents(tmp_path / "new")
    codes = []
    for at in range(20):
        out = tmp_path / f"case{at}/out"
        old = contents(converted_folder(out.parent, "out", config={"rope_theta": 7.0})) if is_forced else {}
        out.parent.mkdir(exist_ok=True)
        with failing(monkeypatch, "fsync", error, at=at):
            codes.append(call("convert", source, "-o", out, "--force").code)
        assert contents(out) in (old, new)
        assert set(names(out.parent)) <= {"out"}
        if codes[-1] == 0:
            break
    assert len(codes) > 5
    assert codes[-1] == 0
    assert set(codes[:-1]) == {3 if isinstance(error, OSError) else 130}
    assert contents(source) == original
