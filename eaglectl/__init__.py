"""Inspect, convert and check EAGLE-3 and EAGLE-3.1 drafters.

The functions, options and results are those of `eaglectl.api`; importing eaglectl loads none of them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglectl.api import (
        CalibrateOptions,
        CardAnswers,
        Comparison,
        Conversion,
        ConvertOptions,
        Destination,
        DiagnoseOptions,
        DiffOptions,
        FailedSource,
        FixResult,
        Inspection,
        RemainingFinding,
        Signer,
        SigningKey,
        SmokeOptions,
        Start,
        UpgradeOptions,
        UploadOptions,
        ValidateOptions,
        VerifyOptions,
        calibrate,
        check_options,
        convert,
        diagnose,
        diff,
        fix,
        init,
        inspect,
        load_only,
        open_target,
        parse_answers,
        read_policy,
        render_page,
        scan_engine,
        smoke,
        upgrade,
        upload,
        validate,
        verify,
    )

__version__ = "0.1.0"
__all__: list[str] = [
    "CalibrateOptions",
    "CardAnswers",
    "Comparison",
    "Conversion",
    "ConvertOptions",
    "Destination",
    "DiagnoseOptions",
    "DiffOptions",
    "FailedSource",
    "FixResult",
    "Inspection",
    "RemainingFinding",
    "Signer",
    "SigningKey",
    "SmokeOptions",
    "Start",
    "UpgradeOptions",
    "UploadOptions",
    "ValidateOptions",
    "VerifyOptions",
    "calibrate",
    "check_options",
    "convert",
    "diagnose",
    "diff",
    "fix",
    "init",
    "inspect",
    "load_only",
    "open_target",
    "parse_answers",
    "read_policy",
    "render_page",
    "scan_engine",
    "smoke",
    "upgrade",
    "upload",
    "validate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'eaglectl' has no attribute {name!r}")
    from eaglectl import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
