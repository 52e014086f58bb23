"""An engine whose releases are followed: what each of its releases does with a checkpoint.

If an engine builds another network than the trained one, `NetworkReading` states the differences.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, convert, field
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.behaviour import (
    AppliedFact,
    Behaviour,
    CapturedLayers,
    EvidenceKind,
    Fact,
    FactRun,
    Misread,
    RunnerRecord,
    StartOption,
    capture,
    is_since,
    is_within,
    ranges,
    stated,
)
from eaglectl.engines.conditions import Condition, always, stated_theta
from eaglectl.engines.data import cached, load, read
from eaglectl.engines.targets import as_seen
from eaglectl.engines.view import Case, View
from eaglectl.formats.published import Figure, published_file
from eaglectl.verdicts import ServedAs

Switch = Literal["fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"]
# topics of an engine's sources that concern some drafters alone: those with a vocabulary of their own, and
# those that quantisation concerns
SOME_DRAFTERS: Mapping[str, Callable[[Drafter], bool]] = {
    "vocabulary": lambda drafter: drafter.has_reduced_vocabulary,
    "quantisation": lambda drafter: drafter.target.is_quantised or drafter.quantisation is not None,
}
# norms whose tensors the file has only if they were trained
WITH_TENSORS = ("fc_norm", "norm_before_fc")


class NetworkReading(Struct, frozen=True):
    """An engine's network that differs from training only by a different reading of the config.

    `boundaries` are the captured layers, `switches` the norm switches that the engine reads differently,
    `theta` its rope base. None and empty: as trained.
    """

    engine: str
    boundaries: tuple[int, ...] | None = None
    switches: Mapping[str, bool] = field(default_factory=dict)
    theta: float | None = None

    @property
    def words(self) -> str:
        """The words for a run of this network."""
        if self.switches or self.theta is not None:
            return f"read as {self.engine} reads it"
        return f"at the layers that {self.engine} captures"

    @property
    def key(self) -> tuple[object, ...]:
        """The values that make it another network; equal for engines that read alike."""
        return self.boundaries, tuple(sorted(self.switches.items())), self.theta

    def applied_to(self, drafter: Drafter) -> Drafter:
        """Return the drafter as the engine reads it; its layers are those of `boundaries`."""
        rope = drafter.rope if self.theta is None else replace(drafter.rope, theta=self.theta)
        return replace(drafter, norms=replace(drafter.norms, **self.switches), rope=rope)


def network_reading(
    engine: str, view: View, captured: Mapping[str, CapturedLayers], differing: Sequence[AppliedFact]
) -> NetworkReading | None:
    """Return the reading that explains all differing facts; None if one of them has another reason.

    `captured` are the layers by the runners that the release may use; they must agree.
    """
    values = {
        applied.fact.misread: _misread_value(applied.fact.misread, view, captured) for applied in differing
    }
    if None in values.values():
        return None
    switches = {name: values[name] for name in get_args(Switch) if name in values}
    return NetworkReading(engine, values.get("aux layers"), switches, values.get("rope base"))


def _misread_value(kind: Misread | None, view: View, captured: Mapping[str, CapturedLayers]) -> Any:
    # the value that the engine uses for a fact of this kind; None if that is not known
    if kind == "rope base":
        theta = stated_theta(view)
        return float(theta) if isinstance(theta, int | float) else None
    if kind == "aux layers":
        return _misread_layers(view, {layers.boundaries for layers in captured.values()})
    trained = getattr(view.drafter.norms, kind or "", None)
    return not trained if trained or (trained is not None and kind not in WITH_TENSORS) else None


def _misread_layers(view: View, several: set[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    (boundaries, *others), listed = several, view.drafter.aux.listed
    if others or boundaries is None or len(boundaries) != view.drafter.dims.aux:
        return None
    if listed is None:
        return boundaries
    # ids that are not one for each aux state, or two stored blocks of one boundary
    if not len(set(listed)) == len(listed) == len(boundaries):
        return None
    # a conversion sorts fc's blocks by the boundaries trained on
    return tuple(layer for _, layer in sorted(zip(listed, boundaries, strict=True)))


class Verdict(Struct, frozen=True):
    """What one engine release does with a checkpoint as stored; `reasons` say why it is not as trained.

    For one served as trained, `reasons` name its runner, if another runner of the release differs. For one
    served as published, the first reason is its authors' measurement. `rules` are the ids that report the
    reasons. `reading` is the network that the engine builds, if it differs only by reading the config
    differently. `unread` is what was not read of files served as trained. `keys` identify the reasons
    whatever their wording. With `options` on its command line, the release runs the checkpoint as trained;
    the reasons then say what it does without them.
    """

    engine: str
    release: str
    outcome: ServedAs
    reasons: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    reading: NetworkReading | None = None
    unread: str = ""
    keys: tuple[str, ...] = ()
    options: tuple[StartOption, ...] = ()

    @property
    def keyed_reasons(self) -> tuple[tuple[str, str], ...]:
        """The reasons, each with its key; a reason without one is its own."""
        keys = self.keys or self.reasons
        return tuple((key or reason, reason) for key, reason in zip(keys, self.reasons, strict=True))

    @property
    def words(self) -> str:
        """The outcome, its options, and what was not read: "as trained, weights not read"."""
        return ", ".join(filter(None, (self.outcome.words(self.start_options), self.unread)))

    @property
    def start_options(self) -> tuple[str, ...]:
        """The options that the release needs, each with its value."""
        return tuple(option.words for option in self.options)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it is not served as trained; empty if it is."""
        return () if self.outcome.is_served else self.reasons

    def completed(self, complete: Callable[[str], str]) -> "Verdict":
        """Return the verdict with whole commands in its reasons."""
        return replace(self, reasons=tuple(map(complete, self.reasons)))


class RuleResults(Struct, frozen=True):
    """The reports of rules on a checkpoint that hold for every engine.

    `errors` are ids of rules, "" for none, with their messages. `gaps` are what rules could not read,
    `unread` what they skipped on request. Facts of an engine count if their rule is in `rules` (None: all).
    `reporting` are the rules with findings, `stopping` those with which no engine starts.
    """

    errors: Sequence[tuple[str, str]] = ()
    gaps: Sequence[str] = ()
    unread: str = ""
    rules: Collection[str] | None = None
    reporting: Collection[str] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    stopping: Collection[str] = ()

    def faults(self, facts: Sequence[AppliedFact]) -> list[tuple[ServedAs, str, str]]:
        """Return the known faults, the worst first: by facts, then by errors that no fact reports.

        A fact's rule is its own, or another that reports the same defect.
        """
        faults = []
        for fact, text in (
            (applied.fact, applied.text) for applied in facts if applied.fact.outcome.is_known_wrong
        ):
            reporting = (rule for rule in (fact.rule, *fact.reported_by) if rule in self.reporting)
            faults.append((fact.outcome, next(reporting, fact.rule), text))
        faults.sort(key=lambda fault: fault[0] != ServedAs.FAILS)
        fact_rules = {rule for _, rule, _ in faults}
        return faults + [
            (ServedAs.FAILS if rule in self.stopping else ServedAs.DIFFERS, rule, text)
            for rule, text in self.errors
            if rule not in fact_rules
        ]


NO_RESULTS = RuleResults()


def _without_options(facts: Iterable[AppliedFact]) -> Iterator[str]:
    # what the release does without the options
    for fact in facts:
        if fact.option is not None:
            yield f"started without {fact.option.words}, {fact.text}"


def start_options(facts: Iterable[AppliedFact]) -> tuple[StartOption, ...]:
    """Return the options that facts need, each once; of limits, the lowest."""
    options: dict[str, StartOption] = {}
    for option in (fact.option for fact in facts if fact.option is not None):
        other = options.setdefault(option.name, option)
        options[option.name] = min(other, option, key=lambda limit: int(limit.value) if limit.is_limit else 0)
    return tuple(options.values())


def _keyed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return texts, each once, with the key that comes first."""
    keys: dict[str, str] = {}
    for key, text in pairs:
        keys.setdefault(text, key)
    return keys


def publication(
    drafter: str, engine: str, releases: Sequence[str], reads_alike: Callable[[str], bool]
) -> tuple[tuple[str, ...], str]:
    """Return the published figures of a drafter, in words, and why they say nothing about a release.

    `engine` is its title, `releases` the known ones. `reads_alike` says whether a release reads the file as
    the release in question does. Figures count only if every release that they may be of reads alike: the one
    that their source names, else all since. The authors' figures come first.
    """
    figures = next(entry.figures for entry in published_file().drafters if entry.name == drafter)
    measured = [figure for figure in figures if figure.is_by_authors]
    by_authors = [figure for figure in measured if figure.engine_name == engine]
    if not by_authors:
        engines = dict.fromkeys(filter(None, (figure.engine_name for figure in measured)))
        return (), f"its authors measured it in {' and '.join(engines)}, not in {engine}"
    run = _run_by_authors(by_authors[0], releases)
    other = next((release for release in run if not reads_alike(release)), None)
    if other or not run:
        why = f"{other} reads it differently" if other else "how that release reads it is unknown"
        return (), f"its authors measured it ({by_authors[0].origin}), but {why}"
    return (*(figure.words for figure in by_authors), *_origins(drafter, by_authors, figures)), ""


def _run_by_authors(figure: Figure, releases: Sequence[str]) -> list[str]:
    if figure.release is not None:
        return [release for release in releases if release == figure.release]
    return [release for release in releases if is_since(figure.since or "0", release)]


def _origins(drafter: str, by_authors: Sequence[Figure], figures: Sequence[Figure]) -> Iterator[str]:
    origins = "; ".join(dict.fromkeys(figure.origin for figure in by_authors))
    yield f"measured by the authors of {drafter} ({origins})"
    for figure in (figure for figure in figures if not figure.is_by_authors):
        yield f"others, {figure.changed or 'as stored'}: {figure.words} ({figure.origin})"


class Engine(Struct, frozen=True, eq=False):
    """An engine: `conditions` of its facts by id, and the `words` that fill their messages.

    `package` is what Python imports, of one of these `distributions`. `is_default`: checkpoints are judged
    for its newest release where no engine is named. `is_shown_whole`: `inspect` shows each of its releases.
    `shares_embedding`: it puts the target's embedding in the place of the drafter's own. `reads` gives the
    keys that its classes get, of a config and of the same with its producer's nesting undone. `helps`: when
    the option of a fact, by its id, makes it run a checkpoint as trained; always, where the fact has none.
    """

    name: str
    title: str
    conditions: Mapping[str, Condition]
    words: Callable[[Case], Mapping[str, Any]]
    package: str
    distributions: tuple[str, ...]
    is_default: bool = False
    is_shown_whole: bool = False
    shares_embedding: bool = False
    reads: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = lambda config, flat: config
    helps: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def data(self) -> Mapping[str, Any]:
        """The engine's data file."""
        return load(self.name)

    @property
    @cached
    def releases(self) -> tuple[str, ...]:
        """Known releases, oldest first."""
        return tuple(release for entry in self.data["behaviour"] for release in entry["releases"])

    @property
    @cached
    def facts(self) -> tuple[Fact, ...]:
        """Every fact, in the order of the file."""
        return convert(self.data["facts"], tuple[Fact, ...])

    @property
    def layer_rules(self) -> frozenset[str]:
        """The rules on captured layers that differ from the trained ones."""
        return frozenset(fact.rule for fact in self.facts if fact.misread == "aux layers")

    @cached
    def facts_of(self, release: str) -> tuple[Fact, ...]:
        """Return the facts that hold in a release."""
        return tuple(fact for fact in self.facts if is_within(fact.releases, release))

    @cached
    def behaviour(self, release: str) -> Behaviour:
        """Return the behaviour of a release."""
        return convert(stated(self.name, release), Behaviour)

    def runners_run(self, release: str) -> tuple[str, ...]:
        """Return the runners of a release that ran recorded cases; none if the release was only read."""
        run = self.runs.get(release, {})
        return tuple(name for name in self.behaviour(release).runners if name in run)

    @property
    @cached
    def runs(self) -> Mapping[str, Mapping[str, RunnerRecord]]:
        """What each release that was run did with recorded drafters, by its runner."""
        return convert(read(f"{self.name}_runs.json")["releases"], dict[str, dict[str, RunnerRecord]])

    def runs_of(self, fact: Fact) -> tuple[FactRun, ...]:
        """Return the runs that showed whether a fact holds, the oldest release first."""
        return tuple(
            FactRun(release, runner, record.facts[fact.id].holds, record.facts[fact.id].case)
            for release, runners in self.runs.items()
            for runner, record in runners.items()
            if fact.id in record.facts
        )

    def run_words(self, fact: Fact, *, holds: bool = True) -> str:
        """Return where a run showed that a fact holds, or does not: "0.22.0 - 0.32.0 (V1)"; "" for none."""
        by_runner: dict[str, list[str]] = {}
        for run in self.runs_of(fact):
            if run.holds == holds:
                by_runner.setdefault(run.runner, []).append(run.release)
        has_several = any(len(runners) > 1 for runners in self.runs.values())
        return ", ".join(
            ranges(releases, self.releases) + (f" ({runner})" if has_several else "")
            for runner, releases in by_runner.items()
        )

    def evidence(self, release: str) -> Mapping[EvidenceKind, int]:
        """Return how many facts of a release were run, and how many only read."""
        run_facts = {key for record in self.runs.get(release, {}).values() for key in record.facts}
        is_run = [fact.id in run_facts for fact in self.facts_of(release)]
        return {"run": is_run.count(True), "read": is_run.count(False)}

    def ids_evidence(self, release: str) -> EvidenceKind:
        """Return whether the captured layers of a release are known from a run or from reading.

        "run" if its functions that resolve ids were run, or recorded cases.
        """
        is_resolved = release in read(f"{self.name}_runs.json")["ids"]
        return "run" if is_resolved or self.runners_run(release) else "read"

    def readings(self, view: View, release: str) -> Mapping[str, CapturedLayers]:
        """Return the layers that `release` captures for a checkpoint, by the runners that it may use."""
        behaviour, target = self.behaviour(release), view.drafter.target
        seen, is_parallel = as_seen(self.name, release, target), view.drafter.kind == "peagle"
        names = behaviour.runners_for(
            target.model_type, is_parallel=is_parallel, is_quantised=target.is_quantised
        )
        if view.runner in behaviour.runners:
            names = (view.runner,)
        return {name: capture(behaviour.runners[name], view.flat, seen) for name in names}

    def case(self, view: View, release: str) -> Case:
        """Return the case of a checkpoint in `release`."""
        return Case(view, self.name, release, self.behaviour(release), self.readings(view, release))

    def applied(self, view: View, release: str) -> tuple[AppliedFact, ...]:
        """Return the facts that hold for a checkpoint in `release`."""
        case = self.case(view, release)
        holding = [
            fact
            for fact in self.facts_of(release)
            if view.model_class in fact.classes and self.conditions[fact.id](case)
        ]
        holding = [fact for fact in holding if fact.is_final][:1] or holding
        words = self.words(case) if holding else {}
        return tuple(
            AppliedFact(fact, fact.message.format(**words), self._option(fact, case, words))
            for fact in holding
        )

    def _option(self, fact: Fact, case: Case, words: Mapping[str, Any]) -> StartOption | None:
        # the option with which the release runs the checkpoint as trained; None if there is none
        if fact.option is None or not self.helps.get(fact.id, always)(case):
            return None
        option = replace(fact.option, value=fact.option.value.format(**words))
        return None if option.value == "0" else option

    def verdict(
        self,
        view: View,
        release: str,
        results: RuleResults = NO_RESULTS,
        applied: Sequence[AppliedFact] | None = None,
    ) -> Verdict:
        """Judge what `release` does with a stored checkpoint; `applied` are its facts, if known already."""
        all_facts = self.applied(view, release) if applied is None else applied
        facts = [entry for entry in all_facts if results.rules is None or entry.fact.rule in results.rules]
        lasting = [fact for fact in facts if fact.option is None]
        if results.faults(lasting):
            return self._faulty(view, release, results.faults(facts), facts, results)
        options, doubts = start_options(facts), [(fact.fact.rule, fact.text) for fact in lasting]
        doubts += [(note.key, note.reason) for note in view.drafter.unsettled]
        results = replace(results, gaps=(*results.gaps, *self.unlooked(view, release)))
        if keys := _keyed([*doubts, *(("", gap) for gap in results.gaps)]):
            return replace(self._doubtful(view, release, keys, results), options=options)
        reasons, outcome = self.runner_remarks(view, release), ServedAs.AS_TRAINED
        if options:
            reasons, outcome = (*_without_options(facts), *reasons[1:]), ServedAs.STARTED_SO
        rules = tuple(dict.fromkeys(fact.fact.rule for fact in facts))
        return Verdict(self.name, release, outcome, reasons, rules, unread=results.unread, options=options)

    def _faulty(
        self,
        view: View,
        release: str,
        faults: Sequence[tuple[ServedAs, str, str]],
        facts: Sequence[AppliedFact],
        results: RuleResults,
    ) -> Verdict:
        """Return the verdict for known faults, with a reading if the differing network can be run."""
        keys = _keyed((results.keys.get(text, rule), text) for _, rule, text in faults)
        rules = tuple(dict.fromkeys(rule for _, rule, _ in faults if rule))
        outcome, is_whole, reading = faults[0][0], len(faults) == len(facts) and not results.errors, None
        if outcome == ServedAs.DIFFERS and is_whole:
            captured = self.readings(view, release)
            reading = network_reading(f"{self.title} {release}", view, captured, facts)
        texts = tuple(keys)
        return Verdict(self.name, release, outcome, texts, rules, reading, keys=tuple(keys.values()))

    def _doubtful(self, view: View, release: str, keys: Mapping[str, str], results: RuleResults) -> Verdict:
        """Return the verdict for open questions (`keys` by text); published figures may settle them."""
        published, unsettled = view.drafter.publication, view.drafter.unsettled
        measured = {note.reason for note in unsettled if note.deviation is not None}
        outcome = ServedAs.APPROXIMATE if measured == {*keys} else ServedAs.UNKNOWN
        unknown = Verdict(self.name, release, outcome, tuple(keys), keys=tuple(keys.values()))
        if published is None or results.gaps or any(note.level != "note" for note in unsettled):
            return unknown
        if (here := self._open_facts(view, release)) is None:
            return unknown
        reasons, gap = publication(
            published, self.title, self.releases, lambda other: self._open_facts(view, other) == here
        )
        if gap:
            return replace(unknown, reasons=(*keys, gap), keys=(*keys.values(), ""))
        reasons += self.runner_remarks(view, release)[1:]
        return Verdict(self.name, release, ServedAs.AS_PUBLISHED, reasons, unread=results.unread)

    def _open_facts(self, view: View, release: str) -> frozenset[str] | None:
        # None where the captured layers are not known to be the settled ones
        key = (self.name, release)
        if key not in view.open_facts:
            facts = frozenset(applied.fact.id for applied in self.applied(view, release))
            view.open_facts[key] = facts if self.case(view, release).sameness == {True} else None
        return view.open_facts[key]

    def unlooked(self, view: View, release: str) -> Iterator[str]:
        """Yield what changed in a release and concerns the drafter, where nobody looked at the change."""
        for topic in self.data.get("unlooked", {}).get(release, ()):
            if topic not in SOME_DRAFTERS or SOME_DRAFTERS[topic](view.drafter):
                yield f"{self.title} {release} changed its {topic}, and nobody has looked at the change"

    def runner_remarks(self, view: View, release: str) -> tuple[str, ...]:
        """Return the runners that a verdict "as trained" holds for, then those it does not hold for.

        Empty for a release with one runner.
        """
        runners, taken = self.behaviour(release).runners, self.readings(view, release)
        if len(runners) == 1:
            return ()
        others = []
        for name in () if view.runner else sorted(runners.keys() - taken.keys()):
            captured = capture(runners[name], view.flat, view.drafter.target)
            if captured.same_as(view.drafter.aux) is False:
                others.append(f"{name} captures other layers than were trained on ({captured.words})")
        return f"with the {' and '.join(taken)} runner{'s' if len(taken) > 1 else ''}", *others
