"""The trained pair of fixtures/tiny, the faults that a drafter may have, and how smoke sees each."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import Stored, read_safetensors, write_safetensors
from tests.conftest import FIXTURES

TINY = FIXTURES / "tiny"
TARGET = TINY / "target"
PROMPTS = TINY / "prompts.jsonl"


def short_prompts(folder: Path, count: int, name: str = "prompts.jsonl") -> Path:
    """A file in `folder` of the `count` shortest prompts of the pair's file `name`: the fastest to run."""
    path = folder / name
    lines = sorted((TINY / name).read_text().splitlines(keepends=True), key=len)
    path.write_text("".join(lines[:count]))
    return path


def in_vllms_layout(root: Path) -> dict[str, Path]:
    """Both drafters, converted into folders of `root`."""
    import eaglectl
    from eaglectl.api.convert import ConvertOptions

    for name in ("eagle3", "eagle3.1"):
        eaglectl.convert(str(TINY / name), root / name, ConvertOptions(target=str(TARGET)))
    return {name: root / name for name in ("eagle3", "eagle3.1")}


def in_specforges_layout(folder: Path) -> Path:
    """The trained EAGLE 3.1 drafter as SpecForge writes it, which does not say what is fed back."""
    import eaglectl
    from eaglectl.api.convert import ConvertOptions

    options = ConvertOptions(layout="specforge", measure=None, force_unserved=True)
    eaglectl.convert(str(TINY / "eagle3.1"), folder, options)
    (folder / "eaglectl.json").unlink()
    return folder


@dataclass(frozen=True)
class Fault:
    """A change to a good drafter in vLLM's layout. `base`: eagle3 or eagle3.1.

    `seen`: "reading" (before anything runs), "dead" (smoke fails by itself), "probe: NAME" (that other
    reading drafts better), "against" (worse than the good drafter beyond doubt), or "not: WHY".
    """

    name: str
    seen: str
    base: str = "eagle3"
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Callable[[Stored], Stored] | None] = field(default_factory=dict)

    def apply(self, good: Path, folder: Path) -> Path:
        """A faulty copy of `good`."""
        folder.mkdir()
        config = json.loads((good / "config.json").read_text()) | dict(self.config)
        (folder / "config.json").write_text(json.dumps(config))
        tensors = read_safetensors(good / "model.safetensors")
        for name, change in self.tensors.items():
            stored = tensors.pop(name)
            if change is not None:
                tensors[name] = change(stored)
        write_safetensors(folder / "model.safetensors", tensors)
        return folder


def ids(*boundaries: int) -> dict[str, Any]:
    """The keys that say boundaries in vLLM's layout."""
    outputs = {"eagle_aux_hidden_state_layer_ids": [b - 1 for b in boundaries], "use_aux_hidden_state": True}
    return {"eagle_aux_hidden_state_layer_ids": list(boundaries), "eagle_config": outputs}


def absolute(stored: Stored) -> Stored:
    """d2t with target ids in place of offsets."""
    dtype, shape, data = stored
    offsets = struct.unpack(f"<{shape[0]}q", data)
    ids = [draft + offset for draft, offset in enumerate(offsets)]
    return dtype, shape, struct.pack(f"<{shape[0]}q", *ids)


def not_a_number(stored: Stored) -> Stored:
    """The tensor with one NaN (bfloat16)."""
    dtype, shape, data = stored
    return dtype, shape, b"\xc0\x7f" + data[2:]


def zeros(stored: Stored) -> Stored:
    """The tensor without a trace of training."""
    dtype, shape, _ = stored
    return dtype, shape, bytes(2 * math.prod(shape))


FAULTS = (
    Fault("aux layers one early", "probe: aux boundaries +1", config=ids(1, 3, 4)),
    Fault("aux layers one late", "probe: aux boundaries -1", config=ids(3, 5, 6)),
    Fault("aux layers elsewhere", "against", config=ids(1, 3, 5)),
    Fault("norm_output on", "probe: norm_output false", config={"norm_output": True}),
    Fault(
        "norm_before_residual on", "probe: norm_before_residual false", config={"norm_before_residual": True}
    ),
    Fault("rope base lost", "against", config={"rope_theta": 10000.0, "rope_parameters": None}),
    Fault("fc_norm on without its tensors", "reading", config={"fc_norm": True}),
    Fault("d2t missing", "reading", tensors={"d2t": None, "t2d": None}),
    Fault("lm_head missing", "reading", tensors={"lm_head.weight": None}),
    Fault("fc missing", "reading", tensors={"fc.weight": None}),
    Fault("hidden_norm missing", "reading", tensors={"layers.0.hidden_norm.weight": None}),
    Fault("a NaN in fc", "dead", tensors={"fc.weight": not_a_number}),
    Fault("fc of zeros", "against", tensors={"fc.weight": zeros}),
    Fault("norm_output off", "probe: norm_output true", "eagle3.1", {"norm_output": False}),
    Fault("fc_norm off", "reading", "eagle3.1", {"fc_norm": False}),
    Fault("an fc_norm tensor missing", "reading", "eagle3.1", tensors={"fc_norm.1.weight": None}),
)


def cut_prompts(name: str, count: int) -> str:
    lines = (TINY / name).read_text().splitlines()[:count]
    return "".join(json.dumps({"prompt": json.loads(line)["prompt"][:40]}) + "\n" for line in lines)
