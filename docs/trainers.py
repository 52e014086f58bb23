"""docs/trainers.md: what each trainer leaves, the command for it, what is asked; and README's table."""

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).with_name("trainers.md")
ROOT = PAGE.parent.parent
sys.path.insert(0, str(ROOT))

import eaglectl
from eaglectl import api
from eaglectl.cli import run
from eaglectl.formats.catalogue import by_name
from eaglectl.verdicts import ServedAs
from tests.cases import CASES, Case

README = ROOT / "README.md"
# by the trainer's name, the fixture that is shown, as its own code writes it where that installs
SHOWN: Mapping[str, str] = {
    "SpecForge": "specforge/gqa-ids",
    "SpecForge, EAGLE-3.1": "specforge/eagle3.1",
    "speculators": "speculators/default",
    "NVIDIA ModelOpt": "modelopt/hf-ids",
    "TorchSpec": "torchspec/dcp",
    "NeMo Automodel": "automodel/gqa",
    "AngelSlim": "angelslim/gqa",
    "SafeAILab EAGLE": "eagle/bin",
}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp"}
OUTCOMES = {
    ServedAs.AS_TRAINED: "yes",
    ServedAs.DIFFERS: "**wrongly**",
    ServedAs.FAILS: "refuses",
    ServedAs.UNKNOWN: "unknown",
}
TARGET = "fixtures/target"
HEAD = """# My trainer is ...

Written by `make docs` from the fixtures, which the trainers' own code wrote where it installs. `my-drafter`
is your trainer's folder, `my-target` the target's. Where the target's weights are there, a question is
measured; else it is asked, and an option answers it, here that of the fixture
([questions](questions.md)). "Run as trained" means: same layers, norms, rope and vocabulary.
"""
TABLE_BEGIN, TABLE_END = "<!-- table: docs/trainers.py -->\n", "<!-- end -->"


def case(name: str) -> Case:
    """The fixture that is shown for a trainer."""
    return next(case for case in CASES if case.path == SHOWN[name])


def stored(case: Case) -> Mapping[str, ServedAs]:
    """What the newest release of each engine does with the fixture as stored."""
    options = api.InspectOptions(str(ROOT / TARGET), answers=case.answered())
    inspected = eaglectl.inspect(str(case.folder), options)
    # oldest first
    return {verdict.engine: verdict.outcome for verdict in inspected.verdicts}


def converted(case: Case) -> Mapping[str, ServedAs]:
    """The same once it is converted, in the layout that is written by default."""
    options = api.ConvertOptions(target=str(ROOT / TARGET), answers=case.answered())
    with tempfile.TemporaryDirectory() as folder:
        done = eaglectl.convert(str(case.folder), Path(folder) / "out", options)
    return {row.verdict.engine: row.verdict.outcome for row in done.serving}


def question(case: Case) -> str:
    """What `convert` asks of the fixture without answers; "" for nothing."""
    errors = io.StringIO()
    quiet = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(errors), quiet:
        code = run(["convert", str(case.folder), "--target", str(ROOT / TARGET), "-o", f"{folder}/out"])
    text = errors.getvalue().strip().splitlines()[-1:] if code else []
    return "".join(text).removeprefix("eaglectl: ").partition("; --target with")[0]


def table() -> str:
    """The table of README.md: each trainer's drafter as stored, and after `convert`."""
    rows = [f"|trainer|{'|'.join(ENGINES.values())}|", "|---|" + "---|" * len(ENGINES)]
    for name in SHOWN:
        before, after = stored(case(name)), converted(case(name))
        cells = [f"{OUTCOMES[before[engine]]} / {OUTCOMES[after[engine]]}" for engine in ENGINES]
        rows.append(f"|{name}|{'|'.join(cells)}|")
    return "\n".join([*rows, ""])


def with_table(text: str) -> str:
    """README.md with its table as it is now."""
    before, rest = text.split(TABLE_BEGIN)
    return before + TABLE_BEGIN + "\n" + table() + "\n" + TABLE_END + rest.partition(TABLE_END)[2]


def _answers(case: Case) -> str:
    pairs = [f"--source-semantics {key}={value}" for key, value in case.answers.items()]
    if case.aux_convention:
        pairs.append(f"--aux-convention {case.aux_convention}")
    return shlex.join(shlex.split(" ".join(pairs)))


def section(name: str) -> str:
    """What to know of one trainer."""
    shown, asked = case(name), question(case(name))
    files = sorted(path.relative_to(shown.folder) for path in shown.folder.rglob("*") if path.is_file())
    before, after = stored(shown), converted(shown)
    wrong = [f"{ENGINES[engine]} {OUTCOMES[before[engine]].strip('*')}" for engine in ENGINES]
    right = [ENGINES[engine] for engine in ENGINES if after[engine] == ServedAs.AS_TRAINED]
    answers = _answers(shown) if asked else ""
    command = f"eaglectl convert my-drafter --target my-target -o served {answers}".rstrip()
    rest = "" if len(right) == len(ENGINES) else "; the others say why in the line that convert prints"
    return "\n".join(
        [
            f"## {name}",
            "",
            f"Its folder: {', '.join(f'`{file}`' for file in files)} (`fixtures/producers/{shown.path}`). "
            f"{by_name(shown.producer).title}.",
            "",
            "    " + command,
            "",
            f"* Asked: {_sentence(asked) if asked else 'nothing.'}",
            f"* As stored, run as trained by the newest release: {'; '.join(wrong)}.",
            f"* After it: {', '.join(right) or 'none'}{rest}.",
            "",
        ]
    )


def _sentence(text: str) -> str:
    return re.sub(r"--[a-z-]+(?: \w+=[\w-]+)?", lambda option: f"`{option[0]}`", text) + "."


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(name) for name in SHOWN)])
