"""The options of each function as keywords. Written by `make docs` from the option records."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from eaglectl.api.options import Deployment, MeasureOptions
from eaglectl.conversion.plan import Pruning
from eaglectl.engines.registry import EngineRequest
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy
from eaglectl.options import StrPath
from eaglectl.publish.request import CardAnswers
from eaglectl.target.choice import TargetChoice

class CalibrateFields(TypedDict, total=False):
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    timeout: float
    trust_remote_code: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    prompts: StrPath | None
    answer_tokens: int
    tops_up: bool
    ignore_eos: bool
    run_in: Literal["transformers", "vllm"]
    tensor_parallel_size: int
    engine_arguments: str | Sequence[str] | Mapping[str, Any]
    force: bool
    measure: bool
    answers: Answers

class ConvertFields(TypedDict, total=False):
    layout: StrPath | None
    version: Literal["3", "3.1"] | float | None
    engines: str | Sequence[str | EngineRequest]
    drop: Sequence[str]
    dtype: StrPath | None
    rope_style: StrPath | None
    has_query_lora: bool
    size: int
    counts: StrPath
    has_target_head: bool
    fixes: str | Sequence[str | tuple[str, str]]
    force_unserved: bool
    target: StrPath | TargetChoice
    target_name: StrPath | None
    target_rotation: StrPath | None
    trained_target: StrPath | None
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    dry_run: bool
    force: bool
    link: bool
    max_shard_size: str | int | None
    measure: bool | MeasureOptions | None
    prompts: StrPath | None
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    ignore_eos: bool
    trust_remote_code: bool
    pruning: Pruning | None
    answers: Answers
    deployment: Deployment

class DiagnoseFields(TypedDict, total=False):
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    timeout: float
    trust_remote_code: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    max_tokens: int
    temperature: float
    engine: StrPath | EngineRequest | None
    run_in: StrPath | None
    prompts: StrPath | None
    k: int
    expected: float | None
    base_target: StrPath | None
    measure: bool
    answers: Answers

class DiffFields(TypedDict, total=False):
    target: StrPath | TargetChoice
    headers_only: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    answers: Answers

class InspectFields(TypedDict, total=False):
    target: StrPath | TargetChoice
    engines: str | Sequence[str | EngineRequest]
    prompts: StrPath | None
    token_counts: StrPath | None
    write_token_counts: StrPath | None
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    answers: Answers
    deployment: Deployment

class ReadyFields(TypedDict, total=False):
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    timeout: float
    trust_remote_code: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    max_tokens: int
    temperature: float
    engines: str | Sequence[str | EngineRequest]
    run_in: Sequence[str]
    prompts: StrPath | None
    k: int
    tensor_parallel_size: int
    pipeline_parallel_size: int | None
    engine_arguments: str | Sequence[str] | Mapping[str, Any]
    measure: bool
    answers: Answers

class SmokeFields(TypedDict, total=False):
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    timeout: float
    trust_remote_code: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    max_tokens: int
    temperature: float
    run_in: StrPath
    k: int
    speed: str | Sequence[int] | None
    baseline_url: StrPath | None
    window: str | Sequence[int] | None
    try_both: bool
    prompts: StrPath | None
    ignore_eos: bool
    lossless: bool
    against: StrPath | None
    compare_files: bool | None
    max_regression: float | None
    min_acceptance_length: float | None
    min_position_0: float | None
    write_token_counts: StrPath | None
    probe: Literal["sensitivity", "drift"] | None
    tensor_parallel_size: int
    engine_arguments: str | Sequence[str] | Mapping[str, Any]
    answers: Answers

class UpgradeFields(TypedDict, total=False):
    prompts: StrPath | None
    sample: int | None
    seed: int
    device: Literal["auto", "cuda", "cpu"]
    ignore_eos: bool
    trust_remote_code: bool
    fc_norm: Literal["refit", "calibrated", "ones", "off"]
    is_norm_output: bool
    statistics: StrPath | None
    tolerance: float
    has_gate: bool
    tops_up: bool
    is_start: bool
    layout: StrPath | None
    version: Literal["3", "3.1"] | float | None
    engines: str | Sequence[str | EngineRequest]
    drop: Sequence[str]
    dtype: StrPath | None
    rope_style: StrPath | None
    has_query_lora: bool
    size: int
    counts: StrPath
    has_target_head: bool
    fixes: str | Sequence[str | tuple[str, str]]
    force_unserved: bool
    target: StrPath | TargetChoice
    target_name: StrPath | None
    target_rotation: StrPath | None
    trained_target: StrPath | None
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    dry_run: bool
    force: bool
    link: bool
    max_shard_size: str | int | None
    measure: bool | MeasureOptions | None
    pruning: Pruning | None
    answers: Answers
    deployment: Deployment

class UploadFields(TypedDict, total=False):
    revision: StrPath
    is_pull: bool | None
    is_private: bool | None
    tag: StrPath | None
    policy: Policy | str | None
    dry_run: bool
    target: StrPath | TargetChoice
    engines: str | Sequence[str | EngineRequest]
    has_engines: bool
    message: StrPath | None
    smoke: StrPath | None
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    licence: StrPath | None
    base_model: StrPath | None
    training: StrPath | None
    answers: Answers
    card: CardAnswers

class ValidateFields(TypedDict, total=False):
    target: StrPath | TargetChoice
    engines: str | Sequence[str | EngineRequest]
    select: Sequence[str]
    ignore: Sequence[str]
    fail_on: Literal["error", "warning", "note"] | Literal["never"] | None
    policy: Policy | str | None
    headers_only: bool
    aux_layers: str | Sequence[int] | None
    aux_convention: Literal["boundary", "output"] | None
    semantics: str | Sequence[str] | Mapping[str, str]
    assume: bool
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    skip_others: bool
    has_engines: bool
    answers: Answers
    deployment: Deployment

class VerifyFields(TypedDict, total=False):
    needs_record: bool
    policy: Policy | str | None
    against: StrPath | None
