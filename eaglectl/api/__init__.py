"""The verbs as functions that return values; they print nothing and never exit."""

from eaglectl.api.converting import convert
from eaglectl.api.inputs import open_target, parse_answers
from eaglectl.api.inspecting import inspect
from eaglectl.api.smoking import load_only, smoke
from eaglectl.api.validating import check_options, validate
from eaglectl.reports.findings import Conversion, Inspection

__all__ = [
    "Conversion",
    "Inspection",
    "check_options",
    "convert",
    "inspect",
    "load_only",
    "open_target",
    "parse_answers",
    "smoke",
    "validate",
]
