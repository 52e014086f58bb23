"""Run by the environment of speculators 0.9.0: train an EAGLE-3 drafter by its own code, on a CPU.

    python speculators_train.py FOLDER

FOLDER holds speculators/hidden_states and rows.jsonl (capture.py), target/, settings.json (options of
`speculators train`; a list has an option's words) and, to train on, start/; runs/ and trained/ are written to
it, and a run that was stopped goes on from its last checkpoint. Stood in for: the trainer asks for an
accelerator's number and type, and here both are the CPU's.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}

import torch
from datasets import Dataset
from speculators.train import trainer
from speculators.train.cli import main as train
from speculators.train.config import TrainConfig
from speculators.train.vocab_mapping import save_token_frequency_distribution

VERIFIER = "HuggingFaceTB/SmolLM2-135M-Instruct"  # as the drafter names it: a folder below this one


def write_data(folder: Path) -> None:
    """The tokens and masks as speculators' data preparation stores them, beside the hidden states."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    columns = {
        "input_ids": [row["input_ids"] for row in rows],
        "loss_mask": [row["loss_mask"] for row in rows],
        "seq_len": [len(row["input_ids"]) for row in rows],
    }
    data = Dataset.from_dict(columns).with_format("torch")
    data.save_to_disk("data")
    save_token_frequency_distribution(data, Path("data/token_freq.pt"))
    Path("data/hidden_states").symlink_to((folder / "speculators/hidden_states").resolve())


def stand_in_for_accelerator() -> None:
    """The CPU where the trainer asks for an accelerator."""
    trainer.get_local_rank = lambda: "cpu"
    torch.accelerator.synchronize = lambda *given: None
    made = trainer.Trainer.__init__

    def initialise(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.device_type = "cpu"

    trainer.Trainer.__init__ = initialise


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder)
    torch.set_num_threads(1)
    if not Path(VERIFIER).exists():
        Path(VERIFIER).parent.mkdir(exist_ok=True)
        Path(VERIFIER).symlink_to(Path("target").resolve())
    if not Path("data/hidden_states").exists():
        shutil.rmtree("data", ignore_errors=True)
        write_data(folder)
    arguments = (
        f"--verifier-name-or-path {VERIFIER} --data-path data --save-path runs --speculator-type eagle3"
        f" {'--from-pretrained start' if Path('start').exists() else ''}"
        " --draft-attn-impl sdpa --loss-implementation eager --on-missing raise --total-seq-len 768"
        " --num-workers 0 --train-data-ratio 0.97 --log-freq 20"
    ).split()
    settings = json.loads((folder / "settings.json").read_text())
    for name, value in settings.items():
        arguments += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    stand_in_for_accelerator()
    train(TrainConfig.resolve(arguments))
    saved = max(Path("runs").glob("*/model.safetensors"), key=lambda path: path.stat().st_mtime).parent
    shutil.rmtree("trained", ignore_errors=True)
    shutil.copytree(saved, "trained", ignore=shutil.ignore_patterns("*.pt", "training_state.json"))


if __name__ == "__main__":
    main()
