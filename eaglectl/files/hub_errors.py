"""Errors for what the Hub refuses, and what to run next.

No text of a server is repeated: a response may echo the token that it was sent.
"""

from urllib.parse import urlsplit

from msgspec import Struct

from eaglectl.errors import UnreadableError

LOGIN = "run `hf auth login`"
ACCOUNT = "`hf auth whoami` says whose token is used"


class HubRequest(Struct, frozen=True):
    """A request to the Hub: `text` is the SOURCE as given, `file` the requested file, if any."""

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
        """The address of the repository's page."""
        return f"{urlsplit(self.endpoint).scheme or 'https'}://{self.host}/{self.repo}"

    @property
    def not_here(self) -> str:
        """How a message on the repository of a SOURCE begins that may have been meant as a path."""
        return "" if self.text.startswith("hf://") else f"{self.text}: no such file or folder here, and "

    @property
    def subject(self) -> str:
        """The requested file, or the repository."""
        return f"{self.file} of {self.repo}" if self.file else self.repo


class NoAnswerError(UnreadableError):
    """The Hub gave no response, or a broken one."""


def unreachable(request: HubRequest, how: str) -> NoAnswerError:
    """The error for a request without a response, or with a broken one."""
    head = ("" if request.file else request.not_here) or f"{request.subject}: "
    return NoAnswerError(
        f"{head}the Hub at {request.host} {how}; check the network and HF_ENDPOINT, or use --offline to read"
        " what was downloaded before"
    )


def refusal(request: HubRequest, status: int, code: str = "", wait: float = 0.0) -> UnreadableError:
    """The error for a response of `status` and the Hub's error `code`; `wait`: seconds to wait."""
    repo, subject, host = request.repo, request.subject, request.host
    relief = "wait" if request.has_token else f"{LOGIN}, which raises the limit, or wait"
    pause = f"after the {wait:.0f} seconds that it asks for" if wait else "later"
    texts: dict[str | int, str] = {
        "GatedRepo": _gated(request),
        "RevisionNotFound": (
            f"{repo} has no revision {request.revision}; {request.page}/commits/main lists what it has"
        ),
        "EntryNotFound": f"{repo} has no {request.file} at {request.revision}",
        "xet": (
            f"{subject}: the transfer by Xet failed, which the Hub at {host} or the client chose; set"
            " HF_HUB_DISABLE_XET=1 to transfer by HTTP alone, and run the command again"
        ),
        401: _unknown(request, status, code),
        404: _unknown(request, status, code),
        403: (
            f"the Hub forbids reading {subject} (403): it is disabled, or the token lacks the permission to"
            f" read its contents; {ACCOUNT}"
        ),
        416: (
            f"{subject} is shorter at the Hub than the Hub lists it (416); try again, or run `hf download"
            f" {repo}`"
        ),
        429: (
            f"the Hub has had too many requests from here (429) and did not answer for {subject};"
            f" {relief}{f' for {wait:.0f} seconds' if wait else ''} and try again"
        ),
    }
    other = f"answers {status}, which is no answer to a request for a file; check HF_ENDPOINT"
    if status >= 500:
        other = f"fails ({status}); try again {pause}, or use --offline to read what was downloaded before"
    return UnreadableError(texts.get(code) or texts.get(status) or f"{subject}: the Hub at {host} {other}")


def _gated(request: HubRequest) -> str:
    advice = f"then {LOGIN} with that account"
    if request.has_token:
        advice = f"the token's account has no access; {ACCOUNT}"
    return (
        f"{request.repo} is gated: its list of files is public and the files are not; request access at"
        f" {request.page}, {advice}"
    )


def _unknown(request: HubRequest, status: int, code: str) -> str:
    if status == 401 and request.has_token and code != "RepoNotFound":
        return (
            f"the Hub does not accept the token (401) and sends nothing of {request.repo}; {LOGIN}, or unset"
            " HF_TOKEN to read as nobody"
        )
    advice = (
        f"that the token may read it ({ACCOUNT})" if request.has_token else f"and, if it is private, {LOGIN}"
    )
    return (
        f"{request.not_here}{request.repo} is no repository on the Hub that can be seen from here; check its"
        f" name, {advice}"
    )
