"""What is taken from engines stands in eaglectl/engines/interface.json, and nothing else is taken."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from eaglectl.engines.behaviour import is_since, is_within
from eaglectl.engines.data import FOLDER, read
from eaglectl.engines.vllm import ENGINE

ROOT = Path(__file__).parent.parent
ENGINES = ("vllm", "sglang")
KINDS = ("import", "attribute", "argument", "key", "metric", "value", "variable")
TABLE = read("interface.json")
NOT_ENGINES = ("modules", "shape")  # torch's


def modules(engine: str) -> dict[str, str]:
    """The modules that run in the engine's processes, and those that start them."""
    paths = sorted((ROOT / "eaglectl/run" / engine).glob("*.py"))
    paths += [ROOT / "eaglectl/in_engine" / name for name in (f"{engine}.py", "installed.py")]
    paths.append(ROOT / "eaglectl/run/resolved.py")
    assert any(path.name == "child.py" for path in paths)
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def word(row: Mapping[str, str]) -> tuple[str, str]:
    """The kind of a row, and the word that stands for it in code."""
    name, kind = row["name"], row["kind"]
    if kind == "attribute":
        return kind, name.rpartition(".")[2]
    if kind in ("argument", "key"):
        match = re.search(r"[(\[](\w+)[)\]]$", name)
        assert match, name
        return kind, match[1]
    return kind, name


def words(engine: str) -> set[tuple[str, str]]:
    return {word(row) for row in TABLE[engine]["names"]}


def taken(engine: str, texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """What modules name of an engine in so many words: imports, attributes asked for by a text, metrics."""
    found = set()
    for node in (node for text in texts.values() for node in ast.walk(ast.parse(text))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == engine:
                found |= {("import", f"{module}.{alias.name}") for alias in node.names}
            case ast.Import():
                names = [alias.name for alias in node.names]
                found |= {("import", name) for name in names if name.split(".")[0] == engine}
            case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                found |= {("attribute", name)}
            case ast.Constant(str(value)) if value.startswith(f"{engine}:"):
                found |= {("metric", value)}
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_taken_from_an_engine_stands_in_the_table(engine: str) -> None:
    unknown = taken(engine, modules(engine)) - words(engine)
    assert {pair for pair in unknown if pair[1] not in NOT_ENGINES} == set(), "see engines/interface.json"


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_stands_in_the_table_is_taken(engine: str) -> None:
    text = "\n".join(modules(engine).values())
    last = {re.split(r"[.:]", name)[-1].strip() for kind, name in words(engine) if kind != "variable"}
    assert [name for name in last if not re.search(rf"(?<!\w){re.escape(name)}\b", text)] == []


def test_the_variables_that_are_set_for_vllm_are_those_of_the_table() -> None:
    folders = [ROOT / "eaglectl" / name for name in ("run", "in_engine")]
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\"(VLLM_[A-Z0-9_]+)\"", text)}
    assert named == {row["name"] for row in TABLE["vllm"]["names"] if row["kind"] == "variable"}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_name_says_where_it_is_in_which_releases_and_what_is_done_without_it(engine: str) -> None:
    rows, first = TABLE[engine]["names"], f">={TABLE[engine]['read'][0]}"
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert row["kind"] in KINDS
        assert row["where"].keys() == row["releases"].keys(), row["name"]
        assert set(row["releases"].values()) == {first} or row.get("without"), row["name"]


def test_every_judged_release_from_the_first_was_read() -> None:
    read_ = TABLE["vllm"]["read"]
    assert [release for release in ENGINE.releases if is_since(read_[0], release)] == read_
    sglang = json.loads((FOLDER / "sglang_releases.json").read_text())["behaviour"]
    assert {release for row in sglang for release in row["releases"]} <= {*TABLE["sglang"]["read"]}


@pytest.mark.parametrize("release", TABLE["vllm"]["read"])
def test_each_runner_has_one_of_the_two_places_of_the_draft_model(release: str) -> None:
    rows = {row["name"]: row["releases"] for row in TABLE["vllm"]["names"]}
    holds = {
        (name, part)
        for name in ("runner.drafter", "runner.speculator")
        for part, span in rows[name].items()
        if span is not None and is_within(span, release)
    }
    runners = {("runner.drafter", "V1"), ("runner.drafter", "V1 on CPUs"), ("runner.speculator", "V2")}
    assert holds - {("runner.speculator", "V2 on CPUs")} == runners
