"""Rules on the aux layers: how many, which, and whether every engine captures the ones that were trained
on.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from eaglectl.drafter.drafter import Feature, Target
from eaglectl.engines.behaviour import judged_unversioned
from eaglectl.engines.layers import IDS, CapturedLayers
from eaglectl.engines.registry import ENGINES, aux_readings
from eaglectl.engines.view import View
from eaglectl.engines.vllm import flat_as_read
from eaglectl.formats.other_drafters import drafter_mark
from eaglectl.judge.rule import CannotLook, Match, Rule, Severity, make_rule, note_rule, rule
from eaglectl.judge.subject import Subject, key_place

# topics of faults in the ids; EGL406 does not judge ids that have one
ID_FAULTS = ("aux-count", "aux-range", "aux-repeated", "aux-lists", "aux-convention")


def _reported(subject: Subject, *topics: str) -> Iterator[Match]:
    """Notes on these topics, questions too: what only the user knows, no engine can know."""
    for note in subject.drafter.notes:
        if note.topic in topics and note.level != "note":
            is_key = note.about in subject.config
            yield Match(note.text, f"config.json:{note.about}" if is_key else key_place(subject.config, IDS))


def ids_rule(id: str, name: str, severity: Severity, documentation: str) -> Rule:
    """Make a rule of the notes on the topic of its name, as `_reported` has them."""
    return make_rule(id, name, severity, lambda subject: _reported(subject, name), documentation)


@rule("EGL401", "aux-count", "error")
def aux_count(subject: Subject) -> Iterator[Match]:
    """The config names as many aux layers as fc takes.

    Engines pass the states of the layers that the ids name to fc; with another number they stop at load or
    at the first request, or hang.

    Fix: run `eaglectl convert SOURCE` with --aux-layers and the layers that were trained on.
    """
    matches = tuple(_reported(subject, "aux-count"))
    if matches:  # the stated count and the ids may both disagree with fc
        yield Match("; ".join(match.message for match in matches), matches[0].where)


@rule("EGL402", "aux-range", "error")
def aux_range(subject: Subject) -> Iterator[Match]:
    """Every aux layer is one of the target's.

    A layer beyond the last one is never reached: engines pass fewer states to fc, which stops them or is
    padded silently.

    Fix: check that the target is the right one, then run `eaglectl convert SOURCE` with --aux-layers or
    --aux-convention.
    """
    if not drafter_mark(subject.target.config):
        yield from _reported(subject, "aux-range")


aux_order = ids_rule(
    "EGL403",
    "aux-order",
    "warning",
    """The aux layers ascend.

    vLLM sorts the ids; if fc was trained on the listed order, its inputs are silently exchanged.

    Fix: run `eaglectl convert SOURCE`, which sorts the ids and reorders fc's columns with them.
    """,
)


@rule("EGL404", "aux-lists", "warning")
def aux_lists(subject: Subject) -> Iterator[Match]:
    """The ids at the top of the config and those in eagle_config name the same layers.

    vLLM reads the first list, SGLang the second: where they differ in every convention, one of the engines
    captures layers that fc was not trained on.

    Fix: run `eaglectl convert SOURCE` with --aux-layers and the layers that were trained on.
    """
    if not any(_reported(subject, "aux-count", "aux-range", "aux-repeated")):
        yield from _reported(subject, "aux-lists")


aux_convention = ids_rule(
    "EGL405",
    "aux-convention",
    "warning",
    """It is known whether the ids are boundaries or outputs of layers.

    Trainers count outputs of layers, vLLM counts boundaries, which are one higher. With the wrong
    convention every aux state is one layer off: in one report acceptance at the first position fell from 45 %
    to 10 % (vLLM issue 43671); on the real pair of `fixtures/real` 2 to 10 % of the accepted tokens
    are lost.

    Fix: pass --target; if that does not decide it, run `eaglectl convert SOURCE --aux-convention boundary` or
    `eaglectl convert SOURCE --aux-convention output`.
    """,
)


@rule("EGL406", "aux-engines", "warning")
def aux_engines(subject: Subject) -> Iterator[Match]:
    """Every engine captures the layers that were trained on.

    vLLM's V1 runner, its V2 runner and SGLang read ids from different keys and count them differently, so
    that one config means different layers. Where engines are requested, the serving rules check their
    releases, and this rule checks the rest: the runner that is not the release's default, and engines whose
    releases are not followed.

    Fix: run `eaglectl convert SOURCE --target TARGET`, which writes the ids for each engine where that engine
    reads them.
    """
    if any(_reported(subject, *ID_FAULTS)):
        raise CannotLook("the ids themselves are in doubt")
    trained = subject.drafter.aux
    verdicts = [(reading, reading.same_as(trained)) for reading in _readings(subject)]
    unknown = [reading.engine for reading, is_same in verdicts if is_same is None]
    if wrong := [reading for reading, is_same in verdicts if is_same is False]:
        layers = f"boundaries {list(trained.boundaries)}" if trained.boundaries else "the default layers"
        captured = "; ".join(
            f"{reading.engine} captures {list(reading.boundaries or ()) or reading.words} ({reading.key})"
            for reading in wrong
        )
        yield Match(
            f"the drafter was trained on {layers}; {captured}",
            key_place(subject.config, IDS),
            _serving_fix(subject, wrong),
        )
    elif unknown:
        raise CannotLook(f"what {', '.join(unknown)} makes of the ids depends on the target; pass --target")


use_aux_hidden_state = note_rule(
    "EGL407",
    "use-aux-hidden-state",
    "error",
    """use_aux_hidden_state is not false beside an fc.

    With false, vLLM skips fc and feeds the drafter the target's last hidden state, which it was not trained
    on; in some releases the shapes then do not fit.

    Fix: write true, or remove the key.
    """,
)


@rule("EGL408", "aux-count-unstated", "warning")
def aux_count_unstated(subject: Subject) -> Iterator[Match]:
    """A number of aux layers other than 3 is stated where engines read it.

    vLLM builds fc for num_aux_hidden_states, else for the ids in eagle_config, else for 3; it never counts
    the ids at the top, and stops when fc has another width (vllm#54526). A speculators config keeps the key
    only inside transformer_layer_config. Where vLLM is requested, the serving rules report this for each
    release.

    Fix: add num_aux_hidden_states, or run `eaglectl convert SOURCE`.
    """
    drafter = subject.drafter
    is_requested = any(request.engine == "vllm" for request in subject.requests)
    is_judged = is_requested or Feature.QK_NORM in drafter.features()
    view = _view(subject)
    if (
        is_judged
        or view.flat.get("num_aux_hidden_states") is not None
        or any(_reported(subject, "aux-count"))
    ):
        return
    vllm = ENGINES["vllm"]
    built = vllm.case(view, vllm.releases[-1]).aux_count
    if built != drafter.dims.aux:
        text = f"fc takes {drafter.dims.aux} aux states and no num_aux_hidden_states states it"
        yield Match(f"{text}; vLLM builds it for {built}", key_place(subject.config, IDS))


@rule("EGL409", "aux-ids-absent", "note")
def aux_ids_absent(subject: Subject) -> Iterator[Match]:
    """The config names its aux layers.

    Without ids every engine takes its own default layers. This producer trains on the same unless its recipe
    was changed, which the file would not show. A policy may forbid it.

    Fix: run `eaglectl convert SOURCE --target TARGET`, or with --aux-layers and the layers that were trained
    on.
    """
    aux = subject.drafter.aux
    if aux.ids is None and aux.is_default and not any(_reported(subject, "aux-ids-doubted")):
        readings = aux_readings({}, Target(model_type=subject.drafter.target.model_type))
        defaults = dict.fromkeys(reading.words for reading in readings.values())
        yield Match(f"config names no aux layers; engines take {' or '.join(defaults)}")


aux_ids_doubted = ids_rule(
    "EGL410",
    "aux-ids-doubted",
    "warning",
    """The layers are stated where a producer's recipes change them.

    Engines take the default layers where there are no ids. A published head of such a producer, without
    ids, had an acceptance of 1 % with them (vllm#50170).

    Fix: ask the trainer, then run `eaglectl convert SOURCE` with --aux-layers.
    """,
)


aux_repeated = ids_rule(
    "EGL411",
    "aux-repeated",
    "error",
    """No aux layer is listed twice.

    vLLM captures each layer once, so that fc gets fewer states than it takes.

    Fix: run `eaglectl convert SOURCE`, which adds up the columns of fc that belong to one layer.
    """,
)


aux_copied = ids_rule(
    "EGL412",
    "aux-copied",
    "warning",
    """Ids at the top level are boundaries, as vLLM reads them.

    Ids [1, n//2-1, n-4] are the default layers as a trainer counts them, outputs of layers. At the top level,
    where no trainer of such ids writes them, they were copied, and vLLM captures other layers.

    Fix: run `eaglectl convert SOURCE --target TARGET`; pass --aux-convention boundary too if the drafter was
    trained on the layers that vLLM reads.
    """,
)


def _view(subject: Subject) -> View:
    flat = flat_as_read(subject.config, subject.flat)
    return View(subject.drafter, subject.config, flat, tuple(subject.checkpoint.tensors))


def _readings(subject: Subject) -> Iterator[CapturedLayers]:
    """The layers that engines capture and no serving rule judges."""
    requested = {request.engine: request.releases for request in subject.requests}
    judged = _judged(subject, requested.get("vllm", ()))
    readings = aux_readings(subject.config, subject.drafter.target)
    # the labels of each engine's runners in its newest release, as they are in aux_readings
    labels = {
        name: [runner.label for runner in engine.behaviour(engine.releases[-1]).runners.values()][::-1]
        for name, engine in ENGINES.items()
    } | {name: [title] for name, title in judged_unversioned().items()}
    for engine, label in ((engine, label) for engine, several in labels.items() for label in several):
        reading = readings[label]
        if _is_open(engine, reading, requested) and reading.engine not in judged:
            # engines go through the target's layers in order, whatever order the ids are in
            boundaries = reading.boundaries
            ordered = None if boundaries is None else tuple(sorted(set(boundaries)))
            yield replace(reading, boundaries=ordered)


def _judged(subject: Subject, releases: Sequence[str]) -> set[str]:
    """The runners of vLLM that serving rules judge, or that no requested release has."""
    vllm, view = ENGINES["vllm"], _view(subject)
    newest = vllm.behaviour(vllm.releases[-1]).runners
    had = {name for release in releases for name in vllm.behaviour(release).runners}
    absent = {runner.label for name, runner in newest.items() if releases and name not in had}
    judged = {reading.engine for release in releases for reading in vllm.readings(view, release).values()}
    return judged | absent


def _is_open(engine: str, reading: CapturedLayers, requested: Mapping[str, Sequence[str]]) -> bool:
    if engine == "vllm":
        return not requested or engine in requested
    if engine in ENGINES:
        return not requested and reading.ids is not None
    return engine in requested


def _serving_fix(subject: Subject, wrong: list[CapturedLayers]) -> str:
    boundaries = subject.drafter.aux.boundaries
    if boundaries and [reading.engine for reading in wrong] == ["TensorRT-LLM"]:
        numbers = ", ".join(str(boundary - 1) for boundary in boundaries)
        return f"write eagle3_layers_to_capture: {{{numbers}}} into TensorRT-LLM's serving config"
    return ""
