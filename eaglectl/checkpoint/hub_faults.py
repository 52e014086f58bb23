"""What the Hub's refusals mean and what to run next; only words of ours, as an answer may echo what it was sent."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from eaglectl.errors import Unreadable

LOGIN = "run `hf auth login`"
ACCOUNT = "`hf auth whoami` says whose token is used"


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of the Hub: `text` is what the user gave, `file` the file, if it was one."""

    text: str
    repo: str
    revision: str
    endpoint: str
    has_token: bool = False
    file: str = ""

    @property
    def host(self) -> str:
        """The Hub's address, without a name and password that HF_ENDPOINT may hold."""
        parts = urlsplit(self.endpoint)
        return f"{parts.hostname or parts.path}{f':{parts.port}' if parts.port else ''}"

    @property
    def page(self) -> str:
        """Where people read about the repository."""
        return f"{urlsplit(self.endpoint).scheme or 'https'}://{self.host}/{self.repo}"

    @property
    def what(self) -> str:
        """The file, or the repository."""
        return f"{self.file} of {self.repo}" if self.file else self.repo


def unreachable(asked: Asked, how: str) -> Unreadable:
    """No answer, or half of one."""
    return Unreadable(
        f"{asked.what}: the Hub at {asked.host} {how}; check the network and HF_ENDPOINT, or use --offline to read what"
        " was downloaded before"
    )


def refusal(asked: Asked, status: int, code: str = "", wait: float = 0.0) -> Unreadable:
    """An answer of `status` with the Hub's own error `code`; `wait` is how many seconds it asks to wait."""
    match (status, code):
        case (_, "GatedRepo"):
            about = _gated(asked)
        case (_, "RevisionNotFound"):
            about = f"{asked.repo} has no revision {asked.revision}; {asked.page}/commits/main lists what it has"
        case (_, "EntryNotFound"):
            about = f"{asked.repo} has no {asked.file} at {asked.revision}"
        case (401 | 404, _):
            about = _unknown(asked, status, code)
        case (403, _):
            about = f"the Hub forbids reading {asked.what} (403): it is disabled, or the token lacks the permission to read its contents; {ACCOUNT}"
        case (416, _):
            about = f"{asked.what} is shorter at the Hub than the Hub lists it (416); try again, or run `hf download {asked.repo}`"
        case (429, _):
            pause = f" for {wait:.0f} seconds" if wait else ""
            way = "wait" if asked.has_token else f"{LOGIN}, which raises the limit, or wait"
            about = f"the Hub has had too many requests from here (429) and did not answer for {asked.what}; {way}{pause} and try again"
        case _ if status >= 500:
            about = f"{asked.what}: the Hub at {asked.host} fails ({status}); try again later, or use --offline to read what was downloaded before"
        case _:
            about = f"{asked.what}: the Hub at {asked.host} answers {status}, which is no answer to a request for a file; check HF_ENDPOINT"
    return Unreadable(about)


def _gated(asked: Asked) -> str:
    then = f"then {LOGIN} with that account" if not asked.has_token else f"the token's account has no access; {ACCOUNT}"
    return f"{asked.repo} is gated: its list of files is public and the files are not; request access at {asked.page}, {then}"


def _unknown(asked: Asked, status: int, code: str) -> str:
    if status == 401 and asked.has_token and code != "RepoNotFound":
        return f"the Hub does not accept the token (401) and sends nothing of {asked.repo}; {LOGIN}, or unset HF_TOKEN to read as nobody"
    local = "" if asked.text.startswith("hf://") else f"{asked.text}: no such file or folder here, and "
    way = f"that the token may read it ({ACCOUNT})" if asked.has_token else f"and, if it is private, {LOGIN}"
    return f"{local}{asked.repo} is no repository on the Hub that can be seen from here; check its name, {way}"
