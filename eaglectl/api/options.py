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
from eaglectl.options import NO_ENGINES, NUMBER, Option, Options
from eaglectl.target.choice import TARGET, TargetChoice

PassedTo = TypeVar("PassedTo", bound=Options)
SIZE = r"(?i)(\d+(?:\.\d+)?)\s*([KMGT]?)B?"
# engines that eaglectl can run if they are installed
INSTALLED = ("vllm", "sglang")
TIMED = ("vllm",)
# the least ratio of the acceptance length after an upgrade to that before
TOLERANCE = 0.97
MOST_NUMBER = 1024  # concurrent requests
NUMBERS = f"different whole numbers from 1 to {MOST_NUMBER} in rising order, like 1,4,16,"
# groups of --help
ADVANCED = "Advanced"
RUN = "Running the target"
DEPLOYMENT = "The engine's start"
UPGRADE = "EAGLE-3 as 3.1 (with --to 3.1)"

PROMPTS = Option(
    "Prompts that resemble production traffic, in the format of `smoke --prompts`. Default: built-in"
    " prompts.",
    value="FILE",
    complete="files",
)
SAMPLE = Option("Use only N of the prompts, sampled with --seed.")
SEED = Option("The random seed for --sample.")
IGNORE_EOS = Option("Continue to generate after the end-of-sequence token.")
DEVICES = ("auto", "cuda", "cpu")
TOP_UP = Option("Add built-in prompts if --prompts has too few for the refit and the gate.", "--top-up")
TRUST = Option("Allow the target's own code to run (auto_map in its files). Off by default.")
K = Option("Number of draft tokens per round.", "-k, --num-speculative-tokens", group=ADVANCED)


def _read_arguments(texts: Sequence[str]) -> Mapping[str, Any]:
    from eaglectl.run.installed import parse_engine_arguments  # late: few commands have them

    return parse_engine_arguments(texts)


def is_server(text: str) -> bool:
    """Whether what runs is the URL of a server."""
    return text.startswith(("http://", "https://"))


ENGINE_ARGUMENTS = Option(
    "An argument to pass to the engine, with a JSON value, like quantization=fp8. Can be repeated.",
    "--engine-arg",
    value="KEY=VALUE",
    group=ADVANCED,
    read=_read_arguments,
)
TENSOR_PARALLEL = Option("Number of GPUs for tensor parallelism in vLLM or SGLang.", group=ADVANCED)
PIPELINE_PARALLEL = Option(
    "Number of stages that the engine splits the target's layers into.", group=DEPLOYMENT, least=1
)
MEASURE = Option(
    "Answer open questions by measuring on the target, if its weights are on this machine.",
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
    """Parse different whole numbers, separated by commas, in any order. Raises ValueError."""
    parts = text.split(",")
    numbers = tuple(sorted(int(part) for part in parts if re.fullmatch(NUMBER, part.strip())))
    if len(numbers) < len(parts) or not is_rising(numbers):
        raise ValueError(NUMBERS)
    return numbers


SPEED = Option(
    "Also measure tokens per second with and without the drafter, at these concurrencies: 1,4,16. Needs"
    " vLLM on a GPU with CUDA graphs, or a running server.",
    value="1,4,16",
    read=read_numbers,
)
COVERAGE = "Coverage of the draft vocabulary"
WRITE_COUNTS = Option(
    "Write the count of each token in the answers, for `convert --draft-vocab` or a trainer.",
    value="FILE",
    complete="files",
)


class Deployment(Options, frozen=True):
    """How an engine is to run the target and its drafter."""

    tensor_parallel_size: Annotated[
        int | None,
        Option("Number of GPUs that the engine splits each layer over.", group=DEPLOYMENT, least=1),
    ] = None
    pipeline_parallel_size: Annotated[int | None, PIPELINE_PARALLEL] = None
    trusts_code: bool = False

    def of(self, target: TargetChoice) -> TargetChoice:
        """Return the target with these sizes, and whether its own code may run."""
        facts: dict[str, Any] = {
            "tensor_parallel": self.tensor_parallel_size,
            "pipeline_parallel": self.pipeline_parallel_size,
            "trusts_code": self.trusts_code,
        }
        facts = {name: value for name, value in facts.items() if value}
        return replace(target, **facts) if facts else target


class InspectOptions(Options, frozen=True):
    """Options of `inspect`."""

    target: Annotated[TargetChoice, TARGET] = field(default_factory=TargetChoice)
    engines: Annotated[tuple[EngineRequest, ...], ENGINE] = ()
    prompts: Annotated[
        str | None,
        Option(
            "Texts that resemble the target's answers, in the format of `smoke --prompts`: report what"
            " share of their tokens is in the draft vocabulary. Uses the target's tokenizer.",
            value="FILE",
            group=COVERAGE,
            complete="files",
        ),
    ] = None
    token_counts: Annotated[
        str | None,
        Option(
            "Token counts to compute the same share from: JSON, or lines with an id and a count.",
            value="FILE",
            group=COVERAGE,
            complete="files",
        ),
    ] = None
    write_token_counts: Annotated[
        str | None,
        replace(WRITE_COUNTS, help="Write the count of each token in --prompts.", group=COVERAGE),
    ] = None
    answers: Answers = field(default_factory=Answers)
    deployment: Deployment = field(default_factory=Deployment)


class DiffOptions(Options, frozen=True):
    """Options of `diff`. The target is that of both sides; by default the one that each side names.

    An answer applies to the side whose files leave the question open.
    """

    target: Annotated[TargetChoice, TARGET] = field(default_factory=TargetChoice)
    headers_only: Annotated[
        bool, Option("Do not read or download tensor data; values are then not compared.")
    ] = False
    answers: Answers = field(default_factory=Answers)


class ValidateOptions(Options, frozen=True):
    """Options of `validate`.

    `policy` is a policy or its path; by default there is none, as only the command line searches for a file.
    """

    target: Annotated[TargetChoice, TARGET] = field(default_factory=TargetChoice)
    engines: Annotated[tuple[EngineRequest, ...], replace(ENGINE, read=read_engine)] = ()
    select: Annotated[
        tuple[str, ...],
        Option(
            "Check only these rules: an id (EGL201), a name or a family (EGL2).",
            value="RULE",
            group="Rules",
            complete="rules",
        ),
    ] = ()
    ignore: Annotated[
        tuple[str, ...], Option("Skip these rules.", value="RULE", group="Rules", complete="rules")
    ] = ()
    fail_on: Annotated[
        Severity | Literal["never"] | None,
        Option(
            "The lowest severity that fails: error (default), warning, note or never.",
            value="error|warning|note|never",
            group="Rules",
            choices=("error", "warning", "note", "never"),
        ),
    ] = None
    policy: Annotated[
        Policy | str | None,
        Option(
            "Requirements beyond the rules. Default: the nearest eaglectl.toml, or pyproject.toml with"
            " [tool.eaglectl], in this folder or a parent; never one in a checkpoint or a download.",
            value="FILE",
            group="Rules",
            complete="files",
        ),
    ] = None
    headers_only: Annotated[bool, Option("Read no tensor data.")] = False
    answers: Answers = field(default_factory=Answers)
    deployment: Deployment = field(default_factory=Deployment)
    skip_others: Annotated[
        bool,
        Option(
            "Skip folders that are no drafters, such as a target or another tool's config.json; for hooks"
            " and globs. A drafter that cannot be read is not skipped."
        ),
    ] = False
    has_engines: Annotated[bool, NO_ENGINES] = True

    def requests(self, policy: Policy) -> tuple[EngineRequest, ...]:
        """Return the engine releases to judge for. Raises OutdatedError for a release without data."""

        if not self.has_engines:
            return ()
        requests = self.engines or tuple(map(read_engine, policy.engines)) or default_requests()
        check(*((request.outdated, request.outdated) for request in requests), error=OutdatedError)
        return requests

    def read_policy(self) -> Policy:
        """Return the policy; read its file if `policy` is a path. Raises UsageError."""

        return read_policy(self.policy) if isinstance(self.policy, str) else self.policy or Policy()

    def least_severity(self, policy: Policy) -> Severity | None:
        """Return the lowest severity that fails under a policy; None if none fails."""
        severity = self.fail_on or policy.fail_on or "error"
        return None if severity == "never" else severity


class MeasureOptions(Options, frozen=True):
    """How open questions are measured: the prompts, as in `smoke`, and where the target runs."""

    prompts: Annotated[
        str | None,
        Option(
            "Prompts that resemble production traffic, to answer open questions; with --to 3.1, also for"
            " calibration and the gate.",
            value="FILE",
            group=RUN,
            complete="files",
        ),
    ] = None
    sample: Annotated[int | None, replace(SAMPLE, group=RUN)] = None
    seed: Annotated[int, replace(SEED, group=RUN)] = 0
    device: Annotated[
        str, Option("The device that runs the target: auto, cuda or cpu.", group=RUN, choices=DEVICES)
    ] = "auto"
    max_tokens: int = 64
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=RUN)] = False
    trust_remote_code: Annotated[bool, replace(TRUST, group=RUN)] = False


class ConvertOptions(ConversionRequest, frozen=True):
    """The request of `convert`, answers about the source, and how files are written.

    `measure`: how open questions are measured if the target's weights are here; None: do not measure.
    """

    force_unserved: Annotated[
        bool,
        Option(
            "Write the output even if no release of the requested engines runs it as trained; eaglectl.json"
            " and the card record this.",
            group=WRITING,
        ),
    ] = False

    target: Annotated[
        TargetChoice,
        replace(
            TARGET,
            help="The target model: a folder, config.json or Hub repository. Its config is read. It is run to"
            " answer open questions and by --to 3.1, and --materialize-lm-head copies its lm_head. Default:"
            " the target that the checkpoint names, if it is on this machine.",
        ),
    ] = field(default_factory=TargetChoice)
    target_name: Annotated[
        str | None,
        Option("The name of the target in published files, like org/name.", value="ORG/NAME", group=WRITING),
    ] = None
    target_rotation: Annotated[
        str | None,
        Option(
            "Adapt the drafter to a target whose residual stream is rotated (QuaRot, SpinQuant): the file"
            " of the rotation matrix, or `measure`."
        ),
    ] = None
    trained_target: Annotated[
        str | None,
        Option(
            "With --target-rotation: the target of training, if the drafter uses its embedding or lm_head.",
            complete="checkpoints",
        ),
    ] = None
    answers: Answers = field(default_factory=Answers)
    deployment: Deployment = field(default_factory=Deployment)
    dry_run: Annotated[bool, Option("Print the plan and write nothing.", group=WRITING)] = False
    force: Annotated[bool, Option("Replace an existing checkpoint folder at OUT.", group=WRITING)] = False
    link: Annotated[
        bool,
        Option(
            "Hard-link unchanged weight files. Editing one in OUT also changes the source.",
            group=WRITING,
        ),
    ] = False
    max_shard_size: Annotated[
        int | None,
        Option(
            "Split the weights into files of at most this size, like 2GB.",
            value="SIZE",
            group=WRITING,
            read=_read_size,
        ),
    ] = None
    measure: Annotated[MeasureOptions | None, MEASURE] = field(default_factory=MeasureOptions)

    def answered(self, answers: Answers, record: Mapping[str, Any]) -> "ConvertOptions":
        """Return these options with answers, and their evidence for eaglectl.json."""
        return replace(self, answers=answers, record={**self.record, **record})


class UpgradeOptions(MeasureOptions, frozen=True):
    """How EAGLE-3 becomes 3.1; without `statistics`, calibration runs on the prompts.

    At most `max_tokens` tokens are generated per prompt in the gate.
    """

    fc_norm: Annotated[
        str,
        Option(
            "With --to 3.1: refit (calibrated scales, and fc fitted again), calibrated (scales only) or off.",
            value="refit|calibrated|off",
            group=UPGRADE,
            choices=FC_NORM_MODES,
        ),
    ] = "refit"
    is_norm_output: Annotated[
        bool,
        Option(
            "With --to 3.1: feed back the hidden state after the norm.",
            "--norm-output/--no-norm-output",
            group=UPGRADE,
        ),
    ] = True
    statistics: Annotated[
        Path | None,
        Option(
            "With --to 3.1: the folder of statistics from `eaglectl calibrate`.",
            "--calibration",
            value="DIR",
            group=UPGRADE,
            complete="folders",
        ),
    ] = None
    tolerance: Annotated[
        float, Option("With --to 3.1: the lowest ratio of acceptance that passes the gate.", group=UPGRADE)
    ] = TOLERANCE
    has_gate: Annotated[
        bool,
        Option("With --to 3.1: measure acceptance before writing.", "--gate/--no-gate", group=UPGRADE),
    ] = True
    tops_up: Annotated[bool, replace(TOP_UP, group=UPGRADE)] = False
    is_start: Annotated[
        bool,
        Option(
            "With --to 3.1: write a starting point for training, marked as untrained.",
            "--init-only",
            group=UPGRADE,
        ),
    ] = False

    @property
    def is_measured(self) -> bool:
        """Whether the gate runs."""
        return self.has_gate and not self.is_start


class RunOptions(Options, frozen=True):
    """How a target is run, and answers about the drafter that runs with it."""

    sample: Annotated[int | None, replace(SAMPLE, group=ADVANCED)] = None
    seed: Annotated[int, Option("The random seed for --sample and for sampled tokens.", group=ADVANCED)] = 0
    device: Annotated[str, Option("The device: auto, cuda or cpu.", group=ADVANCED, choices=DEVICES)] = "auto"
    timeout: Annotated[
        float,
        Option(
            "Time limit in seconds for the engine's run, or for each request to a server.", group=ADVANCED
        ),
    ] = 600.0
    trust_remote_code: Annotated[bool, replace(TRUST, group=ADVANCED)] = False
    answers: Answers = field(default_factory=Answers)

    @property
    def deployment(self) -> Deployment:
        """How the engine is to be started; one GPU is the default and states nothing."""
        size, stages = (getattr(self, f"{name}_parallel_size", None) for name in ("tensor", "pipeline"))
        return Deployment(None if size == 1 else size, stages, self.trust_remote_code)

    def passed_to(self, record: type[PassedTo], **changed: Any) -> PassedTo:
        """Return options of another command, with the values of the same names here except `changed` ones."""
        shared = {*self.__struct_fields__} & {*record.__struct_fields__} - changed.keys()
        return record(**{name: getattr(self, name) for name in shared}, **changed)


class DraftOptions(RunOptions, frozen=True):
    """How a drafter is run with its target."""

    max_tokens: Annotated[int, Option("Number of new tokens per prompt.")] = 64
    temperature: Annotated[float, Option("Sampling temperature; 0 is greedy.", group=ADVANCED)] = 0.0


class CalibrateOptions(RunOptions, frozen=True):
    """Options of `calibrate`."""

    prompts: Annotated[str | None, PROMPTS] = None
    seed: Annotated[int, replace(SEED, group=ADVANCED)] = 0
    answer_tokens: Annotated[
        int, Option("Number of tokens of the target's answer to each prompt to include.", least=1)
    ] = 64
    tops_up: Annotated[bool, replace(TOP_UP, group=ADVANCED)] = False
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=ADVANCED)] = False
    run_in: Annotated[
        str,
        Option(
            "Where to run the target: transformers, or the installed vLLM (vllm).",
            choices=("transformers", "vllm"),
        ),
    ] = "transformers"
    tensor_parallel_size: Annotated[
        int, Option("Number of GPUs for tensor parallelism in vLLM.", group=ADVANCED)
    ] = 1
    timeout: Annotated[
        float,
        Option(
            "Time limit in seconds for vLLM to load the target, and for each batch after that.",
            group=ADVANCED,
        ),
    ] = 1800.0
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)
    force: Annotated[bool, Option("Replace an existing folder at OUT.")] = False
    measure: Annotated[bool, MEASURE] = True

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None: do not measure."""
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
            "Where to run the drafter: auto (vLLM if installed, otherwise the reference), vllm, sglang,"
            " reference, or the URL of a running server. Requests to a server do not use proxies.",
            value="RUNNER",
            complete="runners",
        ),
    ] = "auto"
    k: Annotated[int, replace(K, group="")] = 3
    speed: Annotated[tuple[int, ...] | None, SPEED] = None
    baseline_url: Annotated[
        str | None,
        Option(
            "With --speed and a server's URL: a server of the same target without a drafter, for the ratios"
            " and the break-even.",
            value="URL",
        ),
    ] = None
    window: Annotated[
        tuple[int, ...] | None,
        Option(
            "Also run the drafter in the reference with these attention windows: 512,1024. Shows the"
            " acceptance by context length, with and without.",
            value="512,1024",
            read=read_numbers,
        ),
    ] = None
    try_both: Annotated[
        bool,
        Option(
            "Also run the drafter in the engine once with each answer to its one open question, and name the"
            " answer that it was trained with.",
            group="Answers to open questions",
        ),
    ] = False
    prompts: Annotated[
        str | None,
        Option(
            "A file of prompts: plain lines, or JSON lines with messages (OpenAI's chat format), prompt or"
            " prompt_token_ids. Default: built-in prompts.",
            value="FILE",
            complete="files",
        ),
    ] = None
    ignore_eos: Annotated[bool, replace(IGNORE_EOS, group=ADVANCED)] = False
    lossless: Annotated[
        bool,
        Option(
            "Also decode without the drafter and compare the answers. With --no-lossless, vLLM and SGLang"
            " start only once.",
            "--lossless/--no-lossless",
            group=ADVANCED,
        ),
    ] = True
    against: Annotated[
        str | None,
        Option(
            "An older drafter to run on the same prompts; fail if SOURCE is worse on any prompt set. With a"
            " server: check whether it drafts like that drafter.",
            value="DRAFTER",
            group="Pass criteria",
            complete="checkpoints",
        ),
    ] = None
    compare_files: Annotated[
        bool | None,
        Option(
            "With a server: also run the files with the target on this machine, and fail if the server"
            " drafts differently. Default: only for a small target.",
            "--compare-files/--no-compare-files",
            group="Pass criteria",
        ),
    ] = None
    max_regression: Annotated[
        float | None,
        Option(
            "With --against: the lowest accepted lower bound of the ratio on each prompt set. Default: 0.97.",
            group="Pass criteria",
        ),
    ] = None
    min_acceptance_length: Annotated[
        float | None, Option("Fail if the acceptance length is lower.", group="Pass criteria")
    ] = None
    min_position_0: Annotated[
        float | None,
        Option("Fail if the acceptance rate of the first draft token is lower.", group="Pass criteria"),
    ] = None
    timeout: Annotated[
        float,
        Option("Time limit in seconds for an engine, or for each request to a server.", group=ADVANCED),
    ] = 600.0
    write_token_counts: Annotated[str | None, replace(WRITE_COUNTS, group=ADVANCED)] = None
    probe: Annotated[
        str | None,
        Option(
            "sensitivity: also run with doubtful settings changed; drift: also run other prompts, to depth"
            " 7.",
            value="sensitivity|drift",
            choices=("sensitivity", "drift"),
        ),
    ] = None
    tensor_parallel_size: Annotated[int, TENSOR_PARALLEL] = 1
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)

    @property
    def needs_match(self) -> bool:
        """Whether the options require a comparison of a server with files."""
        return self.against is not None or self.compare_files is True

    @property
    def has_threshold(self) -> bool:
        """Whether acceptance has a lowest accepted value, which needs no files."""
        return self.min_acceptance_length is not None or self.min_position_0 is not None


class DiagnoseOptions(DraftOptions, frozen=True):
    """Options of `diagnose`."""

    engine: Annotated[
        EngineRequest | None,
        Option(
            "The engine in which acceptance is low: vllm, sglang==0.5.23. It is run if that release is"
            " installed.",
            value="ENGINE",
            complete="engines",
            read=parse_engine,
        ),
    ] = None
    run_in: Annotated[
        str | None,
        Option(
            "What to run in addition to the reference: vllm, sglang, or the URL of a running server;"
            " reference runs no engine. Default: the engine of --engine.",
            value="RUNNER",
            complete="runners",
        ),
    ] = None
    prompts: Annotated[str | None, PROMPTS] = None
    k: Annotated[int, K] = 3
    temperature: Annotated[
        float, Option("The sampling temperature of production, to measure its effect on acceptance.")
    ] = 0.0
    expected: Annotated[
        float | None, Option("The acceptance length that training reported; a lower one counts as low.")
    ] = None
    base_target: Annotated[
        str | None,
        Option(
            "The target that the drafter was trained with, such as the base model of a fine-tuned target: the"
            " same prompts are run with it too.",
            value="MODEL",
            complete="checkpoints",
        ),
    ] = None
    measure: Annotated[bool, MEASURE] = True

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None: do not measure."""
        return self.passed_to(MeasureOptions) if self.measure else None


class ReadyOptions(DraftOptions, frozen=True):
    """Options of `ready`."""

    engines: Annotated[
        tuple[EngineRequest, ...],
        replace(
            ENGINE,
            help="An engine to serve the drafter: vllm, sglang==0.5.23, llama.cpp. Without a release, the"
            " installed one, otherwise the newest. Default: the installed engines, and the newest vLLM and"
            " SGLang. Can be repeated.",
        ),
    ] = ()
    run_in: Annotated[
        tuple[str, ...],
        Option(
            "Where to run the drafter: vllm, sglang, reference, or the URL of a running server. Default:"
            " each installed engine, and the reference for the others. Can be repeated.",
            value="RUNNER",
            complete="runners",
        ),
    ] = ()
    seed: Annotated[int, replace(SEED, group=ADVANCED)] = 0
    prompts: Annotated[
        str | None,
        Option(
            "A file of prompts, in the format of `smoke --prompts`, or a named prompt set. Default:"
            " built-in prompts.",
            value="FILE",
            complete="files",
        ),
    ] = None
    k: Annotated[int, K] = 3
    tensor_parallel_size: Annotated[int, TENSOR_PARALLEL] = 1
    pipeline_parallel_size: Annotated[int | None, PIPELINE_PARALLEL] = None
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)
    measure: Annotated[bool, MEASURE] = True

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of running servers."""
        return tuple(filter(is_server, self.run_in))

    @property
    def is_named(self) -> bool:
        """Whether the options name the engines, instead of all known ones."""
        return bool(self.engines or (self.servers and not self.runners))

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners to use on this machine; none: all that are installed."""
        return tuple(text for text in self.run_in if not is_server(text))

    def smoke_options(self, engine: str, answers: Answers) -> SmokeOptions:
        """Return the options of one run.

        Servers load the target themselves and get no `trust_remote_code`; options of installed engines are
        dropped for the reference and servers. `passed_to` copies all other options that `smoke` has too.
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
        """How open questions are measured; None: do not measure."""
        if not self.measure:
            return None
        return MeasureOptions(device=self.device, trust_remote_code=self.trust_remote_code)
