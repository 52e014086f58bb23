"""Rules on rope and positions: every bad case is a good drafter, a patch, and exactly the findings it must
give.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, HIDDEN, VOCAB, call, drafter_folder, older_angelslim
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

ROPE = {"select": ["EGL6"]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
BLIND = ("EGL601", "EGL602", "EGL603")


def target(**rope: Any) -> dict[str, Any]:
    """A target with the good drafter's rope and positions, but for these."""
    config = {"rope_theta": 500000.0, "max_position_embeddings": 2048, **rope}
    return {
        "model_type": "llama",
        "num_hidden_layers": 8,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        **config,
    }


def both(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **more}}


BAD = (
    Patch(
        "another base than the target's",
        ("EGL601",),
        {"rope_theta": 10000.0},
        target_config=target(),
        says="base 10000 and the target with 500000",
    ),
    Patch(
        "a target with the newer spelling",
        ("EGL601",),
        target_config=target(rope_theta=None, **both(1e6)),
        says="1e+06",
    ),
    Patch(
        "the target's scaling is lost",
        ("EGL602",),
        target_config=target(rope_scaling=LLAMA3),
        says="differ: default and llama3",
    ),
    Patch(
        "another factor than the target's",
        ("EGL602",),
        {"rope_scaling": YARN},
        target_config=target(rope_scaling={**YARN, "factor": 8.0}),
        says="differ: factor 4.0 and 8.0",
    ),
    Patch(
        "fewer positions than the target",
        ("EGL603",),
        target_config=target(max_position_embeddings=8192),
        says="2048 positions and the target 8192",
    ),
    Patch(
        "fewer positions than a target of two parts",
        ("EGL603",),
        target_config={"text_config": target(max_position_embeddings=8192)},
    ),
    Patch(
        "two bases", ("EGL604",), both(1e6), says="rope_theta: 500000 and rope_parameters.rope_theta: 1e+06"
    ),
    Patch("two scalings", ("EGL604",), {"rope_scaling": YARN, "rope_parameters": LLAMA3}),
    Patch(
        "sections of another sum",
        ("EGL606",),
        {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 2]}},
        says="its sum must be 4",
    ),
    Patch(
        "sections of no list",
        ("EGL606",),
        {"rope_scaling": {"rope_type": "default", "mrope_section": "half"}},
    ),
    Patch(
        "a base in the newer spelling alone",
        ("EGL608",),
        {"rope_theta": ABSENT, **both(1e6)},
        says="base 1e+06",
    ),
    Patch(
        "a scaling in the newer spelling alone", ("EGL608",), {"rope_parameters": YARN}, says="scaling yarn"
    ),
    Patch(
        "a part of each head",
        ("EGL611",),
        {"partial_rotary_factor": 0.5},
        says="partial_rotary_factor is 0.5",
    ),
    Patch(
        "a part of each head, told with the base",
        ("EGL608", "EGL611"),
        both(500000.0, partial_rotary_factor=0.25),
        says="rope_parameters.partial_rotary_factor is 0.25",
    ),
    Patch(
        "base 0",
        ("EGL609",),
        {"rope_theta": 0},
        says="rope_theta is 0; a number above 0",
    ),
    Patch(
        "a scaling that nobody knows", ("EGL609",), {"rope_scaling": {"rope_type": "spiral"}}, says="'spiral'"
    ),
    Patch(
        "a scaling without its factor",
        ("EGL609",),
        {"rope_scaling": {"rope_type": "linear"}},
        says="linear is without factor",
    ),
    Patch("a dynamic scaling of nothing", ("EGL609",), {"rope_scaling": {"type": "dynamic"}}),
    Patch("a factor in words", ("EGL609",), {"rope_scaling": {"rope_type": "linear", "factor": "four"}}),
    Patch(
        "a rope for each kind of layer",
        ("EGL609",),
        {"rope_theta": ABSENT, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        says="layer type",
    ),
    Patch(
        "halves paired in an MLA drafter",
        ("EGL605",),
        {"rope_interleave": False},
        given=ROPE,
        fixture="vllm/mla",
    ),
    Patch(
        "a trainer that ignores its config's base",
        ("EGL607",),
        {"transformers_version": "4.51.0"},
        given={"select": ["EGL607"]},
        fixture="angelslim/gqa",
    ),
    Patch(
        "yarn that was written and never trained",
        ("EGL612",),
        given={"select": ["EGL612"]},
        fixture="modelopt/hf",
        says="its trainer rotates without any",
    ),
    Patch(
        "yarn from no length",
        ("EGL610",),
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        says="yarn is without original_max_position_embeddings",
    ),
)
GOOD = (
    Patch("yarn", (), {"rope_scaling": YARN}),
    Patch("llama3 rope", (), {"rope_scaling": LLAMA3}),
    Patch("both spellings", (), both(500000.0)),
    Patch("sections", (), {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}}),
    Patch(
        "a length beside the scaling",
        (),
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 512},
    ),
    Patch(
        "deepseek's name for yarn",
        (),
        {"rope_scaling": YARN},
        target_config=target(rope_scaling={**YARN, "rope_type": "deepseek_yarn"}),
    ),
    Patch("no target", (), given=ROPE, blind=BLIND),
    Patch(
        "a target that states nothing",
        (),
        given=ROPE,
        target_config={"num_hidden_layers": 8},
        blind=("EGL601", "EGL603"),
    ),
    Patch(
        "a target with two ropes",
        (),
        given=ROPE,
        target_config=target(rope_parameters={"full_attention": {"rope_theta": 1e4}}),
        blind=("EGL601", "EGL602"),
    ),
)


@pytest.mark.parametrize("patch", (*BAD, *GOOD), ids=lambda patch: patch.why)
def test_a_rope_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_an_mla_drafter_that_pairs_halves_is_said_to_be_rotated_wrongly(tmp_path: Path) -> None:
    folder = tmp_path / "mla"
    shutil.copytree(FIXTURES / "producers/vllm/mla", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_interleave": False}))
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(**ROPE))
    assert [one.rule.id for one in report.findings] == ["EGL605"]


def test_a_trainer_that_rotates_otherwise_than_it_says_is_doubted(tmp_path: Path) -> None:
    folder = str(older_angelslim(tmp_path / "source"))
    answered = eaglectl.validate(
        folder, eaglectl.ValidateOptions(answers=Answers(semantics={"rope": "stored"}), select=["EGL607"])
    )
    assert not answered.findings
    unanswered = eaglectl.validate(folder, eaglectl.ValidateOptions(select=["EGL607"]))
    assert [one.rule.id for one in unanswered.findings] == ["EGL607"] and not unanswered.unchecked
    assert "rope=10000" in unanswered.findings[0].match.message


@pytest.mark.parametrize("name", ["qwen3", "peagle-llama", "plain"])
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_a_partial_rotary_of_speculators_is_asked_and_kept_or_dropped(
    name: str, place: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "producers/speculators" / name, source)
    config = json.loads((source / "config.json").read_text())
    layer = config["transformer_layer_config"]
    layer[place] = layer.pop("rope_parameters") | {"partial_rotary_factor": 0.5}
    (source / "config.json").write_text(json.dumps(config))

    def judged(folder: Path, **answers: str) -> tuple[list[str], list[str]]:
        options = eaglectl.ValidateOptions(answers=Answers(semantics=answers), select=["EGL611"])
        report = eaglectl.validate(str(folder), options)
        return [one.rule.id for one in report.findings], [one.rule.id for one in report.unchecked]

    assert judged(source) == ([], ["EGL611"])
    assert (
        "rope=stored (what the file says) or rope=plain" in call("convert", source, "-o", tmp_path / "x").err
    )
    for answer, kept in (("stored", 0.5), ("plain", None)):
        assert judged(source, rope=answer) == ([], [])
        out = tmp_path / answer
        done = call("convert", source, "-o", out, "--source-semantics", f"rope={answer}")
        assert done.code == 0, done.err
        scaling = json.loads((out / "config.json").read_text()).get("rope_scaling") or {}
        assert scaling.get("partial_rotary_factor") == kept
        assert judged(out) == ([], [])


def test_a_place_is_the_key_as_the_config_has_it(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"rope_theta": ABSENT, **both(1e6)})
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL608"]))
    assert report.findings[0].match.where == "config.json:rope_parameters"
    speculators = FIXTURES / "producers/speculators/plain"
    report = eaglectl.validate(str(speculators), eaglectl.ValidateOptions(select=["EGL608"]))
    assert report.findings[0].match.where == "config.json:transformer_layer_config.rope_parameters"


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_no_producer_is_told_that_its_rope_is_wrong(case: Case) -> None:
    report = eaglectl.validate(str(case.folder), eaglectl.ValidateOptions(answers=case.answered(), **ROPE))
    loud = {one.rule.id for one in report.findings if one.severity != "note"}
    assert loud <= {"EGL607", "EGL612"}


def test_rules_on_the_targets_rope_ask_for_the_target_alone(tmp_path: Path) -> None:
    report = eaglectl.validate(drafter_folder(tmp_path))
    reasons = {entry.reason for entry in report.unchecked if entry.rule.id in ("EGL601", "EGL602")}
    assert reasons == {"no target was given; pass --target"}
