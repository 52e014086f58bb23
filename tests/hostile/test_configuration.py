"""Configuration files that a checkpoint brings along, that are built to stop eaglectl, or hold a password."""

import json
import time
from pathlib import Path

import pytest

from eaglectl import UsageError, convert
from tests.builders import call, drafter_folder
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
    assert "eaglectl.toml is not read: it lies in a checkpoint or a download" in done.err


def test_a_checkpoint_does_not_judge_another(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = drafter_folder(tmp_path / "other", config=FAILS)
    monkeypatch.chdir(checkpoint)
    assert call("validate", other).code == 1


@pytest.mark.parametrize("mark", [".cache/huggingface", "models--o--n/snapshots/c0"])
def test_a_download_does_not_carry_the_judge_of_a_folder_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    place = tmp_path / mark
    place.mkdir(parents=True)
    root = tmp_path if mark.startswith(".cache") else place
    (root / "eaglectl.toml").write_text(NEVER)
    drafter_folder(root / "inner", config=FAILS)
    monkeypatch.chdir(root / "inner")
    assert call("validate", "drafter").code == 1


def test_a_file_around_the_checkpoint_is_taken_from_inside_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eaglectl.toml").write_text('fail-on = "never"\n')
    monkeypatch.chdir(checkpoint)
    done = call("validate", ".")
    assert done.code == 0 and "policy: ../eaglectl.toml" in done.out


def test_a_checkpoints_own_file_is_taken_where_it_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint)
    assert call("validate", ".", "--policy", "eaglectl.toml").code == 0


def test_defaults_of_a_checkpoint_answer_nothing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint)
    done = call("inspect", ".", "--json")
    assert "--aux-layers" not in done.err
    assert done.document["drafter"]["aux"]["boundaries"] != [1, 2, 3]


@pytest.mark.parametrize("options", [(), ("-q",)])
def test_the_last_line_counts_what_a_configuration_switches_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'fail-on = "never"\n[severities]\nEGL201 = "off"\nEGL202 = "off"\nEGL113 = "note"\n'
    (tmp_path / "eaglectl.toml").write_text(text)
    last = call(*options, "validate", drafter_folder(tmp_path / "d")).out.splitlines()[-1]
    assert last.endswith("(never fails; policy: eaglectl.toml (rules: 2 off, 1 of lower severity))")


def test_quiet_does_not_hide_that_a_file_gave_uploads_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text('fail-on = "never"\n')
    done = call("-q", "upload", drafter_folder(tmp_path / "d", config=FAILS), "o/n", "--dry-run")
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
    start = time.monotonic()
    done = call("inspect", drafter_folder(tmp_path / "d"))
    assert (done.code, HOSTILE[text] in done.err) == (2, True), done.err
    assert time.monotonic() - start < 2


def test_a_target_of_5000_characters_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text(f"[defaults]\ntarget = {json.dumps('x' * 5000)}\n")
    done = call("inspect", drafter_folder(tmp_path / "d"))
    assert done.code == 3 and "no such file or folder" in done.err


def test_a_password_in_a_target_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text(
        '[defaults]\ntarget = "https://me:hunter2@host/x?token=hunter2"\n'
    )
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


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 2500])
@pytest.mark.parametrize(
    "arguments",
    [("verify",), ("upload", "o/n", "--dry-run"), ("smoke", "--target"), ("inspect",)],
)
def test_a_name_that_no_file_can_have_is_an_error_in_words(arguments: tuple[str, ...], name: str) -> None:
    command = [*arguments[:1], name, *arguments[1:]] if arguments[0] == "upload" else [*arguments, name]
    done = call(*command, *([name] if arguments[0] == "smoke" else []))
    assert done.code in (2, 3) and done.err.startswith("eaglectl: ")


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 2500])
@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "--target", TINY / "target", "-o", "out", "--target-rotation"),
        ("convert", "-o"),
        (
            "ready",
            "--target",
            TINY / "target",
            "--sample",
            "1",
            "--max-tokens",
            "2",
            "--engine",
            "vllm",
            "-o",
        ),
        ("smoke", "--target", TINY / "target", "--run-in", "reference", "--prompts"),
    ],
)
def test_an_option_that_names_no_file_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str | Path, ...], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = TINY / "eagle3"
    if arguments[0] == "ready":
        source = tmp_path / "automodel"
        made = ("--for", "automodel", "--target", TINY / "target", "-o", source)
        assert call("convert", TINY / "eagle3", *made).code == 0
    done = call(arguments[0], source, *arguments[1:], name)
    assert done.code in (2, 3) and done.err.splitlines()[-1].startswith("eaglectl: ")


@pytest.mark.parametrize("command", ["inspect", "calibrate"])
def test_a_target_with_a_null_byte_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text('[defaults]\ntarget = "a/\\u0000b"\n')
    done = call(command, drafter_folder(tmp_path / "d"), *(["-o", "out"] if command == "calibrate" else []))
    assert done.code == 2 and "at `$.defaults.target`" in done.err


@pytest.mark.parametrize("field", ["out", "target"])
def test_a_null_byte_in_a_path_of_the_api_is_a_usage_error(tmp_path: Path, field: str) -> None:
    paths = {"out": str(tmp_path / "out"), field: f"{tmp_path}/a\0b"}
    with pytest.raises(UsageError, match="is no path"):
        convert(str(drafter_folder(tmp_path)), **paths)
