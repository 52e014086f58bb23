"""The table of budgets of SECURITY.md: how much of a file is read, parsed and searched."""

import re
from pathlib import Path

from tables import table

from eaglectl.conversion.readings import MAX_COUNTS
from eaglectl.conversion.upgrade import MAX_STATISTICS
from eaglectl.files import budgets, opcodes, source
from eaglectl.formats.reader import MAX_TENSORS
from eaglectl.judge.rule import MAX_PARTS, MAX_POLICY
from eaglectl.run.prompts import MAX_LINE, MAX_PROMPTS, MAX_RUN

PAGE = Path(__file__).resolve().parents[1] / "SECURITY.md"
BLOCK = re.compile(r"(?<=<!-- budgets -->\n).*(?=<!-- end -->)", re.DOTALL)


def page() -> str:
    """SECURITY.md with the numbers of now."""
    return BLOCK.sub(lambda _: _table(), PAGE.read_text(encoding="utf-8"))


def _table() -> str:
    rows = (
        ("a safetensors header", f"{_size(budgets.MAX_HEADER)}, {budgets.HEADER_ENTRIES:,} entries"),
        ("tensors of a file, of a drafter", f"{budgets.MAX_TENSORS:,}, {MAX_TENSORS:,}"),
        ("a tensor's name, a key of JSON", f"{budgets.MAX_NAME:,} characters"),
        ("a header's metadata", f"{budgets.MAX_METADATA:,} keys"),
        (
            "a drafter's config.json",
            f"{_size(budgets.MAX_CONFIG)}, {budgets.CONFIG_ENTRIES:,} entries of all objects and lists,"
            f" {budgets.MAX_KEYS:,} keys",
        ),
        (
            "its quantisation config",
            f"{budgets.MAX_MODULES:,} names of modules of {budgets.MAX_NAME:,} characters; no expression"
            " with repeated groups",
        ),
        (
            "its hf_quant_config.json, eaglectl.json",
            f"{_size(budgets.MAX_CONFIG)}, {_size(budgets.MAX_RECORD)}",
        ),
        ("a tokenizer", f"{budgets.TOKENIZER_ENTRIES:,} entries"),
        ("any other JSON", f"{budgets.MAX_ENTRIES:,} entries"),
        ("objects and lists in each other", f"{budgets.MAX_DEPTH}"),
        ("a file that is read whole", _size(source.MAX_WHOLE_FILE)),
        (
            "a pickle's opcodes",
            f"{_size(opcodes.MAX_BYTES)}, {opcodes.MAX_OPCODES:,} opcodes, {opcodes.MAX_CONTAINERS:,}"
            f" containers, {opcodes.MAX_MEMO:,} of the memo",
        ),
        (
            "a file that is searched for secrets",
            f"{_size(budgets.MAX_SCANNED)}, {budgets.MAX_PLACES:,} places for each kind; of a header"
            f" {_size(budgets.MAX_HEADER_SCANNED)}",
        ),
        (
            "a card, SHA256SUMS",
            f"{_size(budgets.LARGEST_TEXT)}, {budgets.MAX_COMMANDS} commands of at most"
            f" {budgets.LONGEST_COMMAND:,} characters",
        ),
        ("findings of one rule", f"{budgets.MAX_MATCHES:,}"),
        ("a configuration (eaglectl.toml)", f"{_size(MAX_POLICY)}, {MAX_PARTS} parts of a key"),
        (
            "prompts",
            f"{_size(MAX_PROMPTS)}, {_size(MAX_LINE)} a line, {MAX_RUN:,} characters that are run",
        ),
        ("token counts, statistics", f"{_size(MAX_COUNTS)}, {_size(MAX_STATISTICS)}"),
    )
    return table(("of", "at most"), rows)


def _size(count: int) -> str:
    for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count:,} bytes"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
