"""What the real vLLM does with mutated drafters: imported once, then a fork for each case, with a timeout.

`python -m tests.engine.agreement.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that ANSWERS (records.json) does not have yet, which they are then merged into. With
ENGINE_RUNNER=V2 the V2 runner takes them, without names those of `chosen.py` (ANSWERS is records_v2.json);
ENGINE_NEW_TOKENS=6 then saves time. Another release than that of the records takes those of its flips
(tests/engine/releases).
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    OMP_NUM_THREADS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    # each fork would compile the same small functions for seconds, which changes nothing of what they return
    TORCHDYNAMO_DISABLE="1",
)

import torch

from tests.engine.agreement.bases import BASES, VOCAB, Base, drafter
from tests.engine.agreement.cases import CASES, IN_PARALLEL
from tests.engine.agreement.chosen import CHOSEN
from tests.engine.agreement.forks import Death, forked, reason, run_cases
from tests.engine.agreement.meaning import first_difference, meaning, same, same_tokens
from tests.engine.agreement.records import VLLM, read
from tests.engine.parity_child import LLM, RELEASE, RUNNER, in_vllm
from tests.engine.releases.shown import RELEASED
from tests.engine.rounds import Rounds, prompts

# packages whose modules the engine imports as it loads a model
WARM = ("vllm", "transformers", "torch")
PLAIN = str.maketrans("[]", "()")
PATIENCE = float(os.environ.get("AGREEMENT_PATIENCE", "90"))


def prepare(root: Path, names: Sequence[str]) -> None:
    """Run the good drafters of these cases, which has to work, or else be a case of its own, or recorded.

    What the engine imports for them is then imported here, and not by each case.
    """
    for folder in ("drafts", "meant"):
        (root / folder).mkdir()
    bases = {CASES[name].base for name in names}
    # the first loads import; beside other work on the same cores that has taken longer than a case may
    answers = forked(root, [base for base in BASES if base in bases], partial(_base, root), 5 * PATIENCE)
    dead = [f"{name}: {answer.reason}" for name, answer in answers.items() if isinstance(answer, Death)]
    dead += [f"{name}: {answer}" for name, answer in answers.items() if isinstance(answer, str)]
    stopped = {
        name for name, record in read(Path(sys.argv[1])).items() if record.verdict in ("raises", "dies")
    }
    known = stopped.union(names)
    if unknown := [words for words in dead if f"{words.partition(':')[0]}/none" not in known]:
        sys.exit(f"good drafters that the engine did not run: {'; '.join(unknown)}")
    for name in dict.fromkeys(chain(*(modules for modules in answers.values() if isinstance(modules, list)))):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _base(root: Path, name: str) -> list[str] | str:
    """Keep what the reference drafts, then the engine: the modules that it imported, or what it raised."""
    files, known = drafter(name), set(sys.modules)
    folder = files.write(root / "bases" / name)
    meant, why = meaning(root, BASES[name], folder)
    assert meant is not None, why
    torch.save(meant, root / "meant" / name)
    try:
        _engine(root, BASES[name].kind, folder, files.digest())
    except Exception as error:
        return reason(error)
    return [module for module in sys.modules if module not in known and module.split(".")[0] in WARM]


def _engine(root: Path, kind: str, folder: Path, digest: str, **options: Any) -> list[Rounds]:
    """What vLLM drafts with these bytes for a target of this kind, started so; kept under all three."""
    kept = root / "drafts" / " ".join((kind, digest, *map(str, options.values())))
    if not kept.exists():
        is_parallel = options.pop("parallel_drafting", False)
        drafted = in_vllm(
            root / "targets" / kind,
            folder,
            prompts(),
            is_mla=kind == "mla",
            is_parallel=is_parallel,
            skip_tokenizer_init=True,
            **options,
        )[0]
        torch.save([_widened(rounds) for rounds in drafted], kept)
    found: list[Rounds] = torch.load(kept)
    return found


def _widened(rounds: Rounds) -> Rounds:
    """Logits over the target's vocabulary, of a drafter whose config states a smaller one."""

    def widened(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(logits, (0, max(0, VOCAB - len(logits))), value=float("-inf"))

    return [(tokens, [widened(row) for row in rows]) for tokens, rows in rounds]


def _case(root: Path, name: str) -> tuple[Any, ...]:
    """Verdict, reason and difference."""
    case = CASES[name]
    files = case.files()
    # vLLM takes its path for a pattern, in which brackets are no letters
    folder = files.write(root / "cases" / name.translate(PLAIN))
    stage, generate = ["at load"], LLM.generate

    def watched(*arguments: Any, **named: Any) -> Any:
        stage[0] = "at a request"
        return generate(*arguments, **named)

    LLM.generate = watched
    try:
        drafted = _engine(root, case.kind, folder, files.digest(), **case.options)
    except Exception as error:
        return "raises", f"{stage[0]}: {reason(error)}".replace(str(root), "")
    meant, why = meaning(root, Base(case.kind), folder, case.answers)
    good = torch.load(root / "meant" / case.base)
    if meant is None:
        verdict = "as base" if same(drafted, good) else "differently"
        return verdict, f"no meaning: {why}".replace(str(root), ""), first_difference(drafted, good)
    verdict, why = "as meant", ""
    if not same(drafted, meant):
        verdict, why = (
            "differently",
            "drafts as the base, not as meant" if same(drafted, good) else "not as meant",
        )
        why += ", though the tokens are the same" if same_tokens(drafted, meant) else ""
    return verdict, why, first_difference(drafted, meant)


def _chosen() -> Iterable[str]:
    if sys.argv[2:]:
        return CASES
    if f"vllm=={RELEASE}" == VLLM and RUNNER == "V1":
        return CASES
    chosen = CHOSEN if f"vllm=={RELEASE}" == VLLM else RELEASED
    known = {*chosen, *read(Path(sys.argv[1]))}  # what was drawn before other cases came stays
    return [
        name for name in CASES if name in known and (RUNNER == "V1" or CASES[name].options != IN_PARALLEL)
    ]


if __name__ == "__main__":
    run_cases({name: CASES[name] for name in _chosen()}, _case, PATIENCE, prepare=prepare)
