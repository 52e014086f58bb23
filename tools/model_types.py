"""Write the architectures of each model type, from transformers: `python -m tools.model_types`.

Model types of remote code, which transformers does not have, are kept as the file states them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from eaglectl.engines import data

PATH = Path(data.__file__).with_name("model_types.json")


def main() -> None:
    """Write the file anew for the transformers that is installed."""
    import transformers

    stated = json.loads(PATH.read_text())
    found: dict[str, list[str]] = {}
    for kind, architecture in (*stated_types(), *text_types()):
        if architecture not in found.setdefault(kind, []):
            found[kind].append(architecture)
    lines = [f"  {json.dumps(kind)}: {json.dumps(found[kind])}" for kind in sorted(found)]
    source = f"transformers {transformers.__version__}, models/auto/modeling_auto.py"
    head = {"source": source, "remote": stated["remote"]}
    text = json.dumps(head, indent=1)
    PATH.write_text(text[:-2] + ',\n "architectures": {\n' + ",\n".join(lines) + "\n }\n}\n")


def stated_types() -> Iterator[tuple[str, str]]:
    """What transformers' own tables of generating classes state."""
    from transformers.models.auto import modeling_auto

    for name in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"):
        table = getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES")
        for kind, value in table.items():
            for architecture in value if isinstance(value, tuple | list) else [value]:
                yield kind, architecture


def text_types() -> Iterator[tuple[str, str]]:
    """Model types of language models inside multimodal ones, which have no generating class of their own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    generating: dict[str, list[str]] = {}
    for kind, architecture in stated_types():
        generating.setdefault(kind, []).append(architecture)
    for kind in CONFIG_MAPPING_NAMES:
        try:
            parts = getattr(CONFIG_MAPPING[kind], "sub_configs", {})
        except (ImportError, AttributeError):
            continue
        inner = getattr(parts.get("text_config"), "model_type", "")
        if inner and inner not in generating and inner != kind:
            yield from ((inner, architecture) for architecture in generating.get(kind, ()))


if __name__ == "__main__":
    main()
