"""Words from files: names and values that forge lines, hide text or command a CI system, in every place."""

import ast
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.progress import Progress
from eaglectl.report.documents import as_json
from eaglectl.terminal import OutputSettings, ProgressBar
from eaglectl.text import INVISIBLE, LONGEST, inert, printable
from tests import servers
from tests.builders import (
    Outcome,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    framed,
    safetensors_bytes,
    sharded_folder,
)
from tests.hub import LoopbackHub, publisher
from tests.modules import modules
from tests.pages import read_page

# a forged line, a command for GitHub, one for Azure, hidden and reversed text, HTML, Markdown, front matter
EVIL = (
    "w\nPASS-forged\r\n::error::forged\x1b[2K\x1b]0;t\x07\x08\u202e\u200b\ufe0f\u3164\U000e0041 ##[error]f"
    " ##vso[task]f <forged a='b'> | `c` [l](http://f) ``` \n---\nforged: yes\n---\n\x85\u2028\x7f"
)
# the same for a file's name, which holds less and no slash
FILE = "w\nPASS-forged\n::error::forged\x1b[2K\u202e\u200b ##[error]f <forged>|`c`"
# what JSON can hold and UTF-8 cannot
HALF = "\ud800"


hub = publisher


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)


# what `upload` asks for; a plant in README.md may state it too
ANSWERS = ("--license", "mit", "--base-model", "example/target-8b")
# the plants: each makes a folder with words in one place


def in_config(**changes: Any) -> Callable[[Path], Path]:
    return lambda parent: drafter_folder(parent, config=drafter_config(**changes))


def in_file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def plant(parent: Path) -> Path:
        folder = drafter_folder(parent)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return plant


def in_tensor_name(parent: Path) -> Path:
    return drafter_folder(parent, tensors={EVIL: floats("a", 2), f"layers.0.{EVIL}.weight": floats("b", 2)})


def in_side_names(parent: Path) -> Path:
    folder = drafter_folder(parent)
    for name in (f"{FILE}.txt", f"{FILE}.py", f"LICENSE-{FILE}", f"{FILE}.safetensors.part"):
        (folder / name).write_text("x")
    (folder / f"dir{FILE}").mkdir()
    (folder / f"dir{FILE}" / f"{FILE}.json").write_text("{}")
    return folder


def in_weights_name(parent: Path) -> Path:
    folder = drafter_folder(parent)
    (folder / "model.safetensors").rename(folder / f"{FILE}.safetensors")
    return folder


def in_shard_name(parent: Path) -> Path:
    folder = sharded_folder(parent)
    shard = min(folder.glob("model-*.safetensors"))
    shard.rename(folder / f"{FILE}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(shard.name, json.dumps(f"{FILE}.safetensors")[1:-1]))
    return folder


VERIFIER = {"name_or_path": EVIL, "architectures": [EVIL], EVIL: EVIL}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "speculators_version": EVIL,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": EVIL,
        "proposal_methods": [{"proposal_type": EVIL, "verifier_accept_k": EVIL}],
        "verifier": VERIFIER,
    },
}
RECORD = {
    "source": {"producer": EVIL, "layout": EVIL, "files": {EVIL: {"sha256": EVIL, "size": 1}}},
    "tensors": {EVIL: EVIL},
    "upgrade": {"fc_norm": EVIL, "norm_output": EVIL, "calibration": None},
    "gate": {"engine": EVIL, "device": EVIL, "dtype": EVIL, "prompts": 3, "tolerance": 0.9, "rows": []},
    "files": {EVIL: {"sha256": EVIL, "size": 3}},
    EVIL: EVIL,
}
DTYPE = {"dtype": EVIL, "shape": [1], "data_offsets": [0, 4]}
PLANTS: dict[str, Callable[[Path], Path]] = {
    "tensor name": in_tensor_name,
    "metadata of safetensors": in_file(
        "model.safetensors", safetensors_bytes(drafter_tensors(), {"format": EVIL, EVIL: EVIL})
    ),
    "dtype": in_file("model.safetensors", framed(json.dumps({"fc.weight": DTYPE}).encode(), b"abcd")),
    "folder name": lambda parent: drafter_folder(parent, FILE),
    "names of other files": in_side_names,
    "name of the weights": in_weights_name,
    "shard name": in_shard_name,
    "shard that is not there": lambda parent: sharded_folder(
        parent, weight_map={"fc.weight": f"{EVIL}.safetensors", EVIL: EVIL}
    ),
    "config key": in_config(**{EVIL: EVIL, f"{EVIL}_norm": True, f"aux_{EVIL}_layer_ids": [1, 2, 3]}),
    "key below eagle_config": in_config(eagle_config={EVIL: EVIL, f"layer_ids{EVIL}": [EVIL]}),
    "architectures": in_config(architectures=["LlamaForCausalLMEagle3", EVIL]),
    "only architecture": in_config(architectures=[EVIL]),
    "model_type": in_config(model_type=EVIL),
    "torch_dtype": in_config(torch_dtype=EVIL, dtype=EVIL),
    "hidden_act": in_config(hidden_act=EVIL),
    "number": in_config(hidden_size=EVIL),
    "switch": in_config(norm_output=EVIL),
    "layer ids": in_config(eagle_aux_hidden_state_layer_ids=[EVIL]),
    "rope": in_config(rope_scaling={"rope_type": EVIL, "factor": 2.0, EVIL: EVIL}),
    "quantisation": in_config(quantization_config={"quant_method": EVIL, "ignore": [EVIL], EVIL: EVIL}),
    "half a pair": in_config(model_type=HALF, **{HALF: HALF}),
    "producer's fields": in_config(**SPECULATORS),
    "verifier name": in_config(speculators_config={"verifier": VERIFIER}, target_model_name_or_path=EVIL),
    "sliding window": in_config(sliding_window=EVIL, use_sliding_window=True, layer_types=[EVIL]),
    "record": in_file("eaglectl.json", json.dumps(RECORD)),
    "list of digests": in_file("SHA256SUMS", f"{'0' * 64}  {EVIL}\n{'0' * 64}  {FILE}\n{EVIL}\n"),
    "card": in_file("README.md", f"---\nlicense: {EVIL}\nbase_model: '{EVIL}'\ntags: [{EVIL}]\n---\n{EVIL}"),
    "tokenizer": in_file("tokenizer_config.json", json.dumps({"auto_map": {EVIL: EVIL}, "eos_token": EVIL})),
    "generation config": in_file("generation_config.json", json.dumps({EVIL: EVIL})),
    "quantisation of ModelOpt": in_file(
        "hf_quant_config.json", json.dumps({"quantization": {"quant_algo": EVIL, EVIL: EVIL}})
    ),
    "no JSON": in_file("config.json", f"{{{EVIL}"),
}

FORMATS = ("text", "json", "junit", "sarif", "github", "markdown")
OUTPUTS = [f"--output={name}=report.{name}" for name in FORMATS]
COMMANDS: dict[str, list[str]] = {
    "inspect": ["inspect", "IT", "--page", "page.html"],
    "inspect json": ["inspect", "IT", "--json"],
    "inspect two": ["inspect", "IT", "GOOD", "--page", "page.html"],
    "validate": ["validate", "IT", "--engine", "vllm", "--engine", "sglang", "--page", "page.html", *OUTPUTS],
    "validate two": ["validate", "IT", "GOOD", "--target", "GOOD"],
    **{f"validate {name}": ["validate", "IT", "--format", name] for name in FORMATS},
    "convert plan": ["convert", "IT", "--dry-run"],
    "convert": ["-v", "convert", "IT", "-o", "out"],
    "convert json": ["convert", "IT", "-o", "out-json", "--json"],
    "convert for speculators": ["convert", "IT", "--for", "speculators", "-o", "speculators"],
    "convert without a tensor": ["convert", "IT", "--drop", EVIL, "-o", "dropped"],
    "convert init only": ["convert", "IT", "--to", "3.1", "--init-only", "-o", "init"],
    "diff": ["-v", "diff", "IT", "GOOD", "--page", "page.html"],
    "diff json": ["diff", "GOOD", "IT", "--json"],
    "verify": ["verify", "IT"],
    "verify json": ["verify", "IT", "--json"],
    "upload": ["upload", "IT", "org/drafter", *ANSWERS, "--dry-run"],
    "upload json": ["upload", "IT", "org/drafter", *ANSWERS, "--dry-run", "--json"],
    "smoke": ["smoke", "IT", "--target", "IT", "--run-in", "http://127.0.0.1:9", "--timeout", "1"],
    "diagnose": ["diagnose", "IT", "--target", "IT"],
    "diagnose json": ["diagnose", "IT", "--target", "IT", "--json"],
    "calibrate": ["calibrate", "IT", "--target", "IT", "-o", "statistics"],
}


OWN_COMMAND = re.compile(r"::(error|warning|notice) file=")


def faults(text: str, *, is_github: bool = False) -> Iterator[str]:
    """What is wrong with text that was printed or written."""
    for line in text.split("\n"):
        shown = line.lstrip()
        if not shown.isprintable() or re.search(INVISIBLE, line):
            yield f"not visible: {line!r}"
        if re.match(r"PASS-forged|forged:|error::", shown):
            yield f"a forged line: {line!r}"
        if re.search(r"##\w*\[", line):
            yield f"a command: {line!r}"
        if shown.startswith("::") and not (is_github and OWN_COMMAND.match(line)):
            yield f"a command: {line!r}"


def check_output(outcome: Outcome, arguments: list[str]) -> None:
    is_github = "github" in arguments
    assert list(faults(outcome.out, is_github=is_github)) == []
    assert list(faults(outcome.err)) == []
    assert outcome.code in (0, 1, 2, 3), outcome.err
    if outcome.out and ({"--json", "json", "sarif"} & set(arguments)):
        json.loads(outcome.out)
    if outcome.out and "junit" in arguments:
        ElementTree.fromstring(outcome.out)


def check_files(folder: Path) -> None:
    """Every report and card that was written."""
    for path in (*folder.glob("report.*"), *folder.glob("*.html")):
        text = path.read_text()
        assert list(faults(text, is_github=path.suffix == ".github")) == []
        if path.suffix in (".json", ".sarif"):
            json.loads(text)
        if path.suffix == ".html":
            read_page(text)
    for card in folder.glob("*/README.md"):
        if "Converted from" in (text := card.read_text()):
            check_card(text)


def check_card(text: str) -> None:
    assert list(faults(text)) == []
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {"library_name": "vllm", "tags": ["speculative-decoding", "eagle3"]}
    assert "<forged" not in body and not re.search(r"(?<!\\)\]\(", body)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafter_folder(tmp_path_factory.mktemp("good"), "good")


def placed(arguments: list[str], **places: Path) -> list[str | Path]:
    return [places.get(argument, argument) for argument in arguments]


CARDS = ("verifier name", "folder name", "metadata of safetensors")


def is_quick(plant: str, command: str) -> bool:
    """Whether this one is tried in every run: a tensor's name, the reports of validate, some cards."""
    return plant == "tensor name" or command == "validate" or (command == "convert" and plant in CARDS)


@pytest.mark.fast(11)
@pytest.mark.parametrize(
    ("plant", "command"),
    [
        pytest.param(plant, command, marks=[] if is_quick(plant, command) else [pytest.mark.slow])
        for plant, command in product(PLANTS, COMMANDS)
    ],
)
def test_no_words_of_a_file_reach_an_output_raw(plant: str, command: str, good: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    arguments = COMMANDS[command]
    check_output(call(*placed(arguments, IT=PLANTS[plant](tmp_path / "from"), GOOD=good)), arguments)
    check_files(tmp_path)
    assert plant not in CARDS or command != "convert" or (tmp_path / "out/README.md").exists()


def test_a_json_document_keeps_every_value_whole(tmp_path: Path) -> None:
    inspected = call("inspect", in_tensor_name(tmp_path), "--json").out
    assert inspected.isascii()
    document = json.loads(inspected)
    assert EVIL in [tensor["name"] for tensor in document["tensors"]]
    document = json.loads(call("validate", tmp_path / "drafter", "--json").out)
    assert f"tensor:{EVIL}" in [finding["where"] for finding in document["findings"]]


@settings(max_examples=30)
@given(st.recursive(st.text() | st.integers() | st.none(), st.lists) | st.dictionaries(st.text(), st.text()))
def test_json_says_what_it_was_given(document: Any) -> None:
    text = as_json(document)
    assert list(faults(text)) == []
    halves = re.compile("[\ud800-\udfff]")
    whole = halves.sub(lambda half: f"\\\\u{ord(half[0]):x}", json.dumps(document, ensure_ascii=False))
    assert json.loads(text) == json.loads(whole)


# the one place


WORDS = st.lists(
    st.sampled_from([EVIL, "##[", "::", " ", "#", "[", "\n", "a" * 400, "x" * 9]) | st.text()
).map("".join)


@example("##" + "a" * 460)  # where the cut must not write a bracket behind it
@given(WORDS)
def test_what_is_printable_is_one_visible_line_and_its_own_printable_form(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and not re.search(INVISIBLE, shown)
    assert len(shown) <= LONGEST
    assert not re.search(r"##\w*\[", shown)
    assert printable(shown) == shown


INERT = {
    "::error::x": r"\x3a:error::x",
    "  ::error::x": r"  \x3a:error::x",
    "\x1b[1m::add-mask::x": "\x1b[1m\\x3a:add-mask::x",
    "a ##[error]x": r"a #\x23[error]x",
    "##vso[task.setvariable]x": r"#\x23vso[task.setvariable]x",
    "a::b ## c [d]": "a::b ## c [d]",
}


def test_a_command_of_a_ci_system_is_broken_and_of_a_long_text_the_ends_are_kept() -> None:
    assert {line: inert(line) for line in INERT} == INERT
    shown = printable("a" + "x" * 1_000_000 + "z")
    assert shown.startswith("axxx") and shown.endswith("xxxz") and len(shown) == 288
    assert "(... 999,742 characters ...)" in shown


def test_a_progress_bar_shows_no_words_raw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        bar(Progress(f"hashing {EVIL}", 0, 10**9, "bytes"))
        assert list(faults(capsys.readouterr().err)) == []
        bar.has_terminal = True
        bar(Progress(f"[bold]reading {EVIL}", 0, 10, "files"))
        assert bar.bar is not None
        column: Any = bar.bar.columns[1]
        description = column.render(bar.bar.tasks[0]).plain
        assert list(faults(description)) == []
        assert description.startswith("[bold]reading w\\nPASS-")


def test_what_a_library_prints_is_guarded() -> None:
    code = f"""
import logging, sys, warnings
from eaglectl.terminal import guard_streams
guard_streams()
warnings.warn({EVIL!r})
logging.getLogger("x").warning({EVIL!r})
print({EVIL!r})
sys.stdout.write({EVIL!r} + chr(10))
sys.stdout.writelines([{EVIL!r}])
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(eaglectl.__file__).parent.parent)},
        check=True,
    )
    for text in (done.stdout.decode(), done.stderr.decode()):
        assert text.count("PASS-forged") >= 2
        # a line break of a library is its own: what it prints is not a value but text
        assert not [fault for fault in faults(text) if not fault.startswith("a forged line")]


def test_what_was_not_expected_is_named_in_one_line() -> None:
    for arguments in (["inspect", f"--{EVIL}", "x"], ["verify", "x", EVIL], [EVIL]):
        outcome = call(*arguments)
        assert outcome.code == 2 and list(faults(outcome.err)) == []


def test_a_fault_of_eaglectl_shows_no_words_raw(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, good: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL.replace("\n", " "))

    monkeypatch.setattr("eaglectl.api.inspect.launch_commands", fail)
    outcome = call("inspect", good)
    assert outcome.code == 70 and "please report it" in outcome.err
    assert list(faults(outcome.err)) == []


# long and many


EXTRA = {"a long name": ["x" * 1_000_000], "many": [f"layers.0.extra_{i:05}.weight" for i in range(10_000)]}
SIZED: dict[str, list[str]] = {
    "inspect": ["inspect", "IT"],
    "inspect tensors": ["-v", "inspect", "IT"],
    "convert plan": ["convert", "IT", "--dry-run"],
    "convert without another": ["convert", "IT", "--dry-run", "--drop", "x"],
    "validate": ["validate", "IT", "--headers-only"],
    "validate github": ["validate", "IT", "--headers-only", "--format", "github"],
    "validate markdown": ["validate", "IT", "--headers-only", "--format", "markdown"],
    "diff": ["diff", "IT", "GOOD", "--headers-only"],
    "verify": ["verify", "IT"],
    "upload": ["upload", "IT", "org/drafter", *ANSWERS, "--dry-run"],
}


@pytest.mark.fast(4)
@pytest.mark.parametrize("command", SIZED)
@pytest.mark.parametrize("extra", ["a long name", pytest.param("many", marks=pytest.mark.slow)])
def test_an_output_stays_small(extra: str, command: str, good: Path, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors=dict.fromkeys(EXTRA[extra], floats("x", 2)))
    outcome = call(*placed(SIZED[command], IT=folder, GOOD=good))
    assert outcome.code in (0, 1, 2, 3), outcome.err
    assert len(outcome.out) + len(outcome.err) < 20_000


# nothing prints by another way


# besides the terminal, modules of a child process, whose streams are pipes to eaglectl
PRINTERS = ("terminal.py", "report/terminal.py", "run/vllm/", "__main__.py")
PRINTS = re.compile(
    r"(builtins\.)?print|(sys\.)?(stdout|stderr|__stdout__|__stderr__)\.(write|writelines|buffer\.write)"
    r"|(typer|click)\.(echo|secho)|traceback\.print_\w+|logging\.(basicConfig|StreamHandler)"
    r"|RichConsole|rich\.print|pprint(\.pprint)?|warnings\.warn"
)
# what writes a whole document, and what renders one that is safe
EMITTED = re.compile(
    r"[\w.]+\.to_json\(\)|render_json\(.*\)|outputs\.render\(.*\)|as_json\(document\)|SCRIPTS\[shell\].*"
)


def printing_calls(name: str, module: ast.Module) -> list[str]:
    """Calls of the module `name` that print by another way than the terminal's."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    functions = {ast.unparse(node.func) for node in calls}
    emitted = {ast.unparse(node.args[0]) for node in calls if ast.unparse(node.func) == "emit"}
    wrong = {argument for argument in emitted if not EMITTED.fullmatch(argument)}
    if not name.startswith(PRINTERS):
        wrong |= {function for function in functions if PRINTS.fullmatch(function)}
        wrong |= functions & {"guard_streams", "sys.stdout.flush"} if name != "cli/__init__.py" else set()
    return [f"{name}: {code}" for code in sorted(wrong)]


@pytest.mark.slow
def test_only_the_terminal_prints() -> None:
    lines = [printing_calls(name, module) for name, module in modules().items()]
    assert [line for line in lines if line] == []
    for code in ("print('x')", "sys.stderr.write('x')", "typer.echo('x')", "RichConsole()"):
        assert printing_calls("module.py", ast.parse(code))


# words of servers


def test_names_on_the_hub_reach_no_output_raw(
    hub: LoopbackHub, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    files = {f"{FILE}.safetensors": b"x", f"{FILE}/{FILE}.txt": b"y", "config.json": b"{}"}
    hub.add_repo("org/drafter", files)
    for arguments in (["--dry-run"], ["--dry-run", "--json"], []):
        outcome = call("upload", good, "org/drafter", *ANSWERS, *arguments)
        check_output(outcome, arguments)
        assert "forged" in outcome.out
    check_output(call("inspect", "org/drafter"), [])


@pytest.mark.parametrize("is_json", [False, True])
def test_a_servers_words_reach_no_output_raw(is_json: bool, good: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": EVIL, "set": EVIL}) + '\n{"prompt": "x", "set": "b"}')
    info = {**servers.INFO, "version": EVIL, "speculative_draft_model_path": EVIL}
    pages = {**servers.SGLANG, "/v1/models": {"data": [{"id": EVIL}]}, "/server_info": info}
    arguments = ["smoke", str(good), "--target", str(good), "--prompts", str(prompts), "--page", "page.html"]
    arguments += ["--json"] if is_json else []
    with servers.server(pages, []) as url:
        check_output(call(*arguments, "--run-in", url), arguments)
    check_files(tmp_path)


@pytest.mark.parametrize("name", [EVIL, "'; rm -rf ~; '" * 1000], ids=["evil", "long"])
def test_a_name_that_cannot_be_shown_whole_is_copied_into_no_command(name: str, tmp_path: Path) -> None:
    verifier = {"verifier": {"name_or_path": name}}
    folder = drafter_folder(tmp_path, config={"speculators_config": verifier})
    assert "vllm serve TARGET --speculative-config" in call("-v", "inspect", folder).out
