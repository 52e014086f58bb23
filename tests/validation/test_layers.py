"""Rules on aux layers: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import ABSENT, HIDDEN, VOCAB, drafter_folder, floats, write_record
from tests.cases import CASES, Case, true_answers
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

TOP = "eagle_aux_hidden_state_layer_ids"
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
# a key without which nobody's mark is left
FLAGS = {"norm_before_fc": ABSENT}
FOUR: dict[str, Any] = {"fc.weight": floats("fc", HIDDEN, 4 * HIDDEN)}


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {TOP: list(ids), "use_aux_hidden_state": True}}


def ids(top: list[int], *below: int, **more: Any) -> dict[str, Any]:
    return {TOP: top, **nested(*below), **more}


def unsigned(*below: int) -> dict[str, Any]:
    """The config of a drafter that no producer signs, with ids in eagle_config alone."""
    return {**FLAGS, TOP: ABSENT, **nested(*below)}


MODELOPT = {**FLAGS, TOP: ABSENT, "eagle_config": {"use_last_layernorm": True, "use_aux_hidden_state": True}}
ENGINES = {"select": ["EGL4"], "engines": ["vllm==0.33.0"]}
TENSORRT = {"engines": ["tensorrt-llm"]}

BAD = (
    Patch(
        "fewer ids than states",
        ("EGL401",),
        ids([2, 5], 1, 4),
        says="2 aux layer ids [2, 5] and an fc that takes 3 states",
    ),
    Patch(
        "four states and no ids",
        ("EGL401",),
        {TOP: ABSENT, "eagle_config": ABSENT, "num_aux_hidden_states": 4},
        FOUR,
        says="names no layers",
    ),
    Patch(
        "a stated number that fc has not",
        ("EGL401",),
        {"num_aux_hidden_states": 4},
        says="num_aux_hidden_states: 4",
    ),
    Patch(
        "an fc of another number",
        ("EGL401",),
        tensors=FOUR,
        says="; 3 aux layer ids [2, 4, 5] and an fc that takes 4 states",
    ),
    Patch(
        "a layer past the target",
        ("EGL402",),
        ids([2, 4, 9], 1, 3, 8),
        target_config=TARGET,
        says="boundary 9 is past the target's 8 layers",
    ),
    Patch("layers in another order", ("EGL403",), ids([5, 2, 4], 4, 1, 3), says="engines sort them"),
    Patch(
        "two lists that differ",
        ("EGL404",),
        ids([2, 4, 6], 1, 3, 4),
        says=f"[2, 4, 6] in {TOP} and [1, 3, 4] in eagle_config.{TOP}",
    ),
    Patch("two lists that differ, of nobody", ("EGL404",), {**FLAGS, **ids([2, 4, 6], 1, 3, 4)}),
    Patch(
        "ids of no convention", ("EGL405",), unsigned(3, 4, 6), says="may be boundaries or outputs of layers"
    ),
    Patch(
        "ids of outputs in eagle_config alone",
        ("EGL406",),
        unsigned(1, 3, 4),
        target_config=TARGET,
        says="vLLM, V1 runner captures [1, 3, 4]",
    ),
    Patch(
        "layers that the serving config must say",
        ("EGL406",),
        ids([2, 4, 7], 1, 3, 6),
        given=TENSORRT,
        says="TensorRT-LLM captures the default",
    ),
    Patch(
        "aux states switched off beside fc",
        ("EGL407",),
        {"eagle_config": {TOP: [1, 3, 4], "use_aux_hidden_state": False}},
    ),
    Patch(
        "four layers that nothing counts",
        ("EGL408",),
        {TOP: [2, 3, 4, 5], "eagle_config": ABSENT, "num_aux_hidden_states": ABSENT},
        FOUR,
        given={"answers": Answers(aux_convention="boundary")},
        says="vLLM builds it for 3",
    ),
    Patch("no ids", ("EGL409",), {TOP: ABSENT, "eagle_config": ABSENT}),
    Patch(
        "no ids of a trainer with recipes",
        ("EGL410",),
        MODELOPT,
        {"embed_tokens.weight": None},
        given={"select": ["EGL4"]},
        says="which 3 NVIDIA ModelOpt trained on without saying so is not known",
    ),
    Patch(
        "ids of outputs where vLLM reads boundaries",
        ("EGL412",),
        {**FLAGS, TOP: [1, 3, 4], "eagle_config": ABSENT},
        given={"select": ["EGL412"]},
        target_config=TARGET,
        says="(boundaries [2, 4, 5]), and vLLM reads boundaries [1, 3, 4] there",
    ),
    Patch("a layer twice", ("EGL411",), ids([2, 4, 4], 1, 3, 3), says="not ascending and distinct"),
)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_bad_aux_layers_give_exactly_their_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


@pytest.mark.parametrize("engines", [(), ("vllm",), ("vllm>=0.22", "sglang"), ("sglang",)])
def test_explicit_layers_as_convert_writes_them_suit_every_engine(
    engines: tuple[str, ...], tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=ids([3, 9, 14], 2, 8, 13))
    report = eaglectl.validate(
        str(folder), eaglectl.ValidateOptions(engines=engines, select=["EGL4"], answers=Answers())
    )
    assert not report.findings


def test_the_runner_that_a_release_starts_by_default_is_left_to_the_serving_rules(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config=unsigned(2, 4, 6))
    given = {"select": ["EGL406"], "answers": Answers(aux_convention="boundary")}
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(engines=["vllm==0.33.0"], **given))
    assert (
        not report.findings
    )  # V1 reads eagle_config as boundaries; V2, the default, is judged by the release
    for release in ("0.10.2", "0.16.0"):  # there was no other runner
        assert not eaglectl.validate(
            str(folder), eaglectl.ValidateOptions(engines=[f"vllm=={release}"], **given)
        ).findings


def test_the_way_out_for_tensorrt_is_its_serving_config(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config=ids([2, 4, 7], 1, 3, 6))
    report = eaglectl.validate(
        str(folder), eaglectl.ValidateOptions(select=["EGL406"], engines=["tensorrt-llm"])
    )
    assert "eagle3_layers_to_capture: {1, 3, 6}" in report.findings[0].fix


def test_sglang_ids_that_depend_on_the_target_are_not_guessed(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config=ids([3, 9, 14], 2, 8, 13))
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL406"], has_engines=False))
    assert "depends on the target" in report.unchecked[0].reason


def test_the_record_of_a_conversion_tells_what_its_ids_mean(tmp_path: Path) -> None:
    source, out = str(FIXTURES / "producers/modelopt/hf-ids-unsorted"), tmp_path / "out"
    target = str(FIXTURES / "target")
    answers = true_answers(source)
    eaglectl.convert(
        source, out, ConvertOptions("speculators", target=target, target_name="a/b", answers=answers)
    )
    assert not eaglectl.validate(str(out), eaglectl.ValidateOptions(select=["EGL4"])).findings
    config = json.loads((out / "config.json").read_text())
    # the class that speculators' converter writes, which copies ids as they are
    (out / "config.json").write_text(json.dumps({**config, "architectures": ["Eagle3Speculator"]}))
    write_record(out, **json.loads((out / "eaglectl.json").read_text()))
    assert not eaglectl.validate(str(out), eaglectl.ValidateOptions(select=["EGL4"])).findings
    (out / "eaglectl.json").unlink()
    assert [
        one.rule.id for one in eaglectl.validate(str(out), eaglectl.ValidateOptions(select=["EGL4"])).findings
    ] == ["EGL405"]


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_no_producer_is_told_that_its_ids_are_wrong(case: Case) -> None:
    report = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(answers=case.answered(), select=["EGL4"])
    )
    assert not [one for one in report.findings if one.severity == "error"]
