"""The JSON document of `calibrate`."""

from typing import Any

from eaglectl.conversion.calibration import Statistics
from eaglectl.reports.json.document import head, trust_part


def calibrate_document(statistics: Statistics) -> dict[str, Any]:
    """eaglectl/calibrate/1: the statistics without their matrices, and the folder that holds them."""
    return {
        **head("calibrate"),
        "out": statistics.out,
        **statistics.described(),
        **trust_part(statistics.trust_remote_code),
    }
