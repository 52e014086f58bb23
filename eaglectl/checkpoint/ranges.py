"""Bytes [start, stop) of a file over HTTP, by the Hub client's session: checked and bounded.

A redirect to another host is followed without the token: the session's client drops it there.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from eaglectl.checkpoint.hub_errors import HubRequest, refusal, unreachable
from eaglectl.checkpoint.hub_session import TransferError, failure_of, hub_calls, transport_of
from eaglectl.errors import UnreadableError

# a range may take this long, and a second more for each so many bytes
PATIENCE, SLOWEST = 30.0, 50_000


class Response(Struct, frozen=True):
    """A response: its status, its headers, and as much of its body as was requested."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def read_whole(client: Any, request: HubRequest, url: str, headers: Mapping[str, str], most: int) -> Response:
    """The whole body at `url`. Raises UnreadableError, also where it has more than `most` bytes."""
    response = _read(client, request, url, headers, most)
    if response.status != 200 or len(response.body) > most:
        raise refusal(request, response.status, response.headers.get("x-error-code", ""))
    return response


def read_range(
    client: Any, request: HubRequest, url: str, headers: Mapping[str, str], place: tuple[int, int, int]
) -> bytes:
    """Bytes [start, stop) of a file of `size` bytes (`place` is all three). Raises UnreadableError."""
    start, stop, size = place
    is_part = (start, stop) != (0, size)
    ranged = {**headers, "Range": f"bytes={start}-{stop - 1}"} if is_part else headers
    response = _read(client, request, url, ranged, stop - start)
    match response.status:
        case 206 if _content_range(response) == place:
            pass
        case 206:
            raise unreachable(request, f"sent other bytes than {start} to {stop}, which were asked for")
        case 200 if start == 0:
            pass  # the file's beginning, whatever follows
        case 200:
            raise UnreadableError(
                f"{request.subject}: the Hub at {request.host} sends whole files only, and not ranges;"
                " run `hf"
                f" download {request.repo}`, and give it again"
            )
        case status:
            raise refusal(request, status, response.headers.get("x-error-code", ""))
    if not is_part and len(response.body) > size:
        raise unreachable(request, f"sent more than the {size} bytes that it lists")
    if len(response.body) < stop - start:
        raise unreachable(request, f"sent {len(response.body)} bytes of {stop - start}")
    return response.body[: stop - start]


def _content_range(response: Response) -> tuple[int, int, int] | None:
    """Start, stop and size of the file, as the response states them."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("content-range", "").strip())
    return (int(match[1]), int(match[2]) + 1, int(match[3])) if match else None


def _read(client: Any, request: HubRequest, url: str, headers: Mapping[str, str], most: int) -> Response:
    """The response; its body is read to its end, or until there is more than `most` of it."""
    try:
        return _response(client, url, headers, most)
    except TransferError as error:
        failure = error
    if failure.status:
        raise refusal(request, failure.status, failure.code, failure.wait)
    raise unreachable(request, failure.how)


def _response(client: Any, url: str, headers: Mapping[str, str], most: int) -> Response:
    transport = transport_of(client)
    seconds = float(client.constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with (
            hub_calls(client) as session,
            session.stream(
                "GET", url, headers=dict(headers), timeout=seconds, follow_redirects=True
            ) as response,
        ):
            fields = {name.lower(): value for name, value in response.headers.items()}
            if "Range" in headers and fields.get("content-encoding", "identity") != "identity":
                raise TransferError("sends a range compressed, although it was asked not to")
            return Response(response.status_code, fields, b"".join(_pieces(response, most)))
    except (transport.HTTPError, transport.StreamError) as error:
        failure = failure_of(error, transport)
    except OSError as error:
        failure = TransferError(f"cannot be reached ({type(error).__name__})")
    raise failure


def _pieces(response: Any, most: int) -> Iterator[bytes]:
    end = time.monotonic() + PATIENCE + most / SLOWEST
    count = 0
    for piece in response.iter_bytes():
        yield piece
        count += len(piece)
        if count > most:
            return
        if time.monotonic() > end:
            raise TransferError(f"is too slow: {count} bytes came of {most}")
