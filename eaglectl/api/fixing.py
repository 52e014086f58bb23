"""Repairing what validate found, as far as the files themselves say how: a conversion, judged again before it gets its name."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglectl.api.converting import convert
from eaglectl.api.validating import validate
from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.source import Source, open_source
from eaglectl.conversion.plan import Plan, Wish
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.reports.findings import Conversion, Fixing, Remaining
from eaglectl.validation.judging import Report
from eaglectl.validation.rule import Finding

# what only the user knows, where a finding or a refusal names the option that says it
ASKED = re.compile(r"pass (--(?:aux-layers|aux-convention|source-semantics|rope-style|target)\b[^;]*)")
# options of convert that a refusal asks for, and that need nothing from outside
REPAIRS: Mapping[str, Mapping[str, Any]] = {
    "--rope-style interleaved": {"rope_style": "interleaved"},
    "--mla-query-lora": {"has_query_lora": True},
}
OUTSIDE = "the files do not hold what it takes"
NOTHING = "nothing was found that could be fixed"
IN_VAIN = "writing it anew repairs none of the findings"


def fix(
    source: str, out: str | Path | None = None, *, force: bool = False, target: str | None = None, engines: Sequence[str] = (),
    answers: Answers | None = None, planned: Callable[[Plan], None] | None = None, told: Callable[[int], None] | None = None, **options: Any,
) -> Fixing:  # fmt: skip
    """Write a checkpoint anew, as `convert` does, where that puts right what `validate` finds; `options` are validate's.

    `out` defaults to NAME-fixed in the current folder; it is written only if a finding is gone in it. `planned` is called with
    the plan before anything is written. Raises Usage where `out` is there already, without `force`, or lies in the source.
    """
    from eaglectl.checkpoint.writer import Folder, check_apart

    original = open_source(source)
    where = Path(out) if out is not None else Path(f"{original.label.rpartition('/')[2]}-fixed")
    for given_path in (Path(text) for text in (source, target) if text is not None and os.path.lexists(text)):
        check_apart(where, given_path if given_path.is_dir() else given_path.parent)
    given: dict[str, Any] = {"target": target, "engines": engines}
    with Folder(where, force=force) as folder:
        before = validate(source, answers=answers, **given, **options)
        if not before.findings and not before.problem:
            return Fixing(before, None, None, (), (), NOTHING)
        rewriting = _Rewriting(source, folder.work, {**given, "answers": answers, "planned": planned, "told": told})
        done = rewriting.done(original)
        if done is None:
            return Fixing(before, None, None, (), _unplanned(before, rewriting.stopped), rewriting.stopped)
        # answers are about the source; the output states all of it
        after = _named(validate(str(folder.work), **given, **options), folder.work, where)
        fixed, left = _compared(before, after)
        if not fixed:
            return Fixing(before, None, replace(done, out=None), (), left, IN_VAIN)
        folder.publish()
    return Fixing(before, after, replace(done, out=where), fixed, left)


@dataclass
class _Rewriting:
    """A conversion into `out`, tried with what it says it needs as long as that needs nothing from outside."""

    source: str
    out: Path
    given: dict[str, Any]
    stopped: str = ""
    is_planned: bool = False

    def done(self, original: Source) -> Conversion | None:
        """What was written, or None with `stopped` saying why no plan could be made. What fails after that is raised."""
        for layout in self._layouts(original):
            wish: Wish | None = Wish(layout, engines=tuple(self.given["engines"]))
            while wish is not None:
                try:
                    return convert(self.source, self.out, wish=wish, force=True, **self._arguments())
                except EaglectlError as error:
                    if self.is_planned:
                        raise
                    self.stopped = str(error)
                wish = self._repaired(wish)
        return None

    def _layouts(self, original: Source) -> tuple[str, ...]:
        """Layouts to write, the best first: SGLang's for SGLang alone, speculators as it is, else what the most engines read."""
        engines = self.given["engines"]
        if engines and all(one.startswith("sglang") for one in engines):
            return ("sglang",)
        try:
            is_speculators = read_config(original).get("speculators_model_type") is not None
        except EaglectlError:
            is_speculators = False
        return ("speculators", "vllm") if is_speculators else ("vllm",)

    def _arguments(self) -> dict[str, Any]:
        def planned(plan: Plan) -> None:
            self.is_planned = True
            if self.given["planned"]:
                self.given["planned"](plan)

        return {key: value for key, value in self.given.items() if key != "engines"} | {"planned": planned}

    def _repaired(self, wish: Wish) -> Wish | None:
        for option in _repairs(self.stopped):
            if (changed := replace(wish, **REPAIRS[option])) != wish:
                return changed
        return None


def _named(report: Report, work: Path, out: Path) -> Report:
    """The report on an unfinished folder as one on the name it is going to have."""
    ways = tuple(way.replace(str(work), str(out)) for way in report.ways_out)
    return replace(report, source=out.name, path=str(out), ways_out=ways)


def _compared(before: Report, after: Report) -> tuple[tuple[Finding, ...], tuple[Remaining, ...]]:
    """The findings that are gone, and those that are left or came to light."""
    still = Counter(one.rule.id for one in after.findings)
    same = {(one.rule.id, one.hit.message) for one in after.findings}
    ordered = sorted(before.findings, key=lambda one: (one.rule.id, one.hit.message) not in same)
    fixed, left = [], []
    for one in ordered:
        if still[one.rule.id] > 0:
            still[one.rule.id] -= 1
            left.append(Remaining(one, OUTSIDE))
        elif option := _asked(one):
            left.append(Remaining(one, f"the output states what is usual; whether it is so, only you know: {option}"))
        elif "as asked" in one.hit.message:
            left.append(Remaining(one, "the output states it as you answered"))
        else:
            fixed.append(one)
    new = [one for one in after.findings if still[one.rule.id] > 0 and one.severity != "note"]
    came = _first(new, still)
    return _in_order(before, fixed), (*left, *(Remaining(one, "it came to light in the output") for one in came))


def _first(findings: Iterable[Finding], counts: Counter[str]) -> Iterator[Finding]:
    """As many findings of each rule as are counted, the last ones."""
    for one in reversed(list(findings)):
        if counts[one.rule.id] > 0:
            counts[one.rule.id] -= 1
            yield one


def _in_order(before: Report, found: Sequence[Finding]) -> tuple[Finding, ...]:
    kept = {id(one) for one in found}
    return tuple(one for one in before.findings if id(one) in kept)


def _unplanned(before: Report, problem: str) -> tuple[Remaining, ...]:
    """Every finding, where no conversion could be planned."""
    why = "a question comes first, see below" if ASKED.search(problem) else "it cannot be written anew, see below"
    asked = ((one, _asked(one)) for one in before.findings)
    return tuple(Remaining(one, f"only you can tell: {option}" if option else why) for one, option in asked)


def _asked(one: Finding) -> str:
    """The option by which the user answers what a finding asks; empty where it asks nothing."""
    found = ASKED.search(one.hit.message)
    return f"pass {found[1]}" if found and not _repairs(one.hit.message) else ""


def _repairs(text: str) -> list[str]:
    """The options of REPAIRS that a text asks for; none where they are one answer of two."""
    return [] if "--source-semantics" in text else [option for option in REPAIRS if option in text]
