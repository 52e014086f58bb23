"""Wrong declarations are found: a fixture that is converted for its own producer comes out as it was.

The names of its tensors, the keys of its config and their values are compared, and the layers with the truth.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Feature
from eaglectl.errors import EaglectlError
from eaglectl.formats import catalogue
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.formats.format import ALWAYS, TOP_IDS, Answers, CheckpointSummary, Format, IdsPlace, Layout
from eaglectl.operations.converting import ConvertOptions
from tests.builders import HIDDEN, drafter_config, drafter_tensors, floats, read_safetensors
from tests.cases import CASES
from tests.conftest import FIXTURES
from tests.drafters import Made

TARGET = str(FIXTURES / "target")
MARK = "modal_type"  # by which AngelSlim's files are known again; its text drafters have none
# what every layout writes, whichever spelling or absence of it a trainer has
SPELT_OTHERWISE = {
    *("rope_theta", "rope_scaling", "rope_parameters", "torch_dtype", "dtype", "transformers_version"),
    *("target_hidden_size", "attention_bias", "mlp_bias", "head_dim", "tie_word_embeddings", "_name_or_path"),
    *("max_position_embeddings", "num_hidden_layers", "draft_vocab_size", "num_nextn_predict_layers"),
}


def stated(folder: Path) -> dict[str, Any]:
    """The config without nulls, which readers take as absent."""
    config = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in config.items() if value is not None}


def names(folder: Path) -> set[str]:
    return {name for file in folder.glob("*.safetensors") for name in read_safetensors(file)}


def differences(
    folder: Path, format: Format, parent: Path, answers: Answers | None = None, target: str | None = None
) -> Iterator[str]:
    """Where a fixture that is converted for its own producer is not what it was."""
    answers = answers or Answers()
    options = ConvertOptions(
        target=target, layout=format.name, answers=answers, target_name="org/target", force_unserved=True
    )
    eaglectl.convert(str(folder), parent / "own", options)
    before, after = (stated(place) for place in (folder, parent / "own"))
    lost = {*SPELT_OTHERWISE, *format.retires}
    added = {*SPELT_OTHERWISE, MARK, *(place.key.partition(".")[0] for place in format.ids)}
    yield from (f"{key} is new" for key in after.keys() - before.keys() - added)
    yield from (f"{key} is gone" for key in before.keys() - after.keys() - lost)
    for key in before.keys() & after.keys() - lost - {"eagle_config"}:
        if before[key] != after[key]:
            yield f"{key} was {before[key]} and is {after[key]}"
    stored, written = names(folder), names(parent / "own")
    yield from (f"tensor {name} is new or gone" for name in stored ^ written)


# of each producer that is written, a fixture that its own code wrote so
OWN = (
    *(
        "angelslim/ids",
        "automodel/eagle3.1",
        "eagle/safetensors",
        "lightseekorg/mla-eagle3.1",
        "modelopt/hf-ids",
    ),
    *("modelopt-megatron/deep", "nebius/truncated", "specforge/gqa-ids", "torchspec/llama", "vllm/native"),
    *("torchspec/mla",),
)


@pytest.mark.parametrize("path", OWN)
def test_a_fixture_converted_for_its_own_producer_comes_out_as_it_was(path: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.path == path)
    drafter = eaglectl.inspect(str(case.folder), target=TARGET, answers=case.answered()).drafter
    format = by_name(drafter.producer)
    assert list(differences(case.folder, format, tmp_path, case.answered(), TARGET)) == []


# ------------------------------------------------------------------------------- a producer that is made up


def _recognise(summary: CheckpointSummary) -> str | None:
    return "config has acme_version" if "acme_version" in summary.config else None


ACME = Format(
    "acme",
    "Acme",
    _recognise,
    ids=(IdsPlace("acme.layers", "output", is_certain=True),),
    retires=("acme_version",),
    layout=Layout(
        {"llama": "AcmeEagle3"},
        {"llama": "llama"},
        ALWAYS | {Feature.AUX_LAYERS, Feature.NORM_BEFORE_FC},
        layer="midlayer",
        prefix="net.",
        extra={"acme_version": "1"},
    ),
)
LAYERS = (2, 4, 6)
LEFT = (
    TOP_IDS,
    "eagle_config",
    "norm_before_residual",
    "norm_output",
    "fc_norm",
    "num_aux_hidden_states",
    "norm_before_fc",
)


def acme_file(parent: Path) -> Path:
    """A drafter as Acme writes it, of its own names and keys."""
    config = {key: value for key, value in drafter_config().items() if key not in LEFT}
    config |= {
        "architectures": ["AcmeEagle3"],
        "model_type": "llama",
        "acme_version": "1",
        "norm_before_fc": True,
        "eagle_config": {"norm_before_fc": True},
        "acme": {"layers": [1, 3, 5]},
    }
    tensors = drafter_tensors() | {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
    bare = ("lm_head.weight", "d2t", "t2d")
    named = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    return Made(config, {n if n in bare else f"net.{n}": t for n, t in named.items()}).write(parent / "acme")


def layout(**changes: Any) -> Format:
    assert ACME.layout is not None
    return replace(ACME, layout=replace(ACME.layout, **changes))


assert ACME.layout is not None
FEATURES = ACME.layout.expresses
WRONG: Mapping[str, Format] = {
    "another class": layout(architectures={"llama": "AcmeModel"}),
    "another model type": layout(model_types={"llama": "qwen3"}),
    "ids as boundaries": replace(ACME, ids=(IdsPlace("acme.layers", "boundary", is_certain=True),)),
    "ids by SGLang's rule": replace(ACME, ids=(IdsPlace("acme.layers", "sglang"),)),
    "no place of ids": replace(ACME, ids=()),
    "another key of ids": replace(ACME, ids=(IdsPlace("acme.layer", "output", is_certain=True),)),
    "ids for other engines too": layout(extra_ids=(IdsPlace("more.layers", "output"),)),
    "no prefix": layout(prefix=""),
    "another prefix": layout(prefix="model."),
    "a prefix before lm_head too": layout(unprefixed=("d2t", "t2d")),
    "a prefix before d2t too": layout(unprefixed=("lm_head.",)),
    "other names of layers": layout(layer="layers.{}"),
    "no norm_before_fc": layout(expresses=FEATURES - {Feature.NORM_BEFORE_FC}),
    "no aux layers": layout(expresses=FEATURES - {Feature.AUX_LAYERS}),
    "no reduced vocabulary": layout(expresses=FEATURES - {Feature.REDUCED_VOCABULARY}),
    "all flags stated": layout(states_flags=True),
    "a number of states stated": layout(has_aux_count=True),
    "a residual after the norm": replace(ACME, residual_default=True),
    "a key that it does not write": layout(extra={"acme_version": "1", "acme_kind": "x"}),
    "another version": layout(extra={"acme_version": "2"}),
    "nested keys": layout(nest=lambda drafter, decoder, rest, carried: {"layer": decoder, **rest}),
    "P-EAGLE": replace(ACME, is_parallel=True),
    "another producer's marks": replace(ACME, recognise=lambda summary: None),
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Format], None]:
    """Makes a declaration known everywhere."""
    return lambda format: monkeypatch.setattr(catalogue, "FORMATS", (format, *FORMATS))


def faults(format: Format, parent: Path) -> list[str]:
    """What the contract finds on Acme's file with this declaration."""
    try:
        drafter = eaglectl.inspect(str(acme_file(parent))).drafter
        found = list(differences(parent / "acme", format, parent))
    except EaglectlError as error:
        return [str(error)]
    truth = {
        "producer": (drafter.producer, "acme"),
        "kind": (drafter.kind, "eagle3"),
        "layers": (drafter.aux.boundaries, LAYERS),
        "residual": (drafter.norms.norm_before_residual, False),
    }
    found += [
        f"{fact} is {read}, and {true} was trained" for fact, (read, true) in truth.items() if read != true
    ]
    version = json.loads((parent / "own/config.json").read_text()).get("acme_version")
    return found if version == "1" else [*found, f"acme_version is {version}"]


def test_the_right_declaration_keeps_the_contract(known: Callable[[Format], None], tmp_path: Path) -> None:
    known(ACME)
    assert faults(ACME, tmp_path) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_breaks_the_contract(
    name: str, known: Callable[[Format], None], tmp_path: Path
) -> None:
    known(WRONG[name])
    assert faults(WRONG[name], tmp_path)


# fields of which Acme's one file shows nothing; each needs a fixture of the kind beside it
WITHOUT_EVIDENCE: Mapping[str, tuple[Any, str]] = {
    "has_unordered_rows": (True, "without d2t"),
    "orders_ids": (True, "with ids that do not ascend"),
    "training_default": (None, "without ids"),
    "states_layers": (False, "without ids"),
    "has_mla_factors": (False, "of an MLA drafter with yarn"),
}


@pytest.mark.parametrize("field", WITHOUT_EVIDENCE)
def test_a_field_without_evidence_is_one_that_the_contract_cannot_see(
    field: str, known: Callable[[Format], None], tmp_path: Path
) -> None:
    value, needed = WITHOUT_EVIDENCE[field]
    other = replace(ACME, **{field: value})
    known(other)
    assert faults(other, tmp_path) == [], f"{field} has evidence now; else it takes a fixture {needed}"


def test_no_module_outside_of_them_imports_a_producer() -> None:
    others = [
        path for path in (FIXTURES.parent / "eaglectl").rglob("*.py") if path.parent.name != "producers"
    ]
    assert [path for path in others if "formats.producers." in path.read_text()] == []
