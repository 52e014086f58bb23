"""`eaglectl upload`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from eaglectl.commands.arguments import Json, exit_by, offered, policy_of, print_result, show
from eaglectl.errors import RefusedError
from eaglectl.options import Option, Options
from eaglectl.progress import Progress
from eaglectl.publish.request import COMMIT, Destination, UploadOptions
from eaglectl.terminal import OutputSettings, ProgressBar, confirm, say
from eaglectl.verdicts import CheckVerdict, UploadOutcome

if TYPE_CHECKING:
    from eaglectl.publish.upload import UploadPlan

Folder = Annotated[
    str,
    typer.Argument(metavar="DIR", help="The checkpoint folder; it is not changed.", autocompletion=offered),
]
Repository = Annotated[str, typer.Argument(metavar="REPO", help="The Hub repository: org/name.")]


class AskOptions(Options, frozen=True):
    """What is asked before anything is sent."""

    yes: Annotated[
        bool,
        Option("Do not ask for confirmation, which is only done on a terminal.", "--yes, -y", group=COMMIT),
    ] = False


def upload_command(
    context: typer.Context,
    folder: Folder,
    repo: Repository,
    to: Destination,
    options: UploadOptions,
    asking: AskOptions,
    json_: Json = False,
) -> None:
    """Publish a drafter: hash and validate its files, show the plan, commit them, and verify the commit.

    Uses the token of the Hub client. With -v, also shows the card.
    """
    from eaglectl.commands.upload.run import card_outline, upload, upload_outline, upload_plan_outline

    settings: OutputSettings = context.obj
    places = [folder, *filter(None, [options.target.place])]
    options = replace(options, policy=policy_of(options.policy, places, is_told=True))
    has_question = not (options.dry_run or asking.yes or json_)
    # without a question what became of the plan comes before it
    plans: list[UploadPlan] = []
    with ProgressBar(settings, is_on=not settings.quiet) as bar:

        def show_plan(plan: "UploadPlan") -> None:
            is_asked = has_question and plan.is_needed and sys.stdin.isatty() and sys.stderr.isatty()
            if not (is_asked or options.dry_run):
                plans.append(plan)
                return
            show(settings, upload_plan_outline(plan))
            if settings.verbose:
                show(settings, card_outline(plan))
            if is_asked:
                bar.stop()
                if not confirm(f"publish this to {plan.repo}?"):
                    raise RefusedError(
                        "nothing was sent: the plan was not confirmed; --yes asks no question",
                        options=("--yes",),
                    )

        def show_progress(progress: Progress) -> None:
            if progress.unit:
                bar(progress)
            elif not settings.quiet:
                say(progress.stage, sys.stderr)

        done = upload(folder, to, options, on_plan=None if json_ else show_plan, on_progress=show_progress)
    print_result(settings, done, upload_outline(done, () if settings.quiet else plans), is_json=json_)
    if done.outcome == UploadOutcome.MISMATCH:
        exit_by(CheckVerdict.FAIL)
