"""Inspect, convert and check EAGLE-3 and EAGLE-3.1 drafters.

One function for each command that reads a drafter. They print nothing; `print(result)` prints the output.

    inspect(source)           show what a drafter is, and which engines run it as trained
    ready(source, target)     check if it can be served, with acceptance before and after
    validate(source)          check it against rules and engine releases
    convert(source, out)      convert it to another layout
    upgrade(source, out)      convert EAGLE-3 to 3.1, with statistics of calibrate(source, target, out)
    smoke(source, target)     measure acceptance; load_only(source) only loads the drafter in vLLM
    diagnose(source, target)  find why acceptance is low
    diff(a, b)                compare two drafters, in any layouts
    upload(folder, repo)      publish it in one commit; verify(folder) compares a download with its record

A source is a folder, a weight file, "org/name@revision" or an earlier result. Options are keywords:
--dry-run is dry_run=True, and help(eaglectl.convert) lists them. All errors are EaglectlError.
`dir(eaglectl)` lists the classes of results and options, __init__.pyi their modules.
"""

from importlib import import_module as _import_module

__version__ = "0.1.0"
# the public names, each with the module that has it, as in __init__.pyi; loaded where they are used
_MODULES = {
    "convert": "eaglectl.api.convert",
    "diff": "eaglectl.api.diff",
    "inspect": "eaglectl.api.inspect",
    "CalibrateOptions": "eaglectl.api.options",
    "ConvertOptions": "eaglectl.api.options",
    "DiagnoseOptions": "eaglectl.api.options",
    "DiffOptions": "eaglectl.api.options",
    "InspectOptions": "eaglectl.api.options",
    "MeasureOptions": "eaglectl.api.options",
    "ReadyOptions": "eaglectl.api.options",
    "SmokeOptions": "eaglectl.api.options",
    "UpgradeOptions": "eaglectl.api.options",
    "ValidateOptions": "eaglectl.api.options",
    "diagnose": "eaglectl.api.diagnose",
    "load_only": "eaglectl.api.smoke",
    "smoke": "eaglectl.api.smoke",
    "calibrate": "eaglectl.api.upgrade",
    "upgrade": "eaglectl.api.upgrade",
    "check_options": "eaglectl.api.validate",
    "validate": "eaglectl.api.validate",
    "ready": "eaglectl.commands.ready.run",
    "upload": "eaglectl.commands.upload.run",
    "Verification": "eaglectl.commands.verify.run",
    "verify": "eaglectl.commands.verify.run",
    "Comparison": "eaglectl.comparison",
    "ConversionPlan": "eaglectl.conversion.plan",
    "Statistics": "eaglectl.conversion.upgrade",
    "Drafter": "eaglectl.drafter.drafter",
    "Target": "eaglectl.drafter.drafter",
    "CapturedLayers": "eaglectl.engines.behaviour",
    "NetworkReading": "eaglectl.engines.engine",
    "Verdict": "eaglectl.engines.engine",
    "EaglectlError": "eaglectl.errors",
    "OutdatedError": "eaglectl.errors",
    "RefusedError": "eaglectl.errors",
    "UnreadableError": "eaglectl.errors",
    "UsageError": "eaglectl.errors",
    "Checkpoint": "eaglectl.files.checkpoint",
    "Answers": "eaglectl.formats.format",
    "Following": "eaglectl.judge.judgement",
    "Report": "eaglectl.judge.judgement",
    "Finding": "eaglectl.judge.rule",
    "Policy": "eaglectl.judge.rule",
    "read_policy": "eaglectl.judge.rule",
    "CardAnswers": "eaglectl.publish.request",
    "Destination": "eaglectl.publish.request",
    "UploadOptions": "eaglectl.publish.request",
    "VerifyOptions": "eaglectl.publish.request",
    "Upload": "eaglectl.publish.upload",
    "UploadPlan": "eaglectl.publish.upload",
    "render_json": "eaglectl.report.documents",
    "render_page": "eaglectl.report.documents",
    "render_text": "eaglectl.report.documents",
    "Conversion": "eaglectl.results",
    "EngineReadiness": "eaglectl.results",
    "FailedSource": "eaglectl.results",
    "Inspection": "eaglectl.results",
    "Readiness": "eaglectl.results",
    "MeasuredAnswer": "eaglectl.run.answering",
    "Coverage": "eaglectl.run.coverage",
    "Diagnosis": "eaglectl.run.diagnosis",
    "LoadResult": "eaglectl.run.job",
    "Gate": "eaglectl.run.gate",
    "Published": "eaglectl.run.published_lengths",
    "SmokeReport": "eaglectl.run.results",
    "open_target": "eaglectl.target.choice",
    "AnswerOutcome": "eaglectl.verdicts",
    "CheckVerdict": "eaglectl.verdicts",
    "DiagnosisEnding": "eaglectl.verdicts",
    "DiffVerdict": "eaglectl.verdicts",
    "FactState": "eaglectl.verdicts",
    "FileChange": "eaglectl.verdicts",
    "FileState": "eaglectl.verdicts",
    "GateEnding": "eaglectl.verdicts",
    "MatchEnding": "eaglectl.verdicts",
    "ReadingOutcome": "eaglectl.verdicts",
    "ServedAs": "eaglectl.verdicts",
    "TensorState": "eaglectl.verdicts",
    "UploadOutcome": "eaglectl.verdicts",
    "VerifyVerdict": "eaglectl.verdicts",
}


def __getattr__(name):
    # no __all__: help() would print the documentation of every class
    if name not in _MODULES:
        raise AttributeError(f"module 'eaglectl' has no attribute {name!r}")
    return getattr(_import_module(_MODULES[name]), name)


def __dir__():
    return [*_MODULES, "__version__"]
