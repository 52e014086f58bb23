"""`eaglectl convert`."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.cli.options import AuxConvention, AuxLayers, Engines, Json, Semantics, Source, Target, print_json
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face

if TYPE_CHECKING:
    from eaglectl.api.upgrading import Upgrade
    from eaglectl.conversion.plan import Pruning
    from eaglectl.reports.findings import Conversion


def convert_command(
    context: typer.Context,
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The folder to write; NAME-eagleVERSION in the current folder by default."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="EAGLE version: 3 or 3.1. Left out, the version stays.")
    ] = None,
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            help="The layout: vllm (which the most engines accept), sglang, speculators, eagle, or a trainer's.",
        ),
    ] = "vllm",
    engine: Engines = None,
    target: Target = None,
    target_name: Annotated[
        str | None, typer.Option("--target-name", help="What published files call the target, like org/name.")
    ] = None,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="A tensor without a place in a drafter that may be left behind.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Cast float tensors: bfloat16, float16 or float32. Never done unasked."),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option("--max-shard-size", help="Split the weights into files of at most this, like 2GB.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Hard-link weight files that do not change.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing checkpoint folder at OUT.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="--to 3.1: statistics from `eaglectl calibrate`.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="--to 3.1: prompts like production's, for calibration and the gate."),
    ] = None,
    fc_norm: Annotated[
        str, typer.Option("--fc-norm", help="--to 3.1: refit (scales, and fc fitted again), calibrated (scales), off.")
    ] = "refit",
    norm_output: Annotated[
        bool, typer.Option("--norm-output/--no-norm-output", help="--to 3.1: feed the state after the norm back.")
    ] = True,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="--to 3.1: the least ratio of acceptance that the gate lets pass.")
    ] = 0.97,
    has_gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="--to 3.1: measure acceptance before anything is written.")
    ] = True,
    init_only: Annotated[
        bool, typer.Option("--init-only", help="--to 3.1: a start for a trainer, marked as untrained.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="--to 3.1: auto, cuda or cpu.")] = "auto",
    attention: Annotated[
        str | None,
        typer.Option("--attention", help="mha: write GQA's shared key and value heads out, for an engine without GQA."),
    ] = None,
    rope_style: Annotated[
        str | None,
        typer.Option(
            "--rope-style", help="interleaved: reorder an MLA drafter's rotary rows that are paired by halves."
        ),
    ] = None,
    mla_query_lora: Annotated[
        bool,
        typer.Option("--mla-query-lora", help="Write an MLA drafter's q_proj as q_a_proj and q_b_proj; nearly exact."),
    ] = False,
    materialize_lm_head: Annotated[
        bool,
        typer.Option(
            "--materialize-lm-head", help="Give a drafter without an lm_head the target's (--target with weights)."
        ),
    ] = False,
    draft_vocab: Annotated[
        int | None, typer.Option("--draft-vocab", help="Keep only this many draft tokens, by --token-counts.")
    ] = None,
    token_counts: Annotated[
        Path | None,
        typer.Option(
            "--token-counts", help="How often each target token was seen: JSON, or lines of an id and a count."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Rewrite a drafter in another layout. Bytes move and nothing else: each tensor keeps its values unless a step is named."""
    from eaglectl import api
    from eaglectl.api.upgrading import Upgrade
    from eaglectl.conversion.plan import Wish

    face: Face = context.obj
    if to not in (None, "3", "3.1"):
        raise Usage(f"--to {to}: 3 or 3.1 was expected")
    wish = Wish(
        for_, to, tuple(engine or ()), tuple(drop or ()), _dtype(dtype), attention=attention, rope_style=rope_style,
        has_query_lora=mla_query_lora, pruning=_pruning(draft_vocab, token_counts), has_target_head=materialize_lm_head,
    )  # fmt: skip
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    progress = Bar(face, is_on=not (face.quiet or json_ or dry_run))
    asked = Upgrade(fc_norm, norm_output, calibration, prompts, tolerance, has_gate, init_only, device)
    with progress:
        if to == "3.1":
            done = api.upgrade(
                source, out, wish=wish, asked=asked, target=target, target_name=target_name, answers=answers, dry_run=dry_run, force=force, link=link,
                max_shard_size=_bytes(max_shard_size), told=progress.stage,
            )  # fmt: skip
        else:
            _refuse_idle(asked)
            done = api.convert(
                source, out, wish=wish, target=target, target_name=target_name, answers=answers, dry_run=dry_run, force=force, link=link,
                max_shard_size=_bytes(max_shard_size), told=progress.advance, planned=progress.start,
            )  # fmt: skip
    if json_:
        from eaglectl.reports import machine

        print_json(machine.conversion(done))
        _end(done)
        return
    from eaglectl.reports import text

    if done.pickles and not face.quiet:
        face.console(stderr=True).print(
            f"warning: read from pickles ({', '.join(done.pickles[:3])}) with code execution shut off", style="yellow"
        )
    face.show(
        lambda console: text.print_conversion(console, done, is_whole=dry_run or face.verbose, is_quiet=face.quiet)
    )
    is_start = init_only and "upgrade" in done.plan.record
    if done.gate is not None or is_start:
        from eaglectl.reports.upgrade import print_gate, print_trainers

        if done.gate is not None:
            face.show(partial(print_gate, gate=done.gate))
        else:
            face.show(partial(print_trainers, source=source, norms=done.plan.drafter.norms))
    _end(done)


def _end(done: "Conversion") -> None:
    if done.gate is not None and not done.gate.is_passed:
        raise typer.Exit(1)


def _refuse_idle(asked: "Upgrade") -> None:
    """Options of the upgrade say nothing to other conversions, and must not look as if they did."""
    from eaglectl.api.upgrading import Upgrade

    if asked != Upgrade():
        raise Usage(
            "--calibration, --prompts, --fc-norm, --norm-output, --tolerance, --gate, --init-only and --device belong to --to 3.1"
        )


def _pruning(size: int | None, counts: Path | None) -> "Pruning | None":
    from eaglectl.conversion.plan import Pruning

    if size is None and counts is None:
        return None
    if size is None or counts is None:
        raise Usage("--draft-vocab and --token-counts go together: how many tokens stay, and by which counts")
    return Pruning(size, counts)


def _dtype(text: str | None) -> str | None:
    known = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
    if text is None:
        return None
    if text not in known:
        raise Usage(f"--dtype {text}: {', '.join(known)} were expected")
    return known[text]


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise Usage(f"--max-shard-size {text[:50]}: a size like 500MB or 2GB was expected")
    try:
        size = int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))
    except OverflowError:
        size = 0
    if size == 0:
        raise Usage(f"--max-shard-size {text[:50]}: a size like 500MB or 2GB was expected")
    return size
