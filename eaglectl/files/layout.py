"""The files of a checkpoint, by their names, and the files that are published beside them."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.header import WEIGHTS, parse_json
from eaglectl.files.source import Source, is_snapshot

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# files that stand for their folder, as pre-commit hooks are given file names
FILES_OF_FOLDER = (CONFIG, INDEX)
SINGLE = "model.safetensors"
# SpecForge's checkpoint of a training, and the config that was given to it
STATE, STATE_CONFIG = "training_state.pt", "draft_config.json"
# the files of Mistral's own layout in their places
MISTRAL = ("params.json", "consolidated.safetensors")
# published beside the weights
RECORD_SCHEMA = "eaglectl/provenance/1"
CARD, RECORD, SUMS, SIGNATURE = "README.md", "eaglectl.json", "SHA256SUMS", "model.sig"
PICKLES = (".bin", ".pt", ".pth")
# exports of other tools, by the suffix
EXPORTS: Mapping[str, str] = {
    ".gguf": "a GGUF file from llama.cpp's converter",
    ".xml": "an OpenVINO graph from `optimum-cli export openvino`",
    ".onnx": "an ONNX graph from an exporter",
    ".engine": "a TensorRT engine from trtllm-build",
    ".plan": "a TensorRT engine",
    ".mxq": "a model that Mobilint's compiler made for its NPUs",
    ".rbln": "a model that Rebellions' compiler made for its NPUs",
    ".neff": "a model that AWS's Neuron compiler made for Trainium and Inferentia",
    ".hef": "a model that Hailo's compiler made for its NPUs",
    ".dlc": "a model that Qualcomm's compiler made for its NPUs",
    ".mlmodelc": "a model that Apple's Core ML compiler made",
    ".mlpackage": "a Core ML package from coremltools",
    ".pte": "a program that ExecuTorch exported",
    ".tflite": "a LiteRT model",
    ".litertlm": "a LiteRT-LM bundle",
    ".rknn": "a model that Rockchip's toolkit made for its NPUs",
    ".rkllm": "a model that Rockchip's toolkit made for its NPUs",
    ".om": "a model that Huawei's ATC made for Ascend NPUs",
    ".bmodel": "a model that Sophgo's compiler made for its TPUs",
    ".axmodel": "a model that Axera's compiler made for its NPUs",
    ".msgpack": "Flax's form of the weights",
    ".h5": "TensorFlow's form of the weights",
}


class TrainingState(Struct, frozen=True):
    """Weights without a config: the names of their files (a pattern), what they are, and what to do.

    FOLDER in `step` stands for their folder.
    """

    files: str
    kind: str
    step: str


_COPY = "copy the trainer's draft json into {} as config.json"
# exports the drafter that Megatron-LM trained: tensors are named otherwise, and split over ranks
_EXPORT = (
    "run Megatron-LM's `examples/post_training/modelopt/export.py --export-extra-modules --load {}"
    " --export-dir OUT`, and pass OUT"
)
# what trainers leave in the folders of a run, whole weights first
STATES = (
    # SafeAILab's traineagle3 (main.py, save_16bit_model), and others that save without a config
    TrainingState(
        r"(pytorch_model|model)(_fsdp(_\d+)?)?\b.*\.(bin|safetensors)", "weights", _COPY.format("FOLDER")
    ),
    # DeepSpeed 0.19.8 deepspeed/utils/zero_to_fp32.py:826, 829
    TrainingState(
        r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_\w+_states\.pt",
        "DeepSpeed's shards",
        "run `python -m deepspeed.utils.zero_to_fp32 FOLDER/.. OUT`, and " + _COPY.format("OUT"),
    ),
    TrainingState(r"mp_rank_00_model_states\.pt", "DeepSpeed's state", _COPY.format("FOLDER")),
    TrainingState(
        r"model_world_size_\d+_rank_\d+\.pt",
        "FSDP's shards, from verl",
        "run `python -m verl.model_merger merge --backend fsdp --local_dir FOLDER --target_dir OUT`, and "
        + _COPY.format("OUT"),
    ),
    # Megatron-LM megatron/training/checkpointing.py, get_checkpoint_name; torch_dist writes common.pt beside
    TrainingState(r"model_optim_rng\.pt", "a rank's state of Megatron", _EXPORT.format("FOLDER/../..")),
    TrainingState(r"common\.pt", "Megatron's distributed checkpoint", _EXPORT.format("FOLDER/..")),
    # Lightning's ModelCheckpoint; the weights are its item state_dict
    TrainingState(
        r".*\.ckpt",
        "a checkpoint of Lightning",
        "copy the .ckpt file to FOLDER/pytorch_model.bin, and " + _COPY.format("FOLDER"),
    ),
    TrainingState(r"__\d+_\d+\.distcp", "a torch distributed checkpoint", _COPY.format("FOLDER")),
    TrainingState(
        r"(?=.*(draft|eagle|epoch|step))(?!.*(optim|sched|scaler|rng|meta)).*\.pth?",
        "a torch file",
        _COPY.format("FOLDER") + ", and pass the file",
    ),
)
# folders of other ranks and of optimizers, which hold no state of their own
_PARTS = r"optim|mp_rank_(?!00(_000)?$)"
QUANTISATION = "hf_quant_config.json"
# PEFT's files of a LoRA adapter
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
# verl-SpeCo states here whether it finished writing (verl_speco/trainer/checkpoint.py:177-182)
TRAINER_METADATA = "metadata.json"
WEIGHT_SUFFIXES = (".safetensors", *PICKLES)
# small pickles beside the weights that hold the draft vocabulary (NeMo Automodel, SpecForge)
VOCABULARY_PICKLES = ("speculative_token_map.pt", "eagle_meta.pt", "vocab_mapping.pt")
# larger files that are not weights are not downloaded (GGUF, ONNX, videos)
MAX_BESIDE = 64 << 20
# where the Hub's client notes what it downloaded into a folder
DOWNLOADED = ".cache/huggingface"
# a trainer's state beside the weights, which no engine reads
NOT_WEIGHTS = r"(optimizer|scheduler|scaler|rng_state|training_args|training_state_rank)|" + "|".join(
    map(re.escape, VOCABULARY_PICKLES)
)


def config_name(names: Collection[str]) -> str | None:
    """Return the name of the config file; None if there is none.

    Beside a trainer's state, which no engine loads, it is the JSON that was given to the trainer.
    """
    if CONFIG not in names and STATE in names and STATE_CONFIG in names:
        return STATE_CONFIG
    return CONFIG if CONFIG in names else None


def pickle_files(source: Source) -> tuple[str, ...]:
    """Return the pickles that hold the weights of `source`; empty if a safetensors file holds them."""
    if source.only is not None:
        return (source.only,) if source.only.endswith(PICKLES) else ()
    names = source.names()
    if any(name.endswith(".safetensors") or name == INDEX for name in names):
        return ()
    return _distributed_files(names) or tuple(
        name
        for name in names
        if name.endswith(PICKLES) and not re.match(NOT_WEIGHTS, name) and not is_openvino_weights(name, names)
    )


def _distributed_files(names: Collection[str]) -> tuple[str, ...]:
    shards = tuple(name for name in names if name.endswith(".distcp"))
    table = next((name for name in (".metadata", "model/.metadata") if name in names), None)
    return (table, *shards) if table and shards else ()


def is_openvino_weights(name: str, names: Collection[str]) -> bool:
    """Whether a .bin file is the data of an OpenVINO graph beside it, and no pickle."""
    return name.endswith(".bin") and name.removesuffix(".bin") + ".xml" in names


def export_words(names: Collection[str]) -> str:
    """Return which file another tool exported, and what to give instead; "" if there is none."""
    for name in names:
        if kind := EXPORTS.get(PurePosixPath(name).suffix):
            return (
                f"{name} is {kind}; pass the original folder or repository, with config.json and safetensors"
            )
    return ""


def are_shards(names: Iterable[str]) -> bool:
    """Whether these weight files are each a part of the weights, by their names (model-00001-of-00002)."""
    return all("-of-" in name for name in names)


SHARD = r"(.*)-(\d{5})-of-(\d{5})\.(safetensors|bin)"


def are_all_shards(names: Collection[str]) -> bool:
    """Whether these weight files are all parts of the weights, by the numbers in their names."""
    parts = [match.groups() for name in names if (match := re.fullmatch(SHARD, name))]
    counts = {(stem, count) for stem, _, count, _ in parts}
    numbers = {int(number) for _, number, _, _ in parts}
    is_one_set = len(parts) == len(names) and len(counts) == 1
    return is_one_set and numbers == {*range(1, int(next(iter(counts))[1]) + 1)}


def check_parts(source: Source, names: Collection[str]) -> None:
    """Raise UnreadableError if a part of the weights of `source` is not there, by the names of the others."""
    parts = dict.fromkeys(match.group(1, 3, 4) for name in names if (match := re.fullmatch(SHARD, name)))
    for stem, count, suffix in parts:
        wanted = (f"{stem}-{number:05}-of-{count}.{suffix}" for number in range(1, int(count) + 1))
        if absent := next((name for name in wanted if name not in names), ""):
            raise UnreadableError(
                f"{source.place}: {absent} is not there, though {next(iter(names))} is; download or copy it"
                " too: each file has a part of the weights",
                WEIGHTS,
                absent,
                source=source.place,
            )


def is_adapter(name: str, names: Collection[str]) -> bool:
    """Whether a weight file is a LoRA adapter's, with its config beside it."""
    return name == ADAPTER and ADAPTER_CONFIG in names


def checkpoints_below(source: Source) -> tuple[str, ...]:
    """Return the folders below `source` with a config.json and weights, newest steps first.

    Trainers export to such folders: NeMo to epoch_N_step_M/model/consolidated, others to step_N.
    """
    return _newest(folder for folder, names in _folders(source).items() if _holds_checkpoint(names))


def states_below(source: Source) -> Mapping[str, "TrainingState"]:
    """Return the folders below `source` with weights and no config.json, newest steps first.

    Folders in one of them, those of an optimizer and of other ranks are left out.
    """
    kinds = {
        folder: kind
        for folder, names in _folders(source).items()
        if CONFIG not in names and not re.search(_PARTS, folder) and (kind := state_of(names))
    }
    parents = {folder: list(map(str, PurePosixPath(folder).parents)) for folder in kinds}
    outer = (folder for folder in kinds if not kinds.keys() & parents[folder])
    return {folder: kinds[folder] for folder in _newest(outer)}


def state_of(names: Collection[str]) -> "TrainingState | None":
    """Return what a trainer left in a folder with these files; None for anything else."""
    return next((kind for kind in STATES if any(re.fullmatch(kind.files, name) for name in names)), None)


def _folders(source: Source) -> Mapping[str, Collection[str]]:
    # the names of the files of each folder below a source
    folders: dict[str, list[str]] = {}
    for name in source.names_below():
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    return folders


def _newest(folders: Iterable[str]) -> tuple[str, ...]:
    def natural(name: str) -> list[tuple[int, str]]:
        # numbers in names are sorted by their values
        return [(int(part[:18]), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]

    return tuple(sorted(folders, key=natural, reverse=True))


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has a config beside weights."""
    with suppress(OSError):
        return _holds_checkpoint({entry.name for entry in folder.iterdir() if entry.is_file()})
    return False


def _holds_checkpoint(names: Collection[str]) -> bool:
    return config_name(names) is not None and any(name.endswith(WEIGHT_SUFFIXES) for name in names)


def is_foreign(folder: Path, given: Collection[Path] = ()) -> bool:
    """Whether a folder is an argument, a checkpoint or a download, and its files set no policy.

    `given` are folders that arguments and options name. A home folder has the cache of the Hub's client, and
    is no download.
    """
    is_download = is_snapshot(folder) or (folder / DOWNLOADED).is_dir()
    is_home = str(folder) == os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 (Path.home may raise)
    return folder in given or is_checkpoint(folder) or (is_download and not is_home)


def given_folders(texts: Iterable[str | os.PathLike[str]]) -> frozenset[Path]:
    """Return the folders that texts name, resolved; a file of a checkpoint counts as its folder."""
    paths = []
    for text in texts:
        with suppress(ValueError):  # no path has such a character, which whoever opens it reports
            paths.append(Path(os.path.realpath(text)))
    # lexists first: Path.is_file raises OSError for a name that is too long
    files = {path for path in paths if os.path.lexists(path) and path.is_file()}
    return frozenset(
        path.parent if path in files and path.name.endswith((CONFIG, *WEIGHT_SUFFIXES)) else path
        for path in paths
    )


def checkpoint_files(source: Source, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the files of a checkpoint: its weights in one form, and the small files beside them."""
    pickles, shards = pickle_files(source), _shards(source)
    return tuple(name for name in source.names() if _is_wanted(name, sizes, pickles, shards))


def readable_files(source: Source, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the files of a checkpoint, or every file if the weights' index cannot be read."""
    try:
        return checkpoint_files(source, sizes)
    except UnreadableError:
        return tuple(sizes)


def _is_wanted(name: str, sizes: Mapping[str, int], pickles: tuple[str, ...], shards: set[str]) -> bool:
    if name.endswith(".safetensors"):
        if is_adapter(name, sizes):
            return False
        if SINGLE in sizes:
            return name == SINGLE
        return not shards or name in shards
    if name.endswith((*PICKLES, ".distcp", ".metadata")):
        return name in pickles or name in VOCABULARY_PICKLES
    return "/" not in name and sizes[name] <= MAX_BESIDE and not re.match(NOT_WEIGHTS, name)


def has_weights(source: Source) -> bool:
    """Whether the weights are there, judging by the names of the files."""
    names = source.names()
    if shards := _shards(source):
        return shards <= set(names)
    return any(name.endswith((".safetensors", *PICKLES, ".distcp")) for name in names)


def _shards(source: Source) -> set[str]:
    names = source.names()
    if INDEX not in names or SINGLE in names:
        return set()
    index = parse_json(INDEX, source.read(INDEX))
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return {str(file) for file in weight_map.values()} if isinstance(weight_map, dict) else set()
