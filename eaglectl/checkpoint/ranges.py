"""Bytes [start, stop) of a file behind HTTP, from the Hub client's session: tried again where that is safe, checked, bounded.

A redirect to another host is followed without the token: the session's client drops it there.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from eaglectl.checkpoint.hub_faults import Asked, refusal, unreachable
from eaglectl.errors import Unreadable

# pauses before each further try, and before the only one where no connection came about or nothing was sent
WAITS = (0.5, 1.0, 2.0)
WAIT_FOR_SILENCE = (0.5,)
# the longest that a server may ask to wait
LONGEST_WAIT = 20.0
# a range may take this long, and a second more for each so many bytes
PATIENCE, SLOWEST = 30.0, 50_000
AGAIN = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's status, headers, and as much of its body as was wanted."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Fault(Exception):
    """Why a try gave nothing, and whether the server said nothing at all."""

    def __init__(self, how: str, *, is_silent: bool = False) -> None:
        super().__init__(how)
        self.how = how
        self.is_silent = is_silent


def read_whole(client: Any, asked: Asked, url: str, headers: Mapping[str, str], most: int) -> Answer:
    """The whole body at `url`. Raises Unreadable, also where it has more than `most` bytes."""
    answer = _patiently(client, asked, url, headers, most)
    if answer.status != 200 or len(answer.body) > most:
        raise refusal(asked, answer.status, answer.headers.get("x-error-code", ""))
    return answer


def read_range(client: Any, asked: Asked, url: str, headers: Mapping[str, str], place: tuple[int, int, int]) -> bytes:
    """Bytes [start, stop) of a file of `size` bytes (`place` is all three). Raises Unreadable."""
    start, stop, size = place
    is_part = (start, stop) != (0, size)
    ranged = {**headers, "Range": f"bytes={start}-{stop - 1}"} if is_part else headers
    answer = _patiently(client, asked, url, ranged, stop - start)
    match answer.status:
        case 206 if _said(answer) == place:
            pass
        case 206:
            raise unreachable(asked, f"sent other bytes than {start} to {stop}, which were asked for")
        case 200 if start == 0:
            pass  # the file's beginning, whatever follows
        case 200:
            way = f"run `hf download {asked.repo}`, and give it again"
            raise Unreadable(f"{asked.what}: the Hub at {asked.host} sends whole files only, and not ranges; {way}")
        case status:
            raise refusal(asked, status, answer.headers.get("x-error-code", ""))
    if not is_part and len(answer.body) > size:
        raise unreachable(asked, f"sent more than the {size} bytes that it lists")
    if len(answer.body) < stop - start:
        raise unreachable(asked, f"sent {len(answer.body)} bytes of {stop - start}")
    return answer.body[: stop - start]


def _said(answer: Answer) -> tuple[int, int, int] | None:
    """The range that an answer says it is: start, stop, size of the file."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("content-range", "").strip())
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def _patiently(client: Any, asked: Asked, url: str, headers: Mapping[str, str], most: int) -> Answer:
    """The answer, after as many tries as are worth it; reading is safe to repeat."""
    tries = 0
    while True:
        try:
            answer = _once(client, url, headers, most)
        except _Fault as fault:
            waits = WAIT_FOR_SILENCE if fault.is_silent else WAITS
            if tries >= len(waits):
                raise unreachable(asked, fault.how) from None
            wait = waits[tries]
        else:
            if answer.status not in AGAIN:
                return answer
            told = _wait(answer.headers)
            if tries >= len(WAITS) or told > LONGEST_WAIT:
                raise refusal(asked, answer.status, wait=told)
            wait = max(told, WAITS[tries])
        tries += 1
        time.sleep(wait)


def _wait(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: Retry-After, or the reset of a limit that is used up."""
    after = headers.get("retry-after", "").strip()
    if after.isdecimal():
        return float(after[:6])
    found = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})", headers.get("ratelimit", ""))
    return float(found[1]) if found else 0.0


def _once(client: Any, url: str, headers: Mapping[str, str], most: int) -> Answer:
    """One try; the body is read to its end, or until there is more than `most` of it."""
    transport, session = _transport(client), client.utils.get_session()
    end = time.monotonic() + PATIENCE + most / SLOWEST
    seconds = float(client.constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with session.stream("GET", url, headers=dict(headers), timeout=seconds, follow_redirects=True) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            if found.get("content-encoding", "identity") != "identity":
                raise _Fault("sends the file compressed, although it was asked not to")
            return Answer(response.status_code, found, b"".join(_pieces(response, most, end)))
    except transport.TimeoutException:
        raise _Fault(f"said nothing for {seconds:.0f} seconds", is_silent=True) from None
    except (transport.ConnectError, transport.UnsupportedProtocol):
        raise _Fault("cannot be reached", is_silent=True) from None
    except (transport.HTTPError, transport.InvalidURL, transport.StreamError) as error:
        raise _Fault(f"broke the answer off ({type(error).__name__})") from None
    except OSError as error:
        raise _Fault(f"cannot be reached ({type(error).__name__})", is_silent=True) from None


def _pieces(response: Any, most: int, end: float) -> Iterator[bytes]:
    count = 0
    for piece in response.iter_raw():
        yield piece
        count += len(piece)
        if count > most:
            return  # what was asked for is there; the rest stays where it is
        if time.monotonic() > end:
            raise _Fault(f"is too slow: {count} bytes came of {most}", is_silent=True)


def _transport(client: Any) -> Any:
    """httpx, or what newer clients use in its place."""
    try:
        return client.utils.httpx
    except AttributeError:  # before 1.30
        return import_module("httpx")
