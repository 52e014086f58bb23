"""Inspect, convert and check EAGLE-3 and EAGLE-3.1 drafters. Importing this loads nothing heavy."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "calibrate",
    "convert",
    "diff",
    "fix",
    "inspect",
    "render_page",
    "smoke",
    "upgrade",
    "upload",
    "validate",
    "verify",
]

if TYPE_CHECKING:
    from eaglectl.api import (
        calibrate,
        convert,
        diff,
        fix,
        inspect,
        render_page,
        smoke,
        upgrade,
        upload,
        validate,
        verify,
    )


def __getattr__(name: str) -> Any:
    if name in __all__:
        from eaglectl import api

        return getattr(api, name)
    raise AttributeError(f"module 'eaglectl' has no attribute {name!r}")
