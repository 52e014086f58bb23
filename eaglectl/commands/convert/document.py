"""The JSON document of `convert`."""

from eaglectl.conversion.plan import ConversionPlan, Step
from eaglectl.report.acceptance import MEASUREMENT, measured
from eaglectl.report.documents import Parts
from eaglectl.report.inspection import DRAFTER
from eaglectl.results import Conversion, OutputServing
from eaglectl.run.gate import Gate, GateRow

PARTS: Parts = {
    **DRAFTER,
    **MEASUREMENT,
    Conversion: (
        "out",
        ("seconds", lambda conversion: round(conversion.seconds, 3)),
        "plan",
        "commands",
        "serving",
        "gate",
        ("measured", measured),
        "kept?",
        "resume?",
        "trust_remote_code?",
    ),
    ConversionPlan: (
        "source",
        "layout",
        "drafter",
        "tensors=steps",
        "config",
        "changes",
        ("left", lambda plan: (*plan.left_tensors, *plan.left_files)),
        "notes",
    ),
    Step: ("name", "action", "from=stored", "dtype", "shape", "bytes=nbytes", "how"),
    OutputServing: ("*verdict", "serving"),
    Gate: (
        "is_passed",
        "ending",
        "prompts_needed",
        "tolerance",
        "prompts",
        "looks",
        "confidence",
        "engine",
        "device",
        "dtype",
        "rows",
    ),
    GateRow: ("k", "before", "after", "ratio", "rounds"),
}
