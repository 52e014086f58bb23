"""Every test: sockets closed but for loopback, warnings are errors, fixtures found by name."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


@pytest.fixture(autouse=True)
def closed_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise where a test, or what it calls, would reach beyond this machine."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if host not in ("", "127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests do not reach {host}")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    yield
