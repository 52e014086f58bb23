"""The functions behind the public names of eaglectl, which are here too: `eaglectl.api.convert`."""

from typing import Any

import eaglectl


def __getattr__(name: str) -> Any:
    if name not in eaglectl.__all__:  # a package of eaglectl may have the name of a module here
        raise AttributeError(f"module 'eaglectl.api' has no attribute {name!r}")
    return getattr(eaglectl, name)


def __dir__() -> list[str]:
    return eaglectl.__all__
