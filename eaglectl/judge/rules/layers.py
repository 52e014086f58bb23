"""Rules on what fc takes: the aux layers and the norms.

How many layers, which, and whether every engine captures the ones that were trained on. Of the norms that
distinguish EAGLE-3.1 from EAGLE-3: each switch has its tensors, and the reverse.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, JOINED_NORMS, Feature, Target
from eaglectl.engines.behaviour import judged_unversioned
from eaglectl.engines.layers import IDS, CapturedLayers
from eaglectl.engines.registry import ENGINES, aux_readings
from eaglectl.engines.view import View
from eaglectl.engines.vllm import flat_as_read
from eaglectl.formats.config_keys import SPELLINGS, Keys, at
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
    unknown = ", ".join(reading.engine for reading, is_same in verdicts if is_same is None)
    if wrong := [reading for reading, is_same in verdicts if is_same is False]:
        layers = f"boundaries {list(trained.boundaries)}" if trained.boundaries else "the default layers"
        captured = "; ".join(
            f"{reading.engine} captures {list(reading.boundaries or ()) or reading.words} ({reading.key})"
            for reading in wrong
        )
        text = f"the drafter was trained on {layers}; {captured}"
        yield Match(text, key_place(subject.config, IDS), _serving_fix(wrong, trained.boundaries))
    elif unknown:
        raise CannotLook(f"what {unknown} makes of the ids depends on the target; pass --target")


def _serving_fix(wrong: Sequence[CapturedLayers], boundaries: Sequence[int] | None) -> str:
    """The fix where only TensorRT-LLM is wrong, whose serving config names layers too; else ""."""
    if not boundaries or [reading.engine for reading in wrong] != ["TensorRT-LLM"]:
        return ""
    numbers = ", ".join(str(boundary - 1) for boundary in boundaries)
    return f"write eagle3_layers_to_capture: {{{numbers}}} into TensorRT-LLM's serving config"


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
    drafter, view = subject.drafter, _view(subject)
    is_requested = any(request.engine == "vllm" for request in subject.requests)
    is_judged = is_requested or Feature.QK_NORM in drafter.features()
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


def _closed_runners(view: View, releases: Sequence[str]) -> set[str]:
    """The labels of vLLM's runners that serving rules judge, or that none of the requested releases has."""
    vllm = ENGINES["vllm"]
    judged = {reading.engine for release in releases for reading in vllm.readings(view, release).values()}
    had = {name for release in releases for name in vllm.behaviour(release).runners}
    newest = vllm.behaviour(vllm.releases[-1]).runners if releases else {}
    return judged | {runner.label for name, runner in newest.items() if name not in had}


def _readings(subject: Subject) -> Iterator[CapturedLayers]:
    """The layers that engines capture and no serving rule judges."""
    requested = {request.engine: request.releases for request in subject.requests}
    closed = _closed_runners(_view(subject), requested.get("vllm", ()))
    # the labels of each engine's runners in its newest release, as they are in aux_readings
    labels = {
        name: [runner.label for runner in engine.behaviour(engine.releases[-1]).runners.values()][::-1]
        for name, engine in ENGINES.items()
    } | {name: [title] for name, title in judged_unversioned().items()}
    readings = aux_readings(subject.config, subject.drafter.target)
    for engine, several in labels.items():
        for label in several:
            reading = readings[label]
            is_open = engine in requested
            if engine in ENGINES and not requested:
                is_open = engine == "vllm" or reading.ids is not None
            elif engine != "vllm":
                is_open = is_open and engine not in ENGINES
            if is_open and reading.engine not in closed:
                # engines go through the target's layers in order, whatever order the ids are in
                boundaries = reading.boundaries
                ordered = None if boundaries is None else tuple(sorted(set(boundaries)))
                yield replace(reading, boundaries=ordered)


# the keys that every engine which knows the switch reads
READ_KEYS = {
    "fc_norm": ("fc_norm",),
    "norm_output": ("norm_output",),
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "norm_before_residual": ("norm_before_residual",),
}


norm_tensor_missing = note_rule(
    "EGL501",
    "norm-tensor-missing",
    "error",
    """Every norm that the config enables has its tensors.

    Engines build the norm and leave its weight at one where the file has none: fc gets other numbers than
    it was trained on, and no engine reports it.

    Fix: restore the tensors from the trainer; many converters drop them.
    """,
)


@rule("EGL502", "norm-flag-missing", "error")
def norm_flag_missing(subject: Subject) -> Iterator[Match]:
    """Every norm that has tensors is enabled.

    Engines silently drop the tensors of a disabled norm (input_norm in vLLM, all of them in SGLang), or
    stop (fc_norm in vLLM).

    Fix: write fc_norm: true or norm_before_fc: true, or run `eaglectl convert SOURCE`.
    """
    contrary = "write fc_norm: true or norm_before_fc: true if it was trained so; else remove the tensors."
    yield from (replace(match, fix=contrary) for match in subject.reported("norm-flag-missing"))
    norms, keys = subject.drafter.norms, Keys(subject.flat)
    for flag, tensor, is_on in (
        ("fc_norm", "fc_norm.0.weight", norms.fc_norm),
        ("norm_before_fc", "input_norm.weight", norms.norm_before_fc),
    ):
        if is_on and not keys.statements(flag):
            yield Match(f"the file has {tensor} and config has no {keys.spelling(flag)}", f"tensor:{tensor}")


both_norms = note_rule(
    "EGL503",
    "both-norms",
    "warning",
    """fc_norm and norm_before_fc are not both enabled.

    They are two designs, and trainers that know both exclude the pair. vLLM and SGLang apply both,
    TensorRT-LLM one.

    Fix: disable the one that was not trained.
    """,
)


@rule("EGL505", "norm-output-unknown", "warning")
def norm_output_unknown(subject: Subject) -> Iterator[Match]:
    """It is known whether the drafter feeds back its normed states (norm_output).

    Before SpecForge's pull request 879 (September 2026) the switch meant something else: true trained plain
    EAGLE-3. Served as stated, such a head gets states that it was not trained on from the second draft on.

    Fix: find out when it was trained, then run `eaglectl convert SOURCE` with --source-semantics
    specforge=pre-879 or specforge=post-879, or norm_output=true or norm_output=false.
    """
    if not subject.checkpoint.record:  # convert wrote it with the meaning that engines give it
        yield from subject.reported("norm-output-unknown", is_fault=True)


@rule("EGL506", "norm-flag-place", "warning")
def norm_flag_place(subject: Subject) -> Iterator[Match]:
    """The switches of the norms are where every engine reads them.

    Some exporters write them into eagle_config or under older names, which one engine reads and the others
    do not.

    Fix: run `eaglectl convert SOURCE`, which writes them at the top.
    """
    for flag, paths in READ_KEYS.items():
        if any(at(subject.flat, path) is not None for path in paths):
            continue
        other = next((path for path in SPELLINGS[flag] if at(subject.flat, path) is True), None)
        if other is not None:
            place = key_place(subject.config, other.rpartition(".")[2])
            yield Match(f"only {other} enables {flag}; not every engine reads it there", place)


@rule("EGL507", "double-norm", "note")
def double_norm(subject: Subject) -> Iterator[Match]:
    """The hidden state was normed once in training, as engines norm it.

    ModelOpt since 0.41.0 (its pull request 689) norms it twice, by input_layernorm and by hidden_norm. No
    engine does, so that the weights of input_layernorm are missing in what its attention reads. `convert`
    writes the product of both as one norm: the direction of each state is then exact, and its size differs
    by a factor near one, which the note states.

    Fix: run `eaglectl convert SOURCE`.
    """
    yield from subject.reported(DOUBLE_NORM)
    measure = "measure what the rest of it costs by `eaglectl smoke SOURCE --target TARGET`."
    yield from (replace(match, fix=measure) for match in subject.reported(JOINED_NORMS))


@rule("EGL508", "one-switch", "note")
def one_switch(subject: Subject) -> Iterator[Match]:
    """The two switches of EAGLE-3.1 are on together, or both off.

    One without the other is a network of its own: states normed before fc with an un-normed state fed back,
    or the reverse. vLLM since 0.22, SGLang and TensorRT-LLM compute each switch as stated; llama.cpp stops at
    fc_norm and ignores norm_output. speculators trains norm_output with norm_before_fc by default, which is
    whole; SpecForge, TorchSpec and NeMo Automodel train one switch only where a recipe says so.

    Fix: compare with the trainer's recipe; nothing, if it trained one switch alone.
    """
    norms = subject.drafter.norms
    if norms.norm_output is None or norms.norm_before_fc or subject.drafter.kind == "peagle":
        return
    if norms.fc_norm and not norms.norm_output:
        yield Match(
            "fc_norm without norm_output: the aux states are normed, and the state that is fed back is not",
            key_place(subject.config, "fc_norm"),
        )
    elif norms.norm_output and not norms.fc_norm:
        yield Match(
            "norm_output without fc_norm: the state that is fed back is normed, and the aux states are not",
            key_place(subject.config, "norm_output"),
        )
