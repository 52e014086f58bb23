"""Every command that is printed, pasted into a real bash: for names that a shell would act on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglectl import shell
from eaglectl.text import masked, printable
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES
from tests.hostile.pasting import LONG, NAMES, commands_in, fault, paste
from tests.hub import LoopbackHub, publisher

NAME = "org/drafter"
hub = publisher
DRAFTER, TARGET = FIXTURES / "producers/angelslim/ids", FIXTURES / "target"
ENDS = ("", "-out", "-out2", "-eagle3")
EVERY = {**NAMES, "long": LONG}
FEW = ("command and query", "letters and quotes", "long", "line break", "forged command", "dash")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; nothing is asked of the network, and nothing kept."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def outputs(name: str, target: str) -> Iterator[str]:
    """What the commands print and write of a drafter in a folder of that name."""
    out = f"{name}-out"
    place = f"./{name}" if name.startswith("-") else name
    aimed = ("--target", target)
    calls: list[tuple[str | Path, ...]] = [
        ("inspect", place),
        ("inspect", place, *aimed, "--json"),
        ("validate", place, "--page", "validate.html"),
        ("validate", place, *aimed, "--json"),
        ("validate", place, *aimed, "--output", "github=findings.txt", "--output", "markdown=findings.md"),
        ("convert", place, *aimed, "-o", f"./{out}"),
        ("convert", f"./{out}", *aimed, "-o", f"./{out}2", "--for", "llama.cpp"),
        ("diff", place, f"./{out}"),
        ("ready", place, *aimed, "--page", "ready.html", "--markdown", "ready.md"),
        ("ready", place, *aimed, "--json", "--engine", "llama.cpp"),
        ("smoke", place),
        ("diagnose", place, *aimed),
        ("verify", f"./{out}"),
        ("upload", place, "org/name", "--dry-run", "-v"),
    ]
    for arguments in calls:
        done = call(*arguments)
        assert done.code in (0, 1, 2, 3), done.err
        yield from (done.out, done.err)
    written = [*Path().glob("*.html"), *Path().glob("*.md"), *Path().glob("*.txt")]
    folders = [Path(f"{out}{end}") for end in ("", "2") if Path(f"{out}{end}").is_dir()]
    written += [place / file for place in folders for file in ("README.md", "eaglectl.json")]
    yield from (file.read_text() for file in written if file.exists())


def given(name: str) -> list[str]:
    """The arguments that may be odd: the folders, and the file made of one."""
    places = [f"{start}{name}{end}" for start in ("", "./") for end in ENDS]
    places.append(f"{name.rpartition('/')[2]}-eagle3")  # where `ready` converts to by default
    return [*places, *(f"{place}.gguf" for place in places)]


def assert_pasted(lines: list[str], folder: Path, odd: list[str]) -> list[list[str]]:
    """Paste the lines; what programs get of them, which has no odd words but those given."""
    calls = paste(lines, folder.parent)
    assert [text for text in (fault(arguments, odd) for arguments in calls) if text] == []
    return calls


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "kind", ["command and query", *(kind for kind in EVERY if kind != "command and query")]
)
def test_any_name_is_printed_so_that_it_can_be_pasted(kind: str, folder: Path) -> None:
    name = EVERY[kind]
    target = f"{name.partition('/')[0]}-target"
    shutil.copytree(DRAFTER, name)
    shutil.copytree(TARGET, f"./{target}")
    lines = [line for text in outputs(name, f"./{target}") for line in commands_in(text, given(name))]
    calls = assert_pasted(lines, folder, [*given(name), target, f"./{target}"])
    assert len(calls) >= len(lines) > 30
    assert {"eaglectl", "vllm", "python"} <= {arguments[0] for arguments in calls}


def test_a_shell_reads_every_name_back_as_it_was(tmp_path: Path) -> None:
    names = [*EVERY.values(), "", " ", "'", "\\", "$", "a" * 4000, "'" * 400, "`" * 400]
    lines = [shell.join(["eaglectl", name, "--out", name]) for name in names]
    assert paste(lines, tmp_path) == [["eaglectl", name, "--out", name] for name in names]
    assert [shell.split(line)[1] for line in lines] == names


def test_a_command_stays_as_it_is_wherever_it_is_shown() -> None:
    for name in EVERY.values():
        line = shell.join(["eaglectl", "convert", name, "--target", name * 3])
        assert printable(line) == line and printable(f"run `{line}`, or not") == f"run `{line}`, or not"
        assert masked(line) == line and "`" not in line and line.isprintable()


@pytest.mark.parametrize(
    ("word", "pasted"),
    [
        (
            "http://user:pass'word@host/v1?api_key=a'b&n=1#access_token=c\nd",
            "http://***@host/v1?api_key=***&n=1#access_token=***",
        ),
        ("a\0b\ud800", "a\\x00b\\ud800"),
    ],
    ids=["secrets of a URL", "what no argument can hold"],
)
def test_a_word_is_masked_or_escaped_in_a_command(word: str, pasted: str, tmp_path: Path) -> None:
    line = shell.join(["eaglectl", "diagnose", "--run-in", word])
    assert paste([line], tmp_path) == [["eaglectl", "diagnose", "--run-in", pasted]]
    assert printable(line) == line


def test_a_command_that_a_file_forges_or_that_has_no_end_is_none() -> None:
    forged = "a name `eaglectl inspect x; touch PWNED` and `eaglectl inspect $(touch PWNED)`"
    assert commands_in(printable(forged)) == []
    assert printable("run `eaglectl inspect 'a b'`") == "run `eaglectl inspect 'a b'`"
    endless = printable(f"run `eaglectl inspect {'x' * 100_000}`")
    assert endless == "run `(a command of 100,017 characters)`"


def test_other_texts_are_no_arguments() -> None:
    for line in ("eaglectl $(touch PWNED)", "eaglectl x;y", "eaglectl `x`", 'eaglectl "x"', "eaglectl ~"):
        with pytest.raises(ValueError, match="not a command"):
            shell.split(line)


@pytest.mark.slow
def test_the_plan_of_an_upload_prints_commands_that_can_be_pasted(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    old = drafter_folder(folder, "old")
    hub.add_repo(NAME, {file.name: file.read_bytes() for file in old.iterdir()})
    for name in (EVERY[kind] for kind in FEW):
        call("convert", FIXTURES / "tiny/eagle3", "--target", FIXTURES / "tiny/target", "-o", f"./{name}")
        arguments = (f"./{name}", NAME, "--license", "mit", "--base-model", "example/target-8b")
        done = call("upload", *arguments, "--dry-run", "-v")
        lines = commands_in(done.out) + commands_in(done.err)
        calls = assert_pasted(lines, folder, given(name))
        assert ["vllm", "serve"] in [arguments[:2] for arguments in calls], done
