"""A conversion as a value: the origin of every tensor, every changed key, and what is left behind."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Absorbed, Computed, Segment
from eaglectl.engines.registry import ENGINE, EngineRequest
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.catalogue import by_name, default_format
from eaglectl.formats.format import CheckpointSummary
from eaglectl.formats.settling import doubt_entries, fact_record
from eaglectl.options import ANSWERS, Option, Options

FLOATS = ("BF16", "F16", "F32")
ITEM_SIZE = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}  # bytes


class GeneratedBytes(Struct, frozen=True):
    """A small tensor made while planning (d2t, t2d): its bytes, and how they were made."""

    data: bytes
    how: str


StepOrigin = tuple[Segment, ...] | GeneratedBytes | Absorbed | Computed


# the change of a tensor's bytes
Action = Literal[
    "kept",
    "renamed",
    "split",
    "joined",
    "reordered",
    "selected",
    "repeated",
    "derived",
    "rearranged",
    "computed",
    "cast",
]


CAST = "cast to another dtype"  # the step of a computed tensor with unchanged numbers


class Step(Struct, frozen=True):
    """One tensor of the output, the origin of its bytes and the names of the stored tensors it is made of.

    `is_whole`: it is exactly one stored tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    origin: StepOrigin
    stored: tuple[str, ...]
    is_whole: bool = False

    @property
    def how(self) -> str | None:
        """How a generated or computed tensor is made; several steps in order."""
        match self.origin:
            case GeneratedBytes(how=how):
                return how
            case Computed(how=how) if how != CAST:
                return "; ".join(_hows(self.origin))
        return None

    @property
    def action(self) -> Action:
        """The change of the bytes."""
        match self.origin:
            case GeneratedBytes():
                return "derived"
            case Absorbed():
                return "rearranged"
            case Computed(how=how):
                return "cast" if how == CAST else "computed"
        if len(self.origin) == 1:
            moved: Action = "kept" if self.name == self.origin[0].stored else "renamed"
            return moved if self.is_whole else "split"
        if len(self.stored) > 1:
            return "joined"
        ordered = sorted((segment.start, segment.stop) for segment in self.origin)
        gaps = [start - stop for (_, stop), (start, _) in pairwise(ordered)]
        if min(gaps) < 0:
            return "repeated"
        return "selected" if max(gaps) > 0 else "reordered"

    @property
    def is_moved(self) -> bool:
        """Whether the bytes are those of a stored tensor, whole and in their order."""
        return self.action in ("kept", "renamed")


def _hows(computed: Computed) -> Iterator[str]:
    for source in computed.sources:
        if isinstance(source.origin, Computed):
            yield from _hows(source.origin)
    yield computed.how


class LeftBehind(Struct, frozen=True):
    """A tensor or file of the source that the output does not have, and why."""

    name: str
    why: str


class KeyChange(Struct, frozen=True):
    """A config key ("object.key" inside an object) whose value changes; None where the key is absent."""

    key: str
    before: Any
    after: Any


class TransformedDrafter(Struct, frozen=True):
    """A drafter after one transformation, with notes for the reader and entries for eaglectl.json."""

    drafter: Drafter
    notes: tuple[Note, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    def then(self, after: "TransformedDrafter") -> "TransformedDrafter":
        """Return the drafter after one more transformation, with the notes and entries of both."""
        return replace(after, notes=(*self.notes, *after.notes), record={**self.record, **after.record})


class ConversionPlan(Struct, frozen=True):
    """The output of `convert`, before it is written.

    `record` goes into eaglectl.json: the change of version, and a gate's measurements. `output` is the output
    as it reads back; its tensors have no data yet.
    """

    source: str
    drafter: Drafter
    layout: str
    steps: tuple[Step, ...]
    config: Mapping[str, Any]
    metadata: Mapping[str, str]
    changes: tuple[KeyChange, ...]
    left_tensors: tuple[LeftBehind, ...]
    left_files: tuple[LeftBehind, ...]
    copied_files: tuple[str, ...]
    notes: tuple[Note, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    output: tuple[Checkpoint, Drafter] | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The entries of eaglectl.json that settle what the drafter's files leave open."""
        summary = CheckpointSummary(
            by_name(self.layout).flat(self.config), tuple(step.name for step in self.steps), self.metadata
        )
        return {
            "eagle": self.drafter.version,
            "layout": self.layout,
            **fact_record(self.drafter),
            "doubts": doubt_entries(self.drafter.doubts, summary),
        }

    def completed(self, complete: Callable[[str], str]) -> "ConversionPlan":
        """Return the plan with whole commands in its notes, for the user; what is written says SOURCE."""
        return replace(
            self,
            notes=tuple(note.completed(complete) for note in self.notes),
            drafter=self.drafter.completed(complete),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data in the output."""
        return sum(step.nbytes for step in self.steps)


DEFAULT_LAYOUT = default_format().name
FC_NORM_MODES = ("refit", "calibrated", "ones", "off")
REWRITING = "MLA, pruning and other rewriting"
WRITING = "Writing"


def parse_reading(text: str) -> tuple[str, str]:
    """Return KEY and VALUE of one --fix-reading; VALUE is `exchanged` if only KEY is given."""
    key, _, value = text.partition("=")
    return key, value or "exchanged"


class Pruning(Options, frozen=True):
    """A draft vocabulary reduced to `size` tokens by the counts in a file; token ids in `kept` stay."""

    size: Annotated[
        int,
        Option(
            "Keep only the N most frequent draft tokens in --token-counts.", "--draft-vocab", group=REWRITING
        ),
    ]
    counts: Annotated[
        Path,
        Option(
            "Count of each target token: JSON, or lines with an id and a count.",
            "--token-counts",
            value="FILE",
            group=REWRITING,
            complete="files",
        ),
    ]
    kept: tuple[int, ...] | None = None


class UpgradeRecipe(Struct, frozen=True, eq=False):
    """How EAGLE-3 becomes 3.1: the treatment of each switch, and the target's statistics.

    `fc_norm` is one of FC_NORM_MODES, `statistics` are Statistics of the upgrade, or None. `is_start`: the
    output is a trainer's start, not a drafter to serve (--init-only). `dtype` is the output's dtype, None for
    the drafter's own; scales are rounded to it.
    """

    fc_norm: str = "refit"
    is_norm_output: bool = True
    statistics: Any = None
    is_start: bool = False
    dtype: str | None = None


DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def _read_dtype(text: str) -> str:
    if text not in DTYPES and text not in DTYPES.values():
        raise ValueError("bfloat16, float16 or float32")
    return DTYPES.get(text, text)


class ConversionRequest(Options, frozen=True):
    """The wanted layout (None: the default) and EAGLE version (None: unchanged), and the changes.

    `recipe` has the measurements for 3.1; `record` is added to eaglectl.json.
    """

    layout: Annotated[
        str | None,
        Option(
            "The layout: vllm (default; most engines accept it), sglang, llama.cpp, speculators, eagle, or"
            " a trainer's. An engine's layout is refused if no release of that engine runs the output as"
            " trained.",
            "--for",
            value="LAYOUT",
            complete="layouts",
        ),
    ] = None
    version: Annotated[
        str | None,
        Option(
            "EAGLE version: 3 or 3.1. Default: the version of the source.",
            "--to",
            value="3|3.1",
            choices=("3", "3.1"),
        ),
    ] = None
    engines: Annotated[tuple[EngineRequest, ...], ENGINE] = ()
    drop: Annotated[
        tuple[str, ...],
        Option(
            "A tensor that is not part of an EAGLE-3 drafter and may be dropped; 'heads.*' for a module.",
            value="TENSOR",
            group=ANSWERS,
        ),
    ] = ()
    dtype: Annotated[
        str | None,
        Option(
            "Cast float tensors to bfloat16, float16 or float32. By default, dtypes do not change.",
            value="bfloat16|float16|float32",
            group=WRITING,
            read=_read_dtype,
        ),
    ] = None
    recipe: UpgradeRecipe | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    rope_style: Annotated[
        str | None,
        Option(
            "interleaved: reorder the rotary rows of an MLA drafter that pairs them by halves.",
            value="interleaved",
            group=REWRITING,
        ),
    ] = None
    has_query_lora: Annotated[
        bool,
        Option(
            "Factor an MLA drafter's q_proj into q_a_proj and q_b_proj; nearly exact.",
            "--mla-query-lora",
            group=REWRITING,
        ),
    ] = False
    pruning: Pruning | None = None
    has_target_head: Annotated[
        bool,
        Option(
            "Copy the target's lm_head to a drafter that has none or only some of its rows. Needs --target"
            " with weights.",
            "--materialize-lm-head",
            group=REWRITING,
        ),
    ] = False
    fixes: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "Repair tensors that are stored differently than named. `smoke --probe sensitivity` prints the"
            " KEY=VALUE.",
            "--fix-reading",
            value="KEY=VALUE",
            group=REWRITING,
            read=parse_reading,
            complete="readings",
        ),
    ] = ()
