"""What the real SGLang does with changed drafters: imported once, then a fork for each case, with a timeout.

`python -m tests.engine.sglang.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that `records.json` does not have yet, which it is then merged into (ANSWERS is records.json).
Another release than that of the records, its unpacked wheel before this environment on PYTHONPATH, takes the
good drafters and those that show facts; ANSWERS is then a file of tests/engine/releases/records.
"""

import re
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.engine.sglang import engine, spy  # isort: skip

import sglang
import torch
from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

from tests.engine.agreement import records
from tests.engine.agreement.forks import reason, run_cases
from tests.engine.agreement.meaning import verdict
from tests.engine.releases.shown import SGLANG
from tests.engine.rounds import NEW_TOKENS, K, prompts
from tests.engine.sglang.cases import CASES

# loaded aside of the parameters, or together with another tensor
ASIDE = ("d2t", "t2d", "self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight")


def _case(root: Path, name: str) -> tuple[Any, ...]:
    """Verdict, reason, no difference, captured boundaries, and names: skipped, unfilled, partly filled."""
    case = CASES[name]
    # SGLang takes the path for a pattern of names: a bracket in it is no file
    folder = case.files().write(root / "cases" / re.sub(r"\W+", "-", name))
    seen: dict[str, Any] = {}
    for cls in (LlamaForCausalLMEagle3, Eagle3DeepseekV2ForCausalLM):
        spy.watch(cls, seen)
    stage = "at load"
    captured: list[int] = []
    try:
        dtype = "bfloat16" if case.is_loaded_only else "float32"
        running = engine.start(root / "targets" / case.kind, folder, K, dtype, case.options)
        stage, captured = "at a request", spy.captured(running)
        drafts = None
        if not case.is_loaded_only:
            rounds = engine.generate(running, prompts(), NEW_TOKENS)
            drafts = [[row[1:] for row in rows] for rows in rounds]
    except Exception as error:
        return "raises", _told(f"{stage}: {_words(error)}", root), None, captured, *_names(seen)
    word, why = ("loads", "") if drafts is None else verdict(root, case, folder, drafts)
    return word, _told(why, root), None, captured, *_names(seen)


def _told(text: str, root: Path) -> str:
    """A reason without what differs from run to run: the folder, and which of the bad tensors is named."""
    return re.sub(r"(invalid offset for tensor) .*", r"\1", text.replace(str(root), ""))


def _words(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "sglang/srt" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} " if frames else ""
    return f"{where}{reason(error)}"


def _names(seen: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    skipped = [name for name in seen.get("skipped", []) if not name.endswith(ASIDE)]
    return skipped, seen.get("unfilled", []), seen.get("partly", [])


if __name__ == "__main__":
    # the MLA class calls them after loading
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *_: None
    of_facts = {
        name: case for name, case in CASES.items() if name in SGLANG.values() or name.endswith("/none")
    }
    is_recorded = f"sglang=={sglang.__version__}" == records.SGLANG
    run_cases(CASES if is_recorded or sys.argv[2:] else of_facts, _case, patience=120.0, side_by_side=2)
