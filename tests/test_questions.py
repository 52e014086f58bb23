"""What a file leaves open: the questions, the choices that answer each, and who gave an answer."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import check_answers
from tests.builders import (
    ABSENT,
    Stored,
    call,
    changed,
    drafter_folder,
    floats,
    older_angelslim,
    target_of,
)
from tests.conftest import FIXTURES
from tests.published import ALL, Published

PRODUCERS = FIXTURES / "producers"


@pytest.mark.parametrize(
    ("fixture", "values"),
    [
        ("specforge/eagle3.1", ["specforge=pre-879", "specforge=post-879"]),
        ("specforge/peagle", ["mask_token_id=N"]),
        ("torchspec/mla", ["rope=10000", "rope=stored"]),
        ("automodel/gqa", ["2,4,5", ""]),
    ],
)
def test_a_fixtures_question_has_its_choices(fixture: str, values: list[str]) -> None:
    drafter = eaglectl.inspect(str(PRODUCERS / fixture), target=str(FIXTURES / "target")).drafter
    (note,) = drafter.notes_at("question")
    assert [choice.value for choice in note.choices] == values
    assert all((choice.value or choice.meaning) in note.text for choice in note.choices)


AUTOMODEL, ANGELSLIM = PRODUCERS / "automodel/gqa", PRODUCERS / "angelslim/gqa"
TARGET = str(FIXTURES / "target")
IDS = "eagle_aux_hidden_state_layer_ids"
VLLM = ["vllm==0.33.0"]


def converted(source: Path, out: Path, *, target: str | None = TARGET, **answers: Any) -> Path:
    eaglectl.convert(str(source), out, ConvertOptions(target=target, answers=Answers(**answers)))
    return out


def rope_parts(folder: Path) -> tuple[float, str | None]:
    config = json.loads((folder / "config.json").read_text())
    return config["rope_theta"], (config["rope_scaling"] or {}).get("rope_type")


@pytest.fixture(scope="module")
def assumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of Automodel, converted with its usual layers."""
    return converted(AUTOMODEL, tmp_path_factory.mktemp("assumed") / "out", assume=True)


def record(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "eaglectl.json").read_text())
    return value


def edited(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def outcomes(folder: Path) -> tuple[str, str, str]:
    """What inspect and validate say of the newest vLLM, and validate without an engine."""
    (seen,) = eaglectl.inspect(str(folder), target=TARGET, engines=VLLM).requested
    (judged,) = eaglectl.validate(str(folder), eaglectl.ValidateOptions(TARGET, VLLM)).releases
    rules_alone = eaglectl.ValidateOptions(has_engines=False)
    return seen.outcome, judged.outcome.check, eaglectl.validate(str(folder), rules_alone).verdict


UNKNOWN = ("unknown", "could-not-look", "could-not-look")
SERVED = ("as trained", "pass", "pass")


def test_two_keys_that_eaglectl_wrote_do_not_confirm_each_other(tmp_path: Path) -> None:
    out = converted(AUTOMODEL, tmp_path / "out", aux_layers=(2, 4, 6))
    assert eaglectl.inspect(str(out)).drafter.aux.how == "as eaglectl.json records: given by --aux-layers"
    assert record(out)["written"][IDS] == [2, 4, 6]
    twice = converted(out, tmp_path / "twice")
    assert eaglectl.inspect(str(twice)).drafter.aux.how == "as eaglectl.json records: given by --aux-layers"
    assert outcomes(out) == outcomes(twice) == SERVED


def test_an_assumption_is_a_doubt_through_two_conversions_until_the_answer_is_given(
    assumed: Path, tmp_path: Path
) -> None:
    again = eaglectl.convert(str(assumed), tmp_path / "twice", ConvertOptions(target=TARGET))
    assert "vllm" not in again.commands
    for folder in (assumed, tmp_path / "twice"):
        (entry,) = record(folder)["settled"]
        assert (entry["by"], entry["answer"]["value"], entry["fact"]) == ("assumed", "2,4,5", [2, 4, 5])
        (doubt,) = eaglectl.inspect(str(folder)).drafter.unsettled
        assert "--aux-layers 2,4,5 was assumed (--assume-defaults)" in doubt.text
        assert outcomes(folder) == UNKNOWN
        assert "Not settled" in (folder / "README.md").read_text()
    for layers in ((2, 4, 5), (2, 4, 6)):
        answered = converted(assumed, tmp_path / str(layers), aux_layers=layers)
        assert eaglectl.inspect(str(answered)).drafter.aux.boundaries == layers
        assert outcomes(answered) == SERVED


def test_an_assumed_base_is_settled_by_a_base_and_not_by_what_is_stored(tmp_path: Path) -> None:
    assumed = converted(older_angelslim(tmp_path / "source"), tmp_path / "assumed", assume=True)
    assert rope_parts(assumed)[0] == 10000
    assert outcomes(assumed) == UNKNOWN
    with pytest.raises(
        UsageError, match=r"rope=stored: eaglectl wrote this file with .*rope=10000.*rope=500000"
    ):
        converted(assumed, tmp_path / "stored", semantics={"rope": "stored"})
    out = converted(assumed, tmp_path / "out", semantics={"rope": "500000"})
    assert rope_parts(out)[0] == 500000
    assert outcomes(out) == SERVED


def test_an_edited_config_is_not_vouched_for(tmp_path: Path) -> None:
    out = edited(converted(ANGELSLIM, tmp_path / "out", semantics={"rope": "10000"}), rope_theta=20000.0)
    (note,) = eaglectl.inspect(str(out)).drafter.notes_at("question")
    assert note.topic == "record-edited" and "20000" in note.text and "10000" in note.text
    assert outcomes(out) == UNKNOWN
    again = converted(out, tmp_path / "again", semantics={"rope": "20000"})
    assert outcomes(again) == SERVED


@pytest.mark.parametrize(
    ("answer", "base", "scaling"),
    [
        ("target", 30000, "linear"),
        ("target,plain", 30000, None),
        ("target,stored", 30000, "yarn"),
        ("10000,target", 10000, "linear"),
        ("stored,target", 500000, "linear"),
    ],
)
def test_each_half_of_a_rope_may_be_the_targets(
    answer: str, base: int, scaling: str | None, tmp_path: Path
) -> None:
    own = {"rope_theta": 30000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    target = target_of(tmp_path / "target", **changed(Path(TARGET), **own))
    source, semantics = PRODUCERS / "modelopt/hf", {"rope": answer}
    out = converted(source, tmp_path / "out", target=str(target), semantics=semantics)
    assert rope_parts(out) == (base, scaling)


def test_every_answer_of_the_page_is_known() -> None:
    page = (FIXTURES.parent / "docs/questions.md").read_text().replace("\\|", "|")
    given = re.findall(r"--source-semantics ([a-z0-9_]+)=([\w|,-]+)", page)
    short = re.findall(r"`(rope|hidden_norm)=([\w|,-]+)`", page)
    known = [(key, value) for key, values in given + short for value in values.split("|")]
    assert len(known) > 25
    for key, value in known:
        check_answers(Answers(semantics={key: "10000" if value == "N" else value}))


def test_an_answer_to_the_other_half_of_a_rope_names_what_it_leaves_open(tmp_path: Path) -> None:
    source = PRODUCERS / "modelopt/hf"
    with pytest.raises(UsageError, match=r"rope=20000 does not answer; pass .*rope=20000,plain"):
        converted(source, tmp_path / "out", semantics={"rope": "20000"})
    out = converted(source, tmp_path / "out", semantics={"rope": "20000,plain"})
    assert rope_parts(out) == (20000, None)


@pytest.mark.parametrize("answer", ["10000,20000", "plain,10000", "-1", "0", "1e4", "\u0665", "x"])
def test_a_rope_of_no_form_is_refused_by_name(answer: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"rope={answer} is not known"):
        converted(ANGELSLIM, tmp_path / "out", semantics={"rope": answer})


@pytest.mark.parametrize(
    ("eagle_config", "second"),
    [
        ({"layer_ids": [0, 2, 6]}, r"\[0, 2, 6\] in eagle_config.layer_ids"),
        ({"layer_ids": [1, 3, 4]}, r"\[1, 3, 4\] in eagle_config.layer_ids"),
        ({IDS: [4, 1, 3]}, rf"\[4, 1, 3\] in eagle_config.{IDS}"),
        ({IDS: [5, 4, 2]}, rf"\[5, 4, 2\] in eagle_config.{IDS}"),
    ],
)
def test_two_places_of_ids_that_mean_other_layers_are_asked_and_found(
    eagle_config: dict[str, Any], second: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={IDS: [2, 4, 5], "eagle_config": eagle_config})
    with pytest.raises(UsageError, match=rf"\[2, 4, 5\] in {IDS} and {second}.*pass --aux-layers 2,4,5"):
        eaglectl.convert(str(folder), tmp_path / "out")
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL404"]))
    assert [finding.rule.id for finding in report.findings] == ["EGL404"]
    assert report.verdict == "could-not-look"


def untargeted(folder: Path, out: Path, **semantics: str) -> Path:
    """The folder converted for no target, which the drafters of tests/builders.py have none of."""
    return converted(folder, out, target=None, semantics=semantics)


@pytest.mark.parametrize("key", ["norm_output", "norm_before_residual"])
def test_a_switch_stated_twice_is_asked_and_assumed_only_where_its_producer_has_a_usual_value(
    key: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={key: True, "eagle_config": {key: False}})
    (note,) = eaglectl.inspect(str(folder)).drafter.notes_at("question")
    asked = f"pass --source-semantics {key}=true or {key}=false"
    assert f"{key}: True and eagle_config.{key}: False; {asked}" in note.text
    out = untargeted(folder, tmp_path / "out", **{key: "true"})
    assert json.loads((out / "config.json").read_text())[key] is True
    if key == "norm_output":
        with pytest.raises(UsageError, match=asked):
            converted(folder, tmp_path / "assumed", target=None, assume=True)
        return
    out = converted(folder, tmp_path / "assumed", target=None, assume=True)
    (entry,) = record(out)["settled"]
    assert (entry["answer"]["value"], entry["by"]) == (f"{key}=false", "assumed")
    (doubt,) = [note for note in eaglectl.inspect(str(out)).drafter.notes_at("warning") if note.is_open]
    assert f"{key}=false was assumed" in doubt.text
    assert eaglectl.validate(str(out)).verdict == "could-not-look"


TENSOR_FLAGS: dict[str, tuple[str, dict[str, Stored]]] = {
    "fc_norm": (
        "3 fc_norm.N.weight",
        {f"fc_norm.{place}.weight": floats(f"n{place}", 16) for place in range(3)},
    ),
    "norm_before_fc": ("input_norm.weight", {"input_norm.weight": floats("n", 48)}),
}


@pytest.mark.parametrize("key", TENSOR_FLAGS)
@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_of_a_flag_stated_twice_its_tensors_decide(
    key: str, order: tuple[bool, bool], tmp_path: Path
) -> None:
    tensor, tensors = TENSOR_FLAGS[key]
    config = {key: order[0], "eagle_config": {key: order[1]}, "norm_output": True}
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    (finding,) = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL111"])).findings
    assert all(
        f"{place}{key}: {value}" in finding.match.message
        for place, value in zip(("", "eagle_config."), order, strict=True)
    )
    assert f"the file has {tensor}, and this is used" in finding.match.message
    written = json.loads((untargeted(folder, tmp_path / "out") / "config.json").read_text())
    assert written[key] is True and written.get("eagle_config", {}).get(key, True) is True
    with pytest.raises(UsageError, match=f"{key}=false: the file has"):
        untargeted(folder, tmp_path / "other", **{key: "false"})


@pytest.mark.parametrize("key", TENSOR_FLAGS)
def test_a_flag_stated_twice_without_tensors_is_asked(key: str, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={key: False, "eagle_config": {key: True}})
    done = call("convert", folder, "-o", tmp_path / "out")
    assert done.code == 2 and f"--source-semantics {key}=false (if none was trained" in done.err
    assert call("convert", folder, "--assume-defaults", "-o", tmp_path / "out").code == 2
    out = untargeted(folder, tmp_path / "out", **{key: "false"})
    assert not json.loads((out / "config.json").read_text()).get(key)
    assert [entry["answer"]["value"] for entry in record(out)["settled"]] == [f"{key}=false"]
    assert eaglectl.inspect(str(out)).drafter.notes_at("question") == ()
    with pytest.raises(UsageError, match=f"{key}=true is not known"):
        untargeted(folder, tmp_path / "other", **{key: "true"})


DRAFT, AUX = {"draft_vocab_size": 7}, {"num_aux_hidden_states": 3}
STATED_DRAFT, OF_DRAFT = "draft_vocab_size: 24 and", "lm_head and d2t have 24"


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("config", "both", "evidence"),
    [
        ({"truncated_vocab_size": 7}, f"{STATED_DRAFT} truncated_vocab_size: 7", OF_DRAFT),
        ({"eagle_config": DRAFT}, f"{STATED_DRAFT} eagle_config.draft_vocab_size: 7", OF_DRAFT),
        (
            {"num_aux_hidden_states": 4, "eagle_config": AUX, "target_hidden_size": 16},
            "num_aux_hidden_states: 4 and eagle_config.num_aux_hidden_states: 3",
            "takes 3 of width 16",
        ),
        (
            {"use_aux_hidden_state": True, "eagle_config": {"use_aux_hidden_state": False}},
            "eagle_config.use_aux_hidden_state: False and use_aux_hidden_state: True",
            "the file has fc.weight",
        ),
    ],
)
def test_of_a_size_stated_twice_the_shapes_decide(
    config: dict[str, Any], both: str, evidence: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=config)
    (finding,) = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL111"])).findings
    assert both in finding.match.message and evidence in finding.match.message
    dims = eaglectl.inspect(str(untargeted(folder, tmp_path / "out"))).drafter.dims
    assert (dims.draft_vocab, dims.aux) == (24, 3)


def test_a_width_stated_twice_needs_the_target_which_decides(tmp_path: Path) -> None:
    both = {"target_hidden_size": 16, "eagle_config": {"target_hidden_size": 8}}
    folder = drafter_folder(tmp_path, config=both)
    with pytest.raises(RefusedError, match=r"target_hidden_size: 16 and eagle_config.*pass --target"):
        eaglectl.inspect(str(folder))
    target = str(target_of(tmp_path / "target"))
    assert eaglectl.inspect(str(folder), target=target).drafter.dims.target_hidden == 16


KNOWN = [drafter for drafter in ALL if "settles" in drafter.said]


@pytest.mark.parametrize("drafter", KNOWN, ids=lambda drafter: drafter.file.stem)
def test_a_published_drafter_is_settled_by_its_name_and_config(
    drafter: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert drafter.said["expect"]["without_target"]["asks"]
    # in the Hub client's cache, which knows its name
    folder = tmp_path / f"models--{drafter.name.replace('/', '--')}" / "snapshots" / ("0" * 40)
    folder.parent.mkdir(parents=True)
    read = eaglectl.inspect(str(drafter.folder(tmp_path).rename(folder))).drafter
    assert read.notes_at("question") == ()
    (entry,) = read.settled
    assert (entry.by, entry.evidence) == ("known", drafter.said["settles"]["source"])
    assert read.aux.boundaries in (None, tuple(drafter.said["truth"]["boundaries"]))


@pytest.mark.parametrize(
    "settled", [5, [5], [{"by": "assumed"}], [{"answer": {"option": 3}, "by": "x"}], {"a": 1}]
)
def test_a_record_of_another_form_settles_nothing(settled: Any, assumed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(assumed, tmp_path / "out")
    (out / "eaglectl.json").write_text(json.dumps({**record(out), "settled": settled}))
    assert eaglectl.inspect(str(out)).drafter.settled == ()


def test_assume_in_the_configuration_is_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text("[defaults]\nassume = true\n")
    done = call("convert", AUTOMODEL, "--target", TARGET, "-o", "out")
    assert done.code == 0 and "eaglectl.toml: --assume-defaults" in done.err
    assert record(tmp_path / "out")["settled"][0]["by"] == "assumed"


def test_the_plan_of_an_upload_says_what_was_assumed(assumed: Path) -> None:
    answers = ("--license", "apache-2.0", "--base-model", "org/target")
    done = call("--offline", "upload", assumed, "org/name", "--dry-run", *answers, "--json")
    assert done.code == 0
    (doubt,) = done.document["doubts"]
    assert "--aux-layers 2,4,5 was assumed" in doubt


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope_theta": 10000.0}, "10000"),
        ({"norm_output": True}, "norm_output"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        (
            {IDS: [2, 4, 5], "eagle_config": {IDS: [1, 3, 4], "use_aux_hidden_state": True}},
            "config.json says [2, 4, 5] and eaglectl.json records [2, 4, 6]",
        ),
    ],
)
def test_an_edited_key_is_asked_about(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    out = edited(converted(PRODUCERS / "specforge/gqa-ids", tmp_path / "out"), **keys)
    (note,) = eaglectl.inspect(str(out), target=TARGET).drafter.notes_at("question")
    assert note.topic == "record-edited" and words in note.text


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 4.0}


BASES, SCALINGS = (
    {"rope_parameters": {"rope_theta": 10000.0}},
    {"rope_scaling": LINEAR, "rope_parameters": YARN},
)
TWO_BASES = r"rope_theta: 500000 and rope_parameters.rope_theta: 10000; pass .*rope=500000 .*rope=10000"
TWO_SCALINGS = r"rope_scaling: .*linear.* and rope_parameters: .*yarn"


@pytest.mark.parametrize(
    ("config", "words", "answer", "rope"),
    [
        (BASES, TWO_BASES, "500000", (500000, None)),
        (BASES, TWO_BASES, "10000", (10000, None)),
        (SCALINGS, TWO_SCALINGS, "rope_scaling", (500000, LINEAR)),
        (SCALINGS, TWO_SCALINGS, "rope_parameters", (500000, YARN)),
        (SCALINGS, TWO_SCALINGS, "plain", (500000, None)),
        (SCALINGS, TWO_SCALINGS, "20000,rope_parameters", (20000, YARN)),
        (SCALINGS, TWO_SCALINGS, "stored,rope_scaling", (500000, LINEAR)),
    ],
)
def test_a_rope_stated_twice_is_asked_with_both_places_and_each_answer_is_taken(
    config: dict[str, Any], words: str, answer: str, rope: tuple[float, Any], tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=config)
    with pytest.raises(UsageError, match=words):
        eaglectl.convert(str(folder), tmp_path / "out")
    found = eaglectl.inspect(str(folder), answers=Answers(semantics={"rope": answer})).drafter.rope
    assert (found.theta, found.scaling) == rope


def test_the_same_scaling_in_two_places_is_not_asked(tmp_path: Path) -> None:
    config = {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": LINEAR}
    folder = drafter_folder(tmp_path, config=config)
    assert not eaglectl.inspect(str(folder)).drafter.notes_at("question")


def test_the_targets_rope_is_refused_of_a_target_that_states_none(tmp_path: Path) -> None:
    stated = json.loads((FIXTURES / "target/config.json").read_text())
    left = {key: value for key, value in stated.items() if not key.startswith("rope")}
    target = target_of(tmp_path / "target", **left)
    answers = Answers(semantics={"rope": "target"})
    with pytest.raises(UsageError, match="the target's config states no rope base"):
        eaglectl.inspect(str(ANGELSLIM), target=str(target), answers=answers)
    with pytest.raises(UsageError, match="pass --target to read its rope"):
        eaglectl.inspect(str(ANGELSLIM), answers=answers)


def test_ids_of_another_number_than_fc_takes_are_asked_and_answered(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={IDS: [2, 4], "eagle_config": ABSENT})
    with pytest.raises(
        UsageError, match=r"2 aux layer ids \[2, 4\] and an fc that takes 3 states; pass --aux"
    ):
        eaglectl.convert(str(folder), tmp_path / "out")
    drafter = eaglectl.inspect(str(folder), answers=Answers(aux_layers=(2, 4, 5))).drafter
    assert drafter.aux.boundaries == (2, 4, 5) and not drafter.notes_at("question")


def test_a_stated_number_of_states_that_fc_may_take_too_is_asked_until_a_target_tells(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"num_aux_hidden_states": 4, "target_hidden_size": ABSENT})
    drafter = eaglectl.inspect(str(folder)).drafter
    (note,) = drafter.notes_at("question")
    assert (note.about, note.topic) == ("num_aux_hidden_states", "aux-count")
    assert "num_aux_hidden_states: 4, and fc.weight [16, 48] takes 3 of width 16, or 4 of 12" in note.text
    drafter = eaglectl.inspect(str(folder), target=str(target_of(tmp_path / "target"))).drafter
    assert not drafter.notes_at("question") and drafter.dims.aux == 3
