"""What is in doubt of a producer's files: said by `inspect` and `validate` alike, through conversions too."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from tests.builders import (
    ABSENT,
    HIDDEN,
    LLAMA3,
    VOCAB,
    changed,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    mask,
    read_safetensors,
    target_of,
)
from tests.conftest import FIXTURES
from tests.drafters import Made

PRODUCERS = FIXTURES / "producers"
MODELOPT, ANGELSLIM = PRODUCERS / "modelopt/hf", PRODUCERS / "angelslim/gqa"
TARGET = str(FIXTURES / "target")
# what nobody but vLLM's own layout states
FLAGS = dict.fromkeys(
    ("norm_before_residual", "fc_norm", "norm_output", "norm_before_fc", "num_aux_hidden_states"), ABSENT
)
VLLM = "vllm==0.33.0"


def topics(folder: Path, **answers: str) -> list[str]:
    """The topics of an inspection's warnings and questions."""
    drafter = eaglectl.inspect(str(folder), answers=Answers(semantics=answers)).drafter
    return sorted(note.topic for note in drafter.notes if note.level in ("warning", "question"))


def outcome(folder: Path, **answers: str) -> tuple[str, str]:
    """The verdicts of inspect and validate on the newest vLLM."""
    given = Answers(semantics=answers)
    (seen,) = eaglectl.inspect(str(folder), target=TARGET, engines=[VLLM], answers=given).requested
    options = eaglectl.ValidateOptions(target=TARGET, engines=[VLLM], answers=given)
    (judged,) = eaglectl.validate(str(folder), options).releases
    return seen.outcome, judged.outcome.check


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(target_of(tmp_path / "target"))


def converted(source: Path, out: Path, layout: str = "vllm", target: str = TARGET, **answers: str) -> Path:
    options = ConvertOptions(
        layout=layout, target=target, target_name="org/target", answers=Answers(semantics=answers)
    )
    eaglectl.convert(str(source), out, options)
    return out


def edited(source: Path, folder: Path, **config: Any) -> Path:
    """A copy of a producer's fixture with these keys of its config; None takes one out."""
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(json.dumps(changed(source, **config)))
    return folder


def record(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "eaglectl.json").read_text())
    return value


def test_yarn_that_modelopt_wrote_and_never_trained_is_not_as_trained() -> None:
    assert topics(MODELOPT) == ["double-norm", "rope-untrained"]
    out = eaglectl.inspect(str(MODELOPT), target=TARGET, engines=["vllm>=0.22", "sglang"])
    assert "as trained" not in {verdict.outcome for verdict in out.requested}


def test_modelopts_doubts_stay_through_two_conversions(tmp_path: Path) -> None:
    once = converted(MODELOPT, tmp_path / "once", rope="plain")
    twice = converted(once, tmp_path / "twice", "speculators")
    for folder in (once, twice):
        (doubt,) = record(folder)["doubts"]
        assert (doubt["producer"], doubt["topic"]) == ("modelopt", "joined-norms")
        assert topics(folder) == ["joined-norms"]
        assert outcome(folder) == ("unknown", "could-not-look")
        report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL507", "EGL612"]))
        assert [finding.rule.id for finding in report.findings] == ["EGL507"]
        assert report.findings[0].fix.startswith(f"measure the remaining loss with `eaglectl smoke {folder}")


@pytest.mark.parametrize(("answer", "scaling"), [("stored", "yarn"), ("plain", None)])
def test_an_answer_settles_the_doubt_for_good(answer: str, scaling: str | None, tmp_path: Path) -> None:
    out = converted(MODELOPT, tmp_path / "out", rope=answer, modelopt="pre-689")
    written = json.loads((out / "config.json").read_text())["rope_scaling"]
    assert (written or {}).get("rope_type") == scaling
    assert record(out)["doubts"] == []
    assert topics(out) == []
    assert outcome(out) == ("as trained", "pass")


@pytest.mark.parametrize(
    "doubts",
    [
        "rope-untrained",
        [["modelopt", "rope-untrained"]],
        [{"producer": "modelopt"}, None, 5],
        [{"producer": "nobody", "topic": "double-norm"}],
        [{"producer": ["modelopt"], "topic": {"a": 1}}],
        [{"producer": "automodel", "topic": "training-unservable"}],
    ],
)
def test_a_record_that_is_not_as_written_says_nothing(doubts: Any, tmp_path: Path) -> None:
    out = converted(MODELOPT, tmp_path / "out", rope="stored")
    (out / "eaglectl.json").write_text(json.dumps({**record(out), "doubts": doubts}))
    assert topics(out) == []


FULL = {"d2t": None, "t2d": None, "lm_head.weight": floats("head", VOCAB, HIDDEN)}


@pytest.mark.parametrize(
    ("config", "tensors", "producer"),
    [
        ({}, {}, "angelslim"),
        ({"modal_type": "LLM", "draft_vocab_size": VOCAB}, FULL, "angelslim"),
        ({"draft_vocab_size": VOCAB}, FULL, "native"),
        ({"norm_before_fc": True}, {"input_norm.weight": floats("n", 3 * HIDDEN)}, "native"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, {}, "native"),
        ({"norm_before_residual": True}, {}, "native"),
    ],
    ids=["its own", "marked", "no maps", "input_norm", "vLLM's ids", "a switch of vLLM"],
)
def test_vllms_own_class_name_does_not_make_a_file_angelslims(
    config: dict[str, Any], tensors: dict[str, Any], producer: str, tmp_path: Path
) -> None:
    bare = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    stated = {**FLAGS, **bare, "architectures": ["Eagle3LlamaForCausalLM"], **config}
    stored = drafter_tensors(**{"t2d": mask(), **tensors})
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in stored.items()}
    folder = Made(drafter_config(**stated), renamed).write(tmp_path / "made")
    assert eaglectl.inspect(str(folder)).drafter.producer == producer


def test_for_angelslim_a_scaling_at_which_its_code_stops_is_refused_and_a_base_that_it_does_not_use_said(
    target: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={"rope_scaling": LLAMA3})
    with pytest.raises(RefusedError, match=r"AngelSlim has no rope scaling llama3.*--for vllm"):
        converted(folder, tmp_path / "out", "angelslim", target)
    assert not (tmp_path / "out").exists()
    for base, is_said in ((500000.0, True), (10000.0, False)):
        folder = drafter_folder(tmp_path, f"{base}", config={"rope_theta": base})
        options = ConvertOptions(layout="angelslim", target=target, dry_run=True)
        notes = eaglectl.convert(str(folder), None, options).plan.notes
        assert is_said == any(
            "rotates with base 10000 whatever the config states" in note.text for note in notes
        )


@pytest.mark.parametrize(
    ("version", "changes", "found"),
    [
        ("5.8.1", {"rope_theta": None}, ["rope-base-doubt"]),
        ("5.8.1", {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0}}, []),
        ("5.8.1", {}, []),  # its exporter has written both since the base was read right again
        ("4.57.1", {"rope_theta": None}, []),
        (None, {"rope_theta": None}, []),
    ],
)
def test_a_base_in_rope_parameters_alone_is_one_that_specforge_may_not_have_read(
    version: Any, changes: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    source = PRODUCERS / "specforge/gqa"
    folder = edited(source, tmp_path / "drafter", transformers_version=version, **changes)
    assert topics(folder) == found
    assert topics(folder, rope="stored") == []
    assert ("unknown" in outcome(folder)) == bool(found)


IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
ROPE, SCALING, LAYERS = "rope-base-doubt", "rope-untrained", "aux-ids-doubted"


@pytest.mark.parametrize(
    ("version", "changes", "found"),
    [
        ("4.54.1", {}, [ROPE]),
        ("4.55.2", {}, [LAYERS, ROPE]),
        ("4.55.2", IDS, ["aux-convention", ROPE]),  # as of any trainer, where no target is known
        ("4.55.2", {"rope_theta": 10000.0}, [LAYERS]),
        ("4.54.1", {"rope_scaling": LLAMA3}, [ROPE, SCALING]),
        ("4.53.2", {}, []),  # recipes state it, whatever wrote the file
        ("4.57.1", {}, []),
    ],
)
def test_specforges_pins_tell_which_sources_trained_otherwise_than_the_config_says(
    version: str, changes: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    stated = {"transformers_version": version, "rope_parameters": None, **changes}
    assert topics(edited(PRODUCERS / "specforge/gqa", tmp_path / "drafter", **stated)) == found


OLD_MLA = {"architectures": ["DeepSeekForCausalLMEagle3"], "_torchspec_version": None, "rope_theta": 10000.0}


def test_the_old_class_of_torchspec_is_asked_how_it_pairs_rotary_dimensions_and_halves_are_reordered(
    tmp_path: Path,
) -> None:
    folder = edited(PRODUCERS / "torchspec/mla", tmp_path / "drafter", **OLD_MLA)
    assert topics(folder) == ["rope-pairing"]
    assert topics(folder, rope_interleave="true") == []
    assert eaglectl.inspect(str(folder)).drafter.producer == "torchspec"
    assert topics(PRODUCERS / "torchspec/mla", rope="stored") == []
    with pytest.raises(UsageError, match="rope_interleave=false"):
        converted(folder, tmp_path / "out")
    with pytest.raises(RefusedError, match="--rope-style interleaved"):
        converted(folder, tmp_path / "out", rope_interleave="false")
    answers = Answers(semantics={"rope_interleave": "false"})
    options = ConvertOptions(target=TARGET, rope_style="interleaved", answers=answers)
    eaglectl.convert(str(folder), str(tmp_path / "out"), options)
    name = "self_attn.kv_a_proj_with_mqa.weight"
    before = read_safetensors(folder / "model.safetensors")[f"midlayer.{name}"]
    after = read_safetensors(tmp_path / "out/model.safetensors")[f"layers.0.{name}"]
    assert before[:2] == after[:2] and before[2] != after[2]
    assert topics(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rope_theta": 1000000.0}, [ROPE]),
        ({"rope_theta": 10000.0}, []),
        ({"rope_theta": None}, []),
        ({"rope_theta": 500000.0, "rope_scaling": LLAMA3}, []),  # at which its trainer stops
        ({"rope_theta": 1000000.0, "hidden_act": None}, []),  # SpecJAX's, which reads the base
    ],
)
def test_a_base_that_safeailabs_trainer_does_not_read_is_asked(
    changes: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    folder = edited(PRODUCERS / "eagle/safetensors", tmp_path / "drafter", **changes)
    assert topics(folder) == found
    assert topics(folder, rope="10000") == []


@pytest.mark.parametrize(("answer", "is_served"), [(None, False), ("true", False), ("false", True)])
def test_null_is_not_speculators_default_of_an_absent_key(
    answer: str | None, is_served: bool, tmp_path: Path
) -> None:
    folder = shutil.copytree(FIXTURES / "producers/speculators/eagle3.1", tmp_path / "drafter")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "norm_before_residual": None}))
    answers = Answers(semantics={"norm_before_residual": answer} if answer else {})
    found = eaglectl.validate(str(folder), engines=["vllm"], answers=answers)
    rules = {finding.rule.id for finding in found.findings if finding.severity == "error"}
    assert ("EGL111" in rules, "EGL1027" in rules) == (answer is None, not is_served)
    assert (found.verdict == "pass") == is_served
