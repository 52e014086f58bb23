"""One function for each command, with its options and results; they print nothing and never exit.

The module of a name is imported on first use.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglectl.acceptance.answering import MeasuredAnswer as MeasuredAnswer
    from eaglectl.acceptance.diagnosis import Diagnosis as Diagnosis
    from eaglectl.acceptance.job import LoadResult as LoadResult
    from eaglectl.acceptance.report import SmokeReport as SmokeReport
    from eaglectl.api.calibrating import CalibrateOptions as CalibrateOptions
    from eaglectl.api.calibrating import calibrate as calibrate
    from eaglectl.api.comparing import DiffOptions as DiffOptions
    from eaglectl.api.comparing import diff as diff
    from eaglectl.api.converting import ConvertOptions as ConvertOptions
    from eaglectl.api.converting import convert as convert
    from eaglectl.api.diagnosing import DiagnoseOptions as DiagnoseOptions
    from eaglectl.api.diagnosing import diagnose as diagnose
    from eaglectl.api.fixing import fix as fix
    from eaglectl.api.inputs import MeasureOptions as MeasureOptions
    from eaglectl.api.inputs import open_target as open_target
    from eaglectl.api.inputs import parse_answers as parse_answers
    from eaglectl.api.inspecting import inspect as inspect
    from eaglectl.api.publishing import UploadOptions as UploadOptions
    from eaglectl.api.publishing import VerifyOptions as VerifyOptions
    from eaglectl.api.publishing import upload as upload
    from eaglectl.api.publishing import verify as verify
    from eaglectl.api.readying import ReadyOptions as ReadyOptions
    from eaglectl.api.readying import ready as ready
    from eaglectl.api.smoking import SmokeOptions as SmokeOptions
    from eaglectl.api.smoking import load_only as load_only
    from eaglectl.api.smoking import smoke as smoke
    from eaglectl.api.starting import InitOptions as InitOptions
    from eaglectl.api.starting import init as init
    from eaglectl.api.upgrading import UpgradeOptions as UpgradeOptions
    from eaglectl.api.upgrading import upgrade as upgrade
    from eaglectl.api.validating import ValidateOptions as ValidateOptions
    from eaglectl.api.validating import check_options as check_options
    from eaglectl.api.validating import validate as validate
    from eaglectl.comparison.comparison import Comparison as Comparison
    from eaglectl.conversion.calibration import Statistics as Statistics
    from eaglectl.drafter.drafter import Target as Target
    from eaglectl.engines.engine import Verdict as Verdict
    from eaglectl.errors import EaglectlError as EaglectlError
    from eaglectl.errors import RefusedError as RefusedError
    from eaglectl.errors import UnreadableError as UnreadableError
    from eaglectl.errors import UsageError as UsageError
    from eaglectl.formats.format import Answers as Answers
    from eaglectl.publishing.card import CardAnswers as CardAnswers
    from eaglectl.publishing.plan import Destination as Destination
    from eaglectl.publishing.plan import UploadPlan as UploadPlan
    from eaglectl.publishing.signature import Signer as Signer
    from eaglectl.publishing.signing import SigningKey as SigningKey
    from eaglectl.publishing.upload import Upload as Upload
    from eaglectl.publishing.verification import Verification as Verification
    from eaglectl.reports.pages.render import render_page as render_page
    from eaglectl.results import Conversion as Conversion
    from eaglectl.results import EngineReadiness as EngineReadiness
    from eaglectl.results import FailedSource as FailedSource
    from eaglectl.results import FixResult as FixResult
    from eaglectl.results import Inspection as Inspection
    from eaglectl.results import Readiness as Readiness
    from eaglectl.results import RemainingFinding as RemainingFinding
    from eaglectl.results import Start as Start
    from eaglectl.validation.finding import Finding as Finding
    from eaglectl.validation.judge import Report as Report
    from eaglectl.validation.policy import Policy as Policy
    from eaglectl.validation.policy_file import read_policy as read_policy
    from eaglectl.verdicts import AnswerOutcome as AnswerOutcome
    from eaglectl.verdicts import CheckVerdict as CheckVerdict
    from eaglectl.verdicts import DiagnosisEnding as DiagnosisEnding
    from eaglectl.verdicts import DiffVerdict as DiffVerdict
    from eaglectl.verdicts import FactState as FactState
    from eaglectl.verdicts import FileChange as FileChange
    from eaglectl.verdicts import FileState as FileState
    from eaglectl.verdicts import GateEnding as GateEnding
    from eaglectl.verdicts import ReadingOutcome as ReadingOutcome
    from eaglectl.verdicts import ServedAs as ServedAs
    from eaglectl.verdicts import SignatureState as SignatureState
    from eaglectl.verdicts import TensorState as TensorState
    from eaglectl.verdicts import UploadOutcome as UploadOutcome
    from eaglectl.verdicts import VerifyVerdict as VerifyVerdict

# the module of each public name, below eaglectl
MODULES: Mapping[str, str] = {
    "AnswerOutcome": "verdicts",
    "Answers": "formats.format",
    "CalibrateOptions": "api.calibrating",
    "CardAnswers": "publishing.card",
    "CheckVerdict": "verdicts",
    "Comparison": "comparison.comparison",
    "Conversion": "results",
    "ConvertOptions": "api.converting",
    "Destination": "publishing.plan",
    "DiagnoseOptions": "api.diagnosing",
    "Diagnosis": "acceptance.diagnosis",
    "DiagnosisEnding": "verdicts",
    "DiffOptions": "api.comparing",
    "DiffVerdict": "verdicts",
    "EaglectlError": "errors",
    "EngineReadiness": "results",
    "FactState": "verdicts",
    "FailedSource": "results",
    "FileChange": "verdicts",
    "FileState": "verdicts",
    "Finding": "validation.finding",
    "FixResult": "results",
    "GateEnding": "verdicts",
    "InitOptions": "api.starting",
    "Inspection": "results",
    "LoadResult": "acceptance.job",
    "MeasureOptions": "api.inputs",
    "MeasuredAnswer": "acceptance.answering",
    "Policy": "validation.policy",
    "Readiness": "results",
    "ReadingOutcome": "verdicts",
    "ReadyOptions": "api.readying",
    "RefusedError": "errors",
    "RemainingFinding": "results",
    "Report": "validation.judge",
    "ServedAs": "verdicts",
    "SignatureState": "verdicts",
    "Signer": "publishing.signature",
    "SigningKey": "publishing.signing",
    "SmokeOptions": "api.smoking",
    "SmokeReport": "acceptance.report",
    "Start": "results",
    "Statistics": "conversion.calibration",
    "Target": "drafter.drafter",
    "TensorState": "verdicts",
    "UnreadableError": "errors",
    "UpgradeOptions": "api.upgrading",
    "Upload": "publishing.upload",
    "UploadOptions": "api.publishing",
    "UploadOutcome": "verdicts",
    "UploadPlan": "publishing.plan",
    "UsageError": "errors",
    "ValidateOptions": "api.validating",
    "Verdict": "engines.engine",
    "Verification": "publishing.verification",
    "VerifyOptions": "api.publishing",
    "VerifyVerdict": "verdicts",
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
    "ready": "api.readying",
    "render_page": "reports.pages.render",
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
