"""Writing all or nothing: a fault at any point leaves the old or the new state, and the source as it was."""

import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files import writer
from eaglectl.files.writer import Copy, Folder, check_apart
from eaglectl.operations.converting import ConvertOptions
from tests.builders import (
    HIDDEN,
    call,
    contents,
    converted_folder,
    drafter_folder,
    drafter_tensors,
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


@st.composite
def sequences(draw: st.DrawFn) -> list[bytes | tuple[int, int]]:
    ranges = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: (min(pair), max(pair)))
    return draw(st.lists(st.binary(max_size=20) | ranges, max_size=8))


@given(sequences(), st.integers(1, 50), st.integers(0, 50))
@settings(deadline=None, max_examples=60)
def test_a_file_is_its_parts_in_order(parts: list[bytes | tuple[int, int]], chunk: int, small: int) -> None:
    data = bytes(range(256)) + bytes(44)
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch.object(writer, "CHUNK", chunk),
        mock.patch.object(writer, "SMALL", small),
    ):
        source = Path(scratch, "source")
        source.write_bytes(data)
        told: list[int] = []
        with Folder(Path(scratch, "out"), force=False) as folder:
            folder.write("f", (p if isinstance(p, bytes) else Copy(source, *p) for p in parts), told.append)
            folder.publish()
        expected = [p if isinstance(p, bytes) else data[p[0] : p[1]] for p in parts]
        assert Path(scratch, "out/f").read_bytes() == b"".join(expected)
        assert told == [len(part) for part in expected]


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


def test_a_short_copy_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = big_drafter(tmp_path)
    real: Callable[..., int] = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda s, t, size, at: real(s, t, min(size, 777), at))
    assert call("convert", source, "-o", tmp_path / "out").code == 0
    assert read_safetensors(tmp_path / "out/model.safetensors") == read_safetensors(
        source / "model.safetensors"
    )


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_folder(tmp_path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda target, data: real(target, bytes(data)[:7]))
    with Folder(tmp_path / "out", force=False) as folder:
        folder.write("f", [Copy(source / "model.safetensors", 3, 1003), b"0123456789"])
        folder.publish()
    assert (tmp_path / "out/f").read_bytes() == (source / "model.safetensors").read_bytes()[
        3:1003
    ] + b"0123456789"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
@pytest.mark.parametrize("layout", ["vllm", "torchspec"])
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


def test_a_folder_left_without_publishing_leaves_nothing(tmp_path: Path) -> None:
    with Folder(tmp_path / "out", force=False) as folder:
        folder.write("f", [b"x"])
        assert names(tmp_path) == [folder.work.parent.name]
    assert names(tmp_path) == []


def test_a_linked_file_is_the_same_file(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    assert call("convert", source, "-o", tmp_path / "out", "--link").code == 0
    assert (tmp_path / "out/model.safetensors").samefile(source / "model.safetensors")


@pytest.mark.parametrize("option", ["--dry-run", "--json", "-v", "--no-color"])
def test_a_link_is_said_to_be_the_source(tmp_path: Path, option: str) -> None:
    source = drafter_folder(tmp_path)
    outcome = call("convert", source, "-o", tmp_path / "out", "--link", option)
    assert outcome.code == 0
    text = "--link: model.safetensors (the source's model.safetensors) is one file under two names"
    if option == "--json":
        notes = [note for note in outcome.document["plan"]["notes"] if note["about"] == "link"]
        assert [note["level"] for note in notes] == ["warning"]
        assert text in notes[0]["text"]
    else:
        assert text in " ".join(outcome.out.split())


def test_nothing_is_said_of_links_where_none_is_made(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    for out, options in {"copy": (), "other": ("--link", "--max-shard-size", "5KB")}.items():
        assert "--link" not in call("convert", source, "-o", tmp_path / out, *options).out


def test_linked_files_keep_their_permissions(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    mode = (source / "model.safetensors").stat().st_mode
    assert call("convert", source, "-o", tmp_path / "out", "--link").code == 0
    assert (source / "model.safetensors").stat().st_mode == mode


def test_a_system_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_folder(tmp_path)
    with failing(monkeypatch, "link", PermissionError(errno.EPERM, "Operation not permitted")):
        assert call("convert", source, "-o", tmp_path / "out", "--link").code == 0
    assert not (tmp_path / "out/model.safetensors").samefile(source / "model.safetensors")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


# where it may be written


def test_an_existing_folder_is_not_replaced_unasked(tmp_path: Path) -> None:
    out = drafter_folder(tmp_path, "old")
    before = contents(out)
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", out)
    assert f"{out} is there already" in message
    assert "--force" in message
    assert contents(out) == before


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("gone")])
def test_anything_in_the_way_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "out")
    assert f"{tmp_path / 'out'} is there already" in refusal(
        2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out"
    )


def test_force_replaces_a_whole_checkpoint_folder(tmp_path: Path) -> None:
    out = converted_folder(tmp_path, "old")
    (out / "SHA256SUMS").write_text("")
    assert call("convert", drafter_folder(tmp_path), "-o", out, "--force").code == 0
    assert names(out) == WRITTEN
    assert names(tmp_path) == ["drafter", "old"]


def test_force_replaces_what_convert_wrote_before(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    assert call("convert", source, "-o", out).code == 0
    first = contents(out)
    assert call("convert", source, "-o", out, "--force").code == 0
    assert contents(out) == first


def test_a_rename_that_fails_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = converted_folder(tmp_path, "old")
    before = contents(out)
    with failing(monkeypatch, "rename_new", OSError(errno.EIO, "Input/output error"), at=1, times=1):
        assert call("convert", drafter_folder(tmp_path), "-o", out, "--force").code == 3
    assert contents(out) == before
    assert names(tmp_path) == ["drafter", "old"]


@pytest.mark.parametrize("kept", ["thesis.tex", "model.py", "sub/notes.txt"])
def test_force_does_not_replace_a_folder_that_is_no_checkpoint(tmp_path: Path, kept: str) -> None:
    out = tmp_path / "work"
    (out / kept).parent.mkdir(parents=True)
    (out / kept).write_text("years of work")
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", out, "--force")
    assert f"{out} is not what `convert` wrote alone" in message
    assert (out / kept).read_text() == "years of work"


def test_force_does_not_replace_a_project_that_has_a_config_json(tmp_path: Path) -> None:
    out = tmp_path / "project"
    (out / "src").mkdir(parents=True)
    (out / "config.json").write_text('{"name": "a web application"}')
    (out / "src/main.c").write_text("years of work")
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", out, "--force")
    assert f"{out} is not what `convert` wrote alone" in message


def test_force_does_not_replace_a_target(tmp_path: Path) -> None:
    target = drafter_folder(tmp_path, "target", card="my notes")
    (target / "tokenizer.json").write_text("{}")
    before = contents(target)
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", target, "--force")
    assert "README.md, config.json, model.safetensors and 1 more there, without eaglectl.json" in message
    assert "give another -o, or move what is there away" in message
    assert contents(target) == before


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"schema": "eaglectl/provenance/1"}', '{"output": []}'])
def test_force_needs_a_record_that_lists_the_files(tmp_path: Path, record: str) -> None:
    out = drafter_folder(tmp_path, "out")
    (out / "eaglectl.json").write_text(record)
    assert "config.json" in refusal(2, "convert", drafter_folder(tmp_path), "-o", out, "--force")
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer.json", "extra.safetensors", "README.md.old", "sub"])
def test_force_keeps_what_was_put_beside_a_conversion(tmp_path: Path, name: str) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    assert call("convert", source, "-o", out).code == 0
    (out / name).mkdir() if name == "sub" else (out / name).write_text("mine")
    message = refusal(2, "convert", source, "-o", out, "--force")
    assert f"({name} there, not listed in eaglectl.json)" in message
    assert (out / name).exists() and (out / "model.safetensors").is_file()


def test_force_does_not_follow_a_link_to_a_checkpoint(tmp_path: Path) -> None:
    real = converted_folder(tmp_path, "real")
    (tmp_path / "out").symlink_to(real)
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", "--force")
    assert "is not what `convert` wrote alone" in message
    assert (tmp_path / "out").is_symlink()


def test_force_does_not_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("kept")
    assert "is not what `convert` wrote alone" in refusal(
        2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", "--force"
    )
    assert (tmp_path / "out").read_text() == "kept"


def test_the_target_is_not_replaced_by_its_drafter(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    (target / "model.safetensors").write_text("an expensive model")
    before = contents(target)
    refusal(2, "convert", drafter_folder(tmp_path), "-o", target, "--force", "--target", target)
    assert contents(target) == before


@pytest.mark.parametrize("place", [".", "..", "inside", "inside/deeper", "../drafter", "../drafter/./inside"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_output_and_source_must_lie_apart(tmp_path: Path, place: str, force: tuple[str, ...]) -> None:
    source = drafter_folder(tmp_path / "parent")
    before = contents(tmp_path)
    message = refusal(2, "convert", source, "-o", source / place, *force)
    assert "lie in one another" in message
    assert contents(tmp_path) == before


def test_a_link_does_not_hide_that_the_output_lies_in_the_source(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    (tmp_path / "link").symlink_to(source)
    assert "lie in one another" in refusal(2, "convert", source, "-o", tmp_path / "link/out")
    assert "lie in one another" in refusal(2, "convert", tmp_path / "link", "-o", source / "out")


def test_a_weight_file_as_source_guards_its_folder(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    message = refusal(2, "convert", source / "model.safetensors", "-o", source, "--force")
    assert "lie in one another" in message


def test_folders_side_by_side_are_apart(tmp_path: Path) -> None:
    check_apart(tmp_path / "drafter-eagle3", tmp_path / "drafter")


@pytest.mark.parametrize("place", ["file", "file/out", "file/deeper/out", "x" * 300])
def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    code = 2 if place == "file" else 3
    assert str(tmp_path) in refusal(code, "convert", drafter_folder(tmp_path), "-o", tmp_path / place)
    assert names(tmp_path) == ["drafter", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    message = refusal(3, "convert", drafter_folder(tmp_path), "-o", closed / "out")
    assert "closed: cannot write there: Permission denied" in message


def test_a_link_to_itself_as_output_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    outcome = call("convert", drafter_folder(tmp_path), "-o", tmp_path / "loop/out")
    assert outcome.code in (2, 3)
    assert is_one_line(outcome)


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


def test_parents_are_made(tmp_path: Path) -> None:
    assert call("convert", drafter_folder(tmp_path), "-o", tmp_path / "a/b/out").code == 0
    assert names(tmp_path / "a/b/out") == WRITTEN


def test_a_folder_inside_the_source_is_not_written_into_the_output(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    (source / "model").mkdir()
    (source / "model/.metadata").write_bytes(b"")
    (source / "model/notes.json").write_text("{}")
    assert call("convert", source, "-o", tmp_path / "out").code == 0


# faults on the way


@pytest.mark.parametrize("function", ["write", "fsync", "copy_file_range"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_nothing_and_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    source = big_drafter(tmp_path)
    before = contents(tmp_path)
    with failing(monkeypatch, function, OSError(number, os.strerror(number))):
        message = refusal(3, "convert", source, "-o", tmp_path / "out")
    assert "no space left for" in message
    assert contents(tmp_path) == before


def test_a_real_limit_on_file_size_is_told_in_a_line(tmp_path: Path) -> None:
    source = big_drafter(tmp_path)
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        outcome = call("convert", source, "-o", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outcome.code == 3
    assert is_one_line(outcome)
    assert "no space left for model.safetensors" in outcome.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("function", ["write", "fsync", "copy_file_range", "mkdir", "rename_new"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ESTALE])
def test_a_failing_disk_leaves_nothing_and_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    source = big_drafter(tmp_path)
    before = contents(tmp_path)
    with failing(monkeypatch, function, OSError(number, os.strerror(number))):
        message = refusal(3, "convert", source, "-o", tmp_path / "out")
    assert os.strerror(number) in message
    assert contents(tmp_path) == before


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


@pytest.mark.parametrize("function", ["write", "fsync", "copy_file_range", "mkdir", "rename_new"])
def test_an_interruption_leaves_nothing_and_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    source = big_drafter(tmp_path)
    before = contents(tmp_path)
    with failing(monkeypatch, function, KeyboardInterrupt()):
        outcome = call("convert", source, "-o", tmp_path / "out")
    assert outcome.code == 130
    assert is_one_line(outcome)
    assert "interrupted" in outcome.err
    assert contents(tmp_path) == before


def test_a_fault_leaves_no_new_parent_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_folder(tmp_path)
    with failing(monkeypatch, "fsync", OSError(errno.ENOSPC, "No space left on device")):
        refusal(3, "convert", source, "-o", tmp_path / "a/b/out")
    assert names(tmp_path) == ["drafter"]


def test_a_killed_process_leaves_the_old_folder_as_it_was(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out", config={"rope_theta": 7.0})
    before, original = contents(out), contents(source)
    code = (
        "import os, sys, eaglectl; from eaglectl.operations.converting import ConvertOptions;"
        " eaglectl.convert(sys.argv[1], sys.argv[2], ConvertOptions(force=True), on_progress=lambda progress:"
        " os._exit(9))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(source), str(out)], timeout=60)
    assert done.returncode == 9
    assert contents(out) == before
    assert contents(source) == original


@pytest.mark.parametrize("layout", ["vllm", "torchspec"])
def test_a_source_that_shrinks_while_it_is_read_gives_no_output(tmp_path: Path, layout: str) -> None:
    source = drafter_folder(tmp_path)
    with pytest.raises(UnreadableError, match=r"model\.safetensors changed while it was read"):
        eaglectl.convert(
            str(source),
            tmp_path / "out",
            ConvertOptions(layout),
            on_plan=lambda plan: os.truncate(source / "model.safetensors", 6000),
        )
    assert names(tmp_path) == ["drafter"]


def test_a_source_that_vanishes_while_it_is_read_is_told(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    with pytest.raises(UnreadableError, match=r"model\.safetensors"):
        eaglectl.convert(
            str(source), tmp_path / "out", on_plan=lambda plan: (source / "model.safetensors").unlink()
        )
    assert names(tmp_path) == ["drafter"]


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"

    def appear(size: int) -> None:
        out.mkdir(exist_ok=True)
        (out / "mine").write_text("work of another process")

    with pytest.raises(UsageError, match="is there already"):
        eaglectl.convert(str(source), out, on_progress=appear)
    assert (out / "mine").read_text() == "work of another process"
    assert names(tmp_path) == ["drafter", "out"]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    before = contents(tmp_path)
    assert call("convert", source, "-o", tmp_path / "a/out", "--dry-run").code == 0
    assert contents(tmp_path) == before


def test_a_conversion_does_not_touch_its_source(tmp_path: Path) -> None:
    source = sharded_folder(tmp_path)
    before = contents(source)
    times = {path.name: path.stat().st_mtime_ns for path in source.iterdir()}
    assert call("convert", source, "-o", tmp_path / "out", "--for", "torchspec").code == 0
    assert contents(source) == before
    assert {path.name: path.stat().st_mtime_ns for path in source.iterdir()} == times


def test_a_drafter_that_needs_no_change_is_written_as_it_is(tmp_path: Path) -> None:
    assert call("convert", drafter_folder(tmp_path), "-o", tmp_path / "out").code == 0
    assert read_safetensors(tmp_path / "out/model.safetensors") == drafter_tensors()
