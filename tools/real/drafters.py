"""Make the real pair's data and drafters, stage by stage; what is there is not made again.

    make real-drafters            # hours of one core; by hand
    python tools/real/drafters.py STAGE... [--first 0] [--batches 10]

| stage | environment | makes, in the cache (`EAGLECTL_REAL`) |
|---|---|---|
| prompts | .venv | dealt/: prompts by set |
| answers | .venv-engine | answers/, heldout/: the target's own chats; 200 a file |
| heldout | .venv | fixtures/real/calibration.jsonl, gate.jsonl, test.jsonl |
| capture | .venv | features/: states as both trainers store them |
| specforge | .venv-trainers-specforge | specforge/trained |
| speculators | .venv-trainers-speculators | speculators/trained |
| random-fc | .venv, .venv-trainers-speculators | random-fc/trained: EAGLE-3 whose `fc` started at random |
| upgrade | .venv, .venv-trainers-* | upgrade*/: drafters trained on, as they are and as 3.1 (`UPGRADES`) |
| commit | .venv | fixtures/real/: drafters in bfloat16 without the embedding, and logs |
"""

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from target import make_target, cache_folder  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(__file__).parent
FIXTURES = ROOT / "fixtures/real"
HELD_OUT = ("calibration", "gate", "test")
BATCH = 100  # prompts of a file of answers
DEV, ENGINE = ROOT / ".venv", ROOT / ".venv-engine"
TRAINERS = {name: ROOT / f".venv-trainers-{name}" for name in ("specforge", "speculators")}
UPGRADE_CHATS = 1600  # of prompts that the committed drafters were not trained on
# by folder: the drafter that is trained on, and whose code trains it
UPGRADES = {
    "upgrade": ("specforge", "speculators"),
    "upgrade-specforge": ("specforge", "specforge"),
    "upgrade-random-fc": ("random-fc", "speculators"),
}
TARGET_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
SETTINGS: dict[str, dict[str, Any]] = {
    # 2 chats a step
    "specforge": {
        "num_epochs": 2,
        "save_interval": 300,
        "accumulation_steps": 2,
        "learning_rate": 6e-4,
        "warmup_ratio": 0.03,
        "ttt_length": 4,
        "log_interval": 20,
        "compact_teacher": True,
    },
    # 768 tokens a step; else the trainer's defaults (Muon, 1e-3, 3 steps of test-time training)
    "speculators": {
        "epochs": 2,
        "checkpoint-freq": 0.25,
        "scheduler-type": "cosine",
        "scheduler-warmup-ratio": 0.03,
        "target-layer-ids": (6, 18, 28),  # the default is 2 15 27
        "draft-vocab-size": 8192,
    },
    # EAGLE-3 as its authors have it: none of the norms that speculators adds
    "random-fc": {
        "epochs": 1,
        "checkpoint-freq": 0.25,
        "scheduler-type": "cosine",
        "scheduler-warmup-ratio": 0.03,
        "target-layer-ids": (2, 15, 27),
        "draft-vocab-size": 8192,
        "no-norm-before-fc": (),
        "no-norm-before-residual": (),
        "no-norm-output": (),
    },
    "speculators on": {
        "epochs": 1,
        "max-steps": 800,
        "checkpoint-freq": 0.25,
        "lr": 1e-4,
        "scheduler-type": "cosine",
        "scheduler-warmup-ratio": 0.03,
    },
    "specforge on": {
        "num_epochs": 1,
        "save_interval": 200,
        "accumulation_steps": 2,
        "learning_rate": 1e-4,
        "warmup_ratio": 0.03,
        "ttt_length": 4,
        "log_interval": 20,
        "compact_teacher": True,
    },
}


def run(venv: Path, *arguments: object, log: Path | None = None) -> None:
    """Run a tool in an environment, with one thread, behind other work; `log` takes its output."""
    if not (venv / "bin/python").exists():
        raise SystemExit(f"{venv} is missing: run `make real-drafters`, which builds it")
    command = [str(word) for word in ("nice", "-n", "10", venv / "bin/python", *arguments)]
    # speculators prints its figures as a table as wide as the terminal
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    with (log or Path(os.devnull)).open("ab") as output:
        place = output if log else None
        subprocess.run(command, env=environment, check=True, cwd=ROOT, stdout=place, stderr=place)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def deal_prompts(cache: Path) -> None:
    run(DEV, TOOLS / "prompts.py", "--out", cache / "dealt")


def answer_prompts(cache: Path, batches: range) -> None:
    tool, target = TOOLS / "answers.py", ("--target", cache / "target")
    size = ("--batch", BATCH, "--first", batches.start, "--batches", batches.stop)
    run(ENGINE, tool, cache / "dealt/train.jsonl", cache / "answers", *target, *size)
    turns = [line for name in HELD_OUT for line in read_lines(cache / f"dealt/{name}.jsonl")]
    write_lines(cache / "heldout/turns.jsonl", (line for line in turns if "then" in line))
    run(ENGINE, tool, cache / "heldout/turns.jsonl", cache / "heldout/answers", *target, "--greedy-only")


def write_held_out(cache: Path) -> None:
    """The sets as eaglectl reads them: a chat of two turns has the target's own first answer."""
    chats = [
        chat for path in sorted((cache / "heldout/answers").glob("*.jsonl")) for chat in read_lines(path)
    ]
    for name in HELD_OUT:
        lines = read_lines(cache / f"dealt/{name}.jsonl")
        for line in lines:
            if line.pop("then", None):
                line["messages"] = chats.pop(0)["messages"]
        write_lines(FIXTURES / f"{name}.jsonl", lines)


def capture(cache: Path) -> None:
    run(DEV, TOOLS / "capture.py", cache / "answers", cache / "features", "--target", cache / "target")


def prepare(folder: Path, cache: Path, settings: str) -> None:
    """A trainer's folder: the target, the features and the settings."""
    folder.mkdir(exist_ok=True)
    links = {
        "target": cache / "target",
        "specforge": cache / "features/specforge",
        "speculators": cache / "features/speculators",
        "rows.jsonl": cache / "features/rows.jsonl",
    }
    for name, place in links.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(place)
    (folder / "settings.json").write_text(json.dumps(SETTINGS[settings]))


def train(cache: Path, name: str) -> None:
    folder = cache / name
    if (folder / "trained").exists():
        return
    prepare(folder, cache, name)
    run(TRAINERS[name], TOOLS / f"{name}_train.py", folder, log=folder / "log")


def train_random(cache: Path) -> None:
    """speculators' EAGLE-3 drafter on SpecForge's boundaries; all but the head starts at random."""
    folder = cache / "random-fc"
    folder.mkdir(exist_ok=True)
    if not (folder / "trained").exists():
        upgrade_data(cache, folder)
        prepare(folder, cache, "random-fc")
        run(TRAINERS["speculators"], TOOLS / "speculators_train.py", folder, log=folder / "log")


def upgrade_data(cache: Path, folder: Path) -> None:
    """The chats that drafters are trained on with, as speculators reads them, in a trainer's folder."""
    rows = read_lines(cache / "features/rows.jsonl")[:UPGRADE_CHATS]
    write_states(cache, cache / "upgrade/speculators/hidden_states", len(rows))
    if not (folder / "speculators").exists():
        (folder / "speculators").symlink_to(cache / "upgrade/speculators")
        write_lines(folder / "rows.jsonl", rows)


def upgrade_source(cache: Path, name: str) -> Path:
    """The drafter that an entry of `UPGRADES` trains on."""
    drafter = UPGRADES[name][0]
    return FIXTURES / drafter if drafter in TRAINERS else cache / drafter / "trained"


def train_on(cache: Path, name: str) -> None:
    """A drafter, trained on from two starts: as it is (the control), and converted to 3.1."""
    import eaglectl

    folder, target, trainer = cache / name, str(cache / "target"), UPGRADES[name][1]
    source = str(upgrade_source(cache, name))
    for start in ("control", "3.1"):
        place = folder / start
        place.mkdir(parents=True, exist_ok=True)
        if (place / "trained").exists():
            continue
        upgrade_data(cache, place)
        statistics = folder / "statistics"
        if not statistics.exists():
            eaglectl.calibrate(source, target, statistics, eaglectl.CalibrateOptions(device="cpu"))
        if not (place / "start").exists():
            write_upgrade_start(
                cache, source, place / "start", None if start == "control" else statistics, trainer
            )
        prepare(place, cache, f"{trainer} on")
        run(TRAINERS[trainer], TOOLS / f"{trainer}_train.py", place, log=place / "log")


def write_upgrade_start(cache: Path, source: str, out: Path, statistics: Path | None, trainer: str) -> None:
    """A start for a trainer: EAGLE-3 as it is, or with `statistics` as 3.1, calibrated and gated."""
    from safetensors.torch import load_file, save_file

    import eaglectl
    from eaglectl.api.convert import ConvertOptions
    from eaglectl.api.upgrade import UpgradeOptions

    layout = ConvertOptions(layout=trainer, target=str(cache / "target"), target_name=TARGET_NAME)
    if statistics is None:
        eaglectl.convert(source, out, layout)
    else:
        gated = FIXTURES / "calibration.jsonl"
        upgrade = UpgradeOptions(statistics=statistics, prompts=gated, sample=40, device="cpu")
        eaglectl.upgrade(source, out, upgrade, conversion=layout)
    if trainer == "speculators":
        embedding = load_file(cache / "target/model.safetensors")["model.embed_tokens.weight"]
        path = out / "model.safetensors"
        save_file({**load_file(path), "embed_tokens.weight": embedding}, path, {"format": "pt"})


def write_states(cache: Path, folder: Path, count: int) -> None:
    """SpecForge's boundaries of the first chats in speculators' format."""
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        place = folder / f"hs_{number}.safetensors"
        if place.exists():
            continue
        record = torch.load(cache / f"features/specforge/data_{number}.ckpt", weights_only=True)
        last = load_file(cache / "features/speculators/hidden_states" / place.name)["hidden_states"][:, -1:]
        aux = record["aux_hidden_state"][0].unflatten(-1, (3, -1))
        save_file({"hidden_states": torch.cat((aux, last), 1), "token_ids": record["input_ids"]}, place)


def commit(cache: Path) -> None:
    """Copy what the trainers wrote to fixtures/real: bfloat16, without the embedding; and their logs."""
    import torch
    from safetensors.torch import load_file, save_file

    for name in TRAINERS:
        trained, place = cache / name / "trained", FIXTURES / name
        if not trained.exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(trained / "config.json", place / "config.json")
        tensors = load_file(trained / "model.safetensors")
        kept = {
            key: value.to(torch.bfloat16) if value.is_floating_point() else value
            for key, value in tensors.items()
            if "embed_tokens" not in key
        }
        save_file(kept, place / "model.safetensors", {"format": "pt"})
    for name, lines in logs(cache).items():
        write_lines(FIXTURES / f"logs/{name}.jsonl", lines)


def logs(cache: Path) -> dict[str, list[dict[str, Any]]]:
    """By run: loss and accuracy at each logged step, by draft position, as the trainers print them."""
    places = {name: cache / name for name in (*TRAINERS, "random-fc")}
    for name in UPGRADES:
        places |= {f"{name}-{start}": cache / name / start for start in ("control", "3.1")}
    return {name: read_log(place / "log") for name, place in places.items() if (place / "log").exists()}


def read_log(path: Path) -> list[dict[str, Any]]:
    """Steps of a trainer's output: SpecForge's lines, or speculators' tables of NAME=VALUE."""
    text = path.read_text(errors="replace")
    if lines := re.findall(r"^step (\d+): (\{.*\})$", text, re.M):
        return [{"step": int(step), **specforge_values(values)} for step, values in lines]
    found = []
    for block in re.split(r"(?=train/loss_0|val/loss_0)", text)[1:]:
        values = re.findall(r"((?:train|val)/[a-z_]+\d?(?:_epoch)?)=([-\d.e+]+)", block)
        step = re.search(r"global_step=(\d+)", block)
        row = {key: float(value) for key, value in values if "error" not in key}
        found.append({"step": int(step[1]) if step else None, **row})
    return found


def specforge_values(text: str) -> dict[str, float]:
    values = re.findall(r"'((?:acc|ploss|acceptance_rate)_?\d?|loss|lr)': ([-\d.e]+)", text)
    return {key: round(float(value), 5) for key, value in values}


def main() -> None:
    stages = {
        "prompts": deal_prompts,
        "answers": lambda cache: answer_prompts(cache, range(options.first, options.batches)),
        "heldout": write_held_out,
        "capture": capture,
        "specforge": lambda cache: train(cache, "specforge"),
        "speculators": lambda cache: train(cache, "speculators"),
        "random-fc": train_random,
        **{name: partial(train_on, name=name) for name in UPGRADES},
        "commit": commit,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(stages)}; else all")
    parser.add_argument("--batches", type=int, default=10, help="files of answers, 41,000 tokens each")
    parser.add_argument("--first", type=int, default=0, help="the file of answers to begin with")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(stages):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    cache = cache_folder().absolute()
    make_target(cache)
    for name, stage in stages.items():
        if not options.stages or name in options.stages:
            stage(cache)


if __name__ == "__main__":
    main()
