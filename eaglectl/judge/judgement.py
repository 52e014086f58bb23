"""The subject that rules check, and the judgement of a drafter, which is made once for all commands.

Rules check one checkpoint, read as far as possible, and the target that it is meant for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.drafter.drafter import GIVEN, Drafter, Note, Target
from eaglectl.drafter.tensors import Fault, Ids, as_engines_read, faults, is_known
from eaglectl.engines.behaviour import AppliedFact
from eaglectl.engines.engine import RuleResults, Verdict
from eaglectl.engines.registry import (
    ENGINES,
    UPDATE,
    EngineRequest,
    requested_places,
    unfollowed_verdict,
    view_for,
)
from eaglectl.engines.view import View
from eaglectl.errors import EaglectlError, OptionNeededError, RefusedError, UnreadableError
from eaglectl.files.budgets import MAX_MATCHES
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint, read_config
from eaglectl.files.files import sha256
from eaglectl.files.layout import CONFIG
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.commands import Fix, read_fix
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.rule import (
    NO_TARGET,
    CannotLook,
    Finding,
    Match,
    Policy,
    Rule,
    Severity,
    Suppression,
    rules,
)
from eaglectl.judge.samples import Sample, Summary, read_vectors, sample_matrices
from eaglectl.progress import OnProgress
from eaglectl.target.choice import TargetChoice
from eaglectl.text import printable
from eaglectl.verdicts import CheckVerdict, ServedAs

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

TABLES = {"d2t", "t2d"}
# dtype -> the largest n such that it holds every whole number up to n exactly
EXACT: Mapping[str, int] = {
    "I64": 2**63,
    "U64": 2**64,
    "I32": 2**31,
    "U32": 2**32,
    "I16": 2**15,
    "U16": 2**16,
    "I8": 2**7,
    "U8": 2**8,
    "BOOL": 2,
    "F64": 2**53,
    "F32": 2**24,
    "F16": 2**11,
    "BF16": 2**8,
}


# the objects of config.json in which producers keep a drafter's keys
NESTED_KEYS = ("transformer_layer_config", "eagle_config", "eagle_architecture_config")


class GivenTarget(Struct, frozen=True, dict=True):
    """The target: its known dimensions, its config, and its files if they were given.

    `choice` is the command's choice of target.
    """

    known: Target
    source: Source | None = None
    config: Mapping[str, Any] | None = None
    choice: TargetChoice = TargetChoice()

    @property
    def words(self) -> str:
        """The target as given, or how it was found; "" without a target."""
        return self.known.origin or (printable(f"{self.choice.text}, {GIVEN}") if self.choice.text else "")

    @property
    def given_config(self) -> Mapping[str, Any]:
        """Its config. Raises CannotLook if there is none."""
        if self.config is None:
            raise CannotLook(NO_TARGET)
        return self.config

    @property
    def digest(self) -> str:
        """The SHA-256 of its config.json; "" if that was not read."""
        return sha256(self.source.read(CONFIG)).hexdigest() if self.source and self.config else ""

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The headers of its weights. Raises CannotLook."""
        if self.source is None:
            raise CannotLook("no target's weights were given; pass --target with its folder")
        try:
            return read_checkpoint(self.source)
        except EaglectlError as error:
            raise CannotLook(f"the target's weights cannot be read: {error}") from None


def given_target(choice: TargetChoice) -> GivenTarget:
    """Return a command's target with what its files state. Raises UnreadableError."""
    return GivenTarget(choice.known(), choice.source, choice.config, choice)


class Subject(Struct, frozen=True, eq=False, dict=True):
    """One checkpoint under validation. A property that cannot be read raises CannotLook.

    `requests` are the engine releases to validate for. With `headers_only`, of tensor data only d2t, t2d and
    vectors are read. `unpickled` is a safetensors copy of pickled weights, or the error that prevented it.
    `read` is the checkpoint and drafter if they were read before. `value_errors` are rule ids and messages
    about numbers that were read elsewhere. With `takes_samples`, a few rows of each matrix are read even with
    `headers_only`.
    """

    source: "FolderSource | HubSource"
    target: GivenTarget
    requests: tuple[EngineRequest, ...] = ()
    answers: Answers = field(default_factory=Answers)
    policy: Policy = field(default_factory=Policy)
    headers_only: bool = False
    on_progress: OnProgress | None = None
    unpickled: "FolderSource | EaglectlError | None" = None
    read: tuple[Checkpoint, Drafter] | None = None
    value_errors: tuple[tuple[str, str], ...] | None = None
    takes_samples: bool = False

    @cached_property
    def _reading(
        self,
    ) -> tuple[Mapping[str, Any] | None, Checkpoint | None, Drafter | None, EaglectlError | None]:
        # config, checkpoint and drafter, as far as they can be read, and the error that ended the reading
        config = checkpoint = None
        if self.read:
            return self.read[0].config, *self.read, None
        try:
            config = read_config(self.source)
            checkpoint = read_checkpoint(self.source, headers_only=self.headers_only)
            return config, checkpoint, read_drafter(checkpoint, self.answers, self.target.known), None
        except EaglectlError as error:
            return config, checkpoint, None, error

    @property
    def read_error(self) -> EaglectlError | None:
        """The error that ended reading. The rule named by its topic reports it; other rules cannot look."""
        return self._reading[3]

    @property
    def _error_place(self) -> tuple[str, str]:
        return (self.read_error.topic, self.read_error.where) if self.read_error else ("", "")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all files."""
        return self.source.names()

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json."""
        if (config := self._reading[0]) is None:
            raise CannotLook(f"config.json cannot be read: {self.read_error}", *self._error_place)
        return config

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """The config without its producer's nesting."""
        return by_name(self.drafter.producer).flat(self.config)

    @property
    def checkpoint(self) -> Checkpoint:
        """The config and the headers of the weights."""
        if (checkpoint := self._reading[1]) is None:
            raise CannotLook(f"the weights' headers cannot be read: {self.read_error}", *self._error_place)
        return checkpoint

    @property
    def drafter(self) -> Drafter:
        """The canonical drafter."""
        if (drafter := self._reading[2]) is None:
            raise CannotLook(f"the files do not describe one drafter: {self.read_error}", *self._error_place)
        return drafter

    @property
    def weights(self) -> Checkpoint:
        """The checkpoint, for a rule that reads tensor data. Raises CannotLook with `headers_only`."""
        if self.headers_only:
            raise CannotLook("it needs the weights, which --headers-only does not read")
        return self.values

    @cached_property
    def values(self) -> Checkpoint:
        """The checkpoint, for a rule that reads d2t, t2d or norms, which are small and always read."""
        checkpoint = self.checkpoint
        if isinstance(self.unpickled, EaglectlError):
            raise CannotLook(f"the weights are pickles that cannot be copied: {self.unpickled}")
        return checkpoint if self.unpickled is None else read_checkpoint(self.unpickled)

    @cached_property
    def on_disk(self) -> FolderSource:
        """The files on this machine; those of a Hub repository are downloaded. Raises UnreadableError."""
        return self.source if isinstance(self.source, FolderSource) else self.source.downloaded()

    @cached_property
    def scan(self) -> Mapping[str, Summary]:
        """A summary of each floating-point tensor, by its name in the file, from one pass over the
        weights.
        """
        weights = self.weights  # before numpy is loaded
        from eaglectl.judge.scanning import scan

        source = self.unpickled if isinstance(self.unpickled, FolderSource) else self.on_disk
        return scan(source, tuple(weights.tensors.values()), self.on_progress)

    @cached_property
    def vectors(self) -> Mapping[str, Summary]:
        """A summary of each norm and bias, by its name in the file."""
        if not isinstance(self.source, FolderSource):
            if self.headers_only:
                raise CannotLook(
                    "the norms of a Hub repository are read only after its weights are downloaded"
                )
            self.source.downloaded()
        with self.values.opened() as weights:
            return read_vectors(weights)

    @cached_property
    def samples(self) -> Mapping[str, tuple[str, Sample]]:
        """Each matrix's stored name and sample, by canonical name.

        Raises CannotLook with `headers_only`, unless the subject `takes_samples`.
        """
        with (self.values if self.takes_samples else self.weights).opened() as weights:
            return sample_matrices(weights, self.drafter)

    @cached_property
    def untrained_matrices(self) -> Mapping[str, tuple[str, str]]:
        """The matrices that still look randomly initialised: stored name and distribution, by canonical name.

        Raises CannotLook like `weights`.
        """
        weights, samples = self.weights, self.samples
        from eaglectl.judge.scanning import untrained_matrices  # late: numpy

        return untrained_matrices(weights, samples, self.flat.get("initializer_range"))

    def summaries(self) -> Iterator[tuple[str, Summary]]:
        """Yield names and summaries of all floating-point tensors.

        With `headers_only`, yield those of `vectors`, then raise CannotLook.
        """
        if self.headers_only:
            yield from self.vectors.items()
        yield from self.scan.items()

    @property
    def target_vocab(self) -> int:
        """The size of the target's vocabulary.

        Without t2d it is the larger of vocab_size and the embedding's rows: EGL114 reports an embedding with
        too few rows.
        """
        size, config_size = self.drafter.dims.vocab, self.flat.get("vocab_size")
        has_t2d = "t2d" in self.drafter.tensors
        return max(size, config_size) if type(config_size) is int and not has_t2d else size

    @property
    def is_d2t_rounded(self) -> bool:
        """Whether d2t has a dtype that cannot hold every token id of the target."""
        d2t = self.drafter.tensors.get("d2t")
        return d2t is not None and EXACT.get(d2t.dtype, 0) < self.drafter.dims.vocab

    @cached_property
    def vocabulary_tables(self) -> tuple["Ids | None", "Ids | None"]:
        """d2t and t2d as engines read them; None for a table that the file does not have."""
        d2t, t2d = (self.drafter.tensors.get(name) for name in ("d2t", "t2d"))
        if d2t is None and t2d is None:
            return None, None
        if d2t and self.is_d2t_rounded:
            raise CannotLook(f"d2t is {d2t.dtype}, which cannot hold the vocabulary's numbers")
        weights = self.values  # before numpy is loaded
        if d2t and d2t.shape != (self.drafter.dims.draft_vocab,):
            raise CannotLook(f"d2t has the shape {list(d2t.shape)}, which does not fit the draft vocabulary")
        first, second = (
            as_engines_read(table.name, table.dtype, weights.read(table.stored[0])) if table else None
            for table in (d2t, t2d)
        )
        return first, second

    @cached_property
    def vocabulary_repair(self) -> Fix:
        """The repair of one table from the other; empty if there is none, or if it cannot be determined."""
        try:
            weights = self.values
        except UnreadableError:
            return Fix()
        from eaglectl.formats.tables import table_readings

        texts = {0: "", 1: "{}, as that table is whole."}
        measure = (
            "run `eaglectl diagnose SOURCE --target TARGET`, which measures which of them lm_head was trained"
            " with; if it is t2d, {}; if it is d2t, {}."
        )
        lines = [
            f"run `eaglectl convert SOURCE --fix-reading {reading}`"
            for reading in table_readings(weights, self.drafter)
        ]
        return read_fix(texts.get(len(lines), measure).format(*lines), "convert")

    @cached_property
    def vocabulary_faults(self) -> tuple["Fault", ...]:
        """The faults of d2t and t2d; empty if the draft vocabulary is larger than the target's."""
        draft_size = self.drafter.dims.draft_vocab
        if not TABLES & set(self.drafter.tensors) or draft_size > self.target_vocab:
            return ()
        d2t, t2d = self.vocabulary_tables
        return faults(d2t, t2d, draft_size, self.target_vocab)

    def view(self, engine: str) -> View:
        """Return the checkpoint as an engine reads it."""
        files, config = self.checkpoint, self.config
        names, target = tuple(files.tensors), self.target.config
        runner = next((request.runner for request in self.requests if request.engine == engine), "")
        return view_for(engine, self.drafter, config, self.flat, names, target, files, runner=runner)

    @cached_property
    def applied_facts(self) -> Mapping[tuple[str, str], tuple[AppliedFact, ...]]:
        """The facts that apply to the checkpoint, by requested engine and release."""
        views = {
            request.engine: self.view(request.engine)
            for request in self.requests
            if request.engine in ENGINES
        }
        return {
            (request.engine, release): ENGINES[request.engine].applied(views[request.engine], release)
            for request in self.requests
            for release in request.releases
        }

    @cached_property
    def releases_by_text(self) -> Mapping[tuple[str, str], Mapping[str, Sequence[str]]]:
        """The releases that a fact applies to, by its message, for each engine and rule.

        Facts that an option of the engine makes up for are left out.
        """
        releases: dict[tuple[str, str], dict[str, list[str]]] = {}
        for (engine, release), facts in self.applied_facts.items():
            for applied in (fact for fact in facts if fact.option is None):
                texts = releases.setdefault((engine, applied.fact.rule), {})
                texts.setdefault(applied.text, []).append(release)
        return releases

    def reported(self, topic: str, *, is_fault: bool = False) -> Iterator[Match]:
        """Yield the reader's reports on a topic: its notes, or the error that ended reading.

        An open question raises CannotLook; with `is_fault` it is a match, as no engine knows the answer
        either. Raises CannotLook if reading ended before it reached the topic.
        """
        if self.read_error is not None and self.ended_on(topic):
            options = self.read_error.options if isinstance(self.read_error, OptionNeededError) else ()
            key = ":".join(self._error_place)
            yield Match(str(self.read_error), self.read_error.where, options=options, key=key)
            return
        for note in (note for note in self.drafter.notes if note.topic == topic and note.level != "note"):
            if note.level == "question" and not is_fault:
                raise CannotLook(note.text, note.topic, note.about)
            is_tensor = note.about in self.checkpoint.tensors or is_known(note.about)
            place = f"tensor:{note.about}" if is_tensor else key_place(self.config, note.about)
            place = "" if place == "config.json" else place
            fix = note.advice.removeprefix("; ") if note.level == "problem" else ""
            yield Match(note.text, place, fix, options=note.options, why=note.why, key=note.key)

    def ended_on(self, topic: str) -> bool:
        """Whether an error on this topic ended reading."""
        return self.read_error is not None and self.read_error.topic == topic


def key_place(config: Mapping[str, Any], key: str) -> str:
    """Return where a key is: "config.json:KEY", "config.json:OBJECT.KEY", or "config.json" if absent."""
    for prefix, table in (("", config), *((f"{name}.", config.get(name)) for name in NESTED_KEYS)):
        if isinstance(table, Mapping) and key in table:
            return f"config.json:{prefix}{key}"
    return "config.json"


# families of rules whose findings do not change how an engine serves the drafter, except for WEIGHT_FILES
NOT_SERVED = ("files", "release")
# names of rules on what is published, and on what a policy allows
OF_POLICY = ("local-path", "leaked-secret", "allowed-")
WEIGHT_FILES = ("one-weight-source", "safetensors-header", "shard-index", "distributed-checkpoint")
OF_TENSORS = ("weights", "draft vocabulary")
NO_POLICY = Policy()


class Unchecked(Struct, frozen=True):
    """A rule that could not look, and why. Where `is_required`, the checkpoint does not pass without it."""

    rule: Rule
    reason: str
    is_required: bool
    key: str = ""


class Judgement(Struct, frozen=True):
    """The judgement of one drafter with its target and the requested engine releases.

    `rules` are those that ran or could not look. `findings` are those of every rule that had its inputs,
    `unchecked` the rules that could not look, with reasons. `releases` has a verdict for each release;
    releases without data come first. `errors` change how every engine serves the files, as pairs of rule id
    and message; the id is "" for a problem in reading that no rule reports.
    """

    subject: Subject
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    passed: tuple[Rule, ...]
    errors: tuple[tuple[str, str], ...] = ()
    releases: tuple[Verdict, ...] = ()

    @property
    def faults(self) -> tuple[tuple[str, str], ...]:
        """Tensor errors with which every draft token is rejected: rule ids and messages."""
        concerned = {rule.id for rule in self.rules if rule.family in OF_TENSORS}
        return tuple((rule, text) for rule, text in self.errors if rule in concerned)


def conversion_refusal(findings: Iterable[Finding]) -> RefusedError | None:
    """Return a refusal for the first error in tensors that no conversion repairs; None without one."""
    for finding in findings:
        is_error = finding.severity == "error" and finding.rule.family in OF_TENSORS
        if is_error and not finding.repair.conversions:
            topic, _, where = finding.match.key.partition(":")
            return RefusedError(f"repair first: {finding.match.message}", topic, where)
    return None


def judge_drafter(
    subject: Subject, chosen: Sequence[Rule] | None = None, policy: Policy = NO_POLICY
) -> Judgement:
    """Judge a drafter by the `chosen` rules, for the engine releases that the subject requests.

    Without `chosen`, the rules of serving run. A rule on an engine runs only if the engine was requested or
    the policy requires the rule. A fact of an engine counts if its rule runs.
    """
    requested = tuple(request.engine for request in subject.requests if request.engine in ENGINES)
    chosen = serving_rules() if chosen is None else chosen
    concerned = [
        rule
        for rule in chosen
        if not rule.engines or rule.engines.startswith(requested) or rule.id in policy.required
    ]
    ran = tuple(concerned or chosen)
    findings, unchecked, passed = list[Finding](), list[Unchecked](), list[Rule]()
    for rule in ran:
        before = len(findings)
        try:
            matches = _bounded(rule.check(subject))
            findings.extend(Finding(rule, policy.severity(rule, match), match) for match in matches)
            passed += [rule] if len(findings) == before else []
        except UnreadableError as error:  # CannotLook among them
            unchecked.append(_unchecked(rule, error, policy))
    reported = _drop_duplicates(findings)
    errors = (*(subject.value_errors or ()), *_errors(subject, reported))
    judgement = Judgement(subject, ran, reported, tuple(unchecked), tuple(passed), errors)
    return replace(judgement, releases=tuple(_verdicts(judgement)))


def _unchecked(rule: Rule, error: UnreadableError, policy: Policy) -> Unchecked:
    is_required = rule.family.startswith("serving") or rule.id in policy.required
    key = f"{error.topic}:{error.where}" if error.topic else rule.id
    return Unchecked(rule, str(error), is_required, key)


def _bounded(matches: Iterator[Match]) -> Iterator[Match]:
    yield from islice(matches, MAX_MATCHES)
    if next(matches, None) is not None:
        raise CannotLook(f"it stopped at {MAX_MATCHES} findings; there are more")


def _drop_duplicates(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    # of two findings on one defect keep the more severe; of two equally severe, the one for all engines
    levels = {finding.rule.id: finding.level for finding in findings}
    dropped = {
        general if levels[general] < finding.level else finding.rule.id
        for finding in findings
        for general in finding.rule.reported_by
        if general in levels
    }
    return tuple(finding for finding in findings if finding.rule.id not in dropped)


def _errors(subject: Subject, findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    is_read = subject.read_error is None
    for rule, match in ((finding.rule, finding.match) for finding in findings):
        is_served = changes_serving(rule) and (is_read or rule.family not in NOT_SERVED)
        if rule.severity == "error" and not match.engines and is_served:
            yield rule.id, match.message
    notes = subject.drafter.notes if is_read else ()
    yield from (("", note.text) for note in notes if note.level == "problem" and not note.topic)


def _verdicts(judgement: Judgement) -> Iterator[Verdict]:
    # A verdict on each requested release of an engine whose rules ran; it is UNKNOWN for a release that
    # eaglectl does not know. Nothing on an engine whose rules were not selected. An engine whose releases are
    # not followed always gets its verdict.
    subject, ids = judgement.subject, [rule.id for rule in judgement.rules]
    results = _results(judgement, ids)
    engines_with_run_rules = {
        name for name, engine in ENGINES.items() if any(fact.rule in ids for fact in engine.facts)
    }
    for name, release in requested_places(subject.requests):
        if name in engines_with_run_rules and release not in ENGINES[name].releases:
            reasons = (f"not a known release: {UPDATE.format(name)}",)
            yield Verdict(name, release, ServedAs.UNKNOWN, reasons)
        elif name in engines_with_run_rules or name not in ENGINES:
            yield _verdict(name, release, subject, results)


def _verdict(name: str, release: str, subject: Subject, results: RuleResults) -> Verdict:
    # errors of the files stand for the verdict if an engine's rules cannot look
    try:  # an error of the files may explain that they are no drafter
        if name not in ENGINES:
            return unfollowed_verdict(name, subject.drafter, subject.flat, results)
        return ENGINES[name].verdict(
            subject.view(name), release, results, subject.applied_facts[name, release]
        )
    except CannotLook as reason:
        if not results.errors:
            return Verdict(name, release, ServedAs.UNKNOWN, (str(reason),))
        rules, texts = zip(*results.errors, strict=True)
        return Verdict(
            name, release, ServedAs.DIFFERS, tuple(dict.fromkeys(texts)), tuple(filter(None, rules))
        )


def _unread_maps(judgement: "Judgement") -> Iterator[str]:
    # a d2t that could not be checked may map draft tokens to other tokens
    subject = judgement.subject
    if subject.read_error is None and "d2t" in subject.drafter.tensors:
        yield from (entry.reason for entry in judgement.unchecked if entry.rule.name == "d2t-absolute")


def _results(judgement: Judgement, ids: Sequence[str]) -> RuleResults:
    subject = judgement.subject
    return RuleResults(
        judgement.errors,
        [*_unread_maps(judgement)],
        "weights not read" if subject.headers_only and subject.value_errors is None else "",
        ids,
        {finding.rule.id for finding in judgement.findings},
        {finding.match.message: finding.match.key for finding in judgement.findings if finding.match.key},
        {finding.rule.id for finding in judgement.findings if finding.match.stops_engine},
    )


@cache
def serving_rules() -> Sequence[Rule]:
    """Return the rules that decide a verdict on an engine's release."""
    return [
        rule
        for rule in rules(without=("release",))
        if changes_serving(rule) or rule.family.startswith("serving")
    ]


def changes_serving(rule: Rule) -> bool:
    """Whether what the rule reports changes how any engine serves the checkpoint."""
    is_served = not rule.family.startswith("serving") and not rule.name.startswith(OF_POLICY)
    return is_served and (rule.family not in NOT_SERVED or rule.name in WEIGHT_FILES)


class Suppressed(Struct, frozen=True):
    """A finding that a suppression of the policy allows."""

    finding: Finding
    by: Suppression


class Following(Struct, frozen=True):
    """What to run next for a checkpoint that a release does not serve: a conversion, or one of several.

    `choices` maps the conversion for each answer to an open question to the answer's meaning and its effect
    on the release. `why` states why no conversion makes the release serve it; `keys` are those of the reasons
    that `why` repeats.
    """

    command: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    keys: tuple[str, ...] = ()


class Report(Result, frozen=True):
    """The result of validating one checkpoint.

    `unused` are suppressions that no finding needed, `expired` those past their last day, which have no
    effect. `fail_on` is the lowest severity that fails, None for none. `problem` states why the checkpoint
    could not be read, if no rule reports it. `releases` has a verdict for each requested engine release,
    oldest first; `changes` are the smallest changes with which all of them pass. `target` names the target
    and states how it was found, `target_digest` is the SHA-256 of its config.json. With `is_of_copy`, the
    weights are pickles, and their values were read from a temporary copy. `skipped` states why a folder was
    skipped as no drafter: no rule ran. `open_notes` are open facts about the training, `questions` those that
    the user must answer. `off` are the rules that the policy switches off, `lowered` those whose severity it
    lowers, with the new one. `default_engines` are the releases that were judged by default, each with the
    reason. `trained` are the boundaries that the drafter was trained on, if known. `following` has the next
    conversions of a checkpoint with open facts.
    """

    source: str
    path: str
    engines: tuple[str, ...]
    verdict: CheckVerdict
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    unused: tuple[Suppression, ...] = ()
    passed: tuple[Rule, ...] = ()
    policy: str = "built in"
    seconds: float = 0.0
    fail_on: Severity | None = "error"
    problem: str = ""
    releases: tuple[Verdict, ...] = ()
    changes: tuple[Fix, ...] = ()
    expired: tuple[Suppression, ...] = ()
    target: str = ""
    target_digest: str = ""
    is_of_copy: bool = False
    skipped: str = ""
    open_notes: tuple[Note, ...] = ()
    questions: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    lowered: Mapping[str, Severity] = field(default_factory=dict)
    default_engines: tuple[tuple[str, str], ...] = ()
    trained: tuple[int, ...] = ()
    following: Following = field(default_factory=Following)

    def __fspath__(self) -> str:
        return self.path

    @property
    def doubts(self) -> tuple[str, ...]:
        """The open facts about the drafter's training."""
        return tuple(note.reason for note in self.open_notes)

    @property
    def smallest_changes(self) -> tuple[str, ...]:
        """The smallest changes in words."""
        return tuple(f"{change.engines}: {change.text}" for change in self.changes)

    @property
    def unreported(self) -> tuple[str, ...]:
        """The reasons why it does not pass, if no finding and no rule that could not look is one.

        They are faults of engine releases, or open facts about the training.
        """
        if self.problem or any(finding.fails(self.fail_on) for finding in self.findings):
            return ()
        if any(unchecked.is_required for unchecked in self.unchecked):
            return ()
        faults = [fault for verdict in self.releases if not verdict.rules for fault in verdict.faults]
        return tuple(dict.fromkeys((*faults, *self.doubts)))


def unopened_report(
    source: str, problem: str, fail_on: Severity | None = "error", policy: str = "built in"
) -> Report:
    """Return the report on a checkpoint that could not be opened: no rule ran, so it does not pass."""
    return Report(
        source, source, (), CheckVerdict.COULD_NOT_LOOK, policy=policy, fail_on=fail_on, problem=problem
    )


def overall_verdict(reports: Iterable[Report]) -> CheckVerdict:
    """Return the worst verdict of several checkpoints; SKIPPED only if all were skipped."""
    order = (CheckVerdict.FAIL, CheckVerdict.COULD_NOT_LOOK, CheckVerdict.PASS, CheckVerdict.SKIPPED)
    return min((report.verdict for report in reports), key=order.index, default=CheckVerdict.PASS)
