"""`eaglectl smoke`."""

from pathlib import Path
from typing import Annotated

import typer

from eaglectl.cli.options import (
    EXIT_CODES,
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    EngineArguments,
    IgnoreEos,
    Json,
    Page,
    RunTarget,
    Sample,
    Semantics,
    Source,
    TrustRemoteCode,
    print_json,
    print_trust,
)
from eaglectl.errors import UsageError
from eaglectl.terminal import OutputSettings, ProgressBar, say
from eaglectl.text import listed


def smoke_command(
    context: typer.Context,
    source: Source,
    target: RunTarget = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="auto, vllm, sglang, reference, or the URL of a running vLLM or SGLang server, to which"
            " requests go directly, without proxies.",
        ),
    ] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", help="GPUs that vLLM or SGLang spreads the target over.")
    ] = 1,
    engine_arguments: EngineArguments = None,
    k: Annotated[int, typer.Option("-k", "--num-speculative-tokens", help="Draft tokens in a round.")] = 3,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="A file of prompts: plain lines, or JSON lines with messages (OpenAI's chat format), prompt"
            " or prompt_token_ids; built-in ones otherwise.",
        ),
    ] = None,
    sample: Sample = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens for each prompt.")] = 64,
    ignore_eos: IgnoreEos = False,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="For --sample, and for tokens at a temperature.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", help="An older drafter on the same prompts; fail where SOURCE is worse on a set."
        ),
    ] = None,
    max_regression: Annotated[
        float | None,
        typer.Option(
            "--max-regression",
            help="--against: the least that the lower bound of the ratio may be on each set; 0.97.",
        ),
    ] = None,
    min_acceptance_length: Annotated[
        float | None, typer.Option("--min-acceptance-length", help="Fail below this.")
    ] = None,
    min_position_0: Annotated[
        float | None,
        typer.Option("--min-position-0", help="Fail where the first draft token is accepted less often."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", help="Seconds after which an engine is stopped, or each request to a server."
        ),
    ] = 600.0,
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe", help="sensitivity: doubtful settings the other way; drift: other prompts, to depth 7."
        ),
    ] = None,
    is_load_only: Annotated[
        bool,
        typer.Option(
            "--load-only", help="Only load the drafter in vLLM and list what the file does not fill."
        ),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Run a drafter against its target and measure how many draft tokens it accepts."""
    from eaglectl import api
    from eaglectl.acceptance.engine_arguments import parse_engine_arguments
    from eaglectl.api.inputs import check_device
    from eaglectl.reports.files import parse_page, write_page

    settings: OutputSettings = context.obj
    check_device(device)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    arguments = parse_engine_arguments(engine_arguments or [])
    if is_load_only:
        _check_load_only(engine, page, has_arguments=bool(arguments) or tensor_parallel_size != 1)
    file = parse_page(page)
    if is_load_only:
        _load_only(source, target, timeout, trust_remote_code=trust_remote_code, is_json=json_)
        return
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        options = api.SmokeOptions(
            engine=engine,
            device=device,
            k=k,
            prompts=prompts,
            sample=sample,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            temperature=temperature,
            seed=seed,
            against=against,
            max_regression=max_regression,
            min_acceptance_length=min_acceptance_length,
            min_position_0=min_position_0,
            timeout=timeout,
            probe=probe,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            engine_arguments=arguments,
            answers=answers,
        )
        report = api.smoke(source, target, options, on_progress=bar)
    if json_:
        from eaglectl.reports.json.smoke import smoke_document

        print_json(smoke_document(report))
    else:
        from eaglectl.reports.terminal.smoke import print_smoke

        settings.show(lambda console: print_smoke(console, report))
    if file:
        write_page(file, api.render_page(report))
    if code := EXIT_CODES[report.verdict]:
        raise typer.Exit(code)


def _check_load_only(engine: str, page: str | None, *, has_arguments: bool) -> None:
    """Raise UsageError for options that --load-only cannot take."""
    if page is not None:
        raise UsageError("--load-only measures nothing that a page could show; leave --page out")
    if engine not in ("auto", "vllm"):
        raise UsageError(
            f"--load-only is vLLM's, and --engine is {engine}; smoke --engine sglang without it lists what"
            " nothing fills too"
        )
    if has_arguments:
        raise UsageError(
            "--load-only loads the drafter alone; leave --tensor-parallel-size and --engine-arg out"
        )


def _load_only(
    source: str, target: str | None, timeout: float, *, trust_remote_code: bool, is_json: bool
) -> None:
    from eaglectl import api

    result = api.load_only(source, target, timeout=timeout, trust_remote_code=trust_remote_code)
    if is_json:
        from eaglectl.reports.json.load import load_document

        print_json(load_document(result, trust_remote_code=trust_remote_code))
    else:
        say(
            f"vLLM {result.version} loads it as {result.resolved['class']}; parameters that the file does not"
            f" fill: {listed(result.unfilled) or 'none'}"
        )
        print_trust(trust_remote_code)
    if result.unfilled:
        raise typer.Exit(1)
