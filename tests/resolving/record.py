"""Run the resolving functions of vLLM releases: `python -m tests.resolving.record WHEEL...`."""

import ast
import json
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.resolving.configs import CONFIGS, DEPTH
from tools.scan.sources import Sources, functions

ANSWERS = Path(__file__).with_name("answers.json")
# the file and the function that look a drafter's ids up, by runner
RUNNERS = {
    "V1": ("v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config"),
    "V2": ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config"),
}
DEFAULT = ("model_executor/models/interfaces.py", "get_eagle3_default_aux_hidden_state_layers")
READERS = "transformers_utils/configs/speculators/algos.py"

# answers of a release: layers by runner and config; None where the config is refused
Answers = Mapping[str, Mapping[str, list[int] | None]]


def main() -> None:
    """Merge the answers of the wheels that the arguments name."""
    known = dict(read()) if ANSWERS.exists() else {}
    for name in sys.argv[1:]:
        sources = Sources(Path(name))
        known[sources.release] = answers(sources)
    write(known)


def read() -> Mapping[str, Answers]:
    """The answers of every release, oldest first."""
    stored = json.loads(ANSWERS.read_text())
    known: dict[str, dict[str, dict[str, list[int] | None]]] = {}
    for release in stored["releases"]:
        before = known[list(known)[-1]] if known else {runner: {} for runner in RUNNERS}
        known[release] = {runner: dict(found) for runner, found in before.items()}
        for name, changes in stored["answers"].items():
            for runner, by_release in changes.items():
                if release in by_release:
                    known[release][runner][name] = by_release[release]
    return known


def write(known: Mapping[str, Answers]) -> None:
    """Write them: of each config and runner the first release of each answer."""
    releases = sorted(known, key=lambda release: [int(part) for part in release.split(".")])
    changes: dict[str, dict[str, dict[str, list[int] | None]]] = {}
    for name in CONFIGS:
        changes[name] = {runner: {} for runner in RUNNERS}
        for runner, by_release in changes[name].items():
            last: object = CONFIGS
            for release in releases:
                if (layers := known[release][runner][name]) != last:
                    by_release[release] = last = layers
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in changes.items()]
    head = f'{{"releases": {json.dumps(releases)},\n"answers": {{\n'
    ANSWERS.write_text(head + ",\n".join(lines) + "\n}}\n")


def answers(sources: Sources) -> Answers:
    """The layers that each runner of a release captures."""
    readers = _readers(sources)
    default = tuple(_function(sources, *DEFAULT)(_target()))
    found: dict[str, dict[str, list[int] | None]] = {}
    for runner, place in RUNNERS.items():
        resolve = _function(sources, *place)
        found[runner] = {}
        for name, config in CONFIGS.items():
            speculative = _speculative(readers, config)
            given = SimpleNamespace(speculative_config=speculative) if runner == "V1" else speculative
            # layers are captured as they run, each once
            layers = speculative and sorted(set(resolve(given) or default))
            found[runner][name] = layers
    return found


def _speculative(readers: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """vLLM's SpeculativeConfig with the config as its readers leave it; None where they refuse it."""
    read: dict[str, Any] = deepcopy(dict(config))
    if "speculators_model_type" in read:
        layer: dict[str, Any] = read["transformer_layer_config"]
        try:
            readers[read["speculators_model_type"]](config_dict=read, pre_trained_config=layer)
        except (KeyError, ValueError):
            return None
        read = layer
    return SimpleNamespace(
        method="eagle3", draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(**read))
    )


def _readers(sources: Sources) -> Mapping[str, Any]:
    """The readers of speculators configs, by speculators_model_type."""
    namespace = _run(sources.module(READERS))
    readers: Mapping[str, Any] = namespace["SUPPORTED_SPECULATORS_TYPES"]
    return readers


def _target() -> Any:
    """A target with as many layers as the default asks for."""
    layers = SimpleNamespace(layers=range(DEPTH))
    return SimpleNamespace(model=layers, get_language_model=lambda: SimpleNamespace(model=layers))


def _function(sources: Sources, path: str, name: str) -> Callable[..., Any]:
    """A function of a file, or the last method of this name in it, without the file around it."""
    tree = sources.module(path)
    assert tree is not None, path
    function = list(functions(tree, name))[-1]
    function.returns, function.decorator_list = None, []
    for argument in function.args.args:
        argument.annotation = None
    found: Callable[..., Any] = _run(ast.Module([function], []))[name]
    return found


def _run(tree: ast.Module | None) -> dict[str, Any]:
    assert tree is not None
    namespace: dict[str, Any] = {}
    exec(compile(tree, "vllm", "exec"), namespace)
    return namespace


if __name__ == "__main__":
    main()
