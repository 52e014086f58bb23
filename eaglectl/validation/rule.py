"""What a rule is: an id, a name, a severity, the engine releases it concerns, and a function that yields what it found."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eaglectl.validation.subject import Subject

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
FAMILIES = {
    0: "files", 1: "config", 2: "weights", 3: "draft vocabulary", 4: "aux layers", 5: "norms", 6: "rope", 7: "target",
    8: "quantisation", 9: "release", 10: "serving: vLLM", 11: "serving: SGLang",
}  # fmt: skip


class CannotLook(Exception):
    """A rule has nothing to look at: no target was given, the weights may not be read, the checkpoint is not readable."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that a rule found. `where` is "config.json:KEY", "tensor:NAME", a file's name, or empty for the whole.

    `fix` overrides the rule's own; `engines` are the releases it concerns, as "vllm==0.32.0".
    """

    message: str
    where: str = ""
    fix: str = ""
    engines: tuple[str, ...] = ()


Check = Callable[["Subject"], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; its documentation is `sentence`, `why` and `fix`. `engines` is PEP 508 text, empty for all.

    `said_by` are rules that report the same defect whatever the engine: of two findings on one defect one is kept.
    """

    id: str
    name: str
    severity: Severity
    sentence: str
    why: str
    fix: str
    check: Check
    engines: str = ""
    said_by: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The family that the id's hundreds name."""
        return FAMILIES[int(self.id.removeprefix("EGL")) // 100]


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit with the rule it is of, at the severity that the policy gives it."""

    rule: Rule
    severity: Severity
    hit: Hit

    @property
    def fix(self) -> str:
        """What to do about it."""
        return self.hit.fix or self.rule.fix


def rule(id: str, name: str, severity: Severity, engines: str = "") -> Callable[[Check], Rule]:
    """Make a rule of a function. Its docstring: a sentence, a paragraph that says why, and a last one that begins with `Fix:`."""

    def make(check: Check) -> Rule:
        parts = [" ".join(part.split()) for part in (inspect.getdoc(check) or "").split("\n\n")]
        if len(parts) < 3 or not parts[-1].startswith("Fix: "):
            raise TypeError(f"{id}: the docstring needs a sentence, why, and Fix:")
        return Rule(
            id, name, severity, parts[0], " ".join(parts[1:-1]), parts[-1].removeprefix("Fix: "), check, engines
        )

    return make
