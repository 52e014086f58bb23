"""The target of a drafter: the user's, otherwise the one that the checkpoint names, if it is here."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Target
from eaglectl.errors import EaglectlError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import (
    Checkpoint,
    on_disk,
    open_folder,
    open_source,
    read_checkpoint,
    read_config,
)
from eaglectl.files.files import MIB, is_folder
from eaglectl.files.front_matter import front_matter
from eaglectl.files.header import parse_json
from eaglectl.files.layout import CARD, CONFIG, RECORD, has_weights, is_foreign
from eaglectl.files.source import SCHEME, FolderSource, Source, is_repo_name
from eaglectl.files.text_part import text_part
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.config_keys import at
from eaglectl.formats.format import Answers
from eaglectl.formats.other_drafters import drafter_mark
from eaglectl.formats.reader import read_drafter, read_target
from eaglectl.options import TARGET as ANY_TARGET
from eaglectl.options import StrPath, path_text, with_keywords
from eaglectl.target.files import config_tokens

# config keys that name the target
KEYS = tuple(dict.fromkeys(format.target_key for format in FORMATS if format.target_key))
MAX_CARD = 4 * MIB
NONE_NAMED = f"none is named: looked at {', '.join(KEYS)}, the record {RECORD} and base_model in {CARD}"
GENERATION = "generation_config.json"
# seconds; system calls accept at most 24 days
LONGEST = 1_000_000
ADAPTED = (
    "the target has a LoRA adapter beside it (adapter_config.json), and engines run the drafter without it;"
    " in sglang 34337 (NEXTN, DFLASH, DSPARK) acceptance stayed within 9 % for adapters that change little,"
    " and fell far for those that change the answers; measure with the adapter"
)


class TargetFolder(FolderSource, frozen=True, dict=True):
    """The folder of a target, whose config.json is read once."""

    @cached_property
    def config(self) -> bytes:
        """The bytes of its config.json."""
        return super().read(CONFIG)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes [start, stop) of a file."""
        return self.config[start:stop] if name == CONFIG else super().read(name, start, stop)


class TargetChoice(Struct, frozen=True, dict=True):
    """The target of a command; without a `place` there is none. Its files are read once.

    `text` is the value of --target, `place` what is opened: the same, or a folder of the Hub client's cache.
    For a target that the checkpoint names, `named` states its place and `how` adds how to choose another.
    `missing` is the reason if there is none. `tensor_parallel` and `pipeline_parallel` are the sizes that an
    engine is to run it with, if given; `trusts_code`: and with the target's own code.
    """

    text: str | None = None
    place: str | None = None
    how: str = ""
    missing: str = ""
    named: str = ""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    trusts_code: bool = False

    @property
    def deployment(self) -> Mapping[str, str]:
        """The options on how an engine is to run it, as they were given; "" for a flag."""
        sizes = {"tensor": self.tensor_parallel, "pipeline": self.pipeline_parallel}
        options = {f"--{name}-parallel-size": str(size) for name, size in sizes.items() if size is not None}
        return options | ({"--trust-remote-code": ""} if self.trusts_code else {})

    @property
    def as_opened(self) -> "TargetChoice":
        """This target, for commands that name the place that is opened."""
        return replace(self, text=self.place)

    @cached_property
    def source(self) -> Source | None:
        """Its files; from the Hub, only their list is read. Raises as `open_source` does."""
        place = self.place
        # Path raises on names that are too long
        if place is not None and place.endswith(".json") and os.path.isfile(place):  # noqa: PTH113
            path = Path(place)
            check(
                (
                    path.name != CONFIG,
                    f"--target {place}: pass the target's folder, or its config.json",
                    ("--target",),
                )
            )
            place = str(path.parent)
        source = None if place is None else open_source(place, is_config_enough=True)
        return TargetFolder(source.root, source.only) if isinstance(source, FolderSource) else source

    @cached_property
    def config(self) -> Mapping[str, Any] | None:
        """Its config.json. Raises UnreadableError."""
        return None if self.source is None else read_config(self.source, is_target=True)

    @cached_property
    def weights(self) -> FolderSource | None:
        """Its files, if its weights are here or in the Hub client's cache; nothing is downloaded."""
        if self.place is None or os.path.isdir(self.place):  # noqa: PTH112
            is_whole = isinstance(self.source, FolderSource) and _has_weights(self.source)
            return cast("FolderSource", self.source) if is_whole else None
        place = _place(self.place, needs_weights=True)
        return None if place is None else TargetFolder(Path(place))

    def known(self, name: str | None = None) -> Target:
        """Return what its config.json states, with how it was found. Raises UnreadableError."""
        deployment = {
            name: getattr(self, name) for name in ("tensor_parallel", "pipeline_parallel", "trusts_code")
        }
        if self.source is None or self.config is None:
            return Target(name, origin=self.how, **deployment)
        target, label = read_target(self.config, name), self.source.label
        check(
            (
                target.depth is None,
                f"--target {self.text}: its config.json has no num_hidden_layers and no num_layers",
                ("--target",),
            ),
            error=UnreadableError,
        )
        changes = (*target.changes, *([ADAPTED] if "adapter_config.json" in self.source.names() else []))
        # a folder's label is its name; a repository's, and that of its snapshot in the cache, is org/name
        repo = label if "/" in label else None
        return replace(target, repo=repo, changes=changes, origin=self.how, files=self.source, **deployment)

    @property
    def here(self) -> "TargetChoice":
        """This target in the folder of its weights; no target if these are not on this machine."""
        root = None if self.weights is None else self.weights.root
        return self if root == self.folder else as_target(root)

    @property
    def folder(self) -> Path:
        """Where it is on this machine."""
        return Path(str(self.place))

    def on_disk(self, verb: str = "", *, has_weights: bool = True) -> "TargetChoice":
        """Return this target on this machine; download a Hub repository into the Hub client's cache.

        Raises UnreadableError if `verb` runs the target and it is no folder.
        """
        place = self.place and on_disk(self.place, has_weights=has_weights)
        check(
            (
                verb and not is_folder(Path(str(place))),
                f"--target {self.text}: {verb} runs the target, so it must be a folder with its weights",
                ("--target",),
            ),
            error=UnreadableError,
        )
        return self if place == self.place else replace(self, place=place)


def as_target(target: "StrPath | TargetChoice | None") -> TargetChoice:
    """Return the user's target as a TargetChoice; None becomes one without a place."""
    text = target if isinstance(target, TargetChoice) else path_text(target)
    return text if isinstance(text, TargetChoice) else TargetChoice(text, text)


# the option of commands that read only the target's config
TARGET = replace(ANY_TARGET, read=as_target)


def choose_target(
    source: Source,
    given: TargetChoice,
    answers: Answers,
    read: Callable[[], Checkpoint],
    *,
    needs_weights: bool = False,
    may_fetch: bool = False,
) -> TargetChoice:
    """Return the given target, otherwise the first one named in the checkpoint that is here, if it fits.

    That is a folder with a config.json, or a repository in the Hub client's cache; with its weights if
    `needs_weights`. `may_fetch`: download a repository's config.json. Weights are never downloaded. `read`
    returns the headers of the checkpoint.
    """
    if given.place is not None:
        return given
    missing = []
    for choice in named_choices(source, needs_weights=needs_weights, may_fetch=may_fetch):
        if choice.place is not None:
            return _fitting(choice, answers, read)
        missing.append(choice.missing)
    return TargetChoice(missing="; ".join(missing) or NONE_NAMED)


def named_choices(
    source: Source,
    *,
    needs_weights: bool = False,
    may_fetch: bool = False,
    others: Mapping[str, str] | None = None,
) -> Iterator[TargetChoice]:
    """Yield the targets that the checkpoint names, searched as in `choose_target`; no place if absent.

    `others` are targets that are named elsewhere: name -> where.
    """
    for text, where in {**named_targets(source), **(others or {})}.items():
        place, where_found, why = None, "", "there is no such folder with a config.json here"
        if is_repo_name(text):
            what = "its weights are" if needs_weights else "it is"
            why = f"{what} neither in a folder of that name nor in the Hub client's cache"
        if _is_within(text, source):
            why = "that is part of the checkpoint or of its download, and cannot be its target"
        elif (place := _place(text, needs_weights=needs_weights)) is not None:
            where_found = "" if place == text else f" ({place})"
        elif may_fetch and not needs_weights and is_repo_name(text):
            if error := _fetch_error(text):
                why = f"{why}, and its config.json cannot be read from the Hub: {error}"
            else:
                place, where_found = text, " on the Hub"
        if place is None:
            yield TargetChoice(text, missing=f"{where} names {text}, and {why}")
        else:
            named = f"{text}{where_found}, named by {where}"
            yield TargetChoice(text, place, f"{named}; pass --target to use another", named=named)


def _fitting(choice: TargetChoice, answers: Answers, read: Callable[[], Checkpoint]) -> TargetChoice:
    """Return the choice; without a place if the target does not fit the checkpoint.

    It does not if it is a drafter itself, or if a note on a topic target-... says so.
    """
    try:
        notes = read_drafter(read(), answers, choice.known()).notes
    except EaglectlError:
        return choice  # the next reader reports the error
    # each of these is a misfit: of width, vocabulary or depth, or several depths in the drafter's config
    unfitting = [note.text for note in notes if note.topic.startswith("target-")]
    reasons = ["it is a drafter itself"] if drafter_mark(choice.config) else unfitting
    how = f"not used: {choice.named}; {'; '.join(reasons)}"
    unfit = TargetChoice(how=how, missing=f"{choice.named}, does not fit")
    return unfit if reasons else choice


def named_targets(source: Source) -> Mapping[str, str]:
    """Return the names of a target in a checkpoint's files: name -> where it stands."""
    try:
        config = read_config(source)
    except EaglectlError:
        return {}
    statements = [(at(config, key), f"{key} in {CONFIG}") for key in KEYS]
    with suppress(EaglectlError):
        statements.append((at(parse_json(RECORD, _small_file(source, RECORD)), "target"), RECORD))
    if len(bases := base_models(source)) == 1:
        statements.append((bases[0], f"base_model in {CARD}"))
    names: dict[str, str] = {}
    for text, where in statements:
        if isinstance(text, str) and text.strip() and text.isprintable():
            names.setdefault(text, where)
    return names


def target_names(target: TargetChoice, drafter: Source | None = None) -> dict[str, str]:
    """Return the names under which published lengths may list a target: name -> its source, surest first.

    Its repository, _name_or_path of its config.json, the name in the drafter's files, and its folder's name.
    """
    if (source := target.source) is None:
        return {}
    statements = {str((target.config or {}).get("_name_or_path")): f"_name_or_path in its {CONFIG}"}
    for name, where in named_targets(drafter).items() if drafter is not None else ():
        statements.setdefault(name, f"{where} of the drafter")
    names = {name: where for name, where in statements.items() if is_repo_name(name)}
    if "/" not in source.label:
        return {**names, source.label: "its folder's name"}
    repository = {source.label: "its repository"}
    return repository | names | repository


def base_models(source: Source) -> list[str]:
    """Return base_model of the card's front matter."""
    return front_matter(_small_file(source, CARD).decode("utf-8", "replace")).get("base_model", [])


def _small_file(source: Source, name: str) -> bytes:
    with suppress(EaglectlError):
        if name in source.names() and source.size(name) <= MAX_CARD:
            return source.read(name)
    return b""


def _is_within(text: str, source: Source) -> bool:
    if not isinstance(source, FolderSource) or not os.path.lexists(text):
        return False
    # whether a path is in the checkpoint or its download; realpath does not raise for a link to itself
    roots, places = (
        {Path(os.path.abspath(path)), Path(os.path.realpath(path))}  # noqa: PTH100
        for path in (source.root, text)
    )
    around = [folder for root in roots for folder in root.parents if is_foreign(folder)]
    return any(place.is_relative_to(root) for root in (*roots, *around) for place in places)


def _place(text: str, *, needs_weights: bool = False) -> str | None:
    """Return the folder with a config.json that `text` names, else that of a repository in the Hub's cache.

    None if there is none, or for a path with "..". `needs_weights`: with its weights.
    """
    source, place = None, text
    if os.path.isfile(os.path.join(text, CONFIG)):  # noqa: PTH113, PTH118
        source = None if ".." in Path(text).parts else FolderSource(Path(text))
    elif is_repo_name(text) and not os.path.lexists(text):
        from eaglectl.files.hub import open_cached

        with suppress(EaglectlError):
            source = open_cached(text)
            place = str(source.root)
    if source is None or CONFIG not in source.names() or (needs_weights and not _has_weights(source)):
        return None
    return place


def _has_weights(source: FolderSource) -> bool:
    try:
        return has_weights(source)
    except EaglectlError:
        return False


def _fetch_error(text: str) -> str:
    from eaglectl.files.hub import is_offline

    if is_offline():
        return "this call is offline"
    try:
        TargetChoice(text, f"{SCHEME}{text}").known()
    except EaglectlError as error:
        return str(error)
    return ""


def runnable_target(
    source: str, given: TargetChoice, answers: Answers, verb: str, *, needs_weights: bool = True
) -> TargetChoice:
    """Return the target that a command runs: the given one, otherwise the one that the checkpoint names.

    Raises UsageError if there is none.
    """
    is_given = given.place is not None
    choice = given if is_given else named_target(source, answers, needs_weights=needs_weights)
    check(
        (
            not choice.place,
            f"{verb} runs the target; pass --target with its folder ({choice.missing})",
            ("--target",),
        )
    )
    return choice


def named_target(source: str, answers: Answers, *, needs_weights: bool = False) -> TargetChoice:
    """Return the target that a checkpoint names, if it is here and fits."""
    original = open_folder(source)
    return choose_target(
        original, TargetChoice(), answers, lambda: read_checkpoint(original), needs_weights=needs_weights
    )


@contextmanager
def asking_for(choice: TargetChoice) -> Iterator[None]:
    """Add to usage errors that ask for --target the targets that were searched."""
    try:
        yield
    except UsageError as error:
        if choice.missing and "--target" in error.options:
            error.reworded(f"{error} ({choice.missing})")
        raise


@with_keywords
def open_target(target: StrPath | TargetChoice | None, name: str | None = None) -> Target:
    """Read a target's config.json: from a folder, a config.json, or a Hub repository.

    `name` is the target's name in published files; by default the name that the drafter states, or the
    repository's.
    """
    return as_target(target).known(name)


def special_tokens(target: TargetChoice) -> tuple[int, ...] | None:
    """Return the bos and eos token ids of the target's configs; None without a target."""
    source, config, generation = target.source, target.config, None
    if source is None or config is None:
        return None
    if GENERATION in source.names():
        generation = parse_json(f"{source.place}/{GENERATION}", source.read(GENERATION))
    places = [place for place in (config, text_part(config), generation) if isinstance(place, Mapping)]
    values = [place.get(key) for place in places for key in ("bos_token_id", "eos_token_id")]
    return tuple(sorted({token for value in values for token in config_tokens(value)}))


def check_timeout(seconds: float) -> None:
    """Raise UsageError for a --timeout that nothing can wait for; NaN is one."""
    if not 0 < seconds <= LONGEST:
        raise UsageError(
            f"--timeout {seconds:g}: more than 0 and at most {LONGEST} seconds was expected",
            options=("--timeout",),
        )
