"""The canonical drafter: a checkpoint's contents, independent of its producer."""

import ast
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import cache
from math import inf, isfinite, log
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from eaglectl.drafter.tensors import Dimensions, Tensor, packed_names
from eaglectl.errors import RefusedError, check
from eaglectl.files.source import Source
from eaglectl.shell import quote

OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}
DEPTHS = range(7, 257)  # depths of targets, to compare expressions over
DEEPEST = 4096  # no target has more layers; ids in a config may be of any size


class DefaultLayers(Struct, frozen=True):
    """Default boundaries for a target of depth n; `text` is a tuple of terms in n, with +, - and //.

    Raises ValueError for any other text.
    """

    text: str

    def __post_init__(self) -> None:
        self.at(DEPTHS[0])

    def __str__(self) -> str:
        return _spelled(self.text)

    @property
    def terms(self) -> str:
        """The terms alone, as tables list them: 2, n//2, n-3."""
        return str(self).strip("()")

    @property
    def words(self) -> str:
        """The default as messages name it."""
        return f"the default {self}"

    def at(self, depth: int) -> tuple[int, ...]:
        """Return the boundaries for a target of `depth` layers."""
        return _boundaries(self.text, depth)

    def may_be(self, boundaries: Sequence[int]) -> bool:
        """Whether these are the default boundaries of a target of some depth."""
        depths = range(min(2 * max(boundaries, default=0) + DEPTHS[-1], DEEPEST))
        return any(self.at(depth) == tuple(boundaries) for depth in depths)

    def same_as(self, other: "DefaultLayers") -> bool | None:
        """Return whether two defaults are the same boundaries; None if it depends on the target's depth."""
        return self == other or _same(self.text, other.text)


@cache
def _spelled(text: str) -> str:
    return ast.unparse(_parse_terms(text)).replace(" // ", "//").replace(" + ", "+").replace(" - ", "-")


@cache
def _same(text: str, other_text: str) -> bool | None:
    agreeing = {_boundaries(text, depth) == _boundaries(other_text, depth) for depth in DEPTHS}
    return agreeing.pop() if len(agreeing) == 1 else None


@cache
def _boundaries(text: str, depth: int) -> tuple[int, ...]:
    return tuple(_evaluate_term(node, depth) for node in _parse_terms(text).elts)


@cache
def _parse_terms(text: str) -> ast.Tuple:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r}: not an expression of default layers, like (2, n//2, n-3)") from None
    if not isinstance(body, ast.Tuple) or not body.elts:
        raise ValueError(f"{text!r}: default layers are a tuple of terms in n, like (2, n//2, n-3)")
    return body


def _evaluate_term(node: ast.expr, depth: int) -> int:
    match node:
        case ast.Name(id="n"):
            return depth
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_evaluate_term(left, depth), _evaluate_term(right, depth))
    raise ValueError(f"{ast.unparse(node)}: a default layer is made of n, whole numbers, +, - and //")


# every known trainer's default if a recipe names no layers (SafeAILab modeling_llama_kv.py:1138)
TRAINING_DEFAULT = DefaultLayers("(2, n//2, n-3)")


Convention = Literal["boundary", "output"]


class AuxLayers(Struct, frozen=True):
    """A drafter's aux layers, as far as they are known.

    `boundaries` is None if they depend on the target's unknown depth (`is_default`) or on the user's answer.
    `how` is the evidence in words, `recorded` that of eaglectl.json. `order` is set if the file lists its ids
    unsorted or repeated: for each sorted, distinct boundary it has the places in the file, which are the
    blocks of `fc`.
    """

    count: int
    boundaries: tuple[int, ...] | None
    is_default: bool
    how: str
    ids: tuple[int, ...] | None = None
    convention: Convention | None = None
    order: tuple[tuple[int, ...], ...] | None = None
    recorded: str = ""

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The boundaries as the file lists them, in the order of fc's blocks."""
        if self.boundaries is None or self.order is None:
            return self.boundaries
        pairs = zip(self.boundaries, self.order, strict=True)
        placed = sorted((place, boundary) for boundary, places in pairs for place in places)
        return tuple(boundary for _, boundary in placed)


def to_boundaries(ids: Sequence[int], convention: Convention) -> tuple[int, ...]:
    """Return ids as boundaries: the output of layer j is boundary j+1; ids of boundaries are themselves."""
    return tuple(ids) if convention == "boundary" else tuple(j + 1 for j in ids)


def convention_by_pattern(ids: Sequence[int], depth: int | None) -> Convention | None:
    """Return the convention that fits the numbers alone, for a target of `depth` layers; None if both may.

    n itself cannot be an output id; each producer's default set is known in both spellings, and one recipe
    beside it (thoughtworks') as outputs, [2, n//2-1, n-4].
    """
    if depth is None:
        return None
    low, middle, high = TRAINING_DEFAULT.at(depth)
    if max(ids) == depth or tuple(ids) == (low, middle, high):
        return "boundary"
    return "output" if tuple(ids) in ((low - 1, middle - 1, high - 1), (low, middle - 1, high - 1)) else None


def sorted_order(boundaries: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]:
    """Return the sorted distinct boundaries, and the places that each had; None if nothing moves."""
    distinct = tuple(sorted(set(boundaries)))
    if distinct == tuple(boundaries):
        return distinct, None
    return distinct, tuple(tuple(i for i, b in enumerate(boundaries) if b == want) for want in distinct)


Level = Literal["note", "warning", "question", "problem"]
SettledBy = Literal["given", "measured", "known", "published", "assumed"]


SLIDING, FULL = "sliding_attention", "full_attention"
QWEN3_FULL = 28  # layers without a window where Qwen3's config states no max_window_layers


# subject, topics and texts of the notes on a layer 0 that norms the state twice
HIDDEN_NORM, DOUBLE_NORM, JOINED_NORMS = "hidden_norm", "double-norm", "joined-norms"
TWICE = (
    "trained with the hidden state normed twice (input_layernorm, then hidden_norm), and engines norm it once"
)
JOINED = (
    "trained with the hidden state normed twice; the output has one norm for both: the direction is exact"
)
ONE_NORM = ". `eaglectl convert SOURCE` writes one norm in the place of both"


class Feature(StrEnum):
    """A feature beyond plain EAGLE-3; layouts and engine releases list the features that they support."""

    MLA = "MLA attention"
    QK_NORM = "q/k norms"
    MULTI_LAYER = "several layers"
    AUX_COUNT = "a number of aux layers other than 3"
    AUX_LAYERS = "aux layers other than the default ones"
    FC_NORM = "fc_norm"
    NORM_OUTPUT = "norm_output"
    NORM_BEFORE_FC = "norm_before_fc"
    NORM_BEFORE_RESIDUAL = "norm_before_residual"
    ATTENTION_BIAS = "attention biases"
    OUTPUT_BIAS = "a bias on o_proj"
    MLP_BIAS = "MLP biases"
    FC_BIAS = "a bias on fc"
    PARALLEL = "parallel drafting (mask_hidden)"
    QUANTISED = "quantised weights"
    WIDE_TARGET = "a target wider than the drafter"
    SLIDING_WINDOW = "sliding-window attention"
    REDUCED_VOCABULARY = "a reduced draft vocabulary"


# the feature of a bias, by a part of its name
BIASES = {"fc.bias": Feature.FC_BIAS, ".mlp.": Feature.MLP_BIAS, "o_proj": Feature.OUTPUT_BIAS}


def bias_feature(name: str) -> Feature | None:
    """Return the feature of a bias tensor, by its canonical name; None for every other tensor."""
    feature = next((feature for part, feature in BIASES.items() if part in name), Feature.ATTENTION_BIAS)
    return feature if name.endswith(".bias") else None


class Choice(Struct, frozen=True, omit_defaults=True):
    """One answer to a question: an option, its value, and the meaning.

    `is_usual`: the producer's default, which --assume-defaults chooses. `is_free`: only the user can complete
    it; `value` has a placeholder or is empty.
    """

    option: str
    value: str = ""
    meaning: str = ""
    is_usual: bool = False
    is_free: bool = False

    @property
    def key(self) -> str:
        """The answered key of --source-semantics, or the option itself."""
        return self.value.partition("=")[0] if self.option == "--source-semantics" else self.option

    def __str__(self) -> str:
        return f"{self.option} {self.value}".strip()


class Note(Struct, frozen=True):
    """A remark of the reader on a checkpoint: the reason, and in `advice` the next step.

    A question needs the user's answer before a conversion; a problem forbids one. `topic` names the rule of
    `eaglectl validate` that covers it; a note needs none. `producer`: its files have this doubt, which stays
    with the drafter through conversions. `is_open`: until it is settled, no engine is known to serve the
    drafter as trained. `choices` are the answers to a question (see `question`). `remedies` are the options
    that solve a problem, each with its value if that is known. `deviation`: what is open was replaced, and
    changes the size of states by at most this part, as measured.
    """

    level: Level
    about: str
    why: str
    topic: str = ""
    producer: str = ""
    is_open: bool = False
    choices: tuple[Choice, ...] = ()
    advice: str = ""
    remedies: tuple[str, ...] = ()
    deviation: float | None = None

    @property
    def text(self) -> str:
        """The note in words; a question lists the options that answer it."""
        answers = f"; pass {options(self.choices)}" if self.level == "question" else ""
        return f"{self.why}{answers}{self.advice}"

    @property
    def key(self) -> str:
        """An identifier that does not depend on the wording."""
        return f"{self.topic}:{self.about}"

    @property
    def options(self) -> tuple[str, ...]:
        """The options that solve a problem or answer a question; answers are listed without values."""
        choices = self.choices if self.level == "question" else ()
        return (*self.remedies, *dict.fromkeys(choice.option for choice in choices))

    @property
    def whole_choices(self) -> list[Choice]:
        """The choices with complete values, the usual one first."""
        return sorted((choice for choice in self.choices if not choice.is_free), key=lambda c: not c.is_usual)

    def completed(self, complete: Callable[[str], str]) -> "Note":
        """Return the note with whole commands in its text (formats/commands.py)."""
        return replace(self, why=complete(self.why), advice=complete(self.advice))

    @property
    def reason(self) -> str:
        """The text for a verdict beside which the note is listed: without advice, unless it is a question."""
        return self.text if self.level == "question" else self.why


def are_stated(keys: Collection[str], notes: Sequence[Note]) -> bool:
    """Whether the notes state all of these reasons."""
    return {note.key for note in notes}.issuperset(keys)


def question(about: str, why: str, topic: str, choices: Sequence[Choice]) -> Note:
    """Return the question on what the file leaves open, with every option that answers it."""
    return Note("question", about, why, topic, choices=tuple(choices))


def options(choices: Sequence[Choice]) -> str:
    """Return the choices as a list in words, with each option's name once: --x a (meaning) or b, or --y c."""
    texts: dict[str, list[str]] = {}
    for choice in choices:
        meaning = f" {choice.meaning}" if choice.is_free else f" ({choice.meaning})"
        value = choice.value if choice.is_free else quote(choice.value)
        texts.setdefault(choice.option, []).append(f"{value}{meaning if choice.meaning else ''}".strip())
    return ", or ".join(f"{option} {' or '.join(values)}".strip() for option, values in texts.items())


class Settlement(Struct, frozen=True, omit_defaults=True):
    """How a fact that the file leaves open was settled: the answer, its origin, and the evidence.

    `about`, `topic` and `question` are those of the question. `choices` are the answers that would replace an
    assumption. `fact` is the value in the written drafter. "published" means that the file is read as its
    authors' engine read it; the training stays an open question.
    """

    answer: Choice
    by: SettledBy
    evidence: str = ""
    about: str = ""
    topic: str = ""
    question: str = ""
    choices: tuple[Choice, ...] = ()
    fact: Any = None


class Norms(Struct, frozen=True):
    """The norm switches of EAGLE-3 variants; None: the user must decide.

    `hidden_twice`: the first layer norms the state by input_layernorm and then by hidden_norm.
    """

    fc_norm: bool
    norm_before_fc: bool
    norm_output: bool | None
    norm_before_residual: bool
    hidden_twice: Annotated[
        bool | None,
        Meta(
            description="Whether the first layer norms the state by input_layernorm and then by hidden_norm;"
            " null where that is open."
        ),
    ] = False

    @property
    def version(self) -> str:
        """The EAGLE version: "3", "3.1", "3.1-joint", or "3 or 3.1" where norm_output is unknown.

        3.1 has fc_norm and norm_output, as the paper; 3.1-joint norm_before_fc and norm_output.
        """
        match self:
            case Norms(norm_output=None):
                return "3 or 3.1"
            case Norms(fc_norm=True, norm_output=True):
                return "3.1"
            case Norms(norm_before_fc=True, norm_output=True):
                return "3.1-joint"
        return "3"


class Rope(Struct, frozen=True):
    """Rotary embedding: base, scaling as transformers spells it (None: plain), and the pairing of dimensions.

    `has_mla_factors`: whether an MLA drafter was trained with the factors that engines take from the scaling.
    """

    theta: float
    scaling: Mapping[str, Any] | None
    is_interleaved: bool
    has_mla_factors: bool = True

    @property
    def rotated_part(self) -> float:
        """The part of each head that rotates; 1 is all of it."""
        return float((self.scaling or {}).get("partial_rotary_factor", 1))

    @property
    def positions(self) -> int | None:
        """The number of positions after scaling; None if the scaling does not state it."""
        match self.scaling:
            case {
                "rope_type": "yarn" | "llama3" | "longrope",
                "factor": int() | float() as factor,
                "original_max_position_embeddings": int() | float() as original,
            } if 0 < original < MOST_POSITIONS and 1 <= factor <= MOST_POSITIONS / original:
                return round(factor * original)
        return None

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin of attention other than MLA, as transformers computes it."""
        return yarn_factor(self.scaling, TRANSFORMERS_FACTORS)

    @property
    def mla_factors(self) -> tuple[float, float]:
        """The factors of MLA classes: on cos and sin, and on the softmax scale; (1, 1) without yarn.

        Sources: vLLM deepseek_scaling_rope.py:52 and deepseek_v2.py:1129 (0.32.0), SGLang deepseek_v2.py,
        DeepSeek's own code.
        """
        scaling = self.scaling or {}
        if scaling.get("rope_type") != "yarn" or not self.has_mla_factors:
            return 1.0, 1.0
        factor, all_dim = _number(scaling, "factor", 1.0), _number(scaling, "mscale_all_dim", 0.0)
        whole, part = yarn_scale(factor, all_dim), yarn_scale(factor, _number(scaling, "mscale", 1.0))
        factors = (part / whole, whole * whole) if whole else (inf, inf)
        if not all(map(isfinite, factors)):
            raise RefusedError(
                f"config.json: rope_scaling's factor {factor:g}, mscale and mscale_all_dim {all_dim:g} give"
                " no finite scale; restore the values of the training",
                topic="rope-values",
            )
        return factors


# larger numbers are no scale of any rope, and overflow
LARGEST_SCALE = 1e100
MOST_POSITIONS = 2**31  # engines cannot make a table of as many


def _number(scaling: Mapping[str, Any], key: str, absent: float) -> float:
    value = scaling.get(key) or absent
    check(
        (
            type(value) not in (int, float) or abs(value) > LARGEST_SCALE,
            f"config.json: rope_scaling.{key} is {value!r}; a number was expected",
            "rope-values",
        ),
        error=RefusedError,
    )
    return float(value)


def yarn_scale(factor: float, share: float) -> float:
    """Return yarn's factor on cos and sin for a scaling by `factor`; `share` is mscale or mscale_all_dim."""
    return 1.0 if factor <= 1 else 0.1 * share * log(factor) + 1.0


# the keys of a yarn scaling that set the factor on cos and sin: transformers reads these, some engines others
TRANSFORMERS_FACTORS = ("attention_factor", "mscale", "mscale_all_dim")
ENGINE_FACTORS = ("attn_factor", "apply_yarn_scaling")


def yarn_factor(
    scaling: Mapping[str, Any] | None, keys: Collection[str], *, takes_zeros: bool = False
) -> float:
    """Return the factor on cos and sin that a reader of these keys computes; 1 without yarn.

    `takes_zeros`: it uses mscale and mscale_all_dim even if one of them is 0. Sources:
    transformers 5.19 modeling_rope_utils.py, vLLM yarn_scaling_rope.py 0.28.0:40-44 and 0.30.0:38-46, SGLang
    yarn.py 0.5.23:122-131.
    """
    if scaling is None or scaling.get("rope_type") != "yarn":
        return 1.0
    settings: dict[str, Any] = {key: scaling.get(key) for key in ("factor", *keys)}
    read: dict[str, float] = {
        key: value
        for key, value in settings.items()
        if type(value) in (int, float) and 0 <= value < LARGEST_SCALE
    }
    scale, shares = read.get("factor", 1.0), (read.get("mscale"), read.get("mscale_all_dim"))
    is_unscaled = "apply_yarn_scaling" in keys and scaling.get("apply_yarn_scaling") is False
    factor = yarn_scale(scale, 1.0)
    if read.get("attention_factor"):
        factor = read["attention_factor"]
    elif None not in shares and (takes_zeros or all(shares)):
        factor = yarn_scale(scale, read["mscale"]) / yarn_scale(scale, read["mscale_all_dim"])
    elif is_unscaled and "mrope_section" not in scaling:
        factor = 1.0
    return factor * read.get("attn_factor", 1.0)


def with_one_factor(scaling: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a yarn scaling of attention other than MLA with attention_factor for all keys that set it."""
    if scaling.get("rope_type") != "yarn":
        return scaling
    rest = {key: value for key, value in scaling.items() if key not in TRANSFORMERS_FACTORS + ENGINE_FACTORS}
    return rest | {"attention_factor": yarn_factor(scaling, TRANSFORMERS_FACTORS)}


# follows the path of a target that the user gave
GIVEN = "given by --target"


class Target(Struct, frozen=True):
    """The target model, as far as it is known. `repo` is its Hub repository.

    `model_type` is the language model's, `outer_type` that of a multimodal config around it; `architectures`
    are the classes in its config. `rope` is the target's rotary embedding, if a drafter could have the same
    one. `origin` states how the target was found, if the user did not name it. `changes` are modifications
    that can be later than the drafter's training; `is_quantised`: quantisation is among them. `files` are
    those of the target, until a drafter was read with it; `tokens` is one more than its tokenizer's largest
    id, if it was read. `has_own_code`: its config names Python files beside it (auto_map). An engine is to
    run it on `tensor_parallel` GPUs in each of `pipeline_parallel` stages, if that was given, and with its
    own code if `trusts_code`.
    """

    name: str | None = None
    model_type: str | None = None
    depth: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    repo: str | None = None
    origin: str = ""
    rope: Rope | None = None
    architectures: tuple[str, ...] = ()
    outer_type: str | None = None
    changes: tuple[str, ...] = ()
    is_quantised: bool = False
    files: Source | None = None
    tokens: int | None = None
    has_own_code: bool = False
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    trusts_code: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The model types and classes by which engines identify the target."""
        return tuple(filter(None, (self.model_type, self.outer_type, *self.architectures)))


class Drafter(Struct, frozen=True):
    """A drafter. `settings` are values that every layout states, `carried` all other config keys.

    `settled`: how open facts were settled. `rotation` is the entry of eaglectl.json on fc's rotation, for a
    target with a rotated residual stream. `publication` names the published drafter in these files, if they
    leave something open and are read as its authors ran them.
    """

    producer: str
    evidence: str
    kind: Literal["eagle3", "peagle"]
    dims: Dimensions
    norms: Norms
    aux: AuxLayers
    rope: Rope
    target: Target
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    carried: Mapping[str, Any]
    strays: Mapping[str, str]
    unknown: tuple[str, ...]
    quantisation: Mapping[str, Any] | None
    notes: tuple[Note, ...]
    dtypes: tuple[str, ...]
    settled: tuple[Settlement, ...] = ()
    rotation: Mapping[str, Any] | None = None
    publication: str | None = None

    @property
    def version(self) -> str:
        """The EAGLE version (see Norms)."""
        return self.norms.version

    @property
    def has_reduced_vocabulary(self) -> bool:
        """Whether the drafter proposes only some of the target's tokens."""
        return self.dims.draft_vocab != self.dims.vocab

    def features(self) -> frozenset[Feature]:
        """Return all that this drafter needs beyond plain EAGLE-3."""
        dims, norms, names = self.dims, self.norms, self.tensors
        present = {
            Feature.MLA: dims.attention == "MLA",
            Feature.QK_NORM: any(name.endswith("q_norm.weight") for name in names),
            Feature.MULTI_LAYER: dims.layers > 1,
            Feature.AUX_COUNT: dims.aux != 3,
            Feature.AUX_LAYERS: not self.aux.is_default,
            Feature.FC_NORM: norms.fc_norm,
            Feature.NORM_OUTPUT: bool(norms.norm_output),
            Feature.NORM_BEFORE_FC: norms.norm_before_fc,
            Feature.NORM_BEFORE_RESIDUAL: norms.norm_before_residual,
            Feature.PARALLEL: "mask_hidden" in names,
            Feature.QUANTISED: self.quantisation is not None,
            Feature.WIDE_TARGET: dims.target_hidden != dims.hidden,
            Feature.SLIDING_WINDOW: _has_sliding_window(
                self.carried, is_qwen3=any(name.endswith("q_norm.weight") for name in names)
            ),
            Feature.REDUCED_VOCABULARY: self.has_reduced_vocabulary,
        }
        biases = {feature for name in names if (feature := bias_feature(name))}
        return frozenset(feature for feature, is_present in present.items() if is_present) | biases

    @property
    def has_head(self) -> bool:
        """Whether the file has an lm_head, packed or not."""
        return bool({"lm_head.weight", *packed_names("lm_head")} & self.tensors.keys())

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer: the number of tokens that it attends to, its own included; 0 for none.

        Raises RefusedError if that is no number.
        """
        kinds, layers = self.carried.get("layer_types"), range(self.dims.layers)
        if Feature.SLIDING_WINDOW not in self.features():
            return (0,) * self.dims.layers
        if not isinstance(kinds, list):  # Qwen3Config of transformers makes the list of these
            first = self.carried.get("max_window_layers", QWEN3_FULL)
            kinds = [FULL if layer < first else SLIDING for layer in layers]
        window = self.carried["sliding_window"]
        check(
            (
                type(window) is not int or window < 1,
                f"sliding_window is {window!r}, and a number of tokens was expected; correct config.json",
            ),
            error=RefusedError,
        )
        return tuple(window if kinds[layer : layer + 1] == [SLIDING] else 0 for layer in layers)

    def completed(self, complete: Callable[[str], str]) -> "Drafter":
        """Return the drafter with whole commands in its notes."""
        return replace(self, notes=tuple(note.completed(complete) for note in self.notes))

    @property
    def unsettled(self) -> tuple[Note, ...]:
        """The notes that leave open what was trained: questions, and doubts that stop no conversion."""
        return tuple(note for note in self.notes if note.level == "question" or note.is_open)

    @property
    def doubts(self) -> tuple[Note, ...]:
        """The doubts of producers that stay with the drafter through conversions."""
        return tuple(note for note in self.notes if note.producer)

    def notes_at(self, level: Level) -> tuple[Note, ...]:
        """Return the notes of one level."""
        return tuple(note for note in self.notes if note.level == level)


def _has_sliding_window(config: Mapping[str, Any], *, is_qwen3: bool) -> bool:
    kinds = config.get("layer_types")
    listed = isinstance(kinds, list) and SLIDING in kinds
    if not config.get("sliding_window") or (is_qwen3 and config.get("use_sliding_window") is False):
        return False
    return listed or (is_qwen3 and not isinstance(kinds, list) and bool(config.get("use_sliding_window")))
