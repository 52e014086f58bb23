"""Faults of the sensitivity probe's table: tensors stored other than named, and wrong config keys.

They are made with numpy on the file's own bytes, apart from the code that repairs them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import Stored, read_safetensors, write_safetensors

Tensors = dict[str, Stored]
Change = Callable[[Tensors, Mapping[str, Any]], None]
LAYER = "layers.0."


@dataclass(frozen=True)
class Misread:
    """A good drafter in vLLM's layout, stored otherwise. `option` is what the probe must print."""

    name: str
    option: str
    change: Callable[[Tensors, Mapping[str, Any]], None] = lambda tensors, config: None
    config: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, good: Path, folder: Path) -> Path:
        """A copy of `good` with the fault."""
        folder.mkdir(parents=True)
        config = json.loads((good / "config.json").read_text())
        tensors = read_safetensors(good / "model.safetensors")
        self.change(tensors, config)
        (folder / "config.json").write_text(json.dumps(config | dict(self.config)))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder


def exchanged(first: str, second: str) -> Callable[[Tensors, Mapping[str, Any]], None]:
    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        one, other = f"{LAYER}{first}.weight", f"{LAYER}{second}.weight"
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return change


def moved(tensors: Tensors, name: str, rows: Sequence[int] | None, blocks: Sequence[int] | None) -> None:
    """Put rows, or as many equal blocks of columns, of one bfloat16 matrix into another order."""
    dtype, shape, data = tensors[name]
    values = np.frombuffer(data, "<u2").reshape(shape)
    if rows is not None:
        values = values[list(rows)]
    if blocks is not None:
        parts = np.split(values, len(blocks), axis=1)
        values = np.concatenate([parts[block] for block in blocks], axis=1)
    tensors[name] = (dtype, shape, values.tobytes())


def in_pairs(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Rotary rows as neighbours, as Meta's own code stores them: 0, half, 1, half + 1 and so on."""
    half = _rotary_size(config) // 2
    _rotary(tensors, config, [row for low in range(half) for row in (low, low + half)])


def in_halves(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Rotary rows sorted into halves, in which they may be already: 0, 2, 4 and so on, then 1, 3, 5."""
    size = _rotary_size(config)
    _rotary(tensors, config, [*range(0, size, 2), *range(1, size, 2)])


def _rotary_size(config: Mapping[str, Any]) -> int:
    return int(config.get("qk_rope_head_dim") or config["head_dim"])


def _rotary(tensors: Tensors, config: Mapping[str, Any], places: Sequence[int]) -> None:
    if rank := config.get("kv_lora_rank"):
        nope, at = config["qk_nope_head_dim"], f"{LAYER}self_attn."
        head = [*range(nope), *(nope + place for place in places)]
        count = config["num_attention_heads"]
        rows = [number * len(head) + row for number in range(count) for row in head]
        moved(tensors, f"{at}q_b_proj.weight", rows, None)
        latent = [*range(rank), *(rank + place for place in places)]
        moved(tensors, f"{at}kv_a_proj_with_mqa.weight", latent, None)
        return
    for part, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
        rows = [head * len(places) + place for head in range(config[key]) for place in places]
        moved(tensors, f"{LAYER}self_attn.{part}_proj.weight", rows, None)


def fc_blocks(*order: int) -> Callable[[Tensors, Mapping[str, Any]], None]:
    return lambda tensors, config: moved(tensors, "fc.weight", None, order)


def heads(*order: int) -> Callable[[Tensors, Mapping[str, Any]], None]:
    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        part, size = "q_proj", config.get("head_dim")
        if "kv_lora_rank" in config:
            part, size = "q_b_proj", config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        rows = [head * size + row for head in order for row in range(size)]
        moved(tensors, f"{LAYER}self_attn.{part}.weight", rows, None)

    return change


def input_halves(tensors: Tensors, config: Mapping[str, Any]) -> None:
    parts = ("q_a_proj", "kv_a_proj_with_mqa") if "kv_lora_rank" in config else ("q_proj", "k_proj", "v_proj")
    for part in parts:
        moved(tensors, f"{LAYER}self_attn.{part}.weight", None, (1, 0))


def fused(modules: Sequence[str], groups: Callable[[Mapping[str, Any]], int], *, as_groups: bool) -> Change:
    """The rows of modules, fused by groups and cut part by part; with `as_groups` the other way round."""

    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        names = [f"{LAYER}{module}.weight" for module in modules]
        counts, count = [tensors[name][1][0] for name in names], groups(config)
        starts = [sum(counts[:at]) for at in range(len(counts))]
        order = [
            start + group * (size // count) + row
            for group in range(count)
            for start, size in zip(starts, counts, strict=True)
            for row in range(size // count)
        ]
        taken = np.argsort(order) if as_groups else np.array(order)
        data = [np.frombuffer(tensors[name][2], "u1").reshape(tensors[name][1][0], -1) for name in names]
        whole = np.concatenate(data)[taken]
        for name, start, size in zip(names, starts, counts, strict=True):
            tensors[name] = (*tensors[name][:2], whole[start : start + size].tobytes())

    return change


def recut(names: Sequence[str], pieces: Sequence[Any], tensors: Tensors) -> None:
    """Join pieces of rows to one matrix, and cut it by the rows of `names`."""
    whole, start = np.concatenate(pieces), 0
    for name in names:
        rows = tensors[name][1][0]
        tensors[name] = (*tensors[name][:2], whole[start : start + rows].tobytes())
        start += rows


def stored_rows(tensors: Tensors, name: str) -> Any:
    return np.frombuffer(tensors[name][2], "u1").reshape(tensors[name][1][0], -1)


def in_shards(modules: Sequence[str], count: int) -> Change:
    """Shards of a fused matrix, each with its part of every module, joined and cut part by part."""

    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        names = [f"{LAYER}{module}.weight" for module in modules]
        parts = [np.split(stored_rows(tensors, name), count) for name in names]
        recut(names, [part[rank] for rank in range(count) for part in parts], tensors)

    return change


def in_order(order: str) -> Change:
    """A fused matrix of q, k and v in this order, cut as q, k, v."""

    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        names = [f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"]
        recut(names, [stored_rows(tensors, names["qkv".index(part)]) for part in order], tensors)

    return change


def cut_in_order(order: str) -> Change:
    """A fused matrix of q, k and v, cut as if it had this order."""

    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        names = [f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"]
        pieces = [stored_rows(tensors, name) for name in names]
        recut([names["qkv".index(part)] for part in order], pieces, tensors)

    return change


def without(*names: str) -> Callable[[Tensors, Mapping[str, Any]], None]:
    def change(tensors: Tensors, config: Mapping[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return change


def d2t_one_row_late(tensors: Tensors, config: Mapping[str, Any]) -> None:
    dtype, shape, data = tensors["d2t"]
    tensors["d2t"] = dtype, shape, np.roll(np.frombuffer(data, "<i8"), 1).tobytes()


def rope(base: float) -> dict[str, Any]:
    return {"rope_theta": base, "rope_parameters": None, "rope_scaling": None}


PAIRED = Misread("rotary rows as pairs", "--fix-reading rotary=interleaved", in_pairs)
HALVED_TWICE = Misread("rotary rows in halves twice", "--fix-reading rotary=halves-twice", in_halves)
GATE_UP = Misread("gate and up", "--fix-reading gate-up=exchanged", exchanged("mlp.gate_proj", "mlp.up_proj"))
TWO_BLOCKS = Misread("two fc blocks", "--fix-reading fc-order=0,2,1", fc_blocks(0, 2, 1))
TURNED_BLOCKS = Misread("fc blocks turned", "--fix-reading fc-order=2,0,1", fc_blocks(1, 2, 0))
NORMS = Misread("two norms", "--fix-reading norms=exchanged", exchanged("hidden_norm", "input_layernorm"))
INPUT = Misread("embedding and state", "--fix-reading input=exchanged", input_halves)
KEY_VALUE = Misread(
    "k and v", "--fix-reading k-v=exchanged", exchanged("self_attn.k_proj", "self_attn.v_proj")
)
QUERY_KEY = Misread(
    "q and k", "--fix-reading q-k=exchanged", exchanged("self_attn.q_proj", "self_attn.k_proj")
)
FOUR_TURNED = Misread("query heads turned", "--fix-reading heads=3,0,1,2", heads(1, 2, 3, 0))
THREE_TURNED = Misread("query heads turned", "--fix-reading heads=2,0,1", heads(1, 2, 0))
GROUPED = Misread("query heads by columns", "--fix-reading heads=0,2,1,3", heads(0, 2, 1, 3))
ATTENTION, MLP = [f"self_attn.{part}_proj" for part in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]
KEYS, NEURONS = itemgetter("num_key_value_heads"), itemgetter("intermediate_size")
# Megatron's linear_qkv cut part by part (NeMo RL pull request 2802), and the reverse
FUSED = (
    Misread(
        "groups cut part by part",
        "--fix-reading fused-qkv=per-group",
        fused(ATTENTION, KEYS, as_groups=False),
    ),
    Misread(
        "parts cut by groups", "--fix-reading fused-qkv=part-by-part", fused(ATTENTION, KEYS, as_groups=True)
    ),
    Misread(
        "k and v by heads", "--fix-reading fused-kv=per-group", fused(ATTENTION[1:], KEYS, as_groups=False)
    ),
    Misread(
        "gate and up interleaved",
        "--fix-reading fused-gate-up=per-group",
        fused(MLP, NEURONS, as_groups=False),
    ),
    Misread(
        "gate and up in halves",
        "--fix-reading fused-gate-up=part-by-part",
        fused(MLP, NEURONS, as_groups=True),
    ),
    *(
        Misread(f"q, k and v in order {order}", f"--fix-reading fused-qkv={order}", in_order(order))
        for order in ("kqv", "kvq", "vqk", "vkq")
    ),
    *(
        Misread(f"q, k and v cut as {order}", f"--fix-reading fused-qkv=cut-as-{order}", cut_in_order(order))
        for order in ("kqv", "vkq")
    ),
    *(
        Misread(
            f"gate and up of {count} shards",
            f"--fix-reading fused-gate-up={count}-shards",
            in_shards(MLP, count),
        )
        for count in (2, 4, 8)
    ),
)
# what an MLA class rotates are pairs
HALVED = Misread("rotary rows in halves", "--fix-reading rotary=halves", in_halves)
PAIRED_TWICE = Misread("rotary rows as pairs twice", "--fix-reading rotary=interleaved-twice", in_pairs)
NORM_OUTPUT = Misread("norm_output set", "--source-semantics norm_output=false", config={"norm_output": True})


def wrong_base(wrong: float, right: float) -> Misread:
    return Misread(f"rope base {wrong:.0f}", f"--source-semantics rope={right:.0f}", config=rope(wrong))


ANY = (GATE_UP, TWO_BLOCKS, TURNED_BLOCKS, NORMS, INPUT)
STORED = (PAIRED, HALVED_TWICE, *ANY, KEY_VALUE, FOUR_TURNED)


def faults_of(drafter: str) -> tuple[Misread, ...]:
    """Every fault that the drafter (PAIR/NAME) can have. That of `second` has as many key as query heads."""
    match drafter:
        case "tiny/eagle3":
            return (*STORED, GROUPED, NORM_OUTPUT, wrong_base(100, 500000), wrong_base(10000, 500000))
        case "second/eagle3":
            stored = (PAIRED, HALVED_TWICE, *ANY, KEY_VALUE, QUERY_KEY, THREE_TURNED)
        case "second/mla":
            stored = (HALVED, PAIRED_TWICE, *ANY, THREE_TURNED)
        case _:
            raise KeyError(drafter)
    return (*stored, NORM_OUTPUT, wrong_base(100, 10000), wrong_base(500000, 10000))
