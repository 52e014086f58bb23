"""Options that several commands share, and the output of JSON documents."""

from typing import Annotated, Any

import typer

from eaglectl.terminal import emit, say
from eaglectl.verdicts import CheckVerdict

# of commands that end with a verdict
EXIT_CODES = {
    CheckVerdict.PASS: 0,
    CheckVerdict.FAIL: 1,
    CheckVerdict.COULD_NOT_LOOK: 3,
    CheckVerdict.SKIPPED: 0,
}

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A checkpoint folder, a weight file beside its config.json, or a Hub repository:"
        " org/name[@revision].",
    ),
]
TARGET = (
    "The target model: its folder, config.json or Hub repository. {read} Left out, the one that the"
    " checkpoint names, if it is here."
)
Target = Annotated[str | None, typer.Option("--target", help=TARGET.format(read="Only the config is read."))]
ConvertTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=TARGET.format(
            read="Its config is read; it is run where the file leaves something open and by --to 3.1, and"
            " --materialize-lm-head copies its head."
        ),
    ),
]
RunTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="The target model's folder; it is run. Left out, the one that the checkpoint names, if it is"
        " here.",
    ),
]
EngineArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg",
        metavar="KEY=VALUE",
        help="An argument of the engine itself, with its value in JSON, like quantization=fp8. May be given"
        " several times.",
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine", help="An engine: vllm, 'vllm>=0.22', sglang==0.5.23. May be given several times."
    ),
]
NoEngines = Annotated[
    bool,
    typer.Option(
        "--no-engines",
        help="Judge by the rules alone. Left out, and without --engine, the engines of eaglectl.toml are"
        " judged for, else the newest known vLLM and SGLang, and every engine installed here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Write the result as one self-contained HTML file too.",
    ),
]
AuxLayers = Annotated[
    str | None,
    typer.Option(
        "--aux-layers",
        help="The trained aux layers as boundaries (or by --aux-convention), like 2,16,29.",
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
AssumeDefaults = Annotated[
    bool,
    typer.Option(
        "--assume-defaults",
        help="Write the producer's usual value where nothing settles it; a doubt until it is settled.",
    ),
]
Sample = Annotated[
    int | None, typer.Option("--sample", help="Take this many of the prompts, drawn by --seed.")
]
Seed = Annotated[int, typer.Option("--seed", help="The seed of --sample.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Let answers go on past the end of a sequence.")
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let the target's own code run (auto_map in its files). Never done unasked.",
    ),
]


Measure = Annotated[
    bool,
    typer.Option(
        "--measure/--no-measure",
        help="Run every reading of what the file leaves open on the target, where its weights are here.",
    ),
]


def print_trust(trust_remote_code: bool) -> None:
    """Print that the target's own code was allowed to run, where it was."""
    if trust_remote_code:
        say("the target's own code was allowed to run (--trust-remote-code)")


def print_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    from eaglectl.reports.json.document import as_json

    emit(as_json(document))
