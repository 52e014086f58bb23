"""What is in doubt of a producer's files: said by `inspect` and `validate` alike, through conversions too."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import (
    ABSENT,
    HIDDEN,
    VOCAB,
    changed,
    drafter_folder,
    drafter_tensors,
    floats,
    mask,
    older_angelslim,
    read_safetensors,
    write_safetensors,
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
    """A target of 8 layers and of any width."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}))
    return str(tmp_path / "target")


def converted(source: Path, out: Path, layout: str = "vllm", target: str = TARGET, **answers: str) -> Path:
    options = ConvertOptions(
        layout=layout, target=target, target_name="org/target", answers=Answers(semantics=answers)
    )
    eaglectl.convert(str(source), out, options)
    return out


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


@pytest.mark.parametrize(("answer", "scaling"), [("stored", "yarn"), ("plain", None)])
def test_an_answer_settles_the_doubt_for_good(answer: str, scaling: str | None, tmp_path: Path) -> None:
    out = converted(MODELOPT, tmp_path / "out", rope=answer, modelopt="pre-689")
    written = json.loads((out / "config.json").read_text())["rope_scaling"]
    assert (written or {}).get("rope_type") == scaling
    assert record(out)["doubts"] == []
    assert topics(out) == []
    assert outcome(out) == ("as trained", "pass")


def test_a_record_of_before_bases_were_asked_still_asks(tmp_path: Path) -> None:
    out = converted(ANGELSLIM, tmp_path / "out", rope="stored")
    earlier = {key: value for key, value in record(out).items() if key not in ("settled", "rope")}
    doubts = [{"producer": "angelslim", "topic": "rope-base-doubt"}]
    (out / "eaglectl.json").write_text(json.dumps({**earlier, "doubts": doubts}))
    assert topics(out) == ["rope-base-doubt"]
    with pytest.raises(UsageError, match="rope=10000"):
        converted(out, tmp_path / "again")


def test_an_embedding_added_to_the_file_hides_no_doubt(target: str, tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_last_layernorm": True}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    config = {**FLAGS, "eagle_aux_hidden_state_layer_ids": ABSENT, "rope_scaling": yarn}
    own = {**config, "eagle_config": {**nested, "next_layer_regular": True}}
    folder = drafter_folder(tmp_path, config=own)
    drafter = eaglectl.inspect(str(folder), target=target).drafter
    assert drafter.producer == "modelopt" and drafter.aux.boundaries == (2, 4, 5)
    assert topics(folder) == ["double-norm", "rope-untrained"]


def test_keys_that_torchspec_writes_too_do_not_make_a_file_with_an_embedding_modelopts(
    tmp_path: Path,
) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_last_layernorm": True}
    config = {**FLAGS, "eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": nested}
    assert eaglectl.inspect(str(drafter_folder(tmp_path, config=config))).drafter.producer == "native"


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


def test_the_base_of_torchspecs_mla_is_asked() -> None:
    (note,) = eaglectl.inspect(str(FIXTURES / "producers/torchspec/mla")).drafter.notes_at("question")
    assert "TorchSpec's MLA attention trains with rope base 10000" in note.text


def test_angelslims_base_is_asked(tmp_path: Path) -> None:
    source = older_angelslim(tmp_path / "source")
    (note,) = eaglectl.inspect(str(source)).drafter.notes_at("question")
    assert "500000" in note.text and note.topic == "rope-base-doubt"
    with pytest.raises(UsageError, match="rope=10000"):
        converted(source, tmp_path / "out")
    report = eaglectl.validate(str(source), eaglectl.ValidateOptions(select=["EGL607"]))
    assert [finding.match.message for finding in report.findings] == [note.text]


@pytest.mark.parametrize(("answer", "base"), [("stored", 500000), ("10000", 10000), ("20000", 20000)])
def test_each_answer_on_angelslims_base_is_taken_for_good(answer: str, base: int, tmp_path: Path) -> None:
    out = converted(ANGELSLIM, tmp_path / "out", rope=answer)
    assert json.loads((out / "config.json").read_text())["rope_theta"] == base
    assert topics(out) == [] and outcome(out) == ("as trained", "pass")


def test_an_alpha_that_angelslims_trainer_does_not_read_is_not_as_trained(tmp_path: Path) -> None:
    hunyuan = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    config = {**FLAGS, "modal_type": "LLM", "rope_theta": 10000.0, "rope_scaling": hunyuan}
    folder = drafter_folder(tmp_path, config=config)
    assert topics(folder) == ["rope-untrained"]
    verdicts = eaglectl.inspect(str(folder), engines=["vllm"]).requested
    assert [verdict.outcome for verdict in verdicts] == ["unknown"]


VLLM_CLASS = {**FLAGS, "architectures": ["Eagle3LlamaForCausalLM"]}


def midlayer(**changes: Any) -> dict[str, Any]:
    tensors = drafter_tensors(**{"t2d": mask(), **changes})
    return {name.replace("layers.0.", "midlayer."): stored for name, stored in tensors.items()}


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
    folder = drafter_folder(tmp_path, config={**VLLM_CLASS, **bare, **config})
    config = json.loads((folder / "config.json").read_text())
    folder = Made(config, {n: t for n, t in midlayer(**tensors).items() if t}).write(tmp_path / "made")
    assert eaglectl.inspect(str(folder)).drafter.producer == producer


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def test_for_angelslim_a_scaling_at_which_its_code_stops_is_refused(target: str, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"rope_scaling": LLAMA3})
    with pytest.raises(RefusedError, match=r"AngelSlim has no rope scaling llama3.*--for vllm"):
        converted(folder, tmp_path / "out", "angelslim", target)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("base", "is_said"), [(500000.0, True), (10000.0, False)])
def test_for_angelslim_a_base_that_its_code_does_not_use_is_said(
    base: float, is_said: bool, target: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={"rope_theta": base})
    options = ConvertOptions(layout="angelslim", target=target)
    notes = eaglectl.convert(str(folder), tmp_path / "out", options).plan.notes
    assert is_said == any("rotates with base 10000 whatever is stated" in note.text for note in notes)


def test_a_doubt_is_said_once_after_a_conversion(tmp_path: Path) -> None:
    options = ConvertOptions(target=TARGET, measure=None, answers=Answers(assume=True))
    plan = eaglectl.convert(str(PRODUCERS / "automodel/gqa"), tmp_path / "out", options).plan
    doubt = "NeMo Automodel may train on other layers than the default"
    assert sum(doubt in note.text for note in plan.notes) == 1


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
    config = changed(source, transformers_version=version, **changes)
    folder = tmp_path / "drafter"
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(json.dumps(config))
    assert topics(folder) == found
    assert topics(folder, rope="stored") == []
    assert ("unknown" in outcome(folder)) == bool(found)


def test_an_answer_on_specforges_base_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(PRODUCERS / "specforge/gqa", folder)
    (folder / "config.json").write_text(json.dumps(changed(folder, rope_theta=None)))
    out = converted(folder, tmp_path / "out", rope="10000")
    assert json.loads((out / "config.json").read_text())["rope_theta"] == 10000


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
ROPE, SCALING, LAYERS = "rope-base-doubt", "rope-untrained", "aux-ids-doubted"


@pytest.mark.parametrize(
    ("version", "changes", "found"),
    [
        ("4.54.1", {}, [ROPE]),
        ("4.55.2", {}, [LAYERS, ROPE]),
        ("4.55.2", IDS, ["aux-convention", ROPE]),  # as of any trainer, where no target is known
        ("4.55.2", {"rope_theta": 10000.0}, [LAYERS]),
        ("4.54.1", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}}, [ROPE, SCALING]),
        ("4.53.2", {}, []),  # recipes state it, whatever wrote the file
        ("4.57.1", {}, []),
    ],
)
def test_specforges_pins_tell_which_sources_trained_otherwise_than_the_config_says(
    version: str, changes: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(PRODUCERS / "specforge/gqa", folder)
    config = changed(folder, transformers_version=version, rope_parameters=None, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    assert topics(folder) == found


def test_layers_that_are_given_leave_nothing_in_doubt_of_specforges(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(PRODUCERS / "specforge/gqa", folder)
    config = changed(folder, transformers_version="4.55.2", rope_parameters=None)
    (folder / "config.json").write_text(json.dumps(config))
    given = Answers((2, 5, 6), semantics={"rope": "10000"})
    drafter = eaglectl.inspect(str(folder), target=TARGET, answers=given).drafter
    assert drafter.aux.boundaries == (2, 5, 6) and drafter.rope.theta == 10000
    assert [note for note in drafter.notes if note.level in ("warning", "question")] == []


def old_mla(folder: Path, **config: Any) -> Path:
    """An MLA drafter under the old name of TorchSpec's class; nothing states its version."""
    source = PRODUCERS / "torchspec/mla"
    tensors = read_safetensors(source / "model.safetensors")
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    stated = {
        "architectures": ["DeepSeekForCausalLMEagle3"],
        "_torchspec_version": None,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(changed(source, **stated, **config)))
    return folder


def test_the_old_class_of_torchspec_is_asked_how_it_pairs_rotary_dimensions(tmp_path: Path) -> None:
    folder = old_mla(tmp_path / "drafter")
    assert topics(folder) == ["rope-pairing"]
    assert topics(folder, rope_interleave="true") == []
    assert eaglectl.inspect(str(folder)).drafter.producer == "torchspec"
    assert topics(PRODUCERS / "torchspec/mla", rope="stored") == []
    with pytest.raises(UsageError, match="rope_interleave=false"):
        converted(folder, tmp_path / "out")


def test_halves_of_torchspecs_old_class_are_reordered(tmp_path: Path) -> None:
    folder = old_mla(tmp_path / "drafter")
    with pytest.raises(RefusedError, match="--rope-style interleaved"):
        converted(folder, tmp_path / "out", rope_interleave="false")
    options = ConvertOptions(
        target=TARGET, rope_style="interleaved", answers=Answers(semantics={"rope_interleave": "false"})
    )
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
    folder = tmp_path / "drafter"
    shutil.copytree(PRODUCERS / "eagle/safetensors", folder)
    (folder / "config.json").write_text(json.dumps(changed(folder, **changes)))
    assert topics(folder) == found
    assert topics(folder, rope="10000") == []


def test_a_base_that_safeailabs_trainer_cannot_run_is_said_where_its_layout_is_written(
    tmp_path: Path,
) -> None:
    options = ConvertOptions(target=TARGET, layout="eagle", dry_run=True)
    plan = eaglectl.convert(str(PRODUCERS / "specforge/gqa"), str(tmp_path / "out"), options).plan
    texts = [note.text for note in plan.notes if note.level == "warning"]
    assert any("SafeAILab EAGLE's own code rotates with base 10000" in text for text in texts)
