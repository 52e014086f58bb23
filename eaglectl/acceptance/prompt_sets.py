"""Prompt sets by name: from their authors' repositories at fixed commits, held to a digest, and cached."""

import gzip
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eaglectl.acceptance.published import Preset
from eaglectl.checkpoint.files import open_regular
from eaglectl.checkpoint.hub import is_offline
from eaglectl.checkpoint.hub_download import load_client
from eaglectl.checkpoint.hub_session import TransferError, hub_calls
from eaglectl.errors import UnreadableError

DATA = Path(__file__).with_name("prompt_sets.json")
# seconds without an answer, or between two pieces of one
TIMEOUT = 30


class PromptSet(Struct, frozen=True, forbid_unknown_fields=True):
    """A published set: the address and the digest of its file, its licence, and where a line has its prompt.

    `size` in bytes; `prompts` is their number. `field` holds the text of a user message, or a list whose
    first text is one, `answer_field` its worked answer; `set_field` the name under which results are counted.
    `package` is one that brings the file, at `path` beside it.
    """

    title: str
    url: str
    sha256: str
    size: int
    licence: str
    prompts: int
    field: str
    set_field: str | None = None
    answer_field: str | None = None
    package: str | None = None
    path: str = ""

    @property
    def cached(self) -> Path:
        """Where the file is kept, below the Hub client's home."""
        home = Path(load_client().constants.HF_HOME)
        return home / "eaglectl" / "prompts" / f"{self.sha256}{''.join(Path(self.url).suffixes)}"


class _Data(Struct, frozen=True, forbid_unknown_fields=True):
    sets: Mapping[str, PromptSet]
    unnamed: Mapping[str, str]


@cache
def _data() -> _Data:
    return msgspec.json.decode(DATA.read_bytes(), type=_Data)


def prompt_sets() -> Mapping[str, PromptSet]:
    """Every set by its name."""
    return _data().sets


def unnamed_sets() -> Mapping[str, str]:
    """Sets that others measure on and that have no name here, each with the reason."""
    return _data().unnamed


def lines_of(name: str, preset: Preset | None = None) -> tuple[str, ...]:
    """The prompts of a set as the JSON lines of a file of prompts: each a user message, or as a preset says.

    The file comes from a package that is installed, the cache, or the network. Raises UnreadableError where
    it is in none, or where its bytes are not those of the set.
    """
    chosen = prompt_sets()[name]
    data = _packaged(chosen) or _cached(chosen)
    if data is None:
        data = _download(name, chosen)
        _keep(chosen, data)
    return tuple(_lines(name, chosen, data, preset))


def _packaged(chosen: PromptSet) -> bytes | None:
    """The file of the package that brings it; None where it is not installed, or has another one."""
    spec = find_spec(chosen.package) if chosen.package else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next(
        filter(None, (_set_bytes(chosen, Path(folder).parent / chosen.path) for folder in folders)), None
    )


def _cached(chosen: PromptSet) -> bytes | None:
    """The file from the cache; None where it is not there, or is not the set's."""
    return _set_bytes(chosen, chosen.cached)


def _set_bytes(chosen: PromptSet, path: Path) -> bytes | None:
    """The bytes of a file; None where it cannot be read, or is not the set's."""
    try:
        with open_regular(path) as file:
            data = file.read(chosen.size + 1)
    except (OSError, UnreadableError):
        return None
    return data if hashlib.sha256(data).hexdigest() == chosen.sha256 else None


def _download(name: str, chosen: PromptSet) -> bytes:
    if is_offline():
        raise UnreadableError(
            f"--prompts {name}: its file is not in {chosen.cached.parent}, and this call is offline; fetch"
            f" {chosen.url} where there is a network, and name the file"
        )
    client = load_client()
    data = b""
    try:
        with hub_calls(client):
            session = client.utils.get_session()
            with session.stream("GET", chosen.url, follow_redirects=True, timeout=TIMEOUT) as response:
                response.raise_for_status()
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > chosen.size:
                        break
    except TransferError as error:
        reason = f"answered {error.status}" if error.status else error.how
        raise UnreadableError(f"--prompts {name}: {chosen.url} {reason}") from None
    except Exception as error:  # of the client and its transport
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = f"answered {status}" if status else f"did not answer ({type(error).__name__})"
        raise UnreadableError(f"--prompts {name}: {chosen.url} {reason}") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != chosen.sha256:
        raise UnreadableError(
            f"--prompts {name}: {chosen.url} sent {len(data):,} bytes with SHA-256 {digest[:16]}..., and the"
            f" set has {chosen.size:,} with {chosen.sha256[:16]}...; nothing was kept"
        )
    return data


def _keep(chosen: PromptSet, data: bytes) -> None:
    """Put a file into the cache, where that can be written."""
    with suppress(OSError):
        chosen.cached.parent.mkdir(parents=True, exist_ok=True)
        part = chosen.cached.with_name(f".{secrets.token_hex(4)}.part")
        try:
            part.write_bytes(data)
            part.replace(chosen.cached)
        finally:
            part.unlink(missing_ok=True)


def _lines(name: str, chosen: PromptSet, data: bytes, preset: Preset | None) -> Iterator[str]:
    if chosen.url.endswith(".gz"):
        data = gzip.decompress(data)  # of known bytes, so of a known size
    rows: list[Mapping[str, Any]] = [json.loads(line) for line in data.decode().splitlines()]
    form, shots, is_chat = (preset.form, preset.shots, preset.is_chat) if preset else ("{}", 0, True)

    def question(row: Mapping[str, Any]) -> str:
        content = row[chosen.field]
        return form.replace("{}", content if isinstance(content, str) else content[0])

    start = "".join(f"{question(row)} {row[str(chosen.answer_field)]}\n\n" for row in rows[:shots])
    for row in rows:
        label = f"{name} {row[chosen.set_field]}" if chosen.set_field else name
        yield json.dumps({"prompt": start + question(row), "chat": is_chat, "set": label})
