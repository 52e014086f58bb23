"""The formats of validate: by their schemas, and with names that try to break out of them."""

import datetime
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
from msgspec.structs import replace
from rich.console import Console as RichConsole

import eaglectl
from eaglectl.engines.engine import Verdict
from eaglectl.formats.commands import Fix, Step, read_fix
from eaglectl.judge.judgement import Report, Suppressed, Unchecked, unopened_report
from eaglectl.judge.rule import Finding, Match, Rule, Severity, Suppression
from eaglectl.report import findings
from eaglectl.report.ci import fingerprints, github, junit, sarif
from eaglectl.report.findings import Places, key_offset, reports_outline, validate_document
from eaglectl.report.outputs import FORMATS, render
from eaglectl.report.terminal import Console, print_outline
from eaglectl.text import as_markdown
from eaglectl.verdicts import ServedAs
from tests.builders import drafter_folder
from tests.conftest import FIXTURES

SCHEMAS = FIXTURES.parent / "schemas"
OTHERS = Path(__file__).parent / "schemas"
HOSTILE = (
    "a|b\nc\r\n::error::x ]]> </failure> <script> `code` "
    "[x](http://evil) @all #1 %0A \x00\x1b[31m\u202e\ud800 {0} *b* $x$"
)


def rule(number: int, severity: Severity) -> Rule:
    texts = (f"sentence {number}", f"why {number}", f"do {number}")
    return Rule(f"EGL{number}", f"rule-{number}", severity, *texts, lambda _: iter(()))


NUMBERS = (110, 201, 203, 204, 301, 701, 702, 1003)
RULES = {number: rule(number, "warning" if number == 110 else "error") for number in NUMBERS}


def finding(
    number: int, message: str = "m", where: str = "", severity: Severity = "error", **more: Any
) -> Finding:
    return Finding(RULES[number], severity, Match(message, where, **more))


NEVER_APPLIED = tuple(f"vllm=={release}" for release in ("0.22.0", "0.22.1", "0.23.0"))
NO_TARGET = tuple(Unchecked(RULES[number], "no target was given", False) for number in (701, 702))
OLD = Suppression("EGL110", "until the next training", datetime.date(2026, 1, 31))


def report(path: str = "drafter", **changes: Any) -> Report:
    by = Suppression("EGL203", "known since May", datetime.date(2027, 1, 31), "tensor:")
    base = Report(
        path,
        path,
        ("vllm==0.32.0",),
        "fail",
        (
            finding(201, "fc.weight is missing", "tensor:fc.weight", fix="train it"),
            finding(1003, "is never applied", "config.json:fc_norm", engines=NEVER_APPLIED),
            finding(110, "says nothing", "config.json:norm_before_residual", "warning"),
        ),
        (*NO_TARGET, Unchecked(RULES[301], "d2t cannot be read", True)),
        (Suppressed(finding(203, "is narrow", "tensor:x"), by),),
        (Suppression("EGL999", "long gone"),),
        (RULES[204],),
        "eaglectl.toml",
        0.5,
        releases=(
            Verdict("vllm", "0.22.0", ServedAs.DIFFERS, ("is never applied",), ("EGL1003",)),
            Verdict("vllm", "0.22.1", ServedAs.DIFFERS, ("is never applied",), ("EGL1003",)),
            Verdict("vllm", "0.24.0", ServedAs.AS_TRAINED),
            Verdict("sglang", "0.5.23", ServedAs.UNKNOWN, ("the target's type is not known",), ()),
        ),
        changes=(Fix(read_fix("run `eaglectl convert drafter`", "convert").steps, engines="vLLM"),),
        expired=(OLD,),
    )
    return replace(base, **changes)


WEAKENED = report(off=("EGL404",), lowered={"EGL110": "note"})
TWO_REQUIRED = report(
    unchecked=tuple(Unchecked(RULES[number], "d2t cannot be read", True) for number in (301, 702))
)


def hostile() -> Report:
    by = Suppression("EGL203", HOSTILE, None, HOSTILE)
    return report(
        HOSTILE,
        findings=tuple(
            finding(201, HOSTILE, where, fix=HOSTILE)
            for where in (HOSTILE, f"tensor:{HOSTILE}", f"config.json:{HOSTILE}", f"{HOSTILE}.json:{HOSTILE}")
        ),
        unchecked=(Unchecked(RULES[701], HOSTILE, True), Unchecked(RULES[702], HOSTILE, False)),
        suppressed=(Suppressed(finding(203, HOSTILE, HOSTILE), by),),
        unused=(by,),
        expired=(by,),
        policy=HOSTILE,
        problem=HOSTILE,
        releases=(Verdict("vllm", "0.22.0", ServedAs.DIFFERS, (HOSTILE,), ()),),
        changes=(Fix((Step((HOSTILE,)),), engines="vLLM"),),
    )


def good_and_bad() -> list[Report]:
    return [
        report(),
        hostile(),
        report("other", verdict="pass", findings=()),
        unopened_report("gone", "no such folder"),
    ]


def schema(path: Path) -> jsonschema.protocols.Validator:
    content = json.loads(path.read_text())
    return jsonschema.validators.validator_for(content)(content)


SARIF = schema(OTHERS / "sarif-schema-2.1.0.json")
JENKINS = xmlschema.XMLSchema(OTHERS / "junit-10.xsd")


@pytest.mark.parametrize("count", [0, 1, 4])
def test_json_sarif_and_junit_keep_their_schemas(count: int) -> None:
    reports = good_and_bad()[:count]
    document = json.loads(json.dumps(validate_document(reports)))
    schema(SCHEMAS / "validate.schema.json").validate(document)
    SARIF.validate(json.loads(sarif(reports)))
    JENKINS.validate(junit(reports))


def test_json_of_one_checkpoint_is_the_documented_one() -> None:
    document = validate_document([report()])
    assert document["schema"] == "eaglectl/validate/1" and document["verdict"] == "fail"
    (first, *_), (release, *_), unchecked = (
        document[key] for key in ("findings", "releases", "could_not_look")
    )
    assert (first["rule"], first["name"], first["severity"]) == ("EGL201", "rule-201", "error")
    assert (first["message"], first["where"]) == ("fc.weight is missing", "tensor:fc.weight")
    assert (first["engines"], first["fix"], first["url"]) == ([], "train it", "eaglectl rules EGL201")
    assert (release["engine"], release["release"], release["verdict"]) == ("vllm", "0.22.0", "fail")
    assert (release["rules"], release["reasons"]) == (["EGL1003"], ["is never applied"])
    assert (unchecked[2]["reason"], unchecked[2]["is_required"]) == ("d2t cannot be read", True)
    assert document["suppressed"][0]["until"] == "2027-01-31"
    assert [suppression["rule"] for suppression in document["unused_suppressions"]] == ["EGL999"]
    assert [suppression["rule"] for suppression in document["expired_suppressions"]] == ["EGL110"]


def test_json_holds_no_text_that_strict_readers_refuse() -> None:
    assert "\ud800" in validate_document([hostile()])["findings"][0]["message"]
    text = render("json", [hostile()])
    assert "\\ud800" in json.loads(text)["findings"][0]["message"]
    assert text.isascii() and not re.search(r"(?<!\\)\\ud800", text)


def cases(text: str) -> dict[str, list[str]]:
    return {
        case.attrib["name"]: [child.tag for child in case]
        for case in ElementTree.fromstring(text).iter("testcase")
    }


def test_junit_has_a_case_for_each_rule_and_never_passes_what_was_not_looked_at() -> None:
    assert cases(junit([report()])) == {
        "EGL110 rule-110": ["system-out"],
        "EGL201 rule-201": ["failure"],
        "EGL203 rule-203": ["system-out"],
        "EGL204 rule-204": [],
        "EGL301 rule-301": ["error"],
        "EGL701 rule-701": ["skipped"],
        "EGL702 rule-702": ["skipped"],
        "EGL1003 rule-1003": ["failure"],
    }
    suite = ElementTree.fromstring(junit([report()]))[0].attrib
    assert (suite["tests"], suite["failures"], suite["errors"], suite["skipped"]) == ("8", "2", "1", "2")


def test_junit_has_one_error_for_each_reason_why_required_rules_could_not_look() -> None:
    (error,) = ElementTree.fromstring(junit([TWO_REQUIRED])).iter("error")
    assert error.attrib["message"] == "d2t cannot be read (2 rules, the last is EGL702 rule-702)"


def test_junit_fails_what_fail_on_says_and_errs_where_a_checkpoint_could_not_be_opened() -> None:
    assert cases(junit([report(fail_on="warning")]))["EGL110 rule-110"] == ["failure"]
    assert cases(junit([report(fail_on=None)]))["EGL201 rule-201"] == ["system-out"]
    elements = ElementTree.fromstring(junit([hostile()])).iter()
    names = [text for element in elements for text in element.attrib.values()]
    assert any("]]> </failure> <script>" in text for text in names)
    root = ElementTree.fromstring(junit([unopened_report("gone", "no such folder")]))
    assert root.attrib["errors"] == "1"
    assert root.find("testsuite/testcase/error").attrib["message"] == "no such folder"  # type: ignore[union-attr]


def test_sarif_holds_the_rule_the_level_and_its_page() -> None:
    run = json.loads(sarif([report()]))["runs"][0]
    driver, first = run["tool"]["driver"], run["results"][0]
    assert driver["version"] == eaglectl.__version__
    # of the rules that ran, those with a finding alone
    fired = {result["ruleId"] for result in run["results"]}
    assert {entry["id"] for entry in driver["rules"]} == fired == {"EGL110", "EGL201", "EGL203", "EGL1003"}
    # a path is no address
    assert "informationUri" not in driver and not any("helpUri" in entry for entry in driver["rules"])
    assert all(driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    assert (first["level"], first["ruleId"]) == ("error", "EGL201")
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "tensor:fc.weight"
    assert run["results"][3]["suppressions"] == [{"kind": "external", "justification": "known since May"}]


def test_sarif_links_to_the_repository_that_pyproject_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "repository", lambda: "https://git.example.org/me/eaglectl")
    monkeypatch.setattr("eaglectl.report.ci.repository", findings.repository)
    document = json.loads(sarif([report()]))
    driver = document["runs"][0]["tool"]["driver"]
    assert driver["informationUri"] == "https://git.example.org/me/eaglectl"
    page = "https://git.example.org/me/eaglectl/blob/HEAD/docs/rules.md#egl"
    assert all(entry["helpUri"].startswith(page) for entry in driver["rules"])
    SARIF.validate(document)
    monkeypatch.setenv("EAGLECTL_DOCS_URL", "https://docs.example.org/rules.html")
    (first, *_) = json.loads(sarif([report()]))["runs"][0]["tool"]["driver"]["rules"]
    assert first["helpUri"].startswith("https://docs.example.org/rules.html#egl")
    address = validate_document([report()])["findings"][0]["url"]
    assert address == "https://docs.example.org/rules.html#egl201-rule-201"


def test_sarif_reports_what_could_not_be_looked_at_as_notifications() -> None:
    run = json.loads(sarif([report()]))["runs"][0]
    notifications = run["invocations"][0]["toolExecutionNotifications"]
    found = [(entry["associatedRule"]["id"], entry["level"]) for entry in notifications]
    assert found == [("EGL701", "note"), ("EGL702", "note"), ("EGL301", "error")]
    assert run["invocations"][0]["executionSuccessful"] is True
    gone = json.loads(sarif([unopened_report("gone", "no such folder")]))["runs"][0]
    assert gone["invocations"][0]["executionSuccessful"] is False and gone["results"] == []


def test_json_and_sarif_have_the_rules_that_a_policy_switches_off_and_lowers() -> None:
    document = validate_document([WEAKENED])
    assert (document["off"], document["lowered"]) == (["EGL404"], {"EGL110": "note"})
    schema(SCHEMAS / "validate.schema.json").validate(document)
    (invocation,) = json.loads(sarif([report(), WEAKENED]))["runs"][0]["invocations"]
    assert invocation["ruleConfigurationOverrides"] == [
        {"descriptor": {"id": "EGL110"}, "configuration": {"level": "note"}},
        {"descriptor": {"id": "EGL404"}, "configuration": {"enabled": False}},
    ]
    SARIF.validate(json.loads(sarif([WEAKENED])))


def test_sarif_makes_no_links_of_names() -> None:
    run = json.loads(sarif([hostile()]))["runs"][0]
    entries = [*run["results"], *run["invocations"][0]["toolExecutionNotifications"]]
    assert entries and not any("](" in entry["message"]["text"] for entry in entries)


def test_a_place_is_the_line_of_its_key_the_file_of_its_tensor_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafter_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    lines = (folder / "config.json").read_text().splitlines()
    places = Places(str(folder))
    for key in ("hidden_size", "eagle_config.use_aux_hidden_state"):
        place = places.find(f"config.json:{key}")
        assert place.line and place.column and place.path == f"{folder}/config.json"
        assert lines[place.line - 1][place.column - 1 :].startswith(f'"{key.split(".")[-1]}"')
    assert places.find("config.json:not_there").line == 1
    found = (places.find("tensor:fc.weight").path, places.find("tensor:fc.weight").logical)
    assert found == (f"{folder}/model.safetensors", "tensor:fc.weight")
    assert places.find("").path == f"{folder}/config.json"
    assert places.find("notes.txt").path == f"{folder}/notes.txt"
    monkeypatch.chdir(tmp_path)
    assert places.find("").uri == "drafter/config.json"
    assert Places("drafter").find("").uri == "drafter/config.json"


def test_the_place_of_a_tensor_is_its_shard_and_what_cannot_be_read_has_no_line(tmp_path: Path) -> None:
    folder = FIXTURES / "producers/vllm/sharded"
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    places = Places(str(folder))
    assert {name: Path(places.find(f"tensor:{name}").path).name for name in weight_map} == weight_map
    (tmp_path / "config.json").write_bytes(b'{"a": \xff')
    assert Places(str(tmp_path)).find("config.json:b").line == 1
    assert Places(str(tmp_path / "gone")).find("tensor:x").path.endswith("gone/model.safetensors")


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("path", ["a", "b.a", 'b.c.é"', "b.d", "a}"])
def test_every_key_of_a_json_object_is_found(path: str, indent: int | None) -> None:
    value = {"x": 'a: {"', "a": [{"b": 1}], "b": {"a": None, "c": {'é"': -1.5e3}, "d": []}, "a}": "\\"}
    for is_ascii in (True, False):
        text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
        offset = key_offset(text, path)
        assert offset is not None
        assert json.JSONDecoder().raw_decode(text, offset)[0] == path.rpartition(".")[2]
        assert text[:offset].count("{") - text[:offset].count("}") >= path.count(".")
    assert key_offset('{"a": 1, "a": 2}', "a") == 9  # the last counts


@pytest.mark.parametrize("text", ["", "[1]", '{"a"', '{"a": 1', '{"a" 1}', "{" * 5000, '{"b": ' * 5000])
def test_no_text_breaks_the_search_for_a_key(text: str) -> None:
    assert key_offset(text, "c.d") is None


def test_github_commands_are_one_line_each_and_escaped() -> None:
    lines = github([hostile()]).splitlines()
    assert len(lines) == 4 + 1 + 1 + 1 and lines[-1] == "eaglectl: fail"
    for line in lines[:-1]:
        command = re.fullmatch(r"::(error|warning|notice) (?P<properties>[^:]*)::(?P<data>.*)", line)
        assert command and line.isprintable(), line
        assert [part.split("=")[0] for part in command["properties"].split(",")] in (
            ["file", "title"],
            ["file", "line", "title"],
        )
        # a line break of a name is shown as an escape, as on the terminal
        assert r"a|b\nc\r\n::error::x" in command["data"]
        assert "%250A" in command["data"] and "%0A" not in command["data"]


def test_github_points_at_the_line_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drafter_folder(tmp_path)
    odd = report(findings=(finding(110, "is odd", "config.json:model_type", "warning"),), unchecked=())
    place = "file=drafter/config.json,line=1,col=47,title=EGL110 rule-110"
    assert github([odd]).splitlines()[0] == f"::warning {place}::is odd. Fix: do 110"


def test_a_fingerprint_stays_when_the_numbers_of_a_message_change() -> None:
    before, after = (
        [finding(201, f"is {number}", f"tensor:{name}") for number, name in zip(numbers, "aab", strict=True)]
        for numbers in ("343", "789")
    )
    assert fingerprints(before) == fingerprints(after) and len(set(fingerprints(before))) == 3


def test_markdown_keeps_its_table_whatever_the_names() -> None:
    page = render("markdown", [hostile()])
    rows = [line for line in page.splitlines() if line.startswith("| error")]
    assert len(rows) == 4
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert not re.search(r"<script>|@all|(?<!\\)\]\(|\x1b", page)


def test_markdown_leaves_plain_words_plain_and_says_what_it_cut_off() -> None:
    assert as_markdown("fc.weight is [4, 8]: 50% of 3/4 (a-b)") == "fc.weight is \\[4, 8\\]: 50% of 3/4 (a-b)"
    page = render("markdown", [report()] * 100)
    assert len(page) < 60_100 and page.splitlines()[-1].endswith("more lines were cut off.*")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_survives_hostile_names_and_can_be_written(name: str) -> None:
    text = render(name, good_and_bad())
    assert text.encode().decode() == text and text.replace("\n", "").isprintable()


def screen(width: int, *reports: Report, is_quiet: bool = False, is_whole: bool = True) -> list[str]:
    stream = io.StringIO()
    rich = RichConsole(file=stream, width=width, no_color=True, highlight=False, emoji=False, markup=False)
    console = Console(rich)
    print_outline(console, reports_outline(reports, is_quiet=is_quiet), is_whole=is_whole)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_screen_shows_the_verdict_first_then_errors_and_each_fix_once() -> None:
    assert screen(160, report(), is_whole=False) == [
        "fail: drafter: 2 errors, 1 warning; not served as trained by vLLM 0.22.0 - 0.22.1; not known to"
        " serve it as trained by SGLang 0.5.23",
        "  vLLM 0.22.0 - 0.22.1 runs it differently than it was trained; vLLM 0.24.0 runs it as trained; it"
        " is not known whether SGLang 0.5.23 runs it as trained",
        "  could not look: d2t cannot be read",
        "  the target's type is not known",
        "next:  eaglectl convert drafter",
        "  error   EGL201 rule-201  tensor:fc.weight",
        "          fc.weight is missing",
        "  error   EGL1003 rule-1003  config.json:fc_norm  vllm 0.22.0 - 0.23.0",
        "          is never applied",
        "  warning EGL110 rule-110  config.json:norm_before_residual",
        "          says nothing",
        "",
        "more with -v: Releases, Smallest change, Could not look, Suppressed, Unused suppressions,"
        " Expired suppressions",
        "2 errors, 1 warning, 1 suppressed, 3 rules could not look, 1 passed"
        "  (fails on error; policy: eaglectl.toml)",
        "fixable by: train it (EGL201); do 1003 (EGL1003); do 110 (EGL110)",
    ]


def test_the_whole_screen_has_the_releases_what_was_not_looked_at_and_suppressions() -> None:
    lines = screen(160, report())
    assert lines[lines.index("Releases") : -3] == [
        "Releases",
        "  releases              outcome     why",
        "  SGLang 0.5.23         unknown     the target's type is not known",
        "  vLLM 0.24.0           as trained",
        "  vLLM 0.22.0 - 0.22.1  differs     EGL1003: is never applied",
        "",
        "Smallest change  that makes all pass",
        "  vLLM: run `eaglectl convert drafter`",
        "",
        "Could not look",
        "  1 rule    d2t cannot be read (required) (EGL301)",
        "  2 rules   no target was given (EGL701, EGL702)",
        "",
        "Suppressed",
        "  EGL203    1 finding: known since May (tensor:, until 2027-01-31)",
        "",
        "Unused suppressions",
        "  EGL999    long gone",
        "",
        "Expired suppressions",
        "  EGL110    until the next training (until 2026-01-31)",
    ]


def test_a_finding_shows_the_value_that_it_judges(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n  "fc_norm": [\n    1\n  ]\n}')
    judged = report(str(tmp_path), findings=(finding(1003, "is never applied", "config.json:fc_norm"),))
    lines = screen(160, judged, is_whole=False)
    place = lines.index('          config.json:2 "fc_norm": [1]')
    assert lines[place - 1 : place + 2 : 2] == ["  error   EGL1003 rule-1003", "          is never applied"]


def test_a_quiet_screen_shows_what_fails() -> None:
    lines = screen(160, report(), is_quiet=True)
    assert not any("EGL110" in line or "could not look" in line for line in lines[:-2]) and len(lines) == 7


def test_several_checkpoints_are_counted_in_the_last_line() -> None:
    lines = screen(120, *good_and_bad()[::2], unopened_report("gone", "no such folder"))
    assert lines[-2].startswith("fail: 3 checkpoints: 1 could not look, 1 fail, 1 pass; 2 errors, 1 warning")
    assert "  could not be read: no such folder" in lines


def test_the_text_of_a_finding_wraps_under_itself() -> None:
    unchecked = (Unchecked(RULES[701], "word " * 60, False),)
    lines = screen(80, report(findings=(finding(201, "word " * 60, "tensor:x"),), unchecked=unchecked))
    assert all(len(line) <= 80 for line in lines[:-2])
    assert sum(line.startswith("          word") for line in lines) == 5
