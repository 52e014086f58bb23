"""`eaglectl convert`."""

import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.cli.options import (
    AuxConvention,
    AuxLayers,
    ConvertTarget,
    Engines,
    IgnoreEos,
    Json,
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
        str,
        typer.Option(
            "--for",
            help="The layout: vllm (which the most engines accept), sglang, llama.cpp, speculators, eagle, or"
            " a trainer's.",
        ),
    ] = "vllm",
    engine: Engines = None,
    target: ConvertTarget = None,
    target_name: Annotated[
        str | None, typer.Option("--target-name", help="What published files call the target, like org/name.")
    ] = None,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="--to 3.1: statistics from `eaglectl calibrate`.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="--to 3.1: prompts like production's, for calibration and the gate."),
    ] = None,
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
    device: Annotated[str, typer.Option("--device", help="--to 3.1: auto, cuda or cpu.")] = "auto",
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
    from eaglectl.api.upgrading import UpgradeOptions

    settings: OutputSettings = context.obj
    if to not in (None, "3", "3.1"):
        raise UsageError(f"--to {to}: 3 or 3.1 was expected")
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
        answers=api.parse_answers(aux_layers, aux_convention, source_semantics or []),
        dry_run=dry_run,
        force=force,
        link=link,
        max_shard_size=_bytes(max_shard_size),
        gguf=gguf,
    )
    upgrade_options = UpgradeOptions(
        fc_norm,
        norm_output,
        calibration,
        prompts,
        tolerance,
        has_gate,
        init_only,
        device,
        sample=sample,
        seed=seed,
        ignore_eos=ignore_eos,
        trust_remote_code=trust_remote_code,
    )
    with ProgressBar(settings, is_on=not (settings.quiet or json_ or dry_run)) as bar:
        if to == "3.1":
            done = api.upgrade(source, out, upgrade_options, options, on_progress=bar)
        elif upgrade_options == UpgradeOptions():
            done = api.convert(source, out, options, on_progress=bar)
        else:
            raise UsageError(
                "--calibration, --prompts, --sample, --seed, --ignore-eos, --fc-norm, --norm-output,"
                " --tolerance, --gate, --init-only, --device and --trust-remote-code belong to --to 3.1"
            )
    if json_:
        from eaglectl.reports.json.convert import convert_document

        print_json(convert_document(done, trust_remote_code=trust_remote_code))
    else:
        _print(settings, done, source, has_plan=dry_run or settings.verbose)
        print_trust(trust_remote_code)
    if done.gate is not None and not done.gate.is_passed:
        raise typer.Exit(1)


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
