"""The verbs as functions that return values; they print nothing and never exit."""

from eaglectl.api.calibrating import calibrate
from eaglectl.api.converting import convert
from eaglectl.api.inputs import open_target, parse_answers
from eaglectl.api.inspecting import inspect
from eaglectl.api.publishing import Destination, upload, verify
from eaglectl.api.smoking import load_only, smoke
from eaglectl.api.upgrading import upgrade
from eaglectl.api.validating import check_options, validate
from eaglectl.reports.findings import Conversion, Inspection
from eaglectl.validation.policy_file import read_policy

__all__ = [
    "Conversion",
    "Destination",
    "Inspection",
    "calibrate",
    "check_options",
    "convert",
    "inspect",
    "load_only",
    "open_target",
    "parse_answers",
    "read_policy",
    "smoke",
    "upgrade",
    "upload",
    "validate",
    "verify",
]
