"""Trained drafters rewritten as files of producers that leave open what was trained, with the right answer.

Each is the drafter of a pair of `tests/pairs.py` in a producer's layout; the facts that its trainer would
leave out are taken out, or written as that trainer writes them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import eaglectl
from eaglectl.api.convert import OpenQuestions, measured_questions
from eaglectl.target.choice import as_target
from tests.builders import Stored, integers, read_safetensors, write_safetensors
from tests.pairs import MLA, SECOND, TINY, Trained

Tensors = dict[str, Stored]
TINY_31 = Trained("tiny", "eagle3.1", prompts=24, tokens=24, longest=160)
IDS = "eagle_aux_hidden_state_layer_ids"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class OpenFact:
    """A drafter whose file leaves `about` open: the producer's layout, what is changed, and the answers.

    `config` holds keys ("object.key" inside an object), None for one that is taken out. The first `prompts`
    of the pair's `files` are enough to tell. ModelOpt's drafters are trained with two norms, and its exporter
    writes no metadata; a file that `is_rewritten` has some.
    """

    name: str
    trained: Trained
    layout: str
    answers: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Tensors, dict[str, Any]], Tensors] = lambda tensors, config: tensors
    prompts: int = 24
    files: tuple[str, ...] = ("prompts",)
    is_rewritten: bool = False

    @property
    def key(self) -> str:
        return f"{self.trained.key}: {self.name}"

    def texts(self) -> list[str]:
        return self.trained.texts(*self.files)[: self.prompts]

    def right_answers(self) -> eaglectl.Answers:
        layers = [text.split()[1] for text in self.answers if text.startswith("--aux-layers")]
        conventions = [text.split()[1] for text in self.answers if text.startswith("--aux-convention")]
        semantics = [text.split()[1] for text in self.answers if text.startswith("--source-semantics")]
        given = {"aux_layers": layers[:1], "aux_convention": conventions[:1]}
        values = {name: texts[0] for name, texts in given.items() if texts}
        return eaglectl.Answers(**values, semantics=semantics)

    def measured(self, source: Path, prompts: Path) -> OpenQuestions:
        """What measuring makes of the file that was written."""
        options = eaglectl.MeasureOptions(prompts, device="cpu", max_tokens=self.trained.tokens)
        return measured_questions(str(source), as_target(self.trained.target), eaglectl.Answers(), options)

    def write(self, folder: Path) -> Path:
        """The checkpoint as the producer writes it, without eaglectl's record."""
        written = eaglectl.ConvertOptions(target=str(self.trained.target), layout=self.layout)
        eaglectl.convert(str(self.trained.folder), folder, written)
        config = json.loads((folder / "config.json").read_text())
        for path, value in self.config.items():
            *parents, key = path.split(".")
            place = config
            for parent in parents:
                place = place.setdefault(parent, {})
            place.pop(key, None) if value is None else place.update({key: value})
        weights = folder / "model.safetensors"
        tensors = self.change(read_safetensors(weights), config)
        weights.unlink()  # it may be a link
        if self.layout == "modelopt" and not self.is_rewritten:
            write_safetensors(weights, normed_twice(tensors), {})
        else:
            write_safetensors(weights, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        for name in ("eaglectl.json", "README.md"):
            (folder / name).unlink()
        return folder


def as_automodel(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Automodel's names; its own layout has no place for layers that a recipe sets."""
    for key in [key for key in config if key in (IDS, "eagle_config", "num_aux_hidden_states")]:
        del config[key]
    for key in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"):
        config.pop(key, None)
    config["architectures"] = ["LlamaEagle3DraftModel"]
    return {
        name if name in ("d2t", "lm_head.weight") else f"model.{name}": tensor
        for name, tensor in tensors.items()
    }


INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"


def _numbers(tensor: Stored) -> npt.NDArray[np.float64]:
    dtype, shape, data = tensor
    assert dtype == "BF16"
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64).reshape(shape)


def _stored(values: npt.NDArray[np.float64]) -> Stored:
    bits = values.astype("<f4").view("<u4")
    return "BF16", values.shape, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def normed_twice(tensors: Tensors) -> Tensors:
    """The drafter as ModelOpt since 0.41.0 has it: its state is normed by input_layernorm too."""
    inner, outer = _numbers(tensors[INNER]), _numbers(tensors[OUTER])
    return tensors | {OUTER: _stored(outer / inner * np.sqrt((inner**2).mean()))}


def uneven(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The same network with an input_layernorm of other sizes in each channel, as long training gives it."""
    draw = np.random.default_rng(0)
    inner = _numbers(tensors[INNER])
    factors = np.exp(draw.normal(0, 0.7, inner.shape))
    changed = {INNER: _stored(inner * factors)}
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        weight = _numbers(tensors[name]).copy()
        weight[:, : len(inner)] /= factors
        changed[name] = _stored(weight)
    return tensors | changed


def uneven_twice(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """`uneven` of a drafter that was trained with two norms."""
    return normed_twice(uneven(tensors, config))


def _without_close_tokens(
    tensors: Tensors, config: dict[str, Any], below: int
) -> tuple[Tensors, npt.NDArray[np.int64]]:
    """The drafter with draft tokens that lie two or more apart, so that its offsets are all different."""
    offsets = np.frombuffer(tensors["d2t"][2], "<i8")
    targets = offsets + np.arange(len(offsets))
    kept: list[int] = []
    for row, target in enumerate(targets.tolist()):
        if target + len(kept) < below and (not kept or target >= targets[kept[-1]] + 2):
            kept.append(row)
    dtype, (_, width), data = tensors["lm_head.weight"]
    rows = np.frombuffer(data, "<u2").reshape(-1, width)[kept]
    config["draft_vocab_size"] = len(kept)
    left = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    return left | {"lm_head.weight": (dtype, (len(kept), width), rows.tobytes())}, targets[kept]


def d2t_of_offsets(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    pruned, targets = _without_close_tokens(tensors, config, config["vocab_size"])
    return pruned | {"d2t": integers(*(targets - np.arange(len(targets))).tolist())}


def d2t_of_tokens(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    pruned, targets = _without_close_tokens(tensors, config, config["vocab_size"])
    return pruned | {"d2t": integers(*targets.tolist())}


def untrained(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Noise in the place of every matrix."""
    draw = np.random.default_rng(0)
    noise = {}
    for name, (dtype, shape, _) in tensors.items():
        if dtype == "BF16" and len(shape) == 2:
            values = (draw.standard_normal(shape).astype("<f4") * shape[1] ** -0.5).view("<u4") >> 16
            noise[name] = (dtype, shape, values.astype("<u2").tobytes())
    return tensors | noise


NO_NESTED_IDS = {f"eagle_config.{IDS}": None}
STATED_BASE, STATED_YARN = {"rope_theta": 1e6}, {"rope_scaling": YARN}
OF_TINY, OF_SECOND = ("--aux-layers 2,4,5",), ("--aux-layers 1,3,5",)
BASE_10000, NO_YARN = ("--source-semantics rope=10000",), ("--source-semantics rope=plain",)
STORED_BASE = ("--source-semantics rope=stored",)
BEFORE_879, AFTER_879 = (f"--source-semantics specforge={when}-879" for when in ("pre", "post"))
BEFORE_689, AFTER_689 = (f"--source-semantics modelopt={when}-689" for when in ("pre", "post"))
OFFSETS, TOKENS = (f"--source-semantics d2t={kind}" for kind in ("offset", "absolute"))
GATE: Mapping[str, Any] = {"prompts": 120, "files": ("gate",)}
OPEN_FACTS = (
    OpenFact("layers, ModelOpt", SECOND, "modelopt", OF_SECOND, NO_NESTED_IDS),
    OpenFact("layers, ModelOpt", TINY, "modelopt", OF_TINY, NO_NESTED_IDS, **GATE),
    OpenFact("layers, Automodel", SECOND, "vllm", OF_SECOND, change=as_automodel),
    OpenFact("layers, Automodel", TINY, "automodel", OF_TINY, **GATE),
    OpenFact("layers, Automodel", MLA, "vllm", OF_SECOND, change=as_automodel, prompts=96),
    OpenFact(
        "copied ids",
        TINY,
        "angelslim",
        ("--aux-convention output",),
        {IDS: [1, 3, 4], "aux_hidden_states_layer_ids": None, "rope_theta": 10000},
    ),
    OpenFact("ids that disagree", SECOND, "vllm", OF_SECOND, {f"eagle_config.{IDS}": [2, 4, 5]}),
    OpenFact("base stated, not trained, AngelSlim", SECOND, "angelslim", BASE_10000, STATED_BASE),
    OpenFact("base stated and trained, AngelSlim", TINY, "angelslim", STORED_BASE, **GATE),
    OpenFact("base stated, not trained, TorchSpec", MLA, "torchspec", BASE_10000, STATED_BASE),
    OpenFact(
        "base stated, not trained, TorchSpec for vLLM",
        MLA,
        "torchspec-vllm",
        ("--aux-convention boundary", *BASE_10000),
        STATED_BASE,
    ),
    OpenFact("yarn stated, not trained, ModelOpt", SECOND, "modelopt", NO_YARN, STATED_YARN, prompts=72),
    OpenFact(
        "layers and yarn, ModelOpt",
        SECOND,
        "modelopt",
        (*OF_SECOND, *NO_YARN),
        NO_NESTED_IDS | STATED_YARN,
        prompts=72,
    ),
    OpenFact("norm_output, SpecForge after 879", TINY_31, "specforge", (AFTER_879,)),
    OpenFact("norm_output, SpecForge before 879", TINY, "specforge", (BEFORE_879,), {"norm_output": True}),
    OpenFact(
        "norm_output, fc_norm without a flag",
        TINY_31,
        "automodel",
        (*OF_TINY, "--source-semantics norm_output=true"),
        {"norm_output": None},
        **GATE,
    ),
    OpenFact("normed once, ModelOpt", SECOND, "modelopt", (BEFORE_689,), change=uneven, is_rewritten=True),
    OpenFact(
        "normed twice, ModelOpt", SECOND, "modelopt", (AFTER_689,), change=uneven_twice, is_rewritten=True
    ),
    OpenFact("d2t of offsets", SECOND, "vllm", (OFFSETS,), change=d2t_of_offsets),
    OpenFact("d2t of tokens", SECOND, "vllm", (TOKENS,), change=d2t_of_tokens),
)
UNTRAINED = OpenFact("untrained", SECOND, "modelopt", (), NO_NESTED_IDS, change=untrained)
