"""What a SOURCE of the command line is: a folder, a weight file, or a repository on the Hub."""

from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from eaglectl.errors import UnreadableError, check
from eaglectl.files.files import is_folder
from eaglectl.files.hub_cache import SCHEME, is_hub_name, split_name
from eaglectl.files.layout import CONFIG, WEIGHT_SUFFIXES, export_words, readable_files
from eaglectl.files.source import FolderSource, Source
from eaglectl.text import is_url, listed

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

GIVE = "give a checkpoint's folder, a weight file or a Hub repository (org/name)"


def open_source(text: str, *, is_config_enough: bool = False) -> "FolderSource | HubSource":
    """Open the folder, the weight file or the Hub repository that `text` names; a folder of that name wins.

    `is_config_enough`: only config.json is read, so that an offline Hub cache may lack the weights.
    Raises UnreadableError, and UsageError for a file that is no weight file.
    """
    path, mode = Path(text), _mode(text)
    if S_ISDIR(mode):
        return FolderSource(path)
    if S_ISREG(mode):
        other = (
            f"{text} is not a weight file; give a checkpoint folder, or one of its"
            f" {', '.join(WEIGHT_SUFFIXES)} files"
        )
        words = export_words((text,))
        check((words, words), (path.suffix not in WEIGHT_SUFFIXES, other))
        return FolderSource(path.parent, path.name)
    if mode:
        raise UnreadableError(f"{text} is neither a folder nor a regular file; give one of them")
    if is_hub_name(text):
        from eaglectl.files.hub import open_hub  # late: a folder is opened without the Hub's client

        return open_hub(text, is_config_enough=is_config_enough)
    if text.startswith(SCHEME):
        raise UnreadableError(
            f"{text} names no Hub repository; hf://org/name or hf://org/name@revision was expected"
        )
    raise UnreadableError(f"{text}: no such file or folder; {GIVE}")


def open_folder(text: str) -> FolderSource:
    """Open what `text` names on this machine; a Hub repository is downloaded into the Hub client's cache.

    The checkpoint's files are compared with their digests where they are in that cache. Raises as
    `open_source` does, and UnreadableError for files with other bytes.
    """
    source = open_source(text)
    if not isinstance(source, FolderSource):
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
    """A sentence that names the weights of which headers alone were read, so that no digest covers them."""
    if isinstance(source, FolderSource):
        names = source.uncompared(name for name in source.names() if name.endswith(WEIGHT_SUFFIXES))
    else:
        names = getattr(source, "unchecked", ())
    if not names:
        return ()
    text = f"headers of {listed(names)} were read from the Hub or its cache, which no digest covers"
    return (f"{source.label}: {text}; leave --headers-only out to compare the bytes",)


def on_disk(text: str, *, has_weights: bool = True) -> str:
    """`text` where it names local files, else the local folder of the Hub repository that it names.

    Files of the Hub client's cache are compared as by `check_cached`. Raises as `open_folder` does.
    """
    mode = _mode(text)
    if hub_name(text):
        return str(open_folder(text).root)
    if S_ISDIR(mode):
        check_cached(FolderSource(Path(text)), has_weights=has_weights)
    return text


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Repository and revision that `text` names; None where a local file has that name, or it is none."""
    return split_name(text) if is_hub_name(text) and not _mode(text) else None


def _mode(text: str) -> int:
    """Kind and permissions of what `text` names, 0 where it names nothing. URLs are refused."""
    if is_url(text):
        raise UnreadableError(f"{text} is a URL, from which nothing is read; {GIVE}")
    try:
        return 0 if text.startswith(SCHEME) else Path(text).stat().st_mode
    except PermissionError as error:
        raise UnreadableError(f"{text}: {error.strerror}") from None
    except (OSError, ValueError):
        return 0


def open_local_folder(text: str) -> FolderSource:
    """The folder of a checkpoint on this machine. Raises UnreadableError where there is none."""
    if not is_folder(Path(text)):
        raise UnreadableError(f"{text}: no such folder; give the folder of one checkpoint")
    return FolderSource(Path(text))
