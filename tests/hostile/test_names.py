"""A name answers only where the Hub or its client's own cache gives it; what came along judges nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eaglectl
from eaglectl.api import options
from eaglectl.cli.app import GIVEN
from eaglectl.files.source import FolderSource
from eaglectl.options import Options, options_of
from eaglectl.publish import request
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES
from tests.published import ALL

OPEN = FIXTURES / "producers/specforge/gqa-ids"
NEVER = 'fail-on = "never"\n'
ANGELSLIM = next(drafter for drafter in ALL if drafter.name == "AngelSlim/Qwen3-4B_eagle3")


def snapshot(parent: Path) -> Path:
    """A published drafter's config beside other weights, in a folder that has its name."""
    folder = parent / "models--AngelSlim--Qwen3-4B_eagle3/snapshots/0"
    folder.parent.mkdir(parents=True)
    (parent / "made").mkdir()
    ANGELSLIM.folder(parent / "made").rename(folder)
    return folder


def asks(folder: Path) -> list[str]:
    return [note.about for note in eaglectl.inspect(str(folder)).drafter.notes_at("question")]


@pytest.mark.parametrize("place", ["", "tar", "hub/below"])
def test_a_folder_does_not_name_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = snapshot(tmp_path / place)
    assert FolderSource(folder).label == "Qwen3-4B_eagle3"
    assert asks(folder) == ["rope_theta"]


def test_the_clients_own_cache_names_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "link").symlink_to(tmp_path / "hub")
    folder = snapshot(tmp_path / "hub")
    for path in (folder, tmp_path / "link" / folder.relative_to(tmp_path / "hub")):
        assert FolderSource(path).label == "AngelSlim/Qwen3-4B_eagle3"
    assert asks(folder) == []
    text = " ".join(note.text for note in eaglectl.inspect(str(folder)).drafter.notes)
    assert "only its name and config identify the weights" in text


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"HF_HOME": "/a/home"},
        {"HF_HUB_CACHE": "/a/cache", "HF_HOME": "/b"},
        {"HUGGINGFACE_HUB_CACHE": "/a/old", "HF_HOME": "/b"},
        {"XDG_CACHE_HOME": "/a/xdg"},
        {"HF_HUB_CACHE": "~/x/$NAME", "NAME": "y"},
    ],
)
def test_the_cache_is_where_the_client_has_it(values: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from eaglectl.files.source import hub_cache\nhere = hub_cache()\n"
        "from huggingface_hub import constants\nimport os\n"
        "assert str(here) == os.path.realpath(constants.HF_HUB_CACHE), (here, constants.HF_HUB_CACHE)\n"
        "assert hub_cache() == here"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"HOME": str(tmp_path), **values}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A download that brings a drafter with an open question, and the target that settles it."""
    repo = tmp_path / "repo"
    (repo / ".cache/huggingface").mkdir(parents=True)
    shutil.copytree(OPEN, repo / "drafter")
    config = json.loads((repo / "drafter/config.json").read_text())
    evil = str(repo / "evil")
    (repo / "drafter/config.json").write_text(json.dumps({**config, "target_model_name_or_path": evil}))
    shutil.copytree(FIXTURES / "target", evil)
    monkeypatch.chdir(tmp_path)
    return repo


def target_of(source: Path) -> str:
    found = eaglectl.inspect(str(source)).target
    assert isinstance(found, str)
    return found


def test_a_target_of_the_same_download_is_not_taken(download: Path) -> None:
    assert target_of(download / "drafter") == ""
    assert (
        "part of the checkpoint or of its download" in call("convert", download / "drafter", "--dry-run").err
    )
    shutil.rmtree(download / ".cache")  # two folders of the user's own
    assert "evil" in target_of(download / "drafter")


@pytest.mark.parametrize("mark", ["checkpoint", "snapshot"])
def test_nor_is_one_of_the_checkpoint_or_snapshot_around(download: Path, mark: str, tmp_path: Path) -> None:
    shutil.rmtree(download / ".cache")
    config = json.loads((download / "drafter/config.json").read_text())
    if mark == "snapshot":
        (tmp_path / "models--o--n/snapshots").mkdir(parents=True)
        download = download.rename(tmp_path / "models--o--n/snapshots/0")
    else:
        shutil.copytree(OPEN, download, dirs_exist_ok=True)
    config["target_model_name_or_path"] = str(download / "evil")
    (download / "drafter/config.json").write_text(json.dumps(config))
    assert target_of(download / "drafter") == ""


@pytest.mark.parametrize("command", ["validate", "upload"])
def test_a_policy_in_the_folder_of_the_target_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    folder, target = drafter_folder(tmp_path, config={"hidden_act": "relu"}), tmp_path / "target"
    target.mkdir()
    shutil.copy(FIXTURES / "target/config.json", target)
    (target / "eaglectl.toml").write_text(NEVER)
    monkeypatch.chdir(target)
    words = ["o/n", "--dry-run"] if command == "upload" else []
    for text in (".", "config.json", "../target"):
        done = call(command, folder, *words, "--target", text)
        assert done.code == 1 and "eaglectl.toml: it is part of" in done.err, text


# what names a file to write, or a policy itself
OTHERS = {"write_token_counts", "policy"}


def test_every_option_that_names_what_others_made_is_known_to_the_search_for_a_policy() -> None:
    records = [
        value
        for module in (options, request)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Options)
    ]
    named = {
        name
        for record in records
        for name, field in options_of(record).items()
        if field.option.complete in ("files", "folders", "checkpoints")
    }
    assert named - OTHERS <= GIVEN
    assert {"statistics", "prompts", "trained_target", "training", "smoke"} <= named


DEFAULTS = "[defaults]\naux-layers = [1, 2, 3]\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("inspect", "--prompts"),
        ("inspect", "--target"),
        ("inspect", "--token-counts"),
        ("convert", "--calibration"),
        ("convert", "--trained-target"),
        ("convert", "--target-rotation"),
        ("smoke", "--against"),
        ("upload", "--training"),
        ("upload", "--smoke"),
    ],
)
def test_a_default_in_a_folder_that_an_option_names_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    given = tmp_path / "given"
    (given / "below").mkdir(parents=True)
    shutil.copy(FIXTURES / "target/config.json", given)
    (given / "eaglectl.toml").write_text(DEFAULTS)
    more = {"upload": ("o/n", "--dry-run"), "convert": ("--dry-run",)}.get(command, ())
    for folder, text in ((given, "."), (given / "below", "..")):
        monkeypatch.chdir(folder)
        done = call(command, OPEN, *more, option, text)
        assert "eaglectl.toml: it is part of" in done.err and "1, 2, 3" not in done.out, done.err


@pytest.mark.parametrize("option", ["--prompts", "--token-counts"])
def test_a_default_beside_an_input_file_is_not_taken_unless_one_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    texts = tmp_path / "project/texts"
    texts.mkdir(parents=True)
    (texts / "eaglectl.toml").write_text(DEFAULTS)
    file = texts / "prompts.jsonl"
    file.write_text('{"1": 2}')
    for here, text in ((texts.parent, "texts/prompts.jsonl"), (tmp_path, file), (texts.parent, file)):
        monkeypatch.chdir(here)
        done = call("inspect", OPEN, option, text)
        assert "eaglectl.toml" not in done.err and "1, 2, 3" not in done.out
    # the folder that one works in is one's own, whatever else lies there
    monkeypatch.chdir(texts)
    assert "defaults from eaglectl.toml: --aux-layers 1,2,3" in call("-v", "inspect", OPEN, option, file).err


@pytest.mark.parametrize("mark", ["checkpoint", "download", "snapshot", "in a checkpoint"])
def test_nor_is_one_beside_an_input_file_of_a_checkpoint_or_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    folder = tmp_path / ("models--o--n/snapshots/0" if mark == "snapshot" else "given")
    texts = folder / "texts" if mark == "in a checkpoint" else folder
    texts.mkdir(parents=True)
    if "checkpoint" in mark:
        shutil.copytree(OPEN, folder, dirs_exist_ok=True)
    elif mark == "download":
        (folder / ".cache/huggingface").mkdir(parents=True)
    (texts / "prompts.jsonl").write_text('{"prompt": "a"}')
    (texts / "eaglectl.toml").write_text(DEFAULTS)
    monkeypatch.chdir(texts)
    done = call("inspect", OPEN, "--prompts", "prompts.jsonl")
    assert "eaglectl.toml: it is part of" in done.err and "1, 2, 3" not in done.out


def test_a_home_folder_with_the_clients_cache_is_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / "eaglectl.toml").write_text(NEVER)
    folder = drafter_folder(tmp_path, config={"hidden_act": "relu"})
    monkeypatch.chdir(tmp_path)
    assert call("validate", folder).code == 1
    monkeypatch.setenv("HOME", str(tmp_path))
    assert call("validate", folder).code == 0
