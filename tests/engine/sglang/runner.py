"""What the real SGLang does with changed drafters: imported once, then a fork for each case, with a timeout.

`python -m tests.engine.sglang.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that `records.json` does not have yet, which it is then merged into (ANSWERS is records.json).
"""

import os
import re
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine.sglang import engine, spy  # isort: skip

import torch
from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

from tests.engine.agreement.bases import TARGETS, Base, target
from tests.engine.agreement.forks import Death, forked
from tests.engine.agreement.meaning import meaning
from tests.engine.rounds import NEW_TOKENS, K, prompts
from tests.engine.sglang.cases import CASES, Case
from tests.engine.sglang.records import Record, read, write

PATIENCE = float(os.environ.get("AGREEMENT_PATIENCE", "120"))
SIDE_BY_SIDE = int(os.environ.get("AGREEMENT_WORKERS", "2"))
BATCH = 20
HEAD = 110  # characters kept of a message
# loaded aside of the parameters, or together with another tensor
ASIDE = ("d2t", "t2d", "self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight")
# what a case drafted: of each prompt, the rounds' draft tokens
Drafts = list[list[list[int]]]


def main() -> None:
    """Run what the arguments ask for."""
    out, asked = Path(sys.argv[1]), sys.argv[2:]
    known = {} if asked else read(out)
    digests = {name: case.files().digest() for name, case in CASES.items()}
    names = asked or [
        name for name, digest in digests.items() if name not in known or known[name].digest != digest
    ]
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *_: (
        None
    )  # the MLA class calls them after loading
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kind in TARGETS:
            target(kind).write(root / "targets" / kind)
        for place in range(0, len(names), BATCH):
            batch = names[place : place + BATCH]
            answers = forked(root, batch, partial(_case, root), PATIENCE, SIDE_BY_SIDE)
            known |= {name: _record(digests[name], answer) for name, answer in answers.items()}
            kept = known if asked else {name: known[name] for name in CASES if name in known}
            write(out, kept)
            print(f"{place + len(batch)} of {len(names)}", file=sys.stderr, flush=True)


def _record(digest: str, answer: Any) -> Record:
    if isinstance(answer, Death):
        return Record(digest, "dies", answer.reason)
    verdict, reason, *more = answer
    return Record(digest, verdict, reason, *(tuple(names) for names in more))


def _case(root: Path, name: str) -> tuple[Any, ...]:
    """Verdict, reason, captured boundaries, and names: skipped, unfilled, partly filled."""
    case = CASES[name]
    # SGLang takes the path for a pattern of names: a bracket in it is no file
    folder = case.files().write(root / "cases" / re.sub(r"\W+", "-", name))
    seen: dict[str, Any] = {}
    for cls in (LlamaForCausalLMEagle3, Eagle3DeepseekV2ForCausalLM):
        spy.watch(cls, seen)
    stage = "at load"
    captured: list[int] = []
    try:
        running = engine.start(
            root / "targets" / case.kind, folder, K, "bfloat16" if case.is_loaded_only else "float32"
        )
        stage, captured = "at a request", spy.captured(running)
        drafts = None if case.is_loaded_only else _drafts(running)
    except Exception as error:
        return "raises", _told(f"{stage}: {_words(error)}", root)[:HEAD], captured, *_names(seen)
    verdict, reason = ("loads", "") if drafts is None else _verdict(root, case, folder, drafts)
    return verdict, _told(reason, root)[:HEAD], captured, *_names(seen)


def _told(reason: str, root: Path) -> str:
    """The reason without what differs from run to run: the folder, and which of the bad tensors is named."""
    return re.sub(r"(invalid offset for tensor) .*", r"\1", reason.replace(str(root), ""))


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "sglang/srt" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} " if frames else ""
    return f"{where}{type(error).__name__}: {' | '.join(lines[:2])}"


def _names(seen: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    skipped = [name for name in seen.get("skipped", []) if not name.endswith(ASIDE)]
    return skipped, seen.get("unfilled", []), seen.get("partly", [])


def _drafts(running: Any) -> Drafts:
    rounds = engine.generate(running, prompts(), NEW_TOKENS).rounds
    return [[row[1:] for row in rows] for rows in rounds]


def _verdict(root: Path, case: Case, folder: Path, drafts: Drafts) -> tuple[str, str]:
    base = Base(case.kind)
    meant, reason = meaning(root, base, folder)
    if meant is not None:
        return ("as meant", "") if _same(drafts, _tokens(meant)) else ("differently", "not as meant")
    good, _ = meaning(root, base, case.make().write(root / "bases" / folder.name))
    is_base = good is not None and _same(drafts, _tokens(good))
    return ("as base" if is_base else "differently"), f"no meaning: {reason}"


def _tokens(rounds: Any) -> Drafts:
    return [[tokens for tokens, _ in prompt] for prompt in rounds]


def _same(drafts: Drafts, others: Drafts) -> bool:
    """Whether every round that both had drafted the same tokens."""
    pairs = zip(drafts, others, strict=True)
    return all(ours == theirs for one, other in pairs for ours, theirs in zip(one, other, strict=False))


if __name__ == "__main__":
    main()
