"""Rules on the inputs of fc (aux layers and norms), and on rotary embeddings and positions.

They check how many aux layers there are, which, and whether every engine captures the trained ones; that each
norm switch of EAGLE-3.1 has its tensors, and the reverse; and that rope keys agree with each other, with what
engines support, and with the target.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, JOINED_NORMS, Feature, Rope, Target, with_one_factor
from eaglectl.engines.behaviour import IDS, CapturedLayers, judged_unversioned
from eaglectl.engines.registry import ENGINES, aux_readings
from eaglectl.errors import EaglectlError
from eaglectl.files.text_part import text_part
from eaglectl.formats.commands import read_fix
from eaglectl.formats.config_keys import PARTIAL, SPELLINGS, Keys, at
from eaglectl.formats.other_drafters import drafter_mark
from eaglectl.formats.rope import read_rope
from eaglectl.judge.judgement import Subject, key_place
from eaglectl.judge.rule import CannotLook, Match, make_rule, note_rule, rule

# topics of faults in the ids; EGL406 does not judge ids that have one
ID_FAULTS = ("aux-count", "aux-range", "aux-repeated", "aux-lists", "aux-convention")


def _reported(subject: Subject, *topics: str) -> Iterator[Match]:
    # questions too: a fact that only the user knows, no engine knows
    for note in subject.drafter.notes:
        if note.topic in topics and note.level != "note":
            is_key = note.about in subject.config
            place = f"config.json:{note.about}" if is_key else key_place(subject.config, IDS)
            yield Match(note.text, place, options=note.options, key=note.key)


@rule("EGL401", "aux-count", "error", "settle")
def aux_count(subject: Subject) -> Iterator[Match]:
    """The config names as many aux layers as fc takes.

    Engines pass the states of the layers that the ids name to fc; with another number they stop at load or
    at the first request, or hang.

    Fix: run `eaglectl convert SOURCE` with --aux-layers and the layers that were trained on.
    """
    if matches := tuple(_reported(subject, "aux-count")):  # the stated count and the ids may both disagree
        yield Match("; ".join(match.message for match in matches), matches[0].where)


@rule("EGL402", "aux-range", "error", "settle")
def aux_range(subject: Subject) -> Iterator[Match]:
    """Every aux layer exists in the target.

    A layer beyond the last one is never reached: engines pass fewer states to fc, which stops them or is
    padded silently.

    Fix: check that the target is the right one, then run `eaglectl convert SOURCE` with --aux-layers or
    --aux-convention.
    """
    if not drafter_mark(subject.target.config):
        yield from _reported(subject, "aux-range")


@rule("EGL404", "aux-lists", "warning", "settle")
def aux_lists(subject: Subject) -> Iterator[Match]:
    """The ids at the top of the config and those in eagle_config name the same layers.

    vLLM reads the first list, SGLang the second: where they differ in every convention, one of the engines
    captures layers that fc was not trained on.

    Fix: run `eaglectl convert SOURCE` with --aux-layers and the layers that were trained on.
    """
    if not any(_reported(subject, "aux-count", "aux-range", "aux-repeated")):
        yield from _reported(subject, "aux-lists")


@rule("EGL406", "aux-engines", "warning", "convert")
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
        raise CannotLook("another rule doubts the layer ids")
    trained, readings = subject.drafter.aux, list(_readings(subject))
    unknown = ", ".join(reading.engine for reading in readings if reading.same_as(trained) is None)
    if wrong := [reading for reading in readings if reading.same_as(trained) is False]:
        boundaries = trained.boundaries or ()
        layers = f"boundaries {list(boundaries)}" if boundaries else "the default layers"
        captured = "; ".join(
            f"{reading.engine} captures {list(reading.boundaries or ()) or reading.words} ({reading.key})"
            for reading in wrong
        )
        yield Match(
            f"the drafter was trained on {layers}; {captured}",
            key_place(subject.config, IDS),
            _serving_fix(wrong, boundaries),
        )
    elif unknown:
        raise CannotLook(f"the layers that {unknown} captures depend on the target; pass --target")


def _serving_fix(wrong: Sequence[CapturedLayers], boundaries: Sequence[int]) -> str:
    # where only TensorRT-LLM is wrong, whose serving config names layers too
    if not boundaries or [reading.engine for reading in wrong] != ["TensorRT-LLM"]:
        return ""
    ids = ", ".join(str(boundary - 1) for boundary in boundaries)
    return f"write eagle3_layers_to_capture: {{{ids}}} into TensorRT-LLM's serving config"


@rule("EGL408", "aux-count-unstated", "warning", "convert")
def aux_count_unstated(subject: Subject) -> Iterator[Match]:
    """A number of aux layers other than 3 is stated where engines read it.

    vLLM builds fc for num_aux_hidden_states, else for the ids in eagle_config, else for 3; it never counts
    the ids at the top, and stops when fc has another width (vllm#54526). A speculators config keeps the key
    only inside transformer_layer_config. Where vLLM is requested, the serving rules report this for each
    release.

    Fix: add num_aux_hidden_states, or run `eaglectl convert SOURCE`.
    """
    drafter, view, vllm = subject.drafter, subject.view("vllm"), ENGINES["vllm"]
    is_requested = any(request.engine == "vllm" for request in subject.requests)
    is_judged = is_requested or Feature.QK_NORM in drafter.features() or any(_reported(subject, "aux-count"))
    built = vllm.case(view, vllm.releases[-1]).aux_count
    is_unstated = view.flat.get("num_aux_hidden_states") is None and built != drafter.dims.aux
    if is_unstated and not is_judged:
        yield Match(
            f"fc takes {drafter.dims.aux} aux states, and config has no num_aux_hidden_states; vLLM builds fc"
            f" for {built}",
            key_place(subject.config, IDS),
        )


@rule("EGL409", "aux-ids-absent", "note", "settle")
def aux_ids_absent(subject: Subject) -> Iterator[Match]:
    """The config names its aux layers.

    Without ids, every engine uses its own default layers. This producer trains on the same layers unless its
    recipe was changed, which the file does not show. A policy can forbid missing ids.

    Fix: run `eaglectl convert SOURCE --target TARGET`, or with --aux-layers and the layers that were trained
    on.
    """
    aux = subject.drafter.aux
    if aux.ids is None and aux.is_default and not any(_reported(subject, "aux-ids-doubted")):
        readings = aux_readings({}, Target(model_type=subject.drafter.target.model_type))
        defaults = dict.fromkeys(reading.words for reading in readings.values())
        yield Match(f"config names no aux layers; engines capture {' or '.join(defaults)}")


def _closed_runners(subject: Subject) -> set[str]:
    # vLLM's runners that EGL406 leaves out: serving rules judge them, or no requested release has them
    vllm, view = ENGINES["vllm"], subject.view("vllm")
    requests = [request for request in subject.requests if request.engine == "vllm"]
    releases = {release for request in requests for release in request.releases}
    judged = {reading.engine for release in releases for reading in vllm.readings(view, release).values()}
    existing = {name for release in releases for name in vllm.behaviour(release).runners}
    newest = vllm.behaviour(vllm.releases[-1]).runners if releases else {}
    return judged | {runner.label for name, runner in newest.items() if name not in existing}


def _readings(subject: Subject) -> Iterator[CapturedLayers]:
    requested = {request.engine for request in subject.requests}
    closed = _closed_runners(subject)
    names = {engine.title: name for name, engine in ENGINES.items()}
    names |= {title: name for name, title in judged_unversioned().items()}
    for reading in aux_readings(subject.config, subject.drafter.target).values():
        engine = names[reading.engine.partition(",")[0]]
        is_open = engine in requested and (engine == "vllm" or engine not in ENGINES)
        if engine in ENGINES and not requested:
            is_open = engine == "vllm" or reading.ids is not None
        if is_open and reading.engine not in closed:
            # engines visit the target's layers in order, whatever the order of the ids
            boundaries = None if reading.boundaries is None else tuple(sorted(set(reading.boundaries)))
            yield replace(reading, boundaries=boundaries)


# the keys that every engine which knows the switch reads
READ_KEYS = {
    "fc_norm": ("fc_norm",),
    "norm_output": ("norm_output",),
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "norm_before_residual": ("norm_before_residual",),
}


@rule("EGL502", "norm-flag-missing", "error", "convert")
def norm_flag_missing(subject: Subject) -> Iterator[Match]:
    """Every norm that has tensors is enabled.

    Engines silently drop the tensors of a disabled norm (input_norm in vLLM, all of them in SGLang), or
    stop (fc_norm in vLLM).

    Fix: write fc_norm: true or norm_before_fc: true, or run `eaglectl convert SOURCE`.
    """
    choice = "write fc_norm: true or norm_before_fc: true if it was trained so; else remove the tensors."
    yield from (replace(match, fix=choice) for match in subject.reported("norm-flag-missing"))
    norms, keys = subject.drafter.norms, Keys(subject.flat)
    for flag, tensor, is_on in (
        ("fc_norm", "fc_norm.0.weight", norms.fc_norm),
        ("norm_before_fc", "input_norm.weight", norms.norm_before_fc),
    ):
        if is_on and not keys.statements(flag):
            yield Match(f"the file has {tensor}, but config has no {keys.spelling(flag)}", f"tensor:{tensor}")


@rule("EGL505", "norm-output-unknown", "warning", "settle")
def norm_output_unknown(subject: Subject) -> Iterator[Match]:
    """It is known whether the drafter feeds back its normed states (norm_output).

    Before SpecForge's pull request 879 (September 2026) the switch meant something else: true trained plain
    EAGLE-3. Served as stated, such a drafter gets states that it was not trained on from the second draft
    token on.

    Fix: find out when it was trained, then run `eaglectl convert SOURCE` with --source-semantics
    specforge=pre-879 or specforge=post-879, or norm_output=true or norm_output=false.
    """
    if not subject.checkpoint.record:  # convert wrote it with the meaning that engines give it
        # an open question is itself the finding: no engine knows the answer either
        yield from subject.reported("norm-output-unknown", is_fault=True)


@rule("EGL506", "norm-flag-place", "warning", "convert")
def norm_flag_place(subject: Subject) -> Iterator[Match]:
    """The switches of the norms are where every engine reads them.

    Some exporters write them into eagle_config or under older names, which one engine reads and the others
    do not.

    Fix: run `eaglectl convert SOURCE`, which writes them at the top.
    """
    for flag, paths in READ_KEYS.items():
        is_read = any(at(subject.flat, path) is not None for path in paths)
        others = [path for path in SPELLINGS[flag] if at(subject.flat, path) is True]
        if others and not is_read:
            place = key_place(subject.config, others[0].rpartition(".")[2])
            yield Match(f"only {others[0]} enables {flag}; not every engine reads it there", place)


@rule("EGL507", "double-norm", "note", "convert")
def double_norm(subject: Subject) -> Iterator[Match]:
    """The hidden state was normed once in training, as engines norm it.

    ModelOpt since 0.41.0 (its pull request 689) norms it twice, by input_layernorm and by hidden_norm. No
    engine does, so the input of the attention lacks the weights of input_layernorm. `convert` writes the
    product of both as one norm: the direction of each state is then exact, and its size differs by a factor
    near one, which the note states: bounds, or what was measured on the target.

    Fix: run `eaglectl convert SOURCE`.
    """
    yield from subject.reported(DOUBLE_NORM)
    fix = "measure the remaining loss with `eaglectl smoke SOURCE --target TARGET`."
    yield from (replace(match, repair=read_fix(fix, "measure")) for match in subject.reported(JOINED_NORMS))


@rule("EGL508", "one-switch", "note")
def one_switch(subject: Subject) -> Iterator[Match]:
    """The two switches of EAGLE-3.1 are on together, or both off.

    One without the other is a different network: states normed before fc with an un-normed state fed back, or
    the reverse. vLLM since 0.22, SGLang and TensorRT-LLM compute each switch as stated; llama.cpp stops at
    fc_norm and ignores norm_output. speculators trains norm_output with norm_before_fc by default, which is a
    complete pair; SpecForge, TorchSpec and NeMo Automodel train one switch only where a recipe says so.

    Fix: compare with the trainer's recipe; if it trained only one switch, do nothing.
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
    it. If the target's base was trained, a tool has lost it; and some runtimes keep one rotary table for both
    models.

    Fix: ask the trainer which base was trained; never copy the target's into a drafter that has another.
    """
    base, ours, config = _target_rope(subject).theta, subject.drafter.rope.theta, _target_config(subject)
    tables = (config, config.get("rope_parameters"), config.get("rope_scaling"))
    if all(table.get("rope_theta") is None for table in tables if isinstance(table, Mapping)):
        raise CannotLook("the target's config states no rope base")
    if base != ours:
        yield Match(
            f"the drafter's rope base is {ours:g} and the target's {base:g}",
            _place(subject, "rope_theta"),
        )


@rule("EGL602", "rope-scaling", "note")
def rope_scaling(subject: Subject) -> Iterator[Match]:
    """The rope scaling is the target's.

    A drafter trained on short texts may have none, and must be served without one; a conversion that drops it
    reduces acceptance, more so on long texts.

    Fix: ask the trainer which scaling was trained; restore it if a conversion has dropped it.
    """
    ours, theirs = (_comparable(rope.scaling) for rope in (subject.drafter.rope, _target_rope(subject)))
    if subject.drafter.dims.attention != "MLA":
        ours, theirs = with_one_factor(ours), with_one_factor(theirs)
    keys = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
    differences = [f"{key} {ours.get(key)} and {theirs.get(key)}" for key in keys]
    if ours["rope_type"] != theirs["rope_type"]:
        differences = [f"{ours['rope_type']} and {theirs['rope_type']}"]
    if differences:
        yield Match(
            f"the drafter's rope scaling differs from the target's: {', '.join(differences)}",
            _place(subject, "rope_scaling"),
        )


@rule("EGL603", "max-positions", "warning", "measure")
def max_positions(subject: Subject) -> Iterator[Match]:
    """The drafter has at least as many positions as the target.

    In longer contexts, vLLM's V1 runner stops drafting, its V2 runner before 0.27.0 reads past the end of the
    drafter's rotary table, and acceptance falls beyond the trained length elsewhere.

    Fix: set max_position_embeddings to the target's, and measure acceptance on long prompts with `eaglectl
    smoke SOURCE --target TARGET`.
    """
    needed = _target_config(subject).get("max_position_embeddings")
    if type(needed) is not int:
        raise CannotLook("the target's config has no max_position_embeddings")
    rope, positions = subject.drafter.rope, subject.drafter.settings["max_position_embeddings"]
    is_yarn = (rope.scaling or {}).get("rope_type") == "yarn"
    # factor * original_max_position_embeddings, by which engines size yarn's table
    yarn_positions = rope.positions if is_yarn else None
    if max(positions or 0, yarn_positions or 0) < needed:
        has = "states no" if positions is None else f"has {positions}"
        yield Match(
            f"the drafter {has} positions and the target {needed}",
            _place(subject, "max_position_embeddings"),
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
    is_share = type(share) in (int, float) and 0 <= share <= 1
    size = dims.qk_rope_head_dim or int(dims.head_dim * (share if is_share else 1.0))
    is_list = isinstance(sections, list) and all(type(section) is int for section in sections)
    if not is_list or sum(sections) != size // 2:
        yield Match(
            f"mrope_section is {sections}; its sum must be {size // 2}, half of {size} rotated dimensions",
            _place(subject, "rope_scaling"),
        )


@rule("EGL608", "rope-one-spelling", "note", "convert")
def rope_one_spelling(subject: Subject) -> Iterator[Match]:
    """The rope base and scaling are also under the keys that older readers know.

    transformers 5 keeps them in rope_parameters alone; readers of the older keys find none and take 10000.

    Fix: run `eaglectl convert SOURCE`, or write rope_theta and rope_scaling beside rope_parameters.
    """
    flat, rope = subject.flat, subject.drafter.rope
    lost = [f"base {rope.theta:g}"] if rope.theta != 10000 and flat.get("rope_theta") is None else []
    if rope.scaling is not None and flat.get("rope_scaling") is None:
        lost.append(f"scaling {rope.scaling['rope_type']}")
    if lost and flat.get("rope_parameters"):
        yield Match(
            f"only rope_parameters has the rope's {' and '.join(lost)}; readers before transformers 5 do not"
            " read that key",
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
    scaling, place = subject.drafter.rope.scaling or {"rope_type": "default"}, _place(subject, "rope_scaling")
    kind = scaling["rope_type"]
    if kind not in SCALINGS:
        text = f"the rope scaling is {kind!r}, which vLLM does not know; it knows {', '.join(SCALINGS)}"
        yield Match(text, place)
    is_bare = kind == "dynamic" and not {"factor", "alpha"} & set(scaling)
    needed = ("factor",) if is_bare else SCALINGS.get(kind, ())
    if lacking := [key for key in needed if scaling.get(key) is None]:
        yield Match(f"the rope scaling {kind} lacks {', '.join(lacking)}", place)


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
        yield Match(f"the rope scaling {scaling['rope_type']} lacks {key}", _place(subject, "rope_scaling"))


@rule("EGL611", "partial-rotary", "error")
def partial_rotary(subject: Subject) -> Iterator[Match]:
    """The config does not enable rotation of only a part of each head.

    Such a key is copied from a target's config. Trainers of EAGLE-3 drafters rotate the whole head and ignore
    it; vLLM reads it and rotates a part, so that every position but the first is encoded differently.
    speculators since 0.7.0 can train it (pull 733), so eaglectl asks for its files.

    Fix: remove the key, or pass `--source-semantics rope=stored` if that part was trained.
    """
    notes, settled = subject.drafter.notes, subject.drafter.settled
    open_facts, answered = ({(fact.topic, fact.about) for fact in facts} for facts in (notes, settled))
    names: tuple[str, ...] = ("rope_parameters", "rope_scaling")
    if ("partial-rotary", "rope_scaling") in open_facts | answered:
        yield from subject.reported("partial-rotary")
        names = ()  # what engines make of them is theirs
    trained = (1, subject.drafter.rope.rotated_part)
    for name, table in {"": subject.flat, **{name: subject.flat.get(name) for name in names}}.items():
        settings = table if isinstance(table, Mapping) else {}
        is_proportional = "proportional" in (settings.get("rope_type"), settings.get("type"))
        for key in () if is_proportional else PARTIAL:
            if (share := settings.get(key)) is not None and share not in (trained if not name else (1,)):
                path = f"{name}.{key}" if name else key
                yield Match(
                    f"{path} is {share!r}; vLLM rotates only that part of each head",
                    _place(subject, name or key),
                )


def _target_config(subject: Subject) -> Mapping[str, Any]:
    return text_part(subject.target.given_config)


def _target_rope(subject: Subject) -> Rope:
    config = _target_config(subject)
    try:
        return read_rope(Keys(config), is_mla=False)
    except EaglectlError as error:
        raise CannotLook(f"the target's rope settings cannot be read: {error}") from None


def _comparable(scaling: Mapping[str, Any] | None) -> Mapping[str, Any]:
    parts = dict(scaling or {"rope_type": "default"})
    kind = parts["rope_type"].removeprefix("deepseek_")
    # transformers writes default in place of mrope (configuration_qwen2_vl.py)
    return parts | {"rope_type": "default" if kind == "mrope" else kind}


def _place(subject: Subject, key: str) -> str:
    if key in ("rope_theta", "rope_scaling") and subject.flat.get(key) is None:
        key = "rope_parameters"
    return key_place(subject.config, key)


# what reading reports on the topic of a rule's name, and rules of one call
RULES = (
    make_rule(
        "EGL403",
        "aux-order",
        "warning",
        lambda subject: _reported(subject, "aux-order"),
        """The aux layers ascend.

    vLLM sorts the ids; if fc was trained on the listed order, its inputs are silently exchanged.

    Fix: run `eaglectl convert SOURCE`, which sorts the ids and reorders fc's columns with them.
    """,
        "convert",
    ),
    make_rule(
        "EGL405",
        "aux-convention",
        "warning",
        lambda subject: _reported(subject, "aux-convention"),
        """It is known whether the layer ids are boundaries or layer outputs.

    Trainers count outputs of layers, vLLM counts boundaries, which are one higher. With the wrong
    convention every aux state is one layer off: in one report acceptance at the first position fell from 45 %
    to 10 % (vLLM issue 43671); on the real pair of `fixtures/real` 2 to 10 % of the accepted tokens
    are lost.

    Fix: pass --target; if that does not decide it, run `eaglectl convert SOURCE --aux-convention boundary` or
    `eaglectl convert SOURCE --aux-convention output`.
    """,
        "settle",
    ),
    note_rule(
        "EGL407",
        "use-aux-hidden-state",
        "error",
        """use_aux_hidden_state is not false beside an fc.

    With false, vLLM skips fc and feeds the drafter the target's last hidden state, which it was not trained
    on; in some releases the shapes then do not fit.

    Fix: write true, or remove the key.
    """,
    ),
    make_rule(
        "EGL410",
        "aux-ids-doubted",
        "warning",
        lambda subject: _reported(subject, "aux-ids-doubted"),
        """The layers are stated where a producer's recipes change them.

    Without ids, engines use the default layers. A published drafter of such a producer, without ids, had an
    acceptance rate of 1 % with them (vllm#50170).

    Fix: ask the trainer, then run `eaglectl convert SOURCE` with --aux-layers.
    """,
        "settle",
    ),
    make_rule(
        "EGL411",
        "aux-repeated",
        "error",
        lambda subject: _reported(subject, "aux-repeated"),
        """No aux layer is listed twice.

    vLLM captures each layer once, so that fc gets fewer states than it takes.

    Fix: run `eaglectl convert SOURCE`, which adds up the columns of fc that belong to one layer.
    """,
        "convert",
    ),
    make_rule(
        "EGL412",
        "aux-copied",
        "warning",
        lambda subject: _reported(subject, "aux-copied"),
        """Ids at the top level are boundaries, as vLLM reads them.

    Ids [1, n//2-1, n-4] are the default layers, counted as layer outputs. No trainer that counts this way
    writes ids at the top level, so they were copied there, and vLLM captures other layers.

    Fix: run `eaglectl convert SOURCE --target TARGET`; pass --aux-convention boundary too if the drafter was
    trained on the layers that vLLM reads.
    """,
        "settle",
    ),
    note_rule(
        "EGL501",
        "norm-tensor-missing",
        "error",
        """Every norm that the config enables has its tensors.

    Engines build the norm and leave its weight at one where the file has none: fc gets other numbers than
    it was trained on, and no engine reports it.

    Fix: restore the tensors from the trainer; many converters drop them.
    """,
    ),
    note_rule(
        "EGL503",
        "both-norms",
        "warning",
        """fc_norm and norm_before_fc are not both enabled.

    They are two designs, and trainers that know both exclude the pair. vLLM and SGLang apply both,
    TensorRT-LLM one.

    Fix: disable the one that was not trained.
    """,
    ),
    note_rule(
        "EGL604",
        "rope-spellings",
        "error",
        """rope_theta, rope_scaling and rope_parameters agree.

    transformers 4 reads the first two, transformers 5 the third: with two values, the engine's version
    decides which rotation is served.

    Fix: keep the values that were trained, under both names or one.
    """,
        is_fault=True,
    ),
    note_rule(
        "EGL605",
        "rope-pairing",
        "error",
        """An MLA drafter rotates pairs of neighbouring dimensions.

    vLLM's and SGLang's MLA drafter classes pair dimensions 2i and 2i+1 whatever rope_interleave states:
    weights trained with paired halves are rotated wrongly.

    Fix: run `eaglectl convert SOURCE --rope-style interleaved`, which reorders the rotary rows; if the
    weights are interleaved already, remove the key.
    """,
        "convert",
    ),
    note_rule(
        "EGL607",
        "rope-base-doubt",
        "warning",
        """The stored rope base is the one that was trained.

    Some trainers rotate with base 10000 whatever their config states, and engines rotate with the stated
    base: every position after the first few is encoded differently.

    Fix: convert with --source-semantics and the trained base; with the target's weights, `convert` measures
    it.
    """,
        is_fault=True,
    ),
    note_rule(
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
    ),
)
