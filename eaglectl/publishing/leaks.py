"""A last look at what is sent for what nobody meant to tell: keys, the caller's own token, and somebody's home folder."""

from collections.abc import Iterator, Mapping, Sequence

from eaglectl.errors import Refused
from eaglectl.publishing.plan import File
from eaglectl.validation.leaks import KEYS, PATH
from eaglectl.validation.release import ANYBODY, HOME

IMAGES = (".png", ".jpg", ".safetensors")
# paths in these are looked at value by value, or are words of a vocabulary
NOT_PROSE = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model")


def check_leaks(files: Sequence[File], metadata: Mapping[str, str], token: str | None) -> None:
    """Raise Refused where a file, or the metadata of the weights, holds a secret or a path of one machine."""
    if found := sorted(set(_found(files, metadata, token))):
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise Refused(
            f"{'; '.join(found[:5])}{more}. Remove it and run the command again; a key that was shown to anybody is to be withdrawn"
        )


def _found(files: Sequence[File], metadata: Mapping[str, str], token: str | None) -> Iterator[str]:
    said = "\n".join((*metadata, *metadata.values()))
    yield from _keys("the metadata of the weights", said.encode(), token)
    for key, value in metadata.items():
        if PATH.fullmatch(value) or _home(value):
            yield f"the metadata of the weights says {key}: a path of one machine"
    for file in files:
        if isinstance(file.content, bytes) and not file.name.endswith(IMAGES):
            yield from _keys(file.name, file.content, token)
            if file.name not in NOT_PROSE and (home := _home(file.content.decode("utf-8", "replace"))):
                yield f"{file.name} names {home}, somebody's home folder"


def _keys(name: str, data: bytes, token: str | None) -> Iterator[str]:
    if token and token.encode() in data:
        yield f"{name} holds the token that this call uses"
        return
    for what, pattern in KEYS.items():
        if found := pattern.search(data):
            yield f"{name} holds {what} ({found[0][:3].decode('ascii', 'replace')}...)"


def _home(text: str) -> str:
    return next((found[0] for found in HOME.finditer(text) if (found[2] or "").lower() not in ANYBODY), "")
