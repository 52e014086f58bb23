"""What each mistake costs: acceptance length at k=3 and the share of accepted draft tokens lost.

    python tools/real/mistakes.py [--pairs NAME ...] [--every 1] [--out FILE]

One mistake at a time, over the chats of fixtures/real/test.jsonl, and beside them over the prompts of the toy
pair of fixtures/tiny, counted by accounting.py (which tests hold against eaglectl's reference and vLLM). A
mistake of the drafter is held against the target's same answers; for one of the prompts, of the target or of
sampling, the target answers anew. An interval is 95 % of the share lost, over the same prompts drawn again.
Rows that are recorded are kept; only new ones are run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import numpy.typing as npt
import torch
from accounting import (
    END,
    SPECFORGE,
    SPECULATORS,
    TINY,
    Answer,
    Drafter,
    Network,
    answer_together,
    count,
    encode,
    read_chats,
    read_weights,
)
from target import cache_folder, make_target

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures/real"
K, NEW = 3, 64
BATCH = 10  # texts that the target answers at once
LONGEST = 160  # characters of a prompt of the toy pair
NONE = "none"
DRAWS = 2000  # of as many prompts, for an interval
TUNED = 20  # steps of training on the target
Weights = dict[str, torch.Tensor]
Change = tuple[str, Network, Weights]
Integers = npt.NDArray[np.int64]


def changes(network: Network, weights: Weights, depth: int) -> Iterator[Change]:
    """Faulty readings of a drafter: what, its network, its tensors."""
    yield NONE, network, weights
    yield from other_layers(network, weights, depth)
    for switch in ("norm_output", "norm_before_residual"):
        other = not getattr(network, switch)
        yield f"{switch} {str(other).lower()}", replace(network, **{switch: other}), weights
    if network.norm_before_fc:
        yield "norm_before_fc false", replace(network, norm_before_fc=False), weights
    else:
        ones = weights | {"input_norm.weight": torch.ones(len(weights["fc.weight"]) * 3)}
        yield "norm_before_fc true, weights of one", replace(network, norm_before_fc=True), ones
    for base in (10000.0, 500000.0):
        if base != network.base:
            yield f"rope base {base:.0f}", replace(network, base=base), weights
    yield "rope scaled by 4 (linear)", replace(network, stretch=4.0), weights
    ids = torch.arange(len(weights["d2t"]))
    yield "d2t read as token ids", network, weights | {"d2t": weights["d2t"] - ids}
    yield "d2t left out", network, weights | {"d2t": torch.zeros_like(weights["d2t"])}
    yield "d2t one row late", network, weights | {"d2t": weights["d2t"].roll(1)}
    yield "embedding and state exchanged", network, exchanged(network, weights)


def other_layers(network: Network, weights: Weights, depth: int) -> Iterator[Change]:
    """The aux layers elsewhere, in another order, and where engines and other trainers take them."""
    low, middle, high = network.boundaries
    others = {
        "layers one lower": (low - 1, middle - 1, high - 1),
        "layers one higher": (low + 1, middle + 1, high + 1),
        "layers two lower": (max(0, low - 2), middle - 2, high - 2),
        "layers in reverse order": (high, middle, low),
        "first two layers exchanged": (middle, low, high),
        f"layers 2, {depth // 2}, {depth - 3} (engines' default)": (2, depth // 2, depth - 3),
        f"layers 1, {depth // 2}, {depth - 2}": (1, depth // 2, depth - 2),
    }
    for name, boundaries in others.items():
        if boundaries != network.boundaries:
            yield name, replace(network, boundaries=boundaries), weights


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


def tune(model: Any, tokens: torch.Tensor) -> None:
    """Train the target on `tokens` [steps, time], one row a step, by AdamW at 1e-4."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.0)
    model.train()
    for row in tokens:
        loss = model(row[None], labels=row[None]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def reference_text() -> str:
    """Python's language reference, as `help()` has it."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def in_llama_2s(messages: list[dict[str, Any]]) -> str:
    """Messages in the words of Llama 2's template."""
    return " ".join(
        message["content"] if message["role"] == "assistant" else f"[INST] {message['content']} [/INST]"
        for message in messages
    )


@dataclass
class Pair:
    """A target, its drafters by name with their networks, and every so many of its prompts."""

    target: Path
    drafters: Mapping[str, tuple[Path, Network]]
    prompts: Path
    every: int
    end: int

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.target)

    @cached_property
    def chats(self) -> list[dict[str, Any]]:
        return read_chats(self.prompts, self.every)

    @cached_property
    def has_chats(self) -> bool:
        return "messages" in self.chats[0]

    @cached_property
    def texts(self) -> list[list[int]]:
        """The prompts as token ids."""
        if self.has_chats:
            return encode(self.tokenizer, self.prompts, self.every)
        return [self.tokenizer(chat["prompt"].strip()[:LONGEST]).input_ids for chat in self.chats]

    def load(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.target, dtype=torch.float32)

    def answers(
        self, change: Callable[[Any], None] = lambda model: None, temperature: float = 0.0
    ) -> list[Answer]:
        """What the target, changed, says to the prompts."""
        return self.answers_to(self.texts, change, temperature)

    def answers_to(
        self,
        texts: list[list[int]],
        change: Callable[[Any], None] = lambda model: None,
        temperature: float = 0.0,
    ) -> list[Answer]:
        model = self.load()
        change(model)
        torch.manual_seed(27)
        batches = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
        return [made for batch in batches for made in answer_together(model, batch, NEW + K, temperature)]

    def others(self) -> Iterator[tuple[str, Callable[[], list[Answer]]]]:
        """Mistakes that are not the drafter's: what, and the answers."""
        if self.has_chats:
            yield (
                "prompts without the template",
                lambda: self.answers_to(
                    [self.tokenizer(chat["messages"][-1]["content"]).input_ids for chat in self.chats]
                ),
            )
            yield (
                "prompts in Llama 2's template",
                lambda: self.answers_to(
                    [self.tokenizer(in_llama_2s(chat["messages"])).input_ids for chat in self.chats]
                ),
            )
        yield "temperature 0.7", lambda: self.answers(temperature=0.7)
        yield "target rounded to int8 by row", lambda: self.answers(lambda model: rounded(model, 8, None))
        yield (
            "target rounded to int4 in groups of 32",
            lambda: self.answers(lambda model: rounded(model, 4, 32)),
        )
        yield (
            f"target trained on for {TUNED} steps",
            lambda: self.answers(lambda model: tune(model, self.tuning(TUNED))),
        )

    def tuning(self, steps: int, time: int = 256) -> torch.Tensor:
        """Rows of the language reference, spread over it, [steps, time]."""
        tokens = torch.tensor(self.tokenizer(reference_text()).input_ids)
        rows = tokens[: len(tokens) // time * time].unflatten(0, (-1, time))
        return rows[torch.linspace(0, len(rows) - 1, steps).long()]


class Table:
    """Rows as they are measured, with those that were recorded before."""

    def __init__(self, out: Path) -> None:
        self.out = out
        rows = json.loads(out.read_text()) if out.exists() else []
        self.rows: dict[tuple[str, str], dict[str, Any]] = {
            (row["drafter"], row["mistake"]): row for row in rows
        }

    def lacks(self, drafter: str, mistake: str) -> bool:
        return (drafter, mistake) not in self.rows

    def add(self, name: str, mistake: str, drafter: Drafter, answers: list[Answer], end: int) -> None:
        found = count(drafter, answers, K, NEW, end)
        row: dict[str, Any] = {"drafter": name, "mistake": mistake, "length": round(found.length, 4)}
        if mistake == NONE:
            row |= {"lost": 0.0, "prompts": found.prompts}
        else:
            lost, interval = share_lost(np.array(found.prompts), np.array(self.rows[name, NONE]["prompts"]))
            row |= {"lost": lost} | ({"interval": interval} if interval else {})
        row |= {"drafts": found.drafts, "accepted": found.accepted}
        self.rows[name, mistake] = row
        self.out.write_text(json.dumps([*self.rows.values()], indent=1) + "\n")
        print(f"{name:12} {mistake:42} {found.length:.4f}  {row['lost']:7.1%}", flush=True)


def share_lost(found: Integers, healthy: Integers) -> tuple[float, list[float]]:
    """The share of a round's accepted tokens that is gone, and its interval over prompts, drawn in pairs.

    Each is [prompts, 2]: rounds and accepted tokens. Empty where so few prompts have a round that some draws
    have none.
    """
    prompts = len(healthy)
    drawn = np.random.default_rng(0).integers(prompts, size=(DRAWS, prompts))
    sums = (np.concatenate((rows.sum(0)[None], rows[drawn].sum(1))) for rows in (found, healthy))
    (rounds, faulty), (others, right) = (part.T for part in sums)
    lost, *drawn_lost = 1 - (faulty / np.maximum(rounds, 1)) / (right / others)
    ends = np.quantile(drawn_lost, (0.025, 0.975)) if rounds.all() else ()
    return round(float(lost), 4), [round(float(end), 4) for end in ends]


def run(pair: Pair, table: Table) -> None:
    """The rows of a pair that are not recorded."""
    model = pair.load()
    embedding, depth = model.get_input_embeddings().weight.detach(), model.config.num_hidden_layers
    del model
    weights = {name: read_weights(folder) for name, (folder, _) in pair.drafters.items()}
    answers: list[Answer] = []
    for name, (_, network) in pair.drafters.items():
        for mistake, other, changed in changes(network, weights[name], depth):
            if table.lacks(name, mistake):
                answers = answers or pair.answers()
                table.add(name, mistake, Drafter(changed, other, embedding), answers, pair.end)
    for mistake, made in pair.others():
        missing = [name for name in pair.drafters if table.lacks(name, mistake)]
        answers = made() if missing else []
        for name in missing:
            drafter = Drafter(weights[name], pair.drafters[name][1], embedding)
            table.add(name, mistake, drafter, answers, pair.end)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", default=["tiny", "real"])
    parser.add_argument("--every", type=int, default=1, help="every so many prompts")
    parser.add_argument("--out", type=Path, default=FIXTURES / "mistakes.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table, tiny = Table(options.out), ROOT / "fixtures/tiny"
    if "tiny" in options.pairs:
        drafters = {"tiny": (tiny / "eagle3", TINY)}
        run(Pair(tiny / "target", drafters, tiny / "prompts.jsonl", options.every, 1), table)
    if "real" in options.pairs:
        drafters = {
            "specforge": (FIXTURES / "specforge", SPECFORGE),
            "speculators": (FIXTURES / "speculators", SPECULATORS),
        }
        target = make_target(cache_folder())
        run(Pair(target, drafters, FIXTURES / "test.jsonl", options.every, END), table)


if __name__ == "__main__":
    main()
