"""The options of the commands that read drafters, a field each (see eaglectl/options.py)."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import field
from msgspec.structs import replace

from eaglectl.conversion.plan import FC_NORM_MODES, WRITING, ConversionRequest
from eaglectl.engines.registry import ENGINE, EngineRequest, default_requests, parse_engine, read_engine
from eaglectl.errors import OutdatedError, check
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy, Severity, read_policy
from eaglectl.options import NO_ENGINES, NUMBER, TARGET, Option, Options

PassedTo = TypeVar("PassedTo", bound=Options)
SIZE = r"(?i)(\d+(?:\.\d+)?)\s*([KMGT]?)B?"
# engines that run here where they are installed
INSTALLED = ("vllm", "sglang")
TIMED = ("vllm",)
TOLERANCE = 0.97
MOST_NUMBER = 1024  # of requests at a time
NUMBERS = f"different whole numbers from 1 to {MOST_NUMBER} in rising order, like 1,4,16,"
# groups of --help
ADVANCED = "Advanced"
RUN = "The run of the target"
UPGRADE = "EAGLE-3 as 3.1 (with --to 3.1)"

PROMPTS = Option(
    "Prompts like production's, as for `smoke`; built-in ones otherwise.", value="FILE", complete="files"
)
SAMPLE = Option("Take this many of the prompts, drawn by --seed.")
SEED = Option("The seed of --sample.")
IGNORE_EOS = Option("Let answers go on past the end of a sequence.")
DEVICES = ("auto", "cuda", "cpu")
TOP_UP = Option("Beside --prompts, take built-in ones as far as a refit and the gate need more.", "--top-up")
TRUST = Option("Let the target's own code run (auto_map in its files). Never done unasked.")
K = Option("Draft tokens in a round.", "-k, --num-speculative-tokens", group=ADVANCED)


def _read_arguments(texts: Sequence[str]) -> Mapping[str, Any]:
    from eaglectl.run.installed import parse_engine_arguments  # late: few commands have them

    return parse_engine_arguments(texts)


def is_server(text: str) -> bool:
    """Whether what runs is the URL of a server."""
    return text.startswith(("http://", "https://"))


ENGINE_ARGUMENTS = Option(
    "An argument of the engine itself, with its value in JSON, like quantization=fp8. May be given several"
    " times.",
    "--engine-arg",
    value="KEY=VALUE",
    group=ADVANCED,
    read=_read_arguments,
)
TENSOR_PARALLEL = Option("GPUs that vLLM or SGLang spreads the target over.", group=ADVANCED)
MEASURE = Option(
    "Measure on the target, where its weights are here, what the file leaves open.",
    "--measure/--no-measure",
)


def _read_size(text: str) -> int:
    match = re.fullmatch(SIZE, text.strip())
    size = float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " ") if match else 0.0
    if not 1 <= size < math.inf:
        raise ValueError("a size like 500MB or 2GB")
    return int(size)


def is_rising(numbers: Sequence[int]) -> bool:
    """Whether these are different numbers from 1 to MOST_NUMBER in rising order, one or more."""
    return bool(numbers) and list(numbers) == sorted({*numbers} & {*range(1, MOST_NUMBER + 1)})


def read_numbers(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between them, in any order. Raises ValueError."""
    parts = text.split(",")
    numbers = tuple(sorted(int(part) for part in parts if re.fullmatch(NUMBER, part.strip())))
    if len(numbers) < len(parts) or not is_rising(numbers):
        raise ValueError(NUMBERS)
    return numbers


SPEED = Option(
    "Tokens a second too, with and without the drafter, of so many requests at a time: 1,4,16. Of vLLM on a"
    " GPU with CUDA graphs, or of a running server.",
    value="1,4,16",
    read=read_numbers,
)
COVERAGE = "What the draft vocabulary holds"
WRITE_COUNTS = Option(
    "Write how often each token came in the answers, for `convert --draft-vocab` or a trainer.",
    value="FILE",
    complete="files",
)


class InspectOptions(Options, frozen=True):
    """Options of `inspect`."""

    target: Annotated[str | None, TARGET] = None
    engines: Annotated[tuple[EngineRequest, ...], ENGINE] = ()
    prompts: Annotated[
        str | None,
        Option(
            "Texts like the target's answers, in a file as for `smoke`: what share of their tokens the draft"
            " vocabulary holds, by the target's tokenizer.",
            value="FILE",
            group=COVERAGE,
            complete="files",
        ),
    ] = None
    token_counts: Annotated[
        str | None,
        Option(
            "The same of counted tokens: JSON, or lines of an id and a count.",
            value="FILE",
            group=COVERAGE,
            complete="files",
        ),
    ] = None
    write_token_counts: Annotated[
        str | None,
        replace(WRITE_COUNTS, help="Write how often each token came in --prompts.", group=COVERAGE),
    ] = None
    answers: Answers = field(default_factory=Answers)


class DiffOptions(Options, frozen=True):
    """Options of `diff`. The target is of both; left out, of each the one that it names.

    The answers go to the side whose files leave the question open.
    """

    target: Annotated[str | None, TARGET] = None
    headers_only: Annotated[
        bool, Option("Read no tensor data, and download none; values are then not compared.")
    ] = False
    answers: Answers = field(default_factory=Answers)


class ValidateOptions(Options, frozen=True):
    """Options of `validate`.

    `policy` is a policy or the path of one; without it there is none, as only the command line searches for
    a file.
    """

    target: Annotated[str | None, TARGET] = None
    engines: Annotated[tuple[EngineRequest, ...], replace(ENGINE, read=read_engine)] = ()
    select: Annotated[
        tuple[str, ...],
        Option("Only these rules: EGL201, a name, EGL2.", value="RULE", group="Rules", complete="rules"),
    ] = ()
    ignore: Annotated[
        tuple[str, ...], Option("Not these rules.", value="RULE", group="Rules", complete="rules")
    ] = ()
    fail_on: Annotated[
        Severity | Literal["never"] | None,
        Option(
            "The least severity that fails: error (the default), warning, note or never.",
            value="error|warning|note|never",
            group="Rules",
            choices=("error", "warning", "note", "never"),
        ),
    ] = None
    policy: Annotated[
        Policy | str | None,
        Option(
            "What to ask for beyond the rules; by default the nearest eaglectl.toml, or pyproject.toml with"
            " [tool.eaglectl], from here upwards, and none in a checkpoint or a download.",
            value="FILE",
            group="Rules",
            complete="files",
        ),
    ] = None
    headers_only: Annotated[bool, Option("Read no tensor data.")] = False
    answers: Answers = field(default_factory=Answers)
    skip_others: Annotated[
        bool,
        Option(
            "Skip folders without a mark of a drafter, as hooks and globs name them: a target, another"
            " tool's config.json. What has a mark and cannot be read is not skipped."
        ),
    ] = False
    has_engines: Annotated[bool, NO_ENGINES] = True

    def requests(self, policy: Policy) -> tuple[EngineRequest, ...]:
        """The engine releases to judge for. Raises OutdatedError for one that no data is of."""

        if not self.has_engines:
            return ()
        requests = self.engines or tuple(map(read_engine, policy.engines)) or default_requests()
        check(*((request.outdated, request.outdated) for request in requests), error=OutdatedError)
        return requests

    def read_policy(self) -> Policy:
        """The policy, read from its file where `policy` is a path. Raises UsageError."""

        return read_policy(self.policy) if isinstance(self.policy, str) else self.policy or Policy()

    def least_severity(self, policy: Policy) -> Severity | None:
        """The lowest severity that fails under a policy; None where nothing fails."""
        severity = self.fail_on or policy.fail_on or "error"
        return None if severity == "never" else severity


class MeasureOptions(Options, frozen=True):
    """How what a drafter's files leave open is measured: prompts as of `smoke`, and where the target runs."""

    prompts: Annotated[
        str | None,
        Option(
            "Prompts like production's: to measure what the file leaves open; --to 3.1, for calibration and"
            " the gate.",
            value="FILE",
            group=RUN,
            complete="files",
        ),
    ] = None
    sample: Annotated[int | None, replace(SAMPLE, group=RUN)] = None
    seed: Annotated[int, replace(SEED, group=RUN)] = 0
    device: Annotated[
        str, Option("Of what runs the target: auto, cuda or cpu.", group=RUN, choices=DEVICES)
    ] = "auto"
    max_tokens: int = 64
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=RUN)] = False
    trust_remote_code: Annotated[bool, replace(TRUST, group=RUN)] = False


class ConvertOptions(ConversionRequest, frozen=True):
    """What `convert` writes, what is known of the source, and how files are written.

    `measure`: how open questions are measured where the target's weights are here; None: they are asked.
    """

    force_unserved: Annotated[
        bool,
        Option(
            "Write what no release of the engines asked for runs as trained; eaglectl.json and the card say"
            " so.",
            group=WRITING,
        ),
    ] = False

    target: Annotated[
        str | None,
        Option(
            "The target model: its folder, config.json or Hub repository. Its config is read; it is run where"
            " the file leaves something open and by --to 3.1, and --materialize-lm-head copies its head. Left"
            " out, the one that the checkpoint names, if it is here.",
            value="MODEL",
            complete="checkpoints",
        ),
    ] = None
    target_name: Annotated[
        str | None,
        Option("What published files call the target, like org/name.", value="ORG/NAME", group=WRITING),
    ] = None
    target_rotation: Annotated[
        str | None,
        Option(
            "Follow a target whose residual stream is rotated (QuaRot, SpinQuant): the matrix's file, or"
            " measure."
        ),
    ] = None
    trained_target: Annotated[
        str | None,
        Option(
            "With --target-rotation: the target of training, where the drafter takes its embedding or"
            " lm_head.",
            complete="checkpoints",
        ),
    ] = None
    answers: Answers = field(default_factory=Answers)
    dry_run: Annotated[bool, Option("Print the plan and write nothing.", group=WRITING)] = False
    force: Annotated[bool, Option("Replace an existing checkpoint folder at OUT.", group=WRITING)] = False
    link: Annotated[
        bool,
        Option(
            "Hard-link weight files that do not change: an edit of one in OUT changes the source too.",
            group=WRITING,
        ),
    ] = False
    max_shard_size: Annotated[
        int | None,
        Option(
            "Split the weights into files of at most this, like 2GB.",
            value="SIZE",
            group=WRITING,
            read=_read_size,
        ),
    ] = None
    measure: Annotated[MeasureOptions | None, MEASURE] = field(default_factory=MeasureOptions)

    def answered(self, answers: Answers, record: Mapping[str, Any]) -> "ConvertOptions":
        """The same with answers, and their evidence for eaglectl.json."""
        return replace(self, answers=answers, record={**self.record, **record})


class UpgradeOptions(MeasureOptions, frozen=True):
    """How EAGLE-3 becomes 3.1; without `statistics`, calibration runs on the prompts.

    At most `max_tokens` tokens are generated per prompt in the gate.
    """

    fc_norm: Annotated[
        str,
        Option(
            "--to 3.1: refit (scales, and fc fitted again), calibrated (scales), off.",
            value="refit|calibrated|off",
            group=UPGRADE,
            choices=FC_NORM_MODES,
        ),
    ] = "refit"
    is_norm_output: Annotated[
        bool,
        Option(
            "--to 3.1: feed the state after the norm back.",
            "--norm-output/--no-norm-output",
            group=UPGRADE,
        ),
    ] = True
    statistics: Annotated[
        Path | None,
        Option(
            "--to 3.1: statistics from `eaglectl calibrate`.",
            "--calibration",
            value="DIR",
            group=UPGRADE,
            complete="folders",
        ),
    ] = None
    tolerance: Annotated[
        float, Option("--to 3.1: the least ratio of acceptance that the gate lets pass.", group=UPGRADE)
    ] = TOLERANCE
    has_gate: Annotated[
        bool,
        Option("--to 3.1: measure acceptance before anything is written.", "--gate/--no-gate", group=UPGRADE),
    ] = True
    tops_up: Annotated[bool, replace(TOP_UP, group=UPGRADE)] = False
    is_start: Annotated[
        bool,
        Option("--to 3.1: a start for a trainer, marked as untrained.", "--init-only", group=UPGRADE),
    ] = False

    @property
    def is_measured(self) -> bool:
        """Whether the gate runs."""
        return self.has_gate and not self.is_start


class RunOptions(Options, frozen=True):
    """How a target is run, and what is known of the drafter that is run with it."""

    sample: Annotated[int | None, replace(SAMPLE, group=ADVANCED)] = None
    seed: Annotated[int, Option("For --sample, and for tokens at a temperature.", group=ADVANCED)] = 0
    device: Annotated[str, Option("auto, cuda or cpu.", group=ADVANCED, choices=DEVICES)] = "auto"
    timeout: Annotated[
        float, Option("Seconds for the engine's run, or each request to a server.", group=ADVANCED)
    ] = 600.0
    trust_remote_code: Annotated[bool, replace(TRUST, group=ADVANCED)] = False
    answers: Answers = field(default_factory=Answers)

    def passed_to(self, record: type[PassedTo], **changed: Any) -> PassedTo:
        """The options of another command, from those of the same name here but for the `changed` ones."""
        shared = {*self.__struct_fields__} & {*record.__struct_fields__} - changed.keys()
        return record(**{name: getattr(self, name) for name in shared}, **changed)


class DraftOptions(RunOptions, frozen=True):
    """How a drafter is run with its target."""

    max_tokens: Annotated[int, Option("New tokens for each prompt.")] = 64
    temperature: Annotated[float, Option("0 is greedy.", group=ADVANCED)] = 0.0


class CalibrateOptions(RunOptions, frozen=True):
    """Options of `calibrate`."""

    prompts: Annotated[str | None, PROMPTS] = None
    seed: Annotated[int, replace(SEED, group=ADVANCED)] = 0
    answer_tokens: Annotated[
        int, Option("Tokens of the target's own answer to each prompt that count too.", least=1)
    ] = 64
    tops_up: Annotated[bool, replace(TOP_UP, group=ADVANCED)] = False
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=ADVANCED)] = False
    run_in: Annotated[
        str,
        Option(
            "What runs the target: transformers, or the installed vLLM (vllm).",
            choices=("transformers", "vllm"),
        ),
    ] = "transformers"
    tensor_parallel_size: Annotated[
        int, Option("GPUs that vLLM spreads the target over.", group=ADVANCED)
    ] = 1
    timeout: Annotated[
        float, Option("Seconds for vLLM to load the target, and for each batch after that.", group=ADVANCED)
    ] = 1800.0
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)
    force: Annotated[bool, Option("Replace an existing folder at OUT.")] = False
    measure: Annotated[bool, MEASURE] = True

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None where they are not."""
        if not self.measure:
            return None
        return MeasureOptions(
            self.prompts,
            self.sample,
            self.seed,
            self.device,
            self.answer_tokens,
            self.ignore_eos,
            self.trust_remote_code,
        )


class SmokeOptions(DraftOptions, frozen=True):
    """Options of `smoke`."""

    run_in: Annotated[
        str,
        Option(
            "What runs it: auto (vLLM where it is installed, else the reference), vllm, sglang, reference, or"
            " the URL of a running server, to which requests go directly, without proxies.",
            value="RUNNER",
            complete="runners",
        ),
    ] = "auto"
    k: Annotated[int, replace(K, group="")] = 3
    speed: Annotated[tuple[int, ...] | None, SPEED] = None
    prompts: Annotated[
        str | None,
        Option(
            "A file of prompts: plain lines, or JSON lines with messages (OpenAI's chat format), prompt or"
            " prompt_token_ids; built-in ones otherwise.",
            value="FILE",
            complete="files",
        ),
    ] = None
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=ADVANCED)] = False
    lossless: Annotated[
        bool,
        Option(
            "Decode without the drafter too, and compare the answers; without it vLLM and SGLang start once.",
            "--lossless/--no-lossless",
            group=ADVANCED,
        ),
    ] = True
    against: Annotated[
        str | None,
        Option(
            "An older drafter on the same prompts; fail where SOURCE is worse on a set. Of a server: whether"
            " it drafts as that one.",
            value="DRAFTER",
            group="What must hold",
            complete="checkpoints",
        ),
    ] = None
    compare_files: Annotated[
        bool | None,
        Option(
            "Of a server: run the files on the target here too, and fail where it does not draft as they do."
            " Left out, where the target is small.",
            "--compare-files/--no-compare-files",
            group="What must hold",
        ),
    ] = None
    max_regression: Annotated[
        float | None,
        Option(
            "--against: the least that the lower bound of the ratio may be on each set; 0.97.",
            group="What must hold",
        ),
    ] = None
    min_acceptance_length: Annotated[float | None, Option("Fail below this.", group="What must hold")] = None
    min_position_0: Annotated[
        float | None,
        Option("Fail where the first draft token is accepted less often.", group="What must hold"),
    ] = None
    timeout: Annotated[
        float,
        Option("Seconds after which an engine is stopped, or each request to a server.", group=ADVANCED),
    ] = 600.0
    write_token_counts: Annotated[str | None, replace(WRITE_COUNTS, group=ADVANCED)] = None
    probe: Annotated[
        str | None,
        Option(
            "sensitivity: doubtful settings the other way; drift: other prompts, to depth 7.",
            value="sensitivity|drift",
            choices=("sensitivity", "drift"),
        ),
    ] = None
    tensor_parallel_size: Annotated[int, TENSOR_PARALLEL] = 1
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)

    @property
    def needs_match(self) -> bool:
        """Whether a server has to be compared with files, so that not being able to is no note."""
        return self.against is not None or self.compare_files is True

    @property
    def has_threshold(self) -> bool:
        """Whether acceptance is to be held to a least value, which needs no files."""
        return self.min_acceptance_length is not None or self.min_position_0 is not None


class DiagnoseOptions(DraftOptions, frozen=True):
    """Options of `diagnose`."""

    engine: Annotated[
        EngineRequest | None,
        Option(
            "The engine where acceptance is low: vllm, sglang==0.5.23. It is run where that release is"
            " installed here.",
            value="ENGINE",
            complete="engines",
            read=parse_engine,
        ),
    ] = None
    run_in: Annotated[
        str | None,
        Option(
            "What runs it beside the reference: vllm, sglang, or the URL of a running server; reference alone"
            " runs no engine. Left out, the engine of --engine.",
            value="RUNNER",
            complete="runners",
        ),
    ] = None
    prompts: Annotated[str | None, PROMPTS] = None
    k: Annotated[int, K] = 3
    temperature: Annotated[float, Option("Production's, to see what sampling costs.")] = 0.0
    expected: Annotated[
        float | None, Option("The acceptance length that training reported; lower is low.")
    ] = None
    measure: Annotated[bool, MEASURE] = True

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None: they are not."""
        return self.passed_to(MeasureOptions) if self.measure else None


class ReadyOptions(DraftOptions, frozen=True):
    """Options of `ready`."""

    engines: Annotated[
        tuple[EngineRequest, ...],
        replace(
            ENGINE,
            help="An engine that shall serve it: vllm, sglang==0.5.23, llama.cpp; without a release the one"
            " installed here, else the newest. Left out: those installed here, and the newest vLLM and"
            " SGLang. May be given several times.",
        ),
    ] = ()
    run_in: Annotated[
        tuple[str, ...],
        Option(
            "What runs it: vllm, sglang, reference, or the URL of a running server. Left out, each engine"
            " that is installed here, and the reference for the others. May be given several times.",
            value="RUNNER",
            complete="runners",
        ),
    ] = ()
    seed: Annotated[int, replace(SEED, group=ADVANCED)] = 0
    prompts: Annotated[
        str | None,
        Option(
            "A file of prompts or a named set, as for `smoke`; else built-in ones.",
            value="FILE",
            complete="files",
        ),
    ] = None
    k: Annotated[int, K] = 3
    tensor_parallel_size: Annotated[int, TENSOR_PARALLEL] = 1
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)
    measure: Annotated[bool, MEASURE] = True

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of running servers."""
        return tuple(filter(is_server, self.run_in))

    @property
    def is_named(self) -> bool:
        """Whether it is said which engines shall serve the drafter, and not all that are known."""
        return bool(self.engines or (self.servers and not self.runners))

    @property
    def runners(self) -> tuple[str, ...]:
        """What alone runs here; none: all that is installed."""
        return tuple(text for text in self.run_in if not is_server(text))

    def smoke_options(self, engine: str, answers: Answers) -> SmokeOptions:
        """The options of one run; a server loads the target itself, and takes no code of it.

        What is for installed engines alone, the reference and servers are not given.
        """
        is_installed, is_remote = engine in INSTALLED, is_server(engine)
        return self.passed_to(
            SmokeOptions,
            run_in=engine,
            trust_remote_code=self.trust_remote_code and not is_remote,
            tensor_parallel_size=self.tensor_parallel_size if is_installed else 1,
            engine_arguments=self.engine_arguments if is_installed else {},
            answers=answers,
        )

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None: they are asked."""
        if not self.measure:
            return None
        return MeasureOptions(device=self.device, trust_remote_code=self.trust_remote_code)
