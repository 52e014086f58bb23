"""`eaglectl calibrate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from eaglectl.commands.arguments import Json, RunTarget, Source, print_trust
from eaglectl.operations.options import CalibrateOptions
from eaglectl.terminal import OutputSettings, ProgressBar, emit, say

if TYPE_CHECKING:
    from eaglectl.conversion.upgrade import Statistics

Out = Annotated[
    str, typer.Option("-o", "--out", metavar="DIR", help="The folder to write the statistics to.")
]


def calibrate_command(
    context: typer.Context,
    source: Source,
    out: Out,
    *,
    target: RunTarget = None,
    options: CalibrateOptions,
    json_: Json = False,
) -> None:
    """Run the target on prompts and collect the statistics of its states that `convert --to 3.1` needs.

    With --states, the states are read from a trainer's files and the target is not run.
    """
    from eaglectl.formats.commands import command
    from eaglectl.operations.upgrading import calibrate
    from eaglectl.shell import as_path
    from eaglectl.target import runnable_target

    settings: OutputSettings = context.obj
    choice = runnable_target(source, target, options.answers, "calibrate")
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        statistics = calibrate(source, choice.place, out, options, on_progress=bar)
    if options.prompts is None and options.states is None and not settings.quiet:
        settings.warn("calibrated on the built-in prompts; prompts like those in production are better")
    if json_:
        emit(statistics.to_json())
        return
    print_trust(options.trust_remote_code)
    for key in ("tensor_parallel_size", "arguments"):
        if key in statistics.engine:
            say(f"{key} of {statistics.engine['name']}: {statistics.engine[key]}")
    if choice.how:
        say(f"target: {choice.how}")
    for entry in statistics.measured:
        say(entry["summary"])
    of_what = "prompts and the target's answers" if options.states is None else "sequences on disk"
    say(f"{statistics.tokens} tokens of {len(statistics.prompts)} {of_what}")
    _print_sizes(statistics)
    # the conversion with these statistics, whose gate runs the target as this command did
    words = ["--to", "3.1", "--calibration", as_path(out)]
    measured = [entry["answer"] for entry in statistics.measured if entry["answer"]]
    words += [word for option in measured for word in option.split(" ")]
    words += ["--ignore-eos"] * options.ignore_eos + ["--trust-remote-code"] * options.trust_remote_code
    say(f"next: {command('convert', source, *words, target=choice.text, answers=options.answers)}")


def _print_sizes(statistics: "Statistics") -> None:
    for boundary, rms, spread in zip(statistics.boundaries, statistics.rms, statistics.spread, strict=True):
        say(f"  boundary {boundary:<3} median RMS {rms:<10.4g} sd of its log-ratio {spread:.3f}")
    if statistics.massive and statistics.massive.tokens:
        say(f"  {statistics.massive.described(statistics.boundaries)}")
    say(f"  first two fed-back states: median RMS {statistics.sigma:.4g}")
