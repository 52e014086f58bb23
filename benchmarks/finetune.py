"""What training adds after a conversion: the tiny drafter trained on, from three starts, for equal steps on
equal batches.

    python benchmarks/finetune.py [--steps 800] [--rate 1e-3]

The control goes on as EAGLE-3. The others are EAGLE-3.1, started from what `convert --to 3.1` writes and from
the flags alone with scales of one (`--init-only --fc-norm ones`). Prints acceptance length on prompts that
none was trained or calibrated on, and ratios with paired 95 % intervals over prompts: one training seed, so
they do not cover seeds.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "fixtures/tiny"
sys.path.insert(0, str(TINY))

import heldout  # noqa: E402
import train  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.api.convert import ConvertOptions  # noqa: E402
from eaglectl.api.upgrade import UpgradeOptions  # noqa: E402
from eaglectl.drafter.drafter import Rope  # noqa: E402
from eaglectl.reference.model import DraftModel  # noqa: E402
from eaglectl.reference.speculation import DecodingSettings  # noqa: E402
from eaglectl.reference.target_model import load_target, load_tokenizer  # noqa: E402
from eaglectl.run.gate import DEPTHS  # noqa: E402
from eaglectl.run.job import decode_prompts  # noqa: E402
from eaglectl.run.measurement import Estimate, PromptResult, measure, ratio  # noqa: E402
from eaglectl.run.prompts import read_prompts  # noqa: E402

RATE = 1e-3  # the pair itself was trained with 7e-3, in 1,760 steps
MAX_TOKENS = 64
CONTROL, CONVERTED, FLAGS = "EAGLE-3, trained on", "3.1, converted", "3.1, flags alone"
Sides = dict[int, list[PromptResult]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[800])
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = load_target(TINY / "target", train.BOUNDARIES, dtype="float32", device="cpu")
    tokenizer = load_tokenizer(TINY / "target")
    texts = [tokenizer(prompt.text).input_ids for prompt in read_prompts(TINY / "gate.jsonl")]
    with tempfile.TemporaryDirectory() as name:
        starts = make_starts(Path(name))
        kept = kept_tokens(starts[CONTROL])
        plain = sides(target, starts[CONTROL], False, texts)
        print_row("EAGLE-3 as it is", 0, plain, plain, plain)
        corpora = texts_to_train_on(target, tokenizer)
        for steps in options.steps:
            batches = list(train.windows(corpora, share_of(steps), train.SEED + 9))
            control: Sides | None = None
            for which, weights in starts.items():
                made = trained(which, weights, target, batches, kept, options.rate)
                found = sides(target, made, which != CONTROL, texts)
                control = control or found
                print_row(which, steps, found, plain, control)


def make_starts(folder: Path) -> dict[str, train.Weights]:
    """The three starts, in float32."""
    source, where = str(TINY / "eagle3"), {"target": str(TINY / "target")}
    eaglectl.convert(source, folder / "control", ConvertOptions(**where))
    calibration = eaglectl.CalibrateOptions(prompts=TINY / "calibration.jsonl", device="cpu")
    eaglectl.calibrate(source, where["target"], folder / "stats", calibration)
    converted = UpgradeOptions(statistics=folder / "stats", has_gate=False, device="cpu")
    eaglectl.upgrade(source, folder / "converted", converted, conversion=ConvertOptions(**where))
    eaglectl.upgrade(
        source, folder / "flags", UpgradeOptions("ones", is_start=True), conversion=ConvertOptions(**where)
    )
    names = {CONTROL: "control", CONVERTED: "converted", FLAGS: "flags"}
    return {which: load_file(folder / name / "model.safetensors") for which, name in names.items()}


def kept_tokens(weights: train.Weights) -> torch.Tensor:
    return weights["d2t"] + torch.arange(len(weights["d2t"]))


def texts_to_train_on(target: object, tokenizer: object) -> list[torch.Tensor]:
    """The modules the pair was trained on, and what the target writes after pieces of them."""
    pieces = [text for _, text in heldout.sources(held_out=False)]
    encode = tokenizer.backend_tokenizer.encode  # type: ignore[attr-defined]
    tokens = torch.tensor([i for text in pieces for i in (*encode(text, add_special_tokens=False).ids, 1)])
    return [tokens, train.write_on(target.model, tokens, train.WRITTEN)]  # type: ignore[attr-defined]


def share_of(steps: int) -> Sequence[train.Phase]:
    """The mixture of short and long windows that the drafters were trained with."""
    return (train.Phase(7, 8, 128), train.Phase(1, 4, train.WINDOW)) * (steps // 8) + (
        train.Phase(steps % 8, 8, 128),
    )


def model_of(weights: train.Weights, is_upgraded: bool) -> DraftModel:
    norms = train.NORMS["eagle3.1" if is_upgraded else "eagle3"]
    return DraftModel(weights, train.DIMS, norms, Rope(train.THETA, None, is_interleaved=False), train.EPS)


def trained(
    which: str,
    start: train.Weights,
    target: object,
    batches: list[torch.Tensor],
    kept: torch.Tensor,
    rate: float,
) -> train.Weights:
    weights = {
        key: value.float().requires_grad_() for key, value in start.items() if value.is_floating_point()
    }
    drafter = model_of(weights, which != CONTROL)
    causal = target.model  # type: ignore[attr-defined]
    train.fit(which, weights, lambda ids: train.unrolled_loss(drafter, causal, ids, kept), batches, rate)
    return {**start, **{key: value.detach() for key, value in weights.items()}}


def sides(target: object, weights: train.Weights, is_upgraded: bool, texts: list[list[int]]) -> Sides:
    whole = {key: value.float() if value.is_floating_point() else value for key, value in weights.items()}
    model = model_of(whole, is_upgraded)
    return {
        k: decode_prompts(target, model, texts, DecodingSettings(k, MAX_TOKENS))  # type: ignore[arg-type]
        for k in DEPTHS
    }


def print_row(which: str, steps: int, found: Sides, plain: Sides, control: Sides) -> None:
    cells = []
    for k in DEPTHS:
        length = measure(found[k]).length
        cells += [shown(length), shown(ratio(found[k], plain[k])), shown(ratio(found[k], control[k]))]
    print(f"| {which} | {steps} | {' | '.join(cells)} |", flush=True)


def shown(value: Estimate) -> str:
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


if __name__ == "__main__":
    main()
