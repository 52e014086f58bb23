"""What vLLM's sources say of the facts: registered classes, keys and where they are read, names that are dropped or refused."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.engines.wheels import Sources, called, functions, strings, text_of

Found = Mapping[str, Any]

MODELS = "model_executor/models"
FAMILIES = {"llama": "llama_eagle3", "mla": "deepseek_eagle3", "qwen3": "qwen3_eagle3"}
KEYS = (
    "fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "num_aux_hidden_states", "num_aux_layers", "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "draft_vocab_size", "attention_bias", "num_hidden_layers", "layer_types",
    "tie_word_embeddings", "mlp_bias", "logit_scale",
)  # fmt: skip


def extract(sources: Sources) -> Found:
    """All that is found; None stands for a file or function that is not there."""
    return {
        "release": sources.release,
        "architectures": _architectures(sources),
        "classes": {family: _drafter(sources, name) for family, name in FAMILIES.items()},
        "speculators": _speculators(sources),
        "aux_ids": {
            "V1": _id_keys(sources, "v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config"),
            "V2": _id_keys(sources, "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config"),
        },
        "default_aux_layers": _default_layers(sources),
        "sorts_aux_layers": "sorted(set(" in _source(sources.module(f"{MODELS}/interfaces.py")),
        "runner": _runner(sources),
        "ignored_suffixes": _ignored_suffixes(sources),
        "checks_missing_only_if_returned": "loaded_weights is not None" in _source(sources.module("model_executor/model_loader/default_loader.py")),
        "rewritten_model_types": _rewritten(sources),
        "raises_max_positions": "_override_draft_max_position" in _source(sources.module("config/speculative.py")),
        "listed_targets": _listed_targets(sources),
        "mask_token_keys": _mask_keys(sources),
    }  # fmt: skip


def _source(tree: ast.AST | None) -> str:
    return "" if tree is None else ast.unparse(tree)


def _architectures(sources: Sources) -> Found | None:
    """Registered names of drafter classes, and the class that each is."""
    registry = sources.module(f"{MODELS}/registry.py")
    if registry is None:
        return None
    found = {}
    for node in ast.walk(registry):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                parts = [text_of(part) for part in value.elts] if isinstance(value, ast.Tuple) else []
                if (name := text_of(key)) and len(parts) == 2 and str(parts[0]).endswith("_eagle3"):
                    found[name] = f"{parts[0]}:{parts[1]}"
    return dict(sorted(found.items()))


def _drafter(sources: Sources, name: str) -> Found | None:
    """One drafter class: what it reads, and what it does with tensors."""
    tree = sources.module(f"{MODELS}/{name}.py")
    if tree is None:
        return None
    combine = "".join(_source(one) for one in functions(tree, "combine_hidden_states"))
    loaders = list(functions(tree, "load_weights"))
    return {
        "reads": _reads(tree),
        "applies_fc_norm": "fc_norm" in combine,
        "applies_norm_before_fc": "input_norm" in combine or "norm_before_fc" in combine,
        "prefixes_model": any("'model.' + name" in _source(one) or "f'model.{name}'" in _source(one) for one in loaders),
        "unknown_tensor": _unknown(tree),
        "drops": _drops(tree),
        "reports_what_it_loaded": bool(loaders) and _returns(loaders[-1]),
        "d2t_only_if_reduced": _is_under(tree, "draft_id_to_target_id", "draft_vocab_size"),
        "has_mask_hidden": "mask_hidden" in strings(tree),
        "default_aux_count": _default_count(tree),
    }  # fmt: skip


def _reads(tree: ast.AST) -> Mapping[str, list[str]]:
    """Which of KEYS are read, and where: at the top of the config, or in eagle_config."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for holder, key in _lookups(node):
            if key in KEYS and ("config" in holder):
                place = "eagle_config" if "eagle_config" in holder else "top"
                found.setdefault(key, set()).add(place)
    return {key: sorted(found[key]) for key in sorted(found)}


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
    text = "".join(_source(one) for one in functions(tree, "load_weights"))
    inner = list(functions(tree, "load_weights"))[:1]
    if inner and "AutoWeightsLoader" in _source(inner[0]):
        return "refused"
    return "dropped" if "not in params_dict:\n" in text and "continue" in text else "KeyError"


def _drops(tree: ast.Module) -> list[str]:
    """Parts of names that the outer loader leaves out, always or under a condition."""
    found = []
    for loader in functions(tree, "load_weights"):
        for node in ast.walk(loader):
            match node:
                case ast.Assign(targets=[ast.Subscript(slice=key)], value=ast.Constant(value=None)):
                    found.append(text_of(key))
                case ast.Dict(keys=keys, values=values):
                    found += [
                        text_of(k)
                        for k, v in zip(keys, values, strict=True)
                        if isinstance(v, ast.Constant) and v.value is None
                    ]
                case ast.Call(func=ast.Attribute(value=ast.Name(id="skip_substrs"), attr="append"), args=[key]):
                    found.append(text_of(key))
                case ast.If(
                    test=ast.Compare(left=key, ops=[ast.In()], comparators=[ast.Name(id="name")]), body=[ast.Continue()]
                ):
                    found.append(text_of(key))
    return sorted({name for name in found if name})  # fmt: skip


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))


def _is_under(tree: ast.AST, attribute: str, word: str) -> bool:
    """Whether self.`attribute` is made a parameter only under a condition on `word`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and word in _source(node.test):
            made = (f"self.{attribute} = nn.Parameter" in _source(statement) for statement in node.body)
            if any(made):
                return True
    return False


def _default_count(tree: ast.AST) -> int | None:
    """The number of aux states where nothing says it: `len(ids) if ids else 3`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and called(node.body) == "len" and isinstance(node.orelse, ast.Constant):
            return int(node.orelse.value) if isinstance(node.orelse.value, int) else None
    return None


def _speculators(sources: Sources) -> Found | None:
    """What the reader of each speculators algorithm keeps of the top level."""
    tree = sources.module("transformers_utils/configs/speculators/algos.py")
    if tree is None:
        return None
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.decorator_list:
            decorator = function.decorator_list[0]
            name = text_of(decorator.args[0]) if isinstance(decorator, ast.Call) and decorator.args else None
            if name in ("eagle3", "peagle"):
                found[name] = _reader(function)
    return found


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
            case ast.Dict(keys=keys, values=values):
                classes |= {k: v for k, v in zip(map(text_of, keys), map(text_of, values), strict=True) if k and v}
    refuses = any(isinstance(node, ast.Raise) for node in ast.walk(function))
    return {"keeps": sorted(key for key in kept if key), "norm_before_residual": residual, "classes": classes, "refuses_other_model_types": refuses}  # fmt: skip


def _id_keys(sources: Sources, path: str, name: str) -> list[str] | None:
    """The keys that name aux layers, in the order in which a runner asks for them."""
    tree = sources.module(path)
    function = next(functions(tree, name), None) if tree else None
    if function is None:
        return None
    holders: dict[str, list[str]] = {}
    loops = {_source(n.target): strings(n.iter) for n in ast.walk(function) if isinstance(n, ast.For)}
    asked: list[tuple[int, str]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and called(node.value) == "getattr" and isinstance(node.value, ast.Call):
            key = node.value.args[1]
            names = [text_of(key)] if text_of(key) else loops.get(_source(key), [])
            holders[_source(node.targets[0])] = [one for one in names if one]
    for node in ast.walk(function):
        match node:
            case ast.Call(args=[_, key, *_]) if called(node) == "getattr" and str(text_of(key)).endswith("layer_ids"):
                asked.append((node.lineno, str(text_of(key))))
            case ast.Attribute(value=holder, attr=key_name) if _source(holder).endswith("config"):
                asked += [(node.lineno, key_name)] if key_name.endswith("layer_ids") else []
            case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]) if text_of(key):
                asked += [(node.lineno, f"{one}.{text_of(key)}") for one in holders.get(_source(holder), [])]
    return list(dict.fromkeys(key for _, key in sorted(asked, key=lambda one: one[0])))


def _default_layers(sources: Sources) -> str | None:
    for path in (f"{MODELS}/interfaces.py", f"{MODELS}/llama.py"):
        tree = sources.module(path)
        for name in ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers"):
            for function in functions(tree, name) if tree else ():
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                        return _source(node.value).replace("num_layers", "n")
    return None


def _runner(sources: Sources) -> Found:
    """Whether the V2 runner is the default for every target, and the architectures that are named where it is not."""
    tree = sources.module("config/vllm.py")
    function = next(functions(tree, "use_v2_model_runner"), None) if tree else None
    if tree is None or function is None:
        return {"is_V2_default": False, "architectures": [], "unsupported": []}
    last = function.body[-1]
    is_default = isinstance(last, ast.Return) and isinstance(last.value, ast.Constant) and last.value.value is True
    is_default = is_default and "_is_default_v2" not in _source(function)
    lacking = next(functions(tree, "_get_v2_model_runner_unsupported_features"), None)
    named = [] if is_default else [name for name in strings(tree) if name.endswith("ForCausalLM")]
    return {"is_V2_default": is_default, "architectures": sorted(named), "unsupported": _appended(lacking)}


def _appended(function: ast.FunctionDef | None) -> list[str]:
    if function is None:
        return []
    calls = (node for node in ast.walk(function) if called(node) == "append" and isinstance(node, ast.Call))
    return sorted({text for node in calls for text in strings(node) if len(text) > 2})


def _ignored_suffixes(sources: Sources) -> list[str]:
    """Ends of names that the shared loader drops without a word."""
    tree = sources.module(f"{MODELS}/utils.py")
    loader = (
        next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "AutoWeightsLoader"), None)
        if tree
        else None
    )
    texts = "" if loader is None else _source(loader)
    return [suffix for suffix in (".bias",) if f"append('{suffix}')" in texts or f"['{suffix}']" in texts]


def _rewritten(sources: Sources) -> list[str]:
    """Model types that are turned into others before the drafter's class is looked up."""
    tree = sources.module("config/speculative.py")
    function = next(functions(tree, "hf_config_override"), None) if tree else None
    found: set[str] = set()
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Compare) and _source(node.left).endswith("model_type"):
            found |= set(strings(node))
    return sorted(found)


def _listed_targets(sources: Sources) -> list[str] | None:
    """The model types of targets that have EAGLE-3, where a list decides."""
    tree = sources.module("config/speculative.py")
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            listed = strings(node.value)
            if "supported" in _source(node.targets[0]) and "llama" in listed:
                return listed
    return None


def _mask_keys(sources: Sources) -> list[str]:
    tree = sources.module("v1/spec_decode/llm_base_proposer.py") or sources.module("v1/spec_decode/eagle.py")
    found = (
        {text for node in ast.walk(tree) if tree for text in strings(node) if called(node) == "hasattr"}
        if tree
        else set()
    )
    return sorted(text for text in found if text.endswith(("_token", "_token_id")))
