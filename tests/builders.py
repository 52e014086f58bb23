"""Small checkpoints built with the standard library alone: a valid drafter, and ways to spoil it."""

import contextlib
import hashlib
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from eaglectl.cli import run
from eaglectl.engines.registry import ENGINES

Stored = tuple[str, tuple[int, ...], bytes]
# the newest known releases, which are judged where no engine is named
VLLM, SGLANG, LLAMACPP = (ENGINES[name].releases[-1] for name in ("vllm", "sglang", "llama.cpp"))
ABSENT = object()

ITEM = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "U16": 2}
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB, DRAFT = 16, 4, 2, 8, 24, 64, 24
# target token of each draft token: scattered, ascending, the first and the last among them
TARGETS = (0, 1, 2, 5, 6, 9, 11, 12, 13, 17, 20, 21, 25, 28, 30, 31, 35, 40, 44, 45, 50, 57, 62, 63)
# settings of rope, as configs state them
LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: Mapping[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@cache
def floats(seed: str, *shape: int, dtype: str = "BF16") -> Stored:
    """A float tensor of finite values that differ from tensor to tensor and from row to row."""
    count = 1
    for size in shape:
        count *= size
    noise = hashlib.shake_256(seed.encode()).digest(2 * count)
    pairs = zip(noise[::2], noise[1::2], strict=True)
    if dtype in ("BF16", "F16"):
        return dtype, shape, b"".join(bytes((low, 0x3C | sign & 0x80)) for low, sign in pairs)
    return dtype, shape, struct.pack(f"<{count}f", *(low / 256 - 0.5 + sign / 1000 for low, sign in pairs))


def integers(*values: int, dtype: str = "I64") -> Stored:
    """An integer tensor of one axis."""
    return (
        dtype,
        (len(values),),
        b"".join(value.to_bytes(ITEM[dtype], "little", signed=value < 0) for value in values),
    )


def offsets(targets: Sequence[int] = TARGETS) -> Stored:
    """d2t as engines read it."""
    return integers(*(target - draft for draft, target in enumerate(targets)))


def mask(targets: Sequence[int] = TARGETS, vocab: int = VOCAB) -> Stored:
    """t2d."""
    return "BOOL", (vocab,), bytes(int(token in targets) for token in range(vocab))


def drafter_config(**changes: Any) -> dict[str, Any]:
    """The config of a valid drafter in the layout that eaglectl writes; `ABSENT` takes a key away."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "draft_vocab_size": DRAFT,
        "target_hidden_size": HIDDEN,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "norm_before_residual": False,
        "fc_norm": False,
        "norm_output": False,
        "norm_before_fc": False,
        "num_aux_hidden_states": 3,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ABSENT}


def drafter_tensors(**changes: Any) -> dict[str, Stored]:
    """The tensors of a valid GQA drafter; a change of None takes one away."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,),
        "layers.0.input_layernorm.weight": (HIDDEN,),
        "layers.0.mlp.down_proj.weight": (HIDDEN, MLP),
        "layers.0.mlp.gate_proj.weight": (MLP, HIDDEN),
        "layers.0.mlp.up_proj.weight": (MLP, HIDDEN),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "lm_head.weight": (DRAFT, HIDDEN),
        "norm.weight": (HIDDEN,),
    }
    tensors: dict[str, Stored | None] = {"d2t": offsets()}
    tensors |= {name: floats(name, *shape) for name, shape in shapes.items()}
    return {name: stored for name, stored in {**tensors, **changes}.items() if stored is not None}


def safetensors_bytes(tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> bytes:
    """A whole safetensors file, its tensors in the order given."""
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    return framed(json.dumps(table).encode(), b"".join(data for _, _, data in tensors.values()))


def framed(header: bytes, data: bytes = b"") -> bytes:
    """Header JSON, as it is, between its length and the data."""
    return len(header).to_bytes(8, "little") + header + data


def write_safetensors(
    path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write `tensors` as a safetensors file."""
    path.write_bytes(safetensors_bytes(tensors, {"format": "pt"} if metadata is None else metadata))
    return path


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file that is known to be good."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    return {
        name: (entry["dtype"], tuple(entry["shape"]), raw[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in table.items()
        if name != "__metadata__"
    }


# a card that states what only the user knows
STATED = "---\nlicense: apache-2.0\nbase_model: example/target-8b\n---\n# drafter\n"


def drafter_folder(
    parent: Path,
    name: str = "drafter",
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    card: str | None = None,
) -> Path:
    """A valid drafter's folder, but for these config keys (`ABSENT`: none) and tensors (None: none).

    `card` is its README.md, like STATED, which states what `upload` asks for.
    """
    folder = parent / name
    folder.mkdir(parents=True)
    if card is not None:
        (folder / "README.md").write_text(card)
    (folder / "config.json").write_text(json.dumps(drafter_config(**(config or {}))))
    write_safetensors(folder / "model.safetensors", drafter_tensors(**(tensors or {})))
    return folder


def target_of(folder: Path, tensors: Mapping[str, Stored] | None = None, **config: Any) -> Path:
    """The folder of a target that fits the good drafter: its config with changes, and these weights."""
    folder.mkdir()
    whole = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
    (folder / "config.json").write_text(json.dumps(whole | config))
    if tensors is not None:
        write_safetensors(folder / "model.safetensors", tensors)
    return folder


def converted_folder(parent: Path, name: str = "out", *, config: Mapping[str, Any] | None = None) -> Path:
    """The folder of such a drafter with a record that lists its files, as `--force` replaces one."""
    folder = drafter_folder(parent, name, config=config)
    write_record(folder)
    return folder


def write_record(folder: Path, **stated: Any) -> None:
    """eaglectl.json with the digests of the files of a folder, and what else it states."""
    files = {
        file.name: {"size": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in sorted(folder.iterdir())
        if file.name != "eaglectl.json"
    }
    record = {"schema": "eaglectl/provenance/1", **stated, "output": {"files": files}}
    (folder / "eaglectl.json").write_text(json.dumps(record))


def sharded_folder(parent: Path, *, weight_map: Mapping[str, Any] | None = None) -> Path:
    """The drafter in two shards with an index; `weight_map` changes entries of the index (`ABSENT`: none)."""
    folder = drafter_folder(parent)
    (folder / "model.safetensors").unlink()
    tensors = drafter_tensors()
    index: dict[str, Any] = {}
    for number in (1, 2):
        file = f"model-{number:05}-of-00002.safetensors"
        shard = dict(list(tensors.items())[number - 1 :: 2])
        write_safetensors(folder / file, shard)
        index |= dict.fromkeys(shard, file)
    index = {name: file for name, file in {**index, **(weight_map or {})}.items() if file is not ABSENT}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every path below `folder` with its SHA-256, a link's target, or "folder"."""
    return {
        str(path.relative_to(folder)): (
            f"-> {path.readlink()}"
            if path.is_symlink()
            else "folder"
            if path.is_dir()
            else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call printed and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout, which must hold no NaN or Infinity."""
        value = json.loads(self.out, parse_constant=_refuse_constant)
        assert isinstance(value, dict)
        return value


def call(*arguments: str | Path) -> Outcome:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


WAITING = "eaglectl: waiting "
STEPS = "eaglectl: 1 read the files"  # which `ready` says before it begins
# what is said of a path that is not there
ABSENT_FILE = (
    "no such file or folder; pass a checkpoint's folder, a weight file or a Hub repository (org/name,"
    " org/name:folder)"
)


def refusal(code: int, *arguments: str | Path) -> str:
    """The one line on stderr of a call that must end with `code`; with --json it must be the same.

    Lines on what the Hub is waited for do not count.
    """
    outcome = call(*arguments)
    lines = [line for line in outcome.err.splitlines(keepends=True) if not line.startswith((WAITING, STEPS))]
    outcome = replace(outcome, err="".join(lines))
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert is_one_line(outcome), outcome.err
    message = outcome.err.removeprefix("eaglectl: ").removesuffix("\n")
    told = call(*arguments, "--json").document
    is_outdated = "update eaglectl" in message or "no known release fits" in message
    kind = {1: "refused", 2: "usage", 3: "outdated" if is_outdated else "unreadable"}[code]
    assert told["schema"] == "eaglectl/error/1"
    assert (told["kind"], told["exit_code"], told["message"]) == (kind, code, message)
    return message


def is_one_line(outcome: Outcome) -> bool:
    """Whether stderr holds exactly one line of printable text from eaglectl."""
    line = outcome.err.removesuffix("\n")
    return line.startswith("eaglectl: ") and outcome.err == f"{line}\n" and line.isprintable()


def is_answer(outcome: Outcome) -> bool:
    """Whether a call ended as the contract allows: well, or with one line; never with a crash of our own."""
    return outcome.code == 0 or (outcome.code in (1, 2, 3) and is_one_line(outcome))


def _refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def write_package(folder: Path, files: Mapping[str, str], changed: Mapping[str, tuple[str, str]]) -> Path:
    """A Python package; `changed` has, by a file's stem, a text of it and what takes its place."""
    for path, text in files.items():
        old, new = changed.get(Path(path).stem, ("", ""))
        assert old in text, f"{path} has no {old}"
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(old, new) if old else text)
    return folder


def older_angelslim(folder: Path, fixture: str = "gqa") -> Path:
    """A fixture of AngelSlim as transformers 4 saves it, before which it published other drafters too."""
    source = Path(__file__).parent.parent / "fixtures/producers/angelslim" / fixture
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_version": "4.51.0"}))
    return folder


def loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def on_a_terminal(command: list[str], answers: bytes = b"y\n" * 50) -> tuple[int, str]:
    """Exit code and output of a process on a terminal of its own, where every question is answered by y."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answers)
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # a terminal that nobody has open any more
            while part := os.read(ours, 4096):
                shown += part
        return process.wait(120), shown.decode("utf-8", "replace")
    finally:
        os.close(ours)


def changed(source: Path, **config: Any) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads((source / "config.json").read_text()) | config
    return {key: value for key, value in merged.items() if value is not None}
