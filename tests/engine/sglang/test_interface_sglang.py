"""What eaglectl knows of SGLang's sources and options against the installed ones."""

import argparse

import pytest
import sglang
from sglang.srt.server_args import ServerArgs

from eaglectl.engines.data import load
from tests.engine.installed_sources import other_names


def test_the_sources_have_what_the_table_says_and_lack_what_it_says_they_lack() -> None:
    assert other_names("sglang") == []


def test_the_options_are_those_of_its_parser() -> None:
    known = load("sglang")["speculative_options"]
    if sglang.__version__ != known["release"]:
        pytest.skip(f"the options are those of {known['release']}")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    names = [text for action in parser._actions for text in action.option_strings]
    stated = [f"--speculative-{name}" for name in known["names"]]
    assert sorted(name for name in names if name.startswith("--speculative-")) == stated
