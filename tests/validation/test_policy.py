"""Policies: how a file is read, every fault of one in a sentence (and in the schema), and what it changes."""

import datetime
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import eaglectl
from docs import configuration
from eaglectl import read_policy
from eaglectl.errors import UsageError
from eaglectl.judge.judgement import Report
from eaglectl.judge.rule import (
    AllowTable,
    Policy,
    PolicyTable,
    Suppression,
    parse_policy,
    rules,
    select_rules,
)
from schemas.files import policy_schema, pyproject_schema
from tests.builders import call, drafter_folder, refusal

# a schema knows no names of rules and engines, and JSON no dates
READER_ALONE = ("is no rule", "--engine", "TOML", "and off", "until`")
RULE = "[[suppress]]\nrule = 'EGL001'\nreason = 'x'\n"
WHOLE = """
engines = ["vllm>=0.22"]
required = ["EGL003", "one-weight-source"]
fail-on = "warning"

[severities]
EGL006 = "off"
portable-architecture = "warning"

[allow]
architectures = ["LlamaForCausalLMEagle3"]
files = ["*.log"]

[[suppress]]
rule = "EGL309"
reason = "the tokenizer is the target's"
until = 2031-01-31
where = "tensor:d2t"
"""


def policy(text: str, folder: Path) -> Policy:
    (folder / "eaglectl.toml").write_text(text)
    return read_policy(str(folder / "eaglectl.toml"))


def judged(folder: Path, asked: Policy) -> Report:
    drafter = drafter_folder(folder)
    (drafter / "train.log").write_text("x")
    return eaglectl.validate(drafter, policy=asked)


def found(report: Report) -> list[tuple[str, str]]:
    return [(one.rule.id, one.severity) for one in report.findings]


def test_a_policy_is_read_whole(tmp_path: Path) -> None:
    read = policy(WHOLE, tmp_path)
    assert read == Policy(
        origin=str(tmp_path / "eaglectl.toml"),
        engines=("vllm>=0.22",),
        required=frozenset({"EGL001", "EGL003"}),
        severities={"EGL119": "warning", "EGL006": "off"},
        allow=AllowTable(("LlamaForCausalLMEagle3",), files=("*.log",)),
        suppress=(
            Suppression("EGL309", "the tokenizer is the target's", datetime.date(2031, 1, 31), "tensor:d2t"),
        ),
        fail_on="warning",
        folder=tmp_path,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engines = 'vllm'", "Expected `array`, got `str` - at `$.engines`"),
        ("engines = ['vlm']", "--engine vlm: "),
        ("enginges = []", "Object contains unknown field `enginges`"),
        ("fail_on = 'error'", "Object contains unknown field `fail_on`"),
        ("fail-on = 'fatal'", "Invalid enum value 'fatal' - at `$.fail-on`"),
        ("acceptance = 2.5", "Object contains unknown field `acceptance`"),
        ("required = ['one-weight-sauce']", "one-weight-sauce is no rule; near it: one-weight-source"),
        ("severities = 3", "Expected `object`, got `int` - at `$.severities`"),
        ("[severities]\nEGL001 = 'high'", "Invalid enum value 'high' - at `$.severities[...]`"),
        ("[severities]\nmissing-tensors = 'note'", "missing-tensors is no rule; near it: missing-tensor"),
        ("[allow]\nlicenses = []", "unknown field `licenses` - at `$.allow`"),
        ("[allow]\nfiles = [1]", "Expected `str`, got `int` - at `$.allow.files[0]`"),
        ("suppress = []\n[suppress.x]", "is not valid TOML"),
        ("suppress = 1", "Expected `array`, got `int` - at `$.suppress`"),
        ("[[suppress]]\nrule = 'EGL001'", "missing required field `reason` - at `$.suppress[0]`"),
        ("[[suppress]]\nreason = 'x'", "missing required field `rule` - at `$.suppress[0]`"),
        ("[[suppress]]\nrule = ' '\nreason = 'x'", "  is no rule"),
        ("[[suppress]]\nrule = 'EGL001'\nreason = '  '", "- at `$.suppress[0].reason`"),
        (f"{RULE}until = '2027-01-01'", "Expected `date | null`, got `str` - at `$.suppress[0].until`"),
        (f"{RULE}until = 2027-01-01T00:00:00", "`date | null`, got `datetime` - at `$.suppress[0].until`"),
        (f"{RULE}untill = 1", "unknown field `untill` - at `$.suppress[0]`"),
        ("required = ['EGL001']\n[severities]\nEGL0 = 'off'", "EGL001 is both required and off"),
        ("engines = [", "is not valid TOML"),
        ("[defaults]\naux-layers = []", "- at `$.defaults.aux-layers`"),
        ("[defaults]\naux-layers = [-1]", "- at `$.defaults.aux-layers[0]`"),
        (
            "[defaults]\naux-convention = 'input'",
            "'input' - at `$.defaults.aux-convention`",
        ),
        ("[defaults]\nassume = 1", "got `int` - at `$.defaults.assume`"),
        ("[defaults.source-semantics]\nrope = 1", "got `int` - at `$.defaults.source-semantics[...]`"),
        ("[verify]\nrequire-record = 1", "got `int` - at `$.verify.require-record`"),
    ],
)
def test_a_fault_names_file_key_found_and_expected(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        policy(text, tmp_path)
    assert str(tmp_path / "eaglectl.toml") in str(error.value) and says in str(error.value)
    if not any(word in says for word in READER_ALONE):
        assert not jsonschema.Draft202012Validator(policy_schema()).is_valid(tomllib.loads(text))


UNREADABLE = (
    ("https://example.org/eaglectl.toml", None, "download it"),
    ("absent.toml", None, "No such file"),
    ("eaglectl.toml", b"\xff", "not valid TOML"),
    ("pyproject.toml", b"[tool.other]\n", "no [tool.eaglectl]"),
    ("pyproject.toml", b"[tool]\neaglectl = 1\n", "Expected `object`, got `int`"),
)


@pytest.mark.parametrize(("name", "data", "says"), UNREADABLE)
def test_a_policy_that_cannot_be_read_is_said(
    name: str, data: bytes | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if data is not None:
        Path(name).write_bytes(data)
    assert says in refusal(2, "validate", drafter_folder(tmp_path), "--policy", name)


def test_the_nearest_policy_upwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a/b"
    here.mkdir(parents=True)
    (tmp_path / "a/pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(here)
    for name, text in (
        ("eaglectl.toml", 'fail-on = "never"\n'),
        ("a/pyproject.toml", '[tool.eaglectl]\nfail-on = "note"\n'),
        ("a/eaglectl.toml", 'fail-on = "warning"\n'),
    ):
        (tmp_path / name).write_text(text)
        found = read_policy()
        assert found.origin == os.path.relpath(tmp_path / name) and f'"{found.fail_on}"' in text


def test_the_report_says_which_policy_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_folder(tmp_path)
    (drafter / "train.log").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert call("validate", drafter).code == 0
    (tmp_path / "eaglectl.toml").write_text('fail-on = "warning"\n')
    outcome = call("validate", drafter)
    assert (outcome.code, "policy: eaglectl.toml" in outcome.out) == (1, True)
    document = call("validate", drafter, "--json").document
    assert (document["policy"], document["fail_on"]) == ("eaglectl.toml", "warning")
    assert call("validate", drafter, "--fail-on", "error").code == 0


@pytest.mark.parametrize(
    ("level", "expected", "verdict"), [("error", [("EGL005", "error")], "fail"), ("off", [], "pass")]
)
def test_severities_decide(level: str, expected: list[Any], verdict: str, tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"severities": {"unknown-file": level}}, "p"))
    assert (found(report), report.verdict) == (expected, verdict)
    assert "EGL005" not in {one.id for one in report.passed}


def test_nothing_passes_where_a_required_rule_could_not_look(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"required": ["target-mismatch"]}, "p"))
    assert report.verdict == "could-not-look"
    assert [one.rule.id for one in report.unchecked if one.is_required] == ["EGL701"]


@pytest.mark.parametrize("table", ["dtypes = ['F32']", "architectures = ['Other*']"])
def test_what_a_policy_does_not_allow_is_no_verdict_on_an_engine(table: str, tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"allow": tomllib.loads(table)}, "p"))
    before = judged(tmp_path / "other", Policy())
    assert (report.verdict, before.verdict) == ("fail", "pass")
    assert [(each.release, each.outcome) for each in report.releases] == [
        (each.release, each.outcome) for each in before.releases
    ]
    assert not any("`eaglectl convert" in finding.fix for finding in report.findings)


def test_a_required_rule_runs_whatever_is_selected() -> None:
    asked = parse_policy({"required": ["EGL003"]}, "p")
    assert [one.id for one in select_rules(asked, ["EGL005"], [])] == ["EGL003", "EGL005"]
    assert "EGL003" in {one.id for one in select_rules(asked, [], ["EGL005"])}
    with pytest.raises(UsageError, match="--ignore EGL003: the policy p requires it"):
        select_rules(asked, [], ["EGL0"])
    assert select_rules(Policy(), [], []) == rules()


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({}, (0, 1, 0, 0)),
        ({"until": datetime.date(9999, 1, 1)}, (0, 1, 0, 0)),
        ({"where": "train"}, (0, 1, 0, 0)),
        ({"where": "config.json:"}, (1, 0, 1, 0)),
        ({"until": datetime.date(2020, 1, 1)}, (1, 0, 0, 1)),
        ({"rule": "EGL006"}, (1, 0, 1, 0)),
        ({"rule": "EGL701"}, (1, 0, 0, 0)),  # which could not look
    ],
)
def test_suppressions(limits: dict[str, object], counts: tuple[int, ...], tmp_path: Path) -> None:
    table = {"suppress": [{"rule": "EGL005", "reason": "ours", **limits}]}
    report = judged(tmp_path, parse_policy(table, "p"))
    assert counts == tuple(map(len, (report.findings, report.suppressed, report.unused, report.expired)))


def test_suppressions_that_count_for_nothing_are_shown(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path)
    unused = '[[suppress]]\nrule = "EGL006"\nreason = "none"\n'
    (tmp_path / "p.toml").write_text(f"{unused}{RULE.replace('EGL001', 'EGL005')}until = 2020-01-01\n")
    outcome = call("validate", "-v", drafter, "--policy", tmp_path / "p.toml")
    assert outcome.code == 0
    assert "Unused suppressions\n  EGL006" in outcome.out
    assert "Expired suppressions\n  EGL005" in outcome.out


def test_the_example_of_the_page_is_read_and_keeps_the_schema() -> None:
    policy = parse_policy(tomllib.loads(configuration.EXAMPLE), "eaglectl.toml")
    values = json.loads(json.dumps(tomllib.loads(configuration.EXAMPLE), default=str))
    assert policy.fail_on == "warning" and policy.off == {"EGL705"} and policy.verify.require_record
    jsonschema.Draft202012Validator(policy_schema()).validate(values)
    jsonschema.Draft202012Validator(pyproject_schema()).validate({"tool": {"eaglectl": values}})


def test_every_key_is_described_and_in_the_example() -> None:
    tables = msgspec.json.schema_components([PolicyTable])[1]
    example = tomllib.loads(configuration.EXAMPLE)
    inner = {"AllowTable": "allow", "VerifyPolicy": "verify", "DefaultsTable": "defaults"}
    assert set(example) == set(tables["PolicyTable"]["properties"])
    assert set(example["suppress"][0]) == set(tables["Suppression"]["properties"])
    for table, key in inner.items():
        assert set(example[key]) == set(tables[table]["properties"])
    keys = [key for table in tables.values() for key in table["properties"].values()]
    assert all(key["description"] for key in keys if "$ref" not in str(key))


SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 512}


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        ({}, "pass"),
        ({"allow": {"start-options": ["--speculative-*"]}}, "pass"),
        ({"allow": {"start-options": []}}, "fail"),
        ({"allow": {"start-options": ["--context-length"]}}, "fail"),
        ({"severities": {"sglang-sliding-window": "error"}}, "fail"),
    ],
)
def test_a_policy_can_forbid_options_that_an_engine_needs(
    policy: Mapping[str, Any], verdict: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=SLIDING)
    report = eaglectl.validate(folder, engines=["sglang"], policy=parse_policy(policy, "p"))
    (finding,) = (finding for finding in report.findings if finding.rule.id == "EGL1116")
    assert report.verdict == verdict and finding.severity == ("note" if verdict == "pass" else "error")
    assert report.releases[0].outcome == "as trained, started so"
    assert "--speculative-draft-window-size 511" in finding.match.message
