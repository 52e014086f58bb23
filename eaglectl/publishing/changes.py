"""What a commit changes in the drafter of a repository: the comparison of `diff`, by config and headers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Changes:
    """The drafter of the repository (A) and of the folder (B).

    `comparison` None: `reason` states why nothing was compared. `weights` are weight files that are new or
    changed; their values are not compared, as the repository's are not downloaded: `command`, a `diff`, does.
    """

    comparison: "Comparison | None"
    reason: str
    weights: tuple[str, ...]
    command: str
