"""All cases: a good drafter and an edit of it, by name. Those that are listed, and those that are drawn."""

from dataclasses import dataclass

from tests.engine.agreement.bases import BASES, Files, drafter
from tests.engine.agreement.drawn import drawn
from tests.engine.agreement.edits import Edit
from tests.engine.agreement.listed import LISTED


@dataclass(frozen=True, slots=True)
class Case:
    """A mutated drafter."""

    base: str
    edit: Edit

    def files(self) -> Files:
        """Its files."""
        files = drafter(self.base)
        self.edit(files)
        return files


def _every() -> dict[str, Case]:
    found = {f"{base}/none": Case(base, lambda files: None) for base in BASES}
    for base, edits in LISTED.items():
        found |= {f"{base}/{name}": Case(base, edit) for name, edit in edits.items()}
    seen = {case.files().digest() for case in found.values()}
    for base in BASES:
        for name, edit in drawn(base).items():
            case = Case(base, edit)
            if (digest := case.files().digest()) not in seen:
                found[f"{base}/{name}"] = case
                seen.add(digest)
    return found


CASES = _every()
