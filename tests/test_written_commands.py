"""Commands in what reports write: pages and the files of --output are read as the terminal's text is."""

import argparse
import shlex
import shutil
from pathlib import Path

import pytest

import eaglectl
from tests import conftest
from tests.builders import call
from tests.conftest import FIXTURES
from tests.printed import commands_in, fault

SOURCE = FIXTURES / "producers/modelopt/hf-ids"
PAGE = """<!DOCTYPE html><style>p { content: "`eaglectl convert A`" }</style>
<pre>run `eaglectl convert a/b <span class="r1">--for</span> vllm`, or not
  eaglectl diff &quot;a b&quot; c
  eaglectl smoke SOURCE</pre>"""
JUNIT = '<?xml version="1.0"?><failure message="fix: run `eaglectl smoke &apos;a b&apos; --target T`"/>'


def test_commands_of_a_page_are_those_a_reader_sees() -> None:
    commands = commands_in(PAGE)
    assert commands == ["eaglectl convert a/b --for vllm", 'eaglectl diff "a b" c', "eaglectl smoke SOURCE"]
    assert [fault(line, ("diff",)) for line in commands] == ["", "", "SOURCE has to be filled in"]


def test_commands_of_xml_are_found() -> None:
    assert commands_in(JUNIT) == ["eaglectl smoke 'a b' --target T"]
    assert fault(commands_in(JUNIT)[0], ("validate",)) == "T has to be filled in"


@pytest.mark.parametrize("written", ["--page=", "--output=junit=", "--output=markdown=", "--output=sarif="])
def test_what_reports_write_is_collected(tmp_path: Path, written: str) -> None:
    """The fixture `whole_commands` fails the test where one of these cannot be run."""
    file = tmp_path / "file.html"
    call("validate", SOURCE, "--engine", "vllm", f"{written}{file}")
    text = file.read_text()
    assert text in [text for _, text in conftest.PRINTED]
    assert f"eaglectl convert {SOURCE} --for vllm" in commands_in(text)


def test_names_that_begin_with_a_dash_are_no_options_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """argparse, which vLLM, SGLang and llama.cpp's converter use, refuses such a value after a space."""
    shutil.copytree(FIXTURES / "producers/specforge/gqa-ids", tmp_path / "-drafter")
    shutil.copytree(FIXTURES / "target", tmp_path / "-target")
    monkeypatch.chdir(tmp_path)
    done = eaglectl.convert("./-drafter", "-served", target="-target")
    commands = {engine: shlex.split(line) for engine, line in done.commands.items()}
    model = '"model": "-served"'
    assert commands["vllm"][:3] == ["vllm", "serve", "./-target"] and model in commands["vllm"][4]
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path")
    parser.add_argument("--speculative-draft-model-path")
    parsed, _ = parser.parse_known_args(commands["sglang"][3:])
    assert (parsed.model_path, parsed.speculative_draft_model_path) == ("-target", "-served")
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--outfile")
    line = commands["llama.cpp"]
    parsed, _ = parser.parse_known_args(line[2 : line.index("&&")])
    assert (parsed.folder, parsed.outfile) == ("./-served", "-served.gguf")
