"""`verify`: compare a download with what was published."""

import os
from typing import Any

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.hub import HubSource, open_hub
from eaglectl.files.opening import hub_name, open_local_folder
from eaglectl.judge.policy_file import read_policy
from eaglectl.judge.rule import Policy
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.progress import OnProgress
from eaglectl.publish.request import VerifyOptions
from eaglectl.publish.verification import Verification, verify_folder, verify_repository


@with_keywords
def verify(
    folder: StrPath,
    options: VerifyOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Verification:
    """Compare a folder, or a repository on the Hub, with its SHA256SUMS and eaglectl.json.

    Of a repository (org/name[@revision]) nothing is downloaded that the Hub lists the SHA-256 of. Every file
    that is not listed is a difference; a model.sig is not looked into. Raises
    UnreadableError where there is nothing to compare with, UsageError for options that contradict each other.
    """
    folder, options = os.fspath(folder), options or VerifyOptions()
    policy = read_policy(options.policy) if isinstance(options.policy, str) else options.policy or Policy()
    needs_record = options.needs_record or policy.verify.require_record
    is_repository = hub_name(folder) is not None and not os.path.lexists(folder)
    if is_repository and options.against:
        raise UsageError(
            f"--against compares a folder with the Hub, and {folder} is on the Hub: leave it out"
        )
    if is_repository:
        return verify_repository(_listing(folder), folder, needs_record=needs_record)
    source = open_local_folder(folder)
    against = None if options.against is None else _listing(options.against)
    return verify_folder(source, folder, needs_record=needs_record, against=against, on_progress=on_progress)


def _listing(text: str) -> HubSource:
    """The listing of a repository. Raises UnreadableError, and UsageError for no name of one."""
    if hub_name(text) is None:
        raise UsageError(f"--against {text}: a repository was expected, like org/name or org/name@revision")
    source = open_hub(text)
    if not isinstance(source, HubSource):
        raise UnreadableError(f"{text}: the listing comes from the network, and this call is offline")
    return source
