"""eaglectl.toml holds defaults for a folder: the target and answers, stated once."""

import shutil
from pathlib import Path

import pytest

from eaglectl.judge.rule import find_policy
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES

IDS = FIXTURES / "producers/modelopt/hf-ids"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(here: Path, text: str) -> None:
    (here / "eaglectl.toml").write_text(text)


def boundaries(*arguments: object) -> object:
    return call("inspect", *arguments, "--json").document["drafter"]["aux"]["boundaries"]


def test_an_answer_from_the_file_is_as_one_from_the_command_line_which_wins(here: Path) -> None:
    source = drafter_folder(here / "d")
    before = boundaries(source)
    given = boundaries(source, "--aux-layers", "1,2,3")
    write(here, "[defaults]\naux-layers = [1, 2, 3]\n")
    assert boundaries(source) == given != before
    write(here, "[defaults]\naux-layers = [2, 3, 4]\n")
    assert boundaries(source, "--aux-layers", "1,2,3") == given


def test_the_target_begins_at_the_file_and_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FIXTURES / "tiny/target", here / "models/target")
    source = shutil.copytree(FIXTURES / "tiny/eagle3", here / "below/drafter")
    write(here, '[defaults]\ntarget = "models/target"\n')
    monkeypatch.chdir(here / "below")
    done = call("inspect", source.name, "--json")
    assert done.document["drafter"]["target"]["depth"] == 8
    assert done.err == ("defaults from ../eaglectl.toml: --target ../models/target\n")


def test_semantics_and_engines_are_taken_too(here: Path) -> None:
    write(here, 'engines = ["vllm==0.32.0"]\n[defaults.source-semantics]\nrope = "stored"\n')
    document = call("inspect", IDS, "--json").document
    assert {(verdict["engine"], verdict["release"]) for verdict in document["engines"]} == {
        ("vllm", "0.32.0")
    }
    assert "rope=plain" not in str(document["drafter"])


def test_defaults_are_told_to_who_asks_and_a_target_to_all(here: Path) -> None:
    source, target = FIXTURES / "tiny/eagle3", FIXTURES / "tiny/target"
    write(here, "[defaults]\naux-layers = [2, 4, 5]\n")
    told = "defaults from eaglectl.toml: --aux-layers 2,4,5\n"
    assert call("inspect", source).err == "" and call("-v", "inspect", source).err == told
    write(here, f"[defaults]\ntarget = '{target}'\naux-layers = [2, 4, 5]\n")
    told = call("-q", "inspect", source).err
    assert told.startswith("defaults from eaglectl.toml: --target ") and "--aux-layers" not in told


FAULTY = {
    "# a\n\n[policy]\nfail-on = 1\n": "eaglectl.toml: Object contains unknown field `policy`",
    "[defaults]\nengines = ['vllm']\n": "unknown field `engines` - at `$.defaults`",
    "target = 'a'\n": "eaglectl.toml: Object contains unknown field `target`",
    "[defaults]\ntaget = 't'\n": "unknown field `taget` - at `$.defaults`",
    "[defaults]\naux-layers = '2,3'\n": "Expected `array | null`, got `str` - at `$.defaults.aux-layers`",
    "[defaults]\naux-layers = [-1]\n": "Expected `int` >= 0 - at `$.defaults.aux-layers[0]`",
    "[defaults]\naux-layers = [true]\n": "Expected `int`, got `bool` - at `$.defaults.aux-layers[0]`",
    "[defaults]\naux-convention = 'input'\n": "value 'input' - at `$.defaults.aux-convention`",
    "[defaults]\ntarget = 3\n": "Expected `str`, got `int` - at `$.defaults.target`",
    "[defaults.source-semantics]\nrope = 1\n": "got `int` - at `$.defaults.source-semantics[...]`",
    "defaults = 1\n": "Expected `object`, got `int` - at `$.defaults`",
    "[defaults\n": "eaglectl.toml is not valid TOML",
}


@pytest.mark.parametrize("text", FAULTY)
def test_a_file_that_is_not_as_it_should_be_stops_every_reader(here: Path, text: str) -> None:
    write(here, text)
    source = drafter_folder(here / "d")
    for command in ("inspect", "validate"):
        done = call(command, source)
        assert done.code == 2 and FAULTY[text] in done.err


def test_a_folder_inside_the_checkpoint_answers_nothing(here: Path) -> None:
    source = drafter_folder(here / "d")
    before = boundaries(source)
    (source / "eaglectl.toml").write_text("[defaults]\naux-layers = [1, 2, 3]\n")
    assert boundaries(source) == before


def test_the_lines_of_the_page_are_read(here: Path) -> None:
    page = (FIXTURES.parent / "docs/pipelines.md").read_text()
    write(here, page.partition("```toml\n")[2].partition("```")[0])
    file = find_policy()
    assert file is not None and file.defaults.aux_layers == (2, 16, 29)
    assert (file.target, file.defaults.source_semantics) == ("my-target", {"modelopt": "pre-689"})
