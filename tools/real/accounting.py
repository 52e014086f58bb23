"""Greedy draft-and-verify of the real pair, counted a second time: transformers for the target, and the
drafter written out from its trainer's own forward. Nothing of eaglectl is used.

Greedy answers do not depend on the drafter, so the target runs once over each chat, and a round is a look at
what the drafter says behind the tokens verified so far.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, silu, softmax

END = 2  # <|im_end|>
Tensor = torch.Tensor


@dataclass(frozen=True)
class Network:
    """What a trainer's forward does: names of the layer, and its switches."""

    boundaries: tuple[int, int, int]
    layer: str
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    base: float = 100000.0
    stretch: float = 1.0  # of positions, as linear scaling divides them
    width: int = 64  # of a head
    eps: float = 1e-5


SPECFORGE = Network((2, 15, 27), "midlayer")
# the switches that speculators 0.9.0 trains with where it is given none
SPECULATORS = Network((6, 18, 28), "layers.0", True, True, True)
# SpecForge's, trained on by speculators: as it is, and as 3.1
CONTROL = Network((2, 15, 27), "layers.0")
UPGRADED = Network((2, 15, 27), "layers.0", norm_output=True, fc_norm=True)
# the toy of fixtures/tiny
TINY = Network((2, 4, 5), "midlayer", base=500000.0, width=32, eps=1e-6)


@dataclass
class Counts:
    """Rounds, accepted tokens by draft position, and new tokens, of all prompts together.

    `prompts` has the rounds and the accepted tokens of each.
    """

    drafts: int = 0
    accepted: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def length(self) -> float:
        return 1 + sum(self.accepted) / self.drafts


def rotate(state: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding of [head, time, width]."""
    width = state.shape[-1]
    frequencies = base ** (-torch.arange(0, width, 2) / width)
    angles = (positions[:, None] * frequencies).repeat(1, 2)
    first, second = state.chunk(2, -1)
    return state * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """A drafter's tensors, in float32."""
    stored = load_file(folder / "model.safetensors")
    return {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}


class Drafter:
    """A drafter's forward in float32, with the keys and values of the verified tokens kept."""

    def __init__(self, weights: Mapping[str, Tensor], network: Network, embedding: Tensor) -> None:
        self.weights = weights
        self.network, self.embedding = network, embedding
        self.targets = self.weights["d2t"] + torch.arange(len(self.weights["d2t"]))

    def norm(self, state: Tensor, weight: Tensor) -> Tensor:
        return state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + self.network.eps) * weight

    def weight(self, name: str) -> Tensor:
        return self.weights[f"{self.network.layer}.{name}.weight"]

    def combine(self, aux: Tensor) -> Tensor:
        if self.network.norm_before_fc:
            aux = self.norm(aux, self.weights["input_norm.weight"])
        if self.network.fc_norm:
            states = enumerate(aux.chunk(3, -1))
            aux = torch.cat(
                [self.norm(state, self.weights[f"fc_norm.{place}.weight"]) for place, state in states], -1
            )
        return linear(aux, self.weights["fc.weight"])

    def forward(
        self, tokens: Tensor, state: Tensor, positions: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The layer over [time] tokens and [time, hidden] states, behind `past` keys and values."""
        embedded = self.norm(self.embedding[tokens], self.weight("input_layernorm"))
        normed = self.norm(state, self.weight("hidden_norm"))
        residual = normed if self.network.norm_before_residual else state
        both = torch.cat((embedded, normed), -1)
        width, base = self.network.width, self.network.base
        query, key, value = (
            linear(both, self.weight(f"self_attn.{name}_proj")).unflatten(-1, (-1, width)).transpose(0, 1)
            for name in "qkv"
        )
        places = positions / self.network.stretch
        query, key = rotate(query, places, base), rotate(key, places, base)
        if past is not None:
            key, value = torch.cat((past[0], key), 1), torch.cat((past[1], value), 1)
        groups = len(query) // len(key)
        scores = query @ key.repeat_interleave(groups, 0).transpose(1, 2) / width**0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - scores.shape[1] + 1)
        attended = softmax(scores.masked_fill(hidden, float("-inf")), -1) @ value.repeat_interleave(groups, 0)
        residual = residual + linear(attended.transpose(0, 1).flatten(1), self.weight("self_attn.o_proj"))
        inner = self.norm(residual, self.weight("post_attention_layernorm"))
        gate = silu(linear(inner, self.weight("mlp.gate_proj"))) * linear(inner, self.weight("mlp.up_proj"))
        return residual + linear(gate, self.weight("mlp.down_proj")), (key, value)

    def say(self, state: Tensor) -> tuple[int, Tensor]:
        """The token after a [1, hidden] state, and the state that is fed back."""
        normed = self.norm(state, self.weights["norm.weight"])
        token = int(self.targets[linear(normed, self.weights["lm_head.weight"]).argmax()])
        return token, normed if self.network.norm_output else state

    def chat(self, tokens: Sequence[int], aux: Tensor) -> "Chat":
        return Chat(self, torch.tensor(tokens), aux)


class Chat:
    """A drafter over one chat whose tokens and target states are known."""

    def __init__(self, drafter: Drafter, tokens: Tensor, aux: Tensor) -> None:
        self.drafter = drafter
        # the state of a position goes with the token after it
        positions = torch.arange(len(tokens) - 1)
        state = drafter.combine(aux[: len(tokens) - 1])
        self.out, (self.keys, self.values) = drafter.forward(tokens[1:], state, positions, None)

    def draft(self, known: int, count: int) -> list[int]:
        """`count` tokens behind the first `known` tokens."""
        token, state = self.drafter.say(self.out[known - 2 : known - 1])
        past = self.keys[:, : known - 1], self.values[:, : known - 1]
        found = [token]
        for place in range(known - 1, known - 2 + count):
            state, past = self.drafter.forward(torch.tensor([token]), state, torch.tensor([place]), past)
            token, state = self.drafter.say(state)
            found.append(token)
        return found


@dataclass(frozen=True)
class Answer:
    """A chat that the target ended: its tokens, where its own begin, and its states by boundary."""

    tokens: list[int]
    start: int
    states: tuple[Tensor, ...]


def answer(target: Any, text: list[int], new: int) -> Answer:
    """The target's greedy answer of exactly `new` tokens.

    It goes on past an end of sequence, for the rounds that reach over it.
    """
    return answer_together(target, [text], new)[0]


@torch.inference_mode()
def answer_together(
    target: Any, texts: Sequence[list[int]], new: int, temperature: float = 0.0
) -> list[Answer]:
    """`answer` to several texts at once, which may round otherwise.

    A greedy draft token is accepted where the target samples it, so that sampled answers do not depend on the
    drafter either.
    """
    longest = max(map(len, texts))
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    made = target.generate(
        torch.tensor([[0] * (longest - len(text)) + text for text in texts]),
        attention_mask=torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts]),
        max_new_tokens=new,
        eos_token_id=None,
        **(sampled if temperature else {"do_sample": False}),
    )
    found = []
    for text, row in zip(texts, made, strict=True):
        tokens = row[longest - len(text) :]
        states = target.model(tokens[None], output_hidden_states=True).hidden_states
        found.append(Answer(tokens.tolist(), len(text), tuple(state[0] for state in states)))
    return found


@torch.inference_mode()
def count(drafter: Drafter, answers: Sequence[Answer], k: int, new: int, end: int = END) -> Counts:
    """Draft-and-verify of each answer to `new` tokens or the end of sequence.

    The answers are `k` tokens longer. A round counts in full, as engines count it: also tokens past the
    limit, or past an end of sequence.
    """
    found = Counts(accepted=[0] * k)
    for made in answers:
        aux = torch.cat([made.states[b] for b in drafter.network.boundaries], -1)
        chat = drafter.chat(made.tokens, aux)
        known = made.start + 1  # the first new token is the target's
        limit = made.start + new
        before = found.drafts, sum(found.accepted)
        while known < limit and end not in made.tokens[made.start : known]:
            right = agreement(chat.draft(known, k), made.tokens[known : known + k])
            found.drafts += 1
            for place in range(right):
                found.accepted[place] += 1
            known += right + 1
        found.tokens.append(until(made.tokens[made.start : min(known, limit)], end))
        found.prompts.append((found.drafts - before[0], sum(found.accepted) - before[1]))
    return found


def until(tokens: list[int], end: int) -> list[int]:
    """The tokens up to the first end of sequence."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def agreement(drafted: Sequence[int], said: Sequence[int]) -> int:
    """Number of tokens before the first that differs."""
    pairs = zip(drafted, said, strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(drafted))


def read_chats(path: Path, every: int = 1) -> list[dict[str, Any]]:
    """Every so many chats of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()][::every]


def encode(tokenizer: Any, path: Path, every: int = 1) -> list[list[int]]:
    """Every so many chats of a file, by the target's template."""
    texts = [
        tokenizer.apply_chat_template(chat["messages"], tokenize=False, add_generation_prompt=True)
        for chat in read_chats(path, every)
    ]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
