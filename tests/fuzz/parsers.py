"""Every parser of bytes that eaglectl did not write itself: a function from bytes to a result, and seeds.

The property: a value, or one of the errors that are an answer to the user (exit codes 1 to 3); within the
bounds of checks.py. Where a reference exists (safetensors, json, tomllib), never looser than it.
"""

import hashlib
import json
import os
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

import eaglectl
from eaglectl.commands.verify.run import verify_files
from eaglectl.conversion.readings import read_counts
from eaglectl.conversion.upgrade import read_statistics
from eaglectl.drafter.drafter import Target
from eaglectl.drafter.tensors import as_engines_read, faults
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint, is_untrained, read_checkpoint
from eaglectl.files.front_matter import front_matter
from eaglectl.files.header import header_length, parse_header, parse_json
from eaglectl.files.hub import read_listing
from eaglectl.files.hub_requests import HubRequest
from eaglectl.files.layout import checkpoint_files
from eaglectl.files.opcodes import PickleError, read_pickle
from eaglectl.files.pickles import NAMES, TorchFile, UnfitTensorError, read_table, state_views
from eaglectl.files.source import FolderSource, ListedDigests
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter, read_target
from eaglectl.judge.rule import read_policy
from eaglectl.judge.rules.release import scan_file
from eaglectl.publish.card import CardFacts, make_card, read_smoke
from eaglectl.report.documents import render_page
from eaglectl.run.counters import parse_counters
from eaglectl.run.http import Server, open_server, parse_answer
from eaglectl.run.job import read_context_length
from eaglectl.run.prompts import choose_prompts
from eaglectl.target.files import check_kernels, read_tokenizer_config
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
    listed: ListedDigests = field(default_factory=lambda: ListedDigests({}, {}))

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

    def downloaded(self) -> FolderSource:
        for name, data in self.files.items():
            written(data, name, "downloaded")
        return FolderSource(folder("downloaded"))


def folder(name: str) -> Path:
    """A folder of this process in the temporary folder, which is the caller's to remove."""
    made = Path(tempfile.gettempdir()) / f"eaglectl-fuzz-{os.getpid()}" / name
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
    files = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(drafter_tensors())}
    return {"metadata": {}, "weight_map": files}


@cache
def weights() -> bytes:
    return safetensors_bytes(drafter_tensors())


def beside(**files: bytes) -> Checkpoint:
    """The small drafter with another config (config_json), or with a file beside its own."""
    good = {"config.json": json.dumps(drafter_config()).encode(), "model.safetensors": weights()}
    return read_checkpoint(
        MemorySource({**good, **{name.replace("_json", ".json"): data for name, data in files.items()}})
    )


def on_disk(data: bytes) -> str:
    """The folder of the small drafter with that config."""
    written(weights(), "model.safetensors", "drafter")
    return str(written(data, "config.json", "drafter").parent)


def read_config(data: bytes) -> object:
    """A config beside good weights, as a drafter, and as a target's."""
    checkpoint = beside(config_json=data)
    target = read_target(checkpoint.config, "org/target")
    return read_drafter(checkpoint, Answers(), target if target.depth else Target(None))


def validated(data: bytes) -> object:
    """A config beside good weights, under every rule."""
    options = eaglectl.ValidateOptions(engines=["vllm", "sglang"], headers_only=True)
    return eaglectl.validate(on_disk(data), options)


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
    return read_drafter(beside(hf_quant_config_json=data), Answers(), Target(None))


def read_vocabulary(data: bytes) -> object:
    """Two tables as engines read them; the first byte chooses the dtype."""
    dtypes = ("I64", "I32", "I16", "U8", "I8", "BOOL", "U64", "U32", "U16", "F64", "F32", "F16", "BF16", "X")
    dtype, data = dtypes[data[0] % len(dtypes)] if data else "I64", data[1:]
    size = {"6": 8, "3": 4, "1": 2}.get(dtype[1:2], 2 if dtype == "BF16" else 1)
    half = len(data) // 2 // size * size
    d2t, t2d = (
        as_engines_read("d2t", dtype, data[:half]),
        as_engines_read("t2d", dtype, data[half : 2 * half]),
    )
    return faults(d2t, t2d, DRAFT, VOCAB)


def vocabulary_seeds() -> list[bytes]:
    d2t, t2d, reals = offsets()[2], mask()[2], np.arange(8, dtype="<f4").tobytes()
    return [b"\0" + d2t + t2d, b"\5" + t2d + t2d, b"\0" + d2t + d2t, b"\x0a" + reals]


# pickles


def read_torch(data: bytes) -> object:
    """A file of torch.save, its value and its storages."""
    file = TorchFile(MemorySource({"model.bin": data}), "model.bin")
    file.check(views := state_views(file.value))
    return views


def read_data_pickle(data: bytes) -> object:
    """A state dict's data.pkl, and its tensors."""
    return state_views(read_pickle(data, NAMES, has_references=True))


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
    "schema": "eaglectl/statistics/1", "digests": {"drafter": "a", "target": "b", "prompts": "c"},
    "boundaries": [2, 4, 5], "rms_norm_eps": 1e-06, "tokens": 100, "rms": [1.0, 2.0, 3.0],
    "log_ratio_sd": [0.1, 0.2, 0.3], "sigma": 0.5, "sigma_by_set": {"prompts": 0.5}, "is_direction": False,
    "prompts": ["0123456789abcdef"], "matrices": None, "engine": {"name": "transformers"},
}  # fmt: skip


def verify(name: str, data: bytes) -> object:
    written(b"{}", "config.json", name)
    return verify_files(FolderSource(written(data, name, name).parent), "folder")


def read_record(data: bytes) -> object:
    """eaglectl.json, as a drafter's and as a list of files."""
    return is_untrained(beside(eaglectl_json=data).sidecars["eaglectl.json"]), verify("eaglectl.json", data)


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
    drafter = read_drafter(beside(), Answers(), Target("org/target"))
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
    return [safetensors_bytes({"gram": ("F64", (6, 6), gram), "cross": ("F64", (2, 6), cross)})]


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


# of packages that the fuzzer's own environment lacks: `.venv/bin/python -m tests.fuzz --parser states`


def read_states(data: bytes) -> object:
    """A file of hidden states that vLLM wrote."""
    from eaglectl.reference.states import load_states

    return load_states(written(data, "states.safetensors", "states"), range(8), 4, 2)


def write_pages(data: bytes) -> object:
    """A config beside good weights, on the pages of `inspect` and `validate`."""
    place = on_disk(data)
    reports = [eaglectl.inspect(place), eaglectl.validate(place, headers_only=True)]
    return [render_page(report) for report in reports]


def apply_template(data: bytes) -> object:
    """A target's chat template, applied to a prompt."""
    from eaglectl.run.job import EngineJob, tokenise
    from eaglectl.run.prompts import Prompt

    target = written(data, "chat_template.jinja", "chat").parent
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (target / name).write_bytes((TINY / "target" / name).read_bytes())
    prompt = Prompt("one", messages=({"role": "user", "content": "two"},))
    return tokenise(EngineJob(target, card_facts().drafter, target, (prompt,)))


TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_packages() -> Iterable[Parser]:
    """The parsers whose packages are installed."""
    if find_spec("torch"):
        tensors = {"token_ids": integers(*range(8)), "hidden_states": floats("states", 8, 4, 2)}
        yield Parser("states", read_states, lambda: [safetensors_bytes(tensors)])
    if find_spec("torch") and find_spec("transformers"):
        yield Parser("template", apply_template, texts(TEMPLATE, "{{ messages[0]['content'] }}"))


NOT_TENSORS = (PickleError, UnfitTensorError)
TORCH_FILES = [f"automodel/sidecar/{name}.pt" for name in ("eagle_meta", "speculative_token_map")]
TORCH_FILES.append("specforge/training-state/vocab_mapping.pt")
QUANTISATION = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
PROMPTS = (
    '{"prompt": "one", "set": "a", "chat": true}\nplain text\n',
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "tools": [{}]}',
)
COUNTS = ('{"1": 2, "3": 4}', "[1, 2, 3]", "1 2\n3,4\n")
PARSERS: Mapping[str, Parser] = {
    parser.name: parser
    for parser in (
        Parser(
            "header",
            lambda data: read_file_of_tensors(framed(data, bytes(64))),
            documents(small_header(), small_header(__metadata__={})),
        ),
        Parser(
            "safetensors", read_file_of_tensors, lambda: [safetensors_bytes({"d2t": offsets()}, {"a": "b"})]
        ),
        Parser("json", read_json, documents({"a": [1, -0.5, "é", None, {"b": True}], "c": "\ud83d\ude00"})),
        Parser(
            "index",
            lambda data: read_checkpoint(MemorySource({**shards(), "model.safetensors.index.json": data})),
            documents(good_index()),
        ),
        Parser("config", read_config, configs),
        Parser("validate", validated, configs),
        Parser("page", write_pages, configs),
        Parser("quantisation", read_quantisation, documents({"quantization": QUANTISATION})),
        Parser("vocabulary", read_vocabulary, vocabulary_seeds),
        Parser("torch", read_torch, files(*TORCH_FILES), NOT_TENSORS),
        Parser("pickle", read_data_pickle, data_pickles, NOT_TENSORS),
        Parser("metadata", read_metadata, files("torchspec/dcp/model/.metadata")),
        Parser("record", read_record, documents(RECORD)),
        Parser("sums", lambda data: verify("SHA256SUMS", data), texts(SUMS)),
        Parser("card", read_card, texts(CARD, "# Name\n", "---\r\ntags:\r\n- a\r\n---\r\n")),
        Parser("policy", read_toml, texts(POLICY)),
        Parser("prompts", lambda data: choose_prompts(written(data, "prompts.jsonl")), texts(*PROMPTS)),
        Parser("counts", lambda data: read_counts(written(data, "counts"), VOCAB), texts(*COUNTS)),
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
        *with_packages(),
    )
}
