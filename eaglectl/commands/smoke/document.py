"""The JSON documents of `smoke` and `smoke --load-only`."""

from eaglectl.report.acceptance import MEASUREMENT, speed_meaning
from eaglectl.report.documents import Parts
from eaglectl.run.job import EngineRun, LoadResult, LogitsCheck
from eaglectl.run.probes import DriftCondition, Variant
from eaglectl.run.prompts import PromptChoice
from eaglectl.run.results import DrafterComparison, SetRatio, SmokeReport
from eaglectl.run.server_match import FilesMatch, ServerMatch
from eaglectl.run.windows import ContextPart, WindowResult

PARTS: Parts = {
    **MEASUREMENT,
    SmokeReport: (
        "source",
        "engine=run",
        "verdict",
        "failures",
        "gaps",
        "notes",
        "*measured",
        "sets=by_set",
        "lossless=is_lossless",
        (
            "seconds",
            lambda report: {
                "drafted": round(report.run.seconds, 3),
                "plain": round(report.run.plain_seconds, 3) if report.run.plain else None,
                "meaning": speed_meaning(report),
            },
        ),
        "k",
        "max_tokens",
        "seed",
        "prompts_digest",
        "prompts_file=choice",
        "ignore_eos=ignores_eos",
        "temperature",
        "files",
        "published",
        "against",
        ("probes", lambda report: {"sensitivity": report.variants, "drift": report.drift_conditions}),
        "speed?",
        "speed_gap?",
        "windows?",
        ("tried?", lambda report: report.tried and report.tried.record),
        "coverage?",
        "match?",
        "trust_remote_code?",
    ),
    EngineRun: (
        "name=engine",
        "version",
        "device",
        "dtype",
        "proves",
        "resolved",
        "differences",
        "arguments",
        "logits?",
    ),
    LogitsCheck: ("differences", "bound", "dtype", "score_factor", "gap"),
    ServerMatch: ("ending", "nearest", "words", "prompts", "alike", "files"),
    FilesMatch: ("source", "ending", "compared", "equal", "length", "ratio", "prompts_needed=needed"),
    PromptChoice: ("name=file", "sha256", "prompts=total", "sample"),
    DrafterComparison: (
        "looks",
        "confidence",
        "source",
        "*measured",
        "ending",
        "ratio",
        "rounds",
        "meaning",
        "max_regression",
        ("sets", lambda against: {part.name: part for part in against.sets}),
        "failures",
        "gaps",
    ),
    SetRatio: ("prompts", "ratio", "rounds", "outcome", "ending", "prompts_needed=needed"),
    Variant: (
        "name",
        "option",
        "is_better",
        "outcome",
        "p_value",
        "prompts_needed",
        "is_verified",
        "*measured",
        "ratio",
    ),
    LoadResult: ("version", "unfilled", "resolved", "trust_remote_code?", "shared?"),
    WindowResult: ("window", "*measured", "ratio", "parts"),
    ContextPart: ("start", "drafts", "length", "without=whole"),
    DriftCondition: ("name", "*measured", "state_growth", "attention_on_first", "attention_on_own"),
}
