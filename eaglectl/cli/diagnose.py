"""`eaglectl diagnose`."""

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
    Page,
    RunTarget,
    Sample,
    Semantics,
    Source,
    TrustRemoteCode,
    print_json,
)
from eaglectl.terminal import OutputSettings, ProgressBar


def diagnose_command(
    context: typer.Context,
    source: Source,
    target: RunTarget = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="The engine where acceptance is low: vllm or sglang (run where it is installed, with"
            " ==RELEASE read for that one), or the URL of a running server.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Prompts like production's, as for `smoke`; built-in ones otherwise."),
    ] = None,
    sample: Sample = None,
    k: Annotated[int, typer.Option("-k", "--num-speculative-tokens", help="Draft tokens in a round.")] = 3,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens for each prompt.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Production's, to see what sampling costs.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="For --sample, and for tokens at a temperature.")] = 0,
    expected: Annotated[
        float | None,
        typer.Option("--expected", help="The acceptance length that training reported; lower is low."),
    ] = None,
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
    page: Page = None,
) -> None:
    """Find why a drafter's acceptance is low: the file, the engine, the pair, the prompts or the training."""
    from eaglectl import api
    from eaglectl.api.inputs import check_device
    from eaglectl.reports.files import parse_page, write_page

    settings: OutputSettings = context.obj
    check_device(device)
    file = parse_page(page)
    options = api.DiagnoseOptions(
        engine=engine,
        prompts=prompts,
        sample=sample,
        k=k,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        expected=expected,
        device=device,
        timeout=timeout,
        trust_remote_code=trust_remote_code,
        answers=api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults),
        measure=measure,
    )
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        diagnosis = api.diagnose(source, target, options, on_progress=bar)
    if json_:
        from eaglectl.reports.json.diagnose import diagnose_document

        print_json(diagnose_document(diagnosis))
    else:
        from eaglectl.reports.terminal.diagnose import print_diagnosis

        settings.show(lambda console: print_diagnosis(console, diagnosis))
    if file:
        write_page(file, api.render_page(diagnosis))
    if code := EXIT_CODES[diagnosis.verdict]:
        raise typer.Exit(code)
