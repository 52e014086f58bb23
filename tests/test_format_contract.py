"""What every declaration in formats/producers keeps; a new producer is held to it once its module exists.

To add one: its module, a fixture, its row in docs/trainers.md, and `make schemas`. The checks take a format,
so that they are proven below with a declaration that exists in this file alone, and with each fault that they
are there to find.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.boundaries import to_boundaries
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.registry import ENGINES, parse_engine, view_for
from eaglectl.engines.view import Case
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.opening import open_folder
from eaglectl.formats import aux_ids, catalogue, names, reader, writer
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.formats.format import (
    ALWAYS,
    NESTED_IDS,
    TOP_IDS,
    Answers,
    CheckpointSummary,
    Format,
    IdsPlace,
    Layout,
)
from eaglectl.formats.names import WRAPPERS, canonical_name
from eaglectl.formats.reader import read_drafter, read_target
from eaglectl.formats.writer import written_name
from eaglectl.judge.rules import config as rule
from eaglectl.operations.converting import ConvertOptions
from schemas.files import config_schema
from tests.builders import ABSENT, HIDDEN, drafter_config, drafter_folder, drafter_tensors, floats
from tests.cases import digests, stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made

ROOT = FIXTURES.parent
TARGET_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 8,
}  # sizes are left open: the drafters differ in theirs
TARGET = read_target(TARGET_CONFIG, "org/target")
BASE = 10000.0  # the rope base that every trainer rotates with
ANSWERS = Answers(semantics={"rope": "stored"})
LAYERS, DEFAULT = (2, 4, 6), (2, 4, 5)  # of 8
# files written so have the marks of another format, which reads them to the same effect
READ_BACK = {"nebius": "eagle", "sglang": "vllm", "llama.cpp": "vllm"}
WRITTEN = [format for format in FORMATS if format.layout]
MEANINGS = {"output": "outputs", "boundary": "boundaries", "sglang": "SGLang's"}
PLACES = {TOP_IDS: "top level", NESTED_IDS: "`eagle_config`"}
CLASSES = {"llama": "Llama", "qwen3": "Qwen3", "mla": "MLA"}


@dataclass(frozen=True)
class Written:
    """A drafter on layers of its own, and the same in a format's layout."""

    source: Path
    folder: Path
    boundaries: tuple[int, ...]

    @property
    def config(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return value

    def read(self, config: dict[str, Any] | None = None) -> Drafter:
        checkpoint = read_checkpoint(open_folder(str(self.folder)))
        return read_drafter(replace(checkpoint, config=config or checkpoint.config), ANSWERS, TARGET)


def target_of(parent: Path) -> str:
    """The target's config.json."""
    folder = parent / "target"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET_CONFIG))
    return str(folder)


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
    for index, (config, tensors) in enumerate(samples(format)):
        folder = parent / str(index)
        source = Made({**config, TOP_IDS: list(boundaries)}, tensors).write(folder / "drafter")
        options = ConvertOptions(layout=format.name, target=target_of(parent), target_name="org/target")
        eaglectl.convert(str(source), folder / "out", options)
        made = Written(source, folder / "out", boundaries)
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
            remove(config, other.key)
        writer.put(config, place.key, [2, 3, 6])
        # a file without a target's depth could be read in either convention
        drafter = made.read(config)
        assert drafter.producer == format.name
        assert drafter.aux.boundaries == to_boundaries((2, 3, 6), place.convention), place.key


def check_engines_judge_stored_names(format: Format, parent: Path) -> None:
    """3. Engines judge names as stored: what they run as trained is not, once its names have a prefix."""
    layout = format.layout
    assert layout
    config = drafter_config()
    checkpoint = read_checkpoint(open_folder(str(drafter_folder(parent))))
    drafter = read_drafter(checkpoint, ANSWERS, TARGET)

    def outcomes(engine: str, names: Sequence[str]) -> set[str]:
        request = parse_engine(engine)
        view = view_for(request.engine, drafter, config, config, tuple(names))
        verdicts = (ENGINES[request.engine].verdict(view, release) for release in request.releases)
        return {verdict.outcome for verdict in verdicts}

    stored = [written_name(name, layout) for name in drafter.tensors]
    prefixes = [layout.prefix] if layout.prefix else WRAPPERS
    for engine in ("vllm>=0.30", "sglang"):
        assert outcomes(engine, list(drafter.tensors)) == {"as trained"}
        for prefix in prefixes:
            names = stored if layout.prefix else [f"{prefix}{name}" for name in stored]
            if (engine, prefix) != ("sglang", "model."):  # its Llama class reads these
                assert outcomes(engine, names) <= {"fails", "differs"}, f"{prefix}: {engine}"


def check_schema_exists(format: Format, folder: Path = ROOT / "schemas") -> None:
    """4. The schema of its config is there, and is what its declaration makes."""
    path = folder / f"config-{format.schema_name}.schema.json"
    assert path.is_file(), f"run `make schemas`, which writes {path.name}"
    first = next(other for other in catalogue.FORMATS if other.schema_name == format.schema_name)
    assert json.loads(path.read_text()) == config_schema(first)


def readme_row(format: Format) -> tuple[str, str, str, str]:
    """The cells of its row in docs/trainers.md, but for the producer's."""
    layout = format.layout
    stored = f"`{layout.prefix}{layout.layer.format('N')}.*`" if layout else "-"
    places = format.written_ids or format.ids
    ids = "; ".join(
        f"{PLACES.get(place.key, f'`{place.key}`')}: {MEANINGS[place.meaning]}" for place in places
    )
    classes = [CLASSES[key] for key in CLASSES if layout and key in layout.architectures]
    return f"`{format.name}`", stored, ids or "none", ", ".join(classes) or "no"


def check_readme_row(format: Format, text: str | None = None) -> None:
    """5. docs/trainers.md has its row, and the row says what the declaration does."""
    text = (ROOT / "docs/trainers.md").read_text() if text is None else text
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    name, *rest = readme_row(format)
    (row,) = [row for row in rows if row[0] == name] or [None]
    assert row, f"docs/trainers.md lacks: | {name} | {format.title} | {' | '.join(rest)} |"
    assert row[1].startswith(format.title) and row[2:] == rest


def check_ids_are_written(format: Format, parent: Path) -> None:
    """6. --for NAME writes the ids to each place that it declares, in that place's convention."""
    made = written(format, parent)
    outputs = [boundary - 1 for boundary in made.boundaries]
    for place in format.written_ids:
        expected = list(made.boundaries) if place.meaning == "boundary" else outputs
        assert at(made.config, place.key) == expected, place.key


# a format whose marks are a part of another's is tried first
ORDER = (
    *(
        "speculators",
        "peagle",
        "vllm",
        "torchspec-vllm",
        "torchspec",
        "speco",
        "automodel",
        "sglang",
        "sglang-mla",
        "llama.cpp",
    ),
    *("modelopt", "modelopt-megatron", "angelslim", "nebius", "specforge", "eagle", "lightseekorg", "native"),
)
CHECKS: Sequence[Callable[[Format, Path], None]] = (
    check_layout_reads_back,
    check_ids_are_read,
    check_engines_judge_stored_names,
    check_ids_are_written,
)


def at(config: Any, place: str) -> Any:
    for key in place.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def remove(config: dict[str, Any], place: str) -> None:
    *parents, key = place.split(".")
    for parent in parents:
        config = config.get(parent) or {}
    config.pop(key, None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("format", WRITTEN, ids=lambda format: format.name)
def test_a_format_keeps_the_contract(
    check: Callable[[Format, Path], None], format: Format, tmp_path: Path
) -> None:
    check(format, tmp_path)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format_has_its_schema_and_its_row(format: Format) -> None:
    check_schema_exists(format)
    check_readme_row(format)


def test_formats_have_names_of_their_own_and_an_order() -> None:
    names = [format.name for format in FORMATS]
    assert len(set(names)) == len(names)
    assert [name for name in names if name in ORDER] == list(ORDER)
    assert names[-1] == "native"  # it takes what no other claims
    assert [format.name for format in FORMATS if format.layout and format.layout.is_default] == ["vllm"]


# ---------------------------------------------------------------------------------------- the checks, proven


def _recognise(summary: CheckpointSummary) -> str | None:
    return "config has synthetic_version" if "synthetic_version" in summary.config else None


SYNTHETIC = Format(
    "synthetic",
    "Synthetic trainer",
    _recognise,
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


@pytest.mark.parametrize(
    ("format", "name", "written"),
    [
        (SYNTHETIC, "lm_head.weight", "lm_head.weight"),
        (SYNTHETIC, "fc.weight", "draft_model.fc.weight"),
        (OWN_PREFIX, "lm_head.weight", "drafter_net.lm_head.weight"),
        (OWN_PREFIX, "d2t", "drafter_net.d2t"),
    ],
)
def test_a_prefix_goes_before_all_names_but_those_declared(format: Format, name: str, written: str) -> None:
    assert format.layout
    assert written_name(name, format.layout) == written


def test_a_new_declaration_makes_its_schema_and_its_row(synthetic: Format, tmp_path: Path) -> None:
    (tmp_path / "config-synthetic.schema.json").write_text(json.dumps(config_schema(synthetic)))
    check_schema_exists(synthetic, tmp_path)
    name, *rest = readme_row(synthetic)
    check_readme_row(synthetic, f"| {name} | Synthetic trainer 2 | {' | '.join(rest)} |\n")


def fails(check: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises((AssertionError, EaglectlError)):
        check(*arguments)


def test_fault_1_a_prefix_that_reading_does_not_know(
    synthetic: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "stored_prefix", lambda stored, own=(): "")
    monkeypatch.setattr(
        reader, "read_names", lambda stored, aliases, prefix: names.read_names(stored, aliases)
    )
    fails(check_layout_reads_back, synthetic, tmp_path)


def test_fault_2_an_ids_key_that_is_not_read(
    synthetic: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = aux_ids.read_aux_layers
    monkeypatch.setattr(
        reader, "read_aux_layers", lambda keys, format, *rest: read(keys, replace(format, ids=()), *rest)
    )
    monkeypatch.setattr(reader, "are_ids", lambda place, value: False)
    fails(check_ids_are_read, synthetic, tmp_path)


def test_fault_2_layers_that_no_place_states(synthetic: Format, tmp_path: Path) -> None:
    fails(check_ids_are_read, replace(synthetic, ids=()), tmp_path)


def test_fault_3_names_that_are_judged_without_their_prefix(
    synthetic: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "refused_prefixes", ())
    fails(check_engines_judge_stored_names, synthetic, tmp_path)


def test_fault_4_no_schema(synthetic: Format, tmp_path: Path) -> None:
    fails(check_schema_exists, synthetic, tmp_path)
    (tmp_path / "config-synthetic.schema.json").write_text(json.dumps(config_schema(by_name("eagle"))))
    fails(check_schema_exists, synthetic, tmp_path)


def test_fault_5_no_row_or_another(synthetic: Format) -> None:
    fails(check_readme_row, synthetic)
    name, *rest = readme_row(synthetic)
    for index, wrong in enumerate(("`layers.N.*`", "top level: boundaries", "no")):
        cells = [*rest[:index], wrong, *rest[index + 1 :]]
        fails(check_readme_row, synthetic, f"| {name} | Synthetic trainer | {' | '.join(cells)} |")


def test_fault_6_ids_that_are_not_written(
    synthetic: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = writer.put

    def forgetful(config: dict[str, Any], place: str, value: Any) -> None:
        if "feature_layers" not in place:
            put(config, place, value)

    monkeypatch.setattr(writer, "put", forgetful)
    fails(check_ids_are_written, synthetic, tmp_path)


def test_a_drafter_of_a_new_producer_is_converted_with_its_own_layers(
    synthetic: Format, tmp_path: Path
) -> None:
    made = written(synthetic, tmp_path)
    assert made.config["synthetic"] == {"feature_layers": [1, 3, 5]}
    eaglectl.convert(str(made.folder), tmp_path / "vllm", ConvertOptions(target=target_of(tmp_path)))
    config = json.loads((tmp_path / "vllm/config.json").read_text())
    assert config[TOP_IDS] == [2, 4, 6] and config["draft_vocab_size"] == 24
    assert not {"synthetic", "synthetic_version"} & set(config)


def test_validate_could_not_look_where_a_schema_is_missing(
    synthetic: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(synthetic, tmp_path)
    report = eaglectl.validate(str(made.folder), eaglectl.ValidateOptions(has_engines=False))
    assert [check.rule.name for check in report.unchecked if "reinstall" in check.reason] == ["config-schema"]
    rule._schema.cache_clear()


def test_a_module_in_the_package_is_all_that_discovery_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglectl.formats import producers

    module = tmp_path / "made_up.py"
    module.write_text(
        "from eaglectl.formats.format import Format\n"
        "MADE_UP = Format('made-up', 'Made up', lambda summary: None, priority=5)\n"
    )
    monkeypatch.setattr(producers, "__path__", [*producers.__path__, str(tmp_path)])
    names = [format.name for format in catalogue._declared()]
    assert names.index("made-up") < names.index("speculators")


def test_a_new_producers_marks_decide(synthetic: Format, tmp_path: Path) -> None:
    folder = drafter_folder(
        tmp_path, config={"synthetic_version": "2", "fc_norm": ABSENT, TOP_IDS: [2, 4, 5]}
    )
    checkpoint: Checkpoint = read_checkpoint(open_folder(str(folder)))
    assert read_drafter(checkpoint, Answers(), TARGET).producer == "synthetic"
