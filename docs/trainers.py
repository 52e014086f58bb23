"""The tables of trainers in README.md and docs/trainers.md, and a page for each trainer in docs/reference."""

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_name("trainers.md")
ROOT = PAGE.parent.parent
sys.path.insert(0, str(ROOT))

import eaglectl
from eaglectl.cli import run
from eaglectl.engines.engine import Verdict
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import NESTED_IDS, TOP_IDS, Format
from eaglectl.verdicts import ServedAs
from tests.cases import CASES, Case

from tables import table as markdown_table  # isort: skip

README = ROOT / "README.md"
FIXTURES = ROOT / "fixtures/producers"


class Trainer(NamedTuple):
    """A trainer's page: its file, the fixture that is shown, as its own code writes it where that installs,
    and which of its folders to give.
    """

    page: str
    shown: str
    folder: str


SHOWN: Mapping[str, Trainer] = {
    "SpecForge": Trainer(
        "specforge",
        "specforge/gqa-ids",
        "What `specforge export --output-dir` writes; a folder with `training_state.pt` is read too.",
    ),
    "SpecForge, EAGLE-3.1": Trainer(
        "specforge-3.1",
        "specforge/eagle3.1",
        "What `specforge export --output-dir` writes of a run with `fc_norm` and `norm_output`.",
    ),
    "speculators": Trainer(
        "speculators", "speculators/default", "The checkpoint that `speculators train` saves."
    ),
    "NVIDIA ModelOpt": Trainer(
        "modelopt",
        "modelopt/hf-ids",
        "What `export_speculative_decoding` writes (Hugging Face models; Megatron's are read too).",
    ),
    "TorchSpec": Trainer(
        "torchspec",
        "torchspec/dcp",
        "The checkpoint of a step, as trained (`.distcp` files with a `config.json`; no export is needed), or"
        " what `tools/convert_to_hf.py` makes of it.",
    ),
    "NeMo Automodel": Trainer(
        "automodel", "automodel/gqa", "`model/consolidated` in the folder of a checkpoint (`epoch_*`)."
    ),
    "AngelSlim": Trainer(
        "angelslim", "angelslim/gqa", "The checkpoint that `tools/train_eagle3_online.py` saves."
    ),
    "SafeAILab EAGLE": Trainer(
        "eagle", "eagle/bin", "The state that `eagle/traineagle3` saves, with the `config.json` of the run."
    ),
}


class Variant(NamedTuple):
    """A row of README.md's table: its words, the trainer's page, the fixture that is run, and the answers to
    what its files leave open.
    """

    title: str
    page: str
    fixture: str
    answers: tuple[str, ...] = ()


# the folders that a user of the trainer has; those of one trainer stand together
VARIANTS = (
    Variant("SpecForge, export", "specforge", "specforge/gqa-ids"),
    Variant(
        "SpecForge 0.2.0, 3.1",
        "specforge-3.1",
        "specforge/eagle3.1",
        ("--source-semantics=specforge=pre-879",),
    ),
    Variant(
        "SpecForge with pull request 879, 3.1",
        "specforge-3.1",
        "specforge/eagle3.1",
        ("--source-semantics=specforge=post-879",),
    ),
    Variant("speculators", "speculators", "speculators/default"),
    Variant("speculators, 3.1", "speculators", "speculators/eagle3.1"),
    Variant(
        "NVIDIA ModelOpt",
        "modelopt",
        "modelopt/hf-ids",
        ("--source-semantics=rope=stored", "--source-semantics=modelopt=pre-689"),
    ),
    Variant("NVIDIA ModelOpt, MLA", "modelopt", "modelopt/hf-mla", ("--source-semantics=modelopt=pre-689",)),
    Variant("TorchSpec, distributed checkpoint", "torchspec", "torchspec/dcp"),
    Variant("TorchSpec, export", "torchspec", "torchspec/llama"),
    Variant("TorchSpec, MLA", "torchspec", "torchspec/mla", ("--source-semantics=rope=stored",)),
    Variant("NeMo Automodel", "automodel", "automodel/gqa", ("--aux-layers=2,4,5",)),
    Variant("NeMo Automodel, MLA", "automodel", "automodel/mla", ("--aux-layers=2,4,5",)),
    Variant("AngelSlim", "angelslim", "angelslim/gqa"),
    Variant("AngelSlim, Qwen3", "angelslim", "angelslim/qwen3"),
    Variant("SafeAILab EAGLE, `.bin`", "eagle", "eagle/bin"),
    Variant("SafeAILab EAGLE, safetensors", "eagle", "eagle/safetensors"),
)
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp"}
OUTCOMES = {
    ServedAs.AS_TRAINED: "yes",
    ServedAs.AS_PUBLISHED: "as published",
    ServedAs.DIFFERS: "**wrongly**",
    ServedAs.FAILS: "refuses",
    ServedAs.UNKNOWN: "unknown",
}
# what the table of layouts says of a producer beside its title
REMARKS: Mapping[str, str] = {
    "vllm": ", everything stated, the default; fused tensors are read too",
    "sglang": ", with `use_aux_norm` and `aux_norm_*`",
    "llama.cpp": ", which its converter takes",
    "deepspec": ", its Qwen3 drafters",
    "modelopt-megatron": ", Deep heads",
    "modelopt": " 0.47, quantised ones passed through",
    "native": ": names that engines read",
    "nebius": ", in SafeAILab's spelling",
    "sglang-mla": ", absorbed halves and fused names",
    "speco": ", whose config states no layers",
    "specforge": " 0.2, exports and trainer states",
    "speculators": " 0.9",
    "torchspec-vllm": ", its export of Kimi heads",
    "torchspec": ", exports and distributed checkpoints",
}
MEANINGS = {"output": "outputs", "boundary": "boundaries", "sglang": "SGLang's"}
PLACES = {TOP_IDS: "top level", NESTED_IDS: "`eagle_config`"}
CLASSES = {"llama": "Llama", "qwen3": "Qwen3", "mla": "MLA"}
TARGET = "fixtures/target"
ASKED = """The files leave a question open. If the target's weights are on this machine, `convert` runs every
reading on the target and uses the best one; otherwise it writes nothing and prints this text, which names the
options that answer it ([questions](../../questions.md)).

> """
NOT_ASKED = "Nothing: the files and the trainer's code settle it."
PAGE_FOOT = """
`eaglectl ready my-drafter --target my-target` does all steps and measures acceptance before and after
([serve](../../serve.md)). Next: [measure](../../low-acceptance.md), [publish](../../publish.md).
"""
TABLE_BEGIN, TABLE_END = "<!-- table: docs/trainers.py{} -->\n", "<!-- end -->"


@cache
def case(name: str) -> Case:
    """The fixture that is shown for a trainer, with the answers to what is asked of it."""
    shown = next(case for case in CASES if case.path == SHOWN[name].shown)
    drafter = eaglectl.inspect(str(shown.folder), target=str(ROOT / TARGET)).drafter
    asked = {choice.key for note in drafter.notes_at("question") for choice in note.choices}
    return replace(shown, answers={key: value for key, value in shown.answers.items() if key in asked})


@cache
def stored(name: str) -> Mapping[str, Verdict]:
    """What the newest release of each engine does with the fixture as stored."""
    options = eaglectl.InspectOptions(str(ROOT / TARGET), answers=case(name).answered())
    inspected = eaglectl.inspect(str(case(name).folder), options)
    # oldest first
    return {verdict.engine: verdict for verdict in inspected.verdicts}


@cache
def converted(name: str) -> Mapping[str, Verdict]:
    """The same once it is converted, in the layout that is written by default."""
    options = eaglectl.ConvertOptions(target=str(ROOT / TARGET), answers=case(name).answered())
    with tempfile.TemporaryDirectory() as folder:
        done = eaglectl.convert(str(case(name).folder), Path(folder) / "served", options)
    return {row.verdict.engine: row.verdict for row in done.serving}


def question(case: Case) -> str:
    """What `convert` asks of the fixture without answers; "" for nothing."""
    errors = io.StringIO()
    quiet = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(errors), quiet:
        code = run(["convert", str(case.folder), "--target", str(ROOT / TARGET), "-o", f"{folder}/out"])
    text = errors.getvalue().strip().splitlines()[-1:] if code else []
    return "".join(text).removeprefix("eaglectl: ").partition("; --target with")[0]


def table() -> str:
    """The table of README.md: what it takes that the newest release runs a drafter as trained."""
    rows = [
        [f"[{row.title}](docs/reference/trainers/{row.page}.md)", *(word(row, engine) for engine in ENGINES)]
        for row in VARIANTS
    ]
    return markdown_table(["trainer, folder", *ENGINES.values()], rows)


def word(row: Variant, engine: str) -> str:
    """What the row's folder takes for an engine, by the exit codes of `validate` and `convert` on it."""
    word = outcome(row, engine)
    return f"asked: {outcome(row, engine, row.answers)}" if word == "asked" and row.answers else word


@cache
def outcome(row: Variant, engine: str, answers: tuple[str, ...] = ()) -> str:
    """One of five words, by the exit codes of `validate`, of `convert`, and of `validate` of its output."""
    source, options = (
        f"{FIXTURES}/{row.fixture}",
        ["--target", f"{ROOT / TARGET}", "--engine", engine, *answers],
    )
    if exit_code("validate", source, *options) == 0:
        return "as stored"
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/served"
        code = exit_code("convert", source, "-o", place, *options)
        if code == 0 and exit_code("validate", place, *options[:4]) == 0:
            return "converted"
    return {1: "no", 2: "asked"}.get(code, "unknown")


def exit_code(*arguments: str) -> int:
    """The exit code of a command, whose words go nowhere."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return run([*arguments])


def folders() -> str:
    """The table of docs/trainers.md: what each trainer leaves, and whether it leaves a question open."""
    rows = [
        [
            f"[{name}](reference/trainers/{trainer.page}.md)",
            trainer.folder,
            "yes" if question(case(name)) else "no",
        ]
        for name, trainer in SHOWN.items()
    ]
    return markdown_table(["trainer", "the folder to give", "asks"], rows)


def layouts() -> str:
    """The table of docs/trainers.md: what is read and written of each producer, engines' layouts first."""
    rows = [_layout(format) for format in sorted(FORMATS, key=lambda each: (not each.is_layout, each.name))]
    return markdown_table(["name", "producer", "tensor names", "layer ids", "writes (`--for`)"], rows)


def _layout(format: Format) -> list[str]:
    layout, places = format.layout, format.written_ids or format.ids
    stored = f"`{layout.prefix}{layout.layer.format('N')}.*`" if layout else "-"
    ids = "; ".join(
        f"{PLACES.get(place.key, f'`{place.key}`')}: {MEANINGS[place.meaning]}" for place in places
    )
    classes = [CLASSES[key] for key in CLASSES if layout and key in layout.architectures]
    title = format.title + REMARKS.get(format.name, "")
    return [f"`{format.name}`", title, stored, ids or "none", ", ".join(classes) or "no"]


def with_table(text: str, rows: str, name: str = "") -> str:
    """A page with the table of this name as it is now."""
    begin = TABLE_BEGIN.format(name)
    before, rest = text.split(begin)
    return before + begin + "\n" + rows + "\n" + TABLE_END + rest.partition(TABLE_END)[2]


def _answers(case: Case) -> str:
    pairs = [f"--source-semantics {key}={value}" for key, value in case.answers.items()]
    if case.aux_convention:
        pairs.append(f"--aux-convention {case.aux_convention}")
    return shlex.join(shlex.split(" ".join(pairs)))


def section(name: str) -> str:
    """The page of one trainer."""
    shown, asked = case(name), question(case(name))
    files = sorted(path.relative_to(shown.folder) for path in shown.folder.rglob("*") if path.is_file())
    producer = shown.path.partition("/")[0]
    answers = _answers(shown) if asked else ""
    answered = f"Answered by `{answers}`:\n\n" if answers else ""
    before, after = stored(name), converted(name)
    said = set[str]()
    rows = [
        f"| {title} {before[engine].release} | {_cell(before[engine], said)} | {_cell(after[engine], said)} |"
        for engine, title in ENGINES.items()
    ]
    return "\n".join(
        [
            f"# My trainer is {name}",
            "",
            "`my-drafter` is its folder, `my-target` the target's folder or Hub repository.",
            "",
            "## Its folder",
            "",
            SHOWN[name].folder,
            f"This page is of one with {', '.join(f'`{file}`' for file in files)}",
            f"([how it was made](../../../fixtures/producers/{producer}/README.md)).",
            "",
            "## The command",
            "",
            "    eaglectl convert my-drafter --target my-target -o served",
            "",
            "## What is asked",
            "",
            ASKED + _sentence(asked) if asked else NOT_ASKED,
            "",
            "## What to expect",
            "",
            f"{answered}| newest release | as stored | after `convert` |",
            "|---|---|---|",
            *rows,
            PAGE_FOOT,
        ]
    )


def _cell(verdict: Verdict, said: set[str]) -> str:
    """An outcome, and the reason of one that is not as it should be; one that was `said` is not repeated."""
    reason = verdict.reasons[0] if verdict.reasons and verdict.outcome != ServedAs.AS_TRAINED else ""
    if reason and reason in said:
        reason = "as above"
    said.add(reason)
    return OUTCOMES[verdict.outcome] + (f": {reason}" if reason else "").replace("|", "\\|")


def _sentence(text: str) -> str:
    return re.sub(r"(?<!`)--[a-z-]+(?: \w+=[\w-]+)?", lambda option: f"`{option[0]}`", text) + "."


def pages() -> Mapping[Path, str]:
    """The text of each page by its path, README.md and docs/trainers.md among them."""
    folder = PAGE.with_name("reference") / "trainers"
    return {
        README: with_table(README.read_text(), table()),
        PAGE: with_table(with_table(PAGE.read_text(), folders()), layouts(), " layouts"),
        **{folder / f"{trainer.page}.md": section(name) for name, trainer in SHOWN.items()},
    }
