"""Which targets llama.cpp captures layers of: its converter's classes, and the graphs that they name."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from eaglectl.checkpoint.files import MIB, read_small_file
from eaglectl.engines.extraction import Found

CONVERTER, GRAPHS, STRUCTS, SWITCH = "conversion", "src/models", "src/models/models.h", "src/llama-model.cpp"
NAMES, ARCHS = "gguf-py/gguf/constants.py", "src/llama-arch.cpp"
REGISTERS = re.compile(r"@ModelBase\.register\(([^)]*)\)(?:(?!\nclass )[\s\S])*\nclass (\w+)\(")
NAMED = re.compile(r"MODEL_ARCH\.(\w+):\s*\"([\w.-]+)\"")
ARCH_NAMED = re.compile(r"\{\s*LLM_ARCH_(\w+),\s*\"([\w.-]+)\"")
CLASS = re.compile(r"^class (\w+)\(([\w.]+)")
ARCH = re.compile(r"^ {4}model_arch = gguf\.MODEL_ARCH\.(\w+)", re.MULTILINE)
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
    texts = [_text(path) for path in sorted((source / CONVERTER).glob("*.py"))]
    classes: dict[str, tuple[str, str | None]] = {}
    named: list[tuple[str, str]] = []
    for text in texts:
        for part in re.split(r"\n(?=class )", text):
            if head := CLASS.match(part):
                arch = ARCH.search(part)
                classes[head[1]] = (head[2], arch[1] if arch else None)
        for listed, name in REGISTERS.findall(text):
            named += [(architecture, name) for architecture in re.findall(r"\"([^\"]+)\"", listed)]
    for architecture, name in named:
        while name in classes and classes[name][1] is None:
            name = classes[name][0]
        graph = classes.get(name, ("", None))[1]
        if graph and graph != "MMPROJ":
            yield architecture, graph


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
