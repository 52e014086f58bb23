"""Which recorded cases to run again with a new release, and what is other then.

`python -m tests.engine.again ENGINE WORD...` prints the command that runs the cases of these kinds of
drafters (llama, mla, qwen3) and facts (their ids); `python -m tools.scan` prints the words.
`python -m tests.engine.again ENGINE ANSWERS.json` prints the cases whose answer differs from the record.
"""

import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eaglectl.engines.registry import ENGINES
from tests.engine.agreement import cases as vllm_cases
from tests.engine.agreement import judging, records
from tests.engine.agreement.cases import Case
from tests.engine.sglang import cases as sglang_cases

MARKS = {"kv_b_proj": "mla", "q_norm": "qwen3"}  # of the names of a good drafter


@dataclass(frozen=True, slots=True)
class Recorded:
    """The cases of one engine, their records, and the module that runs them."""

    cases: Mapping[str, Case]
    records: Path
    release: str
    runner: str


RECORDED = {
    "vllm": Recorded(vllm_cases.CASES, records.RECORDS, records.VLLM, "tests.engine.agreement.runner"),
    "sglang": Recorded(
        sglang_cases.CASES, records.SGLANG_RECORDS, records.SGLANG, "tests.engine.sglang.runner"
    ),
}


def cases_of(engine: str, words: Iterable[str], names: Iterable[str] | None = None) -> Iterator[str]:
    """The recorded cases of kinds of drafters and of facts; of `names` alone where they are given."""
    wanted = set(words)
    recorded = RECORDED[engine]
    rules = {fact.rule for fact in ENGINES[engine].facts if fact.id in wanted}
    unknown = wanted - {"llama", "mla", "qwen3"} - {fact.id for fact in ENGINES[engine].facts}
    if unknown:
        raise SystemExit(f"{engine} has no fact {', '.join(sorted(unknown))}; kinds are llama, mla and qwen3")
    with tempfile.TemporaryDirectory() as folder:
        targets = judging.targets(Path(folder, "targets"))
        for name in names or records.read(recorded.records):
            case = recorded.cases[name]
            if kind_of(case) in wanted or (
                rules and rules & _rules(case, targets, Path(folder), recorded.release)
            ):
                yield name


def kind_of(case: Case) -> str:
    """The kind of drafter that a case changes."""
    names = " ".join(case.make().tensors)
    return next((kind for mark, kind in MARKS.items() if mark in names), "llama")


def _rules(case: Case, targets: Path, parent: Path, release: str) -> set[str]:
    """The rules of facts that validate reports of a case."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        report = judging.report(case, release, targets, Path(folder), ["EGL10", "EGL11"])
    return {rule for verdict in report.releases for rule in verdict.rules}


def differing(engine: str, answers: Path) -> Iterator[str]:
    """The cases whose answer is not the record's, with both verdicts."""
    known = records.read(RECORDED[engine].records)
    for name, answer in records.read(answers).items():
        before = known.get(name)
        if before is None or (before.verdict, before.is_served) != (answer.verdict, answer.is_served):
            yield f"{name}: {before.verdict if before else 'not recorded'} before, {answer.verdict} now"


def main(engine: str, words: list[str], names: Iterable[str] | None = None) -> Iterator[str]:
    """The lines to print."""
    if words and words[0].endswith(".json"):
        yield from list(differing(engine, Path(words[0]))) or ["every answer is as recorded"]
        return
    found = list(cases_of(engine, words, names))
    print(f"{len(found)} of {len(records.read(RECORDED[engine].records))} cases", file=sys.stderr)
    if found:
        yield f"python -m {RECORDED[engine].runner} ANSWERS.json {shlex.join(found)}"


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in RECORDED:
        raise SystemExit(__doc__)
    for line in main(sys.argv[1], sys.argv[2:]):
        print(line)
