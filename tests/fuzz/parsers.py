"""Every parser of bytes that eaglectl did not write itself: a function from bytes to a result, and seeds.

The property: a value, or one of the errors that are an answer to the user (exit codes 1 to 3); within the
bounds of checks.py. Where a reference exists (safetensors, json, tomllib), never looser than it.
"""

import gzip
import hashlib
import io
import json
import os
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

import eaglectl
from eaglectl.conversion.upgrade import read_statistics
from eaglectl.conversion.vocabulary import read_counts
from eaglectl.drafter.drafter import Target
from eaglectl.drafter.vocabulary import as_engines_read, faults
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import is_untrained, read_checkpoint
from eaglectl.files.front_matter import front_matter
from eaglectl.files.header import header_length, parse_header, parse_json
from eaglectl.files.hub import read_listing
from eaglectl.files.hub_requests import HubRequest
from eaglectl.files.layout import checkpoint_files
from eaglectl.files.opcodes import PickleError, read_pickle
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import check_kernels, read_tokenizer_config
from eaglectl.files.torch_file import NAMES, UnfitTensorError, read_table, read_torch_file, state_views
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter, read_target
from eaglectl.judge.policy_file import read_policy
from eaglectl.judge.secrets import scan_file
from eaglectl.publish.card import CardFacts, make_card, read_smoke
from eaglectl.publish.verification import verify_folder
from eaglectl.report.outlines import render_page
from eaglectl.run.prompts import choose_prompts
from eaglectl.run.server.client import Server, open_server, parse_answer
from eaglectl.run.server.run import parse_counters
from eaglectl.run.tokens import read_context_length
from tests.builders import (
    DRAFT,
    VOCAB,
    drafter_config,
    drafter_tensors,
    floats,
    framed,
    integers,
    mask,
    offsets,
    safetensors_bytes,
)
from tools.scan.scanner import scan

FIXTURES = Path(eaglectl.__file__).resolve().parent.parent / "fixtures"
PRODUCERS = FIXTURES / "producers"
TINY = FIXTURES / "tiny"


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser; `refusals` are errors beside EaglectlError that its own callers turn into one."""

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    refusals: tuple[type[Exception], ...] = ()


class LooserError(Exception):
    """A reference refuses what was read."""


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A source in memory."""

    files: Mapping[str, bytes]
    label: str = "org/drafter"
    place: str = "org/drafter"
    only: str | None = None

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    def size(self, name: str) -> int:
        if name not in self.files:
            raise UnreadableError(f"{name}: no such file")
        return len(self.files[name])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = self.files[name][start : self.size(name) if stop is None else stop]
        if stop is not None and len(data) != stop - start:
            raise UnreadableError(f"{name} is truncated")
        return data

    def path(self, name: str) -> None:
        return None


def folder(name: str) -> Path:
    """A folder of this process in the temporary folder, which is the caller's to remove."""
    return _folder(os.getpid(), name)


@cache
def _folder(process: int, name: str) -> Path:
    made = Path(tempfile.gettempdir()) / f"eaglectl-fuzz-{process}" / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def written(data: bytes, name: str, place: str = "one") -> Path:
    path = folder(place) / name
    path.write_bytes(data)
    return path


def texts(*values: str) -> Callable[[], list[bytes]]:
    return lambda: [value.encode() for value in values]


def documents(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


def files(*names: str, root: Path = PRODUCERS) -> Callable[[], list[bytes]]:
    """Fixtures, which are there in a checkout."""
    return lambda: [(root / name).read_bytes() for name in names]


# tensors


def small_header(**changes: Any) -> dict[str, Any]:
    return {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [20], "data_offsets": [24, 64]},
        **changes,
    }


def read_file_of_tensors(data: bytes) -> object:
    """A whole safetensors file."""
    length = header_length("file", data[:8], len(data))
    header = parse_header("file", data[8 : 8 + length], len(data))
    try:
        deserialize(data)
    except SafetensorError as error:
        raise LooserError(f"safetensors: {error}") from None
    return header


def read_header(data: bytes) -> object:
    """A header before 64 bytes of data."""
    return read_file_of_tensors(framed(data, bytes(64)))


def read_json(data: bytes) -> object:
    value = parse_json("config.json", data)
    if json.loads(data) != value:
        raise LooserError("json reads another value")
    return value


@cache
def shards() -> Mapping[str, bytes]:
    tensors = drafter_tensors()
    halves = [dict(list(tensors.items())[number::2]) for number in (0, 1)]
    return {
        "config.json": json.dumps(drafter_config()).encode(),
        **{f"model-{number}.safetensors": safetensors_bytes(half) for number, half in enumerate(halves)},
    }


def good_index() -> dict[str, Any]:
    names = list(drafter_tensors())
    return {
        "metadata": {},
        "weight_map": {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)},
    }


def read_index(data: bytes) -> object:
    return read_checkpoint(MemorySource({**shards(), "model.safetensors.index.json": data}))


@cache
def weights() -> bytes:
    return safetensors_bytes(drafter_tensors())


def read_config(data: bytes) -> object:
    """A config beside good weights, as a drafter, and as a target's."""
    source = MemorySource({"config.json": data, "model.safetensors": weights()})
    checkpoint = read_checkpoint(source)
    target = read_target(checkpoint.config, "org/target")
    return read_drafter(checkpoint, Answers(), target if target.depth else Target(None))


def validated(data: bytes) -> object:
    """A config beside good weights, under every rule."""
    written(data, "config.json", "drafter")
    written(weights(), "model.safetensors", "drafter")
    options = eaglectl.ValidateOptions(engines=["vllm", "sglang"], headers_only=True)
    return eaglectl.validate(str(folder("drafter")), options)


SIZES = {
    key: value
    for key, value in drafter_config().items()
    if key.endswith(("_size", "_heads", "head_dim", "_layers")) and isinstance(value, int)
}


def of_small_drafter(value: Any) -> Any:
    """A producer's config with the sizes of the small drafter."""
    if not isinstance(value, dict):
        return value
    return {key: SIZES.get(key, of_small_drafter(inner)) for key, inner in value.items()}


def configs() -> list[bytes]:
    names = ("speculators/eagle3.1", "modelopt/hf-ids", "torchspec/pruned", "specforge/eagle3.1")
    there = [json.loads((PRODUCERS / name / "config.json").read_bytes()) for name in names]
    return [json.dumps(of_small_drafter(config)).encode() for config in (drafter_config(), *there)]


def read_quantisation(data: bytes) -> object:
    config = json.dumps(drafter_config()).encode()
    source = MemorySource(
        {"config.json": config, "model.safetensors": weights(), "hf_quant_config.json": data}
    )
    return read_drafter(read_checkpoint(source), Answers(), Target(None))


def read_vocabulary(data: bytes) -> object:
    """Two tables as engines read them; the first byte chooses the dtype."""
    dtypes = ("I64", "I32", "I16", "U8", "I8", "BOOL", "U64", "U32", "U16", "F64", "F32", "F16", "BF16", "X")
    dtype, data = dtypes[data[0] % len(dtypes)] if data else "I64", data[1:]
    size = {"6": 8, "3": 4, "1": 2}.get(dtype[1:2], 2 if dtype == "BF16" else 1)
    half = len(data) // 2 // size * size
    tables = [
        as_engines_read(name, dtype, part)
        for name, part in (("d2t", data[:half]), ("t2d", data[half : 2 * half]))
    ]
    return faults(*tables, DRAFT, VOCAB)


def vocabulary_seeds() -> list[bytes]:
    d2t, t2d = offsets()[2], mask()[2]
    return [
        b"\0" + d2t + t2d,
        b"\5" + t2d + t2d,
        b"\0" + d2t + d2t,
        b"\x0a" + np.arange(8, dtype="<f4").tobytes(),
    ]


# pickles


def read_torch(data: bytes) -> object:
    """A file of torch.save, its value and its storages."""
    file = read_torch_file(MemorySource({"model.bin": data}), "model.bin")
    file.check(views := state_views(file.value))
    return views


def tensor_table(data: bytes) -> object:
    """A state dict's data.pkl, and its tensors."""
    return state_views(read_pickle(data, NAMES, has_references=True).value)


def data_pickles() -> list[bytes]:
    pickles = []
    for name in ("eagle/bin/pytorch_model.bin", "automodel/sidecar/eagle_meta.pt"):
        with zipfile.ZipFile(PRODUCERS / name) as archive:
            pickles += [archive.read(member) for member in archive.namelist() if member.endswith("data.pkl")]
    return pickles


def read_metadata(data: bytes) -> object:
    """The table of a distributed checkpoint beside shards of 100 KB."""
    beside = {f"__{rank}_0.distcp": bytes(120_000) for rank in (0, 1)}
    return read_table(MemorySource({".metadata": data, **beside}), ".metadata")


# what is published

SMOKE = {
    "schema": "eaglectl/smoke/1",
    "version": "1.0",
    "verdict": "pass",
    "acceptance_length": 2.5,
    "interval": [2.4, 2.6],
    "per_position": [{"value": 0.8, "interval": [0.7, 0.9]}, {"value": 0.5, "interval": [0.4, 0.6]}],
    "drafts": 100,
    "prompts": 8,
    "lossless": True,
    "k": 2,
    "max_tokens": 64,
    "seed": 0,
    "temperature": 0.0,
    "prompts_digest": "0123456789abcdef",
    "engine": {"name": "vllm", "version": "0.32.0", "device": "cuda", "dtype": "bfloat16", "proves": "all"},
    "files": {"config.json": "a" * 64},
}
STATISTICS = {
    "schema": "eaglectl/statistics/1",
    "digests": {"drafter": "a", "target": "b", "prompts": "c"},
    "boundaries": [2, 4, 5],
    "rms_norm_eps": 1e-06,
    "tokens": 100,
    "rms": [1.0, 2.0, 3.0],
    "log_ratio_sd": [0.1, 0.2, 0.3],
    "sigma": 0.5,
    "sigma_by_set": {"prompts": 0.5},
    "is_direction": False,
    "prompts": ["0123456789abcdef"],
    "matrices": None,
    "engine": {"name": "transformers"},
}


def verify(**files: bytes) -> object:
    source = FolderSource(written(b"{}", "config.json", "published").parent)
    for name in ("eaglectl.json", "SHA256SUMS"):
        (source.root / name).unlink(missing_ok=True)
    for name, data in files.items():
        (source.root / name.replace("_json", ".json")).write_bytes(data)
    return verify_folder(source, "folder")


def read_record(data: bytes) -> object:
    """eaglectl.json, as a drafter's and as a list of files."""
    config = json.dumps(drafter_config()).encode()
    checkpoint = read_checkpoint(
        MemorySource({"config.json": config, "model.safetensors": weights(), "eaglectl.json": data})
    )
    return is_untrained(checkpoint.sidecars["eaglectl.json"]), verify(eaglectl_json=data)


RECORD = {
    "schema": "eaglectl/provenance/1",
    "upgrade": {"needs_finetune": True, "gate": {"value": 1.0}},
    "previous": {"upgrade": None, "previous": None},
    "published": {"files": {"config.json": {"size": 2, "sha256": "44136fa355b3678a" * 4}}},
}
SUMS = f"{'44136fa355b3678a' * 4}  config.json\n{'0' * 64} *./b\\nc\n"
CARD = "---\ntags: [a, 'b']\nbase_model: org/target\nlicense:\n- mit # x\n---\n# Name\n\ntext\n"


@cache
def card_facts() -> CardFacts:
    source = MemorySource(
        {"config.json": json.dumps(drafter_config()).encode(), "model.safetensors": weights()}
    )
    drafter = read_drafter(read_checkpoint(source), Answers(), Target("org/target"))
    return CardFacts("org/drafter", drafter, 1000, 2000, {"vllm": "0.32.0"}, {}, SMOKE)


def read_card(data: bytes) -> object:
    """A card with its block and front matter written anew, twice: the second time changes nothing."""
    card = make_card(data.decode("utf-8", "replace"), card_facts())
    if make_card(card, card_facts()) != card:
        raise LooserError("the card differs when it is written again")
    return front_matter(card)


# what options name


def read_toml(data: bytes) -> object:
    policy = read_policy(str(written(data, "eaglectl.toml")))
    tomllib.loads(data.decode())
    return policy


POLICY = """engines = ["vllm>=0.22"]
required = ["EGL101"]
fail-on = "warning"
[severities]
EGL9 = "off"
[allow]
licences = ["mit"]
[[suppress]]
rule = "EGL103"
reason = "known"
until = 2030-01-31
[verify]
require-record = true
"""


def read_matrices(data: bytes) -> object:
    """The matrices beside good statistics."""
    stated = STATISTICS | {"matrices": {"sha256": hashlib.sha256(data).hexdigest()}}
    written(json.dumps(stated).encode(), "statistics.json", "matrices")
    written(data, "statistics.safetensors", "matrices")
    statistics = read_statistics(folder("matrices"))
    assert statistics.matrices is not None
    return float(statistics.matrices.gram.sum())


def matrices() -> list[bytes]:
    gram, cross = np.eye(6, dtype="<f8").tobytes(), np.ones((2, 6), dtype="<f8").tobytes()
    tensors = {"gram": ("F64", (6, 6), gram), "cross": ("F64", (2, 6), cross)}
    return [safetensors_bytes(tensors)]


def read_target_files(data: bytes) -> object:
    """A target's config.json and tokenizer_config.json."""
    target = written(data, "config.json", "target").parent
    written(data, "tokenizer_config.json", "target")
    check_kernels(target)
    return read_context_length(target), read_tokenizer_config(target)


# what comes over the network


def read_hub_listing(data: bytes) -> object:
    listing = read_listing(HubRequest("org/a", "org/a", "main", "https://huggingface.co"), {}, data)
    there = MemorySource({**dict.fromkeys(listing.sizes, b""), "model.safetensors.index.json": b"{}"})
    return checkpoint_files(there, {**listing.sizes, "model.safetensors.index.json": 2})


LISTING = {
    "sha": "0123456789abcdef0123456789abcdef01234567",
    "siblings": [
        {"rfilename": "config.json", "size": 10},
        {"rfilename": "model-1.safetensors", "size": 100, "lfs": {"sha256": "a" * 64, "size": 100}},
        {"rfilename": "model/.metadata", "size": 10},
    ],
}


@cache
def server() -> Server:
    return open_server("http://user:secret@localhost:1", 1.0)


def read_answers(data: bytes) -> object:
    """An answer of a server, as each kind that is asked for."""
    answers = {}
    for kind in ("models", "completion", "rounds", "server_info", "version"):
        with suppress(UnreadableError):
            answers[kind] = parse_answer(server(), "/v1", kind, data)
    return answers


def answers() -> list[bytes]:
    details = {"spec_correct_drafts_histogram": [1, 2, 3]}
    completion = {"usage": {"completion_tokens": 6}, "sglext": {"spec_tokens_details": details}}
    info = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 2, "version": "0.5.23"}
    vllm = {"vllm_config": {"speculative_config": {"model": "a", "rejection_sample_method": "strict"}}}
    values = ({"data": [{"id": "a"}]}, completion, info, vllm)
    return [json.dumps(value).encode() for value in values]


METRICS = """# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{engine="0",model_name="a\\"b"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1.5e+1 1700000000
vllm:generation_tokens_total 64
vllm:num_requests_running{engine="0"} 0.0
"""


# texts that are searched


def read_secrets(data: bytes) -> object:
    name = "model.safetensors" if data[:1] == b"\n" else "README.md"
    return list(scan_file(name, len(data), lambda start, stop: data[start:stop], "hf_" + "a" * 34))


def secrets() -> list[bytes]:
    text = "token = 'AKIA" + "Q3EGRIAVQK3NYMPL' https://user:pa55word@host/ hf_" + "b" * 34
    return [text.encode(), text.encode("utf-16"), framed(text.encode())]


WHEEL = '''"""Docs"""
_SPECULATIVE = {"Eagle3LlamaForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM")}
class Model:
    def load_weights(self, weights):
        for name, x in weights:
            if "d2t" in name or name.endswith(".bias"): continue
            name = f"model.{name}"
        return loaded
    def combine_hidden_states(self, h):
        return self.fc_norm(getattr(self.config, "fc_norm", False))
def get_eagle3_aux_layers_from_config(c):
    return getattr(c.hf_config, "eagle_aux_hidden_state_layer_ids", (2, n // 2, n - 3))
'''
SGLANG_MODULE = """
class LlamaForCausalLMEagle3(LlamaForCausalLM):
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            self.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.layers_to_capture = [val + 1 for val in layer_ids]
    def load_weights(self, weights):
        if config.draft_vocab_size is None:
            raise ValueError
    def _derive_context_length(self, context_length):
        eagle_aux_hidden_state_layer_ids = eagle_config["eagle_aux_hidden_state_layer_ids"]
EntryClass = [LlamaForCausalLMEagle3]
"""
MODULES = {
    "vllm": (
        "model_executor/models/registry.py",
        "model_executor/models/llama_eagle3.py",
        "model_executor/models/interfaces.py",
        "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py",
        "config/speculative.py",
        "transformers_utils/configs/speculators/algos.py",
    ),
    "sglang": (
        "srt/models/llama_eagle3.py",
        "srt/models/kimi_k25_eagle3.py",
        "srt/models/llama.py",
        "srt/configs/model_config.py",
        "srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    ),
}


def scan_module(data: bytes) -> object:
    """A source file in every place of a package of each engine."""
    return [_scanned(package, names, data) for package, names in MODULES.items()]


def _scanned(package: str, names: tuple[str, ...], data: bytes) -> object:
    place = folder(f"{package}-package")
    for name in names:
        (place / package / name).parent.mkdir(parents=True, exist_ok=True)
        (place / package / name).write_bytes(data)
    (place / package / "__init__.py").write_bytes(b"")
    return scan(place)


def scan_wheel(data: bytes) -> object:
    return scan(written(data, "vllm-0.32.0-py3-none-any.whl"))


def wheels() -> list[bytes]:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("vllm/__init__.py", "")
        wheel.writestr("vllm/model_executor/models/registry.py", WHEEL)
    return [raw.getvalue()]


def scan_against(data: bytes) -> object:
    package = folder("empty") / "vllm"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_bytes(b"")
    return scan(folder("empty"), str(written(data, "scan.json")))


# of packages that the fuzzer's own environment lacks: `.venv/bin/python -m tests.fuzz --parser states`


def read_states(suffix: str) -> Callable[[bytes], object]:
    """A trainer's file of hidden states."""

    def read(data: bytes) -> object:
        from eaglectl.reference.states import load_tensors

        return load_tensors(written(data, f"states{suffix}", "states"))

    return read


def stored_states() -> list[bytes]:
    import torch

    raw = io.BytesIO()
    torch.save({"input_ids": torch.arange(8), "aux_hidden_state": torch.ones(1, 8, 6)}, raw)
    return [raw.getvalue()]


def safe_states() -> list[bytes]:
    tensors = {"token_ids": integers(*range(8)), "hidden_states": floats("states", 8, 4, 2)}
    return [safetensors_bytes(tensors)]


MEASURED = {"length": {"value": 4.0, "low": 1.0, "high": 4.0}, "per_position": [], "drafts": 1, "tokens": 2}
KEPT = {
    "source": "out",
    "run": {
        "engine": "reference",
        "version": "torch 2.13.0",
        "device": "cpu",
        "dtype": "float32",
        "proves": "the drafter's maths",
        "results": [{"set": "one", "drafts": 1, "accepted": [1, 1], "tokens": [78, 347], "rounds": [3]}],
        "plain": [[78, 347]],
        "seconds": 0.1,
        "plain_seconds": 0.1,
        "resolved": {"boundaries": [2, 4, 5]},
    },
    "measured": MEASURED | {"prompts": 1},
    "by_set": {"one": MEASURED | {"prompts": 1}},
    "is_lossless": True,
    "failures": [],
    "notes": [],
    "k": 3,
    "max_tokens": 2,
    "seed": 0,
    "prompts_digest": "9ce7",
    "temperature": 0.0,
    "gaps": ["too few"],
}


def read_kept(data: bytes) -> object:
    """A run in `ready`'s cache, as it is and under a right first line."""
    from eaglectl.commands.ready.run import KeptRuns, _seal
    from eaglectl.run.report import SmokeReport

    class NotKeptError(LookupError):
        pass

    def make() -> SmokeReport:
        raise NotKeptError

    os.environ["XDG_CACHE_HOME"] = str(folder("cache"))
    place = folder("empty")
    runs = KeptRuns(place)
    path = runs.path(place, ())
    path.parent.mkdir(parents=True, exist_ok=True)
    read: list[SmokeReport | None] = []
    for raw in (data, _seal(path, data) + data):
        path.write_bytes(raw)
        try:
            read.append(runs.get("one", place, (), make, SmokeReport, lambda _: False))
        except NotKeptError:
            read.append(None)
    if read[0] is not None:
        raise LooserError("a file without its first line was taken")
    return read[1] and read[1].to_json()


def write_pages(data: bytes) -> object:
    """A config beside good weights, on the pages of `inspect` and `validate`."""
    written(data, "config.json", "drafter")
    written(weights(), "model.safetensors", "drafter")
    place = str(folder("drafter"))
    reports = [eaglectl.inspect(place), eaglectl.validate(place, headers_only=True)]
    return [render_page(report, names=(place,) * (number == 0)) for number, report in enumerate(reports)]


@cache
def target_with_template() -> Path:
    place = folder("chat")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (place / name).write_bytes((TINY / "target" / name).read_bytes())
    return place


def apply_template(data: bytes) -> object:
    """A target's chat template, applied to a prompt."""
    from eaglectl.run.job import EngineJob
    from eaglectl.run.prompts import Prompt
    from eaglectl.run.tokens import tokenise

    target = target_with_template()
    (target / "chat_template.jinja").write_bytes(data)
    prompt = Prompt("one", messages=({"role": "user", "content": "two"},))
    return tokenise(EngineJob(target, card_facts().drafter, target, (prompt,)))


TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_packages() -> Iterable[Parser]:
    """The parsers whose packages are installed."""
    if find_spec("torch"):
        yield Parser("states", read_states(".ckpt"), stored_states)
        yield Parser("states-gzip", read_states(".ckpt.gz"), lambda: [gzip.compress(stored_states()[0])])
        yield Parser("states-safe", read_states(".safetensors"), safe_states)
    if find_spec("torch") and find_spec("transformers"):
        yield Parser("template", apply_template, texts(TEMPLATE, "{{ messages[0]['content'] }}"))


PARSERS: Mapping[str, Parser] = {
    parser.name: parser
    for parser in (
        Parser("header", read_header, documents(small_header(), small_header(__metadata__={}))),
        Parser(
            "safetensors", read_file_of_tensors, lambda: [safetensors_bytes({"d2t": offsets()}, {"a": "b"})]
        ),
        Parser("json", read_json, documents({"a": [1, -0.5, "é", None, {"b": True}], "c": "\ud83d\ude00"})),
        Parser("index", read_index, documents(good_index())),
        Parser("config", read_config, configs),
        Parser("validate", validated, configs),
        Parser("page", write_pages, configs),
        Parser("kept", read_kept, documents(KEPT)),
        Parser(
            "quantisation",
            read_quantisation,
            documents({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}),
        ),
        Parser("vocabulary", read_vocabulary, vocabulary_seeds),
        Parser(
            "torch",
            read_torch,
            files(
                "automodel/sidecar/eagle_meta.pt",
                "specforge/training-state/vocab_mapping.pt",
                "automodel/sidecar/speculative_token_map.pt",
            ),
            (PickleError, UnfitTensorError),
        ),
        Parser("pickle", tensor_table, data_pickles, (PickleError, UnfitTensorError)),
        Parser("metadata", read_metadata, files("torchspec/dcp/model/.metadata")),
        Parser("record", read_record, documents(RECORD)),
        Parser("sums", lambda data: verify(SHA256SUMS=data), texts(SUMS)),
        Parser("card", read_card, texts(CARD, "# Name\n", "---\r\ntags:\r\n- a\r\n---\r\n")),
        Parser("policy", read_toml, texts(POLICY)),
        Parser(
            "prompts",
            lambda data: choose_prompts(written(data, "prompts.jsonl")),
            texts(
                '{"prompt": "one", "set": "a", "chat": true}\nplain text\n',
                '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "tools": [{}]}',
            ),
        ),
        Parser(
            "counts",
            lambda data: read_counts(written(data, "counts"), VOCAB),
            texts('{"1": 2, "3": 4}', "[1, 2, 3]", "1 2\n3,4\n"),
        ),
        Parser(
            "statistics",
            lambda data: read_statistics(written(data, "statistics.json").parent),
            documents(STATISTICS),
        ),
        Parser("matrices", read_matrices, matrices),
        Parser("smoke", lambda data: read_smoke(written(data, "smoke.json")), documents(SMOKE)),
        Parser(
            "target", read_target_files, files("config.json", "tokenizer_config.json", root=TINY / "target")
        ),
        Parser("listing", read_hub_listing, documents(LISTING)),
        Parser("answers", read_answers, answers),
        Parser("metrics", lambda data: parse_counters(server(), data), texts(METRICS)),
        Parser("secrets", read_secrets, secrets),
        Parser("module", scan_module, texts(WHEEL, SGLANG_MODULE)),
        Parser("wheel", scan_wheel, wheels),
        Parser(
            "scan",
            scan_against,
            documents({"release": "0.32.0", "runners": ["V1"], "classes": {"llama": {"reads": ["fc_norm"]}}}),
        ),
        *with_packages(),
    )
}
