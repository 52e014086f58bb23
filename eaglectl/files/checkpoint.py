"""Opening a SOURCE (a folder, a weight file, a repository on the Hub), and reading a checkpoint's config and
headers; tensor data is read by range, on demand.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError, check
from eaglectl.files.budgets import CONFIG_ENTRIES, MAX_CONFIG, MAX_ENTRIES, MAX_KEYS, MAX_RECORD
from eaglectl.files.files import is_folder, is_regular
from eaglectl.files.header import (
    JSON,
    POINTER,
    SHARDS,
    UNSAFE,
    WEIGHTS,
    Header,
    StoredTensor,
    header_length,
    parse_header,
    parse_json,
)
from eaglectl.files.layout import (
    CONFIG,
    FILES_OF_FOLDER,
    INDEX,
    MISTRAL,
    QUANTISATION,
    RECORD,
    SINGLE,
    STATES,
    VOCABULARY_PICKLES,
    WEIGHT_SUFFIXES,
    TrainingState,
    are_all_shards,
    are_shards,
    check_parts,
    checkpoints_below,
    config_name,
    export_words,
    is_adapter,
    pickle_files,
    readable_files,
    state_of,
    states_below,
)
from eaglectl.files.source import (
    SCHEME,
    FolderSource,
    PinnedSource,
    Source,
    is_hub_name,
    split_name,
)
from eaglectl.shell import as_path, join, quote
from eaglectl.text import is_url, listed

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

# a record that nests deeper was not written by eaglectl
MAX_DEPTH = 100
# read ahead: one request is enough for nearly every drafter's header
FIRST_READ = 100_000
# bytes of a shard's header: the metadata, and for each tensor its dtype, shape and offsets beside its name
METADATA, ENTRY = 1_000, 200


class Checkpoint(Struct, frozen=True):
    """Config, tensor table and file list of one checkpoint.

    `scattered` are tensors with unreadable data: those of pickles that are not on this machine, or do not
    store it in one place. `names` are the names of all files. `nested` is a pickle with its tensors inside
    another item. `distrust` is why eaglectl.json is no evidence of these files, "" if it is. `unread` is the
    only part of the weights that was compared with it, "" if all bytes were.
    """

    source: Source
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    weight_files: tuple[str, ...]
    sidecars: Mapping[str, Mapping[str, Any]]
    scattered: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    nested: str = ""
    distrust: str = ""
    unread: str = ""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of one tensor's data. Raises UnreadableError."""
        tensor = self.tensors[name]
        if name in self.scattered:
            raise UnreadableError(
                f"{name} is in a pickle, {tensor.file}, and its data cannot be read there; run `eaglectl"
                f" convert {quote(as_path(self.source.place))}`, and use the folder that it writes",
                UNSAFE,
                tensor.file,
            )
        return self.source.read(
            tensor.file, tensor.start + start, tensor.stop if stop is None else tensor.start + stop
        )

    @contextmanager
    def opened(self) -> "Iterator[Checkpoint]":
        """Yield the checkpoint for many reads: each file on this machine is opened once."""
        source = self.source
        if type(source) is not FolderSource:
            yield self
            return
        with PinnedSource(source.root, source.only, source.name, source.shown) as pinned:
            yield replace(self, source=pinned)

    @property
    def record(self) -> Mapping[str, Any]:
        """eaglectl.json; empty where there is none, or one that is no evidence of these files."""
        return {} if self.distrust else self.sidecars.get(RECORD, {})

    @property
    def earlier(self) -> Mapping[str, Any] | None:
        """The record that the next one continues: valid evidence, or the record of an untrained start."""
        record = self.sidecars.get(RECORD, {})
        return record if record and (not self.distrust or is_untrained(record)) else None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@contextmanager
def errors_name_source(source: Source) -> Iterator[None]:
    """Put the source's place before the errors of its files, once."""
    try:
        yield
    except UnreadableError as error:
        if error.source == source.place:
            raise
        text = str(error)
        if error.topic == POINTER and isinstance(source, FolderSource):
            text = (
                f"{error.where} is a Git LFS pointer, not the file; run"
                f" `git -C {quote(as_path(source.place))} lfs pull`"
            )
        raise UnreadableError(
            f"{source.place}: {text}", error.topic, error.where, error.options, source=source.place
        ) from None


def read_checkpoint(source: Source, *, headers_only: bool = False) -> Checkpoint:
    """Read the config and headers of `source`.

    Tensor data is read only to compare it with eaglectl.json, if that exists, and never with `headers_only`.
    Raises UnreadableError (see each message).
    """
    with errors_name_source(source):
        config = read_config(source)
        scattered, nested = frozenset[str](), ""
        if files := pickle_files(source):
            from eaglectl.files.pickles import read_pickled_table

            tensors, metadata, scattered, nested = read_pickled_table(source)
        else:
            files, tensors, metadata = _read_weights(source)
        names = source.names()
        sidecars = {name: _read_object(source, name) for name in (QUANTISATION, RECORD) if name in names}
        distrust = unread = ""
        if RECORD in sidecars:
            from eaglectl.files.records import compare_record  # late: it loads what hashes

            ends = dict.fromkeys(files, 0)
            for tensor in tensors.values():
                ends[tensor.file] = min(ends[tensor.file] or tensor.start, tensor.start)
            read_beside = (QUANTISATION, INDEX, *VOCABULARY_PICKLES)
            beside = [config_name(names) or CONFIG, *(name for name in read_beside if name in names)]
            opened = cast("FolderSource | HubSource", source)
            distrust, unread = compare_record(opened, beside, ends, headers_only=headers_only)
        return Checkpoint(
            source,
            config,
            tensors,
            metadata,
            files,
            sidecars,
            scattered,
            names,
            nested,
            distrust,
            unread,
        )


def _read_weights(
    source: Source,
) -> tuple[tuple[str, ...], Mapping[str, StoredTensor], Mapping[str, str]]:
    # the weight files, with their tensors and metadata; raises for none, and for files that contradict each
    # other
    files, weight_map = _weight_files(source)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    lengths = dict.fromkeys(files, METADATA if weight_map else FIRST_READ)
    for name, shard in (weight_map or {}).items():  # no more is read ahead than a shard's header may take
        lengths[shard] += ENTRY + len(name)
    for file in files:
        ahead = min(FIRST_READ, lengths[file])
        header = read_header(source, file, ahead)
        for tensor in header.tensors:
            if tensor.name in tensors:
                both = f"{tensors[tensor.name].file} and {file}"
                raise UnreadableError(f"{tensor.name} is in both {both}; keep one", SHARDS, file)
            tensors[tensor.name] = tensor
        metadata |= header.metadata
    if weight_map is not None:
        _check_index(weight_map, tensors)
    if not tensors:
        raise UnreadableError(f"{listed(files)} holds no tensors", WEIGHTS, files[0])
    return files, tensors, metadata


def read_weight_file(path: Path) -> Checkpoint:
    """Read the header of one safetensors file that belongs to no checkpoint. Raises UnreadableError."""
    source = FolderSource(path.parent, path.name)
    with errors_name_source(source):
        header = read_header(source, path.name, FIRST_READ)
    return Checkpoint(
        source, {}, {tensor.name: tensor for tensor in header.tensors}, header.metadata, (path.name,), {}
    )


def read_config(source: Source, *, is_target: bool = False) -> Mapping[str, Any]:
    """Read config.json of `source`, which must be an object.

    The config of a target (`is_target`) may have more keys, and NaN and Infinity, as Python's own JSON writes
    them. Raises RefusedError for a checkpoint of another kind, and UnreadableError.
    """
    names = source.names()
    file = config_name(names)
    if file is None:
        remedy = "merge it into its model first"
        if is_target:
            remedy = "pass its base model: engines run the drafter without the adapter (sglang 34337)"
        adapter = (
            f"{source.place} is a LoRA adapter (it has adapter_config.json and no config.json), not a whole"
            f" model; {remedy}"
        )
        files = [name for name in MISTRAL if name in names and not is_target]
        mistral = (
            f"{source.place} is in Mistral's own layout ({' and '.join(files)}, no config.json). Drafters in"
            " that layout are EAGLE-1 (eagle_linear): vLLM and SGLang serve them, and eaglectl reads EAGLE-3"
            " and EAGLE-3.1 drafters only"
        )
        check(
            ("adapter_config.json" in names, adapter, "not-a-drafter", "adapter_config.json"),
            (files, mistral, "not-a-drafter", " ".join(files[:1])),
            error=partial(RefusedError, source=source.place),
        )
        raise UnreadableError(_no_config(source, is_target=is_target), JSON, CONFIG, source=source.place)
    with errors_name_source(source):
        config = _read_object(source, file, is_target=is_target)
        count = _count_keys(config)
        check(
            (
                count > MAX_KEYS and not is_target,
                f"{file} has {count} keys; at most {MAX_KEYS} are read",
                JSON,
                file,
            ),
            error=UnreadableError,
        )
        return config


def why_no_checkpoint(source: Source) -> str:
    """Return why a folder is no checkpoint (it has neither a config nor weights); "" if it may be one."""
    names = source.names()
    is_possible = any(name.endswith((CONFIG, *MISTRAL, *WEIGHT_SUFFIXES, ".distcp")) for name in names)
    return "" if is_possible else _no_config(source, is_target=False)


def _no_config(source: Source, *, is_target: bool) -> str:
    # what a folder without a config.json is, and what to do
    about = f"{source.place} has no config.json"
    if words := export_words(source.names()):
        return f"{about}; {words}"
    if below := _folders_hint(source, "target" if is_target else "checkpoint"):
        return f"{about}{below}"
    if words := _exports_below(source):
        return f"{about}; {words}"
    if is_target:
        return f"{about}; pass a folder or Hub repository with the target's config.json"
    return (
        f"{about}; a drafter is a config.json beside its weights: copy the trainer's draft json there under"
        " that name"
    )


def _folders_hint(source: Source, kind: str = "checkpoint") -> str:
    if folders := checkpoints_below(source):
        paths = [source.place_of(folder) for folder in folders]
        are_steps = len(folders) == 1 or any(map(str.isdecimal, folders[0]))
        which = "the newest" if are_steps else "such as"
        first = f"; {which}: `{join(['eaglectl', 'inspect', as_path(paths[0])])}`"
        return (
            f"; pass the folder of one {kind} in it: {listed(paths)}{first if kind == 'checkpoint' else ''}"
        )
    if kind != "checkpoint":
        return ""
    state = state_of(source.names())
    # whole weights need a config beside them, which the caller says
    states = states_below(source) if state in (None, STATES[0]) else {"": state}
    return "".join(f"; {state_words(source, folder, state)}" for folder, state in states.items())


def state_words(source: Source, folder: str, state: TrainingState) -> str:
    """Return what lies in a folder without a config.json below `source`, and the step to take."""
    place = source.place_of(folder)
    return f"{place} holds {state.kind}: {state.step.replace('FOLDER', quote(as_path(place)))}"


def _weight_files(source: Source) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    # the files that engines load, and the index's map of tensors to files, None without an index
    if source.only is not None and source.only.endswith(".safetensors"):
        return (source.only,), None
    names = source.names()
    if INDEX in names and SINGLE not in names:
        weight_map = _read_index(source)
        return tuple(sorted(set(weight_map.values()))), weight_map
    files = tuple(name for name in names if name.endswith(".safetensors") and not is_adapter(name, names))
    if SINGLE in files:
        return (SINGLE,), None
    check_parts(source, files)
    # engines load all files where no index names some (vLLM and SGLang, weight_utils.py)
    if len(files) == 1 or are_all_shards(files):
        if isinstance(source, FolderSource):
            source.path(INDEX)  # raises for a folder of that name, which `names` leaves out
        return files, None
    raise _no_weights(source, files, names)


def _exports_below(source: Source) -> str:
    # the words for an export below the folder: a file, a folder such as model.mlpackage, or the folder itself
    below = source.names_below()
    folders = (str(parent) for name in below for parent in PurePosixPath(name).parents)
    return export_words((PurePosixPath(source.place).name, *below, *folders))


def _no_weights(source: Source, files: tuple[str, ...], names: tuple[str, ...]) -> Exception:
    # the error for a folder whose .safetensors `files` are not the whole weights
    hint = "" if files else _folders_hint(source)
    if not files and (words := export_words(names) or ("" if hint else _exports_below(source))):
        return RefusedError(
            f"{source.place} has no weights that eaglectl reads: {words}",
            "not-a-drafter",
            source=source.place,
        )
    if not files:
        about = f"{source.place} has no weights: no .safetensors file, {INDEX} or pytorch_model.bin"
        about += hint
    else:
        need = "download it: each file has a part of the weights" if are_shards(files) else "pass one of them"
        about = f"{source.place} has {len(files)} .safetensors files and no {INDEX}; {need}"
    return UnreadableError(about, WEIGHTS, source=source.place)


def _read_index(source: Source) -> Mapping[str, str]:
    # the index's map of tensors to files; UnreadableError if it has another form or names a file that does
    # not exist
    index = parse_json(INDEX, source.read(INDEX), SHARDS)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or {type(file) for file in weight_map.values()} != {str}:
        raise UnreadableError(f'{INDEX} needs a "weight_map" object from tensor to file', SHARDS, INDEX)
    names = frozenset(source.names())
    for name, file in weight_map.items():
        if file.endswith(".safetensors") and PurePosixPath(file).name == file and file not in names:
            raise UnreadableError(f"{file}: No such file, and {INDEX} places {name} in it", SHARDS, INDEX)
    return weight_map


def read_header(source: Source, file: str, ahead: int = FIRST_READ) -> Header:
    """Read the header of a safetensors file; `ahead` bytes are read first. Raises UnreadableError."""
    size = source.size(file)
    head = source.read(file, 0, min(ahead, size))
    length = header_length(file, head[:8], size)
    raw = head[8 : 8 + length]
    if len(raw) < length:
        raw += source.read(file, len(head), 8 + length)
    return parse_header(file, raw, size)


def _check_index(weight_map: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    # raise UnreadableError if the index and the shards' headers name different tensors
    for name, file in weight_map.items():
        if name not in tensors:
            raise UnreadableError(f"{INDEX} places {name} in {file}, and it is not there", SHARDS, INDEX)
        if tensors[name].file != file:
            raise UnreadableError(
                f"{INDEX} places {name} in {file}, and it is in {tensors[name].file}", SHARDS, INDEX
            )
    for name, tensor in tensors.items():
        if name not in weight_map:
            raise UnreadableError(
                f"{name} is in {tensor.file} and not in {INDEX}; engines would skip it: rebuild the index",
                SHARDS,
                INDEX,
            )


def _read_object(source: Source, name: str, *, is_target: bool = False) -> Mapping[str, Any]:
    size, largest = source.size(name), MAX_RECORD if name == RECORD else MAX_CONFIG
    text = f"{name} has {size} bytes; the limit for a drafter is {largest}"
    check((size > largest and not is_target, text, JSON, name), error=UnreadableError)
    most = MAX_ENTRIES if is_target or name in (QUANTISATION, RECORD) else CONFIG_ENTRIES
    value = parse_json(name, source.read(name), JSON, has_constants=is_target, most=most)
    if not isinstance(value, dict):
        raise UnreadableError(f"{name} is a JSON {type(value).__name__}, not an object", JSON, name)
    return value


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def history(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the record and the earlier records in it, newest first."""
    for _ in range(MAX_DEPTH):
        yield record
        earlier = record.get("previous")
        if not isinstance(earlier, Mapping):
            return
        record = earlier


def is_untrained(record: Mapping[str, Any]) -> bool:
    """Whether `--init-only` wrote the drafter, as a starting point for training.

    A later conversion does not change that: it moves bytes and trains nothing.
    """
    upgrades = (entry.get("upgrade") for entry in history(record))
    return any(isinstance(upgrade, Mapping) and bool(upgrade.get("needs_finetune")) for upgrade in upgrades)


# names of a folder that a missing one is compared with
MOST_COMPARED = 1_000
GIVE = "pass a checkpoint's folder, a weight file or a Hub repository (org/name, org/name:folder)"


def open_source(text: str, *, is_config_enough: bool = False) -> "FolderSource | HubSource":
    """Open the folder, the weight file or the Hub repository that `text` names; a folder of that name wins.

    A config.json or a shard index stands for its folder.

    `is_config_enough`: only config.json is read, so that an offline Hub cache may lack the weights.
    Raises UnreadableError, and UsageError for a file that is no weight file.
    """
    path, mode = Path(text), _file_mode(text) if text else 0  # an empty name is no folder, and not this one
    if S_ISDIR(mode):
        return FolderSource(path)
    if S_ISREG(mode) and path.name in FILES_OF_FOLDER:
        return FolderSource(path.parent)
    if S_ISREG(mode):
        other = (
            f"{text} is not a weight file; pass a checkpoint folder, or one of its"
            f" {', '.join(WEIGHT_SUFFIXES)} files"
        )
        words = export_words((text,))
        check((words, words), (path.suffix not in WEIGHT_SUFFIXES, other))
        return FolderSource(path.parent, path.name)
    check(
        (mode, f"{text} is neither a folder nor a regular file; pass one of them"),
        error=partial(UnreadableError, source=text),
    )
    if is_hub_name(text):
        from eaglectl.files.hub import open_hub  # late: a folder is opened without the Hub's client

        return open_hub(text, is_config_enough=is_config_enough)
    check(
        (
            text.startswith(SCHEME),
            f"{text} is not the name of a Hub repository; hf://org/name or hf://org/name@revision was"
            " expected",
        ),
        error=partial(UnreadableError, source=text),
    )
    raise UnreadableError(f"{text or repr(text)}: no such file or folder; {_near(path)}", source=text)


def _near(path: Path) -> str:
    # the advice for a missing path: those beside it with almost its name, or what to pass
    from difflib import get_close_matches  # late: errors alone need it

    names: list[str] = []
    with suppress(OSError, ValueError), os.scandir(path.parent) as entries:
        # without a link of its name, which leads nowhere
        names = [entry.name for entry in islice(entries, MOST_COMPARED) if entry.name != path.name]
    near = [str(path.with_name(name)) for name in get_close_matches(path.name, names, 2, 0.8)]
    return f"near it: {listed(near)}" if near else GIVE


def open_folder(text: str) -> FolderSource:
    """Open what `text` names on this machine; a Hub repository is downloaded into the Hub client's cache.

    The checkpoint's files are compared with their digests where they are in that cache. Raises as
    `open_source` does, and UnreadableError for files with other bytes.
    """
    source = open_source(text)
    if not isinstance(source, FolderSource):
        if config_name(source.names()) is None and checkpoints_below(source):
            read_config(source)  # whose error names the folders
        return source.downloaded()
    check_cached(source)
    return source


def check_cached(source: "FolderSource | HubSource", *, has_weights: bool = True) -> None:
    """Compare the checkpoint's files with their digests where they are in the Hub client's cache.

    `has_weights` False: all but the weights of a folder. Raises UnreadableError for files with other bytes.
    """
    if not isinstance(source, FolderSource):
        source.check_cached()
    elif source.is_cached:
        sizes = {name: source.size(name) for name in source.names()}
        files = readable_files(source, sizes)
        if source.only is not None:
            files = tuple({source.only, CONFIG} & set(sizes))
        source.check_cached(name for name in files if has_weights or not name.endswith(WEIGHT_SUFFIXES))


def uncompared_weights(source: Source) -> tuple[str, ...]:
    """Return a sentence that names the weights without a checked digest, as only their headers were read."""
    if isinstance(source, FolderSource):
        names = source.uncompared(name for name in source.names() if name.endswith(WEIGHT_SUFFIXES))
    else:
        names = getattr(source, "unchecked", ())
    if not names:
        return ()
    text = f"headers of {listed(names)} were read from the Hub or its cache, and no digest covers them"
    return (f"{source.label}: {text}; leave --headers-only out to compare the bytes",)


def on_disk(text: str, *, has_weights: bool = True) -> str:
    """Return `text` if it names local files, else the local folder of the Hub repository that it names.

    Files of the Hub client's cache are compared as by `check_cached`. Raises as `open_folder` does.
    """
    mode = _file_mode(text)
    if hub_name(text):
        return str(open_folder(text).root)
    if S_ISDIR(mode):
        check_cached(FolderSource(Path(text)), has_weights=has_weights)
    return text


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Return the repository and revision that `text` names; None for a local file or another name."""
    return split_name(text) if is_hub_name(text) and not _file_mode(text) else None


def _file_mode(text: str) -> int:
    # the mode of a local path, 0 for a Hub repository and for a path that does not exist
    check(
        (is_url(text), f"{text} is a URL; {GIVE}"),
        error=partial(UnreadableError, source=text),
    )
    try:
        return 0 if text.startswith(SCHEME) else Path(text).stat().st_mode
    except PermissionError as error:
        raise UnreadableError(f"{text}: {error.strerror}", source=text) from None
    except (OSError, ValueError):
        return 0


def open_local_folder(text: str) -> FolderSource:
    """Open the folder of a checkpoint on this machine. Raises UnreadableError if there is none."""
    check(
        (
            bool(text) and is_regular(Path(text)),
            f"{text} is one file of a checkpoint; pass its folder, {Path(text).parent}",
        ),
        (
            not text or not is_folder(Path(text)),
            f"{text or repr(text)}: no such folder; pass the folder of one checkpoint",
        ),
        error=UnreadableError,
    )
    return FolderSource(Path(text))
