"""What a trainer's test gives to the trainer, and what eaglectl's reference makes of the same."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

import eaglectl
from eaglectl.reference.model import load_drafter
from eaglectl.reference.states import TransformersEngine
from eaglectl.reference.target_model import load_target, load_tokenizer
from eaglectl.run.prompts import read_prompts
from tests.tiny import TARGET, TINY

BOUNDARIES = (2, 4, 5)
DEPTH = 3  # steps of the training forward that are compared
SEQUENCES, LENGTH, ANSWER = 8, 96, 48


@cache
def states() -> Mapping[str, torch.Tensor]:
    """Token sequences and the target's states, in float32.

    `tokens` [sequence, time], `aux` [sequence, time, 3*128], `last` [sequence, time, 128] that leaves the
    last layer, `normed` the same after the final norm.
    """
    target = load_target(TARGET, (*BOUNDARIES, 8), dtype="float32", device="cpu")
    tokenizer = load_tokenizer(TARGET)
    texts = [tokenizer(prompt.text).input_ids for prompt in read_prompts(TINY / "calibration.jsonl")]
    texts = [text[: LENGTH - ANSWER] for text in texts if len(text) >= LENGTH - ANSWER][:SEQUENCES]
    engine = TransformersEngine(target, "cpu", "float32")
    answers = engine.answers(texts, ANSWER)
    tokens = [[*text, *answer] for text, answer in zip(texts, answers, strict=True)]
    aux = engine.states(tokens).aux
    last = aux[..., -128:]
    normed = target.model.model.norm(last).detach()
    return {
        "tokens": torch.tensor(tokens),
        "aux": aux[..., :-128].contiguous(),
        "last": last.contiguous(),
        "normed": normed.contiguous(),
    }


def write_pair(folder: Path) -> None:
    """The target and the states, beside a start."""
    (folder / "target").symlink_to(TARGET)
    save_file(dict(states()), folder / "states.safetensors")


def add_embedding(start: Path) -> None:
    """Add the target's embedding to a start, as docs/trainers.md shows."""
    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    path = start / "model.safetensors"
    save_file({**load_file(path), "embed_tokens.weight": embedding}, path, {"format": "pt"})


def reference_logits(start: Path, folder: Path, **norms: bool) -> torch.Tensor:
    """Logits [step, sequence, time - DEPTH, draft_vocab] of a start, by eaglectl's reference in float32.

    `norms` replaces switches of the start, to show what another reading of it gives.
    """
    plain = folder / "plain"
    eaglectl.convert(start, plain, dtype="F32", target=str(TARGET))
    drafter = eaglectl.inspect(str(plain), target=str(TARGET)).drafter
    drafter = replace(drafter, norms=replace(drafter.norms, **norms))
    model = load_drafter(plain, drafter, dtype="float32", device="cpu")
    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float()
    tokens = states()["tokens"]
    count = tokens.shape[1] - DEPTH
    positions = torch.arange(count).expand(len(tokens), -1)
    own = torch.eye(count, dtype=torch.bool).expand(len(tokens), -1, -1)
    state, caches, found = (model.combine_hidden_states(states()["aux"][:, :count]), model.new_caches(), [])
    mask = own.tril().new_ones(own.shape).tril()
    for step in range(DEPTH):
        embeddings = embedding[tokens[:, step + 1 : step + 1 + count]]
        stream = model.forward(embeddings, state, positions + step, caches, mask)
        found.append(model.logits(stream, model.weights["lm_head.weight"]))
        state, mask = model.feedback(stream), torch.cat((mask, own), -1)
    return torch.stack(found)
