"""benchmarks/evidence/agreement.md from recorded runs: how often validate says what an engine did."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from eaglectl.engines.registry import ENGINES
from tests.engine import trained
from tests.engine.agreement import judging, records
from tests.engine.agreement.chosen import CHOSEN
from tests.engine.llamacpp import judging as llamacpp_judging
from tests.engine.releases import write
from tests.engine.sglang import judging as sglang_judging
from tests.engine.sglang.cases import CASES as SGLANG_CASES

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/agreement.md"
HEAD = """# Agreement with engines

Written by `make docs` from the recorded runs. Each case is a good drafter with one change, written to disk
and run in the real engine; `validate` checks the same files. Apart from the exceptions below, there is no
false pass (validate passes a file that the engine does not serve as trained) and no false alarm (an error for
a file that it serves). `test_recorded_engines.py` in `tests/validation/` compares
validate with every record; `make test-engine`, `make test-sglang` and `make test-llamacpp` run samples again.

| engine | runner | cases | what it did | exceptions |
|---|---|---|---|---|
"""
RELEASES = """
## Release by release

`make test-releases` gives the drafters of `tests/engine/releases` to one release after another, on CPUs, and
compares the engine's own draft logits of the first three steps with a float64 reference: below 1e-4 of the
largest logit, it runs the drafter as it was trained. A fact that began or ended between two releases has a
drafter on both sides. *Agrees*: of how many drafters `validate`, asked for that release and runner, says what
the engine did. *Holds*, *does not*: facts that a drafter showed to hold in the release, or not to;
`eaglectl engines -v` has them by fact. Of vLLM, {shown} of the {wanted} sides of facts that a CPU build can
show were run.

| engine | runner | drafters | agrees | holds | does not |
|---|---|---|---|---|---|
"""
PARITY = """
## The same acceptance in every engine

The trained pair of `fixtures/tiny`, float32, greedy, k={trained.K}: {trained.TOKENS} tokens behind each of
{trained.COUNT} prompts of up to {trained.LONGEST} tokens. Each engine runs its own code; its tests also
compare draft tokens and answers with the reference, token by token.

| engine | rounds | accepted draft tokens | mean acceptance length |
|---|---|---|---|
"""
REAL = """
On [the real pair](real-pair.md) (8 of its test chats, 64 new tokens, k=3), vLLM's V1 runner with both
drafters (`tests/real/test_vllm.py`) and SGLang with SpecForge's (`tests/engine/sglang/test_real_sglang.py`)
count every round and position as an accounting without eaglectl's code. On 4 of them (one with a system
prompt, one of two turns whose answer ends early), 32 new tokens
(`test_real_llamacpp.py`), V2 and llama.cpp in float32 answer as it does, token for
token; a llama-server counts its rounds but an answer's last; Q4_1 is held to 15 % of the length. At 0.7
(the 8 chats, 64 tokens) vLLM is held to 3 standard errors of the reference, with one function mended:
its CPU build loses the
temperature, so `smoke` refuses.

| engine | temperature | rounds | accepted by position | length |
|---|---|---|---|---|
"""
REAL_PAIRS = ROOT / "fixtures/real/engines.json"


def page() -> str:
    """The whole page."""
    vllm, sglang = records.read(), records.read(records.SGLANG_RECORDS)
    second = records.read(records.RECORDS_V2)
    rows = [
        _row(records.VLLM, "V1, CPU", [record.verdict for record in vllm.values()], judging.JUSTIFIED),
        _row(
            records.VLLM,
            "V2, CPU (tests/engine/interpreted.py)",
            [record.verdict for record in second.values()],
            {name: reason for name, reason in judging.JUSTIFIED_V2.items() if name in second},
        ),
        _row(
            records.SGLANG,
            "CPU, chains (tests/engine/sglang/README.md)",
            [record.verdict for record in sglang.values()],
            sglang_judging.JUSTIFIED,
        ),
        _row(
            records.LLAMACPP,
            "converter and drafts on a CPU (tests/engine/llamacpp/README.md)",
            [record.verdict for record in records.read(records.LLAMACPP_RECORDS).values()],
            llamacpp_judging.JUSTIFIED,
        ),
    ]
    missing = len(SGLANG_CASES) - len(set(sglang) & set(SGLANG_CASES))
    rest = f"\n{missing} of SGLang's {len(SGLANG_CASES)} cases are not recorded yet.\n" if missing else ""
    unrun = len(set(CHOSEN) - set(second))
    rest += f"\n{unrun} of the {len(CHOSEN)} cases chosen for V2 are not recorded yet.\n" if unrun else ""
    rest += "\nOn a GPU: not run.\n"
    rest += _releases() + _parity()
    exceptions = (
        _exceptions("vLLM", judging.JUSTIFIED),
        _exceptions("SGLang", sglang_judging.JUSTIFIED),
        _exceptions("llama.cpp", llamacpp_judging.JUSTIFIED),
    )
    return HEAD + "".join(rows) + rest + "".join(exceptions)


def _releases() -> str:
    wanted = write.wanted_sides()
    head = RELEASES.format(shown=len(wanted & write.shown_sides()), wanted=len(wanted))
    return head + "".join(
        f"| {engine.title} {release} | {runner} | {record.drafters} | {record.agreed} |"
        f" {sides.count(True)} | {sides.count(False)} |\n"
        for engine in ENGINES.values()
        for release, runners in engine.runs.items()
        for runner, record in runners.items()
        for sides in [[fact.holds for fact in record.facts.values()]]
    )


def _parity() -> str:
    rows = [
        f"| {engine} | {rounds} | {taken} | {1 + taken / rounds:.3f} |\n"
        for engine, (rounds, taken) in trained.recorded().items()
    ]
    return PARITY.format(trained=trained) + "".join(rows) + REAL + "".join(map(_real, _real_pairs()))


def _real_pairs() -> list[dict[str, Any]]:
    """What engines did on the real pair, as recorded."""
    rows: list[dict[str, Any]] = json.loads(REAL_PAIRS.read_text(encoding="utf-8"))
    return rows


def _real(row: dict[str, Any]) -> str:
    rounds, *taken = row["counts"]
    cells = [row["engine"], str(row["temperature"]), str(rounds)]
    cells += [", ".join(map(str, taken)), f"{1 + sum(taken) / rounds:.3f}"]
    return f"| {' | '.join(cells)} |\n"


def _row(engine: str, runner: str, verdicts: list[str], justified: Mapping[str, str]) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(Counter(verdicts).items()))
    return f"| {engine} | {runner} | {len(verdicts)} | {counts} | {len(justified)} |\n"


def _exceptions(title: str, justified: Mapping[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in justified.items():
        reasons.setdefault(reason, []).append(name)
    lines = [f"* {reason}: {'; '.join(sorted(names))}\n" for reason, names in sorted(reasons.items())]
    return f"\n## Exceptions: {title}\n\n{''.join(lines)}"
