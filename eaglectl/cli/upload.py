"""`eaglectl upload`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.cli.options import (
    EXIT_CODES,
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Engines,
    Json,
    NoEngines,
    Semantics,
    Target,
    print_json,
)
from eaglectl.errors import RefusedError, UsageError
from eaglectl.progress import Progress
from eaglectl.terminal import OutputSettings, ProgressBar, confirm, say, secret_prompt
from eaglectl.verdicts import CheckVerdict, UploadOutcome

if TYPE_CHECKING:
    from eaglectl.publishing.plan import UploadPlan
    from eaglectl.publishing.signing import SigningKey
    from eaglectl.validation.policy import Policy

Pull = Annotated[
    bool | None,
    typer.Option(
        "--pr/--direct",
        help="A pull request (the default, but to a new repository), or a commit on the branch.",
    ),
]
Private = Annotated[
    bool | None, typer.Option("--private/--public", help="What a new repository is; private by default.")
]


def upload_command(
    context: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="The checkpoint's folder; it is not written to.")
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="org/name on the Hub.")],
    is_pull: Pull = None,
    revision: Annotated[str, typer.Option("--revision", help="The branch.")] = "main",
    tag: Annotated[
        str | None, typer.Option("--tag", help="Tag the commit once it is verified; a tag is never moved.")
    ] = None,
    is_private: Private = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="FILE", help="The release policy; by default the nearest eaglectl.toml."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and send nothing; needs no token.")
    ] = False,
    target: Target = None,
    engine: Engines = None,
    no_engines: NoEngines = False,
    message: Annotated[
        str | None,
        typer.Option(
            "--message", "-m", metavar="TEXT", help="The commit's message; its first line is the title."
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Publish without a question, which is only asked on a terminal."),
    ] = False,
    smoke: Annotated[
        str | None,
        typer.Option("--smoke", metavar="FILE", help="What `eaglectl smoke --json` measured, for the card."),
    ] = None,
    eval_results: Annotated[
        bool,
        typer.Option(
            "--eval-results",
            help="Put what smoke measured into the card's front matter, as the Hub reads results"
            " (model-index).",
        ),
    ] = False,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign",
            metavar="KEY",
            help="Add model.sig and provenance: a private key's file, sigstore, or a pkcs11: URI. A password"
            " or PIN is read from EAGLECTL_KEY_PASSWORD.",
        ),
    ] = None,
    signing_certificate: Annotated[
        str | None,
        typer.Option(
            "--signing-certificate",
            metavar="FILE",
            help="The certificate of --sign's key: whose it is.",
        ),
    ] = None,
    certificate_chain: Annotated[
        str | None,
        typer.Option(
            "--certificate-chain", metavar="FILE", help="The certificates between that one and its root."
        ),
    ] = None,
    ml_bom: Annotated[
        bool, typer.Option("--ml-bom", help="Add ml-bom.cdx.json: a CycloneDX ML-BOM of the drafter.")
    ] = False,
    licence: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="The licence on the card, like apache-2.0."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model", metavar="ORG/NAME", help="The target on the Hub that the drafter was trained for."
        ),
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            "--training",
            metavar="FILE",
            help="How it was trained, for the card: JSON of schemas/training.schema.json.",
        ),
    ] = None,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    json_: Json = False,
) -> None:
    """Publish a drafter: hash its files, judge those bytes, show the plan, commit them, verify what landed.

    The plan shows how the drafter differs from the repository's. The token is the Hub client's own.
    """
    from eaglectl import api
    from eaglectl.reports.json.upload import upload_document
    from eaglectl.reports.terminal.upload import print_plan, print_upload

    settings: OutputSettings = context.obj
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)

    def show_plan(plan: "UploadPlan") -> None:
        is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        is_asked = is_terminal and plan.is_needed and not (dry_run or yes or json_)
        if not json_ and (is_asked or dry_run or not settings.quiet):
            settings.show(lambda console: print_plan(console, plan))
        if is_asked:
            bar.pause()
            if not confirm(f"publish this to {plan.repo}?"):
                raise RefusedError("nothing was sent: the plan was not confirmed; --yes asks no question")

    with ProgressBar(settings, is_on=not settings.quiet) as bar:

        def show_progress(progress: Progress) -> None:
            if progress.unit:
                bar(progress)
            elif not settings.quiet:
                say(progress.stage, sys.stderr)

        done = api.upload(
            folder,
            api.Destination(repo, revision, is_pull, is_private, tag),
            api.UploadOptions(
                policy=_policy(policy, folder),
                engines=engine or (),
                has_engines=not no_engines,
                target=target,
                smoke=smoke,
                has_results=eval_results,
                signer=_signing_key(sign, signing_certificate, certificate_chain),
                has_bom=ml_bom,
                message=message,
                dry_run=dry_run,
                answers=answers,
                card=api.CardAnswers(licence, base_model, training),
            ),
            on_plan=show_plan,
            on_progress=show_progress,
        )
    if json_:
        print_json(upload_document(done))
    else:
        settings.show(lambda console: print_upload(console, done))
    if done.outcome == UploadOutcome.MISMATCH:
        raise typer.Exit(EXIT_CODES[CheckVerdict.FAIL])


def _policy(path: str | None, folder: str) -> "Policy":
    """The policy of a release; a file that nobody named is told, also where the plan is not shown."""
    from eaglectl import api

    policy = api.read_policy(path, judged=[folder])
    if path is None and policy != api.Policy():
        say(f"{policy.origin} gives the policy", sys.stderr)
    return policy


def _signing_key(sign: str | None, certificate: str | None, chain: str | None) -> "SigningKey | None":
    """What signs, if anything. Raises UsageError for a certificate without a key."""
    from eaglectl import api

    if sign is not None:
        return api.SigningKey.read(sign, secret_prompt(), certificate=certificate, chain=chain)
    if certificate is not None or chain is not None:
        raise UsageError("--signing-certificate and --certificate-chain go with --sign KEY, which signs")
    return None
