"""Words from files: names and values that forge lines, hide text or command a CI system, in every place."""

import ast
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import eaglectl
from eaglectl.progress import Progress
from eaglectl.report.documents.document import as_json
from eaglectl.terminal import OutputSettings, ProgressBar, say
from eaglectl.text import INVISIBLE, LONGEST, as_markdown, inert, listed, printable
from tests import servers, test_upload
from tests.builders import (
    Outcome,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    sharded_folder,
    write_safetensors,
)
from tests.hub import LoopbackHub
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


hub = test_upload.hub


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


def in_file(name: str, text: str) -> Callable[[Path], Path]:
    def plant(parent: Path) -> Path:
        folder = drafter_folder(parent)
        (folder / name).write_text(text, encoding="utf-8")
        return folder

    return plant


def in_tensor_name(parent: Path) -> Path:
    folder = drafter_folder(parent)
    tensors = {**drafter_tensors(), EVIL: floats("a", 2), f"layers.0.{EVIL}.weight": floats("b", 2)}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def in_metadata(parent: Path) -> Path:
    folder = drafter_folder(parent)
    write_safetensors(folder / "model.safetensors", drafter_tensors(), {"format": EVIL, EVIL: EVIL})
    return folder


def in_dtype(parent: Path) -> Path:
    folder = drafter_folder(parent)
    header = json.dumps({"fc.weight": {"dtype": EVIL, "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    return folder


def in_folder_name(parent: Path) -> Path:
    return drafter_folder(parent, FILE)


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
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = next(iter(index["weight_map"].values()))
    (folder / shard).rename(folder / f"{FILE}.safetensors")
    names = {shard: f"{FILE}.safetensors"}
    index["weight_map"] = {name: names.get(file, file) for name, file in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def in_missing_shard(parent: Path) -> Path:
    return sharded_folder(parent, weight_map={"fc.weight": f"{EVIL}.safetensors", EVIL: EVIL})


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
PLANTS: dict[str, Callable[[Path], Path]] = {
    "tensor name": in_tensor_name,
    "metadata of safetensors": in_metadata,
    "dtype": in_dtype,
    "folder name": in_folder_name,
    "names of other files": in_side_names,
    "name of the weights": in_weights_name,
    "shard name": in_shard_name,
    "shard that is not there": in_missing_shard,
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
    "inspect": ["inspect", "IT", "--tensors", "--page", "page.html"],
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
        if not shown.isprintable() or INVISIBLE.search(line):
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
    for path in folder.glob("report.*"):
        kind = path.suffix[1:]
        text = path.read_text(encoding="utf-8")
        assert list(faults(text, is_github=kind == "github")) == []
        if kind in ("json", "sarif"):
            json.loads(text)
        path.unlink()
    for path in folder.glob("*.html"):
        page = path.read_text(encoding="utf-8")
        read_page(page)
        assert list(faults(page)) == []
        path.unlink()
    for card in folder.glob("*/README.md"):
        text = card.read_text(encoding="utf-8")
        if "Converted from" in text:
            check_card(text)


def check_card(text: str) -> None:
    assert list(faults(text)) == []
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {"library_name": "vllm", "tags": ["speculative-decoding", "eagle3"]}
    assert "<forged" not in body and not re.search(r"(?<!\\)\]\(", body)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafter_folder(tmp_path_factory.mktemp("good"), "good")


def run_over(folder: Path, good: Path, name: str) -> None:
    places = {"IT": str(folder), "GOOD": str(good)}
    arguments = COMMANDS[name]
    outcome = call(*(places.get(argument, argument) for argument in arguments))
    check_output(outcome, arguments)
    check_files(Path.cwd())


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("plant", PLANTS)
def test_no_words_of_a_file_reach_an_output_raw(plant: str, command: str, good: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run_over(PLANTS[plant](tmp_path / "from"), good, command)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tensors_name_reaches_no_output_raw(command: str, good: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run_over(in_tensor_name(tmp_path / "from"), good, command)


@pytest.mark.parametrize("plant", PLANTS)
def test_no_words_reach_the_reports_of_validate_raw(plant: str, good: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run_over(PLANTS[plant](tmp_path / "from"), good, "validate")


@pytest.mark.parametrize("plant", ["verifier name", "folder name", "metadata of safetensors"])
def test_no_words_reach_the_card_of_a_conversion_raw(plant: str, good: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run_over(PLANTS[plant](tmp_path / "from"), good, "convert")
    assert (tmp_path / "out/README.md").exists()


def test_a_json_document_keeps_every_value_whole(tmp_path: Path) -> None:
    inspected = call("inspect", in_tensor_name(tmp_path), "--json").out
    assert inspected.isascii()
    document = json.loads(inspected)
    assert EVIL in [tensor["name"] for tensor in document["tensors"]]
    document = json.loads(call("validate", tmp_path / "drafter", "--json").out)
    assert f"tensor:{EVIL}" in [finding["where"] for finding in document["findings"]]


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists) | st.dictionaries(st.text(), st.text()))
def test_json_says_what_it_was_given(document: Any) -> None:
    text = as_json(document)
    assert list(faults(text)) == []
    lone = re.compile("[\ud800-\udfff]")

    def without_halves(value: Any) -> Any:
        if isinstance(value, str):
            return lone.sub(lambda half: f"\\u{ord(half[0]):x}", value)
        if isinstance(value, list):
            return [without_halves(item) for item in value]
        if isinstance(value, dict):
            return {without_halves(key): without_halves(item) for key, item in value.items()}
        return value

    assert json.loads(text) == without_halves(document)


# the one place


WORDS = st.lists(
    st.sampled_from([EVIL, "##[", "::", " ", "#", "[", "\n", "a" * 400, "x" * 9]) | st.text()
).map("".join)


@example("##" + "a" * 460)  # where the cut must not write a bracket behind it
@given(WORDS)
def test_what_is_printable_is_one_visible_line_and_its_own_printable_form(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and not INVISIBLE.search(shown)
    assert len(shown) <= LONGEST
    assert not re.search(r"##\w*\[", shown)
    assert printable(shown) == shown


@given(WORDS)
def test_a_line_of_output_commands_nothing(text: str) -> None:
    assert list(faults(inert(printable(text)))) == [] or re.match(r"\s*(forged:|error::|PASS)", text)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::x", r"\x3a:error::x"),
        ("  ::error::x", r"  \x3a:error::x"),
        ("\x1b[1m::add-mask::x", "\x1b[1m\\x3a:add-mask::x"),
        ("a ##[error]x", r"a #\x23[error]x"),
        ("##vso[task.setvariable]x", r"#\x23vso[task.setvariable]x"),
        ("a::b ## c [d]", "a::b ## c [d]"),
    ],
)
def test_a_command_of_a_ci_system_is_broken(line: str, shown: str) -> None:
    assert inert(line) == shown


@pytest.mark.parametrize("code", [0x00, 0x0A, 0x1B, 0x7F, 0x85, 0xAD, 0x200B, 0x202E, 0x2066, 0x2800, 0x3164])
def test_an_invisible_character_is_shown_as_its_escape(code: int) -> None:
    assert printable(chr(code)) in (rf"\x{code:02x}", rf"\u{code:04x}", r"\n")


def test_a_long_text_keeps_its_ends_and_tells_what_is_left_out() -> None:
    shown = printable("a" + "x" * 1_000_000 + "z")
    assert shown.startswith("axxx") and shown.endswith("xxxz") and len(shown) == 288
    assert "(... 999,742 characters ...)" in shown


def test_a_long_list_is_counted() -> None:
    assert listed(map(str, range(10_000)), most=3) == "0, 1, 2 and 9,997 more"
    assert listed(["a", "b"]) == "a, b"


@pytest.mark.parametrize("text", [EVIL, "<b>", "[l](x)", "![i](x)", "`", "*", "_", "a|b", "~~s~~", "$x$"])
def test_markdown_shows_text_literally(text: str) -> None:
    shown = as_markdown(text)
    assert "<" not in shown and ">" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]|~$]", shown)


def test_what_is_said_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    say(EVIL, sys.stderr)
    printed = capsys.readouterr()
    assert printed.out == printed.err and printed.out.count("\n") == 1
    assert list(faults(printed.out)) == []


def test_a_progress_bar_shows_no_words_raw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        bar(Progress(f"hashing {EVIL}", 0, 10**9, "bytes"))
        assert list(faults(capsys.readouterr().err)) == []
        bar.has_terminal = True
        bar(Progress(f"[bold]reading {EVIL}", 0, 10, "files"))
        assert bar.bar is not None
        column: Any = bar.bar.columns[0]
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


@pytest.mark.parametrize("arguments", [["inspect", f"--{EVIL}", "x"], ["verify", "x", EVIL], [EVIL]])
def test_what_was_not_expected_is_named_in_one_line(arguments: list[str]) -> None:
    outcome = call(*arguments)
    assert outcome.code == 2
    assert list(faults(outcome.err)) == []


def test_a_fault_of_eaglectl_shows_no_words_raw(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, good: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL.replace("\n", " "))

    monkeypatch.setattr("eaglectl.operations.inspecting.launch_commands", fail)
    outcome = call("inspect", good)
    assert outcome.code == 70 and "please report it" in outcome.err
    assert list(faults(outcome.err)) == []


# long and many


def long_name(parent: Path) -> Path:
    folder = drafter_folder(parent)
    write_safetensors(folder / "model.safetensors", {**drafter_tensors(), "x" * 1_000_000: floats("x", 2)})
    return folder


def many_tensors(parent: Path) -> Path:
    folder = drafter_folder(parent)
    extra = {f"layers.0.extra_{number:05}.weight": floats("x", 2) for number in range(10_000)}
    write_safetensors(folder / "model.safetensors", {**drafter_tensors(), **extra})
    return folder


SIZED: dict[str, list[str]] = {
    "inspect": ["inspect", "IT"],
    "inspect tensors": ["inspect", "IT", "--tensors"],
    "convert plan": ["convert", "IT", "--dry-run"],
    "convert without another": ["convert", "IT", "--dry-run", "--drop", "x"],
    "validate": ["validate", "IT", "--headers-only"],
    "validate github": ["validate", "IT", "--headers-only", "--format", "github"],
    "validate markdown": ["validate", "IT", "--headers-only", "--format", "markdown"],
    "diff": ["diff", "IT", "GOOD", "--headers-only"],
    "verify": ["verify", "IT"],
    "upload": ["upload", "IT", "org/drafter", *ANSWERS, "--dry-run"],
}
MOST_BYTES = 20_000


@pytest.mark.parametrize("command", SIZED)
@pytest.mark.parametrize("plant", [long_name, pytest.param(many_tensors, marks=pytest.mark.slow)])
def test_an_output_stays_small(
    plant: Callable[[Path], Path], command: str, good: Path, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    places = {"IT": str(plant(tmp_path / "from")), "GOOD": str(good)}
    outcome = call(*(places.get(argument, argument) for argument in SIZED[command]))
    assert outcome.code in (0, 1, 2, 3), outcome.err
    assert len(outcome.out) + len(outcome.err) < MOST_BYTES


# nothing prints by another way


ROOT = Path(eaglectl.__file__).parent
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


def printing_calls(name: str, source: str) -> list[str]:
    """Calls of the module `name` that print by another way than the terminal's."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    functions = {ast.unparse(node.func) for node in calls}
    emitted = {ast.unparse(node.args[0]) for node in calls if ast.unparse(node.func) == "emit"}
    wrong = {argument for argument in emitted if not EMITTED.fullmatch(argument)}
    if not name.startswith(PRINTERS):
        wrong |= {function for function in functions if PRINTS.fullmatch(function)}
        wrong |= functions & {"guard_streams", "sys.stdout.flush"} if name != "cli/__init__.py" else set()
    return [f"{name}: {code}" for code in sorted(wrong)]


def test_only_the_terminal_prints() -> None:
    names = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
    lines = [printing_calls(name, path.read_text(encoding="utf-8")) for name, path in names.items()]
    assert [line for line in lines if line] == []


@pytest.mark.parametrize("code", ["print('x')", "sys.stderr.write('x')", "typer.echo('x')", "RichConsole()"])
def test_another_way_to_print_is_seen(code: str) -> None:
    assert printing_calls("module.py", code)


# words of servers


def test_names_on_the_hub_reach_no_output_raw(
    hub: LoopbackHub, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.add_repo(
        "org/drafter", {f"{FILE}.safetensors": b"x", f"{FILE}/{FILE}.txt": b"y", "config.json": b"{}"}
    )
    for arguments in (["--dry-run"], ["--dry-run", "--json"], []):
        outcome = call("upload", good, "org/drafter", *ANSWERS, *arguments)
        check_output(outcome, arguments)
        assert "forged" in outcome.out
    outcome = call("inspect", "org/drafter")
    check_output(outcome, [])


@pytest.mark.parametrize("is_json", [False, True])
def test_a_servers_words_reach_no_output_raw(is_json: bool, good: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        json.dumps({"prompt": EVIL, "set": EVIL}) + "\n" + json.dumps({"prompt": "x", "set": "b"})
    )
    info = {**servers.INFO, "version": EVIL, "speculative_draft_model_path": EVIL}
    pages = {**servers.SGLANG, "/v1/models": {"data": [{"id": EVIL}]}, "/server_info": info}
    arguments = ["smoke", str(good), "--target", str(good), "--prompts", str(prompts), "--page", "page.html"]
    arguments += ["--json"] if is_json else []
    with servers.server(pages, []) as url:
        outcome = call(*arguments, "--run-in", url)
    check_output(outcome, arguments)
    check_files(Path.cwd())


@pytest.mark.parametrize("name", [EVIL, "'; rm -rf ~; '" * 1000])
def test_a_name_that_cannot_be_shown_whole_is_copied_into_no_command(name: str, tmp_path: Path) -> None:
    config = drafter_config(speculators_config={"verifier": {"name_or_path": name}})
    folder = drafter_folder(tmp_path, config=config)
    assert "vllm serve TARGET --speculative-config" in call("inspect", folder).out


class RawError(Exception):
    """A usage error as click shows it: with its words as they are."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        self.message = message

    def format_message(self) -> str:
        return self.message

    def show(self, file: Any) -> None:
        file.write(f"Usage: eaglectl ...\n\nError: {self.message}\n")


def test_a_usage_error_of_click_is_shown_in_one_line(monkeypatch: pytest.MonkeyPatch, good: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RawError(EVIL)

    monkeypatch.setattr("eaglectl.operations.inspecting.inspect", fail)
    outcome = call("inspect", good)
    assert outcome.code == 2 and "Error: w\\nPASS-" in outcome.err
    assert list(faults(outcome.err)) == []
