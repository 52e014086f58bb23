"""The smallest change with which every requested engine release serves a checkpoint as it was trained."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from eaglectl.engines.catalogue import ENGINES
from eaglectl.engines.engine import Engine
from eaglectl.engines.facts import AppliedFact, Fact
from eaglectl.engines.releases import ranges
from eaglectl.engines.view import View
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import default_format
from eaglectl.formats.commands import WITH_TARGET, command
from eaglectl.validation.rule import CannotLook
from eaglectl.validation.rules.serving import edits, spelled
from eaglectl.validation.subject import Subject
from eaglectl.verdicts import ServedAs

# of a layout for which no plan was made yet
UNTRIED = ("untried",)
Defects = Mapping[str, Sequence[AppliedFact]]


@dataclass(frozen=True)
class Conversion:
    """The source as given, and what was given with it."""

    source: str
    subject: Subject

    def command(self, engine: Engine, *, needs_target: bool) -> str:
        """The `convert` with which an engine serves the checkpoint, and the others requested too if any can.

        It says so where a target is needed and not known.
        """
        own, common = engine.name, default_format().name
        choices = (own,) if len(self.engines) == 1 else (common, own)
        layout = next((layout for layout in choices if self.engines_lost(layout) == ()), own)
        target, answers = self.subject.target.text, self.subject.answers
        text = f"`{command('convert', self.source, '--for', layout, target=target, answers=answers)}`"
        if needs_target and target is None:
            text += WITH_TARGET
        lost = self.engines_lost(layout) or ()
        titles = " and ".join(ENGINES[name].title for name in lost if name != engine.name)
        return f"{text} (which {titles} then does not serve as trained)" if titles else text

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines requested."""
        return tuple(dict.fromkeys(request.engine for request in self.subject.requests))

    def engines_lost(self, candidate: str) -> tuple[str, ...] | None:
        """The requested engines that have no release which runs the output in a layout as trained.

        None where no plan can be made before a question is answered.
        """
        if (lost := self._lost.get(candidate, UNTRIED)) == UNTRIED:
            lost = self._lost[candidate] = self._without(candidate)
        return lost

    @cached_property
    def _lost(self) -> dict[str, tuple[str, ...] | None]:
        return {}

    def _without(self, candidate: str) -> tuple[str, ...] | None:
        from eaglectl.conversion.planning import make_plan
        from eaglectl.conversion.request import ConversionRequest
        from eaglectl.conversion.serving import output_verdicts

        request = ConversionRequest(candidate)
        try:
            plan = make_plan(self.subject.checkpoint, self.subject.drafter, request, self.subject.answers)
        except (EaglectlError, CannotLook):
            return None
        outcomes = {
            name: {verdict.outcome for verdict in output_verdicts(plan, name)} for name in self.engines
        }
        return tuple(name for name, known in outcomes.items() if known and ServedAs.AS_TRAINED not in known)


def smallest_changes(subject: Subject, rules: Iterable[str], source: str) -> tuple[str, ...]:
    """A sentence for each engine that has a release which does not serve it; only facts of `rules` count."""
    chosen = set(rules)
    try:
        facts = subject.applied_facts
    except CannotLook:
        return ()
    changes: dict[str, list[str]] = {}
    conversion = Conversion(source, subject)
    for name in dict.fromkeys(engine for engine, _ in facts):
        defects = {
            release: [fact for fact in holding if _is_defect(fact) and fact.fact.rule in chosen]
            for (engine, release), holding in facts.items()
            if engine == name
        }
        steps = list(_steps(ENGINES[name], subject.view(name), defects, conversion))
        if steps:
            changes.setdefault("; ".join(steps), []).append(ENGINES[name].title)
    return tuple(f"{' and '.join(titles)}: {steps}" for steps, titles in changes.items())


def _is_defect(applied_fact: AppliedFact) -> bool:
    return applied_fact.fact.outcome != ServedAs.UNKNOWN


def _steps(engine: Engine, checkpoint: View, defects: Defects, conversion: Conversion) -> Iterator[str]:
    first = _first_release(engine, checkpoint)
    hopeless = _hopeless(engine, defects, first)
    rest = {release: facts for release, facts in defects.items() if release not in hopeless}
    yield from _change(engine, checkpoint, rest, conversion)
    if not hopeless:
        return
    reasons = ", ".join(dict.fromkeys(fact.text for fact in hopeless.values()))
    because = f"({ranges(hopeless, engine.releases)} {reasons})"
    if first is None:
        yield f"no known release serves it whatever is written {because}"
    else:
        earlier = "since nothing written makes earlier ones serve it"
        yield f"ask for {engine.name}>={first}, {earlier} {because}"


def _hopeless(engine: Engine, defects: Defects, first: str | None) -> Mapping[str, AppliedFact]:
    """The releases that cannot serve the drafter whatever is written, with the fact that prevents it."""
    hopeless = {
        release: fact for release, facts in defects.items() for fact in facts if fact.fact.remedy == "upgrade"
    }
    if not hopeless:
        return hopeless
    early = engine.releases[: engine.releases.index(first)] if first else engine.releases
    # whatever a final fact hides of an early release, the release can be no better
    hidden = {
        release: facts[0]
        for release, facts in defects.items()
        if release in early and facts and facts[0].fact.is_final
    }
    return hidden | hopeless


def _change(engine: Engine, checkpoint: View, defects: Defects, conversion: Conversion) -> Iterator[str]:
    """What to change in the checkpoint for those releases that can serve it."""
    facts = {fact.fact.id: fact.fact for applied_facts in defects.values() for fact in applied_facts}
    if not facts:
        return
    written = _all_edits(facts.values(), checkpoint)
    if written and _serves(engine, _with(checkpoint, written), defects):
        yield f"write {spelled(written)} into config.json"
        return
    yield from dict.fromkeys(fact.fix.rstrip(".") for fact in facts.values() if fact.remedy == "restore")
    if any(fact.remedy != "restore" for fact in facts.values()):
        yield conversion.command(engine, needs_target=_needs_target(facts.values(), checkpoint))


def _all_edits(facts: Iterable[Fact], checkpoint: View) -> Mapping[str, Any]:
    """The edits of all facts together; none where one of them takes more than edits."""
    written: dict[str, Any] = {}
    for fact in facts:
        keys = edits(fact, checkpoint)
        if not keys:
            return {}
        written |= keys
    return written


def _needs_target(facts: Iterable[Fact], checkpoint: View) -> bool:
    return checkpoint.drafter.target.depth is None and any(fact.id == "aux-layers" for fact in facts)


def _with(checkpoint: View, written: Mapping[str, Any]) -> View:
    config, flat = {**checkpoint.config, **written}, {**checkpoint.flat, **written}
    return replace(checkpoint, config=config, flat=flat)


def _serves(engine: Engine, checkpoint: View, releases: Iterable[str]) -> bool:
    applied_facts = (fact for release in releases for fact in engine.applied(checkpoint, release))
    return not any(_is_defect(fact) for fact in applied_facts)


def _first_release(engine: Engine, checkpoint: View) -> str | None:
    """The first release from which on every known one has what the drafter needs."""
    first = None
    for release in reversed(engine.releases):
        applied_facts = engine.applied(checkpoint, release)
        if any(_is_defect(fact) and fact.fact.remedy == "upgrade" for fact in applied_facts):
            break
        first = release
    return first
