"""What eaglectl's reference engine drafts with a checkpoint as it is written."""

from pathlib import Path

import torch
from safetensors.torch import load_file

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.formats.format import Answers
from tests.engine.agreement.bases import Base
from tests.engine.agreement.cases import Case
from tests.engine.logits import difference, largest_difference
from tests.engine.rounds import Rounds, in_reference, prompts

NO_ANSWERS = Answers()
# of all rounds: an engine's target in float32 moves away from the reference with each position, by 1e-4 at 50
TOLERANCE = 1e-3
# what a case drafted: of each prompt, the rounds' draft tokens
Drafts = list[list[list[int]]]


def meaning(
    root: Path, base: Base, folder: Path, answers: Answers = NO_ANSWERS
) -> tuple[list[Rounds] | None, str]:
    """What the reference drafts with the checkpoint as it was trained, or why it means nothing."""
    place, out = root / "targets" / base.kind, folder.parent / f"{folder.name}-meant"
    try:
        meant = _converted(folder, out, place, answers)
        if problem := _nonsense(out):
            return None, problem
        return in_reference(place, out, meant, prompts())[0], ""
    except EaglectlError as error:
        # without the folder's path, which differs from run to run
        return None, str(error).replace(f"{folder}: ", "").replace(str(folder), folder.name)
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError) as error:
        return None, f"the reference cannot run it: {type(error).__name__} {error}"


def verdict(root: Path, case: Case, folder: Path, drafts: Drafts) -> tuple[str, str]:
    """The verdict on what an engine drafted with a case that is in `folder`, and why it means nothing."""
    base = Base(case.kind)
    meant, reason = meaning(root, base, folder, case.answers)
    if meant is not None:
        return ("as meant", "") if _is_same(drafts, meant) else ("differently", "not as meant")
    good, _ = meaning(root, base, case.make().write(root / "bases" / folder.name))
    is_base = good is not None and _is_same(drafts, good)
    return ("as base" if is_base else "differently"), f"no meaning: {reason}"


def _is_same(drafts: Drafts, others: list[Rounds]) -> bool:
    """Whether every token that both drafted is the same; the last round of a request may be shorter."""
    if len(drafts) != len(others) or not all(drafts):
        return False
    rounds = [pair for prompts in zip(drafts, others, strict=True) for pair in zip(*prompts, strict=False)]
    return all(ours[: len(theirs)] == theirs[: len(ours)] for ours, (theirs, _) in rounds)


def _converted(folder: Path, out: Path, target: Path, answers: Answers) -> Drafter:
    """The drafter of a folder, converted to `out` whatever its numbers are."""
    try:
        return eaglectl.convert(folder, out, target=str(target), answers=answers).plan.drafter
    except RefusedError as error:
        if not any(words in str(error) for words in ("the output would be broken", "this output as trained")):
            raise
        options = ConvertOptions(target=str(target), force_unserved=True, answers=answers)
        return eaglectl.convert(str(folder), out, options).plan.drafter


def _nonsense(folder: Path) -> str:
    """Why no training can have written these tensors, if so."""
    weights = {
        name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            return f"{name} is not finite"
    if "d2t" in weights:
        targets = (weights["d2t"] + torch.arange(len(weights["d2t"]))).tolist()
        if len(set(targets)) < len(targets) or min(targets) < 0 or max(targets) >= 256:
            return "draft tokens share a target, or have none"
    return ""


def same(every: list[Rounds], others: list[Rounds]) -> bool:
    """Whether all drafted tokens agree, and the logits they were taken from."""
    return same_tokens(every, others) and all(
        difference(ours, theirs) < TOLERANCE
        for prompts in zip(every, others, strict=True)
        for (_, logits), (_, other_logits) in zip(*prompts, strict=False)
        for ours, theirs in zip(logits, other_logits, strict=True)
    )


def same_tokens(every: list[Rounds], others: list[Rounds]) -> bool:
    """Whether all drafted tokens agree, and behind each prompt either both drafted or neither."""
    if [bool(rounds) for rounds in every] != [bool(rounds) for rounds in others]:
        return False
    pairs = [pair for prompts in zip(every, others, strict=True) for pair in zip(*prompts, strict=False)]
    return all(tokens == other_tokens for (tokens, _), (other_tokens, _) in pairs)


def first_difference(every: list[Rounds], others: list[Rounds]) -> float:
    """The largest difference of logits in the first round of each prompt."""
    first, other_first = ([rounds[0][1] if rounds else [] for rounds in drafts] for drafts in (every, others))
    return largest_difference(first, other_first)
