"""What a release changes in the drafter that the repository has now."""

from eaglectl.api.comparing import compare_headers
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.hub_names import SCHEME
from eaglectl.checkpoint.layout import CONFIG
from eaglectl.comparison.comparison import Comparison
from eaglectl.comparison.sides import open_side
from eaglectl.errors import EaglectlError
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.publishing.changes import Changes
from eaglectl.publishing.frozen import FrozenSource
from eaglectl.publishing.plan import UploadPlan


def changes_of(
    plan: UploadPlan, frozen: FrozenSource, folder: str, target: str | None, answers: Answers
) -> Changes | None:
    """How the drafter differs from the repository's, by config and headers; None where that has no files.

    A comparison that fails does not raise: the result states why nothing was compared.
    """
    state = plan.state
    if state is None or not plan.changed:
        return None
    there = f"{plan.repo}@{state.head}"
    weights = tuple(file.name for file in plan.changed if file.name.endswith(".safetensors"))
    diff = command("diff", there, folder, target=target, answers=answers)
    if CONFIG not in state.files:
        return Changes(None, f"{plan.repo} has no {CONFIG} yet", weights, diff)
    if not weights and CONFIG not in {file.name for file in plan.changed}:
        return Changes(None, "config and weights are the same bytes", weights, diff)
    try:
        return Changes(_compare(there, frozen, folder, target, answers), "", weights, diff)
    except EaglectlError as error:
        return Changes(None, f"could not be compared: {error}", weights, diff)


def _compare(
    there: str, frozen: FrozenSource, folder: str, target: str | None, answers: Answers
) -> Comparison:
    known = open_target(target)
    before = open_side("A", f"{SCHEME}{there}", lambda _: known, answers)
    return compare_headers(before, open_side("B", folder, lambda _: known, answers, frozen), answers)
