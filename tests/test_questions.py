"""What a file leaves open: the questions, the choices that answer each, and who gave an answer."""

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.drafter.drafter import Choice, question
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers, Origin
from eaglectl.formats.reader import check_answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import ABSENT, Stored, call, drafter_folder, floats, older_angelslim
from tests.conftest import FIXTURES
from tests.published import ALL, Published

PRODUCERS = FIXTURES / "producers"
CONVENTION = Choice("--aux-convention", "output")
LAYERS = Choice("--aux-layers", "2,4,5")
BASE = Choice("--source-semantics", "rope=10000")
FREE = Choice("--source-semantics", "mask_token_id=N", is_free=True)


def test_a_question_lists_every_choice_and_an_option_once() -> None:
    choices = (
        Choice("--aux-convention", "boundary", "the states that enter"),
        CONVENTION,
        Choice("--target", is_free=True),
    )
    note = question("aux layers", "ids [1, 2] fit both", "aux-convention", choices)
    assert note.level == "question"
    assert note.text == (
        "ids [1, 2] fit both; pass --aux-convention boundary (the states that enter) or output, or --target"
    )


def test_each_choice_becomes_the_answer_that_its_option_gives() -> None:
    answers = Answers(semantics={"d2t": "offset"})
    assert answers.choosing(LAYERS).aux_layers == (2, 4, 5)
    assert answers.choosing(CONVENTION).aux_convention == "output"
    assert answers.choosing(BASE).semantics == {"d2t": "offset", "rope": "10000"}


def test_chosen_layers_are_boundaries_whatever_the_ids_were_said_to_mean() -> None:
    chosen = Answers(aux_convention="output").choosing(LAYERS)
    assert (chosen.aux_layers, chosen.aux_convention) == ((2, 4, 5), None)


def test_keys_that_change_nothing_add_up() -> None:
    first, second = (Choice("--source-semantics", f"harmless={key}") for key in "ab")
    assert Answers().choosing(first).choosing(second).semantics == {"harmless": "a,b"}


def test_an_answer_keeps_who_gave_it_until_another_is_given() -> None:
    measured = Origin("measured", "1.2 against 0.4 accepted")
    answers = Answers().choosing(BASE, measured)
    assert answers.origins == {"rope": measured}
    assert answers.choosing(BASE).origins == {}


def test_a_choice_that_only_the_user_can_complete_is_no_answer() -> None:
    with pytest.raises(ValueError, match="only the user"):
        Answers().choosing(FREE)


@pytest.mark.parametrize(
    ("fixture", "values"),
    [
        ("specforge/eagle3.1", ["specforge=pre-879", "specforge=post-879"]),
        ("specforge/peagle", ["mask_token_id=N"]),
        ("torchspec/mla", ["rope=10000", "rope=stored"]),
    ],
)
def test_a_fixtures_question_has_its_choices(fixture: str, values: list[str]) -> None:
    drafter = eaglectl.inspect(str(PRODUCERS / fixture), target=str(FIXTURES / "target")).drafter
    (note,) = drafter.notes_at("question")
    assert [choice.value for choice in note.choices] == values
    assert all(choice.value in note.text for choice in note.choices)


AUTOMODEL, ANGELSLIM = PRODUCERS / "automodel/gqa", PRODUCERS / "angelslim/gqa"
TARGET = str(FIXTURES / "target")
IDS = "eagle_aux_hidden_state_layer_ids"
VLLM = ["vllm==0.33.0"]


def converted(source: Path, out: Path, **answers: Any) -> Path:
    eaglectl.convert(str(source), out, ConvertOptions(target=TARGET, answers=Answers(**answers)))
    return out


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


def test_layers_that_a_recipe_may_have_set_are_asked_with_the_default_as_a_choice(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"pass --aux-layers 2,4,5 \(the default .*\) or with the boundaries"
    ):
        converted(AUTOMODEL, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_keys_that_eaglectl_wrote_do_not_confirm_each_other(tmp_path: Path) -> None:
    out = converted(AUTOMODEL, tmp_path / "out", aux_layers=(2, 4, 6))
    assert eaglectl.inspect(str(out)).drafter.aux.how == "as eaglectl.json records: given by --aux-layers"
    assert record(out)["written"][IDS] == [2, 4, 6]
    twice = converted(out, tmp_path / "twice")
    assert eaglectl.inspect(str(twice)).drafter.aux.how == "as eaglectl.json records: given by --aux-layers"
    assert outcomes(out) == outcomes(twice) == SERVED


def test_what_a_producers_code_settles_is_said_after_a_conversion_too(tmp_path: Path) -> None:
    out = converted(PRODUCERS / "speculators/plain", tmp_path / "out")
    how = eaglectl.inspect(str(PRODUCERS / "speculators/plain"), target=TARGET).drafter.aux.how
    assert eaglectl.inspect(str(out)).drafter.aux.how == f"as eaglectl.json records: {how}"


def test_an_assumption_is_a_doubt_through_two_conversions(tmp_path: Path) -> None:
    once = converted(AUTOMODEL, tmp_path / "once", assume=True)
    twice = converted(once, tmp_path / "twice")
    for folder in (once, twice):
        (entry,) = record(folder)["settled"]
        assert (entry["by"], entry["answer"]["value"], entry["fact"]) == ("assumed", "2,4,5", [2, 4, 5])
        (doubt,) = eaglectl.inspect(str(folder)).drafter.unsettled
        assert "--aux-layers 2,4,5 was assumed (--assume-defaults)" in doubt.text
        assert outcomes(folder) == UNKNOWN
        assert "Not settled" in (folder / "README.md").read_text()


def test_no_engines_command_is_printed_for_an_assumption(tmp_path: Path) -> None:
    options = ConvertOptions(target=TARGET, answers=Answers(assume=True))
    assert "vllm" not in eaglectl.convert(str(AUTOMODEL), tmp_path / "out", options).commands


def test_a_conversion_with_the_answer_settles_what_was_assumed(tmp_path: Path) -> None:
    assumed = converted(AUTOMODEL, tmp_path / "assumed", assume=True)
    confirmed = converted(assumed, tmp_path / "confirmed", aux_layers=(2, 4, 5))
    corrected = converted(assumed, tmp_path / "corrected", aux_layers=(2, 4, 6))
    for folder, layers in ((confirmed, (2, 4, 5)), (corrected, (2, 4, 6))):
        assert eaglectl.inspect(str(folder)).drafter.aux.boundaries == layers
        assert outcomes(folder) == SERVED


def test_an_assumed_base_is_settled_by_a_base_and_not_by_what_is_stored(tmp_path: Path) -> None:
    assumed = converted(older_angelslim(tmp_path / "source"), tmp_path / "assumed", assume=True)
    assert json.loads((assumed / "config.json").read_text())["rope_theta"] == 10000
    assert outcomes(assumed) == UNKNOWN
    with pytest.raises(
        UsageError, match=r"rope=stored: eaglectl wrote this file with .*rope=10000.*rope=500000"
    ):
        converted(assumed, tmp_path / "stored", semantics={"rope": "stored"})
    out = converted(assumed, tmp_path / "out", semantics={"rope": "500000"})
    assert json.loads((out / "config.json").read_text())["rope_theta"] == 500000
    assert outcomes(out) == SERVED


def test_an_edited_config_is_not_vouched_for(tmp_path: Path) -> None:
    out = edited(converted(ANGELSLIM, tmp_path / "out", semantics={"rope": "10000"}), rope_theta=20000.0)
    (note,) = eaglectl.inspect(str(out)).drafter.notes_at("question")
    assert note.topic == "record-edited" and "20000" in note.text and "10000" in note.text
    assert outcomes(out) == UNKNOWN
    again = converted(out, tmp_path / "again", semantics={"rope": "20000"})
    assert outcomes(again) == SERVED


def test_edited_ids_are_not_vouched_for(tmp_path: Path) -> None:
    out = converted(AUTOMODEL, tmp_path / "out", aux_layers=(2, 4, 6))
    (eagle := json.loads((out / "config.json").read_text())["eagle_config"])[IDS] = [1, 3, 4]
    edited(out, **{IDS: [2, 4, 5], "eagle_config": eagle})
    with pytest.raises(
        UsageError, match=r"config.json says \[2, 4, 5\] and eaglectl.json records \[2, 4, 6\]"
    ):
        converted(out, tmp_path / "again")


def test_the_targets_rope_answers_a_base_for_good(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = json.loads((FIXTURES / "target/config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "rope_theta": 30000.0}))
    answers = Answers(semantics={"rope": "target"})
    eaglectl.convert(str(ANGELSLIM), tmp_path / "out", ConvertOptions(target=str(target), answers=answers))
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_theta"] == 30000
    assert outcomes(tmp_path / "out") == SERVED


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
    target, source = tmp_path / "target", PRODUCERS / "modelopt/hf"
    target.mkdir()
    config = json.loads((Path(TARGET) / "config.json").read_text())
    own = {"rope_theta": 30000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    (target / "config.json").write_text(json.dumps({**config, **own}))
    answers = Answers(semantics={"rope": answer})
    eaglectl.convert(
        str(source), tmp_path / "out", eaglectl.ConvertOptions(target=str(target), answers=answers)
    )
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["rope_theta"], (written["rope_scaling"] or {}).get("rope_type")) == (base, scaling)


@pytest.mark.parametrize("answer", ["target,plain", "10000,target"])
def test_half_of_an_unknown_targets_rope_is_asked_for(answer: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rope=target: pass --target"):
        eaglectl.inspect(str(ANGELSLIM), answers=Answers(semantics={"rope": answer}))


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
    written = json.loads((out / "config.json").read_text())
    assert (written["rope_theta"], written["rope_scaling"]) == (20000, None)


@pytest.mark.parametrize("answer", ["10000,20000", "plain,10000", "-1", "0", "target,10000", "x"])
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


@pytest.mark.parametrize("key", ["norm_output", "norm_before_residual"])
def test_a_switch_stated_twice_is_asked_and_either_answer_is_taken(key: str, tmp_path: Path) -> None:
    both = {key: True, "eagle_config": {key: False}}
    folder = drafter_folder(tmp_path, config=both)
    (note,) = eaglectl.inspect(str(folder)).drafter.notes_at("question")
    assert (
        f"{key}: True and eagle_config.{key}: False; pass --source-semantics {key}=true or {key}=false"
        in note.text
    )
    options = ConvertOptions(answers=Answers(semantics={key: "true"}))
    eaglectl.convert(str(folder), tmp_path / "out", options)
    assert json.loads((tmp_path / "out/config.json").read_text())[key] is True


def untargeted(folder: Path, out: Path, **semantics: str) -> Path:
    """The folder converted for no target, which the drafters of tests/builders.py have none of."""
    eaglectl.convert(str(folder), out, ConvertOptions(answers=Answers(semantics=semantics)))
    return out


def test_a_switch_stated_twice_is_assumed_on_request_where_its_producer_has_a_usual_value(
    tmp_path: Path,
) -> None:
    folder = drafter_folder(
        tmp_path, config={"norm_before_residual": True, "eagle_config": {"norm_before_residual": False}}
    )
    out = tmp_path / "out"
    eaglectl.convert(str(folder), out, ConvertOptions(answers=Answers(assume=True)))
    (entry,) = record(out)["settled"]
    assert (entry["answer"]["value"], entry["by"]) == ("norm_before_residual=false", "assumed")
    (doubt,) = [note for note in eaglectl.inspect(str(out)).drafter.notes_at("warning") if note.is_open]
    assert "norm_before_residual=false was assumed" in doubt.text
    assert eaglectl.validate(str(out)).verdict == "could-not-look"
    (tmp_path / "b").mkdir()
    twice = drafter_folder(
        tmp_path / "b", config={"norm_output": True, "eagle_config": {"norm_output": False}}
    )
    with pytest.raises(UsageError, match="pass --source-semantics norm_output=true or norm_output=false"):
        eaglectl.convert(str(twice), tmp_path / "c", ConvertOptions(answers=Answers(assume=True)))


def test_a_switch_in_an_object_that_nothing_reads_must_agree(tmp_path: Path) -> None:
    both = {"norm_before_residual": False, "eagle_architecture_config": {"norm_before_residual": True}}
    folder = drafter_folder(tmp_path, config=both)
    with pytest.raises(
        UsageError, match=r"eagle_architecture_config\.norm_before_residual: True; pass --sou"
    ):
        eaglectl.convert(str(folder), tmp_path / "out")
    out = untargeted(folder, tmp_path / "out", norm_before_residual="false")
    written = json.loads((out / "config.json").read_text())
    assert not written.get("norm_before_residual") and "eagle_architecture_config" not in written
    assert eaglectl.inspect(str(out)).drafter.notes_at("question") == ()


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
    assert f"the file has {tensor}, which is believed" in finding.match.message
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


@pytest.mark.parametrize(
    ("config", "both", "evidence"),
    [
        (
            {"truncated_vocab_size": 7},
            "draft_vocab_size: 24 and truncated_vocab_size: 7",
            "lm_head and d2t have 24",
        ),
        (
            {"eagle_config": {"draft_vocab_size": 7}},
            "draft_vocab_size: 24 and eagle_config.draft_vocab_size: 7",
            "lm_head and d2t have 24",
        ),
        (
            {
                "num_aux_hidden_states": 4,
                "eagle_config": {"num_aux_hidden_states": 3},
                "target_hidden_size": 16,
            },
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
    target = tmp_path / "target"
    target.mkdir()
    config = {**json.loads((FIXTURES / "target/config.json").read_text()), "hidden_size": 16}
    (target / "config.json").write_text(json.dumps(config))
    assert eaglectl.inspect(str(folder), target=str(target)).drafter.dims.target_hidden == 16


def snapshot(parent: Path, drafter: Published, **keys: Any) -> Path:
    """The drafter as the Hub client's cache has it, which knows its name."""
    folder = parent / f"models--{drafter.name.replace('/', '--')}" / "snapshots" / ("0" * 40)
    folder.parent.mkdir(parents=True)
    return edited(drafter.folder(parent).rename(folder), **keys)


KNOWN = [drafter for drafter in ALL if "settles" in drafter.said]


@pytest.mark.parametrize("drafter", KNOWN, ids=lambda drafter: drafter.file.stem)
def test_a_published_drafter_is_settled_by_its_name_and_config(drafter: Published, tmp_path: Path) -> None:
    assert drafter.said["expect"]["without_target"]["asks"]
    read = eaglectl.inspect(str(snapshot(tmp_path, drafter))).drafter
    assert read.notes_at("question") == ()
    (entry,) = read.settled
    assert (entry.by, entry.evidence) == ("known", drafter.said["settles"]["source"])
    assert (
        list(read.aux.boundaries or drafter.said["truth"]["boundaries"])
        == drafter.said["truth"]["boundaries"]
    )


def test_a_changed_config_of_a_published_drafter_is_not_known(tmp_path: Path) -> None:
    drafter = next(drafter for drafter in KNOWN if drafter.name == "lmsys/EAGLE3-gpt-oss-120b-bf16")
    folder = snapshot(tmp_path, drafter, rms_norm_eps=1e-6)
    assert [note.about for note in eaglectl.inspect(str(folder)).drafter.notes_at("question")] == [
        "aux layers"
    ]


def test_a_folder_of_another_name_is_not_known(tmp_path: Path) -> None:
    drafter = next(drafter for drafter in KNOWN if drafter.name == "lmsys/EAGLE3-gpt-oss-120b-bf16")
    assert eaglectl.inspect(str(drafter.folder(tmp_path))).drafter.notes_at("question")


def test_known_drafters_are_what_make_docs_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FIXTURES.parent / "docs")
    known = importlib.import_module("known")
    assert known.KNOWN.read_text() == known.document(), "run `make docs`"


@pytest.mark.parametrize(
    "settled", [5, [5], [{"by": "assumed"}], [{"answer": {"option": 3}, "by": "x"}], {"a": 1}]
)
def test_a_record_of_another_form_settles_nothing(settled: Any, tmp_path: Path) -> None:
    out = converted(AUTOMODEL, tmp_path / "out", assume=True)
    (out / "eaglectl.json").write_text(json.dumps({**record(out), "settled": settled}))
    assert eaglectl.inspect(str(out)).drafter.settled == ()


def test_assume_in_the_configuration_is_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eaglectl.toml").write_text("[defaults]\nassume = true\n")
    done = call("convert", AUTOMODEL, "--target", TARGET, "-o", "out")
    assert done.code == 0 and "gives --assume-defaults, where" in done.err
    assert record(tmp_path / "out")["settled"][0]["by"] == "assumed"


def test_the_plan_of_an_upload_says_what_was_assumed(tmp_path: Path) -> None:
    out = converted(AUTOMODEL, tmp_path / "out", assume=True)
    answers = ("--license", "apache-2.0", "--base-model", "org/target")
    done = call("--offline", "upload", out, "org/name", "--dry-run", *answers, "--json")
    assert done.code == 0
    (doubt,) = done.document["doubts"]
    assert "--aux-layers 2,4,5 was assumed" in doubt


def edited_ids(folder: Path, top: list[int], nested: list[int]) -> Path:
    inner = json.loads((folder / "config.json").read_text())["eagle_config"]
    key = "eagle_aux_hidden_state_layer_ids"
    return edited(folder, **{key: top, "eagle_config": {**inner, key: nested}})


def written_by_eaglectl(folder: Path) -> Path:
    source = str(FIXTURES / "producers/specforge/gqa-ids")
    eaglectl.convert(source, folder, eaglectl.ConvertOptions(target=TARGET))
    return folder


def test_two_edited_keys_of_ours_do_not_confirm_each_other(tmp_path: Path) -> None:
    out = edited_ids(written_by_eaglectl(tmp_path / "out"), [2, 4, 5], [1, 3, 4])
    drafter = eaglectl.inspect(str(out), target=TARGET).drafter
    assert [note.topic for note in drafter.notes_at("question")] == ["record-edited"]
    (asked,) = drafter.notes_at("question")
    assert [choice.value for choice in asked.choices] == ["2,4,5", "2,4,6"]
    assert outcomes(out)[0] == "unknown"


def test_the_recorded_layers_are_among_the_choices_where_one_key_was_edited(tmp_path: Path) -> None:
    out = edited_ids(written_by_eaglectl(tmp_path / "out"), [2, 4, 5], [1, 3, 5])
    (asked,) = eaglectl.inspect(str(out), target=TARGET).drafter.notes_at("question")
    assert asked.choices[0].value == "2,4,6"


@pytest.mark.parametrize(
    "keys",
    [{"rope_theta": 10000.0}, {"norm_output": True}, {"rope_scaling": {"type": "linear", "factor": 2.0}}],
)
def test_an_edited_switch_is_asked_about(keys: dict[str, Any], tmp_path: Path) -> None:
    out = edited(written_by_eaglectl(tmp_path / "out"), **keys)
    drafter = eaglectl.inspect(str(out), target=TARGET).drafter
    assert [note.topic for note in drafter.notes_at("question")] == ["record-edited"]


def test_half_an_answer_to_an_assumed_rope_leaves_the_other_half_open(tmp_path: Path) -> None:
    options = eaglectl.ConvertOptions(target=TARGET, answers=eaglectl.Answers(assume=True))
    eaglectl.convert(str(older_angelslim(tmp_path / "source")), tmp_path / "assumed", options)
    plain = eaglectl.Answers(semantics={"rope": "plain"})
    again = eaglectl.ConvertOptions(target=TARGET, answers=plain)
    eaglectl.convert(str(tmp_path / "assumed"), tmp_path / "again", again)
    assert outcomes(tmp_path / "again") == UNKNOWN


def test_what_the_source_stored_is_refused_of_an_output_with_a_base_beside_it_too(tmp_path: Path) -> None:
    options = eaglectl.ConvertOptions(target=TARGET, answers=eaglectl.Answers(assume=True))
    eaglectl.convert(str(FIXTURES / "producers/modelopt/hf"), tmp_path / "assumed", options)
    answers = eaglectl.Answers(semantics={"rope": "500000,stored", "modelopt": "pre-689"})
    with pytest.raises(eaglectl.UsageError, match="as an assumption"):
        again = eaglectl.ConvertOptions(target=TARGET, answers=answers)
        eaglectl.convert(str(tmp_path / "assumed"), tmp_path / "again", again)


def test_a_large_base_is_offered_as_it_can_be_typed(tmp_path: Path) -> None:
    options = eaglectl.ConvertOptions(target=TARGET, answers=eaglectl.Answers(assume=True))
    source = older_angelslim(tmp_path / "source", "qwen3")
    plan = eaglectl.convert(str(source), tmp_path / "out", options).plan
    for choice in plan.drafter.unsettled[0].choices:
        again = eaglectl.Answers().choosing(choice)
        eaglectl.inspect(str(tmp_path / "out"), target=TARGET, answers=again)
    assert "rope=1000000" in [choice.value for choice in plan.drafter.unsettled[0].choices]


def test_a_base_that_nobody_asked_for_is_held_to_the_config_too(tmp_path: Path) -> None:
    out = written_by_eaglectl(tmp_path / "out")
    options = eaglectl.ConvertOptions(target=TARGET, answers=eaglectl.Answers(semantics={"rope": "1000000"}))
    eaglectl.convert(str(out), tmp_path / "again", options)
    drafter = eaglectl.inspect(str(edited(tmp_path / "again", rope_theta=10000.0)), target=TARGET).drafter
    assert [note.topic for note in drafter.notes_at("question")] == ["record-edited"]


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 4.0}


def rope_of(folder: Path, answer: str) -> tuple[float, Any]:
    rope = eaglectl.inspect(str(folder), answers=Answers(semantics={"rope": answer})).drafter.rope
    return rope.theta, rope.scaling


def test_two_rope_bases_are_asked_with_both_places(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"rope_parameters": {"rope_theta": 10000.0}})
    words = r"rope_theta: 500000 and rope_parameters.rope_theta: 10000; pass .*rope=500000 .*rope=10000"
    with pytest.raises(UsageError, match=words):
        eaglectl.convert(str(folder), tmp_path / "out")
    assert rope_of(folder, "500000")[0] == 500000
    assert rope_of(folder, "10000")[0] == 10000


def test_what_is_stored_does_not_tell_two_rope_bases_apart(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"rope_parameters": {"rope_theta": 10000.0}})
    options = ConvertOptions(answers=Answers(semantics={"rope": "stored"}))
    with pytest.raises(UsageError, match="which rope=stored does not answer"):
        eaglectl.convert(str(folder), tmp_path / "out", options)


@pytest.mark.parametrize(
    ("answer", "scaling"),
    [
        ("rope_scaling", LINEAR),
        ("rope_parameters", YARN),
        ("plain", None),
        ("20000,rope_parameters", YARN),
        ("stored,rope_scaling", LINEAR),
    ],
)
def test_two_rope_scalings_are_asked_and_each_answer_is_taken(
    answer: str, scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={"rope_scaling": LINEAR, "rope_parameters": YARN})
    with pytest.raises(UsageError, match=r"rope_scaling: .*linear.* and rope_parameters: .*yarn"):
        eaglectl.convert(str(folder), tmp_path / "out")
    assert rope_of(folder, answer) == (20000 if "20000" in answer else 500000, scaling)


def test_the_same_scaling_in_two_places_is_not_asked(tmp_path: Path) -> None:
    folder = drafter_folder(
        tmp_path,
        config={
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "rope_parameters": {"factor": 4.0, "rope_type": "linear"},
        },
    )
    assert not eaglectl.inspect(str(folder)).drafter.notes_at("question")


def test_the_targets_rope_is_refused_of_a_target_that_states_none(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = json.loads((FIXTURES / "target/config.json").read_text())
    left = {key: value for key, value in config.items() if not key.startswith("rope")}
    (target / "config.json").write_text(json.dumps(left))
    answers = Answers(semantics={"rope": "target"})
    with pytest.raises(UsageError, match="the target's config states no rope base"):
        eaglectl.inspect(str(ANGELSLIM), target=str(target), answers=answers)
    with pytest.raises(UsageError, match="pass --target, whose config states its rope"):
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
    (target := tmp_path / "target").mkdir()
    (target / "config.json").write_text(json.dumps({"hidden_size": 16, "num_hidden_layers": 8}))
    drafter = eaglectl.inspect(str(folder), target=str(target)).drafter
    assert not drafter.notes_at("question") and drafter.dims.aux == 3


def test_a_number_of_states_that_fc_cannot_take_is_a_warning(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"num_aux_hidden_states": 5, "target_hidden_size": ABSENT})
    drafter = eaglectl.inspect(str(folder)).drafter
    assert not drafter.notes_at("question")
    assert "aux-count" in [note.topic for note in drafter.notes_at("warning")]


def test_deepspecs_key_in_a_specforge_file_is_asked_about(tmp_path: Path) -> None:
    shutil.copytree(PRODUCERS / "specforge/gqa", folder := tmp_path / "drafter")
    edited(folder, target_layer_ids=[0, 2, 6])
    drafter = eaglectl.inspect(str(folder), target=TARGET).drafter
    assert drafter.producer == "specforge"
    (note,) = drafter.notes_at("question")
    assert "target_layer_ids: [0, 2, 6]" in note.text and "pass --aux-layers" in note.text
