"""Names of repositories on the Hub: org/name, org/name@revision, and hf:// before either."""

import re
from urllib.parse import unquote

SCHEME = "hf://"
REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
NAME = re.compile(rf"{REPO.pattern}(@\S+)?", re.ASCII)
# names from before there were organisations have no org/
OLD_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}(@\S+)?", re.ASCII)


def is_hub_name(text: str) -> bool:
    """Whether `text` can name a Hub repository: org/name, org/name@revision, or hf:// before either."""
    if text.startswith(SCHEME):
        return OLD_NAME.fullmatch(text.removeprefix(SCHEME)) is not None
    return NAME.fullmatch(text) is not None


def is_repo_name(text: str) -> bool:
    """Whether `text` is org/name, without a revision."""
    return REPO.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """Repository and revision of a name."""
    repo, _, revision = text.removeprefix(SCHEME).partition("@")
    return repo, (unquote(revision) if text.startswith(SCHEME) else revision) or None
