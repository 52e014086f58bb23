"""What `diagnose` says of the real pair: each fault in its own ending, the healthy drafters in healthy.

    python tools/real/diagnoses.py [--cases NAME ...] [--drafters NAME ...] [--every 1] [--out FILE]

One fault at a time, on the chats of fixtures/real/test.jsonl (every so many), 32 new tokens, one thread.
Faults of the files are those of tests/stored_otherwise.py, of both drafters in vLLM's layout. Rows that
fixtures/real/diagnoses.json has are kept; only new cases are run.

Of the causes that are not of an engine two cannot be staged on this pair: "weak", as no published figure is
of its target, and "quantised-target", as transformers on a CPU loads none that another package quantised.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np
from accounting import read_chats
from mistakes import TUNED, Pair, in_llama_2s, tune
from safetensors.torch import load_file, save_file
from target import cache_folder, make_target

from tests.builders import read_safetensors
from tests.rotated import random_rotation, rotate_target
from tests.stored_otherwise import (
    GATE_UP,
    INPUT,
    KEY_VALUE,
    NORM_OUTPUT,
    NORMS,
    PAIRED,
    Misread,
    Tensors,
    d2t_one_row_late,
    fc_blocks,
    heads,
    rope,
    without,
)
from tests.tiny import absolute, ids

FIXTURES = ROOT / "fixtures/real"
OUT = FIXTURES / "diagnoses.json"
NEW = 32
PEAK = "peak.txt"
# the command, and a line of its own status
RUN = f"""import sys; from eaglectl.cli import run; code = run(sys.argv[1:])
open({PEAK!r}, "w").write(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)"""
Prompts = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
Target = Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Case:
    """A fault, and the cause that `diagnose` must name.

    `fault` is None for the files as their trainer wrote them. `option`: a part of the command that it must
    print. `prompts` makes others of the chats, `target` another one in a folder, `given` are options of the
    command.
    """

    name: str
    cause: str
    fault: Misread | None = None
    drafter: str = "specforge"
    option: str = ""
    prompts: Prompts = lambda chats: chats
    given: Mapping[str, str] = field(default_factory=dict)
    target: Target = lambda target, folder: target


def target_ids(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """d2t as ids of the target, beside no t2d."""
    del tensors["t2d"]
    tensors["d2t"] = absolute(tensors["d2t"])


def untrained(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Matrices as they are initialised, norms of one."""
    random = np.random.default_rng(0)
    for name, (dtype, shape, _) in tensors.items():
        if dtype == "BF16":
            value = random.normal(0, 0.02, shape) if len(shape) > 1 else np.ones(shape)
            bits = value.astype("<f4").view("<u4") >> 16
            tensors[name] = dtype, shape, bits.astype("<u2").tobytes()


def masked(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """What a drafter has that drafts all tokens at once."""
    tensors["mask_hidden"] = "BF16", [1, 1, 576], bytes(2 * 576)


def own_embedding(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """The embedding of the target that it was trained on."""
    stored = read_safetensors(cache_folder() / "target/model.safetensors")
    tensors["embed_tokens.weight"] = stored["model.embed_tokens.weight"]


def copied(target: Path, folder: Path, **changes: object) -> Path:
    """The target in another folder, with other values in its config."""
    folder.mkdir()
    for path in target.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((target / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def wider(target: Path, folder: Path) -> Path:
    return copied(target, folder, hidden_size=1152)


def without_weights(target: Path, folder: Path) -> Path:
    copied(target, folder)
    (folder / "model.safetensors").unlink()
    return folder


def rotated(target: Path, folder: Path) -> Path:
    """The target with a head of its own and its residual stream rotated, bfloat16."""
    untied = copied(target, folder.with_name("untied"), tie_word_embeddings=False)
    (untied / "model.safetensors").unlink()
    tensors = load_file(target / "model.safetensors")
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(tensors | head, untied / "model.safetensors", {"format": "pt"})
    rotate_target(untied, folder, random_rotation(576), "bfloat16")
    shutil.rmtree(untied)
    shutil.copy(target / "chat_template.jinja", folder)
    return folder


def marked(target: Path, folder: Path) -> Path:
    """The rotated target, with the file that ModelSlim writes."""
    rotated(target, folder)
    (folder / "quant_model_description.json").write_text(json.dumps({"is_rot_used": True}))
    return folder


def trained_on(target: Path, folder: Path) -> Path:
    """The target after some steps on Python's language reference."""
    pair = Pair(target, {}, FIXTURES / "test.jsonl", 1, 0)
    model = pair.load()
    tune(model, pair.tuning(TUNED))
    copied(target, folder)
    (folder / "model.safetensors").unlink()
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def half_russian(chats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chats of maths, and as many of a language whose tokens the draft vocabulary has not."""
    maths = [chat for chat in chats if chat["set"] == "maths"]
    texts = RUSSIAN[: max(len(maths), 5)]
    return maths + [{"prompt": text, "set": "Russian"} for text in texts]


def plain(chats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last message of each chat, as text."""
    return [{"prompt": chat["messages"][-1]["content"], "set": chat["set"]} for chat in chats]


def other_template(chats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"prompt": in_llama_2s(chat["messages"]), "set": chat["set"]} for chat in chats]


# beginnings of fairy tales, as anybody tells them
RUSSIAN = (
    "Жили-были старик со старухой у самого синего моря. Однажды старик",
    "В некотором царстве, в некотором государстве жил-был царь, и было у него",
    "Посадил дед репку. Выросла репка большая-пребольшая. Стал дед",
    "Жила-была девочка, и звали её Маша. Пошла она однажды в лес и",
    "Стоит в поле теремок, он не низок, не высок. Бежит мимо мышка и",
    "Испекла бабушка колобок и положила его на окошко. Колобок полежал и",
    "Зима была холодная, и волк пошёл искать себе еду. Встретил он лису, и",
    "Летела птица над морем и увидела остров. На острове стоял дом, а в доме",
    "Пришла весна, растаял снег, и дети побежали на улицу. Там они",
    "Мальчик нашёл старую книгу и стал читать. В книге было написано, что",
)


def stated(*boundaries: int) -> Misread:
    return Misread("", "", config=ids(*boundaries))


# in the order in which they are run
CASES = (
    Case("none", "healthy"),
    Case("none", "healthy", drafter="speculators"),
    Case("boundaries 8, 20, 29", "other-layers", stated(8, 20, 29), option="--aux-layers 2,15,27"),
    Case("boundaries one lower", "other-layers", stated(1, 14, 26), option="--aux-layers 2,15,27"),
    Case("norm_output true", "other-reading", NORM_OUTPUT, option="norm_output=false"),
    Case(
        "norm_before_residual true",
        "other-reading",
        Misread("", "", config={"norm_before_residual": True}),
        option="norm_before_residual=false",
    ),
    Case("norm_before_fc true, no weights", "file-rule", Misread("", "", config={"norm_before_fc": True})),
    # 2 % of the length (mistakes.json), less than a reading must gain to be named
    Case(
        "norm_before_residual false",
        "healthy",
        Misread("", "", config={"norm_before_residual": False}),
        "speculators",
    ),
    Case(
        "fc's blocks in the order 15, 27, 2",
        "other-reading",
        Misread("", "", fc_blocks(1, 2, 0)),
        option="2,0,1",
    ),
    Case("embedding and state exchanged", "other-reading", INPUT, option="input=exchanged"),
    Case("d2t as ids, no t2d", "file-rule", Misread("", "", target_ids), option="eaglectl convert"),
    Case("d2t one row late", "tables", Misread("", "", d2t_one_row_late), option="d2t=from-t2d"),
    Case("d2t left out", "file-rule", Misread("", "", without("d2t"))),
    Case("gate and up exchanged", "other-reading", GATE_UP, option="gate-up=exchanged"),
    Case("two norms exchanged", "other-reading", NORMS, option="norms=exchanged"),
    Case("k and v exchanged", "other-reading", KEY_VALUE, option="k-v=exchanged"),
    Case("rotary rows as pairs", "other-reading", PAIRED, option="rotary=interleaved"),
    Case("query heads turned", "other-reading", Misread("", "", heads(*range(1, 9), 0)), option="heads="),
    Case("rope base 10000", "healthy", Misread("", "", config=rope(10000))),
    Case("untrained", "untrained", Misread("", "", untrained)),
    Case("positions up to 16", "past-positions", Misread("", "", config={"max_position_embeddings": 16})),
    Case("prompts without the template", "template", prompts=plain),
    # half of the first draft tokens are accepted: with nothing to judge by, the template is not asked about
    Case("prompts in Llama 2's template", "healthy", prompts=other_template),
    Case("maths, and tales in Russian", "one-set", prompts=half_russian),
    Case("temperature 0.7", "sampling", given={"--temperature": "0.7"}),
    Case("three prompts", "too-few", prompts=lambda chats: chats[:3]),
    Case("a mask state, as P-EAGLE has", "refused", Misread("", "", masked, {"mask_token_id": 3})),
    Case("length 2.6 expected", "not-found", given={"--expected": "2.6"}),
    Case("a target of other sizes", "other-target", target=wider),
    Case("a target without weights", "no-reference", target=without_weights),
    Case(
        "a rotated target, embedding of training",
        "rotated-target",
        Misread("", "", own_embedding),
        option="--target-rotation",
        target=rotated,
    ),
    Case("a target marked as rotated", "marked-rotation", target=marked),
    Case(
        "a target trained on, embedding of training",
        "other-revision",
        Misread("", "", own_embedding),
        target=trained_on,
    ),
)


class Runs:
    """Cases run one after the other, in a folder of their own."""

    def __init__(self, folder: Path, target: Path, every: int) -> None:
        self.folder, self.target = folder, target
        self.chats = read_chats(FIXTURES / "test.jsonl", every)
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def eaglectl(self, *words: object) -> tuple[dict[str, Any], resource.struct_rusage]:
        """The JSON document of a command, and what it took."""
        command = [sys.executable, "-c", RUN, *map(str, words), "--json"]
        place = self.folder / "document.json"
        with place.open("w") as out:
            process = subprocess.Popen(command, stdout=out, env=self.environment, cwd=self.folder)
            _, _, taken = os.wait4(process.pid, 0)
        value: dict[str, Any] = json.loads(place.read_text())
        return value, taken

    @property
    def peak(self) -> int:
        """Peak memory of the last command in MB; ru_maxrss is at least that of this process."""
        return round(int((self.folder / PEAK).read_text().split()[1]) / 1024)

    def drafter(self, case: Case) -> Path:
        """The folder of a case's drafter: its trainer's, or vLLM's layout with the fault."""
        own = FIXTURES / case.drafter
        if case.fault is None:
            return own
        good, faulty = self.folder / case.drafter, self.folder / "faulty"
        if not good.exists():
            self.eaglectl("convert", own, "--target", self.target, "-o", good)
        shutil.rmtree(faulty, ignore_errors=True)
        return case.fault.apply(good, faulty)

    def row(self, case: Case) -> dict[str, Any]:
        """What `diagnose` says of a case, what it took, and whether that is the ending it must have."""
        drafter, prompts = self.drafter(case), self.folder / "prompts.jsonl"
        shutil.rmtree(self.folder / "target", ignore_errors=True)
        target = case.target(self.target, self.folder / "target")
        lines = case.prompts(self.chats)
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        given = [word for option in case.given.items() for word in option]
        began = time.monotonic()
        words = ["diagnose", drafter, "--target", target, "--prompts", prompts, "--device", "cpu"]
        document, taken = self.eaglectl(*words, "--max-tokens", NEW, *given)
        run = document["runs"]["reference"]
        return {
            "drafter": case.drafter,
            "case": case.name,
            "prompts": len(lines),
            "length": run and round(run["acceptance_length"], 4),
            "cause": document["cause"],
            "ending": document["ending"],
            "title": document["title"],
            "words": self.portable(document["words"]),
            "next": [self.portable(line) for line in document["next"]],
            "is_right": document["cause"] == case.cause
            and (not case.option or any(case.option in line for line in document["next"])),
            "cpu_seconds": round(taken.ru_utime + taken.ru_stime),
            "peak_mb": self.peak,
            "seconds": round(time.monotonic() - began),
        }

    def portable(self, text: str) -> str:
        """The text without this machine's paths."""
        places = {
            self.target: "TARGET",
            self.folder / "target": "TARGET",
            self.folder / "faulty": "SOURCE",
            self.folder: "",
            ROOT: "",
        }
        for place, name in places.items():
            text = text.replace(f"{place}/" if not name else str(place), name)
        return text


def asked(names: list[str] | None, drafters: list[str]) -> Iterator[Case]:
    return (case for case in CASES if (not names or case.name in names) and case.drafter in drafters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", help="all others are left out")
    parser.add_argument("--drafters", nargs="+", default=["specforge", "speculators"])
    parser.add_argument("--every", type=int, default=1, help="every so many chats")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), make_target(cache_folder()), options.every)
        for case in asked(options.cases, options.drafters):
            if (case.drafter, case.name) in recorded(options.out):
                continue
            row = runs.row(case)
            # another run of this tool may have written meanwhile
            rows = recorded(options.out) | {(case.drafter, case.name): row}
            ordered = [
                rows[other.drafter, other.name] for other in CASES if (other.drafter, other.name) in rows
            ]
            options.out.write_text(json.dumps(ordered, indent=1) + "\n")
            print(f"{case.drafter:12} {case.name:34} {row['cause']:15} {row['cpu_seconds']} s", flush=True)


def recorded(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of a file, by drafter and case."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return {(row["drafter"], row["case"]): row for row in rows}


if __name__ == "__main__":
    main()
