"""Rules on aux layers: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, HIDDEN, VOCAB, floats, write_record
from tests.cases import true_answers
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, aim, exact, only, store

TOP = "eagle_aux_hidden_state_layer_ids"
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
# a key without which nobody's mark is left
FLAGS = {"norm_before_fc": ABSENT}
NO_IDS = {TOP: ABSENT, "eagle_config": ABSENT}
FOUR: dict[str, Any] = {"fc.weight": floats("fc", HIDDEN, 4 * HIDDEN)}


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {TOP: list(ids), "use_aux_hidden_state": True}}


def ids(top: list[int], *below: int, **more: Any) -> dict[str, Any]:
    return {TOP: top, **nested(*below), **more}


def unsigned(*below: int) -> dict[str, Any]:
    """The config of a drafter that no producer signs, with ids in eagle_config alone."""
    return {**FLAGS, TOP: ABSENT, **nested(*below)}


MODELOPT = {**FLAGS, TOP: ABSENT, "eagle_config": {"use_last_layernorm": True, "use_aux_hidden_state": True}}
NO_EMBEDDING = {"embed_tokens.weight": None}
UNCOUNTED = {TOP: [2, 3, 4, 5], "eagle_config": ABSENT, "num_aux_hidden_states": ABSENT}
OUTPUTS = {**FLAGS, TOP: [1, 3, 4], "eagle_config": ABSENT}
BOUNDARIES = {"answers": Answers(aux_convention="boundary")}
RECIPES = "it is unknown which 3 NVIDIA ModelOpt trained on"
READ_AS = "(boundaries [2, 4, 5]), and vLLM reads boundaries [1, 3, 4] there"
TENSORRT = {"engines": ["tensorrt-llm"]}

BAD = (
    Patch("fewer ids than states", "EGL401", ids([2, 5], 1, 4), "[2, 5] and an fc that takes 3 states"),
    Patch("four states, no ids", "EGL401", {**NO_IDS, "num_aux_hidden_states": 4}, "no layers", tensors=FOUR),
    Patch("a number that fc has not", "EGL401", {"num_aux_hidden_states": 4}, "num_aux_hidden_states: 4"),
    store("an fc of another number", "EGL401", FOUR, "[2, 4, 5] and an fc that takes 4"),
    Patch("past the target", "EGL402", ids([2, 4, 9], 1, 3, 8), "boundary 9 is past", target_config=TARGET),
    Patch("layers in another order", "EGL403", ids([5, 2, 4], 4, 1, 3), "engines sort them"),
    Patch("two lists that differ", "EGL404", ids([2, 4, 6], 1, 3, 4), f"[2, 4, 6] in {TOP} and [1, 3, 4]"),
    Patch("two lists that differ, of nobody", "EGL404", {**FLAGS, **ids([2, 4, 6], 1, 3, 4)}),
    Patch("ids of no convention", "EGL405", unsigned(3, 4, 6), "may be boundaries or outputs of layers"),
    Patch("outputs nested alone", "EGL406", unsigned(1, 3, 4), "captures [1, 3, 4]", target_config=TARGET),
    Patch("layers for TensorRT", "EGL406", ids([2, 4, 7], 1, 3, 6), "captures the default", given=TENSORRT),
    Patch("aux states off", "EGL407", {"eagle_config": {TOP: [1, 3, 4], "use_aux_hidden_state": False}}),
    Patch("four layers uncounted", "EGL408", UNCOUNTED, "vLLM builds fc for 3", FOUR, given=BOUNDARIES),
    Patch("no ids", "EGL409", NO_IDS),
    Patch("a trainer with recipes", "EGL410", MODELOPT, RECIPES, NO_EMBEDDING, given=only("EGL4")),
    aim("outputs read as boundaries", "EGL412", TARGET, READ_AS, config=OUTPUTS, given=only("EGL412")),
    Patch("a layer twice", "EGL411", ids([2, 4, 4], 1, 3, 3), "not ascending and distinct"),
)

test_bad_aux_layers_give_exactly_their_findings = exact(BAD)


@pytest.mark.parametrize("engines", [(), ("vllm>=0.22", "sglang")])
def test_explicit_layers_as_convert_writes_them_suit_every_engine(
    engines: tuple[str, ...], tmp_path: Path
) -> None:
    patch = Patch("", "", ids([3, 9, 14], 2, 8, 13), given={"engines": engines, **only("EGL4")})
    assert not patch.report(tmp_path).findings


# V2, the default of 0.33.0, is judged by the release; before there was no other runner than V1
@pytest.mark.parametrize("release", ["0.33.0", "0.10.2", "0.16.0"])
def test_ids_that_the_runner_of_a_release_reads_are_left_to_its_rules(release: str, tmp_path: Path) -> None:
    given = {"engines": [f"vllm=={release}"], **only("EGL406"), **BOUNDARIES}
    assert not Patch("", "", unsigned(2, 4, 6), given=given).report(tmp_path).findings


def test_sglang_ids_that_depend_on_the_target_are_not_guessed(tmp_path: Path) -> None:
    report = Patch("", "", ids([3, 9, 14], 2, 8, 13), given=only("EGL406")).report(tmp_path)
    assert "depend on the target" in report.unchecked[0].reason


def test_the_record_of_a_conversion_tells_what_its_ids_mean(tmp_path: Path) -> None:
    source, out = str(FIXTURES / "producers/modelopt/hf-ids-unsorted"), tmp_path / "out"
    options: dict[str, Any] = {"target": str(FIXTURES / "target"), "target_name": "a/b"}
    eaglectl.convert(source, out, answers=true_answers(source), layout="speculators", **options)
    assert not eaglectl.validate(out, select=["EGL4"]).findings
    config = json.loads((out / "config.json").read_text())
    # the class that speculators' converter writes, which copies ids as they are
    (out / "config.json").write_text(json.dumps({**config, "architectures": ["Eagle3Speculator"]}))
    write_record(out, **json.loads((out / "eaglectl.json").read_text()))
    assert not eaglectl.validate(out, select=["EGL4"]).findings
    (out / "eaglectl.json").unlink()
    assert [one.rule.id for one in eaglectl.validate(out, select=["EGL4"]).findings] == ["EGL405"]
