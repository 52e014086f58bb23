"""`eaglectl ready`."""

from pathlib import Path
from typing import Annotated

import typer

from eaglectl.cli.options import (
    EXIT_CODES,
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Json,
    Measure,
    Sample,
    Seed,
    Semantics,
    Source,
    TrustRemoteCode,
    print_json,
)
from eaglectl.terminal import OutputSettings, ProgressBar


def ready_command(
    context: typer.Context,
    source: Source,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="The target model: its folder, config.json or Hub repository; it is run where its weights"
            " are here. Left out, the one that the checkpoint names, if it is here.",
        ),
    ] = None,
    engines: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help="An engine that shall serve it: vllm, sglang==0.5.23, llama.cpp, or the URL of a running"
            " server. Left out: those installed here, and the newest vLLM and SGLang. May be given several"
            " times.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Where the conversion is kept; left out, it is only measured."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts", help="A file of prompts or a named set, as for `smoke`; else built-in ones."
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", help="Prompts, tokens and temperature of a published figure: vllm-mt-bench."),
    ] = None,
    sample: Sample = None,
    k: Annotated[int, typer.Option("-k", "--num-speculative-tokens", help="Draft tokens in a round.")] = 3,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens for each prompt.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Seed = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for the engine's run, or each request to a server.")
    ] = 600.0,
    trust_remote_code: TrustRemoteCode = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    measure: Measure = True,
    json_: Json = False,
) -> None:
    """Say whether a drafter can be served, converting where needed, with acceptance before and after."""
    from eaglectl import api
    from eaglectl.api.inputs import check_device

    settings: OutputSettings = context.obj
    check_device(device)
    options = api.ReadyOptions(
        engines=tuple(engines or ()),
        prompts=prompts,
        like=like,
        sample=sample,
        k=k,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        device=device,
        timeout=timeout,
        trust_remote_code=trust_remote_code,
        answers=api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults),
        measure=measure,
    )
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        result = api.ready(source, target, out, options, on_progress=bar)
    if json_:
        from eaglectl.reports.json.ready import ready_document

        print_json(ready_document(result))
    else:
        from eaglectl.reports.terminal.ready import print_readiness

        settings.show(lambda console: print_readiness(console, result))
    if code := EXIT_CODES[result.verdict]:
        raise typer.Exit(code)
