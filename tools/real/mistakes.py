"""What each mistake costs on the real pair: acceptance length at k=3 and the share of accepted tokens lost.

    python tools/real/mistakes.py [--out FILE] [--every 1]

One mistake at a time, over the chats of fixtures/real/test.jsonl, counted by accounting.py (which tests hold
against eaglectl's reference and vLLM). A mistake of the drafter is held against the target's same answers;
for one of the prompts or of the target, the target answers anew.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from accounting import SPECFORGE, SPECULATORS, Answer, Drafter, Network, answer, count, encode, read_weights
from target import cache_folder, make_target

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures/real"
K, NEW = 3, 64
Weights = dict[str, torch.Tensor]
Change = tuple[str, Network, Weights]
PAIRS = {"specforge": SPECFORGE, "speculators": SPECULATORS}


def changes(network: Network, weights: Weights) -> Iterator[Change]:
    """Faulty readings of a drafter: what, its network, its tensors."""
    low, middle, high = network.boundaries
    for name, boundaries in (
        ("layers one lower", (low - 1, middle - 1, high - 1)),
        ("layers one higher", (low + 1, middle + 1, high + 1)),
        ("layers two lower", (max(0, low - 2), middle - 2, high - 2)),
        ("layers in reverse order", (high, middle, low)),
        ("first two layers exchanged", (middle, low, high)),
        ("layers 2, 15, 27 (vLLM's default)", (2, 15, 27)),
        ("layers 1, 15, 28", (1, 15, 28)),
    ):
        if boundaries != network.boundaries:
            yield name, replace(network, boundaries=boundaries), weights
    for switch in ("norm_output", "norm_before_residual"):
        other = not getattr(network, switch)
        yield f"{switch} {str(other).lower()}", replace(network, **{switch: other}), weights
    if network.norm_before_fc:
        yield "norm_before_fc false", replace(network, norm_before_fc=False), weights
    else:
        ones = weights | {"input_norm.weight": torch.ones(len(weights["fc.weight"]) * 3)}
        yield "norm_before_fc true, weights of one", replace(network, norm_before_fc=True), ones
    for base in (10000.0, 500000.0):
        yield f"rope base {base:.0f}", replace(network, base=base), weights
    ids = torch.arange(len(weights["d2t"]))
    yield "d2t read as token ids", network, weights | {"d2t": weights["d2t"] - ids}
    yield "d2t left out", network, weights | {"d2t": torch.zeros_like(weights["d2t"])}
    yield "d2t one row late", network, weights | {"d2t": weights["d2t"].roll(1)}
    yield "embedding and state exchanged", network, exchanged(network, weights)


def exchanged(network: Network, weights: Weights) -> Weights:
    """q, k and v with their two halves the other way round."""
    found = dict(weights)
    for name in "qkv":
        key = f"{network.layer}.self_attn.{name}_proj.weight"
        found[key] = weights[key].roll(weights[key].shape[1] // 2, 1)
    return found


def rounded(model: Any, bits: int, group: int | None) -> None:
    """Round the target's matrices to integers, by row or by groups of a row."""
    limit = 2 ** (bits - 1) - 1
    for name, weight in model.named_parameters():
        if weight.ndim != 2 or "embed" in name:
            continue
        blocks = weight.data.unflatten(1, (-1, group or weight.shape[1]))
        scale = blocks.abs().amax(-1, keepdim=True) / limit
        weight.data = ((blocks / scale).round() * scale).flatten(1)


def tuned(model: Any) -> None:
    """Another target: noise of 3 % of each matrix, as far as a short fine-tune goes."""
    torch.manual_seed(27)
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            weight.data += 0.03 * weight.data.std() * torch.randn_like(weight.data)


def plain(tokenizer: Any, every: int) -> list[list[int]]:
    """The last message of each chat, without the template."""
    lines = [json.loads(line) for line in (FIXTURES / "test.jsonl").read_text().splitlines()][::every]
    return [tokenizer(line["messages"][-1]["content"]).input_ids for line in lines]


def other_template(tokenizer: Any, every: int) -> list[list[int]]:
    """The chats in the words of Llama 2's template, which the target was not trained on."""
    lines = [json.loads(line) for line in (FIXTURES / "test.jsonl").read_text().splitlines()][::every]
    texts = []
    for line in lines:
        parts = [
            f"[INST] {message['content']} [/INST]" if message["role"] != "assistant" else message["content"]
            for message in line["messages"]
        ]
        texts.append(tokenizer(" ".join(parts)).input_ids)
    return texts


class Table:
    """Rows as they are measured."""

    def __init__(self, drafters: dict[str, Weights], embedding: torch.Tensor, out: Path) -> None:
        self.drafters, self.embedding, self.out = drafters, embedding, out
        self.rows: list[dict[str, Any]] = []
        self.healthy: dict[str, float] = {}

    def add(self, pair: str, mistake: str, network: Network, weights: Weights, answers: list[Answer]) -> None:
        found = count(Drafter(weights, network, self.embedding), answers, K, NEW)
        length = found.length
        self.healthy.setdefault(pair, length)
        row = {
            "drafter": pair,
            "mistake": mistake,
            "length": round(length, 4),
            "lost": round(1 - (length - 1) / (self.healthy[pair] - 1), 4),
            "drafts": found.drafts,
            "accepted": found.accepted,
        }
        self.rows.append(row)
        self.out.write_text(json.dumps(self.rows, indent=1) + "\n")
        print(f"{pair:12} {mistake:40} {length:.4f}  {row['lost']:7.1%}", flush=True)

    def add_answers(self, mistake: str, answers: list[Answer]) -> None:
        """A mistake that is not the drafter's."""
        for pair, weights in self.drafters.items():
            self.add(pair, mistake, PAIRS[pair], weights, answers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FIXTURES / "mistakes.json")
    parser.add_argument("--every", type=int, default=1, help="every so many chats")
    parser.add_argument("--drafters", type=Path, default=FIXTURES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = str(make_target(cache_folder()))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

    def answers(model: Any, texts: list[list[int]]) -> list[Answer]:
        return [answer(model, text, NEW + K) for text in texts]

    model = load()
    embedding = model.model.embed_tokens.weight.detach()
    texts = encode(tokenizer, FIXTURES / "test.jsonl", options.every)
    healthy = answers(model, texts)
    drafters = {
        name: read_weights(options.drafters / name) for name in PAIRS if (options.drafters / name).exists()
    }
    table = Table(drafters, embedding, options.out)
    for pair, weights in drafters.items():
        table.add(pair, "none", PAIRS[pair], weights, healthy)
        for mistake, network, changed in changes(PAIRS[pair], weights):
            table.add(pair, mistake, network, changed, healthy)
    del healthy
    table.add_answers("prompts without the template", answers(model, plain(tokenizer, options.every)))
    table.add_answers(
        "prompts in Llama 2's template", answers(model, other_template(tokenizer, options.every))
    )
    others: dict[str, Callable[[Any], None]] = {
        "target rounded to int8 by row": lambda other: rounded(other, 8, None),
        "target rounded to int4 in groups of 32": lambda other: rounded(other, 4, 32),
        "another target: 3 % of noise": tuned,
    }
    for mistake, change in others.items():
        other = load()
        change(other)
        table.add_answers(mistake, answers(other, texts))


if __name__ == "__main__":
    main()
