"""`eaglectl convert`."""

import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from eaglectl.cli.options import (
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    ConvertTarget,
    Engines,
    IgnoreEos,
    Json,
    Measure,
    Sample,
    Seed,
    Semantics,
    Source,
    TrustRemoteCode,
    print_json,
    print_trust,
)
from eaglectl.errors import UsageError
from eaglectl.terminal import OutputSettings, ProgressBar
from eaglectl.text import listed
from eaglectl.verdicts import GateEnding

if TYPE_CHECKING:
    from eaglectl.conversion.request import Pruning
    from eaglectl.results import Conversion

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
UNITS = " KMGT"


def convert_command(
    context: typer.Context,
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The folder to write; NAME-eagleVERSION in the current folder by default."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="EAGLE version: 3 or 3.1. Left out, the version stays.")
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="The layout: vllm (the default, which the most engines accept), sglang, llama.cpp,"
            " speculators, eagle, or a trainer's. An engine's is refused where none of its releases runs the"
            " output as trained.",
        ),
    ] = None,
    engine: Engines = None,
    target: ConvertTarget = None,
    target_name: Annotated[
        str | None, typer.Option("--target-name", help="What published files call the target, like org/name.")
    ] = None,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", help="A tensor without a place in a drafter that may be left behind."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Cast float tensors: bfloat16, float16 or float32. Never done unasked."),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option("--max-shard-size", help="Split the weights into files of at most this, like 2GB."),
    ] = None,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Hard-link weight files that do not change: an edit of one in OUT changes the source too.",
        ),
    ] = False,
    gguf: Annotated[
        Path | None,
        typer.Option("--gguf", help="--for llama.cpp: the GGUF file to write too; needs the package gguf."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing checkpoint folder at OUT, and GGUF file.")
    ] = False,
    force_unserved: Annotated[
        bool,
        typer.Option(
            "--force-unserved",
            help="Write what no release of the engines asked for runs as trained; eaglectl.json and the card"
            " say so.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="--to 3.1: statistics from `eaglectl calibrate`.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="Prompts like production's: to measure what the file leaves open; --to 3.1, for calibration"
            " and the gate.",
        ),
    ] = None,
    measure: Measure = True,
    sample: Sample = None,
    seed: Seed = 0,
    ignore_eos: IgnoreEos = False,
    fc_norm: Annotated[
        str,
        typer.Option(
            "--fc-norm", help="--to 3.1: refit (scales, and fc fitted again), calibrated (scales), off."
        ),
    ] = "refit",
    norm_output: Annotated[
        bool,
        typer.Option("--norm-output/--no-norm-output", help="--to 3.1: feed the state after the norm back."),
    ] = True,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="--to 3.1: the least ratio of acceptance that the gate lets pass."),
    ] = 0.97,
    has_gate: Annotated[
        bool,
        typer.Option("--gate/--no-gate", help="--to 3.1: measure acceptance before anything is written."),
    ] = True,
    init_only: Annotated[
        bool, typer.Option("--init-only", help="--to 3.1: a start for a trainer, marked as untrained.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", help="Of what runs the target: auto, cuda or cpu.")
    ] = "auto",
    trust_remote_code: TrustRemoteCode = False,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention", help="mha: write GQA's shared key and value heads out, for an engine without GQA."
        ),
    ] = None,
    rope_style: Annotated[
        str | None,
        typer.Option(
            "--rope-style",
            help="interleaved: reorder an MLA drafter's rotary rows that are paired by halves.",
        ),
    ] = None,
    mla_query_lora: Annotated[
        bool,
        typer.Option(
            "--mla-query-lora", help="Write an MLA drafter's q_proj as q_a_proj and q_b_proj; nearly exact."
        ),
    ] = False,
    materialize_lm_head: Annotated[
        bool,
        typer.Option(
            "--materialize-lm-head",
            help="Give a drafter without an lm_head the target's (--target with weights).",
        ),
    ] = False,
    target_rotation: Annotated[
        str | None,
        typer.Option(
            "--target-rotation",
            help="Follow a target whose residual stream is rotated (QuaRot, SpinQuant): the matrix's file, or"
            " measure.",
        ),
    ] = None,
    trained_target: Annotated[
        str | None,
        typer.Option(
            "--trained-target",
            help="--target-rotation: the target that it was trained on, where it shares that one's embedding"
            " or lm_head.",
        ),
    ] = None,
    fix_reading: Annotated[
        list[str] | None,
        typer.Option(
            "--fix-reading",
            help="Repair tensors stored other than named, as `smoke --probe sensitivity` prints: KEY=VALUE.",
        ),
    ] = None,
    draft_vocab: Annotated[
        int | None, typer.Option("--draft-vocab", help="Keep only this many draft tokens, by --token-counts.")
    ] = None,
    token_counts: Annotated[
        Path | None,
        typer.Option(
            "--token-counts",
            help="How often each target token was seen: JSON, or lines of an id and a count.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Rewrite a drafter in another layout.

    Bytes move and nothing else: each tensor keeps its values unless a step is named.
    """
    from eaglectl import api
    from eaglectl.api.converting import ConvertOptions
    from eaglectl.api.inputs import MeasureOptions, check_device
    from eaglectl.api.upgrading import UpgradeOptions

    settings: OutputSettings = context.obj
    if to not in (None, "3", "3.1"):
        raise UsageError(f"--to {to}: 3 or 3.1 was expected")
    check_device(device)
    run = MeasureOptions(
        prompts, sample, seed, device, ignore_eos=ignore_eos, trust_remote_code=trust_remote_code
    )
    options = ConvertOptions(
        layout=for_,
        version=to,
        engines=tuple(engine or ()),
        drop=tuple(drop or ()),
        dtype=_dtype(dtype),
        attention=attention,
        rope_style=rope_style,
        has_query_lora=mla_query_lora,
        pruning=_pruning(draft_vocab, token_counts),
        has_target_head=materialize_lm_head,
        fixes=_fixes(fix_reading or [], to),
        target=target,
        target_name=target_name,
        target_rotation=target_rotation,
        trained_target=trained_target,
        answers=api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults),
        dry_run=dry_run,
        force=force,
        link=link,
        max_shard_size=_bytes(max_shard_size),
        gguf=gguf,
        measure=run if measure else None,
        force_unserved=force_unserved,
    )
    of_a_run = UpgradeOptions(
        prompts=prompts,
        device=device,
        sample=sample,
        seed=seed,
        ignore_eos=ignore_eos,
        trust_remote_code=trust_remote_code,
    )
    upgrade_options = replace(
        of_a_run,
        fc_norm=fc_norm,
        is_norm_output=norm_output,
        statistics=calibration,
        tolerance=tolerance,
        has_gate=has_gate,
        is_start=init_only,
    )
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        if to == "3.1":
            done = api.upgrade(source, out, upgrade_options, options, on_progress=bar)
        elif upgrade_options == of_a_run:
            _check_run(is_run=run != MeasureOptions(), is_measured=measure)
            done = api.convert(source, out, options, on_progress=bar)
        else:
            raise UsageError(
                "--calibration, --fc-norm, --norm-output, --tolerance, --gate and --init-only belong to --to"
                " 3.1"
            )
    if json_:
        from eaglectl.reports.json.convert import convert_document

        print_json(convert_document(done, trust_remote_code=trust_remote_code))
    else:
        _print(settings, done, source, has_plan=dry_run or settings.verbose)
        print_trust(trust_remote_code)
    if done.gate is not None and not done.gate.is_passed:
        raise typer.Exit(1 if done.gate.ending == GateEnding.LOST else 3)


def _check_run(*, is_run: bool, is_measured: bool) -> None:
    """Raise UsageError for options of a run where nothing is run."""
    if is_run and not is_measured:
        raise UsageError(
            "--prompts, --sample, --seed, --ignore-eos, --device and --trust-remote-code are of runs of the"
            " target: of measuring, which --no-measure switches off, and of --to 3.1"
        )


def _print(settings: OutputSettings, done: "Conversion", source: str, *, has_plan: bool) -> None:
    """Print the conversion, the gate's result, and how to train a trainer's start; `has_plan`: every step."""
    from eaglectl.reports.terminal.convert import print_conversion, print_gate, print_trainers

    if done.pickles and not settings.quiet:
        settings.warn(f"read from pickles ({listed(done.pickles, most=3)}) with code execution shut off")
    settings.show(partial(print_conversion, conversion=done, has_plan=has_plan, is_quiet=settings.quiet))
    if done.gate is not None:
        settings.show(partial(print_gate, gate=done.gate))
    elif done.plan.record.get("upgrade", {}).get("needs_finetune"):
        settings.show(partial(print_trainers, source=source, norms=done.plan.drafter.norms))


def _fixes(texts: list[str], version: str | None) -> tuple[tuple[str, str], ...]:
    from eaglectl.conversion.readings import parse_reading

    if texts and version == "3.1":
        raise UsageError(
            "--fix-reading is a conversion of its own, which smoke can then measure: leave --to 3.1 out, and"
            " convert the output with it"
        )
    return tuple(parse_reading(text) for text in texts)


def _pruning(size: int | None, counts: Path | None) -> "Pruning | None":
    from eaglectl.conversion.request import Pruning

    if size is None and counts is None:
        return None
    if size is None or counts is None:
        raise UsageError(
            "--draft-vocab and --token-counts go together: how many tokens stay, and by which counts"
        )
    return Pruning(size, counts)


def _dtype(text: str | None) -> str | None:
    if text is None:
        return None
    if text not in DTYPES:
        raise UsageError(f"--dtype {text}: {', '.join(DTYPES)} were expected")
    return DTYPES[text]


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = SIZE.fullmatch(text.strip())
    size = 0.0
    if match:
        size = float(match[1]) * 1000 ** UNITS.index(match[2].upper() or " ")
    if not 1 <= size < math.inf:
        raise UsageError(f"--max-shard-size {text[:50]}: a size like 500MB or 2GB was expected")
    return int(size)
