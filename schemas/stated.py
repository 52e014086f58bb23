"""What the records do not say of JSON documents: types of what functions make, descriptions, forms."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct

from eaglectl.base import Count
from eaglectl.commands.engines.report import FactEvidence
from eaglectl.conversion.plan import LeftBehind
from eaglectl.engines.behaviour import EvidenceKind
from eaglectl.engines.engine import Verdict
from eaglectl.files.header import StoredTensor
from eaglectl.in_engine.installed import Plugin
from eaglectl.judge.judgement import Report
from eaglectl.judge.rule import Severity
from eaglectl.judge.support import Service
from eaglectl.run.measurement import Spread
from eaglectl.run.probes import DriftCondition, Variant
from eaglectl.run.published_lengths import Published, PublishedLength
from eaglectl.run.results import Gain, SetRatio, SmokeReport
from eaglectl.verdicts import AnswerOutcome, CheckVerdict, FileChange

Digest = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]

# the keys of each object that a function makes; one that ends in "?" may be absent
SHAPES: dict[type[Struct], Mapping[str, Any]] = {}


def shape(name: str, keys: Mapping[str, Any]) -> Any:
    """A type for an object of these keys."""
    kind = defstruct(name, [])
    SHAPES[kind] = keys
    return kind


NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
CountFrom1 = Annotated[int, Meta(ge=1)]
RuleId = Annotated[str, Meta(extra_json_schema={"pattern": "^EGL[0-9]{3,4}$"})]
Interval = tuple[float, float]
Version = Literal["3", "3.1", "3.1-joint", "3 or 3.1"]
ENDED = [verdict for verdict in CheckVerdict if verdict != CheckVerdict.SKIPPED]
# only `validate` skips
Ended = Annotated[CheckVerdict, Meta(extra_json_schema={"enum": ENDED})]
Trust = Annotated[bool, Meta(description="There where --trust-remote-code let the target's own code run.")]
Until = Annotated[datetime.date | None, Meta(extra_json_schema={"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})]
# what ran the target of calibrate
RAN = {
    "properties": {
        "name": {"enum": ["transformers", "vllm"]},
        "device": {"type": "string"},
        "dtype": {"type": "string"},
    },
    "required": ["name", "device", "dtype"],
}

# a choice that was tried
READING = shape(
    "Reading",
    {
        "option": str,
        "acceptance_length": float,
        "interval": Annotated[Interval, Meta(description="95 % over prompts")],
    },
)
# a question that the files leave open, and how it was measured
ANSWER = shape(
    "Answer",
    {
        "about": Annotated[str, Meta(description="What the files leave open")],
        "question": Annotated[str, Meta(description="The question as it would be asked")],
        "outcome": AnswerOutcome,
        "answer": Annotated[
            str | None, Meta(description="The option that answers it; null where the prompts do not tell")
        ],
        "summary": Annotated[str, Meta(description="What was tried and by how much the best wins, in words")],
        "readings": Annotated[tuple[READING, ...], Meta(description="Every choice, the best first")],
        "ratio": Annotated[
            float, Meta(description="Acceptance length of the best over the choice that comes nearest")
        ],
        "interval": Annotated[Interval, Meta(description="95 % of the ratio over paired prompts")],
        "p_value": Annotated[
            float,
            Meta(
                description="Of the rival that is hardest to tell from the best; two-sided, Holm's correction"
            ),
        ],
        "judged_by": Annotated[CountFrom1, Meta(description="Number of prompts")],
        "k": Annotated[CountFrom1, Meta(description="Draft tokens from every position")],
    },
)
RATES = shape("Rates", {"per_user": Spread, "total": Spread})
MOST = "The acceptance length that the share allows at most"
SHARES = shape(
    "ShareOfTokens",
    {
        "tokens": int,
        "covered": int,
        "share": float,
        "most_length": Annotated[float, Meta(description=MOST)],
    },
)
RUN = SmokeReport | None
# by RECORD.KEY: what a function makes, or what the record's type does not say
TYPES: Mapping[str, Any] = {
    "AuxLayers.boundaries": tuple[Count, ...] | None,
    "AuxLayers.ids": tuple[Count, ...] | None,
    "Comparison.is_written_alike": bool,
    "Comparison.values": Literal["compared", "not-compared"],
    "Conversion.measured": tuple[ANSWER, ...],
    "Conversion.trust_remote_code": Trust,
    "ConversionPlan.left": tuple[LeftBehind, ...],
    "Coverage.scripts": Mapping[str, SHARES],
    "Coverage.sets": Mapping[str, SHARES],
    "Diagnosis.measured": tuple[ANSWER, ...],
    "Diagnosis.not_looked": tuple[shape("NotLooked", {"cause": str, "reason": str}), ...],
    "Diagnosis.published": Published | None,
    "Diagnosis.readings": tuple[Variant, ...],
    "Diagnosis.runs": shape("Runs", {"reference": RUN, "engine": RUN, "sampled": RUN, "templated": RUN}),
    "Diagnosis.trust_remote_code": Trust,
    "Diagnosis.verdict": Ended,
    "Drafter.dimensions": Mapping[str, CountFrom1],
    "Drafter.eagle": Version,
    "Drafter.features": tuple[str, ...],
    "Drafter.is_quantised": bool,
    "DrafterComparison.max_regression": Positive,
    "DrafterComparison.sets": Mapping[str, SetRatio],
    "EngineReadiness.command": str | None,
    "EngineReadiness.gain": Gain | None,
    "EngineRun.name": Annotated[
        str, Meta(extra_json_schema={"enum": ["vllm", "sglang", "reference", "server"]})
    ],
    "FactEvidence.rule": Annotated[str, Meta(pattern="^EGL(1[0-2]|20)[0-9]{2}$")],
    "Finding.url": str,
    "Inspection.aux_readings": tuple[
        shape(
            "AuxReading",
            {
                "engine": str,
                "from": str,
                "ids": tuple[int, ...] | None,
                "boundaries": tuple[Count, ...] | None,
                "is_default": bool,
                "as_trained": bool | None,
            },
        ),
        ...,
    ],
    "Inspection.engines": tuple[Verdict, ...],
    "Inspection.next": str,
    "Inspection.tensors": tuple[StoredTensor, ...],
    "Inspection.weights": shape(
        "Weights",
        {"files": tuple[str, ...], "bytes": int, "dtypes": tuple[str, ...], "unchecked": tuple[str, ...]},
    ),
    "LoadResult.resolved": shape(
        "LoadedClass",
        {
            "class": str,
            "layers": Count,
            "fc_norm": bool,
            "norm_output": bool,
            "norm_before_fc": bool,
            "norm_before_residual": bool | None,
            "fc": Annotated[tuple[int, int] | None, Meta(description="Output and input size")],
            "own_embed_tokens": bool,
            "own_lm_head": bool,
        },
    ),
    "LoadResult.trust_remote_code": Trust,
    "Measurement.acceptance_length": Annotated[float, Meta(description="1 + accepted / drafts", ge=1)],
    "PromptChoice.sha256": Digest | None,
    "Published.by": str | None,
    "Published.otherwise": int,
    "Published.target": str | None,
    "PublishedLength.url": str,
    "Readiness.convert": str | None,
    "Readiness.is_converted": bool,
    "Readiness.line": str,
    "Readiness.measured": tuple[ANSWER, ...],
    "Readiness.next": tuple[str, ...],
    "Readiness.published": tuple[PublishedLength, ...],
    "Readiness.verdict": Ended,
    "Report.fail_on": Severity | Literal["never"],
    "Report.passed": tuple[RuleId, ...],
    "Rule.rule": RuleId,
    "ServedFiles.reading": str | None,
    "Service.attention": Literal["GQA", "Qwen3", "MLA"],
    "Service.drafter": Literal["3", "3.1", "3.1-joint"],
    "SetRatio.outcome": Ended,
    "Side.eagle": Version,
    "Side.weights": shape("Weights", {"files": tuple[str, ...], "bytes": Count}),
    "SmokeReport.files": Mapping[str, Digest],
    "SmokeReport.probes": shape(
        "Probes", {"sensitivity": tuple[Variant, ...], "drift": tuple[DriftCondition, ...]}
    ),
    "SmokeReport.prompts_digest": Digest,
    "SmokeReport.seconds": shape(
        "Seconds",
        {
            "drafted": float,
            "plain": float | None,
            "meaning": Annotated[str, Meta(description="What these times are a measure of")],
        },
    ),
    "SmokeReport.temperature": NotNegative,
    "SmokeReport.trust_remote_code": Trust,
    "SmokeReport.verdict": Ended,
    "SpeedRow.concurrency": CountFrom1,
    "SpeedRow.drafted": RATES,
    "SpeedRow.plain": RATES | None,
    "Statistics.boundaries": tuple[Count, ...],
    "Statistics.digests": shape("Digests", {"drafter": Digest, "target": Digest, "prompts": Digest}),
    "Statistics.engine": Annotated[Mapping[str, str], Meta(extra_json_schema=RAN)],
    "Statistics.log_ratio_sd": tuple[NotNegative, ...],
    "Statistics.measured": tuple[
        shape(
            "RecordedAnswer",
            {
                **SHAPES[ANSWER],
                "prompts?": Annotated[
                    Mapping[str, Any] | None, Meta(description="Name, SHA-256 and number of the prompts")
                ],
                "target?": str | None,
                "eaglectl?": Annotated[str | None, Meta(description="eaglectl's version")],
            },
        ),
        ...,
    ],
    "Statistics.out": str,
    "Statistics.rms": tuple[Positive, ...],
    "Statistics.rms_norm_eps": NotNegative,
    "Statistics.sigma": Positive,
    "Statistics.sigma_by_set": Mapping[str, Positive],
    "Statistics.tokens": CountFrom1,
    "Statistics.trust_remote_code": Trust,
    "Step.shape": tuple[Count, ...],
    "StoredTensor.shape": tuple[Count, ...],
    "Suppressed.until": Until,
    "Suppression.until": Until,
    "Upload.bytes": Count,
    "Upload.download": str | None,
    "Upload.files": tuple[
        shape(
            "File",
            {
                "name": str,
                "size": Count,
                "sha256": Digest,
                "change": FileChange,
                "is_written": Annotated[bool, Meta(description="Whether eaglectl made these bytes")],
            },
        ),
        ...,
    ],
    "Upload.is_new": bool,
    "Upload.is_recovered": bool,
    "Upload.mismatches": tuple[shape("Mismatch", {"name": str, "how": str}), ...],
    "Upload.not_sent": tuple[shape("NotSent", {"name": str, "why": str}), ...],
    "Upload.proposed": str | None,
    "Variant.p_value": Annotated[float, Meta(ge=0, le=1)],
    "Verdict.rules": tuple[RuleId, ...],
    "Verdict.verdict": Ended,
    "Verification.evidence": tuple[shape("Evidence", {"name": str, "proves": str, "leaves_open": str}), ...],
}
# by RECORD.KEY
DESCRIPTIONS: Mapping[str, str] = {
    "CheckedFile.by": "What the file was compared by: its SHA-256, its SHA-256 as the Hub lists it (the file"
    " was not downloaded where the repository is verified), git's id of it, or the SHA-256 of its header and"
    " of each tensor",
    "CheckedFile.tensors": "The tensors that differ, where the file was compared by tensors",
    "Comparison.is_written_alike": "Whether nothing is spelled differently",
    "Comparison.served": "What the newest release of each engine does with A and with B",
    "Comparison.values": "Whether tensor data was looked at",
    "Comparison.verdict": "By meaning and tensors, never by spelling. same-headers: nothing differs, and no"
    " tensor data was looked at. could-not-look: nothing that is known differs, and some fact is not known",
    "Conversion.gate": "What the gate of --to 3.1 measured; null where none ran",
    "Conversion.measured": "What the files leave open and was measured",
    "Conversion.serving": "What each engine does with the output: the last release asked for, else the"
    " newest. `serving` are its releases that run it as trained.",
    "Coverage.next": "There where the share is low: count such tokens, take others",
    "Coverage.most_length": MOST,
    "Coverage.scripts": "By the script of most letters of each text",
    "Diagnosis.cause": "The id of the cause, as in docs/reference/causes.md",
    "Diagnosis.ending": "What the cause is in; docs/reference/causes.md is the tree",
    "Diagnosis.expected": "The acceptance length of --expected",
    "Diagnosis.measured": "What the files leave open and was measured",
    "Diagnosis.next": "What to run or change next",
    "Diagnosis.readings": "Other readings of the file that were tried, with their ratio to the stated one",
    "Diagnosis.words": "What shows it",
    "DrafterComparison.failures": "Sets on which the first drafter is not shown to be as good",
    "DrafterComparison.gaps": "Sets of too few prompts to tell",
    "DrafterComparison.meaning": "What the ratios are of",
    "EngineReadiness.command": "Starts the engine with the files that it runs as trained",
    "EngineReadiness.gain": "Acceptance length converted over stored, of the same prompts; null where the"
    " engine did not run both. prompts_needed: about how many tell it from 1; null where none would",
    "EngineRun.arguments": "The engine's own arguments that were given: --tensor-parallel-size and"
    " --engine-arg",
    "FactEvidence.runs": "the recorded cases that showed whether the fact holds; else it was read at source",
    "FilesMatch.compared": "Prompts with equal answers and enough rounds",
    "FilesMatch.equal": "Of these, those with equal rounds",
    "FilesMatch.prompts_needed": "About how many prompts would tell; null where none would",
    "FilesMatch.ratio": "The server's acceptance length over the files'",
    "Gate.ending": "kept: every lower bound reaches the tolerance; lost: an upper bound is below it",
    "Gate.prompts_needed": "About how many prompts would tell kept from lost; null where none would",
    "GateRow.ratio": "After over before, of the tokens drafted from every position of the same answers",
    "GateRow.rounds": "After over before, of rounds as an engine makes them",
    "Inspection.coverage": "There with --prompts or --token-counts: what the draft vocabulary holds of them",
    "Inspection.next": "The conversion to run where the newest vLLM does not serve it as trained, else empty",
    "Inspection.target": "The target and how it was found; empty where there was none",
    "Inspection.target_digest": "SHA-256 of the target's config.json, or empty",
    "LoadResult.resolved": "Settings that the class reads from the checkpoint",
    "LoadResult.shared": "Parameters that vLLM takes from the target; absent where there are none",
    "LoadResult.unfilled": "Parameters of vLLM's drafter class that the files do not fill",
    "LoadResult.version": "The release of vLLM that loaded the drafter",
    "PromptChoice.prompts": "Their number in the file",
    "PromptChoice.sample": "--sample, drawn by seed",
    "PromptChoice.sha256": "Of the bytes of the file",
    "Published.alike": "Published lengths that were measured as this run was",
    "Published.by": "Where that name is from",
    "Published.otherwise": "The number of lengths that were measured otherwise",
    "Published.target": "What the target is taken for; null where it is not known",
    "Readiness.cause": "Of low acceptance, as in docs/reference/causes.md",
    "Readiness.convert": "The command that writes the conversion",
    "Readiness.line": "The last line of the text report",
    "Readiness.measured": "What the files leave open and was measured",
    "Readiness.out": "Where the conversion is; null where none was kept",
    "Readiness.published": "Published acceptance lengths that were measured alike",
    "Readiness.reason": "Why it is not ready, or what to look into where it is",
    "Readiness.verdict": "Whether an engine, or each that was asked for, serves the drafter as trained",
    "Report.lowered": "the rules whose severity the policy lowers, with the new one",
    "Report.off": "the rules that the policy switches off",
    "Report.skipped": "Why the folder is no drafter's, with --skip-others; else empty",
    "Report.target": "The target and how it was found; empty where there was none",
    "Report.target_digest": "SHA-256 of the target's config.json, or empty",
    "ServedFiles.acceptance": "The run of these files",
    "ServedFiles.gap": "Why there is no run",
    "ServedFiles.reading": "How the reference ran the files, where it read them as the engine does and not as"
    " they were trained",
    "ServerMatch.alike": "Prompts whose answers begin as the target's files answer",
    "ServerMatch.nearest": "The source of the files that it drafts as; empty for none",
    "SmokeReport.coverage": "There where the draft vocabulary is reduced and the engine tells its tokens",
    "SmokeReport.files": "SHA-256 of the config and weights that were measured, by which upload knows whose"
    " figures these are",
    "SmokeReport.gaps": "Why the verdict is could-not-look: too little was measured",
    "SmokeReport.ignore_eos": "Whether answers went on past the end of a sequence",
    "SmokeReport.match": "There for a server that was compared with the files of drafters",
    "SmokeReport.speed": "There with --speed: tokens a second",
    "SmokeReport.speed_gap": "There where --speed could not measure: why",
    "SmokeReport.temperature": "0 is greedy",
    "Speed.card": "The GPU's name",
    "Speed.how": "What was timed, or that it is no measure of serving",
    "Speed.max_tokens": "New tokens of each request",
    "Speed.text": 'The ratios in a line: "2.03x at 1, 1.71x at 4"',
    "SpeedRow.acceptance_length": "1 + accepted / drafts in these repeats; null where the engine does not"
    " count",
    "SpeedRow.concurrency": "Requests at a time",
    "SpeedRow.ratio": "With the drafter over without, of repeats with the same prompts; null of a server",
    "Statistics.is_direction": "norm_before_residual: only the direction of what fc makes is fitted",
    "Statistics.log_ratio_sd": "How each layer's size varies against the others' from token to token",
    "Statistics.measured": "What the drafter's files left open and was measured; absent where nothing was",
    "Statistics.out": "The folder that --calibration takes",
    "Statistics.rms": "Median RMS of the state at each boundary, in their order",
    "Statistics.sigma": "Median RMS of the first two fed-back states",
    "Statistics.tokens": "Tokens of prompts and answers that were counted",
    "Upload.doubts": "What is open of how the drafter was trained",
    "Upload.head": "The commit that the revision was when the plan was made",
    "Upload.is_recovered": "Always false: where the answer to the commit is lost, the call could not look",
    "Upload.is_seen": "Whether the repository could be looked at",
    "Upload.is_target_seen": "Whether every target that the files name could be looked up",
    "Upload.message": "The title of the commit",
    "Upload.proposed": "Always null: no open pull requests are searched",
    "Upload.target": "The target that the drafter was judged with, or why with none",
    "Upload.verdict": "The verdict of the rules on the files",
    "Variant.is_verified": "The figures are of draft-and-verify, and not of the first pass",
    "Variant.p_value": "Of no gain, one-sided, over prompts, corrected for the number of readings",
    "Variant.prompts_needed": "Prompts like these that would show a gain which these cannot tell from chance",
    "Verdict.options": "Options of the engine's command line with which it runs the drafter as trained",
    "Verdict.rules": "The rules that report the reasons",
    "Verdict.unread": "What of the files was not read, where it is as trained",
    "Verification.evidence": "What was looked at and held, with what it does not prove",
    "Verification.folder": "The folder, or the repository on the Hub",
    "Verification.has_signature": "Whether there is a model.sig, which is not looked into",
    "Verification.lists": "Where digests were stated: SHA256SUMS, eaglectl.json, REPO@COMMIT for the listing"
    " of --against",
    "Verification.others": "Files that the Hub or its client writes after the lists; every other unlisted"
    " file is in files",
    "Verification.verdict": "could-not-look: nothing differs, and a file could not be compared",
}


# the keys of a record, by its name, or of an object, whose key "*" has those of another record
Stated = str | Mapping[str, Any]
ERROR = shape(
    "Error",
    {
        "kind": Literal["refused", "usage", "unreadable", "outdated", "fault"],
        "exit_code": Literal[1, 2, 3, 70],
        "message": str,
    },
)
INSPECTED = shape("Inspected", {"path": str, "*": "Inspection"})
FAILED = shape("Failed", {"path": str, "error": ERROR})
INSPECTIONS = Annotated[
    Any,
    Meta(extra_json_schema={"oneOf": [{"$ref": "#/$defs/Inspected"}, {"$ref": "#/$defs/Failed"}]}),
]
ENGINES = {
    "engines": tuple[
        shape(
            "Engine",
            {
                "engine": str,
                "title": str,
                "source": str,
                "releases": tuple[
                    shape(
                        "Release",
                        {
                            "release": str,
                            "runners": tuple[Literal["V1", "V2"], ...],
                            "run": Annotated[
                                tuple[str, ...], Meta(description="the runners that ran recorded cases")
                            ],
                            "ids": Annotated[
                                EvidenceKind,
                                Meta(description="whether the functions that resolve layer ids were run"),
                            ],
                            "facts": shape("FactCounts", {"run": int, "read": int}),
                        },
                    ),
                    ...,
                ],
                "gpu_runs": Annotated[
                    tuple[
                        shape(
                            "GpuRun",
                            {
                                "release": str | None,
                                "card": str,
                                "date": str,
                                "eaglectl": Annotated[str, Meta(description="The commit of eaglectl")],
                                "passed": Count,
                                "failed": Count,
                            },
                        ),
                        ...,
                    ],
                    Meta(description="What was run on a GPU; empty where nothing was"),
                ],
                "facts": tuple[FactEvidence, ...],
                "serves": tuple[Service, ...],
                "notes": Annotated[
                    tuple[str, ...],
                    Meta(description="What is known of serving in parallel and with structured output."),
                ],
                "plugin": Annotated[
                    Plugin | None,
                    Meta(description="Whether the installed release loads eaglectl at its start."),
                ],
            },
        ),
        ...,
    ],
    "not_followed": tuple[
        shape("NotFollowed", {"engine": str, "evidence": EvidenceKind, "notes": tuple[str, ...]}), ...
    ],
}
RULES = {
    "rules": tuple[
        shape(
            "Rule",
            {
                "id": RuleId,
                "name": str,
                "severity": Severity,
                "family": str,
                "engines": tuple[str, ...],
                "sentence": str,
                "why": str,
                "fix": str,
                "evidence": str,
                "doc": str,
                "url": str,
            },
        ),
        ...,
    ]
}
# of documents that no single record has: the table of keys, the forms, and objects that only a name states
FORMS: Mapping[str, tuple[str, Sequence[Stated], Sequence[type[Struct]]]] = {
    "engines": ("commands.engines.report.PARTS", [ENGINES], ()),
    "error": ("", [SHAPES[ERROR]], ()),
    "inspect": (
        "report.inspection.PARTS",
        ["Inspection", {"inspections": tuple[INSPECTIONS, ...]}],
        [INSPECTED, FAILED],
    ),
    "rules": ("", [RULES], ()),
    "validate": (
        "report.findings.PARTS",
        ["Report", {"verdict": CheckVerdict, "reports": tuple[Report, ...]}],
        (),
    ),
}
# whose documents they are, where it is not the command of their name
TITLES = {
    "error": "any command when it stops",
    "inspect": "eaglectl inspect: one checkpoint, or several under inspections",
    "load": "eaglectl smoke --load-only",
    "rules": "eaglectl rules: every rule, or the one that was named",
    "validate": "eaglectl validate: one checkpoint, or several under reports",
}
