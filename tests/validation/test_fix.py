"""validate --fix: what the files themselves say how to repair, in a new folder that is judged again."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from eaglectl import ValidateOptions, fix, validate
from eaglectl.api.validating import judge_source
from eaglectl.checkpoint.source import Source
from eaglectl.formats.format import Answers
from eaglectl.results import FixResult
from eaglectl.validation.judge import Report
from eaglectl.validation.judgement import Unchecked
from eaglectl.validation.rules import rules
from tests.builders import call as call_line
from tests.builders import contents, drafter_folder, floats, refusal
from tests.cases import CASES, NORMED_ONCE, Case, digests
from tests.conftest import FIXTURES
from tests.mla import Heads, mla_folder

PRODUCERS = FIXTURES / "producers"
TARGET = str(FIXTURES / "target")
ONCE = ("--source-semantics", "modelopt=pre-689")
SCHEMA = json.loads((FIXTURES.parent / "schemas/validate.schema.json").read_text())


def fixed(source: Path, out: Path, **options: Any) -> FixResult:
    before = contents(source)
    done = fix(str(source), out, ValidateOptions(**{"has_engines": "engines" in options, **options}))
    assert contents(source) == before  # the input is never touched
    return done


def ids(found: Any) -> list[str]:
    return [one.rule.id for one in found if one.severity != "note"]


def left(done: FixResult) -> list[str]:
    return ids(one.finding for one in done.left)


@pytest.mark.parametrize(
    ("source", "gone", "answers"),
    [
        ("modelopt/hf-mla", ["EGL114", "EGL406"], Answers(semantics=NORMED_ONCE)),
        ("sglang/aux-norm", ["EGL406", "EGL506"], Answers()),
        ("speculators/four-aux", ["EGL408"], Answers()),
        ("specforge/gqa-ids", ["EGL406"], Answers(aux_convention="output")),
    ],
)
def test_what_the_files_say_is_repaired(
    source: str, gone: list[str], answers: Answers, tmp_path: Path
) -> None:
    done = fixed(PRODUCERS / source, tmp_path / "out", answers=answers)
    assert ids(done.fixed) == gone and left(done) == []
    assert done.after and done.after.verdict == "pass" and done.out == tmp_path / "out"
    assert (tmp_path / "out/eaglectl.json").is_file() and list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_what_engines_read_stays_in_its_layout(tmp_path: Path) -> None:
    done = fixed(PRODUCERS / "speculators/four-aux", tmp_path / "out")
    assert done.conversion and done.conversion.plan.layout == "speculators"
    assert digests(tmp_path / "out") == digests(PRODUCERS / "speculators/four-aux")


def test_an_engine_that_nobody_named_changes_no_layout(tmp_path: Path) -> None:
    source = PRODUCERS / "speculators/four-aux"
    done = fixed(source, tmp_path / "out", has_engines=True, target=TARGET)
    assert done.conversion and done.conversion.plan.layout == "speculators"
    assert ids(done.fixed) == ["EGL1014"] and "EGL1101" in left(done)


def test_what_two_named_engines_are_to_read_is_written_for_both(tmp_path: Path) -> None:
    source = PRODUCERS / "speculators/four-aux"
    done = fixed(source, tmp_path / "out", engines=["vllm", "sglang"], target=TARGET)
    assert done.conversion and done.conversion.plan.layout == "vllm"
    assert "EGL1101" in ids(done.fixed) and done.report.verdict == "pass"


def test_sglang_alone_gets_its_layout(tmp_path: Path) -> None:
    done = fixed(PRODUCERS / "modelopt/hf-four-aux", tmp_path / "out", engines=["sglang"])
    assert done.conversion is None or done.conversion.plan.layout == "sglang"


def test_llama_cpp_alone_gets_its_layout(tmp_path: Path) -> None:
    source = PRODUCERS / "specforge/gqa-ids"
    answers = Answers(aux_convention="output")
    done = fixed(source, tmp_path / "out", engines=["llama.cpp"], target=TARGET, answers=answers)
    assert done.conversion and done.conversion.plan.layout == "llama.cpp"


def test_an_assumption_is_no_repair(tmp_path: Path) -> None:
    done = fixed(PRODUCERS / "automodel/gqa", tmp_path / "asked", target=TARGET)
    assert done.out is None and "--aux-layers 2,4,5" in done.stopped
    done = fixed(PRODUCERS / "automodel/gqa", tmp_path / "out", target=TARGET, answers=Answers(assume=True))
    assert ids(done.fixed) == ["EGL101", "EGL105"] and left(done) == ["EGL410"]
    assert done.report.verdict == "could-not-look"


def test_what_only_the_user_knows_is_asked_with_its_option(tmp_path: Path) -> None:
    done = fixed(PRODUCERS / "specforge/norm-output-false", tmp_path / "out")
    assert done.out is None and not (tmp_path / "out").exists()
    asked = "specforge=pre-879 (releases up to 0.2.0) or specforge=post-879 (its sources since)"
    assert done.left[0].why == f"only you can tell: pass --source-semantics {asked}"
    assert "specforge=pre-879" in done.stopped and done.report.verdict == "could-not-look"


@pytest.mark.parametrize("source", ["torchspec/pruned", "modelopt-megatron/no-d2t", "modelopt/hf-no-aux"])
def test_what_is_lost_stays_lost(source: str, tmp_path: Path) -> None:
    done = fixed(PRODUCERS / source, tmp_path / "out")
    assert done.out is None and done.fixed == () and done.report.verdict == "fail" and done.stopped
    assert left(done) == ids(done.before.findings) and list(tmp_path.iterdir()) == []


def test_a_fault_in_the_numbers_is_left_and_nothing_is_written_for_it(tmp_path: Path) -> None:
    nan = ("BF16", (16,), b"\xc0\x7f" * 16)
    source = drafter_folder(tmp_path, "nan", tensors={"norm.weight": nan})
    done = fixed(source, tmp_path / "out")
    assert done.out is None and left(done) == ids(done.before.findings) != []
    assert done.stopped == "writing it anew repairs none of the findings" and not (tmp_path / "out").exists()


def test_one_fault_is_repaired_beside_one_that_is_not(tmp_path: Path) -> None:
    nan = ("BF16", (16,), b"\xc0\x7f" * 16)
    source = drafter_folder(tmp_path, "both", config={"num_hidden_layers": 30}, tensors={"norm.weight": nan})
    done = fixed(source, tmp_path / "out")
    assert "EGL105" in ids(done.fixed) and left(done) and done.report.verdict == "fail"


def test_a_query_without_rank_is_written_as_two(tmp_path: Path) -> None:
    source = mla_folder(tmp_path / "d", Heads(query_rank=0))
    done = fixed(source, tmp_path / "out")
    assert "EGL201" in ids(done.before.findings) and "EGL201" in ids(done.fixed)
    assert done.conversion and any("q_a_proj" in step.name for step in done.conversion.plan.steps)


def test_rotary_rows_are_reordered_only_where_it_is_sure(tmp_path: Path) -> None:
    source = mla_folder(tmp_path / "d", Heads(), rope_interleave=False)
    asked = fixed(source, tmp_path / "asked")
    assert asked.out is None and any("only you can tell: pass --rope-style" in one.why for one in asked.left)
    told = fixed(source, tmp_path / "told", answers=Answers(semantics={"rope_interleave": "false"}))
    assert told.out == tmp_path / "told" and any("rope" in one.rule.name for one in told.fixed)


def test_an_unknown_tensor_is_not_dropped_unasked(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, "more", tensors={"layers.0.extra.weight": floats("x", 16)})
    done = fixed(source, tmp_path / "out")
    assert done.out is None and left(done) == ["EGL202"] and "--drop" in done.stopped


def test_a_good_checkpoint_needs_nothing(tmp_path: Path) -> None:
    outcome = call_line("validate", drafter_folder(tmp_path), "--fix", "-o", tmp_path / "out")
    assert outcome.code == 0 and "nothing was written: nothing was found" in outcome.out
    assert not (tmp_path / "out").exists()


def test_the_name_is_beside_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call_line("validate", PRODUCERS / "modelopt/hf-mla", *ONCE, "--fix")
    assert outcome.code == 0 and os.listdir(tmp_path) == ["hf-mla-fixed"]  # noqa: PTH208
    plan, repaired, wrote = (
        outcome.out.index(text) for text in ("config.json:", "EGL114", "wrote hf-mla-fixed")
    )
    assert plan < repaired < wrote and "(before: fail)" in outcome.out


def test_the_document_holds_what_is_gone_and_what_is_left(tmp_path: Path) -> None:
    source, out = PRODUCERS / "automodel/gqa", tmp_path / "out"
    assumed = ("--assume-defaults", "--target", TARGET)
    document = call_line("validate", source, *assumed, "--fix", "-o", out, "--json").document
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"] == "could-not-look" and document["out"] == document["source"] == str(
        tmp_path / "out"
    )
    assert {"EGL101", "EGL105"} <= {one["rule"] for one in document["fixed"]}
    assert document["left"][0]["rule"] == "EGL410" and document["left"][0]["why"]


def test_the_document_says_why_nothing_was_written(tmp_path: Path) -> None:
    outcome = call_line("validate", PRODUCERS / "torchspec/pruned", "--fix", "-o", tmp_path / "out", "--json")
    jsonschema.validate(outcome.document, SCHEMA)
    assert (
        outcome.code == 1
        and outcome.document["out"] is None
        and "export again" in outcome.document["stopped"]
    )


def test_a_report_file_is_the_output_s(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "report.json"
    assert (
        call_line(
            "validate",
            PRODUCERS / "modelopt/hf-mla",
            *ONCE,
            "--fix",
            "-q",
            "-o",
            out,
            "--output",
            f"json={file}",
        ).code
        == 0
    )
    assert json.loads(file.read_text())["source"] == str(out)


def test_an_existing_folder_needs_force(tmp_path: Path) -> None:
    source, out = PRODUCERS / "modelopt/hf-mla", tmp_path / "out"
    shutil.copytree(PRODUCERS / "vllm/native", out)
    before = contents(out)
    assert "--force" in refusal(2, "validate", source, "--fix", "-o", out)
    assert call_line("validate", PRODUCERS / "torchspec/pruned", "--fix", "-o", out, "--force").code == 1
    assert contents(out) == before  # nothing was fixable, so nothing is replaced
    assert call_line("validate", source, *ONCE, "--fix", "-o", out, "--force").code == 0
    assert contents(out) != before


def test_the_input_is_never_written_over(tmp_path: Path) -> None:
    source = tmp_path / "drafter"
    shutil.copytree(PRODUCERS / "modelopt/hf-mla", source)
    before = contents(source)
    for out in (source, source / "out", tmp_path, source / ".." / "drafter"):
        assert "never writes over its input" in refusal(2, "validate", source, "--fix", "-o", out, "--force")
    assert contents(tmp_path) == {
        "drafter": "folder",
        **{f"drafter/{name}": one for name, one in before.items()},
    }


@pytest.mark.parametrize(
    "given",
    [
        ("--fix", "--format", "sarif"),
        ("-o", "out"),
        ("--force",),
        ("--fix", "--engine", "vlm"),
        ("--fix", "--select", "EGL9999"),
    ],
)
def test_options_that_do_not_go_together(given: tuple[str, ...], tmp_path: Path) -> None:
    assert call_line("validate", drafter_folder(tmp_path), *given).code == 2


def test_one_source_alone(tmp_path: Path) -> None:
    assert "one checkpoint" in refusal(
        2, "validate", drafter_folder(tmp_path), drafter_folder(tmp_path, "b"), "--fix"
    )


def test_a_damaged_file_is_no_crash(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(b"\xff" * 9)
    outcome = call_line("validate", source, "--fix", "-o", tmp_path / "out")
    assert outcome.code in (1, 3) and "nothing was written" in outcome.out and not (tmp_path / "out").exists()
    assert call_line("validate", tmp_path / "gone", "--fix").code == 3


def test_a_folder_that_may_not_be_written_in_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = PRODUCERS / "modelopt/hf-mla"
    assert "cannot write there" in refusal(3, "validate", source, "--fix", "-o", tmp_path / "file/out")


# what is said to be fixed


@pytest.mark.parametrize("source", ["modelopt/hf-mla", "modelopt/hf-full-vocab"])
def test_a_doubt_about_training_is_carried_and_never_fixed(source: str, tmp_path: Path) -> None:
    done = fixed(PRODUCERS / source, tmp_path / "out")
    assert "EGL507" not in {one.rule.id for one in done.fixed}
    (carried,) = [one for one in done.left if one.finding.rule.id == "EGL507"]
    assert carried.why.startswith("carried: still open") and "eaglectl convert" in carried.finding.fix
    (doubt,) = json.loads((tmp_path / "out/eaglectl.json").read_text())["doubts"]
    assert (doubt["producer"], doubt["topic"], doubt["open"]) == ("modelopt", "joined-norms", True)
    assert done.after is not None
    (finding,) = [one for one in done.after.findings if one.rule.id == "EGL507"]
    assert "eaglectl smoke" in finding.fix


def last_layer_of_deepspec(tmp_path: Path) -> Path:
    """A drafter of DeepSpec that was trained on the target's last layer, of 8."""
    source = tmp_path / "source"
    shutil.copytree(PRODUCERS / "deepspec/qwen3", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "target_layer_ids": [1, 2, 3, 4, 7]}))
    return source


def test_a_doubt_that_the_output_no_longer_shows_stays_through_two_conversions(tmp_path: Path) -> None:
    done = fixed(last_layer_of_deepspec(tmp_path), tmp_path / "out")
    (carried,) = [one for one in done.left if one.finding.rule.id == "EGL402"]
    assert carried.why.startswith("carried: still open")
    assert done.after and carried.finding.match.message in [one.match.message for one in done.after.findings]
    to = ("--for", "speculators", "--target-name", "example/target", "-o", tmp_path / "again")
    assert call_line("convert", tmp_path / "out", *to).code == 0
    again = call_line("validate", tmp_path / "again", "--json").document
    assert carried.finding.match.message in [one["message"] for one in again["findings"]]


@pytest.mark.parametrize("text", [None, 5, "", ["a"]])
def test_a_text_in_a_record_that_is_no_text_says_nothing(text: object, tmp_path: Path) -> None:
    fixed(last_layer_of_deepspec(tmp_path), tmp_path / "out")
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    record["doubts"][0]["text"] = text
    (tmp_path / "out/eaglectl.json").write_text(json.dumps(record))
    found = call_line("validate", tmp_path / "out", "--json").document["findings"]
    assert "EGL402" not in {one["rule"] for one in found}


@pytest.mark.parametrize(
    ("blind", "why"), [(True, "could not be looked at: no reason"), (False, "no rule shows that the output")]
)
def test_what_no_rule_looked_for_in_the_output_is_not_fixed(
    blind: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_blind(source: Source, path: str, options: ValidateOptions) -> Report:
        report = judge_source(source, path, options)
        (judged,) = [rule for rule in rules() if rule.id == "EGL114"]
        passed = tuple(rule for rule in report.passed if rule.id != "EGL114")
        unchecked = (*report.unchecked, Unchecked(judged, "no reason", False)) if blind else report.unchecked
        return replace(report, passed=passed, unchecked=unchecked)

    monkeypatch.setattr("eaglectl.api.fixing.judge_source", half_blind)
    done = fixed(PRODUCERS / "modelopt/hf-mla", tmp_path / "out")
    assert ids(done.fixed) == ["EGL406"]
    (unseen,) = [one for one in done.left if one.finding.rule.id == "EGL114"]
    assert why in unseen.why


def restored(out: Path, source: Path, folder: Path, *, has_weights: bool) -> Path:
    """The output with the config of the source put back, and its weights."""
    shutil.copytree(out, folder)
    shutil.copyfile(source / "config.json", folder / "config.json")
    if has_weights:
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        shutil.copytree(source, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_what_is_said_to_be_fixed_comes_back_with_what_was_changed(case: Case, tmp_path: Path) -> None:
    source = PRODUCERS / case.path
    answers = Answers(semantics=case.answers, aux_convention=case.aux_convention, aux_layers=case.aux_layers)
    done = fixed(source, tmp_path / "out", answers=answers)
    claimed = {one.rule.id for one in done.fixed}
    if not claimed:
        return
    assert done.out and done.after and done.conversion
    assert claimed <= {rule.id for rule in done.after.passed} | {one.rule.id for one in done.after.findings}
    assert not {one.rule.name for one in done.fixed} & {
        note.topic for note in done.conversion.plan.drafter.doubts
    }
    options = ValidateOptions(answers=answers, select=tuple(claimed), has_engines=False)
    back = set()
    for has_weights in (False, True):
        folder = restored(done.out, source, tmp_path / f"back-{has_weights}", has_weights=has_weights)
        back |= {one.rule.id for one in validate(str(folder), options).findings}
    assert back == claimed
