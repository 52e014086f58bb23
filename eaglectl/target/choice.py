"""The target of a drafter: the one given, else what the checkpoint itself names, if it is here."""

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

# config keys that name the target
KEYS = tuple(dict.fromkeys(format.target_key for format in FORMATS if format.target_key))
MAX_CARD = 4 * MIB
NONE_NAMED = f"none is named: looked at {', '.join(KEYS)}, the record {RECORD} and base_model in {CARD}"
GENERATION = "generation_config.json"
# seconds; the system's clocks take no more than 24 days at once
LONGEST = 1_000_000
ADAPTED = (
    "the target has a LoRA adapter beside it (adapter_config.json): engines run the drafter unadapted; in"
    " sglang 34337 (NEXTN, DFLASH, DSPARK) acceptance stayed within 9 % for adapters that change little, and"
    " fell far for those that shift what is said; measure with the adapter"
)


class TargetFolder(FolderSource, frozen=True, dict=True):
    """The folder of a target, whose config.json is read once."""

    @cached_property
    def config(self) -> bytes:
        """The bytes of its config.json."""
        return super().read(CONFIG)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        return self.config[start:stop] if name == CONFIG else super().read(name, start, stop)


class TargetChoice(Struct, frozen=True, dict=True):
    """The target that a command takes: none was given where it has no `place`. Its files are read once.

    `text` is what --target would be given, `place` what is opened: the same, or a folder of the Hub client's
    cache. `how` states where a target that was not given comes from, `named` only that; `missing` why there
    is none.
    """

    text: str | None = None
    place: str | None = None
    how: str = ""
    missing: str = ""
    named: str = ""

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
                    f"--target {place}: give the target's folder, or its config.json",
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
        """What its config.json states, with how it was found. Raises UnreadableError."""
        if self.source is None or self.config is None:
            return Target(name, origin=self.how)
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
        return replace(target, repo=repo, changes=changes, origin=self.how)

    @property
    def here(self) -> "TargetChoice":
        """The same in the folder of its weights; none is given where these are not here."""
        root = None if self.weights is None else self.weights.root
        return self if root == self.folder else as_target(root)

    @property
    def folder(self) -> Path:
        """Where it is on this machine."""
        return Path(str(self.place))

    def on_disk(self, verb: str = "", *, has_weights: bool = True) -> "TargetChoice":
        """The same on this machine: a Hub repository is downloaded into the Hub client's cache.

        Raises UnreadableError where `verb` runs it and it is no folder.
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
    """The target that a user gave a command or a function; it has no place for None."""
    text = target if isinstance(target, TargetChoice) else path_text(target)
    return text if isinstance(text, TargetChoice) else TargetChoice(text, text)


# of the commands that read no more of it than its config
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
    """The target that was given, else the first that the checkpoint names and that is here, if it fits.

    A folder with a config.json, or a repository in the Hub client's cache; `needs_weights`: with its
    weights. `may_fetch`: a repository's config.json may come from the Hub. Weights are never downloaded.
    `read` returns the headers of the checkpoint.
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
    """Each target that the checkpoint names, looked for as in `choose_target`; no place if it is not here.

    `others` are targets that are named elsewhere: name -> where.
    """
    for text, where in {**named_targets(source), **(others or {})}.items():
        place, found, why = None, "", "that is no folder with a config.json here"
        if is_repo_name(text):
            what = "its weights are" if needs_weights else "it is"
            why = f"{what} neither in a folder of that name nor in the Hub client's cache"
        if _is_within(text, source):
            why = "that lies in the checkpoint itself, or came with it, and its target is another model"
        elif (place := _place(text, needs_weights=needs_weights)) is not None:
            found = "" if place == text else f" ({place})"
        elif may_fetch and not needs_weights and is_repo_name(text):
            if error := _fetch_error(text):
                why = f"{why}, nor can its config.json be read from the Hub: {error}"
            else:
                place, found = text, " on the Hub"
        if place is None:
            yield TargetChoice(text, missing=f"{where} names {text}, and {why}")
        else:
            named = f"{text}{found}, which {where} names"
            yield TargetChoice(text, place, f"{named}; --target takes another", named=named)


def _fitting(choice: TargetChoice, answers: Answers, read: Callable[[], Checkpoint]) -> TargetChoice:
    """The choice, without a target that the checkpoint names and that does not fit it."""
    try:
        notes = read_drafter(read(), answers, choice.known()).notes
    except EaglectlError:
        return choice  # what is wrong is reported by who reads it next
    unfitting = [note.text for note in notes if note.topic.startswith("target-")]
    reasons = ["it is a drafter itself"] if drafter_mark(choice.config) else unfitting
    how = f"not taken: {choice.named}; {'; '.join(reasons)}"
    unfit = TargetChoice(how=how, missing=f"{choice.named} does not fit it")
    return unfit if reasons else choice


def named_targets(source: Source) -> Mapping[str, str]:
    """The names of a target in a checkpoint's files, each with where it stands."""
    try:
        config = read_config(source)
    except EaglectlError:
        return {}
    stated = [(at(config, key), f"{key} in {CONFIG}") for key in KEYS]
    with suppress(EaglectlError):
        stated.append((at(parse_json(RECORD, _small_file(source, RECORD)), "target"), RECORD))
    if len(bases := base_models(source)) == 1:
        stated.append((bases[0], f"base_model in {CARD}"))
    names: dict[str, str] = {}
    for text, where in stated:
        if isinstance(text, str) and text.strip() and text.isprintable():
            names.setdefault(text, where)
    return names


def target_names(target: TargetChoice, drafter: Source | None = None) -> dict[str, str]:
    """The names that a target may have among others' figures, each with where it is from, surest first.

    Its repository, _name_or_path of its config.json, what the drafter's files name, and its folder's name.
    """
    if (source := target.source) is None:
        return {}
    stated = {str((target.config or {}).get("_name_or_path")): f"_name_or_path in its {CONFIG}"}
    for name, where in named_targets(drafter).items() if drafter is not None else ():
        stated.setdefault(name, f"{where} of the drafter")
    names = {name: where for name, where in stated.items() if is_repo_name(name)}
    if "/" not in source.label:
        return {**names, source.label: "its folder's name"}
    own = {source.label: "its repository"}
    return own | names | own


def base_models(source: Source) -> list[str]:
    """What base_model in the card's front matter names."""
    return front_matter(_small_file(source, CARD).decode("utf-8", "replace")).get("base_model", [])


def _small_file(source: Source, name: str) -> bytes:
    with suppress(EaglectlError):
        if name in source.names() and source.size(name) <= MAX_CARD:
            return source.read(name)
    return b""


def _is_within(text: str, source: Source) -> bool:
    if not isinstance(source, FolderSource) or not os.path.lexists(text):
        return False
    # realpath does not raise for a link to itself
    own, places = (
        {Path(os.path.abspath(path)), Path(os.path.realpath(path))}  # noqa: PTH100
        for path in (source.root, text)
    )
    around = [folder for root in own for folder in root.parents if is_foreign(folder)]
    return any(place.is_relative_to(root) for root in (*own, *around) for place in places)


def _place(text: str, *, needs_weights: bool = False) -> str | None:
    """The folder with a config.json that `text` names, else a repository's in the Hub client's cache.

    A relative path may not lead upwards. `needs_weights`: with its weights.
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
    """The target that a command runs: the one given, else the one that the checkpoint names.

    Raises UsageError where there is none.
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
    """The target that a checkpoint names, where it is here and fits it."""
    original = open_folder(source)
    return choose_target(
        original, TargetChoice(), answers, lambda: read_checkpoint(original), needs_weights=needs_weights
    )


@contextmanager
def asking_for(choice: TargetChoice) -> Iterator[None]:
    """Usage errors that ask for --target state what was looked for."""
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
    """The target's bos and eos token ids in config.json and generation_config.json; None without a target."""
    source, config, stated = target.source, target.config, None
    if source is None or config is None:
        return None
    if GENERATION in source.names():
        stated = parse_json(f"{source.place}/{GENERATION}", source.read(GENERATION))
    places = [place for place in (config, text_part(config), stated) if isinstance(place, Mapping)]
    values = [place.get(key) for place in places for key in ("bos_token_id", "eos_token_id")]
    ids = [token for value in values for token in (value if isinstance(value, list) else [value])]
    return tuple(sorted({token for token in ids if type(token) is int}))


def check_timeout(seconds: float) -> None:
    """Raise UsageError for a --timeout that nothing can wait for; NaN is one."""
    if not 0 < seconds <= LONGEST:
        raise UsageError(
            f"--timeout {seconds:g}: more than 0 seconds was expected, and at most {LONGEST}",
            options=("--timeout",),
        )
