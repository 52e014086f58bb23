"""`eaglectl inspect`."""

from typing import Annotated

import typer

from eaglectl.cli.options import AuxConvention, AuxLayers, Engines, Json, Semantics, Source, Target, print_json


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

        print_json(machine.inspection(found))
        return
    from eaglectl.reports.text import print_inspection

    context.obj.show(lambda console: print_inspection(console, found, has_tensors=tensors))
