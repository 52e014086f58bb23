"""What measuring answers of trained drafters whose files leave something open, and what it costs.

    python -m benchmarks.open_facts [NAME ...]

Each file of tests/open_facts.py is converted with its target. Prints the table of README.md, with the
seconds of the processor beside those of one smoke run of the output on the same prompts.
"""

import sys
import tempfile
import time
from pathlib import Path

import eaglectl
from tests.open_facts import OPEN_FACTS, OpenFact
from tests.pairs import write_prompts


def row(fact: OpenFact, scratch: Path) -> str:
    """A row of the table; the cost is measuring over smoke, both without loading Python's modules."""
    source = fact.write(scratch / "source")
    prompts = write_prompts(scratch / "prompts.jsonl", fact.texts())
    start = time.process_time()
    questions = fact.measured(source, prompts)
    seconds = time.process_time() - start
    choices = {str(answer.choice) for answer in questions.measured if answer.choice is not None}
    result = "right" if choices == set(fact.answers) else "tie" if choices < set(fact.answers) else "WRONG"
    ratio = min(answer.ratio.value for answer in questions.measured)
    out = scratch / "out"
    answered = eaglectl.ConvertOptions(
        target=str(fact.trained.target), answers=fact.right_answers(), measure=None
    )
    eaglectl.convert(str(source), out, answered)
    read = eaglectl.Answers(semantics={"d2t": "offset"} if "d2t" in fact.name else {})
    options = eaglectl.SmokeOptions(
        "reference", "cpu", prompts=prompts, max_tokens=fact.trained.tokens, answers=read
    )
    start = time.process_time()
    eaglectl.smoke(str(out), str(fact.trained.target), options)
    cost = seconds / (time.process_time() - start)
    return f"| {fact.trained.key} | {fact.name} | {fact.prompts} | {result} | {ratio:.2f} | {cost:.1f} |"


def main() -> None:
    names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        row(OPEN_FACTS[0], Path(scratch))  # loads torch and transformers
    for fact in OPEN_FACTS:
        if not names or any(name in fact.key for name in names):
            with tempfile.TemporaryDirectory() as scratch:
                print(row(fact, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
