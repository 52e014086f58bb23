"""What a real trainer adds after a conversion: the tiny drafter trained on by speculators, from two starts.

    make .venv-trainers-speculators/.ready
    python benchmarks/train_on.py [--steps 200] [--rate 1e-4]

The control goes on as EAGLE-3, the other as EAGLE-3.1 from what `convert --to 3.1 --for speculators` writes:
the same data, order, steps and rate. Data: the target's own answers to the prompts of calibration.jsonl, and
as many replayed pieces of what the pair was trained on. Prints acceptance length on gate.jsonl, and ratios
with paired 95 % intervals over prompts: one training run each, so they do not cover seeds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from finetune import TINY, heldout, print_row, train
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
NAME = "example/tiny-target"
ANSWER, LENGTH = 128, 256

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.api.upgrade import UpgradeOptions  # noqa: E402
from eaglectl.reference.model import load_drafter  # noqa: E402
from eaglectl.reference.speculation import DecodingSettings  # noqa: E402
from eaglectl.reference.states import TransformersEngine  # noqa: E402
from eaglectl.reference.target_model import load_target, load_tokenizer  # noqa: E402
from eaglectl.run.gate import DEPTHS  # noqa: E402
from eaglectl.run.job import decode_prompts  # noqa: E402
from eaglectl.run.prompts import read_prompts  # noqa: E402

# writes the dataset with the trainer's own library
DATASET = """
import sys
from datasets import Dataset
from safetensors.torch import load_file
rows = list(load_file("tokens.safetensors").values())
Dataset.from_dict({
    "input_ids": [row.tolist() for row in rows],
    "loss_mask": [[1] * len(row) for row in rows],
    "seq_len": [len(row) for row in rows],
}).with_format("torch").save_to_disk("data")
"""
# speculators' trainer wants an accelerator: the CPU stands in for it
RUN = """
import sys, torch
from speculators.train import trainer
from speculators.train.cli import main
from speculators.train.config import TrainConfig
trainer.get_local_rank = lambda: "cpu"
torch.accelerator.synchronize = lambda *given: None
main(TrainConfig.resolve(sys.argv[1:]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rows", type=int, default=96, help="sequences of answers, and as many of replay")
    parser.add_argument("--trainer", type=Path, default=ROOT / ".venv-trainers-speculators")
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = load_target(TINY / "target", (*train.BOUNDARIES, 8), dtype="float32", device="cpu")
    tokenizer = load_tokenizer(TINY / "target")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, target, tokenizer, options.rows)
        python = options.trainer / "bin/python"
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
        subprocess.run([python, "-c", DATASET], cwd=folder, env=environment, check=True)
        starts = make_starts(folder)
        texts = [tokenizer(prompt.text).input_ids for prompt in read_prompts(TINY / "gate.jsonl")]
        plain = sides(starts["control"], texts, folder)
        print_row("EAGLE-3 as it is", 0, plain, plain, plain)
        control = None
        for which, start in starts.items():
            arguments = (
                f"--verifier-name-or-path {NAME} --data-path data --from-pretrained {start} --seed 7"
                f" --save-path runs-{start.name} --on-missing raise --ttt-steps 4 --ttt-step-loss-decay 0.8"
                f" --lr {options.rate} --scheduler-type cosine --max-steps {options.steps} --epochs 100"
                " --total-seq-len 512 --num-workers 0 --draft-attn-impl eager --loss-implementation eager"
            ).split()
            subprocess.run([python, "-c", RUN, *arguments], cwd=folder, env=environment, check=True)
            saved = max(
                (folder / f"runs-{start.name}").glob("*/model.safetensors"),
                key=lambda path: path.stat().st_mtime,
            )
            found = sides(saved.parent, texts, folder)
            control = control or found
            print_row(which, options.steps, found, plain, control)


def write_data(folder: Path, target: object, tokenizer: object, rows: int) -> None:
    """The sequences, and the target's states of each as speculators' data generation stores them."""
    engine = TransformersEngine(target, "cpu", "float32")  # type: ignore[arg-type]
    prompts = [tokenizer(p.text).input_ids for p in read_prompts(TINY / "calibration.jsonl")][:rows]  # type: ignore[operator]
    sequences = []
    for start in range(0, rows, 16):
        batch = [text[: LENGTH - ANSWER] for text in prompts[start : start + 16]]
        sequences += [[*a, *b] for a, b in zip(batch, engine.answers(batch, ANSWER), strict=True)]
    encode = tokenizer.backend_tokenizer.encode  # type: ignore[attr-defined]
    pieces = [text for _, text in heldout.sources(held_out=False)][: 8 * rows : 8]
    sequences += [[0, *encode(text[:2000], add_special_tokens=False).ids][:LENGTH] for text in pieces]
    (folder / "data/hidden_states").mkdir(parents=True)
    for number, tokens in enumerate(sequences):
        states = engine.states([tokens]).aux[0].unflatten(-1, (4, -1)).bfloat16().contiguous()
        record = {"token_ids": torch.tensor(tokens), "hidden_states": states}
        save_file(record, folder / f"data/hidden_states/hs_{number}.safetensors")
    save_file(
        {f"{n:05}": torch.tensor(tokens) for n, tokens in enumerate(sequences)}, folder / "tokens.safetensors"
    )


def make_starts(folder: Path) -> dict[str, Path]:
    """The two starts; the converted one is calibrated on the states that the trainer has on disk."""
    (folder / NAME).parent.mkdir()
    (folder / NAME).symlink_to(TINY / "target")
    source, target = str(TINY / "eagle3"), str(TINY / "target")
    layout = ConvertOptions(layout="speculators", target=target, target_name=NAME)
    states = eaglectl.CalibrateOptions(
        states=folder / "data/hidden_states", states_layers=train.BOUNDARIES, device="cpu"
    )
    eaglectl.calibrate(source, target, folder / "stats", states)
    eaglectl.convert(source, folder / "control", layout)
    upgrade = UpgradeOptions(statistics=folder / "stats", has_gate=False, device="cpu")
    eaglectl.upgrade(source, folder / "converted", upgrade, conversion=layout)
    embedding = load_file(TINY / "target/model.safetensors")["model.embed_tokens.weight"]
    for name in ("control", "converted"):
        path = folder / name / "model.safetensors"
        save_file({**load_file(path), "embed_tokens.weight": embedding}, path, {"format": "pt"})
    return {"control": folder / "control", "3.1, converted": folder / "converted"}


def sides(drafter: Path, texts: list[list[int]], folder: Path) -> dict[int, list[object]]:
    """Rounds of each prompt by depth, of a drafter in speculators' layout."""
    place = Path(tempfile.mkdtemp(dir=folder)) / "plain"
    eaglectl.convert(str(drafter), place, ConvertOptions(dtype="F32", target=str(TINY / "target")))
    found = eaglectl.inspect(str(place), target=str(TINY / "target")).drafter
    model = load_drafter(place, found, dtype="float32", device="cpu")
    target = load_target(TINY / "target", train.BOUNDARIES, dtype="float32", device="cpu")
    return {k: decode_prompts(target, model, texts, DecodingSettings(k, 64)) for k in DEPTHS}  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
