"""benchmarks/evidence/acceptance.md: lengths that others published, from eaglectl/run/published.json."""

from pathlib import Path

from eaglectl.formats.published import Figure, PublishedSource, published_file
from eaglectl.run.measurement import DEAD_LENGTH
from eaglectl.run.published_lengths import published_lengths

from tables import table  # isort: skip

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/acceptance.md"
# sets of a table that has a column for each
MOST_COLUMNS = 10
HEAD = """# What acceptance others reach

Written by `make docs` from `eaglectl/run/published.json`. None of it was measured here. The acceptance
length is the mean number of tokens per step of the target: 1 plus the accepted draft tokens.

A length can be compared with yours only if target, prompt set, draft tokens (k) and temperature are the same.
The rows below show why: one drafter has 1.72 on gsm8k and 3.05 on humaneval, and a chain of 7 gives more than
a chain of 3. A length below 1.05 means that the drafter does not work. "1.39x" is the speed-up of one user's
tokens over decoding without a drafter.

If authors measured their file as it is stored in an engine, that engine runs the file "as published"
([which files](published.md)).
"""
COMPARE = """## A run like theirs

`smoke`, `diagnose` and `ready` print the published lengths of drafters of the same target next to yours, if
your run uses the same settings: a whole set with `--prompts NAME`, the chain (`-k`), the temperature, and at
most as many tokens per answer (`--max-tokens`). All other runs are "measured otherwise". The target is
identified by its repository, `_name_or_path` of its config.json, the name in the drafter's files, or its
folder.

| source | `--prompts` | `--max-tokens` |
|---|---|---|
"""
RECIPE = """## Add a figure

CONTRIBUTING.md, "Add a published drafter, or a published length"; the file's schema is
`schemas/published.schema.json`.
"""


def page() -> str:
    """The whole page."""
    figures = published_file().figures
    drafters, targets = ({getattr(figure, name) for figure in figures} for name in ("drafter", "target"))
    count = f"{len(published_lengths())} lengths of {len(drafters)} drafters for {len(targets)} targets.\n"
    parts = [HEAD, count]
    for name, source in published_file().sources.items():
        parts.append(_section(source, [figure for figure in figures if figure.source == name]))
    return "\n".join([*parts, COMPARE + _comparable(), RECIPE])


def _comparable() -> str:
    rows = [
        f"| {source.title} | `{name}` | {tokens:,} |"
        for source in published_file().sources.values()
        for name, tokens in source.comparable.items()
    ]
    return "\n".join([*rows, ""])


def _section(source: PublishedSource, members: list[Figure]) -> str:
    settings = [
        source.engine,
        None if source.temperature is None else f"temperature {source.temperature:g}",
        None if source.prompts is None else f"{source.prompts} prompts",
    ]
    stated = ", ".join(setting for setting in settings if setting)
    text = f"[Source]({source.url}), {source.date}. {f'{stated}. ' if stated else ''}{_sentence(source.note)}"
    sets = sorted({name for figure in members for name in (*figure.lengths, *figure.speedups)})
    is_wide = len(sets) > MOST_COLUMNS
    head = ["drafter", "target", "drafts", "measured", *(["lengths"] if is_wide else sets)]
    rows = table(head, (_row(figure, sets, is_wide=is_wide) for figure in members))
    return "\n".join([f"## {source.title}\n", f"{text}\n", rows])


def _row(figure: Figure, sets: list[str], *, is_wide: bool) -> list[str]:
    drafter = f"[{figure.drafter}]({figure.url})" if figure.url else figure.drafter
    chain = [figure.steps, figure.topk, figure.draft_tokens]
    drafts = "/".join("?" if number is None else str(number) for number in chain)
    if figure.temperature is not None:
        drafts += f", T={figure.temperature:g}"
    cells = [_amounts(figure, name) for name in sets]
    if is_wide:
        cells = [", ".join(f"{name} {cell}" for name, cell in zip(sets, cells, strict=True) if cell)]
    return [drafter, figure.target, drafts, _measured(figure), *cells]


def _amounts(figure: Figure, name: str) -> str:
    """The length and the speed-up on one set."""
    speedup = figure.speedups.get(name)
    faster = "" if speedup is None else f"{speedup:g}x"
    return ", ".join(filter(None, [_length(figure.lengths.get(name)), faster]))


def _measured(figure: Figure) -> str:
    """What a figure states of its own: who measured it, in which engine, on what, and what was changed."""
    parts = [
        "by its authors" if figure.is_by_authors else "",
        " ".join(filter(None, [figure.engine, figure.release])),
        figure.changed,
        figure.date or "",
    ]
    return ", ".join(filter(None, parts))


def _length(length: float | None) -> str:
    if length is None:
        return ""
    return f"{length:.2f} (dead)" if length < DEAD_LENGTH else f"{length:.2f}"


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}." if note else ""
