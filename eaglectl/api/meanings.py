"""Two meanings of one flag, both run: which one a drafter was trained with is then the user's to say, with figures at hand."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.api.converting import convert
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import open_folder
from eaglectl.errors import Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import Row
    from eaglectl.acceptance.prompts import Prompt

PROMPTS = 40
ERAS = (("specforge", "pre-879"), ("specforge", "post-879"))
VALUES = (("norm_output", "false"), ("norm_output", "true"))


def ask_with_figures(
    source: str, target: Path, prompts: "Sequence[Prompt]", answers: Answers, device: str, told: Callable[[int, int], None]
) -> None:  # fmt: skip
    """Raise Usage that says how the drafter fares with either meaning of norm_output, where that is all there is to ask."""
    checkpoint, known = read_checkpoint(open_folder(source)), open_target(str(target))
    drafter = read_drafter(checkpoint, answers, known)
    asked = drafter.told("question")
    if [note.about for note in asked] != ["norm_output"] or drafter.told("problem") or drafter.quantisation is not None:
        return
    meanings = {}
    for key, value in ERAS if drafter.producer == "specforge" else VALUES:
        one = replace(answers, semantics={**answers.semantics, key: value})
        if not read_drafter(checkpoint, one, known).told("problem"):
            meanings[f"{key}={value}"] = one
    if len(meanings) == 2:
        raise Usage(
            f"{asked[0].text}. {_compared(tuple(meanings), _run(source, target, prompts, meanings, device, told))}"
        )


def _run(
    source: str, target: Path, prompts: "Sequence[Prompt]", meanings: dict[str, Answers], device: str, told: Callable[[int, int], None]
) -> "Row":  # fmt: skip
    from eaglectl.acceptance.gate import hold
    from eaglectl.acceptance.job import Job

    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        jobs = []
        for index, answers in enumerate(meanings.values()):
            place = Path(name) / str(index)
            done = convert(source, place, target=str(target), answers=answers, link=True)
            jobs.append(Job(place, done.plan.drafter, target, tuple(prompts)[:PROMPTS], device=device))
        return hold(jobs[0], jobs[1], 0.0, told).rows[-1]  # what is fed back shows most where drafts are deep


def _compared(names: tuple[str, ...], row: "Row") -> str:
    sides = " and ".join(
        f"{side.length.value:.2f} with {name}" for name, side in zip(names, (row.before, row.after), strict=True)
    )
    found = f"Run both ways here, its acceptance length at k={row.k} is {sides}"
    if row.ratio.low <= 1.0 <= row.ratio.high:
        return f"{found}, which does not tell them apart: ask whoever trained it"
    better = names[1] if row.ratio.low > 1.0 else names[0]
    return f"{found} (ratio {row.ratio.value:.2f} [{row.ratio.low:.2f}, {row.ratio.high:.2f}]): {better} fits what it learned"
