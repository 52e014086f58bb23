"""The command line of validate and rules: files, several sources and exit codes."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.errors import UsageError
from eaglectl.judge.rule import Rule, find_rule, rules
from eaglectl.report.outputs import FORMATS
from tests.builders import Outcome, call, contents, drafter_folder, refusal
from tests.conftest import FIXTURES

SCHEMAS = FIXTURES.parent / "schemas"
RULES = jsonschema.Draft202012Validator(json.loads((SCHEMAS / "rules.schema.json").read_text()))
PICKLES = find_rule("EGL002").name


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path, "good")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    folder = drafter_folder(tmp_path, "bad")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    return folder


def validate(*arguments: str | Path) -> Outcome:
    return call("validate", "--select", "EGL002", *arguments)


@pytest.mark.parametrize("name", FORMATS)
def test_exit_codes_are_those_of_the_contract_in_every_format(name: str, good: Path, bad: Path) -> None:
    assert validate(good, "--format", name).code == 0
    outcome = validate(bad, "--format", name)
    assert outcome.code == 1 and outcome.err == "" and "EGL002" in outcome.out
    assert validate(bad, "--format", name, "--fail-on", "never").code == 0


def test_several_files_are_written_in_one_run_whole_and_alone(good: Path, bad: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.json").write_text('{"schema": "eaglectl/validate/1"}')
    given = [part for name in FORMATS for part in ("--output", f"{name}={out / name}")]
    assert validate(good, bad, *given, "--output", f"json={out / 'old.json'}").code == 1
    assert sorted(path.name for path in out.iterdir()) == sorted((*FORMATS, "old.json"))
    assert (out / "old.json").read_text() == (out / "json").read_text() == validate(good, bad, "--json").out


def test_an_output_writes_through_a_link_and_into_a_pipe(good: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real.json")
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    validate(good, "--output", f"json={tmp_path / 'link'}", "--output", f"junit={tmp_path / 'pipe'}")
    reader.join(10)
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["verdict"] == "pass"
    assert "<testsuites" in "".join(read) and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("json", "expected FORMAT=FILE"),
        ("json=", "expected FORMAT=FILE"),
        ("xml=x", "one of text, json, junit, sarif"),
        ("junit=-", "pass the name of a file"),
        ("json=no/such/report.json", "there is no folder no/such; make it first"),
        ("json=.", "is a folder"),
        ("json=a\0b", "null"),
        ("json=r --output sarif=./r", "writes ./r already"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_before_anything_is_judged(
    given: str, says: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    assert says in refusal(2, "validate", good, "--output", *given.split(" "))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md", "eaglectl.json"])
def test_an_output_is_not_written_over_a_file_that_is_no_report(good: Path, name: str) -> None:
    (good / "README.md").write_text("# card")
    (good / "eaglectl.json").write_text('{"schema": "eaglectl/provenance/1"}')
    before = contents(good)
    message = refusal(2, "validate", good, "--output", f"json={good / name}")
    assert "exists, is not a report by eaglectl, and stays" in message and contents(good) == before


@pytest.mark.parametrize(
    "text",
    [
        "pass: the salt\n",
        "fail: I\nthe exam: twice\n",
        "could not look: away",
        "PASS 3 of 4\n",
        "skipped: two\n",
    ],
)
def test_a_text_of_mine_that_begins_like_a_report_is_kept(good: Path, tmp_path: Path, text: str) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text(text)
    assert "exists, is not a report" in refusal(2, "validate", good, "--output", f"text={mine}")
    assert mine.read_text() == text


FOREIGN = {
    "junit": '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="pytest tests"></testsuites>',
    "sarif": '{"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "runs": []}',
    "github": "::error file=a.py,line=1,title=mypy::EGL101 is no name\n",
    "markdown": "## eaglectl: notes of mine\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_report_of_another_program_is_kept_and_of_eaglectl_replaced(
    good: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "report"
    option = ("--output", f"{kind}={file}")
    bad = drafter_folder(tmp_path, "a, title=b", config={"hidden_act": "tanh"})
    for source, code in ((good, 0), (bad, 1), (tmp_path / "nowhere", 3), (good, 0)):
        assert call("validate", source, *option).code == code
    file.write_text(FOREIGN[kind])
    assert "is not a report by eaglectl, and stays" in refusal(2, "validate", good, *option)
    assert file.read_text() == FOREIGN[kind]


@pytest.mark.parametrize("name", ["text", "github", "markdown", "json", "junit", "sarif"])
def test_a_report_is_written_over_one_of_its_kind(good: Path, tmp_path: Path, name: str) -> None:
    for source in (good, tmp_path / "nothing", tmp_path):
        for _ in range(2):
            call("validate", source, "--output", f"{name}={tmp_path / 'report'}")
        assert call("validate", good, "--output", f"{name}={tmp_path / 'report'}").code == 0


@pytest.mark.parametrize(
    "words",
    [("validate", "--output", "json=PLACE"), ("validate", "--page", "PLACE"), ("inspect", "--page", "PLACE")],
)
def test_a_link_to_itself_is_refused_and_a_pipe_without_a_reader_is_not_waited_for(
    good: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    command, *options = words
    for code, place in ((2, tmp_path / "link"), (3, tmp_path / "pipe")):
        given = [option.replace("PLACE", str(place)) for option in options]
        outcome = call(command, good, *given)
        assert outcome.code == code and outcome.err.count("\n") == 1, outcome


@pytest.mark.parametrize(
    ("code", "given", "says"),
    [
        (2, "--format yaml", "--format yaml: one of text, json"),
        (2, "--fail-on all", "--fail-on all"),
        (2, "--select EGL9999", "EGL9999 is no rule"),
        (2, f"--ignore {PICKLES[:-1]}", f"near it: {PICKLES}"),
        (3, "--engine vllm==99", "no known release fits"),
        (3, "--engine vllm>=99", "update eaglectl"),
        (3, "--engine vllm==0.0.1", "no known release fits"),
    ],
)
def test_wrong_options_end_alike_whatever_the_sources(
    code: int, given: str, says: str, tmp_path: Path
) -> None:
    assert says in refusal(code, "validate", tmp_path / "gone", *given.split())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--source-semantics foo=bar", "--source-semantics foo=bar is not known"),
        ("--aux-layers 2,4", "3 ascending layers were expected"),
    ],
)
def test_an_answer_that_is_none_is_a_wrong_call(given: str, says: str, good: Path, tmp_path: Path) -> None:
    assert says in refusal(2, "validate", good, *given.split())
    with pytest.raises(UsageError, match=says):
        eaglectl.validate(good, aux_layers=(2, 4)) if "aux" in given else eaglectl.validate(
            good, semantics={"foo": "bar"}
        )
    # of several it is the one's, and the others are judged
    several = call("validate", good, tmp_path / "gone", *given.split())
    assert several.code == 3 and says in several.out


def test_the_next_command_answers_no_question_and_says_that_it_has_one(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-ids"  # ids whose meaning the target's depth decides
    for said in (call("validate", source).out, call("inspect", source).out):
        assert "\nnext:" not in said  # it would be an answer
        # what an answer gives stands above the command where a line is too short for both
        above = r"^(?:  one of:|         )  # .*; (.*)\n {11}eaglectl convert (.*)$"
        assert re.findall(above, said, re.MULTILINE) == [
            ("the states that enter those layers", f"{source} --aux-convention boundary"),
            ("the states that leave them", f"{source} --aux-convention output"),
        ]


def test_the_next_command_says_which_engine_it_loses() -> None:
    said = call("validate", FIXTURES / "nine/two-layers", "--target", FIXTURES / "target").out
    assert "--for sglang" in said and "after the next command vLLM will not run it as trained" in said


@pytest.mark.parametrize("command", ["validate", "verify", "inspect"])
def test_an_empty_name_is_not_the_current_folder(
    command: str, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(good)
    done = call(command, "")
    assert done.code == 3 and "no such f" in done.out + done.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("name", ["good", "gone"])
def test_a_closed_stream_changes_no_exit_code(name: str, closed: str, good: Path) -> None:
    source = good if name == "good" else good / "gone"
    line = f"{shlex.join([sys.executable, '-m', 'eaglectl', 'validate', str(source)])} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == {"good": 0, "gone": 3}[name] and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [("--json --format sarif", "--output sarif=FILE"), ("--format json --fail-on all", "--fail-on all")],
)
def test_an_error_is_a_document_under_format_json_too(given: str, says: str, good: Path) -> None:
    document = call("validate", good, *given.split()).document
    assert (document["schema"], document["exit_code"]) == ("eaglectl/error/1", 2)
    assert says in document["message"]


def test_one_source_never_stops_the_others(good: Path, bad: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    sources = [tmp_path / "gone", good, tmp_path / "empty", bad, tmp_path / "notes.txt", good]
    document = validate(*sources, "--json").document
    jsonschema.validate(document, json.loads((SCHEMAS / "validate.schema.json").read_text()))
    found = [f"{Path(one['source']).name}: {one['verdict']}" for one in document["reports"]]
    unread = [f"{name}: could-not-look" for name in ("gone", "empty", "notes.txt")]
    assert found == [unread[0], "good: pass", unread[1], "bad: fail", unread[2]]
    assert all(one["problem"] for one in document["reports"] if one["verdict"] == "could-not-look")


def test_a_crash_in_one_is_told_with_its_traceback_and_the_others_are_judged(
    good: Path, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = eaglectl.validate

    def crashing(source: str, **given: Any) -> Any:
        if source.endswith("good"):
            raise ZeroDivisionError("of our own")
        return real(source, **given)

    monkeypatch.setattr("eaglectl.api.validate.validate", crashing)
    outcome = validate(good, bad, "--json")
    assert outcome.code == 70 and outcome.err.count("Traceback") == 1 and "please report it" in outcome.err
    crashed, other = outcome.document["reports"]
    assert crashed["problem"] == "internal error of eaglectl: ZeroDivisionError: of our own"
    assert (crashed["verdict"], other["verdict"], other["problem"]) == ("could-not-look", "fail", "")


def test_files_of_a_folder_stand_for_it_once(good: Path) -> None:
    (good / "model.safetensors.index.json").write_text("{}")
    document = validate(good / "config.json", good / "model.safetensors.index.json", "--json").document
    assert document["source"] == str(good)


def test_a_step_summary_is_appended_where_github_asks(
    bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    validate(bad)
    assert summary.read_text() == "# before\n"
    validate(bad, "--format", "github")
    text = summary.read_text()
    assert text.startswith("# before\n## eaglectl validate: fail") and "EGL002" in text


def test_quiet_shows_what_fails(good: Path, bad: Path) -> None:
    for outcome in (validate(good, bad, "-q"), call("-q", "validate", "--select", "EGL002", good, bad)):
        lines = [line.split(": ")[:2] for line in outcome.out.splitlines() if line[0] != " "]
        assert [line[0] for line in lines[:2]] == ["pass", "fail"] and lines[2] == ["fail", "2 checkpoints"]


@pytest.mark.fast(2)
@pytest.mark.parametrize("common", ["-q", "--quiet", "-v", "--verbose", "--no-color", "--offline"])
def test_common_options_may_stand_after_the_command(common: str, good: Path, tmp_path: Path) -> None:
    after, before = call("inspect", good, common), call(common, "inspect", good)
    assert (after.code, after.out, after.err) == (0, before.out, before.err)
    missing = call("inspect", "--", common)
    assert missing.code == 3 and f"{common}: no such file" in missing.err


def test_rules_lists_the_catalogue() -> None:
    document = call("rules", "--json").document
    RULES.validate(document)
    assert [one["id"] for one in document["rules"]] == [one.id for one in rules()]
    out = call("rules").out
    assert all(one.id in out and one.name in out for one in rules())


# one rule of each family, which EGLn begins
@pytest.mark.fast(3)
@pytest.mark.parametrize("one", {one.id[:4]: one for one in rules()}.values(), ids=lambda one: one.id)
def test_a_rule_is_explained(one: Rule) -> None:
    out = re.sub(r"\s+", " ", call("rules", one.id).out)
    texts = (one.name, one.severity, one.summary, one.why, one.fix, f"--ignore {one.id}", "[[suppress]]")
    assert [text for text in texts if re.sub(r"\s+", " ", text) not in out] == []
    assert call("rules", one.name).out == call("rules", one.id.lower()).out
    document = call("rules", one.id, "--json").document
    RULES.validate(document)
    assert [rule["why"] for rule in document["rules"]] == [one.why]


def test_explaining_no_rule_names_the_nearest() -> None:
    assert PICKLES in refusal(2, "rules", PICKLES[:-1])
    assert "EGL002" in refusal(2, "rules", "EGL0021")


def test_ids_and_names_of_rules_are_each_one_rules_own() -> None:
    ids, names = {one.id for one in rules()}, {one.name for one in rules()}
    assert len(ids) == len(names) == len(rules())
    assert all(re.fullmatch(r"EGL[0-9]{3,4}", each) for each in ids)
    assert all(re.fullmatch(r"[a-z0-9.]+(-[a-z0-9]+)*", each) for each in names)


def test_a_folder_that_is_no_drafter_is_told_in_three_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    done = call("validate", tmp_path)
    head, *reason, last = done.out.splitlines()
    assert (done.code, head) == (3, f"could not look: {tmp_path}: not read")
    assert " ".join(reason).startswith(f"  could not be read: {tmp_path} has no config.json; ")
    assert last == "no rule could look"
    done = call("validate", FIXTURES / "tiny", "--json")
    assert "eaglectl convert" not in done.out
    # what a target ends in, with weights and without
    for folder, rule_id in ((FIXTURES / "target", "EGL001"), (FIXTURES / "tiny" / "target", "EGL103")):
        text = " ".join(call("validate", folder).out.split())
        assert text.startswith(f"fail: {folder}: 1 error error {rule_id} ") and "EGL209" not in text


def test_no_conversion_is_offered_of_weights_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(FIXTURES / "producers/specforge/gqa-ids", folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    (folder / "train.py").write_text("x")
    done = call("validate", folder, "--json")
    assert done.code == 1 and "train.py" in done.out and "eaglectl convert" not in done.out
