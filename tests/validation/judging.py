"""What tests of several rules share."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.judge.judgement import Report
from tests.builders import (
    ABSENT,
    HIDDEN,
    VOCAB,
    Stored,
    drafter_folder,
    drafter_tensors,
    floats,
    safetensors_bytes,
    write_record,
)
from tests.cases import stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made
from tests.validation.patches import Patch


def installed(folder: Path, package: str, distribution: str, version: str) -> Path:
    """A folder with an installed package that must not be imported."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("raise AssertionError('the engine was imported')")
    information = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (information / "METADATA").write_text(metadata)
    return folder


def patches(value: object) -> Iterator[Patch]:
    """The patches in a module's variable: one, or a tuple of them."""
    if isinstance(value, Patch):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from patches(item)


def every_patch(besides: str) -> list[Patch]:
    """The patches in the variables of all test modules beside this one."""
    names = [f"tests.validation.{info.name}" for info in iter_modules([str(Path(__file__).parent)])]
    modules = [import_module(name) for name in names if ".test_" in name and name != besides]
    found = (patch for module in modules for value in vars(module).values() for patch in patches(value))
    return list({id(patch): patch for patch in found}.values())


PRODUCERS = FIXTURES / "producers"


TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Bad:
    """A drafter that some releases do not serve.

    `base` ("" is that of tests/builders.py) with changes, and where the rule must say so; `record` is its
    eaglectl.json, `beside` the name of other weights in its folder. The target's tokenizer has `tokens` ids;
    with 0 it has no tokenizer. With `option` on its command line, the engine runs it as trained. `stages` are
    those of the target.
    """

    rule: str
    engine: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Stored | None] = field(default_factory=dict)
    says: str = ""
    base: str = ""
    target: Mapping[str, Any] | None = None
    where: str | None = None
    is_blind: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    beside: str = ""
    tokens: int = 0
    option: str = ""
    stages: int | None = None


def build(bad: Bad, parent: Path) -> Path:
    """The drafter's folder."""
    if not bad.base:
        folder = drafter_folder(parent, config=bad.config, tensors=bad.tensors)
        if bad.record is not None:
            write_record(folder, **bad.record)
        if bad.beside:
            (folder / bad.beside).write_bytes(safetensors_bytes({"a": floats("a", 2, 2)}))
        return folder
    source = PRODUCERS / bad.base
    config = json.loads((source / "config.json").read_text()) | bad.config
    tensors = stored_tensors(source) | bad.tensors
    stated = {key: value for key, value in config.items() if value is not ABSENT}
    stored = {name: value for name, value in tensors.items() if value is not None}
    return Made(stated, stored).write(parent / "drafter")


def second_layer(norm: str) -> dict[str, Stored | None]:
    """A second layer of the good drafter, which has one norm before its attention, of this name."""
    layer: dict[str, Stored | None] = {}
    for name, (_, shape, _) in drafter_tensors().items():
        part = name.split(".")[-2] if name.startswith("layers.0.") else ""
        if part and (part == norm or part not in ("hidden_norm", "input_layernorm")):
            sizes = (shape[0], HIDDEN) if part in ("q_proj", "k_proj", "v_proj") else shape
            layer[name.replace("layers.0.", "layers.1.")] = floats(name, *sizes)
    return layer


def judged(bad: Bad, parent: Path, **given: Any) -> Report:
    if bad.target is not None:
        (parent / "target").mkdir()
        (parent / "target/config.json").write_text(json.dumps({**TARGET, **bad.target}))
        given["target"] = str(parent / "target")
    if bad.tokens:
        vocabulary = {str(token): token for token in range(bad.tokens)}
        (parent / "target/tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    answers = Answers(semantics=bad.answers)
    given |= {"pipeline_parallel_size": bad.stages} if bad.stages else {}
    return eaglectl.validate(build(bad, parent), engines=[bad.engine], answers=answers, **given)
