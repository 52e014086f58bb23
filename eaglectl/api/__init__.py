"""One function for each command, with its options and results; they print nothing and never exit.

The module of a name is imported on first use.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglectl.api.calibrating import CalibrateOptions as CalibrateOptions
    from eaglectl.api.calibrating import calibrate as calibrate
    from eaglectl.api.comparing import DiffOptions as DiffOptions
    from eaglectl.api.comparing import diff as diff
    from eaglectl.api.converting import ConvertOptions as ConvertOptions
    from eaglectl.api.converting import convert as convert
    from eaglectl.api.diagnosing import DiagnoseOptions as DiagnoseOptions
    from eaglectl.api.diagnosing import diagnose as diagnose
    from eaglectl.api.fixing import fix as fix
    from eaglectl.api.inputs import open_target as open_target
    from eaglectl.api.inputs import parse_answers as parse_answers
    from eaglectl.api.inspecting import inspect as inspect
    from eaglectl.api.publishing import UploadOptions as UploadOptions
    from eaglectl.api.publishing import VerifyOptions as VerifyOptions
    from eaglectl.api.publishing import upload as upload
    from eaglectl.api.publishing import verify as verify
    from eaglectl.api.scanning import scan_engine as scan_engine
    from eaglectl.api.smoking import SmokeOptions as SmokeOptions
    from eaglectl.api.smoking import load_only as load_only
    from eaglectl.api.smoking import smoke as smoke
    from eaglectl.api.starting import init as init
    from eaglectl.api.upgrading import UpgradeOptions as UpgradeOptions
    from eaglectl.api.upgrading import upgrade as upgrade
    from eaglectl.api.validating import ValidateOptions as ValidateOptions
    from eaglectl.api.validating import check_options as check_options
    from eaglectl.api.validating import validate as validate
    from eaglectl.comparison.comparison import Comparison as Comparison
    from eaglectl.publishing.card import CardAnswers as CardAnswers
    from eaglectl.publishing.plan import Destination as Destination
    from eaglectl.publishing.signature import Signer as Signer
    from eaglectl.publishing.signing import SigningKey as SigningKey
    from eaglectl.reports.pages.render import render_page as render_page
    from eaglectl.results import Conversion as Conversion
    from eaglectl.results import FailedSource as FailedSource
    from eaglectl.results import FixResult as FixResult
    from eaglectl.results import Inspection as Inspection
    from eaglectl.results import RemainingFinding as RemainingFinding
    from eaglectl.results import Start as Start
    from eaglectl.validation.policy_file import read_policy as read_policy

# the module of each public name, below eaglectl
MODULES: Mapping[str, str] = {
    "CalibrateOptions": "api.calibrating",
    "CardAnswers": "publishing.card",
    "Comparison": "comparison.comparison",
    "Conversion": "results",
    "ConvertOptions": "api.converting",
    "Destination": "publishing.plan",
    "DiagnoseOptions": "api.diagnosing",
    "DiffOptions": "api.comparing",
    "FailedSource": "results",
    "FixResult": "results",
    "Inspection": "results",
    "RemainingFinding": "results",
    "Signer": "publishing.signature",
    "SigningKey": "publishing.signing",
    "SmokeOptions": "api.smoking",
    "Start": "results",
    "UpgradeOptions": "api.upgrading",
    "UploadOptions": "api.publishing",
    "ValidateOptions": "api.validating",
    "VerifyOptions": "api.publishing",
    "calibrate": "api.calibrating",
    "check_options": "api.validating",
    "convert": "api.converting",
    "diagnose": "api.diagnosing",
    "diff": "api.comparing",
    "fix": "api.fixing",
    "init": "api.starting",
    "inspect": "api.inspecting",
    "load_only": "api.smoking",
    "open_target": "api.inputs",
    "parse_answers": "api.inputs",
    "read_policy": "validation.policy_file",
    "render_page": "reports.pages.render",
    "scan_engine": "api.scanning",
    "smoke": "api.smoking",
    "upgrade": "api.upgrading",
    "upload": "api.publishing",
    "validate": "api.validating",
    "verify": "api.publishing",
}
__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'eaglectl.api' has no attribute {name!r}")
    return getattr(import_module(f"eaglectl.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
