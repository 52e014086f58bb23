"""Rules on rotary embeddings and positions: keys that agree, values that engines can use, and the
target's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Rope
from eaglectl.errors import EaglectlError
from eaglectl.files.target_files import text_part
from eaglectl.formats.config_keys import PARTIAL, Keys
from eaglectl.formats.switches import read_rope
from eaglectl.judge.rule import CannotLook, Match, note_rule, rule
from eaglectl.judge.subject import Subject, key_place

# the scalings that vLLM 0.33 builds (rotary_embedding/__init__.py), and the keys that each needs
SCALINGS: Mapping[str, tuple[str, ...]] = {
    "default": (), "proportional": (), "mllama4": (), "dynamic": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor",),
    "deepseek_yarn": ("factor",),
    "deepseek_llama_scaling": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"), "su": ("short_factor", "long_factor"),
    "mrope": ("mrope_section",), "bailing_mrope": ("mrope_section",), "openpangu": ("mrope_section",),
}  # fmt: skip
EXTENDED = ("yarn", "deepseek_yarn", "llama3", "longrope", "su")


@rule("EGL601", "rope-base", "note")
def rope_base(subject: Subject) -> Iterator[Match]:
    """The rope base is the target's.

    A drafter may have a base of its own (SafeAILab's have 10000 for every target), and must be served with
    it. Where the target's was trained, a tool has lost it; and some runtimes keep one rotary table for both
    models.

    Fix: ask the trainer which base was trained; never copy the target's into a drafter that has another.
    """
    base, config = _target_rope(subject).theta, _target_config(subject)
    tables = (config, config.get("rope_parameters"), config.get("rope_scaling"))
    if all(table.get("rope_theta") is None for table in tables if isinstance(table, Mapping)):
        raise CannotLook("the target's config states no rope base")
    own = subject.drafter.rope.theta
    if base != own:
        yield Match(
            f"the drafter rotates with base {own:g} and the target with {base:g}",
            _place(subject, "rope_theta"),
        )


@rule("EGL602", "rope-scaling", "note")
def rope_scaling(subject: Subject) -> Iterator[Match]:
    """The rope scaling is the target's.

    A drafter trained on short texts may have none, and must be served without one; a conversion that drops
    it costs acceptance, the more the longer the text.

    Fix: ask the trainer which scaling was trained; restore it if a conversion has dropped it.
    """
    own, theirs = (_comparable(rope.scaling) for rope in (subject.drafter.rope, _target_rope(subject)))
    keys = [key for key in dict.fromkeys((*own, *theirs)) if own.get(key) != theirs.get(key)]
    if keys:
        differences = ", ".join(f"{key} {own.get(key)} and {theirs.get(key)}" for key in keys)
        if own["rope_type"] != theirs["rope_type"]:
            differences = f"{own['rope_type']} and {theirs['rope_type']}"
        yield Match(
            f"the rope scalings of drafter and target differ: {differences}", _place(subject, "rope_scaling")
        )


@rule("EGL603", "max-positions", "warning")
def max_positions(subject: Subject) -> Iterator[Match]:
    """The drafter has as many positions as the target.

    vLLM before 0.27.0 sizes the drafter's rotary table by its own max_position_embeddings and reads beyond
    its end for longer texts; where nothing stops, acceptance falls beyond the trained length.

    Fix: set max_position_embeddings to the target's, and measure acceptance on long prompts with `eaglectl
    smoke SOURCE --target TARGET`.
    """
    needed = _target_config(subject).get("max_position_embeddings")
    if type(needed) is not int:
        raise CannotLook("the target's config has no max_position_embeddings")
    own = subject.drafter.settings["max_position_embeddings"]
    if own < needed:
        yield Match(
            f"the drafter has {own} positions and the target {needed}",
            _place(subject, "max_position_embeddings"),
        )


rope_spellings = note_rule(
    "EGL604",
    "rope-spellings",
    "error",
    """rope_theta, rope_scaling and rope_parameters agree.

    transformers 4 reads the first two, transformers 5 the third: with two values, the engine's version
    decides which rotation is served.

    Fix: keep the values that were trained, under both names or one.
    """,
    is_fault=True,
)


rope_pairing = note_rule(
    "EGL605",
    "rope-pairing",
    "error",
    """An MLA drafter rotates pairs of neighbouring dimensions.

    vLLM's and SGLang's MLA drafter classes pair dimensions 2i and 2i+1 whatever rope_interleave states:
    weights trained with paired halves are rotated wrongly.

    Fix: run `eaglectl convert SOURCE --rope-style interleaved`, which reorders the rotary rows; if the
    weights are interleaved already, remove the key.
    """,
)


@rule("EGL606", "mrope-sections", "error")
def mrope_sections(subject: Subject) -> Iterator[Match]:
    """mrope_section adds up to half of the rotary dimensions.

    It divides the rotated pairs among time, height and width. vLLM stops at any other sum.

    Fix: copy mrope_section from the trainer's config, or leave it out for a text-only drafter.
    """
    dims, scaling = subject.drafter.dims, subject.drafter.rope.scaling or {}
    sections = scaling.get("mrope_section")
    if sections is None:
        return
    share = scaling.get("partial_rotary_factor", subject.flat.get("partial_rotary_factor", 1.0))
    size = dims.qk_rope_head_dim or int(dims.head_dim * (share if type(share) in (int, float) else 1.0))
    is_list = isinstance(sections, list) and all(type(section) is int for section in sections)
    if not is_list or sum(sections) != size // 2:
        yield Match(
            f"mrope_section is {sections}; its sum must be {size // 2}, half of {size} rotated dimensions",
            _place(subject, "rope_scaling"),
        )


rope_base_doubt = note_rule(
    "EGL607",
    "rope-base-doubt",
    "warning",
    """The stored rope base is the one that was trained.

    Some trainers rotate with base 10000 whatever their config states, and engines rotate with the stated
    base: every position after the first few is encoded differently.

    Fix: convert with --source-semantics and the base that was trained; `convert` with the target's weights
    measures it.
    """,
    is_fault=True,
)


@rule("EGL608", "rope-one-spelling", "note")
def rope_one_spelling(subject: Subject) -> Iterator[Match]:
    """The rope base and scaling have the keys that older readers know too.

    transformers 5 keeps them in rope_parameters alone; readers of the older keys find none and take 10000.

    Fix: run `eaglectl convert SOURCE`, or write rope_theta and rope_scaling beside rope_parameters.
    """
    flat, rope = subject.flat, subject.drafter.rope
    lost = []
    if rope.theta != 10000 and flat.get("rope_theta") is None:
        lost.append(f"base {rope.theta:g}")
    if rope.scaling is not None and flat.get("rope_scaling") is None:
        lost.append(f"scaling {rope.scaling['rope_type']}")
    if lost and flat.get("rope_parameters"):
        yield Match(
            (
                f"only rope_parameters has the rope's {' and '.join(lost)},"
                " which readers before transformers 5 do not find"
            ),
            _place(subject, "rope_parameters"),
        )


@rule("EGL609", "rope-values", "error")
def rope_values(subject: Subject) -> Iterator[Match]:
    """The rope settings are valid numbers of a known scaling.

    Engines stop at scalings that they do not know, or that lack a parameter.

    Fix: copy the rope settings from the trainer's config.
    """
    yield from subject.reported("rope-values")
    if subject.ended_on("rope-values"):
        return
    scaling = subject.drafter.rope.scaling or {"rope_type": "default"}
    kind = scaling["rope_type"]
    if kind not in SCALINGS:
        yield Match(
            f"the rope scaling is {kind!r}, which vLLM does not know; it knows {', '.join(SCALINGS)}",
            _place(subject, "rope_scaling"),
        )
    needed = SCALINGS.get(kind, ())
    if kind == "dynamic" and not {"factor", "alpha"} & set(scaling):
        needed = ("factor",)
    if lacking := [key for key in needed if scaling.get(key) is None]:
        yield Match(
            f"the rope scaling {kind} is without {', '.join(lacking)}", _place(subject, "rope_scaling")
        )


@rule("EGL610", "rope-original-length", "warning")
def rope_original_length(subject: Subject) -> Iterator[Match]:
    """A scaling that extends a trained length states that length.

    Without original_max_position_embeddings transformers 4 stops, and transformers 5 takes
    max_position_embeddings, which gives another rotation.

    Fix: copy original_max_position_embeddings from the trainer's config.
    """
    scaling = subject.drafter.rope.scaling or {}
    key = "original_max_position_embeddings"
    if scaling.get("rope_type") in EXTENDED and not (scaling.get(key) or subject.flat.get(key)):
        yield Match(
            f"the rope scaling {scaling['rope_type']} is without {key}", _place(subject, "rope_scaling")
        )


@rule("EGL611", "partial-rotary", "error")
def partial_rotary(subject: Subject) -> Iterator[Match]:
    """The config does not enable rotation of only a part of each head.

    Such a key is copied from a target's config. Trainers of EAGLE-3 drafters rotate the whole head and
    ignore it; vLLM reads it and rotates a part, so that every position but the first is encoded
    differently. speculators since 0.7.0 can train it (pull 733), so of its files it is asked.

    Fix: remove the key.
    """
    notes, settled = subject.drafter.notes, subject.drafter.settled
    known = {*((note.topic, note.about) for note in notes), *((each.topic, each.about) for each in settled)}
    if ("partial-rotary", "rope_scaling") in known:
        yield from subject.reported("partial-rotary")
        return
    for name in ("", "rope_parameters", "rope_scaling"):
        settings = subject.flat.get(name) if name else subject.flat
        if not isinstance(settings, Mapping):
            continue
        if "proportional" in (settings.get("rope_type"), settings.get("type")):
            continue
        for key in PARTIAL:
            if (share := settings.get(key)) is not None and share != 1:
                path = f"{name}.{key}" if name else key
                yield Match(
                    f"{path} is {share!r}; vLLM rotates only that part of each head",
                    _place(subject, name or key),
                )


rope_untrained = note_rule(
    "EGL612",
    "rope-untrained",
    "warning",
    """The rope scaling in the config is the one that was trained.

    ModelOpt's exporter writes a yarn scaling, to extend the context, and its trainer rotates without any.
    Engines rotate by what is written, at every position and not only in long contexts.

    Fix: convert with --source-semantics and the scaling that was trained; `convert` with the target's weights
    measures it.
    """,
    is_fault=True,
)


def _target_config(subject: Subject) -> Mapping[str, Any]:
    return text_part(subject.target.given_config)


def _target_rope(subject: Subject) -> Rope:
    config = _target_config(subject)
    try:
        return read_rope(Keys(config), is_mla=False)
    except EaglectlError as error:
        raise CannotLook(f"the target's rope is no single one: {error}") from None


def _comparable(scaling: Mapping[str, Any] | None) -> Mapping[str, Any]:
    parts = dict(scaling or {"rope_type": "default"})
    return parts | {"rope_type": parts["rope_type"].removeprefix("deepseek_")}


def _place(subject: Subject, key: str) -> str:
    """The place of a rope key in config.json, at the top or in the part of the config that has it."""
    if key in ("rope_theta", "rope_scaling") and subject.flat.get(key) is None:
        key = "rope_parameters"
    return key_place(subject.config, key)
