"""All cases: a good drafter and an edit of it, by name. Those that are listed, and those that are drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.engine.agreement.bases import BASES, Files, drafter
from tests.engine.agreement.drawn import drawn
from tests.engine.agreement.edits import Edit
from tests.engine.agreement.listed import LISTED


@dataclass(frozen=True, slots=True)
class Case:
    """A changed drafter, the kind of its target, whether it is loaded only, and the engine's options."""

    base: str
    make: Callable[[], Files]
    edit: Edit
    kind: str = "llama"
    is_loaded_only: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def files(self) -> Files:
        """Its files."""
        files = self.make()
        self.edit(files)
        return files


def unchanged(files: Files) -> None:
    """The good drafter itself."""


def _every() -> dict[str, Case]:
    def case(base: str, edit: Edit) -> Case:
        return Case(base, partial(drafter, base), edit, BASES[base].kind)

    found = {f"{base}/none": case(base, unchanged) for base in BASES}
    for base, edits in LISTED.items():
        found |= {f"{base}/{name}": case(base, edit) for name, edit in edits.items()}
    seen = {known.files().digest() for known in found.values()}
    for base in BASES:
        for name, edit in drawn(base).items():
            if (digest := case(base, edit).files().digest()) not in seen:
                found[f"{base}/{name}"] = case(base, edit)
                seen.add(digest)
    return found


CASES = _every()
