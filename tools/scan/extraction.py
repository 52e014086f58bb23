"""What the sources of an engine show: keys and where they are read, places of ids, digests of functions.

What is looked for in each engine is in vllm_sources.py and sglang_sources.py.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tools.scan.sources import Sources, called, functions, strings, text_of

Found = Mapping[str, Any]
Part = Callable[[Sources], Any]

DIGITS = 12  # of a function's digest
# config keys on which facts depend
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


class Watched(Struct, frozen=True):
    """Functions that decide what a drafter does: a file's classes or functions, all of them without names.

    `concerns` has the kinds of drafters (llama, mla, qwen3) and the facts whose recorded cases are to be run
    again where such a function is another.
    """

    path: str
    names: tuple[str, ...]
    concerns: tuple[str, ...]

    def holds(self, path: str, name: str) -> bool:
        """Whether a function is one of them."""
        named = {name, name.partition(".")[0]}
        return path == self.path and (not self.names or not named.isdisjoint(self.names))


def extract(sources: Sources, parts: Mapping[str, Part], watched: Sequence[Watched]) -> Found:
    """All that is found; None stands for an absent file or function."""
    return {
        "engine": sources.package,
        "release": sources.release,
        **{name: part(sources) for name, part in parts.items()},
        "functions": _functions(sources, watched),
    }


def _functions(sources: Sources, watched: Sequence[Watched]) -> Mapping[str, Mapping[str, str]]:
    """Digests of the watched functions by file and name; comments and layout do not count."""
    found: dict[str, Mapping[str, str]] = {}
    for path in dict.fromkeys(entry.path for entry in watched):
        tree = sources.module(path)
        entries = [entry for entry in watched if entry.path == path]
        named = _named(tree) if tree else ()
        digests = {
            name: hashlib.sha256(source_of(node).encode()).hexdigest()[:DIGITS]
            for name, node in named
            if any(entry.holds(path, name) for entry in entries)
        }
        if digests:
            found[path] = digests
    return found


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module, and the methods of its classes as Class.method."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{one.name}", one) for one in node.body if isinstance(one, ast.FunctionDef)
            )


def source_of(tree: ast.AST | None) -> str:
    """The source of a tree; empty for an absent one."""
    return "" if tree is None else ast.unparse(tree)


def function_of(sources: Sources, path: str, name: str) -> ast.FunctionDef | None:
    """A function of a file; None where the file or the function is absent."""
    tree = sources.module(path)
    return None if tree is None else next(functions(tree, name), None)


def nodes_of(tree: ast.AST | None) -> Iterator[ast.AST]:
    """The nodes of a tree; none of an absent one."""
    yield from () if tree is None else ast.walk(tree)


def items_of(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Keys and values of a dict that is written out."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield text_of(key), value


def reads_of(tree: ast.AST, keys: Sequence[str]) -> Mapping[str, list[str]]:
    """Which of the keys are read, and where: at the top of the config, or in eagle_config."""
    places: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for holder, key in lookups_of(node):
            if key and key in keys and "config" in holder:
                place = "eagle_config" if "eagle_config" in holder else "top"
                places.setdefault(key, set()).add(place)
    return {key: sorted(places[key]) for key in sorted(places)}


def lookups_of(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """The holder and key of getattr(x, "k"), x.get("k"), x["k"], "k" in x, and x.k."""
    match node:
        case ast.Call(args=[holder, key, *_]) if called(node) in ("getattr", "hasattr"):
            yield source_of(holder), text_of(key)
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]):
            yield source_of(holder), text_of(key)
        case ast.Subscript(value=holder, slice=key):
            yield source_of(holder), text_of(key)
        case ast.Compare(left=key, ops=[ast.In()], comparators=[holder]):
            yield source_of(holder), text_of(key)
        case ast.Attribute(value=holder, attr=name, ctx=ast.Load()) if source_of(holder).endswith(
            ("config", "hf_config")
        ):
            yield source_of(holder), name


def returns_value(function: ast.FunctionDef) -> bool:
    """Whether a function returns something."""
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))


def is_under(tree: ast.AST, attribute: str, word: str) -> bool:
    """Whether self.`attribute` is made a parameter only under a condition on `word`."""
    conditions = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and word in source_of(node.test)
    ]
    statements = [source_of(statement) for condition in conditions for statement in condition.body]
    return any(f"self.{attribute} = nn.Parameter" in statement for statement in statements)


def default_count(tree: ast.AST) -> int | None:
    """The number of aux states where the config states none: `len(ids) if ids else 3`."""
    for node in ast.walk(tree):
        match node:
            case ast.IfExp(body=body, orelse=ast.Constant(value=int(count))) if called(body) == "len":
                return count
    return None


def raises(function: ast.FunctionDef) -> bool:
    """Whether a function raises an exception."""
    return any(isinstance(node, ast.Raise) for node in ast.walk(function))


def id_keys(sources: Sources, path: str, name: str) -> list[str] | None:
    """The keys that name aux layers, in the order in which a runner looks them up."""
    function = function_of(sources, path, name)
    if function is None:
        return None
    holders = _holders(function)
    lookups = [lookup for node in ast.walk(function) for lookup in _id_lookups(node, holders)]
    return list(dict.fromkeys(key for _, key in sorted(lookups, key=lambda lookup: lookup[0])))


def _holders(function: ast.FunctionDef) -> Mapping[str, list[str]]:
    """Variables that hold an inner config, with the keys that it may be read from."""
    loops = {source_of(n.target): strings(n.iter) for n in ast.walk(function) if isinstance(n, ast.For)}
    holders = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[variable, *_], value=ast.Call(args=[_, key, *_]) as call):
                if called(call) == "getattr":
                    text = text_of(key)
                    holders[source_of(variable)] = [text] if text else loops.get(source_of(key), [])
    return holders


def _id_lookups(node: ast.AST, holders: Mapping[str, list[str]]) -> list[tuple[int, str]]:
    """Lines and keys of getattr(config, "layer_ids"), config.layer_ids and inner.get("layer_ids")."""
    match node:
        case ast.Call(args=[_, key, *_]) if called(node) == "getattr":
            name = text_of(key) or ""
            return [(node.lineno, name)] if name.endswith("layer_ids") else []
        case ast.Attribute(value=holder, attr=name) if source_of(holder).endswith("config"):
            return [(node.lineno, name)] if name.endswith("layer_ids") else []
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]) if text_of(key):
            return [(node.lineno, f"{outer}.{text_of(key)}") for outer in holders.get(source_of(holder), [])]
    return []
