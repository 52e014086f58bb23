"""What llama.cpp does with changed drafters: its converter imported once, then a fork for each case.

`python -m tests.engine.llamacpp.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that `records.json` does not have yet, which it is then merged into (ANSWERS is records.json).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tests.engine.agreement.bases import TARGETS, Base
from tests.engine.agreement.forks import run_cases
from tests.engine.agreement.meaning import meaning, verdict
from tests.engine.llamacpp.cases import CASES
from tests.engine.llamacpp.engine import EndedError, draft, load_converter, to_gguf
from tests.engine.pairs import save_tokenizer
from tests.engine.rounds import NEW_TOKENS, K, prompts

KINDS = tuple(kind for kind in TARGETS if kind != "mla")
FIRST = "llama3/none"


def prepare(root: Path, names: Sequence[str]) -> None:
    """Convert the targets, not in a fork: every fork then has what converter and reference import."""
    load_converter()
    for kind in TARGETS:
        save_tokenizer(root / "targets" / kind, merged="~~")
    for kind in KINDS:
        to_gguf(root / "targets" / kind, root / f"{kind}.gguf")
    meaning(root, Base("llama"), CASES[FIRST].files().write(root / "cases/first"))


def _case(root: Path, name: str) -> tuple[str, str, None, list[int]]:
    """Verdict, reason, no difference, and captured layers."""
    case = CASES[name]
    plain = re.sub(r"\W+", "-", name)
    folder, drafter = case.files().write(root / "cases" / plain), root / f"{plain}.gguf"
    try:
        to_gguf(folder, drafter, root / "targets" / case.kind)
    except (Exception, SystemExit) as error:
        return "refused", _short(root, f"{type(error).__name__}: {error}"), None, []
    if not drafter.exists():
        return "refused", "the converter wrote no file", None, []
    try:
        found = draft(root / f"{case.kind}.gguf", drafter, prompts(), K, NEW_TOKENS)
    except EndedError as error:
        return "dies" if error.is_loaded else "fails", _short(root, str(error)), None, error.captured
    word, reason = verdict(root, case, folder, found.drafts)
    return word, _short(root, reason), None, found.captured


def _short(root: Path, text: str) -> str:
    return " ".join(text.replace(str(root), "").split())


if __name__ == "__main__":
    run_cases(CASES, _case, patience=300.0, side_by_side=2, prepare=prepare)
