"""What the real vLLM does with mutated drafters: imported once, then a fork for each case, with a timeout.

`python -m tests.engine.agreement.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that ANSWERS (records.json) does not have yet, which they are then merged into. With
ENGINE_RUNNER=V2 the V2 runner takes them, without names those of `chosen.py` (ANSWERS is records_v2.json);
ENGINE_NEW_TOKENS=6 then saves time.
AGREEMENT_ROOT names a folder for what the engine drafted, so that another reading of the same bytes can be
held against it without running them again.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    OMP_NUM_THREADS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import torch

from tests.engine.agreement.bases import BASES, TARGETS, Base, drafter, target
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.chosen import CHOSEN
from tests.engine.agreement.forks import Death, forked
from tests.engine.agreement.meaning import meaning, same
from tests.engine.agreement.records import Record, read, write
from tests.engine.parity_child import LLM, RUNNER, in_vllm
from tests.engine.rounds import Rounds, prompts

PATIENCE = float(os.environ.get("AGREEMENT_PATIENCE", "90"))
HEAD = 110  # characters kept of a message


def main() -> None:
    """Run what the arguments ask for."""
    out, asked = Path(sys.argv[1]), sys.argv[2:]
    known = {} if asked else read(out)
    names = asked or [
        name
        for name in (CHOSEN if RUNNER == "V2" else CASES)
        if name not in known or known[name].digest != CASES[name].files().digest()
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "drafts").symlink_to(os.environ["AGREEMENT_ROOT"]) if "AGREEMENT_ROOT" in os.environ else (
            root / "drafts"
        ).mkdir()
        for kind in TARGETS:
            target(kind).write(root / "targets" / kind)
        bases = {CASES[name].base for name in names}
        # the first loads compile; beside other work on the same cores that has taken longer than a case may
        answers = forked(root, [base for base in BASES if base in bases], partial(_base, root), 5 * PATIENCE)
        dead = [f"{name} {answer.reason}" for name, answer in answers.items() if isinstance(answer, Death)]
        if dead:
            sys.exit(f"good drafters that the engine did not run: {'; '.join(dead)}")
        for place in range(0, len(names), 20):
            answers = forked(root, names[place : place + 20], partial(_case, root), PATIENCE)
            known |= {name: _record(name, answer) for name, answer in answers.items()}
            kept = known if asked else {name: known[name] for name in CASES if name in known}
            write(out, kept)
            print(f"{min(place + 20, len(names))} of {len(names)}", file=sys.stderr, flush=True)


def _record(name: str, answer: Any) -> Record:
    digest = CASES[name].files().digest()
    return Record(digest, "dies", answer.reason) if isinstance(answer, Death) else Record(digest, *answer)


def _base(root: Path, name: str) -> tuple[str, str]:
    files = drafter(name)
    _engine(root, BASES[name], files.write(root / "bases" / name), files.digest())
    return "as base", ""


def _engine(root: Path, base: Base, folder: Path, digest: str) -> list[Rounds]:
    """What vLLM drafts with these bytes, kept under their digest."""
    kept = root / "drafts" / digest
    if not kept.exists():
        place = root / "targets" / base.kind
        drafted = in_vllm(place, folder, prompts(), is_mla=base.kind == "mla", skip_tokenizer_init=True)[0]
        torch.save(drafted, kept)
    found: list[Rounds] = torch.load(kept)
    return found


def _case(root: Path, name: str) -> tuple[str, str]:
    case = CASES[name]
    base = BASES[case.base]
    files = case.files()
    folder = files.write(root / "cases" / name)
    stage, generate = ["at load"], LLM.generate

    def watched(*arguments: Any, **named: Any) -> Any:
        stage[0] = "at a request"
        return generate(*arguments, **named)

    LLM.generate = watched
    try:
        drafted = _engine(root, base, folder, files.digest())
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = " | ".join(lines[:2]) or "(no message)"
        return "raises", f"{stage[0]}: {type(error).__name__}: {told.replace(str(root), '')}"[:HEAD]
    meant, reason = meaning(root, base, folder)
    if meant is not None:
        return (
            ("as meant", "") if same(drafted, meant) else ("differently", _likeness(drafted, root, case.base))
        )
    is_base = same(drafted, _good(root, case.base))
    return ("as base" if is_base else "differently"), f"no meaning: {reason}".replace(str(root), "")[:HEAD]


def _good(root: Path, base: str) -> list[Rounds]:
    found: list[Rounds] = torch.load(root / "drafts" / drafter(base).digest())
    return found


def _likeness(drafted: list[Rounds], root: Path, base: str) -> str:
    return "drafts as the base, not as meant" if same(drafted, _good(root, base)) else "not as meant"


if __name__ == "__main__":
    main()
