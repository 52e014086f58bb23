"""What vLLM's sources show.

Registered classes, what they read, names that are dropped or refused, runners, the speculators reader.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from tools.scan.extraction import (
    KEYS,
    Found,
    Part,
    Watched,
    default_count,
    function_of,
    id_keys,
    is_under,
    items_of,
    nodes_of,
    raises,
    reads_of,
    returns_value,
    source_of,
)
from tools.scan.sources import Sources, called, functions, strings, text_of
from tools.scan.target_classes import UNREAD, Classes, ClassText

MODELS = "model_executor/models"
CLASSES = {"llama": "llama_eagle3", "mla": "deepseek_eagle3", "qwen3": "qwen3_eagle3"}
# the file and the function in which a runner looks for the ids of aux layers
RUNNERS = {
    "V1": ("v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config"),
    "V2": ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config"),
}
# models of several platforms, and the tables of the registry that name targets
PLATFORM_MODELS = "models"
TARGET_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
OF_CONFIG = "of text_config"
FALLBACK = "TransformersForCausalLM"
INTERFACE = "SupportsEagle3"
# what its decoder reads of it
ASKS = re.compile(r"aux_hidden_state(?!s_over)")
# how a wrapper builds its language model, and the classes that it names there
BUILDS_INNER = re.compile(r"init_vllm_registered_model\((.*?)\n {8}\S", re.DOTALL)
NAMED_INNER = re.compile(r"architectures=\[\s*\"(\w+)\"")
# how a class builds its decoder: by name, in a method, or from an attribute; and a language model of its own
BUILDS_DECODER = re.compile(r"self\.model = (?:self\.)?(\w+)\(")
OWN_LANGUAGE_MODEL = re.compile(r"self\.language_model = (\w+)\(")
RELAYS = re.compile(r"^    supports_aux_hidden_states_over_pp\b[^=\n]*= (True|False)", re.MULTILINE)
ALGORITHMS = "transformers_utils/configs/speculators/algos.py"
AUX = ("aux-layers", "aux-unknown", "aux-runner", "ids-unsorted")
WATCHED = (
    Watched(f"{MODELS}/llama_eagle3.py", (), ("llama",)),
    Watched(f"{MODELS}/deepseek_eagle3.py", (), ("mla",)),
    Watched(f"{MODELS}/qwen3_eagle3.py", (), ("qwen3",)),
    Watched("v1/worker/gpu_model_runner.py", ("GPUModelRunner._get_eagle3_aux_layers_from_config",), AUX),
    Watched("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", (), AUX),
    Watched(
        ALGORITHMS,
        ("update_eagle3", "update_peagle"),
        ("speculators-norm-before-fc", "speculators-norm-output", "speculators-fc-norm"),
    ),
    Watched("config/speculative.py", ("SpeculativeConfig.hf_config_override",), ("model-type",)),
    Watched(
        f"{MODELS}/utils.py",
        ("AutoWeightsLoader",),
        ("unknown-tensor", "bias-unstated", "biases-without-place"),
    ),
)


def _architectures(sources: Sources) -> Found | None:
    """Registered names of drafter classes, and the class that each names."""
    registry = sources.module(f"{MODELS}/registry.py")
    if registry is None:
        return None
    registered = {}
    for node in ast.walk(registry):
        for name, value in items_of(node):
            parts = [text_of(part) for part in value.elts] if isinstance(value, ast.Tuple) else []
            if name and len(parts) == 2 and str(parts[0]).endswith("_eagle3"):
                registered[name] = f"{parts[0]}:{parts[1]}"
    return dict(sorted(registered.items()))


def _drafter(sources: Sources, name: str) -> Found | None:
    """One drafter class: what it reads, and what it does with tensors."""
    tree = sources.module(f"{MODELS}/{name}.py")
    if tree is None:
        return None
    combine = "".join(source_of(function) for function in functions(tree, "combine_hidden_states"))
    loaders = list(functions(tree, "load_weights"))
    return {
        "reads": reads_of(tree, KEYS),
        "applies_fc_norm": "fc_norm" in combine,
        "applies_norm_before_fc": "input_norm" in combine or "norm_before_fc" in combine,
        "prefixes_model": any(
            "'model.' + name" in source_of(loader) or "f'model.{name}'" in source_of(loader)
            for loader in loaders
        ),
        "unknown_tensor": _unknown(tree),
        "drops": _drops(tree),
        "reports_what_it_loaded": bool(loaders) and returns_value(loaders[-1]),
        "d2t_only_if_reduced": is_under(tree, "draft_id_to_target_id", "draft_vocab_size"),
        "has_mask_hidden": "mask_hidden" in strings(tree),
        "default_aux_count": default_count(tree),
    }


def _unknown(tree: ast.Module) -> str:
    """What becomes of a tensor without a place: refused by the shared loader, dropped, or a KeyError."""
    loaders = [source_of(function) for function in functions(tree, "load_weights")]
    if loaders and "AutoWeightsLoader" in loaders[0]:
        return "refused"
    text = "".join(loaders)
    return "dropped" if "not in params_dict:\n" in text and "continue" in text else "KeyError"


def _drops(tree: ast.Module) -> list[str]:
    """Parts of names that the outer loader leaves out, always or under a condition."""
    nodes = [node for loader in functions(tree, "load_weights") for node in ast.walk(loader)]
    return sorted({name for node in nodes for name in _dropped(node) if name})


def _dropped(node: ast.AST) -> list[str | None]:
    match node:
        case ast.Assign(targets=[ast.Subscript(slice=key)], value=ast.Constant(value=None)):
            return [text_of(key)]
        case ast.Dict():
            items = items_of(node)
            return [key for key, value in items if isinstance(value, ast.Constant) and value.value is None]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="skip_substrs"), attr="append"), args=[key]):
            return [text_of(key)]
        case ast.If(
            test=ast.Compare(left=key, ops=[ast.In()], comparators=[ast.Name(id="name")]),
            body=[ast.Continue()],
        ):
            return [text_of(key)]
    return []


def _speculators(sources: Sources) -> Found | None:
    """What the reader of each speculators algorithm keeps of the top level."""
    tree = sources.module(ALGORITHMS)
    if tree is None:
        return None
    readers = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(decorator_list=[ast.Call(args=[name, *_]), *_]):
                if text_of(name) in ("eagle3", "peagle"):
                    readers[str(text_of(name))] = _reader(node)
    return readers


def _reader(function: ast.FunctionDef) -> Found:
    kept: set[str | None] = set()
    residual: object = None
    classes: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id="pre_trained_config"), slice=key)]):
                kept.add(text_of(key))
            case ast.Call(
                func=ast.Attribute(attr="get"),
                args=[ast.Constant(value="norm_before_residual"), ast.Constant(value=value)],
            ):
                residual = value
            case ast.Dict():
                named = [(key, text_of(value)) for key, value in items_of(node)]
                classes |= {key: name for key, name in named if key and name}
    return {
        "keeps": sorted(key for key in kept if key),
        "norm_before_residual": residual,
        "classes": classes,
        "refuses_other_model_types": raises(function),
    }


def _default_layers(sources: Sources) -> str | None:
    for path in (f"{MODELS}/interfaces.py", f"{MODELS}/llama.py"):
        for name in ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers"):
            for node in nodes_of(function_of(sources, path, name)):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    return source_of(node.value).replace("num_layers", "n")
    return None


def _runner(sources: Sources) -> Found:
    """Whether V2 is the default for every target, and the architectures that are named where it is not."""
    function = function_of(sources, "config/vllm.py", "use_v2_model_runner")
    if function is None:
        return {"is_V2_default": False, "architectures": [], "unsupported": []}
    is_default = "_is_default_v2" not in source_of(function) and source_of(function.body[-1]) == "return True"
    tree = sources.module("config/vllm.py")
    lacking = function_of(sources, "config/vllm.py", "_get_v2_model_runner_unsupported_features")
    names = [] if is_default or tree is None else strings(tree)
    return {
        "is_V2_default": is_default,
        "architectures": sorted(name for name in names if name.endswith("ForCausalLM")),
        "unsupported": _appended(lacking),
    }


def _appended(function: ast.FunctionDef | None) -> list[str]:
    calls = [node for node in nodes_of(function) if called(node) == "append"]
    return sorted({text for node in calls for text in strings(node) if len(text) > 2})


def _ignored_suffixes(sources: Sources) -> list[str]:
    """Ends of names that the shared loader drops in silence."""
    loaders = [
        source_of(node)
        for node in nodes_of(sources.module(f"{MODELS}/utils.py"))
        if isinstance(node, ast.ClassDef) and node.name == "AutoWeightsLoader"
    ]
    text = "".join(loaders[:1])
    return [suffix for suffix in (".bias",) if f"append('{suffix}')" in text or f"['{suffix}']" in text]


def _rewritten(sources: Sources) -> list[str]:
    """Model types that are turned into others before the drafter's class is looked up."""
    function = function_of(sources, "config/speculative.py", "hf_config_override")
    compared = [
        node
        for node in nodes_of(function)
        if isinstance(node, ast.Compare) and source_of(node.left).endswith("model_type")
    ]
    return sorted({name for node in compared for name in strings(node)})


def _listed_targets(sources: Sources) -> list[str] | None:
    """The model types of targets that have EAGLE-3, where a list decides."""
    for node in nodes_of(sources.module("config/speculative.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            listed = strings(node.value)
            if "supported" in source_of(node.targets[0]) and "llama" in listed:
                return listed
    return None


def _mask_keys(sources: Sources) -> list[str]:
    tree = sources.module("v1/spec_decode/llm_base_proposer.py") or sources.module("v1/spec_decode/eagle.py")
    names = {text for node in nodes_of(tree) if called(node) == "hasattr" for text in strings(node)}
    return sorted(name for name in names if name.endswith(("_token", "_token_id")))


def _contains(path: str, text: str) -> Part:
    return lambda sources: text in source_of(sources.module(path))


def _targets(sources: Sources) -> Mapping[str, Found]:
    """Whether the class of each registered target has the EAGLE-3 interface, and where that is stated."""
    classes = Classes(sources, (MODELS, PLATFORM_MODELS))
    registry = sources.module(f"{MODELS}/registry.py")
    named = dict(_registered(registry)) if registry else {}
    found = {}
    for architecture in sorted(named):
        if text := _class_of(classes, *named[architecture]):
            found[architecture] = _target(classes, text, named)
    return found


def _registered(registry: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in registry.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=table)], value=value) if table in TARGET_TABLES:
                for name, pair in items_of(value):
                    parts = [text_of(part) for part in getattr(pair, "elts", ())]
                    if name and len(parts) == 2:
                        yield name, (str(parts[0]), str(parts[1]))


def _class_of(classes: Classes, module: str, name: str) -> ClassText | None:
    if module.startswith("vllm."):
        return classes.of_platform(module.removeprefix("vllm.").replace(".", "/"), name)
    return classes.find(name, f"{MODELS}/{module}.py")


def _target(classes: Classes, text: ClassText, named: Mapping[str, tuple[str, str]]) -> Found:
    lineage = classes.lineage(text)
    row: dict[str, object] = {"captures": _has_interface(classes, text), "source": text.place(MODELS)}
    if text.path.startswith(f"{MODELS}/transformers"):
        row["backend"] = "transformers"
    built = next((match for part in lineage if (match := BUILDS_INNER.search(part.body))), None)
    if row["captures"] and built:
        inner = NAMED_INNER.search(built[1])
        row["language_model"] = inner[1] if inner else OF_CONFIG
        if inner and (other := _class_of(classes, *named.get(inner[1], ("", inner[1])))):
            row["captures"] = _has_interface(classes, other)
            text = other
    if row["captures"] and _is_unread(classes, text):
        row |= {"captures": False, "state": UNREAD}
    return row | ({"relays": True} if row["captures"] and _relays(classes, text) else {})


def _relays(classes: Classes, text: ClassText) -> bool:
    """Whether the decoder of a class hands its aux states on to the next stage of a pipeline."""
    decoder = _decoder(classes, text)
    return decoder is not None and _first(RELAYS, classes.lineage(decoder)) == "True"


def _is_unread(classes: Classes, text: ClassText) -> bool:
    """Whether the decoder of a class does not name the layers that its interface sets."""
    decoder = _decoder(classes, text)
    return decoder is not None and not any(ASKS.search(part.body) for part in classes.lineage(decoder))


def _decoder(classes: Classes, text: ClassText) -> ClassText | None:
    """The decoder that v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, _inner_decoder, takes (0.32.0)."""
    lineage = classes.lineage(text)
    if named := _first(OWN_LANGUAGE_MODEL, lineage):
        inner = classes.find(named, text.path)
        return inner and _decoder(classes, inner)
    built = _named_in(BUILDS_DECODER, lineage)
    if built is None:
        return None
    name, path = built
    for built_in in (rf"def {name}\(.*?return (\w+)\(", rf"^    {name}\b[^=\n]*= (\w+)"):
        found = _named_in(re.compile(built_in, re.DOTALL | re.MULTILINE), lineage)
        name, path = found or (name, path)
    return classes.find(name, path)


def _named_in(pattern: re.Pattern[str], lineage: Iterable[ClassText]) -> tuple[str, str] | None:
    """What a pattern names in the nearest class that has it, and the file of that class."""
    return next(((match[1], part.path) for part in lineage if (match := pattern.search(part.body))), None)


def _first(pattern: re.Pattern[str], lineage: Iterable[ClassText]) -> str | None:
    """What a pattern names in the nearest class that has it."""
    return next((match[1] for part in lineage if (match := pattern.search(part.body))), None)


def _has_interface(classes: Classes, text: ClassText) -> bool:
    """Whether a class has the interface, or, before 0.10.1 had one, the method."""
    lineage = classes.lineage(text)
    if classes.find(INTERFACE) is None:
        return any(part.has("set_aux_hidden_state_layers") for part in lineage)
    return any(INTERFACE in part.bases for part in lineage)


def _fallback(sources: Sources) -> bool:
    """Whether the class for targets without one of their own, transformers' models, has the interface."""
    classes = Classes(sources, (MODELS,))
    text = classes.find(FALLBACK)
    return text is not None and _has_interface(classes, text)


PARTS: Mapping[str, Part] = {
    "targets": _targets,
    "fallback_captures": _fallback,
    "architectures": _architectures,
    "classes": lambda sources: {kind: _drafter(sources, name) for kind, name in CLASSES.items()},
    "speculators": _speculators,
    "runners": lambda sources: [name for name, (path, _) in RUNNERS.items() if sources.module(path)],
    "aux_ids": lambda sources: {name: id_keys(sources, *place) for name, place in RUNNERS.items()},
    "default_aux_layers": _default_layers,
    "sorts_aux_layers": _contains(f"{MODELS}/interfaces.py", "sorted(set("),
    "runner": _runner,
    "ignored_suffixes": _ignored_suffixes,
    "checks_missing_only_if_returned": _contains(
        "model_executor/model_loader/default_loader.py", "loaded_weights is not None"
    ),
    "rewritten_model_types": _rewritten,
    "raises_max_positions": _contains("config/speculative.py", "_override_draft_max_position"),
    "listed_targets": _listed_targets,
    "mask_token_keys": _mask_keys,
}
