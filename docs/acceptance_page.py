"""docs/reference/acceptance.md: lengths that others published, from eaglectl/run/published.json."""

from pathlib import Path

from eaglectl.formats.published import Figure, Preset, PublishedSource, published_file
from eaglectl.run.measurement import DEAD_LENGTH
from eaglectl.run.published import published_lengths

from tables import table  # isort: skip

PAGE = Path(__file__).with_name("reference") / "acceptance.md"
# sets of a table that has a column for each
MOST_COLUMNS = 10
HEAD = """# What acceptance others reach

Written by `make docs` from `eaglectl/run/published.json`. None of it was measured by us. An acceptance
length is the mean number of tokens that one step of the target yields: 1 plus the accepted draft tokens.

A length tells something about yours only where target, prompt set, draft tokens (k) and temperature are the
same. Compare the rows below with each other: one drafter has 1.72 on gsm8k and 3.05 on humaneval, and a
chain of 7 gives more than one of 3. A length below 1.05 is that of a drafter that does not work. "1.39x" is
how much faster one user's tokens come than without a drafter.

What authors measured with their file as it is stored tells how an engine reads it: that engine runs the file
"as published" ([which files](published.md)).
"""
LIKE = """## A run like theirs

`--like` of `smoke`, `diagnose` and `ready` makes the run of a source: its prompts, temperature, tokens and
seed. `-k` chooses another of its chains. What drafters of the same target reached on that run is said beside
yours; a sample, other answers or another stop are no comparison: all else was "measured otherwise". The
target is known by its repository, `_name_or_path` of its config.json, what the drafter's files name, or its
folder.

| preset | prompts | least chain | at most tokens | beside the source |
|---|---|---|---|---|
"""
RECIPE = """## Add a figure

CONTRIBUTING.md, "Add a published acceptance length"; the file's schema is `schemas/published.schema.json`.
"""


def page() -> str:
    """The whole page."""
    figures = published_file().figures
    drafters, targets = ({getattr(figure, name) for figure in figures} for name in ("drafter", "target"))
    count = f"{len(published_lengths())} lengths of {len(drafters)} drafters for {len(targets)} targets.\n"
    parts = [HEAD, count]
    for name, source in published_file().sources.items():
        parts.append(_section(source, [figure for figure in figures if figure.source == name]))
    return "\n".join([*parts, LIKE + _presets(), RECIPE])


def _presets() -> str:
    rows = []
    for name, preset in published_file().presets.items():
        shots = f", {preset.shots} worked in front" if preset.shots else ""
        cells = [f"`{name}`", preset.prompts + shots, str(preset.steps), f"{preset.max_new_tokens:,}"]
        rows.append(f"| {' | '.join(cells)} | {preset.differs or _alike(preset)} |")
    refused = [f"| `{name}` | | | | cannot be run: {why} |" for name, why in published_file().unlike.items()]
    return "\n".join([*rows, *refused, ""])


def _alike(preset: Preset) -> str:
    return (
        "alike"
        if published_file().sources[preset.source].prompts
        else "alike, as far as is stated: not how many prompts"
    )


def _section(source: PublishedSource, members: list[Figure]) -> str:
    settings = [
        source.engine,
        None if source.temperature is None else f"temperature {source.temperature:g}",
        None if source.max_new_tokens is None else f"at most {source.max_new_tokens:,} tokens an answer",
        None if source.prompts is None else f"{source.prompts} prompts",
        None if source.seed is None else f"seed {source.seed}",
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
        f"concurrency {figure.concurrency}" if figure.concurrency else "",
        figure.hardware,
        figure.changed,
        figure.date or "",
        figure.note,
    ]
    return ", ".join(filter(None, parts))


def _length(length: float | None) -> str:
    if length is None:
        return ""
    return f"{length:.2f} (dead)" if length < DEAD_LENGTH else f"{length:.2f}"


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}." if note else ""
