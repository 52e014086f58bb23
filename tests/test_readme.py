"""README.md and docs/ show real output: their blocks are compared, their other commands run or parsed."""

import importlib.util
import os
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from docs import blocks
from eaglectl.cli.app import make_app
from eaglectl.engines.registry import ENGINES
from tests.builders import call
from tests.conftest import FIXTURES
from tests.hub import PUBLISHER, User, publishing_hub
from tests.tiny import TARGET, TINY, cut_prompts

ROOT = FIXTURES.parent
README = ROOT / "README.md"
PAGES = {path.name: path.read_text() for path in blocks.pages()}
OUTPUTS = [(name, *block) for name, text in PAGES.items() for block in blocks.OUTPUT.findall(text)]
COMMANDS = [(name, line) for name, text in PAGES.items() for line in blocks.shell_commands(text)]
UPGRADE = ("calibrate", "--to 3.1")  # over all prompts of the trained pair


def word_count(text: str) -> int:
    return len(re.findall(r"(?m)\S*[A-Za-z0-9]\S*", text))


def test_thirty_seconds_of_the_readme_show_what_it_is_for_whom_and_the_command() -> None:
    readme = PAGES["README.md"]
    assert word_count(readme) <= 650
    first = " ".join(readme.split()[:120])
    assert re.search(r"^# eaglectl For people who train, serve or release EAGLE-3 drafters: ", first)
    assert (
        "$ eaglectl ready mine --target target" in first and "converted 2.78 tokens per target step" in first
    )


def test_what_ran_where_has_the_sums_of_the_records() -> None:
    text = " ".join(README.read_text().split())
    sums = []
    for engine in ("vllm", "sglang", "llama.cpp"):
        *earlier, _ = ENGINES[engine].runs.values()
        records = [record for runners in earlier for record in runners.values()]
        sums.append((sum(r.drafters for r in records), sum(r.agreed for r in records)))
    (vllm, agreed), (sglang, sglang_agreed), (llamacpp, llamacpp_agreed) = sums
    assert f", {vllm} runs of drafters" in text and f", {sglang} runs: " in text
    assert f"it agrees on {agreed} and {sglang_agreed}." in text
    assert f"0.3.35, {llamacpp} runs: on {llamacpp_agreed}," in text


def test_a_person_reads_fourteen_pages_of_150_lines() -> None:
    generated = ("commands.md", "rules.md")
    pages = [README, ROOT / "CONTRIBUTING.md", *blocks.DOCS.glob("*.md")]
    texts = {path.name: path.read_text() for path in pages if path.name not in generated}
    assert len(texts) <= 14
    assert {name for name, text in texts.items() if text.count("\n") > 150} == set()
    assert sum(len(text.split()) for text in texts.values()) <= 20_000


def test_the_documentation_has_20_000_words_without_the_lists_of_rules_commands_and_targets() -> None:
    lists = ("rules.md", "commands.md", "targets.md")
    texts = [path.read_text() for path in blocks.DOCS.rglob("*.md") if path.name not in lists]
    assert sum(len(text.split()) for text in texts) <= 20_000


# of the program itself, which every command-line program has
GENERAL = {"--help", "--version"}


def options_of_commands() -> dict[str, tuple[str, ...]]:
    """Every option of `--help-all` with its spellings."""
    root: Any = typer.main.get_command(make_app(None))
    commands = [root, *root.commands.values()]
    commands += [below for command in commands[1:] for below in getattr(command, "commands", {}).values()]
    options = [part for command in commands for part in command.params if part.param_type_name == "option"]
    return {max(option.opts, key=len): (*option.opts, *option.secondary_opts) for option in options}


def test_each_option_stands_on_a_page_with_the_case_that_needs_it() -> None:
    options, pages = (
        options_of_commands(),
        {**PAGES, "trainers.md": (blocks.DOCS / "trainers.md").read_text()},
    )
    assert len(options) > 80
    named = {word for text in pages.values() for word in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text)}
    assert {name for name, spellings in options.items() if named.isdisjoint(spellings)} == GENERAL


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each page the folder that its blocks write to and later ones read."""
    folders = {name: tmp_path_factory.mktemp("page") for name in PAGES}
    for folder in folders.values():
        blocks.link_checkout(folder)
    return folders


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [
        pytest.param(
            *block,
            id=f"{block[0]}: {block[1]}",
            marks=[pytest.mark.slow] * any(word in block[1] for word in UPGRADE),
        )
        for block in OUTPUTS
    ],
)
def test_a_block_is_what_its_command_prints(
    page: str, command: str, shown: str, outs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outs[page])
    has_figures = not blocks.RUNS_MODELS.isdisjoint(command.split())
    if has_figures:
        pytest.importorskip("transformers")
    text = blocks.printed(command)
    assert timeless(text, has_figures=has_figures) == timeless(shown, has_figures=has_figures)


def timeless(text: str, *, has_figures: bool) -> list[str]:
    """The text without times; if a model ran (`has_figures`), without figures and alignment."""
    text = re.sub(r"in \d+\.\d+ s", "in 0.00 s", text)
    text = re.sub(r"\d+ passed", "# passed", text)  # rules are added
    if has_figures:
        text = re.sub(r" +", " ", re.sub(r"-?\d[\d.,+a-z]*%?", "#", text))
    return [line.rstrip() for line in text.rstrip().splitlines()]


# commands of eaglectl that the tests parse and do not run, each with the reason
PARSED = {
    r"--run-in (vllm|sglang)\b": "an engine, and mostly several GPUs",
    r"--run-in http:": "a running server; tests/engine/test_serve.py measures one",
    r"--target-rotation ": "a rotated target; tests/test_target_rotation.py makes one",
}
# programs that are not eaglectl's
OTHERS = {
    r"^pip install '?\.": "the network; `make wheel` installs and runs the package",
    r"^make ": "targets of the Makefile, which are looked up below",
    r"^(EAGLECTL_\w+=\d+ )?\.venv/bin/python -m pytest ": "tests, which are looked up below",
    r"^vllm serve ": "an engine",
    r"^python -m vllm\.": "an engine; tests/engine/test_serve.py starts it so",
    r"^model_signing ": "another package; tests/test_upload.py runs both lines",
}
# a model runs
SLOW = r"^eaglectl (smoke|diagnose|calibrate|ready) | --to 3\.1 "
# exit codes other than 0 that a page's command ends in here, each with the reason
EXITS = {r"^eaglectl diagnose .*--engine vllm ": (3, "vLLM is not installed where these tests run")}


def kind(line: str) -> str:
    """How a command is tested: "run", "slow", "parsed" or "other"."""
    if not line.startswith("eaglectl "):
        return "other"
    if any(re.search(pattern, line) for pattern in PARSED):
        return "parsed"
    return "slow" if re.search(SLOW, line) else "run"


def of_kind(*kinds: str) -> list[Any]:
    return [
        pytest.param(page, line, id=f"{page}: {line}", marks=[pytest.mark.slow] * (kind(line) == "slow"))
        for page, line in COMMANDS
        if kind(line) in kinds
    ]


@pytest.mark.parametrize("pattern", [*PARSED, *OTHERS])
def test_a_reason_not_to_run_is_that_of_a_command(pattern: str) -> None:
    assert any(re.search(pattern, line) for _, line in COMMANDS)


def fill(root: Path) -> None:
    """Put what the commands of the pages read into a folder."""
    for drafter in ("my-drafter", "old-drafter", "drafters/llama"):
        shutil.copytree(TINY / "eagle3", root / drafter)
    shutil.copytree(TARGET, root / "my-target")
    (root / "traffic.jsonl").write_text(cut_prompts("prompts.jsonl", 6))


RUN = {
    name: [line for page, line in COMMANDS if page == name and kind(line) in ("run", "slow")]
    for name in PAGES
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[pytest.mark.slow] * any(kind(line) == "slow" for line in lines))
        for name, lines in RUN.items()
        if lines
    ],
)
def test_the_commands_of_a_page_run_in_their_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(kind(line) == "slow" for line in RUN[page]):
        pytest.importorskip("transformers")
    fill(tmp_path)
    with publishing_hub(monkeypatch, tmp_path) as hub:  # in this folder
        hub.users = {PUBLISHER: User("alice", ("my-org",))}
        codes = {line: call(*words(line)).code for line in RUN[page]}
    assert codes == {line: expected_code(line) for line in RUN[page]}


def test_an_exit_code_other_than_0_is_that_of_a_command() -> None:
    assert {pattern for pattern in EXITS if any(re.search(pattern, line) for _, line in COMMANDS)} == {*EXITS}


def expected_code(line: str) -> int:
    """The exit code that the page says or implies: 0, but for EXITS."""
    return next((code for pattern, (code, _) in EXITS.items() if re.search(pattern, line)), 0)


def words(line: str) -> list[str]:
    """The words of a command behind the program's name, as the shell gives them."""
    return [part for word in shlex.split(line)[1:] for part in expanded(word)]


def expanded(word: str) -> list[str]:
    """What the shell makes of a word with a star."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


@pytest.mark.parametrize(("page", "line"), of_kind("parsed"))
def test_a_command_that_is_not_run_is_parsed(page: str, line: str) -> None:
    root: Any = typer.main.get_command(make_app(None))
    _, verb, *words = shlex.split(line)
    assert root.commands[verb].make_context(verb, words).params


@pytest.mark.parametrize(("page", "line"), of_kind("other"))
def test_another_programs_command_has_what_it_names(page: str, line: str) -> None:
    assert any(re.search(pattern, line) for pattern in OTHERS), f"run it, or say in OTHERS why not: {line}"
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert targets and all(
            re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) for target in targets
        )
    assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


SCRIPTS = re.findall(r"^```python\n(.*?)^```", PAGES["python.md"], re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_scripts_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    first, *others = (compile(script, "python.md", "exec") for script in SCRIPTS)
    exec(first, {})
    assert capsys.readouterr().out == "planned\n"
    for script in others:
        exec(script, {})


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            {"my-drafter": "producers/specforge/gqa-ids", "my-target": "target"},
            "not served as trained; run: eaglectl convert my-drafter",
        ),
        ({}, "unreadable: my-"),
    ],
)
def test_the_script_of_the_python_page_stops_at_a_finding_and_names_the_kind_of_an_error(
    links: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, place in links.items():
        (tmp_path / name).symlink_to(FIXTURES / place)
    with pytest.raises(SystemExit, match=words):
        exec(compile(SCRIPTS[0], "python.md", "exec"), {})


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(blocks.DOCS))
    return importlib.import_module("make")


LONG = {"mistakes_page", "agreement", "as_published", "open_facts", "ready_page", "round_trips"}
MAKE = (blocks.DOCS / "make.py").read_text()
GENERATED = re.findall(r"^    (\w+),$", MAKE.partition("GENERATED = (")[2], re.M)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in GENERATED]
)
def test_a_generated_page_is_up_to_date(name: str, make: Any) -> None:
    module = getattr(make, name)
    assert module.PAGE.read_text() == module.page(), "run `make docs`"


def test_the_page_of_a_trainer_is_up_to_date(make: Any) -> None:
    text = (blocks.DOCS / "reference/trainers/speculators.md").read_text()
    assert make.trainers.section("speculators") == text, "run `make docs`"


ROWS = re.findall(r"^\| \[(.*?)\]\(docs/reference/trainers/.*?\) \| (.*) \|$", PAGES["README.md"], re.M)


@pytest.mark.fast(4)
@pytest.mark.parametrize(("title", "words"), ROWS, ids=[title for title, _ in ROWS])
def test_a_row_of_readmes_table_is_what_its_folder_takes(title: str, words: str, make: Any) -> None:
    variant = next(row for row in make.trainers.VARIANTS if row.title == title)
    assert words.split(" | ") == [make.trainers.word(variant, engine) for engine in make.trainers.ENGINES]


@pytest.mark.slow
def test_the_pages_of_trainers_and_the_picture_of_mistakes_are_up_to_date(make: Any) -> None:
    assert make.mistakes_page.PICTURE.read_text() == make.mistakes_page.drawing(), "run `make docs`"
    pages = make.trainers.pages()
    assert {page: page.read_text() for page in pages} == pages, "run `make docs`"
    assert set((blocks.DOCS / "reference/trainers").glob("*.md")) < set(pages)


def test_files_and_modules_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:eaglectl|tests|docs|tools|fixtures|schemas)/[\w./-]+)`", text)
    paths = [path for path in named if not re.search("NAME|COMMAND|ENGINE|CASE", path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = set(re.findall(r"python -m ((?:tests|tools|benchmarks)\.[\w.]*\w)", text))
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()


SOURCES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "fixtures/**/README.md", "tests/**/README.md")
MARKDOWN = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = blocks.FENCE.sub("", path.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        place, _, anchor = link.partition("#")
        there = Path(os.path.normpath(path.parent / place)) if place else path
        assert there.exists(), link
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), link


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of headings as GitHub and mkdocs make them."""
    heads = re.findall(r"^#+ (.*)$", blocks.FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_every_page_is_linked_and_the_site_leads_to_it() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = set(blocks.DOCS.rglob("*.md"))
    named = {blocks.DOCS / name for name in re.findall(r"[\w/.-]+\.md", str(site["nav"]))}
    assert named == {blocks.DOCS / "index.md", *pages}
    linked = {
        (path.parent / link).resolve()
        for path in MARKDOWN
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text())
    }
    assert pages <= linked
    names = {path.name for path in blocks.DOCS.glob("*.md")}
    assert {name for name in names if f"docs/{name}" not in PAGES["README.md"]} == set()
