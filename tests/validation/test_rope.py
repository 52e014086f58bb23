"""Rules on rope and positions: bad cases, each with exactly its findings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, HIDDEN, LLAMA3, VOCAB, YARN, call, drafter_folder, older_angelslim
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, aim, exact, only

ROPE = {"select": ["EGL6"]}
BLIND = ("EGL601", "EGL602", "EGL603")


def target(**rope: Any) -> dict[str, Any]:
    """A target with the good drafter's rope and positions, but for these."""
    sizes = {"num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
    return {"model_type": "llama", **sizes, "rope_theta": 5e5, "max_position_embeddings": 2048, **rope}


def both(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **more}}


def scaled(kind: object, **more: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, **more}}


SCALED = {"rope_scaling": YARN}
BY_LAYER = {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}
OLDER = {"transformers_version": "4.51.0"}
OTHER_FACTOR, OTHER_NAME = {**YARN, "factor": 8.0}, {**YARN, "rope_type": "deepseek_yarn"}
# as Qwen2.5-VL's own config has it, and as transformers writes it
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}
SECTIONS = {"rope_type": "default", "type": "default", "mrope_section": [2, 1, 1]}
OTHER_SECTIONS = {"rope_scaling": {**SECTIONS, "mrope_section": [1, 2, 1]}}
LENGTH = {**scaled("yarn", factor=4.0), "original_max_position_embeddings": 512}


BAD = (
    Patch("another base", "EGL601", {"rope_theta": 10000.0}, "the target's 500000", target_config=target()),
    aim("a target with the newer spelling", "EGL601", target(rope_theta=None, **both(1e6)), "1e+06"),
    aim(
        "the target's scaling is lost", "EGL602", target(rope_scaling=LLAMA3), "target's: default and llama3"
    ),
    aim("another", "EGL602", target(rope_scaling=OTHER_FACTOR), "factor 4.0 and 8.0", config=SCALED),
    aim("mrope, spelled by the target", "", target(rope_scaling=MROPE), config={"rope_scaling": SECTIONS}),
    aim("other sections", "EGL602", target(rope_scaling=MROPE), "[1, 2, 1]", config=OTHER_SECTIONS),
    aim("fewer positions than the target", "EGL603", target(max_position_embeddings=8192), "the target 8192"),
    aim("fewer, of two parts", "EGL603", {"text_config": target(max_position_embeddings=8192)}),
    Patch("two bases", "EGL604", both(1e6), "rope_theta: 500000 and rope_parameters.rope_theta: 1e+06"),
    Patch("two scalings", "EGL604", {"rope_scaling": YARN, "rope_parameters": LLAMA3}),
    Patch(
        "sections of another sum", "EGL606", scaled("default", mrope_section=[2, 1, 2]), "its sum must be 4"
    ),
    Patch("sections of no list", "EGL606", scaled("default", mrope_section="half")),
    Patch("a base in the newer spelling alone", "EGL608", {"rope_theta": ABSENT, **both(1e6)}, "base 1e+06"),
    Patch("a scaling in the newer spelling alone", "EGL608", {"rope_parameters": YARN}, "scaling yarn"),
    Patch("a part of each head", "EGL611", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    Patch("told with the base, which is asked", "EGL608", both(5e5, partial_rotary_factor=0.25), "default"),
    Patch("base 0", "EGL609", {"rope_theta": 0}, "rope_theta is 0; a number above 0"),
    Patch("a scaling that nobody knows", "EGL609", scaled("spiral"), "'spiral'"),
    Patch("a scaling without its factor", "EGL609", scaled("linear"), "linear lacks factor"),
    Patch("a dynamic scaling of nothing", "EGL609", {"rope_scaling": {"type": "dynamic"}}),
    Patch("a factor in words", "EGL609", scaled("linear", factor="four")),
    Patch("a rope for each kind of layer", "EGL609", {"rope_theta": ABSENT, **BY_LAYER}, "layer type"),
    Patch("halves paired", "EGL605", {"rope_interleave": False}, given=ROPE, fixture="vllm/mla"),
    Patch("its trainer had another base", "EGL607", OLDER, given=only("EGL607"), fixture="angelslim/gqa"),
    Patch("yarn never trained", "EGL612", {}, "without any", given=only("EGL612"), fixture="modelopt/hf"),
    Patch("a share of the rotary dimensions that is none", "EGL609 EGL611", {"partial_rotary_factor": 1e308}),
    Patch(
        "yarn from no length",
        "EGL610",
        scaled("yarn", factor=4.0),
        "yarn lacks original_max_position",
    ),
)
GOOD = (
    Patch("yarn", "", SCALED),
    Patch("llama3 rope", "", {"rope_scaling": LLAMA3}),
    Patch("both spellings", "", both(500000.0)),
    Patch("sections", "", scaled("default", mrope_section=[2, 1, 1])),
    Patch("a length beside the scaling", "", LENGTH),
    aim("deepseek's name for yarn", "", target(rope_scaling=OTHER_NAME), config=SCALED),
    Patch("no target", "", given=ROPE, blind=BLIND),
    aim("a target that states nothing", "", {"num_hidden_layers": 8}, given=ROPE, blind=("EGL601", "EGL603")),
    aim("a target with two ropes", "", target(**BY_LAYER), given=ROPE, blind=("EGL601", "EGL602")),
)

test_a_rope_gives_exactly_its_findings = exact(BAD + GOOD)


def test_a_trainer_that_rotates_otherwise_than_it_says_is_doubted(tmp_path: Path) -> None:
    folder = str(older_angelslim(tmp_path / "source"))
    answered = eaglectl.validate(folder, answers=Answers(semantics={"rope": "stored"}), select=["EGL607"])
    assert not answered.findings
    unanswered = eaglectl.validate(folder, select=["EGL607"])
    (finding,) = unanswered.findings
    assert "rope=10000" in finding.match.message and not unanswered.unchecked


@pytest.mark.fast(2)
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    "name", ["speculators/qwen3", "speculators/peagle-llama", "speculators/plain", "specforge/gqa"]
)
def test_a_partial_rotary_is_asked_and_kept_or_dropped(name: str, place: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "producers" / name, source)
    config = json.loads((source / "config.json").read_text())
    layer = config.get("transformer_layer_config", config)
    layer[place] = (layer.pop("rope_parameters", None) or {}) | {"partial_rotary_factor": 0.5}
    (source / "config.json").write_text(json.dumps(config))

    def judged(folder: Path, **answers: str) -> tuple[list[str], list[str]]:
        answered = Answers(semantics=answers)
        report = eaglectl.validate(folder, answers=answered, select=["EGL611", "EGL1148"], engines=["sglang"])
        return [one.rule.id for one in report.findings], [one.rule.id for one in report.unchecked]

    assert judged(source) == ([], ["EGL611"])
    asked = call("convert", source, "-o", tmp_path / "x").err
    assert "rope=stored (what the file says) or rope=plain" in asked
    for answer, kept in (("stored", 0.5), ("plain", None)):
        assert judged(source, rope=answer)[1] == []
        out = tmp_path / answer
        done = call("convert", source, "-o", out, "--source-semantics", f"rope={answer}")
        assert done.code == 0, done.err
        scaling = json.loads((out / "config.json").read_text()).get("rope_scaling") or {}
        assert scaling.get("partial_rotary_factor") == kept
        assert judged(out) == ([], [])


@pytest.mark.parametrize("name", ["vllm/native", "specforge/gqa"])
def test_a_part_at_the_top_is_taken_with_the_answer_as_in_the_object(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "producers" / name, source)
    config = json.loads((source / "config.json").read_text()) | {"partial_rotary_factor": 0.5}
    (source / "config.json").write_text(json.dumps(config))

    def judged(folder: Path, **answers: str) -> list[str]:
        selected = ["EGL611", "EGL1087", "EGL1148"]
        report = eaglectl.validate(folder, answers=Answers(semantics=answers), select=selected)
        return [one.rule.id for one in report.findings]

    assert (
        judged(source) == judged(source, rope="plain") == ["EGL611"] and judged(source, rope="stored") == []
    )
    for answer, kept in (("stored", 0.5), ("plain", None)):
        done = call("convert", source, "-o", tmp_path / answer, "--source-semantics", f"rope={answer}")
        assert done.code == 0, done.err
        written = json.loads((tmp_path / answer / "config.json").read_text())
        assert written.get("partial_rotary_factor") == kept
        assert (written.get("rope_scaling") or {}).get("partial_rotary_factor") == kept
        assert judged(tmp_path / answer) == []


def test_a_place_is_the_key_as_the_config_has_it(tmp_path: Path) -> None:
    newer = drafter_folder(tmp_path, config={"rope_theta": ABSENT, **both(1e6)})
    layer = "transformer_layer_config.rope_parameters"
    for folder, key in ((newer, "rope_parameters"), (FIXTURES / "producers/speculators/plain", layer)):
        report = eaglectl.validate(folder, select=["EGL608"])
        assert report.findings[0].match.where == f"config.json:{key}"
