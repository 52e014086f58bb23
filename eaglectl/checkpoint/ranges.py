"""Bytes [start, stop) of a file over HTTP, by the Hub client's session: retried, checked and bounded.

A redirect to another host is followed without the token: the session's client drops it there.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from eaglectl.checkpoint.hub_errors import HubRequest, refusal, unreachable
from eaglectl.errors import UnreadableError

# pauses before each further try, and before the only one where no connection came about or nothing was sent
WAITS = (0.5, 1.0, 2.0)
WAIT_FOR_SILENCE = (0.5,)
# the longest that a server may ask to wait
LONGEST_WAIT = 20.0
# a range may take this long, and a second more for each so many bytes
PATIENCE, SLOWEST = 30.0, 50_000
AGAIN = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Response:
    """A response: its status, its headers, and as much of its body as was requested."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _TransferError(Exception):
    """Why a try failed; `is_silent`: there was no connection, or no byte came."""

    def __init__(self, how: str, *, is_silent: bool = False) -> None:
        super().__init__(how)
        self.how = how
        self.is_silent = is_silent


def read_whole(client: Any, request: HubRequest, url: str, headers: Mapping[str, str], most: int) -> Response:
    """The whole body at `url`. Raises UnreadableError, also where it has more than `most` bytes."""
    response = _with_retries(client, request, url, headers, most)
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
    response = _with_retries(client, request, url, ranged, stop - start)
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


def _with_retries(
    client: Any, request: HubRequest, url: str, headers: Mapping[str, str], most: int
) -> Response:
    """The response, after a bounded number of tries; reading is safe to repeat."""
    tries = 0
    while True:
        try:
            response = _once(client, url, headers, most)
        except _TransferError as error:
            waits = WAIT_FOR_SILENCE if error.is_silent else WAITS
            if tries >= len(waits):
                raise unreachable(request, error.how) from None
            wait = waits[tries]
        else:
            if response.status not in AGAIN:
                return response
            requested = _wait(response.headers)
            if tries >= len(WAITS) or requested > LONGEST_WAIT:
                raise refusal(request, response.status, wait=requested)
            wait = max(requested, WAITS[tries])
        tries += 1
        time.sleep(wait)


def _wait(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: Retry-After, or the reset of a limit that is used up."""
    after = headers.get("retry-after", "").strip()
    if after.isdecimal():
        return float(after[:6])
    match = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})", headers.get("ratelimit", ""))
    return float(match[1]) if match else 0.0


def _once(client: Any, url: str, headers: Mapping[str, str], most: int) -> Response:
    """One try; the body is read to its end, or until there is more than `most` of it."""
    transport, session = _transport(client), client.utils.get_session()
    end = time.monotonic() + PATIENCE + most / SLOWEST
    seconds = float(client.constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with session.stream(
            "GET", url, headers=dict(headers), timeout=seconds, follow_redirects=True
        ) as response:
            fields = {name.lower(): value for name, value in response.headers.items()}
            if fields.get("content-encoding", "identity") != "identity":
                raise _TransferError("sends the file compressed, although it was asked not to")
            return Response(response.status_code, fields, b"".join(_pieces(response, most, end)))
    except transport.TimeoutException:
        raise _TransferError(f"sent nothing for {seconds:.0f} seconds", is_silent=True) from None
    except (transport.ConnectError, transport.UnsupportedProtocol):
        raise _TransferError("cannot be reached", is_silent=True) from None
    except (transport.HTTPError, transport.InvalidURL, transport.StreamError) as error:
        raise _TransferError(f"broke the answer off ({type(error).__name__})") from None
    except OSError as error:
        raise _TransferError(f"cannot be reached ({type(error).__name__})", is_silent=True) from None


def _pieces(response: Any, most: int, end: float) -> Iterator[bytes]:
    count = 0
    for piece in response.iter_raw():
        yield piece
        count += len(piece)
        if count > most:
            return
        if time.monotonic() > end:
            raise _TransferError(f"is too slow: {count} bytes came of {most}", is_silent=True)


def _transport(client: Any) -> Any:
    """httpx, or what newer clients use in its place."""
    try:
        return client.utils.httpx
    except AttributeError:  # before 1.30
        return import_module("httpx")
