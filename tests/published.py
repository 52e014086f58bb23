"""The published drafters of fixtures/published: their declarations, and a folder of each without weights."""

import json
import os
import zipfile
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from tests.builders import ITEM
from tests.conftest import FIXTURES

PUBLISHED = FIXTURES / "published"
TEMPLATES: dict[str, dict[str, list[Any]]] = json.loads((PUBLISHED / "tensors.json").read_text())
# one layer-less pass and one for each layer; only the first layer reads two states side by side
LAYER = "{layer}"
# 1 in each dtype
ONES = {"BF16": b"\x80\x3f", "F16": b"\x00\x3c", "F32": b"\x00\x00\x80\x3f"}
Shapes = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Published:
    """One declaration; schema.json says what its keys are."""

    file: Path
    said: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.said["name"])

    @property
    def is_pickled(self) -> bool:
        return str(self.said["tensors"].get("file")).endswith(".bin")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The symbols of tensors.json, from the config and, where it leaves them out, the declaration."""
        config = {**self.said["config"], **self.said["config"].get("transformer_layer_config", {})}
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        sizes = {
            "h": hidden,
            "th": config.get("target_hidden_size") or hidden,
            "i": config["intermediate_size"],
            "V": config["vocab_size"],
            "dv": config.get("draft_vocab_size") or config["vocab_size"],
            "H": heads,
            "K": config.get("num_key_value_heads") or heads,
            "d": config.get("head_dim") or hidden // heads,
            "A": 3,
            "rq": config.get("q_lora_rank") or 0,
            "rk": config.get("kv_lora_rank") or 0,
            "dn": config.get("qk_nope_head_dim") or 0,
            "dr": config.get("qk_rope_head_dim") or 0,
            "dw": config.get("v_head_dim") or 0,
        }
        return sizes | self.said["tensors"].get("sizes", {})

    @cached_property
    def tensors(self) -> Shapes:
        """Dtype and shape by name, in the order of the template."""
        said = self.said["tensors"]
        template = TEMPLATES[said["template"]]
        optional = {**TEMPLATES["optional"], **template.get("optional", {})}  # type: ignore[dict-item]
        found: Shapes = {}
        for name, shape in {**template, **{name: optional[name] for name in said.get("has", ())}}.items():
            if name == "optional" or name in said.get("lacks", ()):
                continue
            for number in range(said.get("layers", 1)) if LAYER in name else [0]:
                for state in range(self.sizes["A"]) if "{aux}" in name else [0]:
                    full = name.replace(LAYER, str(number)).replace("{aux}", str(state))
                    found[said.get("prefix", "") * (name not in said.get("bare", ())) + full] = (
                        {"d2t": "I64", "t2d": "BOOL"}.get(name, said["dtype"]),
                        tuple(
                            self._size(text if number == 0 else text.replace("2*h", "h")) for text in shape
                        ),
                    )
        return found

    def _size(self, text: str) -> int:
        """The value of a sum of products of symbols and numbers."""
        return sum(
            prod(int(part) if part.isdecimal() else self.sizes[part] for part in term.split("*"))
            for term in text.split("+")
        )

    def folder(self, parent: Path) -> Path:
        """The drafter's folder: its config, its header, weights of zeros on no disk space, and a true d2t."""
        folder = parent / "drafter"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.said["config"]))
        for name, content in self.said.get("files", {}).items():
            (folder / name).write_text(json.dumps(content))
        if self.is_pickled:
            self._write_pickle(folder / "pytorch_model.bin")
        else:
            self._write_safetensors(folder / "model.safetensors")
        return folder

    def _write_safetensors(self, path: Path) -> None:
        header: dict[str, Any] = {"__metadata__": self.said["tensors"].get("metadata", {"format": "pt"})}
        position = 0
        for name, (dtype, shape) in self.tensors.items():
            end = position + prod(shape) * ITEM[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(header).encode()
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, data in self._values().items():
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(data)
        os.truncate(path, 8 + len(text) + position)

    def _write_pickle(self, path: Path) -> None:
        import torch

        dtypes = {"BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "BOOL": torch.bool}
        state = {
            name: torch.empty(shape, dtype=dtypes[dtype]) for name, (dtype, shape) in self.tensors.items()
        }
        with torch.serialization.skip_data():
            torch.save(state, path)
        keys = {name: str(number) for number, name in enumerate(self.tensors)}
        with zipfile.ZipFile(path) as archive:
            places = {name: archive.getinfo(f"{path.stem}/data/{key}") for name, key in keys.items()}
        with path.open("r+b") as file:
            for name, data in self._values().items():
                file.seek(places[name].header_offset + 26)
                names, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                file.seek(names + extra, os.SEEK_CUR)
                file.write(data)

    def _values(self) -> dict[str, bytes]:
        """The bytes of what is read though weights are not: the vocabulary, and norms of ones."""
        norms = {
            name: ONES[dtype] * shape[0]
            for name, (dtype, shape) in self.tensors.items()
            if len(shape) == 1 and dtype in ONES and "norm" in name
        }
        return norms | self._vocabulary()

    def _vocabulary(self) -> dict[str, bytes]:
        """The bytes of d2t and t2d: half of the draft tokens are the first of the target, half are spread."""
        draft, vocab = self.sizes["dv"], self.sizes["V"]
        half = draft // 2
        spread = [half + at * (vocab - half) // (draft - half) for at in range(draft - half)]
        targets = [*range(half), *spread]
        mask = bytearray(vocab)
        for token in targets:
            mask[token] = 1
        offsets = b"".join((token - at).to_bytes(8, "little") for at, token in enumerate(targets))
        return {name: data for name, data in (("d2t", offsets), ("t2d", bytes(mask))) if name in self.tensors}

    def target(self, parent: Path) -> Path:
        """A folder with the target's config.json."""
        folder = parent / "target"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.said["target"]["config"]))
        return folder


def read(path: Path) -> Published:
    """The declaration in a file."""
    return Published(path, json.loads(path.read_text()))


ALL = tuple(read(path) for path in sorted((PUBLISHED / "drafters").glob("*.json")))
