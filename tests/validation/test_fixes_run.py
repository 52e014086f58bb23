"""A conversion that a fix or the smallest change offers is run, and what it is offered for is gone."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.judge.judgement import Report
from tests.builders import Outcome, call
from tests.validation import test_serving
from tests.validation.judging import Bad, every_patch, judged
from tests.validation.patches import Patch

# a whole command; not one that the sentence says to run with more, or that helps some files only
OFFERED = re.compile(r"(?<!dropped by )`(eaglectl convert [^`]*)`(?! with (?:--|an answer))")
ANY = re.compile(r"`(eaglectl convert [^`]*)`")
# what the file made for the case cannot have: pickles that are none
STAND_IN = "is not a torch file"
STEP = 6
# the doubt of a conversion itself, which stays
JOINED = "the output has one norm for both"


def _title(case: Patch | Bad) -> str:
    return case.why if isinstance(case, Patch) else f"{case.rule} {case.engine}"


CASES = [
    pytest.param(case, marks=[pytest.mark.slow] if number % STEP else [], id=_title(case))
    for number, case in enumerate([*every_patch(besides=__name__), *test_serving.BAD])
]


def validated(case: Patch | Bad, parent: Path) -> tuple[Report, eaglectl.ValidateOptions]:
    """The report on a case, and the options for what a conversion makes of it."""
    target = str(parent / "target")
    if isinstance(case, Bad):
        options = eaglectl.ValidateOptions(target if case.target is not None else None, [case.engine])
        return judged(case, parent), options
    given = {"has_engines": "engines" in case.given, **case.given, "answers": Answers()}
    given.pop("tensor_parallel_size", None)  # no conversion changes what it is a fault of
    if case.target_config is not None:
        given["target"] = target
    return case.report(parent), eaglectl.ValidateOptions(**given)


NO_WEIGHTS = "no .safetensors file, model.safetensors.index.json or pytorch_model.bin"


def is_explained(done: Outcome, report: Report, options: eaglectl.ValidateOptions) -> bool:
    """Whether a conversion that wrote nothing says what the report says too: a question, or another error."""
    message = done.err.removeprefix("eaglectl: ").strip()
    reasons = [entry.reason for entry in report.unchecked]
    reasons += [finding.match.message for finding in report.findings]
    reasons += [reason for verdict in report.releases for reason in verdict.reasons]
    target = getattr(options.target, "text", options.target)
    if target and message == f"{target} has no weights: {NO_WEIGHTS}":
        return True  # the case's target is a config alone
    return STAND_IN in message or any(message in reason or reason in message for reason in reasons)


def run(lines: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    for line in lines:
        yield line, call(*shlex.split(line)[1:], "-o", out, "--force")


@pytest.mark.fast(8)
@pytest.mark.parametrize("case", CASES)
def test_a_conversion_that_is_offered_mends_what_it_is_offered_for(case: Patch | Bad, tmp_path: Path) -> None:
    report, options = validated(case, tmp_path)
    for finding in report.findings:
        for line, done in run(ANY.findall(finding.fix), tmp_path / "out"):
            # refused, and no question; a file that is broken elsewhere too is not converted
            is_broken = "the output would be broken" in done.err
            assert done.code != 1 or is_broken or "pass --" in done.err, (line, done.err)
        for line, done in run(OFFERED.findall(finding.fix), tmp_path / "out"):
            if done.code:
                assert is_explained(done, report, options), (line, done.err)
                continue
            after = eaglectl.validate(str(tmp_path / "out"), options)
            left = [
                one
                for one in after.findings
                if one.rule.id == finding.rule.id and JOINED not in one.match.message
            ]
            assert left == [], (line, left[0].match.message)
    changes = [line for change in report.smallest_changes for line in OFFERED.findall(change)]
    for line, done in run(changes, tmp_path / "out"):
        assert done.code == 0, (line, done.err)
        outcomes = {one.outcome.check for one in eaglectl.validate(str(tmp_path / "out"), options).releases}
        assert outcomes == {"pass"}, line


@pytest.mark.parametrize("why", ["the target's adapter", "an adapter of the target's first layer"])
def test_no_fix_names_a_source_for_the_user_to_fill_in(why: str, tmp_path: Path) -> None:
    (case,) = (case for case in every_patch(besides=__name__) if case.why == why)
    fixes = [finding.fix for finding in case.report(tmp_path).findings]
    assert fixes[0].startswith("keep the adapter for its model, and convert the drafter")
    assert [fix for fix in fixes if "SOURCE" in fix] == []
