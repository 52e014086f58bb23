"""The options of the commands that read drafters, a field each (see eaglectl/options.py)."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import field
from msgspec.structs import replace

from eaglectl.conversion.request import (
    FC_NORM_MODES,
    REWRITING,
    ConversionRequest,
    Pruning,
    UpgradeRecipe,
    parse_reading,
)
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy, Severity
from eaglectl.options import ANSWERS, ENGINE, NO_ENGINES, NUMBER, TARGET, Option, Options

if TYPE_CHECKING:
    from eaglectl.engines.registry import EngineRequest
    from eaglectl.run.prompts import Prompt

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
# engines that run here where they are installed
INSTALLED = ("vllm", "sglang")
TIMED = ("vllm",)
TOLERANCE = 0.97
MOST_NUMBER = 1024  # of requests at a time
NUMBERS = f"different whole numbers from 1 to {MOST_NUMBER} in rising order, like 1,4,16,"
# groups of --help
ADVANCED = "Advanced"
RUN = "The run of the target"
WRITING = "Writing"
UPGRADE = "EAGLE-3 as 3.1 (with --to 3.1)"

PROMPTS = Option(
    "Prompts like production's, as for `smoke`; built-in ones otherwise.", value="FILE", complete="files"
)
SAMPLE = Option("Take this many of the prompts, drawn by --seed.")
SEED = Option("The seed of --sample.")
IGNORE_EOS = Option("Let answers go on past the end of a sequence.")
DEVICES = ("auto", "cuda", "cpu")
TRUST = Option("Let the target's own code run (auto_map in its files). Never done unasked.")
K = Option("Draft tokens in a round.", "-k, --num-speculative-tokens", group=ADVANCED)


def read_arguments(texts: Sequence[str]) -> Mapping[str, Any]:
    """The arguments of an engine in texts KEY=VALUE. Raises UsageError."""
    from eaglectl.run.engine_arguments import parse_engine_arguments  # late: few commands have them

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
    read=read_arguments,
)
TENSOR_PARALLEL = Option("GPUs that vLLM or SGLang spreads the target over.", group=ADVANCED)
MEASURE = Option(
    "Measure on the target, where its weights are here, what the file leaves open.",
    "--measure/--no-measure",
)
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def read_dtype(text: str) -> str:
    """The name of a dtype in safetensors, which may be given itself. Raises ValueError."""
    if text not in DTYPES and text not in DTYPES.values():
        raise ValueError("bfloat16, float16 or float32")
    return DTYPES.get(text, text)


def read_size(text: str) -> int:
    """The bytes of a size like 2GB. Raises ValueError."""
    match = SIZE.fullmatch(text.strip())
    size = float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " ") if match else 0.0
    if not 1 <= size < math.inf:
        raise ValueError("a size like 500MB or 2GB")
    return int(size)


def read_boundaries(text: str) -> tuple[int, ...]:
    """Different boundaries with commas between them. Raises ValueError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len({*map(int, parts)}) != len(parts):
        raise ValueError("different boundaries like 2,4,5")
    return tuple(map(int, parts))


def is_rising(numbers: Sequence[int]) -> bool:
    """Whether these are different numbers from 1 to MOST_NUMBER in rising order, one or more."""
    return bool(numbers) and list(numbers) == sorted({*numbers} & {*range(1, MOST_NUMBER + 1)})


def read_numbers(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between them, in any order. Raises ValueError."""
    parts = text.split(",")
    numbers = tuple(sorted(int(part) for part in parts if NUMBER.fullmatch(part.strip())))
    if len(numbers) < len(parts) or not is_rising(numbers):
        raise ValueError(NUMBERS)
    return numbers


def read_chain(text: str) -> int | tuple[int, ...]:
    """The number of draft tokens in a round, or several with commas between them. Raises ValueError."""
    if "," in text:
        return read_numbers(text)
    if not NUMBER.fullmatch(text):
        raise ValueError("a whole number, or with --speed several like 1,3,5,")
    return int(text)


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
    engines: Annotated[tuple[str, ...], ENGINE] = ()
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
    engines: Annotated[tuple[str, ...], ENGINE] = ()
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
    jobs: Annotated[
        int,
        Option("Checkpoints judged at the same time; of one, threads that read weights.", least=1, most=64),
    ] = 1
    skip_others: Annotated[
        bool,
        Option(
            "Skip folders without a mark of a drafter, as hooks and globs name them: a target, another"
            " tool's config.json. What has a mark and cannot be read is not skipped."
        ),
    ] = False
    has_engines: Annotated[bool, NO_ENGINES] = True

    def requests(self, policy: Policy) -> "tuple[EngineRequest, ...]":
        """The engine releases to judge for."""
        from eaglectl.engines.registry import (
            default_requests,
            parse_engine,  # late, as the data of all releases is
        )

        if not self.has_engines:
            return ()
        return tuple(map(parse_engine, self.engines or policy.engines)) or default_requests()

    def read_policy(self) -> Policy:
        """The policy, read from its file where `policy` is a path. Raises UsageError."""
        from eaglectl.judge.policy_file import read_policy  # late, as all rules are

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


class ConvertOptions(Options, frozen=True):
    """What `convert` writes, what is known of the source, and how files are written.

    `measure`: how open questions are measured where the target's weights are here; None: they are asked.
    `recipe` has what was measured for 3.1; `record` is added to eaglectl.json.
    """

    layout: Annotated[
        str | None,
        Option(
            "The layout: vllm (the default, which the most engines accept), sglang, llama.cpp, speculators,"
            " eagle, or a trainer's. An engine's is refused where none of its releases runs the output as"
            " trained.",
            "--for",
            value="LAYOUT",
            complete="layouts",
        ),
    ] = None
    version: Annotated[
        str | None,
        Option(
            "EAGLE version: 3 or 3.1. Left out, the version stays.",
            "--to",
            value="3|3.1",
            choices=("3", "3.1"),
        ),
    ] = None
    engines: Annotated[tuple[str, ...], ENGINE] = ()
    drop: Annotated[
        tuple[str, ...],
        Option(
            "A tensor without a place in a drafter that may be left behind.", value="TENSOR", group=ANSWERS
        ),
    ] = ()
    dtype: Annotated[
        str | None,
        Option(
            "Cast float tensors: bfloat16, float16 or float32. Never done unasked.",
            value="bfloat16|float16|float32",
            group=WRITING,
            read=read_dtype,
        ),
    ] = None
    recipe: UpgradeRecipe | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    rope_style: Annotated[
        str | None,
        Option(
            "interleaved: reorder an MLA drafter's rotary rows that are paired by halves.",
            value="interleaved",
            group=REWRITING,
        ),
    ] = None
    has_query_lora: Annotated[
        bool,
        Option(
            "Write an MLA drafter's q_proj as q_a_proj and q_b_proj; nearly exact.",
            "--mla-query-lora",
            group=REWRITING,
        ),
    ] = False
    pruning: Pruning | None = None
    has_target_head: Annotated[
        bool,
        Option(
            "Give a drafter without an lm_head, or with some rows of the target's, the target's (--target"
            " with weights).",
            "--materialize-lm-head",
            group=REWRITING,
        ),
    ] = False
    fixes: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "Repair tensors stored other than named, as `smoke --probe sensitivity` prints: KEY=VALUE.",
            "--fix-reading",
            value="KEY=VALUE",
            group=REWRITING,
            read=parse_reading,
            complete="readings",
        ),
    ] = ()
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
            read=read_size,
        ),
    ] = None
    measure: Annotated[MeasureOptions | None, MEASURE] = field(default_factory=MeasureOptions)

    @property
    def request(self) -> ConversionRequest:
        """What is to be written, but for what is read of other targets."""
        return ConversionRequest(
            layout=self.layout,
            version=self.version,
            engines=self.engines,
            drop=self.drop,
            dtype=self.dtype,
            recipe=self.recipe,
            record=self.record,
            rope_style=self.rope_style,
            has_query_lora=self.has_query_lora,
            pruning=self.pruning,
            fixes=self.fixes,
        )

    @property
    def is_trusting(self) -> bool:
        """Whether the target's own code may run, where it is measured."""
        return self.measure is not None and self.measure.trust_remote_code

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
    is_start: Annotated[
        bool,
        Option("--to 3.1: a start for a trainer, marked as untrained.", "--init-only", group=UPGRADE),
    ] = False

    @property
    def is_measured(self) -> bool:
        """Whether the gate runs."""
        return self.has_gate and not self.is_start

    def read_prompts(self) -> "tuple[Prompt, ...]":
        """The prompts in the file, or the built-in ones."""
        from eaglectl.run.prompts import choose_prompts

        return choose_prompts(self.prompts, self.sample, self.seed).prompts


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


class DraftOptions(RunOptions, frozen=True):
    """How a drafter is run with its target."""

    like: Annotated[
        str | None,
        Option(
            "The run of a published figure: its prompts, draft tokens, temperature, tokens and seed:"
            " vllm-mt-bench.",
            value="PRESET",
        ),
    ] = None
    max_tokens: Annotated[int, Option("New tokens for each prompt.")] = 64
    temperature: Annotated[float, Option("0 is greedy.", group=ADVANCED)] = 0.0


class CalibrateOptions(RunOptions, frozen=True):
    """Options of `calibrate`. Where `states` is given, nothing is run but the drafter."""

    prompts: Annotated[str | None, PROMPTS] = None
    seed: Annotated[int, replace(SEED, group=ADVANCED)] = 0
    answer_tokens: Annotated[
        int, Option("Tokens of the target's own answer to each prompt that count too.", least=1)
    ] = 64
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
    states: Annotated[
        str | None,
        Option(
            "Hidden states that a trainer has on disk, in the place of a run.",
            value="DIR",
            group="A trainer's states",
            complete="folders",
        ),
    ] = None
    states_layers: Annotated[
        tuple[int, ...] | None,
        Option(
            "The boundaries that --states holds, in its order: 2,4,5.",
            value="2,4,5",
            group="A trainer's states",
            read=read_boundaries,
        ),
    ] = None
    measure: Annotated[bool, MEASURE] = True

    @property
    def measuring(self) -> MeasureOptions | None:
        """How open questions are measured; None where nothing is run."""
        if not self.measure or self.states is not None:
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
    k: Annotated[int | tuple[int, ...], replace(K, value="N", group="", read=read_chain)] = 3
    speed: Annotated[
        tuple[int, ...] | None,
        replace(SPEED, help=f"{SPEED.help} -k may be several, 1,3,5: the fastest is named."),
    ] = None
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
    def chains(self) -> tuple[int, ...]:
        """The numbers of draft tokens in a round, in rising order; acceptance is of the last of them."""
        return self.k if isinstance(self.k, tuple) else (self.k,)


class DiagnoseOptions(DraftOptions, frozen=True):
    """Options of `diagnose`."""

    engine: Annotated[
        str | None,
        Option(
            "The engine where acceptance is low: vllm, sglang==0.5.23. It is run where that release is"
            " installed here.",
            value="ENGINE",
            complete="engines",
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
        if not self.measure:
            return None
        return MeasureOptions(
            self.prompts,
            self.sample,
            self.seed,
            self.device,
            self.max_tokens,
            trust_remote_code=self.trust_remote_code,
        )


class ReadyOptions(DraftOptions, frozen=True):
    """Options of `ready`. A preset sets prompts, `k`, `temperature` and `max_tokens`."""

    engines: Annotated[
        tuple[str, ...],
        Option(
            "An engine that shall serve it: vllm, sglang==0.5.23, llama.cpp; without a release the one"
            " installed here, else the newest. Left out: those installed here, and the newest vLLM and"
            " SGLang. May be given several times.",
            "--engine",
            value="ENGINE",
            complete="engines",
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
    speed: Annotated[tuple[int, ...] | None, replace(SPEED, group=ADVANCED)] = None
    tensor_parallel_size: Annotated[int, TENSOR_PARALLEL] = 1
    engine_arguments: Annotated[Mapping[str, Any], ENGINE_ARGUMENTS] = field(default_factory=dict)
    measure: Annotated[bool, MEASURE] = True
    reuse: Annotated[
        bool,
        Option(
            "Take what an earlier call measured with the same files, options and releases.",
            "--reuse/--no-reuse",
            group=ADVANCED,
        ),
    ] = True

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
        is_installed = engine in INSTALLED
        return SmokeOptions(
            run_in=engine,
            device=self.device,
            k=self.k,
            speed=self.speed if engine in TIMED or is_server(engine) else None,
            prompts=self.prompts,
            like=self.like,
            sample=self.sample,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            timeout=self.timeout,
            trust_remote_code=self.trust_remote_code and not is_server(engine),
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
