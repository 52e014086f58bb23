"""Repairing what `validate` finds, as far as the files state how: a conversion that is validated before it
is kept.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.api.converting import OnPlan, convert
from eaglectl.api.keywords import StrPath, with_keywords
from eaglectl.api.options import ConvertOptions, ValidateOptions
from eaglectl.api.validating import judge_source, validate
from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.opening import open_source
from eaglectl.checkpoint.source import Source
from eaglectl.conversion.plan import ConversionPlan
from eaglectl.drafter.drafter import Note
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import default_format, detect, layout_for
from eaglectl.formats.commands import COMMAND, WITH_TARGET
from eaglectl.formats.format import Answers, CheckpointSummary
from eaglectl.progress import OnProgress
from eaglectl.results import Conversion, FixResult, RemainingFinding
from eaglectl.validation.judge import Report
from eaglectl.validation.rule import Finding

# a question to the user in a finding or a refusal: the option that answers it
QUESTION = re.compile(
    r"pass (--(?:aux-layers|aux-convention|source-semantics|rope-style|fix-reading|target)\b[^;]*)"
)
# options of `convert` that a refusal names and that need no other file
REPAIRS: Mapping[str, Mapping[str, Any]] = {
    "--rope-style interleaved": {"rope_style": "interleaved"},
    "--mla-query-lora": {"has_query_lora": True},
    "--fix-reading d2t=from-t2d": {"fixes": (("d2t", "from-t2d"),)},
    "--fix-reading t2d=from-d2t": {"fixes": (("t2d", "from-d2t"),)},
}
OFFER = re.compile(rf"{COMMAND.pattern}({WITH_TARGET})?")
NEEDS_OTHER_FILES = "the files do not hold what it takes"
NOTHING_FOUND = "nothing was found that could be fixed"
NO_REPAIR = "writing it anew repairs none of the findings"
NEW_IN_OUTPUT = "it came to light in the output"
CARRIED = "carried: still open, as it is about how the drafter was trained; eaglectl.json keeps it"
BLIND = "whether it is so in the output could not be looked at: {reason}"
NOT_SHOWN = "no rule shows that the output is without it"


@with_keywords
def fix(
    source: StrPath,
    out: StrPath | None = None,
    options: ValidateOptions | None = None,
    *,
    force: bool = False,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> FixResult:
    """Convert a checkpoint where that repairs what `validate` finds.

    `out` defaults to NAME-fixed in the current folder; it is written only if a finding is gone in it.
    `on_plan` is called with the plan before anything is written. Raises UsageError where `out` is inside the
    source, or exists and `force` is not given.
    """
    from eaglectl.checkpoint.writer import Folder

    source = os.fspath(source)
    original, options = open_source(source), options or ValidateOptions()
    out = Path(out) if out is not None else Path(f"{original.label.rpartition('/')[2]}-fixed")
    _check_apart(out, source, options.target)
    with Folder(out, force=force) as folder:
        before = validate(source, options)
        if not before.findings and not before.problem:
            return FixResult(before, None, None, (), (), NOTHING_FOUND)
        rewriter = _Rewriter(source, folder.work, options, on_plan, on_progress)
        # an engine that is judged by default changes no layout
        named = {request.engine for request in options.requests(options.read_policy()) if not request.why}
        conversion = rewriter.convert(_layouts(original, named))
        if conversion is None:
            refusal = rewriter.refusal
            return FixResult(before, None, None, (), _remaining_unconverted(before, refusal), refusal)
        # the answers are about the source; the output states all of it
        settled = replace(options, answers=Answers())
        after = replace(judge_source(open_source(str(folder.work)), str(out), settled), source=out.name)
        fixed, remaining = _compare(before, after, conversion.plan.drafter.doubts)
        if not fixed:
            return FixResult(before, None, replace(conversion, out=None), (), remaining, NO_REPAIR)
        folder.publish()
    return FixResult(before, after, replace(conversion, out=out), fixed, remaining)


def _check_apart(out: Path, *inputs: str | None) -> None:
    from eaglectl.checkpoint.writer import check_apart

    for path in (Path(text) for text in inputs if text is not None and os.path.lexists(text)):
        check_apart(out, path if path.is_dir() else path.parent)


def _layouts(original: Source, engines: Collection[str]) -> tuple[str, ...]:
    """The layouts to try for the engines that the user named: one engine's alone, the checkpoint's own where
    the default's engines read it, no others are named and no norm has to be joined, and the default.
    """
    default = default_format()
    if len(engines) == 1 and (alone := layout_for(*engines)) != default.name:
        return (alone,)
    try:
        own, _ = detect(CheckpointSummary(read_config(original), (), {}))
    except EaglectlError:
        own = default
    is_read_alike = own.layout and default.layout and own.layout.engines == default.layout.engines
    if own.layout and (own.layout.norms_twice or not set(engines) <= set(own.layout.engines)):
        is_read_alike = False
    return tuple(dict.fromkeys([*([own.name] if is_read_alike else []), default.name]))


class _Rewriter(Struct):
    """Converts a checkpoint, with the options that refusals ask for where they need no other file.

    `refusal` is the message of the last conversion that could not be planned.
    """

    source: str
    out: Path
    options: ValidateOptions
    on_plan: OnPlan | None
    on_progress: OnProgress | None
    refusal: str = ""
    is_planned: bool = False

    def convert(self, layouts: Iterable[str]) -> Conversion | None:
        """The first conversion that can be planned, or None. An error after planning is raised."""
        for layout in layouts:
            request: ConvertOptions | None = ConvertOptions(
                layout,
                measure=None,
                engines=tuple(self.options.engines),
                target=self.options.target,
                answers=self.options.answers,
                force=True,
                force_unserved=True,  # the verdict on the output says whether an engine serves it
            )
            while request is not None:
                try:
                    return convert(
                        self.source,
                        self.out,
                        request,
                        on_plan=self._note_plan,
                        on_progress=self.on_progress,
                    )
                except EaglectlError as error:
                    if self.is_planned:
                        raise
                    self.refusal = str(error)
                request = self._repaired(request)
        return None

    def _note_plan(self, plan: ConversionPlan) -> None:
        self.is_planned = True
        if self.on_plan:
            self.on_plan(plan)

    def _repaired(self, request: ConvertOptions) -> ConvertOptions | None:
        """The request with an option that the refusal asks for; None where there is no other."""
        for option in _repairs(self.refusal):
            if (changed := replace(request, **REPAIRS[option])) != request:
                return changed
        return None


def _rules_of(report: Report, texts: Collection[str]) -> set[str]:
    """The rules whose findings have these texts."""
    return {finding.rule.id for finding in report.findings if _statement(finding)[1] in texts}


def _compare(
    before: Report, after: Report, doubts: Sequence[Note]
) -> tuple[tuple[Finding, ...], tuple[RemainingFinding, ...]]:
    """The findings that are repaired, and those that remain or are new. Findings of one rule are matched by
    message.

    One is repaired if its rule looked at the output and does not report it. A doubt about how the drafter was
    trained (`doubts`) is never: a conversion changes nothing about that.
    """
    carried = {(note.topic, OFFER.sub("", note.text)) for note in doubts}
    still = _rules_of(after, {text for _, text in carried})
    unseen = _unseen(before, after)
    counts = Counter(finding.rule.id for finding in after.findings)
    messages = set(map(_statement, after.findings))
    # those with the same message first, so that they count as the ones that remain
    ordered = sorted(before.findings, key=lambda finding: _statement(finding) not in messages)
    reasons: dict[int, str] = {}
    remaining = []
    for finding in ordered:
        is_there = counts[finding.rule.id] > 0
        counts[finding.rule.id] -= is_there
        if (finding.rule.name, _statement(finding)[1]) in carried or (is_there and finding.rule.id in still):
            reason = CARRIED
        elif is_there:
            reason = NEEDS_OTHER_FILES
        else:
            reason = unseen.get(finding.rule.id) or _assumption(finding)
        if reason:
            reasons[id(finding)] = reason
            remaining.append(RemainingFinding(finding, reason))
    fixed = tuple(finding for finding in before.findings if id(finding) not in reasons)
    remaining += [RemainingFinding(finding, NEW_IN_OUTPUT) for finding in _new(after, counts)]
    return fixed, tuple(remaining)


def _statement(finding: Finding) -> tuple[str, str]:
    """The rule and what it says, without commands, which name the folder."""
    return finding.rule.id, OFFER.sub("", finding.match.message)


def _unseen(before: Report, after: Report) -> Mapping[str, str]:
    """The rules with findings before that did not look at the output, each with the reason."""
    reported = {finding.rule.id for finding in after.findings}
    looked = reported | {rule.id for rule in after.passed}
    blind = {unchecked.rule.id: BLIND.format(reason=unchecked.reason) for unchecked in after.unchecked}
    return {
        finding.rule.id: blind.get(finding.rule.id, NOT_SHOWN)
        for finding in before.findings
        if finding.rule.id not in looked
    }


def _assumption(finding: Finding) -> str:
    """Why a finding that is gone is no repair: the output states what is usual, or what the user answered."""
    if question := _question(finding):
        return f"the output states what is usual; whether it is so, only you know: {question}"
    return "the output states it as you answered" if "as asked" in finding.match.message else ""


def _new(after: Report, counts: Counter[str]) -> Iterator[Finding]:
    """As many errors and warnings of each rule as are counted, the last first."""
    findings = [
        finding for finding in after.findings if counts[finding.rule.id] > 0 and finding.severity != "note"
    ]
    for finding in reversed(findings):
        if counts[finding.rule.id] > 0:
            counts[finding.rule.id] -= 1
            yield finding


def _remaining_unconverted(before: Report, refusal: str) -> tuple[RemainingFinding, ...]:
    """All findings, where no conversion could be planned."""
    reason = "it cannot be written anew, see below"
    if QUESTION.search(refusal):
        reason = "a question comes first, see below"
    questions = ((finding, _question(finding)) for finding in before.findings)
    return tuple(
        RemainingFinding(finding, f"only you can tell: {question}" if question else reason)
        for finding, question in questions
    )


def _question(finding: Finding) -> str:
    """The option with which the user answers a finding's question, as "pass --OPTION"; "" where it asks
    nothing.
    """
    match = QUESTION.search(finding.match.message)
    return f"pass {match[1]}" if match and not _repairs(finding.match.message) else ""


def _repairs(text: str) -> list[str]:
    """The option of REPAIRS that a text asks for; none where it offers a choice of several answers."""
    options = [option for option in REPAIRS if option in text]
    return [] if "--source-semantics" in text or len(options) > 1 else options
