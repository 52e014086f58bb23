"""A checkpoint as an engine reads it, in one release, and conditions on it: when facts hold."""

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import isclose
from typing import Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import (
    ENGINE_FACTORS,
    LARGEST_SCALE,
    TRANSFORMERS_FACTORS,
    Drafter,
    Feature,
    yarn_factor,
)
from eaglectl.drafter.tensors import joined_name, packed_names, quantised_modules
from eaglectl.engines.behaviour import Behaviour, CapturedLayers, Flag, is_within
from eaglectl.engines.data import load
from eaglectl.engines.targets import Captures, TargetReading, read_captures
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import INDEX
from eaglectl.files.text_part import nested_parts, text_part
from eaglectl.formats.catalogue import prefixes
from eaglectl.formats.config_keys import CLASS_POSITIONS, EXCLUDE_KEYS, POSITIONS, ROPE_TABLES, at
from eaglectl.formats.format import ModelClass
from eaglectl.formats.names import inner_wrapper, module_prefix, stored_prefix
from eaglectl.formats.reader import model_class_of
from eaglectl.formats.vocabulary import PADDING
from eaglectl.text import brief, listed

# the method of ModelOpt's configs, which need not state it
MODELOPT = "modelopt"
# modules outside of the layers that a quantiser may change
EDGES = ("fc", "lm_head", "embed_tokens")
KINDS = {True: "quantised", False: "plain"}
# methods whose weights are packed in words, and where ModelOpt states a method for each module
BY_WORDS, LAYERS_KEY = ("gptq", "awq"), "quantized_layers"
FLOATS = ("F16", "BF16", "F32")
# the engines whose methods are listed
WITH_METHODS = ("vllm", "sglang")
# classes of modules in lists of compressed-tensors
LINEAR, LM_HEAD = "Linear", "ParallelLMHead"
# what engines call MLA weights after loading
RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")
ORIGINAL = "original_max_position_embeddings"
# keys of a rope that are no part of its scaling
ASIDE = ("rope_theta", "rope_type", "type", "partial_rotary_factor")


# rope scalings whose factor lengthens what engines serve
STRETCHED = ("linear", "dynamic")
# those whose original length transformers 5 takes from the top first
MOVED = ("llama3", "yarn", "longrope")
# max_position_embeddings, and kind, factor and original length of the rope scaling
Reach = tuple[int, str, float, float | None]


def rope_table_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that states the rope: rope_parameters where rope_scaling is empty."""
    tables = (config.get(name) for name in ROPE_TABLES)
    return next((table for table in tables if table and isinstance(table, Mapping)), {})


def reach_of(config: Mapping[str, Any], positions: int = 0) -> Reach:
    """Return how far a model reaches by its config; `positions` is for a config that states none."""
    table, length = rope_table_of(config), config.get(POSITIONS)
    kind = str(table.get("rope_type", table.get("type", "default")))
    at_top = {ORIGINAL: config[ORIGINAL]} if kind in MOVED and config.get(ORIGINAL) is not None else {}
    factor, original = (
        value if isinstance(value, int | float) and 0 < value < LARGEST_SCALE else None
        for value in map({**table, **at_top}.get, ("factor", ORIGINAL))
    )
    if str(config.get("model_type")).startswith("gemma3"):  # its positions are scaled already
        factor = 1
    return (length if isinstance(length, int) and length else positions), kind, factor or 1, original


class View(Struct, frozen=True, dict=True):
    """A checkpoint as an engine reads it.

    `flat` is the config after vLLM's speculators reader, if it applies. `target` is the target's config,
    empty without one. Without `files`, nothing is known of them. `runner` is the only one that counts, "" if
    that is not known.
    """

    drafter: Drafter
    config: Mapping[str, Any]
    flat: Mapping[str, Any]
    names: tuple[str, ...]
    target: Mapping[str, Any] = field(default_factory=dict)
    files: Checkpoint | None = None
    runner: str = ""

    @cached_property
    def features(self) -> frozenset[Feature]:
        """All that the drafter needs beyond plain EAGLE-3."""
        return self.drafter.features()

    @cached_property
    def model_class(self) -> ModelClass:
        """The kind of class that the drafter needs."""
        return model_class_of(self.drafter.tensors, self.drafter.dims)

    @cached_property
    def prefixed_names(self) -> tuple[tuple[str, str, str], ...]:
        """Each stored name with a prefix or an inner wrapper, and both."""
        every = [*filter(None, [module_prefix(self.names)]), *prefixes()]
        prefixes_of = ((name, stored_prefix(name, every)) for name in self.names)
        parts = ((name, prefix, inner_wrapper(name.removeprefix(prefix))) for name, prefix in prefixes_of)
        return tuple((name, prefix, inner) for name, prefix, inner in parts if prefix or inner)

    @property
    def runtime_parts(self) -> tuple[str, ...]:
        """The parts of stored names that engines give to MLA weights after loading."""
        return tuple(part for part in RUNTIME_NAMES if any(part in name for name in self.names))

    @cached_property
    def open_facts(self) -> dict[tuple[str, str], frozenset[str] | None]:
        """By engine and release, the facts that were looked up: see `Engine.verdict`."""
        return {}

    @cached_property
    def _met(self) -> dict[Callable[["View"], object], bool]:
        return {}

    def meets(self, holds: Callable[["View"], object]) -> bool:
        """Return whether `holds` is true for the checkpoint; it is asked once for all releases."""
        if holds not in self._met:
            self._met[holds] = bool(holds(self))
        return self._met[holds]

    @property
    def nested(self) -> tuple[str, ...]:
        """The keys of the config under which another config's are."""
        return nested_parts(self.config)

    @property
    def is_speculators(self) -> bool:
        """Whether the speculators reader handles this config (no model_type at the top)."""
        return "speculators_model_type" in self.config and "model_type" not in self.config

    @property
    def architecture(self) -> str:
        """The architecture that engines look up."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "(none)"

    @property
    def rope_table(self) -> Mapping[str, Any]:
        """The object that states the rope: rope_parameters where rope_scaling is empty."""
        return rope_table_of(self.flat)

    @cached_property
    def reach(self) -> Reach:
        """How far the drafter reaches; absent positions are those of the config's class."""
        return reach_of(self.flat, CLASS_POSITIONS[self.model_class])

    @cached_property
    def target_reach(self) -> Reach:
        """How far the target reaches, with 0 positions without a target that states them."""
        return reach_of(text_part(self.target))

    @cached_property
    def target_positions(self) -> int | None:
        """The length that engines serve the target with; None without a target that states one."""
        positions, kind, factor, _ = self.target_reach
        return int(positions * (factor if kind in STRETCHED else 1)) or None

    def number(self, key: str) -> int | None:
        """Return a whole number at the top level of the config that the model class gets."""
        value = self.flat.get(key)
        return value if isinstance(value, int) else None


def dimensions(view: View) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions in which config and tensors differ: (key, stated, measured)."""
    dims = view.drafter.dims
    measured = {"hidden_size": dims.hidden, "intermediate_size": dims.intermediate}
    measured |= {} if dims.attention == "MLA" else {"num_key_value_heads": dims.kv_heads}
    # without a number of key heads there are as many as heads
    flat = {"num_key_value_heads": dims.heads, **{k: v for k, v in view.flat.items() if v is not None}}
    for key, size in measured.items():
        if isinstance(flat.get(key), int) and flat[key] != size:
            yield key, flat[key], size


def assumed_head_dim(view: View) -> float:
    """Return head_dim as vLLM takes it: stated, or hidden_size/num_attention_heads."""
    head_dim = view.number("head_dim")
    return head_dim if head_dim is not None else view.drafter.dims.hidden / (view.drafter.dims.heads or 1)


def stated_theta(view: View) -> object:
    """Return the rope base that the config states; 10000 if it states none.

    That of an object comes before the key at the top (transformers 5.19.0 modeling_rope_utils.py:752-771).
    """
    bases = (view.rope_table.get("rope_theta"), view.flat.get("rope_theta"))
    return next((theta for theta in bases if theta is not None), 10000.0)


class Case(Struct, frozen=True, dict=True):
    """One checkpoint in one release; `captured` has the layers for each runner that the release may take."""

    view: View
    engine: str
    release: str
    behaviour: Behaviour
    captured: Mapping[str, CapturedLayers]

    def flag(self, name: str) -> bool:
        """Return a switch as the release reads it; false if the release has no such switch."""
        flag, view = self.behaviour.flags.get(name, Flag()), self.view
        if flag.any:
            return any(at(view.flat, path) for path in flag.any)
        kind = str(view.config["speculators_model_type"]) if view.is_speculators else ""
        default = self.behaviour.speculators_defaults.get(kind, {}).get(name)
        values = [*(at(view.flat, path) for path in flag.first), default]
        return bool(next((value for value in values if value is not None), None))

    @property
    def aux_count(self) -> int:
        """The number of aux states that the release builds fc for."""
        counted = self.behaviour.aux_count[self.view.model_class]
        for value in (at(self.view.flat, path) for path in counted.paths):
            if isinstance(value, int) or (isinstance(value, list) and value):
                return value if isinstance(value, int) else len(value)
        return counted.otherwise

    @cached_property
    def refused_prefixes(self) -> tuple[str, ...]:
        """Beginnings of stored names that the loader of the drafter's class does not strip.

        An inner wrapper, a prefix that it does not know, or one that it leaves on some names (`unprefixed`).
        """
        removed, refused = self.behaviour.prefixes.get(self.view.model_class, ()), list[str]()
        for name, prefix, inner in self.view.prefixed_names:
            parts = [prefix + part for part in self.behaviour.unprefixed if name.startswith(prefix + part)]
            if inner:
                parts = [name.partition(inner)[0] + inner]
            refused += parts[:1] if inner or prefix in removed else [prefix]
        return tuple(dict.fromkeys(refused))

    @cached_property
    def misloaded(self) -> str:
        """How the loader fails to find the weights in the files; "" if it finds them."""
        behaviour, files = self.behaviour, self.view.files
        if not behaviour.weight_patterns or files is None or INDEX in files.names:
            return ""
        at_top = [name for name in files.names if "/" not in name]
        fitting = (fnmatch.filter(at_top, pattern) for pattern in behaviour.weight_patterns)
        first = next(filter(None, fitting), [])
        opened = [name for name in first if not name.endswith(behaviour.skipped_weights)]
        if not opened:
            patterns, place = ", ".join(behaviour.weight_patterns), listed(files.weight_files)
            return f"opens {patterns}, but the weights are in {place}"
        if files.nested:
            return f"reads the items of {files.nested} as tensors, but the tensors are inside one of them"
        others = [name for name in opened if name not in files.weight_files]
        return f"opens {listed(others)} in the same folder too" if others else ""

    @cached_property
    def target_reading(self) -> TargetReading | None:
        """The release's reading of the target; None for a target of unknown kind."""
        return read_captures(self.engine, self.release, self.view.drafter.target)

    @cached_property
    def sameness(self) -> set[bool | None]:
        """Whether the captured layers are those trained on, for the runners that the release may take.

        Empty for a target of which it captures none; without None for one that was never looked at.
        """
        captures = self.target_reading.captures if self.target_reading else "captures"
        if captures in ("lacks", "absent"):
            return set()
        same = {captured.same_as(self.view.drafter.aux) for captured in self.captured.values()}
        return same - {None} if captures == "unknown" else same


Condition = Callable[[Case], bool]


def always(case: Case) -> bool:
    """Return True: the condition holds for every checkpoint."""
    return True


def has(feature: Feature) -> Condition:
    """Return a condition that holds for drafters with a feature."""
    return lambda case: feature in case.view.features


def when(holds: Callable[[View], object]) -> Condition:
    """Return a condition that holds for checkpoints with `holds` true, whatever the release."""
    return lambda case: case.view.meets(holds)


def misread(flag: str) -> Condition:
    """Return a condition that holds if the release reads a norm switch differently than trained."""
    return lambda case: getattr(case.view.drafter.norms, flag) not in (None, case.flag(flag))


def unread(flag: str) -> Condition:
    """Return a condition that holds if a norm switch is on and the release does not read it."""
    return lambda case: bool(getattr(case.view.drafter.norms, flag)) and not case.flag(flag)


def target_is(*captures: Captures) -> Condition:
    """Return a condition that holds if the release treats the target's known kind in this way."""
    return lambda case: case.target_reading is not None and case.target_reading.captures in captures


def captured_by_one(case: Case) -> CapturedLayers:
    """Return the layers that a release with one runner captures."""
    (captured,) = case.captured.values()
    return captured


def captures_last_boundary(case: Case) -> bool:
    """Whether the state after the target's last layer is among the captured ones."""
    depth, boundaries = case.view.drafter.target.depth, captured_by_one(case).boundaries
    return depth is not None and boundaries is not None and depth in boundaries


def tied_head(view: View) -> bool:
    """Whether the config ties the head to the embedding and the file has none."""
    has_head = any(name.endswith("lm_head.weight") for name in view.names)
    return view.flat.get("tie_word_embeddings") is True and not has_head


def _embedding_rows(view: View) -> int:
    embedding = view.drafter.tensors.get("embed_tokens.weight")
    return 0 if embedding is None else embedding.shape[0]


def lacks_rows(view: View) -> bool:
    """Whether the target's tokenizer gives ids beyond the rows of the drafter's own embedding."""
    return 0 < _embedding_rows(view) < (view.drafter.target.tokens or 0)


def lacks_padded_rows(view: View) -> bool:
    """Whether it gives ids beyond these rows after they are padded to a multiple of PADDING."""
    padded = -(-_embedding_rows(view) // PADDING) * PADDING
    return lacks_rows(view) and padded < (view.drafter.target.tokens or 0)


def is_short(positions: Callable[[Case], float]) -> Condition:
    """Return a condition that holds if the drafter gets fewer positions than the target's."""
    return lambda case: positions(case) < (case.view.target_positions or 0)


def trained_part(view: View) -> float:
    """Return the part of each head that was rotated in training; 1 while that is an open question."""
    is_asked = any(note.topic == "partial-rotary" for note in view.drafter.notes_at("question"))
    return 1 if is_asked else view.drafter.rope.rotated_part


def _scaling_keys(case: Case, topic: str) -> tuple[str, ...]:
    """Return the keys of a rope scaling that the release reads for a topic of the engine's data."""
    paths: Mapping[str, str] = load(case.engine)["keys"][topic]
    return tuple(
        path.rpartition(".")[2] for path, releases in paths.items() if is_within(releases, case.release)
    )


def misread_factor(*, takes_zeros: bool = False) -> Condition:
    """Return a condition that holds if the release computes another factor of yarn than was trained."""

    def is_misread(case: Case) -> bool:
        rope = case.view.drafter.rope
        factor = yarn_factor(rope.scaling, _scaling_keys(case, "factor of yarn"), takes_zeros=takes_zeros)
        return not isclose(factor, rope.attention_factor, rel_tol=1e-3)

    return is_misread


def factor_words(case: Case, *, takes_zeros: bool = False) -> Mapping[str, Any]:
    """Return what a misread factor of yarn does to attention scores, and why."""
    rope, keys = case.view.drafter.rope, _scaling_keys(case, "factor of yarn")
    stored = {key for key, value in (rope.scaling or {}).items() if value is not None}
    unread = [key for key in TRANSFORMERS_FACTORS if key in stored.difference(keys)]
    read = [key for key in (*ENGINE_FACTORS, *TRANSFORMERS_FACTORS) if key in stored.intersection(keys)]
    names, outcome = (unread, "not read") if unread else (read, "read, and training does not read them so")
    factor = yarn_factor(rope.scaling, keys, takes_zeros=takes_zeros)
    return {
        "scores": f"{(factor / rope.attention_factor) ** 2:#.3g}",
        "factor_cause": f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} {outcome}",
        "yarn_keys": " and ".join(yarn_keys(case)),
    }


def method_of(quantisation: Mapping[str, Any] | None) -> str:
    """Return the method of a quantisation config: modelopt for all of ModelOpt's; "" without one."""
    table = quantisation or {}
    method = str(table.get("quant_method") or (MODELOPT if table else "")).lower().replace("_", "-")
    return MODELOPT if method.startswith(MODELOPT) else method


def algorithm_of(table: Mapping[str, Any]) -> object:
    """Return ModelOpt's algorithm in a quantisation config; None without one."""
    inner = table.get("quantization")
    return (inner if isinstance(inner, Mapping) else table).get("quant_algo")


def _is_mixed(table: Mapping[str, Any]) -> bool:
    return str(algorithm_of(table)).upper() == "MIXED_PRECISION"


def known_methods(key: str) -> frozenset[str]:
    """Return the quantisation methods, or ModelOpt's algorithms, that any engine has."""
    return frozenset(name for engine in WITH_METHODS for name in load(engine)["quantised"][key])


def _method_words(table: Mapping[str, Any]) -> Sequence[object]:
    return [word for word in (table.get("quant_method", MODELOPT), algorithm_of(table)) if word]


def _lacks_method(case: Case) -> bool:
    method = method_of(case.view.drafter.quantisation)
    return bool(method) and method not in load(case.engine)["quantised"]["methods"]


def _reads_unlooked(case: Case) -> bool:
    # whether the release has the method, and how it compares names was not looked at
    table, data = case.view.drafter.quantisation or {}, load(case.engine)["quantised"]
    method, algorithm = method_of(table), str(algorithm_of(table)).upper()
    if method == MODELOPT and algorithm not in data["algorithms"]:
        return algorithm in known_methods("algorithms")
    return method in data["methods"] and not _ways_to_compare(case.engine, case.release, method)


def is_listed(module: str, patterns: Iterable[Any]) -> bool:
    """Return whether names of compressed-tensors list a module: the whole name, or re: and an expression."""
    texts = [pattern for pattern in patterns if isinstance(pattern, str)]
    with suppress(re.error):  # EGL802 reports it
        return any(re.match(text[3:], module) if text.startswith("re:") else text == module for text in texts)
    return False


def untargeted(view: View, module: str) -> bool:
    """Return whether a module, by an engine's name, is in no list of compressed-tensors' config."""
    targets, excluded = quantisation_lists(table := view.drafter.quantisation or {})
    return (
        method_of(table) == "compressed-tensors"
        and LINEAR not in targets
        and not is_listed(module, (*targets, *excluded))
    )


def quantisation_lists(table: Mapping[str, Any]) -> tuple[Sequence[object], Sequence[object]]:
    """Return what a quantisation config targets (without a list, all that can be) and excludes."""
    inner, groups = table.get("quantization"), table.get("config_groups")
    keys = inner if isinstance(inner, Mapping) else table
    excluded = [name for key in EXCLUDE_KEYS if isinstance(keys.get(key), list) for name in keys[key]]
    if _is_mixed(table):
        return [*layers] if isinstance(layers := keys.get(LAYERS_KEY), Mapping) else [], excluded
    if method_of(table) in BY_WORDS:
        targets, left_out = _lists_by_words(table)
        return targets, [*excluded, *left_out]
    tables = [*groups.values()] if isinstance(groups, Mapping) else [{"targets": [LINEAR, LM_HEAD]}]
    lists = [table.get("targets") for table in tables if isinstance(table, Mapping)]
    return [name for names in lists if isinstance(names, list) for name in names], excluded


def _lists_by_words(table: Mapping[str, Any]) -> tuple[Sequence[object], Sequence[str]]:
    # what a config of GPTQ or AWQ targets, and what it excludes in other keys than lists of names
    names, dynamic = table.get("modules_in_block_to_quantize"), table.get("dynamic")
    items = names if isinstance(names, list) else []  # names, or lists of names
    targets = [name for item in items for name in (item if isinstance(item, list) else [item])]
    expressions = [name[2:] for name in dynamic if name[:2] == "-:"] if isinstance(dynamic, Mapping) else []
    head = () if table.get("lm_head") is True else ("lm_head",)
    return targets or [LINEAR, LM_HEAD], [*(f"re:{text}" for text in expressions), *head]


# how a name in a list of modules is compared with an engine's own
COMPARED: Mapping[str, Callable[[str, str], bool]] = {
    "whole": lambda pattern, name: pattern == name,
    "expression": lambda pattern, name: is_listed(name, (pattern,)),
    "part": lambda pattern, name: pattern in name,
    "end": lambda pattern, name: name.endswith(f".{pattern}"),
    "section": lambda pattern, name: f".{pattern.removeprefix('model.')}." in f".{name}.",
    "glob": lambda pattern, name: fnmatch.fnmatchcase(name, pattern),
    "step": lambda pattern, name: any(fnmatch.fnmatchcase(step, pattern) for step in name.split(".")),
    "joined": lambda pattern, name: name in (pattern, joined_name(pattern)) or pattern.startswith(f"{name}."),
}


def own_name(case: Case, module: str) -> str:
    """Return the engine's own name of a module; "" if it has none, or the target's depth is not known."""
    drafter, depth = case.view.drafter, case.view.drafter.target.depth
    for row in load(case.engine)["quantised"]["names"]:
        match, methods = re.fullmatch(row["module"], module), row.get("methods")
        if (
            match
            and case.view.model_class in row["classes"]
            and is_within(row["releases"], case.release)
            and (not methods or method_of(drafter.quantisation) in methods)
        ):
            places = {**match.groupdict(), "index": (depth or 0) + int(match.groupdict().get("index", 0))}
            return "" if depth is None and "{index}" in row["name"] else str(row["name"].format(**places))
    return ""


def _ways_to_compare(engine: str, release: str, method: str) -> list[Callable[[str, str], bool]]:
    # how a release compares a module's name with the lists of a quantisation config
    compared = load(engine).get("quantised", {}).get("compared", {}).get(method, ())
    return [COMPARED[way] for releases, way in compared if is_within(releases, release)]


def _lists_read(case: Case) -> tuple[Sequence[object], Sequence[object]]:
    """Return what the release takes as targeted and as excluded, by the quantisation config or the file.

    vLLM makes a list that the config has not of the names in the file (maybe_update_config).
    """
    table, data = case.view.drafter.quantisation or {}, load(case.engine)["quantised"]
    method = method_of(table)
    targets, excluded = quantisation_lists(
        {key: value for key, value in table.items() if key not in data["unread_lists"].get(method, ())}
    )
    stored = [
        (tensor.stored[0].rsplit(".", 1)[0], tensor.dtype) for tensor in case.view.drafter.tensors.values()
    ]
    packed = {module for module, dtype in stored if dtype not in FLOATS}
    match data["listed_by_file"].get(method):
        case "modules_in_block_to_quantize" as key if not table.get(key):
            targets = [*packed]
        case "modules_to_not_convert" as key if not table.get(key):
            excluded = [*excluded, *({module for module, _ in stored} - packed)]
    return targets, excluded


def misbuilt(case: Case) -> Mapping[str, bool]:
    """Return the modules, by the engine's names, that it builds otherwise than they are stored.

    True: quantised. The lists of the quantisation config decide.
    """
    drafter, table = case.view.drafter, case.view.drafter.quantisation or {}
    method = method_of(table)
    ways = _ways_to_compare(case.engine, case.release, method)
    by_layer = _ways_to_compare(case.engine, case.release, LAYERS_KEY) if _is_mixed(table) else ways
    if [] in (ways, by_layer):
        return {}
    stored, (targets, excluded) = quantised_modules(drafter.tensors), _lists_read(case)

    def is_in(names: Sequence[object], name: str, ways: Sequence[Callable[[str, str], bool]]) -> bool:
        return any(isinstance(text, str) and way(text, name) for text in names for way in ways)

    matrices = {name.rpartition(".")[0] for name, tensor in drafter.tensors.items() if len(tensor.shape) == 2}
    names = {module: name for module in sorted(matrices) if (name := own_name(case, module))}
    never_built = unbuilt(case.engine, case.release, drafter, names)
    built = {
        module: (is_in(targets, name, by_layer) or (LM_HEAD if module == "lm_head" else LINEAR) in targets)
        and not is_in(excluded, name, ways)
        for module, name in names.items()
        if module not in never_built
    }
    return {names[module]: is_built for module, is_built in built.items() if is_built != (module in stored)}


def unbuilt(engine: str, release: str, drafter: Drafter, modules: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of `modules`, else of the file's quantised ones, that a release never builds quantised.

    A module of a layer is "layers".
    """
    if (data := load(engine).get("quantised")) is None:
        return ()
    ranges: Mapping[str, str] = data["modules"][model_class_of(drafter.tensors, drafter.dims)]
    method = method_of(drafter.quantisation)
    parts = {
        module if module in EDGES else "layers" for module in modules or quantised_modules(drafter.tensors)
    }
    built = {part for part, releases in ranges.items() if is_within(releases, release)}
    if not is_within(data["head_methods"].get(method, "<0"), release):
        built.discard("lm_head")
    return tuple(sorted(parts - built))


def stops_at_head(engine: str, release: str, drafter: Drafter) -> bool:
    """Return whether a runner of the release stops at the drafter's head because it is packed."""
    data = load(engine).get("quantised", {})
    is_packed = not packed_names("lm_head").isdisjoint(drafter.tensors)
    return is_packed and is_within(data.get("stops_at_packed_head", "<0"), release)


def yarn_keys(case: Case) -> tuple[str, ...]:
    """Return the keys of a yarn scaling that the release reads, and with another effect than in training."""
    rope, is_mla = case.view.drafter.rope, case.view.model_class == "mla"
    scaling = rope.scaling or {}
    if scaling.get("rope_type") != "yarn":
        return ()
    topics = ("ramp of yarn", "factor of MLA") if is_mla else ("ramp of yarn",)
    # each value without an effect; two keys leave mscale squared out of MLA's softmax scale
    is_scaled, shares = rope.mla_factors[1] != 1, ("attn_factor", "extrapolation_factor")
    omits = {"apply_yarn_scaling": False, "attention_factor": 1} if is_scaled else {}
    keys = [key for topic in topics for key in _scaling_keys(case, topic) if scaling.get(key) is not None]
    return tuple(
        key for key in keys if (key in shares and scaling[key] != 1) or scaling[key] == omits.get(key)
    )


def in_stages(view: View) -> bool:
    """Whether the engine is to split the target's layers into stages of a pipeline."""
    return (view.drafter.target.pipeline_parallel or 1) > 1


def layer_types(view: View) -> list[Any] | None:
    """Return layer_types of the config; None where it is no list."""
    return types if isinstance(types := view.flat.get("layer_types"), list) else None


def trained_kind(view: View) -> str:
    """Return the name of the rope scaling that was trained."""
    return str((view.drafter.rope.scaling or {}).get("rope_type", "default"))


def misreads_scaling(view: View) -> bool:
    """Whether the config states another rope scaling than was trained, apart from the rotated part.

    transformers 5 takes the original length at the top before that of the object (5.19.0
    modeling_rope_utils.py:811-820).
    """
    trained, written = (
        {key: value for key, value in table.items() if value is not None and key not in ASIDE}
        for table in (view.drafter.rope.scaling or {}, view.rope_table)
    )
    if (original := view.flat.get(ORIGINAL)) is not None:
        written[ORIGINAL] = original
        trained.setdefault(ORIGINAL, original)
    return (trained_kind(view), trained) != (view.reach[1], written)


def other_scaling(view: View) -> bool:
    """Whether the drafter was trained with a rope scaling other than yarn."""
    return trained_kind(view) not in ("default", "yarn")


def d2t_dtype(view: View) -> str:
    """Return the dtype of d2t as stored; "" without one."""
    table = view.drafter.tensors.get("d2t")
    return table.dtype if table else ""


# of facts that several engines have, by the fact's id
COMMON: Mapping[str, Condition] = {
    # the release builds fc for another number of aux states
    "aux-count": lambda case: case.aux_count != case.view.drafter.dims.aux,
    "absorbed-names": when(lambda view: view.runtime_parts),
    # every runner that the release may take captures other layers than were trained on
    "aux-layers": lambda case: case.sameness == {False},
    # the target, which is not known, decides if the release captures the trained layers
    "aux-unknown": lambda case: None in case.sameness and case.view.drafter.aux.boundaries is not None,
    "d2t-missing": when(
        lambda view: view.drafter.has_reduced_vocabulary and "d2t" not in view.drafter.tensors
    ),
    "d2t-unsigned": when(lambda view: d2t_dtype(view) in ("U16", "U32", "U64")),
    "embedding-short": when(lacks_rows),
    "draft-vocab-mismatch": when(
        lambda view: view.number("draft_vocab_size") not in (None, view.drafter.dims.draft_vocab)
    ),
    "hidden-act": when(lambda view: view.flat.get("hidden_act") not in (None, "silu")),
    "ids-unsorted": when(lambda view: view.drafter.aux.order is not None),
    "mla-scaling": when(other_scaling),
    "yarn-keys": lambda case: bool(yarn_keys(case)),
    "layers-overstated": when(
        lambda view: (view.number("num_hidden_layers") or 0) > view.drafter.dims.layers
    ),
    "multi-layer": has(Feature.MULTI_LAYER),
    "norm-before-fc": unread("norm_before_fc"),
    "norm-before-fc-absent": has(Feature.NORM_BEFORE_FC),
    "null-target-hidden": when(
        lambda view: not view.is_speculators and view.config.get("target_hidden_size", "absent") is None
    ),
    "parallel": has(Feature.PARALLEL),
    "pipeline": when(in_stages),
    "partial-rotary": when(
        lambda view: trained_part(view) not in (1, view.flat.get("partial_rotary_factor"))
    ),
    # the loader of the drafter's class does not remove it
    "prefix": lambda case: bool(case.refused_prefixes),
    "qk-norms": has(Feature.QK_NORM),
    "quantised-method": _lacks_method,
    "quantised-unread": _reads_unlooked,
    "quantised-module": lambda case: bool(unbuilt(case.engine, case.release, case.view.drafter)),
    "rope-scaling": when(misreads_scaling),
    "linear-factor": when(lambda view: view.reach[1] == "linear" and isinstance(view.reach[2], int)),
    "layer-types": when(
        lambda view: (
            (types := layer_types(view)) is not None
            and view.number("num_hidden_layers") not in (None, len(types))
        )
    ),
    "heads-uneven": when(
        lambda view: (
            view.flat.get("model_type") in ("llama", "deepseek_v2")
            and (view.number("hidden_size") or 0) % (view.number("num_attention_heads") or 1)
        )
    ),
    "rope-base-null": when(
        lambda view: view.flat.get("rope_theta", 0) is None and view.rope_table.get("rope_theta") is None
    ),
    "dynamic-factor": when(lambda view: view.reach[1] == "dynamic" and not view.rope_table.get("factor")),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "target-unknown": target_is("unknown"),
    "target-unlisted": target_is("lacks", "absent"),
    "unknown-tensor": when(lambda view: view.drafter.unknown),
    "weight-files": lambda case: bool(case.misloaded),
}


def common_words(case: Case) -> Mapping[str, Any]:
    """Return the words of messages that several engines have, also on how a release treats the target."""
    view, reading = case.view, case.target_reading
    parts = unbuilt(case.engine, case.release, view.drafter)
    words = {
        "nested": listed(view.nested),
        "d2t_dtype": d2t_dtype(view),
        "model_type": view.flat.get("model_type"),
        "misbuilt": listed(f"{name} {KINDS[is_built]}" for name, is_built in misbuilt(case).items()),
        "unbuilt": listed(parts),
        "method": " ".join(map(str, _method_words(view.drafter.quantisation or {}))),
        "them": "them" if len(parts) > 1 else "it",
        "architecture": view.architecture,
        "aux": view.drafter.dims.aux,
        "depth": view.drafter.target.depth,
        "draft_vocab": view.drafter.dims.draft_vocab,
        "hidden_act": view.flat.get("hidden_act"),
        "misloaded": case.misloaded,
        "layers": view.drafter.dims.layers,
        "share": view.drafter.rope.rotated_part,
        "prefixes": " or ".join(case.refused_prefixes),
        "stated_aux": case.aux_count,
        "target_positions": view.target_positions,
        "unknown": ", ".join(map(brief, view.drafter.unknown[:2])),
        "rope_kind": trained_kind(view),
        "rope_factor": view.reach[2],
        "stated_types": len(layer_types(view) or ()),
        "stated_layers": view.flat.get("num_hidden_layers"),
        "rows": _embedding_rows(view),
        "last_id": (view.drafter.target.tokens or 0) - 1,
    }
    if reading is not None:
        source = f" ({reading.source})" if reading.source else ""
        words |= {
            "target_class": reading.target,
            "target_text": f"{reading.text}{source}",
            "target_source": reading.source,
        }
    return words
