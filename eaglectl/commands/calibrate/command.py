"""`eaglectl calibrate`."""

from typing import Annotated

import typer

from eaglectl.api.options import CalibrateOptions
from eaglectl.commands.arguments import Json, RunTarget, Source, print_trust
from eaglectl.terminal import OutputSettings, ProgressBar, emit, say
from eaglectl.verdicts import first_word

Out = Annotated[str, typer.Option("-o", "--out", metavar="DIR", help="The folder for the statistics.")]


def calibrate_command(
    context: typer.Context,
    source: Source,
    out: Out,
    *,
    target: RunTarget = None,
    options: CalibrateOptions,
    json_: Json = False,
) -> None:
    """Run the target on prompts and collect the hidden-state statistics that `convert --to 3.1` needs."""
    from eaglectl.api.upgrade import calibrate
    from eaglectl.formats.commands import command
    from eaglectl.shell import as_path
    from eaglectl.target.choice import as_target, runnable_target

    settings: OutputSettings = context.obj
    choice = runnable_target(source, as_target(target), options.answers, "calibrate")
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        statistics = calibrate(source, choice, out, options, on_progress=bar)
    if options.prompts is None and not settings.quiet:
        settings.warn("calibrated on the built-in prompts; prompts like those in production are better")
    if json_:
        emit(statistics.to_json())
        return
    what = f"{statistics.tokens} tokens of {len(statistics.prompts)} prompts and the target's answers"
    say(f"{first_word('')}: {what}")
    print_trust(options.trust_remote_code)
    for key in ("tensor_parallel_size", "arguments"):
        if key in statistics.engine:
            say(f"{key} of {statistics.engine['name']}: {statistics.engine[key]}")
    if choice.how:
        say(f"target: {choice.how}")
    for entry in statistics.measured:
        say(entry["summary"])
    sizes = zip(statistics.boundaries, statistics.rms, statistics.spread, strict=True)
    for boundary, rms, spread in sizes:
        say(f"  boundary {boundary:<3} median RMS {rms:<10.4g} sd of its log-ratio {spread:.3f}")
    say(f"  first two fed-back states: median RMS {statistics.sigma:.4g}")
    # the conversion with these statistics, whose gate runs the target as this command did
    words = ["--to", "3.1", "--calibration", as_path(out)]
    answers = [entry["answer"] for entry in statistics.measured if entry["answer"]]
    words += [word for answer in answers for word in answer.split(" ")]
    words += ["--ignore-eos"] * options.ignore_eos
    choice = options.deployment.of(choice)
    say(f"next: {command('convert', source, *words, target=choice, answers=options.answers)}")
