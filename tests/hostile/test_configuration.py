"""Configuration files that a checkpoint brings along, that are built to stop eaglectl, or hold a password."""

from pathlib import Path

import pytest

from eaglectl import UsageError, convert
from tests.builders import call, drafter_folder
from tests.processor import within
from tests.tiny import TINY

FAILS = {"hidden_act": "relu"}
NEVER = 'fail-on = "never"\n[severities]\nhidden-act = "off"\n[defaults]\naux-layers = [1, 2, 3]\n'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A drafter that fails (its hidden_act), with a configuration of its own that lets everything pass."""
    folder = drafter_folder(tmp_path, "ck", config=FAILS)
    (folder / "eaglectl.toml").write_text(NEVER)
    return folder


@pytest.mark.parametrize(
    "here, source", [(".", "."), (".", "../ck"), (".", "model.safetensors"), ("a/b", "../..")]
)
@pytest.mark.parametrize("command", ["validate", "upload"])
def test_a_checkpoint_does_not_carry_its_judge(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, here: str, source: str, command: str
) -> None:
    (checkpoint / "a/b").mkdir(parents=True)
    (checkpoint / "a/eaglectl.toml").write_text(NEVER)
    monkeypatch.chdir(checkpoint / here)
    source = "." if command == "upload" and source.endswith(".safetensors") else source
    done = call(command, source, *(["o/n", "--dry-run"] if command == "upload" else []))
    assert done.code == 1 and "hidden_act" in done.out + done.err
    assert "eaglectl.toml: it is part of a checkpoint or a download" in done.err


def test_a_checkpoint_judges_no_other_and_itself_only_where_its_file_is_named(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = drafter_folder(tmp_path / "other", config=FAILS)
    monkeypatch.chdir(checkpoint)
    assert call("validate", other).code == 1
    assert call("validate", ".", "--policy", "eaglectl.toml").code == 0
    (tmp_path / "eaglectl.toml").write_text('fail-on = "never"\n')  # around the checkpoint
    done = call("validate", ".")
    assert done.code == 0 and "policy: ../eaglectl.toml" in done.out


@pytest.mark.parametrize("mark", [".cache/huggingface", "models--o--n/snapshots/c0"])
def test_a_download_does_not_carry_the_judge_of_a_folder_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    (tmp_path / mark).mkdir(parents=True)
    root = tmp_path if mark.startswith(".cache") else tmp_path / mark
    (root / "eaglectl.toml").write_text(NEVER)
    drafter_folder(root / "inner", config=FAILS)
    monkeypatch.chdir(root / "inner")
    assert call("validate", "drafter").code == 1


def test_no_output_is_silent_on_what_a_configuration_switches_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'fail-on = "never"\n[severities]\nEGL201 = "off"\nEGL202 = "off"\nEGL113 = "note"\n'
    (tmp_path / "eaglectl.toml").write_text(text)
    drafter = drafter_folder(tmp_path / "d")
    for options in ((), ("-q",)):
        last = call(*options, "validate", drafter).out.splitlines()[-1]
        assert last.endswith("(never fails; policy: eaglectl.toml (rules: 2 off, 1 of lower severity))")
    done = call("-q", "upload", drafter_folder(tmp_path, config=FAILS), "o/n", "--dry-run")
    assert "eaglectl.toml gives the policy\n" in done.err


KEYS = ".".join("a" * 1000)
HOSTILE = {
    "[defaults]\naux-layers = 0x" + "f" * 5000: "Expected `array | null`, got `int`",
    "[defaults]\naux-layers = [0x" + "f" * 5000 + "]": "`$.defaults.aux-layers[0]`",
    f"{KEYS}.{KEYS} = 1": "a key of more than 32 parts",
    f"[{KEYS}]": "a key of more than 32 parts",
    "a." * 100_000 + "a = 1": "a key of more than 32 parts",
    '"a"  .  ' * 100 + "a = 1": "a key of more than 32 parts",
    "a = " + "[" * 300 + "]" * 300: "unknown field `a`",
    "a = [" + "1," * 6000 + "]": "unknown field `a`",
    "a = " + "9" * 5000: "not valid TOML",
    "#" * (257 << 10): "more than 262144 bytes",
}


@pytest.mark.parametrize("name", ["eaglectl.toml", "pyproject.toml"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_configuration_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nested = text if text.startswith("[") else f"[tool.eaglectl]\n{text}"
    is_own = name == "eaglectl.toml"
    (tmp_path / name).write_text(text if is_own else nested.replace("[defaults]", "[tool.eaglectl.defaults]"))
    with within(40):
        done = call("inspect", drafter_folder(tmp_path / "d"))
    assert (done.code, HOSTILE[text] in done.err) == (2, True), done.err


def test_a_password_in_a_target_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "https://me:hunter2@host/x?token=hunter2"
    (tmp_path / "eaglectl.toml").write_text(f'[defaults]\ntarget = "{url}"\n')
    done = call("inspect", drafter_folder(tmp_path / "d"))
    assert "--target https://***@host/x?token=***" in done.err
    assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize("command", ["inspect", "validate", "convert", "verify", "diff"])
def test_a_removed_working_folder_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    source, gone = drafter_folder(tmp_path / "d"), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = call(command, source, *([source] if command == "diff" else []))
    assert done.code == 3 and "the current folder: No such file or directory" in done.err


AIMED = ("--target", TINY / "target")
PAIR = (TINY / "eagle3", *AIMED)
# a source, and what an option names
NAMED: tuple[tuple[str | Path, ...], ...] = (
    ("verify", "NAME"), ("inspect", "NAME"), ("upload", "NAME", "o/n", "--dry-run"),
    ("smoke", "NAME", "--target", "NAME"), ("smoke", *PAIR, "--prompts", "NAME"),
    ("smoke", *PAIR, "--prompts", "a\0b"), ("convert", *PAIR, "-o", "out", "--target-rotation", "NAME"),
    ("convert", TINY / "eagle3", "-o", "NAME"),
    ("ready", "AUTOMODEL", *AIMED, "--sample", "1", "--max-tokens", "2", "--engine", "vllm", "-o", "NAME"),
)  # fmt: skip


@pytest.mark.fast(9)
@pytest.mark.parametrize(
    "name", ["x" * 5000, "a/" * 2500, "a\0b", "a/\ud800"], ids=["long", "deep", "null", "half"]
)
@pytest.mark.parametrize("words", NAMED, ids=lambda words: f"{words[0]} {words[-2]}")
def test_a_name_that_no_file_can_have_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str | Path, ...], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "AUTOMODEL" in words:
        assert call("convert", *PAIR, "--for", "automodel", "-o", "automodel").code == 0
    places = {"NAME": name, "AUTOMODEL": "automodel"}
    done = call(*(places.get(str(word), word) for word in words))
    assert done.code in (2, 3) and done.err.splitlines()[-1].startswith("eaglectl: "), done


def test_a_path_with_a_null_byte_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = drafter_folder(tmp_path / "d")
    for paths in ({"out": "a\0b"}, {"out": "out", "target": "a\0b"}):
        with pytest.raises(UsageError, match="is not a path"):
            convert(source, **paths)
    (tmp_path / "eaglectl.toml").write_text('[defaults]\ntarget = "a/\\u0000b"\n')
    for words in (("inspect", source), ("calibrate", source, "-o", "out")):
        done = call(*words)
        assert done.code == 2 and "at `$.defaults.target`" in done.err
