"""The real target's states of its own chats, as SpecForge and speculators store them for offline training.

    python tools/real/capture.py ANSWERS_FOLDER OUT --target FOLDER

Reads the files that answers.py writes, each once: OUT/done has a mark for each, so that a run goes on where
the last one ended and takes up files that came since. Written for a chat number N, in bfloat16:
OUT/specforge/data_N.ckpt (boundaries of SPECFORGE, and the state after the final norm) and
OUT/speculators/hidden_states/hs_N.safetensors (boundaries of SPECULATORS, and the last layer's state).
OUT/rows.jsonl has the tokens and the loss mask of each.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SPECFORGE = (2, 15, 27)  # its default: layers 1, n/2-1 and n-4, of n = 30
SPECULATORS = (6, 18, 28)  # its default is 2, 15, 27
BATCH = 16
LENGTH = 512  # tokens of a chat that are kept
Chat = dict[str, Any]


def load(target: str) -> Any:
    """The target in bfloat16 where the processor has instructions for it (7 times as fast), else float32."""
    from answers import dtype
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=getattr(torch, dtype()), attn_implementation="sdpa"
    )
    return model.model.eval()


@torch.inference_mode()
def states(model: Any, chats: list[Chat]) -> list[dict[str, torch.Tensor]]:
    """By chat: the states entering layers 0 to 29, `last` that leaves layer 29, `normed` after the norm."""
    longest = max(len(chat["token_ids"]) for chat in chats)
    tokens = torch.zeros(len(chats), longest, dtype=torch.long)
    for row, chat in zip(tokens, chats, strict=True):
        row[: len(chat["token_ids"])] = torch.tensor(chat["token_ids"])
    last: list[torch.Tensor] = []
    handle = model.norm.register_forward_pre_hook(lambda module, given: last.append(given[0]))
    # padding is at the end, where no state before it looks
    made = model(input_ids=tokens, output_hidden_states=True, use_cache=False)
    handle.remove()
    entering = {b: made.hidden_states[b] for b in {*SPECFORGE, *SPECULATORS}}
    found = []
    for index, chat in enumerate(chats):
        count = len(chat["token_ids"])
        named = {str(b): state[index, :count] for b, state in entering.items()}
        named |= {"last": last[-1][index, :count], "normed": made.last_hidden_state[index, :count]}
        found.append({name: state.bfloat16().clone() for name, state in named.items()})
    return found


def loss_mask(chat: Chat) -> list[int]:
    """One where the target wrote the token."""
    mask = [0] * len(chat["token_ids"])
    for start, end in chat["spans"]:
        mask[start:end] = [1] * (end - start)
    return mask


def write(folder: Path, number: int, chat: Chat, found: dict[str, torch.Tensor]) -> None:
    tokens = torch.tensor(chat["token_ids"])
    aux = torch.cat([found[str(b)] for b in SPECFORGE], -1)
    record = {
        "input_ids": tokens,
        "loss_mask": torch.tensor(loss_mask(chat)),
        "hidden_state": found["normed"][None],
        "aux_hidden_state": aux[None],
    }
    torch.save(record, folder / f"specforge/data_{number}.ckpt")
    layers = torch.stack([found[str(b)] for b in SPECULATORS] + [found["last"]], 1)
    save_file(
        {"hidden_states": layers, "token_ids": tokens},
        folder / f"speculators/hidden_states/hs_{number}.safetensors",
    )


def read_chats(path: Path) -> list[Chat]:
    """The chats of a file, cut to LENGTH; those without an answer in it are left out."""
    chats = []
    for line in path.read_text().splitlines():
        chat = json.loads(line)
        chat["token_ids"] = chat["token_ids"][:LENGTH]
        chat["spans"] = [[start, min(end, LENGTH)] for start, end in chat["spans"] if start < LENGTH]
        if chat["spans"]:
            chats.append(chat)
    return chats


def capture(path: Path, folder: Path, model: Any) -> int:
    """Capture the chats of a file; returns the number of tokens that the target wrote."""
    chats = read_chats(path)
    rows = folder / "rows.jsonl"
    number = len(rows.read_text().splitlines()) if rows.exists() else 0
    order = sorted(range(len(chats)), key=lambda index: len(chats[index]["token_ids"]))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        for index, found in zip(batch, states(model, [chats[i] for i in batch]), strict=True):
            write(folder, number + index, chats[index], found)
    lines = [
        json.dumps({"input_ids": chat["token_ids"], "loss_mask": loss_mask(chat), "set": chat["set"]})
        for chat in chats
    ]
    with rows.open("a") as file:
        file.write("".join(line + "\n" for line in lines))
    (folder / "done" / path.name).touch()
    return sum(sum(loss_mask(chat)) for chat in chats)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("answers", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True)
    options = parser.parse_args()
    for name in ("specforge", "speculators/hidden_states", "done"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
    model = None
    for path in sorted(options.answers.glob("*.jsonl")):
        if (options.out / "done" / path.name).exists():
            continue
        model = model or load(options.target)
        began = time.monotonic()
        tokens = capture(path, options.out, model)
        print(f"{path.name}: {tokens} tokens, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
