"""`eaglectl convert`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from eaglectl.cli.options import AuxConvention, AuxLayers, Engines, Json, Semantics, Source, Target, print_json
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face


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
    json_: Json = False,
) -> None:
    """Rewrite a drafter in another layout. Bytes move and nothing else: each tensor keeps its values unless a step is named."""
    from eaglectl import api
    from eaglectl.conversion.plan import Wish

    face: Face = context.obj
    if to not in (None, "3", "3.1"):
        raise Usage(f"--to {to}: 3 or 3.1 was expected")
    wish = Wish(for_, to, tuple(engine or ()), tuple(drop or ()), _dtype(dtype))
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    progress = Bar(face, is_on=not (face.quiet or json_ or dry_run))
    with progress:
        done = api.convert(
            source, out, wish=wish, target=target, target_name=target_name, answers=answers, dry_run=dry_run, force=force, link=link,
            max_shard_size=_bytes(max_shard_size), told=progress.advance, planned=progress.start,
        )  # fmt: skip
    if json_:
        from eaglectl.reports import machine

        print_json(machine.conversion(done))
        return
    from eaglectl.reports import text

    if done.pickles and not face.quiet:
        face.console(stderr=True).print(
            f"warning: read from pickles ({', '.join(done.pickles[:3])}) with code execution shut off", style="yellow"
        )
    face.show(
        lambda console: text.print_conversion(console, done, is_whole=dry_run or face.verbose, is_quiet=face.quiet)
    )


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
