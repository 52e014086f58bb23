"""`eaglectl smoke`."""

from pathlib import Path
from typing import Annotated

import typer

import eaglectl
from eaglectl.cli.options import AuxConvention, AuxLayers, Json, Page, Semantics, Source, print_json
from eaglectl.errors import Usage
from eaglectl.terminal import Bar, Face


def smoke_command(
    context: typer.Context,
    source: Source,
    target: Annotated[str, typer.Option("--target", help="The target model's folder; it is run.")],
    engine: Annotated[
        str, typer.Option("--engine", help="auto, vllm, reference, or the URL of a running vLLM or SGLang server.")
    ] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    k: Annotated[int, typer.Option("-k", "--num-speculative-tokens", help="Drafted tokens a round.")] = 3,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="JSON lines with a prompt each, or plain lines; built-in ones otherwise."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens for each prompt.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    against: Annotated[str | None, typer.Option("--against", help="A second drafter, run on the same prompts.")] = None,
    min_acceptance_length: Annotated[
        float | None, typer.Option("--min-acceptance-length", help="Fail below this.")
    ] = None,
    min_position_0: Annotated[
        float | None,
        typer.Option("--min-position-0", help="Fail where the first drafted token is accepted less often."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds after which an engine is stopped.")] = 600.0,
    probe: Annotated[
        str | None,
        typer.Option("--probe", help="sensitivity: other readings of the file; drift: other conditions, to depth 7."),
    ] = None,
    is_load_only: Annotated[
        bool, typer.Option("--load-only", help="Only load the drafter in vLLM and list what the file does not fill.")
    ] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Run a drafter against its target and measure how much of what it drafts is accepted. A dead drafter fails."""
    from eaglectl import api
    from eaglectl.reports.files import parse_page, write_page

    face: Face = context.obj
    if device not in ("auto", "cuda", "cpu"):
        raise Usage(f"--device {device}: auto, cuda or cpu was expected")
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    if is_load_only and page is not None:
        raise Usage("--load-only measures nothing that a page could show; leave --page out")
    file = parse_page(page)
    if is_load_only:
        _load_only(face, source, target, timeout, is_json=json_)
        return
    with Bar(face, is_on=not (face.quiet or json_)) as progress:
        report = api.smoke(
            source, target, engine=engine, device=device, k=k, prompts=prompts, max_tokens=max_tokens, temperature=temperature, seed=seed,
            against=against, min_acceptance_length=min_acceptance_length, min_position_0=min_position_0, timeout=timeout, probe=probe, answers=answers,
            told=progress.prompts,
        )  # fmt: skip
    if json_:
        from eaglectl.reports import machine

        print_json(machine.smoke(report))
    else:
        from eaglectl.reports.smoke import print_smoke

        face.show(lambda console: print_smoke(console, report))
    if file:
        write_page(file, api.render_page(report))
    if report.verdict == "fail":
        raise typer.Exit(1)


def _load_only(face: Face, source: str, target: str, timeout: float, *, is_json: bool) -> None:
    from eaglectl import api

    found = api.load_only(source, target, timeout=timeout)
    missing = found["unfilled"]
    if is_json:
        print_json({"schema": "eaglectl/load/1", "version": eaglectl.__version__, **found})
    else:
        print(
            f"vLLM {found['version']} loads it as {found['resolved']['class']}; parameters that the file does not fill:"
            f" {', '.join(missing) or 'none'}"
        )
    if missing:
        raise typer.Exit(1)
