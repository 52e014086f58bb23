"""A check of the files to send for secrets: keys, the token in use, and home folders."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.judge.rules.release import PATH, first_home
from eaglectl.judge.secrets import Read, scan_file, scan_text
from eaglectl.publish.upload_files import UploadFile

IMAGES = (".png", ".jpg", ".safetensors")
# rules of validate check paths in the first; the others hold words of a vocabulary
NOT_TEXT = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model")


def check_leaks(files: Sequence[UploadFile], metadata: Mapping[str, str], token: str | None) -> None:
    """Raise RefusedError where a file, or the metadata of the weights, holds a secret or a local path."""
    leaks = sorted({*_metadata_leaks(metadata, token), *_file_leaks(files, token)})
    if leaks:
        more = f" and {len(leaks) - 5} more" if len(leaks) > 5 else ""
        raise RefusedError(
            f"{'; '.join(leaks[:5])}{more}. Remove it and run the command again; a key that was shown to"
            " anybody"
            " is to be withdrawn"
        )


def check_message(message: str | None, token: str | None) -> None:
    """Raise RefusedError where a commit's message holds a secret, UsageError where it is no message."""
    if message is None:
        return
    if not message.strip() or any(not line.isprintable() for line in message.splitlines()):
        raise UsageError(
            "--message: a text of printable characters was expected, its first line as the title"
        )
    for leak in scan_text(message, token):
        raise RefusedError(f"--message holds {leak.kind}; leave it out, and withdraw a key that was shown")


def _metadata_leaks(metadata: Mapping[str, str], token: str | None) -> Iterator[str]:
    for leak in scan_text("\n".join((*metadata, *metadata.values())), token):
        yield f"the metadata of the weights holds {leak.kind}"
    for key, value in metadata.items():
        if PATH.fullmatch(value) or first_home(value.encode("utf-8", "replace")):
            yield f"the metadata of the weights says {key}: a path of one machine"


def _file_leaks(files: Sequence[UploadFile], token: str | None) -> Iterator[str]:
    for file in files:
        read = _reader(file.content)
        for leak in scan_file(file.name, file.size, read, token):
            yield f"{file.name} holds {leak.kind} ({leak.place})"
        is_text = file.name not in NOT_TEXT and not file.name.endswith(IMAGES)
        if is_text and (home := first_home(read(0, file.size))):
            yield f"{file.name} names {home}, somebody's home folder"


def _reader(content: bytes | Path) -> Read:
    """Reads bytes [start, stop) of what is sent. Raises UnreadableError for a file that cannot be read."""
    if isinstance(content, bytes):
        return lambda start, stop: content[start:stop]
    return partial(_read_path, content)


def _read_path(path: Path, start: int, stop: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}; no secret can be searched for in it") from None
    if len(data) != stop - start:
        raise RefusedError(f"{path} changed while it was searched for secrets; run the command again")
    return data
