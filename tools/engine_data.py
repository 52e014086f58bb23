"""Other data files of engines than eaglectl's own, for tools and tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eaglectl.engines import data


@contextmanager
def data_from(path: Path) -> Iterator[None]:
    """Use the data files in `path`, for the whole process, until the block ends."""
    before = data.FOLDER
    _use(path)
    try:
        yield
    finally:
        _use(before)


def _use(path: Path) -> None:
    data.FOLDER = path
    for forget in data.FORGETTING:
        forget()
