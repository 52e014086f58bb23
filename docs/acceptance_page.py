"""docs/acceptance.md: what acceptance lengths others published, from eaglectl/acceptance/published.json."""

from pathlib import Path

from eaglectl.acceptance.measurement import DEAD_LENGTH
from eaglectl.acceptance.published import published_lengths
from eaglectl.formats.published import Figure, Preset, PublishedSource, published_file

from tables import table  # isort: skip

PAGE = Path(__file__).with_name("acceptance.md")
HEAD = """# What acceptance others reach

Written by `make docs` from `eaglectl/acceptance/published.json`. None of it was measured by us. An acceptance
length is the mean number of tokens that one step of the target yields: 1 plus the accepted draft tokens.

A length tells something about yours only where target, prompt set, draft tokens (k) and temperature are the
same. Compare the rows below with each other: one drafter has 1.72 on gsm8k and 3.05 on humaneval, and a
chain of 7 gives more than one of 3. A length below 1.05 is that of a drafter that does not work.
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
    sets = sorted({name for figure in members for name in figure.lengths})
    head = ["drafter", "target", "drafts", *sets]
    rows = table(head, (_row(figure, sets) for figure in members))
    return "\n".join([f"## {source.title}\n", f"{text}\n", rows])


def _row(figure: Figure, sets: list[str]) -> list[str]:
    drafter = f"[{figure.drafter}]({figure.url})" if figure.url else figure.drafter
    chain = [figure.steps, figure.topk, figure.draft_tokens]
    drafts = "/".join("?" if number is None else str(number) for number in chain)
    if figure.temperature is not None:
        drafts += f", T={figure.temperature:g}"
    lengths = [_length(figure.lengths.get(name)) for name in sets]
    return [drafter, figure.target, drafts, *lengths]


def _length(length: float | None) -> str:
    if length is None:
        return ""
    return f"{length:.2f} (dead)" if length < DEAD_LENGTH else f"{length:.2f}"


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}." if note else ""
