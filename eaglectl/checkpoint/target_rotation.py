"""Marks of a rotated residual stream in a target's files: those of the tools that write one, and no others.

ModelSlim's QuaRot writes quant_model_description.json, and the matrix with `export_extra_info`; vllm-ascend
reads both (vllm_ascend/patch/worker/patch_draft_quarot.py, 29816bb8). llm-compressor's SpinQuantModifier
writes transform_config, in which R1 rotates what the embedding puts out (spinquant/base.py).
QuIPModifier turns single linear layers, and not the stream between them.
"""

from collections.abc import Mapping
from typing import Any

from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.source import Source
from eaglectl.checkpoint.target_files import text_parts

DESCRIPTION = "quant_model_description.json"


def rotation_mark(source: Source, config: Mapping[str, Any]) -> str:
    """What in a target's files states that its residual stream is rotated; "" where nothing does."""
    description = _description(source)
    if description.get("is_rot_used") is True or _map(description):
        return f"{DESCRIPTION}, which ModelSlim writes: QuaRot"
    if any(_rotates_embedding(part.get("quantization_config")) for part in text_parts(config)):
        return "quantization_config.transform_config in its config.json rotates the embedding: SpinQuant"
    return ""


def rotation_file(source: Source) -> str | None:
    """The file of a ModelSlim target that holds its rotation, from its folder; None where it has none."""
    return _map(_description(source))


def _description(source: Source) -> Mapping[str, Any]:
    if DESCRIPTION not in source.names():
        return {}
    value = parse_json(DESCRIPTION, source.read(DESCRIPTION))
    return value if isinstance(value, Mapping) else {}


def _map(description: Mapping[str, Any]) -> str | None:
    match description:
        case {"is_rot_used": False}:
            return None
        case {"optional": {"quarot": {"rotation_map": {"global_rotation": str(file)}}}}:
            return file
    return None


def _rotates_embedding(quantisation: object) -> bool:
    match quantisation:
        case {"transform_config": {"config_groups": Mapping() as groups}}:
            return any(map(_is_of_embedding, groups.values()))
    return False


def _is_of_embedding(group: object) -> bool:
    applied = group.get("apply") if isinstance(group, Mapping) else None
    for entry in applied if isinstance(applied, list) else ():
        match entry:
            case {"location": "weight_output", "targets": list(targets)}:
                if any("embed" in str(target) for target in targets):
                    return True
    return False
