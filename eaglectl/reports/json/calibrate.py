"""The JSON document of `calibrate`."""

from pathlib import Path
from typing import Any

from eaglectl.conversion.calibration import Statistics
from eaglectl.reports.json.document import head, trust_part


def calibrate_document(
    statistics: Statistics, out: Path, *, trust_remote_code: bool = False
) -> dict[str, Any]:
    """eaglectl/calibrate/1: the statistics without their matrices, and the folder `out` that holds them."""
    return {
        **head("calibrate"),
        "out": str(out),
        **statistics.described(),
        **trust_part(trust_remote_code),
    }
