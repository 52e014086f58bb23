"""What several commands share: options, and how a JSON document is printed."""

import json
from typing import Annotated, Any

import typer

from eaglectl.terminal import emit

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A checkpoint folder, a weight file beside its config.json, or a Hub repository: org/name[@revision].",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", help="The target model: its folder, config.json or Hub repository. Only the config is read."
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="An engine: vllm, 'vllm>=0.22', sglang==0.5.23. May be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Write a page too: one HTML file with all that is shown, to read and to send.",
    ),
]
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


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    emit(json.dumps(document, indent=2))
