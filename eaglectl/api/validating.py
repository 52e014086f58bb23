"""Judging checkpoints by rules."""

from collections.abc import Callable, Sequence
from typing import Literal

from eaglectl.api.inputs import known_target, open_target, target_source
from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.source import open_source
from eaglectl.engines.catalogue import parse_engine
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.validation.catalogue import under
from eaglectl.validation.judging import Report, judge
from eaglectl.validation.policy import Policy
from eaglectl.validation.policy_file import read_policy
from eaglectl.validation.rule import Severity
from eaglectl.validation.subject import Subject, TargetSide


def validate(
    source: str, *, target: str | None = None, engines: Sequence[str] = (), select: Sequence[str] = (), ignore: Sequence[str] = (),
    fail_on: Severity | Literal["never"] | None = None, policy: Policy | str | None = None, headers_only: bool = False, answers: Answers | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Judge one checkpoint by the rules. `engines` (those of the policy where none are given) add what their releases do with it.

    `policy`: one, or the file that holds one; None asks for nothing (only the command line looks for one by itself).
    `fail_on`: the least severity that fails; None: what the policy says, "error" where it says nothing.
    `told` hears how many bytes of how many are read, while the weights' numbers are looked at.
    A checkpoint that cannot be read is reported, not raised; Unreadable is for what does not exist, Usage for unknown rules and engines.
    """
    policy = read_policy(policy) if isinstance(policy, str) else policy or Policy()
    least = fail_on or policy.fail_on or "error"
    wanted = tuple(parse_engine(text) for text in (engines or policy.engines))
    subject = Subject(
        open_source(source),
        _target_side(target),
        wanted,
        answers or Answers(),
        headers_only=headers_only,
        policy=policy,
        told=told,
    )
    return judge(subject, under(policy, select, ignore), policy, None if least == "never" else least, source)


def check_options(
    *, target: str | None = None, engines: Sequence[str] = (), select: Sequence[str] = (), ignore: Sequence[str] = (),
    policy: Policy | None = None,
) -> None:  # fmt: skip
    """Raise what is wrong with options of `validate` whatever the checkpoint: an unknown engine or rule, a target that is not there."""
    open_target(target)
    for text in engines:
        parse_engine(text)
    under(policy or Policy(), select, ignore)


def _target_side(target: str | None) -> TargetSide:
    if target is None:
        return TargetSide(open_target(None))
    source = target_source(target)
    known = known_target(target, source)
    try:
        return TargetSide(known, source, read_config(source))
    except EaglectlError:
        return TargetSide(known, source)
