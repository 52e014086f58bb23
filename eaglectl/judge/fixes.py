"""The smallest change with which every requested engine release serves a checkpoint as it was trained."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl import shell
from eaglectl.conversion.request import ConversionRequest, parse_reading
from eaglectl.engines.behaviour import AppliedFact
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES, every_release, parse_engine
from eaglectl.engines.releases import ranges
from eaglectl.engines.view import View
from eaglectl.errors import EaglectlError, OptionNeededError, RefusedError, UnreadableError, UsageError
from eaglectl.formats.catalogue import default_format
from eaglectl.formats.commands import PLAIN, WITH_TARGET, command
from eaglectl.judge.outputs import judge_plan, unserved
from eaglectl.judge.rule import CannotLook
from eaglectl.judge.rules.serving import edits, spelled
from eaglectl.judge.subject import Subject
from eaglectl.text import MOST, listed
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.conversion.plan import ConversionPlan

# a whole conversion in a fix, and where the parts of a fix end
OFFER = re.compile(r"`eaglectl convert SOURCE([^`]*)`")
PART = re.compile(r"; |, or (?=[a-z])")
# what of a request these options of a conversion set, given once
OPTIONS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "--for": lambda value: {"layout": value},
    "--drop": lambda value: {"drop": (value,)},
    "--rope-style": lambda value: {"rope_style": value},
    "--fix-reading": lambda value: {"fixes": (parse_reading(value),)},
    "--target": lambda value: {},
}
Defects = Mapping[str, Sequence[AppliedFact]]


class Advice(Struct, frozen=True):
    """What to run, for the source as it was given and what was given with it.

    `plans` has the conversions that were planned, by their request, or why none can be made.
    """

    source: str
    subject: Subject
    plans: "dict[str, ConversionPlan | EaglectlError]" = field(default_factory=dict)

    def steps(self, engine: Engine, releases: Iterable[str], *, needs_target: bool) -> Iterator[str]:
        """The `convert` with which these releases serve the checkpoint, and the other engines too if any can.

        What keeps the conversion from it, or releases that do not serve its output, are a step too.
        """
        # the layout that loses none of the requested engines, else the engine's own
        common, names = default_format().name, {request.engine for request in self.subject.requests}
        choices = (engine.name,) if len(names) == 1 else (common, engine.name)
        layout = next((name for name in choices if self.engines_lost(name) == ()), engine.name)
        line = self._command(layout, needs_target=needs_target)
        match self.plan(ConversionRequest(layout, drop=self._dropped)):
            case RefusedError() as refusal:
                yield f"no layout makes {engine.title} serve it: {refusal}"
            case UsageError() as question:
                yield f"{line} with an answer: {question}"
            case EaglectlError():
                yield line
            case plan:
                yield from self._served(plan, engine, releases, line)

    def _served(
        self, plan: "ConversionPlan", engine: Engine, releases: Iterable[str], line: str
    ) -> Iterator[str]:
        """The step `line`, if some of these releases serve the output of its plan, and what is left."""
        verdicts = judge_plan(plan, every_release(engine.name))
        wrong = {each.release: each.reasons[0] for each in verdicts if each.outcome.is_known_wrong}
        if len(wrong) < len(verdicts) and not set(releases) <= set(wrong):
            lost = [name for name in self.engines_lost(plan.layout) or () if name != engine.name]
            titles = " and ".join(ENGINES[name].title for name in lost)
            yield f"{line} (which {titles} then does not serve as trained)" if titles else line
        if concerned := {release: wrong[release] for release in wrong if release in releases}:
            first = _first_from(engine, lambda release: release not in wrong)
            yield _later_release(engine, first, concerned)

    def possible(self, fix: str) -> str:
        """A fix, without conversions that are refused: why they are in their place."""
        parts = {part: self._refusal(part) for part in PART.split(fix.rstrip("."))}
        if not any(parts.values()):
            return fix
        kept = [part for part, refusal in parts.items() if not refusal]
        return f"{'; '.join(dict.fromkeys([*kept, *filter(None, parts.values())]))}."

    def _refusal(self, part: str) -> str:
        """Why the conversion that a part of a fix offers is refused; "" where none is."""
        offer = OFFER.search(part)
        request = _request(offer[1]) if offer else None
        if request is None:
            return ""
        match self.plan(request):
            case OptionNeededError():
                return ""
            case RefusedError() | UnreadableError() as refusal:
                return str(refusal)
            case EaglectlError():
                return ""
            case plan:
                return "; ".join(engine.text for engine in unserved(plan, request.engines, request.layout))

    def _command(self, layout: str, *, needs_target: bool) -> str:
        target, answers = self.subject.target.text, self.subject.answers
        drops = [word for name in self._dropped for word in ("--drop", name)]
        line = command("convert", self.source, "--for", layout, *drops, target=target, answers=answers)
        text = f"`{line}`{WITH_TARGET}" if needs_target and target is None else f"`{line}`"
        return f"{text}, if nothing in training used {listed(self._dropped)}" if drops else text

    @property
    def _dropped(self) -> tuple[str, ...]:
        """The tensors that no drafter has, which a conversion leaves out only if it is told to."""
        unknown = self.subject.drafter.unknown
        return unknown if len(unknown) <= MOST and all(map(PLAIN.fullmatch, unknown)) else ()

    def engines_lost(self, layout: str) -> tuple[str, ...] | None:
        """The requested engines that have no release which runs the output in a layout as trained.

        None where no plan can be made.
        """
        plan = self.plan(ConversionRequest(layout, drop=self._dropped))
        if isinstance(plan, Exception):
            return None
        names = dict.fromkeys(request.engine for request in self.subject.requests)
        verdicts = {name: judge_plan(plan, parse_engine(name)) for name in names}
        return tuple(
            name
            for name, known in verdicts.items()
            if known and not any(verdict.outcome.is_served for verdict in known)
        )

    def plan(self, request: ConversionRequest) -> "ConversionPlan | EaglectlError":
        """The plan that fulfils a request, or why none can be made."""
        from eaglectl.conversion.planning import make_plan

        subject, key = self.subject, repr(request)
        if subject.read_error is not None:
            return subject.read_error
        if key not in self.plans:
            try:
                self.plans[key] = make_plan(subject.checkpoint, subject.drafter, request, subject.answers)
            except EaglectlError as error:
                self.plans[key] = error
        return self.plans[key]


def _request(options: str) -> ConversionRequest | None:
    """The request of a conversion's options; None where they answer questions too."""
    try:
        words = shell.split(options.strip()) if options else []
    except ValueError:  # text of a file
        return None
    settings: dict[str, Any] = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name not in OPTIONS:
            return None
        settings |= OPTIONS[name](value)
    return ConversionRequest(**settings)


def _first_from(engine: Engine, is_fit: Callable[[str], bool]) -> str | None:
    """The first release from which on every known one is fit; None where the newest is not."""
    fit = list(takewhile(is_fit, reversed(engine.releases)))
    return fit[-1] if fit else None


def _later_release(engine: Engine, first: str | None, unserved: Mapping[str, str]) -> str:
    """What is left where releases serve it in no way, with their reasons."""
    because = f"({ranges(unserved, engine.releases)} {', '.join(dict.fromkeys(unserved.values()))})"
    if first is None:
        return f"no known release serves it whatever is written {because}"
    earlier = "since nothing written makes earlier ones serve it"
    return f"ask for {engine.name}>={first}, {earlier} {because}"


def smallest_changes(advice: Advice, rules: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each engine that has a release which does not serve it; only facts of `rules` count."""
    chosen, subject = set(rules), advice.subject
    try:
        facts = subject.applied_facts
    except CannotLook:
        return ()
    changes: dict[str, list[str]] = {}
    for name in dict.fromkeys(engine for engine, _ in facts):
        defects = {
            release: [fact for fact in holding if _is_defect(fact) and fact.fact.rule in chosen]
            for (engine, release), holding in facts.items()
            if engine == name
        }
        steps = list(_steps(ENGINES[name], subject.view(name), defects, advice))
        if steps:
            changes.setdefault("; ".join(steps), []).append(ENGINES[name].title)
    return tuple(f"{' and '.join(titles)}: {steps}" for steps, titles in changes.items())


def _is_defect(applied_fact: AppliedFact) -> bool:
    return applied_fact.fact.outcome != ServedAs.UNKNOWN


def _needs_upgrade(fact: AppliedFact) -> bool:
    return _is_defect(fact) and fact.fact.remedy == "upgrade"


def _steps(engine: Engine, checkpoint: View, defects: Defects, advice: Advice) -> Iterator[str]:
    """What to change for those releases that can serve it, and which to leave."""
    first = _first_from(
        engine, lambda release: not any(map(_needs_upgrade, engine.applied(checkpoint, release)))
    )
    hopeless = {release: fact for release, facts in defects.items() for fact in facts if _needs_upgrade(fact)}
    if hopeless:
        early = engine.releases[: engine.releases.index(first)] if first else engine.releases
        # whatever a final fact hides of an early release, the release can be no better
        hidden = {
            release: facts[0]
            for release, facts in defects.items()
            if release in early and facts and facts[0].fact.is_final
        }
        hopeless = hidden | hopeless
    rest = {release: facts for release, facts in defects.items() if release not in hopeless}
    yield from _change(engine, checkpoint, rest, advice)
    if hopeless:
        yield _later_release(engine, first, {release: fact.text for release, fact in hopeless.items()})


def _change(engine: Engine, checkpoint: View, defects: Defects, advice: Advice) -> Iterator[str]:
    """What to change in the checkpoint for those releases that can serve it."""
    facts = {fact.fact.id: fact.fact for applied_facts in defects.values() for fact in applied_facts}
    if not facts:
        return
    changed = [edits(fact, checkpoint) for fact in facts.values()]
    written = {key: value for keys in changed for key, value in keys.items()}
    if all(changed) and _serves(engine, checkpoint, written, defects):
        yield f"write {spelled(written)} into config.json"
        return
    yield from dict.fromkeys(fact.fix.rstrip(".") for fact in facts.values() if fact.remedy == "restore")
    if any(fact.remedy != "restore" for fact in facts.values()):
        needs_target = checkpoint.drafter.target.depth is None and "aux-layers" in facts
        yield from advice.steps(engine, tuple(defects), needs_target=needs_target)


def _serves(engine: Engine, checkpoint: View, written: Mapping[str, Any], releases: Iterable[str]) -> bool:
    """Whether these releases serve the checkpoint once the keys are written."""
    config, flat = {**checkpoint.config, **written}, {**checkpoint.flat, **written}
    edited = replace(checkpoint, config=config, flat=flat)
    return not any(_is_defect(fact) for release in releases for fact in engine.applied(edited, release))
