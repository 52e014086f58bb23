"""What every producer fixture is, as its README says; the tests hold eaglectl to it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglectl.formats.format import Answers
from tests.builders import Stored, read_safetensors
from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Case:
    """One fixture: the answers it needs, and what must come out."""

    path: str
    producer: str
    version: str = "3"
    attention: str = "GQA"
    layers: int = 1
    aux: int = 3
    boundaries: tuple[int, ...] | None = None
    draft_vocab: int = 96
    answers: dict[str, str] = field(default_factory=dict)
    aux_convention: str | None = None
    aux_layers: tuple[int, ...] | None = None
    is_pickled: bool = False
    back: str | None = None
    mends: tuple[str, ...] = ()  # the topics of problems that convert puts right unasked

    @property
    def folder(self) -> Path:
        return FIXTURES / "producers" / self.path

    def answered(self) -> Answers:
        return Answers(self.aux_layers, self.aux_convention, self.answers)  # type: ignore[arg-type]

    @property
    def options(self) -> list[str]:
        """The answers as the command line takes them."""
        words = [f"--source-semantics={key}={value}" for key, value in self.answers.items()]
        words += [f"--aux-convention={self.aux_convention}"] if self.aux_convention else []
        return words + ([f"--aux-layers={','.join(map(str, self.aux_layers))}"] if self.aux_layers else [])


STORED = {"rope": "stored"}
# as engines compute it; that its code norms twice since is a doubt of its own (tests/test_doubts.py)
NORMED_ONCE = {"modelopt": "pre-689"}
DEFAULT = (2, 4, 5)
OF_MODELOPT = {**STORED, **NORMED_ONCE}
MLA: Mapping[str, Any] = {"attention": "MLA", "draft_vocab": 256, "answers": STORED}
MODELOPT: Mapping[str, Any] = {"producer": "modelopt", "answers": OF_MODELOPT}
MEGATRON: Mapping[str, Any] = {"producer": "modelopt-megatron", "layers": 2, "draft_vocab": 256}
SGLANG: Mapping[str, Any] = {"boundaries": DEFAULT, "aux_convention": "output", "back": "sglang"}


def stated_cases() -> Iterator[Case]:
    """The cases that a producer's folder states itself, in its cases.json: {CASE: fields that differ}."""
    for path in sorted((FIXTURES / "producers").glob("*/cases.json")):
        name = path.parent.name
        for case, fields in json.loads(path.read_text()).items():
            values = {
                key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
            }
            yield Case(f"{name}/{case}", **{"producer": name, **values})


CASES: tuple[Case, ...] = (
    *stated_cases(),
    Case("eagle/bin", "eagle", is_pickled=True),
    Case("eagle/safetensors", "eagle"),
    Case("eagle/wide-target", "eagle", is_pickled=True),
    Case("eagle/vicuna", "eagle", attention="MHA", draft_vocab=256, is_pickled=True),
    Case("specforge/gqa", "specforge"),
    Case("specforge/gqa-sglang", "specforge"),
    Case("specforge/gqa-full-vocab", "specforge", draft_vocab=256),
    Case("specforge/gqa-ids", "specforge", boundaries=(2, 4, 6), aux_convention="output"),
    Case("specforge/gqa-llama3-rope", "specforge"),
    Case("specforge/eagle3.1", "specforge", version="3.1", answers={"specforge": "post-879"}),
    Case("specforge/peagle", "native", layers=2, answers={"mask_token_id": "255"}, back="vllm"),
    Case("torchspec/llama", "torchspec", draft_vocab=256),
    Case("torchspec/llama-vllm", "torchspec", draft_vocab=256, back="lightseekorg"),
    Case("torchspec/mla", "torchspec", boundaries=DEFAULT, **MLA),
    Case("torchspec/mla-deepseek-v3", "torchspec", **MLA),
    Case("torchspec/dcp", "torchspec", draft_vocab=256, is_pickled=True, back="torchspec"),
    Case("torchspec/dcp-2ranks", "torchspec", is_pickled=True, back="torchspec"),
    Case("lightseekorg/mla", "torchspec-vllm", boundaries=(2, 4, 6), **MLA),
    Case("lightseekorg/mla-eagle3.1", "lightseekorg", "3.1", boundaries=(2, 4, 6), **MLA),
    Case("angelslim/gqa", "angelslim", answers=STORED),
    Case("angelslim/cosyvoice", "angelslim", draft_vocab=256, answers=STORED),
    Case("modelopt/hf", boundaries=DEFAULT, **MODELOPT),
    Case("modelopt/hf-full-vocab", "modelopt", boundaries=DEFAULT, draft_vocab=256, answers=NORMED_ONCE),
    Case("modelopt/hf-ids", boundaries=(3, 5, 7), **MODELOPT),
    Case("modelopt/hf-ids-unsorted", boundaries=(1, 3, 7), **MODELOPT),
    Case("modelopt/hf-four-aux", aux=4, boundaries=(2, 4, 5, 7), **MODELOPT),
    Case("modelopt/hf-two-layers", layers=2, boundaries=DEFAULT, **MODELOPT),
    Case("modelopt/hf-mla", "modelopt", attention="MLA", boundaries=DEFAULT, answers=NORMED_ONCE),
    Case("modelopt/hf-fp8", boundaries=DEFAULT, **MODELOPT),
    Case("modelopt/hf-fp8-kv", boundaries=DEFAULT, **MODELOPT),
    Case("modelopt-megatron/deep", boundaries=DEFAULT, **MEGATRON),
    Case("modelopt-megatron/deep-unsorted-ids", boundaries=(2, 8, 13), **MEGATRON),
    Case("speculators/default", "speculators", version="3.1-joint", boundaries=DEFAULT),
    Case("speculators/plain", "speculators", boundaries=DEFAULT),
    Case("speculators/residual", "speculators", boundaries=DEFAULT),
    Case("speculators/eagle3.1", "speculators", version="3.1", boundaries=DEFAULT),
    Case("speculators/qwen3", "speculators", boundaries=DEFAULT),
    Case("speculators/two-layers", "speculators", layers=2, boundaries=DEFAULT),
    Case("speculators/four-aux", "speculators", aux=4, boundaries=(1, 3, 5, 7)),
    Case("speculators/full-vocab", "speculators", boundaries=DEFAULT, draft_vocab=256),
    Case("speculators/peagle", "peagle", boundaries=DEFAULT),
    Case("speculators/peagle-llama", "peagle", boundaries=DEFAULT),
    Case("vllm/native", "vllm", boundaries=DEFAULT),
    Case("vllm/sharded", "vllm", boundaries=DEFAULT),
    Case("vllm/fused", "vllm", boundaries=DEFAULT),
    Case("vllm/mla", "vllm", attention="MLA", boundaries=DEFAULT),
    Case("vllm/mla-fused", "vllm", attention="MLA", boundaries=DEFAULT),
    Case("vllm/bias", "vllm", boundaries=DEFAULT),
    Case("vllm/mqa", "vllm", attention="MQA", boundaries=DEFAULT),
    Case("vllm/mha", "vllm", attention="MHA", boundaries=DEFAULT),
    Case("sglang/aux-norm", "sglang", version="3.1", boundaries=DEFAULT),
    Case("sglang/two-layers", "native", layers=2, **SGLANG),
    Case("sglang/mla-absorbed", "sglang-mla", attention="MLA", **SGLANG),
)

# fixtures that are refused, and a word of the reason
REFUSED = {
    "deepspec/gemma4": "a Gemma-4 draft head",
    "deepspec/two-layers": "each layer takes the embedding",
    "modelopt/hf-no-aux": "use_aux_hidden_state",
    "modelopt-megatron/no-d2t": "d2t is missing",
    "torchspec/pruned": "pruning fault",
    "specforge/norm-output-false": "pull request 879",
}


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every safetensors tensor of a folder as (dtype, shape, bytes), read without eaglectl."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor of a folder, with dtype and shape."""
    return {
        name: hashlib.sha256(f"{dtype}{shape}".encode() + data).hexdigest()
        for name, (dtype, shape, data) in stored_tensors(folder).items()
    }


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def true_answers(folder: Path | str) -> Answers:
    """What is true of a fixture and its file leaves open; no answers for any other folder."""
    return next((case.answered() for case in CASES if str(case.folder) == str(folder)), Answers())
