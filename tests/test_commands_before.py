"""The command line of commit 7407a7d, held to as data: every option, and how a table of calls ends.

`python -m tests.test_commands_before` writes tests/commands_before.json anew, for a change in CHANGELOG.
"""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from eaglectl.cli.app import make_app
from tests.builders import call
from tests.conftest import FIXTURES

PAGE = Path(__file__).with_name("commands_before.json")
ROOT = FIXTURES.parent
TINY, TARGET = "fixtures/tiny/eagle3", "fixtures/tiny/target"
ASKS = "fixtures/producers/specforge/eagle3.1"
# calls of the table; those that write write into OUT, a folder of the test
CALLS = (
    "",
    "--help",
    "--version",
    "-V",
    "nonsense",
    "--nonsense",
    "inspect",
    "inspect --help",
    f"inspect {TINY}",
    f"inspect {TINY} --json",
    f"--json inspect {TINY}",
    f"inspect {TINY} --jobs 1",
    f"inspect {TINY} --jobs 0",
    f"inspect {TINY} --jobs 65",
    f"inspect {TINY} --jobs many",
    f"inspect {TINY} --jobs",
    f"inspect {TINY} --jsn",
    f"inspect {TINY} --target {TARGET}",
    f"inspect {TINY} --target nowhere",
    f"inspect {TINY} --engine vllm==0.32.0",
    f"inspect {TINY} --engine nonsense",
    f"inspect {TINY} --engine vllm --engine sglang",
    f"inspect {TINY} --aux-layers 1,4,6",
    f"inspect {TINY} --aux-layers one",
    f"inspect {TINY} --aux-layers -1",
    f"inspect {TINY} --aux-convention input",
    f"inspect {TINY} --aux-convention output",
    f"inspect {TINY} --source-semantics x",
    f"inspect {TINY} --source-semantics rope=stored --source-semantics rope=plain",
    f"inspect {TINY} --tensors",
    f"inspect {TINY} {ASKS}",
    f"inspect {TINY} nowhere",
    f"inspect {TINY} --page OUT/page.txt",
    "inspect nowhere",
    f"inspect {ASKS} --source-semantics specforge=pre-879",
    f"inspect {ASKS} --assume-defaults",
    f"convert {TINY} --dry-run",
    f"convert {TINY} -o OUT/a",
    f"convert {TINY} --out OUT/b --for sglang --json",
    f"convert {TINY} --dry-run --for nonsense",
    f"convert {TINY} --dry-run --to 4",
    f"convert {TINY} --dry-run --to 3",
    f"convert {TINY} --dry-run --to 3.1",
    f"convert {TINY} --dry-run --dtype int8",
    f"convert {TINY} --dry-run --dtype float16",
    f"convert {TINY} --dry-run --max-shard-size 1GB",
    f"convert {TINY} --dry-run --max-shard-size nonsense",
    f"convert {TINY} --dry-run --max-shard-size 0",
    f"convert {TINY} --dry-run --draft-vocab 10",
    f"convert {TINY} --dry-run --draft-vocab many",
    f"convert {TINY} --dry-run --token-counts x.json",
    f"convert {TINY} --dry-run --rope-style other",
    f"convert {TINY} --dry-run --fix-reading nonsense",
    f"convert {TINY} --dry-run --fix-reading nonsense --to 3.1",
    f"convert {TINY} --dry-run --tolerance 0.9",
    f"convert {TINY} --dry-run --tolerance x",
    f"convert {TINY} --dry-run --no-gate",
    f"convert {TINY} --dry-run --fc-norm off",
    f"convert {TINY} --dry-run --no-norm-output",
    f"convert {TINY} --dry-run --init-only",
    f"convert {TINY} --dry-run --calibration x",
    f"convert {TINY} --dry-run --to 3.1 --fc-norm nonsense",
    f"convert {TINY} --dry-run --to 3.1 --fc-norm off --no-norm-output",
    f"convert {TINY} --dry-run --to 3.1 --init-only",
    f"convert {TINY} --dry-run --device tpu",
    f"convert {TINY} --dry-run --no-measure --seed 1",
    f"convert {TINY} --dry-run --no-measure --prompts x",
    f"convert {TINY} --dry-run --no-measure",
    f"convert {TINY} --dry-run --seed x",
    f"convert {TINY} --dry-run --drop fc.weight",
    f"convert {TINY} --dry-run --trained-target x",
    f"convert {TINY} --dry-run --target-rotation x",
    f"convert {TINY} --dry-run --materialize-lm-head",
    f"convert {TINY} --dry-run --mla-query-lora",
    f"convert {TINY} my-target",
    f"convert {ASKS} --dry-run",
    f"convert {ASKS} --dry-run --source-semantics specforge=pre-879",
    f"calibrate {TINY}",
    f"calibrate {TINY} -o OUT/s --answer-tokens 0",
    f"calibrate {TINY} -o OUT/s --device tpu",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --engine nonsense",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --timeout 0",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --timeout x",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --tensor-parallel-size 0",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --tensor-parallel-size 2",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --engine-arg x",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --engine-arg dtype=float16",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --sample 3",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --states-layers 2,4,5",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --states x --states-layers 2,two",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --states x --states-layers 2,2",
    f"calibrate {TINY} -o OUT/s --target {TARGET} --states x --seed 1",
    f"validate {TINY} --headers-only",
    f"validate {TINY} --headers-only --json",
    f"validate {TINY} --headers-only --format json",
    f"validate {TINY} --headers-only --format sarif",
    f"validate {TINY} --headers-only --format nonsense",
    f"validate {TINY} --headers-only --format sarif --json",
    f"validate {TINY} --headers-only --output nonsense",
    f"validate {TINY} --headers-only --output json=OUT/r.json",
    f"validate {TINY} --headers-only --select EGL2",
    f"validate {TINY} --headers-only --select nonsense",
    f"validate {TINY} --headers-only --ignore EGL101",
    f"validate {TINY} --headers-only --fail-on nonsense",
    f"validate {TINY} --headers-only --fail-on never",
    f"validate {TINY} --headers-only --fail-on note",
    f"validate {TINY} --headers-only --no-engines",
    f"validate {TINY} --headers-only --no-engines --engine vllm",
    f"validate {TINY} --headers-only --policy nowhere.toml",
    f"validate {TINY} --headers-only --policy https://example.com/a.toml",
    f"validate {TINY} --headers-only --jobs 2",
    f"validate {TINY} --headers-only --jobs 100",
    f"validate {TARGET} --headers-only --skip-others",
    f"validate {TARGET} --headers-only",
    "validate nowhere",
    "validate",
    f"smoke {TINY} --target {TARGET} --engine nonsense",
    f"smoke {TINY} --target {TARGET} --run-in reference -k 0",
    f"smoke {TINY} --target {TARGET} --run-in reference -k x",
    f"smoke {TINY} --target {TARGET} --run-in reference --max-tokens 0",
    f"smoke {TINY} --target {TARGET} --run-in reference --temperature -1",
    f"smoke {TINY} --target {TARGET} --run-in reference --temperature hot",
    f"smoke {TINY} --target {TARGET} --run-in reference --seed -1",
    f"smoke {TINY} --target {TARGET} --run-in reference --max-regression 0.9",
    f"smoke {TINY} --target {TARGET} --run-in reference --against {TINY} --max-regression 0",
    f"smoke {TINY} --target {TARGET} --run-in reference --probe nonsense",
    f"smoke {TINY} --target {TARGET} --run-in reference --timeout nan",
    f"smoke {TINY} --target {TARGET} --run-in reference --device tpu",
    f"smoke {TINY} --target {TARGET} --run-in reference --prompts nowhere",
    f"smoke {TINY} --target {TARGET} --run-in reference --engine-arg a=1",
    f"smoke {TINY} --target {TARGET} --run-in reference --tensor-parallel-size 2",
    f"smoke {TINY} --target {TARGET} --run-in sglang --load-only",
    f"smoke {TINY} --target {TARGET} --load-only --page x.html",
    f"smoke {TINY} --target {TARGET} --load-only --engine-arg a=1",
    f"smoke {TINY} --target {TARGET} --load-only",
    f"diagnose {TINY} --target {TARGET} --expected 9",
    f"diagnose {TINY} --target {TARGET} --engine nonsense",
    f"diagnose {TINY} --target {TARGET} --device tpu",
    f"diff {TINY} {TINY} --headers-only",
    f"diff {TINY} {TINY} --json",
    f"diff {TINY} {ASKS} --headers-only",
    f"diff {TINY}",
    f"diff {TINY} nowhere",
    f"upload {TINY} nonsense --dry-run",
    f"upload {TINY}",
    f"upload {TINY} org/name --dry-run --license other",
    f"upload {TINY} org/name --dry-run --base-model nonsense",
    f"upload {TINY} org/name --dry-run --revision 'a b'",
    f"upload {TINY} org/name --dry-run --tag -x",
    f"upload {TINY} org/name --dry-run --smoke nowhere",
    f"upload {TINY} org/name --dry-run --policy nowhere.toml",
    f"verify {TINY}",
    f"verify {TINY} --against nonsense",
    "verify nowhere",
    "rules",
    "rules EGL201",
    "rules EGL201 --json",
    "rules nonsense",
    "rules --json",
    "engines",
    "engines --json",
)
# what the release after 7407a7d has otherwise, by intent (CHANGELOG.md)
GONE = {"engines scan", "demo"}
# hidden spellings that the command line translates before it is parsed (tests/test_options.py)
TRANSLATED = {("smoke", "--engine"), ("calibrate", "--engine")}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def parameters(root: Any) -> dict[str, Any]:
    """Every command with its parameters, as the command line takes them and --help shows them."""
    commands = {}
    with root.make_context("eaglectl", [], resilient_parsing=True) as context:
        for name, command in [("", root), *root.commands.items()]:
            child = type(context)(command, parent=context, info_name=name)
            for below, inner in [(name, command), *getattr(command, "commands", {}).items()]:
                if below == name or name:
                    path = name if below == name else f"{name} {below}"
                    commands[path] = [_parameter(one, child) for one in inner.get_params(child)]
    return commands


def _parameter(parameter: Any, context: Any) -> dict[str, Any]:
    record = parameter.get_help_record(context) or ("", "")
    return {
        "flags": sorted([*parameter.opts, *parameter.secondary_opts]),
        "is_flag": bool(getattr(parameter, "is_flag", False)),
        "many": bool(parameter.multiple or parameter.nargs == -1),
        "required": parameter.required,
        "envvar": parameter.envvar,
        "help": record[1].partition("  [")[0],
        "default": re.sub(r"(; .*)?]$", "", record[1].partition("  [")[2]),
    }


def ending(text: str, out: Path) -> dict[str, Any]:
    """How a call ends: its exit code, and the last line that it prints to stderr."""
    done = call(*shlex.split(text.replace("OUT", str(out))))
    last = done.err.strip().splitlines()[-1:] if done.code else []
    return {"code": done.code, "says": "".join(last).replace(str(out), "OUT")}


BEFORE: dict[str, Any] = json.loads(PAGE.read_text()) if PAGE.exists() else {"commands": {}, "calls": {}}


@pytest.mark.parametrize("name", [name for name in BEFORE["commands"] if name not in GONE])
def test_every_option_of_before_is_there(name: str) -> None:
    now = {tuple(one["flags"]): one for one in parameters(typer.main.get_command(make_app(None)))[name]}
    for before in BEFORE["commands"][name]:
        if (name, before["flags"][0]) in TRANSLATED:
            continue
        assert now.get(tuple(before["flags"])) == before, (name, before["flags"])


@pytest.mark.parametrize("text", CALLS)
def test_a_call_ends_as_before(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    before, now = BEFORE["calls"][text], ending(text, tmp_path)
    assert now["code"] == before["code"], now
    assert set(FLAG.findall(before["says"])) <= set(FLAG.findall(now["says"])), (before["says"], now["says"])


if __name__ == "__main__":
    import os
    import tempfile

    os.chdir(ROOT)
    calls = {}
    for text in CALLS:
        with tempfile.TemporaryDirectory() as folder:
            calls[text] = ending(text, Path(folder))
            print(calls[text]["code"], text, calls[text]["says"], sep=" | ", file=sys.stderr)
    document = {"commands": parameters(typer.main.get_command(make_app(None))), "calls": calls}
    PAGE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
