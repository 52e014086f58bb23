"""The verbs as functions that return values; they print nothing and never exit. Each verb's module is loaded when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglectl.api.calibrating import calibrate
    from eaglectl.api.comparing import diff
    from eaglectl.api.converting import convert
    from eaglectl.api.fixing import fix
    from eaglectl.api.inputs import open_target, parse_answers
    from eaglectl.api.inspecting import inspect
    from eaglectl.api.publishing import Destination, upload, verify
    from eaglectl.api.smoking import load_only, smoke
    from eaglectl.api.upgrading import upgrade
    from eaglectl.api.validating import check_options, validate
    from eaglectl.comparison.comparison import Comparison
    from eaglectl.publishing.signature import Signer
    from eaglectl.reports.findings import Conversion, Fixing, Inspection
    from eaglectl.reports.page import render_page
    from eaglectl.validation.policy_file import read_policy

__all__ = [
    "Comparison",
    "Conversion",
    "Destination",
    "Fixing",
    "Inspection",
    "Signer",
    "calibrate",
    "check_options",
    "convert",
    "diff",
    "fix",
    "inspect",
    "load_only",
    "open_target",
    "parse_answers",
    "read_policy",
    "render_page",
    "smoke",
    "upgrade",
    "upload",
    "validate",
    "verify",
]
HOMES = {
    "api.calibrating": ("calibrate",),
    "api.comparing": ("diff",),
    "api.converting": ("convert",),
    "api.fixing": ("fix",),
    "api.inputs": ("open_target", "parse_answers"),
    "api.inspecting": ("inspect",),
    "api.publishing": ("Destination", "upload", "verify"),
    "api.smoking": ("load_only", "smoke"),
    "api.upgrading": ("upgrade",),
    "api.validating": ("check_options", "validate"),
    "comparison.comparison": ("Comparison",),
    "publishing.signature": ("Signer",),
    "reports.findings": ("Conversion", "Fixing", "Inspection"),
    "reports.page": ("render_page",),
    "validation.policy_file": ("read_policy",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"eaglectl.{home}"), name)
    raise AttributeError(f"module 'eaglectl.api' has no attribute {name!r}")
