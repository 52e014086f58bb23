"""What every declaration in formats/producers keeps; a new producer is held to it once its module exists.

To add one: its module, a fixture, and `make schemas docs`. The checks take a format,
so that they are proven below with a declaration that exists in this file alone.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.drafter import Drafter, Feature, to_boundaries
from eaglectl.files.checkpoint import open_folder, read_checkpoint
from eaglectl.formats import catalogue, writer
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import (
    ALWAYS,
    TOP_IDS,
    Answers,
    Format,
    IdsPlace,
    Layout,
)
from eaglectl.formats.names import canonical_name
from eaglectl.formats.reader import read_drafter, read_target
from eaglectl.judge.rules import config as rule
from schemas.files import config_schema
from tests.builders import ABSENT, HIDDEN, drafter_config, drafter_tensors, floats
from tests.cases import digests, stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made

ROOT = FIXTURES.parent
TARGET_CONFIG = {"model_type": "llama", "num_hidden_layers": 8}  # no sizes: the drafters differ in theirs
TARGET = read_target(TARGET_CONFIG, "org/target")
BASE = 10000.0  # the rope base that every trainer rotates with
ANSWERS = Answers(semantics={"rope": "stored"})
LAYERS, DEFAULT = (2, 4, 6), (2, 4, 5)  # of 8
# files written so have the marks of another format, which reads them to the same effect
READ_BACK = {"nebius": "eagle", "sglang": "vllm", "llama.cpp": "vllm"}
WRITTEN = [format for format in FORMATS if format.layout]


@dataclass(frozen=True)
class Written:
    """A drafter on layers of its own, and the same in a format's layout; the config of the target."""

    source: Path
    folder: Path
    boundaries: tuple[int, ...]
    target: str

    @property
    def config(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return value

    def read(self, config: dict[str, Any] | None = None) -> Drafter:
        checkpoint = read_checkpoint(open_folder(str(self.folder)))
        return read_drafter(replace(checkpoint, config=config or checkpoint.config), ANSWERS, TARGET)


def samples(format: Format) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Configs and tensors of drafters that a layout has a class for: with an embedding, without, and MLA."""
    layout = format.layout
    assert layout
    config = drafter_config(eagle_config=ABSENT, rope_theta=BASE)
    if "llama" in layout.architectures:
        mask = {"mask_hidden": floats("mask_hidden", 1, 3 * HIDDEN)} if format.is_parallel else {}
        config |= {"mask_token_id": 5} if format.is_parallel else {}
        yield config, drafter_tensors(**mask)
        yield config, drafter_tensors(**mask, **{"embed_tokens.weight": None})
    if "mla" in layout.architectures:
        fixture = FIXTURES / "producers/vllm/mla"
        config = json.loads((fixture / "config.json").read_text())
        config.pop("eagle_config", None)
        config["rope_theta"] = BASE
        yield config, stored_tensors(fixture)


def written(format: Format, parent: Path) -> Written:
    """A drafter written in the layout, one that is recognised as the format's where there is one."""
    boundaries = LAYERS if format.written_ids else DEFAULT
    target = parent / "config.json"
    target.write_text(json.dumps(TARGET_CONFIG))
    for index, (config, tensors) in enumerate(samples(format)):
        folder = parent / str(index)
        source = Made({**config, TOP_IDS: list(boundaries)}, tensors).write(folder / "drafter")
        options = ConvertOptions(layout=format.name, target=str(target), target_name="org/target")
        eaglectl.convert(str(source), folder / "out", options)
        made = Written(source, folder / "out", boundaries, str(target))
        if made.read().producer == format.name:
            break
    return made


def check_layout_reads_back(format: Format, parent: Path) -> None:
    """1. Its own layout, read with its own keys and prefix, is the drafter that was written."""
    layout = format.layout
    assert layout
    made = written(format, parent)
    before = read_drafter(read_checkpoint(open_folder(str(made.source))), ANSWERS, TARGET)
    after = made.read()
    assert after.producer == READ_BACK.get(format.name, format.name)
    assert after.notes_at("problem") == after.notes_at("question") == () == after.unknown
    for fact in ("dims", "norms", "kind"):
        assert getattr(after, fact) == getattr(before, fact), fact
    assert (after.rope.theta, after.rope.scaling) == (before.rope.theta, before.rope.scaling)
    assert after.aux.boundaries == made.boundaries

    def canonical(folder: Path) -> dict[str, str]:
        own = catalogue.tensor_names()
        found = {canonical_name(name, own, layout.prefix): digest for name, digest in digests(folder).items()}
        return {name: digest for name, digest in found.items() if name not in ("d2t", "t2d")}

    assert canonical(made.folder) == canonical(made.source)
    names = [name for name in digests(made.folder) if not name.startswith(layout.unprefixed)]
    assert [name for name in names if not name.startswith(layout.prefix)] == []


def check_ids_are_read(format: Format, parent: Path) -> None:
    """2. Ids are read from each declared place alone; a layout that expresses layers declares one."""
    layout = format.layout
    assert layout
    assert bool(format.written_ids) == (Feature.AUX_LAYERS in layout.expresses)
    made = written(format, parent)
    for place in format.ids:
        if place.convention is None or format.name in READ_BACK:
            continue  # SGLang's rule for the target decides
        config = made.config
        for other in format.written_ids:
            *parents, key = other.key.split(".")
            reduce(lambda part, parent: part.get(parent) or {}, parents, config).pop(key, None)
        writer.put(config, place.key, [2, 3, 6])
        # a file without a target's depth could be read in either convention
        drafter = made.read(config)
        assert drafter.producer == format.name
        assert drafter.aux.boundaries == to_boundaries((2, 3, 6), place.convention), place.key


def check_ids_are_written(format: Format, parent: Path) -> None:
    """3. --for NAME writes the ids to each place that it declares, in that place's convention."""
    made = written(format, parent)
    outputs = [boundary - 1 for boundary in made.boundaries]
    for place in format.written_ids:
        expected = list(made.boundaries) if place.meaning == "boundary" else outputs
        stated: Any = reduce(dict.__getitem__, place.key.split("."), made.config)
        assert stated == expected, place.key


# a format whose marks are a part of another's is tried first
NAMES = (
    "speculators peagle vllm torchspec-vllm torchspec speco automodel sglang sglang-mla llama.cpp modelopt"
    " modelopt-megatron angelslim nebius specforge eagle lightseekorg native"
)
ORDER = NAMES.split()
CHECKS: Sequence[Callable[[Format, Path], None]] = (
    check_layout_reads_back,
    check_ids_are_read,
    check_ids_are_written,
)


@pytest.mark.fast(9)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("format", WRITTEN, ids=lambda format: format.name)
def test_a_format_keeps_the_contract(
    check: Callable[[Format, Path], None], format: Format, tmp_path: Path
) -> None:
    check(format, tmp_path)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format_has_its_schema(format: Format) -> None:
    path = ROOT / f"schemas/config-{format.schema_name}.schema.json"
    assert path.is_file(), f"run `make schemas`, which writes {path.name}"
    first = next(other for other in catalogue.FORMATS if other.schema_name == format.schema_name)
    assert json.loads(path.read_text()) == config_schema(first)


def test_formats_have_names_of_their_own_and_an_order() -> None:
    names = [format.name for format in FORMATS]
    assert len(set(names)) == len(names)
    assert [name for name in names if name in ORDER] == ORDER
    assert names[-1] == "native"  # it takes what no other claims
    assert [format.name for format in FORMATS if format.layout and format.layout.is_default] == ["vllm"]


# ---------------------------------------------------------------------------------------- the checks, proven


SYNTHETIC = Format(
    "synthetic",
    "Synthetic trainer",
    lambda summary: "config has synthetic_version" if "synthetic_version" in summary.config else None,
    ids=(IdsPlace("synthetic.feature_layers", "output"),),
    retires=("synthetic_version",),
    layout=Layout(
        {"llama": "SyntheticEagle3"},
        {"llama": "llama"},
        ALWAYS | {Feature.AUX_LAYERS},
        layer="midlayer",
        prefix="draft_model.",
        extra={"synthetic_version": "1"},
    ),
)
OWN_PREFIX = replace(
    SYNTHETIC,
    layout=replace(SYNTHETIC.layout, prefix="drafter_net.", unprefixed=()),  # type: ignore[type-var]
)


@pytest.fixture(params=[SYNTHETIC, OWN_PREFIX], ids=["a wrapper's prefix", "its own prefix"])
def synthetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Format:
    """A producer that exists in this file alone, and is known everywhere."""
    format: Format = request.param
    monkeypatch.setattr(catalogue, "FORMATS", (format, *FORMATS))
    return format


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_new_declaration_alone_keeps_the_contract(
    check: Callable[[Format, Path], None], synthetic: Format, tmp_path: Path
) -> None:
    check(synthetic, tmp_path)


def test_a_drafter_of_a_new_producer_is_converted_and_not_passed_without_its_schema(
    synthetic: Format, tmp_path: Path
) -> None:
    made = written(synthetic, tmp_path)
    assert made.config["synthetic"] == {"feature_layers": [1, 3, 5]}
    (verdict,) = eaglectl.inspect(str(made.folder), target=made.target, engines=["vllm"]).requested
    assert verdict.outcome in ("fails", "differs")  # its names are judged as stored
    eaglectl.convert(str(made.folder), tmp_path / "vllm", ConvertOptions(target=made.target))
    config = json.loads((tmp_path / "vllm/config.json").read_text())
    assert config[TOP_IDS] == [2, 4, 6] and config["draft_vocab_size"] == 24
    assert not {"synthetic", "synthetic_version"} & set(config)
    report = eaglectl.validate(str(made.folder), eaglectl.ValidateOptions(has_engines=False))
    assert [check.rule.name for check in report.unchecked if "reinstall" in check.reason] == ["config-schema"]
    rule._schema.cache_clear()
