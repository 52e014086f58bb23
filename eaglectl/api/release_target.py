"""The target that a release is judged with: every one that the files name must fit the drafter."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.api.options import ValidateOptions
from eaglectl.api.targets import NONE_NAMED, TargetChoice, base_models, named_choices
from eaglectl.api.validating import judge_source
from eaglectl.checkpoint.hub_names import is_repo_name
from eaglectl.checkpoint.layout import CARD
from eaglectl.errors import RefusedError
from eaglectl.publishing.frozen import FrozenSource
from eaglectl.text import listed

# rules on width, tokens, and a target that is none
RULES = ("EGL701", "EGL702", "EGL706", "EGL708")
OTHER = "; --target takes another"


class ReleaseTarget(Struct, frozen=True):
    """A target in words for the plan; `place` is what --target would take, None where there is none.

    `gap` states for the card what was not compared; empty where nothing is left open.
    """

    how: str
    place: str | None = None
    gap: str = ""


def release_target(
    source: FrozenSource, folder: str, options: ValidateOptions, base_model: str | None = None
) -> ReleaseTarget:
    """The target that was given, or the first of those that the files name; only config.json files are read.

    `base_model` is the one that the card will name.

    Raises RefusedError for a named target that does not fit the drafter.
    """
    if options.target is not None:
        return ReleaseTarget(f"{options.target}, given by --target", options.target)
    others = {base_model: "--base-model"} if base_model else None
    choices = list(named_choices(source, may_fetch=True, others=others))
    seen = [choice for choice in choices if choice.place is not None]
    unseen = [choice for choice in choices if choice.place is None]
    for choice in seen:
        _check_fits(source, folder, choice, options)
    how = "; ".join([_origin(choice) for choice in seen[:1]] + [choice.missing for choice in unseen])
    if len(bases := base_models(source)) > 1:
        how = "; ".join(
            filter(
                None, (how, f"base_model in {CARD} names {len(bases)} models, and a drafter has one target")
            )
        )
    place = seen[0].place if seen else None
    return ReleaseTarget(how or NONE_NAMED, place, _gap(unseen, is_any=bool(seen)))


def _origin(choice: TargetChoice) -> str:
    """Which target this is, and which file names it."""
    return choice.how.removesuffix(OTHER)


def _check_fits(source: FrozenSource, folder: str, choice: TargetChoice, options: ValidateOptions) -> None:
    """Raise RefusedError for a target of other width or vocabulary, or that is a drafter."""
    policy = replace(options.read_policy(), required=frozenset())
    narrow = ValidateOptions(
        choice.place,
        select=RULES,
        policy=policy,
        headers_only=True,
        answers=options.answers,
        has_engines=False,
    )
    report = judge_source(source, folder, narrow)
    if errors := [finding for finding in report.findings if finding.severity == "error"]:
        shown = "; ".join(f"{error.rule.id} {error.rule.name}: {error.match.message}" for error in errors)
        raise RefusedError(
            f"{folder} must not be published: {shown}. The target is {_origin(choice)}: name"
            " the one that it was trained on there, or give it by --target",
            where=errors[0].match.where,
        )


def _gap(unseen: Sequence[TargetChoice], *, is_any: bool) -> str:
    """What the card says of targets that were not looked up: those that a reader can know by name."""
    if names := [str(choice.text) for choice in unseen if is_repo_name(str(choice.text))]:
        return (
            f"The config of {listed(names)} could not be looked up when this was published: width and"
            " vocabulary were not compared with it."
        )
    if is_any:
        return ""
    return (
        "No target could be looked up when this was published: width and vocabulary were compared with none."
    )
