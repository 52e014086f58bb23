"""Policies: how a file is read, every fault of one in a sentence, and what a policy changes in the
verdict.
"""

import datetime
from pathlib import Path

import pytest

import eaglectl
from eaglectl import read_policy
from eaglectl.errors import UsageError
from eaglectl.judge.judgement import Report
from eaglectl.judge.policy_file import parse_policy
from eaglectl.judge.rule import Policy, Suppression
from eaglectl.judge.rules import rules, select_rules
from tests.builders import call, drafter_folder, refusal

WHOLE = """
engines = ["vllm>=0.22"]
required = ["EGL003", "one-weight-source"]
forbidden = ["unknown-file"]
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
STRANGE = {"files": {"train.log": "x"}}


def policy(text: str, folder: Path, name: str = "eaglectl.toml") -> Policy:
    (folder / name).write_text(text)
    return read_policy(str(folder / name))


def judged(folder: Path, asked: Policy) -> Report:
    drafter = drafter_folder(folder)
    (drafter / "train.log").write_text("x")
    return eaglectl.validate(str(drafter), eaglectl.ValidateOptions(policy=asked))


def found(report: Report) -> list[tuple[str, str]]:
    return [(one.rule.id, one.severity) for one in report.findings]


def test_a_policy_is_read_whole(tmp_path: Path) -> None:
    read = policy(WHOLE, tmp_path)
    assert read == Policy(
        origin=str(tmp_path / "eaglectl.toml"),
        engines=("vllm>=0.22",),
        required=frozenset({"EGL001", "EGL003"}),
        forbidden=frozenset({"EGL005"}),
        severities={"EGL119": "warning"},
        off=frozenset({"EGL006"}),
        allowed={"architectures": ("LlamaForCausalLMEagle3",), "files": ("*.log",)},
        suppressions=(
            Suppression("EGL309", "the tokenizer is the target's", datetime.date(2031, 1, 31), "tensor:d2t"),
        ),
        fail_on="warning",
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
        (
            "[[suppress]]\nrule = 'EGL001'\nreason = 'x'\nuntil = '2027-01-01'",
            "Expected `date | null`, got `str` - at `$.suppress[0].until`",
        ),
        (
            "[[suppress]]\nrule = 'EGL001'\nreason = 'x'\nuntil = 2027-01-01T00:00:00",
            "Expected `date | null`, got `datetime` - at `$.suppress[0].until`",
        ),
        (
            "[[suppress]]\nrule = 'EGL001'\nreason = 'x'\nuntill = 1",
            "unknown field `untill` - at `$.suppress[0]`",
        ),
        (
            "required = ['EGL001']\n[severities]\nEGL0 = 'off'",
            "EGL001 is required or forbidden and its severity is off",
        ),
        ("engines = [", "is not valid TOML"),
    ],
)
def test_a_fault_names_file_key_found_and_expected(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        policy(text, tmp_path)
    assert str(tmp_path / "eaglectl.toml") in str(error.value)
    assert says in str(error.value)


def test_a_policy_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path)
    assert "download it" in refusal(2, "validate", drafter, "--policy", "https://example.org/eaglectl.toml")
    assert "No such file" in refusal(2, "validate", drafter, "--policy", tmp_path / "absent.toml")
    (tmp_path / "eaglectl.toml").write_bytes(b"\xff")
    assert "not valid TOML" in refusal(2, "validate", drafter, "--policy", tmp_path / "eaglectl.toml")
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    assert "no [tool.eaglectl]" in refusal(2, "validate", drafter, "--policy", tmp_path / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text("[tool]\neaglectl = 1\n")
    assert "Expected `object`, got `int`" in refusal(
        2, "validate", drafter, "--policy", tmp_path / "pyproject.toml"
    )


def test_the_nearest_policy_upwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a/b"
    here.mkdir(parents=True)
    (tmp_path / "eaglectl.toml").write_text('fail-on = "never"\n')
    (tmp_path / "a/pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(here)
    assert (read_policy().origin, read_policy().fail_on) == ("../../eaglectl.toml", "never")
    (tmp_path / "a/pyproject.toml").write_text('[tool.eaglectl]\nfail-on = "note"\n')
    assert (read_policy().origin, read_policy().fail_on) == ("../pyproject.toml", "note")
    (tmp_path / "a/eaglectl.toml").write_text('fail-on = "warning"\n')
    assert (read_policy().origin, read_policy().fail_on) == ("../eaglectl.toml", "warning")


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


def test_severities_decide(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"severities": {"unknown-file": "error"}}, "p"))
    assert (found(report), report.verdict) == ([("EGL005", "error")], "fail")


def test_a_forbidden_rule_is_an_error(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"forbidden": ["EGL005"]}, "p"))
    assert (found(report), report.verdict) == ([("EGL005", "error")], "fail")


def test_a_rule_that_is_off_does_not_run(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"severities": {"EGL005": "off"}}, "p"))
    assert found(report) == []
    assert "EGL005" not in {one.id for one in report.passed}


def test_nothing_passes_where_a_required_rule_could_not_look(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"required": ["target-mismatch"]}, "p"))
    assert report.verdict == "could-not-look"
    assert [one.rule.id for one in report.unchecked if one.is_required] == ["EGL701"]


def test_a_required_rule_runs_whatever_is_selected() -> None:
    asked = parse_policy({"required": ["EGL003"]}, "p")
    assert [one.id for one in select_rules(asked, ["EGL005"], [])] == ["EGL003", "EGL005"]
    assert "EGL003" in {one.id for one in select_rules(asked, [], ["EGL005"])}
    with pytest.raises(UsageError, match="--ignore EGL003: the policy p requires it"):
        select_rules(asked, [], ["EGL0"])
    assert select_rules(Policy(), [], []) == rules()


@pytest.mark.parametrize(
    ("limits", "findings", "suppressed", "unused", "expired"),
    [
        ({}, 0, 1, 0, 0),
        ({"until": datetime.date(9999, 1, 1)}, 0, 1, 0, 0),
        ({"where": "train"}, 0, 1, 0, 0),
        ({"where": "config.json:"}, 1, 0, 1, 0),
        ({"until": datetime.date(2020, 1, 1)}, 1, 0, 0, 1),
        ({"rule": "EGL006"}, 1, 0, 1, 0),
    ],
)
def test_suppressions(
    limits: dict[str, object], findings: int, suppressed: int, unused: int, expired: int, tmp_path: Path
) -> None:
    table = {"suppress": [{"rule": "EGL005", "reason": "ours", **limits}]}
    report = judged(tmp_path, parse_policy(table, "p"))
    counts = (len(report.findings), len(report.suppressed), len(report.unused), len(report.expired))
    assert counts == (findings, suppressed, unused, expired)


def test_a_suppression_of_a_rule_that_could_not_look_is_not_called_unused(tmp_path: Path) -> None:
    report = judged(
        tmp_path, parse_policy({"suppress": [{"rule": "EGL701", "reason": "no target here"}]}, "p")
    )
    assert report.unused == ()


def test_suppressions_that_count_for_nothing_are_shown(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path)
    lines = (
        '[[suppress]]\nrule = "EGL005"\nreason = "old"\nuntil = 2020-01-01\n'
        '[[suppress]]\nrule = "EGL006"\nreason = "none"\n'
    )
    (tmp_path / "p.toml").write_text(lines)
    outcome = call("validate", "-v", drafter, "--policy", tmp_path / "p.toml")
    assert outcome.code == 0
    assert "Unused suppressions\n  EGL006" in outcome.out
    assert "Expired suppressions\n  EGL005" in outcome.out
    document = call("validate", "-v", drafter, "--json", "--policy", tmp_path / "p.toml").document
    assert [one["rule"] for one in document["unused_suppressions"]] == ["EGL006"]
    assert [one["rule"] for one in document["expired_suppressions"]] == ["EGL005"]


def test_a_policy_asks_for_its_engines(tmp_path: Path) -> None:
    report = judged(tmp_path, parse_policy({"engines": ["vllm==0.32.0"]}, "p"))
    assert report.engines == ("vllm==0.32.0",)
