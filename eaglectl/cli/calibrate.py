"""`eaglectl calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.cli.options import (
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    EngineArguments,
    IgnoreEos,
    Json,
    Measure,
    RunTarget,
    Sample,
    Seed,
    Semantics,
    Source,
    TrustRemoteCode,
    print_json,
    print_trust,
)
from eaglectl.errors import UsageError
from eaglectl.terminal import OutputSettings, ProgressBar, say

if TYPE_CHECKING:
    from eaglectl.conversion.calibration import Statistics


def calibrate_command(
    context: typer.Context,
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write the statistics to.")],
    target: RunTarget = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Prompts like production's, as for `smoke`; built-in ones otherwise."),
    ] = None,
    sample: Sample = None,
    seed: Seed = 0,
    answer_tokens: Annotated[
        int,
        typer.Option(
            "--answer-tokens", help="Tokens of the target's own answer to each prompt that count too."
        ),
    ] = 64,
    ignore_eos: IgnoreEos = False,
    states: Annotated[
        Path | None,
        typer.Option("--states", help="Hidden states that a trainer has on disk, in the place of a run."),
    ] = None,
    states_layers: Annotated[
        str | None,
        typer.Option("--states-layers", help="The boundaries that --states holds, in its order: 2,4,5."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", help="What runs the target: transformers, or the installed vLLM (vllm)."),
    ] = "transformers",
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", help="GPUs that vLLM spreads the target over.")
    ] = 1,
    engine_arguments: EngineArguments = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="Seconds for vLLM to load the target, and for each batch after that."),
    ] = 1800.0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder at OUT.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    measure: Measure = True,
    json_: Json = False,
) -> None:
    """Run the target on prompts and collect the statistics of its states that `convert --to 3.1` needs.

    With --states, the states are read from a trainer's files and the target is not run.
    """
    from eaglectl import api
    from eaglectl.acceptance.engine_arguments import parse_engine_arguments
    from eaglectl.api.inputs import check_device
    from eaglectl.api.targets import runnable_target
    from eaglectl.formats.commands import command

    settings: OutputSettings = context.obj
    check_device(device)
    if answer_tokens < 1:
        raise UsageError("--answer-tokens needs to be at least 1")
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    choice = runnable_target(source, target, answers, "calibrate")
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        options = api.CalibrateOptions(
            prompts=prompts,
            sample=sample,
            seed=seed,
            answer_tokens=answer_tokens,
            ignore_eos=ignore_eos,
            device=device,
            engine=engine,
            tensor_parallel_size=tensor_parallel_size,
            engine_arguments=parse_engine_arguments(engine_arguments or [], is_calibration=True),
            timeout=timeout,
            answers=answers,
            trust_remote_code=trust_remote_code,
            force=force,
            states=states,
            states_layers=_layers(states_layers),
            measure=measure,
        )
        statistics = api.calibrate(source, choice.place, out, options, on_progress=bar)
    if prompts is None and states is None and not settings.quiet:
        settings.warn("calibrated on the built-in prompts; prompts like those in production are better")
    if json_:
        from eaglectl.reports.json.calibrate import calibrate_document

        print_json(calibrate_document(statistics, out, trust_remote_code=trust_remote_code))
        return
    print_trust(trust_remote_code)
    for key in ("tensor_parallel_size", "arguments"):
        if key in statistics.engine:
            say(f"{key} of {statistics.engine['name']}: {statistics.engine[key]}")
    if choice.how:
        say(f"target: {choice.how}")
    _print_figures(statistics, "prompts and the target's answers" if states is None else "sequences on disk")
    statistics_options = ["--to", "3.1", "--calibration", str(out)]
    # the gate of the conversion runs the target as this command did
    measured = [entry["answer"] for entry in statistics.measured if entry["answer"]]
    statistics_options += [word for option in measured for word in option.split(" ")]
    statistics_options += ["--ignore-eos"] * ignore_eos + ["--trust-remote-code"] * trust_remote_code
    say(f"next: {command('convert', source, *statistics_options, target=choice.text, answers=answers)}")


def _print_figures(statistics: "Statistics", of_what: str) -> None:
    """Print what was measured of open questions, and the statistics."""
    for entry in statistics.measured:
        say(entry["summary"])
    say(f"{statistics.tokens} tokens of {len(statistics.prompts)} {of_what}")
    for boundary, rms, spread in zip(statistics.boundaries, statistics.rms, statistics.spread, strict=True):
        say(f"  boundary {boundary:<3} median RMS {rms:<10.4g} sd of its log-ratio {spread:.3f}")
    if statistics.massive and statistics.massive.tokens:
        say(f"  {statistics.massive.described(statistics.boundaries)}")
    say(f"  first two fed-back states: median RMS {statistics.sigma:.4g}")


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len({*map(int, parts)}) != len(parts):
        raise UsageError(f"--states-layers {text[:80]}: different boundaries like 2,4,5 were expected")
    return tuple(map(int, parts))
