"""For every test: no sockets but loopback, warnings as errors, fixtures by name; what makes tests fast."""

import gc
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import settings

# how long an example takes says more of the machine than of the code
settings.register_profile("eaglectl", deadline=None)
settings.load_profile("eaglectl")

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

# typer builds its commands anew at each call, which costs as much as an inspect; no test changes them
typer.main.get_command = cache(typer.main.get_command)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later garbage collection."""
    gc.collect()
    gc.freeze()


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
