"""Which modules of a quantised drafter each engine and release builds quantised."""

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import joined_name, packed_names, quantised_modules
from eaglectl.engines.behaviour import is_within
from eaglectl.engines.data import load
from eaglectl.engines.view import Case, View
from eaglectl.formats.config_keys import EXCLUDE_KEYS
from eaglectl.formats.reader import model_class_of
from eaglectl.text import brief

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


def method_words(table: Mapping[str, Any]) -> Sequence[object]:
    """Return the method of a quantisation config, and its algorithm, as the config states them."""
    return [word for word in (table.get("quant_method", MODELOPT), algorithm_of(table)) if word]


def lacks_method(case: Case) -> bool:
    """Whether the engine lists no such method."""
    method = method_of(case.view.drafter.quantisation)
    return bool(method) and method not in load(case.engine)["quantised"]["methods"]


def refused_settings(case: Case) -> Sequence[str]:
    """Return the settings of the quantisation config that the release stops at, as config.json has them."""
    table = case.view.drafter.quantisation or {}
    refused = [
        _refused(row, settings)
        for row in load(case.engine).get("quantised", {}).get("settings", ())
        if row["method"] == method_of(table) and is_within(row["releases"], case.release)
        for settings in _settings(table)
    ]
    return [*dict.fromkeys(filter(None, refused))]


def _refused(row: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    # a setting that a release stops at: a missing key, or a value that it does not take; "" for none
    key = next((key for key in row["keys"] if key in settings), None)
    if key is None:
        return "" if row.get("is_optional") else f"no {row['keys'][-1]}"
    is_free = any(settings.get(name) in values for name, values in row.get("unless", {}).items())
    is_taken = is_free or settings[key] in row.get("takes", [settings[key]])
    return "" if is_taken else brief(f"{key}: {json.dumps(settings[key])}")


def _settings(table: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    # the objects of a quantisation config that state how weights are quantised
    if method_of(table) != "compressed-tensors":
        yield table
        return
    groups = table.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for key in ("weights", "input_activations"):
            if isinstance(group, Mapping) and isinstance(settings := group.get(key), Mapping):
                # as compressed-tensors fills it in
                strategy = settings.get("strategy") or ("group" if settings.get("group_size") else "")
                yield {**settings, "strategy": strategy}


def reads_unlooked(case: Case) -> bool:
    """Whether the release has the method, and how it compares names was not looked at."""
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
