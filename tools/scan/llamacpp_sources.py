"""Which targets llama.cpp captures layers of: its converter's classes, and the graphs that they name."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from eaglectl.files.files import MIB, read_small_file
from tools.scan.extraction import Found, source_of
from tools.scan.sources import parsed, strings

CONVERTER, GRAPHS, STRUCTS, SWITCH = "conversion", "src/models", "src/models/models.h", "src/llama-model.cpp"
NAMES, ARCHS = "gguf-py/gguf/constants.py", "src/llama-arch.cpp"
MODEL_ARCH = "model_arch = gguf.MODEL_ARCH."
NAMED = re.compile(r"MODEL_ARCH\.(\w+):\s*\"([\w.-]+)\"")
ARCH_NAMED = re.compile(r"\{\s*LLM_ARCH_(\w+),\s*\"([\w.-]+)\"")
CASE = re.compile(r"case LLM_ARCH_(\w+):\s*(?:\{\s*)?return new llama_model_(\w+)\(")
STRUCT = re.compile(r"struct llama_model_(\w+)\s*: public llama_model_(\w+) \{(.*?)\n\};", re.DOTALL)
GRAPH = re.compile(
    r"using graph\s*=\s*llama_model_(\w+)::graph|struct graph : public llama_model_(\w+)::graph"
)
BUILDS = re.compile(r"llama_model_(\w+)::build_arch_graph")
CAPTURES = "t_layer_inp[il] ="


def targets(source: Path) -> Mapping[str, Found]:
    """Whether the graph of each architecture that the converter knows keeps the inputs of its layers.

    Raises UnreadableError.
    """
    structs = dict(CASE.findall(_text(source / SWITCH)))
    by_name = {name: structs.get(arch, "") for arch, name in ARCH_NAMED.findall(_text(source / ARCHS))}
    names = {arch: by_name.get(name, "") for arch, name in NAMED.findall(_text(source / NAMES))}
    parents = {name: (parent, body) for name, parent, body in STRUCT.findall(_text(source / STRUCTS))}
    built = {
        name: path for path in sorted((source / GRAPHS).glob("*.cpp")) for name in BUILDS.findall(_text(path))
    }
    found = {}
    for architecture, arch in _converted(source):
        path = _graph(names.get(arch, ""), parents, built)
        if path is not None:
            at = _text(path).find(CAPTURES)
            line = f":{_text(path).count(chr(10), 0, at) + 1}" if at >= 0 else ""
            found[architecture] = {"captures": at >= 0, "source": f"{path.name}{line}"}
    return dict(sorted(found.items()))


def _converted(source: Path) -> Iterator[tuple[str, str]]:
    """Architectures of config.json and the names of their graphs, by the converter's text classes."""
    classes = [
        node
        for path in sorted((source / CONVERTER).glob("*.py"))
        for node in parsed(_text(path).encode(), str(path)).body
        if isinstance(node, ast.ClassDef)
    ]
    by_name = {node.name: node for node in classes}
    for node in classes:
        graph = _graph_name(node, by_name)
        if graph and graph != "MMPROJ":
            yield from ((architecture, graph) for architecture in _registered(node))


def _registered(node: ast.ClassDef) -> Iterator[str]:
    """The architectures that a class registers, of which each may have a decorator of its own."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and source_of(decorator.func) == "ModelBase.register":
            yield from strings(decorator)


def _graph_name(node: ast.ClassDef | None, by_name: Mapping[str, ast.ClassDef]) -> str:
    """The graph of a converter's class, or of the nearest one that it inherits from; empty without one."""
    while node is not None:
        for statement in node.body:
            if source_of(statement).startswith(MODEL_ARCH):
                return source_of(statement).removeprefix(MODEL_ARCH)
        node = by_name.get(source_of(node.bases[0])) if node.bases else None
    return ""


def _graph(name: str, parents: Mapping[str, tuple[str, str]], built: Mapping[str, Path]) -> Path | None:
    """The file that has the graph of a model's struct: its own, another's that it names, or its parent's."""
    for _ in range(len(parents)):
        parent, body = parents.get(name, ("", ""))
        other = GRAPH.search(body)
        if other:
            name = other[1] or other[2]
        elif name in built:
            return built[name]
        else:
            name = parent
    return None


def _text(path: Path) -> str:
    return read_small_file(path, 16 * MIB, str(path)).decode(errors="replace")
