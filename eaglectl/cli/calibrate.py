"""`eaglectl calibrate`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

import eaglectl
from eaglectl.cli.options import AuxConvention, AuxLayers, Json, Semantics, Source, print_json
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face


def calibrate_command(
    context: typer.Context,
    source: Source,
    target: Annotated[str, typer.Option("--target", help="The target model's folder; it is run.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write the statistics to.")],
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Prompts like production's; built-in ones otherwise.")
    ] = None,
    answer_tokens: Annotated[
        int, typer.Option("--answer-tokens", help="Tokens of the target's own answer to each prompt that count too.")
    ] = 64,
    engine: Annotated[
        str, typer.Option("--engine", help="What runs the target: transformers, or the installed vLLM (vllm).")
    ] = "transformers",
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", help="GPUs that vLLM spreads the target over.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for vLLM to load the target, and for each batch after that.")
    ] = 1800.0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder at OUT.")] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    json_: Json = False,
) -> None:
    """Run the target over prompts and collect what `convert --to 3.1` has to know of its states."""
    from eaglectl import api

    face: Face = context.obj
    if device not in ("auto", "cuda", "cpu"):
        raise Usage(f"--device {device}: auto, cuda or cpu was expected")
    if answer_tokens < 1:
        raise Usage("--answer-tokens needs to be at least 1")
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    with Bar(face, is_on=not (face.quiet or json_)) as progress:
        found = api.calibrate(
            source, target, out, prompts=prompts, answer_tokens=answer_tokens, device=device, engine=engine,
            tensor_parallel_size=tensor_parallel_size, timeout=timeout, answers=answers, force=force, told=progress.prompts,
        )  # fmt: skip
    if prompts is None and not face.quiet:
        face.console(stderr=True).print(
            "warning: calibrated on the built-in prompts; prompts like those in production are better", style="yellow"
        )
    if json_:
        print_json(
            {"schema": "eaglectl/calibrate/1", "version": eaglectl.__version__, "out": str(out), **found.described()}
        )
        return
    layers = "\n".join(
        f"  boundary {boundary:<3} median RMS {rms:<10.4g} sd of its log-ratio {spread:.3f}"
        for boundary, rms, spread in zip(found.boundaries, found.rms, found.spread, strict=True)
    )
    print(
        f"{found.tokens} tokens of {len(found.prompts)} prompts and the target's answers\n{layers}\n  first two fed-back states: median RMS {found.sigma:.4g}"
    )
    print(
        "next:",
        shlex.join(["eaglectl", "convert", source, "--to", "3.1", "--target", target, "--calibration", str(out)]),
    )
