"""What is taken from engines stands in eaglectl/engines/interface.json, and nothing else is taken."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from eaglectl.engines.data import FOLDER, read
from eaglectl.engines.releases import is_since, is_within
from eaglectl.engines.vllm import ENGINE
from tests.engine_names import NOT_ENGINES, Use, uses_in

ROOT = Path(__file__).parent.parent
ENGINES = ("vllm", "sglang")
KINDS = ("import", "attribute", "argument", "key", "metric", "value", "variable")
TABLE = read("interface.json")


def modules(engine: str) -> dict[str, str]:
    """The modules that run in the engine's processes, and those that start them."""
    paths = sorted((ROOT / "eaglectl/run" / engine).glob("*.py"))
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


def strangers(engine: str, texts: Mapping[str, str]) -> list[Use]:
    """What modules take from an engine that the table does not have."""
    known = words(engine)
    return [use for use in uses_in(texts, engine) if (use.kind, use.name) not in known]


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_is_taken_from_an_engine_stands_in_the_table(engine: str) -> None:
    assert strangers(engine, modules(engine)) == [], "declare it in eaglectl/engines/interface.json"


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_stands_in_the_table_is_taken(engine: str) -> None:
    taken = {(use.kind, use.name) for use in uses_in(modules(engine), engine)}
    rows = [row for row in TABLE[engine]["names"] if row["kind"] != "variable"]
    words_ = {row["name"]: word(row) for row in rows}
    unused = [name for name, pair in words_.items() if pair not in taken and pair[1] not in NOT_ENGINES]
    assert unused == []


def test_the_variables_that_are_set_for_vllm_are_those_of_the_table() -> None:
    texts = [path.read_text() for path in (ROOT / "eaglectl/run").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\"(VLLM_[A-Z0-9_]+)\"", text)}
    assert named == {row["name"] for row in TABLE["vllm"]["names"] if row["kind"] == "variable"}


RUNNER = "    runner = worker.model_runner\n"
ADDED = [
    (RUNNER, "    runner.foo_bar\n", "attribute"),
    (RUNNER, "    runner.drafter.foo_bar\n", "attribute"),
    (RUNNER, "    runner.foo_bar = 1\n", "attribute"),
    (RUNNER, "    getattr(runner, 'foo_bar', None)\n", "attribute"),
    (RUNNER, "    hasattr(runner.model, 'foo_bar')\n", "attribute"),
    (RUNNER, "    [part.foo_bar for part in runner.model.layers]\n", "attribute"),
    (RUNNER, "    runner.model['foo_bar']\n", "key"),
    (RUNNER, "    vars(runner)['foo_bar']\n", "key"),
    (RUNNER, "    runner.model(foo_bar=1)\n", "argument"),
    (RUNNER, "    import vllm.foo_bar\n", "import"),
    (RUNNER, "    from vllm.config import foo_bar\n", "import"),
    (RUNNER, "    importlib.import_module('vllm.foo_bar')\n", "import"),
    ("    arguments: dict[str, Any] = {\n", '        "foo_bar": 1,\n', "argument"),
    ("    config = {", '"foo_bar": 1, ', "argument"),
    ('COUNTERS = {\n    "drafts": ', '"vllm:foo_bar" or ', "metric"),
]


@pytest.mark.parametrize(("after", "added", "kind"), ADDED, ids=[row[1].strip() for row in ADDED])
def test_another_name_in_the_child_is_seen(after: str, added: str, kind: str) -> None:
    texts = modules("vllm")
    path = next(path for path, text in texts.items() if after in text)
    texts[path] = texts[path].replace(after, after + added, 1)
    found = [(use.kind, re.split(r"[.:]", use.name)[-1]) for use in strangers("vllm", texts)]
    assert found == [(kind, "foo_bar")]


def names_of(code: str) -> set[tuple[str, str]]:
    return {(use.kind, use.name) for use in uses_in({"eaglectl/a.py": code}, "vllm")}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(x: Any): return x.a.b", {("attribute", "a"), ("attribute", "b")}),
        ("def f(x: Any):\n for y in x.a: y.b", {("attribute", "a"), ("attribute", "b")}),
        ("def f(x: Any):\n y = {'ours': x}\n return y['ours'].a", {("attribute", "a")}),
        ("def f(x: Any): g(x)\ndef g(y): return y.a", {("attribute", "a")}),
        (
            "def f(x: Any): g(x)\ndef g(y: dict[str, Any]): return y['a'], y.get('b'), 'c' in y",
            {("key", "a"), ("key", "b"), ("key", "c")},
        ),
        ("def g(x: Any) -> Any: return x\ndef f(x: Any): return g(x).a", {("attribute", "a")}),
        ("KEY = 'a'\ndef f(x: Any): return getattr(x, KEY)", {("attribute", "a")}),
        (
            "ALL = {'one': 'a', 'two': 'b'}\ndef f(x: Any):\n return [getattr(x, k) for _, k in ALL.items()]",
            {("attribute", "a"), ("attribute", "b")},
        ),
        ("def f(x: Any, name: str): return getattr(x, name)", {("attribute", "<name>")}),
        ("class Ours:\n held: Any = None\ndef f(): return Ours.held.a", {("attribute", "a")}),
        (
            "from vllm import A\nclass B(A):\n def c(self): return self.d + super().e",
            {("import", "vllm.A"), ("attribute", "c"), ("attribute", "d"), ("attribute", "e")},
        ),
        (
            "from vllm import A\ndef f():\n a = {'b': {'c': 1}}\n a['d'] = 2\n a |= g()\n A(**a, e=3)\n"
            "def g(): return {'f': 4} | h(5)\ndef h(x): return {'i': x}",
            {("import", "vllm.A"), *(("argument", name) for name in "bcdefi")},
        ),
        (
            "from vllm import A\ndef start(a): return A(**a)\ndef f(): return start({'b': 1})",
            {("import", "vllm.A"), ("argument", "b")},
        ),
        (
            "from vllm import A\ndef f(): return A(backend='CPU_MLA')",
            {("import", "vllm.A"), ("argument", "backend"), ("value", "backend: CPU_MLA")},
        ),
        ("def f(x: Any): x.a = 1", {("attribute", "a")}),
        ("def f(x: Any): return x.__name__ == '_norm'", {("attribute", "_norm")}),
    ],
)
def test_names_are_followed_through_code(code: str, names: set[tuple[str, str]]) -> None:
    assert names_of(code) == names


@pytest.mark.parametrize(
    "code",
    [
        "import json\ndef f(text: str): return json.loads(text)['ours']",
        "def f(x: Any): return str(x).removeprefix('torch.')",
        "def f(request: dict[str, Any]): return request['ours'], request.get('ours')",
        "def f(x: Any) -> dict[str, Any]: return {'ours': int(x)}\ndef g(x: Any): return f(x)['ours']",
        "def f(model: Any):\n for p in model.parameters(): p.data.copy_(p.dtype)",
        "def f(llm: Any): return {'ours': type(llm).__name__}",
    ],
)
def test_what_is_ours_or_torchs_is_no_name_of_the_engine(code: str) -> None:
    assert names_of(code) == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_each_name_says_where_it_is_and_in_which_releases(engine: str) -> None:
    rows = TABLE[engine]["names"]
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert row["kind"] in KINDS
        assert row["where"].keys() == row["releases"].keys(), row["name"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_that_some_release_lacks_says_what_is_done_without_it(engine: str) -> None:
    first = f">={TABLE[engine]['read'][0]}"
    for row in TABLE[engine]["names"]:
        if set(row["releases"].values()) != {first}:
            assert row.get("without"), row["name"]


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
