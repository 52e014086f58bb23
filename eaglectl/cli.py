"""The command line: it parses, calls the API, prints, and exits with the codes that the contract names."""

import json
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import eaglectl
from eaglectl.errors import EaglectlError, Usage
from eaglectl.terminal import Bar, Face, emit

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="eaglectl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A checkpoint folder, or a weight file beside its config.json.")
]
Target = Annotated[
    str | None, typer.Option("--target", help="The target model: its folder or config.json. Only the config is read.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="An engine: vllm, 'vllm>=0.22', sglang==0.5.23. May be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
AuxLayers = Annotated[
    str | None,
    typer.Option(
        "--aux-layers", help="The trained aux layers as boundaries (or as --aux-convention says), like 2,16,29."
    ),
]
AuxConvention = Annotated[
    str | None, typer.Option("--aux-convention", help="What the file's layer ids mean: boundary or output.")
]
Semantics = Annotated[
    list[str] | None,
    typer.Option(
        "--source-semantics",
        metavar="KEY=VALUE",
        help="A fact about the trainer that the file cannot state, like specforge=pre-879.",
    ),
]


@app.callback()
def common(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Inspect and convert EAGLE-3 and EAGLE-3.1 drafters, whatever trainer wrote them."""
    context.obj = Face(quiet, verbose, no_color)
    if version:
        print(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


@app.command("inspect")
def inspect_command(
    context: typer.Context,
    source: Source,
    target: Target = None,
    engine: Engines = None,
    json_: Json = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors.")] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
) -> None:
    """Say what a checkpoint is, what it was trained on, and which engines run it as trained. Reads headers only."""
    from eaglectl import api

    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    found = api.inspect(source, target=target, engines=engine or (), answers=answers)
    if json_:
        from eaglectl.reports import machine

        _print_json(machine.inspection(found))
        return
    from eaglectl.reports.text import print_inspection

    context.obj.show(lambda console: print_inspection(console, found, has_tensors=tensors))


@app.command("convert")
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

        _print_json(machine.conversion(done))
        return
    from eaglectl.reports import text

    if done.pickles and not face.quiet:
        face.console(stderr=True).print(
            f"warning: read from pickles ({', '.join(done.pickles[:3])}) with code execution shut off", style="yellow"
        )
    face.show(
        lambda console: text.print_conversion(console, done, is_whole=dry_run or face.verbose, is_quiet=face.quiet)
    )


@app.command("smoke")
def smoke_command(
    context: typer.Context,
    source: Source,
    target: Annotated[str, typer.Option("--target", help="The target model's folder; it is run.")],
    engine: Annotated[
        str, typer.Option("--engine", help="auto, vllm, reference, or the URL of a running vLLM server.")
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
) -> None:
    """Run a drafter against its target and measure how much of what it drafts is accepted. A dead drafter fails."""
    from eaglectl import api

    face: Face = context.obj
    if device not in ("auto", "cuda", "cpu"):
        raise Usage(f"--device {device}: auto, cuda or cpu was expected")
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
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

        _print_json(machine.smoke(report))
    else:
        from eaglectl.reports.smoke import print_smoke

        face.show(lambda console: print_smoke(console, report))
    if report.verdict == "fail":
        raise typer.Exit(1)


def _load_only(face: Face, source: str, target: str, timeout: float, *, is_json: bool) -> None:
    from eaglectl import api

    found = api.load_only(source, target, timeout=timeout)
    missing = found["unfilled"]
    if is_json:
        _print_json({"schema": "eaglectl/load/1", "version": eaglectl.__version__, **found})
    else:
        print(
            f"vLLM {found['version']} loads it as {found['resolved']['class']}; parameters that the file does not fill:"
            f" {', '.join(missing) or 'none'}"
        )
    if missing:
        raise typer.Exit(1)


@app.command("demo")
def demo_command(context: typer.Context) -> None:
    """Run the main job on the fixtures of a checkout, end to end."""
    from eaglectl.demo import run_demo

    run_demo(context.obj.console(), run)


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


def _print_json(document: Any) -> None:
    emit(json.dumps(document, indent=2))


def main() -> None:
    """Run, and turn every outcome into the contract's exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run with these arguments and return the exit code; only a crash of our own shows a traceback."""
    try:
        code = int(app(arguments, prog_name="eaglectl", standalone_mode=False) or 0)
    except EaglectlError as problem:
        if "--json" in arguments:
            from eaglectl.reports import machine

            _print_json(machine.error(problem))
        print(f"eaglectl: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as problem:
        code = _other(problem, is_json="--json" in arguments)
    if code == INTERRUPTED:
        print("eaglectl: interrupted; nothing was left behind", file=sys.stderr)
    return code


INTERRUPTED = 130


def _other(problem: Exception, *, is_json: bool) -> int:
    show = getattr(problem, "show", None)  # click's usage errors, which typer may vendor under another module
    if callable(show) and hasattr(problem, "exit_code"):
        if is_json:
            from eaglectl.reports import machine

            message = getattr(problem, "format_message", lambda: str(problem))()
            _print_json(machine.error(Usage(message)))
        show()
        return 2
    if type(problem).__name__ == "Abort":
        return INTERRUPTED
    traceback.print_exc()
    print("eaglectl: this is a fault of eaglectl; please report it with the lines above", file=sys.stderr)
    return 70
