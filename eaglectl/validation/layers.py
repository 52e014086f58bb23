"""Rules on the aux layers: how many, which, and whether every engine captures the ones that were trained on."""

from collections.abc import Iterator
from dataclasses import replace

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.engine import IDS, Reading, aux_readings
from eaglectl.engines.facts import is_within
from eaglectl.engines.view import View, flat_as_read, stated_aux
from eaglectl.engines.vllm import readings_of
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject
from eaglectl.validation.target import drafter_mark

RUNNERS = ("vLLM, V2 runner", "vLLM, V1 runner")
# engines whose releases are not followed, so that no serving rule judges how they read ids
UNJUDGED = {"tensorrt-llm": "TensorRT-LLM", "tokenspeed": "tokenspeed", "atom": "ATOM"}
# what is wrong with the ids themselves; while it is, nothing more is made of them
UNSETTLED = ("aux-count", "aux-range", "aux-repeated", "aux-lists", "aux-convention")


@rule("EGL401", "aux-count", "error")
def aux_count(subject: Subject) -> Iterator[Hit]:
    """The config names as many aux layers as fc takes.

    Engines capture what the ids say and hand it to fc; with another number of states they stop at load, at the first
    request, or hang.

    Fix: run `eaglectl convert --aux-layers` with the layers that were trained on.
    """
    told = tuple(_told(subject, "aux-count"))
    if told:  # the count that is stated and the ids may both be wrong beside one fc
        yield Hit("; ".join(hit.message for hit in told), told[0].where)


@rule("EGL402", "aux-range", "error")
def aux_range(subject: Subject) -> Iterator[Hit]:
    """Every aux layer is one of the target's.

    A layer past the last is never reached: engines pass on fewer states, which stops them or is padded in silence.

    Fix: check that the target is the right one, then run `eaglectl convert --aux-layers` or `--aux-convention`.
    """
    if not drafter_mark(subject.target.config):
        yield from _told(subject, "aux-range")


@rule("EGL403", "aux-order", "warning")
def aux_order(subject: Subject) -> Iterator[Hit]:
    """The aux layers ascend.

    vLLM sorts the ids; if fc was trained on the order as listed, its inputs are exchanged in silence.

    Fix: run `eaglectl convert`, which sorts the ids and moves fc's columns with them.
    """
    yield from _told(subject, "aux-order")


@rule("EGL404", "aux-lists", "warning")
def aux_lists(subject: Subject) -> Iterator[Hit]:
    """The ids at the top of the config and those in eagle_config name the same layers.

    vLLM reads the first list, SGLang the second: where they differ in every convention, one of the engines captures layers
    that fc was not trained on.

    Fix: run `eaglectl convert --aux-layers` with the layers that were trained on.
    """
    if not any(_told(subject, "aux-count", "aux-range", "aux-repeated")):
        yield from _told(subject, "aux-lists")


@rule("EGL405", "aux-convention", "warning")
def aux_convention(subject: Subject) -> Iterator[Hit]:
    """It can be known whether the ids are boundaries or outputs of layers.

    Trainers count outputs of layers, vLLM counts boundaries, which are one higher. Read the wrong way, every aux state is
    one layer off, and acceptance at the first position falls from about 45 % to 10 %.

    Fix: pass --target; if that does not tell, run `eaglectl convert --aux-convention boundary` or `output`.
    """
    yield from _told(subject, "aux-convention")


@rule("EGL406", "aux-engines", "warning")
def aux_engines(subject: Subject) -> Iterator[Hit]:
    """Every engine captures the layers that were trained on.

    vLLM's V1 runner, its V2 runner and SGLang read ids from different keys and count them differently, so that one config
    means different layers. Where engines are asked for, the serving rules judge their releases, and this one the rest: the
    runner that is not the release's default, and engines whose releases are not followed.

    Fix: run `eaglectl convert --target`, which writes the ids for each engine where that engine reads them.
    """
    if any(_told(subject, *UNSETTLED)):
        raise CannotLook("the ids themselves are in doubt")
    trained = subject.drafter.aux
    readings = tuple(_readings(subject))
    verdicts = [(reading, reading.same_as(trained)) for reading in readings]
    wrong = [reading for reading, is_same in verdicts if is_same is False]
    if wrong:
        known = f"boundaries {list(trained.boundaries)}" if trained.boundaries else "the default layers"
        found = "; ".join(f"{reading.engine} captures {_words(reading)}" for reading in wrong)
        yield Hit(f"the drafter was trained on {known}; {found}", _place(subject), _way_out(subject, wrong))
    elif unknown := [reading.engine for reading, is_same in verdicts if is_same is None]:
        raise CannotLook(f"what {', '.join(unknown)} makes of the ids depends on the target; pass --target")


@rule("EGL407", "use-aux-hidden-state", "error")
def use_aux_hidden_state(subject: Subject) -> Iterator[Hit]:
    """use_aux_hidden_state is not false beside an fc.

    With false, vLLM skips fc and feeds the drafter the target's last hidden state, which it was not trained on; in some
    releases the shapes then do not fit.

    Fix: say true, or remove the key.
    """
    yield from subject.said("use-aux-hidden-state")


@rule("EGL408", "aux-count-unstated", "warning")
def aux_count_unstated(subject: Subject) -> Iterator[Hit]:
    """A number of aux layers other than 3 is stated where engines look for it.

    vLLM builds fc for num_aux_hidden_states, else for the ids in eagle_config, else for 3; it never counts the ids at the
    top, and stops when fc has another width (vllm#54526). In a speculators config only transformer_layer_config keeps the
    key. Where vLLM is asked for, the serving rules say this for each release.

    Fix: add num_aux_hidden_states, or run `eaglectl convert`.
    """
    drafter = subject.drafter
    is_judged = any(wanted.engine == "vllm" for wanted in subject.wanted) or Feature.QK_NORM in drafter.features()
    view = _view(subject)
    if is_judged or view.says("num_aux_hidden_states") is not None or any(_told(subject, "aux-count")):
        return
    if stated_aux(view) != drafter.dims.aux:
        text = f"fc takes {drafter.dims.aux} aux states and no num_aux_hidden_states says so; vLLM builds it for"
        yield Hit(f"{text} {stated_aux(view)}", _place(subject))


@rule("EGL409", "aux-ids-absent", "note")
def aux_ids_absent(subject: Subject) -> Iterator[Hit]:
    """The config names its aux layers.

    Without ids every engine takes (2, n//2, n-3), which is what this producer trains on unless its recipe was changed;
    nothing in the file would show that. A policy may forbid it.

    Fix: run `eaglectl convert --target`, or `--aux-layers` with the layers that were trained on.
    """
    aux = subject.drafter.aux
    if aux.ids is None and aux.is_default and not any(_told(subject, "aux-ids-doubted")):
        yield Hit("config names no aux layers; engines take the default (2, n//2, n-3)")


@rule("EGL410", "aux-ids-doubted", "warning")
def aux_ids_doubted(subject: Subject) -> Iterator[Hit]:
    """A producer whose recipes change the aux layers has written them down.

    Engines take the default layers where no ids are. A published head of such a producer, without ids, had an acceptance of
    1 % with them (vllm#50170).

    Fix: ask the trainer, then run `eaglectl convert --aux-layers`.
    """
    yield from _told(subject, "aux-ids-doubted")


@rule("EGL411", "aux-repeated", "error")
def aux_repeated(subject: Subject) -> Iterator[Hit]:
    """No aux layer is listed twice.

    vLLM captures each layer once, and fc then gets fewer states than it takes.

    Fix: run `eaglectl convert`, which joins the columns of fc that belong to one layer.
    """
    yield from _told(subject, "aux-repeated")


def _told(subject: Subject, *topics: str) -> Iterator[Hit]:
    """Notes of these topics; a question too, for what only the user knows no engine can know."""
    for note in subject.drafter.notes:
        if note.topic in topics and note.level != "note":
            is_key = note.about in subject.config
            yield Hit(note.text, f"config.json:{note.about}" if is_key else _place(subject))


def _place(subject: Subject) -> str:
    if IDS in subject.config:
        return f"config.json:{IDS}"
    nested = subject.config.get("eagle_config")
    is_nested = isinstance(nested, dict) and IDS in nested
    return f"config.json:eagle_config.{IDS}" if is_nested else "config.json"


def _view(subject: Subject) -> View:
    flat = flat_as_read(subject.config, subject.flat)
    return View(subject.drafter, subject.config, flat, tuple(subject.checkpoint.tensors))


def _readings(subject: Subject) -> Iterator[Reading]:
    """How those engines read the ids that no serving rule judges."""
    asked = {wanted.engine: wanted.releases for wanted in subject.wanted}
    view = _view(subject)
    judged = {reading.engine for release in asked.get("vllm", ()) for reading in readings_of(view, release)}
    if asked and not any(is_within(">=0.17.0", release) for release in asked.get("vllm", ())):
        judged.add(RUNNERS[0])  # there was no V2 runner before
    for reading in aux_readings(subject.config, subject.drafter.target):
        if reading.engine in RUNNERS:
            is_open = (not asked or "vllm" in asked) and reading.engine not in judged
        elif reading.engine == "SGLang":
            is_open = not asked and reading.ids is not None
        else:
            is_open = any(reading.engine == UNJUDGED[name] for name in asked if name in UNJUDGED)
        if is_open:
            # engines go through the target's layers in order, whatever order the ids are in
            found = None if reading.boundaries is None else tuple(sorted(set(reading.boundaries)))
            yield replace(reading, boundaries=found)


def _words(reading: Reading) -> str:
    found = list(reading.boundaries) if reading.boundaries else "the default (2, n//2, n-3)"
    return f"{found} ({reading.key})"


def _way_out(subject: Subject, wrong: list[Reading]) -> str:
    boundaries = subject.drafter.aux.boundaries
    if boundaries and [reading.engine for reading in wrong] == ["TensorRT-LLM"]:
        numbers = ", ".join(str(boundary - 1) for boundary in boundaries)
        return f"write eagle3_layers_to_capture: {{{numbers}}} into TensorRT-LLM's serving config"
    return ""
