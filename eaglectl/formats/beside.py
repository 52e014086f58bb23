"""Notes on what lies beside a drafter's weights: a LoRA adapter, and the metadata of a trainer's save."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Note, question
from eaglectl.drafter.tensors import Tensor
from eaglectl.errors import UnreadableError
from eaglectl.files.budgets import MAX_RECORD
from eaglectl.files.checkpoint import Checkpoint, read_header
from eaglectl.files.header import parse_json
from eaglectl.files.layout import ADAPTER, ADAPTER_CONFIG, TRAINER_METADATA
from eaglectl.formats.format import Answers
from eaglectl.formats.names import canonical_name

MERGED = Choice(
    "--source-semantics", "adapter=merged", "--target is the base model with this adapter merged into it"
)
# PEFT's names of the two factors of a module
FACTOR_A = ".lora_A.weight"


def notes_beside(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], answers: Answers) -> Iterator[Note]:
    """Yield the notes on an adapter and on an unfinished save in the folder."""
    names = checkpoint.source.names()
    if TRAINER_METADATA in names and _small_object(checkpoint, TRAINER_METADATA).get("complete") is False:
        yield Note(
            "problem",
            "files",
            f'{TRAINER_METADATA} states "complete": false: the save was not finished, its weights may be'
            " those of two steps, and verl-SpeCo loads no such checkpoint; pass a finished one",
            "unfinished-save",
        )
    if ADAPTER_CONFIG in names:
        yield _adapter_note(checkpoint, tensors, answers)


def _adapter_note(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], answers: Answers) -> Note:
    if is_adapter_of_drafter(checkpoint, tensors):
        return Note(
            "problem",
            "adapter",
            f"{ADAPTER} is a LoRA adapter of this drafter, and engines serve the drafter without it",
            "adapter",
            advice="; merge it into the drafter first",
        )
    about = (
        "a LoRA adapter of the target lies beside the drafter (adapter_*), so that the drafter was trained on"
        " the states of the target with the adapter"
    )
    if ADAPTER not in checkpoint.names:
        about = (
            f"{ADAPTER_CONFIG} of a LoRA adapter lies beside the drafter, and no {ADAPTER} shows"
            " whether it is the target's, with which the drafter was trained then, or the drafter's own,"
            " to be merged into it"
        )
    if answers.semantics.get("adapter"):
        return Note("note", "adapter", f"{about}, which the target given is merged with", "adapter")
    advice = (
        "; serve it with the target that the adapter is merged into; if it was trained with the plain target,"
        " move the adapter to another folder"
    )
    return replace(question("adapter", about, "adapter", [MERGED]), advice=advice)


def is_adapter_of_drafter(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the adapter's modules are the drafter's, by their names and the width of their inputs."""
    with suppress(UnreadableError, KeyError):
        header = read_header(checkpoint.source, ADAPTER)
        inputs = {
            canonical_name(
                tensor.name.removeprefix("base_model.model.").removesuffix(FACTOR_A) + ".weight"
            ): tensor.shape[-1]
            for tensor in header.tensors
            if tensor.name.endswith(FACTOR_A)
        }
        return bool(inputs) and all(tensors[name].shape[-1] == width for name, width in inputs.items())
    return False


def _small_object(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    # a file of any tool may have this name: another form is no error
    with suppress(UnreadableError):
        if checkpoint.source.size(name) <= MAX_RECORD:
            value = parse_json(name, checkpoint.source.read(name))
            return value if isinstance(value, dict) else {}
    return {}
