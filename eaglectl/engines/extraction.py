"""What vLLM's sources show.

Registered classes, keys and where they are read, names that are dropped or refused.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.engines.wheels import Sources, called, functions, strings, text_of

Found = Mapping[str, Any]

MODELS = "model_executor/models"
CLASSES = {"llama": "llama_eagle3", "mla": "deepseek_eagle3", "qwen3": "qwen3_eagle3"}
# the file and the function in which a runner looks for the ids of aux layers
RUNNERS = {
    "V1": ("v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config"),
    "V2": ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config"),
}
KEYS = (
    "fc_norm",
    "norm_output",
    "norm_before_fc",
    "norm_before_residual",
    "num_aux_hidden_states",
    "num_aux_layers",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "use_aux_hidden_state",
    "draft_vocab_size",
    "attention_bias",
    "num_hidden_layers",
    "layer_types",
    "tie_word_embeddings",
    "mlp_bias",
    "logit_scale",
)


def extract(sources: Sources) -> Found:
    """All that is found; None stands for an absent file or function."""
    return {
        "release": sources.release,
        "architectures": _architectures(sources),
        "classes": {kind: _drafter(sources, name) for kind, name in CLASSES.items()},
        "speculators": _speculators(sources),
        "runners": [name for name, (path, _) in RUNNERS.items() if sources.module(path) is not None],
        "aux_ids": {name: _id_keys(sources, *place) for name, place in RUNNERS.items()},
        "default_aux_layers": _default_layers(sources),
        "sorts_aux_layers": "sorted(set(" in _source(sources.module(f"{MODELS}/interfaces.py")),
        "runner": _runner(sources),
        "ignored_suffixes": _ignored_suffixes(sources),
        "checks_missing_only_if_returned": "loaded_weights is not None"
        in _source(sources.module("model_executor/model_loader/default_loader.py")),
        "rewritten_model_types": _rewritten(sources),
        "raises_max_positions": "_override_draft_max_position"
        in _source(sources.module("config/speculative.py")),
        "listed_targets": _listed_targets(sources),
        "mask_token_keys": _mask_keys(sources),
    }


def _source(tree: ast.AST | None) -> str:
    return "" if tree is None else ast.unparse(tree)


def _function(sources: Sources, path: str, name: str) -> ast.FunctionDef | None:
    """A function of a file; None where the file or the function is absent."""
    tree = sources.module(path)
    return None if tree is None else next(functions(tree, name), None)


def _nodes(tree: ast.AST | None) -> Iterator[ast.AST]:
    """The nodes of a tree; none of an absent one."""
    yield from () if tree is None else ast.walk(tree)


def _items(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Keys and values of a dict that is written out."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield text_of(key), value


def _architectures(sources: Sources) -> Found | None:
    """Registered names of drafter classes, and the class that each names."""
    registry = sources.module(f"{MODELS}/registry.py")
    if registry is None:
        return None
    registered = {}
    for node in ast.walk(registry):
        for name, value in _items(node):
            parts = [text_of(part) for part in value.elts] if isinstance(value, ast.Tuple) else []
            if name and len(parts) == 2 and str(parts[0]).endswith("_eagle3"):
                registered[name] = f"{parts[0]}:{parts[1]}"
    return dict(sorted(registered.items()))


def _drafter(sources: Sources, name: str) -> Found | None:
    """One drafter class: what it reads, and what it does with tensors."""
    tree = sources.module(f"{MODELS}/{name}.py")
    if tree is None:
        return None
    combine = "".join(_source(function) for function in functions(tree, "combine_hidden_states"))
    loaders = list(functions(tree, "load_weights"))
    return {
        "reads": _reads(tree),
        "applies_fc_norm": "fc_norm" in combine,
        "applies_norm_before_fc": "input_norm" in combine or "norm_before_fc" in combine,
        "prefixes_model": any(
            "'model.' + name" in _source(loader) or "f'model.{name}'" in _source(loader) for loader in loaders
        ),
        "unknown_tensor": _unknown(tree),
        "drops": _drops(tree),
        "reports_what_it_loaded": bool(loaders) and _returns(loaders[-1]),
        "d2t_only_if_reduced": _is_under(tree, "draft_id_to_target_id", "draft_vocab_size"),
        "has_mask_hidden": "mask_hidden" in strings(tree),
        "default_aux_count": _default_count(tree),
    }


def _reads(tree: ast.AST) -> Mapping[str, list[str]]:
    """Which of KEYS are read, and where: at the top of the config, or in eagle_config."""
    places: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for holder, key in _lookups(node):
            if key in KEYS and "config" in holder:
                place = "eagle_config" if "eagle_config" in holder else "top"
                places.setdefault(key, set()).add(place)
    return {key: sorted(places[key]) for key in sorted(places)}


def _lookups(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """The holder and key of getattr(x, "k"), x.get("k"), x["k"], "k" in x, and x.k."""
    match node:
        case ast.Call(args=[holder, key, *_]) if called(node) in ("getattr", "hasattr"):
            yield _source(holder), text_of(key)
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]):
            yield _source(holder), text_of(key)
        case ast.Subscript(value=holder, slice=key):
            yield _source(holder), text_of(key)
        case ast.Compare(left=key, ops=[ast.In()], comparators=[holder]):
            yield _source(holder), text_of(key)
        case ast.Attribute(value=holder, attr=name, ctx=ast.Load()) if _source(holder).endswith(
            ("config", "hf_config")
        ):
            yield _source(holder), name


def _unknown(tree: ast.Module) -> str:
    """What becomes of a tensor without a place: refused by the shared loader, dropped, or a KeyError."""
    loaders = [_source(function) for function in functions(tree, "load_weights")]
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
            items = _items(node)
            return [key for key, value in items if isinstance(value, ast.Constant) and value.value is None]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="skip_substrs"), attr="append"), args=[key]):
            return [text_of(key)]
        case ast.If(
            test=ast.Compare(left=key, ops=[ast.In()], comparators=[ast.Name(id="name")]),
            body=[ast.Continue()],
        ):
            return [text_of(key)]
    return []


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))


def _is_under(tree: ast.AST, attribute: str, word: str) -> bool:
    """Whether self.`attribute` is made a parameter only under a condition on `word`."""
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If) and word in _source(node.test)]
    statements = [_source(statement) for condition in conditions for statement in condition.body]
    return any(f"self.{attribute} = nn.Parameter" in statement for statement in statements)


def _default_count(tree: ast.AST) -> int | None:
    """The number of aux states where the config states none: `len(ids) if ids else 3`."""
    for node in ast.walk(tree):
        match node:
            case ast.IfExp(body=body, orelse=ast.Constant(value=int(count))) if called(body) == "len":
                return count
    return None


def _speculators(sources: Sources) -> Found | None:
    """What the reader of each speculators algorithm keeps of the top level."""
    tree = sources.module("transformers_utils/configs/speculators/algos.py")
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
                named = [(key, text_of(value)) for key, value in _items(node)]
                classes |= {key: name for key, name in named if key and name}
    return {
        "keeps": sorted(key for key in kept if key),
        "norm_before_residual": residual,
        "classes": classes,
        "refuses_other_model_types": _raises(function),
    }


def _raises(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(function))


def _id_keys(sources: Sources, path: str, name: str) -> list[str] | None:
    """The keys that name aux layers, in the order in which a runner looks them up."""
    function = _function(sources, path, name)
    if function is None:
        return None
    holders = _holders(function)
    lookups = [lookup for node in ast.walk(function) for lookup in _id_lookups(node, holders)]
    return list(dict.fromkeys(key for _, key in sorted(lookups, key=lambda lookup: lookup[0])))


def _holders(function: ast.FunctionDef) -> Mapping[str, list[str]]:
    """Variables that hold an inner config, with the keys that it may be read from."""
    loops = {_source(n.target): strings(n.iter) for n in ast.walk(function) if isinstance(n, ast.For)}
    holders = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[variable, *_], value=ast.Call(args=[_, key, *_]) as call):
                if called(call) == "getattr":
                    text = text_of(key)
                    holders[_source(variable)] = [text] if text else loops.get(_source(key), [])
    return holders


def _id_lookups(node: ast.AST, holders: Mapping[str, list[str]]) -> list[tuple[int, str]]:
    """Lines and keys of getattr(config, "layer_ids"), config.layer_ids and inner.get("layer_ids")."""
    match node:
        case ast.Call(args=[_, key, *_]) if called(node) == "getattr":
            name = text_of(key) or ""
            return [(node.lineno, name)] if name.endswith("layer_ids") else []
        case ast.Attribute(value=holder, attr=name) if _source(holder).endswith("config"):
            return [(node.lineno, name)] if name.endswith("layer_ids") else []
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]) if text_of(key):
            return [(node.lineno, f"{outer}.{text_of(key)}") for outer in holders.get(_source(holder), [])]
    return []


def _default_layers(sources: Sources) -> str | None:
    for path in (f"{MODELS}/interfaces.py", f"{MODELS}/llama.py"):
        for name in ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers"):
            for node in _nodes(_function(sources, path, name)):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    return _source(node.value).replace("num_layers", "n")
    return None


def _runner(sources: Sources) -> Found:
    """Whether V2 is the default for every target, and the architectures that are named where it is not."""
    function = _function(sources, "config/vllm.py", "use_v2_model_runner")
    if function is None:
        return {"is_V2_default": False, "architectures": [], "unsupported": []}
    is_default = "_is_default_v2" not in _source(function) and _source(function.body[-1]) == "return True"
    tree = sources.module("config/vllm.py")
    lacking = _function(sources, "config/vllm.py", "_get_v2_model_runner_unsupported_features")
    names = [] if is_default or tree is None else strings(tree)
    return {
        "is_V2_default": is_default,
        "architectures": sorted(name for name in names if name.endswith("ForCausalLM")),
        "unsupported": _appended(lacking),
    }


def _appended(function: ast.FunctionDef | None) -> list[str]:
    calls = [node for node in _nodes(function) if called(node) == "append"]
    return sorted({text for node in calls for text in strings(node) if len(text) > 2})


def _ignored_suffixes(sources: Sources) -> list[str]:
    """Ends of names that the shared loader drops in silence."""
    loaders = [
        _source(node)
        for node in _nodes(sources.module(f"{MODELS}/utils.py"))
        if isinstance(node, ast.ClassDef) and node.name == "AutoWeightsLoader"
    ]
    text = "".join(loaders[:1])
    return [suffix for suffix in (".bias",) if f"append('{suffix}')" in text or f"['{suffix}']" in text]


def _rewritten(sources: Sources) -> list[str]:
    """Model types that are turned into others before the drafter's class is looked up."""
    function = _function(sources, "config/speculative.py", "hf_config_override")
    compared = [
        node
        for node in _nodes(function)
        if isinstance(node, ast.Compare) and _source(node.left).endswith("model_type")
    ]
    return sorted({name for node in compared for name in strings(node)})


def _listed_targets(sources: Sources) -> list[str] | None:
    """The model types of targets that have EAGLE-3, where a list decides."""
    for node in _nodes(sources.module("config/speculative.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            listed = strings(node.value)
            if "supported" in _source(node.targets[0]) and "llama" in listed:
                return listed
    return None


def _mask_keys(sources: Sources) -> list[str]:
    tree = sources.module("v1/spec_decode/llm_base_proposer.py") or sources.module("v1/spec_decode/eagle.py")
    names = {text for node in _nodes(tree) if called(node) == "hasattr" for text in strings(node)}
    return sorted(name for name in names if name.endswith(("_token", "_token_id")))
