"""The job of an engine, its prompts as token ids of the target's tokenizer, and its result.

The tokenizer's chat template is untrusted code, and runs within limits of time and size. At the end of the
module, the reference engine: the target in transformers, the drafter in plain torch. A Stage has both loaded
once, with the prompts of a job, for several runs, drafters or readings.
"""

import ctypes
import json
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.conversion.readings import FixReading, Move, moves
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.engine import NetworkReading
from eaglectl.errors import RefusedError, UnreadableError, UsageError, check, error_text
from eaglectl.files.text_part import text_part
from eaglectl.progress import OnProgress, TimedWork
from eaglectl.run.measurement import PromptResult
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import TOKEN_IDS, Prompt, batches_by_length
from eaglectl.target.files import read_end_tokens, read_target_config, read_tokenizer_config

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel, Weights
    from eaglectl.reference.speculation import DecodingSettings, OnDraftStep
    from eaglectl.reference.target_model import TargetModel


class EngineJob(Struct, frozen=True):
    """A drafter (a folder in vLLM's layout) to run on its target, with prompts and settings.

    `k` is the number of draft tokens in a round (num_speculative_tokens), `max_tokens` the number of new
    tokens for each prompt. With `ignores_eos`, decoding continues past the end of a sequence. `timeout` is in
    seconds. `trust_remote_code` lets the target's own code run. `engine_arguments` are the user's arguments
    for the engine, by name; `start_options` are those that it needs for this drafter. `draft_tokens` has the
    target token of each draft token by the checkpoint, if it was read; `marked_tokens` are those of a t2d
    that contradicts d2t. With `compares_plain`, the engine decodes the prompts without the drafter too.
    """

    folder: Path
    drafter: Drafter
    target: Path
    prompts: tuple[Prompt, ...]
    k: int = 3
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    device: str = "auto"
    timeout: float = 600.0
    trust_remote_code: bool = False
    ignores_eos: bool = False
    on_progress: OnProgress | None = None
    tensor_parallel_size: int = 1
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)
    draft_tokens: tuple[int, ...] | None = None
    marked_tokens: tuple[int, ...] = ()
    compares_plain: bool = True
    start_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_tokenizer(self) -> bool:
        """Whether a prompt is a text, and not token ids."""
        return any(not prompt.token_ids for prompt in self.prompts)


class LogitsCheck(Struct, frozen=True):
    """An engine's draft logits beside the reference's.

    `differences` are the largest of each draft step, as a part of the largest logit (None: an engine's logit
    is not finite), `bound` what rounding in `dtype` explains. `score_factor` is the factor of the engine's
    rotary embedding on attention scores, beside the trained one. `gap`: why the logits were not compared.
    """

    differences: tuple[float | None, ...] = ()
    bound: float | None = None
    dtype: str = ""
    score_factor: float | None = None
    gap: str = ""

    @property
    def first_wrong(self) -> int | None:
        """The first draft step whose logits differ by more than the bound; None if there is none."""
        steps = enumerate(self.differences)
        return next((step for step, off in steps if off is None or (self.bound and off >= self.bound)), None)


class EngineRun(Struct, frozen=True):
    """The result of an engine: a result for each prompt with the drafter, and the tokens of plain decoding.

    `seconds` and `plain_seconds` are the time of all prompts with and without the drafter. `resolved` are the
    settings that the engine reports, `differences` those that contradict the checkpoint, `logits` its draft
    logits beside the reference's. `proves` states for what a run of this engine is evidence. `arguments` are
    the engine arguments of the user.
    """

    engine: str
    version: str
    device: str
    dtype: str
    proves: str
    results: tuple[PromptResult, ...]
    plain: tuple[tuple[int, ...], ...]
    seconds: float
    plain_seconds: float
    resolved: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    logits: LogitsCheck | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runner(self) -> str:
        """The model runner of vLLM that measured: "V1 (CPUModelRunner)"; "" for others."""
        return str(self.resolved.get("runner", ""))

    @property
    def equal_outputs(self) -> int | None:
        """Number of prompts whose output with the drafter equals plain decoding; None if that was not run."""
        if not self.plain:
            return None
        return sum(result.tokens == plain for result, plain in zip(self.results, self.plain, strict=True))


class LoadResult(Result, frozen=True):
    """The result of loading a checkpoint with vLLM's drafter class and loader.

    `version` is vLLM's release, `unfilled` are parameters that no file fills, `resolved` the settings of the
    class, `shared` parameters that vLLM takes from the target. With `trust_remote_code`, the target's own
    code was allowed to run.
    """

    version: str
    unfilled: tuple[str, ...]
    resolved: Mapping[str, Any]
    trust_remote_code: bool = False
    shared: tuple[str, ...] = ()


# a template takes milliseconds; a text of a million tokens has some MB
SECONDS = 10.0
MAX_TEXT = 16 << 20
# address space that rendering may add to the process's
MAX_MEMORY = 2 << 30


def tokenise(job: EngineJob) -> list[list[int]]:
    """Return the token ids of each prompt of `job`; the tokenizer is loaded if a prompt is a text.

    Raises UnreadableError if tokenizer or chat template fail, UsageError for a prompt that is empty, has ids
    beyond the target's vocabulary, or with its new and draft tokens is longer than the context.
    """
    check_token_ids(job)
    context_length, tokenizer = read_context_length(job.target), _tokenizer(job)
    texts = []
    for number, prompt in enumerate(job.prompts, 1):
        try:
            ids = list(prompt.token_ids) or token_ids(tokenizer, prompt)
        except UsageError as error:
            raise error.reworded(f"{_name(number, prompt)}: {error}") from None
        except Exception as error:  # a chat template is a program
            raise UnreadableError(
                f"the tokenizer or chat template of the target {job.target} fails on {_name(number, prompt)}:"
                f" {error_text(error)}; use the target's original files, or remove the prompt"
            ) from None
        most = len(ids) if context_length is None else max(context_length - job.max_tokens - job.k, 0)
        check(
            (not ids, f'a prompt of set "{prompt.set}" has no tokens; remove it'),
            (
                len(ids) > most,
                f"{_name(number, prompt)} has {len(ids)} tokens, but the target's context of {context_length}"
                f" has room for {most} before {job.max_tokens} new tokens and {job.k} draft tokens; shorten"
                " the prompt, or request fewer new tokens",
            ),
        )
        texts.append(ids)
    return texts


def _tokenizer(job: EngineJob) -> Any:
    return tokenizer_of(job.target, job.trust_remote_code) if job.needs_tokenizer else None


def tokenizer_of(target: Path, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a target; within `share_loaded_targets` it is loaded once."""
    from eaglectl.reference.target_model import load_tokenizer

    key = "tokenizer", target, trust_remote_code
    return _load_shared(key, partial(load_tokenizer, target, trust_remote_code=trust_remote_code))


def _load_shared(key: object, load: Callable[[], Any]) -> Any:
    # what `load` returns; inside `share_loaded_targets` it is called once for a key
    loaded = {} if (shared := LOADED.get()) is None else shared
    if key not in loaded:
        loaded[key] = load()
    return loaded[key]


def check_token_ids(job: EngineJob) -> None:
    """Raise UsageError for a prompt with ids beyond the target's vocabulary.

    Raises UnreadableError if the target's config does not state its vocabulary.
    """
    with_ids = [(number, prompt) for number, prompt in enumerate(job.prompts, 1) if prompt.token_ids]
    if not with_ids:
        return
    vocab = text_part(read_target_config(job.target)).get("vocab_size")
    if type(vocab) is not int:
        raise UnreadableError(
            f"the target {job.target} has no vocab_size in its config.json, which is needed to check"
            f" {TOKEN_IDS}; use the target's original file"
        )
    for number, prompt in with_ids:
        if max(prompt.token_ids) >= vocab:
            raise UsageError(
                f"{_name(number, prompt)} has token id {max(prompt.token_ids)}, but the target has {vocab}"
                " tokens; use prompts of this target's tokenizer"
            )


def _name(number: int, prompt: Prompt) -> str:
    return f"prompt {number}" + (f" ({prompt.place})" if prompt.place else "")


def token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Return the token ids of one prompt.

    Messages go through the tokenizer's chat template, which transformers runs in jinja's sandbox, within
    limits of time and size. So does a text marked as chat, if the tokenizer has a template.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if prompt.messages and not has_template:
        raise UsageError(
            "the target's tokenizer has no chat template for messages; put its chat_template.jinja beside it,"
            " or pass the prompts as text"
        )
    if prompt.messages or (prompt.is_chat and has_template):
        apply = partial(
            tokenizer.apply_chat_template,
            [_with_arguments(message) for message in chat_messages(prompt)],
            tools=list(prompt.tools) or None,
            **{"add_generation_prompt": True, **prompt.template_arguments},
        )
        rendered(partial(apply, tokenize=False))  # first, as the tokenizer accepts text of any size
        with within_time():
            return list(apply(return_dict=False))
    return list(tokenizer(prompt.text)["input_ids"])


def stop_tokens(job: EngineJob) -> frozenset[int]:
    """Return the tokens that end an answer: those of the target's generation config, and its tokenizer's.

    Empty if `job` ignores them. vLLM 0.32.0 stops at the same (SamplingParams.update_from_generation_config).
    """
    if job.ignores_eos:
        return frozenset()
    token = getattr(_tokenizer(job), "eos_token_id", None)
    return frozenset([*read_end_tokens(job.target), *([token] if isinstance(token, int) else ())])


def chat_messages(prompt: Prompt) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of a chat prompt; a text is one user message."""
    return prompt.messages or ({"role": "user", "content": prompt.text},)


def has_chat_template(target: Path) -> bool:
    """Whether the target's tokenizer has a chat template."""
    return (target / "chat_template.jinja").is_file() or "chat_template" in read_tokenizer_config(target)


def _with_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with the arguments of its tool calls, which are JSON texts, as objects.

    vLLM 0.32.0 parses them too before the template (entrypoints/chat_utils.py).
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    parsed = []
    for call in calls:
        match call:
            case {"function": {"arguments": str() as text, **function}}:
                call = {**call, "function": {**function, "arguments": json.loads(text or "{}")}}
        parsed.append(call)
    return {**message, "tool_calls": parsed}


def read_context_length(target: Path) -> int | None:
    """Read max_position_embeddings from a target's config.json, without loading the model."""
    length = text_part(read_target_config(target)).get("max_position_embeddings")
    return length if type(length) is int else None


class TemplateLimitError(Exception):
    """A template takes longer, or writes more, than any template needs."""

    def __init__(self, text: str = f"it takes more than {SECONDS:g} s") -> None:
        super().__init__(text)


def rendered(render: Callable[[], str]) -> str:
    """Run a chat template and return its text.

    Raises TemplateLimitError, MemoryError if it needs more than MAX_MEMORY, and whatever `render` raises.
    """
    with within_time(), _within_memory():
        text = render()
    if len(text) > MAX_TEXT:
        raise TemplateLimitError(f"it writes {len(text)} characters; the limit is {MAX_TEXT}")
    return text


def within_time() -> AbstractContextManager[None]:
    """Raise TemplateLimitError in this thread after the time limit, as jinja's sandbox limits no loops."""
    is_free = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not any(
        signal.getitimer(signal.ITIMER_REAL)
    )
    is_main = threading.current_thread() is threading.main_thread()
    return _within_alarm() if is_main and is_free else _within_timer()


@contextmanager
def _within_alarm() -> Iterator[None]:
    """Limit the time by a signal, which ends long arithmetic (9 ** 99999999) and regular expressions too."""

    def end(*_: object) -> None:
        raise TemplateLimitError

    signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def _within_timer() -> Iterator[None]:
    """Limit the time by a thread, if the signal is not available; it only acts between two steps of Python.

    An exception that was set but not raised yet is raised at the call of `cancel`. It is not withdrawn:
    CPython 3.11 would look for one at every later call, and hang while tracing.
    """
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def end() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TemplateLimitError))

    timer = threading.Timer(SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
        timer.join()


@contextmanager
def _within_memory() -> Iterator[None]:
    # in the block, the process may use MAX_MEMORY more than now; no limit if its present use is unknown
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        yield
        return
    most = pages * resource.getpagesize() + MAX_MEMORY
    if limits[0] == resource.RLIM_INFINITY or most < limits[0]:
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


OnDone = Callable[[float], None]  # called with the number of prompts done since the last call
# the shared targets and tokenizers, by the arguments of loading; None: each stage loads its own
LOADED: ContextVar[dict[object, Any] | None] = ContextVar("LOADED", default=None)


class Candidate(Struct, frozen=True):
    """A reading: the option of `convert` for it, the drafter with this reading, and its aux boundaries.

    `reading` is set if tensors move; the tensors of `drafter` are the stored ones. `tokens` are the target
    tokens of the draft tokens, if they are not those of d2t; None for a row that is left out.
    """

    name: str
    option: str
    drafter: Drafter
    boundaries: tuple[int, ...]
    is_d2t_absolute: bool = False
    reading: FixReading | None = None
    tokens: tuple[int | None, ...] = ()


@contextmanager
def share_loaded_targets() -> Iterator[None]:
    """Let all runs in the block share loaded targets and tokenizers."""
    token = LOADED.set({} if LOADED.get() is None else LOADED.get())
    try:
        yield
    finally:
        LOADED.reset(token)


class Stage:
    """The target and the drafter, loaded once, with the prompts of a job as token ids."""

    def __init__(self, job: EngineJob) -> None:
        from eaglectl.reference import target_model as targets

        self.job = job
        self.boundaries = job.drafter.aux.boundaries or ()
        self.device, self.dtype = targets.choose_device(job.device)
        load = partial(
            targets.load_target,
            job.target,
            self.boundaries,
            dtype=self.dtype,
            device=self.device,
            trust_remote_code=job.trust_remote_code,
            on_progress=job.on_progress,
        )
        self.target: TargetModel = _load_shared(
            (job.target, self.dtype, self.device, job.trust_remote_code), load
        )
        self.target.record(self.boundaries)
        self.texts, self.stop = tokenise(job), stop_tokens(job)
        self.drafter = self.load(job.folder, job.drafter)

    def load(self, folder: "Path", drafter: Drafter) -> "DraftModel":
        """Load the model of a drafter in vLLM's layout, on the stage's device."""
        from eaglectl.reference.model import load_drafter

        return load_drafter(folder, drafter, dtype=self.dtype, device=self.device)

    def model(self, candidate: Candidate) -> "DraftModel | None":
        """Return the drafter as `candidate` reads it; None for d2t as absolute ids past the vocabulary.

        Tensors move as its reading says, and its tokens make a new d2t; rows without a token are left out of
        d2t and lm_head. Dimensions, norms, rope and windows are those of its drafter.

        Raises RefusedError for a rope that the reference does not have.
        """
        from eaglectl.reference.model import DraftModel

        weights, read_as, tokens = self.drafter.weights, candidate.drafter, candidate.tokens
        if candidate.reading is not None:
            weights = moved_weights(
                weights, moves(self.job.drafter, candidate.reading.key, candidate.reading.value)
            )
        d2t = weights.get("d2t")
        if candidate.is_d2t_absolute:
            if d2t is None or int(d2t.min()) < 0 or int(d2t.max()) >= len(self.target.embedding):
                return None
            tokens = d2t.tolist()
        if tokens and d2t is not None:
            tokens_by_row = {row: token for row, token in enumerate(tokens) if token is not None}
            table = d2t.new_tensor([*tokens_by_row.values()]) - d2t.new_tensor(range(len(tokens_by_row)))
            weights = {**weights, "d2t": table}
            if len(tokens_by_row) < len(tokens):
                weights = {**weights, "lm_head.weight": weights["lm_head.weight"][[*tokens_by_row]]}
        return DraftModel(
            weights, read_as.dims, read_as.norms, read_as.rope, self.drafter.eps, read_as.windows
        )

    def run(
        self,
        model: "DraftModel | None",
        texts: Sequence[Sequence[int]] | None = None,
        boundaries: tuple[int, ...] | None = None,
        on_draft_step: "OnDraftStep | None" = None,
        on_done: OnDone | None = None,
        k: int | None = None,
    ) -> list[PromptResult]:
        """Run `model` on the job's prompts or `texts`, with the stage's aux boundaries and k or others.

        Without a model, decode plainly.
        """
        from eaglectl.reference.speculation import DecodingSettings

        job = self.job
        settings = DecodingSettings(k or job.k, job.max_tokens, job.temperature, job.seed, self.stop)
        self.target.record(self.boundaries if boundaries is None else boundaries)
        if texts is not None:
            return decode_prompts(self.target, model, texts, settings, on_draft_step, on_done)
        results = decode_prompts(self.target, model, self.texts, settings, on_draft_step, on_done)
        return [replace(result, set=prompt.set) for result, prompt in zip(results, job.prompts, strict=True)]


def moved_weights(weights: "Weights", moved: Iterable[Move]) -> "Weights":
    """Return the weights with each moved tensor computed from its sources."""
    from eaglectl.reference.model import concatenated  # late: it loads torch

    computed = {}
    for move in moved:
        tensor = weights[move.source] + move.added if move.added else weights[move.source]
        if move.beside:
            tensor = concatenated([tensor, *(weights[name] for name in move.beside)])
        if move.rows is not None:
            tensor = tensor[list(move.rows)]
        if move.blocks is not None:
            tensor = tensor.unflatten(-1, (len(move.blocks), -1))[..., list(move.blocks), :].flatten(-2)
        computed[move.name] = tensor
    return {**weights, **computed}


def decode_prompts(
    target: "TargetModel",
    drafter: "DraftModel | None",
    texts: Sequence[Sequence[int]],
    settings: "DecodingSettings",
    on_draft_step: "OnDraftStep | None" = None,
    on_done: OnDone | None = None,
) -> list[PromptResult]:
    """Decode every tokenised prompt, in batches by length; results in the order of `texts`."""
    from eaglectl.reference.speculation import SpeculativeDecoder

    decoder = SpeculativeDecoder(target, drafter, settings, on_draft_step)
    results: dict[int, PromptResult] = {}
    reported = 0.0

    def report(done: float) -> None:
        nonlocal reported
        if on_done:
            on_done(len(results) + done - reported)
        reported = len(results) + done

    for indices in batches_by_length(texts, settings.max_tokens):
        sequences = decoder.run([texts[index] for index in indices], report)
        for index, sequence in zip(indices, sequences, strict=True):
            results[index] = PromptResult(
                "probe", sequence.drafts, sequence.accepted, sequence.tokens, sequence.rounds
            )
        report(0.0)
    return [results[index] for index in range(len(texts))]


def run_reference(job: EngineJob, reading: NetworkReading | None = None) -> EngineRun:
    """Run `job` in torch, with the drafter and, if the job compares, without.

    With `reading`, run the network as that engine builds it, and skip the run without a drafter. Raises
    UnreadableError without torch or the device, UsageError for unknown aux layers or prompts that do not fit,
    RefusedError for a drafter that drafts in parallel.
    """
    require_torch("the reference engine needs")
    from eaglectl.reference.target_model import version_text

    if job.drafter.aux.boundaries is None:
        raise UsageError("the trained aux layers are unknown; pass --aux-layers", options=("--aux-layers",))
    if Feature.PARALLEL in job.drafter.features():
        raise RefusedError(
            "the reference engine drafts one token after another, but this drafter drafts in parallel"
            " (mask_hidden); use --run-in vllm",
            options=("--run-in",),
        )
    with_plain = job.compares_plain and reading is None
    work = TimedWork(job.on_progress, "measuring", (1 + with_plain) * len(job.prompts))
    stage = Stage(job)
    boundaries, model = stage.boundaries, stage.drafter
    if reading is not None:
        boundaries = reading.boundaries or boundaries
        as_read = stage.model(Candidate(reading.words, "", reading.applied_to(job.drafter), boundaries))
        assert as_read is not None  # None is for d2t read as absolute ids
        model = as_read
    work.start()
    begin = time.perf_counter()
    results = stage.run(model, boundaries=boundaries, on_done=work.add)
    middle = time.perf_counter()
    plain = stage.run(None, on_done=work.add) if with_plain else []
    return EngineRun(
        engine="reference",
        version=version_text(),
        device=stage.device,
        dtype=stage.dtype,
        proves=f"the drafter {reading.words}; not the engine itself"
        if reading
        else "the drafter's maths and its fit to the target; not what an engine loads",
        results=tuple(results),
        plain=tuple(result.tokens for result in plain),
        seconds=middle - begin,
        plain_seconds=time.perf_counter() - middle,
        resolved={
            "boundaries": list(boundaries),
            "attention": job.drafter.dims.attention,
            "draft_sample_method": "greedy",
        },
    )
