"""The options of `upload` and `verify`, a field each (see eaglectl/options.py)."""

import re
from typing import Annotated

from msgspec import field

from eaglectl.engines.registry import ENGINE, EngineRequest
from eaglectl.errors import UsageError
from eaglectl.files.source import is_repo_name
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy
from eaglectl.options import NO_ENGINES, Option, Options
from eaglectl.target.choice import TARGET, TargetChoice

LICENCE = re.compile(r"[a-z][a-z0-9.+-]{0,60}")
# groups of --help
COMMIT, ON_CARD, REQUIRED = "The commit", "The card", "Requirements"


class Destination(Options, frozen=True):
    """Where to publish: org/name on the Hub, and how.

    `is_pull` None: a pull request, or a commit where the call creates the repository. `is_private` None: a
    new repository is private. `tag` is set on the commit once it is verified.
    """

    repo: str
    revision: Annotated[str, Option("The branch to commit to.", value="BRANCH", group=COMMIT)] = "main"
    is_pull: Annotated[
        bool | None,
        Option(
            "Open a pull request (default for an existing repository), or commit to the branch directly.",
            "--pr/--direct",
            group=COMMIT,
        ),
    ] = None
    is_private: Annotated[
        bool | None,
        Option("Visibility of a new repository; private by default.", "--private/--public", group=COMMIT),
    ] = None
    tag: Annotated[
        str | None,
        Option(
            "Tag the commit after it is verified. An existing tag is never moved.", value="TAG", group=COMMIT
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError for names that the Hub does not allow."""
        if not is_repo_name(self.repo):
            raise UsageError(
                f"{self.repo}: org/name was expected, without -- or .. in it and .git, - or . at an end; pass"
                " a branch with --revision",
                options=("--revision",),
            )
        _check_ref("--revision", "branch", self.revision)
        if self.tag is not None:
            _check_ref("--tag", "tag", self.tag)


def _check_ref(option: str, kind: str, name: str) -> None:
    is_text = name.isprintable() and bool(name.strip())
    if not is_text or set(name) & set(" ~^:?*[\\") or ".." in name or name[0] in "-/":
        raise UsageError(f"{option} {name}: the name of a {kind} was expected, like v1.0", options=(option,))


class CardAnswers(Options, frozen=True):
    """The user's statements on a card: the licence, the target on the Hub, and a file on the training."""

    licence: Annotated[
        str | None,
        Option("The license on the card, like apache-2.0.", "--license", value="ID", group=ON_CARD),
    ] = None
    base_model: Annotated[
        str | None,
        Option(
            "The Hub repository of the target that the drafter was trained for.",
            value="ORG/NAME",
            group=ON_CARD,
        ),
    ] = None
    training: Annotated[
        str | None,
        Option(
            "Training details for the card: JSON that matches schemas/training.schema.json.",
            value="FILE",
            group=ON_CARD,
            complete="files",
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError for a licence or a base model that the Hub could not read."""
        if self.licence is not None and not LICENCE.fullmatch(self.licence):
            raise UsageError(
                f"--license {self.licence}: an identifier was expected, like apache-2.0",
                options=("--license",),
            )
        if self.base_model is not None and not is_repo_name(self.base_model):
            raise UsageError(
                f"--base-model {self.base_model}: org/name on the Hub was expected", options=("--base-model",)
            )


class UploadOptions(Options, frozen=True):
    """Options of `upload`.

    `policy` is a policy or its file. Without `has_engines`, only named engines are judged.
    """

    policy: Annotated[
        Policy | str | None,
        Option("The release policy. Default: the nearest eaglectl.toml.", value="FILE", complete="files"),
    ] = None
    dry_run: Annotated[bool, Option("Print the plan and upload nothing. Needs no token.")] = False
    target: Annotated[TargetChoice, TARGET] = field(default_factory=TargetChoice)
    engines: Annotated[tuple[EngineRequest, ...], ENGINE] = ()
    has_engines: Annotated[bool, NO_ENGINES] = True
    message: Annotated[
        str | None,
        Option(
            "The commit message; the first line is the title.",
            "--message, -m",
            value="TEXT",
            group=COMMIT,
        ),
    ] = None
    smoke: Annotated[
        str | None,
        Option(
            "The output of `eaglectl smoke --json`, for the card.",
            value="FILE",
            group=ON_CARD,
            complete="files",
        ),
    ] = None
    answers: Answers = field(default_factory=Answers)
    card: CardAnswers = field(default_factory=CardAnswers)


class VerifyOptions(Options, frozen=True):
    """Options of `verify`.

    `policy` is a policy or its file; None: only the options set requirements.
    """

    needs_record: Annotated[
        bool,
        Option("Fail if the download has no file list in eaglectl.json.", "--require-record", group=REQUIRED),
    ] = False
    policy: Annotated[
        Policy | str | None,
        Option(
            "A file whose [verify] section lists requirements. Default: the nearest eaglectl.toml outside"
            " DIR.",
            value="FILE",
            group=REQUIRED,
            complete="files",
        ),
    ] = None
    against: Annotated[
        str | None,
        Option("Compare DIR with the files of this Hub repository: org/name[@revision].", value="REPO"),
    ] = None
