"""What a drafter's files leave open, answered by measuring where its target runs on this machine."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.planning import make_plan
from eaglectl.conversion.request import ConversionRequest
from eaglectl.conversion.vocabulary import draft_vocabulary
from eaglectl.conversion.writing import WriteOptions, write_plan
from eaglectl.drafter.boundaries import TRAINING_DEFAULT
from eaglectl.drafter.drafter import Choice, Drafter, Feature, Note, Target, question
from eaglectl.errors import OpenFactError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.opening import on_disk, open_folder
from eaglectl.files.scratch import scratch_folder
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers, Origin
from eaglectl.formats.reader import read_drafter
from eaglectl.operations.copies import OpenedSource, opened, selected_tokens_of
from eaglectl.operations.options import ConvertOptions, MeasureOptions
from eaglectl.progress import LOADING, OnProgress, notify, report_step
from eaglectl.target import choose_target, fitting_target, open_target, weights_folder

if TYPE_CHECKING:
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.run.answering import LoadedReading, MeasuredAnswer, Options
    from eaglectl.run.stage import Stage

ROPE = ("rope_theta", "rope_scaling")
K = 7  # deep drafts show most of what is fed back
D2T = (
    Choice("--source-semantics", "d2t=offset", "token = i + d2t[i]"),
    Choice("--source-semantics", "d2t=absolute", "token = d2t[i]"),
)


class OpenQuestions(Struct, frozen=True):
    """What is known of a drafter after measuring what its files leave open.

    `answers` are those that were given and those that were measured, `measured` the result of each question,
    `gap` why nothing was measured, where something is open. `record` goes into eaglectl.json.
    """

    answers: Answers
    measured: "tuple[MeasuredAnswer, ...]" = ()
    gap: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Questions that are raised say what was measured, or why nothing was."""
        try:
            yield
        except OpenFactError as error:
            ties = [answer.text for answer in self.measured if answer.choice is None]
            text = "; ".join(filter(None, [str(error), *ties, self.gap]))
            raise OpenFactError(text, error.topic, error.where) from None


def measure_open_questions(
    files: OpenedSource, target: Target, options: ConvertOptions, on_progress: OnProgress | None = None
) -> OpenQuestions:
    """The answers of a conversion and those that measuring adds; none where its `measure` is None.

    What was given is taken as it is. Raises UsageError for prompts that cannot be read or do not fit the
    target.
    """
    answers = options.answers
    if options.measure is None:
        return OpenQuestions(answers)
    drafter = read_drafter(files.checkpoint, replace(answers, assume=False), target)
    notes = _open_notes(files, drafter, answers)
    if not notes:
        return OpenQuestions(answers)
    reason = ""
    try:
        folder = runnable_target(drafter, notes, options.target)
        reason = "not measured: "
        # a dry run has only looked at the headers of pickles
        is_unread = files.pickles and files.readable is files.original
        with opened(files.original) if is_unread else nullcontext(files) as whole:
            pair = _Pair(whole, target, options, options.measure, folder, drafter, notes, on_progress)
            return pair.measured()
    except UnreadableError as error:
        gap = f"{reason}{error}"
        if answers.assume:  # then no question says why
            notify(f"usual values are assumed; {gap}")
        return OpenQuestions(answers, gap=gap)


def measured_questions(
    source: str,
    target: str | None,
    answers: Answers,
    options: MeasureOptions | None,
    on_progress: OnProgress | None = None,
) -> OpenQuestions:
    """The same for a source that is not opened; `options` None: nothing is measured.

    `target` None: the one that the checkpoint names. A drafter that cannot be read is left to who reads it
    next.
    """
    if options is None:
        return OpenQuestions(answers)
    try:
        with opened(open_folder(on_disk(source))) as files:
            if target is None:
                choice = choose_target(files.original, None, needs_weights=True)
                target = fitting_target(choice, files.checkpoint, answers).place
            conversion = ConvertOptions(target=target, answers=answers, measure=options)
            return measure_open_questions(files, open_target(target), conversion, on_progress)
    except RefusedError:
        return OpenQuestions(answers)


def _open_notes(files: OpenedSource, drafter: Drafter, answers: Answers) -> tuple[Note, ...]:
    """What is open: questions, doubts with choices, and the meaning of d2t where both fit."""
    notes = [note for note in drafter.unsettled if note.choices]
    is_asked = any(note.about == "d2t" for note in notes)
    if "d2t" in drafter.tensors and not is_asked and not drafter.notes_at("problem"):
        try:
            draft_vocabulary(files.checkpoint, drafter, answers, None)
        except UsageError:
            notes.append(question("d2t", "d2t fits both as offsets and as absolute ids", "d2t-meaning", D2T))
        except RefusedError:
            pass  # the plan says so
    return tuple(_joined(notes))


def _joined(notes: list[Note]) -> list[Note]:
    """The notes, those on the two halves of the rope as one question, since one option answers both."""
    halves = [note for note in notes if note.about in ROPE]
    if len(halves) < 2:
        return [*(note for note in notes if note not in halves), *halves]
    values = product(*([choice.value.removeprefix("rope=") for choice in note.choices] for note in halves))
    choices = [Choice("--source-semantics", f"rope={','.join(pair)}") for pair in values]
    rope = question("rope", "; ".join(note.why for note in halves), halves[0].topic, choices)
    return [*(note for note in notes if note not in halves), rope]


def runnable_target(drafter: Drafter, notes: tuple[Note, ...], target: str | None) -> Path:
    """The target's folder. Raises UnreadableError with why measuring cannot answer."""
    from eaglectl.run.answering import is_measurable
    from eaglectl.run.process import require_torch

    others = [note.about for note in notes if not is_measurable(note)]
    activation = drafter.settings["hidden_act"]
    check(
        *((True, f"not measured: {problem.text}") for problem in drafter.notes_at("problem")),
        *((True, f"not measured: drafting shows nothing of {about}, which is open too") for about in others),
        (drafter.quantisation is not None, "not measured: a quantised drafter is not run here"),
        (
            Feature.PARALLEL in drafter.features(),
            "not measured: it drafts in parallel, and the reference one token after another",
        ),
        (
            activation != "silu",
            f"not measured: hidden_act is {activation!r}, and drafters are run with SiLU alone here",
        ),
        error=UnreadableError,
    )
    if (folder := weights_folder(target)) is None:
        raise UnreadableError("--target with the target's weights would measure it")
    require_torch("measuring it runs the target and needs")
    return folder


class _Pair(Struct, frozen=True):
    """A drafter with open questions, and its target in `folder`."""

    files: OpenedSource
    target: Target
    options: ConvertOptions
    how: MeasureOptions
    folder: Path
    drafter: Drafter
    notes: tuple[Note, ...]
    on_progress: OnProgress | None

    def measured(self) -> OpenQuestions:
        """What measuring gave. Raises UnreadableError where it could not."""
        from eaglectl.run.answering import measure_answers
        from eaglectl.run.job import EngineJob
        from eaglectl.run.prompts import choose_prompts, digest_prompts, more_prompts
        from eaglectl.run.stage import Stage

        how, answers = self.how, self.options.answers
        report_step(self.on_progress, LOADING)
        chosen = choose_prompts(how.prompts, how.sample, how.seed)
        spare = more_prompts() if how.prompts is None and how.sample is None else ()
        with scratch_folder() as scratch:
            plan = self._first_plan()
            self._write(plan, scratch / "0")
            job = EngineJob(
                scratch / "0",
                plan.drafter,
                self.folder,
                chosen.prompts + spare,
                k=K,
                max_tokens=how.max_tokens,
                device=how.device,
                trust_remote_code=how.trust_remote_code,
                ignores_eos=how.ignore_eos,
                on_progress=self.on_progress,
            )
            stage = Stage(job)
            read = partial(self._loaded, stage=stage, first=plan, scratch=scratch)
            texts, stage.texts = stage.texts, stage.texts[: len(chosen.prompts)]
            results = measure_answers(stage, self.notes, read)
            needed = [result.prompts_needed for result in results if result.prompts_needed is not None]
            if spare and needed and min(needed) <= len(texts):  # a tie that so many prompts may break
                running = f"{len(stage.texts)} prompts leave a tie, running {len(texts)}"
                report_step(self.on_progress, running)
                chosen, stage.texts = replace(chosen, prompts=chosen.prompts + spare), texts
                results = measure_answers(stage, self.notes, read)
        for result in results:
            if result.choice is not None:
                answers = answers.choosing(result.choice, Origin("measured", result.evidence))
        prompts, digest = len(chosen.prompts), digest_prompts(chosen.prompts)
        common = {
            "prompts": {"name": chosen.file or "built-in", "sha256": digest, "count": prompts},
            "target": self.target.name or self.target.repo or self.folder.name,
            "k": K,
            "eaglectl": eaglectl.__version__,
        }
        # ties too
        record = {"measured": [result.record | common for result in results]} if results else {}
        return OpenQuestions(answers, results, record=record)

    def _plan(self, choices: "Options") -> "ConversionPlan":
        """The plan with these choices. Raises UsageError or RefusedError where the files do not fit them."""
        answers = reduce(Answers.choosing, choices, replace(self.options.answers, assume=False))
        given = self.options.request
        wanted = ConversionRequest(drop=given.drop, rope_style=given.rope_style, fixes=given.fixes)
        drafter = read_drafter(self.files.checkpoint, answers, self.target)
        selected = selected_tokens_of(self.files.original, drafter)
        return make_plan(self.files.checkpoint, drafter, wanted, answers, selected)

    def _write(self, plan: "ConversionPlan", place: Path) -> None:
        """Write a plan for the reference, with links where bytes do not change."""
        files = self.files
        originals = files.pickles or files.checkpoint.weight_files
        write_plan(
            plan, files.checkpoint, files.original, originals, WriteOptions(place, link=not files.pickles)
        )

    def _loaded(
        self, choices: "Options", stage: "Stage", first: "ConversionPlan", scratch: Path
    ) -> "LoadedReading | None":
        """The reading with these choices, made ready to run; None where the files do not fit them.

        One whose tensors are written as those of the `first` shares its weights.
        """
        from eaglectl.reference.model import DraftModel, load_drafter
        from eaglectl.run.answering import LoadedReading

        try:
            plan = self._plan(choices)
        except (UsageError, RefusedError):
            return None
        drafter, own = plan.drafter, stage.drafter

        def load() -> DraftModel:
            if plan.steps == first.steps:
                return DraftModel(
                    own.weights, drafter.dims, drafter.norms, drafter.rope, own.eps, drafter.windows
                )
            place = scratch / str(sum(1 for _ in scratch.iterdir()))
            self._write(plan, place)
            return load_drafter(place, drafter, dtype=stage.dtype, device=stage.device)

        assert drafter.aux.boundaries is not None
        return LoadedReading(drafter.aux.boundaries, load)

    def _first_plan(self) -> "ConversionPlan":
        """The plan of the first reading that the files fit. Raises UnreadableError where there is none.

        A search of layers begins at the default, or at as many evenly spread ones.
        """
        from eaglectl.run.answering import first_choices

        depth, count, refusal = self.target.depth or 0, self.drafter.dims.aux, ""
        layers = (by_name(self.drafter.producer).training_default or TRAINING_DEFAULT).at(depth)
        if len(set(layers)) != count or list(layers) != sorted(layers) or layers[0] < 0:
            layers = tuple(round(depth * (place + 1) / (count + 1)) for place in range(count))
        for choices in product(*(first_choices(note, layers) for note in self.notes)):
            try:
                return self._plan(choices)
            except (UsageError, RefusedError) as error:
                refusal = str(error)
        raise UnreadableError(refusal)
