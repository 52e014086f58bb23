"""The declaration of a producer: marks, spellings, conventions, doubts, and what its layout expresses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.drafter.drafter import (
    TRAINING_DEFAULT,
    Choice,
    Convention,
    DefaultLayers,
    Drafter,
    Feature,
    Level,
    Note,
    SettledBy,
    question,
)
from eaglectl.errors import UsageError
from eaglectl.files.text_part import lifted
from eaglectl.options import ANSWERS, Option, Options

ModelClass = Literal["llama", "qwen3", "mla"]
IdMeaning = Literal["boundary", "output", "sglang"]

# where most trainers and engines state layer ids
TOP_IDS = "eagle_aux_hidden_state_layer_ids"
NESTED_IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"


def _read_layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError("layers from 0 with commas, like 2,16,29,")
    return tuple(map(int, parts))


def _read_semantics(texts: Sequence[str]) -> Mapping[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError("KEY=VALUE")
        if pairs.setdefault(key, value) != value:
            raise UsageError(
                f"--source-semantics {key} has two values, {pairs[key]} and {value}; pass one",
                options=("--source-semantics",),
            )
    return pairs


class Origin(Struct, frozen=True):
    """Who gave an answer, and what speaks for it: a measurement's figures, or the source of what is known."""

    by: SettledBy = "given"
    evidence: str = ""


class Answers(Options, frozen=True):
    """Answers to what a file leaves open: aux layers, convention, facts about the trainer.

    `origins`: who gave an answer other than the user, by the key of its choice. `assume`: open questions get
    the producer's usual value (--assume-defaults).
    """

    aux_layers: Annotated[
        tuple[int, ...] | None,
        Option(
            "The aux layers of training, as boundaries (or as --aux-convention says), like 2,16,29.",
            value="2,16,29",
            group=ANSWERS,
            read=_read_layers,
        ),
    ] = None
    aux_convention: Annotated[
        Convention | None,
        Option(
            "The meaning of the file's layer ids: boundary or output.",
            value="boundary|output",
            group=ANSWERS,
            choices=("boundary", "output"),
        ),
    ] = None
    semantics: Annotated[
        Mapping[str, str],
        Option(
            "A fact about training that the files do not record, like specforge=pre-879.",
            "--source-semantics",
            value="KEY=VALUE",
            group=ANSWERS,
            read=_read_semantics,
            complete="semantics",
        ),
    ] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    assume: Annotated[
        bool,
        Option(
            "Answer open questions with the trainer's defaults; the output marks them as open.",
            "--assume-defaults",
        ),
    ] = False

    def choosing(self, choice: Choice, origin: Origin | None = None) -> "Answers":
        """Return these answers with `choice`, whose layers are boundaries; `origin` if it was not the user's.

        Raises ValueError for a free choice.
        """
        if choice.is_free:
            raise ValueError(f"{choice}: only the user can complete it")
        origins = {key: value for key, value in self.origins.items() if key != choice.key}
        if origin is not None:
            origins[choice.key] = origin
        if choice.option == "--aux-layers":
            return replace(self, aux_layers=_read_layers(choice.value), aux_convention=None, origins=origins)
        if choice.option == "--aux-convention":
            convention: Convention = "boundary" if choice.value == "boundary" else "output"
            return replace(self, aux_convention=convention, origins=origins)
        key, _, value = choice.value.partition("=")
        if key == "harmless" and key in self.semantics:
            value = f"{self.semantics[key]},{value}"
        return replace(self, semantics={**self.semantics, key: value}, origins=origins)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The answers as choices: what `choosing` made, and what the options of the command line say."""
        layers, convention = self.aux_layers, self.aux_convention
        return (
            *([] if layers is None else [Choice("--aux-layers", ",".join(map(str, layers)))]),
            *([] if convention is None else [Choice("--aux-convention", convention)]),
            *(Choice("--source-semantics", f"{key}={value}") for key, value in self.semantics.items()),
        )


class CheckpointSummary(Struct, frozen=True):
    """A checkpoint without tensor data: what recognition and doubts are decided by.

    `quantisation` is hf_quant_config.json.
    """

    config: Mapping[str, Any]
    names: tuple[str, ...]
    metadata: Mapping[str, str]
    quantisation: Mapping[str, Any] = field(default_factory=dict)

    def has_any(self, *parts: str) -> bool:
        """Whether any tensor name contains any of `parts`."""
        return any(part in name for name in self.names for part in parts)

    @property
    def architecture(self) -> str:
        """The first entry of `architectures`, or an empty text."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def nested(self, key: str) -> Mapping[str, Any]:
        """Return an object of the config; empty if there is none."""
        value = self.config.get(key)
        return value if isinstance(value, Mapping) else {}


class IdsPlace(Struct, frozen=True):
    """A config key that holds layer ids ("key" or "object.key"), and what an id means there.

    "sglang": by SGLang's rule for the target. `is_certain`: the numbers are never doubted; `certain_in`: not
    in files of these architectures. `is_required`: a file without these ids is of no use to the layout's
    readers.
    """

    key: str
    meaning: IdMeaning
    is_certain: bool = False
    is_required: bool = False
    certain_in: tuple[str, ...] = ()

    @property
    def convention(self) -> Convention | None:
        """The convention of ids read here; None where the target decides it."""
        return None if self.meaning == "sglang" else self.meaning


class ConfigSchema(Struct, frozen=True):
    """The JSON Schema of a producer's config.json, beyond the decoder's keys and the layer ids.

    `keys` and `eagle_config` name keys of the common tables (config_keys.py); `own` holds the producer's
    own keys, and replaces common ones. `has_decoder`: the decoder layer's keys stand at the top level.
    """

    name: str = ""
    title: str = ""
    keys: tuple[str, ...] = ()
    eagle_config: tuple[str, ...] = ()
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] | None = None
    has_decoder: bool = True


# each release of vLLM and SGLang, and transformers, reads one of them (`with_factor` in conversion/)
ALL_FACTORS = ("attention_factor", "attn_factor")

Nest = Callable[[Drafter, dict[str, Any], dict[str, Any], dict[str, Any]], dict[str, Any]]


class Layout(Struct, frozen=True):
    """How a producer's files are written; where it keeps layer ids, `Format.ids` states.

    `layer` and `prefix` make tensor names; names that begin with one of `unprefixed` have no prefix.
    `extra_ids`: places of ids for engines with another key. `states_flags`: all four norm switches are
    written, not only those that are on. `nest` arranges the decoder's keys, the others and the carried ones
    in objects. `lacks`: features without a place, by model class. `engines`: those that convert judges the
    output by. `scalings`: the rope scalings of its own code, which has base 10000 whatever is stated; None:
    all ropes. `cautions`: warnings by feature, on what its own trainer does with it. `training`: how its
    trainer takes a start, with the switches by name. `factor_keys`: where its code reads yarn's factor on cos
    and sin; empty: as in the source.

    `has_null_size`: draft_vocab_size is null if the head is the target's. `needs_embedding`: why its trainer
    wants embed_tokens in the file. `norms_twice`: its trainer goes on with a state that is normed twice; all
    others get the two norms as one. `is_default`: written if no layout is named.
    """

    architectures: Mapping[ModelClass, str]
    model_types: Mapping[ModelClass, str]
    expresses: frozenset[Feature]
    layer: str = "layers.{}"
    prefix: str = ""
    unprefixed: tuple[str, ...] = ("lm_head.", "d2t", "t2d", "mask_hidden")
    later_norm: str = "input_layernorm"
    extra_ids: tuple[IdsPlace, ...] = ()
    has_identity_map: bool = False
    states_flags: bool = False
    has_aux_count: bool = False
    nest: Nest | None = None
    lacks: Mapping[ModelClass, frozenset[Feature]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    scalings: tuple[str, ...] | None = None
    cautions: Mapping[Feature, str] = field(default_factory=dict)
    training: str = ""
    factor_keys: tuple[str, ...] = ("mscale", "mscale_all_dim")
    has_null_size: bool = False
    needs_embedding: str = ""
    norms_twice: bool = False
    is_default: bool = False


class Format(Struct, frozen=True):
    """One producer: how it is recognised, read, and written (`layout`; None: it is only read).

    Recognition
        `priority`: formats are tried in ascending order; a mark that nobody else has may come first (0).
        `is_layout`: it is an engine's layout, which a converter writes, and says nothing of who trained.
        `is_signed`: its marks are its own; where they are not, ids are only believed once the target's
        depth is known.
    Spelling
        `tensor_names`: its own module names ({"aux_norm_low": "fc_norm.0"}), read wherever
        they occur. `flat` undoes the nesting of its config. `retires`: keys that state who wrote the file
        and mean nothing elsewhere; they go into the provenance. `copies_target`: its config is the target's
        with the drafter's keys added, so that num_hidden_layers is the target's depth. `target_key`: where
        its config names the target.
    Layer ids
        `ids`: where they stand and what they mean there. `aux_convention`: what they mean in eagle_config
        where `ids` does not say it; ids at the top level that `ids` does not list were put there by others.
        `orders_ids`: its fc takes the states in ascending order whatever order ids are listed in.
        `training_default`: the boundaries that a file without ids was trained on; None where that is not
        known. `states_layers`: it writes the ids wherever a recipe sets them, so that a file without them
        was trained on the default.
    Network
        `residual_default`: norm_before_residual where the key is absent. `has_mla_factors`: its MLA
        attention multiplies by what yarn's mscale gives, as engines do. `has_config_class`: its trainer makes
        a class of transformers of config.json, so that an absent key has that class's value. `is_parallel`:
        its files are P-EAGLE drafters. `has_unordered_rows`: lm_head's rows are not in the order of t2d.
        `norm_output` reads that switch where it is not what it seems. `hidden_twice`: whether the state is
        normed twice (Norms), None where nothing says it. `answers`: its own --source-semantics, with their
        values. `settles`: the --source-semantics that its code gives of a file, which the user's replace.
        `doubts` yields what is known to be wrong with its files; its warnings stay with the drafter
        through conversions (eaglectl.json names them).
    """

    name: str
    title: str
    recognise: Callable[[CheckpointSummary], str | None]
    priority: int = 0
    is_layout: bool = False
    is_signed: bool = True
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    flat: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lifted
    retires: tuple[str, ...] = ()
    copies_target: bool = False
    target_key: str = ""
    ids: tuple[IdsPlace, ...] = ()
    aux_convention: Convention | None = None
    orders_ids: bool = False
    training_default: DefaultLayers | None = TRAINING_DEFAULT
    states_layers: bool = True
    residual_default: bool = False
    has_mla_factors: bool = True
    has_config_class: bool = True
    is_parallel: bool = False
    has_unordered_rows: bool = False
    norm_output: Callable[[CheckpointSummary, bool | None, Answers], bool | None] | None = None
    hidden_twice: Callable[[CheckpointSummary, Answers], bool | None] = lambda summary, answers: False
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settles: Callable[[CheckpointSummary], Mapping[str, str]] = lambda summary: {}
    doubts: Callable[[CheckpointSummary, Answers], Iterable[Note]] = lambda summary, answers: ()
    schema: ConfigSchema = field(default_factory=ConfigSchema)
    layout: Layout | None = None

    def ids_at(self, key: str) -> IdsPlace | None:
        """Return the declared place of layer ids with this key, also one that only its layout writes."""
        places = (*self.ids, *(self.layout.extra_ids if self.layout else ()))
        return next((place for place in places if place.key == key), None)

    @property
    def written_ids(self) -> tuple[IdsPlace, ...]:
        """All places to which the layout writes layer ids."""
        return (*self.layout.extra_ids, *self.ids) if self.layout else ()

    @property
    def schema_name(self) -> str:
        """The name of the producer's config schema; several formats may share one."""
        return self.schema.name or self.name


TRAINED, STORED = "what its code trains", "what the file says"
SCALINGS = ("plain", "llama3", "rope_scaling", "rope_parameters")


class RopeAnswer(Struct, frozen=True):
    """The answer of --source-semantics rope= on the base and on the scaling; None for an open half.

    "stored" and "target" are of both; a number is a base, and "plain" no scaling; "llama3" is that schedule
    with the numbers of the file's scaling; "rope_scaling" and "rope_parameters" are the scaling that stands
    there. "10000,plain" and "target,plain" are of both halves.
    """

    base: str | None = None
    scaling: str | None = None

    @staticmethod
    def of(answers: Answers) -> "RopeAnswer":
        """Return the rope's part of these answers. Raises ValueError if it has none of these forms."""
        first, comma, second = answers.semantics.get("rope", "").partition(",")
        if not comma and first in ("", "stored", "target", *SCALINGS):
            return RopeAnswer(first if first in ("stored", "target") else None, first or None)
        is_number = first.isascii() and first.isdecimal() and int(first) > 0
        if not (is_number or first in ("stored", "target")):
            raise ValueError
        if comma and second not in (*SCALINGS, "stored", "target"):
            raise ValueError
        return RopeAnswer(first, second or None)


def rope_question(
    answers: Answers, about: str, why: str, topic: str, values: Mapping[str, str], usual: str = ""
) -> Note:
    """Return a question on one half of the rope; `values` are its answers, each with its meaning.

    If the other half is answered, that answer is repeated in each choice.
    """
    answer, form = RopeAnswer.of(answers), "{}"
    if about == "rope_theta" and answer.scaling in SCALINGS:
        form = f"{{}},{answer.scaling}"
    elif about == "rope_scaling" and answer.base is not None:
        form = f"{answer.base},{{}}"
    if other_half := answers.semantics.get("rope"):
        why += f", which rope={other_half} does not answer"
    choices = [
        Choice("--source-semantics", f"rope={form.format(value)}", meaning, is_usual=value == usual)
        for value, meaning in values.items()
    ]
    return question(about, why, topic, choices)


def rope_doubt(
    summary: CheckpointSummary, answers: Answers, who: str, *, is_exempt: bool = False, is_known: bool = False
) -> Iterable[Note]:
    """Yield the question on a trainer that rotates with base 10000, whatever its config states.

    Nothing if `is_exempt`; a note if it is answered; a warning if the file `is_known` to be that trainer's,
    as its stated base is then wrong.
    """
    theta = summary.config.get("rope_theta", summary.nested("rope_parameters").get("rope_theta"))
    if is_exempt or theta in (None, 10000):
        return
    about = f"{who} trains with rope base 10000 whatever the config says, and this file says {theta:g}"
    answer = RopeAnswer.of(answers)
    if answer.base is None:
        yield rope_question(
            answers, "rope_theta", about, "rope-base-doubt", {"10000": TRAINED, "stored": STORED}, "10000"
        )
    else:
        text = {"stored": "the stored base is kept", "target": "the target's is written"}.get(
            answer.base, f"{answer.base} is written"
        )
        level: Level = "warning" if is_known and answer.base == "10000" else "note"
        yield Note(level, "rope_theta", f"{about}; {text}", "rope-base-doubt")


def untrained_scaling(answers: Answers, about: str) -> Note:
    """Return the question on a rope scaling that a trainer writes and does not use; a note if answered."""
    answer = RopeAnswer.of(answers)
    if answer.scaling is None:
        return rope_question(
            answers, "rope_scaling", about, "rope-untrained", {"plain": TRAINED, "stored": STORED}, "plain"
        )
    text = {"plain": "no scaling is written", "target": "the target's is written"}.get(
        answer.scaling, "the scaling is kept"
    )
    return Note("note", "rope_scaling", f"{about}; {text}", "rope-untrained")


ALWAYS = frozenset({Feature.REDUCED_VOCABULARY, Feature.WIDE_TARGET})
