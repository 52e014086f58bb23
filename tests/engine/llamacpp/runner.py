"""What llama.cpp does with changed drafters: its converter imported once, then a fork for each case.

`python -m tests.engine.llamacpp.runner ANSWERS NAME...` runs these cases and writes {name: record}; without
names, all that `records.json` does not have yet, which it is then merged into (ANSWERS is records.json).
"""

import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine.agreement.bases import TARGETS, Base, target
from tests.engine.agreement.forks import Death, forked
from tests.engine.agreement.meaning import meaning
from tests.engine.llamacpp.cases import CASES, Case
from tests.engine.llamacpp.engine import EndedError, Rounds, draft, load_converter, to_gguf
from tests.engine.llamacpp.records import Record, read, write
from tests.engine.rounds import NEW_TOKENS, K, prompts

PATIENCE = float(os.environ.get("AGREEMENT_PATIENCE", "300"))
SIDE_BY_SIDE = int(os.environ.get("AGREEMENT_WORKERS", "2"))
BATCH = 20
HEAD = 110  # characters kept of a message
KINDS = tuple(kind for kind in TARGETS if kind != "mla")
FIRST = "llama.cpp/none"


def main() -> None:
    """Run what the arguments ask for."""
    out, asked = Path(sys.argv[1]), sys.argv[2:]
    known = {} if asked else read(out)
    digests = {name: case.files().digest() for name, case in CASES.items()}
    names = asked or [
        name for name, digest in digests.items() if name not in known or known[name].digest != digest
    ]
    load_converter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kind in TARGETS:
            add_tokenizer(target(kind).write(root / "targets" / kind))
        # here and not in a fork: what converter and reference import, every fork then has
        for kind in KINDS:
            to_gguf(root / "targets" / kind, root / f"{kind}.gguf")
        meaning(root, Base("llama"), CASES[FIRST].files().write(root / "cases/first"))
        for place in range(0, len(names), BATCH):
            answers = forked(root, names[place : place + BATCH], partial(_case, root), PATIENCE, SIDE_BY_SIDE)
            known |= {name: _record(digests[name], answer) for name, answer in answers.items()}
            write(out, known if asked else {name: known[name] for name in CASES if name in known})
            print(f"{min(place + BATCH, len(names))} of {len(names)}", file=sys.stderr, flush=True)


def _record(digest: str, answer: Any) -> Record:
    if isinstance(answer, Death):
        return Record(digest, "dies", answer.reason)
    verdict, reason, layers = answer
    return Record(digest, verdict, reason, tuple(layers))


def add_tokenizer(folder: Path) -> None:
    """One token a byte but for the last, a merge: BPE without any is refused."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    del vocabulary[letters[-1]]
    vocabulary["~~"] = len(letters) - 1
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("~", "~")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="~~").save_pretrained(folder)


def _case(root: Path, name: str) -> tuple[str, str, list[int]]:
    """Verdict, reason and captured layers."""
    case = CASES[name]
    plain = re.sub(r"\W+", "-", name)
    folder, drafter = case.files().write(root / "cases" / plain), root / f"{plain}.gguf"
    try:
        to_gguf(folder, drafter, root / "targets" / case.kind)
    except (Exception, SystemExit) as error:
        return "refused", _short(root, f"{type(error).__name__}: {error}"), []
    if not drafter.exists():
        return "refused", "the converter wrote no file", []
    try:
        found = draft(root / f"{case.kind}.gguf", drafter, prompts(), K, NEW_TOKENS)
    except EndedError as error:
        return "dies" if error.is_loaded else "fails", _short(root, str(error)), error.captured
    verdict, reason = _verdict(root, case, folder, found.drafts)
    return verdict, _short(root, reason), found.captured


def _short(root: Path, text: str) -> str:
    return " ".join(text.replace(str(root), "").split())[:HEAD]


def _verdict(root: Path, case: Case, folder: Path, drafts: list[Rounds]) -> tuple[str, str]:
    base = Base(case.kind)
    meant, reason = meaning(root, base, folder)
    if meant is not None:
        return ("as meant", "") if same(drafts, tokens(meant)) else ("differently", "not as meant")
    good, _ = meaning(root, base, case.make().write(root / "bases" / folder.name))
    is_base = good is not None and same(drafts, tokens(good))
    return ("as base" if is_base else "differently"), f"no meaning: {reason}"


def tokens(rounds: Any) -> list[Rounds]:
    """The draft tokens of the reference's rounds."""
    return [[drafts for drafts, _ in prompt] for prompt in rounds]


def same(drafts: list[Rounds], others: list[Rounds]) -> bool:
    """Whether every token that both drafted is the same; the last round of a request may be shorter."""
    if len(drafts) != len(others) or not all(drafts):
        return False
    rounds = [
        pair for one, other in zip(drafts, others, strict=True) for pair in zip(one, other, strict=False)
    ]
    return all(ours[: len(theirs)] == theirs[: len(ours)] for ours, theirs in rounds)


if __name__ == "__main__":
    main()
