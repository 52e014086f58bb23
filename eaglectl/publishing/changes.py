"""What a commit changes in the drafter of a repository: the comparison of `diff`, by config and headers."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison


class Changes(Struct, frozen=True):
    """The drafter of the repository (A) and of the folder (B).

    `comparison` None: `reason` states why nothing was compared. `weights` are weight files that are new or
    changed; their values are not compared, as the repository's are not downloaded: `command`, a `diff`, does.
    """

    comparison: "Comparison | None"
    reason: str
    weights: tuple[str, ...]
    command: str
